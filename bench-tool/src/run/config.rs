//! The configuration of `bench-tool run`.

use std::time::Duration;

use rpcrdma_control::ServerAddresses;

use crate::authentication::Host;
use crate::load::LoadConfig;
use crate::protocol::Protocol;
use crate::run::through::Through;
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

/// Artificial delays, to measure their effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slowed {
    /// One-way delay of every message.
    pub delay: Duration,
    /// How long the bench service keeps its core busy in each call.
    pub service_time: Duration,
}

impl Slowed {
    /// The same values as arguments, for a server that the run starts.
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
    /// A server that the run starts, as a second process.
    Own {
        /// The fabric between client and server.
        fabric: OwnFabric,
        /// The CPUs of its polling cores.
        cores: Vec<usize>,
    },
    /// A server that already runs, at these addresses.
    At(ServerAddresses),
}

/// Options of calls with bulk data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BulkConfig {
    /// Operations in one call.
    pub operations: u32,
    /// Percentage of operations that read.
    pub read_percent: u32,
    /// Seed of the random sequence.
    pub seed: u64,
    /// How payloads travel.
    pub placement: Placement,
}

/// A configuration that was checked against this machine.
#[derive(Clone, Debug)]
pub(crate) struct RunConfig {
    /// The command line, for the report.
    pub command: String,
    /// Who answers the calls.
    pub server: Server,
    /// The procedure to call.
    pub op: Op,
    /// Payload of one operation in bytes; 0 for null.
    pub size_bytes: u64,
    /// The sizes of a mix of sizes; `size_bytes` is then the largest.
    pub sizes: Option<Sizes>,
    /// Options of bulk calls; `None` for null and echo.
    pub bulk: Option<BulkConfig>,
    /// Whether the server makes the calls (reverse direction).
    pub reverse: bool,
    /// Who makes the calls at this end.
    pub through: Through,
    /// The allowed versions of RPC-over-RDMA.
    pub protocol: Protocol,
    /// Artificial delays; the run passes them on to a server that it starts.
    pub slowed: Slowed,
    /// The options of the load.
    pub load: LoadConfig,
    /// Additional connections that stay idle.
    pub idle_connections: u32,
    /// RDMA device as given; with `None` the address selects it.
    pub device: Option<String>,
    /// Tuning profile as given.
    pub profile: ProfileChoice,
    /// This endpoint's identity; `None` without host authentication.
    pub host: Option<Host>,
    /// Warnings about the configuration itself.
    pub warnings: Vec<String>,
}

impl RunConfig {
    /// The two cores between which the floor is measured: the first core of the client, and the first core of the server
    /// that the run starts. `None` if the run starts no server, or both share a core.
    #[must_use]
    pub(crate) fn floor_cores(&self) -> Option<[usize; 2]> {
        let Server::Own { cores, .. } = &self.server else {
            return None;
        };
        let (&client, &server) = (self.load.cores.first()?, cores.first()?);
        (client != server).then_some([client, server])
    }

    /// The connections to the server. Threads that call through the library have theirs, and one more is for questions
    /// to the server.
    #[must_use]
    pub(crate) fn connections(&self) -> u32 {
        let own = u32::from(self.through != Through::Core);
        self.load.connections.saturating_add(own)
    }

    /// The calls that one core may have outstanding, in so many connections: a poller has its calls and those of
    /// its client.
    pub(crate) fn calls(&self, connections: u32) -> Option<u32> {
        let of_clients = match self.through {
            Through::Core => 0,
            _ => connections.saturating_add(1),
        };
        let calls = connections.checked_mul(self.load.depth)?;
        calls
            .checked_add(of_clients)
            .filter(|calls| *calls <= 1 << 16)
    }

    /// The parts of the load, each of one core or thread.
    #[must_use]
    pub(crate) fn parts(&self) -> usize {
        match self.through {
            Through::Core => self.load.cores.len(),
            through => through.threads(self.load.connections, self.load.depth) as usize,
        }
    }

    /// The cores that this run polls on, those of a server that it starts too.
    #[must_use]
    pub(crate) fn all_cores(&self) -> Vec<usize> {
        let mut cores = self.load.cores.clone();
        if let Server::Own { cores: own, .. } = &self.server {
            cores.extend(own);
        }
        cores
    }

    /// Payload of one call in bytes, over all operations.
    #[must_use]
    pub(crate) fn call_bytes(&self) -> u64 {
        let operations = self.bulk.map_or(1, |bulk| bulk.operations);
        self.size_bytes.saturating_mul(operations.into())
    }

    /// Payload of `calls` calls in bytes: `bulk_bytes` for calls with bulk data, which may differ in size.
    #[must_use]
    pub(crate) fn payload_bytes(&self, calls: u64, bulk_bytes: u64) -> u64 {
        let all = || calls.saturating_mul(self.call_bytes());
        self.bulk.map_or_else(all, |_| bulk_bytes)
    }

    /// Credits that each connection needs at either endpoint. In the reverse direction it asks for four times the
    /// depth, because in version 1 only a quarter of the credits is for reverse calls.
    #[must_use]
    pub(crate) fn credits(&self) -> u32 {
        let times = if self.reverse { 4 } else { 1 };
        self.load.depth.saturating_mul(times).min(u16::MAX.into())
    }
}
