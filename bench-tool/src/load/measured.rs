//! The results of a load, or of one part of it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use rpcrdma_control::NodeSnapshot;
use rpcrdma_engine::{CallRefused, CounterSnapshot};

use crate::exit::Failure;
use crate::histogram::LatencyHistogram;
use crate::load::timeline::{CoreTimeline, Gap, Timeline};
use crate::progress::Progress;
use crate::report::figures::PathFigures;

/// Upper bound of the gaps that are kept: connections that are lost all the time need no list.
const GAPS_MAX: usize = 1_000;

/// Lost connections, and what replaced them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Losses {
    /// Connections that were lost.
    pub(crate) connections: u64,
    /// Connections that replaced lost ones.
    pub(crate) reconnects: u64,
    /// Calls that were outstanding on lost connections and were repeated on new ones.
    pub(crate) calls: u64,
    /// The longest time from a loss to the replacement.
    pub(crate) longest: Duration,
    /// When connections were lost, and how long it took to replace each; the first [`GAPS_MAX`] of a part.
    pub(crate) gaps: Vec<(Instant, Duration)>,
}

impl Losses {
    /// Adds those of another part of the load.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.connections += other.connections;
        self.reconnects += other.reconnects;
        self.calls += other.calls;
        self.longest = self.longest.max(other.longest);
        self.gaps.extend(&other.gaps);
    }

    /// Counts a connection that was lost at `since`, and is replaced now.
    pub(crate) fn replaced(&mut self, since: Instant) {
        let length = since.elapsed();
        self.reconnects += 1;
        self.longest = self.longest.max(length);
        if self.gaps.len() < GAPS_MAX {
            self.gaps.push((since, length));
        }
    }
}

/// The counters of a node's fabric: of its ports (`port_NAME`, all cores together), and of its manager of connections
/// (`manager_NAME`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FabricCounts(pub(crate) BTreeMap<String, u64>);

impl FabricCounts {
    /// Those of a node now.
    pub(crate) fn of(node: &NodeSnapshot) -> Self {
        let mut counts = Self::default();
        let ports = node.cores.iter().flat_map(|core| &core.fabric);
        let all = ports.map(|it| ("port", it));
        for (owner, it) in all.chain(node.fabric.iter().map(|it| ("manager", it))) {
            *counts.0.entry(format!("{owner}_{}", it.name)).or_default() += it.value;
        }
        counts
    }

    /// What was added since `before`.
    pub(crate) fn since(mut self, before: &Self) -> Self {
        for (name, value) in &mut self.0 {
            *value = value.saturating_sub(before.0.get(name).copied().unwrap_or(0));
        }
        self
    }

    fn merge(&mut self, other: &Self) {
        for (name, value) in &other.0 {
            *self.0.entry(name.clone()).or_default() += value;
        }
    }

    /// A warning if devices reported what disturbs a measurement.
    fn warning(&self) -> Option<String> {
        const DISTURBING: [&str; 12] = [
            "devices_failed",
            "links_down",
            "links_up",
            "gid_changes",
            "lid_changes",
            "link_speed_changes",
            "partition_key_changes",
            "subnet_manager_changes",
            "paths_migrated",
            "address_changes",
            "device_removals",
            "listeners_lost",
        ];
        let found = DISTURBING.iter().filter_map(|name| {
            let count = *self.0.get(&format!("manager_{name}"))?;
            (count > 0).then(|| format!("{name} {count}"))
        });
        let found: Vec<_> = found.collect();
        (!found.is_empty()).then(|| {
            format!(
                "devices reported events during the run: {} (docs/verbs.md, Events of devices)",
                found.join(", ")
            )
        })
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
    /// Open loop: the calls that were due in the measured time, by the schedule alone.
    pub(crate) calls_due: Option<u64>,
    /// Of one part: the waits of its calls that were due in the measured time and have no answer, until it gave them up.
    /// Merged parts have them in their timelines.
    pub(crate) unanswered: Option<LatencyHistogram>,
    /// Of one part: the calls that it can have outstanding.
    pub(crate) slots: u64,
    /// The cores' counters over the measured time; `None` if it never began, and over TCP, which has no cores.
    pub(crate) counters: Option<CounterSnapshot>,
    /// The counters of the fabric over the run, events of devices included; empty over TCP.
    pub(crate) fabric: FabricCounts,
    pub(crate) losses: Losses,
    /// Where the connections were at the end. Merged parts have the same.
    pub(crate) paths: Vec<PathFigures>,
    /// How often the server asked to repeat a call later, and the call had time for it.
    pub(crate) retried_later: u64,
    /// When the measurement began; `None` if no load has passed its gate.
    pub(crate) began: Option<Beginning>,
    /// Latencies over time, one entry for each core or connection.
    pub(crate) timelines: Vec<CoreTimeline>,
    /// Why the load broke off or lost connections for good: the other results cover what was measured all the same.
    pub(crate) failure: Option<Failure>,
}

impl Measured {
    /// Warnings for the reader of the results.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let first = self.errors.first.as_ref();
        let first = first.map(|first| format!("the first call that failed: {first}"));
        let device = self.fabric.warning();
        first.into_iter().chain(device).collect()
    }

    /// Counts the errors that a running load has published. Those of the warm-up are among them.
    pub(crate) fn note_errors_so_far(&mut self, progress: &Progress) {
        let (_, errors) = progress.totals();
        if errors > 0 {
            self.errors.add("errors_so_far", errors);
        }
    }

    /// The failure of a load that lost some of its `connections` to `address`, and did not replace them.
    pub(crate) fn broken(&self, connections: usize, address: &str) -> Option<Failure> {
        let lost = self
            .losses
            .connections
            .saturating_sub(self.losses.reconnects);
        // The refusal of a call can be the first sign of a lost connection, before the generator counts the loss.
        let found_lost = self.first_refusal == Some(CallRefused::UnknownConnection);
        let lost = lost.max(u64::from(found_lost));
        (lost > 0).then(|| {
            Failure::failed(format!(
                "{lost} of {connections} connections to {address} were lost during the run"
            ))
            .advice(
                "look at the server's messages; it may have ended or been killed; --retry TIME goes on when it is back",
            )
        })
    }

    /// Adds the results of another part, which ran at the same time.
    pub(crate) fn merge(&mut self, other: Self) {
        self.errors.merge(other.errors);
        self.first_refusal = self.first_refusal.or(other.first_refusal);
        self.payload_bytes += other.payload_bytes;
        self.elapsed = self.elapsed.max(other.elapsed);
        self.interrupted |= other.interrupted;
        self.calls_due = match (self.calls_due, other.calls_due) {
            (Some(own), Some(other)) => Some(own + other),
            (own, other) => own.or(other),
        };
        self.counters = match (self.counters.take(), other.counters) {
            (Some(own), Some(other)) => Some(own.plus(&other)),
            (own, other) => own.or(other),
        };
        self.fabric.merge(&other.fabric);
        self.losses.merge(&other.losses);
        self.retried_later += other.retried_later;
        self.began = self.began.or(other.began);
        self.timelines.extend(other.timelines);
        self.failure = self.failure.take().or(other.failure);
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

/// The start of a measurement, on both clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Beginning {
    wall: SystemTime,
    instant: Instant,
}

impl Beginning {
    /// The start of a measurement that begins in this time.
    pub(crate) fn after(warmup: Duration) -> Self {
        Self {
            wall: SystemTime::now() + warmup,
            instant: Instant::now() + warmup,
        }
    }

    /// The timeline of a load that began then. Losses of the warm-up are left out.
    pub(crate) fn timeline(self, interval: Duration, measured: &Measured) -> Timeline {
        let gap = |(lost, length): &(Instant, Duration)| {
            let start = lost.checked_duration_since(self.instant)?;
            Some(Gap {
                start_s: start.as_secs_f64(),
                duration_s: length.as_secs_f64(),
            })
        };
        let mut gaps: Vec<Gap> = measured.losses.gaps.iter().filter_map(gap).collect();
        gaps.sort_by(|a, b| a.start_s.total_cmp(&b.start_s));
        Timeline {
            interval,
            began: self.wall,
            cores: measured.timelines.clone(),
            gaps,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::FabricCounts;
    use rpcrdma_control::{CoreSnapshot, NodeSnapshot};
    use rpcrdma_fabric::interface::Counted;

    #[test]
    fn events_of_devices_during_a_run_are_a_warning() {
        let counted = |name, value| Counted {
            name,
            meaning: "",
            value,
        };
        let node = |links_down, polls| NodeSnapshot {
            cores: vec![
                CoreSnapshot {
                    fabric: vec![counted("polls", polls)],
                    ..CoreSnapshot::default()
                };
                2
            ],
            fabric: vec![counted("links_down", links_down)],
            ..NodeSnapshot::default()
        };
        let before = FabricCounts::of(&node(3, 10));
        let quiet = FabricCounts::of(&node(3, 15)).since(&before);
        assert_eq!((quiet.0["port_polls"], quiet.warning()), (10, None));
        let mut blinked = FabricCounts::of(&node(4, 15)).since(&before);
        blinked.merge(&quiet);
        let warning = blinked.warning().expect("the link went down");
        assert!(warning.contains("links_down 1 ("), "{warning}");
    }

    use super::*;

    #[test]
    fn gaps_are_counted_from_the_start_of_the_measurement() {
        let beginning = Beginning::after(Duration::from_secs(10));
        let lost = |s| {
            (
                beginning.instant + Duration::from_secs(s),
                Duration::from_secs(1),
            )
        };
        let mut measured = Measured::default();
        let before = beginning
            .instant
            .checked_sub(Duration::from_secs(2))
            .unwrap();
        measured.losses.gaps = vec![lost(5), (before, Duration::from_secs(1)), lost(3)];
        let gaps = beginning.timeline(Duration::from_secs(1), &measured).gaps;
        let expected = [3.0, 5.0].map(|start_s| Gap {
            start_s,
            duration_s: 1.0,
        });
        assert_eq!(gaps, expected);
    }
}
