//! The messages of the mechanism, in XDR (RFC 4506). `docs/security.md` has them as a table.

use rpcrdma_engine::AuthenticationFailure;
use rpcrdma_protocol::DecodeError;
use rpcrdma_protocol::constants::HOST_AUTHENTICATION_BYTES_MAX;
use rpcrdma_protocol::xdr::{Reader, Writer};

use super::keys::KEY_NAME_BYTES_MAX;

/// Octets of a nonce.
pub(super) const NONCE_BYTES: usize = 32;

/// Octets of a proof: of an HMAC-SHA-256.
pub(super) const PROOF_BYTES: usize = 32;

/// The first word of every message: "PSK1".
const MECHANISM: u32 = 0x5053_4b31;

const HELLO: u32 = 1;
const CHALLENGE: u32 = 2;
const PROOF: u32 = 3;
const ACCEPTED: u32 = 4;

const IDENTITY_BYTES_MAX: usize = 255;

/// A message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Message<'a> {
    /// The initiator names the key and itself.
    Hello {
        key: &'a str,
        identity: &'a str,
        nonce: [u8; NONCE_BYTES],
    },
    /// The responder names itself and proves that it has the key.
    Challenge {
        identity: &'a str,
        nonce: [u8; NONCE_BYTES],
        proof: [u8; PROOF_BYTES],
    },
    /// The initiator proves that it has the key.
    Proof([u8; PROOF_BYTES]),
    /// The responder proves that it has accepted the initiator.
    Accepted([u8; PROOF_BYTES]),
}

impl<'a> Message<'a> {
    /// Reads a message: all of it, and nothing else.
    pub(super) fn decode(message: &'a [u8]) -> Result<Self, AuthenticationFailure> {
        let mut reader = Reader::new(message);
        let decoded = Self::read(&mut reader).map_err(|_| AuthenticationFailure::Malformed)?;
        let decoded = decoded.ok_or(AuthenticationFailure::Malformed)?;
        if !reader.is_at_end() {
            return Err(AuthenticationFailure::Malformed);
        }
        Ok(decoded)
    }

    /// `None` for a message of another mechanism or kind, or with a name that is not UTF-8.
    fn read(reader: &mut Reader<'a>) -> Result<Option<Self>, DecodeError> {
        let (mechanism, kind) = (reader.read_u32()?, reader.read_u32()?);
        if mechanism != MECHANISM {
            return Ok(None);
        }
        Ok(match kind {
            HELLO => {
                let key = str::from_utf8(reader.read_opaque(KEY_NAME_BYTES_MAX)?).ok();
                let identity = str::from_utf8(reader.read_opaque(IDENTITY_BYTES_MAX)?).ok();
                let nonce = read_fixed(reader)?;
                key.zip(identity).map(|(key, identity)| Self::Hello {
                    key,
                    identity,
                    nonce,
                })
            }
            CHALLENGE => {
                let identity = str::from_utf8(reader.read_opaque(IDENTITY_BYTES_MAX)?).ok();
                let (nonce, proof) = (read_fixed(reader)?, read_fixed(reader)?);
                identity.map(|identity| Self::Challenge {
                    identity,
                    nonce,
                    proof,
                })
            }
            PROOF => Some(Self::Proof(read_fixed(reader)?)),
            ACCEPTED => Some(Self::Accepted(read_fixed(reader)?)),
            _ => None,
        })
    }

    /// The message's octets.
    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Hello {
                key,
                identity,
                nonce,
            } => write(HELLO, &[key, identity], &[nonce]),
            Self::Challenge {
                identity,
                nonce,
                proof,
            } => write(CHALLENGE, &[identity], &[nonce, proof]),
            Self::Proof(proof) => write(PROOF, &[], &[proof]),
            Self::Accepted(proof) => write(ACCEPTED, &[], &[proof]),
        }
    }

    /// A challenge up to its proof, which covers it.
    pub(super) fn challenge_without_proof(identity: &str, nonce: &[u8; NONCE_BYTES]) -> Vec<u8> {
        write(CHALLENGE, &[identity], &[nonce])
    }
}

fn read_fixed<const N: usize>(reader: &mut Reader<'_>) -> Result<[u8; N], DecodeError> {
    let mut fixed = [0; N];
    fixed.copy_from_slice(reader.read_opaque_fixed(N)?);
    Ok(fixed)
}

/// Names are checked before, at their source; so a message always fits its maximum length.
fn write(kind: u32, names: &[&str], fixed: &[&[u8; 32]]) -> Vec<u8> {
    let mut space = [0; HOST_AUTHENTICATION_BYTES_MAX];
    let mut writer = Writer::new(&mut space);
    let written = (|| {
        writer.write_u32(MECHANISM)?;
        writer.write_u32(kind)?;
        for name in names {
            writer.write_opaque(name.as_bytes())?;
        }
        fixed
            .iter()
            .try_for_each(|field| writer.write_opaque_fixed(*field))
    })();
    debug_assert!(written.is_ok(), "the longest names fit");
    let bytes = writer.position();
    space.get(..bytes).unwrap_or(&[]).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_messages_fit() {
        let (key, identity) = (
            "k".repeat(KEY_NAME_BYTES_MAX),
            "i".repeat(IDENTITY_BYTES_MAX),
        );
        let hello = Message::Hello {
            key: &key,
            identity: &identity,
            nonce: [7; NONCE_BYTES],
        };
        let encoded = hello.encode();
        assert_eq!(encoded.len(), 8 + 4 + 64 + 4 + 256 + 32);
        assert_eq!(Message::decode(&encoded), Ok(hello));
    }

    #[test]
    fn every_cut_and_every_addition_is_refused() {
        let proof = [9; PROOF_BYTES];
        let messages = [
            Message::Hello {
                key: "k",
                identity: "host",
                nonce: [7; NONCE_BYTES],
            },
            Message::Challenge {
                identity: "host",
                nonce: [7; NONCE_BYTES],
                proof,
            },
            Message::Proof(proof),
            Message::Accepted(proof),
        ];
        for message in messages {
            let mut encoded = message.encode();
            for length in 0..encoded.len() {
                let cut = Message::decode(&encoded[..length]);
                assert_eq!(cut, Err(AuthenticationFailure::Malformed), "{message:?}");
            }
            assert_eq!(Message::decode(&encoded).as_ref(), Ok(&message));
            encoded.extend([0; 4]);
            let longer = Message::decode(&encoded);
            assert_eq!(longer, Err(AuthenticationFailure::Malformed), "{message:?}");
        }
    }

    #[test]
    fn another_mechanism_kind_or_encoding_is_refused() {
        let proof = Message::Proof([9; PROOF_BYTES]).encode();
        for (at, value) in [(3, 0x32), (7, 0), (7, 5), (4, 1)] {
            let mut other = proof.clone();
            other[at] = value;
            assert_eq!(
                Message::decode(&other),
                Err(AuthenticationFailure::Malformed)
            );
        }
        let mut challenge = Message::challenge_without_proof("host", &[0; NONCE_BYTES]);
        challenge.extend([0; PROOF_BYTES]);
        assert!(Message::decode(&challenge).is_ok());
        challenge[12] = 0xff;
        let refused = Message::decode(&challenge);
        assert_eq!(refused, Err(AuthenticationFailure::Malformed), "no UTF-8");
    }
}
