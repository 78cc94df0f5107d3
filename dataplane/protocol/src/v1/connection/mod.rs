//! The state machine of one version 1 connection: credits, inline thresholds and received messages, without any I/O.
//!
//! [`Connection`] returns the same [events](crate::v2::connection::Event) as that of version 2, so that its user need
//! not know the version: calls, replies, transport errors, discards, refusals, a version mismatch and reasons to close.
//! Version 1 has no continued messages, no properties, no grants other than in replies, and no keep-alives.
//!
//! # The order of calls
//!
//! As for [`v2::connection`](crate::v2::connection): handle messages in the order of their arrival, report Receives
//! that are posted again, and encode messages when [`calls_available`](Connection::calls_available) and
//! [`may_reply`](Connection::may_reply) allow it.
//!
//! # What a receiver does about wrong messages (RFC 8166 section 4.5)
//!
//! A responder answers them, a requester discards them, and both discard messages that are too short. If the RPC
//! direction of a message cannot be read, the role decides: a server takes it for a call, a client for a reply. A wrong
//! message that a requester discards ends the call with its XID, if there is one: no better answer will come. Every
//! refusal other than ERR_VERS is sent as ERR_CHUNK; a received ERR_CHUNK is reported as
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

/// The versions in the ERR_VERS of a server that supports only version 1.
const VERSIONS_SUPPORTED: ErrVers = ErrVers {
    low: RPCRDMA_VERSION_1,
    high: RPCRDMA_VERSION_1,
};

/// The most calls in the reverse direction for which a connection reserves Receives, on either side: as many as Linux.
const REVERSE_CALLS_MAX: u32 = 16;

/// The configuration of a version 1 connection.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Which end this is.
    pub role: Role,
    /// Receives posted for the connection, including those that are about to be posted again: at least 2.
    pub receive_reserve: u16,
    /// How many of them messages of another version have used already; they will be reported as posted.
    pub receives_taken: u16,
    /// The private data of this end when the connection was made.
    pub own: PrivateData,
    /// The private data of the peer; the default if it sent none.
    pub peer: PrivateData,
    /// Calls in the reverse direction, from the server to the client: none, or inline ones; none if fewer than
    /// three Receives are posted. Version 1 cannot announce them: the upper layer has to make sure that both ends are
    /// ready (RFC 8167 section 6).
    pub reverse_requests: ReverseRequestSupport,
}

/// One version 1 connection. See the module for the order of calls.
#[derive(Clone, Debug)]
pub struct Connection {
    credits: Credits,
    role: Role,
    own_calls: ReverseRequestSupport,
    peer_calls: ReverseRequestSupport,
    /// A valid version 1 message came: the version is agreed.
    agreed: bool,
    over: bool,
    invalidates: bool,
    send_threshold_bytes: u32,
    receive_threshold_bytes: u32,
}

impl Connection {
    /// A new connection: no message of version 1 was sent or received.
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
        // A quarter is for the reverse direction, if that is enabled.
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

    /// Notes `count` more Receives, which are posted: they are for calls of the client, or for the replies to
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
    /// receive size (RFC 8797 section 5.1); 1024 for a peer that announced none.
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

    /// Which calls of the peer this end accepts.
    #[must_use]
    pub const fn peer_calls(&self) -> ReverseRequestSupport {
        self.peer_calls
    }

    /// Whether a reply of ours may invalidate a handle of its call: both ends announced support (RFC 8797 section 4.1).
    #[must_use]
    pub const fn may_invalidate(&self) -> bool {
        self.invalidates
    }

    /// Calls that the peer may have outstanding: the credit word of every reply.
    #[must_use]
    pub const fn granted(&self) -> u32 {
        self.credits.granted()
    }

    /// Receives posted that no handled message has taken.
    #[must_use]
    pub const fn receives_posted(&self) -> u32 {
        self.credits.posted()
    }

    /// Calls of the peer that came beyond the grant and were accepted, modulo 2^32: the Linux requester does not
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

/// The handle that a reply may invalidate: that of its call, if all segments of the call have the same one (RFC 8797
/// section 4.1). With several handles nothing says which of them only this call uses. 0 for none.
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
