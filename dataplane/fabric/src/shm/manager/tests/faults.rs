//! Tests with peers that send nothing, or that break the protocol.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rpcrdma_testkit::{Wait, until};

use super::support::*;
use crate::interface::{ConnectionId, Manager as _, ManagerError, RejectReason};
use crate::memory::{Arena, ArenaOptions, EXTERNAL_MAX, HugePages};
use crate::shm::manager::Manager;
use crate::shm::manager::connection::{Offer, Stage};
use crate::shm::manager::socket::{self, Received};
use crate::shm::manager::wire::*;
use crate::shm::{ChannelFile, PortEvent, PreparedQueuePair, QueuePairNumber};

/// The handshake timeout of managers that have to reach it.
// TIME: it is short, and no test depends on that: a manager with it awaits only what never comes, or what was sent before
// its timer starts and is read with it.
const SHORT: Duration = Duration::from_millis(50);

fn raw_connect(address: &str) -> OwnedFd {
    let name = socket::parse_address(address).unwrap();
    socket::connect(&name).unwrap().unwrap()
}

/// A listening socket without a manager, and its address.
fn raw_listener() -> (OwnedFd, String) {
    let address = fresh_address();
    let name = socket::parse_address(&address).unwrap();
    (socket::listen(&name).unwrap(), address)
}

/// A raw client with a request that the server accepted: its socket, and the connection and queue pair of the server.
fn accepted_raw(server: &mut Manager, address: &str) -> (OwnedFd, ConnectionId, PreparedQueuePair) {
    let raw = raw_connect(address);
    socket::send(&raw, &request(), &[]).unwrap();
    let (accepted, ..) = expect_request(server);
    let prepared = server.prepare(accepted, &port(1)).unwrap();
    server.accept(accepted, b"").unwrap();
    (raw, accepted, prepared)
}

fn request() -> Vec<u8> {
    Message::Request(Request {
        core: port(0).identity,
        queue_pair: QueuePairNumber(3),
        seen_up_to: 0,
        alive: Vec::new(),
        private_data: b"raw".to_vec(),
    })
    .encode()
}

fn reply() -> Message {
    Message::Reply(Reply {
        core: port(0).identity,
        queue_pair: QueuePairNumber(3),
        doorbell_number: 0,
        channel: 77,
        private_data: Vec::new(),
    })
}

fn counter(manager: &Manager, name: &str) -> u64 {
    let counters = manager.counters();
    counters.iter().find(|(known, _)| *known == name).unwrap().1
}

/// The next message of a raw socket.
fn receive(socket: &OwnedFd) -> Received {
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    until("a message, or the end", || {
        match socket::receive(socket, &mut bytes).unwrap() {
            Received::Nothing => None,
            other => Some(other),
        }
    })
}

fn turn(manager: &mut Manager) {
    assert_quiet(manager);
}

#[test]
fn a_client_that_says_nothing_is_given_up_in_silence() {
    let (mut server, address) = listening(manager_with(SHORT, 8));
    let silent = raw_connect(&address);
    let mut events = Vec::new();
    let wait = Wait::begin("the end of the handshake");
    while counter(&server, "handshakes_timed_out") == 0 {
        wait.look(|| format!("{server:?}"));
        server.wait(SHORT, &mut events).unwrap();
    }
    assert!(events.is_empty());
    assert!(matches!(receive(&silent), Received::Closed));
}

#[test]
fn a_server_that_says_nothing_is_given_up_with_a_message() {
    let mut client = manager_with(SHORT, 8);
    let (_listener, address) = raw_listener();
    let port = port(1);
    let asked = client.connect(&address, &port, b"").unwrap();
    let (failed, error) = expect_failed(&mut client);
    assert_eq!(failed, asked);
    let ManagerError::System { doing, source } = &error else {
        panic!("{error}");
    };
    assert_eq!(source.kind(), std::io::ErrorKind::TimedOut);
    assert!(
        doing.contains(&address) && doing.contains("50ms"),
        "{doing}"
    );
    assert!(
        doing.contains(&format!("pid {}", std::process::id())),
        "{doing}"
    );
    assert_eq!(port.numbers.len(), 1);
}

#[test]
fn client_that_never_confirms_is_given_up_and_its_core_notified() {
    let (mut server, address) = listening(manager_with(SHORT, 8));
    let (_raw, accepted, seed) = accepted_raw(&mut server, &address);
    assert_eq!(seed.remote, QueuePairNumber(3));
    let (gone, port_event) = expect_disconnected(&mut server);
    assert_eq!(gone, accepted);
    assert!(matches!(port_event, Some(PortEvent::PeerGone { local }) if local == seed.local()));
    assert_eq!(counter(&server, "handshakes_timed_out"), 1);
}

#[test]
fn our_own_application_may_take_its_time() {
    let (mut server, address) = listening(manager_with(SHORT, 8));
    let mut client = manager();
    client.connect(&address, &port(1), b"").unwrap();
    let (accepted, ..) = expect_request(&mut server);
    let mut events = Vec::new();
    // TIME: the manager returns after this time, however late, and by then it has seen each timer that was due.
    server.wait(SHORT * 3, &mut events).unwrap();
    assert!(events.is_empty());
    let _seed = server.prepare(accepted, &port(1)).unwrap();
    server.accept(accepted, b"").unwrap();
    expect_reply(&mut client);
}

#[test]
fn half_open_handshakes_are_limited_and_the_others_wait() {
    let (mut server, address) = listening(manager_with(NEVER, 2));
    let mut client = manager();
    let (client_port, server_port) = (port(8), port(8));

    // Two silent clients take both places.
    let silent = [raw_connect(&address), raw_connect(&address)];
    for _ in 0..4 {
        client.connect(&address, &client_port, b"").unwrap();
    }
    turn(&mut server);
    assert_eq!((server.half_open, server.accepting), (2, false));
    drop(silent);
    // A listener that is created while no place is free is served like the others.
    let second = fresh_address();
    server.listen(&second).unwrap();
    client.connect(&second, &client_port, b"").unwrap();
    establish_all((&mut client, &client_port), (&mut server, &server_port), 5);
    assert_eq!((server.half_open, server.accepting), (0, true));
}

#[test]
fn a_full_backlog_is_waited_out() {
    let mut client = manager();
    let port = port(64);
    // The backlog has room for two, and the test accepts nothing yet.
    let (listener, address) = raw_listener();
    rustix::net::listen(&listener, 1).unwrap();
    for _ in 0..6 {
        client.connect(&address, &port, b"").unwrap();
    }
    turn(&mut client);
    assert!(counter(&client, "connects_backlog_full") >= 4);
    let mut accepted = Vec::new();
    let wait = Wait::begin("all six connections");
    while accepted.len() < 6 {
        wait.look(|| format!("{} of 6, {client:?}", accepted.len()));
        if let Some(socket) = socket::accept(&listener).unwrap() {
            assert!(matches!(receive(&socket), Received::Message(..)));
            accepted.push(socket);
        }
        client
            .wait(Duration::from_millis(1), &mut Vec::new())
            .unwrap();
    }
}

#[test]
fn one_of_those_that_wait_for_a_full_backlog_tries_again() {
    const WAIT: usize = 50;
    let mut client = manager();
    let port = port(64);
    let (listener, address) = raw_listener();
    rustix::net::listen(&listener, 0).unwrap();
    let _fills = raw_connect(&address);
    let mut asked: Vec<_> = (0..WAIT)
        .map(|_| client.connect(&address, &port, b"").unwrap())
        .collect();
    let delay_ms = |client: &Manager| match client.connections[&asked[0].0].stage {
        Stage::Connecting { delay } => delay.as_millis(),
        _ => panic!("the backlog had room"),
    };
    // The oldest tries again after 1, 2, 4 and 8 ms, or later. By then, each of the others would have tried again too.
    let wait = Wait::begin("the attempts of the oldest");
    while delay_ms(&client) < 32 {
        wait.look(|| format!("{client:?}"));
        turn(&mut client);
    }
    let attempts = counter(&client, "connects_backlog_full");
    assert_eq!(
        attempts,
        WAIT as u64 + 4,
        "once each, and four more of the oldest"
    );
    // After the end of the oldest, the next one tries, and connects as soon as the backlog has room.
    client.disconnect(asked.remove(0));
    assert!(socket::accept(&listener).unwrap().is_some());
    let wait = Wait::begin("the attempt of the next one");
    let accepted = loop {
        wait.look(|| format!("{client:?}"));
        turn(&mut client);
        if let Some(socket) = socket::accept(&listener).unwrap() {
            break socket;
        }
    };
    assert!(matches!(receive(&accepted), Received::Message(..)));
}

#[test]
fn backlog_that_stays_full_is_reported() {
    let mut client = manager_with(SHORT, 1);
    let port = port(4);
    let (listener, address) = raw_listener();
    rustix::net::listen(&listener, 0).unwrap();
    let _fills = raw_connect(&address);
    let asked = client.connect(&address, &port, b"").unwrap();
    let (failed, error) = expect_failed(&mut client);
    assert_eq!(failed, asked);
    assert!(error.to_string().contains("stayed full"), "{error}");
    assert_eq!(port.numbers.len(), 4);
}

#[test]
fn a_server_hangs_up_on_nonsense_and_goes_on() {
    let (mut client, mut server, address) = client_and_server();
    let (client_port, server_port) = (port(1), port(1));
    break_the_protocol(&mut server, &address);
    establish(
        (&mut client, &client_port),
        (&mut server, &server_port),
        &address,
    );
}

/// Sends messages that no correct client sends. The server closes each connection, reports no event and counts it.
pub(super) fn break_the_protocol(server: &mut Manager, address: &str) {
    let file = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    let nonsense: [(Vec<u8>, usize); 10] = [
        (b"GET / HTTP/1.1\r\n".to_vec(), 0),
        (vec![0; 8], 0),
        (request()[..20].to_vec(), 0),
        ([request(), vec![0]].concat(), 0),
        (vec![b'R'; MESSAGE_BYTES_MAX + 1], 0),
        (request(), 1),
        (request(), 5),
        (request(), 16),
        (reply().encode(), 5),
        (Message::Confirm(Confirm { doorbell_number: 0 }).encode(), 5),
    ];
    for (index, (bytes, files)) in nonsense.into_iter().enumerate() {
        let raw = raw_connect(address);
        let files: Vec<BorrowedFd<'_>> = (0..files).map(|_| file.as_fd()).collect();
        send_any(&raw, &bytes, &files);
        turn(server);
        assert!(
            matches!(receive(&raw), Received::Closed),
            "nonsense {index}"
        );
        assert_eq!(counter(server, "handshakes_malformed"), index as u64 + 1);
    }
    assert_eq!(server.half_open, 0);
}

#[test]
fn other_version_is_reported_at_both_ends() {
    let (mut server, address) = listening(manager());
    let raw = raw_connect(&address);
    let mut bytes = request();
    bytes[4] = 2;
    socket::send(&raw, &bytes, &[]).unwrap();
    turn(&mut server);
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    let Ok(Received::Message(length, _)) = socket::receive(&raw, &mut bytes) else {
        panic!("no rejection");
    };
    let Ok(Message::Reject(reject)) = Message::parse(&bytes[..length]) else {
        panic!("not a rejection");
    };
    assert_eq!(
        (reject.version, reject.reason),
        (VERSION, RejectReason::VersionMismatch)
    );

    // The reverse case: a client of this version connects to a server of version 2.
    for with_rejection in [true, false] {
        let mut client = manager();
        let (listener, address) = raw_listener();
        client.connect(&address, &port(1), b"").unwrap();
        let accepted = socket::accept(&listener).unwrap().unwrap();
        let mut answer = if with_rejection {
            Message::Reject(Reject {
                version: 2,
                reason: RejectReason::VersionMismatch,
                private_data: Vec::new(),
            })
            .encode()
        } else {
            reply().encode()
        };
        answer[4] = 2;
        socket::send(&accepted, &answer, &[]).unwrap();
        drop(accepted);
        let text = expect_failed(&mut client).1.to_string();
        assert!(
            text.contains("version 2") && text.contains("version 1"),
            "{text}"
        );
    }
}

#[test]
fn a_client_hangs_up_on_a_server_that_breaks_the_protocol() {
    let file = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    for (bytes, files) in [
        (b"nonsense".to_vec(), 0),
        (reply().encode(), 0),
        (reply().encode(), 4),
        (reply().encode(), 6),
        (request(), 0),
        (Message::Confirm(Confirm { doorbell_number: 0 }).encode(), 5),
        (vec![0; MESSAGE_BYTES_MAX + 1], 0),
    ] {
        let mut client = manager();
        let (listener, address) = raw_listener();
        let port = port(1);
        let asked = client.connect(&address, &port, b"").unwrap();
        let accepted = socket::accept(&listener).unwrap().unwrap();
        let files: Vec<BorrowedFd<'_>> = (0..files).map(|_| file.as_fd()).collect();
        send_any(&accepted, &bytes, &files);
        let (failed, error) = expect_failed(&mut client);
        assert_eq!(failed, asked);
        assert!(error.to_string().starts_with("the peer's "), "{error}");
        assert_eq!(port.numbers.len(), 1);
    }
}

/// As [`socket::send`], but with any number of files.
fn send_any(socket: &OwnedFd, bytes: &[u8], files: &[BorrowedFd<'_>]) {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(files)));
    }
    let parts = [std::io::IoSlice::new(bytes)];
    rustix::net::sendmsg(socket, &parts, &mut control, SendFlags::NOSIGNAL).unwrap();
}

#[test]
fn confirmations_without_their_files_end_the_connection() {
    let (mut server, address) = listening(manager());
    let file = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    for files in [0, 4, 6, 16] {
        let (raw, accepted, seed) = accepted_raw(&mut server, &address);
        let files: Vec<BorrowedFd<'_>> = (0..files).map(|_| file.as_fd()).collect();
        let confirm = Message::Confirm(Confirm { doorbell_number: 0 }).encode();
        send_any(&raw, &confirm, &files);
        let (gone, port_event) = expect_disconnected(&mut server);
        assert_eq!(gone, accepted);
        assert!(matches!(port_event, Some(PortEvent::PeerGone { local }) if local == seed.local()));
    }
}

#[test]
fn a_peer_that_talks_on_an_established_connection_loses_it() {
    let (mut server, address) = listening(manager());
    let (raw, accepted, _seed) = accepted_raw(&mut server, &address);
    let confirm = Message::Confirm(Confirm { doorbell_number: 0 }).encode();
    let offer = Offer {
        channel: Arc::new(ChannelFile::create(8192).unwrap().0),
        port: port(1),
    };
    send_any(&raw, &confirm, &offer.files());
    assert_eq!(expect_established(&mut server).0, accepted);
    send_any(&raw, &confirm, &offer.files());
    assert_eq!(expect_disconnected(&mut server).0, accepted);
}

/// How many descriptors of this process are of these files.
fn descriptors_of(files: &[BorrowedFd<'_>]) -> usize {
    use std::os::unix::fs::MetadataExt;
    let numbers: Vec<_> = files
        .iter()
        .map(|file| rustix::fs::fstat(file).unwrap())
        .map(|stat| (stat.st_dev, stat.st_ino))
        .collect();
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    // Other tests close theirs meanwhile.
    let open = open.filter_map(|entry| std::fs::metadata(entry.ok()?.path()).ok());
    open.filter(|it| numbers.contains(&(it.dev(), it.ino())))
        .count()
}

/// The files of a message are closed when it has been handled. So handshakes that are half open hold none, however many there
/// are and however many files a message may bring; an established connection keeps the event socket.
#[test]
fn a_handshake_keeps_no_file_of_its_peer() {
    let (mut server, address) = listening(manager_with(NEVER, 64));
    let options = ArenaOptions {
        bytes: 4096,
        huge_pages: HugePages::Never,
    };
    let offer = Offer {
        channel: Arc::new(ChannelFile::create(8192).unwrap().0),
        port: port(1),
    };
    let external: Vec<_> = (0..EXTERNAL_MAX)
        .map(|_| Arena::shared(&options).unwrap())
        .collect();
    let unsealed = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    let (own, behind) = (offer.files(), external.iter().map(|it| it.file().unwrap()));
    let mut files: Vec<_> = own.into_iter().chain(behind.map(AsFd::as_fd)).collect();
    assert_eq!(files.len(), socket::FILES_MAX);
    let confirm = Message::Confirm(Confirm { doorbell_number: 0 }).encode();
    let before = descriptors_of(&files);
    let mut clients = Vec::new();
    for _ in 0..8 {
        clients.push(accepted_raw(&mut server, &address));
        // A request that brings files, while the others wait for their confirmations.
        let raw = raw_connect(&address);
        socket::send(&raw, &request(), &files).unwrap();
        turn(&mut server);
        assert!(matches!(receive(&raw), Received::Closed));
    }
    assert_eq!((server.half_open, descriptors_of(&files)), (8, before));
    let (raw, accepted, _prepared) = clients.pop().unwrap();
    socket::send(&raw, &confirm, &files).unwrap();
    let (established, event) = expect_established(&mut server);
    assert_eq!((established, server.half_open), (accepted, 7));
    assert_eq!(descriptors_of(&files), before + 1, "the event socket");
    drop(event);
    assert_eq!(descriptors_of(&files), before);
    // The last one cannot be mapped, after the others were.
    let last = files.len() - 1;
    files[last] = unsealed.as_fd();
    let before = descriptors_of(&files[..last]);
    for (raw, accepted, _prepared) in clients {
        socket::send(&raw, &confirm, &files).unwrap();
        assert_eq!(expect_disconnected(&mut server).0, accepted);
        assert_eq!(descriptors_of(&files[..last]), before);
    }
    assert_eq!(
        (server.half_open, counter(&server, "peers_memory_refused")),
        (0, 7)
    );
}
