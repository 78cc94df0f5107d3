//! The credits of both directions of calling (RFC 8166 section 3.3.1, RFC 8167 section 4.1).
//!
//! A version 1 credit is the promise of a Receive for one *call*: the requester may have as many calls outstanding as
//! the responder has granted, and itself keeps a Receive posted for each reply. So the Receives of a connection are
//! divided when it begins. More can be added to those for the client's calls; none is ever taken away, because no
//! message shows when the client has received a lower grant:
//!
//! | share | Receives |
//! |---|---|
//! | calls of the peer | `granted`, in every reply of ours |
//! | replies to calls of ours | `requested`, in every call of ours |
//! | one spare | for any other message |
//!
//! **Invariant**: `posted` is at least the calls that the peer may send (`granted` - `unanswered`) plus the replies
//! that may come (`outstanding`). A Receive that waits to be posted again counts for a call that is being answered. So
//! a reply may be sent before its own Receive is back, but only one: hence [`Credits::may_reply`]. A peer that keeps to
//! its credits always finds a Receive.
//!
//! **Calls beyond the grant**: the Linux requester counts a call as ended when the task that made it is killed, even if
//! it is still being answered here. So it may have more calls than granted, by the number of killed ones. They are
//! accepted and counted, as long as the remaining Receives suffice for the replies that may come. The invariant holds
//! with them: the peer may send no more. The limit is twice the grant: all calls of a window killed, and a whole new
//! window of calls. A peer beyond that does not keep credits at all, and would take resources of its neighbours.

use crate::v2::connection::CloseReason;

/// The most calls of a peer that may be unanswered, as a multiple of its grant.
const BEYOND_GRANT_FACTOR: u32 = 2;

/// Credits and Receives of one connection. See the module for the rules.
#[derive(Clone, Copy, Debug)]
pub(super) struct Credits {
    /// Posted Receives that no handled message has used.
    posted: u32,
    /// Calls that the peer may have outstanding.
    granted: u32,
    /// Calls of the peer that were not answered yet.
    unanswered: u32,
    /// Calls of the peer that came beyond `granted`, modulo 2^32.
    beyond_grant_total: u32,
    /// Calls that we ask to have outstanding.
    requested: u32,
    /// Calls that we may have outstanding; one, until a reply grants more.
    peer_granted: u32,
    /// Calls of ours that were not answered yet.
    outstanding: u32,
    /// Messages received and sent, modulo 2^32.
    received_total: u32,
    sent_total: u32,
}

impl Credits {
    /// `posted` Receives are posted; the peer gets `granted` credits, and we ask for `requested`.
    pub(super) const fn new(posted: u32, granted: u32, requested: u32) -> Self {
        Self {
            posted,
            granted,
            unanswered: 0,
            beyond_grant_total: 0,
            requested,
            peer_granted: 1,
            outstanding: 0,
            received_total: 0,
            sent_total: 0,
        }
    }

    pub(super) const fn receives_posted(&mut self, count: u16) {
        self.posted = self.posted.saturating_add(count as u32);
    }

    /// Notes that a Receive that counts as posted is not.
    pub(super) fn receive_kept(&mut self) {
        debug_assert!(self.posted != 0, "it counts as posted");
        self.posted = self.posted.saturating_sub(1);
    }

    /// Lets the peer have `count` more calls outstanding. Their Receives are posted.
    pub(super) const fn grant_more(&mut self, count: u16) {
        self.granted = self.granted.saturating_add(count as u32);
    }

    /// Asks for `count` more calls. The Receives for their replies are posted.
    pub(super) const fn request_more(&mut self, count: u16) {
        self.requested = self.requested.saturating_add(count as u32);
    }

    /// Notes that a message used one of our Receives.
    pub(super) fn take_receive(&mut self) -> Result<(), CloseReason> {
        self.posted = self.posted.checked_sub(1).ok_or(CloseReason::OverSend)?;
        self.received_total = self.received_total.wrapping_add(1);
        Ok(())
    }

    // ---- Calls of the peer ----

    /// The credit word of a reply.
    pub(super) const fn granted(&self) -> u32 {
        // A grant of zero would deadlock, so the specification forbids it.
        if self.granted == 0 { 1 } else { self.granted }
    }

    /// Notes a message that will be answered, by a reply or by an error. Its Receive was counted before.
    pub(super) fn take_call(&mut self) -> Result<(), CloseReason> {
        let granted = self.granted();
        if self.unanswered >= granted {
            let most = granted.saturating_mul(BEYOND_GRANT_FACTOR);
            if self.unanswered >= most || self.posted < self.outstanding {
                return Err(CloseReason::OverSend);
            }
            self.beyond_grant_total = self.beyond_grant_total.wrapping_add(1);
        }
        self.unanswered += 1;
        Ok(())
    }

    /// Calls of the peer that came beyond what was granted, modulo 2^32.
    pub(super) const fn beyond_grant_total(&self) -> u32 {
        self.beyond_grant_total
    }

    /// Whether a reply may be sent: with it the peer may send one more call, unless it is beyond its grant, and the
    /// Receive for that call has to be posted.
    pub(super) const fn may_reply(&self) -> bool {
        let calls_to_come = (self.granted() + 1).saturating_sub(self.unanswered);
        self.unanswered != 0 && self.posted >= self.outstanding.saturating_add(calls_to_come)
    }

    /// Notes that a reply, or an error in its place, was sent.
    pub(super) const fn commit_reply(&mut self) {
        self.unanswered = self.unanswered.saturating_sub(1);
        self.sent_total = self.sent_total.wrapping_add(1);
    }

    // ---- Calls of ours ----

    /// The credit word of a call.
    pub(super) const fn requested(&self) -> u32 {
        self.requested
    }

    /// Calls that may be sent now.
    pub(super) fn calls_available(&self) -> u32 {
        let calls_to_come = self.granted.saturating_sub(self.unanswered);
        let receives = self.posted.saturating_sub(calls_to_come);
        let allowed = self.peer_granted.min(self.requested);
        allowed.min(receives).saturating_sub(self.outstanding)
    }

    /// Notes that a call was sent.
    pub(super) const fn commit_call(&mut self) {
        self.outstanding = self.outstanding.saturating_add(1);
        self.sent_total = self.sent_total.wrapping_add(1);
    }

    /// Notes that a call of ours was answered, in any way.
    pub(super) const fn take_reply(&mut self) {
        self.outstanding = self.outstanding.saturating_sub(1);
    }

    /// Applies a grant of the peer; zero counts as one. `calls_available` limits it to what we asked for.
    pub(super) const fn apply(&mut self, granted: u32) {
        self.peer_granted = if granted == 0 { 1 } else { granted };
    }

    /// Whether a call of ours waits for its answer.
    pub(super) const fn awaits_reply(&self) -> bool {
        self.outstanding != 0
    }

    pub(super) const fn posted(&self) -> u32 {
        self.posted
    }

    pub(super) const fn received_total(&self) -> u32 {
        self.received_total
    }

    pub(super) const fn sent_total(&self) -> u32 {
        self.sent_total
    }
}
