//! What several commands are told alike.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use rpcrdma_doctor::{CoreList, core_list};

use super::{OPERATIONS_MAX, OwnFabric, ProfileChoice, Protocol, values};
use crate::address::Address;
use crate::commands::AuthenticationArgs;
use crate::exit::Failure;
use crate::report::output::Outputs;
use crate::run::config::Limit;

/// The options of every command that makes runs.
#[derive(Args, Clone, Debug)]
pub(crate) struct CommonArgs {
    /// Server to call: shm:NAME or rdma:HOST:PORT. Without it, a server of its own is started in a second process, and stopped at the end
    #[arg(long, value_name = "ADDR", value_parser = Address::to_connect)]
    pub connect: Option<Address>,

    /// Fabric of the run's own server, when there is no --connect
    #[arg(long, value_enum, default_value_t = OwnFabric::Shm, conflicts_with = "connect")]
    pub fabric: OwnFabric,

    /// RDMA device, as `rdma link` names it [default: the one on the way to the server, or the first that is active]
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,

    /// Reads and writes in one call: more than one are a COMPOUND
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=OPERATIONS_MAX))]
    pub operations: u32,

    /// Of 100 operations of a mix, how many read [default: 50]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=100))]
    pub read_percent: Option<u32>,

    /// Seed of a mix and of --sizes: the same one makes the same calls [default: 1]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,

    /// Version of RPC-over-RDMA
    #[arg(long, value_enum, default_value_t = Protocol::Auto)]
    pub protocol: Protocol,

    /// What is made slower on purpose
    #[command(flatten)]
    pub slowed: SlowedArgs,

    /// Connections opened beside them that stay silent
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=65_536))]
    pub idle_connections: u32,

    /// Cores to poll on, as in 0,1 or 2-3. With a server of its own the first half is the client's, the rest the server's [default: two cores that share no physical core]
    #[arg(long, value_name = "LIST", value_parser = core_list)]
    pub cores: Option<CoreList>,

    /// How long it takes
    #[command(flatten)]
    pub length: LengthArgs,

    /// How it is tuned
    #[command(flatten)]
    pub profile: ProfileChoice,

    /// How this end and the server prove themselves
    #[command(flatten)]
    pub authentication: AuthenticationArgs,

    /// No table and no progress; errors and warnings only
    #[arg(long, short)]
    pub quiet: bool,
}

/// What is made slower on purpose, to see what it costs.
#[derive(Args, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SlowedArgs {
    /// One-way delay of everything that is sent, to try distance on one machine (shm; for rdma, tests/lab/lab run --delay)
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = values::time)]
    pub delay: Duration,

    /// Time for which the bench service keeps its core busy in each call, to try a slower one
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
    /// How long to measure, as in 10s or 500ms [default: 5s]
    #[arg(long, value_name = "TIME", value_parser = values::time_above_zero, conflicts_with = "count")]
    pub duration: Option<Duration>,

    /// Measure this many calls instead of a time (k and M are understood)
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

    /// Write the report as a page for a browser, with charts; it needs no network and no script
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// Length of the intervals of --intervals, --json, --hlog and --html [default: 1s; longer in runs of more than an hour]
    #[arg(long, value_name = "TIME", value_parser = values::time)]
    pub interval: Option<Duration>,

    /// Rate and round-trip times of each interval in the table too
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
