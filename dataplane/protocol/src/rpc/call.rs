//! The header of a call.

use super::OpaqueAuth;
use crate::constants::{CALL_HEADER_BYTES_WITHOUT_AUTH, RPC_CALL, RPC_REPLY, RPC_VERSION};
use crate::error::{DecodeError, EncodeError, Reason};
use crate::xdr::{Reader, Writer, put_word, word};

/// The header of a call: all before the arguments (RFC 5531 section 9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallHeader<'a> {
    /// The number by which the requester matches the reply.
    pub xid: u32,
    /// The program called.
    pub program: u32,
    /// The version of the program.
    pub version: u32,
    /// The procedure of the program.
    pub procedure: u32,
    /// The identity of the caller.
    pub credential: OpaqueAuth<'a>,
    /// The proof of that identity.
    pub verifier: OpaqueAuth<'a>,
}

impl<'a> CallHeader<'a> {
    /// Decodes the call header at the start of `message`, and returns it with its length in octets: the arguments
    /// begin there.
    ///
    /// # Errors
    /// `Truncated`, `NotACall`, `InvalidMessageType`, `UnsupportedRpcVersion`, `OpaqueTooLong`. [`judge`](super::judge()) says what
    /// a responder answers.
    #[inline]
    pub fn decode(message: &'a [u8]) -> Result<(Self, usize), DecodeError> {
        match Self::decode_with_empty_bodies(message) {
            Some(header) => Ok((header, CALL_HEADER_BYTES_WITHOUT_AUTH)),
            None => Self::decode_any(message),
        }
    }

    /// The hot path: credential and verifier have empty bodies. `None` for any other message, valid or not.
    #[inline]
    fn decode_with_empty_bodies(message: &'a [u8]) -> Option<Self> {
        let words = message.first_chunk::<CALL_HEADER_BYTES_WITHOUT_AUTH>()?;
        if word(words, 1) != RPC_CALL
            || word(words, 2) != RPC_VERSION
            || (word(words, 7) | word(words, 9)) != 0
        {
            return None;
        }
        Some(Self {
            xid: word(words, 0),
            program: word(words, 3),
            version: word(words, 4),
            procedure: word(words, 5),
            credential: OpaqueAuth {
                flavor: word(words, 6),
                body: &[],
            },
            verifier: OpaqueAuth {
                flavor: word(words, 8),
                body: &[],
            },
        })
    }

    fn decode_any(message: &'a [u8]) -> Result<(Self, usize), DecodeError> {
        let mut reader = Reader::new(message);
        let xid = reader.read_u32()?;
        let type_field = reader;
        match reader.read_u32()? {
            RPC_CALL => {}
            RPC_REPLY => return Err(type_field.error(Reason::NotACall)),
            _ => return Err(type_field.error(Reason::InvalidMessageType)),
        }
        let version_field = reader;
        if reader.read_u32()? != RPC_VERSION {
            return Err(version_field.error(Reason::UnsupportedRpcVersion));
        }
        let header = Self {
            xid,
            program: reader.read_u32()?,
            version: reader.read_u32()?,
            procedure: reader.read_u32()?,
            credential: OpaqueAuth::decode(&mut reader)?,
            verifier: OpaqueAuth::decode(&mut reader)?,
        };
        Ok((header, reader.position()))
    }

    /// The octets from the XID to the end of the credential: what the verifier of a call with RPCSEC_GSS is computed over
    /// (RFC 2203 section 5.3.1).
    #[must_use]
    pub const fn signed_bytes(&self) -> usize {
        6 * 4 + self.credential.encoded_bytes()
    }

    /// Octets when encoded.
    #[inline]
    #[must_use]
    pub const fn encoded_bytes(&self) -> usize {
        self.signed_bytes() + self.verifier.encoded_bytes()
    }

    /// Writes the header at the start of `space`, and returns the octets written: the arguments follow there.
    ///
    /// # Errors
    /// `NoSpace`; `TooLong` for a body of more than 400 octets.
    #[inline]
    pub fn encode(&self, space: &mut [u8]) -> Result<usize, EncodeError> {
        let (credential, verifier) = (&self.credential, &self.verifier);
        if !credential.body.is_empty() || !verifier.body.is_empty() {
            return self.encode_any(space);
        }
        let Some(out) = space.first_chunk_mut::<CALL_HEADER_BYTES_WITHOUT_AUTH>() else {
            return Err(EncodeError::NoSpace);
        };
        put_word(out, 0, self.xid);
        put_word(out, 1, RPC_CALL);
        put_word(out, 2, RPC_VERSION);
        put_word(out, 3, self.program);
        put_word(out, 4, self.version);
        put_word(out, 5, self.procedure);
        put_word(out, 6, credential.flavor);
        put_word(out, 7, 0);
        put_word(out, 8, verifier.flavor);
        put_word(out, 9, 0);
        Ok(CALL_HEADER_BYTES_WITHOUT_AUTH)
    }

    fn encode_any(&self, space: &mut [u8]) -> Result<usize, EncodeError> {
        let mut writer = Writer::new(space);
        for word in [
            self.xid,
            RPC_CALL,
            RPC_VERSION,
            self.program,
            self.version,
            self.procedure,
        ] {
            writer.write_u32(word)?;
        }
        self.credential.encode(&mut writer)?;
        self.verifier.encode(&mut writer)?;
        Ok(writer.position())
    }
}
