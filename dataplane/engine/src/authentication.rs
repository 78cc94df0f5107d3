//! The part of host authentication (-00 sections 5.2.6 and 10.4) that a core handles: the identity of the peer, the
//! messages to send, and the reason of a failure. The control plane runs the exchange.

use std::fmt;

const IDENTITY_BYTES_MAX: usize = 255;

/// The name of a host in host authentication: 1 to 255 printable ASCII characters, without spaces.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostIdentity(Box<str>);

impl HostIdentity {
    /// Checks a name.
    ///
    /// # Errors
    /// [`BadIdentity`].
    pub fn new(name: &str) -> Result<Self, BadIdentity> {
        let fits = (1..=IDENTITY_BYTES_MAX).contains(&name.len());
        if fits && name.bytes().all(|byte| byte.is_ascii_graphic()) {
            Ok(Self(name.into()))
        } else {
            Err(BadIdentity)
        }
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for HostIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::str::FromStr for HostIdentity {
    type Err = BadIdentity;

    fn from_str(name: &str) -> Result<Self, BadIdentity> {
        Self::new(name)
    }
}

/// A name that cannot be the identity of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an identity has 1 to 255 printable characters of ASCII, and no spaces")]
pub struct BadIdentity;

/// A message of host authentication that a core is to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthenticationMessage {
    /// The message: at most [`rpcrdma_protocol::constants::HOST_AUTHENTICATION_BYTES_MAX`] octets. An empty one refuses
    /// the peer.
    pub bytes: Box<[u8]>,
    /// Whether our properties are sent in the same set. They are in the first property set that this end sends.
    pub with_properties: bool,
}

/// Why a peer was not authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthenticationFailure {
    /// The peer offered nothing, and this end requires that it does.
    #[error("the peer offered no authentication, which this end requires")]
    NotOffered,
    /// The peer requires what this end did not offer.
    #[error("the peer requires authentication, and this end offered none")]
    RequiredByPeer,
    /// The peer refused this end.
    #[error("the peer refused this end: it may not have the same key under the same name")]
    RefusedByPeer,
    /// The peer called before it was authenticated.
    #[error("the peer called before it was authenticated")]
    CalledEarly,
    /// The peer names a key that this end does not have.
    #[error("the peer names a key that this end does not have")]
    UnknownKey,
    /// The peer's proof does not verify.
    #[error(
        "the peer's proof does not verify: its key is another one, or the exchange was changed on its way"
    )]
    WrongProof,
    /// The peer's message cannot be read, or does not belong here.
    #[error("the peer's authentication message cannot be read")]
    Malformed,
    /// The peer claims the identity of this end.
    #[error("the peer claims the identity of this end; give each end its own")]
    OwnIdentity,
    /// The peer sent properties again, or other ones during the exchange or after it.
    #[error("the peer sent its properties again")]
    PropertiesChanged,
    /// The exchange took too long.
    #[error("the peer did not authenticate itself in time")]
    TimedOut,
    /// This end could not take part: the system gave no random octets, or the mechanism failed.
    #[error("this end could not take part in the authentication")]
    Local,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_are_short_printable_and_without_spaces() {
        let longest = "x".repeat(255);
        for good in ["a", "host-7.example", "~!", longest.as_str()] {
            assert_eq!(
                HostIdentity::new(good).map(|it| it.to_string()),
                Ok(good.to_owned())
            );
        }
        let too_long = "x".repeat(256);
        for bad in ["", "a b", "a\n", "h\u{f6}st", "\u{7f}", too_long.as_str()] {
            assert_eq!(HostIdentity::new(bad), Err(BadIdentity), "{bad:?}");
        }
    }
}
