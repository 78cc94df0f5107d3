//! Exposes the memory of a call with windows, and invalidates them again.

use rpcrdma_fabric::interface::{Access, Port, PostError, Status, Window, WorkId};
use rpcrdma_protocol::chunks::Segment;

use super::Outgoing;
use super::call::{CALL_SEGMENTS_MAX, CallPart, OutgoingCall, OutgoingState};
use super::lists::OfferedSegment;
use crate::core::application::Application;
use crate::core::resources::Resources;
use crate::core::step::{Step, slot_of, work_id};

impl Outgoing {
    /// Exposes the memory of a call.
    pub(super) fn bind_windows<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        call: &mut OutgoingCall,
    ) -> Step {
        let Some(connection) = core.connections.get(call.connection) else {
            return Step::Waits;
        };
        let counters = &core.shared.counters;
        for part in &mut call.parts {
            let Some(buffer) = part.buffer.take() else {
                continue;
            };
            let written = part.role.is_written();
            let access = Access {
                remote_read: !written,
                remote_write: written,
            };
            let queue_pair = connection.queue_pair;
            match core
                .port
                .bind_window(queue_pair, buffer, part.bytes, access)
            {
                Ok(window) => {
                    part.window = Some(window);
                    call.windows += 1;
                    self.windows_open += 1;
                    counters.windows_bound.increment();
                }
                Err((error, buffer)) => {
                    part.buffer = Some(buffer);
                    let step = call.wait.not_posted(error, &counters.awaiting_window);
                    return step.unwrap_or_else(|_| call.fails());
                }
            }
        }
        let buffer_bytes = core.reply.pool.buffer_bytes();
        let segment_bytes = connection.peer.segment_bytes_max.min(buffer_bytes);
        call.wait.ends();
        if !call.offer_segments(segment_bytes.max(1)) {
            // The peer's sizes have changed since the call was planned.
            return call.fails();
        }
        call.state = OutgoingState::Sending;
        Step::GoesOn
    }

    /// Invalidates the windows of a call, except those that the peer has invalidated with its reply.
    pub(super) fn take_windows_away<P: Port, A: Application>(
        &mut self,
        core: &mut Resources<P>,
        application: &mut A,
        call: &mut OutgoingCall,
    ) -> Step {
        let counters = &core.shared.counters;
        let work = work_id(call.index, call.generation);
        let mut is_full = false;
        for part in call.parts.iter_mut().filter(|part| !part.invalidating) {
            let Some(window) = part.window.take() else {
                continue;
            };
            let left = match core.port.close_window(window) {
                Ok(buffer) => {
                    part.buffer = Some(buffer);
                    call.windows -= 1;
                    self.windows_open -= 1;
                    counters.windows_invalidated_remotely.increment();
                    continue;
                }
                Err(window) => core.port.invalidate_window(window, work),
            };
            match left {
                Ok(()) => part.invalidating = true,
                Err((PostError::QueueFull, window)) => {
                    part.window = Some(window);
                    is_full = true;
                    break;
                }
                // The queue pair is in the error state; the window ends with it.
                Err((_, window)) => part.window = Some(window),
            }
        }
        if is_full {
            return call.wait.on(&counters.awaiting_send_slot);
        }
        match call.is_home() {
            true => self.finish_outgoing(core, application, call),
            false => Step::Waits,
        }
    }

    /// Handles the completion of a local invalidation. The port returns the buffer of the window separately.
    #[cold]
    pub(in crate::core) fn window_ended<P: Port, A: Application>(
        &mut self,
        core: &mut Resources<P>,
        application: &mut A,
        status: Status,
        work: WorkId,
        window: Window,
    ) {
        let (index, generation) = slot_of(work);
        let call = self.calls.get_mut(index);
        let Some(call) = call.filter(|call| call.generation == generation) else {
            // The call was ended with its connection.
            return;
        };
        drop(window);
        if status != Status::Success {
            return;
        }
        core.shared.counters.windows_invalidated_locally.increment();
        call.windows = call.windows.saturating_sub(1);
        self.windows_open = self.windows_open.saturating_sub(1);
        self.finish_if_home(core, application, index);
    }
}

impl OutgoingCall {
    /// Describes the windows of a call by segments of at most `segment_bytes_max` bytes. False, and no segments, if
    /// there would be more than a call can have.
    #[inline(always)]
    fn offer_segments(&mut self, segment_bytes_max: u32) -> bool {
        let segments = |part: &CallPart| part.bytes.div_ceil(segment_bytes_max) as usize;
        if self.parts.iter().map(segments).sum::<usize>() > CALL_SEGMENTS_MAX {
            return false;
        }
        for (part, number) in self.parts.iter().zip(0_u16..) {
            let Some(window) = &part.window else {
                continue;
            };
            let remote = window.remote();
            let mut done = 0;
            while done < part.bytes {
                let length_bytes = segment_bytes_max.min(part.bytes - done);
                self.segments.push(OfferedSegment {
                    role: part.role,
                    target: Segment {
                        handle: remote.key.0,
                        length_bytes,
                        offset: remote.offset.wrapping_add(done.into()),
                    },
                    part: number,
                });
                done += length_bytes;
            }
        }
        true
    }
}
