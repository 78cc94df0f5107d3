//! RDMA Reads: split into parts with the device's number of segments, and limited to the negotiated
//! depth.

use super::Port;
use crate::interface::{Gather, PostError, QueuePairId, Status};

impl Port {
    /// Checks an RDMA Read. Returns the queue pair's index, the key of the arena, the number of
    /// work requests for the list, and whether some of it is in memory of the application.
    pub(super) fn check_read(
        &mut self,
        id: QueuePairId,
        list: &Gather,
    ) -> Result<(u32, u32, usize, bool), PostError> {
        let (index, keys) = self.sender(id)?;
        let entry = self.queue_pairs.get(index);
        let entry = entry.ok_or(PostError::UnknownQueuePair)?;
        if !entry.may_read() {
            return Err(PostError::Unsupported);
        }
        let is_mixed = self.check_list(list, self.attributes.send_segments_max)?;
        if list.has_view() {
            return Err(PostError::ForeignMemory);
        }
        let parts = list.len().div_ceil(self.read_segments_max as usize);
        let depth_max = self.attributes.send_queue_depth_max;
        let room = depth_max.saturating_sub(self.works.outstanding(index));
        let count = u32::try_from(parts).unwrap_or(u32::MAX);
        if count > room || !self.works.may_take(index, count) {
            self.counters.queue_full += 1;
            return Err(PostError::QueueFull);
        }
        Ok((index, keys.arena, parts, is_mixed))
    }

    /// Stages an RDMA Read, or queues it when the depth is used up.
    pub(super) fn queue_read(&mut self, index: u32, work: u32) {
        let Some(entry) = self.queue_pairs.get_mut(index) else {
            return;
        };
        // A Read never overtakes one that waits, so that Reads keep their order.
        if entry.reads < entry.read_depth && entry.reads_waiting.is_empty() {
            entry.reads += 1;
            self.stage(index, work, true, true);
        } else {
            self.counters.reads_waited += 1;
            self.works.push(&mut entry.reads_waiting, work);
        }
    }

    /// Stages waiting RDMA Reads, as far as the depth allows.
    fn stage_waiting_reads(&mut self, index: u32) {
        while let Some(entry) = self.queue_pairs.get_mut(index) {
            if entry.is_down() || entry.reads >= entry.read_depth {
                return;
            }
            let Some(work) = self.works.pop(&mut entry.reads_waiting) else {
                return;
            };
            entry.reads += 1;
            self.stage(index, work, true, true);
        }
    }

    /// Ends one part of an RDMA Read, so that the next may begin. Returns the status of the whole
    /// Read, which is reported with its last part: if an earlier part failed, the last part is only
    /// flushed, and the status of the earlier part counts.
    pub(super) fn note_read_ended(&mut self, index: u32, last: bool, status: Status) -> Status {
        let Some(entry) = self.queue_pairs.get_mut(index) else {
            return status;
        };
        entry.reads = entry.reads.saturating_sub(1);
        let mut whole = status;
        if last && status == Status::Flushed {
            whole = entry.read_failure.take().unwrap_or(status);
        } else if !last && !matches!(status, Status::Success | Status::Flushed) {
            entry.read_failure = Some(status);
        }
        if !entry.reads_waiting.is_empty() {
            self.stage_waiting_reads(index);
        }
        whole
    }
}
