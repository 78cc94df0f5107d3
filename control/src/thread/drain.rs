//! Draining: no new connections and calls, what is under way finishes, then all connections close.

use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use rpcrdma_engine::{CloseReason, Command};
use rpcrdma_fabric::interface::Manager;

use super::{CLOSE_GRACE, ControlThread};
use crate::node::DrainReport;
use crate::provider::Provider;

/// A drain under way.
pub(super) struct Drain {
    pub(super) deadline: Instant,
    pub(super) cores_left: usize,
    report: DrainReport,
    answer: Sender<DrainReport>,
    closing: bool,
}

impl<V: Provider> ControlThread<V> {
    pub(super) fn start_draining(&mut self, timeout: Duration, answer: Sender<DrainReport>) {
        // Closing the listeners is not enough: the fabric may have queued connection requests already.
        self.draining = true;
        for (listener, _) in self.listeners.drain() {
            self.manager.close_listener(listener);
        }
        for core in &mut self.cores {
            core.send(Command::Drain);
        }
        self.drain = Some(Drain {
            deadline: Instant::now() + timeout,
            cores_left: self.cores.len(),
            report: DrainReport {
                connections: self.keys.len() as u64,
                complete: false,
            },
            answer,
            closing: false,
        });
    }

    /// Closes the connections when the cores are done or the time is up, and answers when all are closed.
    pub(super) fn go_on_draining(&mut self, now: Instant) {
        let Some(drain) = &mut self.drain else {
            return;
        };
        let late = drain.deadline <= now;
        let done = if drain.closing {
            self.keys.is_empty() || late
        } else if drain.cores_left == 0 || late {
            drain.closing = true;
            drain.report.complete = drain.cores_left == 0;
            // A core that does not close its connections must not delay the answer for ever.
            drain.deadline = now + CLOSE_GRACE;
            for (core, key) in self.keys.keys().copied() {
                let reason = CloseReason::Local;
                self.cores[core].send(Command::Close {
                    connection: key,
                    reason,
                });
            }
            self.keys.is_empty()
        } else {
            false
        };
        if done && let Some(drain) = self.drain.take() {
            // The application may have stopped waiting.
            let _ = drain.answer.send(drain.report);
        }
    }
}
