//! Serves calls of peers: decodes the RPC header, lets the application answer, and encodes the RPC reply.

use rpcrdma_fabric::clock::Ticks;
use rpcrdma_fabric::memory::{Lease, SharedLease};
use rpcrdma_protocol::constants::{
    REPLY_HEADER_BYTES_WITHOUT_AUTH, V2_HEADER_BYTES_WITHOUT_CHUNKS,
};
use rpcrdma_protocol::form::{CallWords, Pairs};
use rpcrdma_protocol::rpc::{
    AcceptStatus, Auth, CallHeader, LastRoute, OpaqueAuth, Programs, ReplyHeader, Route, Verdict,
    judge, judge_header,
};

use crate::bulk::{BulkItem, ItemPart, ReplyItems, give_lease};
use crate::connection::Connection;
use crate::counters::Counters;
use crate::deferrals::{Deferrals, Deferred};
use crate::message::{MessageBuffer, MessagesOf, Use};
use crate::request::Request;
use crate::rpc::{ConnectionKey, Outcome};

/// Where an RPC message begins in a send buffer: behind the transport header.
pub(crate) const RPC_OFFSET: usize = V2_HEADER_BYTES_WITHOUT_CHUNKS;

/// Where results begin in an RPC reply: behind the header of a successful one.
pub(crate) const RESULTS_OFFSET: usize = REPLY_HEADER_BYTES_WITHOUT_AUTH;

/// Takes the results of a call. They are written directly into the message that carries them: short ones
/// into the send buffer, long ones into a message buffer that is sent in parts.
///
/// # Example
/// ```
/// use rpcrdma_engine::{Outcome, ReplyTooLong, ReplyWriter};
///
/// /// An XDR string: its length, its octets, and zeroes up to a multiple of four.
/// fn write_string(reply: &mut ReplyWriter<'_>, text: &str) -> Result<(), ReplyTooLong> {
///     reply.write_u32(u32::try_from(text.len()).map_err(|_| ReplyTooLong)?)?;
///     reply.write(text.as_bytes())?;
///     reply.write(&[0; 3][..text.len().next_multiple_of(4) - text.len()])
/// }
///
/// fn answer(reply: &mut ReplyWriter<'_>) -> Outcome {
///     write_string(reply, "root").map_or(Outcome::SystemError, |()| Outcome::Success)
/// }
/// ```
#[derive(Debug)]
pub struct ReplyWriter<'a> {
    /// The send buffer from the start of the results to the end of one message.
    space: &'a mut [u8],
    written: usize,
    /// Where results begin: behind the verifier.
    results_at: usize,
    messages: MessagesOf<'a>,
    too_long: bool,
    /// Bytes of the reply with an item that did not fit.
    length_needed_bytes: Option<u32>,
    items: &'a mut ReplyItems,
    counters: &'a Counters,
}

/// The verifier is longer than one may be, or comes too late: results are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the reply takes no such verifier, or not any more")]
pub struct VerifierRefused;

/// The results are longer than a message may be, or no buffer for a long message is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the results are longer than a reply may be")]
pub struct ReplyTooLong;

impl ReplyWriter<'_> {
    /// Bytes of results written.
    #[inline]
    #[must_use]
    pub fn written(&self) -> usize {
        self.written
    }

    /// Gives the reply this verifier in place of AUTH_NONE (RFC 5531 section 9), also when the call is deferred, or has no results.
    /// It comes before all results.
    ///
    /// # Errors
    /// [`VerifierRefused`] for a body of more than 400 bytes, or once there are results.
    pub fn set_verifier(&mut self, verifier: OpaqueAuth<'_>) -> Result<(), VerifierRefused> {
        let bytes = verifier.encoded_bytes() - OpaqueAuth::NONE.encoded_bytes();
        let kept = Auth::new(verifier.flavor, verifier.body);
        // A result that leaves the stream has its place in it all the same.
        let has_results = self.written != 0 || !self.items.results.is_empty();
        let is_first = self.items.verifier.is_none() && !has_results;
        let kept = kept.filter(|_| is_first && self.items.spilled.is_none());
        self.items.verifier = Some(kept.ok_or(VerifierRefused)?);
        self.results_at += bytes;
        let space = std::mem::take(&mut self.space);
        // Lists that the reply returns may leave no room for it in one message.
        match space.get_mut(bytes..) {
            Some(rest) => self.space = rest,
            None => self.spill().map_err(|_| VerifierRefused)?,
        }
        Ok(())
    }

    /// Appends `bytes`.
    ///
    /// # Errors
    /// [`ReplyTooLong`]; the call is then answered with SYSTEM_ERR, unless the application returns
    /// another error.
    #[inline]
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), ReplyTooLong> {
        // To copy nothing is a call into libc.
        if !bytes.is_empty() {
            self.reserve(bytes.len())?.copy_from_slice(bytes);
        }
        Ok(())
    }

    /// Appends a word, in network order.
    ///
    /// # Errors
    /// As [`ReplyWriter::write`].
    #[inline]
    pub fn write_u32(&mut self, word: u32) -> Result<(), ReplyTooLong> {
        self.write(&word.to_be_bytes())
    }

    /// Appends `count` bytes for the caller to write. They are not cleared: the caller has to write
    /// every one of them, or bytes of earlier messages would be sent.
    ///
    /// # Errors
    /// As [`ReplyWriter::write`].
    #[inline]
    pub fn reserve(&mut self, count: usize) -> Result<&mut [u8], ReplyTooLong> {
        let start = self.written;
        let end = start.checked_add(count).ok_or(ReplyTooLong)?;
        if end > self.space.len() && self.items.spilled.is_none() {
            self.spill()?;
        }
        let space = match &mut self.items.spilled {
            Some(buffer) => {
                let results_at = self.results_at;
                buffer.space().get_mut(results_at..).unwrap_or(&mut [])
            }
            None => &mut *self.space,
        };
        match space.get_mut(start..end) {
            Some(reserved) => {
                self.written = end;
                Ok(reserved)
            }
            None => {
                self.too_long = true;
                Err(ReplyTooLong)
            }
        }
    }

    /// Takes a whole bulk buffer to fill. `None` while the core has none to spare.
    pub fn take_bulk(&mut self) -> Option<Lease> {
        self.items.pool.take_lease()
    }

    /// Appends the bytes of an XDR item, and empties `item`. Its length, if it has one in the stream, must have been
    /// written before. If the caller asked for that, the bytes leave the stream without a copy, in the order of its
    /// results; otherwise they are copied into the stream, with their padding. An empty item leaves the caller's place
    /// for it unused.
    ///
    /// `request_position` is the position in the argument stream, with all items, at which the operation of this
    /// result begins.
    ///
    /// # Errors
    /// As [`ReplyWriter::write`]; the item is unchanged.
    pub fn attach(
        &mut self,
        request_position: u32,
        item: &mut BulkItem,
    ) -> Result<(), ReplyTooLong> {
        self.attach_any(request_position, item)
    }

    /// As [`ReplyWriter::attach`], for shared bytes: they cannot change while they are sent,
    /// and the caller can share them with other replies as well.
    ///
    /// # Errors
    /// As [`ReplyWriter::attach`].
    pub fn attach_shared(
        &mut self,
        request_position: u32,
        item: &mut BulkItem<SharedLease>,
    ) -> Result<(), ReplyTooLong> {
        self.attach_any(request_position, item)
    }

    fn attach_any<T: ItemPart>(
        &mut self,
        request_position: u32,
        item: &mut BulkItem<T>,
    ) -> Result<(), ReplyTooLong> {
        // Version 2 alone cannot express to which operation a Write chunk belongs: chunks are
        // used in order (-00 section 4.4.6). The extension uses the position.
        let stream_offset = self.results_at + self.written;
        if self.items.place(request_position, stream_offset, item) {
            return Ok(());
        }
        let bytes = item.len();
        let padded_bytes = bytes.next_multiple_of(4);
        let end = stream_offset.saturating_add(padded_bytes);
        let Ok(space) = self.reserve(padded_bytes) else {
            self.length_needed_bytes = u32::try_from(end).ok();
            return Err(ReplyTooLong);
        };
        item.copy_to(space);
        space.get_mut(bytes..).unwrap_or(&mut []).fill(0);
        let copied = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.counters.bulk_bytes_copied.add(copied);
        for part in item.drain() {
            part.give(&mut self.items.pool);
        }
        Ok(())
    }

    /// Whether an item of shared pieces can leave the stream as it is. If not, it is not in this core's memory, has too
    /// many pieces, or no views are left for them. Then copy it into a bulk buffer ([`ReplyWriter::take_bulk`]):
    /// [`ReplyWriter::attach_shared`] would copy it into the stream.
    #[must_use]
    pub fn takes_shared(&self, item: &BulkItem<SharedLease>) -> bool {
        self.items.may_share(item)
    }

    /// Gives up the bytes shared with replies that were sent and are kept for a resend. Call this if these bytes have
    /// to be written, or memory is lacking.
    pub fn give_up_shared(&mut self) {
        self.items.pool.give_up_views();
    }

    /// Moves the results written so far into a message buffer.
    #[cold]
    fn spill(&mut self) -> Result<(), ReplyTooLong> {
        let Some(mut buffer) = self.messages.take(Use::Answer) else {
            self.too_long = true;
            return Err(ReplyTooLong);
        };
        let written = self.space.get(..self.written).unwrap_or(&[]);
        let target = buffer
            .space()
            .get_mut(self.results_at..self.results_at + written.len());
        if let Some(target) = target {
            target.copy_from_slice(written);
        }
        self.items.spilled = Some(buffer);
        Ok(())
    }
}

/// The outcome of serving a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Served {
    /// The RPC reply is in the send buffer: so many bytes from [`RPC_OFFSET`].
    Short(usize),
    /// It is in a message buffer, which is to be taken from [`ReplyItems::spilled`].
    Long,
    /// An item of the results did not fit into the stream, and the call offered no chunks. Has the bytes that the reply
    /// would need, and those of an RPC reply with SYSTEM_ERR, which is where that of [`Served::Short`] would be.
    TooLong {
        length_needed_bytes: u32,
        rpc_bytes: usize,
    },
    /// The service will answer later.
    Deferred,
    /// The call gets no answer.
    Discarded,
}

/// The parts of a core that are needed to serve a call.
pub(crate) struct ServeContext<'a> {
    pub(crate) key: ConnectionKey,
    /// `None` if the call came by another transport, whose reply takes all of the scratch buffer.
    pub(crate) connection: Option<&'a Connection>,
    /// What judges the call before the application sees it.
    pub(crate) programs: &'a Programs,
    /// Whether the call has arguments outside its message.
    pub(crate) has_items: bool,
    /// The reading of the clock of this poll.
    pub(crate) now: Ticks,
    /// Whether the call came by version 1 of RPC-over-RDMA.
    pub(crate) is_version_1: bool,
    /// A send buffer, and the bytes that chunk lists take in it before the RPC reply.
    pub(crate) scratch: &'a mut [u8],
    pub(crate) lists_bytes: usize,
    pub(crate) messages: MessagesOf<'a>,
    pub(crate) deferrals: &'a mut Deferrals,
    /// The items of the reply. The caller clears what is left there.
    pub(crate) items: &'a mut ReplyItems,
    pub(crate) counters: &'a Counters,
}

impl ServeContext<'_> {
    /// Serves the RPC call in `message` with `answer`.
    #[inline]
    pub(crate) fn serve(
        self,
        xid: u32,
        message: &[u8],
        answer: impl FnOnce(&Request<'_>, &mut ReplyWriter<'_>) -> Outcome,
    ) -> Served {
        let routed = match judge(message, self.programs) {
            Verdict::Call(routed)
                if !(self.has_items && self.programs.has_empty_arguments(&routed)) =>
            {
                routed
            }
            verdict => return self.answer_verdict(verdict, xid),
        };
        let args = message.get(routed.header_bytes..).unwrap_or(&[]);
        self.items.arguments_at = u32::try_from(routed.header_bytes).unwrap_or(u32::MAX);
        self.items.may_reduce = routed.header.credential.permits_reduction();
        match self.run::<false>(&routed.header, routed.program, (args, message), answer) {
            Ok(rpc_bytes) => Served::Short(rpc_bytes),
            Err(served) => served,
        }
    }

    /// As [`ServeContext::serve`], for a call of a form, whose reply may have one. `last` is the route of the last such call.
    /// Returns the bytes of the results of a success with the verifier AUTH_NONE: they are in the send buffer, and its headers
    /// are not written.
    #[inline(always)]
    pub(crate) fn serve_form(
        self,
        pairs: &Pairs,
        (credential, args): (&[u8], &[u8]),
        last: &mut LastRoute,
        answer: impl FnOnce(&Request<'_>, &mut ReplyWriter<'_>) -> Outcome,
    ) -> Result<usize, Served> {
        let call = CallWords::of(pairs);
        let header = CallHeader {
            xid: call.xid,
            program: call.program,
            version: call.version,
            procedure: call.procedure,
            credential: OpaqueAuth {
                flavor: call.flavor,
                body: credential,
            },
            verifier: OpaqueAuth::NONE,
        };
        let route = match last.find(pairs, args) {
            Some(route) => route,
            None => {
                let route = match judge_header(header, args.len(), self.programs) {
                    Verdict::Call(routed) => Route::Program(routed.program),
                    Verdict::Null { .. } => Route::Null,
                    verdict => return Err(self.answer_verdict(verdict, call.xid)),
                };
                last.remember(pairs, args, route);
                route
            }
        };
        match route {
            Route::Program(program) => self.run::<true>(&header, program, (args, &[]), answer),
            Route::Null => {
                self.count_call();
                Ok(0)
            }
        }
    }

    /// Answers a call that no program runs.
    #[inline(never)]
    fn answer_verdict(self, verdict: Verdict<'_>, xid: u32) -> Served {
        self.count_call();
        let header = match verdict {
            Verdict::Null { xid } if !self.has_items => ReplyHeader::success(xid),
            other => {
                self.counters.rpc_errors_sent.increment();
                refusal_of(other, xid)
            }
        };
        let before = RPC_OFFSET + self.lists_bytes;
        let rpc = self.scratch.get_mut(before..).unwrap_or(&mut []);
        Served::Short(encode(rpc, &header))
    }

    /// Counts a call that is answered, also by a refusal.
    #[inline]
    fn count_call(&self) {
        if self.connection.is_none() {
            return;
        }
        self.counters.calls_received.increment();
        let of_version = if self.is_version_1 {
            &self.counters.calls_received_version_1
        } else {
            &self.counters.calls_received_version_2
        };
        of_version.increment();
    }

    /// Lets the application answer a call, for the program of this index. Returns the bytes of a short success: of its results if
    /// its headers are left to the caller (`FORMED`), else of the whole reply.
    #[inline(always)]
    fn run<const FORMED: bool>(
        mut self,
        header: &CallHeader<'_>,
        program: usize,
        (args, message): (&[u8], &[u8]),
        answer: impl FnOnce(&Request<'_>, &mut ReplyWriter<'_>) -> Outcome,
    ) -> Result<usize, Served> {
        self.count_call();
        let (is_reverse, threshold_bytes) = match self.connection {
            Some(connection) => (
                connection.serves_reverse(),
                match self.is_version_1 {
                    false => connection.protocol.version_2().send_threshold_bytes() as usize,
                    true => connection.protocol.send_threshold_bytes() as usize,
                },
            ),
            None => (false, usize::MAX),
        };
        let before = RPC_OFFSET + self.lists_bytes;
        let end = self.scratch.len().min(threshold_bytes);
        let request = Request {
            connection: self.key,
            is_reverse,
            is_version_1: self.is_version_1,
            xid: header.xid,
            program: header.program,
            program_index: program,
            version: header.version,
            procedure: header.procedure,
            credential: header.credential,
            verifier: header.verifier,
            args,
            message,
            deferrals: &*self.deferrals,
        };
        self.items.verifier = None;
        if self.items.spilled.is_some() {
            self.messages.drop_spilled(self.items);
        }
        let space = self.scratch.get_mut(before + RESULTS_OFFSET..end);
        let mut writer = ReplyWriter {
            space: space.unwrap_or(&mut []),
            written: 0,
            results_at: RESULTS_OFFSET,
            messages: self.messages.again(),
            too_long: false,
            length_needed_bytes: None,
            items: self.items,
            counters: self.counters,
        };
        let outcome = answer(&request, &mut writer);
        // Nearly all replies are such.
        let is_short = !writer.too_long && writer.items.spilled.is_none();
        if FORMED && outcome == Outcome::Success && is_short && writer.items.verifier.is_none() {
            return Ok(writer.written);
        }
        let ReplyWriter {
            written,
            results_at,
            too_long,
            length_needed_bytes,
            ..
        } = writer;
        let rpc = self.scratch.get_mut(before..).unwrap_or(&mut []);
        if outcome == Outcome::Success && is_short {
            let end = results_at + written;
            let header = reply_header(outcome, header.xid, self.items.verifier.as_ref());
            encode(rpc, &header);
            // With a verifier it has no form.
            return if FORMED {
                Err(Served::Short(end))
            } else {
                Ok(end)
            };
        }
        let answered = Answered {
            key: self.key,
            xid: header.xid,
            has_connection: self.connection.is_some(),
            now: self.now,
            deferrals: self.deferrals,
            messages: self.messages,
            items: self.items,
            counters: self.counters,
            rpc,
            limit: end.saturating_sub(before),
        };
        Err(answered.finish(outcome, results_at + written, too_long, length_needed_bytes))
    }
}

/// A call that the application has answered, and not with a short success.
struct Answered<'a> {
    key: ConnectionKey,
    xid: u32,
    has_connection: bool,
    now: Ticks,
    deferrals: &'a mut Deferrals,
    messages: MessagesOf<'a>,
    items: &'a mut ReplyItems,
    counters: &'a Counters,
    /// The place of the RPC reply in the send buffer, and how many bytes it may have.
    rpc: &'a mut [u8],
    limit: usize,
}

impl Answered<'_> {
    /// `end` is the length of the reply with its results.
    #[inline(never)]
    fn finish(
        self,
        mut outcome: Outcome,
        end: usize,
        too_long: bool,
        length_needed_bytes: Option<u32>,
    ) -> Served {
        if let Some(mut buffer) = self.items.spilled.take() {
            if outcome == Outcome::Success && !too_long {
                let header = reply_header(outcome, self.xid, self.items.verifier.as_ref());
                encode(buffer.space(), &header);
                buffer.set_len(end);
                self.items.spilled = Some(buffer);
                return Served::Long;
            }
            self.messages.pool.give(buffer);
        }
        // A service may report an item that did not fit as a system error itself.
        let is_only_too_long = matches!(outcome, Outcome::Success | Outcome::SystemError);
        if outcome == Outcome::Success {
            self.counters.replies_too_long.increment();
            outcome = Outcome::SystemError;
        }
        let has_way_out = is_only_too_long && self.items.came_without_chunks();
        self.items.clear();
        if outcome == Outcome::Discarded {
            self.counters.calls_discarded.increment();
            return Served::Discarded;
        }
        if outcome == Outcome::Deferred && !self.has_connection {
            return Served::Deferred;
        }
        if outcome == Outcome::Deferred && self.deferrals.next(self.key.index).is_some() {
            let call = Deferred {
                connection: self.key,
                xid: self.xid,
                found_at: self.now,
                serve: None,
            };
            self.deferrals.take(call, self.items.verifier.as_ref());
            self.counters.deferred.increment();
            return Served::Deferred;
        }
        // A call that could not be deferred, because no token was free, is answered with SYSTEM_ERR. What fits in one message
        // without a verifier need not fit with one.
        let verifier = self.items.verifier.as_ref();
        let verifier =
            verifier.filter(|it| it.get().encoded_bytes() + RESULTS_OFFSET <= self.limit);
        let rpc_bytes = encode(self.rpc, &reply_header(outcome, self.xid, verifier));
        match length_needed_bytes.filter(|_| has_way_out) {
            Some(length_needed_bytes) => Served::TooLong {
                length_needed_bytes,
                rpc_bytes,
            },
            None => {
                self.counters.rpc_errors_sent.increment();
                Served::Short(rpc_bytes)
            }
        }
    }
}

/// Writes the RPC header of a success in front of its results. Returns the bytes of the RPC message.
#[cold]
pub(crate) fn write_success(scratch: &mut [u8], xid: u32, results_bytes: usize) -> usize {
    let rpc = scratch.get_mut(RPC_OFFSET..).unwrap_or(&mut []);
    encode(rpc, &ReplyHeader::success(xid)) + results_bytes
}

/// The header of a reply with this outcome.
#[inline]
fn reply_header(outcome: Outcome, xid: u32, verifier: Option<&Auth>) -> ReplyHeader<'_> {
    let header = outcome.reply_header(xid);
    match verifier {
        None => header,
        Some(verifier) => header.with_verifier(verifier.get()),
    }
}

/// Writes a reply header. It fits, since buffers have at least 1024 bytes. Returns the bytes written.
#[inline]
fn encode(space: &mut [u8], header: &ReplyHeader<'_>) -> usize {
    let written = header.encode(space);
    debug_assert!(written.is_ok(), "every buffer holds a reply header");
    written.unwrap_or(0)
}

/// Writes an RPC reply into a message buffer, with `results` and items at offsets in them: those that may leave the
/// stream are attached, the others copied into their places. Returns the bytes of the copied items; `None`, with the
/// items unchanged, when the reply does not fit.
pub(crate) fn write_reply_with_items(
    buffer: &mut MessageBuffer,
    xid: u32,
    outcome: Outcome,
    results: &[u8],
    items: &mut [(usize, BulkItem)],
    attached: &mut ReplyItems,
) -> Option<u64> {
    let header = reply_header(outcome, xid, attached.verifier.as_ref());
    let header_bytes = encode(buffer.space(), &header);
    buffer.set_len(header_bytes);
    if outcome != Outcome::Success {
        return Some(0);
    }
    let items_bytes = attached.copied_bytes(items.iter().map(|(_, item)| item));
    if header_bytes + results.len() + items_bytes > buffer.space().len() {
        return None;
    }
    // `place` empties an item that it attaches; only the others count.
    let mut before = header_bytes;
    for (offset, item) in items.iter_mut() {
        let stream_offset = before + (*offset).min(results.len());
        let padded_bytes = item.len().next_multiple_of(4);
        if !attached.place(0, stream_offset, item) {
            before += padded_bytes;
        }
    }
    let copied = items.iter().map(|(offset, item)| {
        let parts = item.parts().map(|part| &**part);
        (*offset, parts)
    });
    let copied_bytes = buffer.weave(results, copied);
    for part in items.iter_mut().flat_map(|(_, item)| item.drain()) {
        give_lease(&mut attached.pool, part);
    }
    buffer.is_whole().then_some(copied_bytes)
}

/// Writes an RPC reply with `results` into `space`. `None` when it does not fit.
pub(crate) fn write_short_reply(
    space: &mut [u8],
    xid: u32,
    outcome: Outcome,
    results: &[u8],
    verifier: Option<&Auth>,
) -> Option<usize> {
    let header_bytes = reply_header(outcome, xid, verifier).encode(space).ok()?;
    if outcome != Outcome::Success {
        return Some(header_bytes);
    }
    let end = header_bytes.checked_add(results.len())?;
    space.get_mut(header_bytes..end)?.copy_from_slice(results);
    Some(end)
}

/// The reply to a call that is refused before the application sees it.
#[cold]
fn refusal_of(verdict: Verdict<'_>, xid: u32) -> ReplyHeader<'static> {
    match verdict {
        Verdict::Refuse(reply) => reply,
        // The transport header says that it is a call, and every call has a reply, which returns its credit.
        Verdict::Call(_) | Verdict::Null { .. } | Verdict::Ignore => {
            ReplyHeader::accepted(xid, AcceptStatus::GarbageArgs)
        }
    }
}
