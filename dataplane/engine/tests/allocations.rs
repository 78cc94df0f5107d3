//! After set-up a core allocates nothing and frees nothing, whatever its calls are like.

mod support;

use std::collections::VecDeque;

use rpcrdma_engine::ring_client::{CallMessage, CallStatus, RingApplication, RingClient};
use rpcrdma_engine::{
    Activity, Application, BulkArguments, BulkCall, BulkItem, BulkReply, CallError, CallTag,
    ConnectionKey, Context, CoreConfig, DeferToken, ExpectedResult, Outcome, Placement,
    ReplyRefused, ReplyWriter, Request,
};
use rpcrdma_fabric::clock::Ticks;
use rpcrdma_fabric::interface::Port;
use rpcrdma_fabric::memory::Lease;
use rpcrdma_fabric::testing::CountingAllocator;

use support::{ECHO, LATER, NULL, Pair, call};

/// Messages of any length lie in several segments.
const FORM: support::Form = support::Form::Segments;
type TestFabric = support::fabric::Shm;

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
    let counters = pair.client.counters();
    assert!(counters.fragments_sent > 0 && counters.fragments_received > 0);
    assert!(
        counters.calls_refused_no_credit > 0,
        "scarcity is part of it"
    );
}

/// Makes calls with bulk data, each with an item and a result, and answers them.
#[derive(Default)]
struct Bulk {
    connection: Option<ConnectionKey>,
    wanted: u32,
    ended: u32,
}

const ITEM_BYTES: u32 = 100_000;

fn item(mut take: impl FnMut() -> Option<Lease>) -> Option<BulkItem> {
    let mut item = BulkItem::new();
    let mut rest = ITEM_BYTES as usize;
    while rest != 0 {
        let mut part = take()?;
        part.set_len(rest);
        part.fill(9);
        rest -= part.len();
        item.push(part).ok()?;
    }
    Some(item)
}

impl Application for Bulk {
    fn call_bulk(
        &mut self,
        _request: &Request<'_>,
        items: &mut BulkArguments<'_>,
        reply: &mut ReplyWriter<'_>,
    ) -> Outcome {
        drop(items.take(0));
        match item(|| reply.take_bulk()) {
            Some(mut item) => match reply.attach(0, &mut item) {
                Ok(()) => Outcome::Success,
                Err(_) => Outcome::SystemError,
            },
            None => Outcome::SystemError,
        }
    }

    fn completed_bulk(
        &mut self,
        _tag: CallTag,
        _connection: ConnectionKey,
        result: Result<BulkReply<'_>, CallError>,
        _now: Ticks,
    ) {
        let reply = result.expect("it succeeds");
        assert_eq!(reply.items[0].item.len(), ITEM_BYTES as usize);
        self.ended += 1;
    }

    fn poll<P: Port>(&mut self, core: &mut Context<'_, P>, _now: Ticks) -> Activity {
        let Some(connection) = self.connection.filter(|_| self.wanted != 0) else {
            return Activity::Idle;
        };
        let Some(mut item) = item(|| core.take_bulk()) else {
            return Activity::Idle;
        };
        let mut bulk = BulkCall::new(call(ECHO), &[0; 8]);
        bulk.placement = Placement::Rdma;
        bulk.add(8, &mut item).expect("one item");
        bulk.expect(ExpectedResult {
            bytes_max: ITEM_BYTES,
            ..ExpectedResult::default()
        })
        .expect("one result");
        match core.call_bulk(connection, &mut bulk, 1) {
            Ok(()) => {
                self.wanted -= 1;
                Activity::Busy
            }
            Err(refused) if refused.is_transient() => Activity::Idle,
            Err(refused) => panic!("{refused}"),
        }
    }
}

#[test]
fn bulk_data_allocates_nothing() {
    let config = CoreConfig {
        connections_max: 2,
        credits_per_connection: 4,
        message_buffers: 6,
        bulk_buffers: 48,
        bulk_calls: 6,
        ..CoreConfig::default()
    };
    let mut pair = Pair::with(&config, &config, Bulk::default(), Bulk::default());
    let (connection, _) = pair.connect();
    pair.client.app_mut().connection = Some(connection);
    for round in 0..5 {
        let before = CountingAllocator::calls();
        pair.client.app_mut().wanted = 20;
        pair.until("all replies", |pair| {
            pair.client.app().ended == 20 * (round + 1)
        });
        let calls = CountingAllocator::calls() - before;
        assert_eq!(calls, 0, "calls to the allocator in round {round}");
    }
    let counters = pair.server.counters();
    assert!(counters.rdma_reads >= 200 && counters.rdma_writes >= 100);
}

#[test]
fn the_allocator_counts() {
    let before = CountingAllocator::calls();
    drop(std::hint::black_box(vec![1_u8; 100]));
    assert_eq!(CountingAllocator::calls() - before, 2);
}
