//! Tests of the connection manager of `verbs` on a device. Runs in the lab (tests/lab), on the device in `LAB_DEV`
//! and the address in `LAB_IP`.

mod ends;

use std::time::Duration;

use rpcrdma_fabric::interface::prelude::*;
use rpcrdma_fabric::interface::{
    ConnectionId, Manager as _, ManagerError, ManagerEvent, RejectReason,
};
use rpcrdma_fabric::verbs::{
    ManagerOptions, Port, PortConfig, Timers, check_free, device_at, device_towards,
};
use rpcrdma_testkit::{PATIENCE, Wait};

use self::ends::{End, at, connect, connect_to, device, event, is_iwarp, patient, until};

#[test]
fn a_connection_carries_messages_both_ways_and_ends() {
    let (mut client, mut server) = (End::new(), End::new());
    let (_, address) = server.listen();
    let connected = connect(&mut client, &mut server, &address);
    client.say(connected.client_queue_pair, b"a call");
    let mut ends = [&mut client, &mut server];
    let call = until(&mut ends, "the call", |ends| ends[1].received.pop());
    assert_eq!(call, b"a call");
    ends[1].say(connected.server_queue_pair, b"a reply");
    let reply = until(&mut ends, "the reply", |ends| ends[0].received.pop());
    assert_eq!(reply, b"a reply");

    ends[0].port.disconnect(connected.client_queue_pair);
    ends[0].manager.disconnect(connected.client);
    match event(&mut ends, 1, "the end") {
        ManagerEvent::Disconnected {
            connection,
            port_event,
        } => {
            assert_eq!(connection, connected.server);
            assert!(port_event.is_some());
        }
        _ => panic!("the peer is told of the end"),
    }
    ends[1].manager.disconnect(connected.server);
    until(&mut ends, "the end at both ports", |ends| {
        ends.iter().all(|end| end.gone.len() == 1).then_some(())
    });
    // The identifier that still waited for the peer's answer has received it.
    until(&mut ends, "the end of the client's identifier", |ends| {
        ends.iter()
            .all(|end| end.counter("connections") == 0 && end.events.is_empty())
            .then_some(())
    });
}

#[test]
fn port_disconnect_is_reported_to_both_managers() {
    let (mut client, mut server) = (End::new(), End::new());
    let (_, address) = server.listen();
    let connected = connect(&mut client, &mut server, &address);
    // Only the port knows about this disconnect, not the manager.
    server.port.disconnect(connected.server_queue_pair);
    let mut ends = [&mut client, &mut server];
    for index in [0, 1] {
        match event(&mut ends, index, "the end") {
            ManagerEvent::Disconnected { port_event, .. } => assert!(port_event.is_some()),
            _ => panic!("end {index} is told of the end"),
        }
    }
}

/// RDMA-CM sends no disconnect before the client has confirmed, and does not say so.
#[test]
fn end_before_the_client_has_confirmed_reaches_it() {
    if is_iwarp() {
        // The client confirms nothing there, and the end of the stream reaches it at any time.
        return;
    }
    let (mut client, mut server) = (End::new(), End::new());
    let (_listener, address) = server.listen();
    let asked = client.manager.connect(&address, &client.handle, b"");
    let asked = asked.expect("a device leads there");
    let ends = &mut [&mut client, &mut server];
    let ManagerEvent::ConnectRequest { connection, .. } = event(ends, 1, "the request") else {
        panic!("the request comes first")
    };
    ends[1].adopt_queue_pair(connection);
    let accepted = ends[1].manager.accept(connection, b"");
    accepted.expect("it waits for the answer");
    ends[1].manager.disconnect(connection);
    let reply = event(ends, 0, "the reply");
    assert!(matches!(reply, ManagerEvent::ConnectReply { .. }));
    ends[0].adopt_queue_pair(asked);
    let confirmed = ends[0].manager.confirm(asked);
    confirmed.expect("the server has sent no end yet");
    loop {
        match event(ends, 0, "the end") {
            ManagerEvent::Disconnected { connection, .. } => {
                assert_eq!(connection, asked);
                break;
            }
            ManagerEvent::Established { .. } => {}
            _ => panic!("only the end is left"),
        }
    }
}

#[test]
fn timers_and_retries_are_those_of_the_options_at_both_ends() {
    if is_iwarp() {
        println!(
            "skipped timers_and_retries_are_those_of_the_options_at_both_ends: TCP has its own, \
             and the kernel drives the queue pair"
        );
        return;
    }
    let options = ManagerOptions {
        min_rnr_timer_code: 12,
        ack_timeout_exponent: 17,
        retry_count: 5,
        rnr_retry_count: 7,
        ..patient()
    };
    // RDMA-CM's defaults at the server: the values that the peer requests, and 0 for the RNR timer.
    let wishes = ManagerOptions {
        ack_timeout_exponent: 16,
        retry_count: 3,
        rnr_retry_count: 0,
        ..patient()
    };
    let (mut client, mut server) = (End::with(wishes, |_| {}), End::with(options, |_| {}));
    let (_, address) = server.listen();
    client
        .manager
        .connect(&address, &client.handle, &[])
        .expect("the address can be used");
    let mut ends = [&mut client, &mut server];
    let ManagerEvent::ConnectRequest { connection, .. } = event(&mut ends, 1, "the request") else {
        panic!("a request comes first")
    };
    let End {
        manager, handle, ..
    } = &mut *ends[1];
    let seed = manager.prepare(connection, handle).expect("a queue pair");
    let expected = Timers {
        ack_timeout_exponent: 17,
        retry_count: 5,
        rnr_retry_count: 7,
        min_rnr_timer_code: 12,
    };
    assert_eq!(seed.queue_pair.timers().expect("it tells"), expected);
    manager.accept(connection, &[]).expect("the client waits");
    drop(seed);
    let ManagerEvent::ConnectReply { connection, .. } = event(&mut ends, 0, "the reply") else {
        panic!("a reply comes next")
    };
    let End {
        manager, handle, ..
    } = &mut *ends[0];
    let seed = manager.prepare(connection, handle).expect("a queue pair");
    let expected = Timers {
        ack_timeout_exponent: 16,
        retry_count: 3,
        rnr_retry_count: 0,
        min_rnr_timer_code: 12,
    };
    assert_eq!(seed.queue_pair.timers().expect("it tells"), expected);
}

#[test]
fn reads_in_flight_are_what_both_ends_can_do() {
    let mut client = End::with(patient(), |config| {
        (config.responder_resources, config.initiator_depth) = (4, 16);
    });
    let mut server = End::with(patient(), |config| {
        (config.responder_resources, config.initiator_depth) = (7, 0);
    });
    let (_, address) = server.listen();
    let connected = connect(&mut client, &mut server, &address);
    // On iWARP this end posts no RDMA Reads.
    let reads = |depth: u8| if is_iwarp() { 0 } else { depth };
    assert_eq!(connected.client_depth, reads(7), "what the server serves");
    assert_eq!(connected.server_depth, 0, "what the server wants");
    let mut greedy = End::with(patient(), |config| {
        (config.responder_resources, config.initiator_depth) = (1, 3);
    });
    let mut server = End::new();
    let (_, address) = server.listen();
    let connected = connect(&mut greedy, &mut server, &address);
    let expected = (reads(3), reads(1));
    assert_eq!((connected.client_depth, connected.server_depth), expected);
}

#[test]
fn a_rejection_brings_its_reason_and_private_data() {
    let (mut client, mut server) = (End::new(), End::new());
    let (listener, address) = server.listen();
    for reason in [
        RejectReason::ConnectionsExhausted,
        RejectReason::PeerLimit,
        RejectReason::Draining,
        RejectReason::VersionMismatch,
        RejectReason::NotPermitted,
        RejectReason::Other(0xdead_beef),
    ] {
        let id = client
            .manager
            .connect(&address, &client.handle, &[])
            .expect("the address can be used");
        let mut ends = [&mut client, &mut server];
        let ManagerEvent::ConnectRequest {
            connection,
            listener: by,
            ..
        } = event(&mut ends, 1, "the request")
        else {
            panic!("a request comes first")
        };
        assert_eq!(by, listener);
        ends[1].manager.reject(connection, reason, b"no");
        match event(&mut ends, 0, "the rejection") {
            ManagerEvent::Rejected {
                connection,
                reason: told,
                private_data,
            } => {
                assert_eq!((connection, told), (id, reason));
                assert_eq!(private_data, b"no");
            }
            ManagerEvent::Failed { error, .. } => panic!("{error} instead of {reason}"),
            _ => panic!("the client is rejected"),
        }
    }
    assert_eq!(server.counter("connections"), 0);
}

fn failed(event: ManagerEvent<Port>) -> ManagerError {
    match event {
        ManagerEvent::Failed { error, .. } => error,
        _ => panic!("the connect fails"),
    }
}

#[test]
fn nobody_listens_is_refused() {
    let (mut client, mut server) = (End::new(), End::new());
    let (listener, address) = server.listen();
    server.manager.close_listener(listener);
    client
        .manager
        .connect(&address, &client.handle, &[])
        .expect("the address can be used");
    let error = failed(event(&mut [&mut client], 0, "the refusal"));
    assert!(matches!(error, ManagerError::Refused { .. }), "{error:?}");
    assert!(error.to_string().contains(&address), "{error}");
}

#[test]
fn addresses_without_a_device_say_so() {
    // TIME: where a network does not say that an address is not there, it takes this time to know; each error is the same
    // whenever it comes.
    let options = ManagerOptions {
        resolve_timeout: Duration::from_secs(2),
        ..patient()
    };
    let mut client = End::with(options, |_| {});
    for (address, word) in [
        // An address of the documentation network, to which there is no route.
        ("rdma:192.0.2.77:20049", "cannot be reached"),
        // The loopback interface belongs to no RDMA device.
        ("rdma:127.0.0.1:20049", "cannot be reached"),
        ("rdma:no-such-host.invalid:20049", "no-such-host.invalid"),
    ] {
        client
            .manager
            .connect(address, &client.handle, &[])
            .expect("the address can be used");
        let error = failed(event(&mut [&mut client], 0, "the failure")).to_string();
        assert!(error.contains(word), "{error}");
    }
    for address in ["rdma:192.0.2.77:0", "rdma:192.0.2.77:20049"] {
        let error = client.manager.listen(address).expect_err("no device");
        assert!(error.to_string().contains("rdma link"), "{error}");
    }
    assert_eq!(client.counter("connections"), 0);
}

#[test]
fn an_address_in_use_is_named() {
    let (mut first, mut second) = (End::new(), End::new());
    let (_, address) = first.listen();
    let error = second.manager.listen(&address).expect_err("in use");
    assert!(matches!(error, ManagerError::InUse { .. }), "{error:?}");
    let error = check_free(&address).expect_err("in use");
    assert!(matches!(error, ManagerError::InUse { .. }), "{error:?}");
    let wildcard = format!("rdma:0.0.0.0:{}", address.rsplit(':').next().unwrap_or("0"));
    let error = second.manager.listen(&wildcard).expect_err("in use");
    assert!(matches!(error, ManagerError::InUse { .. }), "{error:?}");
    // The same with swapped roles.
    let listener = first.manager.listen("rdma:0.0.0.0:0").expect("a port");
    let wildcard = first
        .manager
        .listener_address(listener)
        .expect("it listens");
    let port = wildcard
        .rsplit(':')
        .next()
        .and_then(|port| port.parse().ok());
    let address = at(port.expect("a port"));
    for error in [
        second.manager.listen(&address).map(drop),
        check_free(&address),
    ] {
        let error = error.expect_err("in use");
        assert!(matches!(error, ManagerError::InUse { .. }), "{error:?}");
    }
    drop(first);
    // Ports are those of connections as well: one of another test may have it for a while.
    rpcrdma_testkit::until("nobody listens", || check_free(&address).ok());
}

#[test]
fn a_wildcard_listens_on_all_addresses() {
    let (mut client, mut server) = (End::new(), End::new());
    let listener = server.manager.listen("rdma:0.0.0.0:0").expect("a port");
    let told = server
        .manager
        .listener_address(listener)
        .expect("its address");
    let port = told.strip_prefix("rdma:0.0.0.0:").expect("the wildcard");
    connect(&mut client, &mut server, &at(port.parse().expect("a port")));
}

#[test]
fn a_server_that_does_not_answer_is_given_up() {
    // TIME: long enough for the request to arrive; where it was not, the client asks again.
    let impatient = ManagerOptions {
        handshake_timeout: Duration::from_secs(5),
        ..patient()
    };
    let (mut client, mut server) = (End::with(impatient, |_| {}), End::new());
    let (_, address) = server.listen();
    let mut ends = [&mut client, &mut server];
    let mut attempts = 0;
    let wait = Wait::begin("a request that arrives before its client gives up");
    let (connection, error) = loop {
        wait.look(|| format!("{attempts} attempts"));
        attempts += 1;
        let End {
            manager, handle, ..
        } = &mut *ends[0];
        manager
            .connect(&address, handle, &[])
            .expect("the address can be used");
        let error = failed(event(&mut ends, 0, "the end of patience"));
        if !ends[1].events.is_empty() {
            break (event(&mut ends, 1, "the request"), error);
        }
    };
    let ManagerEvent::ConnectRequest { connection, .. } = connection else {
        panic!("a request comes first")
    };
    assert!(
        matches!(error, ManagerError::Unreachable { .. }),
        "{error:?}"
    );
    assert_eq!(ends[0].counter("handshakes_timed_out"), attempts);
    // The server learns that its client has disconnected, at the latest when it answers.
    let End {
        manager, handle, ..
    } = &mut *ends[1];
    match manager.prepare(connection, handle) {
        Ok(seed) => {
            let _gone = manager.accept(connection, &[]);
            drop(seed);
        }
        Err(error) => println!("the server learns: {error}"),
    }
    ends[1].manager.disconnect(connection);
    until(&mut ends, "the end of all", |ends| {
        // Requests of attempts before, where there were any.
        for event in std::mem::take(&mut ends[1].events) {
            if let ManagerEvent::ConnectRequest { connection, .. } = event {
                ends[1].manager.disconnect(connection);
            }
        }
        ends.iter()
            .all(|end| end.counter("connections") == 0)
            .then_some(())
    });
}

#[test]
fn a_client_that_gives_up_leaves_nothing_behind() {
    let (mut client, mut server) = (End::new(), End::new());
    let (_, address) = server.listen();
    let id = client
        .manager
        .connect(&address, &client.handle, &[])
        .expect("the address can be used");
    let mut ends = [&mut client, &mut server];
    let ManagerEvent::ConnectRequest { connection, .. } = event(&mut ends, 1, "the request") else {
        panic!("a request comes first")
    };
    ends[0].manager.disconnect(id);
    assert!(matches!(
        ends[0].manager.confirm(id),
        Err(ManagerError::UnknownConnection)
    ));
    ends[1].manager.disconnect(connection);
    for end in &ends {
        assert_eq!(end.counter("connections"), 0);
    }
    // Both continue to work.
    let (client, server) = (&mut client, &mut server);
    client.events.clear();
    server.events.clear();
    connect(client, server, &address);
}

#[test]
fn calls_out_of_order_are_errors() {
    let (mut client, mut server) = (End::new(), End::new());
    let (_, address) = server.listen();
    let id = client
        .manager
        .connect(&address, &client.handle, &[])
        .expect("the address can be used");
    assert!(client.manager.confirm(id).is_err());
    assert!(client.manager.accept(id, &[]).is_err());
    assert!(client.manager.prepare(id, &client.handle).is_err());
    let long = [0; 57];
    assert!(matches!(
        client.manager.connect(&address, &client.handle, &long),
        Err(ManagerError::Setup(_))
    ));
    let unknown = ConnectionId(u64::MAX);
    assert!(client.manager.prepare(unknown, &client.handle).is_err());
    client.manager.reject(unknown, RejectReason::Draining, &[]);
    client.manager.disconnect(unknown);
    let zero = client
        .manager
        .connect("rdma:192.0.2.1:0", &client.handle, &[]);
    assert!(matches!(zero, Err(ManagerError::BadAddress { .. })));
}

#[test]
fn devices_are_found_by_address() {
    assert_eq!(device_at(&at(0)).expect("our address"), Some(device()));
    assert_eq!(device_at("rdma:0.0.0.0:1").expect("a wildcard"), None);
    assert_eq!(device_at("rdma:[::]:1").expect("a wildcard"), None);
    assert!(device_at("rdma:192.0.2.77:1").is_err());
    assert_eq!(
        device_towards(&at(20049), PATIENCE).expect("our network"),
        device()
    );
    // TIME: the device is never found, so any time is enough.
    let short = Duration::from_secs(2);
    assert!(device_towards("rdma:192.0.2.77:1", short).is_err());
}

/// Many clients at once, as after a server's restart: none is lost.
#[test]
fn a_storm_of_connects_is_accepted_without_loss() {
    const CONNECTS: usize = 500;
    let many = |config: &mut PortConfig| {
        config.queue_pairs_max = 512;
        config.work_requests_max = 2048;
    };
    let mut client = End::with(patient(), many);
    let mut server = End::with(patient(), many);
    let (_, address) = server.listen();
    // TIME: software iWARP gives a server ten seconds to answer, so fewer clients wait at the same time there.
    let at_once = if is_iwarp() { 20 } else { CONNECTS };
    let (mut asked, mut established, mut storm) = (0, [0, 0], Vec::new());
    let mut ends = [&mut client, &mut server];
    until(&mut ends, "the storm", |ends| {
        while asked < CONNECTS && asked < established[1] + at_once {
            let End {
                manager, handle, ..
            } = &mut *ends[0];
            manager
                .connect(&address, handle, b"storm")
                .expect("the address can be used");
            asked += 1;
        }
        for (index, end) in ends.iter_mut().enumerate() {
            for event in std::mem::take(&mut end.events) {
                end.note(&event);
                match event {
                    ManagerEvent::ConnectRequest { connection, .. } => {
                        end.adopt_queue_pair(connection);
                        end.manager.accept(connection, &[]).expect("it waits");
                    }
                    ManagerEvent::ConnectReply { connection, .. } => {
                        let (queue_pair, _) = end.adopt_queue_pair(connection);
                        end.manager.confirm(connection).expect("it waits");
                        storm.push((connection, queue_pair));
                    }
                    ManagerEvent::Established { .. } => established[index] += 1,
                    ManagerEvent::Failed { error, .. } => panic!("lost: {error}"),
                    ManagerEvent::Rejected { reason, .. } => panic!("rejected: {reason}"),
                    ManagerEvent::Disconnected { .. } => panic!("end {index} lost one"),
                    ManagerEvent::ListenerLost { .. }
                    | ManagerEvent::ListenerRestored { .. }
                    | ManagerEvent::LinkDown { .. } => panic!("the device and its link stay"),
                }
            }
        }
        (established == [CONNECTS, CONNECTS]).then_some(())
    });
    // Each of them carries a message.
    for (_, queue_pair) in &storm {
        ends[0].say(*queue_pair, b"here");
        until(&mut ends, "a message", |ends| ends[1].received.pop());
    }
    for (connection, queue_pair) in storm {
        ends[0].port.disconnect(queue_pair);
        ends[0].manager.disconnect(connection);
    }
    until(&mut ends, "the end of the storm", |ends| {
        for event in std::mem::take(&mut ends[1].events) {
            ends[1].note(&event);
            if let ManagerEvent::Disconnected { connection, .. } = event {
                ends[1].manager.disconnect(connection);
            }
        }
        ends.iter()
            .all(|end| end.counter("connections") == 0 && end.gone.len() == CONNECTS)
            .then_some(())
    });
}

#[test]
fn ipv6_connects() {
    let Ok(ip) = std::env::var("LAB_IP6") else {
        panic!("LAB_IP6: run this in the lab, tests/lab")
    };
    let (mut client, mut server) = (End::new(), End::new());
    let listener = server.manager.listen(&format!("rdma:[{ip}]:0"));
    let listener = listener.expect("an address of the device");
    let bound = server.manager.listener_address(listener);
    let bound = bound.expect("it listens");
    connect(&mut client, &mut server, &bound);
    // A listener on one address hears no other.
    let port = bound.rsplit(':').next().expect("its port");
    client
        .manager
        .connect(&at(port.parse().expect("a port")), &client.handle, &[])
        .expect("the address can be used");
    client.events.clear();
    let error = until(&mut [&mut client, &mut server], "the refusal", |ends| {
        ends[0].events.drain(..).find_map(|event| match event {
            ManagerEvent::Failed { error, .. } => Some(error),
            _ => None,
        })
    });
    let text = error.to_string();
    let word = if is_iwarp() {
        "refused"
    } else {
        "listens only on other addresses"
    };
    assert!(text.contains(word), "{text}");
    // An IPv6 wildcard takes IPv4 as well, but not on software iWARP.
    let all = server
        .manager
        .listen("rdma:[::]:0")
        .expect("any port is free");
    let bound = server.manager.listener_address(all).expect("it listens");
    let port = bound.strip_prefix("rdma:[::]:").expect("the wildcard");
    connect(&mut client, &mut server, &format!("rdma:[{ip}]:{port}"));
    if !is_iwarp() {
        connect(&mut client, &mut server, &at(port.parse().expect("a port")));
    }
}

/// A link-local address needs its interface.
#[test]
fn ipv6_with_a_zone_connects() {
    let Some(address) = link_local() else {
        panic!("the device's interface has a link-local address")
    };
    let (mut client, mut server) = (End::new(), End::new());
    let listener = server
        .manager
        .listen(&format!("rdma:[{address}]:0"))
        .expect("an address of the device");
    let told = server
        .manager
        .listener_address(listener)
        .expect("it listens");
    let port = told.rsplit(':').next().expect("a port");
    connect_to(
        &mut client,
        &mut server,
        &format!("rdma:[{address}]:{port}"),
    );
}

/// The link-local address of the interface that has `LAB_IP`, with its zone.
fn link_local() -> Option<String> {
    let addresses = std::fs::read_to_string("/proc/net/if_inet6").ok()?;
    addresses.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [address, _, _, _, _, interface] = fields[..] else {
            return None;
        };
        let groups: Vec<&str> = (0..8).map(|i| &address[4 * i..4 * i + 4]).collect();
        (interface != "lo" && address.starts_with("fe80"))
            .then(|| format!("{}%{interface}", groups.join(":")))
    })
}
