//! The state of one version 1 connection: credits, inline thresholds, and what messages mean, without any I/O.
//!
//! [`Connection`] tells the same [events](crate::v2::connection::Event) as the state of version 2 does, so that who acts on them need not know
//! the version. Of those it tells calls, replies, transport errors, discards, refusals, a version mismatch and the
//! reasons to close. What version 1 has not never comes: no message continues, no properties are exchanged, nothing is
//! granted but with a reply, and no message keeps a connection alive.
//!
//! # The order of calls
//!
//! As of [`v2::connection`](crate::v2::connection): handle messages in the order in which they came, report Receives
//! that are posted again, and write messages when [`calls_available`](Connection::calls_available) and
//! [`may_reply`](Connection::may_reply) allow it.
//!
//! # What a receiver does about wrong messages (RFC 8166 section 4.5)
//!
//! A responder answers them, a requester discards them, and both discard what is too short. Which of them an end is, for
//! a message whose RPC direction cannot be read, follows from its role: a server takes it for a call, a client for a
//! reply. A wrong message that a requester discards ends the call with its XID, if there is one: no better answer will
//! come. ERR_CHUNK is told, and asked for, as any transport error but ERR_VERS; received, it is
//! [`BadXdr`](crate::v2::TransportError::BadXdr), which has its code.

mod credits;
mod receive;
mod send;

use crate::chunks::ChunkLists;
use crate::cm_private_data::PrivateData;
use crate::constants::{RPCRDMA_VERSION_1, V1_INLINE_THRESHOLD_DEFAULT_BYTES};
use crate::v2::connection::Role;
use crate::v2::{ErrVers, ReverseRequestSupport};
use credits::Credits;

/// The versions that a server supports which speaks version 1 alone, as ERR_VERS tells them.
const VERSIONS_SUPPORTED: ErrVers = ErrVers {
    low: RPCRDMA_VERSION_1,
    high: RPCRDMA_VERSION_1,
};

/// The most calls in the reverse direction that a connection keeps Receives for, on either side: what Linux has.
const REVERSE_CALLS_MAX: u32 = 16;

/// What a version 1 connection is told when it begins.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Which end this is.
    pub role: Role,
    /// Receives posted for the connection, those that are just about to be posted again included: at least 2.
    pub receive_reserve: u16,
    /// Those of them that messages have taken already, in another version, and that will be reported as posted.
    pub receives_taken: u16,
    /// What we said of ourselves when the connection was made.
    pub own: PrivateData,
    /// What the peer said of itself then; the default where it said nothing.
    pub peer: PrivateData,
    /// Calls in the reverse direction, from the server to the client: none, or inline ones, and none where fewer than
    /// three Receives are posted. Version 1 has no way to
    /// announce them: the upper layer has seen to it that both ends are ready (RFC 8167 section 6).
    pub reverse_requests: ReverseRequestSupport,
}

/// One version 1 connection. See the module for the order of calls.
#[derive(Clone, Debug)]
pub struct Connection {
    credits: Credits,
    role: Role,
    own_calls: ReverseRequestSupport,
    peer_calls: ReverseRequestSupport,
    /// A right version 1 message came: the version is agreed.
    agreed: bool,
    over: bool,
    invalidates: bool,
    send_threshold_bytes: u32,
    receive_threshold_bytes: u32,
}

impl Connection {
    /// The connection as it begins: nothing of version 1 has passed.
    ///
    /// # Panics
    /// When the reserve is below 2, or more Receives than it has were taken: the profile is wrong.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        assert!(
            config.receive_reserve >= 2,
            "a connection needs a Receive for a message and a spare one"
        );
        let reserve = u32::from(config.receive_reserve);
        let posted = reserve.checked_sub(config.receives_taken.into());
        let posted = posted.expect("no more Receives were taken than there are");
        // One Receive for each direction, and the spare one.
        let reverse_requests = match config.reverse_requests {
            ReverseRequestSupport::None => ReverseRequestSupport::None,
            _ if reserve < 3 => ReverseRequestSupport::None,
            _ => ReverseRequestSupport::Inline,
        };
        let forward = ReverseRequestSupport::General;
        let (own_calls, peer_calls) = match config.role {
            Role::Client => (forward, reverse_requests),
            Role::Server => (reverse_requests, forward),
        };
        // A quarter is for the reverse direction, if there is one.
        let reverse_receives = match reverse_requests {
            ReverseRequestSupport::None => 0,
            _ => (reserve / 4).clamp(1, REVERSE_CALLS_MAX),
        };
        let forward_receives = reserve - 1 - reverse_receives;
        let (granted, requested) = match config.role {
            Role::Client => (reverse_receives, forward_receives),
            Role::Server => (forward_receives, reverse_receives),
        };
        let threshold = |sender: u32, receiver: u32| {
            sender.min(receiver).max(V1_INLINE_THRESHOLD_DEFAULT_BYTES)
        };
        Self {
            credits: Credits::new(posted, granted, requested),
            role: config.role,
            own_calls,
            peer_calls,
            agreed: false,
            over: false,
            invalidates: config.own.remote_invalidation && config.peer.remote_invalidation,
            send_threshold_bytes: threshold(config.own.send_bytes, config.peer.receive_bytes),
            receive_threshold_bytes: threshold(config.peer.send_bytes, config.own.receive_bytes),
        }
    }

    /// Receives were posted in place of ones that messages of this connection took.
    pub fn handle_receives_posted(&mut self, count: u16) {
        self.credits.receives_posted(count);
    }

    /// The connection has so many Receives more, which are posted: they are for calls of the client, or for the replies to
    /// them. A server grants them with its next reply, a client asks for them with its next call.
    pub fn handle_receives_added(&mut self, count: u16) {
        self.credits.receives_posted(count);
        match self.role {
            Role::Client => self.credits.request_more(count),
            Role::Server => self.credits.grant_more(count),
        }
    }

    // ---- What may be sent ----

    /// Calls that may be sent now: one until the first reply, then what the last one granted, less those outstanding
    /// (RFC 8166 section 3.3.1). Never more than there are Receives for the replies.
    #[must_use]
    pub fn calls_available(&self) -> u32 {
        if self.over {
            return 0;
        }
        self.credits.calls_available()
    }

    /// Whether a reply, or an error, may be sent: a call waits for it, and the Receive is posted for the call that the
    /// peer may send then.
    #[must_use]
    pub fn may_reply(&self) -> bool {
        !self.over && self.credits.may_reply()
    }

    /// The longest message that may be sent, in octets, header included: the smaller of our send size and the peer's
    /// receive size (RFC 8797 section 5.1); 1024 for a peer that told none.
    #[must_use]
    pub const fn send_threshold_bytes(&self) -> u32 {
        self.send_threshold_bytes
    }

    /// The longest message that the peer may send, likewise: a call whose reply may be longer needs a Reply chunk.
    #[must_use]
    pub const fn receive_threshold_bytes(&self) -> u32 {
        self.receive_threshold_bytes
    }

    // ---- What it is ----

    /// Which end this is.
    #[must_use]
    pub const fn role(&self) -> Role {
        self.role
    }

    /// Which calls of ours may be sent: as the client all, as the server those that our configuration names.
    #[must_use]
    pub const fn own_calls(&self) -> ReverseRequestSupport {
        self.own_calls
    }

    /// Which calls of the peer we take.
    #[must_use]
    pub const fn peer_calls(&self) -> ReverseRequestSupport {
        self.peer_calls
    }

    /// Whether a reply of ours may invalidate a handle of its call: both ends said that they support it (RFC 8797
    /// section 4.1).
    #[must_use]
    pub const fn may_invalidate(&self) -> bool {
        self.invalidates
    }

    /// Calls that the peer may have outstanding, as every reply of ours tells.
    #[must_use]
    pub const fn granted(&self) -> u32 {
        self.credits.granted()
    }

    /// Receives posted that no handled message has taken.
    #[must_use]
    pub const fn receives_posted(&self) -> u32 {
        self.credits.posted()
    }

    /// Calls of the peer that came beyond what was granted, and were taken, modulo 2^32: the requester of Linux does not
    /// count a call whose task was killed.
    #[must_use]
    pub const fn calls_beyond_grant_total(&self) -> u32 {
        self.credits.beyond_grant_total()
    }

    /// Messages received, modulo 2^32.
    #[must_use]
    pub const fn received_total(&self) -> u32 {
        self.credits.received_total()
    }

    /// Messages sent, modulo 2^32.
    #[must_use]
    pub const fn sent_total(&self) -> u32 {
        self.credits.sent_total()
    }
}

/// The handle that a reply may invalidate: the only one of its call, where there is one alone (RFC 8797 section 4.1;
/// with several, nothing says which of them belongs to this call alone). 0 for none.
#[must_use]
pub fn only_handle(lists: &ChunkLists<'_>) -> u32 {
    let mut handles = lists
        .reads
        .map(|read| read.target.handle)
        .chain(lists.writes.flatten().map(|segment| segment.handle))
        .chain(lists.reply.into_iter().flatten().map(|it| it.handle));
    let first = handles.next().unwrap_or(0);
    if handles.all(|handle| handle == first) {
        first
    } else {
        0
    }
}
