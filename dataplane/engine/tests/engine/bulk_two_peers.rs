//! A peer with hostile chunk lists, beside another on the same core: what each of them is told, and that every buffer
//! comes home.

use crate::support::bulk::{BulkApp, TAKE};
use crate::support::fabric::rounds;
use crate::support::raw::{Attack, CREDIT, words};
use crate::support::{PROGRAM, VERSION};
use rpcrdma_engine::{CloseReason, Command, CoreConfig};
use rpcrdma_fabric::interface::QueuePairId;
use rpcrdma_protocol::v2::connection::Role;
use rpcrdma_testkit::Random;

/// Calls with chunks that are served at a time.
const BULK_CALLS: u32 = 6;
const BULK_BUFFERS: usize = 32;

fn config() -> CoreConfig {
    CoreConfig {
        connections_max: 2,
        credits_per_connection: 4,
        message_buffers: 4,
        message_bytes_max: 20_000,
        calls_outstanding_max: 16,
        deferred_max: 4,
        bulk_buffers: 32,
        bulk_buffer_bytes: 4096,
        bulk_calls: BULK_CALLS,
        ..CoreConfig::default()
    }
}

/// A core with a hostile peer and another one, each on a queue pair of its own.
struct Two {
    attack: Attack<BulkApp>,
    hostile: QueuePairId,
    other: QueuePairId,
    /// Credits that the hostile peer has left.
    credits: u32,
    /// The XID that comes next.
    xid: u32,
}

impl Two {
    fn new() -> Self {
        let mut attack = Attack::against(Role::Server, false, &config(), BulkApp::default());
        let other = attack.raw.queue_pair.expect("planted");
        attack.connect(false);
        let hostile = attack.raw.queue_pair.expect("planted");
        let mut two = Self {
            attack,
            hostile,
            other,
            credits: 1,
            xid: 0x1000,
        };
        two.assert_other_is_served();
        two
    }

    /// Sends as the hostile peer, with one credit of its own less.
    fn send_hostile(&mut self, message: &[u8]) {
        self.credits -= 1;
        self.attack.raw.queue_pair = Some(self.hostile);
        self.attack.send(message);
    }

    /// Takes what came, and the credits with it; the other peer has none that count.
    fn take_credits(&mut self) -> Vec<Vec<u8>> {
        for message in &self.attack.raw.got {
            let word = |index: usize| {
                let octets = message[4 * index..4 * index + 4].try_into().expect("four");
                u32::from_be_bytes(octets)
            };
            if word(3) != 4 {
                self.credits += word(2) & 0xffff;
            }
        }
        self.attack.take()
    }

    /// The other peer makes a call with a chunk, and has its reply.
    fn assert_other_is_served(&mut self) {
        self.take_credits();
        self.attack.raw.queue_pair = Some(self.other);
        self.xid += 1;
        let xid = self.xid;
        self.attack.send(&with_unused_chunk(xid, CREDIT));
        self.attack.turns(20);
        let replies = self.attack.take();
        let is_answered = replies
            .iter()
            .any(|reply| reply[..4] == xid.to_be_bytes() && reply[12..16] == [0; 4]);
        assert!(is_answered, "the other peer waits: {replies:?}");
        self.attack.raw.queue_pair = Some(self.hostile);
    }

    /// Every buffer is free.
    fn assert_all_home(&mut self) {
        self.attack.turns(50);
        let core = &mut self.attack.victim.core;
        assert_eq!(core.bulk_buffers_free(), BULK_BUFFERS);
        assert_eq!(core.message_buffers_in_use(), 0);
    }
}

fn rpc(xid: u32) -> [u32; 10] {
    [xid, 0, 2, PROGRAM, VERSION, TAKE, 0, 0, 0, 0]
}

/// A call with a Write chunk of no segments, which asks for its result in the stream.
fn with_unused_chunk(xid: u32, credit: u32) -> Vec<u8> {
    let header = [xid, 2, credit, 0, 0, 0, 0, 1, 0, 0, 0];
    [words(&header), words(&rpc(xid))].concat()
}

/// A peer that grants no credit does not take its replies. It holds up its own calls, and not those of others.
#[test]
fn a_peer_that_takes_no_replies_holds_up_no_other() {
    let mut two = Two::new();
    let nothing_granted = CREDIT & 0xffff_0000;
    let mut sent = 0;
    for round in 0..u32::try_from(rounds(200)).expect("small") {
        two.take_credits();
        while two.credits > 0 && sent < 4 * BULK_CALLS {
            // The first one is answered with the implicit credit.
            two.send_hostile(&with_unused_chunk(round, nothing_granted));
            sent += 1;
        }
        // A grant of nothing: a message that takes no credit, behind which the core looks at the connection.
        two.attack
            .send(&words(&[0, 2, nothing_granted, 1, 0, 0, 0, 0, 0]));
        two.attack.turns(2);
    }
    two.assert_other_is_served();
    two.assert_other_is_served();
    let connection = two.attack.victim.planted[1]
        .as_ref()
        .copied()
        .expect("planted");
    two.attack.victim.command(Command::Close {
        connection,
        reason: CloseReason::Local,
    });
    two.attack.turns(50);
    two.assert_other_is_served();
    two.assert_all_home();
}

/// A call with all three lists, or a part of a call, or a property set, in which some words are others.
fn mutated(xid: u32, random: &mut Random) -> Vec<u8> {
    const VALUES: [u32; 12] = [0, 1, 2, 3, 4, 7, 40, 1024, 4096, 1 << 20, 1 << 31, u32::MAX];
    let lists = [
        0, 1, 40, 7, 16, 0, 64, 1, 40, 7, 5, 0, 256, 0, 1, 2, 8, 100, 0, 0, 8, 100, 0, 200, 1, 0,
        0, 1, 1, 9, 4096, 0, 0,
    ];
    let mut message = match random.below(8) {
        0 => vec![xid, 2, CREDIT, 1, 0, 0, 1, 0, 7, 40, 0, 64, 0, 0, 0],
        1 => vec![xid, 2, CREDIT, 0, 2, 0, 0, 0, 0],
        2 => vec![xid, 2, CREDIT, 5, 0, 2, 1, 4, 4096, 2, 4, 4096],
        3 => vec![xid, 2, CREDIT, 0x5254_5201, 0, 0, 0, 1, 1, 40],
        4 => with_list_of(xid, &[0, 0, 1, 0, 0, 1, 1, 9, 64, 0, 0]),
        _ => with_list_of(xid, &lists),
    };
    if message[3] == 0 || message[3] > 5 {
        message.extend(rpc(xid));
    }
    for _ in 0..random.below(3) {
        // XID, version, credit and flags stay: what ends the connection at once shows little.
        let index = 5 + random.below(message.len() - 5);
        message[index] = VALUES[random.below(VALUES.len())];
    }
    words(&message)
}

fn with_list_of(xid: u32, lists: &[u32]) -> Vec<u32> {
    let mut message = vec![xid, 2, CREDIT, 0, 0];
    message.extend(lists);
    message
}

/// Whatever lists a peer sends, the one beside it is served, and every buffer comes home.
#[test]
fn any_chunk_lists_leave_the_other_peer_alone() {
    let mut sent = 0;
    for seed in 1..=u64::try_from(rounds(40)).expect("small") {
        let mut random = Random(seed);
        let mut two = Two::new();
        for xid in 0..24 {
            two.take_credits();
            if two.credits > 0 && !two.attack.raw.disconnected {
                sent += 1;
                two.send_hostile(&mutated(xid, &mut random));
            }
            if xid % 8 == 7 {
                two.assert_other_is_served();
            }
        }
        let connection = *two.attack.victim.planted[1].as_ref().expect("planted");
        if !two
            .attack
            .victim
            .closed
            .iter()
            .any(|(closed, _)| *closed == connection)
        {
            two.attack.victim.command(Command::Close {
                connection,
                reason: CloseReason::Local,
            });
        }
        two.attack.turns(50);
        two.assert_other_is_served();
        two.assert_all_home();
    }
    // Most runs end with a Read or Write that the peer does not allow.
    assert!(sent > rounds(100), "only {sent} messages went out");
}
