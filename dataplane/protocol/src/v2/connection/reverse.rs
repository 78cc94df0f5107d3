//! Calls in both directions (RFC 8167; -00 section 5.2.5): what either end takes of the other.
//!
//! Calls of the client go in the forward direction, and anything is taken of them. Those of the server go in the
//! reverse direction, and how far they are taken is announced:
//!
//! * the client's Reverse Request Support says which calls it takes;
//! * the server's says which replies it takes, and so which calls it can make;
//! * of two levels the lower one counts, for the life of the connection. An end that announced none has the default,
//!   `Inline`.
//!
//! A client that takes no calls answers one with RDMA2_ERR_SYSTEM and goes on. RFC 8167 section 6 would let the
//! connection be lost, which costs the client its own calls. Of the errors in -00 section 6.4.3 this is the one that no
//! other says better and that is permanent: the requester ends the call. READ_CHUNKS and REPLY_RESOURCE, which answer
//! chunks where the level is `Inline`, ask for the call in another form; here no form is taken. An RPC error would have
//! us look into a call of which we said that we do not receive it.
//!
//! Credits need no rule of their own: each end grants its peer Receives for all that this sends, calls and replies, and
//! what one end has used up takes nothing from the other (-00 section 4.3.1). How many of its credits an end keeps for
//! replies is its caller's decision.

use super::Connection;
use super::event::{Role, SendRefused};
use crate::v2::header::Direction;
use crate::v2::properties::ReverseRequestSupport;

/// What is taken of calls, by direction of calling.
#[derive(Clone, Copy, Debug)]
pub(super) struct Calls {
    /// Of ours.
    pub(super) own: ReverseRequestSupport,
    /// Of the peer's.
    pub(super) peer: ReverseRequestSupport,
    /// The peer has announced its level.
    settled: bool,
}

impl Calls {
    /// Before the peer has announced anything.
    pub(super) fn new(role: Role, announced: ReverseRequestSupport) -> Self {
        let forward = ReverseRequestSupport::General;
        match role {
            Role::Client => Self {
                own: forward,
                peer: announced,
                settled: false,
            },
            Role::Server => Self {
                own: announced.min(ReverseRequestSupport::default()),
                peer: forward,
                settled: false,
            },
        }
    }
}

impl Connection {
    /// Which calls of ours may be sent: as the client all, as the server those that both ends are ready for.
    #[inline]
    #[must_use]
    pub const fn own_calls(&self) -> ReverseRequestSupport {
        self.calls.own
    }

    /// Which calls of the peer we take: as the server all, as the client those that our properties announce.
    #[inline]
    #[must_use]
    pub const fn peer_calls(&self) -> ReverseRequestSupport {
        self.calls.peer
    }

    /// The peer has announced its level. The first one stands (-00 section 6.4.4): no call that is under way comes to be
    /// one that may not be sent.
    pub(super) fn settle_calls(&mut self, peer: ReverseRequestSupport) {
        let settled = core::mem::replace(&mut self.calls.settled, true);
        if self.role == Role::Server && !settled {
            self.calls.own = self.properties.reverse_requests.min(peer);
        }
    }

    /// Whether a call, or a reply, may be received at all.
    #[inline]
    pub(super) fn takes(&self, direction: Direction) -> bool {
        direction == Direction::Reply || self.calls.peer != ReverseRequestSupport::None
    }

    /// Whether a call, or a reply, may be sent at all.
    #[inline]
    pub(super) fn may_send(&self, direction: Direction) -> bool {
        direction == Direction::Reply || self.calls.own != ReverseRequestSupport::None
    }

    /// Whether it may be sent with chunks.
    pub(super) fn check_chunks(&self, direction: Direction) -> Result<(), SendRefused> {
        if direction == Direction::Call && self.calls.own != ReverseRequestSupport::General {
            return Err(SendRefused::NotTaken);
        }
        Ok(())
    }
}
