//! The phases of a load (warm-up, measurement, end): when the next call is due, and whether it counts.

use std::sync::Arc;
use std::time::Duration;

use rpcrdma_fabric::clock::{Clock, Ticks};

use super::intervals::{Exchange, Recorder};
use super::measured::Measured;
use super::pace::Pace;
use super::{Amount, Limit};
use crate::histogram::LatencyHistogram;

/// How long calls of an open loop that were due in the measured time are still made after it. A stall at the end, of the
/// server or of this process, then shows in the latencies like any other. A load far above what the path carries would
/// take as long as it is late: what is left then counts with the time that it has waited.
pub(crate) const DRAIN_MAX: Duration = Duration::from_secs(10);

/// The same for a load that somebody stopped, and who waits for its end.
const STOPPED_DRAIN_MAX: Duration = Duration::from_secs(1);

/// The time between two looks for what others ask of a load. Nobody sees less, and progress is shown once in a second.
const HOUSEKEEPING_INTERVAL: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No load.
    Idle,
    /// Calls are made but not counted.
    Warmup,
    /// Calls are counted until the limit.
    Measuring,
    /// No new calls but those of an open loop that were due before the end; the generator waits for outstanding ones.
    Ending,
}

/// The start of a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// The measurement begins.
    Measuring,
    /// The measurement is over.
    Ending,
}

/// The phase of one part of a load. It counts the calls, and decides whether the next one may be made.
#[derive(Debug)]
pub(crate) struct LoadPhase {
    clock: Clock,
    phase: Phase,
    /// When the phase or the current interval ends, whichever is first: the generator compares one time only.
    until: Ticks,
    pace: Option<Pace>,
    limit: Limit,
    /// Upper bound of the calls in the measured time; 0 once no new calls are made.
    calls_max: u64,
    /// Calls that start before this time do not count; `Ticks::MAX` until the measurement begins.
    measured_start: Ticks,
    /// When the measurement ends; `Ticks::MAX` if the limit is a count.
    measured_until: Ticks,
    /// Calls of an open loop that are due from this time on are not made: the end of the measurement, planned or not.
    due_until: Ticks,
    /// No calls are made from this time on.
    made_until: Ticks,
    /// Calls that started in the measured time.
    started: u64,
    /// When the last successful one ended.
    last_end: Ticks,
    elapsed: Duration,
    /// The latencies of the current interval.
    recorder: Recorder,
    exchange: Arc<Exchange>,
}

impl LoadPhase {
    /// The phase without a load: no call is due.
    pub(crate) fn idle() -> Self {
        Self {
            clock: Clock::new(),
            phase: Phase::Idle,
            until: 0,
            pace: None,
            limit: Limit::Count(0),
            calls_max: 0,
            measured_start: Ticks::MAX,
            measured_until: Ticks::MAX,
            due_until: Ticks::MAX,
            made_until: Ticks::MAX,
            started: 0,
            last_end: 0,
            elapsed: Duration::ZERO,
            recorder: Recorder::new(1),
            exchange: Arc::new(Exchange::with_spares(1)),
        }
    }

    /// Prepares the warm-up: no call is due before [`LoadPhase::start_at`]. The histograms of finished intervals go to
    /// `exchange`.
    pub(crate) fn new(amount: &Amount, exchange: Arc<Exchange>) -> Self {
        let clock = Clock::new();
        Self {
            phase: Phase::Warmup,
            limit: amount.limit,
            recorder: Recorder::new(clock.ticks(amount.interval)),
            exchange,
            clock,
            ..Self::idle()
        }
    }

    /// The phase of a part that does not say what it did, and ended at `ended` or as planned. It began at `start`, and
    /// `answered` calls of its measured time are known: by this phase they are the first ones, and no others are made.
    pub(crate) fn of_silent_part(
        amount: &Amount,
        (start, ended): (Ticks, Ticks),
        answered: u64,
    ) -> Self {
        let mut phase = Self::new(amount, Arc::default());
        phase.start_at(amount, start);
        phase.advance(phase.until, 0);
        phase.end_by(ended.min(phase.measured_until), Duration::ZERO);
        if let Some(pace) = &mut phase.pace {
            pace.skip(pace.left(phase.measured_start) + answered);
        }
        phase.started = answered;
        phase
    }

    /// Starts the warm-up.
    pub(crate) fn start_at(&mut self, amount: &Amount, now: Ticks) {
        let pace = |rate| Pace::new(now, self.clock.ticks_per_second(), rate);
        self.until = now.saturating_add(self.clock.ticks(amount.warmup));
        self.pace = amount.rate.map(pace);
        self.calls_max = match self.limit {
            Limit::Duration(_) => u64::MAX,
            Limit::Count(count) => count,
        };
    }

    /// Changes the phase or the interval if it is time. `outstanding` is the number of calls that have not ended.
    /// Call it at [`LoadPhase::until`], and in every poll after [`LoadPhase::is_enough`].
    pub(crate) fn advance(&mut self, now: Ticks, outstanding: usize) -> Option<Change> {
        match self.phase {
            Phase::Warmup if now >= self.until => {
                self.phase = Phase::Measuring;
                // By the plan, and not when this process finds time to look: a stall over the beginning counts too.
                self.measured_start = self.until;
                self.recorder.begin(self.until);
                if let Limit::Duration(time) = self.limit {
                    self.measured_until = self.until.saturating_add(self.clock.ticks(time));
                    self.due_until = self.measured_until;
                }
                self.until = self.recorder.until().min(self.measured_until);
                Some(Change::Measuring)
            }
            Phase::Measuring => {
                // `started` includes calls that fail: the load does not make others in their place.
                let is_over = self.is_enough() && outstanding == 0;
                if is_over || now >= self.measured_until {
                    return self.end_by(now, DRAIN_MAX);
                }
                if now >= self.recorder.until() {
                    self.recorder.next(now, &self.exchange);
                    self.until = self.recorder.until().min(self.measured_until);
                }
                None
            }
            Phase::Idle | Phase::Warmup | Phase::Ending => None,
        }
    }

    /// Ends the measurement before its limit, or soon what is still made after it. Outstanding calls are recorded in the last
    /// interval.
    pub(crate) fn end(&mut self, now: Ticks) -> Option<Change> {
        if self.is_ending() {
            let soon = now.saturating_add(self.clock.ticks(STOPPED_DRAIN_MAX));
            self.made_until = self.made_until.min(soon);
        }
        self.end_by(now, STOPPED_DRAIN_MAX)
    }

    fn end_by(&mut self, now: Ticks, drain_max: Duration) -> Option<Change> {
        if !self.is_calling() {
            return None;
        }
        let is_measured = self.phase == Phase::Measuring;
        self.phase = Phase::Ending;
        self.elapsed = self.since_start(now);
        self.due_until = self.due_until.min(now);
        // Counted from here: this process may have been suspended until long after the end.
        self.made_until = now.saturating_add(self.clock.ticks(drain_max));
        if self.pace.is_none() || !is_measured {
            self.calls_max = 0;
        }
        is_measured.then_some(Change::Ending)
    }

    /// Makes no more calls, not even those that were due before the end: nobody takes them.
    pub(crate) fn give_up(&mut self) {
        self.made_until = 0;
    }

    /// Whether calls that were due before the end are still to be made.
    pub(crate) fn is_draining(&self, now: Ticks) -> bool {
        self.is_ending() && now < self.made_until && self.due(self.due_until).is_some()
    }

    /// Notes at `now`, when the load has ended or is given up, how long it lasted, how many calls were due, and which have no
    /// answer: see [`LoadPhase::unanswered`].
    pub(crate) fn conclude(&self, measured: &mut Measured, now: Ticks, made: &[Ticks]) {
        measured.elapsed = self.elapsed();
        measured.calls_due = self.calls_due();
        measured.unanswered = self.unanswered(now, made);
    }

    /// How many calls were due in the measured time; `None` in a closed loop, which has no schedule.
    fn calls_due(&self) -> Option<u64> {
        let due = self.pace?.due_between(self.measured_start, self.due_until);
        Some(match self.limit {
            Limit::Duration(_) => due,
            Limit::Count(count) => due.min(count),
        })
    }

    /// The waits until `now` of the calls of the measured time that have no answer: those that were due and not made, and
    /// those that were made at `made`. Each is less than its latency would have been. Empty if all were answered.
    fn unanswered(&self, now: Ticks, made: &[Ticks]) -> Option<LatencyHistogram> {
        let mut waits = LatencyHistogram::new();
        for start in made.iter().filter(|start| self.is_measured(**start)) {
            waits.record(self.latency_ns(*start, now));
        }
        if let Some(pace) = self.pace.filter(|_| !self.is_enough()) {
            // A stall over the end of the warm-up leaves calls of the warm-up.
            let before = pace.left(self.measured_start.min(self.due_until));
            let left = pace.left(self.due_until).saturating_sub(before);
            waits.record_falling(left.min(self.left()), |place| {
                self.latency_ns(pace.due_after(before + place), now)
            });
        }
        (waits.count() > 0).then_some(waits)
    }

    fn since_start(&self, now: Ticks) -> Duration {
        let start = self.measured_start.min(now);
        Duration::from_nanos(self.clock.nanos_between(start, now))
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.phase == Phase::Idle
    }

    /// Whether this phase makes new calls.
    pub(crate) fn is_calling(&self) -> bool {
        matches!(self.phase, Phase::Warmup | Phase::Measuring)
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.phase == Phase::Ending
    }

    /// Whether all calls of the limit are made.
    pub(crate) fn is_enough(&self) -> bool {
        self.started >= self.calls_max
    }

    /// When the generator looks again for a stop request and for connections that were made again.
    pub(crate) fn next_housekeeping(&self, now: Ticks) -> Ticks {
        now.saturating_add(self.clock.ticks(HOUSEKEEPING_INTERVAL))
    }

    /// When the phase or the current interval ends, whichever is first.
    pub(crate) fn until(&self) -> Ticks {
        self.until
    }

    /// How many more calls may start in the measured time.
    pub(crate) fn left(&self) -> u64 {
        self.calls_max.saturating_sub(self.started)
    }

    /// The time to pass to [`LoadPhase::due`]. An open loop reads the clock: with the core's last reading, a call
    /// would start late by that reading's age.
    #[inline]
    pub(crate) fn now(&self, now: Ticks) -> Ticks {
        match self.pace {
            None => now,
            Some(_) => self.clock.now(),
        }
    }

    /// The start time of the next call if it may be made now: `now` in a closed loop, its due time in an open loop.
    #[inline]
    pub(crate) fn due(&self, now: Ticks) -> Option<Ticks> {
        if self.is_enough() {
            return None;
        }
        match &self.pace {
            None => Some(now),
            Some(pace) => pace
                .start(now, self.due_until)
                .filter(|_| now < self.made_until),
        }
    }

    /// When the next call of an open loop is due; `None` in a closed loop, and after the last call.
    pub(crate) fn next_due(&self) -> Option<Ticks> {
        let pace = self.pace.filter(|_| !self.is_enough());
        let due = pace.map(|pace| pace.due());
        due.filter(|due| *due < self.due_until.min(self.made_until))
    }

    /// The time until the next call is due, at most `longest`.
    pub(crate) fn idle_for(&self, now: Ticks, longest: Duration) -> Duration {
        let due = self.next_due().filter(|_| now < self.made_until);
        due.map_or(longest, |due| {
            Duration::from_nanos(self.clock.nanos_between(now, due)).min(longest)
        })
    }

    /// Notes a call that started at `start` and counts as `calls` calls.
    #[inline]
    pub(crate) fn made(&mut self, start: Ticks, calls: u64) {
        if let Some(pace) = &mut self.pace {
            pace.advance();
        }
        if self.is_measured(start) {
            self.started += calls;
        }
    }

    /// Whether a call that started at `start` counts.
    #[inline]
    pub(crate) fn is_measured(&self, start: Ticks) -> bool {
        start >= self.measured_start
    }

    /// The latency of a call in nanoseconds.
    #[inline]
    pub(crate) fn latency_ns(&self, start: Ticks, end: Ticks) -> u64 {
        self.clock.nanos_between(start, end)
    }

    /// Records `calls` successful calls that ended at `end`, each with `latency_ns`.
    #[inline]
    pub(crate) fn record(&mut self, latency_ns: u64, calls: u64, end: Ticks) {
        self.recorder.record(latency_ns, calls);
        self.last_end = end;
    }

    /// The measured time, up to the end of the last successful call. So a stall at the end lowers the rate instead of
    /// vanishing.
    fn elapsed(&self) -> Duration {
        self.elapsed.max(self.since_start(self.last_end))
    }

    /// The last interval, which is not in the exchange.
    pub(crate) fn into_recorder(self) -> Recorder {
        self.recorder
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::pace::Rate;

    fn phase(limit: Limit, rate_per_s: Option<u64>) -> (LoadPhase, Ticks) {
        let amount = Amount {
            depth: 1,
            warmup: Duration::from_secs(1),
            limit,
            rate: rate_per_s.map(Rate::new),
            retry: Duration::ZERO,
            interval: Duration::from_secs(1),
        };
        let second = Clock::new().ticks_per_second();
        let mut phase = LoadPhase::new(&amount, Arc::default());
        phase.start_at(&amount, 0);
        (phase, second)
    }

    /// A tick is not a whole number of nanoseconds.
    fn is_about(time: Duration, seconds: u64) -> bool {
        time.abs_diff(Duration::from_secs(seconds)) < Duration::from_micros(1)
    }

    #[test]
    fn calls_count_from_the_end_of_the_warm_up() {
        let (mut phase, second) = phase(Limit::Duration(Duration::from_secs(2)), None);
        assert_eq!(phase.until(), second);
        assert_eq!(phase.advance(second - 1, 0), None);
        assert_eq!(phase.due(second - 1), Some(second - 1));
        phase.made(second - 1, 1);
        assert!(!phase.is_measured(second - 1));
        assert_eq!(phase.advance(second, 1), Some(Change::Measuring));
        assert!(!phase.is_measured(second - 1), "of the warm-up");
        phase.made(second, 1);
        assert!(phase.is_measured(second));
        let latency_ns = phase.latency_ns(second, 2 * second);
        assert!(is_about(Duration::from_nanos(latency_ns), 1));
        phase.record(latency_ns, 1, 2 * second);
        assert_eq!(phase.advance(3 * second - 1, 1), None);
        assert!(phase.is_calling());
        assert_eq!(phase.advance(3 * second, 1), Some(Change::Ending));
        assert!(phase.is_ending() && phase.due(3 * second).is_none());
        // TIME: a phase reads no clock: all ticks are arguments.
        assert!(is_about(phase.elapsed(), 2));
        phase.record(1, 1, 6 * second);
        assert!(is_about(phase.elapsed(), 5), "to the last call");
    }

    #[test]
    fn a_count_is_made_and_no_more() {
        let (mut phase, second) = phase(Limit::Count(3), None);
        phase.advance(second, 0);
        phase.made(phase.due(second + 1).unwrap(), 1);
        assert_eq!(phase.left(), 2);
        phase.made(phase.due(second + 1).unwrap(), 2);
        assert_eq!(phase.due(second + 1), None);
        assert!(phase.is_enough());
        for outstanding in [2, 1] {
            assert_eq!(phase.advance(second + 2, outstanding), None);
            assert!(!phase.is_ending());
        }
        assert_eq!(phase.advance(second + 5, 0), Some(Change::Ending));
        assert!(phase.is_ending());
    }

    #[test]
    fn an_open_loop_starts_when_calls_are_due_and_tells_what_it_left() {
        let (mut phase, second) = phase(Limit::Duration(Duration::from_secs(1)), Some(10));
        assert_eq!(phase.due(0), Some(0));
        phase.made(0, 1);
        assert_eq!(phase.due(second / 20), None);
        let idle = phase.idle_for(second / 20, Duration::from_secs(1));
        assert!((49..=50).contains(&idle.as_millis()), "{idle:?}");
        assert_eq!(phase.idle_for(0, Duration::from_millis(1)).as_millis(), 1);
        assert_eq!(
            phase.due(second / 2),
            Some(second / 10),
            "late, and since then"
        );
        phase.advance(second, 0);
        phase.advance(2 * second, 0);
        assert_eq!(
            phase.calls_due(),
            Some(10),
            "those of the warm-up do not count"
        );
        assert!(phase.is_draining(2 * second));
        // Nine of the warm-up are left, too.
        let waits = phase.unanswered(3 * second, &[second / 2, second]).unwrap();
        assert_eq!(
            waits.count(),
            1 + 10,
            "with the one that was made and not answered"
        );
        assert!(is_about(Duration::from_nanos(waits.max_ns()), 2));
        let shortest = Duration::from_nanos(waits.min_ns());
        assert!(shortest.abs_diff(Duration::from_millis(1_100)) < Duration::from_micros(1));
    }

    #[test]
    fn calls_that_were_due_before_the_end_are_made_after_it() {
        let limit = Limit::Duration(Duration::from_secs(1));
        let (mut phase, second) = phase(limit, Some(10));
        (0..12).for_each(|it| phase.made(it * second / 10, 1));
        // This process was suspended: it learns of the beginning and of the end when both are long over.
        let late = 60 * second;
        phase.advance(late, 0);
        phase.advance(late, 0);
        assert!(phase.is_ending() && phase.is_draining(late));
        let mut made = 0;
        while let Some(start) = phase.due(late) {
            assert!(start < 2 * second, "not due before the end");
            phase.made(start, 1);
            made += 1;
        }
        assert_eq!((made, phase.calls_due()), (8, Some(10)));
        assert!(!phase.is_draining(late) && phase.unanswered(late, &[]).is_none());
    }

    #[test]
    fn calls_that_nobody_takes_after_the_end_are_not_made_for_ever() {
        for (is_stopped, seconds) in [
            (false, DRAIN_MAX.as_secs()),
            (true, STOPPED_DRAIN_MAX.as_secs()),
        ] {
            let limit = Limit::Duration(Duration::from_secs(1));
            let (mut phase, second) = phase(limit, Some(1_000));
            phase.advance(second, 0);
            let end = 2 * second;
            if is_stopped {
                phase.end(end);
            }
            phase.advance(end, 0);
            let last = end + seconds * second;
            assert!(phase.is_draining(last - 1) && phase.due(last - 1).is_some());
            assert!(!phase.is_draining(last) && phase.due(last).is_none());
            assert_eq!(phase.unanswered(last, &[]).unwrap().count(), 1_000);
        }
        // A stop request after the end: who waits, waits for a second more.
        let (mut late, second) = phase(Limit::Duration(Duration::from_secs(1)), Some(1_000));
        late.advance(second, 0);
        late.advance(2 * second, 0);
        for asked in [3 * second, 3 * second + second / 2] {
            assert_eq!(late.end(asked), None);
            assert!(late.is_draining(asked) && !late.is_draining(4 * second));
        }
        let (mut phase, second) = phase(Limit::Count(5), Some(1_000));
        phase.advance(second, 0);
        phase.end(2 * second);
        phase.give_up();
        assert!(!phase.is_draining(2 * second) && phase.due(2 * second).is_none());
        assert_eq!(
            phase.unanswered(2 * second, &[]).unwrap().count(),
            5,
            "and no others"
        );
        assert_eq!(phase.calls_due(), Some(5));
    }

    #[test]
    fn a_phase_without_a_load_makes_no_calls_and_an_end_that_is_asked_for_is_one() {
        let idle = LoadPhase::idle();
        assert!(idle.is_idle() && idle.due(1).is_none() && idle.next_due().is_none());
        let (mut phase, second) = phase(Limit::Count(9), None);
        assert_eq!(phase.end(5), None, "nothing was measured");
        assert!(phase.is_ending() && phase.due(second).is_none());
        // TIME: a phase reads no clock: all ticks are arguments.
        assert_eq!(phase.elapsed(), Duration::ZERO);
    }
}
