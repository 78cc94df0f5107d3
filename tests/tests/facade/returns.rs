//! Connections of a client that go back to their first address.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::Duration;

use rpcrdma::prelude::*;
use rpcrdma::{
    Authentication, ClientBuilder, CloseReason, ConnectionKey, HostIdentity, Later, Node, Pending,
    Start,
};
use rpcrdma_testkit::until;

use crate::{ECHO, PATIENCE, PROGRAM, address, builder, profile, soon};

/// Is answered when the test wants it.
const HELD: Procedure = Procedure::new(PROGRAM, 1, 50);

type Connections = Arc<Mutex<Vec<ConnectionKey>>>;

struct Host {
    held: Sender<Later>,
    connections: Connections,
    /// Connections that there ever were.
    made: Arc<AtomicU64>,
}

impl Service for Host {
    fn call(&mut self, call: &mut Incoming<'_>, reply: &mut Reply<'_, '_>) -> Result<(), Refusal> {
        if call.named() == ECHO {
            reply.opaque(call.args().opaque()?);
            return Ok(());
        }
        let later = call.later()?;
        self.held.send(later).map_err(|_| Refusal::SystemError)
    }

    fn connected(&mut self, connection: ConnectionKey, _: Option<&HostIdentity>) {
        self.made.fetch_add(1, Ordering::Relaxed);
        self.connections.lock().unwrap().push(connection);
    }

    fn disconnected(&mut self, connection: ConnectionKey, _: CloseReason) {
        let mut connections = self.connections.lock().unwrap();
        connections.retain(|other| *other != connection);
    }
}

/// A server at two addresses.
struct Two {
    server: Server,
    first: String,
    second: String,
    held: Receiver<Later>,
    connections: Connections,
    made: Arc<AtomicU64>,
}

impl Two {
    fn serve() -> Self {
        let (tell, held) = channel();
        let (first, second) = (address(), address());
        let connections = Connections::default();
        let made = Arc::<AtomicU64>::default();
        let of_host = (Arc::clone(&connections), Arc::clone(&made));
        let server = Server::builder().profile(profile());
        let server = server.program(PROGRAM, 1..=1, move |_| Host {
            held: tell.clone(),
            connections: Arc::clone(&of_host.0),
            made: Arc::clone(&of_host.1),
        });
        let two = Self {
            server: server.listen(&first).unwrap(),
            first,
            second,
            held,
            connections,
            made,
        };
        two.open(&two.second);
        two
    }

    fn open(&self, at: &str) {
        let listening = self.server.node().listen(at, Authentication::Fabric);
        assert_eq!(listening.unwrap(), at);
    }

    /// As a client takes them.
    fn both(&self) -> String {
        let (_, name) = self.second.split_once(':').unwrap();
        format!("{},{name}", self.first)
    }

    /// A client with one connection, which goes back soon.
    fn client(&self) -> Client {
        let client = soon_back(builder()).connect(&self.both()).unwrap();
        self.has_at(&client, &self.first);
        client
    }

    /// Waits until all connections of a client are at one address.
    fn has_at(&self, client: &Client, at: &str) {
        until("connections at the address", || {
            let mut all = client.connected_at().into_iter();
            all.all(|it| it.as_deref() == Some(at)).then_some(())
        });
    }

    /// Leaves the first address, with all connections. Clients go on at the second one.
    fn leave_first(&self, clients: &[&Client]) {
        assert!(self.server.node().stop_listening(&self.first).unwrap());
        for connection in self.connections.lock().unwrap().clone() {
            self.server.node().close(0, connection);
        }
        for client in clients {
            self.has_at(client, &self.second);
        }
    }

    /// Sends a call, and returns what answers it.
    fn hold(&self, call: &mut Pending) -> Later {
        let mut context = Context::from_waker(Waker::noop());
        assert!(Pin::new(call).poll(&mut context).is_pending());
        self.held.recv_timeout(PATIENCE).unwrap()
    }

    /// A client with a long call at the second address tries in vain to go back. The core refuses each new connection, and the next one is
    /// another.
    fn tries(&self, client: &Client) {
        let before = self.made.load(Ordering::Relaxed);
        until("attempts to go back", || {
            echo(client);
            assert_eq!(client.connected_at(), [Some(self.second.clone())]);
            // After an echo that was held the connection is closed already.
            (self.made.load(Ordering::Relaxed) >= before + 3).then_some(())
        });
    }

    fn count(&self) -> usize {
        self.connections.lock().unwrap().len()
    }
}

fn soon_back(client: ClientBuilder) -> ClientBuilder {
    let client = client.reconnect(soon());
    client.return_after(Some(Duration::from_millis(1)))
}

fn echo(client: &Client) {
    let mut answer = client.request(ECHO).opaque(b"ping").call().unwrap();
    assert_eq!(answer.results().opaque().unwrap(), b"ping");
}

/// No call fails when its connection goes back, although this client makes none again.
#[test]
fn connection_goes_back_when_its_address_works_again() {
    let two = Two::serve();
    let client = two.client();
    // Each time that it does not last it is tried later.
    const ROUNDS: u64 = 6;
    for round in 1..=ROUNDS {
        two.leave_first(&[&client]);
        let (is_over, calls) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let caller = scope.spawn(|| {
                let mut poller = client.poller(8).unwrap();
                while !is_over.load(Ordering::Relaxed) {
                    while !poller.is_full() {
                        let mut request = poller.request(ECHO);
                        poller.submit(request.opaque(b"ping"), 0).unwrap();
                    }
                    poller.wait().unwrap().result.unwrap();
                    calls.fetch_add(1, Ordering::Relaxed);
                }
                while !poller.is_empty() {
                    poller.wait().unwrap().result.unwrap();
                }
            });
            two.open(&two.first);
            two.has_at(&client, &two.first);
            let enough = calls.load(Ordering::Relaxed) + 20;
            until("calls by the first address", || {
                (calls.load(Ordering::Relaxed) >= enough).then_some(())
            });
            is_over.store(true, Ordering::Relaxed);
            caller.join().unwrap();
        });
        until("the end of the other connection", || {
            (two.count() == 1).then_some(())
        });
        until("the count of returns", || {
            (client.returns() == round).then_some(())
        });
    }
    assert_eq!(client.reconnects(), ROUNDS, "a return is none");
}

/// The reply of a call comes by the connection that it was sent by. Others are held up for an instant.
#[test]
fn connection_with_a_long_call_stays_until_that_has_ended() {
    let two = Two::serve();
    let client = two.client();
    two.leave_first(&[&client]);
    let mut long = client.request(HELD).call_async();
    let later = two.hold(&mut long);
    two.open(&two.first);
    two.tries(&client);
    assert_eq!(client.returns(), 0);
    later.reply(|_| {});
    crate::block_on(long).unwrap();
    two.has_at(&client, &two.first);
    echo(&client);
}

/// Calls of a client without patience are held, and do not fail.
#[test]
fn calls_that_wait_for_no_connection_wait_for_the_return() {
    let two = Two::serve();
    let client = soon_back(builder()).patience(Duration::ZERO);
    let client = client.connect(&two.both()).unwrap();
    two.leave_first(&[&client]);
    let mut long = client.request(HELD).call_async();
    let later = two.hold(&mut long);
    two.open(&two.first);
    // There is always an echo under way, or about to be: each attempt holds one.
    two.tries(&client);
    later.reply(|_| {});
    crate::block_on(long).unwrap();
}

#[test]
fn connection_that_may_not_go_back_stays() {
    let two = Two::serve();
    let returning = two.client();
    let staying = builder().reconnect(soon()).return_after(None);
    let staying = staying.connect(&two.both()).unwrap();
    two.leave_first(&[&returning, &staying]);
    two.open(&two.first);
    two.has_at(&returning, &two.first);
    echo(&staying);
    two.has_at(&staying, &two.second);
    assert_eq!((staying.returns(), two.count()), (0, 2));
}

#[test]
fn standby_has_all_connections_at_the_first_address_while_that_works() {
    let two = Two::serve();
    let client = soon_back(builder()).connections(3);
    let client = client.start(Start::Standby).connect(&two.both()).unwrap();
    let first = vec![Some(two.first.clone()); 3];
    assert_eq!(client.connected_at(), first);
    two.leave_first(&[&client]);
    two.open(&two.first);
    two.has_at(&client, &two.first);
    until("the count of returns", || {
        (client.returns() == 3).then_some(())
    });
}

/// Also while it is about to go back. Its node goes on.
#[test]
fn dropped_client_leaves_no_connection() {
    let two = Two::serve();
    let node = Node::builder().profile(profile());
    let node = node.start(&two.first).unwrap();
    let client = soon_back(node.client().connect_timeout(PATIENCE));
    let client = client.connect(&two.both()).unwrap();
    two.leave_first(&[&client]);
    let mut long = client.request(HELD).call_async();
    let later = two.hold(&mut long);
    two.open(&two.first);
    until("an attempt to go back", || (two.count() > 1).then_some(()));
    drop((client, long));
    until("the end of both connections", || {
        (two.count() == 0).then_some(())
    });
    drop(later);
}
