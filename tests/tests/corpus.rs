//! The captured messages of Linux clients and servers: every one decodes and encodes to the same octets.

use std::collections::HashMap;

use rpcrdma_protocol::chunks::ChunkLists;
use rpcrdma_protocol::cm_private_data::PrivateData;
use rpcrdma_protocol::common::CommonPrefix;
use rpcrdma_protocol::rpc::{self, CallHeader, Direction, ReplyHeader};
use rpcrdma_protocol::v1::connection::{Config, Connection};
use rpcrdma_protocol::v1::{self, Body, Header};
use rpcrdma_protocol::v2::ReverseRequestSupport;
use rpcrdma_protocol::v2::connection::{Event, Role};
use rpcrdma_tests::fuzz_targets;

/// NFSv3 over version 1, between a client and a server of Linux 6.1.
const CORPUS: &str = include_str!("../corpus/linux-6.1-nfsv3.jsonl");

/// One line of the corpus.
struct Captured {
    line: usize,
    is_from_client: bool,
    /// Program, version and procedure of the call, or of the call that is answered.
    call: [u64; 3],
    octets: Vec<u8>,
    /// The handle that came with it as invalidated, if one did.
    invalidated: Option<u32>,
}

fn captured() -> Vec<Captured> {
    CORPUS
        .lines()
        .enumerate()
        .map(|(index, text)| parse(index + 1, text))
        .collect()
}

fn parse(line: usize, text: &str) -> Captured {
    let json: serde_json::Value = serde_json::from_str(text).expect("a JSON object");
    let from = json["from"].as_str().expect("from");
    assert!(matches!(from, "client" | "server"), "line {line}");
    let call = [0, 1, 2].map(|index| json["call"][index].as_u64().expect("call"));
    let digits = json["hex"].as_str().expect("hex").as_bytes();
    let octets = digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).expect("hex digits"))
        .collect();
    Captured {
        line,
        is_from_client: from == "client",
        call,
        octets,
        invalidated: json["invalidated"]
            .as_u64()
            .map(|handle| u32::try_from(handle).expect("a word")),
    }
}

/// The header of a captured message. Decoder and reference agree on it, and it encodes to the octets that it came from.
fn round_trip(message: &Captured) -> Header<'_> {
    fuzz_targets::run("v1_header", &message.octets);
    let header = v1::decode(&message.octets).expect("the reference takes it");
    assert!(header.chunk_lists().is_some(), "line {}", message.line);
    header
}

#[test]
fn every_message_decodes_and_encodes_to_the_same_octets() {
    let messages = captured();
    let mut calls = HashMap::new();
    let mut inline_calls = 0;
    let mut inline_replies = 0;
    for message in &messages {
        let header = round_trip(message);
        let line = message.line;
        if message.is_from_client {
            calls.insert(header.xid, message.call);
        }
        let Body::Msg(_) = header.body else { continue };
        let payload = &message.octets[header.header_bytes..];
        let mut space = vec![0xa5; payload.len()];
        let (xid, message_type) = rpc::peek(payload).expect("an RPC message");
        assert_eq!(xid, header.xid, "line {line}: RFC 8166 section 4.2.1");
        let header_bytes = if message.is_from_client {
            assert_eq!(message_type, Direction::Call, "line {line}");
            let (call, header_bytes) = CallHeader::decode(payload).expect("a call");
            let found = [call.program, call.version, call.procedure].map(u64::from);
            assert_eq!(found, message.call, "line {line}");
            assert_eq!(call.encode(&mut space), Ok(header_bytes), "line {line}");
            assert_eq!(call.encoded_bytes(), header_bytes);
            inline_calls += 1;
            header_bytes
        } else {
            assert_eq!(message_type, Direction::Reply, "line {line}");
            let (reply, header_bytes) = ReplyHeader::decode(payload).expect("a reply");
            assert_eq!(reply.encode(&mut space), Ok(header_bytes), "line {line}");
            assert_eq!(
                calls.get(&xid),
                Some(&message.call),
                "line {line}: answers a call seen"
            );
            inline_replies += 1;
            header_bytes
        };
        assert_eq!(
            space[..header_bytes],
            payload[..header_bytes],
            "line {line}"
        );
    }
    // So that an emptied or misread corpus is not a passed one.
    assert_eq!(messages.len(), 74);
    assert!(
        inline_calls > 30 && inline_replies > 30,
        "{inline_calls} and {inline_replies}"
    );
}

#[test]
fn the_corpus_has_every_kind_of_chunk() {
    let messages = captured();
    let lists: Vec<(bool, ChunkLists<'_>)> = messages
        .iter()
        .filter_map(|message| Some((message.is_from_client, *round_trip(message).chunk_lists()?)))
        .collect();
    let count = |predicate: &dyn Fn(&ChunkLists<'_>) -> bool| {
        lists.iter().filter(|(_, lists)| predicate(lists)).count()
    };
    assert!(count(&|lists| !lists.reads.is_empty()) > 0, "Read chunks");
    assert!(count(&|lists| !lists.writes.is_empty()) > 0, "Write chunks");
    assert!(count(&|lists| lists.reply.is_some()) > 0, "Reply chunks");
    assert!(count(&|lists| lists.are_empty()) > 0, "no chunks");
    assert_eq!(count(&|lists| !lists.reads.positions_are_aligned()), 0);
    for (is_from_client, lists) in &lists {
        assert!(
            *is_from_client || lists.reads.is_empty(),
            "RFC 8166 section 4.3.2: no reply has a Read list"
        );
    }
}

#[test]
fn no_cut_of_any_message_panics_or_reads_on() {
    for message in &captured() {
        let whole = round_trip(message);
        for cut in 0..message.octets.len() {
            match v1::decode(&message.octets[..cut]) {
                Ok(header) => assert_eq!((header, cut >= whole.header_bytes), (whole, true)),
                Err(error) => assert!(error.at <= cut && cut < whole.header_bytes),
            }
        }
    }
}

/// An end as Linux is: 4096 octets each way, and Receives for so many calls.
fn end(role: Role, calls: u16) -> Connection {
    let sizes = PrivateData {
        remote_invalidation: true,
        send_bytes: 4096,
        receive_bytes: 4096,
    };
    Connection::new(&Config {
        role,
        receive_reserve: calls + 1,
        receives_taken: 0,
        own: sizes,
        peer: sizes,
        reverse_requests: ReverseRequestSupport::None,
    })
}

/// What passed between a client and a server passes the state of either end as calls and replies, within the credits
/// that each granted; and what the server of Linux invalidates is what we would.
#[test]
fn the_state_of_a_connection_takes_every_message_for_what_it_is() {
    let messages = captured();
    let (mut server, mut client) = (end(Role::Server, 64), end(Role::Client, 128));
    let mut space = [0; 64];
    let mut only_handles = HashMap::new();
    let mut invalidated = 0;
    for message in &messages {
        let (line, octets) = (message.line, message.octets.as_slice());
        let xid = CommonPrefix::peek(octets).expect("four words").xid;
        if message.is_from_client {
            let encoded = client.encode_message(&mut space, xid, Direction::Call, 40);
            assert_eq!(encoded, Ok(28), "line {line}: the client had a credit");
            let event = server.handle_message(octets);
            server.handle_receives_posted(1);
            let Event::Call {
                xid: found,
                invalidate_handle,
                ..
            } = event
            else {
                panic!("line {line}: {event:?}");
            };
            assert_eq!(found, xid, "line {line}");
            only_handles.insert(xid, invalidate_handle);
        } else {
            let encoded = server.encode_message(&mut space, xid, Direction::Reply, 24);
            assert_eq!(encoded, Ok(28), "line {line}: a call waits");
            let event = client.handle_message(octets);
            client.handle_receives_posted(1);
            assert!(
                matches!(event, Event::Reply { xid: found, .. } if found == xid),
                "line {line}: {event:?}"
            );
            if let Some(handle) = message.invalidated {
                assert_eq!(only_handles.get(&xid), Some(&handle), "line {line}");
                invalidated += 1;
            }
        }
    }
    assert!(invalidated > 2, "{invalidated} replies with invalidation");
    assert_eq!(client.calls_available(), 64, "all calls were answered");
}
