//! What a server does.

use std::time::Duration;

use super::operate::Operation;
use crate::address::Address;
use crate::authentication::Host;
use crate::sizing::{Need, ProfileChoice};

/// What is served, where and how.
pub(crate) struct ServeConfig {
    /// Where to listen.
    pub listen: Address,
    /// RDMA device as given; `None` leaves it to the address.
    pub device: Option<String>,
    /// One-way delay of everything that is sent.
    pub delay: Duration,
    /// The polling cores; at least one.
    pub cores: Vec<usize>,
    /// What each of them needs.
    pub need: Need,
    /// Tuning profile as given.
    pub profile: ProfileChoice,
    /// How clients prove themselves, if they have to.
    pub host: Option<Host>,
    /// What is served.
    pub service: Service,
    /// How it is watched.
    pub operation: Operation,
}

/// What a server serves.
pub(crate) enum Service {
    /// The bench program.
    Bench {
        /// For how long each call keeps its core busy.
        time: Duration,
        /// Whether it calls clients that request it.
        reverse: bool,
    },
    /// NFS version 3, on one core.
    Nfs3(Nfs3Config),
}

/// What an NFS server holds.
pub(crate) struct Nfs3Config {
    /// Space for files.
    pub space_bytes: u64,
    /// Most files of all kinds, directories included.
    pub files_max: u32,
    /// Where MOUNT is.
    pub mount_listen: (String, u16),
}
