//! The load generator: makes and times calls of any RPC program on polling cores.
//!
//! | module | contents |
//! |---|---|
//! | `workload` | what an RPC program adds: which call comes next, and whether a reply is correct |
//! | `generator` | the application of a core: makes, repeats and times calls |
//! | `phase`, `pace`, `intervals` | warm-up, measurement, end; due times of calls; histograms per interval |
//! | `retry_later` | calls that the server asks to repeat later |
//! | `control`, `cores` | orders from the command's thread to the cores, and their answers |
//! | `gate` | the common start of several clients |
//! | `connections` | the connections, and the replacement of lost ones |
//! | `measure`, `measured` | a load on all cores, and its results |
//! | `timeline` | the results over time |

pub(crate) mod connections;
pub(crate) mod control;
pub(crate) mod cores;
pub(crate) mod gate;
pub(crate) mod generator;
pub(crate) mod intervals;
pub(crate) mod measure;
pub(crate) mod measured;
pub(crate) mod pace;
pub(crate) mod phase;
pub(crate) mod retry_later;
#[cfg(test)]
mod simulated;
pub(crate) mod timeline;
pub(crate) mod workload;

use std::time::Duration;

use self::gate::Gate;
use self::pace::Rate;
use crate::progress::Progress;
use crate::signals::Stop;

/// What a running load shares with the rest of the tool.
#[derive(Clone, Debug)]
pub(crate) struct Watch {
    /// Set to end the load early; polling cores read it every 1024 polls.
    pub(crate) stop: Stop,
    /// Each part publishes its progress here, by its number.
    pub(crate) progress: Progress,
    /// The process of the run's own server; `None` for a server that the run did not start.
    pub(crate) server_process: Option<u32>,
    /// Where the load waits between its connections and its first call.
    pub(crate) gate: Gate,
}

/// When to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// After this time, not counting the warm-up.
    Duration(Duration),
    /// After this many calls, not counting those of the warm-up.
    Count(u64),
}

impl Limit {
    /// The expected time including the warm-up; `None` for a count, whose time depends on the calls.
    pub(crate) fn expected(self, warmup: Duration) -> Option<Duration> {
        match self {
            Self::Duration(duration) => Some(warmup + duration),
            Self::Count(_) => None,
        }
    }
}

/// The options of a load that do not depend on the RPC program.
#[derive(Clone, Debug)]
pub(crate) struct LoadConfig {
    /// Calls outstanding on each connection.
    pub(crate) depth: u32,
    /// Connections that carry calls, spread over the cores.
    pub(crate) connections: u32,
    /// The CPUs of the polling cores, at least one. Over TCP: the CPUs of the threads; if empty, the kernel chooses.
    pub(crate) cores: Vec<usize>,
    /// Open loop: calls per second over all connections. `None` is a closed loop.
    pub(crate) rate_per_s: Option<u64>,
    /// When to stop.
    pub(crate) limit: Limit,
    /// Time before the measurement.
    pub(crate) warmup: Duration,
    /// See [`Amount::retry`].
    pub(crate) retry: Duration,
    /// The report also has figures for intervals of this length.
    pub(crate) interval: Duration,
    /// Whether the table on the terminal shows these intervals.
    pub(crate) shows_intervals: bool,
    /// How often the files are written while the load goes on; with `None` only at its end.
    pub(crate) checkpoint: Option<Duration>,
}

impl LoadConfig {
    /// The part of the options that the generator needs.
    pub(crate) fn amount(&self) -> Amount {
        Amount {
            depth: self.depth,
            warmup: self.warmup,
            limit: self.limit,
            rate: self.rate_per_s.map(Rate::new),
            retry: self.retry,
            interval: self.interval,
        }
    }
}

/// How many calls a load makes, and how fast. Fixed before it starts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Amount {
    /// Calls outstanding on each connection.
    pub(crate) depth: u32,
    /// Time before the measurement.
    pub(crate) warmup: Duration,
    /// When the measurement ends.
    pub(crate) limit: Limit,
    /// `None` for a closed loop.
    pub(crate) rate: Option<Rate>,
    /// How long a lost connection may stay lost, and for how long after its start a call is repeated if the server
    /// asks to repeat it later. With 0 neither is retried.
    pub(crate) retry: Duration,
    /// Length of the intervals in the report.
    pub(crate) interval: Duration,
}

impl Amount {
    /// The share of part number `part` of `parts`.
    pub(crate) fn share(&self, part: u32, parts: u32) -> Self {
        let (number, of) = (u64::from(part), u64::from(parts.max(1)));
        Self {
            limit: match self.limit {
                Limit::Duration(duration) => Limit::Duration(duration),
                Limit::Count(all) => Limit::Count(all / of + u64::from(number < all % of)),
            },
            rate: self.rate.map(|rate| rate.share(part, parts)),
            ..*self
        }
    }
}
