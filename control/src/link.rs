//! The way from the control thread to one core.

use std::collections::VecDeque;

use rpcrdma_engine::{Command, CoreHandle, Full};
use rpcrdma_fabric::interface::Port;

/// A core's mailbox, with the commands that did not fit yet. Order is kept.
pub(crate) struct CoreLink<P: Port, H> {
    pub(crate) handle: CoreHandle<P>,
    pub(crate) port: H,
    waiting: VecDeque<Command<P>>,
}

impl<P: Port, H> CoreLink<P, H> {
    pub(crate) fn new(handle: CoreHandle<P>, port: H) -> Self {
        Self {
            handle,
            port,
            waiting: VecDeque::new(),
        }
    }

    /// Sends a command, or keeps it until the mailbox has room.
    pub(crate) fn send(&mut self, command: Command<P>) {
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
}
