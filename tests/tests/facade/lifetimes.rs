//! What is dropped, and when: nothing of it stays, and nobody waits for ever.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use rpcrdma::prelude::*;
use rpcrdma::{Authentication, ConnectionKey, HostIdentity, Later, Pending};
use rpcrdma_testkit::{Wait, until};

use crate::{ECHO, PATIENCE, PROGRAM, address, builder, connect, echo, profile, soon};

/// Is answered when the test says so.
const HELD: Procedure = Procedure::new(PROGRAM, 1, 20);

/// Tells of its connections, and holds its core up in each call until the test goes on.
struct Holding {
    connected: Sender<ConnectionKey>,
    called: Sender<()>,
    go_on: Receiver<()>,
}

impl Service for Holding {
    fn call(&mut self, _: &mut Incoming<'_>, _: &mut Reply<'_, '_>) -> Result<(), Refusal> {
        let _ = self.called.send(());
        let _ = self.go_on.recv();
        Ok(())
    }

    fn connected(&mut self, connection: ConnectionKey, _: Option<&HostIdentity>) {
        let _ = self.connected.send(connection);
    }
}

/// Waits until the node that listened at `at` accepts no more, because its control thread has ended.
fn until_free(at: &str) -> Server {
    until("the end of the node that listened", || {
        let server = Server::builder().profile(profile());
        let server = server.procedure(ECHO, |_, _| Ok(()));
        server.listen(at).ok()
    })
}

#[test]
fn a_node_ends_though_the_mailbox_of_its_core_is_full() {
    let at = address();
    let (connected, key) = channel();
    let (called, is_called) = channel();
    let (release, go_on) = channel();
    let holding = Mutex::new(Some(Holding {
        connected,
        called,
        go_on,
    }));
    let server = Server::builder().profile(profile());
    let server = server.program(PROGRAM, 1..=1, move |_| {
        holding.lock().unwrap().take().expect("one core")
    });
    let server = server.listen(&at).unwrap();
    let client = connect(&at);
    let key = key.recv_timeout(PATIENCE).unwrap();
    let mut poller = client.poller(1).unwrap();
    let mut request = poller.request(ECHO);
    poller.submit(&mut request, 0).unwrap();
    is_called.recv_timeout(PATIENCE).unwrap();
    // Orders for a core that cannot take them: more than its mailbox holds.
    let depth = server.node().profile().mailbox_depth;
    for _ in 0..2 * depth {
        server.node().close(0, key);
    }
    let dropping = std::thread::spawn(move || drop(server));
    drop(until_free(&at));
    assert!(!dropping.is_finished(), "it waits for the handler");
    release.send(()).unwrap();
    until("the end of the drop", || {
        dropping.is_finished().then_some(())
    });
    dropping.join().unwrap();
    let ended = poller.wait_for(PATIENCE).unwrap();
    assert!(ended.is_some(), "whatever came of the call");
}

#[test]
fn a_polled_core_stops_though_its_mailbox_is_full() {
    let at = address();
    let (connected, key) = channel();
    let (called, _is_called) = channel();
    let (_release, go_on) = channel();
    let holding = Mutex::new(Some(Holding {
        connected,
        called,
        go_on,
    }));
    let node = Node::builder().profile(profile()).polled_by_caller();
    let node = node.program(PROGRAM, 1..=1, move |_| {
        holding.lock().unwrap().take().expect("one core")
    });
    let node = node.start(&at).unwrap();
    let mut core = node.take_core(0).unwrap();
    node.listen(&at, Authentication::Fabric).unwrap();
    let wait = Wait::begin("a connection");
    let (key, client) = std::thread::scope(|scope| {
        let connecting = scope.spawn(|| connect(&at));
        while !connecting.is_finished() {
            core.poll();
            wait.look(String::new);
        }
        let client = connecting.join().unwrap();
        let key = loop {
            core.poll();
            wait.look(String::new);
            if let Ok(key) = key.try_recv() {
                break key;
            }
        };
        (key, client)
    });
    for _ in 0..2 * node.profile().mailbox_depth {
        node.close(0, key);
    }
    // Nobody polls the core meanwhile, and nobody waits for it.
    drop(node);
    let wait = Wait::begin("the end of the core");
    while !core.is_stopped() {
        core.poll();
        wait.look(String::new);
    }
    until("the loss of the connection", || {
        (!client.is_connected()).then_some(())
    });
}

#[test]
fn the_last_handle_of_a_node_may_go_in_its_own_handler() {
    let at = address();
    let place = Arc::new(Mutex::new(None::<Server>));
    // The handler has what follows the drop, and the core has the handler.
    let (is_past, ended) = (Arc::new(AtomicBool::new(false)), Arc::new(()));
    let server = Server::builder().profile(profile());
    let server = server.procedure(ECHO, {
        let (place, is_past, ended) =
            (Arc::clone(&place), Arc::clone(&is_past), Arc::clone(&ended));
        move |_, _| {
            let _ended = &ended;
            drop(place.lock().unwrap().take());
            is_past.store(true, Ordering::Relaxed);
            Ok(())
        }
    });
    let server = server.listen(&at).unwrap();
    let client = connect(&at);
    *place.lock().unwrap() = Some(server);
    // Answered or lost with the connection: the node ends behind it.
    let mut call = client.request(ECHO);
    let _ = call.timeout(PATIENCE).call();
    until("the end of the core", || {
        (Arc::strong_count(&ended) == 1).then_some(())
    });
    assert!(is_past.load(Ordering::Relaxed), "the handler went on");
    drop(until_free(&at));
}

/// A waker that counts itself.
struct Counted;

impl Wake for Counted {
    fn wake(self: Arc<Self>) {}
}

fn poll(call: &mut Pending, waker: &Waker) -> Poll<()> {
    let polled = Pin::new(call).poll(&mut Context::from_waker(waker));
    polled.map(drop)
}

/// A server whose calls of [`HELD`] are answered when what it returns is dropped.
fn holding(at: &str) -> (Server, Arc<Mutex<Vec<Later>>>) {
    let held = Arc::<Mutex<Vec<Later>>>::default();
    let server = Server::builder().profile(profile());
    let server = server.procedure(HELD, {
        let held = Arc::clone(&held);
        move |call, _| {
            held.lock().unwrap().push(call.later()?);
            Ok(())
        }
    });
    (server.listen(at).unwrap(), held)
}

#[test]
fn a_future_that_is_dropped_leaves_no_waker_behind() {
    let at = address();
    let (_server, held) = holding(&at);
    let client = builder().depth(1).connect(&at).unwrap();
    let counted = Arc::new(Counted);
    let begin = |counted: &Arc<Counted>| {
        let mut call = client.call_async(HELD, &[]);
        // Twice, as a runtime may.
        for _ in 0..2 {
            assert!(poll(&mut call, &Waker::from(Arc::clone(counted))).is_pending());
        }
        call
    };
    let first = begin(&counted);
    assert_eq!(Arc::strong_count(&counted), 2, "its own, and the call's");
    // These wait for the slot that the first one has.
    let waiting: Vec<_> = (0..1000).map(|_| begin(&counted)).collect();
    assert_eq!(Arc::strong_count(&counted), 1002);
    drop(waiting);
    assert_eq!(Arc::strong_count(&counted), 2);
    let last = begin(&counted);
    drop(first);
    assert_eq!(Arc::strong_count(&counted), 2);
    drop(last);
    assert_eq!(Arc::strong_count(&counted), 1);
    // The slot is free when the reply has come, though nobody waits for it.
    until("the call", || {
        (!held.lock().unwrap().is_empty()).then_some(())
    });
    for later in held.lock().unwrap().drain(..) {
        later.reply(|_| {});
    }
    let mut request = client.request(Procedure::new(PROGRAM, 1, 0));
    request.timeout(PATIENCE).call().unwrap();
}

/// Polls another call when it is woken, on the thread that wakes it, as executors without a queue do.
struct Inline {
    other: Mutex<Pending>,
    wakes: AtomicU32,
}

impl Wake for Inline {
    fn wake(self: Arc<Self>) {
        self.wakes.fetch_add(1, Ordering::Relaxed);
        let _ = poll(&mut self.other.lock().unwrap(), Waker::noop());
    }
}

#[test]
fn a_waker_may_poll_when_its_core_has_ended() {
    let node = Node::builder().profile(profile()).polled_by_caller();
    let at = address();
    let node = node.start(&at).unwrap();
    let core = node.take_core(0).unwrap();
    let client = node.client().connect_later(&at).unwrap();
    let inline = Arc::new(Inline {
        other: Mutex::new(client.call_async(ECHO, &[])),
        wakes: AtomicU32::new(0),
    });
    let mut call = client.call_async(ECHO, &[]);
    assert!(poll(&mut call, &Waker::from(Arc::clone(&inline))).is_pending());
    // The core ends with the call in its queue, and wakes.
    let ending = std::thread::spawn(move || drop(core));
    until("the end of the core", || ending.is_finished().then_some(()));
    ending.join().unwrap();
    assert_eq!(inline.wakes.load(Ordering::Relaxed), 1);
    assert!(poll(&mut call, Waker::noop()).is_ready());
}

#[test]
fn calls_of_a_client_that_is_dropped_wait_for_no_connection() {
    let at = address();
    let node = Node::builder().profile(profile());
    let node = node
        .knob("calls_outstanding_max=8")
        .knob("credits_per_connection=8")
        .start(&at)
        .unwrap();
    for _ in 0..3 {
        // All the places that the core has. They come back when it has looked.
        let client = until("the places of the client before", || {
            let client = node.client().depth(8).patience(Duration::MAX);
            client.connect_later(&at).ok()
        });
        let mut calls: Vec<_> = (0..8).map(|_| client.call_async(ECHO, &[])).collect();
        for call in &mut calls {
            assert!(poll(call, Waker::noop()).is_pending());
        }
        // The core has taken them when it has polled once more: they wait for a connection that never comes.
        let polls = node.metrics().total("polls");
        until("a poll", || {
            (node.metrics().total("polls") > polls.map(|it| it + 1)).then_some(())
        });
    }
}

#[test]
fn clients_that_are_dropped_while_they_connect_leave_no_connection() {
    let at = address();
    let server = echo(&at);
    let node = Node::builder().profile(profile()).start(&at).unwrap();
    for round in 0..200_u32 {
        let client = node.client().depth(1).reconnect(soon());
        let client = client.connect_later(&at).unwrap();
        let mut call = client.call_async(ECHO, &[]);
        let _ = poll(&mut call, Waker::noop());
        // As far as it comes in some looks.
        for _ in 0..round % 50 {
            if client.is_connected() {
                break;
            }
            std::thread::yield_now();
        }
        drop((call, client));
    }
    for node in [server.node(), &node] {
        until("the end of all connections", || {
            let total = |name| node.metrics().total(name);
            (total("connections_planted") == total("connections_closed")).then_some(())
        });
    }
}

#[test]
fn a_node_goes_on_without_a_core_that_was_dropped() {
    let at = address();
    let server = echo(&at);
    let node = Node::builder().profile(profile()).polled_by_caller();
    let node = node.pinned([0, 0]).start(&at).unwrap();
    let mut core = node.take_core(0).unwrap();
    let second = node.take_core(1).unwrap();
    let client = node.client().connect_timeout(PATIENCE).reconnect(soon());
    let client = client.connect_later(&at).unwrap();
    let wait = Wait::begin("the connection");
    while !client.is_connected() {
        core.poll();
        wait.look(String::new);
    }
    // With the connection, and with one that is only asked for.
    let later = node.client().connect_later(&at).unwrap();
    drop(core);
    for client in [&client, &later] {
        let mut request = client.request(ECHO);
        let error = request.timeout(PATIENCE).call().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ShuttingDown, "{error}");
        until("the loss of the connection", || {
            (!client.is_connected()).then_some(())
        });
    }
    until("the end at the server", || {
        let total = |name| server.metrics().total(name);
        (total("connections_planted") == total("connections_closed")).then_some(())
    });
    drop(second);
    drop(node);
}
