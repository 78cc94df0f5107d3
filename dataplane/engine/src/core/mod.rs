//! The core: one thread, one poll loop, and everything that it owns.

mod bulk;
mod close;
mod context;
mod dispatch;
mod group;
mod held;
mod iterate;
mod keep_alive;
mod mailbox;
mod pending;
mod publish;
mod rare;
mod receives;
mod stall;
mod sweep;
#[cfg(test)]
mod tests;

pub use context::Context;
pub(crate) use held::Received;
pub use iterate::pin_current_thread;
pub(crate) use publish::MessagesCounted;
pub(crate) use stall::Stall;

use std::collections::VecDeque;

use rpcrdma_fabric::clock::{Clock, Ticks};
use rpcrdma_fabric::interface::{CompletionBatch, Port, REAP_MAX, SetupError};
use rpcrdma_fabric::sync::Arc;

use rpcrdma_protocol::v2::connection::CreditView;

use self::held::Held;
use self::keep_alive::KeepAlive;
use self::publish::Publisher;
use self::receives::{Gathered, ReceiveQueues};
use self::stall::StallWatch;
use crate::application::{Application, ConnectionKey};
use crate::bulk::Bulk;
use crate::config::CoreConfig;
use crate::connection::{ConnectionTable, Outgoing};
use crate::handle::{CoreHandle, Shared};
use crate::idle::Idle;
use crate::message::MessagePool;
use crate::placement::PlacementSegments;
use crate::requester::Requester;
use crate::responder::Deferrals;
use crate::transmit::Transmit;
use group::{LaidOutKinds, PlanMemo};

/// One core with its application. See the [crate] for what it does.
///
/// # Example
/// ```
/// # mod ends { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/ends/documented.rs")); }
/// # use ends::*;
/// # use rpcrdma_engine::{Command, Core, CoreConfig};
/// # use rpcrdma_fabric::clock::Clock;
/// let (config, clock) = (CoreConfig::default(), Clock::new());
/// # let (port, _) = port(0, &config, &clock);
/// let (mut core, handle) = Core::new(port, &config, clock, service(echo))?;
/// handle.send(Command::Stop)?;
/// // By hand, as tests run it; elsewhere `Core::run` does so on a thread of its own.
/// while !core.is_stopped() {
///     let _ = core.iterate();
/// }
/// assert_eq!(handle.counters().commands, 1);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
pub struct Core<P: Port, A: Application> {
    state: State<P>,
    application: A,
    /// Empty between iterations; it stands here so that it need not be made for each.
    batch: CompletionBatch,
    clock: Clock,
    idle: Idle,
    cpu: Option<usize>,
}

/// Why a core did not run.
///
/// # Example
/// ```
/// use rpcrdma_engine::{RunError, pin_current_thread};
///
/// match pin_current_thread(1 << 20) {
///     Err(RunError::Pin { cpu, allowed }) => {
///         assert_eq!(cpu, 1 << 20);
///         assert!(!allowed.contains(&cpu));
///     }
///     Ok(()) => panic!("there is no such processor"),
/// }
/// ```
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The thread could not be pinned.
    #[error(
        "the core could not be pinned to processor {cpu}: it does not exist or this process may \
         not use it; the processors that it may use are {allowed:?}"
    )]
    Pin {
        /// The processor asked for.
        cpu: usize,
        /// The processors that this process may use.
        allowed: Vec<usize>,
    },
}

/// How far a drain has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Drain {
    /// None was asked for.
    No,
    /// No new calls; some are outstanding.
    Underway,
    /// Told.
    Done,
}

/// A connection that is being closed.
#[derive(Clone, Copy, Debug)]
struct Closing {
    index: u32,
    /// The slot of the table of calls that its calls are looked for from.
    scan: u32,
    /// Its calls have ended and the application knows.
    told: bool,
}

/// What a core owns besides its application.
pub(crate) struct State<P: Port> {
    port: P,
    queues: ReceiveQueues,
    placement: PlacementSegments,
    gathered: Gathered,
    connections: ConnectionTable,
    transmit: Transmit,
    laid_out: LaidOutKinds,
    plan_memo: Option<PlanMemo>,
    /// How often ends have told of themselves: plans before the last time count no more.
    told: u64,
    messages: MessagePool,
    outgoing: Outgoing,
    requester: Requester,
    deferrals: Deferrals,
    bulk: Bulk,
    shared: Arc<Shared<P>>,
    /// Connections that have something to send; each at most once.
    pending: VecDeque<u32>,
    held: VecDeque<Held>,
    closing: VecDeque<Closing>,
    keep_alive: KeepAlive,
    stalls: StallWatch,
    publisher: Publisher,
    commands_taken: u64,
    now: Ticks,
    /// Iterations since `now` was read.
    clock_age_polls: u32,
    drain: Drain,
    stop: bool,
    config: CoreConfig,
}

impl<P: Port, A: Application> Core<P, A> {
    /// Makes a core on `port`: carves the pools, makes the shared receive queue, or one for each
    /// connection where the device has no shared ones, and posts all its Receives.
    ///
    /// # Errors
    /// When the configuration does not fit the port or its arena, which must have at least
    /// [`CoreConfig::arena_bytes`].
    pub fn new(
        mut port: P,
        config: &CoreConfig,
        clock: Clock,
        application: A,
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
        let bulk = Bulk::new(bulk_pool, config, port.attributes());
        let padding = port.carve(config.padding_pool())?;
        let memory = port.memory().clone();
        let Some(transmit) = Transmit::new(memory, pool, padding, inline_bytes_max) else {
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
            connections: ConnectionTable::new(config.connections_max, queue_pairs_max),
            transmit,
            laid_out: LaidOutKinds::new(),
            plan_memo: None,
            told: 0,
            messages: MessagePool::new(config.message_buffers, config.message_bytes_max),
            outgoing: Outgoing::new(config.message_buffers),
            requester: Requester::new(config.calls_outstanding_max, timeout, now, now),
            deferrals: Deferrals::new(config.deferred_max),
            bulk,
            shared: Arc::clone(&shared),
            pending: VecDeque::with_capacity(connections),
            held: VecDeque::with_capacity(held_max(config)),
            closing: VecDeque::with_capacity(connections),
            keep_alive: KeepAlive::new(config, &clock, now),
            stalls: StallWatch::new(config, &clock, now),
            publisher: Publisher::new(&clock, now),
            commands_taken: 0,
            now,
            clock_age_polls: 0,
            drain: Drain::No,
            stop: false,
            config: config.clone(),
            port,
        };
        let core = Self {
            state,
            application,
            batch: CompletionBatch::with_limit(
                usize::try_from(config.reap_batch).unwrap_or(REAP_MAX),
            ),
            idle: Idle::new(config.idle, &clock),
            clock,
            cpu: config.cpu,
        };
        Ok((core, CoreHandle { shared }))
    }

    /// The port, for reports.
    pub fn port(&self) -> &P {
        &self.state.port
    }

    /// The credit counters of a connection, for reports.
    pub fn credits(&self, connection: ConnectionKey) -> Option<CreditView> {
        let connection = self.state.connections.get(connection)?;
        Some(connection.protocol.credits())
    }

    /// Message buffers that are free: all of them, while nothing arrives or leaves in parts.
    pub fn message_buffers_free(&self) -> usize {
        self.state.messages.available()
    }

    /// Bulk buffers that are free, with those of leases that were dropped.
    pub fn bulk_buffers_free(&mut self) -> usize {
        self.state.bulk.reply.pool.available()
    }

    /// Placement segments that applications keep.
    pub fn placement_segments_leased(&mut self) -> usize {
        self.state.placement.reclaim();
        self.state.placement.leased()
    }

    /// The application.
    pub fn application(&self) -> &A {
        &self.application
    }

    /// The application, to be changed between iterations.
    pub fn application_mut(&mut self) -> &mut A {
        &mut self.application
    }
}

/// The most calls that can be held: one for each Receive and each message buffer.
fn held_max(config: &CoreConfig) -> usize {
    let held = config.receives().saturating_add(config.message_buffers);
    usize::try_from(held).unwrap_or(usize::MAX)
}
