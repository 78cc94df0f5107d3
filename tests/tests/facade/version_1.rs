//! Calls without bulk data that are longer than a message, to a server that has version 1 alone (RFC 8166).

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use rpcrdma::ErrorKind;
use rpcrdma::prelude::*;
use rpcrdma_control::{ListenOptions, Node as EngineNode, NodeConfig, ShmProvider};
use rpcrdma_engine::{Activity, Application, ConnectionKey, Context, DeferToken, Outcome};
use rpcrdma_fabric::clock::Ticks;
use rpcrdma_fabric::interface::Port;
use rpcrdma_protocol::connection::Versions;
use rpcrdma_testkit::{pattern, until};

use crate::{ECHO, PROGRAM, address, block_on, builder, connect, profile};

/// As `ECHO`, answered when the test says so.
const HELD: Procedure = Procedure::new(PROGRAM, 1, 2);
/// Answers with as many bytes as it is asked for, and by nothing if its argument is no word.
const FILL: Procedure = Procedure::new(PROGRAM, 1, 3);
/// Longer than a message: an opaque and its length.
const LONG: usize = 100_000;
/// The most results of any call.
const RESULTS: usize = LONG + 4;

/// Sends arguments back.
struct Echo {
    released: Arc<AtomicBool>,
    held: Vec<(DeferToken, Vec<u8>)>,
    connection: Option<ConnectionKey>,
    /// The test asks for the end of the connection, which has come when this is false again.
    cut: Arc<AtomicBool>,
    /// How many calls have come.
    calls: Arc<AtomicU32>,
}

impl Application for Echo {
    fn opened(&mut self, connection: ConnectionKey, _: &rpcrdma_fabric::interface::PeerIdentity) {
        self.connection = Some(connection);
    }

    fn call(
        &mut self,
        request: &rpcrdma_engine::Request<'_>,
        reply: &mut rpcrdma_engine::ReplyWriter<'_>,
    ) -> Outcome {
        self.calls.fetch_add(1, Ordering::SeqCst);
        if request.procedure == HELD.number {
            let token = request.defer().expect("few calls are held");
            self.held.push((token, request.args.to_vec()));
            return Outcome::Deferred;
        }
        let filled = match <[u8; 4]>::try_from(request.args) {
            Ok(bytes) if request.procedure == FILL.number => {
                Some(pattern(u32::from_be_bytes(bytes) as usize, 9))
            }
            _ if request.procedure == FILL.number => Some(Vec::new()),
            _ => None,
        };
        match reply.write(filled.as_deref().unwrap_or(request.args)) {
            Ok(()) => Outcome::Success,
            Err(_) => Outcome::SystemError,
        }
    }

    fn poll<P: Port>(&mut self, core: &mut Context<'_, P>, _now: Ticks) -> Activity {
        if self.cut.swap(false, Ordering::SeqCst)
            && let Some(connection) = self.connection
        {
            core.disconnect(connection);
        }
        let is_due = self.released.load(Ordering::SeqCst) && !self.held.is_empty();
        if is_due {
            for (token, results) in std::mem::take(&mut self.held) {
                if let Err((_, token)) = core.reply(token, Outcome::Success, &results) {
                    self.held.push((token, results));
                }
            }
        }
        Activity::from_busy(is_due)
    }
}

struct Old {
    node: EngineNode<Echo>,
    released: Arc<AtomicBool>,
    cut: Arc<AtomicBool>,
    calls: Arc<AtomicU32>,
}

/// A server of these versions.
fn serve(at: &str, versions: Versions) -> Old {
    let (released, cut, calls) = Default::default();
    let config = NodeConfig::from_profile(&profile(), vec![None]);
    let application = |_| Echo {
        released: Arc::clone(&released),
        held: Vec::new(),
        connection: None,
        cut: Arc::clone(&cut),
        calls: Arc::clone(&calls),
    };
    let provider = ShmProvider::from_profile(&profile());
    let node = EngineNode::start(provider, &config, application).unwrap();
    let options = ListenOptions {
        versions,
        ..ListenOptions::default()
    };
    node.listen(at, options).unwrap();
    Old {
        node,
        released,
        cut,
        calls,
    }
}

impl Old {
    fn release(&self) {
        self.released.store(true, Ordering::SeqCst);
        self.node.wake_cores();
    }

    fn saw(&self, calls: u32) {
        until("its calls", || {
            (self.calls.load(Ordering::SeqCst) == calls).then_some(())
        });
    }
}

/// Sends a call, which is not answered yet.
fn send(call: &mut rpcrdma::Pending) {
    let waker = std::task::Waker::noop();
    let polled = Pin::new(call).poll(&mut std::task::Context::from_waker(waker));
    assert!(polled.is_pending());
}

fn long() -> Vec<u8> {
    pattern(LONG, 3)
}

/// All memory and slots of the client's core are back.
fn nothing_is_held(client: &Client) {
    let metrics = client.node().metrics();
    let level = |name: &str| metrics.level(name).expect("there is such a level");
    until("the end of all calls", || {
        let is_free =
            |what: &str| level(&format!("{what}_free")) == level(&format!("{what}_total"));
        let is_open = level("calls_outstanding") + level("windows_open") != 0;
        let are_back = is_free("bulk_buffers") && is_free("message_buffers");
        (!is_open && are_back).then_some(())
    });
}

#[test]
fn results_of_any_length_are_refused_where_no_memory_holds_them() {
    let at = address();
    let _server = serve(&at, Versions::One);
    let client = connect(&at);
    for bytes_max in [usize::MAX, u32::MAX as usize, usize::MAX - 20] {
        let mut request = client.request(ECHO);
        let refused = request.opaque(b"some").results_bytes_max(bytes_max).call();
        assert_eq!(
            refused.unwrap_err().kind(),
            ErrorKind::TooLong,
            "{bytes_max}"
        );
    }
    let mut answer = client.request(ECHO).opaque(b"some").call().unwrap();
    assert_eq!(answer.results().opaque().unwrap(), b"some");
    nothing_is_held(&client);
}

#[test]
fn long_arguments_and_results_pass_by_either_version() {
    for (versions, is_chunked) in [(Versions::One, true), (Versions::Both, false)] {
        let at = address();
        let _server = serve(&at, versions);
        let client = connect(&at);
        // More rounds than there are pieces of memory.
        for round in 0..40 {
            for bytes in [0, 1000, 3900, 4100, LONG] {
                let data = pattern(bytes, round);
                let mut request = client.request(ECHO);
                let mut answer = request
                    .opaque(&data)
                    .results_bytes_max(RESULTS)
                    .call()
                    .unwrap();
                assert!(answer.results().opaque().unwrap() == data, "{bytes}");
                let mut request = client.request(FILL);
                let asked = request.u32(u32::try_from(bytes).unwrap());
                let answer = asked.results_bytes_max(RESULTS).call().unwrap();
                assert!(answer.bytes() == pattern(bytes, 9), "{bytes}");
            }
        }
        let mut request = client.request(ECHO);
        let sent = request.opaque(&long()).results_bytes_max(900_000);
        let mut answer = block_on(sent.call_async()).unwrap();
        assert!(answer.results().opaque().unwrap() == long());
        let mut poller = client.poller(8).unwrap();
        for tag in 0..8 {
            let mut request = poller.request(ECHO);
            request.opaque(&long()).results_bytes_max(RESULTS);
            poller.submit(&mut request, tag).unwrap();
        }
        while !poller.is_empty() {
            let mut answer = poller.wait().unwrap().result.unwrap();
            assert!(answer.results().opaque().unwrap() == long());
        }
        let copied = client.node().metrics().total("bulk_bytes_copied");
        assert_eq!(copied > Some(0), is_chunked, "{copied:?}");
        nothing_is_held(&client);
    }
}

/// As to Linux: a call that may have 100 KB of results offers room for them, and its arguments are in the message.
#[test]
fn short_calls_of_version_1_take_no_chunks() {
    let at = address();
    let _server = serve(&at, Versions::One);
    let client = connect(&at);
    for _ in 0..3 {
        let mut request = client.request(ECHO);
        let asked = request.opaque(&[7; 500]).results_bytes_max(1000);
        asked.credential(7, b"cred").call().unwrap();
    }
    let metrics = client.node().metrics();
    let total = |name| metrics.total(name).unwrap();
    assert_eq!((total("windows_bound"), total("bulk_bytes_copied")), (0, 0));
}

#[test]
fn calls_of_version_1_that_nobody_waits_for_give_their_memory_back() {
    let at = address();
    let server = serve(&at, Versions::One);
    let client = connect(&at);
    let call = || {
        let mut request = client.request(HELD);
        request.opaque(&long()).results_bytes_max(RESULTS);
        request
    };
    // Until its first reply a server of version 1 takes one call.
    client.request(ECHO).call().unwrap();
    // TIME: the server holds the answer until it is released.
    let timed_out = call().timeout(Duration::from_millis(20)).call();
    assert_eq!(timed_out.unwrap_err().kind(), ErrorKind::TimedOut);
    // Sent, and dropped.
    let mut dropped = call().call_async();
    send(&mut dropped);
    drop(dropped);
    let mut poller = client.poller(1).unwrap();
    poller.submit(&mut call(), 0).unwrap();
    server.saw(4);
    drop(poller);
    server.release();
    nothing_is_held(&client);
    for _ in 0..40 {
        let mut answer = call().call().unwrap();
        assert!(answer.results().opaque().unwrap() == long());
    }
}

/// A call that a lost connection took along is made again, with its arguments in a chunk.
#[test]
fn long_calls_of_version_1_are_made_again() {
    let at = address();
    let server = serve(&at, Versions::One);
    let client = builder().repeat(true).reconnect(crate::soon());
    let client = client.connect(&at).unwrap();
    let mut request = client.request(HELD);
    let mut sent = request
        .opaque(&long())
        .results_bytes_max(RESULTS)
        .call_async();
    send(&mut sent);
    server.saw(1);
    server.cut.store(true, Ordering::SeqCst);
    server.node.wake_cores();
    server.saw(2);
    server.release();
    let mut answer = block_on(sent).unwrap();
    assert!(answer.results().opaque().unwrap() == long());
    nothing_is_held(&client);
}

/// A server of version 1 knows its client by the address that it comes from, which is another one by another port: a call that may
/// have run is not made again there.
#[test]
fn calls_of_version_1_are_not_made_again_by_another_address() {
    let (first, second) = (address(), address());
    let server = serve(&first, Versions::One);
    let both = format!("{first},{}", second.trim_start_matches("shm:"));
    let listening = || ListenOptions {
        versions: Versions::One,
        ..ListenOptions::default()
    };
    server.node.listen(&second, listening()).unwrap();
    let client = builder().repeat(true).reconnect(crate::soon());
    let client = client.connect(&both).unwrap();
    assert_eq!(client.connected_at(), [Some(first)]);
    let mut sent = client.request(HELD).call_async();
    send(&mut sent);
    server.saw(1);
    server.cut.store(true, Ordering::SeqCst);
    server.node.wake_cores();
    let lost = block_on(sent).map(|_| ()).unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::Disconnected, "{lost}");
    server.release();
    client.request(ECHO).call().unwrap();
    assert_eq!(client.connected_at(), [Some(second)]);
    // One of each.
    server.saw(2);
}

/// The core's own time limit ends the call, and in version 1 its connection with it.
#[test]
fn long_calls_of_version_1_that_are_never_answered_end() {
    let at = address();
    let _server = serve(&at, Versions::One);
    // TIME: the server never answers.
    let client = builder()
        .knob("call_timeout_ms=300")
        .timeout(crate::PATIENCE);
    let client = client.connect(&at).unwrap();
    for _ in 0..2 {
        let mut request = client.request(HELD);
        let ended = request
            .opaque(&long())
            .results_bytes_max(RESULTS)
            .call()
            .map(|_| ());
        assert_eq!(ended.unwrap_err().kind(), ErrorKind::TimedOut);
    }
    nothing_is_held(&client);
}

/// A core keeps a quarter of its memory for the calls of peers: a call that needs some of that would wait for ever.
#[test]
fn long_calls_of_version_1_that_need_too_much_memory_are_refused() {
    let at = address();
    let _server = serve(&at, Versions::One);
    let client = builder().knob("bulk_buffers=8").connect(&at).unwrap();
    for (pieces, fits) in [(6, true), (7, false), (8, false), (9, false)] {
        let data = pattern(pieces * 65_536 - 100, 1);
        match client.request(FILL).bytes(&data).call() {
            Ok(answer) => assert!(fits && answer.bytes().is_empty(), "{pieces}"),
            Err(error) => {
                assert!(!fits, "{pieces}: {error}");
                assert_eq!(error.kind(), ErrorKind::TooLong);
            }
        }
    }
    nothing_is_held(&client);
}

/// The server has executed it, so that it is not made again.
#[test]
fn results_of_version_1_without_room_fail_with_advice() {
    let at = address();
    let server = serve(&at, Versions::One);
    let client = connect(&at);
    let failed = client.request(ECHO).opaque(&long()).call().map(|_| ());
    let failed = failed.unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::BadReply);
    assert!(failed.to_string().contains("results_bytes_max"), "{failed}");
    server.saw(1);
    nothing_is_held(&client);
}

#[test]
fn without_memory_long_calls_of_version_1_are_refused() {
    let at = address();
    let _server = serve(&at, Versions::One);
    let client = builder().knob("bulk_buffers=0").connect(&at).unwrap();
    let mut arguments = client.request(ECHO);
    arguments.opaque(&long());
    let mut results = client.request(ECHO);
    results.opaque(b"short").results_bytes_max(RESULTS);
    for request in [&mut arguments, &mut results] {
        let refused = request.call().map(|_| ()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::TooLong);
        assert!(refused.to_string().contains("bulk_buffers"), "{refused}");
    }
    let mut answer = client.request(ECHO).opaque(b"short").call().unwrap();
    assert_eq!(answer.results().opaque(), Ok(&b"short"[..]));
}
