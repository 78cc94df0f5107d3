//! Errors of the control plane: what failed, on what, and what to do.

use std::time::Duration;

use rpcrdma_engine::{AuthenticationFailure, CloseReason};
use rpcrdma_fabric::interface::{ManagerError, RejectReason, SetupError};

/// The stage that a connection had reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The request was on its way.
    Requesting,
    /// The queue pair was being set up in its core.
    Adopting,
    /// Version and transport properties were being exchanged.
    ExchangingProperties,
    /// Calls could be made.
    Ready,
}

impl std::fmt::Display for Stage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Requesting => "waiting for the answer to the connection request",
            Self::Adopting => "setting up the queue pair",
            Self::ExchangingProperties => "exchanging version and properties",
            Self::Ready => "in use",
        })
    }
}

/// Why a connection could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The fabric could not make it.
    #[error(transparent)]
    Fabric(#[from] ManagerError),
    /// The peer rejected it.
    #[error("`{address}` rejected the connection: {reason}")]
    Rejected {
        /// The address that was connected to.
        address: String,
        /// The peer's reason.
        reason: RejectReason,
    },
    /// The peer did not answer in time.
    #[error(
        "connecting to `{address}` took longer than {} ms ({stage}); the peer may be stopped or overloaded",
        after.as_millis()
    )]
    Timeout {
        /// The address that was connected to.
        address: String,
        /// The time that was given.
        after: Duration,
        /// How far it had come.
        stage: Stage,
    },
    /// The peer speaks no version that we speak.
    #[error(
        "`{address}` speaks RPC-over-RDMA versions {low} to {high}, this end speaks version 2 only"
    )]
    VersionMismatch {
        /// The address that was connected to.
        address: String,
        /// The lowest version that the peer speaks.
        low: u32,
        /// The highest version that the peer speaks.
        high: u32,
    },
    /// The peer closed the connection or died.
    #[error("`{address}` closed the connection or died ({stage})")]
    PeerGone {
        /// The address that was connected to.
        address: String,
        /// How far it had come.
        stage: Stage,
    },
    /// The peer's receive buffers cannot take the first message of a connection.
    #[error(
        "`{address}` announced receive buffers of {announced_bytes} octets; a connection needs at least \
         {least_bytes}, and every receiver should have 4096: raise receive_buffer_bytes at the peer"
    )]
    ReceiveBufferTooSmall {
        /// The address that was connected to.
        address: String,
        /// What the peer announced (-00 section 5.2.2), in octets.
        announced_bytes: u32,
        /// What a connection needs, in octets.
        least_bytes: u32,
    },
    /// Host authentication failed.
    #[error("host authentication with `{address}` failed: {failure}")]
    Unauthenticated {
        /// The address that was connected to.
        address: String,
        /// Why.
        failure: AuthenticationFailure,
    },
    /// The connection was ended for a reason that this end knows: the peer broke the protocol, or
    /// refused what this end announced.
    #[error("the connection to `{address}` was ended ({stage}): {reason}")]
    Ended {
        /// The address that was connected to.
        address: String,
        /// How far it had come.
        stage: Stage,
        /// Why.
        reason: CloseReason,
    },
    /// No core of ours has room.
    #[error(
        "no core has room for another connection: all {limit} that receive memory was reserved for are in use; raise connections_max"
    )]
    NoRoom {
        /// The connections that our cores can hold together.
        limit: u32,
    },
    /// The core that was asked for does not exist.
    #[error("there is no core {asked}: the node has {cores}")]
    NoSuchCore {
        /// The core asked for.
        asked: usize,
        /// How many there are.
        cores: usize,
    },
    /// The queue pair could not be set up here.
    #[error("the queue pair could not be set up")]
    Setup(#[from] SetupError),
    /// The node is shutting down.
    #[error("the node is shutting down")]
    ShuttingDown,
}

/// Why a node could not be started, or could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// A limit above the reserved memory, or too low to serve any peer.
    #[error(
        "{asked} {what} cannot be: memory was reserved for it at the start, and from {least} to {most} can be had"
    )]
    LimitOutside {
        /// What is limited.
        what: &'static str,
        /// The limit asked for.
        asked: u32,
        /// The least that can be.
        least: u32,
        /// The most that can be.
        most: u32,
    },
    /// A core could not be set up.
    #[error("core {core} could not be set up")]
    Core {
        /// The core's number within the node.
        core: usize,
        /// Why.
        #[source]
        source: SetupError,
    },
    /// A core's thread could not be pinned.
    #[error("core {core} could not be pinned: {why}")]
    Pin {
        /// The core's number within the node.
        core: usize,
        /// Why, and what there is instead.
        why: String,
    },
    /// The fabric could not do it.
    #[error(transparent)]
    Fabric(#[from] ManagerError),
    /// The options do not say who may connect, and the fabric does not check peers itself.
    #[error(
        "listening on `{address}` needs a decision: that fabric vouches for no peer, so say who may connect \
         (`ListenOptions::authentication`): peers with a key, or anybody"
    )]
    AuthenticationUndecided {
        /// The address.
        address: String,
    },
    /// Calls in both directions, with a window that could stop them.
    #[error(
        "calls in the reverse direction need credits_per_connection of {least} or more, and it is {credits}: with so \
         few, two ends that call each other can use up all credits for calls and have none left for replies; raise \
         it, or leave out `NodeConfig::with_reverse_calls`"
    )]
    WindowTooSmall {
        /// The credits that peers would have.
        credits: u16,
        /// The least number of them.
        least: u16,
    },
    /// The memory guaranteed to the connections of all cores exceeds the memory of the machine.
    #[error(transparent)]
    Memory(SetupError),
    /// A thread could not be started.
    #[error("a thread could not be started")]
    Thread(#[source] std::io::Error),
    /// The control thread has ended.
    #[error("the control thread has ended")]
    Gone,
}
