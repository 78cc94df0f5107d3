//! Writing what goes out: a stream of XDR (RFC 4506), and data that goes beside it.

use std::ffi::{c_int, c_void};

use rpcrdma::Encode;

use crate::border::{Failed, done};
use crate::buffer::BufferHandle;
use crate::call::{Call, written};
use crate::pointers;

/// A call to write to, and what is written.
///
/// # Safety
/// As [`pointers::exclusive`] and [`pointers::bytes`].
unsafe fn writer<'a>(
    call: *mut Call,
    data: *const c_void,
    bytes: usize,
) -> Result<(&'a mut Call, &'a [u8]), Failed> {
    // SAFETY: the caller's promise.
    unsafe {
        Ok((
            pointers::exclusive(call, "call")?,
            pointers::bytes(data, bytes, "data")?,
        ))
    }
}

/// Appends a word (an XDR unsigned integer).
///
/// Errors, of all functions rpcrdma_put_...: RPCRDMA_E_USAGE when the call was sent, answered or failed. What does not fit makes
/// the whole message fail when it is sent: a call with RPCRDMA_E_TOO_LONG, an answer with RPCRDMA_E_SYSTEM_ERROR at the caller.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_put_u32(call: *mut Call, word: u32) -> c_int {
    done(|| {
        // SAFETY: the contract of the header.
        let call = unsafe { pointers::exclusive(call, "call") }?;
        written!(call, |to| {
            to.u32(word);
        })
    })
}

/// Appends a hyper (an XDR unsigned hyper).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_put_u64(call: *mut Call, hyper: u64) -> c_int {
    done(|| {
        // SAFETY: the contract of the header.
        let call = unsafe { pointers::exclusive(call, "call") }?;
        written!(call, |to| {
            to.u64(hyper);
        })
    })
}

/// Appends an opaque of variable length, or a string: length, data, and padding to a multiple of four. The data is copied into
/// the stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_put_opaque(
    call: *mut Call,
    data: *const c_void,
    bytes: usize,
) -> c_int {
    done(|| {
        // SAFETY: the contract of the header.
        let (call, data) = unsafe { writer(call, data, bytes)? };
        written!(call, |to| {
            to.opaque(data);
        })
    })
}

/// Appends bytes as they are, copied. A stream of XDR is a multiple of four bytes long. For programs with an XDR encoder of
/// their own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_put_bytes(
    call: *mut Call,
    data: *const c_void,
    bytes: usize,
) -> c_int {
    done(|| {
        // SAFETY: the contract of the header.
        let (call, data) = unsafe { writer(call, data, bytes)? };
        written!(call, |to| {
            to.bytes(data);
        })
    })
}

/// Appends an opaque of variable length: the length in the stream, and the data beside it, sent from where it is; in the stream
/// where the other end cannot take it otherwise, or where it is so short that a copy is faster. Takes the buffer, unless it
/// fails. The program must permit this for the item (it is DDP-eligible, RFC 8166 section 6).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_put_bulk(call: *mut Call, buffer: *mut BufferHandle) -> c_int {
    done(|| {
        // SAFETY: the contract of the header.
        let (call, handle) = unsafe {
            (
                pointers::exclusive(call, "call")?,
                pointers::exclusive(buffer, "buffer")?,
            )
        };
        // First, because a buffer that is refused stays the caller's.
        written!(call, |_to| ())?;
        match std::mem::replace(handle, BufferHandle::Plain(Vec::new())) {
            BufferHandle::Registered(data) => written!(call, |to| {
                to.bulk(data);
            })?,
            BufferHandle::Plain(data) => written!(call, |to| {
                to.bulk_copy(&data);
            })?,
        }
        // SAFETY: a function of this library made it, and the caller gives it up.
        drop(unsafe { pointers::take(buffer) });
        Ok(())
    })
}

/// As rpcrdma_put_bulk(), with data in ordinary memory, which is copied: into registered memory, or into the stream where there is
/// none to spare.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_put_bulk_copy(
    call: *mut Call,
    data: *const c_void,
    bytes: usize,
) -> c_int {
    done(|| {
        // SAFETY: the contract of the header.
        let (call, data) = unsafe { writer(call, data, bytes)? };
        written!(call, |to| {
            to.bulk_copy(data);
        })
    })
}
