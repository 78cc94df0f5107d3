//! Faults that are injected on demand.

use super::super::channel::{Channel, Report};
use super::super::link::Fault;
use super::super::work::Kind;
use super::Port;
use super::core::{Core, channel_mut};
use crate::interface::{Gather, PostError, QueuePairId, Status, WorkId};

impl Port {
    /// Injects a fault. It is ignored if the queue pair no longer exists.
    pub(super) fn inject_fault(&mut self, fault: Fault) {
        match fault {
            Fault::DropConnection { local } => {
                if let Some(index) = self.core.index_of(local) {
                    self.disconnect_index(index);
                }
            }
            Fault::FailNextWork { local, status } => {
                if let Some(index) = self.core.index_of(local)
                    && let Some(queue_pair) = self.core.queue_pairs.get_mut(index as usize)
                {
                    queue_pair.change(&mut self.core.checked, |it| it.fail_next = Some(status));
                }
            }
            Fault::ReceiverNotReady { polls } => self.core.not_ready_polls = polls,
        }
    }

    /// Puts a queue pair in error and notifies the peer.
    pub(super) fn disconnect_index(&mut self, index: u32) {
        let Some(queue_pair) = self.core.queue_pairs.get(index as usize) else {
            return;
        };
        if let Some(channel) = channel_mut(&mut self.channels, queue_pair.channel) {
            self.core.fail(channel, index, Some(Report::Disconnect));
        }
    }
}

impl Core {
    /// Takes a work request and ends it with `status` without executing it.
    #[cold]
    pub(super) fn inject(
        &mut self,
        id: QueuePairId,
        kind: Kind,
        signalled: Option<WorkId>,
        list: Option<&mut Gather>,
        status: Status,
    ) -> Result<bool, PostError> {
        let Some(queue_pair) = self.queue_pairs.get_mut(id.index as usize) else {
            return Err(PostError::UnknownQueuePair);
        };
        let works = &mut queue_pair.works;
        let Some(work) = self.works.take(id.index, works, kind, signalled) else {
            return Err(PostError::QueueFull);
        };
        self.works.count(&mut queue_pair.outstanding);
        queue_pair.change(&mut self.checked, |it| it.fail_next = None);
        let entry = self.works.get_mut(work);
        entry.ended = Some(status);
        if let Some(list) = list {
            if kind == Kind::Read {
                entry.read.list = std::mem::take(list);
            } else {
                entry.list.swap(list);
            }
        }
        Ok(true)
    }

    /// Puts the queue pair in error after an injected failure.
    #[cold]
    pub(super) fn fail_injected(&mut self, channel: &mut Channel, id: QueuePairId) {
        self.fail(channel, id.index, Some(Report::Disconnect));
    }
}
