//! Host authentication (-00 sections 5.2.6 and 10.4): the exchange of HOSTAUTH properties through a mechanism of the
//! application's choice.
//!
//! -00 defines how messages are carried, and leaves their contents open. Here:
//!
//! * A client that authenticates puts its first message into its first CONNPROP, with its properties; the server
//!   answers in the same way. Every further message goes in a separate CONNPROP with HOSTAUTH only, because properties
//!   do not change during a connection. The server's last message makes the connection ready.
//! * An empty message refuses the peer. From it, a client that does not authenticate learns that the server requires
//!   it.
//! * Where this end requires that the peer proves itself, no RPC message passes before that, in either direction: the
//!   core closes the connection if one arrives (`Command::Adopt`, `guarded`).
//!
//! [`HostAuthentication`] is a mechanism, [`Exchange`] one run of it, both without I/O; [`PresharedKey`] is the
//! built-in mechanism. `docs/security.md` describes what it protects against, and what not.

mod preshared;
mod session;

use std::fmt;
use std::sync::Arc;

use rpcrdma_engine::{AuthenticationFailure, HostIdentity};

pub use self::preshared::{KeyFileError, PresharedKey, PresharedKeys};
pub(crate) use self::session::{Announced, Session, Verdict};

/// Who a peer must be.
#[derive(Clone, Debug, Default)]
pub enum Authentication {
    /// The fabric's own check is enough: on `shm`, that the peer belongs to the same user. On a fabric without such a
    /// check, this suffices to connect but not to listen. The default.
    #[default]
    Fabric,
    /// Every peer that the fabric admits.
    None,
    /// A peer may prove itself, and is refused if that fails. A peer that does not try is accepted without an identity.
    /// An attacker who can change messages in transit can make a peer look like one that does not try.
    Optional(Arc<dyn HostAuthentication>),
    /// A peer proves itself before any call, or is refused.
    Required(Arc<dyn HostAuthentication>),
}

impl Authentication {
    fn mechanism(&self) -> Option<&dyn HostAuthentication> {
        match self {
            Self::Fabric | Self::None => None,
            Self::Optional(mechanism) | Self::Required(mechanism) => Some(&**mechanism),
        }
    }

    pub(crate) const fn is_required(&self) -> bool {
        matches!(self, Self::Required(_))
    }
}

/// A mechanism of host authentication.
///
/// The initiator is the client of the transport: the end that connected.
pub trait HostAuthentication: fmt::Debug + Send + Sync {
    /// Begins an exchange as the initiator; returns its first message.
    ///
    /// # Errors
    /// When this end cannot take part.
    fn initiate(&self) -> Result<(Box<dyn Exchange>, Vec<u8>), AuthenticationFailure>;

    /// Begins an exchange as the responder, which waits for the initiator's first message.
    ///
    /// # Errors
    /// When this end cannot take part.
    fn respond(&self) -> Result<Box<dyn Exchange>, AuthenticationFailure>;
}

/// One end of one exchange.
///
/// Messages have 1 to 512 octets ([`HOST_AUTHENTICATION_BYTES_MAX`]).
///
/// [`HOST_AUTHENTICATION_BYTES_MAX`]: rpcrdma_protocol::constants::HOST_AUTHENTICATION_BYTES_MAX
pub trait Exchange: fmt::Debug + Send {
    /// Takes the peer's next message. `properties` is the same at every step.
    ///
    /// # Errors
    /// Why the peer is refused. The exchange is over then.
    fn step(
        &mut self,
        message: &[u8],
        properties: &BoundProperties,
    ) -> Result<Step, AuthenticationFailure>;
}

/// The next step after a message.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Answer with this, and wait for the peer's next message.
    Continue(Vec<u8>),
    /// The peer has proved what it is. The responder's exchange ends with an answer, by which the initiator learns
    /// that it was accepted; the initiator's ends without one.
    Done {
        /// The last message.
        answer: Option<Vec<u8>>,
        /// The peer.
        peer: HostIdentity,
    },
}

/// The properties of both ends, HOSTAUTH apart, as XDR property sets (-00 section 5.1): a mechanism proves that both
/// ends saw the same ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundProperties {
    /// Those of the initiator.
    pub initiator: Vec<u8>,
    /// Those of the responder.
    pub responder: Vec<u8>,
}
