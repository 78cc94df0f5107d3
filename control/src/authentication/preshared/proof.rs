//! The proofs: HMAC-SHA-256 (RFC 2104, FIPS 180-4) over everything that both ends have exchanged.
//!
//! Each field is preceded by its length in octets, a word in network order, so that no two lists of fields are the same
//! octets. The first field is the label of the proof, which differs for each, so that none can be sent back as another.

use hmac::{Hmac, KeyInit, Mac};
use rpcrdma_engine::AuthenticationFailure;
use sha2::Sha256;

use super::super::BoundProperties;
use super::message::PROOF_BYTES;

const RESPONDER: &[u8] = b"rpcrdma psk1 responder";
const INITIATOR: &[u8] = b"rpcrdma psk1 initiator";
const ACCEPTED: &[u8] = b"rpcrdma psk1 accepted";

/// The exchange before the first proof.
#[derive(Clone, Copy)]
pub(super) struct Transcript<'a> {
    pub(super) properties: &'a BoundProperties,
    /// The initiator's first message: key, identity, nonce.
    pub(super) hello: &'a [u8],
    /// The responder's first message up to its proof: identity, nonce.
    pub(super) challenge: &'a [u8],
}

impl Transcript<'_> {
    /// The responder has the key.
    pub(super) fn responder(&self, secret: &[u8]) -> Claim {
        self.claim(secret, RESPONDER, &[])
    }

    /// The initiator has the key, and saw the responder's proof.
    pub(super) fn initiator(&self, secret: &[u8], responder: &[u8; PROOF_BYTES]) -> Claim {
        self.claim(secret, INITIATOR, &[responder])
    }

    /// The responder saw the initiator's proof.
    pub(super) fn accepted(
        &self,
        secret: &[u8],
        responder: &[u8; PROOF_BYTES],
        initiator: &[u8; PROOF_BYTES],
    ) -> Claim {
        self.claim(secret, ACCEPTED, &[responder, initiator])
    }

    fn claim(&self, secret: &[u8], label: &[u8], proofs: &[&[u8; PROOF_BYTES]]) -> Claim {
        let transcript = [
            label,
            &self.properties.initiator,
            self.hello,
            &self.properties.responder,
            self.challenge,
        ];
        // HMAC takes keys of any length.
        let mut mac = Hmac::<Sha256>::new_from_slice(secret).ok();
        if let Some(mac) = &mut mac {
            for field in transcript
                .into_iter()
                .chain(proofs.iter().map(|it| &it[..]))
            {
                let length = u32::try_from(field.len()).unwrap_or(u32::MAX);
                mac.update(&length.to_be_bytes());
                mac.update(field);
            }
        }
        Claim(mac)
    }
}

/// A proof that is to be made, or to be checked.
pub(super) struct Claim(Option<Hmac<Sha256>>);

impl Claim {
    pub(super) fn make(self) -> Result<[u8; PROOF_BYTES], AuthenticationFailure> {
        let mac = self.0.ok_or(AuthenticationFailure::Local)?;
        Ok(mac.finalize().into_bytes().into())
    }

    /// Compares in constant time, so that the time does not show how much of a guess is right.
    pub(super) fn verify(self, proof: &[u8; PROOF_BYTES]) -> Result<(), AuthenticationFailure> {
        let mac = self.0.ok_or(AuthenticationFailure::Local)?;
        mac.verify_slice(proof)
            .map_err(|_| AuthenticationFailure::WrongProof)
    }
}
