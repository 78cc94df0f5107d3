//! Buffers: registered memory, and copies that stand in for it.

use std::ffi::{c_int, c_void};

use libc::iovec;
use rpcrdma::Buffer;

use crate::border::{Failed, done, value};
use crate::codes::RPCRDMA_E_TOO_LONG;
use crate::pointers;

/// Bytes in registered memory, in one or several pieces: data that is sent from where it is, or that came by RDMA. It may be
/// kept as long as needed; its memory is there for no other call meanwhile (bulk_buffers of the profile).
#[expect(
    clippy::large_enum_variant,
    reason = "a handle is one allocation, whatever it holds"
)]
pub enum BufferHandle {
    /// Registered memory.
    Registered(Buffer),
    /// What came in the stream, copied.
    Plain(Vec<u8>),
}

impl BufferHandle {
    fn len(&self) -> usize {
        match self {
            Self::Registered(buffer) => buffer.len(),
            Self::Plain(bytes) => bytes.len(),
        }
    }
}

/// The length of a buffer in bytes. 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_buffer_bytes(buffer: *const BufferHandle) -> usize {
    value(0, || {
        // SAFETY: the contract of the header.
        Ok(unsafe { pointers::shared(buffer, "buffer") }?.len())
    })
}

/// The pieces of a buffer, in order, to be read or written until it is freed or sent: as many as there is room for go to
/// `pieces`, and the number of all to `count`. Most buffers have one: a piece has up to bulk_buffer_bytes of the profile. 32
/// entries are enough.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_buffer_pieces(
    buffer: *mut BufferHandle,
    pieces: *mut iovec,
    room: usize,
    count: *mut usize,
) -> c_int {
    done(|| {
        // SAFETY: the contract of the header.
        let (buffer, room, place) = unsafe {
            (
                pointers::exclusive(buffer, "buffer")?,
                pointers::room(pieces, room, "pieces")?,
                pointers::place(count, "count")?,
            )
        };
        place.set(match buffer {
            BufferHandle::Registered(buffer) => {
                // By way of what may be written, because C writes there.
                put_pieces(buffer.pieces_mut().map(|piece| &*piece), room)
            }
            BufferHandle::Plain(bytes) => put_pieces(std::iter::once(&*bytes.as_mut_slice()), room),
        });
        Ok(())
    })
}

/// Copies `bytes` bytes to the start of a buffer.
///
/// Errors: RPCRDMA_E_TOO_LONG when it is shorter. What fits is copied.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_buffer_write(
    buffer: *mut BufferHandle,
    data: *const c_void,
    bytes: usize,
) -> c_int {
    done(|| {
        // SAFETY: the contract of the header.
        let (buffer, data) = unsafe {
            (
                pointers::exclusive(buffer, "buffer")?,
                pointers::bytes(data, bytes, "data")?,
            )
        };
        let copied = match buffer {
            BufferHandle::Registered(buffer) => buffer.copy_from(data),
            BufferHandle::Plain(room) => {
                let count = room.len().min(data.len());
                room[..count].copy_from_slice(&data[..count]);
                count
            }
        };
        check_copied(copied, bytes)
    })
}

/// Copies `bytes` bytes from the start of a buffer to `data`.
///
/// Errors: RPCRDMA_E_TOO_LONG when it is shorter. What it has is copied.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_buffer_read(
    buffer: *const BufferHandle,
    data: *mut c_void,
    bytes: usize,
) -> c_int {
    done(|| {
        // SAFETY: the contract of the header.
        let (buffer, room) = unsafe {
            (
                pointers::shared(buffer, "buffer")?,
                pointers::room(data.cast::<u8>(), bytes, "data")?,
            )
        };
        let mut copied = 0;
        let mut copy = |piece: &[u8]| {
            let places = room.get_mut(copied..).into_iter().flatten();
            for (place, byte) in places.zip(piece) {
                place.write(*byte);
                copied += 1;
            }
        };
        match buffer {
            BufferHandle::Registered(buffer) => buffer.pieces().for_each(copy),
            BufferHandle::Plain(bytes) => copy(bytes),
        }
        check_copied(copied, bytes)
    })
}

fn check_copied(copied: usize, wanted: usize) -> Result<(), Failed> {
    if copied == wanted {
        return Ok(());
    }
    let text = format!("{wanted} bytes are more than the {copied} of the buffer");
    Err(Failed::new(RPCRDMA_E_TOO_LONG, text))
}

/// Gives the memory of a buffer back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_buffer_free(buffer: *mut BufferHandle) {
    done(|| {
        // SAFETY: the contract of the header.
        drop(unsafe { pointers::take(buffer) });
        Ok(())
    });
}

/// Puts the pieces that there is room for, and counts them all.
pub(crate) fn put_pieces<'a>(
    pieces: impl Iterator<Item = &'a [u8]>,
    room: &mut [std::mem::MaybeUninit<iovec>],
) -> usize {
    let mut places = room.iter_mut();
    let mut count = 0;
    for piece in pieces {
        count += 1;
        if let Some(place) = places.next() {
            place.write(iovec {
                iov_base: piece.as_ptr().cast_mut().cast(),
                iov_len: piece.len(),
            });
        }
    }
    count
}
