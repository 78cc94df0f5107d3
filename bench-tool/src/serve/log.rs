//! The log of a server: one line per event on standard error, as text or JSON. A separate thread writes the lines,
//! and logging never blocks. Polling cores log nothing; they count.

use std::fmt;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Map, Value};

use crate::date::rfc3339;
use crate::machine;
use crate::threads;

/// Upper bound of the events that wait for the writer. Further events are lost and counted.
const WAITING_MAX: usize = 1024;

/// The format of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LogFormat {
    #[default]
    Text,
    Json,
}

/// The severity of an event.
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

/// An event with its fields.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    at: SystemTime,
    level: LogLevel,
    name: &'static str,
    fields: Vec<(&'static str, Value)>,
}

impl Event {
    /// An event with the current time. Names are stable: tools match them.
    #[must_use]
    pub(crate) fn new(level: LogLevel, name: &'static str) -> Self {
        Self {
            at: SystemTime::now(),
            level,
            name,
            fields: Vec::new(),
        }
    }

    /// Adds a field.
    #[must_use]
    pub(crate) fn with(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.fields.push((name, value.into()));
        self
    }

    /// Adds a field with a value as text.
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
                    // The JSON form quotes and escapes strings, so a peer's name cannot forge lines or fields.
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

/// A handle for logging. Clones share the log.
#[derive(Clone, Debug)]
pub(crate) struct Logger {
    level: LogLevel,
    events: SyncSender<Event>,
    lost: Arc<AtomicU64>,
}

impl Logger {
    /// Logs the event if its level is enabled. Never blocks.
    pub(crate) fn log(&self, event: Event) {
        if event.level > self.level {
            return;
        }
        if let Err(TrySendError::Full(_)) = self.events.try_send(event) {
            // Relaxed: the counter publishes no other data.
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The log and its writer thread. Dropping this first writes all waiting events.
#[derive(Debug)]
pub(crate) struct Log {
    logger: Option<Logger>,
    thread: Option<JoinHandle<()>>,
}

impl Log {
    /// Starts a log on standard error. The thread keeps off `processors`, those of the polling cores.
    ///
    /// # Errors
    /// If the thread cannot be started.
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
            // Other handles may still exist, so the channel stays open: an event must mark the end.
            // If nobody reads standard error, neither the event nor the thread gets on, and the server ends without them.
            let deadline = Instant::now() + END_TIMEOUT;
            let mut end = Some(Event::new(LogLevel::Error, END));
            let ends = || {
                if let Some(Err(TrySendError::Full(event))) =
                    end.take().map(|it| logger.events.try_send(it))
                {
                    end = Some(event);
                }
                Instant::now() < deadline
            };
            // A panic of the thread has already been printed; a destructor cannot report it.
            let _ended = threads::ended_while(&thread, ends);
        }
    }
}

/// How long the end of a server waits for events that nobody reads.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// The name of the event that ends the log; it is not written.
const END: &str = "";

fn write_all(waiting: &Receiver<Event>, format: LogFormat, lost: &AtomicU64) {
    // WAIT: for events, in a separate thread, which the last one ends.
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
        // If standard error is closed, there is no place to report that.
        // WAIT: for the reader of standard error. Nobody waits for this thread but `Log::drop`, which has a limit.
        let _ = std::io::stderr().lock().write_all(lines.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_text_or_json() {
        let mut event = Event::new(LogLevel::Warn, "connection_closed")
            .with("core", 1)
            .with("peer", "a \"b\"\nc");
        event.at = SystemTime::UNIX_EPOCH;
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
    fn full_log_queue_counts_lost_events_without_blocking() {
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
