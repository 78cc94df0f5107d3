//! The configuration of a fleet.

use std::time::Duration;

use super::launch::Launch;
use super::plan::FleetPlan;

/// A checked configuration.
#[derive(Clone, Debug)]
pub(crate) struct FleetConfig {
    /// The command line, for the report.
    pub(crate) command: String,
    pub(crate) plan: FleetPlan,
    pub(crate) launch: Launch,
    /// The clients' command as given.
    pub(crate) client_command: String,
    /// Open loop: calls per second of all clients together.
    pub(crate) rate_per_s: Option<u64>,
    /// Whether to find the knee of latency.
    pub(crate) to_knee: bool,
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
