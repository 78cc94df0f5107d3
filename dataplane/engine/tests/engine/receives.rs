//! Receives, from the first connection of a place to the last.

use crate::support::{ECHO, Form, LATER, NEVER, Pair, pattern};
use rpcrdma_engine::CoreConfig;
use rpcrdma_fabric::interface::{Port, ReceiveQueueId};

const CONNECTIONS: u32 = 3;

fn config() -> CoreConfig {
    CoreConfig {
        connections_max: CONNECTIONS,
        credits_per_connection: 6,
        message_buffers: 4,
        calls_outstanding_max: 64,
        deferred_max: 64,
        ..CoreConfig::default()
    }
}

/// Receives that are posted, over all queues of the core.
fn posted(port: &impl Port) -> u32 {
    let queues = match crate::FORM {
        Form::OwnQueues => CONNECTIONS,
        Form::SharedQueue | Form::Segments => 1,
    };
    let queues = u16::try_from(queues).expect("few");
    (0..queues)
        .map(|queue| port.receives_posted(ReceiveQueueId(queue)))
        .sum()
}

/// Connections end in the middle of whatever they do, and others take their places: each finds all
/// its Receives posted, whatever the one before had in its hands.
#[test]
fn a_place_is_given_again_with_all_its_receives() {
    let mut pair = Pair::new(&config());
    let mut tag = 0;
    for round in 0..30 {
        let connections: Vec<_> = (0..CONNECTIONS).map(|_| pair.connect()).collect();
        for side in [&pair.client, &pair.server] {
            assert!(side.planted.iter().all(Result::is_ok), "{:?}", side.planted);
            assert_eq!(posted(side.core.port()), config().receives());
        }
        for &(client, server) in &connections {
            for (procedure, size) in [(ECHO, 50), (LATER, 300), (NEVER, 9000), (ECHO, 30_000)] {
                tag += 1;
                let args = pattern(size, tag);
                let application = pair.client.app_mut();
                application.want(client, procedure, &args, tag);
                let application = pair.server.app_mut();
                application.want(server, procedure, &args, tag);
            }
        }
        pair.turns_exactly(round);
        for (count, (client, server)) in connections.into_iter().enumerate() {
            if count % 2 == 0 {
                pair.client.app_mut().to_close.push(client);
            } else {
                pair.server.app_mut().to_close.push(server);
            }
        }
        let closed = (round + 1) * CONNECTIONS as usize;
        pair.until("all are closed", |pair| {
            pair.client.closed.len() == closed && pair.server.closed.len() == closed
        });
        for side in [&mut pair.client, &mut pair.server] {
            let application = side.app_mut();
            application.wanted.clear();
            application.deferred.clear();
            application.never.clear();
        }
    }
}
