//! Procedures that must not run twice, with a client that repeats calls under XIDs of its choice.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use rpcrdma::Later;
use rpcrdma::prelude::*;
use rpcrdma_control::{ConnectOptions, CoreChoice, Node as EngineNode, NodeConfig, ShmProvider};
use rpcrdma_engine::{
    Activity, Application, BulkCall, BulkItem, Call, CallError, CallTag, ConnectionKey, Context,
};
use rpcrdma_fabric::clock::Ticks;
use rpcrdma_fabric::interface::Port;
use rpcrdma_protocol::connection::Versions;
use rpcrdma_protocol::v2::ApplicationProperties;
use rpcrdma_testkit::until;

use crate::{PATIENCE, PROGRAM, address, profile};

/// Adds an entry to the ledger, and returns how many there are.
const ENTER: Procedure = Procedure::new(PROGRAM, 1, 30);
/// As `ENTER`, with as many bytes of results beside them as the argument says.
const ENTER_LONG: Procedure = Procedure::new(PROGRAM, 1, 31);
/// As `ENTER`; the argument is an opaque that may come beside the stream.
const ENTER_BULK: Procedure = Procedure::new(PROGRAM, 1, 32);
/// As `ENTER`, answered later.
const ENTER_LATER: Procedure = Procedure::new(PROGRAM, 1, 33);

type Results = Result<Vec<u8>, CallError>;

struct Order {
    connection: ConnectionKey,
    xid: u32,
    call: Call,
    args: Vec<u8>,
    /// Goes beside the arguments, behind the first four bytes.
    beside: Vec<u8>,
    answer: Sender<Results>,
}

/// Makes calls under the XIDs that it is given.
struct Caller {
    orders: Receiver<Order>,
    waiting: Vec<Order>,
    under_way: Vec<(CallTag, Sender<Results>)>,
    next_tag: CallTag,
}

impl Caller {
    fn make<P: Port>(&mut self, core: &mut Context<'_, P>, order: Order) {
        self.next_tag += 1;
        let tag = self.next_tag;
        let made = core.call_again(order.xid, |core| {
            if order.beside.is_empty() {
                return core.call(order.connection, order.call, &order.args, tag);
            }
            let mut piece = core.take_bulk().expect("a buffer");
            piece.set_len(order.beside.len());
            piece.copy_from_slice(&order.beside);
            let mut call = BulkCall::new(order.call, &order.args);
            call.add(4, &mut BulkItem::from(piece))
                .expect("room for it");
            core.call_bulk(order.connection, &mut call, tag)
        });
        match made {
            Ok(()) => self.under_way.push((tag, order.answer)),
            Err(refused) => {
                assert!(refused.is_transient(), "{refused}");
                self.waiting.push(order);
            }
        }
    }
}

impl Application for Caller {
    fn poll<P: Port>(&mut self, core: &mut Context<'_, P>, _now: Ticks) -> Activity {
        let mut orders = std::mem::take(&mut self.waiting);
        orders.extend(self.orders.try_iter());
        let is_busy = !orders.is_empty();
        for order in orders {
            self.make(core, order);
        }
        Activity::from_busy(is_busy)
    }

    fn completed(
        &mut self,
        tag: CallTag,
        _connection: ConnectionKey,
        result: Result<rpcrdma_engine::Reply<'_>, CallError>,
        _now: Ticks,
    ) {
        let at = self.under_way.iter().position(|(other, _)| *other == tag);
        let (_, answer) = self.under_way.swap_remove(at.expect("it was made"));
        // Nobody waits for a call whose connection the test cuts.
        let _ = answer.send(result.map(|reply| reply.results.to_vec()));
    }
}

/// A client whose XIDs the test chooses.
struct Numbered {
    node: EngineNode<Caller>,
    orders: Sender<Order>,
    versions: Versions,
}

impl Numbered {
    /// With a name that it announces, or as a client that has none.
    fn new(name: Option<[u8; 16]>, versions: Versions) -> Self {
        let mut config = NodeConfig::from_profile(&profile(), vec![None]);
        if let Some(name) = name {
            let data = [&b"once"[..], &name, &[0; 4]].concat();
            let announced = ApplicationProperties::NONE.with(0xffff_ff6f, &data);
            config.core.application_properties = announced.unwrap();
        }
        let (orders, inbox) = channel();
        let mut inbox = Some(inbox);
        let application = |_| Caller {
            orders: inbox.take().expect("one core"),
            waiting: Vec::new(),
            under_way: Vec::new(),
            next_tag: 0,
        };
        let provider = ShmProvider::from_profile(&profile());
        let node = EngineNode::start(provider, &config, application).unwrap();
        Self {
            node,
            orders,
            versions,
        }
    }

    fn connect(&self, address: &str) -> ConnectionKey {
        let options = ConnectOptions {
            core: CoreChoice::Core(0),
            timeout: PATIENCE,
            versions: self.versions,
            ..ConnectOptions::default()
        };
        self.node.connect(address, options).unwrap().key
    }

    fn cut(&self, connection: ConnectionKey) {
        self.node.close_connection(0, connection);
    }

    fn send(
        &self,
        connection: ConnectionKey,
        xid: u32,
        procedure: Procedure,
        args: &[u8],
        beside: &[u8],
    ) -> Receiver<Results> {
        let (answer, answered) = channel();
        let order = Order {
            connection,
            xid,
            call: procedure.into(),
            args: args.to_vec(),
            beside: beside.to_vec(),
            answer,
        };
        self.orders.send(order).unwrap();
        self.node.wake_cores();
        answered
    }

    fn call(&self, connection: ConnectionKey, xid: u32, procedure: Procedure, arg: u32) -> Results {
        let answered = self.send(connection, xid, procedure, &arg.to_be_bytes(), &[]);
        answered.recv_timeout(PATIENCE).expect("an answer")
    }

    /// The number of the entry that a call made.
    fn enter(&self, connection: ConnectionKey, xid: u32, arg: u32) -> u32 {
        let results = self.call(connection, xid, ENTER, arg).unwrap();
        u32::from_be_bytes(results.try_into().expect("a word"))
    }
}

/// A server of three cores, and how many entries there are.
fn ledger(at: &str) -> (Server, Arc<AtomicU32>, Receiver<(Later, u32)>) {
    let entries = Arc::<AtomicU32>::default();
    let enter = {
        let entries = Arc::clone(&entries);
        move || entries.fetch_add(1, Ordering::SeqCst) + 1
    };
    let (deferred, later) = channel();
    let server = Server::builder()
        .profile(profile())
        .cores(3)
        .procedure_once(ENTER, {
            let enter = enter.clone();
            move |_, reply| {
                reply.u32(enter());
                Ok(())
            }
        })
        .procedure_once(ENTER_LONG, {
            let enter = enter.clone();
            move |call, reply| {
                let bytes = call.args().u32()? as usize;
                reply.u32(enter()).bulk_copy(&vec![7; bytes]).u32(9);
                Ok(())
            }
        })
        .procedure_once(ENTER_BULK, {
            let enter = enter.clone();
            move |call, reply| {
                call.args().bulk()?;
                reply.u32(enter());
                Ok(())
            }
        })
        .procedure_once(ENTER_LATER, move |call, _| {
            let number = enter();
            let answer = (call.later()?, number);
            deferred.send(answer).map_err(|_| Refusal::SystemError)
        });
    (server.listen(at).unwrap(), entries, later)
}

fn repeated(server: &Server) -> u64 {
    let repeated = server.metrics().total("calls_repeated");
    repeated.expect("the server keeps replies")
}

#[test]
fn a_call_that_comes_again_by_another_core_has_the_first_answer_and_does_not_run() {
    // Known by a name, by a process in version 2, and in version 1.
    let ways = [
        (Some([1; 16]), Versions::Two),
        (None, Versions::Two),
        (None, Versions::One),
    ];
    for (name, versions) in ways {
        let at = address();
        let (server, entries, _later) = ledger(&at);
        let client = Numbered::new(name, versions);
        let first = client.connect(&at);
        assert_eq!(client.enter(first, 100, 5), 1);
        // The first is still there, so this one comes to another core.
        let second = client.connect(&at);
        assert_eq!(client.enter(second, 100, 5), 1, "it came again");
        client.cut(first);
        client.cut(second);
        let third = client.connect(&at);
        assert_eq!(client.enter(third, 100, 5), 1, "and again");
        assert_eq!(repeated(&server), 2);
        assert_eq!(client.enter(third, 101, 5), 2, "another XID");
        assert_eq!(client.enter(third, 100, 6), 3, "other arguments");
        assert_eq!(client.enter(third, 100, 5), 1, "the first is still known");
        let other = client.call(third, 100, ENTER_LONG, 5).unwrap();
        assert_eq!(other[..4], [0, 0, 0, 4], "another procedure");
        assert_eq!(entries.load(Ordering::SeqCst), 4);
        assert_eq!(repeated(&server), 3);
    }
}

#[test]
fn clients_of_one_address_are_distinguished_by_their_names() {
    let at = address();
    let (server, _, _later) = ledger(&at);
    let clients = [Some([1; 16]), Some([2; 16]), None];
    let clients = clients.map(|name| Numbered::new(name, Versions::Two));
    for (client, number) in clients.iter().zip(1..) {
        let connection = client.connect(&at);
        assert_eq!(client.enter(connection, 100, 5), number);
    }
    assert_eq!(repeated(&server), 0);
}

#[test]
fn repeated_call_is_answered_when_the_first_has_run() {
    let at = address();
    let (server, entries, later) = ledger(&at);
    let client = Numbered::new(Some([1; 16]), Versions::Two);
    let first = client.connect(&at);
    let lost = client.send(first, 100, ENTER_LATER, &[], &[]);
    let (answer, number) = later.recv_timeout(PATIENCE).unwrap();
    let second = client.connect(&at);
    client.cut(first);
    assert_eq!(
        lost.recv_timeout(PATIENCE).unwrap(),
        Err(CallError::Disconnected)
    );
    let again = client.send(second, 100, ENTER_LATER, &[], &[]);
    until("the call that comes again", || {
        (repeated(&server) > 0).then_some(())
    });
    assert!(again.try_recv().is_err(), "the call has no answer yet");
    answer.reply(|results| {
        results.u32(number);
    });
    assert_eq!(again.recv_timeout(PATIENCE).unwrap(), Ok(vec![0, 0, 0, 1]));
    // With other arguments it is another call. The service drops the right to answer it.
    let other = client.send(second, 100, ENTER_LATER, &[0; 4], &[]);
    drop(later.recv_timeout(PATIENCE).unwrap());
    let failed = other.recv_timeout(PATIENCE).unwrap();
    assert_eq!(failed, Err(CallError::SystemError));
    let again = client.send(second, 100, ENTER_LATER, &[0; 4], &[]);
    let failed = again.recv_timeout(PATIENCE).unwrap();
    assert_eq!(failed, Err(CallError::SystemError), "as the first time");
    assert_eq!(entries.load(Ordering::SeqCst), 2);
}

#[test]
fn results_beside_the_stream_are_kept_in_it_and_too_long_ones_are_not() {
    let at = address();
    let (_server, entries, _later) = ledger(&at);
    let client = Numbered::new(Some([1; 16]), Versions::Two);
    let connection = client.connect(&at);
    // 12 bytes are around them.
    for (xid, bytes) in [(1, 0), (2, 3), (3, 500)] {
        let first = client.call(connection, xid, ENTER_LONG, bytes).unwrap();
        assert_eq!(first.len(), bytes.next_multiple_of(4) as usize + 12);
        assert_eq!(client.call(connection, xid, ENTER_LONG, bytes), Ok(first));
    }
    client.call(connection, 4, ENTER_LONG, 501).unwrap();
    for _ in 0..2 {
        let again = client.call(connection, 4, ENTER_LONG, 501);
        assert_eq!(again, Err(CallError::SystemError));
    }
    assert_eq!(entries.load(Ordering::SeqCst), 4);
}

#[test]
fn arguments_beside_the_stream_tell_calls_apart() {
    let at = address();
    let (_server, _, _later) = ledger(&at);
    let client = Numbered::new(Some([1; 16]), Versions::Two);
    let connection = client.connect(&at);
    let enter = |beside: &[u8]| {
        let bytes = u32::try_from(beside.len()).unwrap().to_be_bytes();
        let answered = client.send(connection, 100, ENTER_BULK, &bytes, beside);
        let results = answered.recv_timeout(PATIENCE).unwrap().unwrap();
        results[3]
    };
    let data = [3; 20_000];
    let (mut first, mut last) = (data, data);
    (first[255], last[20_000 - 256]) = (4, 4);
    assert_eq!((enter(&data), enter(&data)), (1, 1));
    assert_eq!((enter(&first), enter(&last), enter(&data[1..])), (2, 3, 4));
    assert_eq!(enter(&data), 1);
}

/// Half a connection: the first one is there for the server, which goes on to answer by it, and its client is by another.
#[test]
fn a_call_whose_reply_was_overtaken_is_known_after_127_others() {
    let at = address();
    let (_server, entries, later) = ledger(&at);
    let client = Numbered::new(Some([1; 16]), Versions::Two);
    let first = client.connect(&at);
    let _lost = client.send(first, 100, ENTER_LATER, &[], &[]);
    let (answer, number) = later.recv_timeout(PATIENCE).unwrap();
    answer.reply(|results| {
        results.u32(number);
    });
    client.cut(first);
    let second = client.connect(&at);
    for xid in 0..127 {
        assert_eq!(client.enter(second, 1000 + xid, xid), number + 1 + xid);
    }
    let again = client.send(second, 100, ENTER_LATER, &[], &[]);
    assert_eq!(again.recv_timeout(PATIENCE).unwrap(), Ok(vec![0, 0, 0, 1]));
    assert_eq!(entries.load(Ordering::SeqCst), 128);
}
