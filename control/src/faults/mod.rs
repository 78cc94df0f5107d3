//! Injected faults, to test how peers and applications handle them.
//!
//! A [`FaultPlan`] is a list of [`Fault`]s; [`Node::start_with_faults`](crate::Node::start_with_faults) starts a node
//! that injects them. They are injected at the interface that all fabrics share, and around the application. So they
//! are the same on `shm` and on RDMA devices:
//!
//! | Where | What it injects |
//! |---|---|
//! | [`FaultyPort`] | messages and Receives that are late, lost connections, RDMA Reads and Writes that fail |
//! | [`FaultyManager`] | connects that are refused |
//! | [`FaultyApplication`] | calls that are never answered, or with an error |

mod application;
mod draws;
mod fault;
mod manager;
mod plan;
mod port;
mod provider;

pub use application::FaultyApplication;
pub use fault::{Fault, FaultError, FaultKind, Often};
pub use manager::FaultyManager;
pub use plan::FaultPlan;
pub use port::FaultyPort;
pub use provider::FaultyProvider;
