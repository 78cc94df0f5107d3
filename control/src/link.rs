//! The way from the control thread to one core.

use std::collections::VecDeque;

use rpcrdma_engine::{Command, CoreHandle, Full};
use rpcrdma_fabric::interface::Port;

/// A core's mailbox, with the commands that did not fit yet. Order is kept.
///
/// A core without control thread would run on for nobody: dropping this stops it.
pub(crate) struct CoreLink<P: Port, H> {
    pub(crate) handle: CoreHandle<P>,
    pub(crate) port: H,
    /// It has finished its calls for a drain.
    pub(crate) is_drained: bool,
    waiting: VecDeque<Command<P>>,
    has_ended: bool,
}

impl<P: Port, H> CoreLink<P, H> {
    pub(crate) fn new(handle: CoreHandle<P>, port: H) -> Self {
        Self {
            handle,
            port,
            is_drained: false,
            waiting: VecDeque::new(),
            has_ended: false,
        }
    }

    /// Sends a command, or keeps it until the mailbox has room.
    pub(crate) fn send(&mut self, command: Command<P>) {
        if self.has_ended {
            return;
        }
        self.waiting.push_back(command);
        self.push_waiting();
    }

    /// Moves waiting commands into the mailbox; returns whether any are left.
    pub(crate) fn push_waiting(&mut self) -> bool {
        while let Some(command) = self.waiting.pop_front() {
            if let Err(Full(command)) = self.handle.send(command) {
                self.waiting.push_front(command);
                return true;
            }
        }
        false
    }

    /// The core is no more: nothing is sent to it. False when that was known.
    pub(crate) fn note_end(&mut self) -> bool {
        self.waiting.clear();
        !std::mem::replace(&mut self.has_ended, true)
    }

    /// Whether the control thread knows that the core is no more.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended
    }
}

impl<P: Port, H> Drop for CoreLink<P, H> {
    fn drop(&mut self) {
        self.handle.stop();
    }
}
