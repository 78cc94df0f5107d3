//! `--to-knee`: measures the rate of a closed loop, and then open loops at rising shares of it, to the knee of the
//! latency curve and beyond.

use super::knee::{KneeReport, Step, disturbed_rises};
use super::view::{LoadReport, LoadView};
use crate::exit::Failure;
use crate::signals::Stop;

/// Rates of the open loops, in percent of the closed loop's rate. The steps are smaller near 100 %, where queues
/// grow. The last one is beyond what a server can carry: without it, the curve of an even load may never rise.
pub(crate) const SHARES_PERCENT: [u32; 13] = [10, 20, 30, 40, 50, 60, 70, 80, 85, 90, 95, 100, 110];

/// Measures the closed loop and every step. `report_at` measures at a rate, or in a closed loop with `None`. Then up to
/// `repeats` times, steps are measured again whose latency may have risen because the machine disturbed them; so is the
/// closed loop. After a stop request or a failure, the report has the steps completed so far; the failure comes with it.
///
/// # Errors
/// The failure of the closed loop, without which there is nothing to report.
pub(crate) fn climb<R: LoadReport>(
    stop: &Stop,
    repeats: u32,
    mut report_at: impl FnMut(Option<u64>) -> Result<(R, Option<Failure>), Failure>,
) -> Result<(KneeReport<R>, Option<Failure>), Failure> {
    let (mut closed_loop, mut failure) = report_at(None)?;
    for _ in 0..repeats {
        let is_worth_it = closed_loop.view().disturbed && closed_loop.view().load.errors == 0;
        if stop.is_asked() || failure.is_some() || !is_worth_it {
            break;
        }
        match report_at(None) {
            Ok((again, None)) if !stop.is_asked() => {
                if is_better(&again.view(), &closed_loop.view()) {
                    closed_loop = again;
                }
            }
            Ok((_, broken)) => failure = broken,
            Err(broken) => failure = Some(broken),
        }
    }
    let (capacity_per_s, calls) = {
        let view = closed_loop.view();
        (view.load.rate_per_s, view.load.calls)
    };
    let mut steps: Vec<Step> = Vec::with_capacity(SHARES_PERCENT.len());
    let mut missing = SHARES_PERCENT.to_vec();
    for _ in 0..=repeats {
        for share_percent in std::mem::take(&mut missing) {
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
            let step = Step::new(share_percent, &report);
            match steps
                .iter_mut()
                .find(|it| it.share_percent == share_percent)
            {
                // A try that was cut short has fewer slow calls.
                Some(first) if !stop.is_asked() && failure.is_none() => first.improve(step),
                Some(first) => first.errors += step.errors,
                // A signal may end a step before its first call: such a step has no latencies to report.
                None if step.latency_ns.count > 0 || !stop.is_asked() => steps.push(step),
                None => {}
            }
        }
        missing.extend(disturbed_rises(&steps).map(|it| it.share_percent));
    }
    let interrupted = stop.is_asked() || failure.is_some();
    Ok((KneeReport::new(closed_loop, steps, interrupted), failure))
}

/// Whether another closed loop is to be reported: one with errors, so that they are not lost; then one that was not
/// disturbed; then the faster one.
fn is_better(again: &LoadView<'_>, first: &LoadView<'_>) -> bool {
    if again.load.errors > 0 || !again.disturbed {
        return true;
    }
    first.disturbed && again.load.rate_per_s > first.load.rate_per_s
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
        /// The measurements that the machine disturbs, by their number from 1.
        disturbed: &'static [usize],
    }

    impl Queue {
        fn report_at(&mut self, rate_per_s: Option<u64>, stop: &Stop) -> Report {
            self.rates.push(rate_per_s);
            if self.signal_at == Some(self.rates.len()) {
                stop.ask();
            }
            let disturbed = self.disturbed.contains(&self.rates.len());
            let capacity = if disturbed {
                CAPACITY_PER_S / 2
            } else {
                CAPACITY_PER_S
            };
            let offered = rate_per_s.unwrap_or(capacity);
            let room = capacity.saturating_sub(offered).max(1);
            let mut latency = LatencyHistogram::new();
            for _ in 0..offered.min(capacity) {
                latency.record(1_000 * CAPACITY_PER_S / room);
            }
            let mut result = RunResult {
                latency,
                disturbed,
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
        climb(&stop, 0, report_at).unwrap().0
    }

    #[test]
    fn every_share_of_what_the_closed_loop_carried_is_tried() {
        let mut queue = Queue::default();
        let report = climbed(&mut queue);
        assert_eq!((queue.rates[0], queue.rates[1]), (None, Some(2_000)));
        assert_eq!(queue.rates.len(), 1 + SHARES_PERCENT.len());
        assert_eq!(queue.rates.last(), Some(&Some(CAPACITY_PER_S * 11 / 10)));
        assert_eq!(report.knee.unwrap().share_percent, 95);
        assert_eq!(report.closed_loop.load.calls, CAPACITY_PER_S);
    }

    #[test]
    fn disturbed_measurement_is_repeated_up_to_the_limit() {
        let climbed = |disturbed, repeats| {
            let (stop, mut queue) = (Stop::new(), Queue::default());
            queue.disturbed = disturbed;
            let report_at = |rate_per_s| Ok((queue.report_at(rate_per_s, &stop), None));
            let report = climb(&stop, repeats, report_at).unwrap().0;
            (report, queue.rates)
        };
        // The closed loop, then the step at 80 %, twice.
        let (report, rates) = climbed(&[1, 10, 16], 2);
        assert_eq!(report.closed_loop.load.calls, CAPACITY_PER_S);
        assert_eq!(rates[..2], [None, None]);
        assert_eq!(rates[15..], [Some(16_000), Some(16_000)]);
        assert_eq!(report.steps[7].tries, 3);
        assert!(report.steps[7].is_reached && !report.steps[7].disturbed);
        assert_eq!(report.knee.unwrap().share_percent, 95);
        // What is disturbed each time is reported as such.
        let (report, rates) = climbed(&[9, 15], 1);
        assert_eq!(rates.len(), 1 + SHARES_PERCENT.len() + 1);
        assert!(report.steps[7].disturbed && !report.steps[7].is_reached);
        let (_, rates) = climbed(&[1, 9], 0);
        assert_eq!(rates.len(), 1 + SHARES_PERCENT.len());
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
            let (report, failure) = climb(&stop, 0, |rate_per_s| {
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
        assert!(climb(&stop, 0, |_| broken()).is_err(), "nothing to report");
    }

    #[test]
    fn rates_are_whole_and_never_none() {
        assert_eq!(rate_at(1_000.4, 10), 100);
        assert_eq!(rate_at(3.0, 10), 1);
    }
}
