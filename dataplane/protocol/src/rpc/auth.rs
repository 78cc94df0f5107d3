//! Credentials and verifiers, which are passed on unchanged (RFC 5531 section 8.2).

use crate::constants::{
    AUTH_BODY_BYTES_MAX, AUTH_NONE, RPCSEC_GSS, RPCSEC_GSS_DATA, RPCSEC_GSS_SERVICE_NONE,
};
use crate::error::{DecodeError, EncodeError};
use crate::xdr::{Reader, Writer, padding_bytes, word};

/// A credential or verifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OpaqueAuth<'a> {
    /// The flavor: any number.
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

    /// The RPCSEC_GSS service of this call (RFC 2203 section 5.3.1): 1 for none, with only the header
    /// protected (krb5), 2 for integrity (krb5i), 3 for privacy (krb5p). `None` for other flavors, for calls that set
    /// up or end a context, and for a truncated credential.
    #[must_use]
    pub fn gss_service(&self) -> Option<u32> {
        // Version, procedure, sequence number, service.
        let words = self.body.first_chunk::<16>()?;
        let is_data = self.flavor == RPCSEC_GSS && word(words, 1) == RPCSEC_GSS_DATA;
        is_data.then(|| word(words, 3))
    }

    /// Whether items of a call with this credential may leave its stream, and results that of the
    /// reply. They may not if RPCSEC_GSS protects arguments and results, or sets up a context: protected data must stay
    /// in one piece (RFC 8166 section 8.2.2).
    #[must_use]
    pub fn permits_reduction(&self) -> bool {
        self.flavor != RPCSEC_GSS || self.gss_service() == Some(RPCSEC_GSS_SERVICE_NONE)
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

/// Why a caller was not authenticated (RFC 5531 section 9). Other numbers than these are passed on as well.
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

#[cfg(test)]
mod tests {
    use super::OpaqueAuth;
    use crate::constants::{AUTH_SYS, RPCSEC_GSS};

    #[test]
    fn what_gss_protects_is_not_reduced() {
        let permits = |flavor, words: &[u32]| {
            let body: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
            OpaqueAuth {
                flavor,
                body: &body,
            }
            .permits_reduction()
        };
        assert!(OpaqueAuth::NONE.permits_reduction());
        assert!(permits(AUTH_SYS, &[1, 0, 7, 2, 0]));
        assert!(permits(RPCSEC_GSS, &[1, 0, 7, 1, 0]), "the header alone");
        assert!(!permits(RPCSEC_GSS, &[1, 0, 7, 2, 0]), "integrity");
        assert!(!permits(RPCSEC_GSS, &[1, 0, 7, 3, 0]), "privacy");
        assert!(!permits(RPCSEC_GSS, &[1, 1, 0, 1, 0]), "a context begins");
        assert!(!permits(RPCSEC_GSS, &[1, 0, 7]), "it does not decode");
    }

    #[test]
    fn the_service_of_gss_is_told_of_calls_alone() {
        let service = |flavor, words: &[u32]| {
            let body: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
            OpaqueAuth {
                flavor,
                body: &body,
            }
            .gss_service()
        };
        for number in 1..4 {
            assert_eq!(service(RPCSEC_GSS, &[1, 0, 7, number, 0]), Some(number));
            assert_eq!(
                service(RPCSEC_GSS, &[1, 1, 7, number, 0]),
                None,
                "it begins"
            );
            assert_eq!(service(RPCSEC_GSS, &[1, 3, 7, number, 0]), None, "it ends");
            assert_eq!(service(AUTH_SYS, &[1, 0, 7, number, 0]), None);
        }
        assert_eq!(service(RPCSEC_GSS, &[1, 0, 7]), None, "it is cut");
    }
}
