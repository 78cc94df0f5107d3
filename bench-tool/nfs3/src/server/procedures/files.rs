//! Procedures on a file: its attributes and its bytes.

use rpcrdma_protocol::xdr::Writer;

use super::{Answered, Nothing, Refused, Service, Task};
use crate::server::DATA_BYTES_MAX;
use crate::server::call::Items;
use crate::store::{Number, Pages};
use crate::wire::types::{Attributes, FileHandle, Stability, Wcc, WccAttributes};
use crate::wire::xdr::Encode;
use crate::wire::{Status, arguments, results};

/// The result of finding a file: its number, and its attributes before the operation.
type Found = Result<(Number, Option<WccAttributes>), Status>;

impl<P: Pages> Service<P> {
    /// Finds the file of a handle, and its attributes before the operation.
    pub(super) fn found(&self, handle: &FileHandle) -> Found {
        let file = self.store.find(handle)?;
        Ok((file, self.store.before(file)))
    }

    /// The attributes before and after an operation; empty if no file was found.
    pub(super) fn wcc_of(&self, found: &Found) -> Wcc {
        match found {
            Ok((file, before)) => self.store.wcc(*file, *before),
            Err(_) => Wcc::default(),
        }
    }

    /// The attributes of a file; `None` if no file was found.
    pub(super) fn attributes_of(&self, file: &Result<Number, Status>) -> Option<Attributes> {
        file.ok().and_then(|file| self.store.attributes(file))
    }

    pub(super) fn getattr<I: Items>(&mut self, mut task: Task<'_, I>) -> Answered {
        let handle: FileHandle = task.arguments()?;
        let file = self.store.find(&handle);
        let attributes = file.and_then(|file| self.store.attributes(file).ok_or(Status::Stale));
        task.answer(attributes, || Nothing)
    }

    pub(super) fn setattr<I: Items>(&mut self, mut task: Task<'_, I>) -> Answered {
        let arguments: arguments::Setattr = task.arguments()?;
        let found = self.found(&arguments.object);
        let set = found.and_then(|(file, _)| {
            let (set, guard) = (&arguments.attributes, arguments.guard);
            self.store
                .set_attributes(file, set, guard, task.caller, task.now)
        });
        let wcc = self.wcc_of(&found);
        task.answer(set.map(|()| wcc), || wcc)
    }

    pub(super) fn access<I: Items>(&mut self, mut task: Task<'_, I>) -> Answered {
        let arguments: arguments::Access = task.arguments()?;
        let file = self.store.find(&arguments.object);
        let access = file.and_then(|file| self.store.access(file, arguments.access, task.caller));
        let attributes = self.attributes_of(&file);
        let done = access.map(|access| results::Access { attributes, access });
        task.answer(done, || attributes)
    }

    pub(super) fn readlink<I: Items>(&mut self, mut task: Task<'_, I>) -> Answered {
        let handle: FileHandle = task.arguments()?;
        let file = self.store.find(&handle);
        let target = file.and_then(|file| Ok((file, self.store.target_bytes(file, task.now)?)));
        let attributes = self.attributes_of(&file);
        let done = target.map(|(_, bytes)| WithLength(attributes, bytes));
        task.answer(done, || attributes)?;
        if let Ok((file, bytes)) = target {
            task.reply.attach(file, 0, bytes);
        }
        Ok(())
    }

    pub(super) fn read<I: Items>(&mut self, mut task: Task<'_, I>) -> Answered {
        let arguments: arguments::Read = task.arguments()?;
        let file = self.store.find(&arguments.file);
        let count = arguments.count_bytes.min(DATA_BYTES_MAX);
        let read = file.and_then(|file| {
            let offset = arguments.offset_bytes;
            let read = self
                .store
                .read(file, offset, count, task.caller, task.now)?;
            Ok((file, read))
        });
        let attributes = self.attributes_of(&file);
        let done = read.map(|(_, (count_bytes, is_end))| {
            let read = results::Read {
                attributes,
                count_bytes,
                is_end,
            };
            WithLength(read, count_bytes)
        });
        task.answer(done, || attributes)?;
        if let Ok((file, (count_bytes, _))) = read {
            task.reply.attach(file, arguments.offset_bytes, count_bytes);
        }
        Ok(())
    }

    pub(super) fn write<I: Items>(&mut self, mut task: Task<'_, I>) -> Answered {
        let (arguments, rest): (arguments::Write, _) = task.arguments_and_rest()?;
        let data = task.payload(rest)?;
        if usize::try_from(arguments.count_bytes) != Ok(data.bytes) {
            return Err(Refused::Garbage);
        }
        let found = self.found(&arguments.file);
        let written = found.and_then(|(file, _)| {
            let range = (arguments.offset_bytes, arguments.count_bytes);
            self.store
                .write(file, range, data.pieces(), task.caller, task.now)
        });
        let wcc = self.wcc_of(&found);
        let verifier = self.store.verifier();
        // Memory does not become safer by a COMMIT, but a client that asked for an unstable write is left to
        // send one.
        let committed = match arguments.stability {
            Stability::Unstable => Stability::Unstable,
            Stability::DataSync | Stability::FileSync => Stability::FileSync,
        };
        let done = written.map(|count_bytes| results::Write {
            file: wcc,
            count_bytes,
            committed,
            verifier,
        });
        task.answer(done, || wcc)
    }

    pub(super) fn commit<I: Items>(&mut self, mut task: Task<'_, I>) -> Answered {
        let arguments: arguments::Commit = task.arguments()?;
        let found = self.found(&arguments.file);
        let committed = found.and_then(|(file, _)| self.store.commit(file));
        let file = self.wcc_of(&found);
        let verifier = self.store.verifier();
        let done = committed.map(|()| results::Commit { file, verifier });
        task.answer(done, || file)
    }
}

/// Results, followed by the length of the payload.
struct WithLength<T>(T, u32);

impl<T: Encode> Encode for WithLength<T> {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), rpcrdma_protocol::EncodeError> {
        self.0.encode(writer)?;
        writer.write_u32(self.1)
    }
}
