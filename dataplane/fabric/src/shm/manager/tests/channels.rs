//! Tests of the choice of channels: single cases, and random sequences against a model.

use std::collections::HashMap;
use std::sync::Arc;

use proptest::prelude::*;

use super::support::*;
use crate::interface::{Manager as _, SetupError};
use crate::memory::Mapping;
use crate::shm::manager::channels::{Channels, Half, View};
use crate::shm::manager::wire::Request;
use crate::shm::{PortHandle, QueuePairNumber};

#[test]
fn connections_of_a_pair_share_a_channel() {
    let (mut client, mut server, address) = client_and_server();
    let (client_port, server_port) = (port(8), port(8));
    let one = establish(
        (&mut client, &client_port),
        (&mut server, &server_port),
        &address,
    );
    let two = establish(
        (&mut client, &client_port),
        (&mut server, &server_port),
        &address,
    );
    assert!(Arc::ptr_eq(
        &one.client_prepared.channel,
        &two.client_prepared.channel
    ));
    assert!(Arc::ptr_eq(
        &one.server_prepared.channel,
        &two.server_prepared.channel
    ));
    assert_ne!(one.client_prepared.local(), two.client_prepared.local());
    // A connection to another port uses another channel.
    let other = port(8);
    let three = establish((&mut client, &client_port), (&mut server, &other), &address);
    assert!(!Arc::ptr_eq(
        &one.client_prepared.channel,
        &three.client_prepared.channel
    ));
    assert_ne!(
        one.client_prepared.doorbell_number,
        three.client_prepared.doorbell_number
    );
    // The other server port has no channel yet, so its first doorbell bit is free.
    assert_eq!(three.server_prepared.doorbell_number, 0);
}

#[test]
fn a_channel_whose_port_let_go_is_replaced_at_both_ends() {
    let (mut client, mut server, address) = client_and_server();
    let (client_port, server_port) = (port(8), port(8));
    for client_lets_go in [true, false] {
        let old = establish(
            (&mut client, &client_port),
            (&mut server, &server_port),
            &address,
        );
        let (client_half, server_half) = (old.client_prepared.channel, old.server_prepared.channel);
        let kept = if client_lets_go {
            drop(client_half);
            server_half
        } else {
            drop(server_half);
            client_half
        };
        // The sockets of the old connection are still open: managers learn late that a half was dropped.
        let new = establish(
            (&mut client, &client_port),
            (&mut server, &server_port),
            &address,
        );
        assert!(!Arc::ptr_eq(&kept, &new.client_prepared.channel));
        assert!(!Arc::ptr_eq(&kept, &new.server_prepared.channel));
        // At the end that kept its half, the old half still has bit 0, so the new half has bit 1.
        let seed = if client_lets_go {
            &new.server_prepared
        } else {
            &new.client_prepared
        };
        assert_eq!(seed.doorbell_number, 1);
        drop(kept);
    }
}

#[test]
fn a_storm_of_requests_shares_one_channel() {
    let (mut client, mut server, address) = client_and_server();
    let (client_port, server_port) = (port(100), port(100));
    for _ in 0..100 {
        client.connect(&address, &client_port, b"").unwrap();
    }
    let storm = establish_all(
        (&mut client, &client_port),
        (&mut server, &server_port),
        100,
    );
    assert_eq!((client.channels.len(), server.channels.len()), (1, 1));
    drop(storm);
    client.channels.sweep();
    assert_eq!(client.channels.len(), 0);
}

#[test]
fn doorbell_numbers_are_used_again_when_the_mapping_is_gone() {
    let mut channels = Channels::new();
    let local = port(1);
    let half = |channels: &mut Channels| {
        let request = request_of(&port(1), &View::default());
        channels.server_half(&local, 1, &request).unwrap()
    };
    let halves: Vec<Half> = (0..4).map(|_| half(&mut channels)).collect();
    let numbers: Vec<u32> = halves.iter().map(|half| half.doorbell_number).collect();
    assert_eq!(numbers, [0, 1, 2, 3]);
    let mut halves = halves;
    halves.remove(1);
    assert_eq!(half(&mut channels).doorbell_number, 1);
}

#[test]
fn a_process_cannot_name_itself_after_another() {
    let mut channels = Channels::new();
    let (local, client) = (port(1), port(1));
    let request = request_of(&client, &View::default());
    let honest = channels.server_half(&local, 1, &request).unwrap();
    let claims = Request {
        alive: vec![honest.number],
        ..request
    };
    let thief = channels.server_half(&local, 2, &claims).unwrap();
    assert!(!Arc::ptr_eq(&honest.mapping, &thief.mapping));
    let again = channels.server_half(&local, 1, &claims).unwrap();
    assert!(Arc::ptr_eq(&honest.mapping, &again.mapping));
}

#[test]
fn a_reply_that_names_a_dead_channel_is_refused() {
    let mut channels = Channels::new();
    let (local, server) = (port(1), port(1));
    let view = channels.pin(local.identity, 1);
    assert_eq!(view, View::default());
    let half = channels
        .client_half(&local, server.identity, 1, 5, &view)
        .unwrap();
    channels.unpin(local.identity, 1);
    // The half is alive, so the view names its channel and the client finds it.
    let view = channels.pin(local.identity, 1);
    assert_eq!((view.seen_up_to, view.alive.as_slice()), (5, &[5][..]));
    let again = channels
        .client_half(&local, server.identity, 1, 5, &view)
        .unwrap();
    assert!(Arc::ptr_eq(&half.mapping, &again.mapping));
    channels.unpin(local.identity, 1);
    drop((half, again));
    let view = channels.pin(local.identity, 1);
    assert_eq!((view.seen_up_to, view.alive.as_slice()), (5, &[][..]));
    let dead = channels.client_half(&local, server.identity, 1, 5, &view);
    assert!(matches!(dead, Err(SetupError::Peer { .. })), "{dead:?}");
    // The number is unique in one server process only, so another server process may use it.
    let view = channels.pin(local.identity, 2);
    channels
        .client_half(&local, server.identity, 2, 5, &view)
        .unwrap();
}

fn request_of(client: &PortHandle, view: &View) -> Request {
    Request {
        core: client.identity,
        queue_pair: QueuePairNumber(0),
        seen_up_to: view.seen_up_to,
        alive: view.alive.clone(),
        private_data: Vec::new(),
    }
}

/// An operation of the model. Each connection goes through its steps, and each end may give up at any step.
#[derive(Clone, Copy, Debug)]
enum Op {
    Ask,
    /// The connection with this index makes its next step.
    Step(prop::sample::Index),
    /// The core of the client destroys its queue pair, if it has one, and the handshake ends.
    ClientEnds(prop::sample::Index),
    /// The core of the server does the same.
    ServerEnds(prop::sample::Index),
}

fn any_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        2 => Just(Op::Ask),
        6 => any::<prop::sample::Index>().prop_map(Op::Step),
        1 => any::<prop::sample::Index>().prop_map(Op::ClientEnds),
        1 => any::<prop::sample::Index>().prop_map(Op::ServerEnds),
    ]
}

#[derive(Debug, Default)]
struct Modelled {
    view: View,
    pinned: bool,
    /// The number of the channel, after the server has chosen it.
    number: Option<u64>,
    server: Option<Arc<Mapping>>,
    client: Option<Arc<Mapping>>,
    /// Whether the client and the server have given up.
    over: [bool; 2],
}

struct Model {
    client: Channels,
    server: Channels,
    client_port: PortHandle,
    server_port: PortHandle,
    connections: Vec<Modelled>,
    /// The partner of each half. A half has the same partner for its whole life. A mark in the memory of a half, written
    /// when it is new, identifies it.
    partners: HashMap<(bool, u64), u64>,
    marks: u64,
}

const PID: u32 = 1;

impl Model {
    fn new() -> Self {
        Self {
            client: Channels::new(),
            server: Channels::new(),
            client_port: port(1),
            server_port: port(1),
            connections: Vec::new(),
            partners: HashMap::new(),
            marks: 0,
        }
    }

    fn mark(&mut self, mapping: &Mapping) -> u64 {
        let place = mapping.start().cast::<[u8; 8]>();
        // SAFETY: the start of a mapping of this test; nothing else accesses it.
        let found = u64::from_le_bytes(unsafe { place.read() });
        if found != 0 {
            return found;
        }
        self.marks += 1;
        // SAFETY: as above.
        unsafe { place.write(self.marks.to_le_bytes()) };
        self.marks
    }

    fn ask(&mut self) {
        let view = self.client.pin(self.client_port.identity, PID);
        self.connections.push(Modelled {
            view,
            pinned: true,
            ..Modelled::default()
        });
    }

    fn step(&mut self, index: usize) {
        let request = request_of(&self.client_port, &self.connections[index].view);
        let connection = &mut self.connections[index];
        match (connection.number, &connection.client) {
            (None, _) if !connection.over[1] => {
                let half = self
                    .server
                    .server_half(&self.server_port, PID, &request)
                    .unwrap();
                connection.number = Some(half.number);
                connection.server = Some(half.mapping);
            }
            (Some(number), None) if !connection.over[0] => {
                let half = self.client.client_half(
                    &self.client_port,
                    self.server_port.identity,
                    PID,
                    number,
                    &connection.view,
                );
                connection.client = Some(
                    half.expect("an honest server names no dead channel")
                        .mapping,
                );
                self.meet(index);
            }
            (Some(_), Some(_)) => self.unpin(index),
            _ => {}
        }
    }

    /// Checks that the two halves of a connection belong together, if both are known.
    fn meet(&mut self, index: usize) {
        let connection = &self.connections[index];
        let (Some(client), Some(server)) = (connection.client.clone(), connection.server.clone())
        else {
            return;
        };
        let (client, server) = (self.mark(&client), self.mark(&server));
        for (from, to) in [((true, client), server), ((false, server), client)] {
            let partner = *self.partners.entry(from).or_insert(to);
            assert_eq!(partner, to, "a half met a second partner");
        }
    }

    fn unpin(&mut self, index: usize) {
        if std::mem::take(&mut self.connections[index].pinned) {
            self.client.unpin(self.client_port.identity, PID);
        }
    }

    fn apply(&mut self, op: Op) {
        let count = self.connections.len();
        match op {
            Op::Ask => self.ask(),
            _ if count == 0 => {}
            Op::Step(index) => self.step(index.index(count)),
            Op::ClientEnds(index) => {
                let index = index.index(count);
                self.connections[index].client = None;
                self.connections[index].over[0] = true;
                self.unpin(index);
            }
            Op::ServerEnds(index) => {
                let connection = &mut self.connections[index.index(count)];
                connection.server = None;
                connection.over[1] = true;
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    #[test]
    fn halves_meet_one_partner_only(ops in prop::collection::vec(any_op(), 1..80)) {
        let mut model = Model::new();
        for op in ops {
            model.apply(op);
        }
        // The pins of unfinished handshakes keep entries, so they are released first. Then nothing may remain.
        for index in 0..model.connections.len() {
            model.unpin(index);
        }
        model.connections.clear();
        model.client.sweep();
        model.server.sweep();
        prop_assert_eq!((model.client.len(), model.server.len()), (0, 0));
    }
}
