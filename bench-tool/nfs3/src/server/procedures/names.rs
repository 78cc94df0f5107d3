//! Procedures on names.

use super::{Answered, Data, Service, Task};
use crate::server::call::Items;
use crate::store::{NewFile, Number, Pages, Piece, TARGET_BYTES_MAX};
use crate::wire::types::{FileHandle, Place, WccAttributes};
use crate::wire::{Status, arguments, results};

impl<P: Pages> Service<P> {
    pub(super) fn lookup<I: Items>(&mut self, mut task: Task<'_, I>) -> Answered {
        let place: Place<'_> = task.arguments()?;
        let directory = self.store.find(&place.directory);
        let file =
            directory.and_then(|directory| self.store.lookup(directory, place.name, task.caller));
        let directory = self.attributes_of(&directory);
        let done = file.and_then(|number| {
            Ok(results::Lookup {
                object: self.store.handle(number).ok_or(Status::Stale)?,
                attributes: self.attributes_of(&file),
                directory,
            })
        });
        task.answer(done, || directory)
    }

    pub(super) fn create<I: Items>(&mut self, task: Task<'_, I>) -> Answered {
        let arguments: arguments::Create<'_> = task.arguments()?;
        let (name, caller, now) = (arguments.place.name, *task.caller, task.now);
        self.made(task, &arguments.place.directory, |service, directory| {
            service
                .store
                .create(directory, name, &arguments.how, &caller, now)
        })
    }

    pub(super) fn mkdir<I: Items>(&mut self, task: Task<'_, I>) -> Answered {
        let arguments: arguments::Mkdir<'_> = task.arguments()?;
        let (name, caller, now) = (arguments.place.name, *task.caller, task.now);
        self.made(task, &arguments.place.directory, |service, directory| {
            let attributes = &arguments.attributes;
            service.store.make(
                directory,
                name,
                NewFile::Directory,
                attributes,
                &caller,
                now,
            )
        })
    }

    pub(super) fn symlink<I: Items>(&mut self, task: Task<'_, I>) -> Answered {
        let (arguments, rest): (arguments::Symlink<'_>, _) = task.arguments_and_rest()?;
        let target = task.payload(rest)?;
        let (name, caller, now) = (arguments.place.name, *task.caller, task.now);
        self.made(task, &arguments.place.directory, |service, directory| {
            let target = joined(&target)?;
            let new = NewFile::SymbolicLink(&target);
            service
                .store
                .make(directory, name, new, &arguments.attributes, &caller, now)
        })
    }

    pub(super) fn mknod<I: Items>(&mut self, task: Task<'_, I>) -> Answered {
        let arguments: arguments::Mknod<'_> = task.arguments()?;
        let (name, caller, now) = (arguments.place.name, *task.caller, task.now);
        self.made(task, &arguments.place.directory, |service, directory| {
            let node = arguments.node;
            if !node.is_makeable() {
                return Err(Status::BadType);
            }
            let new = NewFile::Special(node.kind, node.device);
            service
                .store
                .make(directory, name, new, &node.attributes, &caller, now)
        })
    }

    /// Answers a call that makes a file in a directory, by `make`.
    fn made<I: Items>(
        &mut self,
        mut task: Task<'_, I>,
        directory: &FileHandle,
        make: impl FnOnce(&mut Self, Number) -> Result<Number, Status>,
    ) -> Answered {
        let found = self.found(directory);
        let file = found.and_then(|(directory, _)| make(self, directory));
        let directory = self.wcc_of(&found);
        let done = file.map(|number| results::Created {
            object: self.store.handle(number),
            attributes: self.attributes_of(&file),
            directory,
        });
        task.answer(done, || directory)
    }

    pub(super) fn remove<I: Items>(&mut self, mut task: Task<'_, I>) -> Answered {
        let place: Place<'_> = task.arguments()?;
        let found = self.found(&place.directory);
        let removed = found.and_then(|(directory, _)| {
            self.store
                .remove(directory, place.name, task.caller, task.now)
        });
        let wcc = self.wcc_of(&found);
        task.answer(removed.map(|()| wcc), || wcc)
    }

    pub(super) fn rmdir<I: Items>(&mut self, mut task: Task<'_, I>) -> Answered {
        let place: Place<'_> = task.arguments()?;
        let found = self.found(&place.directory);
        let removed = found.and_then(|(directory, _)| {
            self.store
                .remove_directory(directory, place.name, task.caller, task.now)
        });
        let wcc = self.wcc_of(&found);
        task.answer(removed.map(|()| wcc), || wcc)
    }

    pub(super) fn rename<I: Items>(&mut self, mut task: Task<'_, I>) -> Answered {
        let arguments: arguments::Rename<'_> = task.arguments()?;
        let (from, to) = (arguments.from, arguments.to);
        let found: [Result<(Number, Option<WccAttributes>), Status>; 2] =
            [self.found(&from.directory), self.found(&to.directory)];
        let renamed = match found {
            [Ok((from_directory, _)), Ok((to_directory, _))] => self.store.rename(
                (from_directory, from.name),
                (to_directory, to.name),
                task.caller,
                task.now,
            ),
            [Err(status), _] | [_, Err(status)] => Err(status),
        };
        let [from, to] = found.map(|found| self.wcc_of(&found));
        let both = results::Renamed { from, to };
        task.answer(renamed.map(|()| both), || both)
    }

    pub(super) fn link<I: Items>(&mut self, mut task: Task<'_, I>) -> Answered {
        let arguments: arguments::Link<'_> = task.arguments()?;
        let file = self.store.find(&arguments.file);
        let found = self.found(&arguments.link.directory);
        let linked = match (file, found) {
            (Ok(file), Ok((directory, _))) => {
                let name = arguments.link.name;
                self.store
                    .link(file, directory, name, task.caller, task.now)
            }
            (Err(status), _) | (_, Err(status)) => Err(status),
        };
        let both = results::Linked {
            attributes: self.attributes_of(&file),
            directory: self.wcc_of(&found),
        };
        task.answer(linked.map(|()| both), || both)
    }
}

/// The target of a symbolic link in one piece.
fn joined<I: Items>(target: &Data<'_, I>) -> Result<Vec<u8>, Status> {
    if target.bytes > TARGET_BYTES_MAX {
        return Err(Status::NameTooLong);
    }
    let mut joined = Vec::with_capacity(target.bytes);
    for Piece { bytes: piece, .. } in target.pieces() {
        joined.extend_from_slice(piece);
    }
    Ok(joined)
}
