//! Transmission groups that are wrong, from a peer that sends whatever it likes.

use std::time::Duration;

use rpcrdma_engine::{CloseReason, ConnectionKey, CoreConfig, IdlePolicy, Owed};
use rpcrdma_protocol::v2::connection::Role;
use rpcrdma_protocol::v2::rtr::{
    BufferSegment, Mismatch, OutOfRange, Problem, ReceiveBufferStructure, ReportError, RtrSupport,
    SegmentGroup,
};
use rpcrdma_protocol::v2::{
    self, Body, CreditWord, Flags, Prefix, Properties, ReverseRequestSupport, TransportError,
};

use super::calls::placing_config;
use crate::support::bulk::{BulkApp, GIVE, TAKE, bulk_config};
use crate::support::raw::{Attack, CREDIT, null_call, words};
use crate::support::{PROGRAM, VERSION, pattern};

const REQUEST: u32 = 0x5254_5201;
pub(super) const RESPONSE: u32 = 0x5254_5202;
pub(super) const CONTINUE: u32 = 0x5254_5203;
pub(super) const REPORT: u32 = 0x5254_5204;

/// The segments of the receive buffers of both ends.
pub(super) const INLINE_BYTES: usize = 1024;
pub(super) const PAGE_BYTES: usize = 4096;

/// Of a core that takes placed data, of one connection beside the one under attack.
pub(super) fn config() -> CoreConfig {
    CoreConfig {
        connections_max: 2,
        credits_per_connection: 16,
        ..placing_config(1, 4096, 8)
    }
}

/// What the peer says of itself: it takes placed data, and chunks too.
pub(super) fn properties() -> Vec<u8> {
    let group = |count, length_bytes, is_targetable| SegmentGroup {
        count,
        segment: BufferSegment {
            length_bytes,
            align_bytes: 0,
            is_targetable,
        },
    };
    let [inline, page] =
        [INLINE_BYTES, PAGE_BYTES].map(|bytes| u32::try_from(bytes).expect("small"));
    let structure = ReceiveBufferStructure::new(&[group(1, inline, false), group(1, page, true)])
        .expect("sound");
    let properties = Properties {
        send_bytes_max: structure.length_bytes(),
        receive_buffer_bytes: structure.length_bytes(),
        rtr_support: RtrSupport::ALL,
        receive_buffer_structure: Some(structure),
        request_transmissions_max: 4,
        response_transmissions_max: 4,
        segment_count_max: 64,
        reverse_requests: ReverseRequestSupport::General,
        ..Properties::default()
    };
    let prefix = Prefix {
        xid: 0,
        credit: CreditWord {
            maximum: 60,
            granted: 20,
        },
        flags: Flags::NONE,
    };
    let mut space = [0; 512];
    let bytes = v2::encode_connprop(&mut space, prefix, &properties.to_properties());
    space[..bytes.expect("it fits")].to_vec()
}

/// The first transmission of a call: an item list, no direction, and the payload stream.
pub(super) fn request(xid: u32, items: &[u32], transmissions: u32, stream: &[u32]) -> Vec<u8> {
    let stream_bytes = u32::try_from(4 * stream.len()).expect("short");
    let mut all = vec![xid, 2, CREDIT, REQUEST, 0];
    all.extend(items);
    all.extend([0, transmissions, 1, stream_bytes]);
    all.extend(stream);
    words(&all)
}

/// The first transmission of a reply.
pub(super) fn response(xid: u32, items: &[u32], transmissions: u32, stream: &[u32]) -> Vec<u8> {
    let stream_bytes = u32::try_from(4 * stream.len()).expect("short");
    let mut all = vec![xid, 2, CREDIT, RESPONSE, 1];
    all.extend(items);
    all.extend([transmissions, stream_bytes]);
    all.extend(stream);
    words(&all)
}

/// A later transmission.
pub(super) fn next(xid: u32, flags: u32, sequence: u32, stream: &[u32]) -> Vec<u8> {
    let stream_bytes = u32::try_from(4 * stream.len()).expect("short");
    let head = [xid, 2, CREDIT, CONTINUE, flags, sequence, 0, stream_bytes];
    [words(&head), words(stream)].concat()
}

/// A transmission, with a page behind its inline segment.
pub(super) fn with_page(mut head: Vec<u8>, page: &[u8]) -> Vec<u8> {
    head.resize(INLINE_BYTES, 0);
    [head, page.to_vec()].concat()
}

/// A call of [`TAKE`] with two words of arguments.
pub(super) fn call_stream(xid: u32) -> [u32; 12] {
    [xid, 0, 2, PROGRAM, VERSION, TAKE, 0, 0, 0, 0, 21, 22]
}

/// Where an item may stand in it: behind the words.
const BEHIND: u32 = 48;

/// An item of a page, in the first placement segment.
const PAGE_ITEM: [u32; 7] = [1, BEHIND, 4096, 2, 0, 1, 0];

pub(super) fn good_call(xid: u32) -> Vec<u8> {
    let head = request(xid, &PAGE_ITEM, 1, &call_stream(xid));
    with_page(head, &pattern(PAGE_BYTES, xid.into()))
}

pub(super) fn reports(sent: &[Vec<u8>]) -> Vec<ReportError> {
    let reported = sent.iter().filter_map(|message| {
        let header = v2::decode_with_rtr(message, RtrSupport::ALL).expect("what we send is right");
        match header.body {
            Body::ReportError(report) => Some(report),
            _ => None,
        }
    });
    reported.collect()
}

/// The codes of the transport errors among what was sent.
pub(super) fn errors(sent: &[Vec<u8>]) -> Vec<TransportError> {
    let errors = sent.iter().filter_map(|message| {
        let header = v2::decode_with_rtr(message, RtrSupport::ALL).expect("what we send is right");
        match header.body {
            Body::Error(error) => Some(error),
            _ => None,
        }
    });
    errors.collect()
}

/// The peer says what it takes, and agrees on version 2.
fn introduce(attack: &mut Attack<BulkApp>) {
    attack.send(&properties());
    attack.turns(10);
    attack.take();
    attack.agree();
}

/// A server with two connections: that of a peer that behaves, and then the one under attack.
pub(super) struct Hall {
    pub(super) attack: Attack<BulkApp>,
    quiet: Option<rpcrdma_fabric::interface::QueuePairId>,
    next_xid: u32,
}

impl Hall {
    pub(super) fn new() -> Self {
        Self::of(&config())
    }

    pub(super) fn of(config: &CoreConfig) -> Self {
        let mut attack = Attack::placing(
            ReverseRequestSupport::default(),
            Role::Server,
            config,
            BulkApp::default(),
        );
        introduce(&mut attack);
        let quiet = attack.raw.queue_pair;
        attack.connect(false);
        introduce(&mut attack);
        attack.victim.app_mut().taken.clear();
        Self {
            attack,
            quiet,
            next_xid: 1000,
        }
    }

    /// Both connections are served, placed data and all, and nothing is missing.
    fn assert_unharmed(&mut self, what: &str) {
        for _ in 0..2 {
            std::mem::swap(&mut self.attack.raw.queue_pair, &mut self.quiet);
            self.assert_serves(what);
        }
        assert_eq!(self.attack.victim.closed, [], "{what}");
        let both = self.attack.victim.planted.clone();
        self.assert_all_home(what);
        for key in both.iter().flatten() {
            let credits = self.attack.victim.core.credits(*key).expect("it is there");
            // All but those whose grant is on its way, or is not due.
            assert_eq!(
                credits.receives_posted,
                config().receives_per_connection(),
                "{what}: {credits:?}"
            );
        }
    }

    pub(super) fn assert_all_home(&mut self, what: &str) {
        let attack = &mut self.attack;
        attack.victim.app_mut().kept.clear();
        attack.turns(20);
        let core = &mut attack.victim.core;
        assert_eq!(core.placement_segments_leased(), 0, "{what}");
        let free = bulk_config().bulk_buffers as usize;
        assert_eq!(core.bulk_buffers_free(), free, "{what}");
        assert_eq!(core.message_buffers_in_use(), 0, "{what}");
    }

    fn assert_serves(&mut self, what: &str) {
        self.next_xid += 2;
        let (placed, plain) = (self.next_xid, self.next_xid + 1);
        let attack = &mut self.attack;
        attack.victim.app_mut().taken.clear();
        attack.send(&good_call(placed));
        let sent = attack.take();
        assert_eq!((reports(&sent), errors(&sent)), (vec![], vec![]), "{what}");
        assert_eq!(sent.len(), 1, "{what}: one reply");
        let taken = attack.victim.app_mut().taken.pop();
        let page = pattern(PAGE_BYTES, placed.into());
        let expected = [words(&[21, 22]), page].concat();
        assert!(taken == Some(expected), "{what}");
        attack.send(&null_call(plain));
        // The service has no null procedure.
        assert_eq!(attack.take().len(), 1, "{what}");
    }
}

pub(super) fn range(value: u32, min: u32, max: u32) -> OutOfRange {
    OutOfRange { value, min, max }
}

fn mismatch(expected: u32, current: u32) -> Mismatch {
    Mismatch { expected, current }
}

/// Each wrong group draws the report that names what is wrong, and harms nobody.
#[test]
fn a_wrong_group_is_reported_and_leaves_nothing_behind() {
    let start = call_stream(9);
    let begun = |transmissions| request(9, &[0], transmissions, &start);
    let item = |item: &[u32]| with_page(request(9, item, 1, &start), &[5; PAGE_BYTES]);
    let two_pages = [1, BEHIND, 8192, 2, 0, 2, 0, 1];
    let mut beyond = begun(1);
    let length_at = beyond.len() - 4 * start.len() - 4;
    beyond[length_at..length_at + 4].copy_from_slice(&52_u32.to_be_bytes());
    #[rustfmt::skip]
    let cases: Vec<(&str, Vec<Vec<u8>>, u32, Problem)> = vec![
        ("a continuation of nothing", vec![next(9, 0, 1, &[5])], 1, Problem::Continuation),
        ("more transmissions than we take", vec![begun(60), next(9, 0, 1, &[5])], 0, Problem::Continuation),
        ("one left out", vec![begun(3), next(9, 0, 2, &[5])], 2, Problem::Sequence(mismatch(1, 2))),
        ("one twice", vec![begun(3), next(9, 0, 1, &[5]), next(9, 0, 1, &[5]), next(9, 0, 2, &[5])], 1,
            Problem::Sequence(mismatch(2, 1))),
        ("another XID", vec![begun(2), next(8, 0, 1, &[5]), next(9, 0, 1, &[5])], 1, Problem::Xid(mismatch(9, 8))),
        ("another message inside", vec![begun(2), null_call(8), next(9, 0, 1, &[5])], 0,
            Problem::HeaderType(mismatch(CONTINUE, 0))),
        ("another group inside", vec![begun(2), good_call(8)], 0, Problem::HeaderType(mismatch(CONTINUE, REQUEST))),
        ("a segment beyond the group", vec![item(&[1, BEHIND, 4096, 2, 0, 1, 1])], 0, Problem::SegmentNumber(range(1, 0, 0))),
        ("a segment of somebody else", vec![item(&[1, BEHIND, 4096, 2, 0, 1, u32::MAX])], 0,
            Problem::SegmentNumber(range(u32::MAX, 0, 0))),
        ("an offset beyond the segment", vec![item(&[1, BEHIND, 4, 2, 4096, 1, 0])], 0, Problem::Offset(range(4096, 0, 4095))),
        ("an item longer than its segment", vec![item(&[1, BEHIND, 4097, 2, 0, 1, 0])], 0, Problem::SegmentNumber(range(0, 1, 0))),
        ("two items in one place", vec![item(&[2, BEHIND, 8, 2, 4, 1, 0, BEHIND + 8, 8, 2, 11, 1, 0])], 0,
            Problem::Offset(range(11, 12, 4095))),
        ("an item behind the message", vec![item(&[1, BEHIND + 4, 4, 2, 0, 1, 0])], 0, Problem::Offset(range(52, 8, 48))),
        ("octets that do not come", vec![request(9, &PAGE_ITEM, 1, &start)], 0, Problem::SegmentNumber(range(0, 0, 0))),
        ("a page that does not come", vec![with_page(request(9, &two_pages, 2, &start), &[5; PAGE_BYTES]), next(9, 0, 1, &[])], 1,
            Problem::SegmentNumber(range(1, 0, 0))),
        ("a stream longer than its message", vec![beyond], 0, Problem::StreamLength(range(52, 0, 48))),
    ];
    let mut hall = Hall::new();
    for (what, messages, sequence, problem) in cases {
        for message in messages {
            hall.attack.send(&message);
        }
        let sent = hall.attack.take();
        let found = reports(&sent);
        assert_eq!(sent.len(), found.len(), "{what}: nothing else is said");
        let [report] = found[..] else {
            panic!("{what}: one report: {found:?}");
        };
        assert_eq!(
            (report.bad.sequence, report.problem),
            (sequence, problem),
            "{what}"
        );
        assert_eq!(hall.attack.victim.app().taken.len(), 0);
        hall.assert_unharmed(what);
        hall.attack.victim.app_mut().taken.clear();
    }
}

/// What is wrong in itself draws the transport error of plain version 2.
#[test]
fn a_group_that_does_not_decode_draws_a_transport_error() {
    let start = call_stream(9);
    let good = good_call(9);
    let mut flagged = good.clone();
    flagged[19] = 2;
    let many: Vec<u32> = std::iter::once(9)
        .chain((0..9).flat_map(|item| [BEHIND + 4 * item, 4, 2, 4 * item, 1, 0]))
        .collect();
    let many = with_page(request(9, &many, 1, &start), &[5; PAGE_BYTES]);
    #[rustfmt::skip]
    let cases = [
        ("a header that breaks off", good[..40].to_vec(), TransportError::BadXdr),
        ("a placement that no call has", request(9, &[1, BEHIND, 4, 6], 1, &start), TransportError::BadXdr),
        ("an XID of another call", request(9, &[0], 1, &call_stream(8)), TransportError::BadXdr),
        ("a part of a sequence", flagged, TransportError::InvalFlag),
        ("more items than a call may have", many, TransportError::System),
    ];
    let mut hall = Hall::new();
    for (what, message, error) in cases {
        hall.attack.send(&message);
        let sent = hall.attack.take();
        assert_eq!(sent.len(), 1, "{what}: {sent:?}");
        assert_eq!(errors(&sent), [error], "{what}: {:?}", reports(&sent));
        hall.assert_unharmed(what);
    }
}

/// Groups that are begun and never ended hold what they hold until their connection is gone.
#[test]
fn a_group_that_is_never_ended_ends_with_its_connection() {
    let mut hall = Hall::new();
    let two_pages = [1, BEHIND, 8192, 2, 0, 2, 0, 1];
    hall.attack.send(&with_page(
        request(9, &two_pages, 2, &call_stream(9)),
        &[5; PAGE_BYTES],
    ));
    assert_eq!(hall.attack.take(), Vec::<Vec<u8>>::new());
    let keys: Vec<_> = hall.attack.victim.planted.iter().flatten().collect();
    let connection = **keys.last().expect("it was planted");
    hall.attack.victim.close(connection);
    hall.attack.turns(30);
    let closed = &hall.attack.victim.closed;
    assert_eq!(*closed, [(connection, CloseReason::Local)]);
    std::mem::swap(&mut hall.attack.raw.queue_pair, &mut hall.quiet);
    hall.assert_serves("the other connection");
    hall.assert_all_home("the group is given up");
    let gone = hall.quiet.expect("planted");
    rpcrdma_fabric::interface::PortSetup::destroy_queue_pair(&mut hall.attack.raw.port, gone);
    hall.attack.connect(false);
    introduce(&mut hall.attack);
    hall.assert_serves("the next connection");
}

/// A call that is all there may wait for its turn when its connection ends, if more calls than one poll handles wait before it. The
/// call that has its slot next then has a turn more, in which its own group is not complete.
#[test]
fn a_call_whose_connection_ends_leaves_the_next_in_its_slot_alone() {
    /// The application keeps as many items, so that the calls behind them wait.
    const SPARES: u32 = 4;
    /// More than one poll handles, with short items, so that one poll copies all.
    const BEFORE: u32 = 17;
    const SHORT_ITEM: [u32; 7] = [1, BEHIND, 256, 2, 0, 1, 0];
    let short_call = |xid| {
        let head = request(xid, &SHORT_ITEM, 1, &call_stream(xid));
        with_page(head, &pattern(256, xid.into()))
    };
    let mut hall = Hall::of(&CoreConfig {
        connections_max: 2,
        credits_per_connection: 40,
        reap_batch: 64,
        bulk_calls: 40,
        ..placing_config(1, 4096, SPARES)
    });
    let attack = &mut hall.attack;
    std::mem::swap(&mut attack.raw.queue_pair, &mut hall.quiet);
    attack.victim.app_mut().keep = true;
    for xid in 200..200 + SPARES {
        attack.raw.send(&short_call(xid));
    }
    attack.until("the items that are kept", |attack| {
        attack.victim.app().kept.len() == SPARES as usize
    });
    for xid in 100..100 + BEFORE {
        attack.raw.send(&short_call(xid));
    }
    std::mem::swap(&mut attack.raw.queue_pair, &mut hall.quiet);
    attack.raw.send(&short_call(7));
    // An error that cannot be decoded ends the connection.
    attack.raw.send(&words(&[8, 2, CREDIT, 4, 1, 5]));
    std::mem::swap(&mut attack.raw.queue_pair, &mut hall.quiet);
    let two_pages = [1, BEHIND, 8192, 2, 0, 2, 0, 1];
    let page = |number| pattern(PAGE_BYTES, number);
    let first = request(9, &two_pages, 2, &call_stream(9));
    attack.victim_turns(1);
    attack.raw.send(&with_page(first, &page(1)));
    attack.until("the first part", |attack| {
        let counters = attack.victim.handle.counters();
        counters.transmissions_received >= u64::from(SPARES + BEFORE + 2)
    });
    attack.victim.app_mut().keep = false;
    attack.victim.app_mut().kept.clear();
    attack.until("the replies before it, and the end of one", |attack| {
        // Without grants.
        let got = attack.raw.got.iter();
        let replies = got.filter(|message| message.get(12..16) != Some(&[0, 0, 0, 1]));
        let replies_max = (SPARES + BEFORE) as usize;
        replies.count() >= replies_max && attack.victim.closed.len() == 1
    });
    attack.turns(30);
    let served = attack.take().len();
    assert_eq!(
        served,
        (SPARES + BEFORE) as usize,
        "no reply to the first part"
    );
    attack.victim.app_mut().taken.clear();
    let last = next(9, 0, 1, &[]);
    attack.send(&with_page(last, &page(2)));
    let sent = attack.take();
    assert_eq!((reports(&sent), errors(&sent)), (vec![], vec![]));
    assert_eq!(sent.len(), 1, "one reply");
    let taken = attack.victim.app_mut().taken.pop();
    assert!(taken == Some([words(&[21, 22]), page(1), page(2)].concat()));
}

/// Grants nothing, of at most 60.
pub(super) const NO_CREDIT: u32 = 60 << 16;

/// A call of [`GIVE`] for a result of `pages` pages, which are to be placed by Sends.
pub(super) fn call_for_pages(xid: u32, credit: u32, pages: u32) -> Vec<u8> {
    call_of_for_pages(GIVE, xid, credit, pages)
}

/// As [`call_for_pages`], of another procedure.
pub(super) fn call_of_for_pages(procedure: u32, xid: u32, credit: u32, pages: u32) -> Vec<u8> {
    let stream = [
        xid,
        0,
        2,
        PROGRAM,
        VERSION,
        procedure,
        0,
        0,
        0,
        0,
        1,
        4096 * pages,
    ];
    let one_direction = [1, 0, u32::MAX, 1, 0, 2];
    let mut all = vec![xid, 2, credit, REQUEST, 0, 0];
    all.extend(one_direction);
    all.extend([1, pages, 4 * 12]);
    all.extend(stream);
    words(&all)
}

/// Results lie in bulk buffers until they are sent.
#[test]
fn a_peer_that_takes_no_replies_leaves_buffers_to_others() {
    const PAGES: u32 = 4;
    const BUFFERS: u32 = 32;
    let mut hall = Hall::of(&CoreConfig {
        bulk_buffers: BUFFERS,
        bulk_buffer_bytes: 4096,
        ..config()
    });
    let attack = &mut hall.attack;
    let is_pages = |sent: &[Vec<u8>]| {
        assert_eq!((reports(sent), errors(sent)), (vec![], vec![]));
        sent.len() == PAGES as usize
    };
    // It has granted some credits, until these are used up.
    let mut xid = 100;
    let mut ask = |attack: &mut Attack<BulkApp>, credit| {
        xid += 1;
        attack.send(&call_for_pages(xid, credit, PAGES));
        is_pages(&attack.take())
    };
    let answered = (0..10).take_while(|_| ask(attack, NO_CREDIT)).count();
    assert_ne!(answered, 10);
    for _ in 0..12 {
        assert!(!ask(attack, NO_CREDIT));
    }
    // The last call that it had served took it to half of them.
    let free = attack.victim.core.bulk_buffers_free();
    assert_eq!(free, (BUFFERS / 2) as usize);
    std::mem::swap(&mut attack.raw.queue_pair, &mut hall.quiet);
    for _ in 0..3 {
        assert!(ask(attack, 60 << 16 | PAGES));
    }
}

/// A core on which a peer has a reply in four Sends waiting, for which it has left it fewer credits. The peer's key.
fn with_a_reply_that_lacks_credits(config: &CoreConfig) -> (Hall, ConnectionKey) {
    const PAGES: u32 = 4;
    let mut hall = Hall::of(config);
    let attack = &mut hall.attack;
    let greedy = *attack.victim.planted[1].as_ref().expect("planted");
    let mut xid = 100;
    let mut ask = |attack: &mut Attack<BulkApp>, credit| {
        xid += 1;
        attack.send(&call_for_pages(xid, credit, PAGES));
        attack.take().len()
    };
    while ask(attack, NO_CREDIT) != 0 {}
    let left = |attack: &Attack<BulkApp>| {
        let credits = attack.victim.core.credits(greedy);
        credits.expect("it is there").unused()
    };
    if left(attack) == 0 {
        ask(attack, NO_CREDIT | 1);
    }
    assert!((1..PAGES).contains(&left(attack)), "{}", left(attack));
    (hall, greedy)
}

#[test]
fn a_peer_that_leaves_too_few_credits_for_a_reply_is_left_in_time() {
    const LIMIT: Duration = Duration::from_secs(40);
    let (mut hall, greedy) = with_a_reply_that_lacks_credits(&CoreConfig {
        keep_alive_interval: Duration::ZERO,
        stall_timeout: LIMIT,
        ..config()
    });
    let attack = &mut hall.attack;
    for _ in 0..4 {
        assert_eq!(attack.victim.closed, []);
        attack.pass(LIMIT / 4);
    }
    attack.pass(LIMIT / 4);
    let stalled = CloseReason::PeerStalled {
        owed: Owed::Credits,
        stalled_ms: 40_000,
    };
    assert_eq!(attack.victim.closed, [(greedy, stalled)]);
    std::mem::swap(&mut hall.attack.raw.queue_pair, &mut hall.quiet);
    hall.assert_serves("the other one");
}

#[test]
fn a_core_sleeps_while_a_reply_lacks_credits() {
    let (hall, _) = with_a_reply_that_lacks_credits(&CoreConfig {
        idle: IdlePolicy::Park {
            after: Duration::ZERO,
            awake_percent: 100,
        },
        ..config()
    });
    hall.attack.sleeps("while it waits for its peers");
}
