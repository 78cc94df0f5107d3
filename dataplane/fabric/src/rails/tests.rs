//! What the conformance suite (tests/tests/fabric_shm.rs) does not ask of rails: that suite uses one of two.

use rpcrdma_testkit::Wait;

use super::{OnRail, Rails};
use crate::clock::Clock;
use crate::interface::prelude::*;
use crate::interface::{
    CompletionBatch, CompletionKind, PortSetup, QueuePairId, ReceiveQueueAttributes,
    ReceiveQueueId, SendOptions, SetupError,
};
use crate::memory::{Arena, ArenaOptions, Buffer, HugePages, Pool, PoolShape};
use crate::shm;

const SHAPE: PoolShape = PoolShape {
    buffers: 64,
    buffer_bytes: 256,
    stride_bytes: 256,
    align_bytes: 64,
};

fn arena() -> Arena {
    let options = ArenaOptions {
        bytes: 1 << 20,
        huge_pages: HugePages::Never,
    };
    Arena::shared(&options).expect("memory")
}

fn port(arena: Arena, clock: &Clock, own_receive_queues: bool) -> (shm::Port, shm::PortHandle) {
    // The number tells cores apart that a peer maps, and these have one connection each.
    shm::Port::new(shm::PortConfig {
        own_receive_queues,
        ..shm::PortConfig::new(1, arena, clock.clone())
    })
    .expect("a port")
}

fn receive_queue(port: &mut impl PortSetup, depth: u32) -> ReceiveQueueId {
    let attributes = ReceiveQueueAttributes {
        depth,
        segments_max: 1,
    };
    port.create_receive_queue(attributes).expect("a queue")
}

/// A client that sends, on another port.
struct Client {
    port: shm::Port,
    queue_pair: QueuePairId,
    buffer: Buffer,
}

impl Client {
    fn send(&mut self) {
        let sent =
            self.port
                .post_send_copied(self.queue_pair, &self.buffer, 8, SendOptions::default());
        sent.expect("room in the ring");
        self.port.flush_sends();
    }
}

/// Two rails, a client of each, and their queue pairs.
fn served(clock: &Clock) -> (Rails<shm::Port>, [Client; 2], [QueuePairId; 2], Pool) {
    let first = arena();
    let second = first.for_another_port().expect("a descriptor");
    let (ports, handles): (Vec<_>, Vec<_>) = [first, second]
        .map(|arena| port(arena, clock, false))
        .into_iter()
        .unzip();
    let mut clients = Vec::new();
    for (server, handle) in ports.iter().zip(&handles) {
        let (mut client, client_handle) = port(arena(), clock, false);
        let buffer = client.carve(SHAPE).expect("room").take().expect("a buffer");
        let queue = receive_queue(&mut client, 1);
        let joint = shm::Joint::new(&client, &client_handle, server, handle).expect("a channel");
        let pair = joint.prepared_pair(&client_handle, handle).expect("a pair");
        let queue_pair = client.adopt_queue_pair(pair.0, queue).expect("it fits");
        let client = Client {
            port: client,
            queue_pair,
            buffer,
        };
        clients.push((client, pair.1));
    }
    let mut rails = Rails::new(ports).expect("two ports of one kind");
    let mut pool = rails.carve(SHAPE).expect("room");
    let queue = receive_queue(&mut rails, 16);
    for _ in 0..32 {
        let buffer = pool.take().expect("a buffer for each Receive");
        let receive = rails.create_receive(queue, &mut std::iter::once(buffer));
        let left = rails.post_receive(receive.expect("16 on each rail"));
        assert!(left.is_none(), "it is of one of the rails");
    }
    rails.flush_receives();
    assert_eq!(rails.receives_posted(queue), 16);
    let mut adopted = Vec::new();
    let clients = clients
        .into_iter()
        .enumerate()
        .map(|(rail, (client, it))| {
            let prepared = OnRail { rail, it };
            adopted.push(rails.adopt_queue_pair(prepared, queue).expect("it fits"));
            client
        })
        .collect::<Vec<_>>();
    let clients = clients.try_into().ok().expect("two clients");
    (
        rails,
        clients,
        adopted.try_into().expect("two queue pairs"),
        pool,
    )
}

#[test]
fn rail_that_fills_every_batch_keeps_no_other_waiting() {
    let clock = Clock::new();
    let (mut rails, mut clients, queue_pairs, _pool) = served(&clock);
    for client in &mut clients {
        (0..8).for_each(|_| client.send());
    }
    let mut seen = Vec::new();
    for _ in 0..16 {
        let mut batch = CompletionBatch::with_limit(1);
        rails.poll(clock.now(), &mut batch);
        for completion in batch.drain() {
            if let CompletionKind::Receive { receive, .. } = completion.kind {
                seen.push(completion.queue_pair);
                assert!(rails.post_receive(receive).is_none());
            }
        }
        rails.flush_receives();
    }
    for queue_pair in queue_pairs {
        let of_rail = seen.iter().filter(|it| **it == queue_pair).count();
        assert_eq!(of_rail, 8, "{seen:?}");
    }
    assert_ne!(seen[0], seen[1], "by turns");
}

#[test]
fn core_sleeps_until_either_rail_has_work() {
    let clock = Clock::new();
    let (mut rails, mut clients, queue_pairs, _pool) = served(&clock);
    let is_readable = |rails: &Rails<shm::Port>| {
        let event = rails.event();
        let mut polled = [rustix::event::PollFd::new(
            &event,
            rustix::event::PollFlags::IN,
        )];
        let now = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        rustix::event::poll(&mut polled, Some(&now)).expect("a descriptor") == 1
    };
    for (client, queue_pair) in clients.iter_mut().zip(queue_pairs) {
        let mut batch = CompletionBatch::new();
        let wait = Wait::begin("a core without work");
        while !rails.prepare_to_park() {
            wait.look(String::new);
            rails.poll(clock.now(), &mut batch);
            rails.flush_sends();
        }
        assert!(!is_readable(&rails));
        client.send();
        assert!(is_readable(&rails), "it is woken");
        assert!(!rails.prepare_to_park(), "there is work");
        rails.unpark();
        assert!(!is_readable(&rails), "it sleeps again next time");
        rails.poll(clock.now(), &mut batch);
        let arrived: Vec<_> = batch.drain().map(|it| it.queue_pair).collect();
        assert_eq!(arrived, [queue_pair]);
    }
}

#[test]
fn ports_that_share_receives_are_not_joined_with_those_that_do_not() {
    let clock = Clock::new();
    let first = arena();
    let second = first.for_another_port().expect("a descriptor");
    let ports = vec![port(first, &clock, false).0, port(second, &clock, true).0];
    let refused = Rails::new(ports).expect_err("two kinds");
    assert!(refused.to_string().contains("set receive_queues to own"));
    let none = Rails::<shm::Port>::new(Vec::new()).expect_err("no port");
    assert!(matches!(none, SetupError::Limit { .. }));
}
