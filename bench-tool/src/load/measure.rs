//! Makes a load on all polling cores: hands out its parts, looks after them, and puts together what they measured.

use std::time::{Duration, Instant};

use super::connections::Connections;
use super::control::LoadOrder;
use super::cores::LoadCores;
use super::intervals::Collector;
use super::measured::Measured;
use super::workload::Workload;
use super::{Amount, Watch};
use crate::exit::Failure;

/// How soon the end of a load is noticed: the thread that waits must not take time from the cores.
const LOOK_PERIOD: Duration = Duration::from_millis(20);

impl<W: Workload> LoadCores<W> {
    /// Makes a load, and returns what was measured, with the workloads of the cores. `workload` makes that of each part;
    /// `patience` is how long outstanding calls may take after the measurement.
    ///
    /// # Errors
    /// When a connection is lost and not made again in time, and when calls do not end.
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
