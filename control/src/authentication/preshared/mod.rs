//! Mutual challenge and response with a shared key: HMAC-SHA-256 over all messages and properties exchanged.
//!
//! Four messages ([`message`]), three proofs ([`proof`]): the responder proves itself first, the initiator second, and
//! the third proves to the initiator that it was accepted.

mod keys;
mod message;
mod proof;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use rpcrdma_engine::{AuthenticationFailure, HostIdentity};
use zeroize::Zeroizing;

pub use self::keys::{KeyFileError, PresharedKeys};
use self::message::{Message, NONCE_BYTES, PROOF_BYTES};
use self::proof::{Claim, Transcript};
use super::{BoundProperties, Exchange, HostAuthentication, Step};

/// The mechanism: this end's identity, and its keys.
///
/// Any holder of a key can claim any identity with it. To distinguish hosts reliably, use a separate key for each pair.
#[derive(Clone, Debug)]
pub struct PresharedKey {
    identity: HostIdentity,
    keys: Arc<PresharedKeys>,
}

impl PresharedKey {
    /// This end's name is `identity`; no peer may have the same. As initiator it uses the first of `keys`; as
    /// responder, the one that its peer names.
    #[must_use]
    pub fn new(identity: HostIdentity, keys: PresharedKeys) -> Self {
        Self {
            identity,
            keys: Arc::new(keys),
        }
    }

    fn initiate_with(
        &self,
        nonce: [u8; NONCE_BYTES],
    ) -> Result<(Initiator, Vec<u8>), AuthenticationFailure> {
        let (key, secret) = self.keys.first().ok_or(AuthenticationFailure::Local)?;
        let hello = Message::Hello {
            key,
            identity: self.identity.as_str(),
            nonce,
        }
        .encode();
        let exchange = Initiator {
            identity: self.identity.clone(),
            secret: secret.clone(),
            hello: hello.clone(),
            claimed: None,
        };
        Ok((exchange, hello))
    }

    fn respond_with(&self, nonce: [u8; NONCE_BYTES]) -> Responder {
        Responder {
            identity: self.identity.clone(),
            keys: Arc::clone(&self.keys),
            nonce,
            challenged: None,
        }
    }
}

impl HostAuthentication for PresharedKey {
    fn initiate(&self) -> Result<(Box<dyn Exchange>, Vec<u8>), AuthenticationFailure> {
        let (exchange, hello) = self.initiate_with(nonce()?)?;
        Ok((Box::new(exchange), hello))
    }

    fn respond(&self) -> Result<Box<dyn Exchange>, AuthenticationFailure> {
        Ok(Box::new(self.respond_with(nonce()?)))
    }
}

fn nonce() -> Result<[u8; NONCE_BYTES], AuthenticationFailure> {
    let mut nonce = [0; NONCE_BYTES];
    getrandom::fill(&mut nonce).map_err(|_| AuthenticationFailure::Local)?;
    Ok(nonce)
}

/// The peer's name for itself. Our own name is refused: it may be our own message, reflected by an attacker.
fn peer(name: &str, own: &HostIdentity) -> Result<HostIdentity, AuthenticationFailure> {
    let peer = HostIdentity::new(name).map_err(|_| AuthenticationFailure::Malformed)?;
    if peer == *own {
        return Err(AuthenticationFailure::OwnIdentity);
    }
    Ok(peer)
}

impl fmt::Debug for Initiator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Initiator({})", self.identity)
    }
}

impl fmt::Debug for Responder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Responder({})", self.identity)
    }
}

/// The end that connected.
struct Initiator {
    identity: HostIdentity,
    secret: Zeroizing<Vec<u8>>,
    hello: Vec<u8>,
    /// After the challenge: the responder, and the proof that it still has to send.
    claimed: Option<(HostIdentity, Claim)>,
}

impl Exchange for Initiator {
    fn step(
        &mut self,
        message: &[u8],
        properties: &BoundProperties,
    ) -> Result<Step, AuthenticationFailure> {
        match (Message::decode(message)?, self.claimed.take()) {
            (
                Message::Challenge {
                    identity, proof, ..
                },
                None,
            ) => {
                let peer = peer(identity, &self.identity)?;
                let transcript = Transcript {
                    properties,
                    hello: &self.hello,
                    // The proof covers the message up to the proof itself, which is last.
                    challenge: message
                        .split_at(message.len().saturating_sub(PROOF_BYTES))
                        .0,
                };
                transcript.responder(&self.secret).verify(&proof)?;
                let own = transcript.initiator(&self.secret, &proof).make()?;
                self.claimed = Some((peer, transcript.accepted(&self.secret, &proof, &own)));
                Ok(Step::Continue(Message::Proof(own).encode()))
            }
            (Message::Accepted(proof), Some((peer, claim))) => {
                claim.verify(&proof)?;
                Ok(Step::Done { answer: None, peer })
            }
            _ => Err(AuthenticationFailure::Malformed),
        }
    }
}

/// The end that listened.
struct Responder {
    identity: HostIdentity,
    keys: Arc<PresharedKeys>,
    nonce: [u8; NONCE_BYTES],
    challenged: Option<Challenged>,
}

/// The state of a responder between challenge and proof.
struct Challenged {
    peer: HostIdentity,
    secret: Zeroizing<Vec<u8>>,
    hello: Vec<u8>,
    /// Without its proof.
    challenge: Vec<u8>,
    proof: [u8; PROOF_BYTES],
}

impl Responder {
    /// Proves that this end has the key, to a peer that has proved nothing yet.
    fn challenge(
        &mut self,
        peer: HostIdentity,
        secret: Zeroizing<Vec<u8>>,
        hello: &[u8],
        properties: &BoundProperties,
    ) -> Result<Step, AuthenticationFailure> {
        let challenge = Message::challenge_without_proof(self.identity.as_str(), &self.nonce);
        let transcript = Transcript {
            properties,
            hello,
            challenge: &challenge,
        };
        let proof = transcript.responder(&secret).make()?;
        let message = [&challenge[..], &proof].concat();
        self.challenged = Some(Challenged {
            peer,
            secret,
            hello: hello.to_vec(),
            challenge,
            proof,
        });
        Ok(Step::Continue(message))
    }
}

impl Exchange for Responder {
    fn step(
        &mut self,
        message: &[u8],
        properties: &BoundProperties,
    ) -> Result<Step, AuthenticationFailure> {
        match (Message::decode(message)?, self.challenged.take()) {
            (Message::Hello { key, identity, .. }, None) => {
                let secret = self
                    .keys
                    .find(key)
                    .ok_or(AuthenticationFailure::UnknownKey)?;
                let peer = peer(identity, &self.identity)?;
                self.challenge(peer, secret.clone(), message, properties)
            }
            (Message::Proof(proof), Some(challenged)) => {
                let transcript = Transcript {
                    properties,
                    hello: &challenged.hello,
                    challenge: &challenged.challenge,
                };
                let secret = &challenged.secret;
                transcript
                    .initiator(secret, &challenged.proof)
                    .verify(&proof)?;
                let own = transcript
                    .accepted(secret, &challenged.proof, &proof)
                    .make()?;
                Ok(Step::Done {
                    answer: Some(Message::Accepted(own).encode()),
                    peer: challenged.peer,
                })
            }
            _ => Err(AuthenticationFailure::Malformed),
        }
    }
}
