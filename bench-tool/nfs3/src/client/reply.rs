//! What servers answer, read with suspicion: a reply that goes on behind its results, tells more than was asked
//! for, or does not agree with itself is an error, because a server that is to be qualified does not get the benefit
//! of the doubt.

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
    /// The server says so.
    #[error("{0}")]
    Status(Status),
    /// MOUNT's server says so.
    #[error("{}", .0.name())]
    Mount(MountStatus),
    /// The reply is none to this procedure.
    #[error("the results cannot be decoded: {0}")]
    Malformed(#[from] Malformed),
    /// More was done than was asked for.
    #[error("{told} bytes are told of a call for {asked}")]
    TooMuch {
        /// What the call asked for.
        asked: u32,
        /// What the reply tells.
        told: u32,
    },
    /// The length of the data is not the count that is told beside it.
    #[error("{told} bytes are told and {there} are there")]
    CountMismatch {
        /// The count.
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

/// Nothing follows.
fn end(reader: &Reader<'_>) -> Result<(), ReplyError> {
    if reader.is_at_end() {
        Ok(())
    } else {
        Err(reader.error(Reason::TrailingBytes).into())
    }
}

/// Status and results; of a failure also what follows the status, so that one that is cut is told as such.
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

/// What stands where a failure tells nothing more.
struct Nothing;

impl Decode<'_> for Nothing {
    fn decode(_: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self)
    }
}

/// Of NULL, which has none.
pub fn null(results: &[u8]) -> Result<(), ReplyError> {
    end(&Reader::new(results))
}

/// Of GETATTR.
pub fn getattr(results: &[u8]) -> Result<Attributes, ReplyError> {
    whole::<Attributes, Nothing>(results)
}

/// Of LOOKUP.
pub fn lookup(results: &[u8]) -> Result<FileHandle, ReplyError> {
    whole::<Lookup, Option<Attributes>>(results).map(|found| found.object)
}

/// Of CREATE and MKDIR: a server may leave the handle out, and a LOOKUP tells it then.
pub fn created(results: &[u8]) -> Result<Option<FileHandle>, ReplyError> {
    whole::<Created, Wcc>(results).map(|made| made.object)
}

/// Of SETATTR, REMOVE and RMDIR.
pub fn changed(results: &[u8]) -> Result<(), ReplyError> {
    whole::<Wcc, Wcc>(results).map(|_| ())
}

/// Of FSINFO.
pub fn fsinfo(results: &[u8]) -> Result<Fsinfo, ReplyError> {
    whole::<Fsinfo, Option<Attributes>>(results)
}

/// Of COMMIT.
pub fn commit(results: &[u8]) -> Result<Commit, ReplyError> {
    whole::<Commit, Wcc>(results)
}

/// Of a WRITE of `asked` bytes.
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

/// Where the data of a READ is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadData<'a> {
    /// In the results.
    Inline(&'a [u8]),
    /// Outside them, as bulk data.
    Bulk,
}

/// The results of READ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadReply<'a> {
    /// Bytes read.
    pub count_bytes: u32,
    /// Whether the file ends behind them.
    pub is_end: bool,
    /// The data.
    pub data: ReadData<'a>,
}

/// Of a READ of `asked` bytes; `bulk_bytes` of data came outside the results, 0 is none.
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
        // The padding is with the data, in the results, or nowhere.
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

/// Flavors of credentials that a server may name: more than there are.
const FLAVORS_MAX: u32 = 64;

/// What MNT gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// The handle of the path.
    pub root: FileHandle,
}

/// Of MNT (RFC 1813 section 5.2.1). The flavors of credentials after the handle are read and ignored: the client uses
/// only one, and the server refuses calls with a flavor that it does not accept.
pub fn mounted(results: &[u8]) -> Result<Mounted, ReplyError> {
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
    Ok(Mounted { root })
}

#[cfg(test)]
mod tests;
