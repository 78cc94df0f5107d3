//! Credentials and verifiers, which are passed on unchanged (RFC 5531 section 8.2).

use core::fmt;

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

/// A credential or verifier that has its own body.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Auth {
    flavor: u32,
    bytes: u16,
    body: [u8; AUTH_BODY_BYTES_MAX],
}

impl Auth {
    /// AUTH_NONE with its empty body.
    pub const NONE: Self = Self {
        flavor: AUTH_NONE,
        bytes: 0,
        body: [0; AUTH_BODY_BYTES_MAX],
    };

    /// One of this flavor; `None` for a body of more than 400 octets.
    #[must_use]
    pub fn new(flavor: u32, body: &[u8]) -> Option<Self> {
        let mut auth = Self {
            flavor,
            bytes: u16::try_from(body.len()).ok()?,
            ..Self::NONE
        };
        auth.body.get_mut(..body.len())?.copy_from_slice(body);
        Some(auth)
    }

    /// It, borrowed.
    #[must_use]
    pub fn get(&self) -> OpaqueAuth<'_> {
        OpaqueAuth {
            flavor: self.flavor,
            body: self.body.get(..usize::from(self.bytes)).unwrap_or(&[]),
        }
    }
}

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

/// The longest name of a machine in a body of AUTH_SYS, in octets.
const MACHINE_NAME_BYTES_MAX: usize = 255;
/// The most groups there, without the first one.
const GROUPS_MAX: u32 = 16;

/// Whether a body of a credential is one of AUTH_SYS (RFC 5531 appendix A), whole and without more behind it.
pub(super) fn is_auth_sys(body: &[u8]) -> bool {
    fn group_count(reader: &mut Reader<'_>) -> Result<u32, DecodeError> {
        let _stamp = reader.read_u32()?;
        let _machine_name = reader.read_opaque(MACHINE_NAME_BYTES_MAX)?;
        let (_uid, _gid) = (reader.read_u32()?, reader.read_u32()?);
        reader.read_u32()
    }
    let mut reader = Reader::new(body);
    let count = group_count(&mut reader).ok();
    let count = count.filter(|count| *count <= GROUPS_MAX);
    let groups_bytes = count.and_then(|count| usize::try_from(4 * count).ok());
    groups_bytes == Some(reader.rest().len())
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

impl fmt::Display for AuthStatus {
    /// What is wrong, with the name of RFC 5531.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::BAD_CREDENTIAL => "the credential cannot be decoded (AUTH_BADCRED)",
            Self::REJECTED_CREDENTIAL => "the client must begin a new session (AUTH_REJECTEDCRED)",
            Self::BAD_VERIFIER => "the verifier cannot be decoded (AUTH_BADVERF)",
            Self::REJECTED_VERIFIER => {
                "the verifier has expired or was sent again (AUTH_REJECTEDVERF)"
            }
            Self::TOO_WEAK => "the server wants another flavor of credential (AUTH_TOOWEAK)",
            Self::INVALID_RESPONSE => "the verifier of the reply is wrong (AUTH_INVALIDRESP)",
            Self::FAILED => "for an unknown reason (AUTH_FAILED)",
            Self::GSS_CREDENTIAL_PROBLEM => {
                "the user has no Kerberos credential (RPCSEC_GSS_CREDPROBLEM)"
            }
            Self::GSS_CONTEXT_PROBLEM => {
                "the security context is not known (RPCSEC_GSS_CTXPROBLEM)"
            }
            Self(status) => return write!(f, "with auth_stat {status}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::OpaqueAuth;
    use crate::constants::{AUTH_SYS, RPCSEC_GSS};

    #[test]
    fn gss_protected_messages_do_not_permit_reduction() {
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
