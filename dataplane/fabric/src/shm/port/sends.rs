//! Posting work requests: a Send or RDMA Write becomes a record, an RDMA Read an entry of a list.

use super::super::channel::{Channel, Outgoing, Part};
use super::super::copy::{copy_bytes, copy_small, write_u32, write_u64};
use super::super::counters::Counters;
use super::super::queue_pair::{QueuePair, Sending, State};
use super::super::record::{HEAD_BYTES_MAX, PIECE_BYTES, WRITE_BYTES, op};
use super::super::work::Kind;
use super::Port;
use super::core::{Core, channel_mut};
use crate::interface::{
    Formed, Gather, PortSends, PostError, QueuePairId, RemoteAddress, SEGMENTS_MAX, SendOptions,
    WorkId,
};
use crate::memory::{Buffer, Memory};

/// Bytes of one message or RDMA operation.
pub(super) const MESSAGE_BYTES_MAX: u32 = 1 << 30;

impl PortSends for Port {
    #[inline]
    fn post_send_copied(
        &mut self,
        id: QueuePairId,
        source: &Buffer,
        bytes: u32,
        options: SendOptions,
    ) -> Result<(), PostError> {
        if bytes > self.inline_bytes_max || bytes > source.capacity() {
            return Err(PostError::TooLong);
        }
        let (core, channel, dirty) = self.sender(id)?;
        if !core.memory.owns(source) {
            return Err(PostError::ForeignMemory);
        }
        let queue_pair = &core.queue_pairs[id.index as usize];
        let is_short =
            options == SendOptions::default() && core.delay == 0 && queue_pair.fail_next.is_none();
        if is_short && channel.publish_short(queue_pair.remote, source, bytes) {
            core.counters.records_out += 1;
            mark_dirty(dirty, channel);
            return Ok(());
        }
        self.send_copied_any(id, source, bytes, options)
    }

    // Always: which form it is, is known where it is called.
    #[inline(always)]
    fn post_formed(&mut self, id: QueuePairId, formed: &Formed, rest: [&[u8]; 2]) -> bool {
        if self.core.checked.sending.id != id && !self.check_sending(id) {
            return false;
        }
        let Sending {
            channel, remote, ..
        } = self.core.checked.sending;
        let Some(channel) = channel_mut(&mut self.channels, channel) else {
            return false;
        };
        if !channel.publish_formed(remote, formed, rest) {
            return false;
        }
        self.core.counters.records_out += 1;
        mark_dirty(&mut self.dirty, channel);
        true
    }

    fn post_send(
        &mut self,
        id: QueuePairId,
        list: &mut Gather,
        options: SendOptions,
    ) -> Result<(), PostError> {
        let inline_bytes_max = self.inline_bytes_max;
        let (core, channel, dirty) = self.sender(id)?;
        let bytes = check_list(&core.memory, list)?;
        if core.injected_failure(id, Kind::Send, options.signalled, Some(list))? {
            core.fail_injected(channel, id);
            return Ok(());
        }
        let copied = bytes <= inline_bytes_max;
        core.check_room(id, !copied || options.signalled.is_some())?;
        let head_bytes = if copied { 0 } else { head_bytes(list) };
        let (op, payload_bytes) = match (copied, head_bytes) {
            (true, _) => (op::SEND, bytes),
            (false, 0) => (op::SEND_PULLED, pieces_bytes(list)),
            (false, _) => (op::SEND_HEADED, pieces_bytes(list) + head_bytes),
        };
        let outgoing = core.outgoing(id, op, payload_bytes, options);
        let memory = &core.memory;
        let position = publish(channel, &mut core.counters, outgoing, |place, part| {
            if matches!(part, Part::FirstLine(_)) {
                return;
            }
            if copied {
                gather_into(place, list);
            } else {
                write_pieces(place, list, memory);
                let behind = place.wrapping_add(pieces_bytes(list) as usize);
                write_head(behind, list, head_bytes);
            }
        })?;
        if copied {
            core.give_back(list);
        }
        if head_bytes != 0
            && let Some(head) = list.take_first()
        {
            core.returned.push(head);
        }
        if !copied || options.signalled.is_some() {
            let list = (!copied).then_some(list);
            core.track(
                channel,
                id.index,
                Kind::Send,
                options.signalled,
                position,
                list,
            );
        }
        mark_dirty(dirty, channel);
        Ok(())
    }

    fn post_read(
        &mut self,
        id: QueuePairId,
        mut list: Gather,
        from: RemoteAddress,
        work: WorkId,
    ) -> Result<(), (PostError, Gather)> {
        match self.try_read(id, &mut list, from, work) {
            Ok(()) => Ok(()),
            Err(error) => Err((error, list)),
        }
    }

    fn post_write(
        &mut self,
        id: QueuePairId,
        list: &mut Gather,
        to: RemoteAddress,
        signalled: Option<WorkId>,
    ) -> Result<(), PostError> {
        let (core, channel, dirty) = self.sender(id)?;
        check_list(&core.memory, list)?;
        if core.injected_failure(id, Kind::Write, signalled, Some(list))? {
            core.fail_injected(channel, id);
            return Ok(());
        }
        core.check_room(id, true)?;
        let payload_bytes = WRITE_BYTES + pieces_bytes(list);
        let outgoing = core.outgoing(id, op::WRITE, payload_bytes, SendOptions::default());
        let memory = &core.memory;
        let position = publish(channel, &mut core.counters, outgoing, |place, part| {
            if matches!(part, Part::FirstLine(_)) {
                return;
            }
            // SAFETY: the record has room for the payload, which begins 16-byte aligned.
            unsafe {
                write_u64(place, to.offset);
                write_u32(place.add(8), to.key.0);
                write_u32(place.add(12), 0);
            }
            write_pieces(place.wrapping_add(WRITE_BYTES as usize), list, memory);
        })?;
        core.track(
            channel,
            id.index,
            Kind::Write,
            signalled,
            position,
            Some(list),
        );
        mark_dirty(dirty, channel);
        Ok(())
    }

    fn probe(&mut self, _: QueuePairId, _: WorkId) -> Result<(), PostError> {
        Err(PostError::Unsupported)
    }

    #[inline]
    fn flush_sends(&mut self) {
        while let Some(number) = self.dirty.pop() {
            if let Some(channel) = channel_mut(&mut self.channels, number) {
                channel.in_dirty = false;
                channel.end_burst();
                channel.ring_peer(&mut self.core.counters);
            }
        }
    }

    #[inline]
    fn next_returned(&mut self) -> Option<Buffer> {
        self.core.returned.pop()
    }
}

impl Port {
    /// Checks that a queue pair can send. Returns the port's other parts, the channel of the queue pair, and the list of the
    /// channels with records that are to be flushed.
    #[inline]
    pub(super) fn sender(
        &mut self,
        id: QueuePairId,
    ) -> Result<(&mut Core, &mut Channel, &mut Vec<u32>), PostError> {
        let core = &mut self.core;
        let queue_pair = core
            .queue_pairs
            .get(id.index as usize)
            .filter(|queue_pair| queue_pair.id() == id)
            .ok_or(PostError::UnknownQueuePair)?;
        match queue_pair.state {
            State::Connected => {}
            State::Accepting => return Err(PostError::QueueFull),
            State::Vacant => return Err(PostError::UnknownQueuePair),
            State::Error | State::Flushed => return Err(PostError::NotConnected),
        }
        let channel = channel_mut(&mut self.channels, queue_pair.channel);
        let channel = channel.ok_or(PostError::NotConnected)?;
        Ok((core, channel, &mut self.dirty))
    }

    /// Checks whether a queue pair may send messages by their forms, and remembers it.
    #[inline(never)]
    fn check_sending(&mut self, id: QueuePairId) -> bool {
        let Ok((core, channel, _)) = self.sender(id) else {
            return false;
        };
        let queue_pair = &core.queue_pairs[id.index as usize];
        let may_send = core.delay == 0 && queue_pair.fail_next.is_none() && channel.takes_forms();
        if may_send {
            core.checked.sending = Sending {
                id,
                channel: queue_pair.channel,
                remote: queue_pair.remote,
            };
        }
        may_send
    }

    /// Posts a copied Send that [`Channel::publish_short`] did not take.
    #[inline(never)]
    fn send_copied_any(
        &mut self,
        id: QueuePairId,
        source: &Buffer,
        bytes: u32,
        options: SendOptions,
    ) -> Result<(), PostError> {
        let (core, channel, dirty) = self.sender(id)?;
        let outgoing = core.outgoing(id, op::SEND, bytes, options);
        if core.injected_failure(id, Kind::Send, options.signalled, None)? {
            core.fail_injected(channel, id);
            return Ok(());
        }
        core.check_room(id, options.signalled.is_some())?;
        let position = publish(channel, &mut core.counters, outgoing, copied(source, bytes))?;
        if options.signalled.is_some() {
            core.track(
                channel,
                id.index,
                Kind::Send,
                options.signalled,
                position,
                None,
            );
        }
        mark_dirty(dirty, channel);
        Ok(())
    }

    fn try_read(
        &mut self,
        id: QueuePairId,
        list: &mut Gather,
        from: RemoteAddress,
        work: WorkId,
    ) -> Result<(), PostError> {
        let (core, channel, _) = self.sender(id)?;
        let bytes = check_list(&core.memory, list)?;
        if list.has_view() {
            return Err(PostError::ForeignMemory);
        }
        core.check_room(id, true)?;
        if core.injected_failure(id, Kind::Read, Some(work), Some(list))? {
            core.fail_injected(channel, id);
            return Ok(());
        }
        let not_before = match core.delay {
            0 => 0,
            // An RDMA Read has a request and a response, so it takes the delay twice.
            delay => core.not_before().saturating_add(delay),
        };
        let Some(queue_pair) = core.queue_pairs.get_mut(id.index as usize) else {
            return Err(PostError::UnknownQueuePair);
        };
        let (works, after) = (&mut queue_pair.works, queue_pair.last_write);
        let Some(index) = core.works.take(id.index, works, Kind::Read, Some(work)) else {
            return Err(PostError::QueueFull);
        };
        core.works.count(&mut queue_pair.outstanding);
        core.works.await_ack(&mut queue_pair.reads, index, after);
        let read = &mut core.works.get_mut(index).read;
        read.list = std::mem::take(list);
        read.from = from;
        read.bytes = bytes;
        read.done = 0;
        read.not_before = not_before;
        core.mark_reader(id.index);
        Ok(())
    }
}

impl Core {
    #[inline]
    fn outgoing(&self, id: QueuePairId, op: u8, bytes: u32, options: SendOptions) -> Outgoing {
        let queue_pair = &self.queue_pairs[id.index as usize];
        Outgoing {
            destination: queue_pair.remote,
            op,
            payload_bytes: bytes,
            invalidate: options.invalidate,
            not_before: self.not_before(),
        }
    }

    /// Checks that there is room for a work request, if the call needs one.
    #[inline]
    fn check_room(&mut self, id: QueuePairId, needed: bool) -> Result<(), PostError> {
        if !needed {
            return Ok(());
        }
        let outstanding = self.queue_pairs[id.index as usize].outstanding;
        if outstanding < self.send_queue_depth_max && self.works.may_take(outstanding, 1) {
            return Ok(());
        }
        self.counters.queue_full += 1;
        Err(PostError::QueueFull)
    }

    /// Keeps a work request for the record at `position`, with the buffers of `list`, until it is
    /// acknowledged.
    #[inline(always)]
    fn track(
        &mut self,
        channel: &mut Channel,
        index: u32,
        kind: Kind,
        signalled: Option<WorkId>,
        position: u32,
        list: Option<&mut Gather>,
    ) {
        let queue_pair: &mut QueuePair = &mut self.queue_pairs[index as usize];
        let works = &mut queue_pair.works;
        let Some(work) = self.works.take(index, works, kind, signalled) else {
            debug_assert!(false, "check_room found room");
            return;
        };
        self.works.count(&mut queue_pair.outstanding);
        if kind == Kind::Write {
            queue_pair.writes_unacked += 1;
            queue_pair.last_write = position;
        }
        self.works.await_ack(&mut channel.unacked, work, position);
        let entry = self.works.get_mut(work);
        entry.pulled = list.is_some();
        if let Some(list) = list {
            entry.list.swap(list);
        }
        self.mark_awaiting(channel);
    }

    /// Returns the buffers of a list immediately: their bytes were copied.
    fn give_back(&mut self, list: &mut Gather) {
        while let Some((buffer, _, _)) = list.pop() {
            self.returned.push(buffer);
        }
    }

    /// If a failure was injected for the next work request, takes this one, ended. Returns whether it did.
    #[inline]
    fn injected_failure(
        &mut self,
        id: QueuePairId,
        kind: Kind,
        signalled: Option<WorkId>,
        list: Option<&mut Gather>,
    ) -> Result<bool, PostError> {
        match self.queue_pairs[id.index as usize].fail_next {
            None => Ok(false),
            Some(status) => self.inject(id, kind, signalled, list, status),
        }
    }
}

/// Marks a channel, so that the next flush rings its peer if that is needed.
#[inline]
fn mark_dirty(dirty: &mut Vec<u32>, channel: &mut Channel) {
    if !channel.in_dirty {
        channel.in_dirty = true;
        dirty.push(channel.number);
    }
}

#[inline]
fn publish(
    channel: &mut Channel,
    counters: &mut Counters,
    outgoing: Outgoing,
    fill: impl FnMut(*mut u8, Part),
) -> Result<u32, PostError> {
    let published = channel.publish(outgoing, counters, fill);
    if published.is_none() {
        counters.queue_full += 1;
    }
    published.ok_or(PostError::QueueFull)
}

/// A closure that copies the first `bytes` bytes of a buffer, which holds as many, into a reserved record.
#[inline]
fn copied(source: &Buffer, bytes: u32) -> impl FnMut(*mut u8, Part) {
    move |place, part| {
        let (from, to) = match part {
            Part::Behind(line) => (line.min(bytes), bytes),
            Part::FirstLine(line) => (0, line.min(bytes)),
        };
        let source = source.start().wrapping_add(from as usize);
        let target = place.wrapping_add(from as usize);
        // SAFETY: the buffer is borrowed and holds `bytes` bytes; `place` is a reserved record of
        // our own ring with room for them.
        unsafe { copy_small(source, target, (to - from) as usize) };
    }
}

/// Checks that a gather list can be posted. Returns its bytes.
#[inline(always)]
fn check_list(memory: &Memory, list: &Gather) -> Result<u32, PostError> {
    if list.is_empty() || list.len() > SEGMENTS_MAX {
        return Err(PostError::BadSegments);
    }
    let mut all_bytes = 0;
    for (buffer, _, bytes) in list.iter() {
        if !memory.owns(buffer) {
            return Err(PostError::ForeignMemory);
        }
        all_bytes += u64::from(*bytes);
    }
    match u32::try_from(all_bytes) {
        Ok(bytes) if bytes <= MESSAGE_BYTES_MAX => Ok(bytes),
        _ => Err(PostError::TooLong),
    }
}

/// The bytes of the descriptor of a list, which has at most [`SEGMENTS_MAX`] segments.
fn pieces_bytes(list: &Gather) -> u32 {
    u32::try_from(list.len()).unwrap_or(u32::MAX) * PIECE_BYTES
}

/// The bytes from the start of a list that go into its record: the first buffer, if it is short and not
/// the only one. The receiver gets them with the descriptor and does not wait for another cache line.
fn head_bytes(list: &Gather) -> u32 {
    let mut segments = list.iter();
    let first = segments.next().map_or(0, |(_, _, bytes)| *bytes);
    if first <= HEAD_BYTES_MAX && segments.next().is_some() {
        first
    } else {
        0
    }
}

/// Copies the first `bytes` bytes of a list, all in its first buffer, into a reserved record.
#[inline]
fn write_head(place: *mut u8, list: &Gather, bytes: u32) {
    let Some((buffer, offset, _)) = list.iter().next() else {
        return;
    };
    let source = buffer.start().wrapping_add(*offset as usize);
    // SAFETY: `Gather::push` checked that the first segment, of `bytes` bytes or more, lies within
    // its buffer, which the list owns; the record was reserved for them behind the descriptor.
    unsafe { copy_small(source, place, bytes as usize) };
}

/// Writes the descriptor of a list of buffers of the memory into a reserved record.
#[inline]
fn write_pieces(mut place: *mut u8, list: &Gather, memory: &Memory) {
    for (buffer, offset, bytes) in list.iter() {
        let start = memory.offset_of(buffer) + u64::from(*offset);
        // SAFETY: the record was reserved for the descriptor of this list, 16-byte aligned.
        unsafe {
            write_u64(place, start);
            write_u32(place.add(8), *bytes);
            write_u32(place.add(12), 0);
        }
        place = place.wrapping_add(PIECE_BYTES as usize);
    }
}

/// Copies the segments of a list into a reserved record.
fn gather_into(mut place: *mut u8, list: &Gather) {
    for (buffer, offset, bytes) in list.iter() {
        let source = buffer.start().wrapping_add(*offset as usize);
        // SAFETY: `Gather::push` checked that the range lies within the buffer, which the list
        // owns; the record was reserved for all of them.
        unsafe { copy_bytes(source, place, *bytes as usize) };
        place = place.wrapping_add(*bytes as usize);
    }
}
