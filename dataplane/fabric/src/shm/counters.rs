//! The counters of a port.

use crate::interface::counters;

counters! {
    /// Counters of one port; plain words, since one thread owns them.
    pub(super) struct Counters {
        /// Calls of poll.
        polls,
        /// Polls that found nothing to do.
        polls_empty,
        /// Records written, without pads.
        records_out,
        /// Records processed, without pads.
        records_in,
        /// Bytes of messages copied through the ring, as receiver.
        bytes_copied,
        /// Bytes pulled from a peer's arena: large Sends, RDMA Writes executed here, RDMA Reads.
        bytes_pulled,
        /// Stalls of a channel because no Receive was posted.
        receiver_not_ready,
        /// Records for a queue pair that does not exist, no longer exists, or is in error.
        records_stale,
        /// Failures reported to a peer.
        naks_out,
        /// Failures that a peer reported.
        naks_in,
        /// Reports that had to wait for room in the ring.
        reports_delayed,
        /// Doorbells rung at peers.
        doorbells_out,
        /// Cold channels checked because the peer rang the doorbell, or because this port marked them.
        doorbells_in,
        /// Parked peers woken by a system call.
        wakes,
        /// Cold channels checked in turn, without a doorbell.
        sweeps,
        /// Channels that became hot: they are checked in every poll.
        promotions,
        /// Channels that became cold: they need a doorbell.
        demotions,
        /// Posts refused because the ring, the work requests or the queue pair's depth were used up.
        queue_full,
        /// RDMA Reads refused by the peer's key table.
        reads_refused,
        /// Channels abandoned because of a malformed record, or because the peer does not read reports.
        channels_broken,
    }
}
