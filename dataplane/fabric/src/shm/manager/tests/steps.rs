//! Tests of the steps of the handshake between two managers.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rpcrdma_testkit::until;

use super::support::*;
use crate::interface::{Manager as _, ManagerError, RejectReason, SetupError};
use crate::memory::Mapping;
use crate::shm::tests::peer_memory::whole_file;
use crate::shm::{CheckedPeer, PortEvent, PortHandle, doorbell};

#[test]
fn both_ends_get_what_they_need() {
    let (mut client, mut server) = (manager(), manager());
    // The arenas have different sizes, so that the test can distinguish them.
    let server_port = port_with_arena(4, whole_file(8192));
    let client_port = port(4);
    let address = fresh_address();
    let listener = server.listen(&address).unwrap();

    let asked = client.connect(&address, &client_port, b"ask").unwrap();
    let (accepted, by, peer, private_data) = expect_request(&mut server);
    assert_eq!((by, private_data.as_slice()), (listener, &b"ask"[..]));
    assert_eq!(peer.key, u64::from(std::process::id()));
    assert!(
        peer.name
            .starts_with(&format!("pid {} (", std::process::id())),
        "{}",
        peer.name
    );

    let server_prepared = server.prepare(accepted, &server_port).unwrap();
    assert!(server_prepared.memory.is_none());
    assert_eq!(server_prepared.peer, client_port.identity);
    server.accept(accepted, b"yes").unwrap();
    assert_quiet(&mut server);

    let (replied, peer, private_data) = expect_reply(&mut client);
    assert_eq!((replied, private_data.as_slice()), (asked, &b"yes"[..]));
    assert_eq!(peer.key, u64::from(std::process::id()));
    let client_prepared = client.prepare(asked, &client_port).unwrap();
    assert_eq!(client_prepared.peer, server_port.identity);
    assert_eq!(client_prepared.local(), server_prepared.remote);
    assert_eq!(client_prepared.remote, server_prepared.local());
    let memory = client_prepared.memory.as_ref().unwrap();
    assert_eq!(inode(&memory.event), inode(&server_port.files.event));
    assert_eq!(memory.doorbell_number, server_prepared.doorbell_number);
    assert_same_memory(memory, &server_prepared.channel, &server_port);

    client.confirm(asked).unwrap();
    let (established, port_event) = expect_established(&mut client);
    assert_eq!(established, asked);
    assert!(port_event.is_none());
    let (established, port_event) = expect_established(&mut server);
    assert_eq!(established, accepted);
    let Some(PortEvent::Established { local, memory }) = port_event else {
        panic!("no port_event for the core");
    };
    assert_eq!(local, server_prepared.local());
    assert_eq!(inode(&memory.event), inode(&client_port.files.event));
    assert_eq!(memory.doorbell_number, client_prepared.doorbell_number);
    assert_same_memory(&memory, &client_prepared.channel, &client_port);

    client.disconnect(asked);
    assert_quiet(&mut client);
    let (gone, port_event) = expect_disconnected(&mut server);
    assert_eq!(gone, accepted);
    assert!(
        matches!(port_event, Some(PortEvent::PeerGone { local }) if local == server_prepared.local())
    );
    assert_quiet(&mut server);
}

/// Checks that each mapped file is the file of the other end.
fn assert_same_memory(memory: &CheckedPeer, channel: &Mapping, port: &PortHandle) {
    // SAFETY: the last byte of a mapping that this test owns, and the same byte in the mapping of the peer; nothing else
    // accesses them.
    let (ours, theirs) = unsafe {
        let last = channel.bytes() - 1;
        let theirs = memory.consumer.memory().unit(0).wrapping_sub(4096);
        (channel.start().add(last), theirs.wrapping_add(last))
    };
    for value in [0x5a, 0] {
        // SAFETY: as above.
        let read = unsafe {
            ours.write_volatile(value);
            theirs.read_volatile()
        };
        assert_eq!(read, value);
    }
    let size = |file: &OwnedFd| rustix::fs::fstat(file).unwrap().st_size;
    let arena_bytes = usize::try_from(size(&port.files.arena)).unwrap();
    assert_eq!(memory.arena.bytes(), arena_bytes);
    // A ring of the doorbell is visible in the file.
    let doorbell = &port.files.doorbell;
    doorbell::ring(&memory.bell, 8);
    let mut leaf = [0; 2];
    assert_eq!(rustix::io::pread(doorbell, &mut leaf, 128).unwrap(), 2);
    assert_eq!(leaf, [0, 1]);
}

#[test]
fn a_process_may_connect_to_itself() {
    let mut manager = manager();
    let port = port(4);
    let address = fresh_address();
    manager.listen(&address).unwrap();
    let asked = manager.connect(&address, &port, b"").unwrap();
    let (accepted, ..) = expect_request(&mut manager);
    let server_prepared = manager.prepare(accepted, &port).unwrap();
    manager.accept(accepted, b"").unwrap();
    expect_reply(&mut manager);
    let client_prepared = manager.prepare(asked, &port).unwrap();
    manager.confirm(asked).unwrap();
    // There are two channel files and two doorbell bits, although both ends are the same core.
    assert!(!std::sync::Arc::ptr_eq(
        &server_prepared.channel,
        &client_prepared.channel
    ));
    assert_ne!(
        server_prepared.doorbell_number,
        client_prepared.doorbell_number
    );
    expect_established(&mut manager);
    expect_established(&mut manager);
}

/// The rejection comes before or after the server prepares.
#[test]
fn a_rejected_request_leaves_nothing() {
    let (mut client, mut server, address) = client_and_server();
    let (client_port, server_port) = (port(1), port(1));
    for is_prepared in [false, true] {
        let asked = client.connect(&address, &client_port, b"").unwrap();
        let (accepted, ..) = expect_request(&mut server);
        if is_prepared {
            let _seed = server.prepare(accepted, &server_port).unwrap();
        }
        server.reject(accepted, RejectReason::PeerLimit, b"because");
        let told = expect_rejected(&mut client);
        assert_eq!(told, (asked, RejectReason::PeerLimit, b"because".to_vec()));
        // The only number of each port is free again, and no end has another event.
        assert_eq!(client_port.numbers.len(), 1);
        assert_eq!(server_port.numbers.len(), 1);
        assert_quiet(&mut client);
        assert_quiet(&mut server);
        assert!(matches!(
            server.accept(accepted, b""),
            Err(ManagerError::UnknownConnection)
        ));
    }
}

#[test]
fn private_data_that_is_too_long_is_refused_where_it_is_given() {
    let (mut client, mut server, address) = client_and_server();
    let (client_port, server_port) = (port(2), port(2));
    let limit = |result: Result<(), ManagerError>, expected: u64| match result {
        Err(ManagerError::Setup(SetupError::Limit { asked, limit, .. })) => {
            assert_eq!((asked, limit), (expected + 1, expected));
        }
        other => panic!("{other:?}"),
    };
    limit(
        client.connect(&address, &client_port, &[0; 57]).map(drop),
        56,
    );
    client.connect(&address, &client_port, &[1; 56]).unwrap();
    let (accepted, _, _, private_data) = expect_request(&mut server);
    assert_eq!(private_data, [1; 56]);
    let _seed = server.prepare(accepted, &server_port).unwrap();
    limit(server.accept(accepted, &[0; 197]), 196);
    server.accept(accepted, &[2; 196]).unwrap();
    assert_eq!(expect_reply(&mut client).2, [2; 196]);

    client.connect(&address, &client_port, &[]).unwrap();
    let (refused, ..) = expect_request(&mut server);
    server.reject(refused, RejectReason::Draining, &[3; 148]);
    assert_eq!(expect_rejected(&mut client).2, [3; 148]);
    let _again = client.connect(&address, &port(1), &[]).unwrap();
    let (refused, ..) = expect_request(&mut server);
    server.reject(refused, RejectReason::Draining, &[3; 149]);
    assert_eq!(expect_rejected(&mut client).2, [0; 0]);
}

#[test]
fn addresses_that_cannot_be_used() {
    let mut manager = manager();
    let port = port(1);
    for address in [
        "",
        "name",
        "rdma:host:20049",
        "shm",
        "shm:",
        "SHM:name",
        "shm:a/b",
        "shm:a b",
        "shm:ä",
        "shm:a\0b",
        &format!("shm:{}", "x".repeat(81)),
    ] {
        let listened = manager.listen(address);
        assert!(
            matches!(listened, Err(ManagerError::BadAddress { .. })),
            "{address:?}"
        );
        let connected = manager.connect(address, &port, b"");
        let Err(error @ ManagerError::BadAddress { .. }) = connected else {
            panic!("{address:?} was taken");
        };
        assert!(error.to_string().contains("shm:"), "{error}");
        assert_eq!(port.numbers.len(), 1);
    }
    let longest = format!("shm:{}{}", std::process::id(), "x".repeat(70));
    manager.listen(&longest).unwrap();
    // Names are the machine's: a second process can run this test at the same time.
    let signs = format!("shm:A.z_0-9{}", std::process::id());
    manager.listen(&signs).unwrap();
}

#[test]
fn a_name_is_in_use_until_its_listener_is_closed() {
    let (mut one, mut two) = (manager(), manager());
    let address = fresh_address();
    let listener = one.listen(&address).unwrap();
    let error = two.listen(&address).unwrap_err();
    assert!(matches!(&error, ManagerError::InUse { address: named } if *named == address));
    assert!(error.to_string().contains("another name"), "{error}");
    one.close_listener(listener);
    // A child that another test starts has copies of our sockets until it has begun its own program.
    until("a free name", || two.listen(&address).ok());
    // The drop of a manager also frees its names.
    drop(two);
    until("a free name", || one.listen(&address).ok());
}

#[test]
fn connections_outlive_their_listener() {
    let (mut client, mut server) = (manager(), manager());
    let (client_port, server_port) = (port(4), port(4));
    let address = fresh_address();
    let listener = server.listen(&address).unwrap();
    let standing = establish(
        (&mut client, &client_port),
        (&mut server, &server_port),
        &address,
    );
    // A second handshake is under way when the listener closes. It can still be finished.
    client.connect(&address, &client_port, b"").unwrap();
    let (late, ..) = expect_request(&mut server);
    server.close_listener(listener);
    let _seed = server.prepare(late, &server_port).unwrap();
    server.accept(late, b"").unwrap();
    expect_reply(&mut client);
    // A child that another test starts has a copy of the listener until it has begun its own program. Until then, what
    // connects fails by the end of that copy.
    until("a refusal", || {
        client.connect(&address, &client_port, b"").unwrap();
        matches!(expect_failed(&mut client).1, ManagerError::Refused { .. }).then_some(())
    });
    server.disconnect(standing.server);
    assert_eq!(expect_disconnected(&mut client).0, standing.client);
}

/// The last step before one end disconnects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Asked,
    Requested,
    ServerPrepared,
    Accepted,
    Replied,
    ClientPrepared,
    Confirmed,
    Established,
}

const STEPS: [Step; 8] = [
    Step::Asked,
    Step::Requested,
    Step::ServerPrepared,
    Step::Accepted,
    Step::Replied,
    Step::ClientPrepared,
    Step::Confirmed,
    Step::Established,
];

/// One end disconnects after each step. The other end gets exactly one event, according to its stage. The numbers are free
/// again, unless a prepared queue pair was handed out.
#[test]
fn hanging_up_after_each_step() {
    for step in STEPS {
        for client_hangs_up in [true, false] {
            hang_up_after(step, client_hangs_up);
        }
    }
}

fn hang_up_after(last: Step, client_hangs_up: bool) {
    let context = format!("{last:?}, client hangs up: {client_hangs_up}");
    let (mut client, mut server, address) = client_and_server();
    let (client_port, server_port) = (port(1), port(1));
    let asked = client.connect(&address, &client_port, b"").unwrap();
    let mut accepted = None;
    let mut seeds = Vec::new();
    for step in STEPS.into_iter().take_while(|step| *step <= last) {
        match step {
            Step::Asked => {}
            Step::Requested => accepted = Some(expect_request(&mut server).0),
            Step::ServerPrepared => {
                seeds.push(server.prepare(accepted.unwrap(), &server_port).unwrap());
            }
            Step::Accepted => server.accept(accepted.unwrap(), b"").unwrap(),
            Step::Replied => drop(expect_reply(&mut client)),
            Step::ClientPrepared => seeds.push(client.prepare(asked, &client_port).unwrap()),
            Step::Confirmed => {
                client.confirm(asked).unwrap();
                expect_established(&mut client);
            }
            Step::Established => drop(expect_established(&mut server)),
        }
    }
    if client_hangs_up {
        client.disconnect(asked);
        assert_quiet(&mut client);
        match accepted {
            // The request was sent, so the server reports it and its end.
            None => {
                let (request, ..) = expect_request(&mut server);
                let (gone, port_event) = expect_disconnected(&mut server);
                assert_eq!(gone, request, "{context}");
                assert!(port_event.is_none(), "{context}");
            }
            Some(accepted) => {
                if last == Step::Confirmed {
                    assert_eq!(expect_established(&mut server).0, accepted, "{context}");
                }
                let (gone, port_event) = expect_disconnected(&mut server);
                assert_eq!(gone, accepted, "{context}");
                assert_eq!(
                    port_event.is_some(),
                    last >= Step::ServerPrepared,
                    "{context}"
                );
            }
        }
    } else if let Some(accepted) = accepted {
        server.disconnect(accepted);
        assert_quiet(&mut server);
        if last < Step::Accepted {
            let (failed, error) = expect_failed(&mut client);
            assert_eq!(failed, asked, "{context}");
            assert!(error.to_string().contains("closed"), "{error}");
        } else {
            if last == Step::Accepted {
                assert_eq!(expect_reply(&mut client).0, asked, "{context}");
            }
            let (gone, port_event) = expect_disconnected(&mut client);
            assert_eq!(gone, asked, "{context}");
            assert_eq!(
                port_event.is_some(),
                last >= Step::ClientPrepared,
                "{context}"
            );
        }
    } else {
        drop(server);
        assert_eq!(expect_failed(&mut client).0, asked, "{context}");
        assert_eq!(client_port.numbers.len(), 1, "{context}");
        return;
    }
    assert_quiet(&mut client);
    assert_quiet(&mut server);
    assert_eq!(
        client_port.numbers.len(),
        usize::from(last < Step::ClientPrepared),
        "{context}"
    );
    assert_eq!(
        server_port.numbers.len(),
        usize::from(last < Step::ServerPrepared),
        "{context}"
    );
    // The drop of a prepared queue pair that no port adopted frees its number.
    drop(seeds);
    assert_eq!(
        (client_port.numbers.len(), server_port.numbers.len()),
        (1, 1),
        "{context}"
    );
    client.channels.sweep();
    server.channels.sweep();
    assert_eq!(
        (client.channels.len(), server.channels.len()),
        (0, 0),
        "{context}"
    );
}

#[test]
fn steps_out_of_order_are_refused() {
    let (mut client, mut server, address) = client_and_server();
    let (client_port, server_port) = (port(2), port(2));
    let asked = client.connect(&address, &client_port, b"").unwrap();
    client.confirm(asked).unwrap_err();
    client.accept(asked, b"").unwrap_err();
    client.prepare(asked, &client_port).unwrap_err();
    let (accepted, ..) = expect_request(&mut server);
    server.accept(accepted, b"").unwrap_err();
    server.confirm(accepted).unwrap_err();
    let _seed = server.prepare(accepted, &server_port).unwrap();
    server.prepare(accepted, &server_port).unwrap_err();
    assert_eq!(server_port.numbers.len(), 1);
    server.accept(accepted, b"").unwrap();
    server.accept(accepted, b"").unwrap_err();
    expect_reply(&mut client);
    client.confirm(asked).unwrap_err();
    let other = client.prepare(asked, &port(1)).unwrap_err();
    assert!(other.to_string().contains("another port"), "{other}");
    let _seed = client.prepare(asked, &client_port).unwrap();
    client.prepare(asked, &client_port).unwrap_err();
    client.confirm(asked).unwrap();
    assert!(client.confirm(asked).is_err());
    expect_established(&mut client);
    expect_established(&mut server);
    // `reject` and `disconnect` are allowed at any time, also twice.
    server.reject(accepted, RejectReason::Draining, b"");
    server.disconnect(accepted);
    server.reject(accepted, RejectReason::Draining, b"");
    expect_disconnected(&mut client);
    client.disconnect(asked);
    let gone = client.prepare(asked, &client_port).unwrap_err();
    assert!(gone.to_string().contains("gone"), "{gone}");
    assert!(matches!(
        client.confirm(asked),
        Err(ManagerError::UnknownConnection)
    ));
}

#[test]
fn ports_without_free_queue_pairs() {
    let (mut client, mut server, address) = client_and_server();
    let (client_port, server_port) = (port(3), port(1));
    let first = establish(
        (&mut client, &client_port),
        (&mut server, &server_port),
        &address,
    );
    client.connect(&address, &client_port, b"").unwrap();
    let (second, ..) = expect_request(&mut server);
    let full = server.prepare(second, &server_port).unwrap_err();
    assert!(
        matches!(
            full,
            SetupError::Limit {
                asked: 2,
                limit: 1,
                ..
            }
        ),
        "{full:?}"
    );
    // The port has a free number again, so the server can prepare the same request.
    drop(first.server_prepared);
    let _seed = server.prepare(second, &server_port).unwrap();
    client.connect(&address, &client_port, b"").unwrap();
    let full = client.connect(&address, &client_port, b"").unwrap_err();
    assert!(
        matches!(full, ManagerError::Setup(SetupError::Limit { .. })),
        "{full:?}"
    );
}

#[test]
fn disconnecting_takes_back_what_was_not_yet_told() {
    let mut client = manager();
    let asked = client
        .connect("shm:nobody.listens.here", &port(1), b"")
        .unwrap();
    client.disconnect(asked);
    assert_quiet(&mut client);
}

#[test]
fn waiting_ends_in_time_and_by_the_waker() {
    let mut manager = manager();
    let mut events = Vec::new();
    // TIME: a lower bound; the clock is read before the wait begins and after it ends, so no machine makes it less.
    let start = Instant::now();
    manager
        .wait(Duration::from_millis(30), &mut events)
        .unwrap();
    assert!(start.elapsed() >= Duration::from_millis(30));
    let waker = manager.waker();
    let thread = std::thread::spawn(move || waker());
    // Without the waker this call would not return.
    manager.wait(Duration::MAX, &mut events).unwrap();
    thread.join().unwrap();
    // A wake-up before the wait is not lost, and two of them end only one wait.
    let waker = manager.waker();
    waker();
    waker();
    manager.wait(Duration::MAX, &mut events).unwrap();
    // TIME: a lower bound, as above.
    let start = Instant::now();
    manager
        .wait(Duration::from_millis(10), &mut events)
        .unwrap();
    assert!(start.elapsed() >= Duration::from_millis(10));
    assert!(events.is_empty());
    drop(manager);
    // A waker may live longer than its manager.
    waker();
}
