//! Generated schedules: whatever the delays, windows, sizes and losses, nothing is lost, nothing waits for ever, and no
//! message comes without a Receive.

use proptest::prelude::*;

use rpcrdma_protocol::v2::connection::Role;

use super::connections::established;
use super::wire::rpc;
use super::world::{CLIENT, Damage, EndConfig, SERVER, Task, World};

const MESSAGE_BYTES_MAX: u32 = 60_000;

fn end_config() -> impl Strategy<Value = EndConfig> {
    (
        prop_oneof![Just(2), Just(3), 2_u16..=6, 2_u16..=40],
        prop_oneof![Just(1024), Just(4096), 1024_u32..=9000],
        prop_oneof![Just(4096), 4096_u32..=9000],
    )
        .prop_map(
            |(receive_reserve, send_bytes_max, receive_buffer_bytes)| EndConfig {
                receive_reserve,
                send_bytes_max,
                receive_buffer_bytes,
                message_bytes_max: MESSAGE_BYTES_MAX,
            },
        )
}

fn message_bytes() -> impl Strategy<Value = usize> {
    prop_oneof![
        6 => 8_usize..=200,
        3 => 900_usize..=9000,
        2 => 9000_usize..=40_000,
        1 => Just(MESSAGE_BYTES_MAX as usize),
        1 => Just(MESSAGE_BYTES_MAX as usize + 1),
    ]
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        12 => Just(Damage::None),
        1 => Just(Damage::RpcXid),
        1 => Just(Damage::RpcMessageType),
        1 => Just(Damage::ReadListMark),
        1 => Just(Damage::ReservedFlag),
        1 => Just(Damage::HeaderType),
    ]
}

fn task() -> impl Strategy<Value = Task> {
    prop_oneof![
        20 => (message_bytes(), message_bytes(), damage()).prop_map(
            |(call_bytes, reply_bytes, damage)| Task::Call { call_bytes, reply_bytes, damage }
        ),
        2 => Just(Task::Properties { host_authentication_bytes: 0 }),
        1 => (1_usize..20_000)
            .prop_map(|host_authentication_bytes| Task::Properties { host_authentication_bytes }),
        1 => (1_u64..150).prop_map(|duration| Task::Sleep { duration }),
        1 => (1_u64..300).prop_map(|duration| Task::WithholdGrants { duration }),
        4 => (1_u16..=40).prop_map(|limit| Task::LimitCredits { limit }),
    ]
}

fn tasks(duration: u64) -> impl Strategy<Value = Vec<(u64, usize, Task)>> {
    // The client has something to say in any case: without it the server may not speak.
    let first = (
        Just(0),
        Just(CLIENT),
        prop_oneof![
            Just(Task::Properties {
                host_authentication_bytes: 0
            }),
            Just(Task::Properties {
                host_authentication_bytes: 3000
            }),
            (message_bytes(), message_bytes()).prop_map(|(call_bytes, reply_bytes)| Task::Call {
                call_bytes,
                reply_bytes,
                damage: Damage::None
            }),
        ],
    );
    let rest = prop::collection::vec((0..duration, CLIENT..=SERVER, task()), 0..40);
    (first, rest).prop_map(|(first, mut rest)| {
        rest.insert(0, first);
        rest
    })
}

fn delays() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        Just(vec![0]),
        prop::collection::vec(0_u8..3, 1..20),
        prop::collection::vec(0_u8..60, 1..50),
    ]
}

fn finished(world: &World) {
    for end in &world.ends {
        let credits = end.connection.credits();
        assert!(credits.receives_posted > credits.unconsumed());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Crowded: all tasks within a short time, both ends down to their last credit.
    #[test]
    fn crowded_schedules_finish(
        client in end_config(),
        server in end_config(),
        delays in delays(),
        tasks in tasks(60),
    ) {
        let mut world = World::new(client, server, delays, false, tasks);
        world.run();
        finished(&world);
    }

    /// Spread out over keep-alive ticks, which add messages that use no credit.
    #[test]
    fn schedules_with_keep_alives_finish(
        client in end_config(),
        server in end_config(),
        delays in delays(),
        tasks in tasks(12_000),
    ) {
        let mut world = World::new(client, server, delays, true, tasks);
        world.run();
        finished(&world);
    }

    /// A burst of work around a tick, when keep-alives and grants meet.
    #[test]
    fn bursts_at_a_tick_finish(
        client in end_config(),
        server in end_config(),
        delays in delays(),
        tasks in tasks(40),
    ) {
        let tasks = tasks
            .into_iter()
            .map(|(at, side, task)| (if at == 0 { 1 } else { 3985 + at }, side, task))
            .collect();
        let mut world = World::new(client, server, delays, true, tasks);
        world.run();
        finished(&world);
    }

    /// The connection breaks, at any moment; all calls are answered on a later one.
    #[test]
    fn broken_connections_are_replaced(
        client in end_config(),
        server in end_config(),
        delays in delays(),
        tasks in tasks(300),
        breaks in prop::collection::vec(0_u64..500, 1..5),
    ) {
        let mut tasks = tasks;
        for at in breaks {
            tasks.push((at, CLIENT, Task::Break));
            // The client speaks first on the new connection too.
            tasks.push((at, CLIENT, Task::Properties { host_authentication_bytes: 0 }));
        }
        let mut world = World::new(client, server, delays, false, tasks);
        world.run();
        prop_assert!(world.breaks > 0);
        finished(&world);
    }
}

/// A peer that keeps its credits keeps their Receives; as it uses them, they come back. Raised again, the limit takes no
/// Receive that is still there.
#[test]
fn a_lowered_limit_takes_back_what_is_used() {
    let mut server = established(Role::Server, 33);
    assert_eq!(server.credits().unconsumed(), 32);
    assert_eq!(server.lower_credit_limit(2), 0, "all of it is promised");
    for used in 1..=31 {
        server.handle_message(&rpc(used, 0));
        server.handle_receives_posted(1);
        let credits = server.credits();
        assert_eq!(credits.unconsumed(), 32 - used);
        let owed = u32::from(used == 31);
        assert_eq!((credits.limit, credits.owed), (2, owed));
        assert!(!server.grant_due(), "the peer has one of two credits left");
        if used == 10 {
            assert_eq!(server.lower_credit_limit(2), 10);
        }
        if used == 20 {
            // 23 Receives, of which 12 are promised, and one is the spare.
            assert_eq!(server.raise_credit_limit(24), 2);
            assert_eq!(server.credits().owed, 12);
            assert_eq!(server.lower_credit_limit(2), 12);
        }
    }
    assert_eq!(server.lower_credit_limit(2), 10);
    let credits = server.credits();
    assert_eq!((credits.receives_reserved, credits.window), (3, 32));
    assert_eq!(server.lower_credit_limit(0), 1, "one credit is the least");
    let (limit, added) = (server.credits().limit, server.raise_credit_limit(99));
    assert_eq!((limit, added), (1, 31));
    assert_eq!(server.credits().limit, 32, "no more than was announced");
}

/// Two calls of the greatest size cross, each end with room for one message at a time.
#[test]
fn crossing_sequences_end_at_the_last_credit() {
    for reserve in 2..=5 {
        let end = EndConfig {
            receive_reserve: reserve,
            send_bytes_max: 4096,
            receive_buffer_bytes: 4096,
            message_bytes_max: MESSAGE_BYTES_MAX,
        };
        let call = Task::Call {
            call_bytes: MESSAGE_BYTES_MAX as usize,
            reply_bytes: MESSAGE_BYTES_MAX as usize,
            damage: Damage::None,
        };
        let tasks = vec![(0, CLIENT, call), (0, SERVER, call), (0, CLIENT, call)];
        let mut world = World::new(end, end, vec![1, 7, 0], false, tasks);
        world.run();
        assert_eq!(world.ends[CLIENT].answered, 2);
        assert_eq!(world.ends[SERVER].answered, 1);
    }
}

/// Each kind of damage costs its call and nothing else.
#[test]
fn damaged_calls_are_refused_and_the_others_answered() {
    let end = EndConfig {
        receive_reserve: 4,
        send_bytes_max: 4096,
        receive_buffer_bytes: 4096,
        message_bytes_max: MESSAGE_BYTES_MAX,
    };
    for (damage, call_bytes) in [
        (Damage::RpcXid, 100),
        (Damage::RpcMessageType, 100),
        (Damage::ReadListMark, 100),
        (Damage::ReservedFlag, 100),
        (Damage::HeaderType, 100),
        (Damage::RpcXid, 20_000),
        (Damage::ReservedFlag, 20_000),
    ] {
        let good = Task::Call {
            call_bytes: 100,
            reply_bytes: 100,
            damage: Damage::None,
        };
        let bad = Task::Call {
            call_bytes,
            reply_bytes: 100,
            damage,
        };
        let tasks = vec![
            (0, CLIENT, good),
            (1, CLIENT, bad),
            (2, SERVER, bad),
            (3, CLIENT, good),
            (4, SERVER, good),
        ];
        let mut world = World::new(end, end, vec![2], false, tasks);
        world.run();
        let counts = world.ends.each_ref().map(|end| (end.answered, end.refused));
        assert_eq!(counts, [(2, 1), (1, 1)], "{damage:?}");
    }
}

/// A message with another XID in the middle of a sequence costs the calls that it belongs to.
#[test]
fn a_sequence_with_a_foreign_xid_is_given_up() {
    let end = EndConfig {
        receive_reserve: 4,
        send_bytes_max: 4096,
        receive_buffer_bytes: 4096,
        message_bytes_max: MESSAGE_BYTES_MAX,
    };
    let call = |call_bytes, damage| Task::Call {
        call_bytes,
        reply_bytes: 100,
        damage,
    };
    let tasks = vec![
        (0, CLIENT, call(100, Damage::None)),
        (1, CLIENT, call(20_000, Damage::SequenceXid)),
        (2, CLIENT, call(20_000, Damage::None)),
    ];
    let mut world = World::new(end, end, vec![2], false, tasks);
    world.run();
    assert_eq!(world.ends[CLIENT].answered, 2);
}
