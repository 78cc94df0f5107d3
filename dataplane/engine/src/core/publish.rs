//! What a core tells whoever watches it: levels now and then, messages by version, poll times.

use std::time::Duration;

use rpcrdma_fabric::clock::{Clock, Ticks};
use rpcrdma_fabric::interface::Port;

use super::State;
use super::sweep::Sweep;
use crate::connection::Connection;
use crate::counters::Counters;
use crate::levels::LevelSnapshot;

/// Between two publications; a sweep over many connections adds to it.
const INTERVAL: Duration = Duration::from_millis(100);

/// What is published next.
#[derive(Debug)]
pub(super) struct Publisher {
    sweep: Sweep,
    /// What the connections visited so far come to.
    next: LevelSnapshot,
    /// The last poll did something.
    was_busy: bool,
    /// Replies sent when that was looked at last.
    replies_sent: u64,
    /// Replies since then to calls that were found in a poll before.
    late_replies: u64,
    /// Of the port, when it was looked at last.
    receiver_not_ready: u64,
}

impl Publisher {
    pub(super) fn new(clock: &Clock, now: Ticks) -> Self {
        Self {
            sweep: Sweep::new(INTERVAL, clock, now),
            next: LevelSnapshot::default(),
            was_busy: false,
            replies_sent: 0,
            late_replies: 0,
            receiver_not_ready: 0,
        }
    }
}

/// Messages of a connection that its version's counters have.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MessagesCounted {
    received: u32,
    sent: u32,
}

impl<P: Port> State<P> {
    /// Takes note of how long the last poll took, when it did something.
    #[inline]
    pub(super) fn note_poll_time(&mut self, now: Ticks) {
        if self.publisher.was_busy {
            let replies_sent = self.shared.counters.replies_sent.get();
            let replies = replies_sent.wrapping_sub(self.publisher.replies_sent);
            let late_replies = std::mem::take(&mut self.publisher.late_replies);
            self.publisher.replies_sent = replies_sent;
            let ticks = now.saturating_sub(self.now);
            self.shared
                .poll_times
                .record(ticks, replies.saturating_sub(late_replies));
        }
    }

    /// Takes note of the reply to a call that was found at `found_at`, if that was in a poll before.
    #[inline]
    pub(in crate::core) fn note_late_reply(&mut self, found_at: Ticks) {
        if found_at != self.now {
            let ticks = self.now.saturating_sub(found_at);
            self.shared.poll_times.record_late(ticks);
            self.publisher.late_replies += 1;
        }
    }

    /// Counts the reply to the call in a slot.
    pub(in crate::core) fn count_served_reply(&mut self, index: u32) {
        self.shared.counters.replies_sent.increment();
        if let Some(slot) = self.bulk.serves.get(index as usize) {
            self.note_late_reply(slot.found_at);
        }
    }

    /// Remembers whether this poll did something.
    #[inline]
    pub(super) fn end_poll(&mut self, busy: bool) {
        self.publisher.was_busy = busy;
    }

    /// Publishes levels if it is time. Returns whether there is more to look at first.
    #[inline]
    pub(super) fn publish(&mut self) -> bool {
        self.publisher.sweep.is_due(self.now) && self.publish_some()
    }

    #[cold]
    fn publish_some(&mut self) -> bool {
        let places = self.config.connections_max;
        let (visits, more) = self.publisher.sweep.advance(self.now, places);
        let Self {
            connections,
            publisher,
            shared,
            ..
        } = self;
        for index in visits {
            if let Some(connection) = connections.at(index).filter(|it| it.is_live()) {
                count_messages(connection, &shared.counters);
                add_connection(&mut publisher.next, connection);
            }
        }
        if !more {
            self.publish_levels();
        }
        more
    }

    fn publish_levels(&mut self) {
        let mut levels = std::mem::take(&mut self.publisher.next);
        levels.calls_outstanding = self.requester.waiting().into();
        levels.calls_deferred = wide(self.deferrals.open());
        levels.calls_held = wide(self.held.len());
        levels.receives_posted = self.queues.posted_shared(&self.port).into();
        (levels.send_buffers_free, levels.send_buffers_total) = self.transmit.level();
        levels.message_buffers_free = wide(self.messages.available());
        levels.message_buffers_total = self.config.message_buffers.into();
        levels.bulk_buffers_free = wide(self.bulk.reply.pool.level());
        levels.bulk_buffers_total = wide(self.bulk.reply.pool.total());
        levels.placement_segments_free = wide(self.placement.spares());
        levels.placement_segments_leased = wide(self.placement.leased());
        levels.windows_open = self.bulk.windows_open.into();
        self.shared.levels.publish(&levels);
        let all = self.port.receiver_not_ready();
        let before = std::mem::replace(&mut self.publisher.receiver_not_ready, all);
        let counter = &self.shared.counters.receiver_not_ready;
        counter.add(all.saturating_sub(before));
    }
}

/// Adds what passed over a connection since the last time to the counters of its version. The
/// connection's own count is modulo 2^32, which no interval between two visits uses up.
pub(super) fn count_messages(connection: &mut Connection, counters: &Counters) {
    let (received, sent) = connection.protocol.messages_passed();
    let before = std::mem::replace(
        &mut connection.messages_counted,
        MessagesCounted { received, sent },
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
