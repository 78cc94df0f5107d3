//! What a run does.

use std::time::Duration;

use crate::address::Address;
use crate::authentication::Host;
use crate::load::LoadConfig;
use crate::protocol::Protocol;
use crate::sizing::ProfileChoice;
use crate::workloads::bench::op::{Op, Placement};
use crate::workloads::bench::sizes::Sizes;

/// The fabric of a run's own server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OwnFabric {
    #[default]
    Shm,
    Rdma,
}

impl OwnFabric {
    /// The name used on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Rdma => "rdma",
        }
    }
}

/// Artificial delays, to see what they cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slowed {
    /// One-way delay of everything that is sent.
    pub delay: Duration,
    /// Time for which the bench service keeps its core busy in each call.
    pub service_time: Duration,
}

impl Slowed {
    /// The same as arguments, for a server that a run starts.
    #[must_use]
    pub(crate) fn arguments(&self) -> Vec<String> {
        let given = [
            ("--delay", self.delay),
            ("--service-time", self.service_time),
        ];
        let given = given.into_iter().filter(|(_, time)| !time.is_zero());
        given
            .flat_map(|(option, time)| [option.to_owned(), format!("{}ns", time.as_nanos())])
            .collect()
    }
}

/// Who answers the calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Server {
    /// A server of the run's own, in a second process.
    Own {
        /// The fabric between the two.
        fabric: OwnFabric,
        /// The cores that it polls on.
        cores: Vec<usize>,
    },
    /// A server that is there already.
    At(Address),
}

/// What calls with bulk data do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BulkConfig {
    /// Operations in one call.
    pub operations: u32,
    /// Of 100 operations, how many read.
    pub read_percent: u32,
    /// What a mix is drawn from.
    pub seed: u64,
    /// How payloads are to travel.
    pub placement: Placement,
}

/// A run that can be made on this machine.
#[derive(Clone, Debug)]
pub(crate) struct RunConfig {
    /// The command line, for the report.
    pub command: String,
    /// Who answers the calls.
    pub server: Server,
    /// The procedure to call.
    pub op: Op,
    /// Payload of one operation; 0 for null.
    pub size_bytes: u64,
    /// The sizes that operations are drawn from; `size_bytes` is the largest of them then.
    pub sizes: Option<Sizes>,
    /// What the calls do; `None` for null and echo.
    pub bulk: Option<BulkConfig>,
    /// The server makes the calls, in the reverse direction.
    pub reverse: bool,
    /// The version of RPC-over-RDMA.
    pub protocol: Protocol,
    /// What is made slower, at both ends where the server is the run's own.
    pub slowed: Slowed,
    /// How the load is made.
    pub load: LoadConfig,
    /// Connections beside it that stay silent.
    pub idle_connections: u32,
    /// RDMA device as given; `None` leaves it to the address.
    pub device: Option<String>,
    /// Tuning profile as given.
    pub profile: ProfileChoice,
    /// This end, where both ends prove themselves.
    pub host: Option<Host>,
    /// What is doubtful about the plan itself.
    pub warnings: Vec<String>,
}

impl RunConfig {
    /// The two cores whose floor the run is set against: the first of the client and the first of its own server.
    /// `None` where the server is elsewhere, or shares the client's core.
    #[must_use]
    pub(crate) fn floor_cores(&self) -> Option<[usize; 2]> {
        let Server::Own { cores, .. } = &self.server else {
            return None;
        };
        let (&client, &server) = (self.load.cores.first()?, cores.first()?);
        (client != server).then_some([client, server])
    }

    /// Payload of one call, all of its operations together.
    #[must_use]
    pub(crate) fn call_bytes(&self) -> u64 {
        let operations = self.bulk.map_or(1, |bulk| bulk.operations);
        self.size_bytes.saturating_mul(operations.into())
    }

    /// Payload of `calls` calls; those with bulk data moved `bulk_bytes`.
    #[must_use]
    pub(crate) fn payload_bytes(&self, calls: u64, bulk_bytes: u64) -> u64 {
        let all = || calls.saturating_mul(self.call_bytes());
        self.bulk.map_or_else(all, |_| bulk_bytes)
    }

    /// Credits that a connection of the run needs of each end. In version 1 a quarter of them is for calls in the
    /// reverse direction.
    #[must_use]
    pub(crate) fn credits(&self) -> u32 {
        let times = if self.reverse { 4 } else { 1 };
        self.load.depth.saturating_mul(times).min(u16::MAX.into())
    }
}
