//! Cores that the program polls itself.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rpcrdma::prelude::*;
use rpcrdma::{Authentication, Ended, PolledCore, Poller};
use rpcrdma_testkit::{Wait, pattern, until};

use crate::{ECHO, PROGRAM, address, connect, profile};

/// Sends its data back, and answers later when its word is 1.
const BULK: Procedure = Procedure::new(PROGRAM, 1, 20);

/// A node that serves at `at`, and its core.
fn polled(at: &str) -> (Node, PolledCore) {
    let node = Node::builder()
        .profile(profile())
        .polled_by_caller()
        .pinned([0])
        .procedure(ECHO, |call, reply| {
            reply.opaque(call.args().opaque()?);
            Ok(())
        })
        .procedure(BULK, |call, reply| {
            let is_later = call.args().bool()?;
            let data = call.args().bulk()?.to_vec();
            if is_later {
                let later = call.later()?;
                std::thread::spawn(move || {
                    later.reply(|results| {
                        results.bulk_copy(&data);
                    });
                });
            } else {
                reply.bulk_copy(&data);
            }
            Ok(())
        });
    let node = node.start(at).unwrap();
    let core = node.take_core(0).unwrap();
    assert!(node.take_core(0).is_none() && node.take_core(1).is_none());
    node.listen(at, Authentication::Fabric).unwrap();
    (node, core)
}

/// Polls until a call has ended.
fn poll_until(core: &mut PolledCore, poller: &mut Poller) -> Ended {
    let wait = Wait::begin("the end of a call");
    loop {
        core.poll();
        if let Some(ended) = poller.complete() {
            return ended;
        }
        wait.look(|| format!("{poller:?}"));
    }
}

/// The processors that this thread may run on.
fn processors() -> String {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let mut lines = status.lines();
    let line = lines.find(|line| line.starts_with("Cpus_allowed:"));
    line.unwrap().to_owned()
}

#[test]
fn one_thread_serves_calls_and_polls() {
    let at = address();
    let before = processors();
    let (node, mut core) = polled(&at);
    // It is not pinned like a thread of the node.
    assert_eq!(processors(), before);
    assert!(!core.poll(), "nothing has come yet");
    let client = node.client().connect_later(&at).unwrap();
    let mut poller = client.poller(4).unwrap();
    let data = pattern(100_000, 3);
    for round in 0..200_u64 {
        for is_later in [false, true] {
            let mut request = poller.request(BULK);
            request.bool(is_later).bulk_copy(&data).expect_bulk(100_000);
            poller.submit(&mut request, round).unwrap();
        }
        while !poller.is_empty() {
            let ended = poll_until(&mut core, &mut poller);
            assert_eq!(ended.tag, round);
            let mut answer = ended.result.unwrap();
            assert!(*answer.results().bulk().unwrap().to_bytes() == data);
        }
    }
    assert!(client.is_connected());
    assert_eq!(node.metrics().total("parks"), Some(0));
}

#[test]
fn other_threads_call_a_core_that_is_polled() {
    let at = address();
    let (_node, mut core) = polled(&at);
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let poller = scope.spawn(|| {
            let mut busy = 0;
            while !is_done.load(Ordering::Relaxed) {
                busy += u64::from(core.poll());
            }
            busy
        });
        let client = connect(&at);
        for number in 0..1000_u32 {
            let mut answer = client.request(ECHO).opaque(&number.to_be_bytes()).call();
            let answer = answer.as_mut().unwrap();
            assert_eq!(answer.results().opaque(), Ok(&number.to_be_bytes()[..]));
        }
        is_done.store(true, Ordering::Relaxed);
        let busy = poller.join().unwrap();
        assert!(busy > 500, "{busy} polls found work");
    });
}

#[test]
fn a_core_stops_with_its_node() {
    let at = address();
    let (node, mut core) = polled(&at);
    let client = std::thread::scope(|scope| {
        let connecting = scope.spawn(|| connect(&at));
        while !connecting.is_finished() {
            core.poll();
        }
        connecting.join().unwrap()
    });
    // TIME: nobody polls it, so no machine is too slow for the limit.
    let mut request = client.request(ECHO);
    request.opaque(b"x").timeout(Duration::from_millis(50));
    let error = request.call().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    drop(node);
    assert!(!core.is_stopped());
    let wait = Wait::begin("the end of the core");
    while !core.is_stopped() {
        core.poll();
        wait.look(String::new);
    }
    assert!(!core.poll());
    until("the loss of the connection", || {
        (!client.is_connected()).then_some(())
    });
}

#[test]
fn calls_fail_when_their_core_is_dropped() {
    let at = address();
    let (node, core) = polled(&at);
    let client = node.client().connect_later(&at).unwrap();
    let mut poller = client.poller(2).unwrap();
    let submit = |poller: &mut Poller| {
        let mut request = poller.request(ECHO);
        poller.submit(request.opaque(b"lost"), 1).unwrap();
    };
    submit(&mut poller);
    drop(core);
    submit(&mut poller);
    for _ in 0..2 {
        let error = poller.wait().unwrap().result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ShuttingDown);
    }
}

#[test]
fn a_node_with_threads_has_no_cores_to_take() {
    let node = Node::builder().profile(profile()).start("shm:any").unwrap();
    assert!(node.take_core(0).is_none());
}
