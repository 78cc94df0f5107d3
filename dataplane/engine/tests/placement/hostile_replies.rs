//! Replies to placed calls that are wrong, and reports of errors that are none.

use rpcrdma_engine::{CallError, ConnectionKey, CoreConfig, Placement};
use rpcrdma_fabric::interface::prelude::*;
use rpcrdma_fabric::interface::{Gather, RemoteAddress, RemoteKey};
use rpcrdma_protocol::chunks::Segment;
use rpcrdma_protocol::v2::connection::Role;
use rpcrdma_protocol::v2::plan::Thresholds;
use rpcrdma_protocol::v2::rtr::{Problem, RtrSupport};
use rpcrdma_protocol::v2::{self, Body, Header, ReverseRequestSupport, TransportError};

use super::calls::placing_config;
use super::hostile::{
    PAGE_BYTES, REPORT, errors, next, properties, range, reports, response, with_page,
};
use crate::support::bulk::{BulkApp, GIVE, Wanted, asking, bulk_config, given};
use crate::support::fabric::unless_skipped;
use crate::support::pattern;
use crate::support::raw::{Attack, CREDIT, error, header, message, words};

/// The results of [`GIVE`] of one page, which is placed.
const RESULTS: [u32; 2] = [4096, 0xfeed];

/// Where that page belongs in the reply: behind its RPC header and its length.
const BEHIND: u32 = 28;

/// The item of a right answer, in the first placement segment.
const PAGE_RESULT: [u32; 7] = [1, BEHIND, 4096, 2, 0, 1, 0];

/// The payload stream of a right answer.
fn reply_stream(xid: u32) -> [u32; 8] {
    [xid, 1, 0, 0, 0, 0, RESULTS[0], RESULTS[1]]
}

fn config() -> CoreConfig {
    CoreConfig {
        connections_max: 2,
        credits_per_connection: 16,
        ..placing_config(1, 4096, 8)
    }
}

/// A client under attack, with a call outstanding that was sent as a group.
struct Caller {
    attack: Attack<BulkApp>,
    connection: ConnectionKey,
    xid: u32,
}

impl Caller {
    fn new() -> Self {
        let mut caller = Self::with(&config());
        let sent = caller.call(caller.wanted());
        let group = decoded(&sent);
        assert!(matches!(group.body, Body::TransmitRequest(_)), "{group:?}");
        caller
    }

    /// One that has not called.
    fn with(config: &CoreConfig) -> Self {
        let mut attack = Attack::placing(
            ReverseRequestSupport::default(),
            Role::Client,
            config,
            BulkApp::default(),
        );
        attack.take();
        attack.send(&properties());
        attack.turns(10);
        Self {
            connection: attack.connection(),
            attack,
            xid: 0,
        }
    }

    /// A call with a page, for a page.
    fn wanted(&self) -> Wanted {
        Wanted::new(self.connection, GIVE, Placement::Send, 1)
            .asking(&[4096])
            .with_item(pattern(PAGE_BYTES, 3))
    }

    /// Has the victim call, and gives what it sends.
    fn call(&mut self, wanted: Wanted) -> Vec<u8> {
        let application = self.attack.victim.app_mut();
        application.wanted.push_back(wanted);
        self.attack.turns(20);
        let refused = &self.attack.victim.app().refused;
        assert_eq!(*refused, []);
        let sent = self.attack.take();
        let [group] = &sent[..] else {
            panic!("one transmission: {sent:?}");
        };
        self.xid = decoded(group).prefix.xid;
        group.clone()
    }

    /// The peer writes to memory that a call exposed, which it may no more.
    fn assert_write_refused(&mut self, target: Segment) {
        let raw = &mut self.attack.raw;
        let mut list = Gather::new();
        let buffer = raw.pool.take().expect("a buffer");
        list.push(buffer, 0, 8).expect("it lies within");
        let to = RemoteAddress {
            key: RemoteKey(target.handle),
            offset: target.offset,
        };
        let queue_pair = raw.queue_pair.expect("planted");
        let posted = raw.port.post_write(queue_pair, &mut list, to, None);
        posted.expect("posted");
        self.attack.turns(20);
        assert!(self.attack.raw.disconnected, "the write is refused");
    }

    /// How the call ended, if it did.
    fn ended(&self) -> Option<Result<(), CallError>> {
        let application = self.attack.victim.app();
        let result = application.result(1)?;
        Some(result.as_ref().map(drop).map_err(|error| *error))
    }

    fn right_answer(&self) -> Vec<u8> {
        let head = response(self.xid, &PAGE_RESULT, 1, &reply_stream(self.xid));
        with_page(head, &given(0, 4096))
    }

    fn assert_all_home(&mut self, what: &str) {
        self.attack.turns(20);
        let core = &mut self.attack.victim.core;
        assert_eq!(core.placement_segments_leased(), 0, "{what}");
        let free = bulk_config().bulk_buffers as usize;
        assert_eq!(core.bulk_buffers_free(), free, "{what}");
        assert_eq!(core.message_buffers_in_use(), 0, "{what}");
    }

    /// The next call goes as if nothing had been.
    fn assert_goes_on(&mut self, what: &str) {
        self.assert_all_home(what);
        let core = &mut self.attack.victim.core;
        core.application_mut().ended.clear();
        self.call(self.wanted());
        let answer = self.right_answer();
        self.attack.send(&answer);
        assert_eq!(self.ended(), Some(Ok(())), "{what}");
        let application = self.attack.victim.app();
        let (results, items) = application.ended[0].1.as_ref().expect("it is right");
        assert_eq!(*results, words(&RESULTS), "{what}");
        assert!(*items == [given(0, 4096)], "{what}");
        self.assert_all_home(what);
        assert_eq!(self.attack.victim.closed, [], "{what}");
        let credits = self.attack.victim.core.credits(self.connection);
        let credits = credits.expect("it is there");
        let reserved = config().receives_per_connection();
        assert_eq!(credits.receives_posted, reserved, "{what}: {credits:?}");
    }
}

fn decoded(sent: &[u8]) -> Header<'_> {
    v2::decode_with_rtr(sent, RtrSupport::ALL).expect("what we send is right")
}

/// A report that says of a transmission of a call or reply: it is a continuation of nothing.
fn report(xid: u32, direction: u32, lead: bool) -> Vec<u8> {
    let id = [xid, direction, 0];
    let mut all = vec![xid, 2, CREDIT, REPORT, 1];
    all.extend(id);
    if lead {
        all.push(1);
        all.extend(id);
    } else {
        all.push(0);
    }
    all.push(3);
    words(&all)
}

#[test]
fn a_right_answer_is_right() {
    let mut caller = Caller::new();
    let answer = caller.right_answer();
    caller.attack.send(&answer);
    assert_eq!(caller.ended(), Some(Ok(())));
    caller.assert_goes_on("a right answer");
}

/// What does not do as the call directed ends the call, and nothing else.
#[test]
fn an_answer_that_does_not_follow_its_directions_ends_its_call() {
    #[rustfmt::skip]
    let items: [(&str, &[u32]); 5] = [
        ("two items for one direction", &[2, BEHIND, 8, 2, 0, 1, 0, BEHIND + 8, 8, 2, 8, 1, 0]),
        ("one longer than was expected", &[1, BEHIND, 4100, 2, 0, 2, 0, 1]),
        ("written to memory that was not offered", &[1, BEHIND, 4096, 1, 1, 77, 4096, 0, 0]),
        ("an item at no multiple of four", &[1, 27, 4, 2, 0, 1, 0]),
        ("a segment that did not come", &[1, BEHIND, 4, 2, 0, 1, 9]),
    ];
    for (what, items) in items {
        let mut caller = Caller::new();
        let transmissions = if items.contains(&4100) { 2 } else { 1 };
        let head = response(caller.xid, items, transmissions, &reply_stream(caller.xid));
        caller.attack.send(&with_page(head, &[7; PAGE_BYTES]));
        let sent = caller.attack.take();
        // What is wrong with the message is told; what is wrong for the call alone is not.
        assert_eq!(errors(&sent), [], "{what}");
        match caller.ended() {
            Some(ended) => assert_eq!(ended, Err(CallError::BadReply), "{what}"),
            None => {
                // The responder may say it once more: in plain version 2.
                let stream = reply_stream(caller.xid);
                let plain: Vec<u8> = [message(caller.xid, 1, &stream[..6]), words(&[0])].concat();
                caller.attack.send(&plain);
                assert_eq!(caller.ended(), Some(Ok(())), "{what}");
            }
        }
        caller.assert_goes_on(what);
    }
}

/// What is wrong with a group of a reply is reported, as that of a call is.
#[test]
fn a_wrong_group_of_a_reply_is_reported() {
    let mut caller = Caller::new();
    let xid = caller.xid;
    let wrong = response(xid, &[1, BEHIND, 4, 2, 0, 1, 9], 1, &reply_stream(xid));
    caller.attack.send(&with_page(wrong, &[7; PAGE_BYTES]));
    let found = reports(&caller.attack.take());
    let problem = Problem::SegmentNumber(range(9, 0, 0));
    assert_eq!(
        found.iter().map(|it| it.problem).collect::<Vec<_>>(),
        [problem]
    );
    // A continuation that nobody expects.
    caller.attack.send(&next(xid, 1, 1, &[5]));
    let found = reports(&caller.attack.take());
    assert_eq!(
        found.iter().map(|it| it.problem).collect::<Vec<_>>(),
        [Problem::Continuation]
    );
    assert_eq!(caller.ended(), None, "the call still waits");
    caller.attack.send(&error(xid, &[10]));
    let system = CallError::Transport(TransportError::System);
    assert_eq!(caller.ended(), Some(Err(system)));
    caller.assert_goes_on("a wrong group");
}

/// A requester answers what does not decode by no error: its connection ends (-00 section 6.4.3
/// leaves errors to responders), its call fails once, and nothing is missing.
#[test]
fn undecodable_response_closes_the_requesters_connection() {
    type Wrong = fn(u32) -> Vec<u8>;
    let wrong: [(&str, Wrong); 4] = [
        ("a placement that no reply has", |xid| {
            response(xid, &[1, BEHIND, 4, 3, 0], 1, &reply_stream(xid))
        }),
        ("a reply that breaks off in its header", |xid| {
            response(xid, &PAGE_RESULT, 1, &reply_stream(xid))[..40].to_vec()
        }),
        ("a report with a code that there is not", |xid| {
            let mut report = report(xid, 0, false);
            let code_at = report.len() - 4;
            report[code_at..].copy_from_slice(&99_u32.to_be_bytes());
            report
        }),
        ("a report that breaks off", |xid| {
            report(xid, 0, true)[..44].to_vec()
        }),
    ];
    for (what, wrong) in wrong {
        let mut caller = Caller::new();
        let message = wrong(caller.xid);
        caller.attack.send(&message);
        caller.attack.turns(20);
        assert_eq!(caller.ended(), Some(Err(CallError::Disconnected)), "{what}");
        assert!(caller.attack.raw.disconnected, "{what}");
        assert_eq!(caller.attack.victim.closed.len(), 1, "{what}");
        caller.assert_all_home(what);
    }
}

/// Reports of what there is not change nothing.
#[test]
fn reports_of_what_there_is_not_change_nothing() {
    let mut caller = Caller::new();
    let xid = caller.xid;
    for lead in [false, true] {
        caller.attack.send(&report(xid ^ 5, 0, lead));
        assert_eq!(caller.ended(), None, "the call still waits");
        assert_eq!(caller.attack.take().len(), 0, "nothing is said to it");
        // Of a reply, of which we made none: that nobody makes it again is said once.
        caller.attack.send(&report(xid ^ 5, 1, lead));
        assert_eq!(errors(&caller.attack.take()).len(), 1);
    }
    let answer = caller.right_answer();
    caller.attack.take();
    caller.attack.send(&answer);
    assert_eq!(caller.ended(), Some(Ok(())));
    caller.assert_goes_on("reports of nothing");
}

/// A call that its peer refuses as a group is made once more, in plain version 2, with memory
/// exposed to the peer. When that has its answer, the memory is the peer's no more.
#[test]
fn a_late_write_to_a_call_that_was_placed_first_is_refused() {
    unless_skipped!("a_late_write_to_a_call_that_was_placed_first_is_refused");
    let mut caller = Caller::new();
    let xid = caller.xid;
    caller.attack.send(&report(xid, 0, true));
    caller.attack.turns(20);
    let sent = caller.attack.take();
    let [again] = &sent[..] else {
        panic!("made again, once: {sent:?}");
    };
    let plain = decoded(again);
    assert_eq!(plain.prefix.xid, xid);
    let Body::Msg(body) = plain.body else {
        panic!("in plain version 2: {plain:?}");
    };
    let mut targets = body.lists.writes.flatten();
    let target = targets.next().expect("memory for the result");
    // Refused again, it would end: here it is answered, by a reply that invalidates nothing.
    let reply = [
        header(xid, 0, 1).to_vec(),
        reply_stream(xid)[..6].to_vec(),
        vec![0],
    ]
    .concat();
    caller.attack.send(&words(&reply));
    caller.attack.turns(10);
    assert_eq!(caller.ended(), Some(Ok(())));
    caller.assert_write_refused(target);
    caller.assert_all_home("a late write");
}

/// A call of which one result is placed and another moved: its reply ends both, the explicit one
/// without a word to the memory that was offered for it.
#[test]
fn a_late_write_to_a_call_of_both_kinds_is_refused() {
    unless_skipped!("a_late_write_to_a_call_of_both_kinds_is_refused");
    let config = config();
    let config = CoreConfig {
        thresholds: Thresholds {
            send_placement_bytes_max: 4096,
            ..config.thresholds
        },
        ..config
    };
    let mut caller = Caller::with(&config);
    let wanted = Wanted {
        placement: Placement::Auto,
        args: asking(&[4096, 65_536]),
        items: vec![(12, pattern(PAGE_BYTES, 3))],
        expected: vec![4096, 65_536],
        ..caller.wanted()
    };
    let sent = caller.call(wanted);
    let group = decoded(&sent);
    let Body::TransmitRequest(body) = group.body else {
        panic!("as a group: {group:?}");
    };
    let offered = body.directions.flat_map(|set| set.items);
    let mut offered = offered.filter_map(|item| item.location.segments().copied());
    let target = offered.next().expect("memory for a result").next();
    let target = target.expect("a segment");
    assert!(offered.next().is_none(), "for one of them");
    // The page, and of the other result nothing.
    let items = [2, BEHIND, 4096, 2, 0, 1, 0, 0, 0, 6];
    let head = response(caller.xid, &items, 1, &reply_stream(caller.xid));
    caller.attack.send(&with_page(head, &given(0, 4096)));
    caller.attack.turns(10);
    assert_eq!(caller.ended(), Some(Ok(())));
    caller.assert_write_refused(target);
    caller.assert_all_home("a late write");
}

/// A call that is refused twice fails, with what its peer said last.
#[test]
fn a_call_that_is_refused_twice_fails() {
    let mut caller = Caller::new();
    let xid = caller.xid;
    caller.attack.send(&report(xid, 0, false));
    caller.attack.turns(20);
    assert_eq!(caller.attack.take().len(), 1, "made again");
    caller.attack.send(&report(xid, 0, false));
    assert_eq!(caller.ended(), None, "it is no group any more");
    assert_eq!(caller.attack.take().len(), 0);
    caller.attack.send(&error(xid, &[10]));
    caller.attack.turns(20);
    let system = CallError::Transport(TransportError::System);
    assert_eq!(caller.ended(), Some(Err(system)));
    caller.assert_goes_on("refused twice");
}

/// A reply that breaks off is forgotten with its connection, and its call fails once.
#[test]
fn a_reply_that_breaks_off_ends_with_its_connection() {
    let mut caller = Caller::new();
    let head = response(caller.xid, &PAGE_RESULT, 1, &reply_stream(caller.xid));
    let cut = head[..head.len() - 8].to_vec();
    caller.attack.send(&cut);
    caller.attack.take();
    caller
        .attack
        .victim
        .command(rpcrdma_engine::Command::Close {
            connection: caller.connection,
            reason: rpcrdma_engine::CloseReason::Local,
        });
    caller.attack.turns(30);
    assert!(
        matches!(caller.ended(), Some(Err(_))),
        "{:?}",
        caller.ended()
    );
    caller.assert_all_home("the reply broke off");
}
