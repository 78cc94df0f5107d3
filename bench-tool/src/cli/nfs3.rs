//! Options of `bench-tool serve --service nfs3`.

use clap::Args;

use super::values;

/// What an NFS server holds.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "NFS server")]
pub struct Nfs3Args {
    /// Space for files; it is taken as they grow, and the server answers NFS3ERR_NOSPC beyond it
    #[arg(long, value_name = "BYTES", default_value = "1GiB", value_parser = values::size_bytes)]
    pub space: u64,

    /// Files of all kinds, directories included
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub max_files: u32,
}
