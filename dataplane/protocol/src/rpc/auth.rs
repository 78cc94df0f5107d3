//! Credentials and verifiers, carried opaque (RFC 5531 section 8.2).

use crate::constants::{AUTH_BODY_BYTES_MAX, AUTH_NONE};
use crate::error::{DecodeError, EncodeError};
use crate::xdr::{Reader, Writer, padding_bytes};

/// A credential or verifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OpaqueAuth<'a> {
    /// The flavor: any number is carried.
    pub flavor: u32,
    /// The body, at most 400 octets.
    pub body: &'a [u8],
}

impl<'a> OpaqueAuth<'a> {
    /// AUTH_NONE with its empty body.
    pub const NONE: OpaqueAuth<'static> = OpaqueAuth {
        flavor: AUTH_NONE,
        body: &[],
    };

    /// Octets when encoded.
    #[inline]
    #[must_use]
    pub const fn encoded_bytes(&self) -> usize {
        8 + self.body.len() + padding_bytes(self.body.len())
    }

    pub(super) fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(Self {
            flavor: reader.read_u32()?,
            body: reader.read_opaque(AUTH_BODY_BYTES_MAX)?,
        })
    }

    pub(super) fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        if self.body.len() > AUTH_BODY_BYTES_MAX {
            return Err(EncodeError::TooLong);
        }
        writer.write_u32(self.flavor)?;
        writer.write_opaque(self.body)
    }
}

impl Default for OpaqueAuth<'_> {
    fn default() -> Self {
        Self::NONE
    }
}

/// Why a caller was not authenticated (RFC 5531 section 9). Numbers beyond those named here are carried too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AuthStatus(pub u32);

impl AuthStatus {
    /// The credential is wrong.
    pub const BAD_CREDENTIAL: Self = Self(1);
    /// The client must begin a new session.
    pub const REJECTED_CREDENTIAL: Self = Self(2);
    /// The verifier is wrong.
    pub const BAD_VERIFIER: Self = Self(3);
    /// The verifier expired or was replayed.
    pub const REJECTED_VERIFIER: Self = Self(4);
    /// Refused for reasons of security.
    pub const TOO_WEAK: Self = Self(5);
    /// The verifier of the response is wrong.
    pub const INVALID_RESPONSE: Self = Self(6);
    /// The reason is unknown.
    pub const FAILED: Self = Self(7);
    /// RPCSEC_GSS: no credentials for the user.
    pub const GSS_CREDENTIAL_PROBLEM: Self = Self(13);
    /// RPCSEC_GSS: a problem with the context.
    pub const GSS_CONTEXT_PROBLEM: Self = Self(14);
}
