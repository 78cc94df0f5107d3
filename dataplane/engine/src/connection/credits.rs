//! Credits of a connection, and who may use them: calls of ours, replies to the peer, transmission groups.

use rpcrdma_protocol::v2::ReverseRequestSupport;

use super::Connection;

impl Connection {
    /// Whether something waits to be sent before a new message may be, grants apart.
    #[inline]
    pub(crate) fn has_backlog(&self) -> bool {
        self.properties_due
            || !self.refusals.is_empty()
            || self.unposted.is_some()
            || !self.outbound.is_empty()
    }

    /// Whether something waits to be sent before a new reply may be. Calls that have not begun do not count: they may
    /// wait for the credits that are kept for just this reply.
    #[inline]
    pub(crate) fn has_backlog_of_replies(&self) -> bool {
        self.properties_due
            || !self.refusals.is_empty()
            || self.unposted.is_some()
            || self.outbound.replies() != 0
            || self.protocol.sequence_open()
    }

    /// Whether the reply to one more call may be kept. A peer that does not take its replies holds
    /// up its own calls, and takes no more buffers from others: one reply is on its way, one is
    /// next. Calls of ours that wait do not count: they may wait for the credits that come with the
    /// reply to just that call.
    #[inline]
    pub(crate) fn may_queue(&self) -> bool {
        const REPLIES_MAX: u32 = 2;
        self.outbound.replies() < REPLIES_MAX
    }

    /// Whether a reply of one message could be encoded now, as far as the connection goes.
    #[inline]
    pub(crate) fn can_reply(&self) -> bool {
        !self.has_backlog_of_replies() && self.protocol.credits_for_replies() != 0
    }

    /// Credits that calls may use. An end that answers calls keeps the last credit for replies:
    /// else two ends that call each other with all their credits, and have no room to keep replies,
    /// wait for each other until their calls time out. A window of two is too small for that: with
    /// one of them kept, the peer never sees its latest asynchronous grant used, and may not send
    /// another. What calls of the peer have reserved for their replies is kept as well. In version 1
    /// replies need no credit.
    #[inline]
    pub(crate) fn credits_for_calls(&self) -> u32 {
        let kept = u32::from(self.serves && self.peer_window > 2).max(self.replies_reserved);
        self.protocol.credits_available().saturating_sub(kept)
    }

    /// Whether a call of one message could be encoded now, as far as the connection goes.
    #[inline]
    pub(crate) fn can_call(&self) -> bool {
        !self.has_backlog() && self.credits_for_calls() != 0 && self.group_first.is_none()
    }

    /// Transmissions of one group at most: an end whose window is half used is granted more, even
    /// if nothing else is to be sent.
    pub(crate) fn group_transmissions_max(&self) -> u32 {
        u32::from(self.peer_window / 2).max(1)
    }

    /// Credits granted to the peer that no call of ours counts on for its reply. Where the peer calls
    /// as well, one is left for that: it may have to, before it can answer.
    pub(crate) fn reply_credits(&self) -> u32 {
        let window = self.protocol.credits().limit;
        let takes_calls = self.protocol.peer_calls() != ReverseRequestSupport::None;
        let reserved = self
            .calls
            .replies_due()
            .saturating_add(self.reply_transmissions_extra)
            .saturating_add(u32::from(takes_calls && window > 2));
        // As above.
        (window / 2).max(1).min(window.saturating_sub(reserved))
    }
}
