//! The options of `bench-tool serve --service nfs3`.

use clap::Args;

use super::values;
use crate::serve::config::Nfs3Config;
use rpcrdma_control::{AddressError, host_and_port};

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

    /// TCP address of MOUNT, and of NFS over TCP, when --listen is rdma: or shm:
    #[arg(long, value_name = "HOST:PORT", default_value = "0.0.0.0:20048", value_parser = host_port)]
    pub mount_listen: (String, u16),
}

impl Nfs3Args {
    pub(super) fn config(&self) -> Nfs3Config {
        Nfs3Config {
            space_bytes: self.space,
            files_max: self.max_files,
            mount_listen: self.mount_listen.clone(),
        }
    }
}

/// Parses `HOST:PORT`.
pub(super) fn host_port(text: &str) -> Result<(String, u16), AddressError> {
    host_and_port(text).map_err(|fault| fault.of(text))
}
