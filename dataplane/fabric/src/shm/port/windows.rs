//! Memory windows: exposing a buffer to one peer, and taking it back.

use super::super::work::Kind;
use super::Port;
use super::core::Core;
use crate::interface::{Access, PortWindows, PostError, QueuePairId, RemoteKey, Window, WorkId};
use crate::memory::Buffer;

impl PortWindows for Port {
    fn bind_window(
        &mut self,
        id: QueuePairId,
        buffer: Buffer,
        bytes: u32,
        access: Access,
    ) -> Result<Window, (PostError, Buffer)> {
        let core = match self.sender(id) {
            Ok((core, ..)) => core,
            // Not connected yet: a window may be bound all the same, because the peer gets its key only with
            // a later Send.
            Err(PostError::QueueFull) => &mut self.core,
            Err(error) => return Err((error, buffer)),
        };
        if !core.memory.may_be_exposed(&buffer, access) {
            return Err((PostError::ForeignMemory, buffer));
        }
        if bytes > buffer.capacity() {
            return Err((PostError::TooLong, buffer));
        }
        let start = core.memory.offset_of(&buffer);
        if core.memory.is_hidden(&buffer) {
            return Err((PostError::ForeignMemory, buffer));
        }
        let Some(queue_pair) = core.queue_pairs.get_mut(id.index as usize) else {
            return Err((PostError::UnknownQueuePair, buffer));
        };
        let holder = (id.index, Core::holder(queue_pair));
        let list = &mut queue_pair.windows;
        core.windows
            .bind(list, holder, (buffer, start, bytes), access)
            .map_err(|buffer| (PostError::NoWindow, buffer))
    }

    fn invalidate_window(
        &mut self,
        window: Window,
        work: WorkId,
    ) -> Result<(), (PostError, Window)> {
        let core = &mut self.core;
        if !core.windows.owns(&window) {
            return Err((PostError::ForeignMemory, window));
        }
        let Some(index) = core.windows.bound_on(&window) else {
            return Err((PostError::NoWindow, window));
        };
        let Some(queue_pair) = core.queue_pairs.get_mut(index as usize) else {
            return Err((PostError::UnknownQueuePair, window));
        };
        if queue_pair.is_down() {
            return Err((PostError::NotConnected, window));
        }
        let outstanding = queue_pair.outstanding;
        if outstanding >= core.send_queue_depth_max || !core.works.may_take(outstanding, 1) {
            return Err((PostError::QueueFull, window));
        }
        let works = &mut queue_pair.works;
        let Some(entry) = core.works.take(index, works, Kind::Invalidate, Some(work)) else {
            return Err((PostError::QueueFull, window));
        };
        core.works.count(&mut queue_pair.outstanding);
        if let Some(buffer) = core.windows.end(&mut queue_pair.windows, window.slot) {
            core.returned.push(buffer);
        }
        let entry = core.works.get_mut(entry);
        entry.ended = Some(crate::interface::Status::Success);
        entry.window = Some(window);
        core.mark_ready(index);
        Ok(())
    }

    fn close_window(&mut self, window: Window) -> Result<Buffer, Window> {
        let core = &mut self.core;
        let Some(index) = core.windows.invalidated_on(&window) else {
            return Err(window);
        };
        let Some(queue_pair) = core.queue_pairs.get_mut(index as usize) else {
            return Err(window);
        };
        let buffer = core.windows.end(&mut queue_pair.windows, window.slot);
        buffer.ok_or(window)
    }

    fn window_has_key(&self, window: &Window, key: RemoteKey) -> bool {
        self.core.windows.owns(window) && window.key == key
    }
}
