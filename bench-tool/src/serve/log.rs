//! The log of a server: one line an event, on standard error, as text or JSON. Lines are written by a
//! thread of their own; whoever has an event hands it over and waits for nothing. Cores have no events:
//! what they do is counted.

use std::fmt;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};

use crate::machine;

/// Events that wait to be written; more are lost, and counted.
const WAITING_MAX: usize = 1024;

/// How a line looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LogFormat {
    #[default]
    Text,
    Json,
}

/// How much an event matters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LogLevel {
    Error,
    #[default]
    Warn,
    Info,
}

impl LogFormat {
    /// The name used on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

impl LogLevel {
    /// The name used on the command line and in lines.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
        }
    }
}

/// What happened, and what there is to know of it.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    at: SystemTime,
    level: LogLevel,
    name: &'static str,
    fields: Vec<(&'static str, Value)>,
}

impl Event {
    /// An event of now. Its name never changes its meaning.
    #[must_use]
    pub(crate) fn new(level: LogLevel, name: &'static str) -> Self {
        Self {
            at: SystemTime::now(),
            level,
            name,
            fields: Vec::new(),
        }
    }

    /// Adds what there is to know.
    #[must_use]
    pub(crate) fn with(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.fields.push((name, value.into()));
        self
    }

    /// Adds it as a sentence.
    #[must_use]
    pub(crate) fn telling(self, name: &'static str, value: impl fmt::Display) -> Self {
        self.with(name, value.to_string())
    }

    fn line(&self, format: LogFormat) -> String {
        let time = rfc3339(self.at);
        match format {
            LogFormat::Text => {
                let mut line = format!("{time} {} {}", self.level.name(), self.name);
                for (name, value) in &self.fields {
                    // Strings in quotes, so that names of peers make no lines and no fields of their own.
                    line.push_str(&format!(" {name}={value}"));
                }
                line
            }
            LogFormat::Json => {
                let head = [
                    ("time", time),
                    ("level", self.level.name().to_owned()),
                    ("event", self.name.to_owned()),
                ];
                let head = head.into_iter().map(|(name, value)| (name, value.into()));
                let fields = head.chain(self.fields.iter().cloned());
                let fields = fields.map(|(name, value)| (name.to_owned(), value));
                Value::Object(fields.collect::<Map<_, _>>()).to_string()
            }
        }
    }
}

/// The way into the log. Cloning shares it.
#[derive(Clone, Debug)]
pub(crate) struct Logger {
    level: LogLevel,
    events: SyncSender<Event>,
    lost: Arc<AtomicU64>,
}

impl Logger {
    /// Logs the event, if events of its level are logged. Waits for nothing.
    pub(crate) fn log(&self, event: Event) {
        if event.level > self.level {
            return;
        }
        if let Err(TrySendError::Full(_)) = self.events.try_send(event) {
            // Relaxed: a count of its own.
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The log: the thread that writes it. When this is dropped, what waits is written first.
#[derive(Debug)]
pub(crate) struct Log {
    logger: Option<Logger>,
    thread: Option<JoinHandle<()>>,
}

impl Log {
    /// Begins a log on standard error.
    ///
    /// # Errors
    /// When there can be no thread.
    pub(crate) fn start(
        format: LogFormat,
        level: LogLevel,
        processors: &[usize],
    ) -> std::io::Result<(Self, Logger)> {
        let (events, waiting) = sync_channel(WAITING_MAX);
        let logger = Logger {
            level,
            events,
            lost: Arc::default(),
        };
        let lost = Arc::clone(&logger.lost);
        let processors = processors.to_vec();
        let thread = std::thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || {
                machine::keep_off(&processors);
                write_all(&waiting, format, &lost);
            })?;
        let log = Self {
            logger: Some(logger.clone()),
            thread: Some(thread),
        };
        Ok((log, logger))
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        if let (Some(logger), Some(thread)) = (self.logger.take(), self.thread.take()) {
            // Others may still hold the way into it, so that the end is an event.
            let end = Event::new(LogLevel::Error, END);
            if logger.events.send(end).is_ok() {
                // It cannot be told of a panic of its own here, and has told it itself.
                let _ = thread.join();
            }
        }
    }
}

/// The event that ends a log, and is not written.
const END: &str = "";

fn write_all(waiting: &Receiver<Event>, format: LogFormat, lost: &AtomicU64) {
    for event in waiting {
        if event.name == END {
            break;
        }
        let mut lines = event.line(format);
        lines.push('\n');
        let count = lost.swap(0, Ordering::Relaxed);
        if count != 0 {
            let event = Event::new(LogLevel::Warn, "events_lost").with("count", count);
            lines.push_str(&event.line(format));
            lines.push('\n');
        }
        // Who does not read the log is not served by an error about it.
        let _ = std::io::stderr().lock().write_all(lines.as_bytes());
    }
}

/// A time as RFC 3339 writes it, in UTC and with milliseconds.
fn rfc3339(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = date(days);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:03}Z",
        second / 3600,
        second / 60 % 60,
        second % 60,
        since.subsec_millis()
    )
}

/// The date so many days after the first of January 1970, by the Gregorian calendar. Years are counted
/// from a first of March, so that leap days are last.
const fn date(days: u64) -> (u64, u64, u64) {
    const DAYS_OF_400_YEARS: u64 = 146_097;
    // The first of March of the year 0 was 719 468 days before.
    let days = days + 719_468;
    let (era, day) = (days / DAYS_OF_400_YEARS, days % DAYS_OF_400_YEARS);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year;
    (if month <= 2 { year + 1 } else { year }, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, milliseconds, text) in [
            (0, 0, "1970-01-01T00:00:00.000Z"),
            (951_782_399, 7, "2000-02-28T23:59:59.007Z"),
            (951_782_400, 0, "2000-02-29T00:00:00.000Z"),
            (951_868_800, 0, "2000-03-01T00:00:00.000Z"),
            (1_795_323_600, 999, "2026-11-22T05:00:00.999Z"),
            (4_107_542_400, 0, "2100-03-01T00:00:00.000Z"),
            (4_107_456_000, 0, "2100-02-28T00:00:00.000Z"),
        ] {
            let since = Duration::from_secs(seconds) + Duration::from_millis(milliseconds);
            assert_eq!(rfc3339(UNIX_EPOCH + since), text);
        }
    }

    #[test]
    fn a_line_is_text_or_json() {
        let mut event = Event::new(LogLevel::Warn, "connection_closed")
            .with("core", 1)
            .with("peer", "a \"b\"\nc");
        event.at = UNIX_EPOCH;
        assert_eq!(
            event.line(LogFormat::Text),
            "1970-01-01T00:00:00.000Z warn connection_closed core=1 peer=\"a \\\"b\\\"\\nc\""
        );
        let object: Value = serde_json::from_str(&event.line(LogFormat::Json)).unwrap();
        assert_eq!(object["time"], "1970-01-01T00:00:00.000Z");
        assert_eq!(object["level"], "warn");
        assert_eq!(object["event"], "connection_closed");
        assert_eq!(object["core"], 1);
        assert_eq!(object["peer"], "a \"b\"\nc");
    }

    #[test]
    fn what_does_not_fit_is_counted_and_nobody_waits() {
        let (events, waiting) = sync_channel(1);
        let logger = Logger {
            level: LogLevel::Warn,
            events,
            lost: Arc::default(),
        };
        logger.log(Event::new(LogLevel::Info, "not_logged"));
        for _ in 0..3 {
            logger.log(Event::new(LogLevel::Error, "logged"));
        }
        assert_eq!(logger.lost.load(Ordering::Relaxed), 2);
        assert_eq!(waiting.try_iter().count(), 1);
    }
}
