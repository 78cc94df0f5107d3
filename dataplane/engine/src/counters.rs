//! The counters of a core: written by the core alone, read by any thread.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only its core changes.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `count`. Only the owning core may do so: a load and a store, never a locked operation.
    #[inline]
    pub(crate) fn add(&self, count: u64) {
        let value = self.0.load(Ordering::Relaxed);
        self.0.store(value.wrapping_add(count), Ordering::Relaxed);
    }

    /// Adds one, as [`Counter::add`] does.
    #[inline]
    pub(crate) fn increment(&self) {
        self.add(1);
    }

    /// The value, as of some moment not long ago.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)*) => {
        /// The counters of a core. They fill their own pages: a reader takes no other
        /// cache line from the core.
        #[derive(Debug, Default)]
        #[repr(align(4096))]
        pub struct Counters {
            $($(#[doc = $doc])+ pub $name: Counter,)*
        }

        /// The values of the counters of a core when they were read.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct CounterSnapshot {
            $($(#[doc = $doc])+ pub $name: u64,)*
        }

        impl Counters {
            /// Reads all counters. Each value is exact, but they are not read at one moment.
            #[must_use]
            pub fn snapshot(&self) -> CounterSnapshot {
                CounterSnapshot { $($name: self.$name.get(),)* }
            }
        }

        impl CounterSnapshot {
            /// What each counter counts, in the order in which they are declared.
            pub const MEANINGS: &[&str] = &[$(concat!($($doc),+)),*];

            /// Names and values, in the order in which they are declared.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }

            /// The difference since `earlier`, counter by counter.
            #[must_use]
            pub fn since(&self, earlier: &Self) -> Self {
                Self { $($name: self.$name.wrapping_sub(earlier.$name),)* }
            }

            /// The sum with `other`, counter by counter.
            #[must_use]
            pub fn plus(&self, other: &Self) -> Self {
                Self { $($name: self.$name.wrapping_add(other.$name),)* }
            }
        }
    };
}

counters! {
    /// Poll iterations.
    polls,
    /// Poll iterations that found nothing to do.
    empty_polls,
    /// Times that the core slept.
    parks,
    /// Completions reaped.
    completions,
    /// Completions of queue pairs that were destroyed already.
    completions_late,
    /// Receives posted, those at start-up included.
    receives_posted,
    /// Receives lent to connections, beyond those that each connection is guaranteed.
    receives_lent,
    /// Lent Receives taken back from open connections. Those of closed connections do not count.
    receives_taken_back,
    /// Times that a sweep found a busy connection and had no Receives to lend to it.
    awaiting_receives,
    /// Messages that were longer than the first segment of their Receives, and read as a copy.
    messages_gathered,
    /// Placement segments that came back from applications.
    segments_returned,
    /// Sends that were copied when they were posted.
    sends_copied,
    /// Sends from registered buffers.
    sends_registered,
    /// Connections adopted.
    connections_planted,
    /// Connections that reached Ready.
    connections_ready,
    /// Those of them that speak version 1.
    connections_version_1,
    /// Connections closed.
    connections_closed,
    /// Bytes of messages received: headers and what travels inline or is placed by Sends.
    message_bytes_received,
    /// Bytes of messages sent, in the same way.
    message_bytes_sent,
    /// Bytes of messages received on connections of version 1.
    message_bytes_received_version_1,
    /// Bytes of messages sent on connections of version 1.
    message_bytes_sent_version_1,
    /// Bytes of messages received on connections of version 2, and on those whose version is not known yet.
    message_bytes_received_version_2,
    /// Bytes of messages sent on connections of version 2, in the same way.
    message_bytes_sent_version_2,
    /// Messages received on connections of version 1, credit grants apart; counted now and then.
    messages_received_version_1,
    /// Messages sent on connections of version 1, in the same way.
    messages_sent_version_1,
    /// Messages received on connections of version 2, in the same way.
    messages_received_version_2,
    /// Messages sent on connections of version 2, in the same way.
    messages_sent_version_2,
    /// Times that a message found no Receive, as far as the device reports that; counted now and then.
    receiver_not_ready,
    /// Calls of peers that were handed to the application.
    calls_received,
    /// The calls among them that came on connections of version 1.
    calls_received_version_1,
    /// The calls among them that came on connections of version 2.
    calls_received_version_2,
    /// Calls that peers of version 1 sent beyond what they were granted, and that were taken; counted
    /// now and then. A Linux client does so when tasks of it are killed.
    calls_beyond_grant,
    /// RPC messages refused because their peer had not authenticated itself; each ends its connection.
    messages_unauthenticated,
    /// Replies sent to peers, RPC errors included.
    replies_sent,
    /// Calls of peers that the application deferred.
    deferred,
    /// Deferred replies whose connection had ended.
    deferred_dropped,
    /// Calls of peers that the application discarded: they get no answer.
    calls_discarded,
    /// Calls of peers answered with an RPC error by the engine or the application.
    rpc_errors_sent,
    /// Replies of the application that were too long, or found no message buffer.
    replies_too_long,
    /// Calls sent.
    calls_sent,
    /// Calls of ours that were refused for want of a credit.
    calls_refused_no_credit,
    /// Calls of ours that were refused for want of a slot or buffer.
    calls_refused_no_slot,
    /// Replies to calls of ours.
    replies_received,
    /// Messages of header types of the application that were handed to it.
    application_messages_received,
    /// Messages of header types of the application sent.
    application_messages_sent,
    /// Replies that belong to no call: their XID is unknown, or of another connection.
    unmatched_replies,
    /// Replies to calls that had timed out.
    late_replies,
    /// Calls of ours that timed out.
    timeouts,
    /// Calls of ours that ended because their connection did.
    calls_disconnected,
    /// Parts of continued messages sent.
    fragments_sent,
    /// Parts of continued messages received.
    fragments_received,
    /// Bytes of messages that were copied because they left or came in parts, each way once.
    fragment_bytes_copied,
    /// Transmissions of transmission groups sent: Sends that place bulk data.
    transmissions_sent,
    /// Transmissions of transmission groups received.
    transmissions_received,
    /// Report Errors sent: something was wrong with a transmission group of a peer.
    group_errors_sent,
    /// Report Errors received.
    group_errors_received,
    /// Placement segments handed to applications.
    segments_leased,
    /// Bytes of bulk data that Sends of peers have placed here.
    bulk_bytes_placed,
    /// Continued messages refused because they were too long or no message buffer was free.
    reassemblies_refused,
    /// Messages sent that granted credits, if any, and nothing else: keep-alives are among them.
    grants_sent,
    /// Such messages that were sent as keep-alives.
    keep_alives_sent,
    /// RDMA Writes of no bytes, sent to peers that have not answered the first message, to silent peers of version 1, and by
    /// silent paths; `shm` sends none.
    probes_sent,
    /// Messages received that granted credits, if any, and nothing else.
    grants_received,
    /// Messages discarded in silence, being shorter than their type allows.
    messages_discarded_short,
    /// Other messages discarded in silence.
    messages_discarded,
    /// Transport errors sent: ERR_VERS.
    errors_sent_vers,
    /// Transport errors sent: BAD_XDR.
    errors_sent_bad_xdr,
    /// Transport errors sent: INVAL_HTYPE.
    errors_sent_inval_htype,
    /// Transport errors sent: INVAL_FLAG.
    errors_sent_inval_flag,
    /// Transport errors sent: READ_CHUNKS.
    errors_sent_read_chunks,
    /// Transport errors sent: WRITE_CHUNKS.
    errors_sent_write_chunks,
    /// Transport errors sent: SEGMENTS.
    errors_sent_segments,
    /// Transport errors sent: WRITE_RESOURCE.
    errors_sent_write_resource,
    /// Transport errors sent: REPLY_RESOURCE.
    errors_sent_reply_resource,
    /// Transport errors sent: SYSTEM.
    errors_sent_system,
    /// Transport errors received.
    errors_received,
    /// Connections closed because the peer was silent.
    peers_silent,
    /// Connections closed because their path was silent, also to a probe.
    paths_dead,
    /// Connections closed because the peer left a message, or replies to its calls, unfinished.
    peers_stalled,
    /// Connections closed because the peer broke the protocol.
    protocol_violations,
    /// Times that a message had to wait for a credit.
    awaiting_credit,
    /// Times that a message had to wait for a place in a send queue.
    awaiting_send_slot,
    /// Times that a message had to wait for a send buffer.
    awaiting_send_buffer,
    /// Times that a call of a peer had to wait, in its Receive, until its reply could be queued, or a
    /// part of a message until there was a buffer to assemble the message in.
    awaiting_message_buffer,
    /// Times that a call of a peer with bulk data had to wait, in its Receive, for a slot.
    awaiting_call_slot,
    /// Times that a message had to wait, in its Receive, for a free placement segment to replace
    /// one that is leased to the application.
    awaiting_placement_segment,
    /// Times that a call had to wait for bulk buffers.
    awaiting_bulk_buffer,
    /// Times that a call had to wait for others' RDMA Reads.
    awaiting_read_depth,
    /// Times that a call had to wait for a memory window.
    awaiting_window,
    /// RDMA Reads posted.
    rdma_reads,
    /// Times that a call began to wait for its RDMA Reads: each is one round trip, however
    /// many of them are in flight together.
    rdma_read_rounds,
    /// RDMA Writes posted.
    rdma_writes,
    /// Memory windows bound.
    windows_bound,
    /// Memory windows invalidated from this side.
    windows_invalidated_locally,
    /// Memory windows that the peer invalidated with its reply.
    windows_invalidated_remotely,
    /// Bytes of bulk data that RDMA Reads brought.
    bulk_bytes_in,
    /// Bytes of bulk data that RDMA Writes took away.
    bulk_bytes_out,
    /// Bytes of bulk data that peers wrote here.
    bulk_bytes_received,
    /// Bytes of bulk data that were copied from one buffer to another.
    bulk_bytes_copied,
    /// Calls with bulk data that were made again in another form.
    bulk_calls_retried,
    /// Replies with bulk data in which their requester reported an error, and that were sent again as plain
    /// version 2.
    bulk_replies_resent,
    /// Times that properties had to wait for the control plane.
    awaiting_control,
    /// Commands taken from the mailbox.
    commands,
    /// Commands for connections that had ended already.
    commands_late,
}

impl fmt::Display for CounterSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.iter()
            .filter(|(_, value)| *value != 0)
            .try_for_each(|(name, value)| writeln!(f, "{name} {value}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_tells_names_and_values() {
        let counters = Counters::default();
        counters.timeouts.add(3);
        counters.polls.increment();
        let before = counters.snapshot();
        counters.timeouts.increment();
        let after = counters.snapshot();
        assert!(after.iter().any(|entry| entry == ("timeouts", 4)));
        assert_eq!(
            after
                .since(&before)
                .iter()
                .map(|(_, value)| value)
                .sum::<u64>(),
            1
        );
        assert_eq!(after.plus(&before).timeouts, 7);
        assert_eq!(before.to_string(), "polls 1\ntimeouts 3\n");
    }
}
