//! Draining: no new connections and calls, what is under way finishes, then all connections close.

use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use crate::connection::DrainReport;

/// How long connections may take to close after a drain.
const CLOSE_GRACE: Duration = Duration::from_secs(1);

/// A drain under way.
pub(super) struct Drain {
    /// None when the application set no limit that the clock can say.
    pub(super) deadline: Option<Instant>,
    pub(super) cores_left: usize,
    report: DrainReport,
    answer: Sender<DrainReport>,
    closing: bool,
}

/// What to do next for a drain.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum DrainStep {
    /// Nothing before its deadline.
    Wait,
    /// Close the connections: the cores are done, or the time is up.
    Close,
    /// Answer: all connections are closed, or their time to close is up.
    Answer,
}

impl Drain {
    pub(super) fn new(
        deadline: Option<Instant>,
        cores: usize,
        connections: usize,
        answer: Sender<DrainReport>,
    ) -> Self {
        Self {
            deadline,
            cores_left: cores,
            report: DrainReport {
                connections: connections as u64,
                complete: false,
            },
            answer,
            closing: false,
        }
    }

    /// Decides what to do next, with `connections` that are open.
    pub(super) fn step(&mut self, connections: usize, now: Instant) -> DrainStep {
        let late = self.deadline.is_some_and(|deadline| deadline <= now);
        if self.closing {
            return if connections == 0 || late {
                DrainStep::Answer
            } else {
                DrainStep::Wait
            };
        }
        if self.cores_left != 0 && !late {
            return DrainStep::Wait;
        }
        self.closing = true;
        self.report.complete = self.cores_left == 0;
        // A core that does not close its connections must not delay the answer for ever.
        self.deadline = Some(now + CLOSE_GRACE);
        if connections == 0 {
            DrainStep::Answer
        } else {
            DrainStep::Close
        }
    }

    pub(super) fn answer(self) {
        // The application may have stopped waiting.
        let _ = self.answer.send(self.report);
    }
}
