//! Runs a load on all polling cores: starts the parts, watches them, and merges their results.

use std::time::{Duration, Instant};

use super::connections::Connections;
use super::control::LoadOrder;
use super::cores::LoadCores;
use super::intervals::Collector;
use super::measured::Measured;
use super::workload::Workload;
use super::{Amount, Watch};
use crate::exit::Failure;

/// How often the waiting thread looks for the end of the load: rarely, so that it takes no CPU time from the cores.
/// core.
const LOOK_PERIOD: Duration = Duration::from_millis(20);

impl<W: Workload> LoadCores<W> {
    /// Runs a load and returns the merged results with the workload of each core. `workload` makes the workload of a
    /// part from its number and the number of parts. `patience` is how long outstanding calls may take after the
    /// measurement.
    ///
    /// # Errors
    /// If a lost connection is not replaced in time, or if calls are still outstanding after `patience`.
    pub(crate) fn measure(
        &self,
        connections: &mut Connections,
        workload: impl Fn(u32, u32) -> W,
        amount: &Amount,
        patience: Duration,
        watch: &Watch,
    ) -> Result<(Measured, Vec<W>), Failure> {
        let parts = u32::try_from(self.cores.len()).unwrap_or(1);
        for ((index, (_, control)), part) in self.cores.iter().enumerate().zip(0..) {
            control.begin(LoadOrder {
                connections: connections.keys(index),
                workload: workload(part, parts),
                amount: amount.share(part, parts),
                part,
                watch: watch.clone(),
            });
        }
        // A call may first wait `retry` for a new connection or its repetition, and then needs its normal time.
        let patience = amount.retry + patience;
        let mut deadline = amount
            .limit
            .expected(amount.warmup)
            .map(|expected| Instant::now() + expected + patience);
        let mut collectors: Vec<Collector> =
            self.cores.iter().map(|_| Collector::default()).collect();
        let mut lost = Ok(());
        let (mut measured, mut workloads) = (Measured::default(), Vec::new());
        for (index, (number, control)) in self.cores.iter().enumerate() {
            let ended = control.end(LOOK_PERIOD, || {
                for (collector, (_, control)) in collectors.iter_mut().zip(&self.cores) {
                    collector.collect(&control.exchange);
                }
                let is_stopping = watch.stop.is_asked();
                lost = connections.look_after(self, is_stopping);
                // A count has no expected end. Once the user stops the load, the outstanding calls get one.
                if deadline.is_none() && is_stopping {
                    deadline = Some(Instant::now() + patience);
                }
                lost.is_ok() && deadline.is_none_or(|deadline| Instant::now() < deadline)
            });
            let Some(ended) = ended else {
                lost?;
                return Err(Failure::failed(format!(
                    "calls were still outstanding {} s after the measurement",
                    patience.as_secs()
                ))
                .advice("the server may be stopped (SIGSTOP) or overloaded"));
            };
            let mut part = ended.measured;
            let collector = collectors.get_mut(index).map(std::mem::take);
            let timeline = collector.unwrap_or_default().finish(
                &control.exchange,
                &ended.last,
                *number,
                part.elapsed,
            );
            part.timelines.push(timeline);
            measured.merge(part);
            workloads.push(ended.workload);
        }
        measured.losses.merge(&connections.take_losses());
        Ok((measured, workloads))
    }
}
