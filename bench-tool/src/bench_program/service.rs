//! The service of the bench program, on each core of `serve`.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rpcrdma_engine::{
    Activity, Application, BulkArguments, BulkItem, CallError, CallTag, ConnectionKey, Context,
    CounterSnapshot, DeferToken, Outcome, Reply, ReplyRefused, ReplyWriter, Request,
};
use rpcrdma_fabric::clock::{Clock, Ticks};
use rpcrdma_fabric::interface::Port;
use rpcrdma_fabric::memory::Lease;
use rpcrdma_protocol::rpc::Programs;

use super::back::CallsBack;
use super::operations::{Kind, Operation, pieces_match};
use super::{
    CALL_BACK, COMPOUND, COUNTERS, ECHO, FACTS, NULL, OPERATIONS_MAX, READ, WRITE, answer_echo,
    pattern, programs,
};

/// Reads the counters of all cores of the server.
pub(crate) type ReadCounters = dyn Fn() -> CounterSnapshot + Send + Sync;

/// The state that the services of all cores share.
#[derive(Default)]
pub(crate) struct Common {
    /// Set once the cores run.
    counters: OnceLock<Box<ReadCounters>>,
    /// What FACTS returns; set before the first connection.
    facts: OnceLock<String>,
    /// Upper bound of the bulk data of one reply. A larger reply would wait for ever.
    reply_bulk_bytes_max: u64,
}

impl Common {
    /// `bulk_buffers` and `bulk_buffer_bytes` are those of each core.
    #[must_use]
    pub(crate) fn new(bulk_buffers: u32, bulk_buffer_bytes: u32) -> Self {
        // A core reserves at most a quarter of its buffers for the calls of peers.
        let buffers = bulk_buffers - bulk_buffers / 4;
        Self {
            counters: OnceLock::new(),
            facts: OnceLock::new(),
            reply_bulk_bytes_max: u64::from(buffers) * u64::from(bulk_buffer_bytes),
        }
    }

    /// Sets how to read the counters. Later calls have no effect.
    pub(crate) fn set_counters(&self, read: Box<ReadCounters>) {
        let _ = self.counters.set(read);
    }

    /// Sets the server's record, as JSON. Later calls have no effect.
    pub(crate) fn set_facts(&self, json: String) {
        let _ = self.facts.set(json);
    }
}

/// Answers the bench program.
#[derive(Default)]
pub(crate) struct BenchService {
    common: Arc<Common>,
    answer: Answer,
    /// Calls that wait for buffers.
    deferred: VecDeque<(DeferToken, Operations)>,
    /// Calls in the reverse direction.
    back: CallsBack,
    /// Artificial work in each call.
    work: Option<Work>,
}

impl BenchService {
    /// The service of one core.
    #[must_use]
    pub(crate) fn new(common: Arc<Common>) -> Self {
        Self {
            common,
            ..Self::default()
        }
    }

    /// The same service with artificial work of this length in each call.
    #[must_use]
    pub(crate) fn working_for(self, time: Duration) -> Self {
        let work = (!time.is_zero()).then(|| Work::new(time));
        Self { work, ..self }
    }

    /// Answers one call.
    #[inline]
    fn answer(
        &mut self,
        request: &Request<'_>,
        items: Option<&BulkArguments<'_>>,
        reply: &mut ReplyWriter<'_>,
    ) -> Outcome {
        if let Some(work) = &self.work {
            work.spin();
        }
        if request.procedure != ECHO {
            return self.answer_other(request, items, reply);
        }
        // The binding does not allow an echo to have data outside its stream.
        if items.is_some_and(|it| !it.is_empty()) {
            return Outcome::GarbageArgs;
        }
        answer_echo(request, reply)
    }

    /// Answers all procedures but ECHO.
    #[inline(never)]
    fn answer_other(
        &mut self,
        request: &Request<'_>,
        items: Option<&BulkArguments<'_>>,
        reply: &mut ReplyWriter<'_>,
    ) -> Outcome {
        let success = |is_written: bool| {
            if is_written {
                Outcome::Success
            } else {
                Outcome::SystemError
            }
        };
        match request.procedure {
            READ | WRITE | COMPOUND => {
                match Operations::decode(request.procedure, request.args, items) {
                    None => Outcome::GarbageArgs,
                    Some(operations) if items.is_none() => {
                        success(write_results(&operations, reply).is_some())
                    }
                    Some(operations) => self.answer_bulk(operations, request, reply),
                }
            }
            COUNTERS if request.args.is_empty() => success(self.write_counters(reply).is_some()),
            COUNTERS => Outcome::GarbageArgs,
            FACTS if request.args.is_empty() => success(self.write_facts(reply).is_some()),
            FACTS => Outcome::GarbageArgs,
            CALL_BACK => self.back.begin(request),
            NULL => Outcome::Success,
            _ => Outcome::ProcedureUnavailable,
        }
    }

    /// Answers operations with payloads outside the stream, now or when buffers are free.
    fn answer_bulk(
        &mut self,
        operations: Operations,
        request: &Request<'_>,
        reply: &mut ReplyWriter<'_>,
    ) -> Outcome {
        if operations.read_bytes() > self.common.reply_bulk_bytes_max {
            return Outcome::SystemError;
        }
        if self.answer.fill(&operations, || reply.take_bulk()) {
            return match self.answer.write(reply) {
                Some(()) => Outcome::Success,
                None => Outcome::SystemError,
            };
        }
        match request.defer() {
            Some(token) => {
                self.deferred.push_back((token, operations));
                Outcome::Deferred
            }
            None => Outcome::SystemError,
        }
    }

    /// Answers waiting calls in order, as far as there are free buffers.
    #[cold]
    fn answer_deferred<P: Port>(&mut self, core: &mut Context<'_, P>) -> Activity {
        let mut done = false;
        while let Some((token, operations)) = self.deferred.pop_front() {
            if !self.answer.fill(&operations, || core.take_bulk()) {
                self.deferred.push_front((token, operations));
                break;
            }
            let Answer { stream, items, .. } = &mut self.answer;
            match core.reply_bulk(token, Outcome::Success, stream, items) {
                Ok(()) => done = true,
                Err((ReplyRefused::Busy, token)) => {
                    self.deferred.push_front((token, operations));
                    break;
                }
                Err((_, token)) => {
                    // The reply cannot be sent, for example because it is too long. Answer with an error, so that the
                    // caller does not wait.
                    done = true;
                    let refused = core.reply(token, Outcome::SystemError, &[]);
                    if let Err((ReplyRefused::Busy, token)) = refused {
                        self.deferred.push_front((token, operations));
                        break;
                    }
                }
            }
        }
        self.answer.clear();
        Activity::from_busy(done)
    }

    /// Writes the counters of all cores, without those that are zero.
    #[cold]
    fn write_counters(&self, reply: &mut ReplyWriter<'_>) -> Option<()> {
        let snapshot = self.common.counters.get()?();
        let counters = || snapshot.iter().filter(|(_, value)| *value != 0);
        let word = |number: usize| u32::try_from(number).ok();
        reply.write_u32(word(counters().count())?).ok()?;
        for (name, value) in counters() {
            write_text(name, reply)?;
            reply.write(&value.to_be_bytes()).ok()?;
        }
        Some(())
    }

    #[cold]
    fn write_facts(&self, reply: &mut ReplyWriter<'_>) -> Option<()> {
        write_text(self.common.facts.get()?, reply)
    }
}

/// Writes an XDR string.
fn write_text(text: &str, reply: &mut ReplyWriter<'_>) -> Option<()> {
    reply.write_u32(u32::try_from(text.len()).ok()?).ok()?;
    let padding = text.len().next_multiple_of(4) - text.len();
    reply.write(text.as_bytes()).ok()?;
    reply.write([0; 3].get(..padding)?).ok()
}

impl Application for BenchService {
    const CLOCK_INTERVAL_POLLS: u32 = 16;

    fn programs(&self) -> Programs {
        // Null calls have artificial work, too.
        match self.work {
            Some(_) => programs().with_null(),
            None => programs(),
        }
    }

    #[inline]
    fn call(&mut self, request: &Request<'_>, reply: &mut ReplyWriter<'_>) -> Outcome {
        self.answer(request, None, reply)
    }

    #[inline]
    fn call_bulk(
        &mut self,
        request: &Request<'_>,
        items: &mut BulkArguments<'_>,
        reply: &mut ReplyWriter<'_>,
    ) -> Outcome {
        self.answer(request, Some(items), reply)
    }

    fn completed(
        &mut self,
        tag: CallTag,
        _connection: ConnectionKey,
        result: Result<Reply<'_>, CallError>,
        now: Ticks,
    ) {
        self.back.completed(tag, result, now);
    }

    #[inline]
    fn poll<P: Port>(&mut self, core: &mut Context<'_, P>, _now: Ticks) -> Activity {
        let mut activity = Activity::Idle;
        if !self.deferred.is_empty() {
            activity = self.answer_deferred(core);
        }
        if !self.back.is_idle() {
            activity = activity.or(self.back.poll(core));
        }
        activity
    }
}

/// Artificial work that slows the service down.
struct Work {
    clock: Clock,
    ticks: Ticks,
}

impl Work {
    fn new(time: Duration) -> Self {
        let clock = Clock::new();
        let ticks = clock.ticks(time);
        Self { clock, ticks }
    }

    /// Spins until the time is over.
    fn spin(&self) {
        let start = self.clock.now();
        while self.clock.now().wrapping_sub(start) < self.ticks {
            std::hint::spin_loop();
        }
    }
}

/// An operation to answer.
#[derive(Clone, Copy, Debug)]
struct Asked {
    operation: Operation,
    /// Its start in the argument stream with payloads.
    position: u32,
}

/// The operations of a call. The payloads of its WRITEs are already checked.
#[derive(Clone, Copy, Debug)]
struct Operations {
    asked: [Asked; OPERATIONS_MAX],
    count: usize,
    is_compound: bool,
}

impl Operations {
    /// Decodes the arguments and checks the payloads of WRITEs; a wrong payload is answered with length 0. Returns
    /// `None` if the arguments are malformed, or an item is outside the stream that the binding does not allow there.
    #[inline]
    fn decode(procedure: u32, args: &[u8], items: Option<&BulkArguments<'_>>) -> Option<Self> {
        let mut stream = Stream {
            rest: args,
            at: 0,
            payloads: 0,
            items,
            item: 0,
        };
        let is_compound = procedure == COMPOUND;
        let count = if is_compound {
            stream.word()? as usize
        } else {
            1
        };
        if count > OPERATIONS_MAX {
            return None;
        }
        let nothing = Asked {
            operation: Operation {
                kind: Kind::Read,
                number: 0,
                bytes: 0,
            },
            position: 0,
        };
        let mut operations = Self {
            asked: [nothing; OPERATIONS_MAX],
            count,
            is_compound,
        };
        for asked in operations.asked.iter_mut().take(count) {
            asked.position = u32::try_from(stream.at + stream.payloads).ok()?;
            let kind = if is_compound {
                stream.word()?
            } else {
                procedure
            };
            asked.operation = stream.operation(kind)?;
        }
        let all_items_used = stream.item == items.map_or(0, BulkArguments::len);
        (stream.rest.is_empty() && all_items_used).then_some(operations)
    }

    fn asked(&self) -> &[Asked] {
        self.asked.get(..self.count).unwrap_or(&[])
    }

    /// Length of all payloads of the reply.
    fn read_bytes(&self) -> u64 {
        let reads = self.asked().iter().map(|asked| asked.operation);
        reads
            .filter(|operation| operation.kind == Kind::Read)
            .map(|operation| u64::from(operation.bytes))
            .sum()
    }
}

/// The argument stream, with the items outside it.
struct Stream<'a> {
    rest: &'a [u8],
    /// Offset of the rest.
    at: usize,
    /// Length of the items so far, with padding.
    payloads: usize,
    items: Option<&'a BulkArguments<'a>>,
    /// Index of the next item.
    item: usize,
}

impl<'a> Stream<'a> {
    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(bytes)?;
        self.rest = rest;
        self.at += bytes;
        Some(taken)
    }

    fn word(&mut self) -> Option<u32> {
        let (word, _) = self.take(4)?.split_first_chunk::<4>()?;
        Some(u32::from_be_bytes(*word))
    }

    fn operation(&mut self, kind: u32) -> Option<Operation> {
        let number = u64::from(self.word()?) << 32 | u64::from(self.word()?);
        let bytes = self.word()?;
        match kind {
            READ => Some(Operation {
                kind: Kind::Read,
                number,
                bytes,
            }),
            WRITE => {
                let is_right = self.payload_is_right(number, bytes as usize)?;
                Some(Operation {
                    kind: Kind::Write,
                    number,
                    bytes: if is_right { bytes } else { 0 },
                })
            }
            _ => None,
        }
    }

    /// Checks the payload of a WRITE, which is an item or in the stream.
    fn payload_is_right(&mut self, number: u64, bytes: usize) -> Option<bool> {
        let items = self
            .items
            .filter(|items| items.args_offset(self.item) == Some(self.at));
        let padded = bytes.checked_next_multiple_of(4)?;
        if let Some(items) = items {
            let index = self.item;
            self.item += 1;
            self.payloads += padded;
            let pieces = items.parts(index);
            return items
                .is_of(index, bytes)
                .then(|| pieces_match(pieces, bytes, number));
        }
        let payload = self.take(padded)?.get(..bytes)?;
        Some(pattern::matches(payload, 0, number))
    }
}

/// Writes the results into the reply's stream. Payloads are generated in their place, without a copy.
#[inline]
fn write_results(operations: &Operations, reply: &mut ReplyWriter<'_>) -> Option<()> {
    if operations.is_compound {
        reply
            .write_u32(u32::try_from(operations.count).ok()?)
            .ok()?;
    }
    for asked in operations.asked() {
        let operation = asked.operation;
        if operations.is_compound {
            reply.write_u32(operation.kind.number()).ok()?;
        }
        reply.write_u32(operation.bytes).ok()?;
        if operation.kind == Kind::Read {
            let bytes = operation.bytes as usize;
            let space = reply.reserve(bytes.next_multiple_of(4)).ok()?;
            let (payload, padding) = space.split_at_mut_checked(bytes)?;
            pattern::fill(payload, 0, operation.number);
            padding.fill(0);
        }
    }
    Some(())
}

/// The results of a call with payloads outside the stream. Its memory is reused for every call.
#[derive(Default)]
struct Answer {
    /// The result stream without payloads.
    stream: Vec<u8>,
    /// The payloads, each with its offset in the stream.
    items: Vec<(usize, BulkItem)>,
    /// The start of each payload's operation in the argument stream with payloads.
    positions: Vec<u32>,
}

impl Answer {
    /// Generates the results of `operations` in buffers from `take`. Returns false, and keeps nothing, if there are
    /// too few.
    fn fill(&mut self, operations: &Operations, mut take: impl FnMut() -> Option<Lease>) -> bool {
        self.clear();
        if operations.is_compound {
            self.word(u32::try_from(operations.count).unwrap_or(u32::MAX));
        }
        for asked in operations.asked() {
            let operation = asked.operation;
            if operations.is_compound {
                self.word(operation.kind.number());
            }
            self.word(operation.bytes);
            if operation.kind == Kind::Write {
                continue;
            }
            // Make the item in its place in the vector: a move would copy the whole item, with its unused room.
            let (count, at) = (self.items.len() + 1, self.stream.len());
            self.items.resize_with(count, || (at, BulkItem::new()));
            let item = self.items.last_mut().map(|(_, item)| item);
            if item
                .and_then(|item| fill_item(item, &operation, &mut take))
                .is_none()
            {
                self.clear();
                return false;
            }
            self.positions.push(asked.position);
        }
        true
    }

    fn word(&mut self, value: u32) {
        self.stream.extend_from_slice(&value.to_be_bytes());
    }

    fn write(&mut self, reply: &mut ReplyWriter<'_>) -> Option<()> {
        let mut at = 0;
        for ((offset, item), position) in self.items.iter_mut().zip(&self.positions) {
            reply.write(self.stream.get(at..*offset)?).ok()?;
            reply.attach(*position, item).ok()?;
            at = *offset;
        }
        reply.write(self.stream.get(at..)?).ok()
    }

    fn clear(&mut self) {
        self.stream.clear();
        self.items.clear();
        self.positions.clear();
    }
}

/// Fills an item with the payload of a READ, in buffers from `take`. Returns `None` if there are too few.
fn fill_item(
    item: &mut BulkItem,
    operation: &Operation,
    mut take: impl FnMut() -> Option<Lease>,
) -> Option<()> {
    let bytes = operation.bytes as usize;
    let mut offset = 0;
    while offset < bytes {
        let mut piece = take()?;
        piece.set_len(bytes - offset);
        pattern::fill(&mut piece, offset, operation.number);
        offset += piece.len();
        item.push(piece).ok()?;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The arguments of a COMPOUND: a WRITE of five bytes and a READ of eight.
    fn compound() -> Vec<u8> {
        let mut args = vec![0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 5];
        let mut payload = [0; 8];
        pattern::fill(&mut payload[..5], 0, 7);
        args.extend_from_slice(&payload);
        args.extend_from_slice(&[0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 8]);
        args
    }

    #[test]
    fn operations_in_the_stream_are_decoded_with_their_places() {
        let operations = Operations::decode(COMPOUND, &compound(), None).unwrap();
        let asked: Vec<_> = operations.asked().iter().map(|it| it.operation).collect();
        let read = Operation {
            kind: Kind::Read,
            number: 9,
            bytes: 8,
        };
        let write = Operation {
            kind: Kind::Write,
            number: 7,
            bytes: 5,
        };
        assert_eq!(asked, [write, read]);
        let positions: Vec<_> = operations.asked().iter().map(|it| it.position).collect();
        assert_eq!(positions, [4, 28]);
        assert_eq!(operations.read_bytes(), 8);
    }

    #[test]
    fn a_payload_that_is_not_what_it_should_be_is_answered_with_nothing() {
        let mut args = compound();
        args[20] ^= 1;
        let operations = Operations::decode(COMPOUND, &args, None).unwrap();
        assert_eq!(operations.asked()[0].operation.bytes, 0);
    }

    #[test]
    fn arguments_that_cannot_be_are_refused() {
        let args = compound();
        for end in 0..args.len() {
            assert!(
                Operations::decode(COMPOUND, &args[..end], None).is_none(),
                "{end}"
            );
        }
        let with = |at: usize, value: u8| {
            let mut args = compound();
            args[at] = value;
            args
        };
        for (args, words) in [
            (with(3, 9), "more operations than may be"),
            (with(3, 3), "more operations than there are"),
            (with(3, 1), "more than was counted"),
            (with(7, 4), "an operation that nobody knows"),
            (with(16, 0xff), "a payload that ends nowhere"),
        ] {
            assert!(
                Operations::decode(COMPOUND, &args, None).is_none(),
                "{words}"
            );
        }
        let huge = [0, 0, 0, 0, 0, 0, 0, 7, 0xff, 0xff, 0xff, 0xff];
        assert!(Operations::decode(WRITE, &huge, None).is_none());
    }
}
