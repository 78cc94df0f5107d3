//! The workloads of the load generator: one for each RPC program.

pub(crate) mod bench;
pub(crate) mod nfs;
