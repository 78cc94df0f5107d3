//! Reading what came in: a stream of XDR (RFC 4506), and data that came beside it.

use std::ffi::{c_int, c_void};

use libc::iovec;
use rpcrdma::Bulk;

use crate::border::{Failed, done};
use crate::buffer::{BufferHandle, put_pieces};
use crate::call::Call;
use crate::codes::RPCRDMA_E_TOO_LONG;
use crate::pointers::{self, Place};

/// A call to read from, and the places for the data that is read and for its length.
///
/// # Safety
/// As [`pointers::exclusive`] and [`pointers::place`].
unsafe fn reader<'a>(
    call: *mut Call,
    data: *mut *const c_void,
    bytes: *mut usize,
) -> Result<(&'a mut Call, Place<'a, *const c_void>, Place<'a, usize>), Failed> {
    // SAFETY: the caller's promise.
    unsafe {
        Ok((
            pointers::exclusive(call, "call")?,
            pointers::place(data, "data")?,
            pointers::place(bytes, "bytes")?,
        ))
    }
}

/// Takes a word (an XDR unsigned integer).
///
/// Errors, of all functions rpcrdma_get_...: RPCRDMA_E_GARBAGE_ARGS in a handler, which may return it, and
/// RPCRDMA_E_BAD_REPLY of a reply, when the stream has no such value next; RPCRDMA_E_USAGE when there is nothing to read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_get_u32(call: *mut Call, word: *mut u32) -> c_int {
    done(|| {
        // SAFETY: the contract of the header.
        let (call, place) = unsafe {
            (
                pointers::exclusive(call, "call")?,
                pointers::place(word, "word")?,
            )
        };
        place.set(call.read(|from, _| from.u32())?);
        Ok(())
    })
}

/// Says whether all that came in was read: a handler calls it before its call has effects, since arguments with more behind them are
/// not those of its procedure.
///
/// Errors: as rpcrdma_get_u32(), when there is more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_get_end(call: *mut Call) -> c_int {
    done(|| {
        // SAFETY: the contract of the header.
        let call = unsafe { pointers::exclusive(call, "call") }?;
        call.read(|from, _| from.end())
    })
}

/// Takes a hyper (an XDR unsigned hyper).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_get_u64(call: *mut Call, hyper: *mut u64) -> c_int {
    done(|| {
        // SAFETY: the contract of the header.
        let (call, place) = unsafe {
            (
                pointers::exclusive(call, "call")?,
                pointers::place(hyper, "hyper")?,
            )
        };
        place.set(call.read(|from, _| from.u64())?);
        Ok(())
    })
}

/// Takes an opaque of variable length from the stream, or a string. `data` is valid until the handler returns, or until
/// the handle begins another call or is freed. It does not end with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_get_opaque(
    call: *mut Call,
    data: *mut *const c_void,
    bytes: *mut usize,
) -> c_int {
    done(|| {
        // SAFETY: the contract of the header.
        let (call, data, bytes) = unsafe { reader(call, data, bytes)? };
        let opaque = call.read(|from, _| from.opaque().map(std::ptr::from_ref))?;
        data.set(opaque.cast());
        bytes.set(opaque.len());
        Ok(())
    })
}

/// Takes `bytes` bytes of the stream as they are. `data` is valid as that of rpcrdma_get_opaque().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_get_bytes(
    call: *mut Call,
    bytes: usize,
    data: *mut *const c_void,
) -> c_int {
    done(|| {
        // SAFETY: the contract of the header.
        let (call, data) = unsafe {
            (
                pointers::exclusive(call, "call")?,
                pointers::place(data, "data")?,
            )
        };
        let taken = call.read(|from, _| from.bytes(bytes).map(std::ptr::from_ref))?;
        data.set(taken.cast());
        Ok(())
    })
}

/// What is left of the stream, without what came beside it; nothing is taken. `data` is valid as that of
/// rpcrdma_get_opaque(). For programs with an XDR decoder of their own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_get_rest(
    call: *mut Call,
    data: *mut *const c_void,
    bytes: *mut usize,
) -> c_int {
    done(|| {
        // SAFETY: the contract of the header.
        let (call, data, bytes) = unsafe { reader(call, data, bytes)? };
        let rest = call.read(|from, _| Ok(std::ptr::from_ref(from.rest())))?;
        data.set(rest.cast());
        bytes.set(rest.len());
        Ok(())
    })
}

/// Takes an opaque whose data may have come beside the stream, whichever way it came, in one piece: where it is, or
/// copied together if it is in several. `data` is valid as that of rpcrdma_get_opaque(), but not longer than until the next
/// rpcrdma_get_bulk() of this call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_get_bulk(
    call: *mut Call,
    data: *mut *const c_void,
    bytes: *mut usize,
) -> c_int {
    done(|| {
        // SAFETY: the contract of the header.
        let (call, data, bytes) = unsafe { reader(call, data, bytes)? };
        let whole = call.read(|from, joined| Ok(in_one_piece(&from.bulk()?, joined)))?;
        data.set(whole.cast());
        bytes.set(whole.len());
        Ok(())
    })
}

fn in_one_piece(bulk: &Bulk<'_>, joined: &mut Vec<u8>) -> *const [u8] {
    let mut pieces = bulk.pieces();
    match (pieces.next(), pieces.next()) {
        (None, _) => &[],
        (Some(piece), None) => piece,
        _ => {
            joined.clear();
            joined.extend(bulk.pieces().flatten());
            joined.as_slice()
        }
    }
}

/// As rpcrdma_get_bulk(), but never copies: `pieces` has room for `room` entries, of which `count` are set. Write to none
/// of them. Results have 32 at most; arguments can have more when a peer sends them so.
///
/// Errors: also RPCRDMA_E_TOO_LONG when there are more than `room`. The item is taken then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_get_bulk_pieces(
    call: *mut Call,
    pieces: *mut iovec,
    room: usize,
    count: *mut usize,
) -> c_int {
    done(|| {
        // SAFETY: the contract of the header.
        let (call, room, place) = unsafe {
            (
                pointers::exclusive(call, "call")?,
                pointers::room(pieces, room, "pieces")?,
                pointers::place(count, "count")?,
            )
        };
        let count = call.read(|from, _| Ok(put_pieces(from.bulk()?.pieces(), room)))?;
        if count > room.len() {
            let text = format!(
                "the item has {count} pieces, and there is room for {}",
                room.len()
            );
            return Err(Failed::new(RPCRDMA_E_TOO_LONG, text));
        }
        place.set(count);
        Ok(())
    })
}

/// As rpcrdma_get_bulk(), and keeps the data: without a copy if it came in registered memory, copied if it came in the stream or
/// in more than 32 pieces.
/// The memory is there for no other call before rpcrdma_buffer_free(), or rpcrdma_put_bulk() sends it on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_take_bulk(
    call: *mut Call,
    buffer: *mut *mut BufferHandle,
) -> c_int {
    done(|| {
        // SAFETY: the contract of the header.
        let (call, place) = unsafe {
            (
                pointers::exclusive(call, "call")?,
                pointers::place(buffer, "buffer")?,
            )
        };
        let taken = call.read(|from, _| {
            Ok(match from.bulk()?.take() {
                Ok(buffer) => BufferHandle::Registered(buffer),
                Err(bulk) => BufferHandle::Plain(bulk.to_vec()),
            })
        })?;
        place.put(taken);
        Ok(())
    })
}
