//! Checks the replies of servers strictly. A reply that continues after its results, reports more than the call asked
//! for, or contradicts itself is an error: the tool is used to qualify servers.

use rpcrdma_protocol::error::Reason;
use rpcrdma_protocol::xdr::{Reader, padding_bytes};

use crate::wire::mount::MountStatus;
use crate::wire::results::{self, Commit, Created, Fsinfo, Lookup, Write};
use crate::wire::types::{Attributes, Wcc};
use crate::wire::xdr::{Decode, Malformed};
use crate::wire::{FileHandle, Status};

/// Why a reply gave no results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplyError {
    /// The procedure failed with this status.
    #[error("{0}")]
    Status(Status),
    /// MNT failed with this status.
    #[error("{}", .0.name())]
    Mount(MountStatus),
    /// The bytes are not results of this procedure.
    #[error("the results cannot be decoded: {0}")]
    Malformed(#[from] Malformed),
    /// The server reports more bytes than the call asked for.
    #[error("the reply reports {told} bytes for a call of {asked}")]
    TooMuch {
        /// The bytes of the call.
        asked: u32,
        /// The bytes that the reply reports.
        told: u32,
    },
    /// The data does not have the length that the reply reports.
    #[error("the reply reports {told} bytes but has {there}")]
    CountMismatch {
        /// The reported bytes.
        told: u32,
        /// The length of the data.
        there: u64,
    },
}

impl From<rpcrdma_protocol::DecodeError> for ReplyError {
    fn from(error: rpcrdma_protocol::DecodeError) -> Self {
        Self::Malformed(error.into())
    }
}

/// Checks that nothing follows.
fn end(reader: &Reader<'_>) -> Result<(), ReplyError> {
    if reader.is_at_end() {
        Ok(())
    } else {
        Err(reader.error(Reason::TrailingBytes).into())
    }
}

/// Decodes the status and the results. Of a failure it also decodes what follows the status, so that a truncated reply is
/// reported as malformed.
fn begin<'a, Done: Decode<'a>, Failed: Decode<'a>>(
    reader: &mut Reader<'a>,
) -> Result<Done, ReplyError> {
    match results::decode::<Done, Failed>(reader)? {
        Ok(done) => Ok(done),
        Err((status, _)) => {
            end(reader)?;
            Err(ReplyError::Status(status))
        }
    }
}

fn whole<'a, Done: Decode<'a>, Failed: Decode<'a>>(results: &'a [u8]) -> Result<Done, ReplyError> {
    let mut reader = Reader::new(results);
    let done = begin::<Done, Failed>(&mut reader)?;
    end(&reader)?;
    Ok(done)
}

/// Nothing follows the status of a failure.
struct Nothing;

impl Decode<'_> for Nothing {
    fn decode(_: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self)
    }
}

/// Checks the results of NULL, which are empty.
pub fn null(results: &[u8]) -> Result<(), ReplyError> {
    end(&Reader::new(results))
}

/// Decodes the results of GETATTR.
pub fn getattr(results: &[u8]) -> Result<Attributes, ReplyError> {
    whole::<Attributes, Nothing>(results)
}

/// Decodes the results of LOOKUP.
pub fn lookup(results: &[u8]) -> Result<FileHandle, ReplyError> {
    whole::<Lookup, Option<Attributes>>(results).map(|found| found.object)
}

/// Decodes the results of CREATE and MKDIR. A server may leave the handle out; LOOKUP returns it then.
pub fn created(results: &[u8]) -> Result<Option<FileHandle>, ReplyError> {
    whole::<Created, Wcc>(results).map(|made| made.object)
}

/// Checks the results of SETATTR, REMOVE and RMDIR.
pub fn changed(results: &[u8]) -> Result<(), ReplyError> {
    whole::<Wcc, Wcc>(results).map(|_| ())
}

/// Decodes the results of FSINFO.
pub fn fsinfo(results: &[u8]) -> Result<Fsinfo, ReplyError> {
    whole::<Fsinfo, Option<Attributes>>(results)
}

/// Decodes the results of COMMIT.
pub fn commit(results: &[u8]) -> Result<Commit, ReplyError> {
    whole::<Commit, Wcc>(results)
}

/// Decodes the results of a WRITE of `asked` bytes.
#[inline]
pub fn write(results: &[u8], asked: u32) -> Result<Write, ReplyError> {
    let written = whole::<Write, Wcc>(results)?;
    if written.count_bytes > asked {
        return Err(ReplyError::TooMuch {
            asked,
            told: written.count_bytes,
        });
    }
    Ok(written)
}

/// The place of a READ's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadData<'a> {
    /// In the results.
    Inline(&'a [u8]),
    /// Outside the results: RDMA has moved it.
    Bulk,
}

/// The results of READ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadReply<'a> {
    /// The number of bytes read.
    pub count_bytes: u32,
    /// Whether they reach the end of the file.
    pub is_end: bool,
    /// The place of the data.
    pub data: ReadData<'a>,
}

/// Decodes the results of a READ of `asked` bytes. RDMA has moved `bulk_bytes` bytes of data outside the results; 0 means
/// none.
#[inline]
pub fn read(results: &[u8], asked: u32, bulk_bytes: usize) -> Result<ReadReply<'_>, ReplyError> {
    let mut reader = Reader::new(results);
    let done = begin::<results::Read, Option<Attributes>>(&mut reader)?;
    let told = done.count_bytes;
    if told > asked {
        return Err(ReplyError::TooMuch { asked, told });
    }
    let with_length = reader;
    let there = reader.read_u32()?;
    let mismatch = |there| Err(ReplyError::CountMismatch { told, there });
    if told != there {
        return mismatch(there.into());
    }
    let bytes = there as usize;
    let padding = padding_bytes(bytes);
    let data = if bulk_bytes == 0 {
        reader = with_length;
        let data = reader.read_opaque(bytes)?;
        end(&reader)?;
        ReadData::Inline(data)
    } else if bulk_bytes == bytes || bulk_bytes == bytes + padding {
        // Servers differ in where the padding is: with the data, in the results, or left out.
        if !matches!(reader.rest().len(), 0) && reader.rest().len() != padding {
            return Err(reader.error(Reason::TrailingBytes).into());
        }
        ReadData::Bulk
    } else {
        return mismatch(bulk_bytes as u64);
    };
    Ok(ReadReply {
        count_bytes: told,
        is_end: done.is_end,
        data,
    })
}

/// The most flavors of credentials in a reply of MNT; fewer are defined.
const FLAVORS_MAX: u32 = 64;

/// The handle of the path in the results of MNT (RFC 1813 section 5.2.1). The flavors of credentials after the handle are read and ignored:
/// the client uses only one, and the server refuses calls with a flavor that it does not accept.
pub fn mounted(results: &[u8]) -> Result<FileHandle, ReplyError> {
    let mut reader = Reader::new(results);
    match MountStatus::decode(&mut reader)? {
        MountStatus::Ok => {}
        status => return Err(ReplyError::Mount(status)),
    }
    let root = FileHandle::decode(&mut reader)?;
    let before = reader;
    let count = reader.read_u32()?;
    if count > FLAVORS_MAX {
        return Err(before.error(Reason::OpaqueTooLong).into());
    }
    for _ in 0..count {
        reader.read_u32()?;
    }
    end(&reader)?;
    Ok(root)
}

#[cfg(test)]
mod tests;
