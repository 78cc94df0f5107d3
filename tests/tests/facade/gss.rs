//! A program that speaks RPCSEC_GSS (RFC 2203) itself, with a mechanism of this test: contexts, numbers, and verifiers over the
//! header of each message, both ways.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rpcrdma::prelude::*;
use rpcrdma::{
    Auth, AuthStatus, ConnectionKey, HostIdentity, Later, NodeBuilder, Profile, Sign,
    Unauthenticated, Versions,
};
use rpcrdma_protocol::constants::{AUTH_NONE, AUTH_SYS, RPCSEC_GSS};
use rpcrdma_protocol::rpc::{AcceptStatus, CallHeader, OpaqueAuth, ReplyBody, ReplyHeader};
use rpcrdma_testkit::{pattern, until};

use crate::tcp::{Peer, listening};
use crate::{PATIENCE, PROGRAM, address, builder, profile, soon};

/// What a credential of RPCSEC_GSS says that the call is (RFC 2203 section 5).
const DATA: u32 = 0;
const INIT: u32 = 1;
/// Only the header is protected.
const SERVICE_NONE: u32 = 1;
/// Numbers that a context remembers.
const WINDOW: u32 = 128;

const CREATE: Procedure = Procedure::new(PROGRAM, 1, 0);
/// Sends its opaque back.
const ECHO: Procedure = Procedure::new(PROGRAM, 1, 1);
/// As `ECHO`, with registered memory both ways.
const BULK: Procedure = Procedure::new(PROGRAM, 1, 2);
/// Answered by the test, and must not run twice.
const ENTER: Procedure = Procedure::new(PROGRAM, 1, 3);
/// Sets the verifier of its reply, with the argument as its key, and is answered by the test.
const CREATE_LATER: Procedure = Procedure::new(PROGRAM, 1, 5);
/// Cannot be decoded.
const GARBAGE: Procedure = Procedure::new(PROGRAM, 1, 4);

/// The checksum of the mechanism.
fn checksum(key: u64, bytes: &[u8]) -> [u8; 8] {
    let mut hasher = DefaultHasher::new();
    (key, bytes).hash(&mut hasher);
    hasher.finish().to_be_bytes()
}

fn verifier(key: u64, bytes: &[u8]) -> Auth {
    // Four words more than the checksum: no length of a header is taken for granted.
    let body = [&checksum(key, bytes)[..], &[7; 15]].concat();
    Auth::new(RPCSEC_GSS, &body).unwrap()
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// The words of a body, without the handle's own.
fn word(body: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(body[4 * at..4 * at + 4].try_into().unwrap())
}

/// What the contexts of a server have in common.
#[derive(Default)]
struct Contexts {
    /// By handle: the key, and the numbers that came.
    open: Mutex<HashMap<u32, (u64, HashSet<u32>)>>,
    runs: AtomicU32,
    connections: Mutex<Vec<ConnectionKey>>,
}

struct Guard {
    contexts: Arc<Contexts>,
    later: Sender<(Later, u32)>,
}

impl Guard {
    fn create(&self, call: &mut Incoming<'_>, reply: &mut Reply<'_, '_>) -> Result<(), Refusal> {
        let token = call.args().opaque()?;
        call.args().end()?;
        let key = u64::from_be_bytes(token.try_into().map_err(|_| Refusal::GarbageArgs)?);
        let mut open = self.contexts.open.lock().unwrap();
        let handle = u32::try_from(open.len()).unwrap();
        open.insert(handle, (key, HashSet::new()));
        // The verifier of this reply is over the window, which only now is known.
        reply.set_verifier(&verifier(key, &WINDOW.to_be_bytes()))?;
        reply
            .opaque(&handle.to_be_bytes())
            .u32(0)
            .u32(0)
            .u32(WINDOW);
        reply.opaque(&[]);
        assert!(
            reply.set_verifier(&Auth::NONE).is_err(),
            "results are written"
        );
        Ok(())
    }
}

impl Service for Guard {
    fn flavors(&self) -> Option<Vec<u32>> {
        Some(vec![AUTH_NONE, AUTH_SYS, RPCSEC_GSS])
    }

    fn non_idempotent(&self) -> Vec<Procedure> {
        vec![ENTER]
    }

    fn authenticate(&mut self, call: &Incoming<'_>) -> Result<Auth, Unauthenticated> {
        let denied = |status| Err(Unauthenticated::Denied(status));
        let (flavor, body) = call.credential();
        assert_eq!(flavor, RPCSEC_GSS, "others are not asked for");
        if body.len() != 24 || word(body, 0) != 1 {
            return denied(AuthStatus::BAD_CREDENTIAL);
        }
        if word(body, 1) == INIT {
            return Ok(Auth::NONE);
        }
        let (number, handle) = (word(body, 2), word(body, 5));
        let mut open = self.contexts.open.lock().unwrap();
        let Some((key, numbers)) = open.get_mut(&handle) else {
            return denied(AuthStatus::GSS_CREDENTIAL_PROBLEM);
        };
        let (flavor, checked) = call.verifier();
        if Auth::new(flavor, checked) != Some(verifier(*key, call.signed())) {
            return denied(AuthStatus::GSS_CREDENTIAL_PROBLEM);
        }
        let last = numbers.iter().max().copied().unwrap_or(0);
        if number + WINDOW <= last || !numbers.insert(number) {
            return Err(Unauthenticated::Discarded);
        }
        Ok(verifier(*key, &number.to_be_bytes()))
    }

    fn call(&mut self, call: &mut Incoming<'_>, reply: &mut Reply<'_, '_>) -> Result<(), Refusal> {
        match call.named() {
            CREATE => return self.create(call, reply),
            ECHO => {
                reply.opaque(call.args().opaque()?);
            }
            BULK => {
                let data = call.args().bulk()?.to_vec();
                let mut buffer = reply.buffer_for(data.len()).ok_or(Refusal::SystemError)?;
                buffer.copy_from(&data);
                reply.bulk(buffer);
            }
            ENTER => {
                let number = call.args().u32()?;
                self.contexts.runs.fetch_add(1, Ordering::SeqCst);
                self.later.send((call.later()?, number)).unwrap();
            }
            CREATE_LATER => {
                let key = call.args().u32()?;
                let own = verifier(key.into(), &WINDOW.to_be_bytes());
                reply.set_verifier(&own)?;
                self.later.send((call.later()?, key)).unwrap();
                assert!(reply.set_verifier(&own).is_err(), "it is deferred");
            }
            _ => return Err(Refusal::GarbageArgs),
        }
        Ok(())
    }

    fn connected(&mut self, connection: ConnectionKey, _: Option<&HostIdentity>) {
        self.contexts.connections.lock().unwrap().push(connection);
    }
}

fn serve(at: &str) -> (Server, Arc<Contexts>, Receiver<(Later, u32)>) {
    serve_with(at, profile())
}

fn serve_with(at: &str, profile: Profile) -> (Server, Arc<Contexts>, Receiver<(Later, u32)>) {
    let contexts = Arc::<Contexts>::default();
    let (later, deferred) = channel();
    let server = Server::builder().profile(profile);
    let server = guarded(server, &contexts, later);
    (server.listen(at).unwrap(), contexts, deferred)
}

fn guarded(
    builder: NodeBuilder,
    contexts: &Arc<Contexts>,
    later: Sender<(Later, u32)>,
) -> NodeBuilder {
    let contexts = Arc::clone(contexts);
    builder.program(PROGRAM, 1..=1, move |_| Guard {
        contexts: Arc::clone(&contexts),
        later: later.clone(),
    })
}

/// A context as its client has it.
struct Context {
    key: u64,
    handle: u32,
    next: AtomicU32,
    /// Every call has the same number.
    is_fixed: AtomicBool,
    /// What came of each call: the XID and the number that it was signed for.
    signed: Mutex<Vec<(u32, u32)>>,
}

impl Context {
    fn credential_of(&self, number: u32) -> Auth {
        let body = words(&[1, DATA, number, SERVICE_NONE, 4, self.handle]);
        Auth::new(RPCSEC_GSS, &body).unwrap()
    }

    /// Whether the reply is one to the message that was sent last.
    fn check(&self, answer: &rpcrdma::Response) -> bool {
        let number = word(answer.credential().get().body, 2);
        answer.verifier() == verifier(self.key, &number.to_be_bytes())
    }
}

impl Sign for Context {
    fn credential(&self) -> Auth {
        let step = u32::from(!self.is_fixed.load(Ordering::SeqCst));
        self.credential_of(self.next.fetch_add(step, Ordering::SeqCst))
    }

    fn verifier(&self, signed: &[u8]) -> Auth {
        let credential = &signed[32..];
        assert_eq!(credential.len(), 24, "it ends there");
        let noted = (word(signed, 0), word(credential, 2));
        self.signed.lock().unwrap().push(noted);
        verifier(self.key, signed)
    }
}

/// What creates a context: it is signed by nothing.
struct Creates;

impl Sign for Creates {
    fn credential(&self) -> Auth {
        let body = words(&[1, INIT, 0, SERVICE_NONE, 4, 0]);
        Auth::new(RPCSEC_GSS, &body).unwrap()
    }

    fn verifier(&self, _: &[u8]) -> Auth {
        Auth::NONE
    }
}

fn create(client: &Client, key: u64) -> Arc<Context> {
    let mut request = client.request(CREATE);
    request.sign(Arc::new(Creates)).opaque(&key.to_be_bytes());
    let mut answer = request.call().unwrap();
    assert_eq!(answer.verifier(), verifier(key, &WINDOW.to_be_bytes()));
    let mut results = answer.results();
    let handle = word(results.opaque().unwrap(), 0);
    Arc::new(Context {
        key,
        handle,
        next: AtomicU32::new(1),
        is_fixed: AtomicBool::new(false),
        signed: Mutex::default(),
    })
}

fn signed(client: &Client, context: &Arc<Context>, procedure: Procedure) -> rpcrdma::Request {
    let mut request = client.request(procedure);
    request.sign(Arc::clone(context) as Arc<dyn Sign>);
    request
}

#[test]
fn service_and_client_check_each_others_verifiers_by_either_version() {
    for versions in [Versions::Two, Versions::One] {
        let at = address();
        let (server, _, later) = serve(&at);
        let client = builder().versions(versions).connect(&at).unwrap();
        let context = create(&client, 0x1234_5678_9abc_def0);
        for bytes in [0, 1, 500, 3900, 3960, 3970, 3980, 4096, 100_000] {
            let data = pattern(bytes, 3);
            let mut request = signed(&client, &context, ECHO);
            request.results_bytes_max(bytes + 8).opaque(&data);
            let mut answer = request.call().unwrap();
            assert!(context.check(&answer), "{versions:?}, {bytes}");
            assert!(answer.results().opaque().unwrap() == data, "{bytes}");

            let mut buffer = client.buffers().wait(bytes, PATIENCE).unwrap();
            buffer.copy_from(&data);
            let mut request = signed(&client, &context, BULK);
            request.expect_bulk(200_000).bulk(buffer);
            let mut answer = request.call().unwrap();
            assert!(context.check(&answer), "{versions:?}, bulk, {bytes}");
            assert!(answer.results().bulk().unwrap().to_vec() == data);
        }
        // The verifier of a call that is answered later is that of the call, however many are under way.
        let mut poller = client.poller(4).unwrap();
        for number in 0..4 {
            let mut request = poller.request(ENTER);
            request
                .sign(Arc::clone(&context) as Arc<dyn Sign>)
                .u32(number);
            poller.submit(&mut request, number.into()).unwrap();
        }
        let mut taken: Vec<_> = (0..4)
            .map(|_| later.recv_timeout(PATIENCE).unwrap())
            .collect();
        while let Some((later, number)) = taken.pop() {
            later.reply(|results| {
                results.u32(number);
            });
        }
        for _ in 0..4 {
            let ended = poller.wait().unwrap();
            let mut answer = ended.result.unwrap();
            assert!(context.check(&answer), "{versions:?}, later");
            assert_eq!(u64::from(answer.results().u32().unwrap()), ended.tag);
        }
        let error = signed(&client, &context, GARBAGE).call().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::GarbageArgs, "{versions:?}");
        // Replies to others have no verifier.
        let mut request = client.request(ECHO);
        let answer = request.opaque(b"open").call().unwrap();
        assert_eq!(answer.verifier(), Auth::NONE);
        assert_eq!(server.metrics().total("calls_discarded"), Some(0));
    }
}

#[test]
fn caller_that_is_not_who_it_says_is_denied() {
    let at = address();
    let (_server, contexts, later) = serve(&at);
    // A call that runs all the same is answered, so that the test need not wait for its end.
    std::thread::spawn(move || later.into_iter().for_each(|(later, _)| later.reply(|_| ())));
    let client = builder().connect(&at).unwrap();
    let context = create(&client, 5);
    let other = |key, handle| {
        Arc::new(Context {
            key,
            handle,
            next: AtomicU32::new(1000),
            is_fixed: AtomicBool::new(false),
            signed: Mutex::default(),
        })
    };
    for wrong in [other(6, context.handle), other(5, context.handle + 1)] {
        let error = signed(&client, &wrong, ENTER).u32(1).call().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    }
    // A credential without a signature.
    let credential = context.credential_of(2000);
    let mut request = client.request(ENTER);
    let (flavor, body) = (RPCSEC_GSS, credential.get().body);
    let error = request.credential(flavor, body).u32(1).call().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert_eq!(contexts.runs.load(Ordering::SeqCst), 0, "nothing ran");
}

#[test]
fn call_that_is_made_again_has_another_number_and_runs_once() {
    let at = address();
    let (server, contexts, later) = serve(&at);
    let client = builder().reconnect(soon()).repeat(true);
    let client = client.connect(&at).unwrap();
    let context = create(&client, 9);
    let mut poller = client.poller(1).unwrap();
    let mut request = poller.request(ENTER);
    request.sign(Arc::clone(&context) as Arc<dyn Sign>).u32(77);
    poller.submit(&mut request, 0).unwrap();
    let (unanswered, _) = later.recv_timeout(PATIENCE).unwrap();
    let first = contexts.connections.lock().unwrap()[0];
    server.node().close(0, first);
    until("the call on the second connection", || {
        let discarded = server.metrics().total("calls_discarded");
        assert_eq!(discarded, Some(0), "its number came before");
        (context.signed.lock().unwrap().len() >= 2).then_some(())
    });
    unanswered.reply(|results| {
        results.u32(77);
    });
    let mut answer = poller.wait().unwrap().result.unwrap();
    assert_eq!(answer.results().u32().unwrap(), 77);
    assert!(
        context.check(&answer),
        "the verifier is of the second message"
    );
    assert_eq!(contexts.runs.load(Ordering::SeqCst), 1);
    let signed = context.signed.lock().unwrap();
    let xids: HashSet<_> = signed.iter().map(|(xid, _)| xid).collect();
    let numbers: HashSet<_> = signed.iter().map(|(_, number)| number).collect();
    assert_eq!((xids.len(), numbers.len()), (1, signed.len()), "{signed:?}");
}

#[test]
fn call_with_a_number_that_came_before_gets_no_answer_and_holds_nothing() {
    for versions in [Versions::Two, Versions::One] {
        let at = address();
        let (server, contexts, _later) = serve(&at);
        let client = builder().versions(versions).connect(&at).unwrap();
        let context = create(&client, 3);
        signed(&client, &context, ECHO).opaque(b"1").call().unwrap();
        let discarded = || server.metrics().total("calls_discarded").unwrap();
        // That of the first call.
        context.next.store(1, Ordering::SeqCst);
        context.is_fixed.store(true, Ordering::SeqCst);
        for round in 1..=2 {
            let mut request = signed(&client, &context, ECHO);
            request.opaque(b"again");
            // TIME: the server never answers it, so no machine is too slow for it.
            let error = request
                .timeout(Duration::from_millis(20))
                .call()
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
            until("the call", || (discarded() == 2 * round - 1).then_some(()));

            let mut buffer = client.buffers().wait(100_000, PATIENCE).unwrap();
            buffer.copy_from(&pattern(100_000, 1));
            let mut request = signed(&client, &context, BULK);
            request.expect_bulk(200_000).bulk(buffer);
            // TIME: as above.
            let error = request
                .timeout(Duration::from_millis(20))
                .call()
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
            until("the call with data", || {
                (discarded() == 2 * round).then_some(())
            });
        }
        context.is_fixed.store(false, Ordering::SeqCst);
        context.next.store(1000, Ordering::SeqCst);
        signed(&client, &context, ECHO).opaque(b"2").call().unwrap();
        let level = |name: &str| server.metrics().level(name).unwrap();
        let levels = ["bulk_buffers", "message_buffers"];
        until("what the calls held", || {
            let is_free =
                |what: &&str| level(&format!("{what}_free")) == level(&format!("{what}_total"));
            let is_all_free = levels.iter().all(is_free) && level("calls_deferred") == 0;
            is_all_free.then_some(())
        });
        assert_eq!(contexts.runs.load(Ordering::SeqCst), 0);
    }
}

#[test]
fn calls_that_wait_for_credits_use_up_no_numbers() {
    const CALLS: u32 = 300;
    for versions in [Versions::Two, Versions::One] {
        let at = address();
        let (server, _, _later) = serve_with(
            &at,
            Profile {
                credits_per_connection: 2,
                ..profile()
            },
        );
        let client = builder().versions(versions).connect(&at).unwrap();
        let context = create(&client, 8);
        let mut poller = client.poller(64).unwrap();
        let mut made = 0;
        while made < CALLS || !poller.is_empty() {
            while made < CALLS && !poller.is_full() {
                let mut request = poller.request(ECHO);
                request.sign(Arc::clone(&context) as Arc<dyn Sign>);
                poller.submit(request.opaque(b"one"), 0).unwrap();
                made += 1;
            }
            let answer = poller.wait().unwrap().result.unwrap();
            assert!(context.check(&answer));
        }
        // The first one was 1.
        assert_eq!(context.next.load(Ordering::SeqCst), CALLS + 1);
        assert_eq!(server.metrics().total("calls_discarded"), Some(0));
    }
}

#[test]
fn call_that_waits_for_memory_has_no_number_yet() {
    const CALLS: u32 = 2 * WINDOW;
    for versions in [Versions::Two, Versions::One] {
        let at = address();
        let (server, _, _later) = serve(&at);
        let client = builder().versions(versions).connect(&at).unwrap();
        let context = create(&client, 7);
        // All that a client may have: the rest is for calls of peers.
        let buffers = client.buffers();
        let mut held: Vec<_> = (0..24)
            .map(|_| buffers.wait(100, PATIENCE).unwrap())
            .collect();
        let mut poller = client.poller(1).unwrap();
        let mut request = poller.request(BULK);
        request.sign(Arc::clone(&context) as Arc<dyn Sign>);
        request.expect_bulk(200_000).bulk(held.pop().unwrap());
        poller.submit(&mut request, 0).unwrap();
        until("the call that lacks memory", || {
            let metrics = client.node().metrics();
            (metrics.total("calls_refused_no_slot") > Some(0)).then_some(())
        });
        for _ in 0..CALLS {
            let answer = signed(&client, &context, ECHO).opaque(b"one").call();
            assert!(context.check(&answer.unwrap()), "{versions:?}");
        }
        drop(held);
        let ended = until("the answer", || {
            let discarded = server.metrics().total("calls_discarded");
            assert_eq!(discarded, Some(0), "its number has left the window");
            poller.complete()
        });
        let answer = ended.result.unwrap();
        assert!(context.check(&answer), "{versions:?}");
        // The first one was 1.
        assert_eq!(context.next.load(Ordering::SeqCst), CALLS + 2);
    }
}

/// A call as a message on TCP, signed with this number.
fn message(
    context: &Context,
    xid: u32,
    procedure: Procedure,
    number: u32,
    args: &[u32],
) -> Vec<u8> {
    let credential = context.credential_of(number);
    let header = |verifier| CallHeader {
        xid,
        program: procedure.program,
        version: procedure.version,
        procedure: procedure.number,
        credential: credential.get(),
        verifier,
    };
    let mut space = [0; 500];
    let unsigned = header(OpaqueAuth::NONE);
    unsigned.encode(&mut space).unwrap();
    let verifier = verifier(context.key, &space[..unsigned.signed_bytes()]);
    let bytes = header(verifier.get()).encode(&mut space).unwrap();
    [&space[..bytes], &words(args)].concat()
}

/// By TCP too, and with the octets of replies that a client of the library does not show.
#[test]
fn every_accepted_reply_has_the_verifier_of_its_call() {
    let contexts = Arc::<Contexts>::default();
    let (later, deferred) = channel();
    let server = Server::builder().profile(profile());
    let (_server, at) = listening(guarded(server, &contexts, later));
    let key = 4;
    contexts
        .open
        .lock()
        .unwrap()
        .insert(0, (key, HashSet::new()));
    let context = Context {
        key,
        handle: 0,
        next: AtomicU32::new(1),
        is_fixed: AtomicBool::new(false),
        signed: Mutex::default(),
    };
    let mut peer = Peer::at(at);
    let mut ask = |number: u32, procedure, args: &[u32], mut meanwhile: Box<dyn FnMut()>| {
        peer.send_message(&message(&context, number, procedure, number, args));
        meanwhile();
        let reply = peer.reply();
        let (header, bytes) = ReplyHeader::decode(&reply).unwrap();
        assert_eq!(header.xid, number);
        let ReplyBody::Accepted {
            verifier: found,
            status,
        } = header.body
        else {
            panic!("{header:?}");
        };
        let expected = verifier(key, &number.to_be_bytes());
        assert_eq!(found, expected.get(), "{procedure:?}");
        (status, reply[bytes..].to_vec())
    };
    let nothing = || Box::new(|| {}) as Box<dyn FnMut()>;
    let echoed = ask(1, ECHO, &[0], nothing());
    assert_eq!(echoed, (AcceptStatus::Success, words(&[0])));
    let garbage = ask(2, GARBAGE, &[], nothing());
    assert_eq!(garbage, (AcceptStatus::GarbageArgs, Vec::new()));
    let answer = Box::new(move || {
        let (later, number): (Later, u32) = deferred.recv_timeout(PATIENCE).unwrap();
        later.reply(|results| {
            results.u32(number);
        });
    });
    let entered = ask(3, ENTER, &[55], answer);
    assert_eq!(entered, (AcceptStatus::Success, words(&[55])));
    // The same call with another number gets the reply that was kept.
    peer.send_message(&message(&context, 3, ENTER, 4, &[55]));
    let reply = peer.reply();
    let (header, bytes) = ReplyHeader::decode(&reply).unwrap();
    let expected = verifier(key, &4_u32.to_be_bytes());
    let accepted = ReplyHeader::success(3).with_verifier(expected.get());
    assert_eq!((header, &reply[bytes..]), (accepted, &*words(&[55])));
    assert_eq!(contexts.runs.load(Ordering::SeqCst), 1);
}

/// Calls without an identity, and keeps the verifier of the reply.
struct Nobody;

impl Sign for Nobody {
    fn credential(&self) -> Auth {
        Auth::NONE
    }

    fn verifier(&self, _: &[u8]) -> Auth {
        Auth::NONE
    }
}

#[test]
fn reply_that_comes_later_has_no_verifier_of_another_call() {
    let at = address();
    let (_server, _, later) = serve(&at);
    let client = builder().connect(&at).unwrap();
    let context = create(&client, 2);
    let mut poller = client.poller(1).unwrap();
    let mut request = poller.request(ENTER);
    request.sign(Arc::new(Nobody)).u32(1);
    poller.submit(&mut request, 0).unwrap();
    let (unanswered, _) = later.recv_timeout(PATIENCE).unwrap();
    let answer = signed(&client, &context, ECHO).opaque(b"one").call();
    assert!(context.check(&answer.unwrap()));
    unanswered.reply(|results| {
        results.u32(1);
    });
    let answer = poller.wait().unwrap().result.unwrap();
    assert_eq!(answer.verifier(), Auth::NONE);
}

#[test]
fn verifier_that_a_service_sets_is_that_of_the_answer_that_comes_later() {
    let contexts = Arc::<Contexts>::default();
    let (later, deferred) = channel();
    let server = Server::builder().profile(profile());
    let (server, at) = listening(guarded(server, &contexts, later));
    let answer = || {
        let (later, key): (Later, u32) = deferred.recv_timeout(PATIENCE).unwrap();
        later.reply(|results| {
            results.u32(key);
        });
    };
    let expected = verifier(6, &WINDOW.to_be_bytes());

    let client = builder().connect(server.address()).unwrap();
    let mut poller = client.poller(1).unwrap();
    let mut request = poller.request(CREATE_LATER);
    request.sign(Arc::new(Creates)).u32(6);
    poller.submit(&mut request, 0).unwrap();
    answer();
    let by_rdma = poller.wait().unwrap().result.unwrap();
    assert_eq!(by_rdma.verifier(), expected);

    let mut peer = Peer::at(at);
    let creates = Creates.credential();
    let header = CallHeader {
        xid: 9,
        program: PROGRAM,
        version: 1,
        procedure: CREATE_LATER.number,
        credential: creates.get(),
        verifier: OpaqueAuth::NONE,
    };
    let mut space = [0; 100];
    let bytes = header.encode(&mut space).unwrap();
    peer.send_message(&[&space[..bytes], &words(&[6])].concat());
    answer();
    let by_tcp = peer.reply();
    let (header, bytes) = ReplyHeader::decode(&by_tcp).unwrap();
    let accepted = ReplyHeader::success(9).with_verifier(expected.get());
    assert_eq!((header, &by_tcp[bytes..]), (accepted, &*words(&[6])));
}
