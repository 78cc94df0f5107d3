//! What a core owns besides its application.

use std::collections::VecDeque;

use rpcrdma_fabric::clock::{Clock, Ticks};
use rpcrdma_fabric::interface::{Port, SetupError};
use rpcrdma_fabric::sync::Arc;

use super::group::LaidOutKinds;
use super::held::Held;
use super::incoming::Incoming;
use super::outgoing::{Outgoing, PlanMemo};
use super::publisher::Publisher;
use super::receives::{Gathered, ReceiveQueues};
use super::step::Work;
use super::sweep::Sweep;
use super::transmit::Transmit;
use crate::bulk::ReplyItems;
use crate::config::CoreConfig;
use crate::connection::{Backlog, ConnectionTable, VISITS};
use crate::handle::{CoreHandle, Shared};
use crate::limits::HEADER_BYTES_MAX;
use crate::message::{MessagePool, Received};
use crate::placement::PlacementSegments;
use crate::requester::{Requester, first_xid};
use crate::responder::Deferrals;

/// How far a drain has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drain {
    /// None was asked for.
    No,
    /// No new calls; some are outstanding.
    Underway,
    /// Told.
    Done,
}

/// A connection that is being closed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Closing {
    pub(super) index: u32,
    /// The slot of the table of calls that its calls are looked for from.
    pub(super) scan: u32,
    /// Its calls have ended and the application knows.
    pub(super) told: bool,
}

/// What a core owns besides its application.
pub(crate) struct State<P: Port> {
    pub(super) port: P,
    pub(super) queues: ReceiveQueues,
    pub(super) placement: PlacementSegments,
    pub(super) gathered: Gathered,
    pub(super) connections: ConnectionTable,
    pub(super) transmit: Transmit,
    pub(super) laid_out: LaidOutKinds,
    pub(super) plan_memo: Option<PlanMemo>,
    /// How often ends have told of themselves: plans before the last time count no more.
    pub(super) told: u64,
    pub(super) messages: MessagePool,
    /// Messages that wait for credits or a place in a send queue.
    pub(super) backlog: Backlog,
    pub(super) requester: Requester,
    pub(super) deferrals: Deferrals,
    /// The bulk buffers, and the items of the reply that is being written.
    pub(super) reply: ReplyItems,
    pub(super) incoming: Incoming,
    pub(super) outgoing: Outgoing,
    /// Calls with bulk data that can perhaps go on; each at most once.
    pub(super) work: VecDeque<Work>,
    /// The header of the last part of a message that was put together, when it has chunks.
    pub(super) assembled_header: Vec<u8>,
    pub(super) shared: Arc<Shared<P>>,
    /// Connections that have something to send; each at most once.
    pub(super) pending: VecDeque<u32>,
    pub(super) held: VecDeque<Held>,
    pub(super) closing: VecDeque<Closing>,
    pub(super) keep_alive: Sweep,
    pub(super) deadlines: Sweep,
    pub(super) publisher: Publisher,
    pub(super) commands_taken: u64,
    pub(super) now: Ticks,
    /// Iterations since `now` was read.
    pub(super) clock_age_polls: u32,
    pub(super) drain: Drain,
    pub(super) stop: bool,
    pub(super) config: CoreConfig,
}

impl<P: Port> State<P> {
    /// Carves the pools out of the arena of `port`, makes the shared receive queue, or one for each connection, and posts
    /// all Receives.
    pub(super) fn new(
        mut port: P,
        config: &CoreConfig,
        clock: &Clock,
    ) -> Result<(Self, CoreHandle<P>), SetupError> {
        config.validate(port.attributes())?;
        let shared = Shared::new(config.mailbox_depth, config.notifications(), clock.clone())?;
        let (queues, placement) = ReceiveQueues::new(&mut port, config)?;
        shared
            .counters
            .receives_posted
            .add(config.receives().into());
        let inline_bytes_max = port.attributes().inline_bytes_max;
        let queue_pairs_max = port.attributes().queue_pairs_max;
        let pool = port.carve(config.send_pool())?;
        let bulk_pool = port.carve(config.bulk_pool())?;
        let incoming = Incoming::new(config, port.attributes(), bulk_pool.shape().buffers);
        let outgoing = Outgoing::new(config, port.attributes());
        let reply = ReplyItems::new(bulk_pool, config, port.attributes());
        let slots = incoming.calls.len() + outgoing.calls.len();
        let padding = port.carve(config.padding_pool())?;
        let memory = port.memory().clone();
        let places = (config.send_buffers_guaranteed(), queue_pairs_max);
        let Some(transmit) = Transmit::new(memory, pool, padding, inline_bytes_max, places) else {
            return Err(SetupError::Limit {
                what: "send buffers",
                asked: 1,
                limit: 0,
            });
        };
        let now = clock.now();
        let timeout = clock.ticks(config.call_timeout);
        let connections = config.connections_max as usize;
        let state = State {
            queues,
            placement,
            gathered: Gathered::new(config),
            connections: ConnectionTable::new(
                config.connections_max,
                queue_pairs_max,
                config.credits_per_connection,
            ),
            transmit,
            laid_out: LaidOutKinds::new(),
            plan_memo: None,
            told: 0,
            messages: MessagePool::new(
                config.connections_max,
                config.message_buffers,
                config.message_bytes_max,
            ),
            backlog: Backlog::new(config.message_buffers_total()),
            requester: Requester::new(
                config.calls_outstanding_max,
                config.connections_max,
                timeout,
                now,
                first_xid(),
            ),
            deferrals: Deferrals::new(config.connections_max, config.deferred_max),
            reply,
            incoming,
            outgoing,
            work: VecDeque::with_capacity(slots as usize),
            assembled_header: Vec::with_capacity(HEADER_BYTES_MAX),
            shared: Arc::clone(&shared),
            pending: VecDeque::with_capacity(connections),
            held: VecDeque::with_capacity(held_max(config)),
            closing: VecDeque::with_capacity(connections),
            keep_alive: Sweep::new(config.keep_alive_interval, clock, now),
            deadlines: Sweep::new(config.stall_timeout / u32::from(VISITS), clock, now),
            publisher: Publisher::new(clock, now),
            commands_taken: 0,
            now,
            clock_age_polls: 0,
            drain: Drain::No,
            stop: false,
            config: config.clone(),
            port,
        };
        Ok((state, CoreHandle { shared }))
    }

    /// The bytes of a message in its Receive, up to the end of it.
    pub(super) fn received_bytes(&mut self, received: &Received) -> &[u8] {
        let counters = &self.shared.counters;
        self.gathered
            .message(&self.port, &received.receive, received.end, counters)
    }
}

/// The most calls that can be held: one for each Receive and each message buffer.
fn held_max(config: &CoreConfig) -> usize {
    let held = config
        .receives()
        .saturating_add(config.message_buffers_total());
    usize::try_from(held).unwrap_or(usize::MAX)
}
