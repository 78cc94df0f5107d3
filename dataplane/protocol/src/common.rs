//! The four words with which a header of every version begins (RFC 8166 section 7).

use crate::constants::COMMON_PREFIX_BYTES;

/// The first four words of a message, from which the version is known before anything else is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CommonPrefix {
    /// The XID.
    pub xid: u32,
    /// The version of the header.
    pub version: u32,
    /// The credit word; what it means depends on the version.
    pub credit: u32,
    /// The header type; what it means depends on the version.
    pub header_type: u32,
}

impl CommonPrefix {
    /// Reads the prefix. `None` for a shorter message, which has to be discarded.
    #[inline]
    #[must_use]
    pub fn peek(message: &[u8]) -> Option<Self> {
        let words = message.first_chunk::<COMMON_PREFIX_BYTES>()?;
        let [
            x0,
            x1,
            x2,
            x3,
            v0,
            v1,
            v2,
            v3,
            c0,
            c1,
            c2,
            c3,
            t0,
            t1,
            t2,
            t3,
        ] = *words;
        Some(Self {
            xid: u32::from_be_bytes([x0, x1, x2, x3]),
            version: u32::from_be_bytes([v0, v1, v2, v3]),
            credit: u32::from_be_bytes([c0, c1, c2, c3]),
            header_type: u32::from_be_bytes([t0, t1, t2, t3]),
        })
    }
}
