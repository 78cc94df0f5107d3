//! Memory that calls of ours expose.

use rpcrdma_protocol::v2::{Properties, TransportError};

use super::OutgoingState;
use super::call::CALL_SEGMENTS_MAX;
use crate::bulk::Placement;
use crate::close_reason::CloseReason;
use crate::config::CoreConfig;
use crate::handle::Command;
use crate::requester::TimedOut;
use crate::rpc::{CallError, ConnectionKey};
use crate::support::bulk::{
    BulkPair, GIVE, TAKE, Wanted, asking, bulk_config, bulk_pair, given, limited_bulk_pair,
};
use crate::support::fabric::Limits;

/// A call of tag 1 whose one result of 5000 bytes comes by RDMA Write.
fn one_item(connection: ConnectionKey) -> Wanted {
    Wanted {
        args: asking(&[5000]),
        expected: vec![5000],
        results_bytes_max: 100,
        ..Wanted::new(connection, GIVE, Placement::Rdma, 1)
    }
}

/// Whether a call has its reply, and waits for its windows.
fn is_any_answered(pair: &BulkPair) -> bool {
    let calls = &pair.client.core.state.outgoing.calls;
    calls
        .iter()
        .any(|(_, call)| call.state == OutgoingState::AwaitingInvalidation)
}

/// The calls of a connection that ends are looked for in portions. So one can time out whose slot for bulk data is another
/// call's by then.
#[test]
fn a_call_that_timed_out_does_not_end_the_call_that_has_its_slot() {
    for is_second in [false, true] {
        let mut pair = bulk_pair(&bulk_config(), &bulk_config());
        let (connection, _) = pair.connect();
        let application = pair.client.core.application_mut();
        application.wanted.push_back(one_item(connection));
        pair.now += 1;
        let _ = pair.client.core.iterate_at(pair.now);
        let state = &mut pair.client.core.state;
        let (index, call) = state.outgoing.calls.iter().next().expect("the call");
        let late = TimedOut {
            tag: 0,
            connection: ConnectionKey {
                generation: connection.generation.wrapping_sub(1),
                ..connection
            },
            xid: call.xid.wrapping_sub(1),
            bulk: Some(index),
            is_second,
        };
        state.outgoing.bulk_timed_out(&mut state.resources, &late);
        pair.until("the reply", |pair| {
            !pair.client.core.application().ended.is_empty()
        });
        let application = pair.client.core.application();
        assert!(matches!(application.result(1), Some(Ok(_))));
        assert_eq!(application.disconnected, []);
    }
}

/// The peer's properties change while a call waits for windows: it is planned, and not laid out
/// yet.
#[test]
fn a_call_is_laid_out_in_no_more_segments_than_it_has_places_for() {
    // One of its buffers has more segments than there are places for, or all of them together have.
    for segment_bytes_max in [1, 2048] {
        a_call_is_not_laid_out_in_segments_of(segment_bytes_max);
    }
}

fn a_call_is_not_laid_out_in_segments_of(segment_bytes_max: u32) {
    const MIB: usize = 1 << 20;
    let config = CoreConfig {
        credits_per_connection: 32,
        message_bytes_max: 2 << 20,
        ..bulk_config()
    };
    let limits = Limits {
        windows: 16,
        send_queue_depth: 256,
    };
    let mut pair = limited_bulk_pair(&config, &config, Some(limits));
    let (connection, _) = pair.connect();
    for tag in 0..2 {
        let application = pair.client.core.application_mut();
        application.wanted.push_back(Wanted {
            args: vec![0; 8],
            items: vec![(8, vec![7; MIB])],
            ..Wanted::new(connection, TAKE, Placement::Rdma, tag)
        });
    }
    // The server is not there yet.
    for _ in 0..3 {
        pair.now += 1;
        let _ = pair.client.core.iterate_at(pair.now);
    }
    let counters = pair.client.handle.counters();
    assert_eq!((counters.calls_sent, counters.awaiting_window), (2, 1));
    let peer = Properties {
        segment_bytes_max,
        segment_count_max: u32::MAX,
        ..pair.server.properties
    };
    pair.client.command(Command::AnswerProperties {
        connection,
        peer,
        answer: false,
    });
    pair.until("both calls end", |pair| {
        pair.client.core.application().ended.len() == 2
    });
    let application = pair.client.core.application();
    assert!(matches!(application.result(0), Some(Ok(_))));
    let system = CallError::Transport(TransportError::System);
    assert_eq!(application.result(1), Some(&Err(system)));
    for (_, call) in pair.client.core.state.outgoing.calls.iter() {
        assert_eq!(call.segments.capacity(), CALL_SEGMENTS_MAX);
    }
    assert_eq!(pair.client.core.state.outgoing.windows_open, 0);
}

/// Where memory is registered for a call, and no window bound, its key is none that the peer may
/// invalidate.
#[test]
fn invalidation_is_asked_for_where_the_device_has_it() {
    for (has_invalidation, remotely, locally) in [(true, 1, 0), (false, 0, 1)] {
        let mut pair = bulk_pair(&bulk_config(), &bulk_config());
        pair.client.core.state.resources.sends_with_invalidate = has_invalidation;
        let (connection, _) = pair.connect();
        let application = pair.client.core.application_mut();
        application.wanted.push_back(one_item(connection));
        pair.until("the reply", |pair| {
            !pair.client.core.application().ended.is_empty()
        });
        let result = pair.client.core.application().result(1);
        let items = result.map(|it| it.as_ref().expect("it succeeds").1.clone());
        assert_eq!(items, Some(vec![given(0, 5000)]));
        let counters = pair.client.handle.counters();
        let invalidated = (
            counters.windows_invalidated_remotely,
            counters.windows_invalidated_locally,
        );
        assert_eq!(invalidated, (remotely, locally));
    }
}

/// A call whose reply is here, and whose last windows come home in the next poll of its core.
fn a_call_whose_windows_are_on_their_way() -> (BulkPair, ConnectionKey) {
    let mut pair = bulk_pair(&bulk_config(), &bulk_config());
    pair.client.core.state.resources.sends_with_invalidate = false;
    let (connection, server) = pair.connect();
    let application = pair.client.core.application_mut();
    application.wanted.push_back(one_item(connection));
    for _ in 0..1000 {
        pair.now += 1;
        let _ = pair.client.core.iterate_at(pair.now);
        if is_any_answered(&pair) {
            return (pair, server);
        }
        pair.server.iterate(pair.now);
    }
    panic!("it never came");
}

#[test]
fn reply_that_arrived_is_reported_after_a_stall() {
    let (mut pair, _) = a_call_whose_windows_are_on_their_way();
    // The thread was stopped for longer than a call may take.
    pair.pass(bulk_config().call_timeout);
    let _ = pair.client.core.iterate_at(pair.now);
    let _ = pair.client.core.iterate_at(pair.now);
    let result = pair.client.core.application().result(1);
    assert!(matches!(result, Some(Ok(_))), "{result:?}");
}

#[test]
fn reply_that_arrived_is_reported_although_the_peer_leaves() {
    let (mut pair, server) = a_call_whose_windows_are_on_their_way();
    // The server has answered, and closes.
    pair.server
        .core
        .state
        .resources
        .begin_close(server.index, CloseReason::Local);
    for _ in 0..20 {
        pair.server.iterate(pair.now);
    }
    for _ in 0..20 {
        let _ = pair.client.core.iterate_at(pair.now);
    }
    let result = pair.client.core.application().result(1);
    assert!(matches!(result, Some(Ok(_))), "{result:?}");
}

#[test]
fn a_late_reply_that_is_here_costs_no_connection() {
    let config = bulk_config();
    let mut pair = bulk_pair(&config, &config);
    pair.client.core.state.resources.sends_with_invalidate = false;
    let (connection, _) = pair.connect();
    let application = pair.client.core.application_mut();
    application.wanted.push_back(one_item(connection));
    for _ in 0..10 {
        pair.now += 1;
        let _ = pair.client.core.iterate_at(pair.now);
    }
    for _ in 0..4 {
        pair.pass(config.call_timeout / 4);
        for _ in 0..20 {
            pair.now += 1;
            let _ = pair.client.core.iterate_at(pair.now);
        }
    }
    let result = pair.client.core.application().result(1);
    assert!(
        matches!(result, Some(Err(CallError::TimedOut))),
        "{result:?}"
    );
    for _ in 0..1000 {
        pair.now += 1;
        pair.server.iterate(pair.now);
        let _ = pair.client.core.iterate_at(pair.now);
        if is_any_answered(&pair) {
            break;
        }
    }
    assert!(is_any_answered(&pair));
    pair.pass(config.call_timeout);
    for _ in 0..20 {
        pair.client.iterate(pair.now);
    }
    assert_eq!(pair.client.closed, []);
}
