//! Open loops in simulated time, whose figures a program in Python computes from the schedule alone.
//!
//! The server answers calls in order, each in the same time, and pauses while it is stopped. The client makes calls
//! and takes replies when it may, and does neither while it is suspended. No clock is read, so that the figures agree to a
//! bucket of the histogram on any machine.

use std::collections::VecDeque;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use rpcrdma_fabric::clock::{Clock, Ticks};
use rpcrdma_testkit::Folder;
use serde_json::json;

use super::intervals::{Collector, Exchange};
use super::measured::{Beginning, Measured};
use super::pace::Rate;
use super::phase::LoadPhase;
use super::{Limit, LoadConfig};
use crate::machine::Machine;
use crate::report::figures::Totals;
use crate::run::report::tests::{config, result};
use crate::run::report::{Report, RunResult};

/// What happens, in milliseconds from the first call.
#[derive(Clone, Copy, Debug, Default)]
struct Model {
    name: &'static str,
    rate_per_s: u64,
    depth: u32,
    warmup_ms: u64,
    duration_ms: u64,
    service_us: u64,
    /// From when to when the server is stopped.
    stops_ms: &'static [(u64, u64)],
    /// From when to when the client is suspended.
    suspensions_ms: &'static [(u64, u64)],
}

const MODEL: Model = Model {
    name: "undisturbed",
    rate_per_s: 1_000,
    depth: 64,
    warmup_ms: 500,
    duration_ms: 2_000,
    service_us: 100,
    stops_ms: &[],
    suspensions_ms: &[],
};

const MODELS: [Model; 9] = [
    MODEL,
    Model {
        name: "stall at the beginning",
        stops_ms: &[(450, 900)],
        ..MODEL
    },
    Model {
        name: "stall in the middle",
        stops_ms: &[(1_000, 1_700)],
        ..MODEL
    },
    Model {
        name: "stall over the end",
        stops_ms: &[(1_800, 4_000)],
        ..MODEL
    },
    Model {
        name: "one call at a time, stall over the end",
        depth: 1,
        stops_ms: &[(1_300, 3_000)],
        ..MODEL
    },
    Model {
        name: "client suspended over the beginning",
        suspensions_ms: &[(300, 1_200)],
        ..MODEL
    },
    Model {
        name: "client suspended over the end",
        suspensions_ms: &[(1_900, 14_000)],
        ..MODEL
    },
    Model {
        name: "stalls everywhere",
        depth: 8,
        stops_ms: &[(500, 700), (1_400, 1_450), (2_400, 9_000)],
        suspensions_ms: &[(1_000, 1_200)],
        ..MODEL
    },
    Model {
        name: "far above what the server carries",
        depth: 4,
        service_us: 49_700,
        ..MODEL
    },
];

/// The end of the span that contains a time, or the time.
fn behind(spans: &[(Ticks, Ticks)], time: Ticks) -> Ticks {
    let span = spans.iter().find(|(from, to)| (*from..*to).contains(&time));
    span.map_or(time, |(_, to)| *to)
}

impl Model {
    fn spans(spans_ms: &[(u64, u64)]) -> Vec<(Ticks, Ticks)> {
        let ticks = |ms| Clock::new().ticks(Duration::from_millis(ms));
        let spans = spans_ms.iter().map(|(from, to)| (ticks(*from), ticks(*to)));
        spans.collect()
    }

    fn load(&self) -> LoadConfig {
        LoadConfig {
            depth: self.depth,
            rate_per_s: Some(self.rate_per_s),
            limit: Limit::Duration(Duration::from_millis(self.duration_ms)),
            warmup: Duration::from_millis(self.warmup_ms),
            ..config().load
        }
    }

    /// Makes the calls.
    fn run(&self) -> Measured {
        let load = self.load();
        let mut amount = load.amount();
        amount.rate = Some(Rate::new(self.rate_per_s));
        let exchange = Arc::new(Exchange::default());
        let mut collector = Collector::default();
        let mut phase = LoadPhase::new(&amount, Arc::clone(&exchange));
        phase.start_at(&amount, 0);
        let (stops, suspensions) = (Self::spans(self.stops_ms), Self::spans(self.suspensions_ms));
        let service = Clock::new().ticks(Duration::from_micros(self.service_us));
        // The calls that are under way: when each was due, and when its reply is there.
        let mut under_way: VecDeque<(Ticks, Ticks)> = VecDeque::new();
        let (mut now, mut idle_from) = (0, 0);
        loop {
            phase.advance(now, under_way.len());
            collector.collect(&exchange);
            while let Some((start, _)) = under_way.front().copied().filter(|it| it.1 <= now) {
                under_way.pop_front();
                if phase.is_measured(start) {
                    phase.record(phase.latency_ns(start, now), 1, now);
                }
            }
            while under_way.len() < self.depth as usize
                && let Some(start) = phase.due(now)
            {
                phase.made(start, 1);
                let begin = behind(&stops, now.max(idle_from));
                let mut reply = begin + service;
                for (from, to) in stops.iter().filter(|(from, _)| *from > begin) {
                    if *from < reply {
                        reply += to - from;
                    }
                }
                idle_from = reply;
                under_way.push_back((start, reply));
            }
            if phase.is_ending() && under_way.is_empty() && !phase.is_draining(now) {
                break;
            }
            let reply = under_way.front().map(|(_, reply)| *reply);
            let has_room = under_way.len() < self.depth as usize;
            // One that is due already was made, or is made no more.
            let due = phase.next_due().filter(|due| has_room && *due > now);
            let change = Some(phase.until()).filter(|_| phase.is_calling());
            let next = [reply, due, change].into_iter().flatten().min();
            now = behind(&suspensions, next.expect("something comes").max(now));
        }
        let mut part = Measured::default();
        phase.conclude(&mut part, now, &[]);
        let timeline = collector.finish(&exchange, &phase.into_recorder(), &mut part);
        part.timelines.push(timeline);
        part
    }

    fn report(&self) -> Report {
        let measured = self.run();
        let mut config = config();
        config.load = self.load();
        let timeline = Beginning::after(Duration::ZERO).timeline(config.load.interval, &measured);
        let result = RunResult {
            latency: timeline.latency(),
            totals: Totals {
                elapsed: measured.elapsed,
                due: measured.calls_due,
                ..result().totals
            },
            timeline,
            ..result()
        };
        Report::new(&config, &Machine::detect(), &result, None)
    }
}

#[test]
fn figures_are_those_that_the_schedule_gives() {
    let folder = Folder::new("simulated");
    let models = MODELS.iter().map(|model| {
        json!({
            "name": model.name, "rate_per_s": model.rate_per_s, "depth": model.depth, "warmup_ms": model.warmup_ms,
            "duration_ms": model.duration_ms, "service_us": model.service_us, "stops_ms": model.stops_ms,
            "suspensions_ms": model.suspensions_ms, "report": model.report(),
        })
    });
    let models: Vec<_> = models.collect();
    folder.write("models.json", json!(models).to_string());
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/figures.py");
    let mut python = Command::new("python3");
    let output = python.args([program, "models", &folder.path("models.json")]);
    let output = output.output().expect("python3 is installed");
    let said = [output.stdout, output.stderr].map(|it| String::from_utf8_lossy(&it).into_owned());
    assert!(output.status.success(), "{}", said.concat());
    assert!(said[0].contains("9 models"), "{}", said[0]);
}
