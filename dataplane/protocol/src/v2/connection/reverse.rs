//! Calls in both directions (RFC 8167; -00 section 5.2.5): which calls each end accepts.
//!
//! Calls of the client go in the forward direction, and are always accepted. Those of the server go in the reverse
//! direction, and both ends announce how far they support them:
//!
//! * the client's Reverse Request Support says which calls it accepts;
//! * the server's says which replies it accepts, and so which calls it can make;
//! * the lower of the two levels applies, for the life of the connection. An end that announced none has the default,
//!   `Inline`.
//!
//! A client that accepts no calls answers one with RDMA2_ERR_SYSTEM and keeps the connection. RFC 8167 section 6 would
//! permit to lose the connection, but that costs the client its own calls. Of the errors in -00 section 6.4.3 this one
//! fits best: it is permanent, so the requester ends the call. READ_CHUNKS and REPLY_RESOURCE, which answer chunks at
//! the level `Inline`, ask for the call in another form, but here no form is accepted. For an RPC error we would have
//! to decode a call that we do not accept.
//!
//! Credits need no special rule: each end grants its peer Receives for everything that the peer sends, calls and
//! replies, and the use of credits by one end takes nothing from the other (-00 section 4.3.1). The caller decides how
//! many credits it reserves for replies.

use super::event::{Role, SendRefused};
use crate::rpc::Direction;
use crate::v2::properties::ReverseRequestSupport;

/// Which calls are accepted, by direction of calling.
#[derive(Clone, Copy, Debug)]
pub(super) struct Calls {
    /// Calls of ours.
    pub(super) own: ReverseRequestSupport,
    /// Calls of the peer.
    pub(super) peer: ReverseRequestSupport,
    /// The peer has announced its level.
    settled: bool,
}

impl Calls {
    /// The levels before the peer has announced any.
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

    /// Notes the level that the peer announced, where `announced` is ours. Only the first one counts (-00 section 6.4.4):
    /// so no call that has begun can become one that may not be sent.
    pub(super) fn settle(
        &mut self,
        role: Role,
        announced: ReverseRequestSupport,
        peer: ReverseRequestSupport,
    ) {
        let settled = core::mem::replace(&mut self.settled, true);
        if role == Role::Server && !settled {
            self.own = announced.min(peer);
        }
    }

    /// Whether a call, or a reply, may be received at all.
    #[inline]
    pub(super) fn takes(&self, direction: Direction) -> bool {
        direction == Direction::Reply || self.peer != ReverseRequestSupport::None
    }

    /// Whether a call, or a reply, may be sent at all.
    #[inline]
    pub(super) fn may_send(&self, direction: Direction) -> bool {
        direction == Direction::Reply || self.own != ReverseRequestSupport::None
    }

    /// Whether it may be sent with chunks.
    pub(super) fn check_chunks(&self, direction: Direction) -> Result<(), SendRefused> {
        if direction == Direction::Call && self.own != ReverseRequestSupport::General {
            return Err(SendRefused::NotTaken);
        }
        Ok(())
    }
}
