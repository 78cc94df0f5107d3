//! Posting work requests: each call adds one to the chain of its queue pair.

use super::super::bindings::ibv_wr_opcode;
use super::super::queue_pair::QueuePair;
use super::super::registrations::LocalKeys;
use super::Port;
use super::queue_pairs::State;
use super::works::{Kind, NONE};
use crate::interface::{
    Gather, PortSends, PostError, QueuePairId, RemoteAddress, RemoteKey, SendOptions, WorkId,
};
use crate::memory::Buffer;

impl PortSends for Port {
    #[inline]
    fn post_send_copied(
        &mut self,
        id: QueuePairId,
        source: &Buffer,
        bytes: u32,
        options: SendOptions,
    ) -> Result<(), PostError> {
        if bytes > self.attributes.inline_bytes_max || bytes > source.capacity() {
            return Err(PostError::TooLong);
        }
        let (index, keys) = self.sender(id)?;
        if !self.memory.owns(source) {
            return Err(PostError::ForeignMemory);
        }
        self.check_options(options)?;
        let work = self.take(index, Kind::Send, options.signalled)?;
        self.begin_send(work, options.invalidate);
        let inline = bytes <= self.device_inline_bytes_max;
        if inline {
            self.counters.sends_inline += 1;
        } else {
            self.counters.sends_staged += 1;
        }
        let data = self.memory.bytes(source).get(..bytes as usize);
        // Inline data is copied too: the library reads it when the chain is posted, and the caller
        // may have changed its buffer by then.
        let data = data.unwrap_or_default();
        self.works
            .set_copy(work, data, inline && bytes > 0, keys.staging);
        let asks = self.asks(options.signalled, bytes.into());
        self.stage(index, work, false, asks);
        Ok(())
    }

    fn post_send(
        &mut self,
        id: QueuePairId,
        list: &mut Gather,
        options: SendOptions,
    ) -> Result<(), PostError> {
        let (index, keys) = self.sender(id)?;
        let is_mixed = self.check_list(list, self.attributes.send_segments_max)?;
        self.check_options(options)?;
        let asks = self.asks(options.signalled, list.bytes());
        let work = self.take(index, Kind::Send, options.signalled)?;
        self.begin_send(work, options.invalidate);
        self.works.set_segments(work, list.iter(), keys.arena);
        if is_mixed {
            self.set_external_keys(index, work, list.iter());
        }
        self.works.get_mut(work).list.swap(list);
        self.stage(index, work, true, asks);
        Ok(())
    }

    fn post_read(
        &mut self,
        id: QueuePairId,
        list: Gather,
        from: RemoteAddress,
        work: WorkId,
    ) -> Result<(), (PostError, Gather)> {
        let (index, local_key, parts, is_mixed) = match self.check_read(id, &list) {
            Ok(checked) => checked,
            Err(error) => return Err((error, list)),
        };
        let mut from = from;
        for part in 0..parts {
            let most = self.read_segments_max as usize;
            let segments = || list.iter().skip(part * most).take(most);
            let bytes: u64 = segments().map(|(_, _, bytes)| u64::from(*bytes)).sum();
            let last = part + 1 == parts;
            let Ok(taken) = self.take(index, Kind::Read, last.then_some(work)) else {
                // Unreachable: `check_read` found room for all parts.
                break;
            };
            self.works.request(taken, ibv_wr_opcode::IBV_WR_RDMA_READ);
            self.works.set_segments(taken, segments(), local_key);
            if is_mixed {
                self.set_external_keys(index, taken, segments());
            }
            self.works.set_remote(taken, from);
            from.offset = from.offset.wrapping_add(bytes);
            if last {
                self.works.get_mut(taken).read_list = list;
                self.queue_read(index, taken);
                break;
            }
            self.queue_read(index, taken);
        }
        Ok(())
    }

    fn post_write(
        &mut self,
        id: QueuePairId,
        list: &mut Gather,
        to: RemoteAddress,
        signalled: Option<WorkId>,
    ) -> Result<(), PostError> {
        let (index, keys) = self.sender(id)?;
        let is_mixed = self.check_list(list, self.attributes.send_segments_max)?;
        let asks = self.asks(signalled, list.bytes());
        let work = self.take(index, Kind::Write, signalled)?;
        self.works.request(work, ibv_wr_opcode::IBV_WR_RDMA_WRITE);
        self.works.set_segments(work, list.iter(), keys.arena);
        if is_mixed {
            self.set_external_keys(index, work, list.iter());
        }
        self.works.set_remote(work, to);
        self.works.get_mut(work).list.swap(list);
        self.stage(index, work, true, asks);
        Ok(())
    }

    /// Stages an RDMA Write of no bytes. The peer's device checks no key for it, as the test
    /// `a_probe_finds_a_peer_that_is_gone` shows on soft-RoCE.
    fn probe(&mut self, id: QueuePairId, work: WorkId) -> Result<(), PostError> {
        let (index, keys) = self.sender(id)?;
        let work = self.take(index, Kind::Write, Some(work))?;
        self.works.request(work, ibv_wr_opcode::IBV_WR_RDMA_WRITE);
        let nothing = std::iter::empty();
        self.works.set_segments(work, nothing, keys.arena);
        let nowhere = RemoteAddress {
            key: RemoteKey(0),
            offset: 0,
        };
        self.works.set_remote(work, nowhere);
        self.stage(index, work, false, true);
        Ok(())
    }

    fn oldest_work(&mut self, id: QueuePairId) -> Option<u64> {
        let index = self.queue_pairs.index_of_id(id)?;
        let work = self.queue_pairs.get(index)?.works.first()?;
        Some(self.works.name(work))
    }

    /// Hands the chain of each queue pair to the device.
    #[inline]
    fn flush_sends(&mut self) {
        while let Some(index) = self.dirty.pop() {
            self.ring_doorbell(index);
        }
    }

    #[inline]
    fn next_returned(&mut self) -> Option<Buffer> {
        self.returned.pop()
    }
}

impl Port {
    /// The index of a queue pair that can send, with room for one more work, and the keys of its works.
    #[inline]
    pub(super) fn sender(&mut self, id: QueuePairId) -> Result<(u32, LocalKeys), PostError> {
        let entry = self
            .queue_pairs
            .get(id.index)
            .filter(|entry| entry.id == id)
            .ok_or(PostError::UnknownQueuePair)?;
        match entry.state {
            State::Connected => {}
            State::Accepting => return Err(PostError::QueueFull),
            State::Vacant => return Err(PostError::UnknownQueuePair),
            State::Error | State::Flushed => return Err(PostError::NotConnected),
        }
        let keys = entry.local_keys;
        let is_full = self.works.outstanding(id.index) >= self.attributes.send_queue_depth_max;
        if is_full || !self.works.may_take(id.index, 1) {
            self.counters.queue_full += 1;
            return Err(PostError::QueueFull);
        }
        Ok((id.index, keys))
    }

    /// Checks that `list` can be the segments of one work request. Returns whether some are in memory of the application.
    #[inline]
    pub(super) fn check_list(&self, list: &Gather, segments_max: u32) -> Result<bool, PostError> {
        if list.is_empty() || list.len() > segments_max as usize {
            return Err(PostError::BadSegments);
        }
        let is_mixed = !list
            .iter()
            .all(|(buffer, _, _)| self.memory.is_in_arena(buffer));
        if is_mixed && !list.iter().all(|(buffer, _, _)| self.memory.owns(buffer)) {
            return Err(PostError::ForeignMemory);
        }
        if list.bytes() > u64::from(self.attributes.message_bytes_max) {
            return Err(PostError::TooLong);
        }
        Ok(is_mixed)
    }

    /// Gives the segments of a work that are in memory of the application its keys.
    #[cold]
    fn set_external_keys<'a>(
        &mut self,
        index: u32,
        work: u32,
        list: impl Iterator<Item = &'a (Buffer, u32, u32)>,
    ) {
        for (number, (buffer, _, _)) in list.enumerate() {
            if let Some(key) = self.external_key(index, buffer) {
                self.works.set_key(work, number, key);
            }
        }
    }

    /// The key of the registration that has `buffer`, for the work of a queue pair; `None` for the arena's.
    fn external_key(&self, index: u32, buffer: &Buffer) -> Option<u32> {
        if self.memory.is_in_arena(buffer) {
            return None;
        }
        let device = self.queue_pairs.get(index)?.device.as_ref();
        let own = device.and_then(QueuePair::own_domain);
        let external = own.map_or(&self.external, |own| &own.external);
        external.of(buffer).map(|region| region.local_key())
    }

    /// Takes a work for a queue pair for which [`Port::sender`] found room.
    #[inline]
    pub(super) fn take(
        &mut self,
        index: u32,
        kind: Kind,
        signalled: Option<WorkId>,
    ) -> Result<u32, PostError> {
        let work = self.works.take(index, kind, signalled);
        work.ok_or(PostError::QueueFull)
    }

    /// Whether a work of `bytes` bytes asks the device for a completion.
    #[inline]
    fn asks(&self, signalled: Option<WorkId>, bytes: u64) -> bool {
        signalled.is_some() || bytes >= self.signalled_bytes_min
    }

    /// Appends a work to the chain of its queue pair. `holds` means that it holds buffers, `ask` that
    /// it asks the device for a completion.
    #[inline]
    pub(super) fn stage(&mut self, index: u32, work: u32, holds: bool, ask: bool) {
        let Some(entry) = self.queue_pairs.get_mut(index) else {
            return;
        };
        if entry.first_staged.is_none() {
            entry.first_staged = Some(work);
        } else if let Some(last) = entry.works.last() {
            let address = self.works.address(work);
            self.works.begun(last).next = address;
        }
        self.works.push(&mut entry.works, work);
        if ask || entry.unsignalled + 1 >= self.unsignalled_max {
            self.works.ask_completion(work);
            self.counters.works_signalled += 1;
            entry.unsignalled = 0;
            entry.holding = false;
        } else {
            entry.unsignalled += 1;
            entry.holding |= holds;
        }
        if !entry.in_dirty {
            entry.in_dirty = true;
            self.dirty.push(index);
        }
    }

    /// Begins the work request of a Send, with the key that it invalidates at the peer.
    #[inline]
    fn begin_send(&mut self, work: u32, invalidate: Option<RemoteKey>) {
        match invalidate {
            None => {
                self.works.request(work, ibv_wr_opcode::IBV_WR_SEND);
            }
            Some(key) => {
                self.works
                    .request(work, ibv_wr_opcode::IBV_WR_SEND_WITH_INV);
                self.works.set_invalidated(work, key);
            }
        }
    }

    #[inline]
    fn check_options(&self, options: SendOptions) -> Result<(), PostError> {
        if options.invalidate.is_some() && !self.attributes.send_with_invalidate {
            return Err(PostError::Unsupported);
        }
        Ok(())
    }

    fn ring_doorbell(&mut self, index: u32) {
        let Some(entry) = self.queue_pairs.get_mut(index) else {
            return;
        };
        entry.in_dirty = false;
        let Some(first) = entry.first_staged else {
            return;
        };
        // A queue pair in error posts nothing: `flush_staged` completes its staged works.
        let Some(device) = entry.device.as_ref().filter(|_| !entry.is_down()) else {
            return;
        };
        if entry.holding
            && let Some(last) = entry.works.last()
        {
            self.works.ask_completion(last);
            self.counters.works_signalled += 1;
            entry.unsignalled = 0;
            entry.holding = false;
        }
        self.counters.doorbells_send += 1;
        // SAFETY: the chain from the first staged work ends with the last, whose `next` is null. The
        // segments are buffers that were moved into the works, or the works' own copies. `&mut self` is the port.
        let result = unsafe { device.post(self.works.address(first)) };
        let bad = match result {
            Ok(()) => NONE,
            Err(bad) => self.works.at_address(bad).unwrap_or(first),
        };
        let mut next = Some(first);
        while let Some(work) = next.filter(|work| *work != bad) {
            entry.posted += 1;
            self.counters.works_posted += 1;
            if self.works.get(work).kind == Kind::Bind {
                self.windows.note_bound(self.works.get(work).window_slot);
            }
            next = self.works.next(work);
        }
        entry.first_staged = next;
        if bad != NONE {
            self.counters.posts_refused += 1;
            self.begin_error(index, true);
        }
    }
}
