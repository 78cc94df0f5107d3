//! What a node reports of a core whose application panicked.

use std::sync::mpsc;

use rpcrdma_control::{EventSink, Node, NodeConfig, NodeEvent};
use rpcrdma_engine::{Application, CloseReason, Outcome, ReplyWriter, Request};
use rpcrdma_testkit::PATIENCE;

use super::Shm;
use crate::cases::{listening, options};
use crate::support::{ECHO, Fabric, profile, start};

struct Panics;

impl Application for Panics {
    fn call(&mut self, _: &Request<'_>, _: &mut ReplyWriter<'_>) -> Outcome {
        panic!("this test wants an application that panics")
    }
}

#[test]
fn each_ready_connection_of_a_core_that_panicked_is_reported_closed() {
    let (sink, events) = mpsc::channel();
    let config = NodeConfig {
        events: Some(EventSink::new(move |event| {
            // Nobody listens any more when the test ends.
            let _ = sink.send(event);
        })),
        ..NodeConfig::from_profile(&profile(), vec![None])
    };
    let server = Node::start(Shm::provider(&profile()), &config, |_| Panics);
    let server = server.expect("a small node fits on any machine");
    let address = Shm::address();
    server
        .listen(&address, listening())
        .expect("the name is free");
    let mut client = start::<Shm>(&profile(), 1);
    let connection = client
        .node
        .connect(&address, options())
        .expect("a server listens");
    let ended = client.call(&connection, ECHO, b"a call");
    assert!(ended.is_err(), "{ended:?}");
    let mut ready = None;
    let closed = loop {
        match events
            .recv_timeout(PATIENCE)
            .expect("the end of the connection")
        {
            NodeEvent::Ready { core, key, .. } => ready = Some((core, key)),
            NodeEvent::Closed {
                core, key, reason, ..
            } => break (core, key, reason),
            _ => {}
        }
    };
    assert_eq!(ready, Some((closed.0, closed.1)));
    assert_eq!(closed.2, CloseReason::Stopped);
}
