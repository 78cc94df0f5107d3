//! The options of `bench-tool serve --service nfs3`.

use clap::Args;
use rpcrdma_control::{AddressError, host_and_port};

use super::values;
use crate::address::ListenAddress;
use crate::serve::config::Nfs3Config;

/// The options of an NFS server.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "NFS server")]
pub(crate) struct Nfs3Args {
    /// Space for files; beyond it the server answers NFS3ERR_NOSPC. On tcp: it is allocated as files grow, on shm: and rdma: registered at start-up
    #[arg(long, value_name = "BYTES", default_value = "1GiB", value_parser = values::size_bytes)]
    pub space: u64,

    /// Maximum number of files, including directories
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub max_files: u32,

    /// Serve MOUNT and NFS on this TCP address too, when --listen is rdma: or shm:. The Linux client needs it to mount; anybody who reaches it is served, so --psk-file is refused with it [default: no TCP]
    #[arg(long, value_name = "HOST:PORT", value_parser = host_port)]
    pub mount_listen: Option<(String, u16)>,
}

impl Nfs3Args {
    pub(super) fn config(&self) -> Nfs3Config {
        Nfs3Config {
            space_bytes: self.space,
            files_max: self.max_files,
            mount_listen: self.mount_listen.clone(),
        }
    }

    /// The address of `--mount-listen`.
    pub(super) fn mount_address(&self) -> Option<ListenAddress> {
        let (host, port) = self.mount_listen.clone()?;
        Some(ListenAddress::Tcp { host, port })
    }
}

/// Parses `HOST:PORT`.
pub(super) fn host_port(text: &str) -> Result<(String, u16), AddressError> {
    host_and_port(text).map_err(|fault| fault.of(text))
}
