//! The load: its course from warm-up to end, and what was measured on the way.

pub(crate) mod course;
pub(crate) mod desk;
pub(crate) mod fabric;
pub(crate) mod put_off;
pub(crate) mod tcp;

use std::time::Duration;

use rpcrdma_fabric::clock::Ticks;

use self::course::Course;
use super::steps::{Step, StepKind};
use super::workload::{Done, Errors, StepError, Work, Written};
use crate::histogram::LatencyHistogram;
use crate::load::pace::Rate;
use crate::report::timeline::CoreTimeline;
use crate::run::config::Limit;

/// How much of a load is made, and how fast. Fixed before it starts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Amount {
    /// Calls outstanding on a connection.
    pub(crate) depth: u32,
    pub(crate) warmup: Duration,
    pub(crate) limit: Limit,
    /// `None` for a closed loop.
    pub(crate) rate: Option<Rate>,
    /// How long after its start a call that the server puts off is made again; 0 does not.
    pub(crate) patience: Duration,
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

/// What was measured of the calls of one procedure.
#[derive(Clone, Debug)]
pub(crate) struct Procedure {
    pub(crate) latency: LatencyHistogram,
    /// Payload that was moved.
    pub(crate) bytes: u64,
}

/// What was measured.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measured {
    /// By [`StepKind::index`]; what is never called has none.
    pub(crate) procedures: [Option<Procedure>; StepKind::ALL.len()],
    pub(crate) errors: Errors,
    /// Calls that moved less than they were asked to, which servers may do.
    pub(crate) short: u64,
    /// How often the write verifier changed: the server lost what was not committed.
    pub(crate) verifier_changes: u64,
    /// The verifier that was told last.
    pub(crate) verifier: Option<[u8; 8]>,
    pub(crate) written: Written,
    pub(crate) elapsed: Duration,
    pub(crate) interrupted: bool,
    /// Open loop: calls that were due and never made.
    pub(crate) backlog: u64,
    pub(crate) reconnects: u64,
    /// How often the server put a call off that was then made again.
    pub(crate) put_off: u64,
    /// The latencies of all procedures over time, of each core or connection.
    pub(crate) timelines: Vec<CoreTimeline>,
}

impl Measured {
    /// With a place for what `kinds` are going to tell.
    pub(crate) fn new(kinds: &[StepKind]) -> Self {
        let mut measured = Self::default();
        for kind in kinds {
            if let Some(place) = measured.procedures.get_mut(kind.index()) {
                *place = Some(Procedure {
                    latency: LatencyHistogram::new(),
                    bytes: 0,
                });
            }
        }
        measured
    }

    #[inline]
    pub(crate) fn record(&mut self, kind: StepKind, latency_ns: u64, bytes: u32) {
        if let Some(Some(procedure)) = self.procedures.get_mut(kind.index()) {
            procedure.latency.record(latency_ns);
            procedure.bytes += u64::from(bytes);
        }
    }

    /// A call ended well.
    #[inline]
    pub(crate) fn note(
        &mut self,
        course: &mut Course,
        work: &Work,
        (step, start): (Step, Ticks),
        done: Done,
        now: Ticks,
    ) {
        if let Some(verifier) = done.verifier {
            self.note_verifier(verifier);
        }
        let is_whole = !step.kind.is_bulk() || done.bytes == work.plan.bytes_of(step);
        if is_whole && step.kind == StepKind::Write {
            self.written.note(step);
        }
        if let Some(latency_ns) = course.ended(start, now) {
            self.short += u64::from(!is_whole);
            self.record(step.kind, latency_ns, done.bytes);
        }
    }

    /// A call that started at `start` ended with an error.
    #[cold]
    pub(crate) fn failed(&mut self, course: &mut Course, start: Ticks, error: StepError) {
        self.errors.note(error.name(), || error.to_string());
        course.failed(start);
    }

    /// A WRITE told its verifier.
    #[inline]
    pub(crate) fn note_verifier(&mut self, verifier: [u8; 8]) {
        let before = self.verifier.replace(verifier);
        self.verifier_changes += u64::from(before.is_some_and(|before| before != verifier));
    }

    /// Adds what another part of the load measured meanwhile.
    pub(crate) fn merge(&mut self, other: Self) {
        for (own, other) in self.procedures.iter_mut().zip(other.procedures) {
            match (own, other) {
                (Some(own), Some(other)) => {
                    own.latency.merge(&other.latency);
                    own.bytes += other.bytes;
                }
                (own, Some(other)) => *own = Some(other),
                (_, None) => {}
            }
        }
        self.errors.merge(other.errors);
        self.short += other.short;
        // Of several connections each sees the restart of a server.
        self.verifier_changes = self.verifier_changes.max(other.verifier_changes);
        if let (Some(own), Some(other)) = (self.verifier, other.verifier)
            && own != other
        {
            self.verifier_changes = self.verifier_changes.max(1);
        }
        self.verifier = other.verifier.or(self.verifier);
        self.written.merge(&other.written);
        self.elapsed = self.elapsed.max(other.elapsed);
        self.interrupted |= other.interrupted;
        self.backlog += other.backlog;
        self.reconnects += other.reconnects;
        self.put_off += other.put_off;
        self.timelines.extend(other.timelines);
    }

    /// All procedures together.
    pub(crate) fn latency(&self) -> LatencyHistogram {
        let mut all = LatencyHistogram::new();
        for procedure in self.procedures.iter().flatten() {
            all.merge(&procedure.latency);
        }
        all
    }

    /// Calls that were recorded.
    pub(crate) fn calls(&self) -> u64 {
        let procedures = self.procedures.iter().flatten();
        procedures.map(|it| it.latency.count()).sum()
    }

    /// Payload that was moved by all of them.
    pub(crate) fn bytes(&self) -> u64 {
        self.procedures.iter().flatten().map(|it| it.bytes).sum()
    }
}
