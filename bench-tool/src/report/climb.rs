//! `--to-knee`: measures the rate of a closed loop, and then open loops at rising shares of it, to the knee of the
//! latency curve and beyond.

use super::knee::{KneeReport, Step};
use super::view::LoadReport;
use crate::exit::Failure;
use crate::signals::Stop;

/// Rates of the open loops, in percent of the closed loop's rate. The steps are smaller near 100 %, where queues
/// grow.
pub(crate) const SHARES_PERCENT: [u32; 12] = [10, 20, 30, 40, 50, 60, 70, 80, 85, 90, 95, 100];

/// Measures the closed loop and every step. `report_at` measures at a rate, or in a closed loop with `None`. After a
/// stop request or a failure, the report has the steps completed so far; the failure comes with it.
///
/// # Errors
/// The failure of the closed loop, without which there is nothing to report.
pub(crate) fn climb<R: LoadReport>(
    stop: &Stop,
    mut report_at: impl FnMut(Option<u64>) -> Result<(R, Option<Failure>), Failure>,
) -> Result<(KneeReport<R>, Option<Failure>), Failure> {
    let (closed_loop, mut failure) = report_at(None)?;
    let (capacity_per_s, calls) = {
        let view = closed_loop.view();
        (view.load.rate_per_s, view.load.calls)
    };
    let mut steps = Vec::with_capacity(SHARES_PERCENT.len());
    for share_percent in SHARES_PERCENT {
        if stop.is_asked() || calls == 0 || failure.is_some() {
            break;
        }
        let report = match report_at(Some(rate_at(capacity_per_s, share_percent))) {
            Ok((report, broken)) => {
                failure = broken;
                report
            }
            Err(broken) => {
                failure = Some(broken);
                break;
            }
        };
        // A signal may end a step before its first call: such a step has no latencies to report.
        if report.view().load.calls > 0 || !stop.is_asked() {
            steps.push(Step::new(share_percent, &report));
        }
    }
    let interrupted = stop.is_asked() || failure.is_some();
    Ok((KneeReport::new(closed_loop, steps, interrupted), failure))
}

/// The rate of a step, in whole calls per second.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rate is never negative, and far below 2^64"
)]
fn rate_at(capacity_per_s: f64, share_percent: u32) -> u64 {
    (capacity_per_s * f64::from(share_percent) / 100.0)
        .round()
        .max(1.0) as u64
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::histogram::LatencyHistogram;
    use crate::machine::Machine;
    use crate::run::report::tests::{config, result};
    use crate::run::report::{Report, RunResult};

    const CAPACITY_PER_S: u64 = 20_000;

    /// A server with a queue: latency grows as the load approaches its capacity, and the rate never exceeds it.
    #[derive(Default)]
    struct Queue {
        rates: Vec<Option<u64>>,
        signal_at: Option<usize>,
    }

    impl Queue {
        fn report_at(&mut self, rate_per_s: Option<u64>, stop: &Stop) -> Report {
            self.rates.push(rate_per_s);
            if self.signal_at == Some(self.rates.len()) {
                stop.ask();
            }
            let offered = rate_per_s.unwrap_or(CAPACITY_PER_S);
            let room = CAPACITY_PER_S.saturating_sub(offered).max(1);
            let mut latency = LatencyHistogram::new();
            for _ in 0..offered.min(CAPACITY_PER_S) {
                latency.record(1_000 * CAPACITY_PER_S / room);
            }
            let mut result = RunResult {
                latency,
                ..result()
            };
            result.totals.elapsed = Duration::from_secs(1);
            let mut config = config();
            config.load.rate_per_s = rate_per_s;
            Report::new(&config, &Machine::detect(), &result, None)
        }
    }

    fn climbed(queue: &mut Queue) -> KneeReport<Report> {
        let stop = Stop::new();
        let report_at = |rate_per_s| Ok((queue.report_at(rate_per_s, &stop), None));
        climb(&stop, report_at).unwrap().0
    }

    #[test]
    fn every_share_of_what_the_closed_loop_carried_is_tried() {
        let mut queue = Queue::default();
        let report = climbed(&mut queue);
        assert_eq!((queue.rates[0], queue.rates[1]), (None, Some(2_000)));
        assert_eq!(queue.rates.len(), 1 + SHARES_PERCENT.len());
        assert_eq!(queue.rates.last(), Some(&Some(CAPACITY_PER_S)));
        assert_eq!(report.knee.unwrap().share_percent, 95);
        assert_eq!(report.closed_loop.load.calls, CAPACITY_PER_S);
    }

    #[test]
    fn a_signal_keeps_the_steps_until_then() {
        let mut queue = Queue {
            signal_at: Some(3),
            ..Queue::default()
        };
        let report = climbed(&mut queue);
        assert_eq!((queue.rates.len(), report.steps.len()), (3, 2));
        assert!(report.interrupted);
        queue = Queue {
            signal_at: Some(1),
            ..Queue::default()
        };
        let report = climbed(&mut queue);
        assert!(report.steps.is_empty() && report.knee.is_none());
    }

    #[test]
    fn a_failure_keeps_the_steps_until_then() {
        for broken_with_report in [true, false] {
            let (stop, mut queue) = (Stop::new(), Queue::default());
            let (report, failure) = climb(&stop, |rate_per_s| {
                let report = queue.report_at(rate_per_s, &stop);
                match queue.rates.len() {
                    4 if broken_with_report => Ok((report, Some(Failure::failed("lost")))),
                    4 => Err(Failure::failed("lost")),
                    _ => Ok((report, None)),
                }
            })
            .unwrap();
            let steps = if broken_with_report { 3 } else { 2 };
            assert_eq!((queue.rates.len(), report.steps.len()), (4, steps));
            assert!(report.interrupted);
            assert_eq!(failure.unwrap().to_string(), "lost");
        }
        let (stop, broken) = (Stop::new(), || {
            Err::<(Report, _), _>(Failure::failed("away"))
        });
        assert!(climb(&stop, |_| broken()).is_err(), "nothing to report");
    }

    #[test]
    fn rates_are_whole_and_never_none() {
        assert_eq!(rate_at(1_000.4, 10), 100);
        assert_eq!(rate_at(3.0, 10), 1);
    }
}
