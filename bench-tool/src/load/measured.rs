//! What a load, or one part of it, measured.

use std::collections::BTreeMap;
use std::time::Duration;

use rpcrdma_engine::{CallRefused, CounterSnapshot};

use crate::histogram::LatencyHistogram;
use crate::load::timeline::CoreTimeline;

/// What became of connections that were lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Losses {
    /// Connections that were lost.
    pub(crate) connections: u64,
    /// Connections that took the place of lost ones.
    pub(crate) reconnects: u64,
    /// Calls that were in flight on lost connections and were repeated on others.
    pub(crate) calls: u64,
    /// The longest time from a loss to the connection that took its place.
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

/// What was measured; what a workload keeps by itself is not in it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measured {
    /// Calls that ended in an error, or with a reply that is not right.
    pub(crate) errors: Errors,
    /// Why a connection took no more calls.
    pub(crate) first_refusal: Option<CallRefused>,
    /// Payload of the calls that are in the latencies; of bulk data alone.
    pub(crate) payload_bytes: u64,
    /// The measured time.
    pub(crate) elapsed: Duration,
    /// The end was asked for, or nothing could be called any more, before the limit was reached.
    pub(crate) interrupted: bool,
    /// Open loop: calls that were due and never made, because too many were outstanding.
    pub(crate) backlog: u64,
    /// What the cores counted in the measured time; `None` before it began, and of no core.
    pub(crate) counters: Option<CounterSnapshot>,
    pub(crate) losses: Losses,
    /// How often the server asked to have a call again later.
    pub(crate) retried_later: u64,
    /// The latencies over time, of each core or connection.
    pub(crate) timelines: Vec<CoreTimeline>,
}

impl Measured {
    /// What a reader must know to trust it.
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

    /// Adds what another part of the load measured meanwhile.
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

    /// All latencies together.
    pub(crate) fn latency(&self) -> LatencyHistogram {
        let mut all = LatencyHistogram::new();
        for timeline in &self.timelines {
            all.merge(&timeline.total());
        }
        all
    }
}

/// Errors by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Errors {
    pub(crate) by_name: BTreeMap<String, u64>,
    /// The words of the first one that had any.
    pub(crate) first: Option<String>,
}

impl Errors {
    /// One more error.
    #[cold]
    pub(crate) fn note(&mut self, name: &str, words: impl FnOnce() -> String) {
        self.add(name, 1);
        self.first.get_or_insert_with(words);
    }

    /// `count` more errors whose name says all.
    #[cold]
    pub(crate) fn add(&mut self, name: &str, count: u64) {
        match self.by_name.get_mut(name) {
            Some(place) => *place += count,
            None => drop(self.by_name.insert(name.to_owned(), count)),
        }
    }

    /// Errors with this name.
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
