//! XDR (RFC 4506), as far as RPC-over-RDMA needs it: a reader over received bytes and a writer into given space.
//!
//! Neither of them allocates or panics, and the reader never reads beyond its input.

mod fixed_words;
mod reader;
mod writer;

pub(crate) use fixed_words::{put_word, word};
pub use reader::Reader;
pub use writer::Writer;

/// How many zero octets follow `len_bytes` of opaque data (RFC 4506 sections 4.9 and 4.10).
#[inline]
#[must_use]
pub const fn padding_bytes(len_bytes: usize) -> usize {
    len_bytes.wrapping_neg() & 3
}
