//! The credits of both directions.
//!
//! # Our Receives and the grants to the peer
//!
//! A credit is the promise of a posted Receive (-00 section 4.3.1.1). Every received message uses a Receive. Every
//! message except an asynchronous grant (RDMA2_NOMSG without chunks) also uses a credit. So two counts are enough:
//!
//! * `posted`: Receives posted for this connection that no *handled* message has used;
//! * `unconsumed` = `granted` - `consumed`: credits that the peer has, or has used in messages not yet handled.
//!
//! What may be granted follows from them: `owed = posted - unconsumed - 1`, and no more than the limit below allows.
//! The 1 is the spare Receive, for the one asynchronous grant that may come at any time. The cases are:
//!
//! | event | posted | unconsumed | owed |
//! |---|---|---|---|
//! | start, reserve R: the peer has one implicit credit | R | 1 | R - 2: the first grant |
//! | a message that uses a credit, valid or not, including RDMA2_ERROR and short ones | -1 | -1 | 0 |
//! | its Receive is posted again | +1 | 0 | +1 |
//! | an asynchronous grant | -1 | 0 | 0, and the spare is in use |
//! | its Receive is posted again | +1 | 0 | 0: it is never granted |
//! | before the version is known, a message of an unsupported one | -1 | 0 | as above: the peer starts again |
//! | we grant n in any message except RDMA2_ERROR | 0 | +n | -n |
//!
//! # The credit limit
//!
//! The window is the most credits that the peer will ever have. The limit, at most the window, is how many it may have
//! *now*; every message announces it. Receives beyond the limit and the spare need not be reserved for this connection,
//! so that connections can share them. The limit can be raised and lowered at any time; the caller adds and removes
//! Receives accordingly:
//!
//! | event | posted | unconsumed | owed |
//! |---|---|---|---|
//! | the limit is raised by n | +n | 0 | +n |
//! | the limit is lowered | - those that are not promised | 0 | 0 |
//!
//! A grant cannot be revoked. If the peer has more credits than the lowered limit, it keeps them, and their Receives
//! stay reserved; nothing is owed until it has used them, and messages announce the number that it has. A Receive that
//! comes back then is beyond the limit, and is removed when the limit is lowered again, even to the same value.
//!
//! `reserve` counts the Receives of the connection: those that are posted, and those that messages have used and that
//! will be posted again. `reserve >= limit + 1` always.
//!
//! **Invariant**: `posted >= unconsumed + 1`, except between the handling of an asynchronous grant and the posting of
//! its Receive, when `posted >= unconsumed`. In that time we send nothing that uses a credit (`available` is 0), for
//! the following reason.
//!
//! # The peer's one spare Receive
//!
//! Nothing acknowledges an asynchronous grant. A second one that arrives before the spare is posted again would use a
//! Receive that is promised to a payload (receiver not ready). So at most one of ours is in flight. It has arrived, and
//! its Receive is posted again, when
//!
//! * the peer uses a credit that we granted with it or after it: the peer sent that message after it had handled the
//!   grant, with the spare posted; or
//! * the peer has granted more than it announces beyond what we had sent by then: it has handled a message that we sent
//!   after the grant, and it does not grant before its spare is posted.
//!
//! While an asynchronous grant of credits is in flight, the peer has credits. They may be fewer than it waits for, if
//! the grant was sent before all its messages were handled; then its next message or grant allows another one. The
//! exception is a keep-alive, which grants nothing: one grant may follow it if we hold back a credit for it, so that
//! not more messages are in flight than the peer has Receives. Our last credit is held back only if the peer waits in
//! the middle of a continued message: it continues immediately, and with that returns the credit. Keep-alives are
//! spaced by ticks, which are longer than the posting of a Receive takes.
//!
//! # Counters
//!
//! Cumulative, modulo 2^32. Differences are small: at most a window of 65535.

use super::event::CloseReason;
use crate::v2::header::CreditWord;

/// Credits and Receives of one connection. See the module for the rules.
#[derive(Clone, Copy, Debug)]
pub(super) struct Credits {
    posted: u32,
    granted: u32,
    consumed: u32,
    peer_granted: u32,
    sent: u32,
    /// How many of the messages that we sent the peer has handled, at least.
    peer_handled: u32,
    /// `granted` before the latest asynchronous grant, and `sent` at that time.
    async_mark: u32,
    async_sent: u32,
    /// The most credits that the peer will ever have.
    window: u16,
    /// The most credits that the peer may have now; at most the window.
    limit: u16,
    /// If the peer has no more credits than this, it is granted more even if there is no other message to send.
    grant_at: u16,
    /// Receives of this connection, posted or in use.
    reserve: u16,
    /// Asynchronous grants that may not have arrived: 0, 1, or 2 with a credit held back.
    async_in_flight: u8,
}

impl Credits {
    pub(super) const fn new(receive_reserve: u16) -> Self {
        Self {
            posted: receive_reserve as u32,
            granted: 1,
            consumed: 0,
            peer_granted: 1,
            sent: 0,
            peer_handled: 0,
            async_mark: 0,
            async_sent: 0,
            window: receive_reserve - 1,
            limit: receive_reserve - 1,
            grant_at: (receive_reserve - 1) / 2,
            reserve: receive_reserve,
            async_in_flight: 0,
        }
    }

    // ---- Credits that the peer has ----

    #[inline]
    pub(super) const fn unconsumed(&self) -> u32 {
        self.granted.wrapping_sub(self.consumed)
    }

    /// Receives that may be granted with the next message.
    #[inline]
    pub(super) fn owed(&self) -> u16 {
        let kept = self.posted.saturating_sub(1).min(self.limit.into());
        let owed = kept.saturating_sub(self.unconsumed());
        u16::try_from(owed).unwrap_or(self.limit)
    }

    /// The credit word of the next message: its grant, and the limit, or the credits that the peer has if these are
    /// more.
    #[inline]
    pub(super) fn word(&self) -> CreditWord {
        let unconsumed = u16::try_from(self.unconsumed()).unwrap_or(u16::MAX);
        CreditWord {
            granted: self.owed(),
            maximum: self.limit.max(unconsumed),
        }
    }

    /// Whether the peer has used up half of the limit or more, and more can be granted.
    #[inline]
    pub(super) fn is_half_used(&self) -> bool {
        self.unconsumed() <= u32::from(self.grant_at) && self.owed() > 0
    }

    fn set_limit(&mut self, limit: u16) {
        self.limit = limit;
        // With two lent credits a caller of one call at a time needs no grants: each reply returns the credit of its
        // call. Grants at half of the limit would only add messages.
        self.grant_at = if limit <= 2 && limit < self.window {
            0
        } else {
            limit / 2
        };
    }

    /// Raises the limit, to the window at most. Returns how many Receives this connection gains: they are posted.
    pub(super) fn raise_limit(&mut self, limit: u16) -> u16 {
        self.set_limit(limit.min(self.window).max(self.limit));
        // Receives of an earlier, higher limit may be left.
        let added = (self.limit + 1).saturating_sub(self.reserve);
        self.reserve += added;
        self.receives_posted(added);
        added
    }

    /// Lowers the limit, to 1 at least. Returns how many Receives this connection loses: posted ones that are neither
    /// promised to the peer nor within the limit.
    pub(super) fn lower_limit(&mut self, limit: u16) -> u16 {
        self.set_limit(limit.max(1).min(self.limit));
        let beyond = self.reserve - (self.limit + 1);
        let kept = self.unconsumed().max(self.limit.into()).saturating_add(1);
        let not_promised = self.posted.saturating_sub(kept);
        let taken = u16::try_from(not_promised).unwrap_or(beyond).min(beyond);
        self.reserve -= taken;
        self.posted -= u32::from(taken);
        taken
    }

    pub(super) fn receives_posted(&mut self, count: u16) {
        self.posted = self.posted.saturating_add(u32::from(count));
    }

    /// Notes that a message used one of our Receives.
    pub(super) fn take_receive(&mut self) -> Result<(), CloseReason> {
        self.posted = self.posted.checked_sub(1).ok_or(CloseReason::OverSend)?;
        Ok(())
    }

    /// Notes that the message used one of our credits.
    pub(super) fn consume(&mut self) -> Result<(), CloseReason> {
        if self.unconsumed() == 0 {
            return Err(CloseReason::OverSend);
        }
        self.consumed = self.consumed.wrapping_add(1);
        self.confirm_async_by_use();
        Ok(())
    }

    /// Applies the credit word of a version 2 message that is no error. An increment is never clamped.
    pub(super) fn apply(&mut self, credit: CreditWord) -> Result<(), CloseReason> {
        let peer_granted = self.peer_granted.wrapping_add(u32::from(credit.granted));
        if peer_granted.wrapping_sub(self.sent) > u32::from(credit.maximum) {
            return Err(CloseReason::OverGrant);
        }
        self.peer_granted = peer_granted;
        self.peer_handled = peer_granted.wrapping_sub(credit.maximum.into());
        self.confirm_async_by_grant();
        Ok(())
    }

    /// The three steps above for the hot path. `false`, without any change, if one of them would fail.
    #[inline]
    pub(super) fn receive(&mut self, credit: CreditWord) -> bool {
        let is_received = self.receive_reposted(credit);
        self.posted -= u32::from(is_received);
        is_received
    }

    /// As [`Credits::receive`], for a message whose Receive is posted again immediately.
    #[inline(always)]
    pub(super) fn receive_reposted(&mut self, credit: CreditWord) -> bool {
        let peer_granted = self.peer_granted.wrapping_add(u32::from(credit.granted));
        let over_grant = peer_granted.wrapping_sub(self.sent) > u32::from(credit.maximum);
        if over_grant | (self.unconsumed() == 0) | (self.posted == 0) {
            return false;
        }
        self.consumed = self.consumed.wrapping_add(1);
        self.peer_granted = peer_granted;
        self.peer_handled = peer_granted.wrapping_sub(credit.maximum.into());
        if self.async_in_flight != 0 {
            self.confirm_async_by_use();
            self.confirm_async_by_grant();
        }
        true
    }

    /// Checks whether the peer just used a credit that it got with, or after, our latest asynchronous grant: that has
    /// arrived then.
    fn confirm_async_by_use(&mut self) {
        let granted_since = self.granted.wrapping_sub(self.async_mark);
        if self.unconsumed() < granted_since {
            self.async_in_flight = 0;
        }
    }

    /// Checks whether the peer has handled a message that we sent after our latest asynchronous grant: it never grants
    /// more than it announces beyond what it has handled.
    fn confirm_async_by_grant(&mut self) {
        // Differences are less than 2^31: one with the highest bit set is negative.
        let since = self.peer_handled.wrapping_sub(self.async_sent);
        let since = since.cast_signed();
        if since > 0 {
            self.async_in_flight = 0;
        }
    }

    // ---- Credits that we have ----

    /// Messages that use a credit and may be sent now.
    #[inline]
    pub(super) fn available(&self) -> u32 {
        if self.posted <= self.unconsumed() {
            return 0;
        }
        let held_back = u32::from(self.async_in_flight.saturating_sub(1));
        self.peer_granted
            .wrapping_sub(self.sent)
            .saturating_sub(held_back)
    }

    /// Notes that a message with [`word`](Self::word) was sent; it used a credit.
    #[inline]
    pub(super) fn commit(&mut self, word: CreditWord) {
        self.granted = self.granted.wrapping_add(u32::from(word.granted));
        self.sent = self.sent.wrapping_add(1);
    }

    /// Notes that RDMA2_ERROR was sent: it uses a credit and grants nothing.
    pub(super) fn commit_error(&mut self) {
        self.sent = self.sent.wrapping_add(1);
    }

    /// Whether an asynchronous grant may be sent: the peer certainly has a Receive for it. `reserved` credits must not
    /// be used. `peer_continues`: the peer is in the middle of a continued message, and uses what it is granted
    /// immediately.
    #[inline]
    pub(super) fn async_may_be_sent(&self, reserved: u32, peer_continues: bool) -> bool {
        match self.async_in_flight {
            0 => true,
            // Only a keep-alive is in flight, and a credit can be held back.
            1 => {
                // One credit is left for other messages, unless the peer cannot continue without a grant.
                let left = u32::from(!peer_continues || self.unconsumed() != 0);
                self.granted == self.async_mark
                    && self.owed() > 0
                    && self.available() > reserved.saturating_add(left)
            }
            _ => false,
        }
    }

    /// Notes that an asynchronous grant with [`word`](Self::word) was sent. `spaced`: all earlier ones are older than a
    /// keep-alive interval, so that their Receives have been posted again.
    pub(super) fn commit_async(&mut self, word: CreditWord, spaced: bool) {
        self.async_in_flight = if spaced { 1 } else { self.async_in_flight + 1 };
        self.async_mark = self.granted;
        self.async_sent = self.sent;
        self.granted = self.granted.wrapping_add(u32::from(word.granted));
    }

    /// The cumulative count of messages that the peer sent and we handled, asynchronous grants apart.
    pub(super) const fn consumed_total(&self) -> u32 {
        self.consumed
    }

    /// The cumulative count of messages that we sent, asynchronous grants apart.
    pub(super) const fn sent_total(&self) -> u32 {
        self.sent
    }

    pub(super) fn view(&self) -> CreditView {
        CreditView {
            receives_posted: self.posted,
            granted_total: self.granted,
            consumed_total: self.consumed,
            owed: u32::from(self.owed()),
            peer_granted_total: self.peer_granted,
            peer_handled_least: self.peer_handled,
            sent_total: self.sent,
            window: u32::from(self.window),
            limit: u32::from(self.limit),
            receives_reserved: u32::from(self.reserve),
        }
    }
}

/// The credit counters of a connection, for statistics and tests. Totals count modulo 2^32 and include the implicit
/// initial credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreditView {
    /// Receives posted for this connection that no handled message has taken.
    pub receives_posted: u32,
    /// Credits granted to the peer.
    pub granted_total: u32,
    /// Messages handled that used one of them.
    pub consumed_total: u32,
    /// Receives that the next message will grant.
    pub owed: u32,
    /// Credits that the peer granted to us.
    pub peer_granted_total: u32,
    /// Messages sent that used one of them.
    pub sent_total: u32,
    /// How many of these the peer has handled at least, according to its latest message: it never grants more than it
    /// announces beyond what it has handled.
    pub peer_handled_least: u32,
    /// The most credits that the peer will ever have.
    pub window: u32,
    /// The most credits that it may have now
    /// ([`Connection::raise_credit_limit`](super::Connection::raise_credit_limit)).
    pub limit: u32,
    /// Receives of this connection: posted, or to be posted again.
    pub receives_reserved: u32,
}

impl CreditView {
    /// Credits that the peer has, or has used in messages that we have not handled yet.
    #[must_use]
    pub const fn unconsumed(&self) -> u32 {
        self.granted_total.wrapping_sub(self.consumed_total)
    }

    /// Credits of the peer that we have not used.
    #[must_use]
    pub const fn unused(&self) -> u32 {
        self.peer_granted_total.wrapping_sub(self.sent_total)
    }
}

#[cfg(test)]
mod tests {
    use super::Credits;
    use crate::v2::header::CreditWord;

    /// Connections live long: the counters pass 2^32, and nothing is noticed.
    #[test]
    fn counters_wrap() {
        let mut credits = Credits::new(10);
        let near_end = u32::MAX - 3;
        credits.granted = near_end.wrapping_add(1);
        credits.consumed = near_end;
        credits.peer_granted = near_end.wrapping_add(9);
        credits.sent = near_end;
        credits.async_mark = near_end;
        credits.async_sent = near_end;
        for _ in 0..20 {
            let word = credits.word();
            let before = credits.available();
            assert!(credits.async_may_be_sent(0, false));
            credits.commit_async(word, false);
            credits.commit(CreditWord::default());
            assert_eq!(credits.available(), before - 1);
            let grant = |granted| CreditWord {
                granted,
                maximum: 9,
            };
            while credits.unconsumed() > 0 {
                assert!(credits.receive(grant(0)));
                credits.receives_posted(1);
            }
            assert_eq!(credits.owed(), 9);
            assert!(!credits.receive(grant(1)), "nothing is left to use");
            assert_eq!(credits.apply(grant(1)), Ok(()));
        }
        assert!(credits.sent < near_end, "it wrapped");
        assert!(credits.consumed < near_end, "it wrapped");
    }

    /// The peer used half of its window, was granted the rest, and handles what we sent: it is granted more although
    /// it has not used what came with the grant.
    #[test]
    fn a_grant_of_the_peer_shows_that_ours_arrived() {
        let word = |granted| CreditWord {
            granted,
            maximum: 4,
        };
        for sent_after in [0, 1] {
            let mut credits = Credits::new(5);
            credits.commit_async(credits.word(), true);
            assert_eq!(
                credits.apply(word(3)),
                Ok(()),
                "the peer has no message handled yet"
            );
            for _ in 0..2 {
                assert!(credits.receive(word(0)));
            }
            credits.receives_posted(2);
            assert_eq!((credits.unconsumed(), credits.owed()), (2, 2));
            credits.async_in_flight = 1;
            credits.async_mark = credits.granted - 2;
            credits.async_sent = credits.sent;
            for _ in 0..sent_after {
                credits.commit(CreditWord::default());
            }
            assert!(
                !credits.async_may_be_sent(0, false),
                "it may not have arrived"
            );
            let _ = credits.apply(word(sent_after));
            let arrived = sent_after == 1;
            assert_eq!(credits.async_may_be_sent(0, false), arrived);
        }
    }
}
