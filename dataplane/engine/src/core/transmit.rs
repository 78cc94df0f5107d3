//! Posts encoded messages to the port.

use rpcrdma_fabric::interface::{Gather, Port, PostError, SendOptions};
use rpcrdma_fabric::memory::{Buffer, Memory, Pool};
use rpcrdma_fabric::share::Share;
use rpcrdma_protocol::chunks::EncodeChunkLists;
use rpcrdma_protocol::form::{self, CallWords, Form, Pairs};
use rpcrdma_protocol::rpc::CallHeader;
use rpcrdma_protocol::v2::connection::{Direction, SendRefused};
use rpcrdma_protocol::v2::plan::Piece;

use super::group::Group;
use crate::connection::Connection;
use crate::counters::Counters;
use crate::forms;
use crate::ledger::SEND_BUFFERS;
use crate::responder::{RESULTS_OFFSET, RPC_OFFSET};
use crate::rpc::CallRefused;

/// The send buffers of a core. Every message is written into the *scratch* buffer first; a short
/// one is copied out of it when it is posted; a long one is sent from it, and another buffer takes its place.
#[derive(Debug)]
pub(crate) struct Transmit {
    memory: Memory,
    scratch: Buffer,
    pool: Pool,
    share: Share,
    /// The send buffers of each queue pair, by its index.
    sends: Box<[Sends]>,
    /// The queue pair that has each buffer.
    holders: Box<[u32]>,
    /// Zeroes that are sent between placed items; they are never written.
    padding: Pool,
    gather: Gather,
    inline_bytes_max: u32,
}

/// The send buffers of one connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sends {
    /// How many it has in flight, or waiting for a place in its send queue.
    pub(crate) held: u32,
    /// How many have come back, modulo 2^32.
    pub(crate) returned: u32,
}

/// Send buffers of a connection that messages with payload leave: errors and grants can always be sent.
const KEPT_BACK: u32 = 1;

impl Transmit {
    /// `None` when the pool is empty. `guaranteed` of its buffers are reserved: those that all connections together can
    /// always have.
    pub(crate) fn new(
        memory: Memory,
        mut pool: Pool,
        mut padding: Pool,
        inline_bytes_max: u32,
        (guaranteed, queue_pairs_max): (u32, u32),
    ) -> Option<Self> {
        let buffers = pool.shape().buffers;
        let scratch = pool.take()?;
        let zeroes: Vec<_> = std::iter::from_fn(|| padding.take()).collect();
        for mut buffer in zeroes {
            memory.bytes_mut(&mut buffer).fill(0);
            padding.give(buffer);
        }
        Some(Self {
            memory,
            scratch,
            pool,
            share: Share::new(buffers - 1, guaranteed),
            sends: vec![Sends::default(); queue_pairs_max as usize].into_boxed_slice(),
            holders: vec![0; buffers as usize].into_boxed_slice(),
            padding,
            gather: Gather::new(),
            inline_bytes_max,
        })
    }

    /// Whether `connection` may take `count` more send buffers.
    #[inline]
    fn may_take(&self, connection: &Connection, count: u32) -> bool {
        let sends = self.sends_of(connection);
        self.share.may_take(sends.held, SEND_BUFFERS, count)
    }

    /// Whether a payload message may be encoded. If the send queue is full, its buffer keeps it, and another one has to
    /// become the scratch buffer.
    #[inline]
    pub(crate) fn has_room(&self, connection: &Connection) -> bool {
        self.may_take(connection, 1 + KEPT_BACK)
    }

    /// Whether a grant or an error may be encoded.
    #[inline]
    pub(crate) fn has_room_for_control(&self, connection: &Connection) -> bool {
        self.may_take(connection, 1)
    }

    /// The send buffers of a connection.
    #[inline]
    pub(crate) fn sends_of(&self, connection: &Connection) -> Sends {
        let sends = self.sends.get(connection.queue_pair.index as usize);
        sends.copied().unwrap_or_default()
    }

    /// Whether no send buffer is in use.
    pub(crate) fn is_idle(&self) -> bool {
        self.share.free() + 1 == self.pool.shape().buffers
    }

    /// How many send buffers are free, and how many there are, without the scratch buffer.
    pub(crate) fn level(&self) -> (u64, u64) {
        let total = u64::from(self.pool.shape().buffers).saturating_sub(1);
        (self.share.free().into(), total)
    }

    /// The bytes of the scratch buffer.
    #[inline(always)]
    pub(crate) fn scratch(&mut self) -> &mut [u8] {
        self.memory.bytes_mut(&mut self.scratch)
    }

    /// Takes back a buffer whose Send is done. Returns a buffer of another pool.
    #[inline]
    pub(crate) fn take_back(&mut self, buffer: Buffer) -> Option<Buffer> {
        if self.pool.owns(&buffer) {
            let holder = self.holders.get(buffer.index() as usize);
            if let Some(sends) = holder.and_then(|it| self.sends.get_mut(*it as usize)) {
                self.share.give(&mut sends.held, SEND_BUFFERS);
                sends.returned = sends.returned.wrapping_add(1);
            }
            self.pool.give(buffer);
        } else if self.padding.owns(&buffer) {
            self.padding.give(buffer);
        } else {
            return Some(buffer);
        }
        None
    }

    /// Sends the RPC reply of `rpc_bytes` bytes in the scratch buffer, which is behind the place
    /// of its transport header. False, without any effect, when it has to wait.
    #[inline]
    pub(crate) fn send_reply<P: Port>(
        &mut self,
        port: &mut P,
        connection: &mut Connection,
        xid: u32,
        rpc_bytes: usize,
        counters: &Counters,
    ) -> bool {
        if connection.has_backlog_of_replies() || !self.has_room(connection) {
            return false;
        }
        let scratch = self.scratch();
        let reply = Direction::Reply;
        let encoded = connection
            .protocol
            .encode_message(scratch, xid, reply, false, rpc_bytes);
        let Ok(transport_bytes) = encoded else {
            return false;
        };
        self.close_gap(transport_bytes, rpc_bytes);
        counters.replies_sent.increment();
        self.post_scratch(port, connection, transport_bytes + rpc_bytes, counters);
        true
    }

    /// Puts results into the scratch buffer, where [`Transmit::send_success`] takes them. False if they do not fit.
    #[inline]
    pub(crate) fn put_results(&mut self, results: &[u8]) -> bool {
        let place = self.scratch().get_mut(RPC_OFFSET + RESULTS_OFFSET..);
        let place = place.and_then(|it| it.get_mut(..results.len()));
        let has_room = place.is_some();
        if let Some(place) = place {
            place.copy_from_slice(results);
        }
        has_room
    }

    /// Sends a success with so many bytes of results, which are in the scratch buffer behind the place of its
    /// headers. False, without any effect, when it has to wait.
    #[inline]
    pub(crate) fn send_success<P: Port>(
        &mut self,
        port: &mut P,
        connection: &mut Connection,
        xid: u32,
        results_bytes: usize,
        counters: &Counters,
    ) -> bool {
        if connection.has_backlog_of_replies() {
            return false;
        }
        // Each branch knows its form when it is compiled.
        let (form, other) = (Form::Reply2, Form::Reply1);
        let is_sent = match connection.protocol.is_version_1() {
            false => self.send_success_as(form, port, connection, xid, results_bytes, counters),
            true => self.send_success_as(other, port, connection, xid, results_bytes, counters),
        };
        if is_sent {
            counters.replies_sent.increment();
        }
        is_sent
    }

    #[inline(always)]
    fn send_success_as<P: Port>(
        &mut self,
        form: Form,
        port: &mut P,
        connection: &mut Connection,
        xid: u32,
        results_bytes: usize,
        counters: &Counters,
    ) -> bool {
        let bytes = form.header_bytes() + results_bytes;
        let Some(credit) = connection.protocol.credit_for_form(form, bytes, 0) else {
            return false;
        };
        let pairs = form::reply_pairs(xid, credit);
        self.post_form(
            port,
            connection,
            (form, &pairs),
            (&[], results_bytes),
            counters,
        )
    }

    /// Sends a call with these words, which have the form, this credential, and so many bytes of arguments, which are in the
    /// scratch buffer behind the place of its headers. `words.credit` is the credit word that the connection has for it. False,
    /// without any effect, when it has to wait.
    #[inline(always)]
    pub(crate) fn send_call_as<P: Port>(
        &mut self,
        form: Form,
        port: &mut P,
        connection: &mut Connection,
        words: &CallWords,
        (credential, args_bytes): (&[u8], usize),
        counters: &Counters,
    ) -> bool {
        let pairs = words.pairs();
        self.post_form(
            port,
            connection,
            (form, &pairs),
            (credential, args_bytes),
            counters,
        )
    }

    /// As [`Transmit::send_call_as`], for a call that has no form, or may not be sent by it: of `rpc_bytes` bytes.
    ///
    /// # Errors
    /// Why it may not be sent; nothing was.
    #[inline(never)]
    pub(crate) fn send_any_call<P: Port>(
        &mut self,
        port: &mut P,
        connection: &mut Connection,
        header: &CallHeader<'_>,
        rpc_bytes: usize,
        counters: &Counters,
    ) -> Result<(), CallRefused> {
        let scratch = self.scratch();
        let rpc = scratch.get_mut(RPC_OFFSET..).unwrap_or(&mut []);
        header.encode(rpc).map_err(|_| CallRefused::TooLong)?;
        let transport_bytes = connection
            .protocol
            .encode_message(scratch, header.xid, Direction::Call, false, rpc_bytes)
            .map_err(|_| CallRefused::NoCredit)?;
        self.close_gap(transport_bytes, rpc_bytes);
        self.post_scratch(port, connection, transport_bytes + rpc_bytes, counters);
        Ok(())
    }

    /// Posts a message of a form, whose credit word the connection has for it: with this credential, and so many bytes of
    /// arguments or results, which are in the scratch buffer behind the place of its headers. False, without any effect, when it
    /// has to wait for a send buffer.
    #[inline(always)]
    pub(crate) fn post_form<P: Port>(
        &mut self,
        port: &mut P,
        connection: &mut Connection,
        (form, pairs): (Form, &Pairs),
        (credential, payload_bytes): (&[u8], usize),
        counters: &Counters,
    ) -> bool {
        let bytes = form.header_bytes() + credential.len() + payload_bytes;
        let payload_at =
            RPC_OFFSET + form.header_bytes() - form.transport_bytes() + credential.len();
        let scratch = self.memory.bytes(&self.scratch);
        let Some(payload) = scratch.get(payload_at..payload_at + payload_bytes) else {
            debug_assert!(false, "it was written there");
            return false;
        };
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        // A message that is posted so takes no send buffer.
        if bytes <= self.inline_bytes_max
            && port.post_formed(
                connection.queue_pair,
                &forms::formed(form, pairs),
                [credential, payload],
            )
        {
            let (_, credit) = form::xid_and_credit(pairs);
            connection.protocol.handle_form_sent(form, credit);
            counters.sends_copied.increment();
            count_bytes(form.is_version_1(), bytes.into(), counters);
            return true;
        }
        self.post_form_as_octets(
            port,
            connection,
            (form, pairs),
            (credential, bytes),
            counters,
        )
    }

    /// Writes the headers into the scratch buffer, and posts it: the port carries only octets, or not this form now.
    #[inline(never)]
    fn post_form_as_octets<P: Port>(
        &mut self,
        port: &mut P,
        connection: &mut Connection,
        (form, pairs): (Form, &Pairs),
        (credential, bytes): (&[u8], u32),
        counters: &Counters,
    ) -> bool {
        if !self.has_room(connection) {
            return false;
        }
        let (_, credit) = form::xid_and_credit(pairs);
        connection.protocol.handle_form_sent(form, credit);
        let scratch = self.scratch();
        let rpc = scratch.get_mut(RPC_OFFSET..).unwrap_or(&mut []);
        let written = form::write_rpc_header(form, pairs, credential, rpc);
        let transport = form::write_transport_header(form, pairs, scratch);
        debug_assert!(
            written.is_some() && transport.is_some(),
            "the buffer has room for both"
        );
        let (transport_bytes, bytes) = (form.transport_bytes(), bytes as usize);
        self.close_gap(transport_bytes, bytes.saturating_sub(transport_bytes));
        self.post_scratch(port, connection, bytes, counters);
        true
    }

    /// Encodes a message with chunk lists into the scratch buffer: with `stream` behind its header; an empty one is in a
    /// chunk. Returns the bytes of the message.
    #[inline(always)]
    pub(crate) fn encode_with_chunks(
        &mut self,
        connection: &mut Connection,
        (xid, direction, invalidate): (u32, Direction, u32),
        lists: &impl EncodeChunkLists,
        stream: &[u8],
    ) -> Result<usize, SendRefused> {
        let (scratch, protocol) = (self.scratch(), &mut connection.protocol);
        if stream.is_empty() {
            return protocol.encode_long_message(scratch, xid, direction, invalidate, lists);
        }
        let bytes = stream.len();
        let header_bytes = protocol
            .encode_message_with_chunks(scratch, xid, direction, invalidate, lists, bytes)?;
        let end = header_bytes + bytes;
        if let Some(space) = scratch.get_mut(header_bytes..end) {
            space.copy_from_slice(stream);
        }
        Ok(end)
    }

    /// Moves an RPC message of `rpc_bytes` bytes, which is behind the place of a version 2 header, directly behind its
    /// header of `transport_bytes` bytes: that of version 1 is shorter.
    #[inline]
    pub(crate) fn close_gap(&mut self, transport_bytes: usize, rpc_bytes: usize) {
        if transport_bytes != RPC_OFFSET {
            self.close_gap_v1(transport_bytes, rpc_bytes);
        }
    }

    #[cold]
    fn close_gap_v1(&mut self, transport_bytes: usize, rpc_bytes: usize) {
        let end = RPC_OFFSET + rpc_bytes;
        let scratch = self.scratch();
        if end <= scratch.len() && transport_bytes <= RPC_OFFSET {
            scratch.copy_within(RPC_OFFSET..end, transport_bytes);
        }
    }

    /// Posts the first `bytes` bytes of the scratch buffer. They were encoded for `connection`, which has used up a
    /// credit, and so must be sent: if the send queue is full, the connection keeps them.
    #[inline]
    pub(crate) fn post_scratch<P: Port>(
        &mut self,
        port: &mut P,
        connection: &mut Connection,
        bytes: usize,
        counters: &Counters,
    ) {
        let options = SendOptions::default();
        self.post_scratch_with(port, connection, bytes, options, counters);
    }

    /// As [`Transmit::post_scratch`], with options.
    #[inline]
    pub(crate) fn post_scratch_with<P: Port>(
        &mut self,
        port: &mut P,
        connection: &mut Connection,
        bytes: usize,
        options: SendOptions,
        counters: &Counters,
    ) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        debug_assert!(!connection.unposted.is_some(), "messages leave in order");
        if bytes <= self.inline_bytes_max {
            match port.post_send_copied(connection.queue_pair, &self.scratch, bytes, options) {
                Ok(()) => {
                    counters.sends_copied.increment();
                    count_bytes(connection.protocol.is_version_1(), bytes.into(), counters);
                }
                Err(error) => self.copied_failed(error, connection, (bytes, options), counters),
            }
            return;
        }
        if self.push_scratch(connection, bytes) {
            self.post_gather(port, connection, (options, false), counters);
        }
    }

    /// Whether there are buffers for a transmission whose header and stream take `heads` send buffers, with `paddings`
    /// pieces of padding.
    pub(crate) fn has_buffers(&self, connection: &Connection, heads: u32, paddings: usize) -> bool {
        self.may_take(connection, heads + KEPT_BACK) && self.padding.available() >= paddings
    }

    /// Posts the transmission of these pieces, some of which are of `stream`. Its header is in
    /// the scratch buffer and was encoded for `connection`, so it must be sent: if the send queue
    /// is full, the connection keeps it.
    #[inline(always)]
    pub(crate) fn post_transmission<P: Port>(
        &mut self,
        port: &mut P,
        connection: &mut Connection,
        group: &mut Group,
        (pieces, stream): (&[Piece], &[u8]),
        counters: &Counters,
    ) {
        if let Some(bytes) = self.put_together(pieces, stream) {
            return self.post_scratch(port, connection, bytes, counters);
        }
        let mut is_whole = true;
        let mut filled = 0;
        for (number, piece) in pieces.iter().enumerate() {
            match *piece {
                Piece::Header { length_bytes } => {
                    filled = length_bytes;
                    let stream_follows =
                        matches!(pieces.get(number + 1), Some(Piece::Stream { .. }));
                    if !stream_follows {
                        is_whole &= self.push_scratch(connection, filled);
                    }
                }
                Piece::Stream {
                    from_bytes,
                    length_bytes,
                } => {
                    let from = from_bytes as usize;
                    let mut rest = stream
                        .get(from..from + length_bytes as usize)
                        .unwrap_or(&[]);
                    is_whole &= rest.len() == length_bytes as usize;
                    loop {
                        let space = self.scratch().get_mut(filled as usize..).unwrap_or(&mut []);
                        let count = rest.len().min(space.len());
                        let (part, behind) = rest.split_at(count);
                        if let Some(space) = space.get_mut(..count) {
                            space.copy_from_slice(part);
                        }
                        rest = behind;
                        let bytes = filled + u32::try_from(count).unwrap_or(0);
                        is_whole &= self.push_scratch(connection, bytes);
                        filled = 0;
                        if rest.is_empty() || !is_whole {
                            break;
                        }
                    }
                }
                Piece::Padding { length_bytes } => {
                    let pushed = self
                        .padding
                        .take()
                        .map(|zeroes| self.gather.push(zeroes, 0, length_bytes));
                    if let Some(Err(zeroes)) = pushed {
                        self.padding.give(zeroes);
                        is_whole = false;
                    }
                }
                Piece::Item {
                    item,
                    from_bytes,
                    length_bytes,
                } => {
                    is_whole &= group.gather(&mut self.gather, item, from_bytes, length_bytes);
                }
            }
        }
        debug_assert!(is_whole, "all of it was looked at before");
        self.post_gather(port, connection, (SendOptions::default(), false), counters);
    }

    /// Copies the stream behind the header in the scratch buffer, if a transmission has nothing
    /// else and both fit: it is sent as any other message then. Returns their bytes.
    fn put_together(&mut self, pieces: &[Piece], stream: &[u8]) -> Option<usize> {
        let &[
            Piece::Header { length_bytes },
            Piece::Stream {
                from_bytes,
                length_bytes: stream_bytes,
            },
        ] = pieces
        else {
            return None;
        };
        let from = from_bytes as usize;
        let begin = length_bytes as usize;
        let end = begin + stream_bytes as usize;
        let stream = stream.get(from..from + stream_bytes as usize)?;
        self.scratch().get_mut(begin..end)?.copy_from_slice(stream);
        Some(end)
    }

    /// Puts the first `bytes` bytes of the scratch buffer into the gather list, and replaces the scratch buffer.
    #[inline(always)]
    fn push_scratch(&mut self, connection: &Connection, bytes: u32) -> bool {
        let Some(buffer) = self.replace_scratch(connection) else {
            return false;
        };
        match self.gather.push(buffer, 0, bytes) {
            Ok(()) => true,
            Err(buffer) => {
                let _ = self.take_back(buffer);
                false
            }
        }
    }

    /// Takes the scratch buffer, which counts for `connection` from now on; another takes its place.
    fn replace_scratch(&mut self, connection: &Connection) -> Option<Buffer> {
        let Some(fresh) = self.pool.take() else {
            debug_assert!(false, "encoded without a buffer to spare");
            return None;
        };
        let buffer = std::mem::replace(&mut self.scratch, fresh);
        let holder = connection.queue_pair.index;
        if let Some(sends) = self.sends.get_mut(holder as usize) {
            self.share.take(&mut sends.held, SEND_BUFFERS);
        }
        if let Some(place) = self.holders.get_mut(buffer.index() as usize) {
            *place = holder;
        }
        Some(buffer)
    }

    /// Tries again to post a message that found the send queue full. Returns whether it was posted.
    pub(crate) fn post_unposted<P: Port>(
        &mut self,
        port: &mut P,
        connection: &mut Connection,
        counters: &Counters,
    ) -> bool {
        std::mem::swap(&mut self.gather, &mut connection.unposted.list);
        let options = connection.unposted.options;
        self.post_gather(port, connection, (options, true), counters);
        !connection.unposted.is_some()
    }

    /// Posts the gather list. `is_again` says whether that was tried before.
    #[inline(always)]
    fn post_gather<P: Port>(
        &mut self,
        port: &mut P,
        connection: &mut Connection,
        (options, is_again): (SendOptions, bool),
        counters: &Counters,
    ) {
        if self.gather.is_empty() {
            return;
        }
        let bytes = self.gather.bytes();
        match port.post_send(connection.queue_pair, &mut self.gather, options) {
            Ok(()) => {
                counters.sends_registered.increment();
                count_bytes(connection.protocol.is_version_1(), bytes, counters);
            }
            // The connection keeps it. If the queue pair is in the error state, its Disconnected follows and drops it.
            Err(error) => {
                if error == PostError::QueueFull && !is_again {
                    counters.awaiting_send_slot.increment();
                }
                std::mem::swap(&mut self.gather, &mut connection.unposted.list);
                connection.unposted.options = options;
            }
        }
    }

    #[cold]
    fn copied_failed(
        &mut self,
        error: PostError,
        connection: &mut Connection,
        (bytes, options): (u32, SendOptions),
        counters: &Counters,
    ) {
        if error != PostError::QueueFull {
            // The queue pair is in the error state; its Disconnected follows.
            return;
        }
        let Some(buffer) = self.replace_scratch(connection) else {
            return;
        };
        counters.awaiting_send_slot.increment();
        match connection.unposted.list.push(buffer, 0, bytes) {
            Ok(()) => connection.unposted.options = options,
            Err(buffer) => {
                debug_assert!(false, "one segment, within its buffer");
                let _ = self.take_back(buffer);
            }
        }
    }
}

#[cfg(test)]
impl Transmit {
    /// For the sums: the share, what each queue pair has by its index, and the buffers that are in the pool.
    pub(crate) fn ledger(&self) -> (&Share, &[Sends], usize) {
        (&self.share, &self.sends, self.pool.available())
    }

    /// Has queue pairs other than that of `connection` take all send buffers that they may, with nothing in them.
    pub(crate) fn exhaust(&mut self, connection: &Connection) {
        let own = connection.queue_pair.index as usize;
        let others = self.sends.iter_mut().enumerate();
        for (_, sends) in others.filter(|(index, _)| *index != own) {
            while self.share.may_take(sends.held, SEND_BUFFERS, 1) {
                self.share.take(&mut sends.held, SEND_BUFFERS);
            }
        }
    }

    /// Undoes that.
    pub(crate) fn restore(&mut self, connection: &Connection) {
        let own = connection.queue_pair.index as usize;
        let others = self.sends.iter_mut().enumerate();
        for (_, sends) in others.filter(|(index, _)| *index != own) {
            while sends.held != 0 {
                self.share.give(&mut sends.held, SEND_BUFFERS);
            }
        }
    }

    /// Padding that is not in its pool.
    pub(crate) fn padding_away(&self) -> usize {
        self.padding.shape().buffers as usize - self.padding.available()
    }
}

/// Counts the bytes of a message that was posted.
#[inline]
fn count_bytes(is_version_1: bool, bytes: u64, counters: &Counters) {
    counters.message_bytes_sent.add(bytes);
    let of_version = if is_version_1 {
        &counters.message_bytes_sent_version_1
    } else {
        &counters.message_bytes_sent_version_2
    };
    of_version.add(bytes);
}

#[cfg(test)]
mod tests {
    use rpcrdma_fabric::memory::{Arena, ArenaOptions, HugePages, PoolShape};

    use super::*;

    /// Padding is sent to peers: it is zeroes, and nothing that its memory held before.
    #[test]
    fn padding_is_of_zeroes_whatever_its_memory_held() {
        let options = ArenaOptions {
            bytes: 1 << 20,
            huge_pages: HugePages::Never,
        };
        let mut arena = Arena::private(&options).expect("memory for a test");
        let shape = PoolShape {
            buffers: 3,
            buffer_bytes: 512,
            stride_bytes: 512,
            align_bytes: 64,
        };
        let sends = arena.pool(shape).expect("a pool");
        let mut padding = arena.pool(shape).expect("a pool");
        let memory = arena.memory();
        let used: Vec<_> = std::iter::from_fn(|| padding.take()).collect();
        for mut buffer in used {
            memory.bytes_mut(&mut buffer).fill(0x55);
            padding.give(buffer);
        }
        let transmit = Transmit::new(memory, sends, padding, 64, (0, 1));
        let mut transmit = transmit.expect("there are send buffers");
        for _ in 0..3 {
            let buffer = transmit.padding.take().expect("three are there");
            assert_eq!(*transmit.memory.bytes(&buffer), [0; 512]);
        }
    }
}
