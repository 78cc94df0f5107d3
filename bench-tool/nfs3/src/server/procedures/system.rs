//! Procedures on the file system as a whole.

use super::{Answered, Service, Task};
use crate::server::DATA_BYTES_MAX;
use crate::server::call::Items;
use crate::server::call::LISTING_BYTES_MAX;
use crate::store::{FILE_BYTES_MAX, LINKS_MAX, NAME_BYTES_MAX, Pages};
use crate::wire::results::properties;
use crate::wire::types::{FileHandle, Time};
use crate::wire::{Status, results};

/// The preferred multiple of the lengths of READs and WRITEs, in bytes.
const DATA_BYTES_MULTIPLE: u32 = 4096;

impl<P: Pages> Service<P> {
    pub(super) fn fsstat<I: Items>(&mut self, mut task: Task<'_, I>) -> Answered {
        let handle: FileHandle = task.arguments()?;
        let file = self.store.find(&handle);
        let attributes = self.attributes_of(&file);
        let space = self.store.space();
        let done = file.map(|_| results::Fsstat {
            attributes,
            total_bytes: space.total_bytes,
            free_bytes: space.free_bytes,
            available_bytes: space.free_bytes,
            total_files: space.total_files,
            free_files: space.free_files,
            available_files: space.free_files,
            constant_s: 0,
        });
        task.answer(done, || attributes)
    }

    pub(super) fn fsinfo<I: Items>(&mut self, mut task: Task<'_, I>) -> Answered {
        let handle: FileHandle = task.arguments()?;
        let file = self.store.find(&handle);
        let attributes = self.attributes_of(&file);
        let done = file.map(|_| results::Fsinfo {
            attributes,
            read_bytes_max: DATA_BYTES_MAX,
            read_bytes_preferred: DATA_BYTES_MAX,
            read_bytes_multiple: DATA_BYTES_MULTIPLE,
            write_bytes_max: DATA_BYTES_MAX,
            write_bytes_preferred: DATA_BYTES_MAX,
            write_bytes_multiple: DATA_BYTES_MULTIPLE,
            readdir_bytes_preferred: LISTING_BYTES_MAX,
            file_bytes_max: FILE_BYTES_MAX,
            time_delta: Time {
                seconds: 0,
                nanoseconds: 1,
            },
            properties: properties::LINK
                | properties::SYMLINK
                | properties::HOMOGENEOUS
                | properties::CAN_SET_TIME,
        });
        task.answer(done, || attributes)
    }

    pub(super) fn pathconf<I: Items>(&mut self, mut task: Task<'_, I>) -> Answered {
        let handle: FileHandle = task.arguments()?;
        let file = self.store.find(&handle);
        let attributes = self.attributes_of(&file);
        let done: Result<_, Status> = file.map(|_| results::Pathconf {
            attributes,
            links_max: LINKS_MAX,
            name_bytes_max: u32::try_from(NAME_BYTES_MAX).unwrap_or(u32::MAX),
            no_truncation: true,
            chown_restricted: true,
            case_insensitive: false,
            case_preserving: true,
        });
        task.answer(done, || attributes)
    }
}
