//! What a port counts.

/// Counters of a port. Each begins at zero and only grows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counters {
    /// Calls of `poll`, and those that found nothing.
    pub(super) polls: u64,
    pub(super) polls_empty: u64,
    /// Completions that the device gave.
    pub(super) completions: u64,
    /// Completions of works or Receives that were already forgotten.
    pub(super) completions_stale: u64,
    /// Work requests, and the doorbells that took them to the device.
    pub(super) works_posted: u64,
    pub(super) doorbells_send: u64,
    pub(super) doorbells_receive: u64,
    /// Work requests that asked the device for a completion.
    pub(super) works_signalled: u64,
    /// Sends by copy: in the work request, or through registered memory.
    pub(super) sends_inline: u64,
    pub(super) sends_staged: u64,
    /// RDMA Reads that waited because the depth was used up.
    pub(super) reads_waited: u64,
    /// Posts that found the send queue, or the port's works, full.
    pub(super) queue_full: u64,
    /// Times that the device refused a doorbell.
    pub(super) posts_refused: u64,
    /// Work requests that failed; those that were flushed are not among them.
    pub(super) works_failed: u64,
    /// Receiver-not-ready retries that ran out: a peer had no Receive for too long.
    pub(super) receiver_not_ready: u64,
    /// Receives of queue pairs that had ended already, posted again in silence.
    pub(super) receives_late: u64,
    /// Times that few Receives were left.
    pub(super) receive_limit_events: u64,
    /// Queue pairs that the device did not flush in time, and that were reset.
    pub(super) markers_posted: u64,
    pub(super) flush_timeouts: u64,
    /// Queue pairs of which the device told that no Receive follows, and those of which not.
    pub(super) last_receive_events: u64,
    pub(super) last_receive_timeouts: u64,
    /// What the device told about itself.
    pub(super) device_fatal_events: u64,
    pub(super) queue_pair_fatal_events: u64,
    pub(super) port_down_events: u64,
    pub(super) port_up_events: u64,
}

impl Counters {
    /// By name, for reports.
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
