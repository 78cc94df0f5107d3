//! Publishes what monitoring reads: levels about ten times a second, messages by version, poll times.
//!
//! The sweep over the connections that collects the levels also lends Receives and takes them back
//! ([`lending`](super::lending)), because it is the sweep that visits each connection most often.

use std::time::Duration;

use rpcrdma_fabric::clock::{Clock, Ticks};
use rpcrdma_fabric::interface::Port;

use super::incoming::Incoming;
use super::outgoing::Outgoing;
use super::resources::Resources;
use super::sweep::Sweep;
use crate::connection::Connection;
use crate::connection::MessagesCounted;
use crate::counters::Counters;
use crate::levels::LevelSnapshot;

/// The time between two publications; a sweep over many connections takes additional time.
const INTERVAL: Duration = Duration::from_millis(100);

/// What is published next.
#[derive(Debug)]
pub(super) struct Publisher {
    sweep: Sweep,
    /// The sums over the connections visited so far.
    next: LevelSnapshot,
    /// The counter of the port when it was last read.
    receiver_not_ready: u64,
}

impl Publisher {
    pub(super) fn new(clock: &Clock, now: Ticks) -> Self {
        Self {
            sweep: Sweep::new(INTERVAL, clock, now),
            next: LevelSnapshot::default(),
            receiver_not_ready: 0,
        }
    }

    /// When levels are published.
    pub(super) fn sweep(&self) -> &Sweep {
        &self.sweep
    }

    /// Publishes levels if it is time; `held` messages wait in their Receives. Returns whether the sweep continues
    /// immediately.
    #[inline]
    pub(super) fn publish<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        incoming: &Incoming,
        outgoing: &Outgoing,
        held: usize,
    ) -> bool {
        self.sweep.is_due(core.now) && self.publish_some(core, incoming, outgoing, held)
    }

    #[cold]
    fn publish_some<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        incoming: &Incoming,
        outgoing: &Outgoing,
        held: usize,
    ) -> bool {
        let (visits, more) = self.sweep.advance(core.now, core.config.connections_max);
        for index in visits {
            if let Some(connection) = core.connections.at(index).filter(|it| it.is_live()) {
                count_messages(connection, &core.shared.counters);
                add_connection(&mut self.next, connection);
                if core.lending.visit(connection, &core.shared.counters) {
                    core.note_if_pending(index);
                }
            }
        }
        if !more {
            core.lending.end_sweep();
            let levels = std::mem::take(&mut self.next);
            let levels = LevelSnapshot {
                calls_outstanding: outgoing.requester.waiting().into(),
                windows_open: outgoing.windows_open.into(),
                calls_deferred: wide(incoming.deferrals.open()),
                calls_held: wide(held),
                ..levels
            };
            self.publish_levels(core, levels);
        }
        more
    }

    fn publish_levels<P: Port>(&mut self, core: &Resources<P>, mut levels: LevelSnapshot) {
        levels.receives_posted = core.queues.posted_shared(&core.port).into();
        (levels.send_buffers_free, levels.send_buffers_total) = core.transmit.level();
        levels.message_buffers_free = wide(core.messages.available());
        levels.message_buffers_total = core.config.message_buffers_total().into();
        levels.bulk_buffers_free = wide(core.reply.pool.level());
        levels.bulk_buffers_total = wide(core.reply.pool.total());
        levels.placement_segments_free = wide(core.placement.spares());
        levels.placement_segments_leased = wide(core.placement.leased());
        core.shared.levels.publish(&levels);
        core.shared
            .fabric
            .publish(|each| core.port.each_counter(each));
        let all = core.port.receiver_not_ready();
        let before = std::mem::replace(&mut self.receiver_not_ready, all);
        let counter = &core.shared.counters.receiver_not_ready;
        counter.add(all.saturating_sub(before));
    }
}

/// Adds the messages of a connection since the last time to the counters of its version. The connection counts modulo
/// 2^32, and fewer messages pass between two visits.
pub(super) fn count_messages(connection: &mut Connection, counters: &Counters) {
    let (received, sent) = connection.protocol.messages_passed();
    let calls_beyond_grant = connection.protocol.calls_beyond_grant_total();
    let before = std::mem::replace(
        &mut connection.messages_counted,
        MessagesCounted {
            received,
            sent,
            calls_beyond_grant,
        },
    );
    let (counter_received, counter_sent) = if connection.protocol.is_version_1() {
        (
            &counters.messages_received_version_1,
            &counters.messages_sent_version_1,
        )
    } else {
        (
            &counters.messages_received_version_2,
            &counters.messages_sent_version_2,
        )
    };
    counter_received.add(received.wrapping_sub(before.received).into());
    counter_sent.add(sent.wrapping_sub(before.sent).into());
    let beyond = calls_beyond_grant.wrapping_sub(before.calls_beyond_grant);
    counters.calls_beyond_grant.add(beyond.into());
}

fn add_connection(levels: &mut LevelSnapshot, connection: &Connection) {
    let protocol = &connection.protocol;
    let granted = u64::from(protocol.credits_granted());
    if protocol.is_version_1() {
        levels.connections_version_1 += 1;
        levels.credits_granted_version_1 += granted;
    } else {
        levels.connections_version_2 += 1;
        levels.credits_granted_version_2 += granted;
    }
    let available = protocol.credits_available();
    levels.credits_available += u64::from(available);
    levels.connections_without_credit += u64::from(available == 0 && connection.has_backlog());
}

fn wide(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}
