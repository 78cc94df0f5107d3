//! Posting: from a call to a work request in the chain of its queue pair.

use super::super::bindings::{
    bind_mw_t, bind_mw_tso_union_t, ibv_access_flags, ibv_mw_bind_info, ibv_send_flags,
    ibv_wr_opcode,
};
use super::super::protection_domain::LocalKeys;
use super::super::queue_pair::QueuePair;
use super::Port;
use super::queue_pairs::State;
use super::windows;
use super::works::{Kind, NONE};
use crate::interface::{
    Access, Completion, CompletionKind, Gather, PostError, QueuePairId, RemoteAddress, RemoteKey,
    SendOptions, Status, Window, WorkId,
};
use crate::memory::Buffer;

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

    /// Whether `list` can be the segments of one work request.
    #[inline]
    pub(super) fn check_list(&self, list: &Gather, segments_max: u32) -> Result<(), PostError> {
        if list.is_empty() || list.len() > segments_max as usize {
            return Err(PostError::BadSegments);
        }
        if !list.iter().all(|(buffer, _, _)| self.memory.owns(buffer)) {
            return Err(PostError::ForeignMemory);
        }
        if list.bytes() > u64::from(self.attributes.message_bytes_max) {
            return Err(PostError::TooLong);
        }
        Ok(())
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

    /// Whether a work of so many bytes is to end in a completion of the device.
    #[inline]
    fn asks(&self, signalled: Option<WorkId>, bytes: u64) -> bool {
        signalled.is_some() || bytes >= self.signalled_bytes_min
    }

    /// Appends a work to the chain of its queue pair. `holds` says that buffers come back with
    /// it, `ask` that it is to end in a completion of the device.
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

    /// Sets what a Send invalidates at the peer.
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

    /// Stages an RDMA Write of no bytes. The peer's device checks no key for it: the test
    /// `a_probe_finds_a_peer_that_is_gone` shows it on soft-RoCE.
    pub(super) fn post_probe(&mut self, id: QueuePairId, work: WorkId) -> Result<(), PostError> {
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

    #[inline]
    pub(super) fn send_copied(
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
        // What the work request carries is read at the doorbell, so it is copied in any case.
        let data = data.unwrap_or_default();
        self.works
            .set_copy(work, data, inline && bytes > 0, keys.staging);
        let asks = self.asks(options.signalled, bytes.into());
        self.stage(index, work, false, asks);
        Ok(())
    }

    pub(super) fn send_gathered(
        &mut self,
        id: QueuePairId,
        list: &mut Gather,
        options: SendOptions,
    ) -> Result<(), PostError> {
        let (index, keys) = self.sender(id)?;
        self.check_list(list, self.attributes.send_segments_max)?;
        self.check_options(options)?;
        let asks = self.asks(options.signalled, list.bytes());
        let work = self.take(index, Kind::Send, options.signalled)?;
        self.begin_send(work, options.invalidate);
        self.works.set_segments(work, list.iter(), keys.arena);
        self.works.get_mut(work).list.swap(list);
        self.stage(index, work, true, asks);
        Ok(())
    }

    pub(super) fn write(
        &mut self,
        id: QueuePairId,
        list: &mut Gather,
        to: RemoteAddress,
        signalled: Option<WorkId>,
    ) -> Result<(), PostError> {
        let (index, keys) = self.sender(id)?;
        self.check_list(list, self.attributes.send_segments_max)?;
        let asks = self.asks(signalled, list.bytes());
        let work = self.take(index, Kind::Write, signalled)?;
        self.works.request(work, ibv_wr_opcode::IBV_WR_RDMA_WRITE);
        self.works.set_segments(work, list.iter(), keys.arena);
        self.works.set_remote(work, to);
        self.works.get_mut(work).list.swap(list);
        self.stage(index, work, true, asks);
        Ok(())
    }

    pub(super) fn bind(
        &mut self,
        id: QueuePairId,
        buffer: Buffer,
        bytes: u32,
        access: Access,
    ) -> Result<Window, (PostError, Buffer)> {
        let index = match self.check_bind(id, &buffer, bytes) {
            Ok(index) => index,
            Err(error) => return Err((error, buffer)),
        };
        let start = buffer.start().addr() as u64;
        let Some(entry) = self.queue_pairs.get_mut(index) else {
            return Err((PostError::UnknownQueuePair, buffer));
        };
        let own = entry.device.as_ref().and_then(QueuePair::own_domain);
        let domain = own.map_or(self.region.domain(), |own| own.arena.domain());
        let head = &mut entry.windows;
        let opened = self
            .windows
            .open(head, domain, index, buffer, bytes, access);
        let (slot, key) = match opened {
            Ok(opened) => opened,
            Err(buffer) => return Err((PostError::NoWindow, buffer)),
        };
        let window = Window {
            port: self.number,
            slot,
            key: RemoteKey(key),
            bytes,
            offset: start,
        };
        if self.windows.need_work() {
            self.stage_bind(index, &window, access);
        }
        Ok(window)
    }

    fn check_bind(
        &mut self,
        id: QueuePairId,
        buffer: &Buffer,
        bytes: u32,
    ) -> Result<u32, PostError> {
        let (index, _) = self.sender(id)?;
        if !self.memory.may_be_written(buffer) {
            return Err(PostError::ForeignMemory);
        }
        if bytes == 0 || bytes > buffer.capacity() {
            return Err(PostError::TooLong);
        }
        if self.attributes.windows_max == 0 {
            return Err(PostError::Unsupported);
        }
        if !self.windows.any_free() {
            return Err(PostError::NoWindow);
        }
        Ok(index)
    }

    fn stage_bind(&mut self, index: u32, window: &Window, access: Access) {
        let Ok(work) = self.take(index, Kind::Bind, None) else {
            return;
        };
        let Some(device) = self.windows.window(window.slot) else {
            return;
        };
        let bind = bind_mw_t {
            mw: device.raw(),
            rkey: window.key.0,
            bind_info: ibv_mw_bind_info {
                mr: device.region().raw(),
                addr: window.offset,
                length: window.bytes.into(),
                mw_access_flags: access_flags(access),
            },
        };
        let request = self.works.request(work, ibv_wr_opcode::IBV_WR_BIND_MW);
        request.bind_mw_tso_union = bind_mw_tso_union_t { bind_mw: bind };
        self.works.get_mut(work).window_slot = window.slot;
        self.stage(index, work, false, false);
    }

    /// Whether the token is of this port. That of another may have the slot of a window here, whose
    /// buffer it would give out while a peer can reach it.
    #[inline]
    pub(super) fn owns_window(&self, window: &Window) -> bool {
        window.port == self.number
    }

    pub(super) fn invalidate(
        &mut self,
        window: Window,
        work: WorkId,
    ) -> Result<(), (PostError, Window)> {
        if !self.owns_window(&window) {
            return Err((PostError::ForeignMemory, window));
        }
        let owner = self.windows.queue_pair(window.slot);
        let entry = owner.and_then(|index| self.queue_pairs.get(index));
        let Some(id) = entry.map(|entry| entry.id) else {
            return Err((PostError::UnknownQueuePair, window));
        };
        let index = match self.sender(id) {
            Ok((index, _)) => index,
            Err(error) => return Err((error, window)),
        };
        if self.windows.state(window.slot) != windows::State::Bound {
            // The peer was faster: the window is to be closed. A second invalidation would break
            // the queue pair, and on some kernels more.
            return Err((PostError::NoWindow, window));
        }
        if !self.windows.need_work() {
            self.end_registration(index, window, work);
            return Ok(());
        }
        let Ok(taken) = self.take(index, Kind::Invalidate, Some(work)) else {
            return Err((PostError::QueueFull, window));
        };
        let request = self.works.request(taken, ibv_wr_opcode::IBV_WR_LOCAL_INV);
        request.send_flags = ibv_send_flags::IBV_SEND_FENCE.0;
        self.works.set_invalidated(taken, window.key);
        self.windows.set_invalidating(window.slot, true);
        let entry = self.works.get_mut(taken);
        entry.window_slot = window.slot;
        entry.window = Some(window);
        self.stage(index, taken, false, true);
        Ok(())
    }

    /// Ends a registration that stands for a window: at once, by a system call.
    fn end_registration(&mut self, index: u32, window: Window, work: WorkId) {
        let Some(entry) = self.queue_pairs.get_mut(index) else {
            return;
        };
        let id = entry.id;
        if let Some(buffer) = self.windows.close(&mut entry.windows, window.slot) {
            self.returned.push(buffer);
        }
        self.pending.push_back(Completion {
            queue_pair: id,
            status: Status::Success,
            kind: CompletionKind::Invalidated(work, window),
        });
    }

    pub(super) fn close(&mut self, window: Window) -> Result<Buffer, Window> {
        let is_ended = self.windows.state(window.slot) == windows::State::InvalidatedByPeer;
        if !self.owns_window(&window) || !is_ended {
            return Err(window);
        }
        let owner = self.windows.queue_pair(window.slot);
        let Some(entry) = owner.and_then(|index| self.queue_pairs.get_mut(index)) else {
            return Err(window);
        };
        self.windows
            .close(&mut entry.windows, window.slot)
            .ok_or(window)
    }

    /// Hands the chain of each queue pair to the device.
    #[inline]
    pub(super) fn ring_doorbells(&mut self) {
        while let Some(index) = self.dirty.pop() {
            self.ring_doorbell(index);
        }
    }

    fn ring_doorbell(&mut self, index: u32) {
        let Some(entry) = self.queue_pairs.get_mut(index) else {
            return;
        };
        entry.in_dirty = false;
        let Some(first) = entry.first_staged else {
            return;
        };
        // What an ended queue pair has staged is completed without the device.
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
        // SAFETY: the chain from the first staged work ends with the last, whose `next` is null;
        // segments are buffers that were moved into the works, or copies of their own.
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

/// What a window allows to the peer.
fn access_flags(access: Access) -> u32 {
    let mut flags = 0;
    if access.remote_read {
        flags |= ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
    }
    if access.remote_write {
        flags |= ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
    }
    flags
}
