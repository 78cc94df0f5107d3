//! The parts of a core, without its application.

use std::collections::VecDeque;
use std::sync::Arc;

use rpcrdma_fabric::clock::{Clock, Ticks};
use rpcrdma_fabric::interface::{Port, PublishedCounters, SetupError};
use rpcrdma_protocol::rpc::{LastRoute, Programs};

use super::incoming::Incoming;
use super::lending::Lending;
use super::outgoing::Outgoing;
use super::publish::Publisher;
use super::receives::{Gathered, ReceiveQueues};
use super::resources::{Drain, Resources};
use super::sweep::Sweep;
use super::transmit::Transmit;
use super::waiting_receives::WaitingReceives;
use crate::bulk::ReplyItems;
use crate::config::CoreConfig;
use crate::connection::{Backlog, ConnectionTable, VISITS};
use crate::handle::{CoreHandle, Shared};
use crate::message::MessagePool;

/// A core without its application. Each part is borrowed alone, and changes only itself and the resources.
pub(crate) struct State<P: Port> {
    pub(super) resources: Resources<P>,
    /// Messages that wait in their Receives.
    pub(super) waiting_receives: WaitingReceives,
    /// Calls of peers.
    pub(super) incoming: Incoming,
    /// Calls of ours.
    pub(super) outgoing: Outgoing,
    /// When connections are ticked.
    pub(super) keep_alive: Sweep,
    /// When the debts of their peers are checked.
    pub(super) deadlines: Sweep,
    /// When watched paths are visited.
    pub(super) paths: Sweep,
    pub(super) publisher: Publisher,
    pub(super) commands_taken: u64,
    /// Polls before the clock is read again.
    pub(super) clock_due_polls: u32,
    /// The last iteration did something.
    pub(super) was_busy: bool,
    /// When an iteration looks for all kinds of work, even if nothing arrives; zero for the next one.
    pub(super) due: Ticks,
    pub(super) stop: bool,
}

impl<P: Port> Drop for State<P> {
    fn drop(&mut self) {
        // However the core ends, also by a panic of its application: the control plane learns it.
        self.resources.shared.end();
    }
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
        port.set_forms(crate::forms::ALL);
        let fabric = PublishedCounters::of(|each| port.each_counter(each));
        let (mailbox, notifications) = (config.mailbox_depth, config.notifications());
        let shared = Shared::new(mailbox, notifications, clock.clone(), fabric)?;
        let (queues, placement) = ReceiveQueues::new(&mut port, config)?;
        let receives = &shared.counters.receives_posted;
        receives.add(queues.made(config).into());
        let queue_pairs_max = port.attributes().queue_pairs_max;
        let pool = port.carve(config.send_pool())?;
        let bulk_pool = port.carve(config.bulk_pool())?;
        let bulk_buffers = bulk_pool.shape().buffers;
        let reply = ReplyItems::new(bulk_pool, config, port.attributes());
        let padding = port.carve(config.padding_pool())?;
        let places = (config.send_buffers_guaranteed(), queue_pairs_max);
        let (memory, inline_bytes_max) =
            (port.memory().clone(), port.attributes().inline_bytes_max);
        let Some(transmit) = Transmit::new(memory, pool, padding, inline_bytes_max, places) else {
            return Err(SetupError::Limit {
                what: "send buffers",
                asked: 1,
                limit: 0,
            });
        };
        let lending = match queues {
            ReceiveQueues::Shared(_) => Lending::new(config),
            ReceiveQueues::OfPlaces(_) => Lending::none(),
        };
        let now = clock.now();
        let connections = config.connections_max as usize;
        let state = Self {
            waiting_receives: WaitingReceives::new(config),
            incoming: Incoming::new(config, port.attributes(), bulk_buffers),
            outgoing: Outgoing::new(config, port.attributes(), clock),
            keep_alive: Sweep::new(config.keep_alive_interval, clock, now),
            deadlines: Sweep::new(config.stall_timeout / u32::from(VISITS), clock, now),
            paths: Sweep::new(config.path_interval(), clock, now),
            publisher: Publisher::new(clock, now),
            commands_taken: 0,
            // The first iteration has the time at which the core was made.
            clock_due_polls: 1,
            was_busy: false,
            due: 0,
            stop: false,
            resources: Resources {
                queues,
                lending,
                gathered: Gathered::new(config),
                placement,
                connections: ConnectionTable::new(
                    config.connections_max,
                    queue_pairs_max,
                    config.credits_per_connection,
                ),
                transmit,
                messages: MessagePool::new(
                    config.connections_max,
                    config.message_buffers,
                    config.message_bytes_max,
                )?,
                backlog: Backlog::new(config.message_buffers_total()),
                reply,
                pending: VecDeque::with_capacity(connections),
                closing: VecDeque::with_capacity(connections),
                properties_epoch: 0,
                has_bulk: config.bulk_serves() != 0,
                sends_with_invalidate: port.attributes().send_with_invalidate,
                replies_timed: 0,
                programs: Programs::default(),
                last_route: LastRoute::NONE,
                is_woken: false,
                wakes: 0,
                drain: Drain::No,
                watched: Vec::with_capacity(connections),
                now,
                shared: Arc::clone(&shared),
                config: config.clone(),
                port,
            },
        };
        Ok((state, CoreHandle { shared }))
    }
}
