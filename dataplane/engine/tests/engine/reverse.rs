//! Calls of the server to the client, beside those of the client (RFC 8167; -00 section 5.2.5).

use crate::support::bulk::{
    BulkApp, BulkPair, GIVE, TAKE, Wanted, asking, bulk_config, bulk_pair, given,
};
use crate::support::fabric::{some_of, unless_skipped};
use crate::support::{App, ECHO, NEVER, NULL, PROGRAM, Pair, VERSION, pattern};
use rpcrdma_engine::{CallRefused, CoreConfig, Placement, PlacementConfig};
use rpcrdma_protocol::constants::{RTR_TYPE_EXPLICIT, RTR_TYPE_PLACED};
use rpcrdma_protocol::v2::ReverseRequestSupport;
use rpcrdma_protocol::v2::connection::Role;

use crate::support::raw::{Attack, CREDIT, error, message, null_call, null_reply, words};

const LEVELS: [ReverseRequestSupport; 3] = [
    ReverseRequestSupport::None,
    ReverseRequestSupport::Inline,
    ReverseRequestSupport::General,
];

/// Sizes of items, and of results: within a message, in parts or by RDMA, and in several buffers.
const SIZES: [usize; 5] = [4, 40, 3000, 20_000, 150_001];

/// A call number `tag` that sends an item, and one that fetches one.
fn both_kinds(tag: u64, placement: Placement) -> [Wanted; 2] {
    let size = SIZES[usize::try_from(tag).expect("small") % SIZES.len()];
    let bytes = u32::try_from(size).expect("small");
    [
        Wanted {
            procedure: TAKE,
            args: pattern(12, 5),
            items: vec![(8, pattern(size, tag))],
            placement,
            tag: 2 * tag,
            ..Wanted::default()
        },
        Wanted {
            procedure: GIVE,
            args: asking(&[bytes]),
            expected: vec![bytes],
            results_bytes_max: 100,
            placement,
            tag: 2 * tag + 1,
            ..Wanted::default()
        },
    ]
}

/// What [`GIVE`] answers for the call number `tag`: the bytes of its result, in the stream or beside it.
fn assert_given(app: &BulkApp, tag: u64) {
    let size = SIZES[usize::try_from(tag).expect("small") % SIZES.len()];
    let bytes = u32::try_from(size).expect("small");
    let ended = app.result(2 * tag + 1).expect("it ended");
    let (stream, items) = ended.as_ref().expect("it succeeds");
    let found = match items.first() {
        Some(item) => item.as_slice(),
        None => &stream[4..4 + size],
    };
    assert!(found == given(0, bytes), "call {tag}");
    assert!(matches!(app.result(2 * tag), Some(Ok(_))), "call {tag}");
}

/// Both ends call each other with all that there is, at once, and down to the last credit of either. One window of three
/// credits is enough, whichever end grants it: its peer keeps one of them for replies.
#[test]
fn both_ends_call_inline_in_parts_and_with_chunks_at_once() {
    unless_skipped!("both_ends_call_inline_in_parts_and_with_chunks_at_once");
    for (client, server) in some_of([(3, 3), (4, 4), (8, 8), (1, 3), (2, 3), (3, 2), (3, 1)]) {
        let [client, server] = [client, server].map(|credits_per_connection| CoreConfig {
            credits_per_connection,
            ..bulk_config()
        });
        let mut pair = bulk_pair(&client, &server);
        let (client, server) = pair.connect();
        let calls = 30;
        for tag in 0..calls {
            let placement = [Placement::Inline, Placement::Auto, Placement::Rdma]
                [usize::try_from(tag % 3).expect("small")];
            for wanted in both_kinds(tag, placement) {
                let at = |connection| Wanted {
                    connection,
                    ..wanted.clone()
                };
                let app = pair.client.app_mut();
                app.wanted.push_back(at(client));
                let app = pair.server.app_mut();
                app.wanted.push_back(at(server));
            }
        }
        let all = usize::try_from(2 * calls).expect("small");
        pair.until_ended(all, all);
        for (side, is_reverse) in [(&mut pair.client, true), (&mut pair.server, false)] {
            let app = side.app();
            for tag in 0..calls {
                assert_given(app, tag);
            }
            assert_eq!(
                app.reverse,
                vec![is_reverse; all],
                "services are told, whatever the form of the call"
            );
            let counters = side.counters();
            assert!(counters.rdma_reads > 0 && counters.rdma_writes > 0);
            assert!(counters.fragments_sent > 0);
            assert_eq!(counters.unmatched_replies, 0);
        }
    }
}

fn pair_with(client: ReverseRequestSupport, server: ReverseRequestSupport) -> BulkPair {
    let mut pair = bulk_pair(&bulk_config(), &bulk_config());
    pair.client.properties.reverse_requests = client;
    pair.server.properties.reverse_requests = server;
    pair
}

/// The server's calls go as far as both ends are ready: not at all, without chunks, or as any call. The client's go
/// whatever the levels are.
#[test]
fn calls_of_the_server_obey_the_levels_of_both_ends() {
    unless_skipped!("calls_of_the_server_obey_the_levels_of_both_ends");
    for client_level in LEVELS {
        for server_level in LEVELS {
            let level = client_level.min(server_level);
            let mut pair = pair_with(client_level, server_level);
            let (client, server) = pair.connect();
            let wanted = |connection, placement, tag| {
                both_kinds(tag, placement).map(|wanted| Wanted {
                    connection,
                    ..wanted
                })
            };
            // Number 4 has an item, or a result, of many messages.
            let app = pair.server.app_mut();
            app.wanted.extend(wanted(server, Placement::Inline, 0));
            app.wanted.extend(wanted(server, Placement::Auto, 4));
            app.wanted.extend(wanted(server, Placement::Rdma, 9));
            let app = pair.client.app_mut();
            app.wanted.extend(wanted(client, Placement::Rdma, 4));
            pair.until("an end of all calls", |pair| {
                let app = pair.server.app();
                app.refused.len() + app.ended.len() == 6 && pair.client.app().ended.len() == 2
            });
            assert_given(pair.client.app(), 4);
            let app = pair.server.app();
            let refused: Vec<_> = match level {
                ReverseRequestSupport::None => [0, 1, 8, 9, 18, 19]
                    .map(|tag| (tag, CallRefused::NotTaken))
                    .into(),
                ReverseRequestSupport::Inline => {
                    [18, 19].map(|tag| (tag, CallRefused::NoPlacement)).into()
                }
                ReverseRequestSupport::General => Vec::new(),
            };
            assert_eq!(
                app.refused, refused,
                "{client_level:?} and {server_level:?}"
            );
            assert!(!CallRefused::NotTaken.is_transient());
            if level != ReverseRequestSupport::None {
                assert_given(app, 0);
                assert_given(app, 4);
            }
            let reads = pair.client.counters().rdma_reads;
            assert_eq!(reads != 0, level == ReverseRequestSupport::General);
            let errors =
                pair.client.counters().errors_received + pair.server.counters().errors_received;
            assert_eq!(errors, 0, "nothing was sent that had to be refused");
        }
    }
}

/// Calls that one end leaves unanswered, more of them than there are credits, hold up none of its own.
#[test]
fn calls_without_an_answer_hold_up_nothing_the_other_way() {
    for (credits, client_waits) in [(2, true), (2, false), (4, true), (4, false)] {
        let config = CoreConfig {
            connections_max: 1,
            credits_per_connection: credits,
            message_buffers: 4,
            calls_outstanding_max: 64,
            deferred_max: 64,
            ..CoreConfig::default()
        };
        let mut pair = Pair::new(&config);
        let (client, server) = pair.connect();
        for tag in 0..40 {
            let bytes = pattern(
                [0, 64, 5000, 30_000][usize::try_from(tag % 4).expect("small")],
                tag,
            );
            let (forward, backward) = if client_waits {
                (NEVER, ECHO)
            } else {
                (ECHO, NEVER)
            };
            let app = pair.client.app_mut();
            app.want(client, forward, &bytes, tag);
            let app = pair.server.app_mut();
            app.want(server, backward, &bytes, tag);
        }
        pair.until("the answers of one direction", |pair| {
            let [client, server] = [&pair.client, &pair.server].map(|side| side.app());
            let (answered, waiting) = if client_waits {
                (server, server)
            } else {
                (client, client)
            };
            answered.ended.len() == 40 && waiting.never.len() == 40
        });
        let side = if client_waits {
            &pair.server
        } else {
            &pair.client
        };
        assert!(side.app().ended.iter().all(|(_, it)| it.is_ok()));
    }
}

// ---- A peer that sends what it likes ----

/// A client core that takes bulk data and announced a level, and has agreed with its server.
fn client(level: ReverseRequestSupport) -> Attack {
    let config = CoreConfig {
        connections_max: 2,
        bulk_buffers: 16,
        ..bulk_config()
    };
    let mut attack = Attack::announcing(level, Role::Client, false, &config, App::default());
    agree_as_server(&mut attack);
    attack
}

/// Answers the properties of a client with none.
fn agree_as_server(attack: &mut Attack) {
    attack.raw.got.clear();
    let grant = 60 << 16 | 20;
    attack.send(&words(&[0, 2, grant, 5, 0, 0]));
    attack.turns(10);
    attack.take();
}

/// Memory in a transmission group is refused as chunks are, by its first transmission; without any, such a call is taken.
#[test]
fn a_client_that_takes_no_chunks_takes_no_memory_in_groups() {
    let config = CoreConfig {
        connections_max: 2,
        bulk_buffers: 16,
        placement: Some(PlacementConfig {
            inline_segment_bytes: 1024,
            segments: 1,
            segment_bytes: 4096,
            spares: 8,
        }),
        ..bulk_config()
    };
    let level = ReverseRequestSupport::Inline;
    let mut attack = Attack::placing(level, Role::Client, &config, App::default());
    agree_as_server(&mut attack);
    let segments = [1, 7, 8, 0, 9];
    let item = [&[1, 40, 8, RTR_TYPE_EXPLICIT][..], &segments].concat();
    let direction = |kind: &[u32]| [&[1, 0, 40, 1, 0][..], kind].concat();
    let offered = direction(&[&[RTR_TYPE_EXPLICIT][..], &segments].concat());
    let request = |items: &[u32], directions: &[u32], transmissions| {
        let rpc = [2, 0, 2, PROGRAM, VERSION, NULL, 0, 0, 0, 0];
        let prefix = [2, 2, CREDIT, 0x5254_5201, 0];
        let end = [transmissions, 1, 40];
        [&prefix, items, directions, &end, &rpc].map(words).concat()
    };
    for transmissions in [1, 2] {
        attack.send(&request(&item, &[0], transmissions));
        attack.turns(10);
        assert_eq!(attack.take(), [error(2, &[5, 0])]);
        attack.send(&request(&[0], &offered, transmissions));
        attack.turns(10);
        assert_eq!(attack.take(), [error(2, &[9, 0])]);
    }
    assert_eq!(attack.victim.app().calls, 0);
    attack.send(&request(&[0], &direction(&[RTR_TYPE_PLACED]), 1));
    attack.turns(10);
    assert_eq!(attack.victim.app().calls, 1);
    attack.take();
    assert_calls(&mut attack, 5, |_, _| {});
    assert_eq!(attack.victim.core.bulk_buffers_free(), 16);
}

/// The client calls, and is answered; `meanwhile` comes between.
fn assert_calls(attack: &mut Attack, tag: u64, meanwhile: impl FnOnce(&mut Attack, u32)) {
    let connection = attack.connection();
    let app = attack.victim.app_mut();
    app.want(connection, NULL, &[], tag);
    attack.turns(10);
    let sent = attack.take();
    let (xid, _) = sent[0].split_first_chunk::<4>().expect("a call");
    let xid = u32::from_be_bytes(*xid);
    meanwhile(attack, xid);
    let reply = [xid, 1, 0, 0, 0, 0];
    attack.send(&message(xid, 1, &reply));
    attack.turns(10);
    let app = attack.victim.app();
    assert_eq!(app.result(tag), Some(&Ok(Vec::new())));
}

/// Calls in every form: whole, with a Read chunk, long, and with a Write chunk.
fn calls(xid: u32) -> [Vec<u8>; 4] {
    let rpc = words(&[xid, 0, 2, PROGRAM, VERSION, NULL, 0, 0, 0, 0]);
    let header = |header_type, lists: &[u32]| {
        [words(&[xid, 2, CREDIT, header_type, 0, 0]), words(lists)].concat()
    };
    let read = |position| [1, position, 7, 8, 0, 9, 0, 0, 0];
    [
        null_call(xid),
        [header(0, &read(40)), rpc.clone()].concat(),
        header(1, &read(0)),
        [header(0, &[0, 1, 1, 7, 8, 0, 9, 0, 0]), rpc].concat(),
    ]
}

#[test]
fn a_client_answers_calls_as_far_as_it_announced() {
    let (read_chunks, reply_resource, system) = ([5, 0], [9, 0], [10]);
    for level in [ReverseRequestSupport::None, ReverseRequestSupport::Inline] {
        let mut attack = client(level);
        for (call, xid) in calls(2).iter().zip(0..) {
            let expected = match (level, xid) {
                (ReverseRequestSupport::None, _) => error(2, &system),
                (_, 0) => null_reply(2),
                (_, 3) => error(2, &reply_resource),
                _ => error(2, &read_chunks),
            };
            attack.send(call);
            attack.turns(10);
            assert_eq!(attack.take(), [expected], "{level:?}, form {xid}");
        }
        let counters = attack.victim.counters();
        assert_eq!(counters.rdma_reads, 0);
        let served = u64::from(level == ReverseRequestSupport::Inline);
        assert_eq!(attack.victim.app().calls, served);
        assert_calls(&mut attack, 5, |_, _| {});
        assert_eq!(attack.victim.core.bulk_buffers_free(), 16);
    }
}

/// -00 section 5.2.5: a server that announced nothing shows by the chunks of a call that it takes such a reply.
#[test]
fn the_calls_of_a_server_tell_what_it_did_not_announce() {
    let mut attack = client(ReverseRequestSupport::General);
    let [.., with_write_chunk] = calls(2);
    attack.send(&with_write_chunk);
    attack.turns(10);
    let returned = words(&[2, 2, 0, 0, 1, 0, 0, 1, 1, 7, 0, 0, 9, 0, 0]);
    let reply = [returned, null_reply(2)[36..].to_vec()].concat();
    assert_eq!(attack.take(), [reply]);
    assert_eq!(attack.victim.app().calls, 1);
    assert_eq!(attack.victim.core.bulk_buffers_free(), 16);
}

/// The first part of a call draws the error, and no buffer is taken for the rest.
#[test]
fn a_call_in_parts_is_refused_by_its_first() {
    let mut attack = client(ReverseRequestSupport::None);
    let rpc = [2, 0, 2, PROGRAM, VERSION, NULL, 0, 0, 0, 0];
    attack.send(&message(2, 2, &rpc));
    attack.turns(10);
    assert_eq!(attack.take(), [error(2, &[10])]);
    attack.send(&message(2, 2, &[1; 100]));
    attack.send(&message(2, 0, &[1; 100]));
    attack.turns(10);
    assert_eq!(attack.take(), Vec::<Vec<u8>>::new());
    assert_eq!(attack.victim.core.message_buffers_in_use(), 0);
    assert_calls(&mut attack, 5, |_, _| {});
}

/// XIDs of the two directions are chosen by different ends, and mean different calls.
#[test]
fn a_call_and_a_call_of_the_peer_may_have_one_xid() {
    let mut attack = client(ReverseRequestSupport::Inline);
    assert_calls(&mut attack, 5, |attack, xid| {
        attack.send(&null_call(xid));
        attack.turns(10);
        assert_eq!(attack.take(), [null_reply(xid)]);
    });
    assert_eq!(attack.victim.app().calls, 1);
}
