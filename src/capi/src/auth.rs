//! Who calls, and the proof of it (RFC 5531 section 8.2): credentials and verifiers of both ends.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use rpcrdma::{Auth, Incoming, Response, Sign};

use crate::border::{Failed, done};
use crate::call::{Call, State};
use crate::pointers;

/// Calls with a credential: its flavor, and its body of at most 400 bytes (RFC 5531 section 8.2), which is copied.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_call_set_credential(
    call: *mut Call,
    flavor: u32,
    body: *const c_void,
    bytes: usize,
) -> c_int {
    done(|| {
        // SAFETY: the contract of the header.
        let (call, body) = unsafe {
            (
                pointers::exclusive(call, "call")?,
                pointers::bytes(body, bytes, "body")?,
            )
        };
        call.request()?.credential(flavor, body);
        Ok(())
    })
}

/// Puts a credential or verifier into its places.
///
/// # Safety
/// As [`pointers::exclusive`] and [`pointers::place`].
unsafe fn put_auth(
    call: *mut Call,
    (flavor, body, bytes): (*mut u32, *mut *const c_void, *mut usize),
    of_call: impl FnOnce(&Incoming<'static>) -> (u32, &'static [u8]),
    of_reply: impl FnOnce(&Response) -> Auth,
) -> c_int {
    done(|| {
        // SAFETY: the caller's promise.
        let (call, flavor_place, body_place, bytes_place) = unsafe {
            (
                pointers::exclusive(call, "call")?,
                pointers::place(flavor, "flavor")?,
                pointers::place(body, "body")?,
                pointers::place(bytes, "bytes")?,
            )
        };
        let (flavor, body) = call.auth(of_call, of_reply)?;
        flavor_place.set(flavor);
        body_place.set(body.as_ptr().cast());
        bytes_place.set(body.len());
        Ok(())
    })
}

/// The caller's credential in a handler: its flavor, and its body (RFC 5531 section 8.2), which is valid until the handler
/// returns. Of a call of this program that was signed (rpcrdma_call_sign()) and has its results: that of the message which was sent
/// last, until this or rpcrdma_call_verifier() is called again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_call_credential(
    call: *mut Call,
    flavor: *mut u32,
    body: *mut *const c_void,
    bytes: *mut usize,
) -> c_int {
    // SAFETY: the contract of the header.
    unsafe {
        let places = (flavor, body, bytes);
        put_auth(call, places, Incoming::credential, Response::credential)
    }
}

/// The caller's verifier in a handler, as rpcrdma_call_credential(). Of a call of this program that was signed and has its results: the
/// verifier of the reply, until this or rpcrdma_call_credential() is called again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_call_verifier(
    call: *mut Call,
    flavor: *mut u32,
    body: *mut *const c_void,
    bytes: *mut usize,
) -> c_int {
    // SAFETY: the contract of the header.
    unsafe {
        let places = (flavor, body, bytes);
        put_auth(call, places, Incoming::verifier, Response::verifier)
    }
}

/// In a handler: the call from its XID to the end of its credential, which the verifier of RPCSEC_GSS is computed over (RFC 2203
/// section 5.3.1). It is valid until the handler returns. No octets if the verifier is AUTH_NONE and has no body.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_call_signed(
    call: *mut Call,
    octets: *mut *const c_void,
    bytes: *mut usize,
) -> c_int {
    done(|| {
        // SAFETY: the contract of the header.
        let (call, octets_place, bytes_place) = unsafe {
            (
                pointers::exclusive(call, "call")?,
                pointers::place(octets, "octets")?,
                pointers::place(bytes, "bytes")?,
            )
        };
        let signed = call.judged()?.signed();
        octets_place.set(signed.as_ptr().cast());
        bytes_place.set(signed.len());
        Ok(())
    })
}

/// Gives the reply to a handler's call this verifier, of at most 400 bytes, in place of AUTH_NONE. It comes before all results,
/// and before rpcrdma_call_later(), whose answer has it too.
///
/// Errors: RPCRDMA_E_USAGE when results are written, `authenticate` has set a verifier, or the call is answered later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_call_set_verifier(
    call: *mut Call,
    flavor: u32,
    body: *const c_void,
    bytes: usize,
) -> c_int {
    done(|| {
        // SAFETY: the contract of the header.
        let (call, body) = unsafe {
            (
                pointers::exclusive(call, "call")?,
                pointers::bytes(body, bytes, "body")?,
            )
        };
        let verifier = auth(flavor, body)?;
        match &mut call.state {
            State::Judged(_) => call.verifier = verifier,
            State::Served(served) => served
                .reply()
                .set_verifier(&verifier)
                .map_err(|error| Failed::usage(error.to_string()))?,
            _ => return Err(Failed::usage("no handler has this call now")),
        }
        Ok(())
    })
}

fn auth(flavor: u32, body: &[u8]) -> Result<Auth, Failed> {
    Auth::new(flavor, body).ok_or_else(|| Failed::argument("a body has more than 400 bytes"))
}

/// A credential or verifier that a function of this program makes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct AuthBody {
    /// Its flavor.
    pub flavor: u32,
    /// The bytes of its body: at most 400.
    pub bytes: u32,
    /// Its body.
    pub body: [u8; 400],
}

/// The flavor of what a function in C did not make.
const NO_FLAVOR: u32 = u32::MAX;

/// A function of C that signs.
struct Signer {
    sign: unsafe extern "C" fn(*mut c_void, *const c_void, usize, *mut AuthBody),
    user: *mut c_void,
}

// SAFETY: `rpcrdma_call_sign` demands that any thread may call it.
unsafe impl Send for Signer {}
// SAFETY: as above.
unsafe impl Sync for Signer {}

impl Signer {
    fn made(&self, signed: &[u8]) -> Auth {
        let mut out = AuthBody {
            flavor: NO_FLAVOR,
            bytes: 0,
            body: [0; 400],
        };
        let start = match signed {
            [] => std::ptr::null(),
            signed => signed.as_ptr().cast(),
        };
        // SAFETY: `rpcrdma_call_sign` demands that it may be called. What is lent outlives the call.
        unsafe { (self.sign)(self.user, start, signed.len(), &raw mut out) };
        let body = out.body.get(..out.bytes as usize);
        let auth = body.and_then(|body| Auth::new(out.flavor, body));
        // Not AUTH_NONE, which is the credential of a caller without an identity.
        auth.or_else(|| Auth::new(NO_FLAVOR, &[]))
            .unwrap_or(Auth::NONE)
    }
}

impl Sign for Signer {
    fn credential(&self) -> Auth {
        self.made(&[])
    }

    fn verifier(&self, signed: &[u8]) -> Auth {
        self.made(signed)
    }
}

/// Calls with the credential and the verifier that `sign` makes each time that the call is sent, in place of
/// rpcrdma_call_set_credential(): RPCSEC_GSS needs another number in each message, and a verifier over the XID (RFC 2203
/// section 5.3.1).
///
/// `sign` makes the credential when `octets` is NULL, and then the verifier for the `bytes` bytes at `octets`: the call from its XID to
/// the end of its credential. It runs on threads of cores, and must not wait. `user` goes to it as it is, and must be valid until the node of the
/// client has ended. What is too long, or was not made, is sent as a credential that no server takes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_call_sign(
    call: *mut Call,
    sign: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            octets: *const c_void,
            bytes: usize,
            out: *mut AuthBody,
        ),
    >,
    user: *mut c_void,
) -> c_int {
    done(|| {
        // SAFETY: the contract of the header.
        let call = unsafe { pointers::exclusive(call, "call") }?;
        let sign = sign.ok_or_else(|| Failed::argument("`sign` is NULL"))?;
        call.request()?.sign(Arc::new(Signer { sign, user }));
        Ok(())
    })
}
