//! The load generator: calls of any RPC program, made and timed on polling cores.
//!
//! | module | what |
//! |---|---|
//! | `workload` | what a program adds: which call comes next, and whether a reply is right |
//! | `generator` | the application of a core: makes the calls, repeats and times them |
//! | `phase`, `pace`, `intervals` | from warm-up to end, when calls are due, what is recorded |
//! | `retry_later` | calls that the server asks to repeat later |
//! | `control`, `cores` | orders of the command's thread to the cores, and their answers |
//! | `connections` | the connections, and what replaces those that are lost |
//! | `measure`, `measured` | one load on all cores, and what it measured |
//! | `timeline` | the same over time |

pub(crate) mod connections;
pub(crate) mod control;
pub(crate) mod cores;
pub(crate) mod generator;
pub(crate) mod intervals;
mod measure;
pub(crate) mod measured;
pub(crate) mod pace;
pub(crate) mod phase;
pub(crate) mod retry_later;
pub(crate) mod timeline;
pub(crate) mod workload;

use std::time::Duration;

use self::pace::Rate;
use crate::progress::Progress;
use crate::signals::Stop;

/// What a load shares with the rest of the tool while it measures.
#[derive(Clone, Debug)]
pub(crate) struct Watch {
    /// Set when the load shall end early; polling cores look at it now and then.
    pub(crate) stop: Stop,
    /// Where each part publishes how far it is, by its number.
    pub(crate) progress: Progress,
    /// The run's own server; `None` where the server is elsewhere.
    pub(crate) server_process: Option<u32>,
}

/// When to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// After this time, without the warm-up.
    Duration(Duration),
    /// After this many calls, without those of the warm-up.
    Count(u64),
}

impl Limit {
    /// How long it should take after a warm-up, which counts too; `None` where that is up to the calls.
    pub(crate) fn expected(self, warmup: Duration) -> Option<Duration> {
        match self {
            Self::Duration(duration) => Some(warmup + duration),
            Self::Count(_) => None,
        }
    }
}

/// How a load is made, whichever calls it makes.
#[derive(Clone, Debug)]
pub(crate) struct LoadConfig {
    /// Calls outstanding on each connection.
    pub(crate) depth: u32,
    /// Connections that carry calls, spread over the cores.
    pub(crate) connections: u32,
    /// The polling cores of a fabric, at least one. Over TCP where the threads run: empty leaves it to the kernel.
    pub(crate) cores: Vec<usize>,
    /// Open loop: calls per second in all. `None` is a closed loop.
    pub(crate) rate_per_s: Option<u64>,
    /// When to stop.
    pub(crate) limit: Limit,
    /// Time before the measurement.
    pub(crate) warmup: Duration,
    /// See [`Amount::retry`].
    pub(crate) retry: Duration,
    /// The measured time is reported in intervals of this length too.
    pub(crate) interval: Duration,
    /// Whether the table has these intervals.
    pub(crate) shows_intervals: bool,
}

impl LoadConfig {
    /// What the load generator makes.
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

/// How much of a load is made, and how fast. Fixed before it starts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Amount {
    /// Calls outstanding on a connection.
    pub(crate) depth: u32,
    /// Time before the measurement.
    pub(crate) warmup: Duration,
    /// When the measurement ends.
    pub(crate) limit: Limit,
    /// `None` for a closed loop.
    pub(crate) rate: Option<Rate>,
    /// How long to try to make a lost connection again, and for how long after its start to repeat a call that the
    /// server asks to repeat later. With 0 neither is done.
    pub(crate) retry: Duration,
    /// Length of the intervals that are reported too.
    pub(crate) interval: Duration,
}

impl Amount {
    /// The share of one of `parts` parts.
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
