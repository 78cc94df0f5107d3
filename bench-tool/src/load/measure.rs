//! Runs a load on all polling cores: starts the parts, watches them, and merges their results.

use std::time::{Duration, Instant};

use rpcrdma_fabric::clock::{Clock, Ticks};

use super::connections::Connections;
use super::control::LoadOrder;
use super::cores::LoadCores;
use super::intervals::Collector;
use super::measured::{Beginning, Measured};
use super::pace::Rate;
use super::phase::{DRAIN_MAX, LoadPhase};
use super::workload::Workload;
use super::{Amount, Watch};
use crate::exit::Failure;
use crate::signals::Stop;

/// How often the waiting thread looks for the end of the load: rarely, so that it takes no CPU time from the cores.
const LOOK_PERIOD: Duration = Duration::from_millis(20);

/// How long outstanding calls may take after a stop request: who asked waits for the end, and a server that is gone must not
/// keep it.
const STOP_GRACE: Duration = Duration::from_secs(10);

/// How long a core may take to end a load without the outstanding calls. One that takes longer does not poll any more.
const ABANDON_PATIENCE: Duration = Duration::from_secs(5);

/// The thread that looks every [`LOOK_PERIOD`] was suspended with its process if it did not for so long.
const PAUSE_LEAST: Duration = Duration::from_secs(1);

impl<W: Workload> LoadCores<W> {
    /// Runs a load and returns the merged results with the workload of each core. `workload` makes the workload of a
    /// part from its number and the number of parts. `patience` is how long outstanding calls may take after the
    /// measurement; after a stop request they have [`StopGrace`].
    ///
    /// If a lost connection is not replaced in time, or calls are still outstanding after that, the results are
    /// those until then, with [`Measured::failure`]. So they are if a core does not answer: see [`of_silent_part`].
    pub(crate) fn measure(
        &self,
        connections: &mut Connections,
        workload: impl Fn(u32, u32) -> W,
        amount: &Amount,
        patience: Duration,
        watch: &Watch,
        checkpoints: &mut Checkpoints<'_>,
    ) -> (Measured, Vec<W>) {
        let parts = u32::try_from(self.cores.len()).unwrap_or(1);
        let began = Beginning::after(amount.warmup);
        let rate_per_s = amount.rate.map(Rate::calls_per_second);
        watch.progress.begin(amount.warmup, rate_per_s);
        for ((index, (_, control)), part) in self.cores.iter().enumerate().zip(0..) {
            control.begin(LoadOrder {
                connections: connections.keys(index),
                workload: workload(part, parts),
                amount: amount.share(part, parts),
                part,
                watch: watch.clone(),
            });
        }
        // A call may first wait `retry` for a new connection or its repetition, and then needs its normal time. In an open
        // loop it may be made only after the end.
        let drain = amount.rate.map_or(Duration::ZERO, |_| DRAIN_MAX);
        let patience = drain + amount.retry + patience;
        let mut deadline = amount
            .limit
            .expected(amount.warmup)
            .map(|expected| Instant::now() + expected + patience);
        let numbers = self.cores.iter().map(|(number, _)| *number);
        let mut collectors: Vec<Collector> = numbers
            .map(|number| Collector::new(number, &watch.progress))
            .collect();
        let (mut failure, mut lost) = (None, 0);
        let mut grace = StopGrace::default();
        let clock = Clock::new();
        let (started, mut ended) = (clock.now(), Ticks::MAX);
        let mut looked = Instant::now();
        let mut look = |collectors: &mut [Collector]| {
            for (collector, (_, control)) in collectors.iter_mut().zip(&self.cores) {
                collector.collect(&control.exchange);
            }
            let now = Instant::now();
            // This process was suspended: the server had no chance meanwhile.
            let pause = now.duration_since(looked);
            looked = now;
            if pause > PAUSE_LEAST {
                deadline = deadline.map(|deadline| deadline + pause);
            }
            if failure.is_some() {
                return deadline.is_none_or(|deadline| now < deadline);
            }
            let is_stopping = watch.stop.is_asked();
            if is_stopping {
                ended = ended.min(clock.now());
            }
            failure = connections.look_after(self, is_stopping).err();
            let all = connections.losses().connections;
            watch.progress.lost(all - lost);
            lost = all;
            if grace.is_over(&watch.stop) {
                failure.get_or_insert_with(StopGrace::failure);
            } else if deadline.is_some_and(|deadline| now >= deadline) {
                failure.get_or_insert_with(|| outstanding(patience, "the measurement"));
            }
            if failure.is_some() {
                ended = ended.min(clock.now());
                for (_, control) in &self.cores {
                    control.abandon();
                }
                deadline = Some(now + ABANDON_PATIENCE);
            } else if !is_stopping {
                checkpoints.look(|| {
                    let mut measured = so_far(&*collectors, amount.interval);
                    measured.losses.merge(connections.losses());
                    measured.began = Some(began);
                    measured.note_errors_so_far(&watch.progress);
                    measured
                });
            }
            true
        };
        let (mut measured, mut workloads) = (Measured::default(), Vec::new());
        let mut silent = Vec::new();
        for ((index, (_, control)), part) in self.cores.iter().enumerate().zip(0..) {
            match control.end(LOOK_PERIOD, || look(&mut collectors)) {
                Some(ended) => {
                    let mut part = ended.measured;
                    if let Some(collector) = collectors.get_mut(index) {
                        let timeline = collector.finish(&control.exchange, &ended.last, &mut part);
                        part.timelines.push(timeline);
                    }
                    measured.merge(part);
                    workloads.push(ended.workload);
                }
                None => silent.push((index, part)),
            }
        }
        for (index, part) in silent {
            failure.get_or_insert_with(no_end);
            if let Some(collector) = collectors.get_mut(index) {
                let share = amount.share(part, parts);
                measured.merge(of_silent_part(
                    collector,
                    &share,
                    (started, ended),
                    clock.now(),
                ));
            }
        }
        measured.began = Some(began);
        measured.failure = failure;
        measured.losses.merge(&connections.take_losses());
        watch.progress.end();
        (measured, workloads)
    }
}

/// What is known of a part without results, which began at and ended at the times of `span`, or as planned: its intervals that are
/// over. Of the other calls that were due, those that were answered are not known: all count as unanswered, with their waits
/// until `now`.
pub(crate) fn of_silent_part(
    collector: &mut Collector,
    amount: &Amount,
    span: (Ticks, Ticks),
    now: Ticks,
) -> Measured {
    let mut part = Measured::default();
    let phase = LoadPhase::of_silent_part(amount, span, collector.answered());
    phase.conclude(&mut part, now, &[]);
    let timeline = collector.close(&mut part);
    part.timelines.push(timeline);
    part
}

/// What these collectors have of the intervals that are over.
pub(crate) fn so_far<'a>(
    collectors: impl IntoIterator<Item = &'a Collector>,
    interval: Duration,
) -> Measured {
    let mut measured = Measured::default();
    for collector in collectors {
        measured.merge(collector.so_far(interval));
    }
    measured
}

/// The failure of a load whose calls have not ended.
fn outstanding(patience: Duration, since: &str) -> Failure {
    Failure::failed(format!(
        "calls were still outstanding {} s after {since}",
        patience.as_secs()
    ))
    .advice("the server may be stopped (SIGSTOP) or overloaded")
}

/// The failure of a load with a part that has no results.
fn no_end() -> Failure {
    Failure::failed("a core did not end its load")
        .advice("look for what keeps its core: other work, a debugger, a suspended machine")
}

/// How long a load may go on after a stop request.
#[derive(Debug, Default)]
pub(crate) struct StopGrace {
    /// When it was looked at last since the request.
    looked: Option<Instant>,
    spent: Duration,
}

impl StopGrace {
    /// Whether outstanding calls are given up. Ask it often: time in which nobody asked does not count, because a process that
    /// stood still, often with its server, gave the server no chance.
    pub(crate) fn is_over(&mut self, stop: &Stop) -> bool {
        if !stop.is_asked() {
            return false;
        }
        let now = Instant::now();
        let since = now.duration_since(self.looked.replace(now).unwrap_or(now));
        if since < PAUSE_LEAST {
            self.spent += since;
        }
        self.spent >= STOP_GRACE
    }

    /// The failure of a load with calls that are given up.
    pub(crate) fn failure() -> Failure {
        outstanding(STOP_GRACE, "the stop request")
    }
}

/// Shows what a load has measured so far, each time that `every` has passed.
pub(crate) struct Checkpoints<'a> {
    /// `None` for a load that shows nothing before its end.
    due: Option<(Duration, Instant)>,
    show: &'a mut dyn FnMut(Measured),
}

impl<'a> Checkpoints<'a> {
    /// Calls `show` every so often with the results so far.
    pub(crate) fn new(every: Option<Duration>, show: &'a mut dyn FnMut(Measured)) -> Self {
        Self {
            due: every.map(|every| (every, Instant::now() + every)),
            show,
        }
    }

    /// Shows the results of `so_far` if it is time.
    pub(crate) fn look(&mut self, so_far: impl FnOnce() -> Measured) {
        if let Some((every, due)) = &mut self.due
            && Instant::now() >= *due
        {
            let mut measured = so_far();
            // Whoever reads the file later must not take it for a whole run.
            measured.interrupted = true;
            measured.failure = Some(Failure::failed(
                "this is a checkpoint: the run went on, and its counters are not in it",
            ));
            (self.show)(measured);
            // Counted from here: writing may have taken longer than the interval.
            *due = Instant::now() + *every;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::intervals::{Exchange, Recorder};
    use super::*;
    use crate::load::Limit;

    /// A quarter of 1000 calls per second, for 2 s behind 1 s of warm-up. 300 of its calls are known to be answered.
    fn silent(limit: Limit, ended_s: Option<u64>) -> Measured {
        let clock = Clock::new();
        let seconds = |count| clock.ticks(Duration::from_secs(count));
        let amount = Amount {
            depth: 1,
            warmup: Duration::from_secs(1),
            limit,
            rate: Some(Rate::new(1_000)),
            retry: Duration::ZERO,
            interval: Duration::from_secs(1),
        };
        let (mut collector, exchange) = (Collector::default(), Exchange::default());
        let mut recorder = Recorder::new(seconds(1));
        recorder.begin(0);
        recorder.record(1_000, 300);
        recorder.next(seconds(2), &exchange);
        collector.collect(&exchange);
        let ended = ended_s.map_or(Ticks::MAX, seconds);
        of_silent_part(&mut collector, &amount.share(1, 4), (0, ended), seconds(9))
    }

    #[test]
    fn part_that_never_ends_counts_what_was_due_in_it() {
        let duration = Limit::Duration(Duration::from_secs(2));
        for (limit, ended_s, due, unanswered) in [
            (duration, None, 500, 200),
            (duration, Some(60), 500, 200),
            (duration, Some(2), 250, 0),
            (Limit::Count(1_600), Some(5), 400, 100),
        ] {
            let part = silent(limit, ended_s);
            let timeline = &part.timelines[0];
            assert_eq!(part.calls_due, Some(due), "{limit:?} {ended_s:?}");
            assert_eq!(timeline.unanswered(), unanswered, "{limit:?} {ended_s:?}");
            // Those after the first 300, the first of which is due 2.2 s after the start.
            let longest_ms = timeline.total().max_ns() / 1_000_000;
            assert!(
                unanswered == 0 || longest_ms.abs_diff(6_799) < 8,
                "{longest_ms}"
            );
        }
        // TIME: a phase reads no clock: all ticks are arguments.
        let elapsed = silent(duration, None).elapsed;
        assert!(elapsed.abs_diff(Duration::from_secs(2)) < Duration::from_micros(1));
    }
}
