//! What the crate `rpcrdma` adds to a call: the same echo over shm by the engine's rings, and by the facade's blocking
//! calls, futures and poller. Each way is measured in rounds, in turn. One core serves and calls, so that it and the calling
//! thread have a processor each on a machine with two.
//!
//! `cargo bench -p rpcrdma-bench --bench facade -- [ROUNDS]`

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use rpcrdma::prelude::*;
use rpcrdma::{Authentication, Idle, Poller, Profile};
use rpcrdma_control::{
    ConnectOptions, ListenOptions, Node as ControlNode, NodeConfig, ShmProvider,
};
use rpcrdma_engine::ring_client::{CallMessage, CallStatus, RingClient, RingService, client_pair};
use rpcrdma_engine::{
    Activity, Application, Call, CallError, CallTag, ConnectionKey, Context as EngineContext,
    Outcome, Reply as EngineReply, ReplyWriter, Request as EngineRequest,
};
use rpcrdma_fabric::clock::Ticks;
use rpcrdma_fabric::interface::Port;

const ECHO: Procedure = Procedure::new(0x2000_0001, 1, 1);
const ARGS: [u8; 8] = [0, 0, 0, 4, b'p', b'i', b'n', b'g'];
const CALLS: u32 = 20_000;
const DEPTH: u32 = 32;

/// Polls a future until it is ready, as a runtime with nothing else to do.
fn spin_on<F: Future>(future: F) -> F::Output {
    let mut context = Context::from_waker(Waker::noop());
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        std::hint::spin_loop();
    }
}

fn by_ring(ring: &mut RingClient, message: &mut Option<Box<CallMessage>>) {
    let Some(mut call) = message.take() else {
        return;
    };
    call.status = CallStatus::Pending;
    ring.submit(call).expect("one call at a time");
    let ended = loop {
        if let Some(ended) = ring.complete() {
            break ended;
        }
        std::hint::spin_loop();
    };
    assert_eq!(ended.results, ARGS);
    *message = Some(ended);
}

fn by_poller(poller: &mut Poller) -> u32 {
    while !poller.is_full() {
        let mut request = poller.request(ECHO);
        request.bytes(&ARGS);
        poller.submit(&mut request, 0).expect("it is not full");
    }
    let mut ended = 0;
    while let Some(call) = poller.complete() {
        assert_eq!(call.result.expect("the server answers").bytes(), ARGS);
        ended += 1;
    }
    ended
}

/// Nanoseconds for each of so many calls.
fn each(mut call: impl FnMut() -> u32) -> f64 {
    let begin = Instant::now();
    let mut calls = 0;
    while calls < CALLS {
        calls += call();
    }
    begin.elapsed().as_secs_f64() * 1e9 / f64::from(calls)
}

/// The engine's own: rings, and an echo.
struct Rings(RingService);

impl Application for Rings {
    const CLOCK_INTERVAL_POLLS: u32 = 16;

    fn call(&mut self, request: &EngineRequest<'_>, reply: &mut ReplyWriter<'_>) -> Outcome {
        let written = reply.write(request.args);
        written.map_or(Outcome::SystemError, |()| Outcome::Success)
    }

    fn completed(
        &mut self,
        tag: CallTag,
        _: ConnectionKey,
        result: Result<EngineReply<'_>, CallError>,
        _: Ticks,
    ) {
        self.0.completed(tag, result);
    }

    fn poll<P: Port>(&mut self, core: &mut EngineContext<'_, P>, _: Ticks) -> Activity {
        self.0.poll(core)
    }
}

fn profile() -> Profile {
    Profile {
        connections_max: 4,
        idle: Idle::Pause,
        ..Profile::default()
    }
}

fn address() -> String {
    format!("shm:bench-facade-{}", std::process::id())
}

/// The engine's rings: one call at a time, and many.
fn rings() -> (f64, f64) {
    let (mut ring, service) = client_pair(DEPTH, 0);
    let mut application = Some(Rings(service));
    let config = NodeConfig::from_profile(&profile(), vec![None]);
    let provider = ShmProvider::from_profile(&profile());
    let node = ControlNode::start(provider, &config, |_| application.take().expect("one core"));
    let node = node.expect("there is memory");
    let listening = node.listen(&address(), ListenOptions::default());
    listening.expect("the address is free");
    let connection = node.connect(&address(), ConnectOptions::default());
    let connection = connection.expect("the node listens").key;
    let message = || {
        let mut message = Box::new(CallMessage {
            connection,
            call: Call {
                program: ECHO.program,
                version: ECHO.version,
                procedure: ECHO.number,
            },
            args: ARGS.to_vec(),
            ..CallMessage::default()
        });
        message.results.reserve(64);
        message
    };
    let mut one = Some(message());
    let single = each(|| {
        by_ring(&mut ring, &mut one);
        1
    });
    let mut idle: Vec<_> = (0..DEPTH).map(|_| message()).collect();
    let batch = each(|| {
        while let Some(message) = idle.pop() {
            ring.submit(message).expect("as many as the ring holds");
        }
        let mut ended = 0;
        while let Some(message) = ring.complete() {
            assert_eq!(message.results, ARGS);
            idle.push(message);
            ended += 1;
        }
        ended
    });
    (single, batch)
}

/// The facade: a blocking call, a future, and many calls at a time.
fn facade() -> (f64, f64, f64) {
    let node = Node::builder()
        .profile(profile())
        .procedure(ECHO, |call, reply| {
            // As the engine's: what is measured is the way of a call, not a decoder.
            reply.bytes(call.args().rest());
            Ok(())
        });
    let node = node.start(&address()).expect("there is memory");
    let listening = node.listen(&address(), Authentication::Fabric);
    listening.expect("the address is free");
    let client = node.client().connect(&address()).expect("the node listens");
    let call = each(|| {
        let answer = client.request(ECHO).bytes(&ARGS).call();
        assert_eq!(answer.expect("the server answers").bytes(), ARGS);
        1
    });
    let future = each(|| {
        let answer = spin_on(client.request(ECHO).bytes(&ARGS).call_async());
        assert_eq!(answer.expect("the server answers").bytes(), ARGS);
        1
    });
    let mut poller = client.poller(DEPTH).expect("there is room");
    let batch = each(|| by_poller(&mut poller));
    (call, future, batch)
}

fn main() {
    let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
    let rounds = words
        .next()
        .and_then(|word| word.parse().ok())
        .unwrap_or(15_usize);
    let (mut ring_ns, mut call_ns, mut future_ns, mut batch_ns, mut ring_batch_ns) =
        (vec![], vec![], vec![], vec![], vec![]);
    for _ in 0..rounds {
        let (single, batch) = rings();
        ring_ns.push(single);
        ring_batch_ns.push(batch);
        let (call, future, batch) = facade();
        call_ns.push(call);
        future_ns.push(future);
        batch_ns.push(batch);
    }
    let median = |values: &mut Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let (ring, batch) = (median(&mut ring_ns), median(&mut ring_batch_ns));
    for (name, mut values, base) in [
        ("rings of the engine, one call", ring_ns, ring),
        ("Request::call", call_ns, ring),
        ("Request::call_async", future_ns, ring),
        ("rings of the engine, 32 calls", ring_batch_ns, batch),
        ("Poller, 32 calls", batch_ns, batch),
    ] {
        let ns = median(&mut values);
        let (low, high) = (values[0], values[values.len() - 1]);
        println!(
            "{name:<32}{ns:>9.0} ns a call  {:>6.3} times  ({low:.0} to {high:.0})",
            ns / base
        );
    }
}
