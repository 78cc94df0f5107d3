//! Calls without bulk data: blocking, as futures, in batches; and what fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use rpcrdma::prelude::*;
use rpcrdma_testkit::until;

use crate::{ECHO, PATIENCE, PROGRAM, address, block_on, builder, connect, echo, profile};

#[test]
fn a_call_comes_back_with_its_results() {
    let at = address();
    let _server = echo(&at);
    let client = connect(&at);
    for text in [&b""[..], b"a", b"four", b"more than four"] {
        let mut answer = client.request(ECHO).opaque(text).call().unwrap();
        assert_eq!(answer.results().opaque().unwrap(), text);
    }
    let stream = [0, 0, 0, 1, b'x', 0, 0, 0];
    assert_eq!(client.call(ECHO, &stream).unwrap().bytes(), stream);
    assert_eq!(client.node().metrics().total("calls_sent"), Some(5));
}

#[test]
fn a_call_begins_in_the_memory_of_a_reply() {
    let at = address();
    let _server = echo(&at);
    let client = connect(&at);
    let mut answer = client.request(ECHO).opaque(b"first").call().unwrap();
    let place = answer.bytes().as_ptr();
    for text in [&b""[..], b"a", b"longer than the first"] {
        answer = client.again(ECHO, answer).opaque(text).call().unwrap();
        assert_eq!(answer.results().opaque().unwrap(), text);
        assert_eq!(answer.bytes().as_ptr(), place);
    }
    let mut poller = client.poller(1).unwrap();
    let mut request = poller.again(ECHO, answer);
    poller.submit(request.opaque(b"polled"), 7).unwrap();
    let mut answer = poller.wait().unwrap().result.unwrap();
    assert_eq!(answer.results().opaque().unwrap(), b"polled");
    assert_eq!(answer.bytes().as_ptr(), place);
}

#[test]
fn threads_share_a_client() {
    let at = address();
    let _server = echo(&at);
    let client = builder().depth(3);
    let client = client.connect(&at).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8_u32 {
            let client = client.clone();
            scope.spawn(move || {
                for number in 0..200_u32 {
                    let text = [thread.to_be_bytes(), number.to_be_bytes()].concat();
                    let mut answer = client.request(ECHO).opaque(&text).call().unwrap();
                    assert_eq!(answer.results().opaque().unwrap(), text);
                }
            });
        }
    });
}

#[test]
fn futures_need_no_runtime() {
    let at = address();
    let _server = echo(&at);
    let client = builder().depth(2);
    let client = client.connect(&at).unwrap();
    // More than the depth: those without a permit wait for one.
    let threads: Vec<_> = (0..6_u32)
        .map(|thread| {
            let client = client.clone();
            std::thread::spawn(move || {
                block_on(async move {
                    for number in 0..100_u32 {
                        let text = [thread.to_be_bytes(), number.to_be_bytes()].concat();
                        let pending = client.request(ECHO).opaque(&text).call_async();
                        let mut answer = pending.await.unwrap();
                        assert_eq!(answer.results().opaque().unwrap(), text);
                    }
                });
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn a_dropped_future_gives_its_place_back() {
    let at = address();
    let _server = echo(&at);
    let client = builder().depth(1);
    let client = client.connect(&at).unwrap();
    for _ in 0..100 {
        let mut pending = client.request(ECHO).opaque(b"lost").call_async();
        let waker = std::task::Waker::noop();
        let mut context = std::task::Context::from_waker(waker);
        // It is sent by the first poll; whether the reply is there by then is chance.
        let _ = std::pin::Pin::new(&mut pending).poll(&mut context);
        drop(pending);
    }
    // With one place, this call comes through only when all of those gave it back.
    client.request(ECHO).opaque(b"kept").call().unwrap();
}

#[test]
fn a_poller_has_many_calls_under_way() {
    let at = address();
    let _server = echo(&at);
    let client = connect(&at);
    let mut poller = client.poller(16).unwrap();
    let mut seen = [false; 1000];
    let mut take = |poller: &mut rpcrdma::Poller| {
        let ended = poller.wait().unwrap();
        let mut answer = ended.result.unwrap();
        assert_eq!(answer.results().opaque().unwrap(), ended.tag.to_be_bytes());
        let seen = &mut seen[usize::try_from(ended.tag).unwrap()];
        assert!(!std::mem::replace(seen, true), "{} came twice", ended.tag);
    };
    for tag in 0..1000_u64 {
        if poller.is_full() {
            take(&mut poller);
        }
        let mut request = poller.request(ECHO);
        request.opaque(&tag.to_be_bytes());
        poller.submit(&mut request, tag).unwrap();
    }
    let mut more = poller.request(ECHO);
    more.opaque(b"one too many");
    assert!(poller.is_full());
    assert_eq!(
        poller.submit(&mut more, 0).unwrap_err().kind(),
        ErrorKind::Busy
    );
    while !poller.is_empty() {
        take(&mut poller);
    }
    assert!(seen.iter().all(|seen| *seen));
    assert_eq!(poller.wait().unwrap_err().kind(), ErrorKind::Usage);
}

/// Answers according to its argument.
struct Refusing;

impl Service for Refusing {
    fn call(&mut self, call: &mut Incoming<'_>, reply: &mut Reply<'_, '_>) -> Result<(), Refusal> {
        match call.procedure() {
            1 => {
                call.args().u64()?;
                Ok(())
            }
            2 => Err(Refusal::SystemError),
            3 => {
                reply.bytes(&vec![0; 8 << 20]);
                Ok(())
            }
            _ => Err(Refusal::ProcedureUnavailable),
        }
    }
}

#[test]
fn refusals_are_distinguished() {
    let at = address();
    let server = Server::builder().profile(profile());
    let server = server.program(PROGRAM, 2..=3, |_core| Refusing);
    let _server = server.listen(&at).unwrap();
    let client = connect(&at);
    let call = |program, version, number| {
        let procedure = Procedure::new(program, version, number);
        client.request(procedure).u32(1).call()
    };
    let kind = |program, version, number| call(program, version, number).unwrap_err().kind();
    assert_eq!(
        kind(PROGRAM, 2, 1),
        ErrorKind::GarbageArgs,
        "a word is no hyper"
    );
    assert_eq!(kind(PROGRAM, 3, 2), ErrorKind::SystemError);
    assert_eq!(
        kind(PROGRAM, 2, 3),
        ErrorKind::SystemError,
        "too long a reply"
    );
    assert_eq!(kind(PROGRAM, 2, 4), ErrorKind::ProcedureUnavailable);
    assert_eq!(kind(PROGRAM, 1, 1), ErrorKind::ProgramMismatch);
    assert_eq!(kind(PROGRAM, 4, 1), ErrorKind::ProgramMismatch);
    assert_eq!(kind(PROGRAM + 1, 2, 1), ErrorKind::ProgramUnavailable);
    let null = Procedure::new(PROGRAM, 2, 0);
    assert!(client.request(null).call().unwrap().bytes().is_empty());
    assert_eq!(
        kind(PROGRAM, 2, 0),
        ErrorKind::GarbageArgs,
        "the null procedure has no arguments"
    );
    let error = call(PROGRAM, 1, 1).unwrap_err().to_string();
    assert!(
        error.contains(&at) && error.contains("versions 2 to 3"),
        "{error}"
    );
}

const AUTH_SYS: u32 = 1;
const RPCSEC_GSS: u32 = 6;
/// A stamp, no name of a machine, user 1, group 1, no further groups; in octets.
const SYS: [u8; 20] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0];
/// Version 1, context creation, no sequence number, no service, no handle; in octets.
const GSS_INIT: [u8; 20] = [0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0];

/// Takes RPCSEC_GSS alone. Answers with the flavor of the call, and with its arguments.
struct Secured;

impl Service for Secured {
    fn call(&mut self, call: &mut Incoming<'_>, reply: &mut Reply<'_, '_>) -> Result<(), Refusal> {
        let (flavor, _) = call.credential();
        let token = call.args().u32()?;
        call.args().end()?;
        reply.u32(flavor).u32(token);
        Ok(())
    }

    fn flavors(&self) -> Option<Vec<u32>> {
        Some(vec![RPCSEC_GSS])
    }

    fn sees_null(&self) -> bool {
        true
    }

    fn procedures(&self) -> Option<Vec<Procedure>> {
        Some(vec![Procedure::new(PROGRAM + 1, 1, 1)])
    }
}

#[test]
fn services_see_only_the_credentials_and_procedures_that_they_take() {
    let at = address();
    let server = Server::builder().profile(profile());
    let server = server.program(PROGRAM, 2..=3, |_core| Refusing);
    let server = server.program(PROGRAM + 1, 1..=1, |_core| Secured);
    let _server = server.listen(&at).unwrap();
    let client = connect(&at);
    let call = |named: (u32, u32, u32), flavor, body: &[u8], words: &[u32]| {
        let mut request = client.request(Procedure::new(named.0, named.1, named.2));
        request.credential(flavor, body);
        for word in words {
            request.u32(*word);
        }
        request.call()
    };
    let failure = |named, flavor, body, words| call(named, flavor, body, words).unwrap_err();
    let plain = (PROGRAM, 2, 1);
    let null = (PROGRAM, 2, 0);
    for (named, flavor, body, words, why) in [
        (plain, AUTH_SYS, &[][..], &[0, 0][..], "AUTH_BADCRED"),
        (plain, AUTH_SYS, &SYS[..16], &[0, 0], "AUTH_BADCRED"),
        (plain, RPCSEC_GSS, &GSS_INIT, &[0, 0], "AUTH_TOOWEAK"),
        (null, RPCSEC_GSS, &GSS_INIT, &[7], "AUTH_TOOWEAK"),
        (null, 99, &[], &[], "AUTH_TOOWEAK"),
        ((PROGRAM + 1, 1, 1), AUTH_SYS, &SYS, &[7], "AUTH_TOOWEAK"),
    ] {
        let error = failure(named, flavor, body, words);
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(error.to_string().contains(why), "{error}");
    }
    assert!(call(plain, AUTH_SYS, &SYS, &[0, 0]).is_ok());
    assert!(call(null, AUTH_SYS, &SYS, &[]).is_ok());
    // A program that speaks RPCSEC_GSS sees the creation of a context, with its token.
    for number in [0, 1] {
        let named = (PROGRAM + 1, 1, number);
        let mut answer = call(named, RPCSEC_GSS, &GSS_INIT, &[7]).unwrap();
        let mut results = answer.results();
        assert_eq!((results.u32(), results.u32()), (Ok(RPCSEC_GSS), Ok(7)));
        results.end().unwrap();
    }
    let more = failure((PROGRAM + 1, 1, 1), RPCSEC_GSS, &GSS_INIT, &[7, 8]);
    assert_eq!(more.kind(), ErrorKind::GarbageArgs, "{more}");
    let other = failure((PROGRAM + 1, 1, 2), RPCSEC_GSS, &GSS_INIT, &[7]);
    assert_eq!(other.kind(), ErrorKind::ProcedureUnavailable, "{other}");
}

#[test]
fn arguments_that_no_message_holds_are_refused() {
    let at = address();
    let _server = echo(&at);
    let client = connect(&at);
    let long = vec![0; 8 << 20];
    let error = client.request(ECHO).opaque(&long).call().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLong);
    let limit = format!("{} bytes (message_bytes_max", profile().message_bytes_max);
    assert!(error.to_string().contains(&limit), "{error}");
    client.request(ECHO).opaque(b"short").call().unwrap();
}

#[test]
fn a_blocking_call_ends_in_time_and_the_next_one_works() {
    const WAIT: Procedure = Procedure::new(PROGRAM, 1, 2);
    let at = address();
    let kept = Arc::new(std::sync::Mutex::new(Vec::new()));
    let hold = Arc::clone(&kept);
    let is_held = Arc::new(AtomicBool::new(true));
    let holding = Arc::clone(&is_held);
    let server = Server::builder()
        .profile(profile())
        .procedure(WAIT, move |call, _| {
            let later = call.later()?;
            if holding.load(Ordering::Relaxed) {
                hold.lock().unwrap().push(later);
            } else {
                later.reply(|results| {
                    results.u32(7);
                });
            }
            Ok(())
        });
    let _server = server.listen(&at).unwrap();
    let client = builder().depth(1);
    let client = client.connect(&at).unwrap();
    // TIME: neither of these calls is ever answered, so no machine is too slow for it.
    let mut request = client.request(WAIT);
    let error = request
        .timeout(Duration::from_millis(30))
        .call()
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    // The one place is still the first call's.
    let mut request = client.request(WAIT);
    let error = request
        .timeout(Duration::from_millis(30))
        .call()
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    // The server may be late with the first call.
    until("the first call at the server", || {
        (!kept.lock().unwrap().is_empty()).then_some(())
    });
    is_held.store(false, Ordering::Relaxed);
    kept.lock().unwrap().clear();
    let mut answer = client.request(WAIT).call().unwrap();
    assert_eq!(answer.results().u32().unwrap(), 7);
}

/// A server that keeps calls of procedure 2 until they are dropped.
fn keeper(at: &str) -> (Server, Arc<std::sync::Mutex<Vec<rpcrdma::Later>>>) {
    let kept = Arc::new(std::sync::Mutex::new(Vec::new()));
    let keep = Arc::clone(&kept);
    let server = Server::builder().profile(profile());
    let server = server.procedure(KEPT, move |call, _| {
        keep.lock().unwrap().push(call.later()?);
        Ok(())
    });
    (server.listen(at).unwrap(), kept)
}

const KEPT: Procedure = Procedure::new(PROGRAM, 1, 2);

#[test]
fn calls_of_a_dropped_poller_or_client_keep_their_places() {
    let at = address();
    let (_server, kept) = keeper(&at);
    let mut small = profile();
    (small.calls_outstanding_max, small.credits_per_connection) = (8, 8);
    let node = Node::builder().profile(small).start(&at).unwrap();
    let client = node
        .client()
        .connect_timeout(PATIENCE)
        .depth(2)
        .connect(&at)
        .unwrap();
    let other = node
        .client()
        .connect_timeout(PATIENCE)
        .depth(2)
        .connect(&at)
        .unwrap();
    let mut poller = client.poller(4).unwrap();
    while !poller.is_full() {
        poller.submit(&mut poller.request(KEPT), 0).unwrap();
    }
    let mut lost = other.request(KEPT).call_async();
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(
        std::pin::Pin::new(&mut lost)
            .poll(&mut context)
            .is_pending()
    );
    until("five calls at the server", || {
        (kept.lock().unwrap().len() >= 5).then_some(())
    });
    drop(poller);
    let full = client.poller(1).unwrap_err();
    assert_eq!(full.kind(), ErrorKind::Configuration, "{full}");
    // Its connection closes, which ends its call: the places may come back from now on.
    drop((lost, other));
    kept.lock().unwrap().clear();
    until("the places to come back", || client.poller(6).ok());
}

#[test]
fn a_request_is_sent_once_and_by_its_own_poller() {
    let (at, elsewhere) = (address(), address());
    let (_server, _other) = (echo(&at), echo(&elsewhere));
    let (client, other) = (connect(&at), connect(&elsewhere));
    let mut poller = client.poller(4).unwrap();
    let mut foreign = other.request(ECHO);
    let error = poller.submit(foreign.opaque(b"x"), 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
    assert!(poller.is_empty());
    // One that is refused is as it was.
    let mut own = other.poller(1).unwrap();
    own.submit(&mut foreign, 0).unwrap();
    let mut answer = own.wait().unwrap().result.unwrap();
    assert_eq!(answer.results().opaque().unwrap(), b"x");
    let mut long = poller.request(ECHO);
    for _ in 0..1000 {
        long.expect_bulk(1);
    }
    for _ in 0..2 {
        let error = poller.submit(&mut long, 0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooLong, "{error}");
    }
    let mut twice = client.request(ECHO);
    twice.opaque(b"x").call().unwrap();
    assert_eq!(twice.call().unwrap_err().kind(), ErrorKind::Usage);
    assert_eq!(
        poller.submit(&mut twice, 0).unwrap_err().kind(),
        ErrorKind::Usage
    );
    // One that finds the poller full is as it was.
    let mut one = client.poller(1).unwrap();
    let mut first = one.request(ECHO);
    one.submit(first.opaque(b"first"), 1).unwrap();
    let mut second = one.request(ECHO);
    assert_eq!(
        one.submit(second.opaque(b"second"), 2).unwrap_err().kind(),
        ErrorKind::Busy
    );
    one.wait().unwrap().result.unwrap();
    one.submit(&mut second, 2).unwrap();
    let mut answer = one.wait().unwrap().result.unwrap();
    assert_eq!(answer.results().opaque().unwrap(), b"second");
}

#[test]
fn each_core_has_its_own_service() {
    struct Core(u32);
    impl Service for Core {
        fn call(&mut self, _: &mut Incoming<'_>, reply: &mut Reply<'_, '_>) -> Result<(), Refusal> {
            reply.u32(self.0);
            Ok(())
        }
    }
    let at = address();
    let made = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&made);
    let server = Server::builder().profile(profile()).cores(2);
    let server = server.program(PROGRAM, 1..=1, move |core| {
        count.fetch_add(1, Ordering::Relaxed);
        Core(u32::try_from(core).unwrap())
    });
    let _server = server.listen(&at).unwrap();
    assert_eq!(made.load(Ordering::Relaxed), 2);
    let client = builder().connections(2);
    let client = client.connect(&at).unwrap();
    let answers: Vec<u32> = (0..4)
        .map(|_| {
            client
                .request(ECHO)
                .call()
                .unwrap()
                .results()
                .u32()
                .unwrap()
        })
        .collect();
    let mut sorted = answers.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, [0, 0, 1, 1], "connections in turn: {answers:?}");
}

#[test]
fn an_error_prints_as_a_sentence_and_its_structure_when_asked() {
    // TIME: nobody is ever there, so no machine is too slow for it.
    let timeout = Duration::from_millis(50);
    let client = Client::builder()
        .profile(profile())
        .connect_timeout(timeout);
    let error = client.connect(&address()).unwrap_err();
    let printed = format!("{error:?}");
    assert!(
        printed.starts_with("no connection to `shm:facade-"),
        "{printed}"
    );
    assert_eq!(printed, error.to_string(), "it has no other causes");
    let structure = format!("{error:#?}");
    assert!(structure.contains("NotConnected {"), "{structure}");

    let error = Server::builder()
        .knob("idle=never")
        .listen(&address())
        .unwrap_err();
    let cause = std::error::Error::source(&error).map(ToString::to_string);
    let cause = cause.expect("the knob's own error");
    assert_eq!(format!("{error:?}").matches(&cause).count(), 1, "{error:?}");
}
