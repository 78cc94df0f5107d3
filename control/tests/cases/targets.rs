//! Addresses that a node stays connected to.

use std::time::{Duration, Instant};

use rpcrdma_control::{
    ConnectError, ConnectOptions, Connection, GivenUp, ListenOptions, Reconnect, Target,
    TargetEvent, Versions,
};
use rpcrdma_engine::CloseReason;
use rpcrdma_fabric::interface::ManagerError;

use rpcrdma_testkit::Wait;
use rpcrdma_tuning::Profile;

use super::{connected, listening, options, server};
use crate::support::{ECHO, Fabric, PATIENCE, assert_is, foreign, profile, start};

/// Soon again, and for ever.
pub(crate) fn soon() -> Reconnect {
    Reconnect {
        first_ms: 5,
        most_ms: 20,
        ..Reconnect::default()
    }
}

pub(crate) fn next(target: &Target) -> TargetEvent {
    target.wait(PATIENCE).expect("something happens to it")
}

/// The next connection; failures may come before it.
pub(crate) fn established(target: &Target) -> Connection {
    let wait = Wait::begin("the connection of the target");
    loop {
        match next(target) {
            TargetEvent::Established { connection } => return connection,
            TargetEvent::Failed {
                retry_after, error, ..
            } => {
                assert!(retry_after <= Duration::from_millis(20), "{retry_after:?}");
                wait.look(|| error.to_string());
            }
            other => panic!("{other}"),
        }
    }
}

pub(crate) fn a_target_is_connected_again_when_its_server_comes_back<F: Fabric>() {
    let (mut running, address) = server::<F>(&profile(), 1);
    let mut client = start::<F>(&profile(), 1);
    let target = client.node.keep_connected(&address, options(), soon());
    let mut connection = established(&target);
    for _ in 0..3 {
        client.assert_echo(&connection, b"up");
        drop(running);
        match next(&target) {
            TargetEvent::Lost {
                connection: lost,
                reason,
                ..
            } => assert_eq!((lost, reason), (connection.clone(), CloseReason::Peer)),
            other => panic!("{other}"),
        }
        running = start::<F>(&profile(), 1);
        let listening = running.node.listen(&address, listening());
        listening.expect("the name is free again");
        let again = established(&target);
        assert_ne!(again.key, connection.key, "another connection");
        connection = again;
    }
    client.assert_echo(&connection, b"up");
    client.counts("connections_ready", 4);
}

pub(crate) fn a_target_waits_for_a_server_that_is_not_there_yet<F: Fabric>() {
    let address = F::address();
    let mut client = start::<F>(&profile(), 1);
    let target = client.node.keep_connected(&address, options(), soon());
    for _ in 0..2 {
        match next(&target) {
            TargetEvent::Failed { error, .. } => assert!(
                matches!(error, ConnectError::Fabric(ManagerError::Refused { .. })),
                "{error:?}"
            ),
            other => panic!("{other}"),
        }
    }
    let late = start::<F>(&profile(), 1);
    let listening = late.node.listen(&address, listening());
    listening.expect("the name is free");
    let connection = established(&target);
    client.assert_echo(&connection, b"late");
}

pub(crate) fn target_goes_on_by_the_other_address_of_its_server<F: Fabric>() {
    let (server, first) = server::<F>(&profile(), 1);
    let second = F::address();
    let listen = |address: &str| {
        server
            .node
            .listen(address, listening())
            .map(|it| it.address)
    };
    assert_eq!(listen(&second).expect("the name is free"), second);
    let mut client = start::<F>(&profile(), 1);
    let (_, behind_scheme) = second.split_once(':').expect("an address has a scheme");
    let both = format!("{first},{behind_scheme}");
    let target = client.node.keep_connected(&both, options(), soon());
    let mut at = (&first, &second);
    for _ in 0..3 {
        let connection = established(&target);
        assert_eq!(connection.address, *at.0);
        client.assert_echo(&connection, b"by either");
        let has_stopped = |address| server.node.stop_listening(address).expect("it runs");
        assert!(has_stopped(at.0));
        assert!(!has_stopped(at.0), "nothing is left there");
        client.assert_echo(&connection, b"what is there stays");
        server.node.close(&server.last_connection());
        match next(&target) {
            // TIME: an address that failed in the round before has its first wait, and a round can be shorter than that.
            TargetEvent::Lost { retry_after, .. } => {
                let first = Duration::from_millis(soon().first_ms.into());
                assert!(retry_after <= first, "{retry_after:?}");
            }
            other => panic!("{other}"),
        }
        listen(at.0).expect("the name is free again");
        at = (at.1, at.0);
    }
}

/// At any stage of the connection: one that nobody knows of would stay for ever, at both ends.
pub(crate) fn a_connection_ends_with_its_target_or_its_connect<F: Fabric>() {
    // A fifth needs that one of these has ended.
    let small = Profile {
        connections_max: 4,
        // TIME: software iWARP can miss the end of a connection that its peer gives up while it is accepted. The limit of the first
        // message finds one before that message, and keep-alive any other, within a third of `PATIENCE`. A client that keeps a
        // connection has sent the first message and answers all the same, so that the test finds it.
        stall_timeout_ms: 30_000,
        keep_alive_silent_ticks_max: 40,
        ..profile()
    };
    // TIME: software iWARP can also lose the answer to a first message. Then the limit of a connect ends it, and it is within
    // `PATIENCE`, so that the target tries again and the test goes on.
    let options = || ConnectOptions {
        timeout: PATIENCE / 12,
        ..options()
    };
    let (server, address) = server::<F>(&small, 1);
    let mut client = start::<F>(&small, 1);
    for round in 0..40 {
        let asked = client.control_counter("connects_sent");
        let ready = client.control_counter("connections_ready");
        let target = client.node.keep_connected(&address, options(), soon());
        let pending = client.node.connect_start(&address, options());
        match round % 4 {
            // While they are asked for.
            0 => {}
            1 => client.wait_until("a request", |client| {
                client.control_counter("connects_sent") > asked
            }),
            // When one is there, and nobody has looked.
            2 => client.wait_until("a connection", |client| {
                client.control_counter("connections_ready") > ready
            }),
            _ => drop(established(&target)),
        }
        drop((target, pending));
    }
    for (name, node) in [("server", &server), ("client", &client)] {
        node.wait_until(
            &format!("the end of all connections of the {name}"),
            |node| {
                let counters = node.node.cores()[0].counters();
                counters.connections_planted == counters.connections_closed
            },
        );
    }
    let connection = connected(&client, &address);
    client.assert_echo(&connection, b"room");
}

pub(crate) fn a_target_is_given_up_when_it_is_closed_or_cannot_be_connected<F: Fabric>() {
    let (_server, address) = server::<F>(&profile(), 1);
    let client = start::<F>(&profile(), 1);
    let target = client.node.keep_connected(&address, options(), soon());
    let connection = established(&target);
    client.node.close(&connection);
    let event = next(&target);
    assert_is!(
        event,
        TargetEvent::GivenUp(GivenUp::Closed(CloseReason::Local))
    );
    // TIME: the wait ends at once, and one that does not know the end takes all of its time.
    let begin = Instant::now();
    assert!(target.wait(PATIENCE).is_none(), "nothing follows");
    assert!(begin.elapsed() < PATIENCE, "at once");
    let bad = F::BAD_ADDRESSES[0];
    let target = client.node.keep_connected(bad, options(), soon());
    let event = next(&target);
    assert_is!(
        event,
        TargetEvent::GivenUp(GivenUp::Failed(ConnectError::Fabric(
            ManagerError::BadAddress { .. }
        )))
    );
    let thrice = Reconnect {
        attempts_max: Some(3),
        ..soon()
    };
    let nobody = F::address();
    let target = client.node.keep_connected(&nobody, options(), thrice);
    for _ in 0..2 {
        let event = next(&target);
        assert_is!(event, TargetEvent::Failed { .. });
    }
    let event = next(&target);
    assert_is!(event, TargetEvent::GivenUp(GivenUp::Failed(_)));
}

pub(crate) fn a_target_whose_server_speaks_another_version_is_not_asked_again<F: Fabric>() {
    let address = F::address();
    let server = foreign::start::<F>(&address, foreign::version_1_alone);
    let client = start::<F>(&profile(), 1);
    // TIME: the client remembers its versions for a minute, and asks again after milliseconds.
    for _ in 0..3 {
        let version_2 = ConnectOptions {
            versions: Versions::Two,
            ..options()
        };
        let target = client.node.keep_connected(&address, version_2, soon());
        let event = next(&target);
        assert_is!(
            event,
            TargetEvent::GivenUp(GivenUp::Failed(ConnectError::VersionMismatch {
                low: 1,
                high: 1,
                ..
            }))
        );
    }
    client.counts("target_attempts", 1);
    server.stop();
}

/// A server that was slow once is taken to speak version 1. One that speaks version 2 alone says so when it is called.
pub(crate) fn a_target_survives_a_first_message_that_was_not_answered<F: Fabric>() {
    let address = F::address();
    let silent = foreign::start::<F>(&address, foreign::nothing);
    let mut client = start::<F>(&profile(), 1);
    let impatient = ConnectOptions {
        // TIME: a device connects in less; where it does not, the target tries again.
        timeout: Duration::from_secs(2),
        ..options()
    };
    let later = Reconnect {
        first_ms: 500,
        most_ms: 500,
        ..soon()
    };
    let target = client.node.keep_connected(&address, impatient, later);
    let event = next(&target);
    assert_is!(event, TargetEvent::Failed { .. });
    silent.stop();
    let server = start::<F>(&profile(), 1);
    let version_2 = ListenOptions {
        versions: Versions::Two,
        ..listening()
    };
    let listening = server.node.listen(&address, version_2);
    listening.expect("the name is free");
    let args = b"up".to_vec();
    let wait = Wait::begin("a connection of version 2");
    loop {
        // It fails until the server listens, and is lost when version 1 is refused.
        match next(&target) {
            TargetEvent::Established { connection } => {
                if client.call(&connection, ECHO, &args) == Ok(args.clone()) {
                    assert_eq!(connection.version, 2);
                    return;
                }
            }
            TargetEvent::Failed { .. } | TargetEvent::Lost { .. } => {}
            event @ TargetEvent::GivenUp(_) => panic!("{event}"),
        }
        wait.look(String::new);
    }
}

pub(crate) fn a_target_that_is_dropped_is_not_tried_again<F: Fabric>() {
    let address = F::address();
    let client = start::<F>(&profile(), 1);
    let target = client.node.keep_connected(&address, options(), soon());
    let event = next(&target);
    assert_is!(event, TargetEvent::Failed { .. });
    drop(target);
    // What is asked for afterwards is done afterwards.
    client
        .node
        .listen(&F::address(), listening())
        .expect("the name is free");
    let attempts = client.control_counter("target_attempts");
    // The target that was dropped would be due in 20 ms at most. Targets are tried in the order in which they are due, and the
    // waits of this one add up to 77 ms at least.
    let tries = 10;
    let other = Reconnect {
        attempts_max: Some(tries),
        ..soon()
    };
    let nobody = F::address();
    let other = client.node.keep_connected(&nobody, options(), other);
    for _ in 1..tries {
        assert_is!(next(&other), TargetEvent::Failed { .. });
    }
    assert_is!(next(&other), TargetEvent::GivenUp(GivenUp::Failed(_)));
    let tried = client.control_counter("target_attempts") - attempts;
    assert_eq!(tried, tries.into());
}
