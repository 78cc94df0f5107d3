//! Memory windows: exposing a buffer to one peer, and taking it back.

use super::super::bindings::{
    bind_mw_t, bind_mw_tso_union_t, ibv_access_flags, ibv_mr, ibv_mw_bind_info, ibv_send_flags,
    ibv_wr_opcode,
};
use super::super::queue_pair::QueuePair;
use super::Port;
use super::window_table;
use super::works::Kind;
use crate::interface::{
    Access, Completion, CompletionKind, PortWindows, PostError, QueuePairId, RemoteKey, Status,
    Window, WorkId,
};
use crate::memory::Buffer;

impl PortWindows for Port {
    fn bind_window(
        &mut self,
        id: QueuePairId,
        buffer: Buffer,
        bytes: u32,
        access: Access,
    ) -> Result<Window, (PostError, Buffer)> {
        let index = match self.check_bind(id, &buffer, bytes, access) {
            Ok(index) => index,
            Err(error) => return Err((error, buffer)),
        };
        let start = buffer.start().addr() as u64;
        let Some(entry) = self.queue_pairs.get_mut(index) else {
            return Err((PostError::UnknownQueuePair, buffer));
        };
        let own = entry.device.as_ref().and_then(QueuePair::own_domain);
        let external = own.map_or(&self.external, |own| &own.external);
        let region = match self.memory.is_in_arena(&buffer) {
            true => &self.region,
            false => external.of(&buffer).unwrap_or(&self.region),
        };
        let mr = region.raw();
        let domain = own.map_or(self.region.domain(), |own| own.arena.domain());
        let head = &mut entry.windows;
        let opened = self.windows.open(
            head,
            (domain, region.mapping()),
            index,
            buffer,
            bytes,
            access,
        );
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
            self.stage_bind(index, &window, mr, access);
        }
        Ok(window)
    }

    fn invalidate_window(
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
        if self.windows.state(window.slot) != window_table::State::Bound {
            // The peer has invalidated it first, so the caller closes it. A second invalidation would
            // put the queue pair in error; with soft-RoCE the kernel panics.
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

    fn close_window(&mut self, window: Window) -> Result<Buffer, Window> {
        let is_ended = self.windows.state(window.slot) == window_table::State::InvalidatedByPeer;
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

    fn window_has_key(&self, window: &Window, key: RemoteKey) -> bool {
        self.owns_window(window) && window.key == key
    }
}

impl Port {
    fn check_bind(
        &mut self,
        id: QueuePairId,
        buffer: &Buffer,
        bytes: u32,
        access: Access,
    ) -> Result<u32, PostError> {
        let (index, _) = self.sender(id)?;
        if !self.memory.may_be_exposed(buffer, access) {
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

    fn stage_bind(&mut self, index: u32, window: &Window, mr: *mut ibv_mr, access: Access) {
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
                mr,
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

    /// Whether the token is of this port. A token of another port may have the slot of a window here;
    /// to close that one would return a buffer that a peer can still access.
    #[inline]
    pub(super) fn owns_window(&self, window: &Window) -> bool {
        window.port == self.number
    }

    /// Ends a registration that replaces a window, by a system call.
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
}

/// The device's flags for the access of a window.
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
