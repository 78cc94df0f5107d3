//! The counters of a port.

use crate::interface::counters;

counters! {
    /// Counters of a port. Each begins at zero and only grows.
    pub(super) struct Counters {
        /// Calls of `poll`.
        polls,
        /// Calls of `poll` that found nothing to do.
        polls_empty,
        /// Completions of the device.
        completions,
        /// Completions of works or Receives that had ended already.
        completions_stale,
        /// Work requests that the device accepted.
        works_posted,
        /// Chains of work requests handed to the device.
        doorbells_send,
        /// Chains of Receives handed to the device.
        doorbells_receive,
        /// Work requests that asked the device for a completion.
        works_signalled,
        /// Copied Sends whose bytes were in the work request.
        sends_inline,
        /// Copied Sends through registered memory.
        sends_staged,
        /// RDMA Reads that waited because the depth was used up.
        reads_waited,
        /// Posts that found no free work request, in the send queue or in the port.
        queue_full,
        /// Chains that the device refused, whole or in part.
        posts_refused,
        /// Work requests that failed, not counting flushed ones.
        works_failed,
        /// Work requests that failed because the peer had no Receive and the retries ran out.
        receiver_not_ready,
        /// Receives that completed after the `Disconnected` of their queue pair and were posted again.
        receives_late,
        /// Events of a receive queue that few Receives are left.
        receive_limit_events,
        /// Markers posted behind the work requests of queue pairs in error.
        markers_posted,
        /// Queue pairs that the device did not flush in time, and that were reset.
        flush_timeouts,
        /// Queue pairs that ended after the device reported that no Receive follows.
        last_receive_events,
        /// Queue pairs that ended without that report, after a timeout.
        last_receive_timeouts,
        /// Failures of the device, the completion queue or a receive queue.
        device_fatal_events,
        /// Events that report a broken queue pair.
        queue_pair_fatal_events,
        /// Events that the link went down.
        port_down_events,
        /// Events that the link came up.
        port_up_events,
    }
}
