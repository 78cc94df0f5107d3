//! The configuration of `bench-tool serve`.

use std::time::Duration;

use rpcrdma_control::ServerAddresses;

use super::operate::Operation;
use crate::address::ListenAddress;
use crate::authentication::Admission;
use crate::sizing::{Need, ProfileChoice};

/// The configuration of a server over RPC-over-RDMA.
pub(crate) struct ServeConfig {
    /// The addresses to listen on.
    pub listen: ServerAddresses,
    /// RDMA device as given; with `None` the address selects it.
    pub device: Option<String>,
    /// Artificial one-way delay of every message.
    pub delay: Duration,
    /// The CPUs of the polling cores; at least one.
    pub cores: Vec<usize>,
    /// The requirements of each core.
    pub need: Need,
    /// Tuning profile as given.
    pub profile: ProfileChoice,
    /// Who may connect.
    pub admission: Admission,
    /// The RPC program.
    pub service: Service,
    /// Metrics, log and limits.
    pub operation: Operation,
}

impl ServeConfig {
    /// All addresses to listen on.
    pub(super) fn addresses(&self) -> Vec<ListenAddress> {
        let mount = match &self.service {
            Service::Nfs3(nfs3) => nfs3.mount_listen.clone(),
            Service::Bench { .. } => None,
        };
        let mount = mount.map(|(host, port)| ListenAddress::Tcp { host, port });
        let each = self.listen.iter().cloned().map(ServerAddresses::from);
        each.map(ListenAddress::Fabric).chain(mount).collect()
    }
}

/// The RPC program of a server.
pub(crate) enum Service {
    /// The bench program.
    Bench {
        /// Artificial time for which each call keeps its core busy.
        time: Duration,
        /// Whether it makes calls in the reverse direction on request.
        reverse: bool,
    },
    /// NFS version 3, on one core.
    Nfs3(Nfs3Config),
}

/// The configuration of an NFS server.
#[derive(Clone)]
pub(crate) struct Nfs3Config {
    /// Space for files in bytes.
    pub space_bytes: u64,
    /// Upper bound of the number of files, including directories.
    pub files_max: u32,
    /// Host and port of a second listener, on TCP, of a server over RPC-over-RDMA.
    pub mount_listen: Option<(String, u16)>,
}
