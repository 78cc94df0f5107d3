//! Host authentication (-00 sections 5.2.6 and 10.4): the exchange of HOSTAUTH properties through a mechanism of the
//! application's choice.
//!
//! -00 says what carries the messages and leaves open what they are. Here:
//!
//! * A client that authenticates puts its first message into its first CONNPROP, beside its properties; the server
//!   answers in the same way. Every further message goes in a CONNPROP of its own, which holds HOSTAUTH and nothing
//!   else: properties stand for the life of a connection. The server's last word makes the connection ready.
//! * An empty message refuses the peer. So a client that offers nothing learns that the server requires something.
//! * Where this end requires that the peer proves itself, no RPC message passes before that, in either direction:
//!   the core closes the connection when one comes (`Command::Plant`, `guarded`).
//!
//! [`HostAuthentication`] is a mechanism, [`Exchange`] one run of it, both without any I/O; [`PresharedKey`] is the one
//! that comes along. What it guards against, and what not, is in `docs/security.md`.

mod preshared;
mod session;

use std::fmt;
use std::sync::Arc;

use rpcrdma_engine::{AuthenticationFailure, HostIdentity};

pub use self::preshared::{KeyFileError, PresharedKey, PresharedKeys};
pub(crate) use self::session::{Announced, Session, Verdict};

/// Who a peer must be.
///
/// # Example
/// ```
/// # mod nodes { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/nodes/documented.rs")); }
/// # use nodes::*;
/// # use rpcrdma_control::{Authentication, ConnectError, ConnectOptions, ListenOptions};
/// # use rpcrdma_engine::AuthenticationFailure;
/// # use std::sync::Arc;
/// let storage = Authentication::Required(Arc::new(host("storage-7")));
/// # let (_server, address) =
/// listening(ListenOptions { authentication: storage, ..ListenOptions::default() });
/// # let client = start(&config());
/// let compute = Authentication::Required(Arc::new(host("compute-1")));
/// let proving = ConnectOptions { authentication: compute, ..patient() };
/// let connection = client.connect(&address, proving)?;
/// assert_eq!(connection.identity, Some("storage-7".parse()?));
/// // Whoever does not prove anything is not let in.
/// let refused = client.connect(&address, patient());
/// assert!(matches!(
///     refused,
///     Err(ConnectError::Unauthenticated { failure: AuthenticationFailure::RequiredByPeer, .. })
/// ));
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub enum Authentication {
    /// What the fabric itself vouches for is enough: on `shm`, that the peer belongs to the same user. On a fabric that
    /// vouches for nobody this is enough to connect, and not to listen. The default.
    #[default]
    Fabric,
    /// Anybody whom the fabric lets through.
    None,
    /// A peer may prove itself, and is refused when that fails; one that does not try is accepted, and has no identity.
    /// Whoever can change messages on their way can make a peer look like one that does not try.
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
///
/// # Example
/// ```
/// # mod nodes { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/nodes/documented.rs")); }
/// # use nodes::*;
/// # use rpcrdma_control::HostAuthentication;
/// # use rpcrdma_control::authentication::{BoundProperties, Step};
/// # use rpcrdma_engine::AuthenticationFailure;
/// # let properties = BoundProperties { initiator: vec![], responder: vec![] };
/// let (client, server) = (host("compute-1"), host("storage-7"));
/// // What the messages are is the mechanism's; nodes carry them, and see to it that all are there.
/// let (mut initiator, hello) = client.initiate()?;
/// let mut responder = server.respond()?;
/// let Step::Continue(challenge) = responder.step(&hello, &properties)? else { panic!() };
/// let Step::Continue(proof) = initiator.step(&challenge, &properties)? else { panic!() };
/// let Step::Done { peer, .. } = responder.step(&proof, &properties)? else { panic!() };
/// assert_eq!(peer.as_str(), "compute-1");
/// # Ok::<_, AuthenticationFailure>(())
/// ```
pub trait HostAuthentication: fmt::Debug + Send + Sync {
    /// Begins an exchange as the initiator; gives its first message.
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
///
/// # Example
/// ```
/// use rpcrdma_control::authentication::{BoundProperties, Exchange, Step};
/// use rpcrdma_engine::{AuthenticationFailure, HostIdentity};
///
/// /// The responder's end, which believes every name. For tests: it proves nothing.
/// #[derive(Debug)]
/// struct Believe;
///
/// impl Exchange for Believe {
///     fn step(
///         &mut self,
///         message: &[u8],
///         _properties: &BoundProperties,
///     ) -> Result<Step, AuthenticationFailure> {
///         let name = str::from_utf8(message).map_err(|_| AuthenticationFailure::Malformed)?;
///         let peer = HostIdentity::new(name).map_err(|_| AuthenticationFailure::Malformed)?;
///         Ok(Step::Done { answer: Some(b"welcome".to_vec()), peer })
///     }
/// }
/// # let bound = BoundProperties { initiator: vec![], responder: vec![] };
/// let step = Believe.step(b"two words", &bound);
/// assert_eq!(step, Err(AuthenticationFailure::Malformed));
/// ```
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

/// What follows from a message.
///
/// # Example
/// ```
/// # mod nodes { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/nodes/documented.rs")); }
/// # use nodes::*;
/// # use rpcrdma_control::HostAuthentication;
/// # use rpcrdma_control::authentication::{BoundProperties, Step};
/// # use rpcrdma_engine::AuthenticationFailure;
/// # let bound = BoundProperties { initiator: vec![], responder: vec![] };
/// # let (mut initiator, hello) = host("compute-1").initiate()?;
/// # let mut responder = host("storage-7").respond()?;
/// # let Step::Continue(challenge) = responder.step(&hello, &bound)? else { panic!() };
/// # let Step::Continue(message) = initiator.step(&challenge, &bound)? else { panic!() };
/// // The last message of a client whose challenge was answered before:
/// match responder.step(&message, &bound)? {
///     Step::Continue(answer) => panic!("nothing is left to ask: {answer:?}"),
///     Step::Done { answer, peer } => {
///         assert_eq!(peer.as_str(), "compute-1");
///         assert!(answer.is_some(), "the client learns that it was accepted");
///     }
/// }
/// # Ok::<_, AuthenticationFailure>(())
/// ```
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
///
/// # Example
/// ```
/// # mod nodes { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/nodes/documented.rs")); }
/// # use nodes::*;
/// # use rpcrdma_control::{HostAuthentication, authentication::{BoundProperties, Step}};
/// # use rpcrdma_engine::AuthenticationFailure;
/// let sent = BoundProperties { initiator: vec![0, 0, 0, 0], responder: vec![0, 0, 0, 0] };
/// // Somebody on the way took a property out, or put one in.
/// let arrived = BoundProperties { initiator: vec![0, 0, 0, 1], ..sent.clone() };
/// # let (mut initiator, hello) = host("compute-1").initiate()?;
/// # let mut responder = host("storage-7").respond()?;
/// # let Step::Continue(challenge) = responder.step(&hello, &arrived)? else { panic!() };
/// // The proof of the server, of which the client makes out that:
/// let step = initiator.step(&challenge, &sent);
/// assert_eq!(step, Err(AuthenticationFailure::WrongProof));
/// # Ok::<_, AuthenticationFailure>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundProperties {
    /// Those of the initiator.
    pub initiator: Vec<u8>,
    /// Those of the responder.
    pub responder: Vec<u8>,
}
