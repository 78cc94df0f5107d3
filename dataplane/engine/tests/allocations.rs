//! After set-up a core allocates nothing and frees nothing, whatever its calls are like.

mod support;

use std::collections::VecDeque;

use rpcrdma_engine::ring_client::{CallMessage, CallStatus, RingApplication, RingClient};
use rpcrdma_engine::{
    Activity, Application, CallError, ConnectionKey, Context, CoreConfig, DeferToken, Outcome,
    ReplyRefused, ReplyWriter, Request,
};
use rpcrdma_fabric::clock::Ticks;
use rpcrdma_fabric::interface::Port;
use rpcrdma_fabric::testing::CountingAllocator;

use support::{ECHO, LATER, NULL, Pair, call};

/// Messages of any length lie in several segments.
const FORM: support::Form = support::Form::Segments;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// The bench program, in memory that is there from the start.
struct Service {
    deferred: VecDeque<DeferToken>,
}

impl Application for Service {
    fn call(&mut self, request: &Request<'_>, reply: &mut ReplyWriter<'_>) -> Outcome {
        match request.procedure {
            NULL => Outcome::Success,
            ECHO => reply
                .write(request.args)
                .map_or(Outcome::SystemError, |()| Outcome::Success),
            LATER => match request.defer() {
                Some(token) => {
                    self.deferred.push_back(token);
                    Outcome::Deferred
                }
                None => Outcome::SystemError,
            },
            _ => Outcome::ProcedureUnavailable,
        }
    }

    fn poll<P: Port>(&mut self, core: &mut Context<'_, P>, _now: Ticks) -> Activity {
        let Some(token) = self.deferred.pop_front() else {
            return Activity::Idle;
        };
        match core.reply(token, Outcome::Success, &[9; 40]) {
            Ok(()) => Activity::Busy,
            Err((ReplyRefused::Busy, token)) => {
                self.deferred.push_front(token);
                Activity::Idle
            }
            Err((refused, _)) => panic!("{refused:?}"),
        }
    }
}

/// Makes all calls once more; the number of calls to the allocator in doing so.
#[expect(clippy::vec_box, reason = "the boxes are what travels")]
fn round(
    pair: &mut Pair<RingApplication, Service>,
    ring: &mut RingClient,
    connection: ConnectionKey,
    waiting: &mut Vec<Box<CallMessage>>,
) -> u64 {
    let before = CountingAllocator::calls();
    let count = waiting.len();
    while let Some(mut message) = waiting.pop() {
        message.connection = connection;
        ring.submit(message).expect("the ring holds them all");
    }
    pair.until("all replies", |_| {
        while let Some(message) = ring.complete() {
            waiting.push(message);
        }
        waiting.len() == count
    });
    CountingAllocator::calls() - before
}

#[test]
fn the_steady_path_allocates_nothing() {
    let config = CoreConfig {
        connections_max: 2,
        credits_per_connection: 4,
        message_buffers: 6,
        calls_outstanding_max: 16,
        deferred_max: 64,
        ..CoreConfig::default()
    };
    let (client, mut rings) = RingApplication::new(1, 64);
    let server = Service {
        deferred: VecDeque::with_capacity(64),
    };
    let mut pair = Pair::with(&config, &config, client, server);
    let (connection, _) = pair.connect();
    let sizes = [0, 8, 900, 2000, 5000, 60_000, 500_000];
    let mut waiting: Vec<_> = sizes
        .iter()
        .flat_map(|&size| [(ECHO, size), (NULL, 0), (LATER, size), (99, size)])
        .map(|(procedure, size)| {
            Box::new(CallMessage {
                call: call(procedure),
                args: vec![7; size],
                results: Vec::with_capacity(size.max(40)),
                ..CallMessage::default()
            })
        })
        .collect();
    for _ in 0..5 {
        let calls = round(&mut pair, &mut rings[0], connection, &mut waiting);
        assert_eq!(calls, 0, "calls to the allocator");
    }
    for message in &waiting {
        let expected = match message.call.procedure {
            99 => CallStatus::Failed(CallError::ProcedureUnavailable),
            _ => CallStatus::Success,
        };
        let (call, bytes) = (message.call, message.args.len());
        assert_eq!(message.status, expected, "{call:?} with {bytes} bytes");
    }
    let counters = pair.client.handle.counters();
    assert!(counters.fragments_sent > 0 && counters.fragments_received > 0);
    assert!(
        counters.calls_refused_no_credit > 0,
        "scarcity is part of it"
    );
}

#[test]
fn the_allocator_counts() {
    let before = CountingAllocator::calls();
    drop(std::hint::black_box(vec![1_u8; 100]));
    assert_eq!(CountingAllocator::calls() - before, 2);
}
