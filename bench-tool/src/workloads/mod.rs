//! The workloads of the load generator: one for each RPC program that is called.

pub(crate) mod bench;
pub(crate) mod nfs;
