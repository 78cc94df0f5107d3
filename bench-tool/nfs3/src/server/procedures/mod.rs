//! The procedures: they decode the arguments, call the store, and encode the results.

mod files;
mod listing;
mod names;
mod system;

use rpcrdma_engine::Outcome;
use rpcrdma_protocol::xdr::Reader;
use rpcrdma_protocol::{DecodeError, EncodeError};

use super::Service;
use super::call::{Call, Items, Reply};
use crate::store::{Pages, Piece};
use crate::wire::auth_sys::Identity;
use crate::wire::types::Time;
use crate::wire::xdr::{Decode, Encode, Malformed};
use crate::wire::{Procedure, Status};

/// Why a call has no results.
#[derive(Debug)]
enum Refused {
    /// The arguments cannot be decoded.
    Garbage,
    /// The results do not fit.
    TooLong,
}

impl From<Malformed> for Refused {
    fn from(_: Malformed) -> Self {
        Self::Garbage
    }
}

impl From<DecodeError> for Refused {
    fn from(_: DecodeError) -> Self {
        Self::Garbage
    }
}

impl From<EncodeError> for Refused {
    fn from(_: EncodeError) -> Self {
        Self::TooLong
    }
}

type Answered = Result<(), Refused>;

/// The input of a procedure, and its reply.
struct Task<'a, I> {
    args: &'a [u8],
    items: &'a I,
    caller: &'a Identity,
    now: Time,
    reply: &'a mut Reply,
}

impl<'a, I: Items> Task<'a, I> {
    /// Decodes the arguments of a procedure without payload. Refuses data items and trailing octets.
    fn arguments<T: Decode<'a>>(&self) -> Result<T, Refused> {
        let (arguments, rest) = self.arguments_and_rest()?;
        if !rest.is_at_end() || self.items.count() > 0 {
            return Err(Refused::Garbage);
        }
        Ok(arguments)
    }

    /// Decodes the arguments before the payload. Also returns a reader for the rest.
    fn arguments_and_rest<T: Decode<'a>>(&self) -> Result<(T, Reader<'a>), Refused> {
        let mut reader = Reader::new(self.args);
        Ok((T::decode(&mut reader)?, reader))
    }

    /// The payload at the start of `rest`: variable-length opaque, in the stream or as a data item.
    fn payload(&self, rest: Reader<'a>) -> Result<Data<'a, I>, Refused> {
        let mut rest = rest;
        let before = rest;
        let length = rest.read_u32()? as usize;
        let data = match self.items.at(rest.position()) {
            Some(index) if self.items.is_of(index, length) && self.items.count() == 1 => Data {
                bytes: length,
                stream: None,
                item: Some((self.items, index)),
            },
            Some(_) => return Err(Refused::Garbage),
            None if self.items.count() > 0 => return Err(Refused::Garbage),
            None => {
                rest = before;
                let stream = rest.read_opaque(length)?;
                Data {
                    bytes: length,
                    stream: Some(stream),
                    item: None,
                }
            }
        };
        if !rest.is_at_end() {
            return Err(Refused::Garbage);
        }
        Ok(data)
    }

    /// Writes the results, or the status of a failure followed by `failed`.
    fn answer<Done: Encode, Failed: Encode>(
        &mut self,
        result: Result<Done, Status>,
        failed: impl FnOnce() -> Failed,
    ) -> Answered {
        self.reply.write(|writer| {
            match result {
                Ok(done) => {
                    Status::Ok.encode(writer)?;
                    done.encode(writer)
                }
                Err(status) => {
                    status.encode(writer)?;
                    failed().encode(writer)
                }
            }
            .map_err(Refused::from)
        })
    }
}

/// Nothing follows the status.
struct Nothing;

impl Encode for Nothing {
    fn encode(&self, _: &mut rpcrdma_protocol::xdr::Writer<'_>) -> Result<(), EncodeError> {
        Ok(())
    }
}

/// The payload of a WRITE or SYMLINK.
struct Data<'a, I> {
    bytes: usize,
    stream: Option<&'a [u8]>,
    item: Option<(&'a I, usize)>,
}

impl<'a, I: Items> Data<'a, I> {
    fn pieces(&self) -> impl Iterator<Item = Piece<'a>> + use<'a, I> {
        let item = self.item.into_iter();
        let pieces = item.flat_map(|(items, index)| items.pieces(index));
        // The pieces may end with padding, which is not part of the data.
        let pieces = pieces.scan(self.bytes, |rest, piece| {
            let piece = piece.first(*rest);
            *rest -= piece.bytes.len();
            Some(piece)
        });
        self.stream.into_iter().map(Piece::from).chain(pieces)
    }
}

impl<P: Pages> Service<P> {
    /// Executes a call. The caller has handled NULL, which has no arguments and no results.
    pub(super) fn execute<I: Items>(
        &mut self,
        procedure: Procedure,
        call: &Call<'_>,
        items: &I,
        caller: &Identity,
        now: Time,
        reply: &mut Reply,
    ) -> Outcome {
        let task = Task {
            args: call.args,
            items,
            caller,
            now,
            reply,
        };
        let answered = match procedure {
            Procedure::Null => Ok(()),
            Procedure::Getattr => self.getattr(task),
            Procedure::Setattr => self.setattr(task),
            Procedure::Lookup => self.lookup(task),
            Procedure::Access => self.access(task),
            Procedure::Readlink => self.readlink(task),
            Procedure::Read => self.read(task),
            Procedure::Write => self.write(task),
            Procedure::Create => self.create(task),
            Procedure::Mkdir => self.mkdir(task),
            Procedure::Symlink => self.symlink(task),
            Procedure::Mknod => self.mknod(task),
            Procedure::Remove => self.remove(task),
            Procedure::Rmdir => self.rmdir(task),
            Procedure::Rename => self.rename(task),
            Procedure::Link => self.link(task),
            Procedure::Readdir => self.readdir(task),
            Procedure::Readdirplus => self.readdirplus(task),
            Procedure::Fsstat => self.fsstat(task),
            Procedure::Fsinfo => self.fsinfo(task),
            Procedure::Pathconf => self.pathconf(task),
            Procedure::Commit => self.commit(task),
        };
        match answered {
            Ok(()) => Outcome::Success,
            Err(Refused::Garbage) => Outcome::GarbageArgs,
            Err(Refused::TooLong) => Outcome::SystemError,
        }
    }
}
