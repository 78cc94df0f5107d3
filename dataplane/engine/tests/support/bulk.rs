//! A service and a caller of bulk data.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use rpcrdma_engine::{
    Activity, Application, BulkArguments, BulkCall, BulkItem, BulkReply, CallError, CallRefused,
    CallTag, CloseReason, ConnectionKey, Context, CoreConfig, DeferToken, ExpectedResult, Outcome,
    Placement, Reply, ReplyRefused, ReplyWriter, Request, StreamPiece,
};
use rpcrdma_fabric::clock::Ticks;
use rpcrdma_fabric::interface::Port;
use rpcrdma_fabric::memory::SharedLease;
use rpcrdma_protocol::rpc::OpaqueAuth;
use rpcrdma_protocol::v2::ReverseRequestSupport;

use super::fabric::Limits;
use super::{Caller, NULL, Pair, call, pattern};

/// Takes the whole argument stream, items and all, and remembers it; answers with its length.
pub const TAKE: u32 = 10;
/// Arguments: a count, so many lengths, and whatever follows. Answers with so many opaques of the
/// pattern, each of the length that was asked for, and remembers the arguments.
pub const GIVE: u32 = 11;
/// As [`GIVE`], some polls later.
pub const GIVE_LATER: u32 = 12;
/// As [`GIVE`], with one more word than a message holds: the first length is that of words that
/// stand in the stream.
pub const GIVE_LONG: u32 = 13;
/// As [`GIVE`], in pieces that are shared; the service is done with them before they are sent.
pub const GIVE_SHARED: u32 = 15;
/// As `GIVE`, for one result, whose length is not in the stream. Then it is too late for a verifier.
pub const GIVE_BARE: u32 = 16;
/// Never answered.
pub const HOLD: u32 = 14;

/// Pieces that every port here places by one Send: an RDMA device gathers 18 entries by default.
const SHARED_PIECES: usize = 14;

/// A call that is to be made.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    pub connection: ConnectionKey,
    pub procedure: u32,
    pub args: Vec<u8>,
    /// Items, and how many bytes of the arguments stand before each.
    pub items: Vec<(usize, Vec<u8>)>,
    /// Send the item that was kept last as well, behind all of the arguments.
    pub forwards: bool,
    /// The items are those that the call of this tag shares.
    pub shared_with: Option<CallTag>,
    /// Bytes of each result that is expected.
    pub expected: Vec<u32>,
    /// Where in the arguments stands what asks for them, all of them; an empty range is everywhere.
    pub request_range: Range<u32>,
    pub results_bytes_max: usize,
    pub placement: Placement,
    pub tag: CallTag,
}

impl Wanted {
    /// A call of this procedure without arguments.
    pub fn new(
        connection: ConnectionKey,
        procedure: u32,
        placement: Placement,
        tag: CallTag,
    ) -> Self {
        Self {
            connection,
            procedure,
            placement,
            tag,
            ..Self::default()
        }
    }

    /// With an item in the midst of its arguments.
    pub fn around(self, item: Vec<u8>) -> Self {
        Self {
            args: pattern(12, 5),
            items: vec![(8, item)],
            ..self
        }
    }

    /// For results of these lengths, all of which are expected.
    pub fn asking(self, lengths: &[u32]) -> Self {
        Self {
            args: asking(lengths),
            expected: lengths.to_vec(),
            results_bytes_max: 100,
            ..self
        }
    }

    /// With one more item, behind all arguments.
    pub fn with_item(mut self, item: Vec<u8>) -> Self {
        self.items.push((self.args.len(), item));
        self
    }

    /// The argument stream as the service is to see it.
    fn stream(&self) -> Vec<u8> {
        let (mut whole, mut from) = (Vec::new(), 0);
        for (behind, item) in &self.items {
            whole.extend_from_slice(&self.args[from..*behind]);
            whole.extend(padded(item.clone()));
            from = *behind;
        }
        whole.extend_from_slice(&self.args[from..]);
        whole
    }

    /// A call of this procedure for one result of `bytes` bytes.
    pub fn one_result(connection: ConnectionKey, procedure: u32, bytes: u32) -> Self {
        Self {
            connection,
            procedure,
            args: asking(&[bytes]),
            expected: vec![bytes + 100],
            results_bytes_max: 100,
            ..Self::default()
        }
    }
}

/// How a call ended: the result stream, and the items that came beside it.
pub type Ending = Result<(Vec<u8>, Vec<Vec<u8>>), CallError>;

/// Serves and calls.
#[derive(Debug, Default)]
pub struct BulkApp {
    /// The credential of its calls: flavor and body.
    pub credential: (u32, Vec<u8>),
    pub wanted: VecDeque<Wanted>,
    pub refused: Vec<(CallTag, CallRefused)>,
    pub ended: Vec<(CallTag, Ending)>,
    /// The argument streams that came, with their items.
    pub taken: Vec<Vec<u8>>,
    /// For each of them, whether it came in the reverse direction.
    pub reverse: Vec<bool>,
    /// Keep the items of calls, and of replies.
    pub keep: bool,
    pub kept: Vec<BulkItem>,
    /// Share the items of calls.
    pub shares: bool,
    /// What calls share.
    pub shared: HashMap<CallTag, Vec<BulkItem<SharedLease>>>,
    pub later: VecDeque<(DeferToken, Vec<u32>, u32)>,
    pub held: Vec<DeferToken>,
    pub disconnected: Vec<CloseReason>,
}

impl BulkApp {
    pub fn result(&self, tag: CallTag) -> Option<&Ending> {
        let mut ended = self.ended.iter().filter(|(other, _)| *other == tag);
        let found = ended.next();
        assert!(ended.next().is_none(), "call {tag} ended twice");
        found.map(|(_, result)| result)
    }
}

impl Caller for BulkApp {
    fn calls_ended(&self) -> usize {
        self.ended.len()
    }
}

pub fn padded(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// The results of [`GIVE`], wherever they came: in the stream or beside it.
pub fn assert_results(results: &[u8], items: &[Vec<u8>], lengths: &[u32]) {
    let mut stream = Vec::new();
    for (index, &bytes) in lengths.iter().enumerate() {
        stream.extend_from_slice(&bytes.to_be_bytes());
        let whole = given(index, bytes);
        match items.get(index).filter(|item| !item.is_empty()) {
            Some(item) => assert!(*item == whole, "result {index}"),
            None => stream.extend_from_slice(&padded(whole)),
        }
    }
    stream.extend_from_slice(&0xfeed_u32.to_be_bytes());
    assert!(results == stream, "the stream of {lengths:?}");
}

/// The bytes of the result `index` of a call.
pub fn given(index: usize, bytes: u32) -> Vec<u8> {
    pattern(bytes as usize, index as u64 + 77)
}

fn lengths(args: &[u8]) -> Vec<u32> {
    let words: Vec<u32> = args
        .chunks_exact(4)
        .map(|word| u32::from_be_bytes([word[0], word[1], word[2], word[3]]))
        .collect();
    let count = words.first().copied().unwrap_or(0) as usize;
    words[1..=count].to_vec()
}

/// The arguments of [`GIVE`].
pub fn asking(lengths: &[u32]) -> Vec<u8> {
    let count = u32::try_from(lengths.len()).expect("few");
    std::iter::once(&count)
        .chain(lengths)
        .flat_map(|word| word.to_be_bytes())
        .collect()
}

/// Puts bytes into an item; `None` while there are no buffers.
fn item(
    mut take: impl FnMut() -> Option<rpcrdma_fabric::memory::Lease>,
    bytes: &[u8],
) -> Option<BulkItem> {
    let mut item = BulkItem::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let mut part = take()?;
        let count = rest.len().min(part.len());
        part.set_len(count);
        part.copy_from_slice(&rest[..count]);
        item.push(part).expect("few pieces");
        rest = &rest[count..];
    }
    Some(item)
}

/// The same item in several slices of each buffer.
fn shared(item: BulkItem) -> BulkItem<SharedLease> {
    let mut slices = BulkItem::new();
    let parts: Vec<_> = item.into_iter().collect();
    // In as many pieces as any way of sending them takes.
    let cuts = 8 / u32::try_from(parts.len()).expect("few").max(1) + 1;
    for part in parts {
        let bytes = u32::try_from(part.len()).expect("short");
        let whole = part.share();
        let step = bytes.div_ceil(cuts).max(1);
        for start in (0..bytes).step_by(step as usize) {
            let slice = whole.slice(start, step.min(bytes - start));
            slices
                .push(slice.expect("it lies within"))
                .expect("few pieces");
        }
    }
    slices
}

fn stream(items: &BulkArguments<'_>, args: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    let mut in_item = None;
    for piece in items.stream(args) {
        let index = match piece {
            StreamPiece::Stream(_) => None,
            StreamPiece::Item { index, .. } => Some(index),
        };
        if in_item != index {
            whole.resize(whole.len().next_multiple_of(4), 0);
            in_item = index;
        }
        match piece {
            StreamPiece::Stream(bytes) | StreamPiece::Item { bytes, .. } => {
                whole.extend_from_slice(bytes);
            }
        }
    }
    whole.resize(whole.len().next_multiple_of(4), 0);
    whole
}

impl BulkApp {
    fn give(&self, lengths: &[u32], reply: &mut ReplyWriter<'_>) -> Outcome {
        for (index, &bytes) in lengths.iter().enumerate() {
            let content = given(index, bytes);
            let Some(mut item) = item(|| reply.take_bulk(), &content) else {
                return Outcome::SystemError;
            };
            if reply.write_u32(bytes).is_err() || reply.attach(0, &mut item).is_err() {
                return Outcome::SystemError;
            }
        }
        match reply.write_u32(0xfeed) {
            Ok(()) => Outcome::Success,
            Err(_) => Outcome::SystemError,
        }
    }

    fn give_bare(&self, lengths: &[u32], reply: &mut ReplyWriter<'_>) -> Outcome {
        let Some(mut item) = item(|| reply.take_bulk(), &given(0, lengths[0])) else {
            return Outcome::SystemError;
        };
        reply.attach(0, &mut item).expect("room for it");
        let verifier = OpaqueAuth {
            flavor: 6,
            body: &[1; 8],
        };
        reply
            .set_verifier(verifier)
            .expect_err("it comes before all results");
        Outcome::Success
    }

    fn give_shared(&self, lengths: &[u32], reply: &mut ReplyWriter<'_>) -> Outcome {
        for (index, &bytes) in lengths.iter().enumerate() {
            let content = given(index, bytes);
            let Some(own) = item(|| reply.take_bulk(), &content) else {
                return Outcome::SystemError;
            };
            let mut slices = shared(own);
            let attached = if reply.takes_shared(&slices) {
                let attached = reply.write_u32(bytes);
                attached.and_then(|()| reply.attach_shared(0, &mut slices))
            } else {
                let pieces = slices.part_count();
                assert!(pieces > SHARED_PIECES, "{pieces} pieces");
                // As such a service should: with a copy, in buffers of the core.
                drop(slices);
                let Some(mut own) = item(|| reply.take_bulk(), &content) else {
                    return Outcome::SystemError;
                };
                let attached = reply.write_u32(bytes);
                attached.and_then(|()| reply.attach(0, &mut own))
            };
            if attached.is_err() {
                return Outcome::SystemError;
            }
        }
        match reply.write_u32(0xfeed) {
            Ok(()) => Outcome::Success,
            Err(_) => Outcome::SystemError,
        }
    }

    fn serve(&mut self, request: &Request<'_>, reply: &mut ReplyWriter<'_>) -> Outcome {
        match request.procedure {
            NULL => Outcome::Success,
            TAKE => {
                let bytes = self.taken.last().map_or(0, Vec::len);
                let _ = reply.write_u32(u32::try_from(bytes).expect("small"));
                Outcome::Success
            }
            GIVE => self.give(&lengths(request.args), reply),
            GIVE_BARE => self.give_bare(&lengths(request.args), reply),
            GIVE_SHARED => self.give_shared(&lengths(request.args), reply),
            GIVE_LONG => {
                let lengths = lengths(request.args);
                for word in 0..lengths[0] {
                    if reply.write_u32(word).is_err() {
                        return Outcome::SystemError;
                    }
                }
                self.give(&lengths[1..], reply)
            }
            GIVE_LATER | HOLD => {
                let token = request.defer().expect("there is room");
                if request.procedure == HOLD {
                    self.held.push(token);
                } else {
                    self.later.push_back((token, lengths(request.args), 3));
                }
                Outcome::Deferred
            }
            _ => Outcome::ProcedureUnavailable,
        }
    }

    fn answer_later<P: Port>(&mut self, core: &mut Context<'_, P>) {
        for entry in &mut self.later {
            entry.2 = entry.2.saturating_sub(1);
        }
        if self.later.front().is_none_or(|entry| entry.2 != 0) {
            return;
        }
        let (token, lengths, _) = self.later.pop_front().expect("just seen");
        let mut results = Vec::new();
        let mut items = Vec::new();
        for (index, &bytes) in lengths.iter().enumerate() {
            results.extend_from_slice(&bytes.to_be_bytes());
            let Some(item) = item(|| core.take_bulk(), &given(index, bytes)) else {
                return self.later.push_front((token, lengths, 5));
            };
            items.push((results.len(), item));
        }
        results.extend_from_slice(&0xfeed_u32.to_be_bytes());
        match core.reply_bulk(token, Outcome::Success, &results, &mut items) {
            Ok(()) => {}
            Err((ReplyRefused::Busy, token)) => self.later.push_front((token, lengths, 1)),
            Err((refused, _)) => panic!("a good answer was refused: {refused:?}"),
        }
    }

    fn make_call<P: Port>(&mut self, core: &mut Context<'_, P>, wanted: Wanted) -> bool {
        let mut bulk = BulkCall::new(call(wanted.procedure), &wanted.args);
        bulk.placement = wanted.placement;
        bulk.credential = OpaqueAuth {
            flavor: self.credential.0,
            body: &self.credential.1,
        };
        bulk.results_bytes_max = wanted.results_bytes_max;
        let before = wanted.shared_with.unwrap_or(wanted.tag);
        let mut items = self.shared.remove(&before).unwrap_or_default().into_iter();
        let mut shares = Vec::new();
        for (offset, bytes) in &wanted.items {
            if let Some(slices) = items.next() {
                bulk.add_shared(*offset, &slices).expect("few items");
                shares.push(slices);
                continue;
            }
            let Some(mut item) = item(|| core.take_bulk(), bytes) else {
                self.wanted.push_back(wanted);
                return false;
            };
            if self.shares {
                let slices = shared(item);
                bulk.add_shared(*offset, &slices).expect("few items");
                shares.push(slices);
            } else {
                bulk.add(*offset, &mut item).expect("few items");
            }
        }
        let is_shared = !shares.is_empty();
        if is_shared {
            self.shared.insert(wanted.tag, shares);
        }
        if wanted.forwards {
            let mut item = self.kept.pop().expect("an item was kept");
            bulk.add(wanted.args.len(), &mut item).expect("few items");
        }
        for &bytes_max in &wanted.expected {
            let expected = ExpectedResult {
                bytes_max,
                request_range: wanted.request_range.clone(),
                ..ExpectedResult::default()
            };
            bulk.expect(expected).expect("few results");
        }
        match core.call_bulk(wanted.connection, &mut bulk, wanted.tag) {
            Ok(()) => {
                assert!(bulk.pop().is_none(), "the items were taken");
                true
            }
            Err(refused) => {
                for (_, bytes) in wanted.items.iter().rev() {
                    let item = bulk.pop().expect("the items are there still");
                    let left_bytes = if is_shared { 0 } else { bytes.len() };
                    assert_eq!(item.len(), left_bytes);
                }
                if refused.is_transient() {
                    self.wanted.push_back(wanted);
                } else {
                    self.refused.push((wanted.tag, refused));
                }
                false
            }
        }
    }
}

impl Application for BulkApp {
    fn call(&mut self, request: &Request<'_>, reply: &mut ReplyWriter<'_>) -> Outcome {
        self.taken.push(request.args.to_vec());
        self.reverse.push(request.is_reverse);
        self.serve(request, reply)
    }

    fn call_bulk(
        &mut self,
        request: &Request<'_>,
        items: &mut BulkArguments<'_>,
        reply: &mut ReplyWriter<'_>,
    ) -> Outcome {
        self.taken.push(stream(items, request.args));
        self.reverse.push(request.is_reverse);
        if self.keep {
            for index in 0..items.len() {
                self.kept.extend(items.take(index));
                assert!(items.take(index).is_none(), "an item is taken once");
            }
        }
        self.serve(request, reply)
    }

    fn completed(
        &mut self,
        tag: CallTag,
        _connection: ConnectionKey,
        result: Result<Reply<'_>, CallError>,
        _now: Ticks,
    ) {
        self.ended.push((
            tag,
            result.map(|reply| (reply.results.to_vec(), Vec::new())),
        ));
    }

    fn completed_bulk(
        &mut self,
        tag: CallTag,
        _connection: ConnectionKey,
        result: Result<BulkReply<'_>, CallError>,
        _now: Ticks,
    ) {
        let keep = self.keep;
        let kept = &mut self.kept;
        let ending = result.map(|bulk| {
            let mut copied = Vec::new();
            for result in bulk.items {
                let mut bytes = vec![0; result.item.len()];
                assert_eq!(result.item.copy_to(&mut bytes), bytes.len());
                copied.push(bytes);
                if keep {
                    kept.push(std::mem::take(&mut result.item));
                }
            }
            (bulk.reply.results.to_vec(), copied)
        });
        self.ended.push((tag, ending));
    }

    fn poll<P: Port>(&mut self, core: &mut Context<'_, P>, _now: Ticks) -> Activity {
        self.answer_later(core);
        let mut busy = false;
        for _ in 0..self.wanted.len() {
            let Some(wanted) = self.wanted.pop_front() else {
                break;
            };
            busy |= self.make_call(core, wanted);
        }
        Activity::from_busy(busy)
    }

    fn disconnected(&mut self, _connection: ConnectionKey, reason: CloseReason) {
        self.disconnected.push(reason);
    }
}

/// Sizes for bulk data.
pub fn bulk_config() -> CoreConfig {
    CoreConfig {
        connections_max: 2,
        credits_per_connection: 8,
        message_buffers: 8,
        calls_outstanding_max: 64,
        deferred_max: 16,
        bulk_buffers: 96,
        bulk_buffer_bytes: 65_536,
        bulk_calls: 16,
        ..CoreConfig::default()
    }
}

pub type BulkPair = Pair<BulkApp, BulkApp>;

impl BulkPair {
    /// Has the client call, and gives how the call ended.
    pub fn ending(&mut self, wanted: Wanted) -> Ending {
        let tag = wanted.tag;
        self.client.app_mut().wanted.push_back(wanted);
        self.until("the end of the call", |pair| {
            let app = pair.client.app();
            assert_eq!(app.refused, []);
            app.result(tag).is_some()
        });
        self.client.app().result(tag).cloned().expect("it ended")
    }

    /// The same of a call that succeeds: its result stream, and the items that came beside it.
    pub fn run(&mut self, wanted: Wanted) -> (Vec<u8>, Vec<Vec<u8>>) {
        self.ending(wanted).expect("it succeeds")
    }

    /// The same of a call whose arguments the service sees as they were, items and all.
    pub fn run_whole(&mut self, wanted: Wanted) -> (Vec<u8>, Vec<Vec<u8>>) {
        let (stream, tag) = (wanted.stream(), wanted.tag);
        let results = self.run(wanted);
        let taken = self.server.app_mut().taken.pop();
        let bytes = stream.len();
        assert!(taken == Some(stream), "call {tag} of {bytes} bytes");
        results
    }

    /// The same, of a call that shares its items, and of another one that sends what it shares.
    pub fn run_whole_twice(&mut self, wanted: Wanted, next: CallTag) {
        self.client.app_mut().shares = true;
        let again = Wanted {
            shared_with: Some(wanted.tag),
            tag: next,
            ..wanted.clone()
        };
        self.run_whole(wanted.clone());
        self.run_whole(again);
        self.end_shares(next, &wanted.items);
    }

    /// What the call of this tag shares is unchanged; it ends here.
    pub fn end_shares(&mut self, tag: CallTag, items: &[(usize, Vec<u8>)]) {
        let shared = self.client.app_mut().shared.remove(&tag);
        for (slices, (_, bytes)) in shared.expect("it shares").iter().zip(items) {
            let pieces: Vec<_> = slices.parts().map(|part| &**part).collect();
            assert!(pieces.concat() == *bytes);
        }
    }

    /// All buffers are back, at both ends, but for what is kept.
    pub fn all_home(&mut self) {
        self.turns(50);
        for side in [&mut self.client, &mut self.server] {
            let kept = side.app().kept.iter().map(|item| item.part_count());
            let kept: usize = kept.sum();
            assert_eq!(side.core.bulk_buffers_free() + kept, 96);
            assert_eq!(side.core.message_buffers_in_use(), 0);
            assert_eq!(side.core.placement_segments_leased(), 0);
        }
    }
}

/// Two cores that take bulk data both ways.
pub fn bulk_pair(client: &CoreConfig, server: &CoreConfig) -> BulkPair {
    limited_bulk_pair(client, server, None)
}

/// The same, on ports with these limits.
pub fn limited_bulk_pair(
    client: &CoreConfig,
    server: &CoreConfig,
    limits: Option<Limits>,
) -> BulkPair {
    let (a, b) = (BulkApp::default(), BulkApp::default());
    let mut pair = Pair::limited(client, server, a, b, limits);
    for properties in [&mut pair.client.properties, &mut pair.server.properties] {
        properties.segment_count_max = 64;
        properties.reverse_requests = ReverseRequestSupport::General;
    }
    pair
}
