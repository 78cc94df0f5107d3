//! Calls with bulk data that a responder takes in another form alone: the requester folds them, once.

use crate::support::bulk::{BulkApp, GIVE, Wanted, asking, bulk_config};
use crate::support::pattern;
use crate::support::raw::{Attack, error, header, message, null_call, words};
use rpcrdma_engine::{CallError, CoreConfig, Placement};
use rpcrdma_protocol::chunks::Segment;
use rpcrdma_protocol::v2::connection::Role;
use rpcrdma_protocol::v2::{self, Body, ReverseRequestSupport, TransportError};

/// A core whose bulk buffers are pages, so that an item of some pages has as many segments.
fn config() -> CoreConfig {
    CoreConfig {
        connections_max: 2,
        bulk_buffers: 64,
        bulk_buffer_bytes: 4096,
        ..bulk_config()
    }
}

/// What a message of a call is.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    header_type: u32,
    /// Whether more of the message follows.
    more: bool,
    xid: u32,
    /// The position of each segment that is to be read.
    reads: Vec<u32>,
    /// Bytes of the segments of each Write chunk.
    writes: Vec<Vec<u32>>,
    /// Bytes of the Reply chunk.
    reply: u32,
    payload: Vec<u8>,
}

fn see(bytes: &[u8]) -> Seen {
    let header = v2::header::decode(bytes).expect("a good message");
    let chunks = header.chunks().expect("a message of a call");
    let length = |segment: Segment| segment.length_bytes;
    let header_type = u32::from_be_bytes(bytes[12..16].try_into().expect("a word"));
    Seen {
        header_type,
        more: bytes[19] & 2 != 0,
        xid: header.prefix.xid,
        reads: chunks.lists.reads.map(|segment| segment.position).collect(),
        writes: chunks
            .lists
            .writes
            .map(|chunk| chunk.map(length).collect())
            .collect(),
        reply: chunks
            .lists
            .reply
            .map_or(0, |chunk| chunk.map(length).sum()),
        payload: match header.body {
            Body::Msg(_) => bytes[header.header_bytes..].to_vec(),
            _ => Vec::new(),
        },
    }
}

/// A victim that has made this call, and what it sent.
fn called(wanted: Wanted) -> (Attack<BulkApp>, Seen) {
    let level = ReverseRequestSupport::General;
    let mut attack = Attack::announcing(level, Role::Server, false, &config(), BulkApp::default());
    attack.raw.send(&null_call(1));
    attack.turns(10);
    attack.take();
    // Properties, so that the victim may call: calls in the reverse direction, and 64 segments.
    let properties = [2, 5, 4, 2, 4, 4, 64];
    attack.send(&[words(&header(2, 5, 0)[..5]), words(&properties)].concat());
    // Credits, for the call made twice, in parts too.
    for _ in 0..20 {
        attack.send(&words(&header(0, 1, 0)));
    }
    attack.turns(20);
    attack.take();
    let wanted = Wanted {
        placement: Placement::Rdma,
        ..wanted
    };
    let mut sent = call_on(&mut attack, 1, wanted);
    assert_eq!(sent.len(), 1);
    (attack, sent.remove(0))
}

/// Has the victim make this call, and gives what it sent.
fn call_on(attack: &mut Attack<BulkApp>, tag: u64, wanted: Wanted) -> Vec<Seen> {
    let wanted = Wanted {
        connection: attack.connection(),
        procedure: GIVE,
        tag,
        ..wanted
    };
    let app = attack.victim.app_mut();
    app.wanted.push_back(wanted);
    attack.turns(20);
    attack.take().iter().map(|bytes| see(bytes)).collect()
}

/// Answers the call with an error, and gives what is sent then.
fn refuse(attack: &mut Attack<BulkApp>, xid: u32, body: &[u32]) -> Vec<Seen> {
    attack.send(&error(xid, body));
    attack.turns(30);
    let sent = std::mem::take(&mut attack.raw.got);
    let sent = sent.iter().map(|bytes| see(bytes));
    // Grants apart.
    sent.filter(|it| it.header_type == 0 || it.xid == xid)
        .collect()
}

/// Answers the call at last, with a result stream of one word.
fn finish(attack: &mut Attack<BulkApp>, xid: u32, retried: u64) {
    attack.send(&message(xid, 1, &[xid, 1, 0, 0, 0, 0, 77]));
    attack.turns(20);
    let ended = attack.victim.app().result(1).expect("ended");
    let (results, items) = ended.as_ref().expect("it succeeds");
    assert_eq!(*results, words(&[77]));
    assert!(
        items.iter().all(Vec::is_empty),
        "all of it was in the stream"
    );
    all_home(attack, retried);
}

fn all_home(attack: &mut Attack<BulkApp>, retried: u64) {
    let counters = attack.victim.counters();
    assert_eq!(counters.bulk_calls_retried, retried);
    let gone = counters.windows_invalidated_locally + counters.windows_invalidated_remotely;
    assert_eq!(counters.windows_bound, gone);
    assert_eq!(attack.victim.core.bulk_buffers_free(), 64);
    assert_eq!(attack.victim.core.message_buffers_in_use(), 0);
}

fn results(lengths: &[u32]) -> Wanted {
    Wanted {
        args: asking(lengths),
        expected: lengths.to_vec(),
        results_bytes_max: 100,
        ..Wanted::default()
    }
}

/// -00 section 6.4.3: the first chunks are offered again, and the other results come with the rest of the reply.
#[test]
fn fewer_write_chunks_are_offered_after_write_chunks() {
    let (mut attack, first) = called(results(&[700, 800, 900]));
    assert_eq!(first.writes, [[700], [800], [900]]);
    let again = refuse(&mut attack, first.xid, &[6, 1]);
    assert_eq!(again.len(), 1);
    assert_eq!(
        (again[0].xid, &again[0].payload),
        (first.xid, &first.payload)
    );
    assert_eq!((&again[0].writes, again[0].reply), (&vec![vec![700]], 0));
    finish(&mut attack, first.xid, 1);

    // What is longer than a message then gets a Reply chunk.
    let (mut attack, first) = called(results(&[700, 8000]));
    let again = refuse(&mut attack, first.xid, &[6, 1]);
    assert_eq!(again[0].writes, [[700]]);
    assert!((8000..8300).contains(&again[0].reply), "{again:?}");
    finish(&mut attack, first.xid, 1);
}

/// -00 section 6.4.3: without Write chunks there are fewer segments, and in the stream there is none.
#[test]
fn fewer_segments_are_offered_after_segments() {
    let args = asking(&[9000]);
    let item = pattern(9001, 3);
    let wanted = Wanted {
        items: vec![(args.len(), item.clone())],
        ..results(&[9000])
    };
    let (mut attack, first) = called(wanted.clone());
    assert_eq!(
        (first.reads.len(), &first.writes),
        (3, &vec![vec![4096, 4096, 808]])
    );
    let again = refuse(&mut attack, first.xid, &[7, 3]);
    assert_eq!(again.len(), 1);
    assert_eq!((&again[0].reads, &again[0].writes), (&first.reads, &vec![]));
    assert_eq!(again[0].reply, 0, "the reply is continued");
    finish(&mut attack, first.xid, 1);

    let (mut attack, first) = called(wanted);
    let again = refuse(&mut attack, first.xid, &[7, 2]);
    assert!(again.len() > 1 && again.iter().all(|it| it.reads.is_empty()));
    let more: Vec<_> = again.iter().map(|it| it.more).collect();
    assert!(more[..more.len() - 1].iter().all(|more| *more) && !more[more.len() - 1]);
    let whole: Vec<u8> = again.iter().flat_map(|it| it.payload.clone()).collect();
    let expected = [first.payload.clone(), item, vec![0; 3]].concat();
    assert!(whole == expected, "the item is in its place");
    finish(&mut attack, first.xid, 1);
}

/// -00 section 6.4.3: fewer Read chunks than the call has are none, and all of it goes to a Position-Zero Read chunk.
#[test]
fn a_call_is_long_after_read_chunks() {
    for most in [0, 1] {
        let args = asking(&[]);
        let wanted = Wanted {
            items: vec![
                (args.len(), pattern(900, 1)),
                (args.len(), pattern(5000, 2)),
            ],
            args,
            results_bytes_max: 100,
            ..Wanted::default()
        };
        let (mut attack, first) = called(wanted);
        assert_eq!(first.reads.len(), 3);
        let again = refuse(&mut attack, first.xid, &[5, most]);
        assert_eq!((again.len(), again[0].header_type), (1, 1));
        assert!(again[0].reads.iter().all(|position| *position == 0));
        finish(&mut attack, first.xid, 1);
    }
}

/// What a refusal says of all calls is not asked for again: the next one keeps to it at once.
#[test]
fn limits_of_the_peer_are_remembered() {
    let args = asking(&[9000]);
    let wanted = Wanted {
        items: vec![(args.len(), pattern(9001, 3))],
        ..results(&[9000])
    };
    let (mut attack, first) = called(wanted.clone());
    refuse(&mut attack, first.xid, &[7, 3]);
    finish(&mut attack, first.xid, 1);
    let next = call_on(&mut attack, 2, wanted.clone());
    let segments = |it: &Seen| it.reads.len() + it.writes.iter().flatten().count();
    assert!(!next.is_empty());
    assert!(next.iter().all(|it| segments(it) <= 3), "{next:?}");

    // Whoever reads no long call either takes no chunks: this call, once more, and the next are in the stream.
    let (mut attack, first) = called(wanted.clone());
    let long = refuse(&mut attack, first.xid, &[5, 0]);
    assert_eq!(long[0].header_type, 1);
    let inline = refuse(&mut attack, first.xid, &[5, 0]);
    assert!(inline.len() > 1, "it is continued: {inline:?}");
    assert!(inline.iter().all(|it| segments(it) == 0), "{inline:?}");
    let whole: Vec<u8> = inline.iter().flat_map(|it| it.payload.clone()).collect();
    let expected = [first.payload.clone(), pattern(9001, 3), vec![0; 3]].concat();
    assert!(whole == expected, "the item is in its place");
    finish(&mut attack, first.xid, 2);
    let next = call_on(&mut attack, 2, wanted);
    assert!(next.len() > 1, "it is continued: {next:?}");
    assert!(next.iter().all(|it| segments(it) == 0), "{next:?}");
}

/// There is no form behind the one in the stream.
#[test]
fn a_call_in_the_stream_that_is_refused_ends_with_the_reason() {
    let args = asking(&[]);
    let wanted = Wanted {
        items: vec![(args.len(), pattern(9001, 3))],
        args,
        results_bytes_max: 100,
        ..Wanted::default()
    };
    let (mut attack, first) = called(wanted);
    for sent in [1, 2] {
        assert!(
            !refuse(&mut attack, first.xid, &[5, 0]).is_empty(),
            "{sent}"
        );
    }
    assert_eq!(refuse(&mut attack, first.xid, &[5, 0]), []);
    let reason = TransportError::ReadChunks { max_chunks: 0 };
    let ended = attack.victim.app().result(1);
    assert_eq!(ended, Some(&Err(CallError::Transport(reason))));
    all_home(&mut attack, 2);
}

/// A call is folded once, and not for an error that asks for nothing that it does not do already.
#[test]
fn a_second_refusal_ends_the_call_with_its_reason() {
    let (mut attack, first) = called(results(&[700, 800, 900]));
    assert_eq!(refuse(&mut attack, first.xid, &[6, 2]).len(), 1);
    assert_eq!(refuse(&mut attack, first.xid, &[6, 1]), []);
    let reason = TransportError::WriteChunks { max_chunks: 1 };
    let ended = attack.victim.app().result(1);
    assert_eq!(ended, Some(&Err(CallError::Transport(reason))));
    all_home(&mut attack, 1);
    for (body, reason) in [
        ([6, 3], TransportError::WriteChunks { max_chunks: 3 }),
        ([7, 3], TransportError::Segments { max_segments: 3 }),
    ] {
        let (mut attack, first) = called(results(&[700, 800, 900]));
        assert_eq!(refuse(&mut attack, first.xid, &body), []);
        let ended = attack.victim.app().result(1);
        assert_eq!(ended, Some(&Err(CallError::Transport(reason))));
        all_home(&mut attack, 0);
    }
}
