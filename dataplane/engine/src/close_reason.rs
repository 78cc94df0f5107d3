//! Why a connection ended, and what its peer owed.

use std::fmt;

use rpcrdma_protocol::v2;

use crate::authentication::AuthenticationFailure;

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// Closed from this side.
    #[error("closed from this side")]
    Local,
    /// The core stopped.
    #[error("the core stopped")]
    Stopped,
    /// The peer closed the connection, or died.
    #[error("the peer closed the connection or is gone")]
    Peer,
    /// Nothing came from the peer, not even a keep-alive: it is stopped, or the way to it is cut.
    #[error("the peer was silent for {silent_ms} ms")]
    PeerSilent {
        /// How long nothing came, in milliseconds.
        silent_ms: u32,
    },
    /// A call waited, and nothing came by the path of the connection, not even the acknowledgement of a probe by the peer's
    /// device. Only if the peer can be reached by another path ([`Command::Adopt`](crate::Command::Adopt)).
    #[error("the path to the peer was silent for {silent_ms} ms, also to a probe")]
    PathDead {
        /// How long nothing came, in milliseconds.
        silent_ms: u32,
    },
    /// Its client, which has one connection of its name at a time, has made the next one
    /// ([`CoreEvent::Ready`](crate::CoreEvent::Ready) of that has come).
    #[error("its client has connected again")]
    Replaced,
    /// The peer did not do its part in time ([`CoreConfig::stall_timeout`](crate::CoreConfig::stall_timeout)).
    #[error("the peer owed {owed} for {stalled_ms} ms")]
    PeerStalled {
        /// What it did not do.
        owed: Owed,
        /// How long, in milliseconds.
        stalled_ms: u32,
    },
    /// The peer supports only versions from `low` to `high`.
    #[error("the peer supports versions {low} to {high} alone")]
    VersionMismatch {
        /// The lowest version that it supports.
        low: u32,
        /// The highest version that it supports.
        high: u32,
    },
    /// The peer broke the protocol.
    #[error("the peer broke the protocol: {0}")]
    Protocol(v2::connection::CloseReason),
    /// The peer causes errors faster than it grants the credits to send them.
    #[error("the peer draws errors faster than it lets them be sent")]
    ErrorsUnread,
    /// The peer refused our properties.
    #[error("the peer refused our properties: {0:?}")]
    PropertiesRefused(v2::TransportError),
    /// The peer sent properties again before the last ones were answered.
    #[error("the peer sent properties again before it had an answer")]
    PropertiesUnawaited,
    /// The peer announced other properties than before. Properties are fixed for the life of a connection
    /// (-00 section 6.4.4).
    #[error("the peer changed its properties, which stand while a connection lasts")]
    PropertiesChanged,
    /// Host authentication failed.
    #[error("host authentication failed: {0}")]
    Unauthenticated(AuthenticationFailure),
    /// A call whose memory the peer may still reach was not answered in twice its time limit; in version 1, which has
    /// no keep-alives, a call was not answered in its time limit.
    #[error("a call was not answered, and nothing else takes back what it holds")]
    CallUnanswered,
}

/// What a peer has to do next. Until then it holds resources that others could use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owed {
    /// Send a first message: it connected and sent nothing.
    FirstMessage,
    /// Send the rest of a message that it began.
    RestOfMessage,
    /// Grant credits for the replies to its calls.
    Credits,
    /// Receive our Sends: it posts no Receives, or does not poll its ring.
    Receives,
    /// Acknowledge the probe (an RDMA Write of no bytes) that this end sends to a silent peer. Its device does not answer,
    /// and ours retries without end.
    Acknowledgement,
}

impl fmt::Display for Owed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FirstMessage => "its first message",
            Self::RestOfMessage => "the rest of a message",
            Self::Credits => "credits for the replies to its calls",
            Self::Receives => "Receives for what is sent to it",
            Self::Acknowledgement => "the acknowledgement of a probe",
        })
    }
}
