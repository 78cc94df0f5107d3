//! How the credits of a connection are divided among calls of ours, replies to the peer, and transmission groups.

use rpcrdma_protocol::v2::ReverseRequestSupport;

use super::Connection;

impl Connection {
    /// Whether something other than a grant has to be sent before a new message. Nearly always there is nothing, so one test
    /// is made for all.
    #[inline]
    pub(crate) fn has_backlog(&self) -> bool {
        let waiting = self.refusals.len() | self.unposted.list.len() | self.outbound.len();
        (waiting | usize::from(self.properties_due)) != 0
    }

    /// Whether something has to be sent before a new reply. Calls of which nothing was sent do not count: they may
    /// wait for the credits that are reserved for this very reply.
    #[inline]
    pub(crate) fn has_backlog_of_replies(&self) -> bool {
        self.properties_due
            || !self.refusals.is_empty()
            || self.unposted.is_some()
            || self.outbound.replies() != 0
            || self.protocol.version_2().sequence_open()
    }

    /// Whether the reply to one more call may be queued. The limit is two: one reply is being sent, one is next. A peer
    /// that does not receive its replies delays its own calls then, and cannot use up the buffers of others. Waiting
    /// calls of ours do not count: they may wait for the credits that come with the reply to that call.
    #[inline]
    pub(crate) fn may_queue(&self) -> bool {
        const REPLIES_MAX: u32 = 2;
        self.outbound.replies() < REPLIES_MAX
    }

    /// Whether the state of the connection permits a reply of one message now.
    #[inline]
    pub(crate) fn can_reply(&self) -> bool {
        !self.has_backlog_of_replies() && self.protocol.credits_for_replies() != 0
    }

    /// Credits that calls may use. An end that answers calls reserves the last credit for replies. Without that, two
    /// ends that call each other with all their credits, and have no room to queue replies, would wait for each other
    /// until their calls time out. A window of two is too small for this: with one credit reserved, the peer never sees
    /// its latest asynchronous grant used, and may not send another. Credits that group calls of the peer reserved for
    /// their replies are left out as well. In version 1 replies need no credit.
    #[inline]
    pub(crate) fn credits_for_calls(&self) -> u32 {
        let available = self.protocol.credits_available();
        available.saturating_sub(self.credits_kept())
    }

    /// Credits that calls may not use.
    #[inline]
    pub(crate) fn credits_kept(&self) -> u32 {
        u32::from(self.serves && self.peer_window > 2).max(self.replies_reserved)
    }

    /// Whether the state of the connection permits a call of one message now.
    #[inline]
    pub(crate) fn can_call(&self) -> bool {
        self.has_none_before_calls() && self.credits_for_calls() != 0
    }

    /// Whether nothing has to be sent before a new call.
    #[inline]
    pub(crate) fn has_none_before_calls(&self) -> bool {
        !self.has_backlog() && self.group_first.is_none()
    }

    /// The most transmissions of one group: half of the window, because the peer of an end that has used half of its
    /// window sends it a grant even if nothing else is to be sent. A longer group could wait for ever.
    pub(crate) fn group_transmissions_max(&self) -> u32 {
        u32::from(self.peer_window / 2).max(1)
    }

    /// Credits granted to the peer that are not needed for the replies to calls of ours. If the peer calls as well, one
    /// is left for its calls: it may have to call before it can answer.
    #[inline(always)]
    pub(crate) fn reply_credits(&self) -> u32 {
        let window = self.protocol.credits().limit;
        let takes_calls = self.protocol.peer_calls() != ReverseRequestSupport::None;
        let reserved = self
            .calls
            .replies_due()
            .saturating_add(self.reply_transmissions_extra)
            .saturating_add(u32::from(takes_calls && window > 2));
        // Half of the window, as in `group_transmissions_max`.
        (window / 2).max(1).min(window.saturating_sub(reserved))
    }
}
