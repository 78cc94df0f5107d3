//! What a core tells whoever watches it: levels now and then, messages by version, poll times.

use rpcrdma_fabric::clock::Ticks;
use rpcrdma_fabric::interface::Port;

use super::state::State;
use crate::connection::Connection;
use crate::connection::MessagesCounted;
use crate::counters::Counters;
use crate::levels::LevelSnapshot;

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

    /// Counts the reply to a call that was found at `found_at`.
    pub(in crate::core) fn count_served_reply(&mut self, found_at: Ticks) {
        self.shared.counters.replies_sent.increment();
        self.note_late_reply(found_at);
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
        levels.message_buffers_total = self.config.message_buffers_total().into();
        levels.bulk_buffers_free = wide(self.reply.pool.level());
        levels.bulk_buffers_total = wide(self.reply.pool.total());
        levels.placement_segments_free = wide(self.placement.spares());
        levels.placement_segments_leased = wide(self.placement.leased());
        levels.windows_open = self.outgoing.windows_open.into();
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
