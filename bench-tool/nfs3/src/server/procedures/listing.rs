//! READDIR and READDIRPLUS.

use rpcrdma_protocol::xdr::{Writer, padding_bytes};

use super::{Answered, Refused, Service, Task};
use crate::server::call::Items;
use crate::server::call::LISTING_BYTES_MAX;
use crate::store::{Number, Pages, file_number};
use crate::wire::types::{Attributes, FileHandle};
use crate::wire::xdr::Encode;
use crate::wire::{Status, arguments, results};

/// The arguments of READDIR and READDIRPLUS.
struct Wanted {
    directory: FileHandle,
    cookie: u64,
    verifier: [u8; 8],
    /// The most octets of the results.
    bytes_max: usize,
    /// The most octets of the results without attributes and handles.
    names_bytes_max: usize,
    with_attributes: bool,
}

/// Octets of the results before the entries: attributes of the directory, verifier.
const HEAD_BYTES: usize = 4 + 84 + 8;

/// Octets after the last entry: the end of the list, and whether the directory ends there.
const TAIL_BYTES: usize = 8;

/// Octets of an entry without its name: the mark before it, number, length, cookie.
const ENTRY_BYTES: usize = 4 + 8 + 4 + 8;

/// The most octets of an entry's attributes and handle.
const PLUS_BYTES: usize = 4 + 84 + 4 + 4 + 16;

impl<P: Pages> Service<P> {
    pub(super) fn readdir<I: Items>(&mut self, task: Task<'_, I>) -> Answered {
        let arguments: arguments::Readdir = task.arguments()?;
        let bytes_max = arguments.count_bytes.min(LISTING_BYTES_MAX) as usize;
        let wanted = Wanted {
            directory: arguments.directory,
            cookie: arguments.cookie,
            verifier: arguments.verifier,
            bytes_max,
            names_bytes_max: bytes_max,
            with_attributes: false,
        };
        self.listed(task, &wanted)
    }

    pub(super) fn readdirplus<I: Items>(&mut self, task: Task<'_, I>) -> Answered {
        let arguments: arguments::Readdirplus = task.arguments()?;
        let wanted = Wanted {
            directory: arguments.directory,
            cookie: arguments.cookie,
            verifier: arguments.verifier,
            bytes_max: arguments.count_bytes.min(LISTING_BYTES_MAX) as usize,
            names_bytes_max: arguments.names_bytes as usize,
            with_attributes: true,
        };
        self.listed(task, &wanted)
    }

    fn listed<I: Items>(&mut self, mut task: Task<'_, I>, wanted: &Wanted) -> Answered {
        let directory = self.store.find(&wanted.directory);
        let chosen = directory.and_then(|directory| self.choose(directory, wanted, &task));
        let attributes = self.attributes_of(&directory);
        let (entries, is_end) = match chosen {
            Ok(chosen) => chosen,
            Err(status) => return task.answer(Err::<u32, _>(status), || attributes),
        };
        let verifier = self.store.verifier();
        task.reply.write(|writer| {
            Status::Ok.encode(writer)?;
            results::Listing {
                attributes,
                verifier,
            }
            .encode(writer)?;
            self.encode_entries(writer, &entries, wanted.with_attributes)?;
            writer.write_bool(false)?;
            writer.write_bool(is_end)?;
            Ok(())
        })
    }

    /// The entries that fit, and whether the directory ends with them.
    fn choose<I: Items>(
        &mut self,
        directory: Number,
        wanted: &Wanted,
        task: &Task<'_, I>,
    ) -> Result<(Vec<Chosen>, bool), Status> {
        // A cookie is never used again, so that the verifier tells of a restart alone. Clients that do not keep it send zero.
        let known = [[0; 8], self.store.verifier()];
        if wanted.cookie != 0 && !known.contains(&wanted.verifier) {
            return Err(Status::BadCookie);
        }
        let mut chosen = Vec::new();
        let mut names_bytes = TAIL_BYTES;
        let mut bytes = HEAD_BYTES + TAIL_BYTES;
        let entries = self
            .store
            .list(directory, wanted.cookie, task.caller, task.now)?;
        for entry in entries {
            let name_bytes = entry.name.len() + padding_bytes(entry.name.len());
            names_bytes += ENTRY_BYTES + name_bytes;
            bytes += ENTRY_BYTES + name_bytes;
            if wanted.with_attributes {
                bytes += PLUS_BYTES;
            }
            let fits = bytes <= wanted.bytes_max;
            // The first entry may exceed the limit of names, so that a listing always makes progress. It may
            // not exceed the limit of the results.
            let is_enough = names_bytes > wanted.names_bytes_max && !chosen.is_empty();
            if !fits || is_enough {
                return if chosen.is_empty() {
                    Err(Status::TooSmall)
                } else {
                    Ok((chosen, false))
                };
            }
            chosen.push(Chosen {
                cookie: entry.cookie,
                name: entry.name.into(),
                file: entry.file,
            });
        }
        Ok((chosen, true))
    }

    fn encode_entries(
        &self,
        writer: &mut Writer<'_>,
        entries: &[Chosen],
        with_attributes: bool,
    ) -> Result<(), Refused> {
        for entry in entries {
            writer.write_bool(true)?;
            results::Entry {
                file_number: file_number(entry.file),
                name: &entry.name,
                cookie: entry.cookie,
            }
            .encode(writer)?;
            if with_attributes {
                let attributes: Option<Attributes> = self.store.attributes(entry.file);
                let object = self.store.handle(entry.file);
                results::EntryPlus { attributes, object }.encode(writer)?;
            }
        }
        Ok(())
    }
}

/// An entry of the reply.
struct Chosen {
    cookie: u64,
    name: Box<[u8]>,
    file: Number,
}
