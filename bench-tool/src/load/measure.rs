//! Runs a load on all polling cores: starts the parts, watches them, and merges their results.

use std::time::{Duration, Instant};

use super::connections::Connections;
use super::control::LoadOrder;
use super::cores::LoadCores;
use super::intervals::Collector;
use super::measured::{Beginning, Measured};
use super::pace::Rate;
use super::phase::DRAIN_MAX;
use super::workload::Workload;
use super::{Amount, Watch};
use crate::exit::Failure;

/// How often the waiting thread looks for the end of the load: rarely, so that it takes no CPU time from the cores.
const LOOK_PERIOD: Duration = Duration::from_millis(20);

/// How long a core may take to end a load without the outstanding calls. One that takes longer does not poll any more.
const ABANDON_PATIENCE: Duration = Duration::from_secs(5);

/// The thread that looks every [`LOOK_PERIOD`] was suspended with its process if it did not for so long.
const PAUSE_LEAST: Duration = Duration::from_secs(1);

impl<W: Workload> LoadCores<W> {
    /// Runs a load and returns the merged results with the workload of each core. `workload` makes the workload of a
    /// part from its number and the number of parts. `patience` is how long outstanding calls may take after the
    /// measurement.
    ///
    /// If a lost connection is not replaced in time, or calls are still outstanding after `patience`, the results are
    /// those until then, with [`Measured::failure`].
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
            // A count has no expected end. Once the user stops the load, the outstanding calls get one.
            if deadline.is_none() && is_stopping {
                deadline = Some(now + patience);
            }
            failure = connections.look_after(self, is_stopping).err();
            let all = connections.losses().connections;
            watch.progress.lost(all - lost);
            lost = all;
            if failure.is_none() && deadline.is_some_and(|deadline| now >= deadline) {
                failure = Some(outstanding(patience));
            }
            if failure.is_some() {
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
        let mut unanswered = Vec::new();
        for (index, (_, control)) in self.cores.iter().enumerate() {
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
                None => unanswered.push(index),
            }
        }
        let unanswered = unanswered.iter().filter_map(|index| collectors.get(*index));
        measured.merge(so_far(unanswered, amount.interval));
        measured.began = Some(began);
        measured.failure = failure;
        measured.losses.merge(&connections.take_losses());
        watch.progress.end();
        (measured, workloads)
    }
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
fn outstanding(patience: Duration) -> Failure {
    Failure::failed(format!(
        "calls were still outstanding {} s after the measurement",
        patience.as_secs()
    ))
    .advice("the server may be stopped (SIGSTOP) or overloaded")
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
