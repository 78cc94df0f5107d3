//! The progress line: one line on a terminal, updated four times a second; nothing if the output is not a terminal.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rpcrdma_units::{count, duration, rate};

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

/// The progress of all cores, shared with the progress line.
#[derive(Clone, Debug)]
pub(crate) struct Progress {
    cores: Arc<[CoreProgress]>,
    /// Stands at the end of the line.
    note: Arc<Mutex<String>>,
}

impl Progress {
    /// Room for `cores` polling cores.
    #[must_use]
    pub(crate) fn new(cores: usize) -> Self {
        Self {
            cores: (0..cores).map(|_| CoreProgress::default()).collect(),
            note: Arc::default(),
        }
    }

    /// Sets the text at the end of the line.
    pub(crate) fn note(&self, text: String) {
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
            let _ = thread.join();
        }
    }
}

fn write_lines(progress: &Progress, expected: Option<Duration>, ended: &mpsc::Receiver<()>) {
    let begin = Instant::now();
    let mut last = (begin, 0);
    while ended.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
        let now = Instant::now();
        let (calls, errors) = progress.totals();
        let seconds = (now - last.0).as_secs_f64();
        #[allow(clippy::cast_precision_loss, reason = "a rate")]
        let per_s = calls.saturating_sub(last.1) as f64 / seconds.max(1e-9);
        last = (now, calls);
        let mut line = line(now - begin, expected, calls, errors, per_s);
        if let Ok(note) = progress.note.lock()
            && !note.is_empty()
        {
            line += &format!(", {note}");
        }
        // \r moves to the start of the line, \x1b[K clears its rest. Errors are ignored: the measurement goes on
        // without a display.
        let _ = write!(io::stderr().lock(), "\r{line}\x1b[K");
    }
    let _ = write!(io::stderr().lock(), "\r\x1b[K");
}

/// Writes a message to standard error, in place of the progress line that may be there.
pub(crate) fn say(message: &str) {
    let clear = if io::stderr().is_terminal() {
        "\r\x1b[K"
    } else {
        ""
    };
    // The message is one write, so that those of several threads do not mix.
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
            is_shown: !quiet && io::stderr().is_terminal(),
        }
    }

    /// Adds runs that were not expected at the start.
    pub(crate) fn add(&mut self, runs: usize) {
        self.total += runs as u64;
    }

    /// Shows that the next run begins.
    pub(crate) fn next(&mut self, what: &str) {
        if self.is_shown {
            let line = rounds_line(self.begin.elapsed(), self.begun, self.total, what);
            let _ = write!(io::stderr().lock(), "\r{line}\x1b[K");
        }
        self.begun += 1;
    }
}

impl Drop for Rounds {
    fn drop(&mut self) {
        if self.is_shown && self.begun > 0 {
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
