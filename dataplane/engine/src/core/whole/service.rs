//! What runs on the core: it serves calls in every way that there is, and makes those that it is told to.

use std::collections::{BTreeMap, VecDeque};

use rpcrdma_fabric::clock::Ticks;
use rpcrdma_fabric::interface::Port;

use super::messages::{BACK, FAILING, GIVE, OWN, PATTERNS};
use super::step::Ours;
use crate::application_messages::{ApplicationMessage, MessageOutcome};
use crate::bulk::{BulkArguments, BulkCall, BulkItem, BulkReply, ExpectedResult, Placement};
use crate::core::Application;
use crate::core::Context;
use crate::request::Request;
use crate::responder::ReplyWriter;
use crate::rpc::{
    Activity, CallError, CallRefused, CallTag, ConnectionKey, DeferToken, Outcome, Reply,
    ReplyRefused,
};
use crate::support::{ECHO, FILL, LATER, NEVER, NULL, PROGRAM, VERSION, call};

/// What a call is to end with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    Anything,
    /// These results.
    Results(Vec<u8>),
    /// A length in the results, and an item of that length beside them.
    Item {
        bytes: u32,
    },
}

/// Whom a call is made to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Callee {
    Hostile,
    /// It is tried until it is taken, and ends well.
    Server,
    /// The same, with bulk data by RDMA: it may wait long until it is taken, since hostile servers have what it takes.
    ServerByRdma,
    /// The same, but that its time may be up, since buffers that others have may be awaited.
    Partner,
}

/// A call that was accepted, and has not ended.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) connection: ConnectionKey,
    pub(super) since: Ticks,
    pub(super) callee: Callee,
    expected: Expected,
}

/// A call that is to be made.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) connection: ConnectionKey,
    pub(super) ours: Ours,
    pub(super) callee: Callee,
    /// It was refused before.
    pub(super) is_tried: bool,
}

impl Wanted {
    pub(super) fn new(connection: ConnectionKey, ours: Ours, callee: Callee) -> Self {
        Self {
            connection,
            ours,
            callee,
            is_tried: false,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Service {
    pub(super) wanted: VecDeque<Wanted>,
    pub(super) open: BTreeMap<CallTag, Open>,
    /// Calls to the honest server: those that were asked for, and those that ended.
    pub(super) asked_of_server: u64,
    pub(super) ended_well: u64,
    /// The same for calls with bulk data.
    pub(super) asked_by_rdma: u64,
    pub(super) ended_by_rdma: u64,
    /// Calls to the partner that are to be made, or are open; and those whose time was up.
    pub(super) asked_of_partner: u64,
    pub(super) timed_out: Vec<CallTag>,
    later: VecDeque<(DeferToken, u32, Vec<u8>)>,
    never: Vec<DeferToken>,
    /// What is never answered is answered now.
    pub(super) is_over: bool,
    next_tag: CallTag,
    polls: u64,
    /// Items of calls, and the polls that they are still kept for.
    kept: VecDeque<(BulkItem, u32)>,
    /// As kept items were sent on.
    pub(super) forwarded: u64,
    /// Messages of peers that are to be answered.
    messages: VecDeque<(ConnectionKey, u32)>,
}

/// Messages of peers that are answered later, at most.
const MESSAGES_MAX: usize = 4;

/// Polls between two tries of a call that was refused.
const POLLS_PER_TRY: u64 = 4;

/// What items of the core are made of.
pub(super) const OF_CORE_ITEMS: u8 = 0x44;

/// For how many polls items of calls are kept.
const KEPT_POLLS: u32 = 20;

impl Service {
    /// Calls that wait for their answers in this service.
    pub(super) fn deferred(&self) -> usize {
        self.later.len() + self.never.len()
    }

    /// Whether the honest server has a call with bulk data, or is to have one.
    pub(super) fn calls_by_rdma(&self) -> bool {
        self.asked_by_rdma != self.ended_by_rdma
    }

    fn defer(&mut self, request: &Request<'_>) -> Outcome {
        let Some(token) = request.defer() else {
            return Outcome::SystemError;
        };
        if request.procedure == NEVER {
            self.never.push(token);
        } else {
            let polls = first_word(request.args).unwrap_or(0).min(1000);
            self.later.push_back((token, polls, request.args.to_vec()));
        }
        Outcome::Deferred
    }

    fn answer_later<P: Port>(&mut self, core: &mut Context<'_, P>) -> bool {
        if self.is_over {
            let never = self.never.drain(..);
            self.later.extend(never.map(|token| (token, 0, Vec::new())));
        }
        let mut busy = false;
        for _ in 0..self.later.len() {
            let Some((token, polls, args)) = self.later.pop_front() else {
                break;
            };
            if polls != 0 && !self.is_over {
                self.later.push_back((token, polls - 1, args));
                continue;
            }
            match core.reply(token, Outcome::Success, &args) {
                Ok(()) => busy = true,
                Err((ReplyRefused::Busy, token)) => self.later.push_back((token, 1, args)),
                Err((refused, _)) => panic!("a good answer was refused: {refused:?}"),
            }
        }
        busy
    }

    /// Answers messages of peers, and sends each one more that nobody asked for.
    fn answer_messages<P: Port>(&mut self, core: &mut Context<'_, P>) -> bool {
        let before = self.messages.len();
        self.messages.retain(|&(connection, xid)| {
            let answered = core.send_message(connection, OWN, Some(xid), &[7; 40]);
            if answered.is_ok() {
                let _ = core.send_message(connection, OWN, None, &[8; 20]);
            }
            answered.is_err_and(|refused| refused.is_transient())
        });
        self.messages.len() < before
    }

    fn make_call<P: Port>(&mut self, core: &mut Context<'_, P>, wanted: Wanted) -> bool {
        let tag = self.next_tag;
        let made = self.try_call(core, &wanted, tag);
        match made {
            Ok(expected) => {
                self.next_tag += 1;
                let (connection, callee) = (wanted.connection, wanted.callee);
                let expected = match callee {
                    Callee::Hostile => Expected::Anything,
                    _ => expected,
                };
                let open = Open {
                    connection,
                    since: core.now(),
                    callee,
                    expected,
                };
                self.open.insert(tag, open);
                true
            }
            Err(refused) => {
                match wanted.callee {
                    Callee::Hostile => {}
                    _ if refused.is_transient() => self.wanted.push_back(Wanted {
                        is_tried: true,
                        ..wanted
                    }),
                    _ if refused == CallRefused::Draining => {}
                    // It was left, or is being left.
                    Callee::Partner
                        if matches!(
                            refused,
                            CallRefused::NotReady | CallRefused::UnknownConnection
                        ) =>
                    {
                        self.asked_of_partner -= 1;
                    }
                    // It was not taken before all connections ended.
                    Callee::ServerByRdma if self.is_over => {}
                    callee => panic!("{callee:?}: {refused}"),
                }
                false
            }
        }
    }

    /// Makes a call, and says what it is to end with. The first word of its arguments, or the second one where the first
    /// asks for something, is its tag.
    fn try_call<P: Port>(
        &mut self,
        core: &mut Context<'_, P>,
        wanted: &Wanted,
        tag: CallTag,
    ) -> Result<Expected, CallRefused> {
        let connection = wanted.connection;
        let tag_word = u32::try_from(tag).expect("few calls").to_be_bytes();
        let with_item = |core: &mut Context<'_, P>, item: &mut BulkItem, placement| {
            let args = [tag_word, [0; 4]].concat();
            let mut call = BulkCall::new(call(ECHO), &args);
            call.results_bytes_max = 100;
            call.placement = placement;
            call.add(args.len(), item).expect("one item");
            let made = core.call_bulk(connection, &mut call, tag);
            *item = call.pop().unwrap_or_default();
            made.map(|()| Expected::Results(args))
        };
        match wanted.ours {
            Ours::Null => {
                core.call(connection, call(NULL), &[], tag)?;
                Ok(Expected::Results(Vec::new()))
            }
            Ours::Echo { bytes } => {
                let mut args = vec![0x33; bytes as usize];
                if let Some(place) = args.first_chunk_mut() {
                    *place = tag_word;
                }
                core.call(connection, call(ECHO), &args, tag)?;
                Ok(Expected::Results(args))
            }
            Ours::Expect { bytes, placement } => {
                let args = [bytes.to_be_bytes(), tag_word].concat();
                let mut call = BulkCall::new(call(GIVE), &args);
                call.results_bytes_max = 100;
                call.placement = placement;
                let result = ExpectedResult {
                    bytes_max: bytes,
                    ..ExpectedResult::default()
                };
                call.expect(result).expect("one result");
                core.call_bulk(connection, &mut call, tag)?;
                Ok(Expected::Item { bytes })
            }
            Ours::Item { bytes, placement } => {
                let item = item(bytes, || core.take_bulk());
                let mut item = item.ok_or(CallRefused::NoSlot)?;
                with_item(core, &mut item, placement)
            }
            Ours::Forward => {
                let kept = self.kept.pop_front();
                let (mut item, polls) = kept.ok_or(CallRefused::NoSlot)?;
                let made = with_item(core, &mut item, Placement::Send);
                match made {
                    Ok(_) => self.forwarded += 1,
                    Err(_) => self.kept.push_front((item, polls)),
                }
                made
            }
        }
    }
}

fn first_word(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|word| u32::from_be_bytes(*word))
}

/// An item of so many bytes; `None` while there are no buffers.
fn item(
    bytes: u32,
    mut take: impl FnMut() -> Option<rpcrdma_fabric::memory::Lease>,
) -> Option<BulkItem> {
    let mut item = BulkItem::new();
    let mut rest = bytes as usize;
    while rest != 0 {
        let mut part = take()?;
        let count = rest.min(part.len());
        part.set_len(count);
        part.fill(OF_CORE_ITEMS);
        rest -= count;
        item.push(part).ok()?;
    }
    Some(item)
}

/// Whether these bytes are what items of peers are made of.
fn is_pattern(bytes: &[u8]) -> bool {
    let mut pieces = bytes.chunks(PATTERNS.len());
    pieces.all(|piece| *piece == PATTERNS[..piece.len()])
}

/// Whether a reply has an item of this length, as peers make them.
fn is_item(result: &BulkReply<'_>, bytes: u32) -> bool {
    let [result_item] = &*result.items else {
        return false;
    };
    let item = &result_item.item;
    result.reply.results == bytes.to_be_bytes()
        && item.len() == bytes as usize
        && item.parts().all(|part| is_pattern(part))
}

impl Application for Service {
    fn call(&mut self, request: &Request<'_>, reply: &mut ReplyWriter<'_>) -> Outcome {
        if request.program != PROGRAM {
            return Outcome::ProgramUnavailable;
        }
        if request.version != VERSION {
            return Outcome::ProgramMismatch { low: 1, high: 1 };
        }
        match request.procedure {
            NULL => Outcome::Success,
            ECHO => match reply.write(request.args) {
                Ok(()) => Outcome::Success,
                Err(_) => Outcome::SystemError,
            },
            FILL => {
                let Some(bytes) = first_word(request.args) else {
                    return Outcome::GarbageArgs;
                };
                if let Ok(space) = reply.reserve(bytes.min(1 << 20) as usize) {
                    space.fill(0x22);
                }
                // Of results that are too long the core makes an error.
                Outcome::Success
            }
            LATER | NEVER => self.defer(request),
            GIVE => {
                let Some(bytes) = first_word(request.args) else {
                    return Outcome::GarbageArgs;
                };
                let bytes = bytes.min(1 << 15);
                let Some(mut item) = item(bytes, || reply.take_bulk()) else {
                    return Outcome::SystemError;
                };
                if reply.write_u32(bytes).is_err() || reply.attach(0, &mut item).is_err() {
                    return Outcome::SystemError;
                }
                Outcome::Success
            }
            _ => Outcome::ProcedureUnavailable,
        }
    }

    fn call_bulk(
        &mut self,
        request: &Request<'_>,
        items: &mut BulkArguments<'_>,
        reply: &mut ReplyWriter<'_>,
    ) -> Outcome {
        // Octets at random may name the procedure too, but bring no item.
        let has_failed = request.procedure == FAILING && !items.is_empty();
        assert!(!has_failed, "a call of which an RDMA Read failed is served");
        for part in (0..items.len()).flat_map(|index| items.parts(index)) {
            assert!(is_pattern(part), "an item has what its peer did not send");
        }
        if request.procedure == BACK
            && let Some(mut item) = items.take(0)
        {
            let bytes = u32::try_from(item.len()).expect("short");
            let written = reply.write_u32(bytes);
            return match written.and_then(|()| reply.attach(0, &mut item)) {
                Ok(()) => Outcome::Success,
                Err(_) => Outcome::SystemError,
            };
        }
        // What others keep is what the next call waits for.
        for index in 0..items.len() {
            self.kept
                .extend(items.take(index).map(|item| (item, KEPT_POLLS)));
        }
        self.call(request, reply)
    }

    fn completed(
        &mut self,
        tag: CallTag,
        connection: ConnectionKey,
        result: Result<Reply<'_>, CallError>,
        now: Ticks,
    ) {
        let items = &mut [];
        let result = result.map(|reply| BulkReply { reply, items });
        self.completed_bulk(tag, connection, result, now);
    }

    fn completed_bulk(
        &mut self,
        tag: CallTag,
        connection: ConnectionKey,
        result: Result<BulkReply<'_>, CallError>,
        _now: Ticks,
    ) {
        let open = self.open.remove(&tag);
        let open = open.unwrap_or_else(|| panic!("call {tag} ended twice, or was never made"));
        assert_eq!(open.connection, connection, "call {tag}");
        match open.callee {
            Callee::Hostile => return,
            Callee::Server => self.ended_well += 1,
            Callee::ServerByRdma => self.ended_by_rdma += 1,
            Callee::Partner => self.asked_of_partner -= 1,
        }
        if open.callee == Callee::Partner {
            match result {
                Err(CallError::TimedOut) => return self.timed_out.push(tag),
                // The world knows whether it may have been left.
                Err(CallError::Disconnected) => return,
                _ => {}
            }
        }
        let is_right = match (&result, &open.expected) {
            (Ok(result), Expected::Results(expected)) => result.reply.results == expected,
            (Ok(result), Expected::Item { bytes }) => is_item(result, *bytes),
            (Ok(_), Expected::Anything) => true,
            (Err(error), _) => self.is_over && *error == CallError::Disconnected,
        };
        assert!(is_right, "{open:?} ended with {result:?}");
    }

    fn message(&mut self, message: &ApplicationMessage<'_>) -> MessageOutcome {
        match message.body.len() {
            _ if message.is_answer => MessageOutcome::Taken,
            4 => MessageOutcome::Malformed,
            _ if self.messages.len() == MESSAGES_MAX => MessageOutcome::Failed,
            _ => {
                self.messages.push_back((message.connection, message.xid));
                MessageOutcome::Taken
            }
        }
    }

    /// It counts polls where others have a time: while it has anything to do later, each poll is due.
    fn next_due(&self) -> Option<Ticks> {
        let waits = !self.wanted.is_empty()
            || !self.later.is_empty()
            || !self.messages.is_empty()
            || !self.kept.is_empty()
            || (self.is_over && !self.never.is_empty());
        waits.then_some(0)
    }

    fn poll<P: Port>(&mut self, core: &mut Context<'_, P>, _now: Ticks) -> Activity {
        let mut busy = self.answer_later(core) | self.answer_messages(core);
        for (_, polls) in &mut self.kept {
            *polls = polls.saturating_sub(1);
        }
        while self.is_over || self.kept.front().is_some_and(|(_, polls)| *polls == 0) {
            let Some((mut item, _)) = self.kept.pop_front() else {
                break;
            };
            // The core finds what comes back in its next poll.
            busy = true;
            // Whoever has the buffers next does not find there what is right.
            item.parts_mut().for_each(|part| part.fill(0xee));
        }
        self.polls += 1;
        for _ in 0..self.wanted.len() {
            let Some(wanted) = self.wanted.pop_front() else {
                break;
            };
            if wanted.is_tried && !self.polls.is_multiple_of(POLLS_PER_TRY) {
                self.wanted.push_back(wanted);
                continue;
            }
            busy |= self.make_call(core, wanted);
        }
        Activity::from_busy(busy)
    }
}
