//! What the clients of a fleet do in a round, and its results.

use std::fmt;
use std::time::Instant;

use serde_json::Value;

use super::plan::ClientPlan;
use crate::report::Word;

/// What the clients do in a round.
#[derive(Clone, Debug, Default)]
pub(crate) struct RoundPlan {
    /// Words behind those of the command of each client.
    pub(crate) options: Vec<String>,
    /// The rate of all clients together; `None` for a closed loop.
    pub(crate) rate_per_s: Option<u64>,
    /// Whether a client without a report takes part in the next round, as long as its agent goes on.
    pub(crate) keeps_failed: bool,
    /// Stands at the end of the progress line.
    pub(crate) note: String,
}

impl RoundPlan {
    /// The clients' command at a rate of all together, or in a closed loop.
    pub(crate) fn at(rate_per_s: Option<u64>) -> Self {
        Self {
            rate_per_s,
            ..Self::default()
        }
    }
}

/// A client that failed, and why.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Failed {
    /// The index of the client.
    pub client: usize,
    /// Its host.
    pub host: String,
    /// What it did then.
    pub when: Word,
    /// The reason.
    pub why: String,
}

impl fmt::Display for Failed {
    /// `client 2 on c while it ran: it ended (signal: 9)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            client,
            host,
            when,
            why,
        } = self;
        write!(f, "client {client} on {host} {when}: {why}")
    }
}

/// The report of a client.
#[derive(Clone, Debug)]
pub(crate) struct Reported {
    /// The index of the client.
    pub(crate) client: usize,
    pub(crate) plan: ClientPlan,
    /// The name that its machine gives itself.
    pub(crate) node: String,
    pub(crate) process_id: u32,
    /// The JSON report.
    pub(crate) report: Value,
    pub(crate) failure: Option<String>,
    /// Its start: how much later than planned by the coordinator's clock, and by how much that may be wrong. `None` if
    /// it was stopped before.
    pub(crate) skew: Option<(i64, u64)>,
    /// When the report arrived.
    pub(crate) at: Instant,
}

/// The results of a round.
#[derive(Clone, Debug, Default)]
pub(crate) struct RoundResult {
    /// In the order of the clients.
    pub(crate) reported: Vec<Reported>,
    /// What failed before this round and then in it. If a failed client may take part again: of what failed before,
    /// that of clients that do not.
    pub(crate) failed: Vec<Failed>,
    /// How many of these failed before this round.
    pub(crate) failed_before: usize,
    /// The sum of the shares of the clients that reported; `None` in a closed loop.
    pub(crate) rate_per_s: Option<u64>,
    /// Whether a signal ended it early.
    pub(crate) interrupted: bool,
}
