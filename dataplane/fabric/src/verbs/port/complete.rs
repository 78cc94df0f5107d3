//! Completions of the device, and the works and Receives that they end.

use super::super::bindings::{ibv_wc, ibv_wc_opcode, ibv_wc_status};
use super::super::work_request::WorkName;
use super::Port;
use super::queue_pairs::State;
use super::window_table::Invalidated;
use super::works::Kind;
use crate::interface::{
    Completion, CompletionBatch, CompletionKind, QueuePairId, RemoteKey, Status,
};

/// The interface's status for a status of the device.
pub(super) fn status_of(status: ibv_wc_status::Type) -> Status {
    match status {
        ibv_wc_status::IBV_WC_SUCCESS => Status::Success,
        ibv_wc_status::IBV_WC_LOC_LEN_ERR => Status::LocalLength,
        ibv_wc_status::IBV_WC_WR_FLUSH_ERR => Status::Flushed,
        ibv_wc_status::IBV_WC_REM_ACCESS_ERR | ibv_wc_status::IBV_WC_REM_INV_REQ_ERR => {
            Status::RemoteAccess
        }
        ibv_wc_status::IBV_WC_REM_OP_ERR
        | ibv_wc_status::IBV_WC_BAD_RESP_ERR
        | ibv_wc_status::IBV_WC_REM_ABORT_ERR => Status::RemoteOperation,
        ibv_wc_status::IBV_WC_RETRY_EXC_ERR | ibv_wc_status::IBV_WC_RESP_TIMEOUT_ERR => {
            Status::RetryExceeded
        }
        ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR => Status::ReceiverNotReady,
        _ => Status::LocalFault,
    }
}

impl Port {
    /// Handles a completion of the device.
    #[inline]
    pub(super) fn handle(&mut self, completion: &ibv_wc, batch: &mut CompletionBatch) {
        self.counters.completions += 1;
        match WorkName::unpack(completion.wr_id) {
            WorkName::Work { index, generation } => {
                self.handle_work(index, generation, completion.status, batch);
            }
            WorkName::Receive {
                queue,
                slot,
                generation,
            } => self.handle_receive(queue, slot, generation, completion, batch),
        }
    }

    #[inline]
    fn handle_work(
        &mut self,
        work: u32,
        generation: u32,
        status: ibv_wc_status::Type,
        batch: &mut CompletionBatch,
    ) {
        let Some(index) = self.works.queue_pair_of(work, generation) else {
            self.counters.completions_stale += 1;
            return;
        };
        if self.end_marker(index, work, batch) {
            return;
        }
        let status = status_of(status);
        if status == Status::ReceiverNotReady {
            self.counters.receiver_not_ready += 1;
        }
        // Works of a queue pair complete in order, so the unsignalled ones before this one are done.
        // They succeeded: a failed one would have completed.
        while let Some(entry) = self.queue_pairs.get_mut(index) {
            let Some(first) = self.works.pop(&mut entry.works) else {
                break;
            };
            entry.posted = entry.posted.saturating_sub(1);
            let last = first == work;
            let ended = if last { status } else { Status::Success };
            if let Some(completion) = self.end_work(index, first, ended) {
                self.push(batch, completion);
            }
            if last {
                break;
            }
        }
        match status {
            Status::Success => {}
            Status::Flushed => self.begin_error(index, true),
            _ => {
                self.counters.works_failed += 1;
                self.note_failure(index, status);
                self.begin_error(index, true);
            }
        }
    }

    /// Records a failure that the device reported. Call it before [`Port::begin_error`], after which
    /// no failure counts.
    fn note_failure(&mut self, index: u32, status: Status) {
        if let Some(entry) = self.queue_pairs.get_mut(index) {
            entry.note_failure(status);
        }
    }

    /// Ends a work that is in no list, and returns its buffers.
    pub(super) fn end_work(&mut self, index: u32, work: u32, status: Status) -> Option<Completion> {
        let entry = self.works.get_mut(work);
        let (kind, signalled, slot) = (entry.kind, entry.signalled, entry.window_slot);
        while let Some((buffer, _, _)) = entry.list.pop() {
            self.returned.push(buffer);
        }
        let read_list = std::mem::take(&mut entry.read_list);
        let window = entry.window.take();
        self.works.release(work);
        let mut status = status;
        match kind {
            Kind::Read => status = self.note_read_ended(index, signalled.is_some(), status),
            Kind::Invalidate => self.note_invalidated(index, slot, status),
            Kind::Send | Kind::Write | Kind::Bind => {}
        }
        let id = signalled?;
        let kind = match kind {
            Kind::Send => CompletionKind::Send(id),
            Kind::Write => CompletionKind::Write(id),
            Kind::Read => CompletionKind::Read(id, read_list),
            Kind::Invalidate => CompletionKind::Invalidated(id, window?),
            Kind::Bind => return None,
        };
        Some(Completion {
            queue_pair: self.id_of(index),
            status,
            kind,
        })
    }

    fn id_of(&self, index: u32) -> QueuePairId {
        self.queue_pairs.get(index).map_or(
            QueuePairId {
                index,
                generation: 0,
            },
            |entry| entry.id,
        )
    }

    /// Closes a window after its local invalidation. If that failed, the window stays open until its
    /// queue pair ends.
    fn note_invalidated(&mut self, index: u32, slot: u32, status: Status) {
        if status != Status::Success {
            self.windows.set_invalidating(slot, false);
            return;
        }
        if let Some(entry) = self.queue_pairs.get_mut(index)
            && let Some(buffer) = self.windows.close(&mut entry.windows, slot)
        {
            self.returned.push(buffer);
        }
    }

    fn handle_receive(
        &mut self,
        queue: u16,
        slot: u32,
        generation: u16,
        completion: &ibv_wc,
        batch: &mut CompletionBatch,
    ) {
        let Some(receive_queue) = self.receive_queues.get_mut(usize::from(queue)) else {
            self.counters.completions_stale += 1;
            return;
        };
        let Some((receive, room)) = receive_queue.take(slot, generation) else {
            self.counters.completions_stale += 1;
            return;
        };
        let owner = self.queue_pairs.index_of_number(completion.qp_num);
        let entry = owner.and_then(|index| Some((index, self.queue_pairs.get_mut(index)?)));
        let Some((index, entry)) = entry.filter(|(_, entry)| entry.state != State::Flushed) else {
            // `Disconnected` was reported already, so no completion of this queue pair may follow.
            self.counters.receives_late += 1;
            let staged = self.stage_receive(receive);
            debug_assert!(staged.is_ok(), "it is of this port");
            return;
        };
        if entry.state == State::Accepting {
            // A peer that sends is ready to receive (InfiniBand volume 1, section 12.9.7.2).
            entry.state = State::Connected;
        }
        let queue_pair = entry.id;
        let mut status = match completion.status {
            // Soft-RoCE uses this status for a message that is longer than its Receive. There is no
            // other cause: the segments are of the registered arena.
            ibv_wc_status::IBV_WC_LOC_QP_OP_ERR => Status::LocalLength,
            status => status_of(status),
        };
        let mut invalidated = None;
        if status == Status::Success {
            if completion.opcode != ibv_wc_opcode::IBV_WC_RECV {
                // An RDMA Write with immediate data, which RPC-over-RDMA does not use. It consumes a
                // Receive, but its length is that of bytes which are elsewhere.
                status = Status::RemoteOperation;
            } else if completion.wc_flags & self.invalidated_flags != 0 {
                // SAFETY: the flag says which member of the union it is.
                let key = unsafe { completion.imm_data_invalidated_rkey_union.invalidated_rkey };
                match self.windows.invalidated_by_peer(key, index) {
                    // The window's owner finds it closed. The queue pair that did it is disconnected.
                    Invalidated::Foreign => status = Status::RemoteOperation,
                    Invalidated::Own | Invalidated::Unknown => invalidated = Some(RemoteKey(key)),
                }
            }
        }
        let bytes = match status {
            Status::Success => completion.byte_len.min(room),
            _ => 0,
        };
        self.push(
            batch,
            Completion {
                queue_pair,
                status,
                kind: CompletionKind::Receive {
                    receive,
                    bytes,
                    invalidated,
                },
            },
        );
        if status != Status::Success {
            self.note_failure(index, status);
            self.begin_error(index, true);
        }
    }

    /// Appends a completion to the batch, or to `pending` for the next poll: one completion of the
    /// device can end many works, so the batch may be full.
    #[inline]
    pub(super) fn push(&mut self, batch: &mut CompletionBatch, completion: Completion) {
        // What is pending goes first, to keep the order.
        let unplaced = if self.pending.is_empty() {
            batch.push(completion).err()
        } else {
            Some(completion)
        };
        if let Some(completion) = unplaced {
            self.pending.push_back(completion);
        }
    }

    /// Moves pending completions into the batch. Returns whether there was one.
    pub(super) fn push_pending(&mut self, batch: &mut CompletionBatch) -> bool {
        let mut any = false;
        while !batch.is_full() {
            let Some(completion) = self.pending.pop_front() else {
                break;
            };
            any = true;
            let pushed = batch.push(completion);
            debug_assert!(pushed.is_ok(), "there was room");
        }
        any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_without_receives_is_distinguished_from_a_lost_one() {
        for (told, status) in [
            (ibv_wc_status::IBV_WC_SUCCESS, Status::Success),
            (
                ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR,
                Status::ReceiverNotReady,
            ),
            (ibv_wc_status::IBV_WC_RETRY_EXC_ERR, Status::RetryExceeded),
            (
                ibv_wc_status::IBV_WC_RESP_TIMEOUT_ERR,
                Status::RetryExceeded,
            ),
            (ibv_wc_status::IBV_WC_WR_FLUSH_ERR, Status::Flushed),
            (ibv_wc_status::IBV_WC_REM_ACCESS_ERR, Status::RemoteAccess),
            (ibv_wc_status::IBV_WC_REM_OP_ERR, Status::RemoteOperation),
            (ibv_wc_status::IBV_WC_LOC_LEN_ERR, Status::LocalLength),
            (ibv_wc_status::IBV_WC_LOC_PROT_ERR, Status::LocalFault),
        ] {
            assert_eq!(status_of(told), status, "{told}");
        }
    }
}
