//! Programs by TCP, with a client that writes its octets itself.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use rpcrdma::prelude::{Encode, Incoming, Procedure, Refusal, Reply, Server, Service};
use rpcrdma::{
    Auth, AuthStatus, Authentication, CloseReason, ConnectionKey, Later, NodeBuilder,
    Unauthenticated, record,
};
use rpcrdma_protocol::constants::{AUTH_NONE, RPCSEC_GSS};
use rpcrdma_protocol::rpc::{AcceptStatus, RejectStatus, ReplyBody, ReplyHeader};
use rpcrdma_testkit::until;
use rustix::net::sockopt::set_socket_linger;
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

use crate::{ECHO, PATIENCE, PROGRAM, address, profile};

/// Adds an entry to the ledger, and returns how many there are.
const ENTER: Procedure = Procedure::new(PROGRAM, 1, 40);
/// Is answered when the test does it.
const HELD: Procedure = Procedure::new(PROGRAM, 1, 41);
/// As `HELD`; must not run twice.
const HELD_ONCE: Procedure = Procedure::new(PROGRAM, 1, 42);

/// What sends opaques back.
fn builder() -> NodeBuilder {
    let server = Server::builder().profile(profile());
    server.procedure(ECHO, |call, reply| {
        reply.opaque(call.args().opaque()?);
        Ok(())
    })
}

/// The server by shm and TCP, for everybody.
pub(crate) fn listening(builder: NodeBuilder) -> (Server, SocketAddr) {
    let server = builder
        .authentication(Authentication::None)
        .also_at("tcp:127.0.0.1:0")
        .listen(&address())
        .unwrap();
    let at = server.addresses()[1]["tcp:".len()..].parse().unwrap();
    (server, at)
}

/// A server with all procedures, and the calls of `HELD`.
fn server() -> (Server, SocketAddr, Receiver<Later>) {
    let (held, calls) = channel();
    let held = Mutex::new(held);
    let entries = AtomicU32::new(0);
    let hold = move |call: &mut Incoming<'_>, _: &mut Reply<'_, '_>| {
        let held: &Mutex<Sender<Later>> = &held;
        let sent = held.lock().unwrap().send(call.later()?);
        sent.map_err(|_| Refusal::SystemError)
    };
    let hold = std::sync::Arc::new(hold);
    let again = std::sync::Arc::clone(&hold);
    let builder = builder()
        .procedure_once(ENTER, move |call, reply| {
            call.args().end()?;
            reply.u32(entries.fetch_add(1, Ordering::Relaxed) + 1);
            Ok(())
        })
        .procedure(HELD, move |call, reply| hold(call, reply))
        .procedure_once(HELD_ONCE, move |call, reply| again(call, reply));
    let (server, at) = listening(builder);
    (server, at, calls)
}

pub(crate) struct Peer(TcpStream);

impl Peer {
    pub(crate) fn at(server: SocketAddr) -> Self {
        Self::from(Ipv4Addr::LOCALHOST, server)
    }

    /// From an address of this machine, as of another one.
    fn from(address: Ipv4Addr, server: SocketAddr) -> Self {
        let stream = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&stream, &SocketAddr::from((address, 0))).unwrap();
        connect(&stream, &server).unwrap();
        let stream = TcpStream::from(stream);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self(stream)
    }

    fn send(&mut self, octets: &[u8]) {
        self.0.write_all(octets).unwrap();
    }

    /// Sends a message as one record.
    pub(crate) fn send_message(&mut self, message: &[u8]) {
        self.send(&record_of(message));
    }

    pub(crate) fn reply(&mut self) -> Vec<u8> {
        let mut mark = [0; 4];
        self.0.read_exact(&mut mark).unwrap();
        let bytes = u32::from_be_bytes(mark) & !record::LAST_FRAGMENT;
        let mut reply = vec![0; bytes as usize];
        self.0.read_exact(&mut reply).unwrap();
        reply
    }

    /// The results of the reply to the call with this number.
    fn results(&mut self, xid: u32) -> Vec<u8> {
        let reply = self.reply();
        let (header, bytes) = ReplyHeader::decode(&reply).unwrap();
        assert_eq!(header, ReplyHeader::accepted(xid, AcceptStatus::Success));
        reply[bytes..].to_vec()
    }

    fn call(&mut self, xid: u32, procedure: Procedure, args: &[u8]) -> Vec<u8> {
        self.send_message(&call(xid, procedure, args));
        self.results(xid)
    }

    /// Whether the server has closed the connection.
    fn is_closed(&mut self) -> bool {
        match self.0.read(&mut [0; 4]) {
            Ok(bytes) => bytes == 0,
            Err(error) => error.kind() == ErrorKind::ConnectionReset,
        }
    }
}

fn call(xid: u32, procedure: Procedure, args: &[u8]) -> Vec<u8> {
    let (program, version) = (procedure.program, procedure.version);
    let header = [xid, 0, 2, program, version, procedure.number, 0, 0, 0, 0];
    [&header.map(u32::to_be_bytes).concat(), args].concat()
}

fn record_of(message: &[u8]) -> Vec<u8> {
    [&record::header(message.len()).unwrap(), message].concat()
}

fn opaque(bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).unwrap().to_be_bytes();
    let padding = bytes.len().next_multiple_of(4) - bytes.len();
    [&length, bytes, &[0; 3][..padding]].concat()
}

/// Waits until the address of this machine has a place again.
fn until_served(at: SocketAddr) {
    until("a place", || {
        let mut peer = Peer::at(at);
        let record = record_of(&call(1, ECHO, &opaque(b"x")));
        let is_sent = peer.0.write_all(&record).is_ok();
        let is_answered = is_sent && peer.0.read(&mut [0; 4]).is_ok_and(|bytes| bytes > 0);
        is_answered.then_some(())
    });
}

fn total(server: &Server, name: &str) -> u64 {
    server.metrics().total(name).unwrap()
}

#[test]
fn call_in_any_pieces_is_answered() {
    let (_server, at, _) = server();
    let mut peer = Peer::at(at);
    let args = opaque(b"in two pieces");
    for xid in 0..=40 + u32::try_from(args.len()).unwrap() {
        // Two fragments, divided at this octet.
        let message = call(xid, ECHO, &args);
        let (first, second) = message.split_at(xid as usize);
        let mark = u32::try_from(first.len()).unwrap().to_be_bytes();
        peer.send(&[&mark, first, &record_of(second)].concat());
        assert_eq!(peer.results(xid), args, "{xid}");
        // One fragment, and the stream pauses at this octet of the record.
        let record = record_of(&message);
        let (first, second) = record.split_at(xid as usize);
        peer.send(first);
        assert_eq!(Peer::at(at).call(7, ECHO, &args), args, "{xid}");
        peer.send(second);
        assert_eq!(peer.results(xid), args, "{xid}");
    }
    let several: Vec<_> = (0..100).map(|xid| call(xid, ECHO, &args)).collect();
    let several: Vec<_> = several.iter().flat_map(|call| record_of(call)).collect();
    peer.send(&several);
    let mut numbers: Vec<_> = (0..100).map(|_| peer.reply()[3]).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..100).collect::<Vec<_>>());
    // A peer that sends no more gets what it has asked for.
    peer.send(&several);
    peer.0.shutdown(std::net::Shutdown::Write).unwrap();
    (0..100).for_each(|_| drop(peer.reply()));
    assert!(peer.is_closed());
}

#[test]
fn message_that_is_no_call_is_counted_and_the_next_call_is_answered() {
    let (server, at, _) = server();
    let mut peer = Peer::at(at);
    let mut stray = call(1, ECHO, &opaque(b"a reply"));
    stray[7] = 1;
    peer.send_message(&stray);
    peer.send_message(&stray[..7]);
    peer.send_message(&[]);
    let whole = call(2, ECHO, &opaque(b"a call"));
    for (end, status) in [
        (28, AuthStatus::BAD_CREDENTIAL),
        (36, AuthStatus::BAD_VERIFIER),
    ] {
        peer.send_message(&whole[..end]);
        let reply = peer.reply();
        let (header, _) = ReplyHeader::decode(&reply).unwrap();
        let denied = ReplyBody::Denied(RejectStatus::AuthError(status));
        assert_eq!((header.xid, header.body), (2, denied));
    }
    assert_eq!(peer.call(2, ECHO, &opaque(b"a call")), opaque(b"a call"));
    assert_eq!(total(&server, "tcp_messages_ignored"), 3);
    assert_eq!(total(&server, "tcp_calls"), 3);
}

/// Has no answer for calls with RPCSEC_GSS.
struct Discarding;

impl Service for Discarding {
    fn flavors(&self) -> Option<Vec<u32>> {
        Some(vec![AUTH_NONE, RPCSEC_GSS])
    }

    fn authenticate(&mut self, _: &Incoming<'_>) -> Result<Auth, Unauthenticated> {
        Err(Unauthenticated::Discarded)
    }

    fn call(&mut self, call: &mut Incoming<'_>, reply: &mut Reply<'_, '_>) -> Result<(), Refusal> {
        reply.opaque(call.args().opaque()?);
        Ok(())
    }
}

#[test]
fn call_that_is_discarded_is_counted_as_that_and_holds_nothing() {
    let builder = Server::builder().profile(profile());
    let (server, at) = listening(builder.program(PROGRAM, 1..=1, |_| Discarding));
    let mut peer = Peer::at(at);
    let mut discarded = call(1, ECHO, &[]);
    discarded[27] = 6;
    // More than a connection may have at a time.
    (0..100).for_each(|_| peer.send_message(&discarded));
    assert_eq!(peer.call(2, ECHO, &opaque(b"a call")), opaque(b"a call"));
    assert_eq!(total(&server, "calls_discarded"), 100);
    assert_eq!(total(&server, "tcp_messages_ignored"), 0);
    assert_eq!(total(&server, "tcp_calls"), 1);
}

#[test]
fn reply_that_is_too_long_is_an_error_and_counted_as_one() {
    let server = builder().procedure(HELD, |_, reply| {
        for _ in 0..20 {
            let data = reply.buffer_for(65_536).ok_or(Refusal::SystemError)?;
            reply.bulk(data);
        }
        Ok(())
    });
    let (server, at) = listening(server);
    let mut peer = Peer::at(at);
    peer.send_message(&call(1, HELD, &[]));
    assert!(is_system_error(&peer.reply(), 1));
    assert_eq!(total(&server, "rpc_errors_sent"), 1);
    assert_eq!(peer.call(2, ECHO, &opaque(b"x")), opaque(b"x"));
}

#[test]
fn record_that_is_too_long_ends_its_connection_alone() {
    let (_server, at, _) = server();
    let mut other = Peer::at(at);
    for octets in [&[0xff; 4][..], b"GET / HTTP/1.1\r\n\r\n"] {
        let mut peer = Peer::at(at);
        peer.send(octets);
        assert!(peer.is_closed());
        assert_eq!(other.call(1, ECHO, &opaque(b"x")), opaque(b"x"));
    }
    // As long as may be.
    let longest = vec![7; 1 << 20];
    assert_eq!(other.call(2, ECHO, &opaque(&longest)), opaque(&longest));
}

#[test]
fn peer_that_reads_no_replies_holds_up_nobody_and_gets_them_in_the_end() {
    let (_server, at, _) = server();
    let (mut slow, mut other) = (Peer::at(at), Peer::at(at));
    let args = opaque(&vec![5; 256 << 10]);
    slow.0.set_nonblocking(true).unwrap();
    let record = record_of(&call(3, ECHO, &args));
    let (mut calls, mut sent, mut refused) = (0, 0, 0);
    // Its socket has been full for so long that others had many calls answered: the server reads no more.
    while refused < 200 {
        match slow.0.write(&record[sent..]) {
            Ok(bytes) => (sent, refused) = (sent + bytes, 0),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                refused += 1;
                assert_eq!(other.call(1, ECHO, &opaque(b"x")), opaque(b"x"));
            }
        }
        if sent == record.len() {
            (calls, sent) = (calls + 1, 0);
        }
        assert!(calls < 1000, "the server keeps {calls} calls");
    }
    slow.0.set_nonblocking(false).unwrap();
    let mut writer = slow.0.try_clone().unwrap();
    let rest = record[sent..].to_vec();
    let rest = std::thread::spawn(move || writer.write_all(&rest).unwrap());
    for _ in 0..=calls {
        assert_eq!(slow.results(3), args);
    }
    rest.join().unwrap();
}

#[test]
fn silent_connections_of_one_address_leave_places_for_others() {
    let builder = builder().knob("peers_connections_max=4").tcp_connections(6);
    let (server, at) = listening(builder);
    let mut silent: Vec<_> = (0..9).map(|_| Peer::at(at)).collect();
    // They were accepted in turn.
    assert!(silent.split_off(4).iter_mut().all(Peer::is_closed));
    assert_eq!(total(&server, "tcp_connections_refused"), 5);
    let mut others: Vec<_> = (2..5)
        .map(|host| Peer::from(Ipv4Addr::new(127, 0, 0, host), at))
        .collect();
    assert!(others.pop().unwrap().is_closed(), "six of all addresses");
    for other in &mut others {
        assert_eq!(other.call(1, ECHO, &opaque(b"x")), opaque(b"x"));
    }
    // A place that is left is free again.
    drop(silent.pop());
    until_served(at);
}

#[test]
fn call_that_comes_again_by_another_connection_runs_once() {
    let (server, at, held) = server();
    let one = 1_u32.to_be_bytes();
    let (mut first, mut second) = (Peer::at(at), Peer::at(at));
    assert_eq!(first.call(7, ENTER, &[]), one);
    assert_eq!(second.call(7, ENTER, &[]), one);
    drop(first);
    assert_eq!(second.call(7, ENTER, &[]), one);
    assert_eq!(second.call(8, ENTER, &[]), 2_u32.to_be_bytes());
    let mut other = Peer::from(Ipv4Addr::new(127, 0, 0, 2), at);
    assert_eq!(other.call(7, ENTER, &[]), 3_u32.to_be_bytes());
    // One that runs is answered when it has run.
    let mut third = Peer::at(at);
    let repeated = total(&server, "calls_repeated");
    second.send_message(&call(9, HELD_ONCE, &[]));
    let later = held.recv_timeout(PATIENCE).unwrap();
    third.send_message(&call(9, HELD_ONCE, &[]));
    until("the call that comes again", || {
        (total(&server, "calls_repeated") > repeated).then_some(())
    });
    later.reply(|results| {
        results.u32(5);
    });
    assert_eq!(second.results(9), 5_u32.to_be_bytes());
    assert_eq!(third.results(9), 5_u32.to_be_bytes());
    assert!(held.try_recv().is_err(), "it ran once");
}

#[test]
fn call_that_comes_again_often_by_its_connection_has_no_answer_but_its_own() {
    let (server, at, held) = server();
    let mut peer = Peer::at(at);
    peer.send_message(&call(1, HELD_ONCE, &[]));
    let later = held.recv_timeout(PATIENCE).unwrap();
    // More than a connection may have at a time.
    (0..100).for_each(|_| peer.send_message(&call(1, HELD_ONCE, &[])));
    until("the calls that come again", || {
        (total(&server, "calls_repeated") == 100).then_some(())
    });
    later.reply(|results| {
        results.u32(5);
    });
    // Its own, and that of who waited last.
    for _ in 0..2 {
        assert_eq!(peer.results(1), 5_u32.to_be_bytes());
    }
    assert_eq!(peer.call(2, ECHO, &opaque(b"x")), opaque(b"x"));
    assert_eq!(total(&server, "tcp_calls"), 3);
    assert!(held.try_recv().is_err(), "it ran once");
}

#[test]
fn connections_with_many_calls_leave_each_other_one_a_way_to_call() {
    let (_server, at, held) = server();
    // All that may wait: 32 of a connection, and 64 beyond three of each.
    for _ in 0..2 {
        let mut peers: Vec<_> = [32, 32, 9].map(|calls| (Peer::at(at), calls)).into();
        let mut laters = Vec::new();
        let mut hold = |peer: &mut Peer, calls| {
            (0..calls).for_each(|xid| peer.send_message(&call(xid, HELD, &[])));
            laters.extend((0..calls).map(|_| held.recv_timeout(PATIENCE).unwrap()));
        };
        peers
            .iter_mut()
            .for_each(|(peer, calls)| hold(peer, *calls));
        let mut other = Peer::at(at);
        hold(&mut other, 3);
        peers.push((other, 3));
        for (peer, _) in &mut peers {
            assert_eq!(peer.call(90, ECHO, &opaque(b"x")), opaque(b"x"));
            // It would wait for the others.
            peer.send_message(&call(91, HELD, &[]));
            assert!(is_system_error(&peer.reply(), 91));
            assert_eq!(peer.call(92, ECHO, &opaque(b"y")), opaque(b"y"));
        }
        drop(laters);
        for (peer, calls) in &mut peers {
            (0..*calls).for_each(|xid| assert!(is_system_error(&peer.reply(), xid)));
        }
    }
}

fn is_system_error(reply: &[u8], xid: u32) -> bool {
    let (header, _) = ReplyHeader::decode(reply).unwrap();
    header == ReplyHeader::accepted(xid, AcceptStatus::SystemErr)
}

#[test]
fn repetition_that_nobody_can_wait_for_has_no_answer() {
    let (server, at, held) = server();
    let mut peer = Peer::at(at);
    let others: Vec<_> = (0..32)
        .map(|xid| {
            peer.send_message(&call(xid, HELD_ONCE, &[]));
            held.recv_timeout(PATIENCE).unwrap()
        })
        .collect();
    peer.send_message(&call(0, HELD_ONCE, &[]));
    assert_eq!(peer.call(90, ECHO, &opaque(b"x")), opaque(b"x"));
    assert_eq!(total(&server, "calls_discarded"), 1);
    drop(others);
}

#[test]
fn calls_are_answered_later_in_any_order() {
    let (_server, at, held) = server();
    let mut peer = Peer::at(at);
    (1..=3).for_each(|xid| peer.send_message(&call(xid, HELD, &[])));
    let mut laters: Vec<_> = (1..=3)
        .map(|_| held.recv_timeout(PATIENCE).unwrap())
        .collect();
    let third = laters.pop().unwrap();
    let mut data = third.buffers().wait(10_001, PATIENCE).unwrap();
    data.copy_from(&[7; 10_001]);
    third.reply(|results| {
        results.u32(1).bulk(data).u32(2);
    });
    let expected = [&[0, 0, 0, 1][..], &opaque(&[7; 10_001]), &[0, 0, 0, 2]].concat();
    assert_eq!(peer.results(3), expected);
    drop(laters);
    let system_error = |xid| ReplyHeader::accepted(xid, AcceptStatus::SystemErr);
    for xid in 1..=2 {
        let reply = peer.reply();
        assert_eq!(ReplyHeader::decode(&reply).unwrap().0, system_error(xid));
    }
    // Others may have the place of a connection only when its calls have ended.
    peer.send_message(&call(4, HELD, &[]));
    let late = held.recv_timeout(PATIENCE).unwrap();
    drop(peer);
    let mut next = Peer::at(at);
    assert_eq!(next.call(4, ECHO, &opaque(b"x")), opaque(b"x"));
    late.reply(|results| {
        results.u32(9);
    });
    assert_eq!(next.call(4, ECHO, &opaque(b"y")), opaque(b"y"));
}

#[test]
fn calls_of_connections_that_ended_count_for_their_address() {
    let (held, calls) = channel();
    let held = Mutex::new(held);
    let builder = builder().knob("peers_connections_max=2");
    let builder = builder.procedure(HELD, move |call, _| {
        let sent = held.lock().unwrap().send(call.later()?);
        sent.map_err(|_| Refusal::SystemError)
    });
    let (server, at) = listening(builder);
    let held = [1, 2].map(|xid| {
        Peer::at(at).send_message(&call(xid, HELD, &[]));
        calls.recv_timeout(PATIENCE).unwrap()
    });
    assert!(Peer::at(at).is_closed());
    let mut other = Peer::from(Ipv4Addr::new(127, 0, 0, 2), at);
    assert_eq!(other.call(1, ECHO, &opaque(b"x")), opaque(b"x"));
    drop(held);
    until_served(at);
    // The limit of all listeners, which can change.
    let control = server.node().control();
    let limits = rpcrdma_control::NodeLimits {
        peer_connections_max: 1,
        ..control.limits()
    };
    control.set_limits(limits).unwrap();
    assert!(Peer::from(Ipv4Addr::new(127, 0, 0, 2), at).is_closed());
    control.set_limits(control.limits_reserved()).unwrap();
    let mut second = Peer::from(Ipv4Addr::new(127, 0, 0, 2), at);
    assert_eq!(second.call(1, ECHO, &opaque(b"x")), opaque(b"x"));
}

#[test]
fn drain_lets_calls_in_progress_finish() {
    let (server, at, held) = server();
    let (mut busy, mut idle) = (Peer::at(at), Peer::at(at));
    idle.call(1, ECHO, &opaque(b"x"));
    busy.send_message(&call(2, HELD, &[]));
    let later = held.recv_timeout(PATIENCE).unwrap();
    let node = server.node().clone();
    let drain = std::thread::spawn(move || node.drain(PATIENCE).unwrap());
    assert!(idle.is_closed());
    busy.send_message(&call(3, ECHO, &opaque(b"too late")));
    later.reply(|results| {
        results.u32(5);
    });
    assert_eq!(busy.results(2), 5_u32.to_be_bytes());
    assert!(busy.is_closed());
    let report = drain.join().unwrap();
    assert_eq!((report.connections, report.complete), (2, true));
    assert!(TcpStream::connect(at).is_err());
}

/// Closed with octets that nobody has read, a connection is reset, and what is on its way is lost.
#[test]
fn drain_sends_all_replies_though_octets_are_unread() {
    let (server, at, held) = server();
    let (mut busy, mut idle) = (Peer::at(at), Peer::at(at));
    idle.call(1, ECHO, &opaque(b"x"));
    busy.send_message(&call(2, HELD, &[]));
    let later = held.recv_timeout(PATIENCE).unwrap();
    let node = server.node().clone();
    let drain = std::thread::spawn(move || node.drain(PATIENCE).unwrap());
    assert!(idle.is_closed());
    // More than one look at the socket reads.
    busy.send(&[0; 100_000]);
    later.reply(|results| {
        results.opaque(&[7; 300_000]);
    });
    // The server has closed the connection before the reply is read, which fits into the buffers of the sockets.
    let mut rest = Vec::new();
    until("the drain", || drain.is_finished().then_some(()));
    busy.0.read_to_end(&mut rest).unwrap();
    assert!(rest.ends_with(&opaque(&[7; 300_000])));
    assert!(drain.join().unwrap().complete);
}

/// As replies that are written immediately.
#[test]
fn deferred_reply_that_is_too_long_is_an_error_and_the_longest_is_sent() {
    let (_server, at, held) = server();
    let mut peer = Peer::at(at);
    for (xid, bytes, status) in [
        (1, 1 << 20, AcceptStatus::Success),
        (2, 2 << 20, AcceptStatus::SystemErr),
        (3, 1, AcceptStatus::Success),
    ] {
        peer.send_message(&call(xid, HELD, &[]));
        let later = held.recv_timeout(PATIENCE).unwrap();
        later.reply(|results| {
            results.bytes(&vec![7; bytes]);
        });
        let reply = peer.reply();
        let (header, at) = ReplyHeader::decode(&reply).unwrap();
        assert_eq!(header, ReplyHeader::accepted(xid, status));
        let expected = if status == AcceptStatus::Success {
            bytes
        } else {
            0
        };
        assert_eq!(reply.len() - at, expected);
    }
}

#[test]
fn drain_ends_in_time_though_a_call_does_not() {
    let (server, at, held) = server();
    let mut peer = Peer::at(at);
    peer.send_message(&call(1, HELD, &[]));
    let later = held.recv_timeout(PATIENCE).unwrap();
    let report = server.drain(Duration::ZERO).unwrap();
    assert_eq!((report.connections, report.complete), (1, false));
    assert!(peer.is_closed());
    drop(later);
}

/// Has the test answer calls, and tells it of connections that end.
struct Held {
    calls: Sender<Later>,
    ended: Sender<()>,
}

impl Service for Held {
    fn call(&mut self, call: &mut Incoming<'_>, _: &mut Reply<'_, '_>) -> Result<(), Refusal> {
        let sent = self.calls.send(call.later()?);
        sent.map_err(|_| Refusal::SystemError)
    }

    fn disconnected(&mut self, _: ConnectionKey, _: CloseReason) {
        self.ended.send(()).unwrap();
    }
}

#[test]
fn drain_is_complete_only_when_calls_of_connections_that_ended_are() {
    for is_answered in [false, true] {
        let ((calls, held), (ended, over)) = (channel(), channel());
        let server = Server::builder().profile(profile());
        let (server, at) = listening(server.program(PROGRAM, 1..=1, move |_| Held {
            calls: calls.clone(),
            ended: ended.clone(),
        }));
        let mut peer = Peer::at(at);
        peer.send_message(&call(1, HELD, &[]));
        let later = held.recv_timeout(PATIENCE).unwrap();
        // Its end is a reset.
        set_socket_linger(&peer.0, Some(Duration::ZERO)).unwrap();
        drop(peer);
        over.recv_timeout(PATIENCE).unwrap();
        let node = server.node().clone();
        let limit = match is_answered {
            true => PATIENCE,
            // TIME: the call never ends, so no machine is too slow for it; the cores need less.
            false => Duration::from_millis(200),
        };
        let drain = std::thread::spawn(move || node.drain(limit).unwrap());
        if is_answered {
            later.refuse(Refusal::SystemError);
        }
        let report = drain.join().unwrap();
        assert_eq!((report.connections, report.complete), (0, is_answered));
        assert_eq!(total(&server, "tcp_calls"), 0, "nobody had an answer");
    }
}

#[test]
fn node_ends_with_connections_and_calls_by_tcp() {
    let (server, at, held) = server();
    let (mut busy, mut silent) = (Peer::at(at), Peer::at(at));
    busy.send_message(&call(1, HELD, &[]));
    let later = held.recv_timeout(PATIENCE).unwrap();
    silent.send(&[0x80]);
    // TIME: the promise is two seconds; a thread that waited for a peer or a call would take minutes.
    let begin = Instant::now();
    drop(server);
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(20), "{took:?}");
    assert!(busy.is_closed() && silent.is_closed());
    later.refuse(Refusal::SystemError);
    assert!(TcpStream::connect(at).is_err());
}

#[test]
fn connections_by_tcp_are_those_of_all_cores() {
    let server = Server::builder().profile(profile()).cores(2);
    let number = |core: usize| CoreNumber(u32::try_from(core).unwrap());
    let (_server, at) = listening(server.program(PROGRAM, 1..=1, number));
    let mut peers = [(); 2].map(|()| Peer::at(at));
    let mut numbers = peers.each_mut().map(|peer| peer.call(1, ECHO, &[])[3]);
    numbers.sort_unstable();
    assert_eq!(numbers, [0, 1]);
}

/// Answers with the number of its core, once it has heard of the connection.
struct CoreNumber(u32);

impl Service for CoreNumber {
    fn call(&mut self, _: &mut Incoming<'_>, reply: &mut Reply<'_, '_>) -> Result<(), Refusal> {
        reply.u32(self.0);
        Ok(())
    }
}

#[test]
fn tcp_listener_admits_the_same_clients_as_other_listeners() {
    let tcp = "tcp:127.0.0.1:0";
    let undecided = builder().also_at(tcp).listen(&address()).unwrap_err();
    assert!(undecided.to_string().contains(tcp), "{undecided}");
    // TCP alone, without an address of the fabric.
    let server = builder().authentication(Authentication::None).listen(tcp);
    let server = server.unwrap();
    let mut peer = Peer::at(server.address()["tcp:".len()..].parse().unwrap());
    assert_eq!(peer.call(1, ECHO, &opaque(b"x")), opaque(b"x"));
    for wrong in ["tcp:", "tcp:127.0.0.1", "tcp:nowhere.invalid:1"] {
        let refused = server.node().listen(wrong, Authentication::None);
        assert_eq!(
            refused.unwrap_err().kind(),
            rpcrdma::ErrorKind::Address,
            "{wrong}"
        );
    }
}
