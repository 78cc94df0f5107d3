//! The counters of a port.

/// Counters of a port. Each begins at zero and only grows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counters {
    /// Calls of `poll`.
    pub(super) polls: u64,
    /// Calls of `poll` that found nothing to do.
    pub(super) polls_empty: u64,
    /// Completions of the device.
    pub(super) completions: u64,
    /// Completions of works or Receives that had ended already.
    pub(super) completions_stale: u64,
    /// Work requests that the device accepted.
    pub(super) works_posted: u64,
    /// Chains of work requests handed to the device.
    pub(super) doorbells_send: u64,
    /// Chains of Receives handed to the device.
    pub(super) doorbells_receive: u64,
    /// Work requests that asked the device for a completion.
    pub(super) works_signalled: u64,
    /// Copied Sends whose bytes were in the work request.
    pub(super) sends_inline: u64,
    /// Copied Sends through registered memory.
    pub(super) sends_staged: u64,
    /// RDMA Reads that waited because the depth was used up.
    pub(super) reads_waited: u64,
    /// Posts that found no free work request, in the send queue or in the port.
    pub(super) queue_full: u64,
    /// Chains that the device refused, whole or in part.
    pub(super) posts_refused: u64,
    /// Work requests that failed, not counting flushed ones.
    pub(super) works_failed: u64,
    /// Work requests that failed because the peer had no Receive and the retries ran out.
    pub(super) receiver_not_ready: u64,
    /// Receives that completed after the `Disconnected` of their queue pair and were posted again.
    pub(super) receives_late: u64,
    /// Events of a receive queue that few Receives are left.
    pub(super) receive_limit_events: u64,
    /// Markers posted behind the work requests of queue pairs in error.
    pub(super) markers_posted: u64,
    /// Queue pairs that the device did not flush in time, and that were reset.
    pub(super) flush_timeouts: u64,
    /// Queue pairs that ended after the device reported that no Receive follows.
    pub(super) last_receive_events: u64,
    /// Queue pairs that ended without that report, after a timeout.
    pub(super) last_receive_timeouts: u64,
    /// Failures of the device, the completion queue or a receive queue.
    pub(super) device_fatal_events: u64,
    /// Events that report a broken queue pair.
    pub(super) queue_pair_fatal_events: u64,
    /// Events that the link went down.
    pub(super) port_down_events: u64,
    /// Events that the link came up.
    pub(super) port_up_events: u64,
}

impl Counters {
    /// The counters as (name, value), for reports.
    pub(super) fn list(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("polls", self.polls),
            ("polls_empty", self.polls_empty),
            ("completions", self.completions),
            ("completions_stale", self.completions_stale),
            ("works_posted", self.works_posted),
            ("works_signalled", self.works_signalled),
            ("doorbells_send", self.doorbells_send),
            ("doorbells_receive", self.doorbells_receive),
            ("sends_inline", self.sends_inline),
            ("sends_staged", self.sends_staged),
            ("reads_waited", self.reads_waited),
            ("queue_full", self.queue_full),
            ("posts_refused", self.posts_refused),
            ("works_failed", self.works_failed),
            ("receiver_not_ready", self.receiver_not_ready),
            ("receives_late", self.receives_late),
            ("receive_limit_events", self.receive_limit_events),
            ("markers_posted", self.markers_posted),
            ("flush_timeouts", self.flush_timeouts),
            ("last_receive_events", self.last_receive_events),
            ("last_receive_timeouts", self.last_receive_timeouts),
            ("device_fatal_events", self.device_fatal_events),
            ("queue_pair_fatal_events", self.queue_pair_fatal_events),
            ("port_down_events", self.port_down_events),
            ("port_up_events", self.port_up_events),
        ]
    }
}
