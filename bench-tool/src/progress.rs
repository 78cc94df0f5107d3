//! The progress line: one line on a terminal, updated four times a second; nothing if the output is not a terminal.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rpcrdma_units::{count, duration, rate};
use serde::{Deserialize, Serialize};

use crate::histogram::LatencyHistogram;

/// Time between two updates.
const PERIOD: Duration = Duration::from_millis(250);

/// The progress of one core. Only that core writes it, with relaxed stores; it has its own cache lines, so that cores
/// do not disturb each other.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct CoreProgress {
    calls: AtomicU64,
    errors: AtomicU64,
}

impl CoreProgress {
    /// Publishes the core's totals since the start. Call it every few dozen polls, not for every call.
    #[inline]
    pub(crate) fn publish(&self, calls: u64, errors: u64) {
        // Relaxed: the values are only displayed, and need no order.
        self.calls.store(calls, Ordering::Relaxed);
        self.errors.store(errors, Ordering::Relaxed);
    }
}

/// What a load does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LoadState {
    /// It makes its connections, or waits for its start.
    #[default]
    Starting,
    WarmUp,
    Measuring,
    /// Its calls are over.
    Over,
}

impl LoadState {
    pub(crate) const ALL: [Self; 4] = [Self::Starting, Self::WarmUp, Self::Measuring, Self::Over];

    /// The value of a label.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::WarmUp => "warm_up",
            Self::Measuring => "measuring",
            Self::Over => "over",
        }
    }
}

/// The upper bounds of the latencies that are counted together, in nanoseconds: 1, 2 and 5 of each decade from 1 us to
/// 10 s.
pub(crate) const LATENCY_BOUNDS_NS: [u64; 22] = {
    let mut bounds = [0; 22];
    let (mut place, mut decade) = (0, 1_000);
    while place < bounds.len() {
        bounds[place] = decade
            * match place % 3 {
                0 => 1,
                1 => 2,
                _ => 5,
            };
        if place % 3 == 2 {
            decade *= 10;
        }
        place += 1;
    }
    bounds
};

/// Latencies, counted between [`LATENCY_BOUNDS_NS`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LatencyCounts {
    /// One for each bound, without those of the bounds before it, and one for what is above all bounds.
    pub(crate) counts: Box<[u64; LATENCY_BOUNDS_NS.len() + 1]>,
    /// The sum of all latencies in nanoseconds; the largest number if it is larger.
    pub(crate) sum_ns: u64,
}

impl LatencyCounts {
    /// Those of a histogram, whose buckets are 0.1 % wide.
    pub(crate) fn of(latency: &LatencyHistogram) -> Self {
        Self {
            counts: Box::new(latency.counts_between(&LATENCY_BOUNDS_NS)),
            sum_ns: u64::try_from(latency.sum_ns()).unwrap_or(u64::MAX),
        }
    }
}

/// What a load has done so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Figures {
    /// Calls that succeeded, those of the warm-up too.
    pub(crate) calls: u64,
    /// Calls that failed.
    pub(crate) errors: u64,
    /// Payload of the calls that succeeded; `None` if calls differ in size.
    pub(crate) payload_bytes: Option<u64>,
    /// Connections that were lost, replaced or not.
    pub(crate) connections_lost: u64,
    /// Open loop: the rate that is asked for; `None` when the calls are over.
    pub(crate) rate_per_s: Option<u64>,
    pub(crate) state: LoadState,
    /// Latencies of the intervals that are over; `None` if nobody wants them.
    pub(crate) latency: Option<LatencyCounts>,
}

/// What the thread that waits for the cores notes.
#[derive(Debug, Default)]
struct Noted {
    call_bytes: Option<u64>,
    rate_per_s: Option<u64>,
    /// When the measurement begins; `None` before the load does.
    measured_from: Option<Instant>,
    is_over: bool,
    connections_lost: u64,
    /// `None` if nobody wants it.
    latency: Option<Box<LatencyHistogram>>,
}

/// The progress of all cores, shared with the progress line.
#[derive(Clone, Debug)]
pub(crate) struct Progress {
    cores: Arc<[CoreProgress]>,
    /// Stands at the end of the line.
    note: Arc<Mutex<String>>,
    noted: Arc<Mutex<Noted>>,
}

impl Progress {
    /// Room for `cores` polling cores.
    #[must_use]
    pub(crate) fn new(cores: usize) -> Self {
        Self {
            cores: (0..cores).map(|_| CoreProgress::default()).collect(),
            note: Arc::default(),
            noted: Arc::default(),
        }
    }

    // Threads that make calls lock this only when a connection is lost: latencies are merged, and read for a page, under
    // it.
    fn noted(&self) -> MutexGuard<'_, Noted> {
        // WAIT: for threads that copy figures under this lock.
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the payload of a call, if all calls have the same.
    #[must_use]
    pub(crate) fn with_call_bytes(self, bytes: Option<u64>) -> Self {
        self.noted().call_bytes = bytes;
        self
    }

    /// Asks for [`Figures::latency`].
    pub(crate) fn keep_latency(&self) {
        self.noted().latency = Some(Box::new(LatencyHistogram::new()));
    }

    /// Notes that the load begins: its warm-up, and its rate in an open loop.
    pub(crate) fn begin(&self, warmup: Duration, rate_per_s: Option<u64>) {
        let mut noted = self.noted();
        noted.measured_from = Some(Instant::now() + warmup);
        noted.rate_per_s = rate_per_s;
    }

    /// Notes that the calls are over: no rate is asked for any more.
    pub(crate) fn end(&self) {
        let mut noted = self.noted();
        noted.is_over = true;
        noted.rate_per_s = None;
    }

    /// Notes that so many more connections were lost.
    pub(crate) fn lost(&self, connections: u64) {
        if connections > 0 {
            self.noted().connections_lost += connections;
        }
    }

    /// Adds the latencies of an interval that is over.
    pub(crate) fn measured(&self, interval: &LatencyHistogram) {
        if let Some(latency) = &mut self.noted().latency {
            latency.merge(interval);
        }
    }

    /// All of it.
    #[must_use]
    pub(crate) fn figures(&self) -> Figures {
        let (calls, errors) = self.totals();
        let noted = self.noted();
        Figures {
            calls,
            errors,
            payload_bytes: noted.call_bytes.map(|bytes| bytes.saturating_mul(calls)),
            connections_lost: noted.connections_lost,
            rate_per_s: noted.rate_per_s,
            state: match noted.measured_from {
                None => LoadState::Starting,
                Some(_) if noted.is_over => LoadState::Over,
                Some(from) if Instant::now() < from => LoadState::WarmUp,
                Some(_) => LoadState::Measuring,
            },
            latency: noted.latency.as_deref().map(LatencyCounts::of),
        }
    }

    /// Sets the text at the end of the line.
    pub(crate) fn note(&self, text: String) {
        // WAIT: for threads that copy a text under this lock.
        if let Ok(mut note) = self.note.lock() {
            *note = text;
        }
    }

    /// The progress of the core with this index; `None` if there is no such core.
    #[must_use]
    pub(crate) fn core(&self, index: usize) -> Option<&CoreProgress> {
        self.cores.get(index)
    }

    /// Calls and errors, summed over all cores.
    #[must_use]
    pub(crate) fn totals(&self) -> (u64, u64) {
        self.cores.iter().fold((0, 0), |(calls, errors), core| {
            (
                calls + core.calls.load(Ordering::Relaxed),
                errors + core.errors.load(Ordering::Relaxed),
            )
        })
    }
}

/// The progress line. Dropping it clears the line and waits for its thread.
#[derive(Debug)]
pub(crate) struct ProgressLine {
    // Dropping it makes the thread end.
    end: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ProgressLine {
    /// Starts the line on standard error. If that is not a terminal, or with `quiet`, it starts no thread and writes
    /// nothing. `expected` is the expected time including the warm-up.
    #[must_use]
    pub(crate) fn start(progress: &Progress, expected: Option<Duration>, quiet: bool) -> Self {
        // WAIT: for the reader of standard error. The first signal stops calls meanwhile, and the second one ends the process.
        if quiet || !io::stderr().is_terminal() {
            return Self {
                end: None,
                thread: None,
            };
        }
        let (end, ended) = mpsc::channel();
        let progress = progress.clone();
        // The thread sleeps between updates, so it disturbs a polling core at most four times a second.
        let thread = std::thread::Builder::new()
            .name("progress".to_owned())
            .spawn(move || write_lines(&progress, expected, &ended))
            .ok();
        Self {
            end: Some(end),
            thread,
        }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // Ignore a panic: the line is only a display.
            // WAIT: for one line to the terminal: a second Ctrl-C ends a pause of its output (Ctrl-S).
            let _ = thread.join();
        }
    }
}

fn write_lines(progress: &Progress, expected: Option<Duration>, ended: &mpsc::Receiver<()>) {
    let begin = Instant::now();
    let mut last = (begin, 0);
    // WAIT: `PERIOD`, in a separate thread; the end of the load closes the channel.
    while ended.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
        let now = Instant::now();
        let (calls, errors) = progress.totals();
        let seconds = (now - last.0).as_secs_f64();
        #[allow(clippy::cast_precision_loss, reason = "a rate")]
        let per_s = calls.saturating_sub(last.1) as f64 / seconds.max(1e-9);
        last = (now, calls);
        let mut line = line(now - begin, expected, calls, errors, per_s);
        // WAIT: as above.
        if let Ok(note) = progress.note.lock()
            && !note.is_empty()
        {
            line += &format!(", {note}");
        }
        // \r moves to the start of the line, \x1b[K clears its rest. Errors are ignored: the measurement goes on
        // without a display.
        // WAIT: for the terminal.
        let _ = write!(io::stderr().lock(), "\r{line}\x1b[K");
    }
    let _ = write!(io::stderr().lock(), "\r\x1b[K");
}

/// Writes a message to standard error, in place of the progress line that may be there.
pub(crate) fn say(message: &str) {
    // WAIT: for the reader of standard error. The first signal stops calls meanwhile, and the second one ends the process.
    let clear = if io::stderr().is_terminal() {
        "\r\x1b[K"
    } else {
        ""
    };
    // The message is one write, so that those of several threads do not mix.
    // WAIT: for the reader of standard error. The first signal stops calls meanwhile, and the second one ends the process.
    let _ = io::stderr()
        .lock()
        .write_all(format!("{clear}{message}\n").as_bytes());
}

/// The progress line of a command with many runs: the current run and the estimated time left. Only on a terminal.
#[derive(Debug)]
pub(crate) struct Rounds {
    begin: Instant,
    total: u64,
    begun: u64,
    is_shown: bool,
}

impl Rounds {
    /// A line for `total` runs that take about the same time each.
    #[must_use]
    pub(crate) fn start(total: u64, quiet: bool) -> Self {
        Self {
            begin: Instant::now(),
            total,
            begun: 0,
            // WAIT: for the reader of standard error. The first signal stops calls meanwhile, and the second one ends the process.
            is_shown: !quiet && io::stderr().is_terminal(),
        }
    }

    /// Adds runs that were not expected at the start.
    pub(crate) fn add(&mut self, runs: usize) {
        self.total += runs as u64;
    }

    /// Shows that the next run begins; returns which of how many it is.
    pub(crate) fn next(&mut self, what: &str) -> String {
        if self.is_shown {
            let line = rounds_line(self.begin.elapsed(), self.begun, self.total, what);
            // WAIT: for the terminal.
            let _ = write!(io::stderr().lock(), "\r{line}\x1b[K");
        }
        self.begun += 1;
        format!("run {} of {}", self.begun, self.total)
    }
}

impl Drop for Rounds {
    fn drop(&mut self) {
        if self.is_shown && self.begun > 0 {
            // WAIT: for the terminal.
            let _ = write!(io::stderr().lock(), "\r\x1b[K");
        }
    }
}

fn rounds_line(elapsed: Duration, done: u64, total: u64, what: &str) -> String {
    let each_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX) / done.max(1);
    let left_s = each_ms
        .saturating_mul(total.saturating_sub(done))
        .div_ceil(1000);
    let left = match left_s {
        _ if done == 0 => String::new(),
        0..100 => format!(", {left_s} s left"),
        _ => format!(", {} min left", left_s.div_ceil(60)),
    };
    format!("run {} of {total}{left}: {what}", done + 1)
}

fn line(
    elapsed: Duration,
    expected: Option<Duration>,
    calls: u64,
    errors: u64,
    per_s: f64,
) -> String {
    let elapsed =
        Duration::from_millis(u64::try_from(elapsed.as_millis() / 100 * 100).unwrap_or(0));
    // After its time a run waits for the last replies, and a short one also connects.
    let is_over = expected.is_some_and(|expected| elapsed >= expected);
    let elapsed = expected.map_or(elapsed, |expected| elapsed.min(expected));
    let of = expected
        .map(|e| format!(" of {}", duration(e)))
        .unwrap_or_default();
    let last = if is_over { ", the last replies" } else { "" };
    let errors = if errors == 0 {
        String::new()
    } else {
        format!(", {} errors", count(errors))
    };
    format!(
        "{}{of}: {} calls, {}{errors}{last}",
        duration(elapsed),
        count(calls),
        rate(per_s)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_over_all_cores() {
        let progress = Progress::new(2);
        progress.core(0).unwrap().publish(10, 0);
        progress.core(1).unwrap().publish(5, 2);
        progress.core(0).unwrap().publish(11, 0);
        assert_eq!(progress.totals(), (16, 2));
        assert!(progress.core(2).is_none());
    }

    #[test]
    fn the_figures_say_what_the_load_does_and_what_was_measured() {
        let progress = Progress::new(1);
        assert_eq!(progress.figures(), Figures::default());
        let progress = progress.with_call_bytes(Some(64));
        progress.begin(Duration::from_secs(1000), Some(50));
        let figures = progress.figures();
        assert_eq!(
            (figures.state, figures.rate_per_s),
            (LoadState::WarmUp, Some(50))
        );
        let mut interval = LatencyHistogram::new();
        interval.record(4_000);
        // Nobody has asked for it yet.
        progress.measured(&interval);
        progress.keep_latency();
        progress.begin(Duration::ZERO, None);
        interval.record_equal(20_000_000_000, 2);
        progress.measured(&interval);
        progress.measured(&interval);
        progress.lost(1);
        progress.lost(2);
        progress.core(0).unwrap().publish(6, 0);
        let figures = progress.figures();
        assert_eq!(figures.state, LoadState::Measuring);
        assert_eq!((figures.calls, figures.connections_lost), (6, 3));
        assert_eq!(figures.payload_bytes, Some(384));
        let latency = figures.latency.unwrap();
        assert_eq!(latency.sum_ns, 2 * 40_000_004_000);
        assert_eq!(latency.counts.iter().sum::<u64>(), 6);
        assert_eq!(latency.counts[2], 2, "to 5 us");
        assert_eq!(latency.counts[22], 4, "above 10 s");
        progress.begin(Duration::ZERO, Some(50));
        assert_eq!(progress.figures().rate_per_s, Some(50));
        progress.end();
        let figures = progress.figures();
        assert_eq!((figures.state, figures.rate_per_s), (LoadState::Over, None));
        assert_eq!(LATENCY_BOUNDS_NS[21], 10_000_000_000);
    }

    #[test]
    fn the_line_of_many_runs_says_what_is_left() {
        let seconds = Duration::from_secs;
        assert_eq!(rounds_line(seconds(0), 0, 14, "A"), "run 1 of 14: A");
        assert_eq!(
            rounds_line(seconds(6), 2, 14, "B"),
            "run 3 of 14, 36 s left: B"
        );
        assert_eq!(
            rounds_line(seconds(60), 2, 14, "B"),
            "run 3 of 14, 6 min left: B"
        );
    }

    #[test]
    fn the_line_says_how_far_it_is() {
        assert_eq!(
            line(
                Duration::from_millis(1_299),
                Some(Duration::from_secs(5)),
                1_234_567,
                0,
                2_190_000.0
            ),
            "1.2 s of 5 s: 1,234,567 calls, 2.190 M/s"
        );
        assert_eq!(
            line(Duration::from_secs(2), None, 10, 1_000, 5.0),
            "2 s: 10 calls, 5.000 /s, 1,000 errors"
        );
        let short = Some(Duration::from_millis(300));
        assert_eq!(
            line(Duration::from_millis(500), short, 10, 0, 5.0),
            "300 ms of 300 ms: 10 calls, 5.000 /s, the last replies"
        );
    }
}
