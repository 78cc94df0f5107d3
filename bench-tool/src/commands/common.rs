//! Options that several commands share.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use rpcrdma_control::ServerAddresses;
use rpcrdma_doctor::{CoreList, core_list};

use super::authentication::AuthenticationArgs;
use super::nfs3::host_port;
use super::profile::ProfileChoiceArgs;
use super::values;
use crate::exit::Failure;
use crate::load::timeline::INTERVALS_MAX;
use crate::load::{Limit, LoadConfig};
use crate::metrics::MetricsAddress;
use crate::metrics::load::LoadMetrics;
use crate::protocol::Protocol;
use crate::report::output::Outputs;
use crate::run::config::{OwnFabric, Slowed};

/// Upper bound of the operations in one call, in the type that clap needs.
pub(super) const OPERATIONS_MAX: i64 = 8;

const _: () = assert!(crate::bench_program::OPERATIONS_MAX == 8, "the same");

/// Default measured time without `--duration` and `--count`.
const DURATION_DEFAULT: Duration = Duration::from_secs(5);

/// Default measured time of each step of `--to-knee`.
const DURATION_TO_KNEE_DEFAULT: Duration = Duration::from_secs(2);

/// Default length of an interval, unless the run would have more than [`INTERVALS_DEFAULT`] intervals.
const INTERVAL_DEFAULT: Duration = Duration::from_secs(1);

/// Upper bound of the number of intervals without `--interval`; in a longer run the intervals are longer.
const INTERVALS_DEFAULT: u32 = 3_600;

/// The shortest interval. The histograms are collected every 20 ms, and a core has three spare ones.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// The options of all commands that make runs.
#[derive(Args, Clone, Debug)]
pub(crate) struct CommonArgs {
    /// Server to call: shm:NAME or rdma:HOST:PORT; several addresses of one server with commas, as in shm:a,b [default: its own server, in a second process]
    ///
    /// Connections begin at the addresses in turn. With --retry one that is lost goes on at the next address.
    #[arg(long, value_name = "ADDR[,...]", value_parser = ServerAddresses::to_connect)]
    pub connect: Option<ServerAddresses>,

    /// Fabric of the run's own server, without --connect
    #[arg(long, value_enum, default_value_t = OwnFabric::Shm, conflicts_with = "connect")]
    pub fabric: OwnFabric,

    /// RDMA devices, separated by commas, without their ports (mlx5_0, not mlx5_0/1); or all [default: those on the routes to the server]
    #[arg(long, value_name = "NAME[,...]")]
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
    pub profile: ProfileChoiceArgs,

    /// Host authentication of this end and the server
    #[command(flatten)]
    pub authentication: AuthenticationArgs,

    /// Show only errors and warnings, no table and no progress
    #[arg(long, short)]
    pub quiet: bool,
}

/// Artificial delays.
#[derive(Args, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SlowedArgs {
    /// One-way delay of every message, to simulate distance on shm (for rdma: tests/lab/lab run --delay)
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = values::delay)]
    pub delay: Duration,

    /// Time for which the bench service keeps its core busy in each call, to simulate a slower service
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = values::time)]
    pub service_time: Duration,
}

impl SlowedArgs {
    pub(crate) fn slowed(&self) -> Slowed {
        Slowed {
            delay: self.delay,
            service_time: self.service_time,
        }
    }
}

/// The options of the call rate.
#[derive(Args, Clone, Debug)]
pub(crate) struct PaceArgs {
    /// Open loop: calls per second over all connections, whether or not replies come, such as 200k
    #[arg(long, value_name = "CALLS_PER_S", value_parser = values::rate_per_s, allow_negative_numbers = true)]
    pub rate: Option<u64>,

    /// Measure latency against rate: a closed loop, then open loops at 10 to 110 percent of its rate; each takes --duration [default: 2s]
    #[arg(long, conflicts_with_all = ["rate", "count", "hgrm", "hlog", "interval", "intervals"])]
    pub to_knee: bool,
}

impl PaceArgs {
    /// The options of a load with this rate, on `connections` connections with `depth` calls each.
    ///
    /// # Errors
    /// A usage failure for an impossible interval length.
    pub(super) fn load(
        &self,
        length: &LengthArgs,
        output: &OutputArgs,
        retry: Duration,
        (depth, connections): (u32, u32),
        cores: Vec<usize>,
    ) -> Result<LoadConfig, Failure> {
        let limit = length.limit(self.to_knee);
        Ok(LoadConfig {
            depth,
            connections,
            cores,
            rate_per_s: self.rate,
            limit,
            warmup: length.warmup,
            retry,
            interval: output.interval(limit)?,
            shows_intervals: output.intervals,
            checkpoint: output.checkpoint,
        })
    }
}

/// The options of the length of a run.
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
    /// When a run ends, or each step of `--to-knee`.
    pub(super) fn limit(&self, to_knee: bool) -> Limit {
        let default = if to_knee {
            DURATION_TO_KNEE_DEFAULT
        } else {
            DURATION_DEFAULT
        };
        let duration = || Limit::Duration(self.duration.unwrap_or(default));
        self.count.map_or_else(duration, Limit::Count)
    }
}

/// The options of the report's outputs.
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

    /// Serve Prometheus metrics of the calls at http://HOST:PORT/metrics while they are made; port 0 is any free port
    #[arg(long, value_name = "HOST:PORT", value_parser = host_port)]
    pub metrics: Option<MetricsAddress>,

    /// Also write the files this often while the run goes on, so that a run that is killed leaves its last ones; writing takes processor time
    #[arg(long, value_name = "TIME", value_parser = values::time_above_zero, conflicts_with = "to_knee")]
    pub checkpoint: Option<Duration>,
}

impl OutputArgs {
    /// The first of these options that was given; `None` if none was.
    pub(super) fn given(&self) -> Option<&'static str> {
        let given = [
            ("--json", self.json.is_some()),
            ("--hgrm", self.hgrm.is_some()),
            ("--hlog", self.hlog.is_some()),
            ("--html", self.html.is_some()),
            ("--intervals", self.intervals),
            ("--checkpoint", self.checkpoint.is_some()),
            ("--metrics", self.metrics.is_some()),
        ];
        given.iter().find(|it| it.1).map(|it| it.0)
    }

    /// Starts the metrics of `run` or `nfs`, if they are asked for. Their thread keeps off `cores`.
    ///
    /// # Errors
    /// Those of [`LoadMetrics::start`].
    pub(super) fn metrics(
        &self,
        command: &'static str,
        cores: &[usize],
        quiet: bool,
    ) -> Result<Option<LoadMetrics>, Failure> {
        let at = self.metrics.as_ref();
        at.map(|at| LoadMetrics::start(at, command, cores, quiet))
            .transpose()
    }

    /// Checks before the measurement that the files can be written.
    ///
    /// # Errors
    /// A failure with the file's name.
    pub(super) fn check(&self, quiet: bool) -> Result<Outputs, Failure> {
        let files = [
            ("--json", self.json.as_deref()),
            ("--hgrm", self.hgrm.as_deref()),
            ("--hlog", self.hlog.as_deref()),
            ("--html", self.html.as_deref()),
        ];
        if self.checkpoint.is_some() {
            let mut given = files.iter().filter_map(|(_, path)| *path).peekable();
            if given.peek().is_none() {
                return Err(Failure::usage("--checkpoint has no effect without a file")
                    .advice("give --json FILE too"));
            }
            if given.any(|path| path.as_os_str() == "-") {
                let what = "--checkpoint would write one report after the other to standard output";
                return Err(Failure::usage(what).advice("give a file in place of -"));
            }
        }
        Outputs::check(&files, quiet)
    }

    /// The length of an interval: the given one, else a second or, for a long run, whole seconds such that there are
    /// at most [`INTERVALS_DEFAULT`] intervals.
    fn interval(&self, limit: Limit) -> Result<Duration, Failure> {
        let refuse = |what: String, advice: String| Err(Failure::usage(what).advice(advice));
        let shown = rpcrdma_units::duration;
        let measured = match limit {
            Limit::Duration(duration) => duration,
            Limit::Count(_) => Duration::ZERO,
        };
        match self.interval {
            None => {
                let seconds = (measured / INTERVALS_DEFAULT).as_secs_f64().ceil();
                Ok(Duration::from_secs_f64(seconds).max(INTERVAL_DEFAULT))
            }
            Some(interval) if interval < INTERVAL_MIN => refuse(
                format!(
                    "intervals of {} are too short to be collected in time",
                    shown(interval)
                ),
                format!(
                    "give --interval {} at least",
                    shown(INTERVAL_MIN).replace(' ', "")
                ),
            ),
            Some(interval) if measured > interval * INTERVALS_MAX => refuse(
                format!("the run would have more than {INTERVALS_MAX} intervals"),
                "give a longer --interval, or a shorter --duration".to_owned(),
            ),
            Some(interval) => Ok(interval),
        }
    }
}
