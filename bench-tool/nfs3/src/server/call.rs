//! A call and its reply, as every transport brings and takes them.

use std::fmt;
use std::net::IpAddr;

use rpcrdma_engine::Outcome;
use rpcrdma_protocol::rpc::OpaqueAuth;
use rpcrdma_protocol::xdr::Writer;

use crate::store::{Number, Piece};
use crate::wire::Status;
use crate::wire::xdr::Encode;

/// Who calls, by what stays the same when it connects again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    /// A host, by any transport.
    Host(IpAddr),
    /// A peer that has no address, by what the fabric counts it as: a process of this machine.
    Process(u64),
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(address) => address.fmt(f),
            Self::Process(key) => write!(f, "process {key}"),
        }
    }
}

/// A call.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// Who calls.
    pub peer: Peer,
    /// The number of the call: the same in its retransmissions.
    pub xid: u32,
    /// RPC program.
    pub program: u32,
    /// Its version.
    pub version: u32,
    /// Its procedure.
    pub procedure: u32,
    /// The caller's credential.
    pub credential: OpaqueAuth<'a>,
    /// The argument stream, without what came beside it.
    pub args: &'a [u8],
}

impl Call<'_> {
    /// The answer to a call that is not of this program and version (RFC 5531 section 9).
    pub(super) fn refused_unless(&self, program: u32, version: u32) -> Option<Outcome> {
        if self.program != program {
            return Some(Outcome::ProgramUnavailable);
        }
        (self.version != version).then_some(Outcome::ProgramMismatch {
            low: version,
            high: version,
        })
    }
}

/// What came beside the argument stream.
pub trait Items {
    /// The item that belongs where `args_offset` octets of the stream stand before it.
    fn at(&self, args_offset: usize) -> Option<usize>;

    /// Whether item `index` is an opaque of `bytes` octets. Its pieces may have some more, of round-up.
    fn is_of(&self, index: usize, bytes: usize) -> bool;

    /// How many items there are.
    fn count(&self) -> usize;

    /// The pieces of item `index`.
    fn pieces(&self, index: usize) -> impl Iterator<Item = Piece<'_>>;
}

/// Everything is in the stream, as on TCP.
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

/// The longest READDIR, in octets of XDR.
pub(super) const LISTING_BYTES_MAX: u32 = 64 * 1024;

/// Octets of results without their payload: a listing, and what stands around it.
const STREAM_BYTES: usize = LISTING_BYTES_MAX as usize + 1024;

/// The results of a call: a stream, and at most one payload, which is where the store has it. Used
/// again for every call.
#[derive(Debug)]
pub struct Reply {
    space: Box<[u8]>,
    written: usize,
    payload: Option<Payload>,
}

/// Data of a READ, or the target of a READLINK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payload {
    /// How many octets of the stream stand before it. Its length is the last word of them.
    pub stream_offset: usize,
    /// How many bytes it has, without padding.
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

    /// Lets `write` write all of the stream.
    pub(super) fn write<E>(
        &mut self,
        write: impl FnOnce(&mut Writer<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut writer = Writer::new(&mut self.space);
        let result = write(&mut writer);
        self.written = writer.position();
        result
    }

    /// Appends bytes of a file to the stream, in which its length was just written.
    pub(super) fn attach(&mut self, file: Number, offset_bytes: u64, bytes: u32) {
        self.payload = Some(Payload {
            stream_offset: self.written,
            bytes,
            file,
            offset_bytes,
        });
    }

    /// Puts a failure in the place of results that cannot be sent, for a procedure whose failures come
    /// with attributes or without: READ and READLINK.
    pub(super) fn fail(&mut self, status: Status) {
        self.clear();
        let written = self.write(|writer| {
            status.encode(writer)?;
            writer.write_bool(false)
        });
        debug_assert!(written.is_ok(), "two words fit");
    }

    /// What was answered before.
    pub(super) fn replay(&mut self, results: &[u8]) {
        if let Some(space) = self.space.get_mut(..results.len()) {
            space.copy_from_slice(results);
            self.written = results.len();
        }
    }
}
