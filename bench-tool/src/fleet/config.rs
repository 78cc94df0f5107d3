//! The configuration of a fleet.

use std::time::Duration;

use super::launch::Launch;
use super::plan::FleetPlan;
use crate::report::metric::Metric;
use crate::sweep::runs::SweepPlan;

/// What the clients do together.
#[derive(Clone, Debug)]
pub(crate) enum FleetWork {
    /// One load, at this rate of all together or in a closed loop.
    Once(Option<u64>),
    /// Loads at rising rates, to find the knee of latency.
    ToKnee,
    /// A load for each combination of a sweep.
    Sweep(FleetSweep),
}

/// The sweep of a fleet.
#[derive(Clone, Debug)]
pub(crate) struct FleetSweep {
    pub(crate) plan: SweepPlan,
    /// The options of `run` for each combination, behind those that all share.
    pub(crate) options: Vec<Vec<String>>,
    /// What all combinations share of the clients' command.
    pub(crate) shared: Vec<String>,
    /// The figure of the chart; with `None` the axis decides.
    pub(crate) figure: Option<Metric>,
}

/// A checked configuration.
#[derive(Clone, Debug)]
pub(crate) struct FleetConfig {
    /// The command line, for the report.
    pub(crate) command: String,
    pub(crate) plan: FleetPlan,
    pub(crate) launch: Launch,
    /// The clients' command as given.
    pub(crate) client_command: String,
    pub(crate) work: FleetWork,
    /// The expected time of a round from its start, with the warm-up; `None` if it depends on the calls.
    pub(crate) expected: Option<Duration>,
    /// How long an agent may take until it is ready.
    pub(crate) start_timeout: Duration,
    /// How long an agent may send no message; it sends one every second.
    pub(crate) silence_timeout: Duration,
    /// Upper bound of the report of a client in bytes.
    pub(crate) report_bytes_max: u64,
    /// Whether to show only errors and warnings.
    pub(crate) quiet: bool,
}
