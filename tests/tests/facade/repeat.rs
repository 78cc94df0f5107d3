//! A client that makes calls again when it has connected again, and a server where nothing runs twice.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rpcrdma::prelude::*;
use rpcrdma::{ClientBuilder, CloseReason, ConnectionKey, HostIdentity, Later};
use rpcrdma_testkit::{Random, Running, Wait, command, pattern, until};
use rustix::process::Signal;

use crate::memory::{BLOCK, file, memory};
use crate::{PATIENCE, PROGRAM, address, builder, profile, soon};

/// Makes the entry of the argument, and returns its number.
const ENTER: Procedure = Procedure::new(PROGRAM, 1, 40);
/// As `ENTER`, answered by another thread.
const ENTER_LATER: Procedure = Procedure::new(PROGRAM, 1, 41);
/// As `ENTER`, with the data of the entry.
const ENTER_DATA: Procedure = Procedure::new(PROGRAM, 1, 42);

/// How often the connection is cut at least, and at most where its client is slow to notice.
const CUTS: u32 = 200;
const CUTS_MAX: u32 = 20 * CUTS;
const CORES: usize = 3;

/// How often each entry was made, and who is connected.
#[derive(Default)]
struct Ledger {
    entries: Mutex<HashMap<u32, u32>>,
    connections: Mutex<Vec<(usize, ConnectionKey)>>,
}

impl Ledger {
    fn enter(&self, number: u32) {
        *self.entries.lock().unwrap().entry(number).or_default() += 1;
    }

    fn times(&self, number: u32) -> u32 {
        let entries = self.entries.lock().unwrap();
        entries.get(&number).copied().unwrap_or(0)
    }
}

/// The service of a core.
struct Clerk {
    core: usize,
    ledger: Arc<Ledger>,
    later: Sender<(Later, u32)>,
}

/// The data of an entry, of any length up to some pieces.
fn data_of(number: u32) -> Vec<u8> {
    let bytes = number.wrapping_mul(40_503) % 150_000;
    pattern(1 + bytes as usize, number.into())
}

impl Service for Clerk {
    fn call(&mut self, call: &mut Incoming<'_>, reply: &mut Reply<'_, '_>) -> Result<(), Refusal> {
        let number = call.args().u32()?;
        if call.named() == ENTER_DATA {
            let data = call.args().bulk()?;
            let data: Vec<_> = data.pieces().flatten().copied().collect();
            if data != data_of(number) {
                return Err(Refusal::GarbageArgs);
            }
        }
        self.ledger.enter(number);
        if call.named() != ENTER_LATER {
            reply.u32(number);
            return Ok(());
        }
        let later = (call.later()?, number);
        self.later.send(later).map_err(|_| Refusal::SystemError)
    }

    fn non_idempotent(&self) -> Vec<Procedure> {
        vec![ENTER, ENTER_LATER, ENTER_DATA]
    }

    fn connected(&mut self, connection: ConnectionKey, _: Option<&HostIdentity>) {
        let mut connections = self.ledger.connections.lock().unwrap();
        connections.push((self.core, connection));
    }

    fn disconnected(&mut self, connection: ConnectionKey, _: CloseReason) {
        let mut connections = self.ledger.connections.lock().unwrap();
        connections.retain(|other| *other != (self.core, connection));
    }
}

fn serve(at: &str) -> (Server, Arc<Ledger>, Receiver<(Later, u32)>) {
    let ledger = Arc::<Ledger>::default();
    let (later, deferred) = channel();
    let server = Server::builder().profile(profile()).cores(CORES);
    let server = server.program(PROGRAM, 1..=1, {
        let ledger = Arc::clone(&ledger);
        move |core| Clerk {
            core,
            ledger: Arc::clone(&ledger),
            later: later.clone(),
        }
    });
    (server.listen(at).unwrap(), ledger, deferred)
}

fn repeating() -> ClientBuilder {
    builder().reconnect(soon()).repeat(true)
}

/// Answers after up to a millisecond.
fn answer_later(deferred: &Receiver<(Later, u32)>) {
    let mut random = Random(7);
    for (later, number) in deferred {
        if random.once_in(4) {
            // TIME: connections are cut in these pauses more often than between them. It is no limit of anything.
            std::thread::sleep(Duration::from_micros(random.between(1, 1000).into()));
        }
        later.reply(|results| {
            results.u32(number);
        });
    }
}

/// As [`serve`], at two addresses. Returns them as a client takes them.
fn serve_at_two() -> (String, Server, Arc<Ledger>, Receiver<(Later, u32)>) {
    let (first, second) = (address(), address());
    let (server, ledger, deferred) = serve(&first);
    let node = server.node();
    let listening = node.listen(&second, rpcrdma::Authentication::Fabric);
    assert_eq!(listening.unwrap(), second);
    let (_, name) = second.split_once(':').unwrap();
    (format!("{first},{name}"), server, ledger, deferred)
}

/// Cuts connections of the server, each time after a few more entries. Goes on until the client has noticed half of the cuts
/// and calls were repeated: how many are under way at a cut, and whether the client knew of the connection already, is the
/// scheduler's choice.
fn cut(server: &Server, ledger: &Ledger, client: &Client, ended: &AtomicU32) {
    let mut random = Random(8);
    let mut cuts = 0;
    let is_enough = |cuts| {
        let noticed = client.reconnects() >= u64::from(CUTS) / 2;
        cuts >= CUTS && noticed && repeated(server) > 0
    };
    while !is_enough(cuts) {
        let noticed = client.reconnects();
        assert!(cuts < CUTS_MAX, "{cuts} cuts, {noticed} noticed");
        let next = ended.load(Ordering::Relaxed) + random.between(0, 100);
        let wait = Wait::begin("calls on two connections");
        while ended.load(Ordering::Relaxed) < next || !client.is_connected() {
            wait.look(|| format!("{cuts} cuts, {noticed} noticed"));
            std::thread::yield_now();
        }
        let connections = ledger.connections.lock().unwrap().clone();
        if !connections.is_empty() {
            let (core, connection) = random.pick(&connections);
            server.node().close(core, connection);
            cuts += 1;
        }
    }
}

fn repeated(server: &Server) -> u64 {
    let repeated = server.metrics().total("calls_repeated");
    repeated.expect("the server keeps replies")
}

/// Calls one after the other until it is told to end.
fn call_on(client: &Client, first: u32, is_over: &AtomicBool, ended: &AtomicU32) -> u32 {
    let mut number = first;
    while !is_over.load(Ordering::Relaxed) {
        let mut request = client.request(match number % 5 {
            0 => ENTER_LATER,
            1 | 2 => ENTER_DATA,
            _ => ENTER,
        });
        request.u32(number);
        if matches!(number % 5, 1 | 2) {
            let data = data_of(number);
            let mut buffer = client.buffers().wait(data.len(), PATIENCE).unwrap();
            buffer.copy_from(&data);
            request.bulk(buffer);
        }
        let mut answer = request.call().unwrap();
        assert_eq!(answer.results().u32().unwrap(), number);
        ended.fetch_add(1, Ordering::Relaxed);
        number += 1;
    }
    number
}

/// As many calls as the server keeps the replies of, and more.
fn poll_on(client: &Client, is_over: &AtomicBool, ended: &AtomicU32) -> u32 {
    let mut poller = client.poller(100).unwrap();
    let mut number = 0;
    loop {
        while !poller.is_full() && !is_over.load(Ordering::Relaxed) {
            let procedure = if number % 7 == 0 { ENTER_LATER } else { ENTER };
            let mut request = poller.request(procedure);
            poller.submit(request.u32(number), number.into()).unwrap();
            number += 1;
        }
        if poller.is_empty() {
            return number;
        }
        let answer = poller.wait().unwrap();
        let mut results = answer.result.unwrap();
        assert_eq!(u64::from(results.results().u32().unwrap()), answer.tag);
        ended.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn nothing_runs_twice_and_nothing_fails_while_connections_are_cut_200_times() {
    let at = address();
    let (server, ledger, deferred) = serve(&at);
    let client = repeating().connections(2).connect(&at).unwrap();
    nothing_runs_twice_while_connections_are_cut(client, server, &ledger, deferred);
}

/// Each cut moves a connection to the other address, by which the server knows it.
#[test]
fn nothing_runs_twice_and_nothing_fails_while_connections_move_between_two_addresses() {
    let (at, server, ledger, deferred) = serve_at_two();
    let client = repeating().connections(2).connect(&at).unwrap();
    nothing_runs_twice_while_connections_are_cut(client, server, &ledger, deferred);
}

/// As before, and each connection goes back to its own address immediately: calls move to and fro all the time.
#[test]
fn nothing_runs_twice_and_nothing_fails_while_connections_go_back() {
    let (at, server, ledger, deferred) = serve_at_two();
    let returning = repeating().return_after(Some(Duration::ZERO));
    let client = returning.connections(2).connect(&at).unwrap();
    let watched = client.clone();
    nothing_runs_twice_while_connections_are_cut(client, server, &ledger, deferred);
    let (returns, cuts) = (watched.returns(), watched.reconnects());
    assert!(returns >= 5, "{returns} returns after {cuts} cuts");
}

fn nothing_runs_twice_while_connections_are_cut(
    client: Client,
    server: Server,
    ledger: &Ledger,
    deferred: Receiver<(Later, u32)>,
) {
    let worker = std::thread::spawn(move || answer_later(&deferred));
    let (is_over, ended) = (AtomicBool::new(false), AtomicU32::new(0));
    let firsts = [1 << 24, 2 << 24];
    let made: Vec<u32> = std::thread::scope(|scope| {
        let (client, is_over, ended) = (&client, &is_over, &ended);
        let callers =
            firsts.map(|first| scope.spawn(move || call_on(client, first, is_over, ended)));
        let poller = scope.spawn(move || poll_on(client, is_over, ended));
        let cutter = scope.spawn(|| cut(&server, ledger, client, ended));
        let cutter = cutter.join();
        is_over.store(true, Ordering::Relaxed);
        cutter.unwrap();
        let polled = 0..poller.join().unwrap();
        let callers = firsts.into_iter().zip(callers);
        let called = callers.map(|(first, caller)| first..caller.join().unwrap());
        std::iter::once(polled).chain(called).flatten().collect()
    });
    let wrong: Vec<_> = made
        .into_iter()
        .map(|number| (number, ledger.times(number)))
        .filter(|(_, times)| *times != 1)
        .collect();
    assert_eq!(wrong, [], "entries that were not made once");
    drop((client, server));
    worker.join().unwrap();
}

/// An address that the server leaves while calls are under way, and comes back to.
#[test]
fn calls_go_on_by_the_other_address_when_one_is_closed() {
    let (at, server, ledger, deferred) = serve_at_two();
    let worker = std::thread::spawn(move || answer_later(&deferred));
    let client = repeating().connections(2).connect(&at).unwrap();
    let (first, name) = at.split_once(',').unwrap();
    let second = &*format!("shm:{name}");
    let connected_at = || client.connected_at();
    let both = vec![Some(first.to_owned()), Some(second.to_owned())];
    assert_eq!(connected_at(), both, "they begin in turn");
    let (is_over, ended) = (AtomicBool::new(false), AtomicU32::new(0));
    let made = std::thread::scope(|scope| {
        let caller = scope.spawn(|| call_on(&client, 0, &is_over, &ended));
        for (closed, left) in [(first, second), (second, first), (first, second)] {
            assert!(server.node().stop_listening(closed).unwrap());
            assert!(
                !server.node().stop_listening(closed).unwrap(),
                "it has left"
            );
            // All of them: those at the other address find it again, or there is no other.
            for (core, connection) in ledger.connections.lock().unwrap().clone() {
                server.node().close(core, connection);
            }
            let only = vec![Some(left.to_owned()); 2];
            until("connections at the other address", || {
                (connected_at() == only).then_some(())
            });
            let enough = ended.load(Ordering::Relaxed) + 50;
            until("calls by the other address", || {
                (ended.load(Ordering::Relaxed) >= enough).then_some(())
            });
            let authentication = rpcrdma::Authentication::Fabric;
            assert_eq!(
                server.node().listen(closed, authentication).unwrap(),
                closed
            );
        }
        is_over.store(true, Ordering::Relaxed);
        caller.join().unwrap()
    });
    let times: Vec<_> = (0..made).map(|number| ledger.times(number)).collect();
    assert_eq!(times, vec![1; made as usize]);
    drop((client, server));
    worker.join().unwrap();
}

/// How many clients are killed at least, and at most where no reply is lost, and after how many answers each.
const KILLS: u32 = 10;
const KILLS_MAX: u32 = 20 * KILLS;
const ANSWERS: u32 = 50;

/// Clients in processes of their own, whose connections the server closes, and which end by `kill -9` in the middle of a
/// call: what they were told is in the ledger once, and what they were not told at most once.
#[test]
fn nothing_runs_twice_for_clients_that_are_killed() {
    let at = address();
    let (server, ledger, deferred) = serve(&at);
    // Entries are made long before they are answered, so that most connections are closed in between.
    let worker = std::thread::spawn(move || answer_later(&deferred));
    let mut random = Random(9);
    // And more, until a reply was lost: otherwise the test shows nothing.
    let has_shown = || repeated(&server) > 0;
    for kill in (0..).take_while(|kill| *kill < KILLS || !has_shown()) {
        assert!(kill < KILLS_MAX, "no reply was lost");
        let first = kill << 16;
        let line = format!("{at} {PROGRAM} {} {first}", ENTER_LATER.number);
        let mut client =
            Running::start(&mut command(env!("CARGO_BIN_EXE_repeating-client"), &line));
        let mut next = first;
        while next < first + ANSWERS {
            let told = client.line().expect("it goes on");
            assert_eq!(told, next.to_string());
            next += 1;
            if random.once_in(10) {
                let connections = ledger.connections.lock().unwrap().clone();
                for (core, connection) in connections {
                    server.node().close(core, connection);
                }
            }
        }
        client.end_by(Signal::KILL);
        until("the end of its connections", || {
            ledger.connections.lock().unwrap().is_empty().then_some(())
        });
        let times: Vec<_> = (first..next).map(|number| ledger.times(number)).collect();
        assert_eq!(times, [1; ANSWERS as usize]);
        // It went on until it was killed, with nobody who read what it said.
        let more = (next..next + (1 << 15)).map(|number| ledger.times(number));
        assert!(more.take_while(|times| *times > 0).all(|times| times == 1));
    }
    let entries = ledger.entries.lock().unwrap();
    assert!(entries.values().all(|times| *times == 1), "{entries:?}");
    drop(entries);
    drop(server);
    worker.join().unwrap();
}

#[test]
fn a_call_is_not_repeated_to_a_server_that_was_restarted() {
    let at = address();
    let (first, ledger, later) = serve(&at);
    let client = repeating().connect(&at).unwrap();
    let mut poller = client.poller(1).unwrap();
    let mut request = poller.request(ENTER_LATER);
    poller.submit(request.u32(1), 1).unwrap();
    let unanswered = later.recv_timeout(PATIENCE).unwrap();
    drop(first);
    drop(unanswered);
    let (_second, of_second, _) = serve(&at);
    let error = poller.wait().unwrap().result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Disconnected, "{error}");
    assert_eq!((ledger.times(1), of_second.times(1)), (1, 0));
    // Others go on there.
    client.request(ENTER).u32(2).call().unwrap();
    assert_eq!(of_second.times(2), 1);
}

#[test]
fn a_call_that_was_lost_ends_in_time() {
    let at = address();
    let (server, _, later) = serve(&at);
    // TIME: nobody serves again, so no machine is too slow for it.
    let client = repeating().patience(Duration::from_millis(100));
    let client = client.connect(&at).unwrap();
    let mut poller = client.poller(1).unwrap();
    let mut request = poller.request(ENTER_LATER);
    poller.submit(request.u32(1), 1).unwrap();
    let unanswered = later.recv_timeout(PATIENCE).unwrap();
    drop(server);
    let error = poller.wait().unwrap().result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Disconnected, "{error}");
    drop(unanswered);
}

#[test]
fn no_more_calls_are_under_way_than_the_server_keeps_replies_of() {
    const OTHERS: u32 = 30;
    let at = address();
    let (_server, _, later) = serve(&at);
    let node = Node::builder().profile(profile()).start(&at).unwrap();
    let on_node = || node.client().connect_timeout(PATIENCE);
    let client = on_node().repeat(true).connect(&at).unwrap();
    let other = on_node().connect(&at).unwrap();
    let mut poller = client.poller(100).unwrap();
    for number in 0..100 {
        let mut request = poller.request(ENTER_LATER);
        poller.submit(request.u32(number), number.into()).unwrap();
    }
    let next = || later.recv_timeout(PATIENCE).unwrap();
    let answer = |(answer, number): (Later, u32)| {
        answer.reply(|results| {
            results.u32(number);
        });
    };
    let mut under_way: Vec<_> = (0..64).map(|_| next()).collect();
    let mut sent = 64;
    let mut no_more_are_sent = || {
        // Each call of the other client takes an iteration of the core, in which it looks at eight of the hundred.
        for number in 0..OTHERS {
            other.request(ENTER).u32(1000 + number).call().unwrap();
        }
        sent += u64::from(OTHERS);
        assert_eq!(node.metrics().total("calls_sent"), Some(sent));
    };
    no_more_are_sent();
    // The reply to the oldest may be lost, however many others overtake it.
    let oldest = under_way.remove(0);
    for ended in under_way {
        answer(ended);
        assert!(poller.wait().unwrap().result.is_ok());
    }
    no_more_are_sent();
    answer(oldest);
    assert!(poller.wait().unwrap().result.is_ok());
    for _ in 64..100 {
        answer(next());
        assert!(poller.wait().unwrap().result.is_ok());
    }
}

/// Waits until nobody is connected, or somebody is.
fn until_connected(ledger: &Ledger, is_connected: bool) {
    until("the begin or the end of a connection", || {
        let is_empty = ledger.connections.lock().unwrap().is_empty();
        (is_empty != is_connected).then_some(())
    });
}

#[test]
fn calls_that_send_and_expect_bulk_data_are_repeated() {
    let at = address();
    let (server, ledger, later) = serve(&at);
    let memory = memory(&file(3));
    let node = Node::builder().profile(profile()).memory(&memory);
    let node = node.start(&at).unwrap();
    let client = node.client().connect_timeout(PATIENCE).reconnect(soon());
    let client = client.repeat(true).connect(&at).unwrap();
    let mut poller = client.poller(5).unwrap();
    let block = |number| Buffer::of_memory(&memory, number * BLOCK as u64, BLOCK);
    let mut data = client.buffers().wait(20_000, PATIENCE).unwrap();
    data.copy_from(&[5; 20_000]);
    let own = block(1).unwrap();
    for (tag, sent) in [(1, None), (2, Some(data)), (3, Some(own))] {
        let mut request = poller.request(ENTER_LATER);
        request.u32(tag).expect_bulk(4096);
        if let Some(data) = sent {
            request.bulk(data);
        }
        poller.submit(&mut request, tag.into()).unwrap();
    }
    // The data of the last one is outside the stream of the first attempt, and in that of the second one.
    let short = client.buffers().copy_of(&[8; 100]).unwrap();
    let target = Buffer::of_memory(&memory, 2 * BLOCK as u64, 500).unwrap();
    for (tag, target, sent) in [(4, block(0).unwrap(), None), (5, target, Some(short))] {
        let mut into = poller.request(ENTER_LATER);
        into.u32(tag).expect_bulk_into(target);
        if let Some(data) = sent {
            into.bulk(data);
        }
        poller.submit(&mut into, tag.into()).unwrap();
    }
    let answers = [(); 5].map(|()| later.recv_timeout(PATIENCE).unwrap());
    until_connected(&ledger, true);
    let (core, connection) = ledger.connections.lock().unwrap()[0];
    server.node().close(core, connection);
    // Each waits for the first one of it.
    until("the calls that come again", || {
        (repeated(&server) == 5).then_some(())
    });
    assert!(block(1).is_err(), "its data may be needed again");
    for (answer, number) in answers {
        answer.reply(|results| {
            results.u32(number).bulk_copy(&[7; 400]);
        });
    }
    let ended = [(); 5].map(|()| {
        let ended = poller.wait().unwrap();
        let mut answer = ended.result.unwrap();
        let mut results = answer.results();
        assert_eq!(u64::from(results.u32().unwrap()), ended.tag);
        let data = results.bulk().unwrap();
        assert!(data.len() == 400 && data.pieces().flatten().all(|byte| *byte == 7));
        answer
    });
    assert_eq!([1, 2, 3, 4, 5].map(|number| ledger.times(number)), [1; 5]);
    // Their senders have what they got, and nothing of what they sent is held.
    until("the memory of the program", || {
        let blocks = [block(0), block(1), block(2)];
        blocks.iter().all(Result::is_ok).then_some(())
    });
    drop(ended);
}
