//! Callers that prove who they are: credentials and verifiers of flavors that the program of the user knows, as RPCSEC_GSS.

use std::fmt;
use std::sync::Arc;

use rpcrdma_engine::{Call, CallAuth};
use rpcrdma_protocol::constants::AUTH_BODY_BYTES_MAX;
use rpcrdma_protocol::rpc::{Auth, AuthStatus, CallHeader, OpaqueAuth};

/// The longest header of a call without its verifier's body, in bytes.
const HEADER_BYTES_MAX: usize = 40 + AUTH_BODY_BYTES_MAX;

/// Makes credentials and verifiers of calls when they are sent, each time that one is. RPCSEC_GSS needs that: the credential
/// has a number that no other message has, and the verifier is computed over the XID (RFC 2203 section 5.3.1).
///
/// Its methods run on the thread of the core, which does nothing else meanwhile: they must not wait. If arguments depend on the
/// number too, as with the integrity and privacy services, the call must not be made again
/// ([`ClientBuilder::repeat`](crate::ClientBuilder::repeat)). Where no credential can be made, return one that the server
/// denies, such as the flavor with an empty body.
pub trait Sign: Send + Sync {
    /// The credential of the next call that is sent.
    fn credential(&self) -> Auth;

    /// Its verifier. `signed` is the call from its XID to the end of its credential.
    ///
    /// Both are made when the call can go. It still may not, if they are longer than those before, or have another flavor: then they
    /// are not used, and the call has others later.
    fn verifier(&self, signed: &[u8]) -> Auth;
}

/// Why a service does not take a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unauthenticated {
    /// The call is answered with AUTH_ERROR and this status (RFC 5531 section 9).
    Denied(AuthStatus),
    /// The call gets no answer, as RPCSEC_GSS wants for a number that came before or is too old (RFC 2203 section 5.3.3.1).
    /// Its caller has one credit less until its time limit (`call_timeout_ms`). A client of this library then ends the connection, if that
    /// has version 1 or the call had bulk data.
    Discarded,
}

/// The credential and the verifier of a call that is signed when it is sent, and the verifier of its reply.
pub(crate) struct Signed {
    signer: Arc<dyn Sign>,
    pub(crate) credential: Auth,
    verifier: Auth,
    pub(crate) reply: Auth,
}

impl Signed {
    pub(crate) fn new(signer: Arc<dyn Sign>) -> Self {
        Self {
            signer,
            credential: Auth::NONE,
            verifier: Auth::NONE,
            reply: Auth::NONE,
        }
    }

    /// Signs the call for the message with this XID, which goes now: calls that wait neither use up numbers nor keep old ones, which
    /// leave the window of the server. Until then the last credential and verifier say how long the next ones are.
    pub(crate) fn sign(&mut self, xid: u32, call: Call) {
        self.credential = self.signer.credential();
        let header = CallHeader {
            xid,
            program: call.program,
            version: call.version,
            procedure: call.procedure,
            credential: self.credential.get(),
            verifier: OpaqueAuth::NONE,
        };
        let mut space = [0; HEADER_BYTES_MAX];
        let is_whole = header.encode(&mut space).is_ok();
        debug_assert!(is_whole, "an `Auth` is not longer than a header takes");
        let signed = space.get(..header.signed_bytes()).unwrap_or(&[]);
        self.verifier = self.signer.verifier(signed);
    }

    pub(crate) fn auth(&self) -> CallAuth<'_> {
        CallAuth {
            credential: self.credential.get(),
            verifier: self.verifier.get(),
        }
    }
}

impl fmt::Debug for Signed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.auth().fmt(f)
    }
}
