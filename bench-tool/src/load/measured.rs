//! The results of a load, or of one part of it.

use std::collections::BTreeMap;
use std::time::Duration;

use rpcrdma_engine::{CallRefused, CounterSnapshot};

use crate::histogram::LatencyHistogram;
use crate::load::timeline::CoreTimeline;

/// Lost connections, and what replaced them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Losses {
    /// Connections that were lost.
    pub(crate) connections: u64,
    /// Connections that replaced lost ones.
    pub(crate) reconnects: u64,
    /// Calls that were outstanding on lost connections and were repeated on new ones.
    pub(crate) calls: u64,
    /// The longest time from a loss to the replacement.
    pub(crate) longest: Duration,
}

impl Losses {
    /// Adds those of another part of the load.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.connections += other.connections;
        self.reconnects += other.reconnects;
        self.calls += other.calls;
        self.longest = self.longest.max(other.longest);
    }
}

/// The results of a load, without those that a workload keeps itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measured {
    /// Calls that failed or got a wrong reply.
    pub(crate) errors: Errors,
    /// The first permanent refusal of a connection.
    pub(crate) first_refusal: Option<CallRefused>,
    /// Payload of the calls that the latencies include, as their [verdict](super::workload::Verdict::Right) reports
    /// it.
    pub(crate) payload_bytes: u64,
    /// The measured time.
    pub(crate) elapsed: Duration,
    /// Whether the load ended before its limit: by a stop request, or because no call was possible any more.
    pub(crate) interrupted: bool,
    /// Open loop: calls that were due but not made, because all slots were in use.
    pub(crate) backlog: u64,
    /// The cores' counters over the measured time; `None` if it never began, and over TCP, which has no cores.
    pub(crate) counters: Option<CounterSnapshot>,
    pub(crate) losses: Losses,
    /// How often the server asked to repeat a call later, and the call had time for it.
    pub(crate) retried_later: u64,
    /// Latencies over time, one entry for each core or connection.
    pub(crate) timelines: Vec<CoreTimeline>,
}

impl Measured {
    /// Warnings for the reader of the results.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let first = self.errors.first.as_ref();
        let first = first.map(|first| format!("the first call that failed: {first}"));
        let late = (self.backlog > 0).then(|| {
            format!(
                "the server could not keep up: {} calls were due and could not be made before the end; raise --depth \
                 or lower --rate",
                rpcrdma_units::count(self.backlog)
            )
        });
        first.into_iter().chain(late).collect()
    }

    /// Adds the results of another part, which ran at the same time.
    pub(crate) fn merge(&mut self, other: Self) {
        self.errors.merge(other.errors);
        self.first_refusal = self.first_refusal.or(other.first_refusal);
        self.payload_bytes += other.payload_bytes;
        self.elapsed = self.elapsed.max(other.elapsed);
        self.interrupted |= other.interrupted;
        self.backlog += other.backlog;
        self.counters = match (self.counters.take(), other.counters) {
            (Some(own), Some(other)) => Some(own.plus(&other)),
            (own, other) => own.or(other),
        };
        self.losses.merge(&other.losses);
        self.retried_later += other.retried_later;
        self.timelines.extend(other.timelines);
    }

    /// The latencies of all parts in one histogram.
    pub(crate) fn latency(&self) -> LatencyHistogram {
        let mut all = LatencyHistogram::new();
        for timeline in &self.timelines {
            all.merge(&timeline.total());
        }
        all
    }
}

/// Errors counted by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Errors {
    pub(crate) by_name: BTreeMap<String, u64>,
    /// The message of the first error that had one.
    pub(crate) first: Option<String>,
}

impl Errors {
    /// Counts an error.
    #[cold]
    pub(crate) fn note(&mut self, name: &str, words: impl FnOnce() -> String) {
        self.add(name, 1);
        self.first.get_or_insert_with(words);
    }

    /// Counts `count` errors that need no message.
    #[cold]
    pub(crate) fn add(&mut self, name: &str, count: u64) {
        match self.by_name.get_mut(name) {
            Some(place) => *place += count,
            None => drop(self.by_name.insert(name.to_owned(), count)),
        }
    }

    /// The number of errors with this name.
    pub(crate) fn of(&self, name: &str) -> u64 {
        self.by_name.get(name).copied().unwrap_or(0)
    }

    pub(crate) fn total(&self) -> u64 {
        self.by_name.values().sum()
    }

    /// Adds those of another part of the load.
    pub(crate) fn merge(&mut self, other: Self) {
        for (name, count) in other.by_name {
            *self.by_name.entry(name).or_default() += count;
        }
        self.first = self.first.take().or(other.first);
    }
}
