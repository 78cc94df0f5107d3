//! A call and its reply, in a form for every transport.

use rpcrdma::once::Peer;
use rpcrdma_protocol::rpc::OpaqueAuth;
use rpcrdma_protocol::xdr::Writer;

use super::Session;
use crate::store::{Number, Piece};
use crate::wire::Status;
use crate::wire::xdr::Encode;

/// A call.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// Where the caller is.
    pub peer: Peer,
    /// What the server keeps of the caller's calls; `None` if it has no room for that.
    pub session: Option<&'a Session>,
    /// When its connection was asked for, among those of the process.
    pub arrival: u64,
    /// The number of the call. Retransmissions have the same.
    pub xid: u32,
    /// The procedure.
    pub procedure: u32,
    /// The caller's credential.
    pub credential: OpaqueAuth<'a>,
    /// The argument stream, without the data that RDMA moved outside it.
    pub args: &'a [u8],
}

/// The data items of a call that RDMA moved outside the argument stream.
pub trait Items {
    /// The item that belongs after the first `args_offset` octets of the stream.
    fn at(&self, args_offset: usize) -> Option<usize>;

    /// Whether item `index` is an opaque of `bytes` octets. Its pieces may also contain the padding.
    fn is_of(&self, index: usize, bytes: usize) -> bool;

    /// The number of items.
    fn count(&self) -> usize;

    /// The pieces of item `index`.
    fn pieces(&self, index: usize) -> impl Iterator<Item = Piece<'_>>;
}

/// No items: everything is in the stream, as on TCP.
#[derive(Clone, Copy, Debug)]
pub struct NoItems;

impl Items for NoItems {
    fn at(&self, _args_offset: usize) -> Option<usize> {
        None
    }

    fn is_of(&self, _index: usize, _bytes: usize) -> bool {
        false
    }

    fn count(&self) -> usize {
        0
    }

    fn pieces(&self, _index: usize) -> impl Iterator<Item = Piece<'_>> {
        std::iter::empty()
    }
}

/// The longest results of READDIR and READDIRPLUS, in octets of XDR.
pub(super) const LISTING_BYTES_MAX: u32 = 64 * 1024;

/// The longest results in octets, without their payload: a listing and its other fields.
const STREAM_BYTES: usize = LISTING_BYTES_MAX as usize + 1024;

/// The results of a call: a stream, and at most one payload, which stays in the store's memory. It is
/// reused for each call.
#[derive(Debug)]
pub struct Reply {
    space: Box<[u8]>,
    written: usize,
    payload: Option<Payload>,
}

/// The data of a READ, or the target of a READLINK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payload {
    /// The octets of the stream before it. Their last word is its length.
    pub stream_offset: usize,
    /// Its length in bytes, without padding.
    pub bytes: u32,
    pub(super) file: Number,
    pub(super) offset_bytes: u64,
}

impl Default for Reply {
    fn default() -> Self {
        Self::new()
    }
}

impl Reply {
    /// Empty results.
    #[must_use]
    pub fn new() -> Self {
        Self {
            space: vec![0; STREAM_BYTES].into_boxed_slice(),
            written: 0,
            payload: None,
        }
    }

    /// The result stream without the payload and its padding.
    #[must_use]
    pub fn stream(&self) -> &[u8] {
        self.space.get(..self.written).unwrap_or(&[])
    }

    /// The payload.
    #[must_use]
    pub fn payload(&self) -> Option<&Payload> {
        self.payload.as_ref()
    }

    pub(super) fn clear(&mut self) {
        self.written = 0;
        self.payload = None;
    }

    /// Replaces the stream by what `write` writes.
    pub(super) fn write<E>(
        &mut self,
        write: impl FnOnce(&mut Writer<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut writer = Writer::new(&mut self.space);
        let result = write(&mut writer);
        self.written = writer.position();
        result
    }

    /// Makes bytes of a file the payload. The stream ends with their length.
    pub(super) fn attach(&mut self, file: Number, offset_bytes: u64, bytes: u32) {
        self.payload = Some(Payload {
            stream_offset: self.written,
            bytes,
            file,
            offset_bytes,
        });
    }

    /// Replaces results that cannot be sent by a failure without attributes. Use it for READ and READLINK,
    /// whose failures have optional attributes.
    pub(super) fn fail(&mut self, status: Status) {
        self.clear();
        let written = self.write(|writer| {
            status.encode(writer)?;
            writer.write_bool(false)
        });
        debug_assert!(written.is_ok(), "two words fit");
    }

    /// Repeats earlier results.
    pub(super) fn replay(&mut self, results: &[u8]) {
        if let Some(space) = self.space.get_mut(..results.len()) {
            space.copy_from_slice(results);
            self.written = results.len();
        }
    }
}
