//! Errors of the interface: small and `Copy` on the data path, detailed on the control path.

use std::io;

use crate::address::AddressError;

/// Why a work request was not posted. Nothing was posted, and the caller keeps its buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostError {
    /// No queue pair has this index and generation.
    UnknownQueuePair,
    /// The queue pair is not connected: in error, or already closed.
    NotConnected,
    /// The send queue, or the way to the peer, is full: post again after a poll.
    QueueFull,
    /// More bytes than the operation or the remote range takes.
    TooLong,
    /// The gather list is empty or longer than the device takes.
    BadSegments,
    /// A buffer of another port's memory, or a window of another port.
    ForeignMemory,
    /// The device lacks the operation, or the two ends of the connection agreed not to use it: posting it again cannot
    /// succeed.
    Unsupported,
    /// No memory window is free.
    NoWindow,
}

impl std::fmt::Display for PostError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::UnknownQueuePair => "no such queue pair",
            Self::NotConnected => "the queue pair is not connected",
            Self::QueueFull => "the send queue is full",
            Self::TooLong => "more bytes than the operation takes",
            Self::BadSegments => "an empty or too long segment list",
            Self::ForeignMemory => "a buffer or window of another port",
            Self::Unsupported => "the device or the connection lacks this operation",
            Self::NoWindow => "no memory window is free",
        })
    }
}

impl std::error::Error for PostError {}

/// Why a resource could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The request exceeds a limit of the device.
    #[error("{what}: {asked} asked for, the device takes at most {limit}")]
    Limit {
        /// The limited thing.
        what: &'static str,
        /// What was asked for.
        asked: u64,
        /// What there is.
        limit: u64,
    },
    /// The guarantees of all holders of a resource exceed the resource.
    #[error(
        "{what} cannot be guaranteed: {sum} = {needed} needed, and there are {available} {of}; {remedy}"
    )]
    Guarantees {
        /// What each holder is to have.
        what: &'static str,
        /// The terms of the sum, with what each is.
        sum: String,
        /// The sum.
        needed: u64,
        /// What there is.
        available: u64,
        /// What it is, in the plural, and whose.
        of: &'static str,
        /// What to change.
        remedy: &'static str,
    },
    /// A buffer of another port's memory.
    #[error("a buffer of another port's memory")]
    ForeignMemory,
    /// The operating system refused.
    #[error("{doing}: {source}")]
    System {
        /// What was being done.
        doing: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The peer's part of a connection is invalid.
    #[error("the peer's {what}")]
    Peer {
        /// What is wrong with it.
        what: String,
    },
}

impl SetupError {
    /// The first of these that is zero or above its limit, as an error. Each is the limited thing, what was asked for, and
    /// the limit.
    pub(crate) fn check_limits(limits: &[(&'static str, u64, u64)]) -> Result<(), Self> {
        let is_wrong = |(_, asked, limit): &&(_, u64, u64)| asked > limit || *asked == 0;
        match limits.iter().find(is_wrong) {
            Some(&(what, asked, limit)) => Err(Self::Limit { what, asked, limit }),
            None => Ok(()),
        }
    }
}

impl From<AddressError> for ManagerError {
    fn from(error: AddressError) -> Self {
        Self::BadAddress {
            address: error.address,
            why: format!("it {}", error.fault),
        }
    }
}

/// Whether an address is a name of the shm fabric.
fn is_shm(address: &str) -> bool {
    address.starts_with("shm:")
}

/// Why a connection could not be listened for, made or accepted.
#[derive(Debug, thiserror::Error)]
pub enum ManagerError {
    /// The address cannot be read.
    #[error("the address `{address}` cannot be used: {why}")]
    BadAddress {
        /// The address as given.
        address: String,
        /// What is wrong with it, and how it should look.
        why: String,
    },
    /// The address is in use by another listener.
    #[error(
        "`{address}` is in use: another process listens on it; choose another {} or stop that process",
        if is_shm(address) { "name" } else { "port" }
    )]
    InUse {
        /// The address as given.
        address: String,
    },
    /// Nobody listens there.
    #[error(
        "connection refused: nobody listens on `{address}`; start a server there first{}",
        if is_shm(address) { ", as the same user and in the same network namespace (a container has its own)" } else { "" }
    )]
    Refused {
        /// The address as given.
        address: String,
    },
    /// There is no route, or no answer.
    #[error("`{address}` cannot be reached: {why}")]
    Unreachable {
        /// The address as given.
        address: String,
        /// Why, and what to do.
        why: String,
    },
    /// The peer's fabric refused, or its application for an unknown reason.
    #[error("`{address}` refused the connection: {why}")]
    RefusedByPeer {
        /// The address as given.
        address: String,
        /// Why.
        why: String,
    },
    /// The route uses another device than the port.
    #[error(
        "`{address}` is reached through the device `{device}`, and this port is on `{port_device}`: name the other device, or an address of its network"
    )]
    OtherDevice {
        /// The address as given.
        address: String,
        /// The device of the route.
        device: String,
        /// The device of the port.
        port_device: String,
    },
    /// The port's device was removed, and came back under the same name: this port cannot use it.
    #[error(
        "`{address}` is reached through the device `{device}`, which was removed and came back since this node was started: start the node again"
    )]
    DeviceReplaced {
        /// The address as given.
        address: String,
        /// The device of the route.
        device: String,
    },
    /// The device was removed, or has failed.
    #[error("the RDMA device of the connection to `{address}` was removed")]
    DeviceRemoved {
        /// The address as given.
        address: String,
    },
    /// The connection has ended.
    #[error("no such connection")]
    UnknownConnection,
    /// The operating system refused.
    #[error("{doing}: {source}")]
    System {
        /// What was being done.
        doing: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A queue pair could not be set up.
    #[error(transparent)]
    Setup(#[from] SetupError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_or_silent_address_says_what_to_change_on_its_fabric() {
        let of = |address: &str| {
            let address = address.to_owned();
            let taken = ManagerError::InUse {
                address: address.clone(),
            };
            [taken, ManagerError::Refused { address }].map(|it| it.to_string())
        };
        let [taken, refused] = of("shm:x");
        assert!(taken.contains("`shm:x` is in use") && taken.contains("choose another name"));
        assert!(refused.contains("same user and in the same network namespace"));
        let [taken, refused] = of("rdma:a:1");
        assert!(taken.contains("choose another port"), "{taken}");
        assert!(!refused.contains("namespace"), "{refused}");
    }
}
