//! Options that several commands share.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use rpcrdma_doctor::{CoreList, core_list};

use super::{OPERATIONS_MAX, OwnFabric, ProfileChoice, Protocol, values};
use crate::address::Address;
use crate::commands::AuthenticationArgs;
use crate::exit::Failure;
use crate::load::Limit;
use crate::report::output::Outputs;

/// The options of every command that makes runs.
#[derive(Args, Clone, Debug)]
pub(crate) struct CommonArgs {
    /// Server to call: shm:NAME or rdma:HOST:PORT [default: its own server, in a second process]
    #[arg(long, value_name = "ADDR", value_parser = Address::to_connect)]
    pub connect: Option<Address>,

    /// Fabric of the run's own server, without --connect
    #[arg(long, value_enum, default_value_t = OwnFabric::Shm, conflicts_with = "connect")]
    pub fabric: OwnFabric,

    /// RDMA device, as `rdma link` names it [default: the one on the route to the server, or the first active one]
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,

    /// Reads and writes in one call; several make a COMPOUND
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=OPERATIONS_MAX))]
    pub operations: u32,

    /// Percentage of reads in a mix [default: 50]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=100))]
    pub read_percent: Option<u32>,

    /// Seed of a mix and of --sizes: the same seed makes the same calls [default: 1]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,

    /// Version of RPC-over-RDMA
    #[arg(long, value_enum, default_value_t = Protocol::Auto)]
    pub protocol: Protocol,

    /// Artificial delays
    #[command(flatten)]
    pub slowed: SlowedArgs,

    /// More connections, which stay silent
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=65_536))]
    pub idle_connections: u32,

    /// Cores to poll on, such as 0,1 or 2-3. Without --connect the first half is the client's, the rest the server's [default: two cores that share no physical core]
    #[arg(long, value_name = "LIST", value_parser = core_list)]
    pub cores: Option<CoreList>,

    /// Length of the run
    #[command(flatten)]
    pub length: LengthArgs,

    /// Tuning
    #[command(flatten)]
    pub profile: ProfileChoice,

    /// Host authentication of this end and the server
    #[command(flatten)]
    pub authentication: AuthenticationArgs,

    /// Show only errors and warnings, no table and no progress
    #[arg(long, short)]
    pub quiet: bool,
}

/// Artificial delays, to see what it costs.
#[derive(Args, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SlowedArgs {
    /// One-way delay of everything that is sent, to simulate distance on shm (for rdma: tests/lab/lab run --delay)
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = values::time)]
    pub delay: Duration,

    /// Time for which the bench service keeps its core busy in each call, to simulate a slower service
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = values::time)]
    pub service_time: Duration,
}

impl SlowedArgs {
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

/// How long a run of any kind takes.
#[derive(Args, Clone, Debug)]
pub(crate) struct LengthArgs {
    /// How long to measure, such as 10s or 500ms [default: 5s]
    #[arg(long, value_name = "TIME", value_parser = values::time_above_zero, conflicts_with = "count")]
    pub duration: Option<Duration>,

    /// Measure this many calls instead of a time, such as 1M
    #[arg(long, value_name = "N", value_parser = values::count)]
    pub count: Option<u64>,

    /// How long to run before measuring
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = values::time)]
    pub warmup: Duration,
}

impl LengthArgs {
    /// When a run ends; after `duration`, where nothing is said.
    #[must_use]
    pub(crate) fn limit(&self, duration: Duration) -> Limit {
        let duration = || Limit::Duration(self.duration.unwrap_or(duration));
        self.count.map_or_else(duration, Limit::Count)
    }
}

/// Where the report of a load goes, and how much of it.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct OutputArgs {
    /// Write the report as JSON; `-` is standard output, and the table then goes to standard error
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Write the percentile distribution as text that HdrHistogram plotters load
    #[arg(long, value_name = "FILE")]
    pub hgrm: Option<PathBuf>,

    /// Write the histogram of each interval as a log that HdrHistogram's tools read
    #[arg(long, value_name = "FILE")]
    pub hlog: Option<PathBuf>,

    /// Write the report as a page with charts, for a browser without network or scripts
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// Length of the intervals of --intervals, --json, --hlog and --html [default: 1s; longer in runs of more than an hour]
    #[arg(long, value_name = "TIME", value_parser = values::time)]
    pub interval: Option<Duration>,

    /// Show rate and round-trip times of each interval in the table
    #[arg(long)]
    pub intervals: bool,
}

impl OutputArgs {
    /// Refuses files that cannot be written, before anything is measured.
    ///
    /// # Errors
    /// A failure that names the file.
    pub(crate) fn check(&self) -> Result<Outputs, Failure> {
        Outputs::check(&[
            ("--json", self.json.as_deref()),
            ("--hgrm", self.hgrm.as_deref()),
            ("--hlog", self.hlog.as_deref()),
            ("--html", self.html.as_deref()),
        ])
    }
}
