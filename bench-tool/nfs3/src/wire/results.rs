//! Results of the procedures (RFC 1813 section 3.3). They begin with a [`Status`]. The rest depends on
//! whether that is [`Status::Ok`]:
//!
//! | procedure | success | failure |
//! |---|---|---|
//! | GETATTR | [`Attributes`] | nothing |
//! | SETATTR, REMOVE, RMDIR | [`Wcc`] | [`Wcc`] |
//! | LOOKUP | [`Lookup`] | `Option<Attributes>` of the directory |
//! | ACCESS, READ, WRITE, COMMIT, FSSTAT, FSINFO, PATHCONF | as named | `Option<Attributes>`; [`Wcc`] for WRITE and COMMIT |
//! | READLINK | `Option<Attributes>`, then the target | `Option<Attributes>` |
//! | CREATE, MKDIR, SYMLINK, MKNOD | [`Created`] | [`Wcc`] of the directory |
//! | RENAME | [`Renamed`] | [`Renamed`] |
//! | LINK | [`Linked`] | [`Linked`] |
//! | READDIR, READDIRPLUS | [`Listing`], then entries, then whether the directory ends there | `Option<Attributes>` |

use rpcrdma_protocol::xdr::Reader;

use super::status::Status;
use super::types::{Attributes, FileHandle, Stability, Time, Wcc};
use super::xdr::{Decode, Malformed, structures};

structures! {
    /// Of LOOKUP.
    pub struct Lookup {
        /// The file of the name.
        pub object: FileHandle,
        /// Its attributes.
        pub attributes: Option<Attributes>,
        /// Those of the directory.
        pub directory: Option<Attributes>,
    }

    /// Of ACCESS.
    pub struct Access {
        /// Attributes of the file.
        pub attributes: Option<Attributes>,
        /// The granted rights of those in the call: bits of [`super::arguments::access`].
        pub access: u32,
    }

    /// Of READ. The data follow, as variable-length opaque of `count_bytes`.
    pub struct Read {
        /// Attributes of the file.
        pub attributes: Option<Attributes>,
        /// Bytes that were read.
        pub count_bytes: u32,
        /// Whether they reach the end of the file.
        pub is_end: bool,
    }

    /// Of WRITE.
    pub struct Write {
        /// The file before and after.
        pub file: Wcc,
        /// Bytes that were written.
        pub count_bytes: u32,
        /// The stability of the written bytes.
        pub committed: Stability,
        /// A number that changes when the server may have lost uncommitted bytes.
        pub verifier: [u8; 8],
    }

    /// Of CREATE, MKDIR, SYMLINK and MKNOD.
    pub struct Created {
        /// The new file.
        pub object: Option<FileHandle>,
        /// Its attributes.
        pub attributes: Option<Attributes>,
        /// The directory before and after.
        pub directory: Wcc,
    }

    /// Of RENAME.
    #[derive(Default)]
    pub struct Renamed {
        /// The directory of the old name.
        pub from: Wcc,
        /// The directory of the new name.
        pub to: Wcc,
    }

    /// Of LINK.
    #[derive(Default)]
    pub struct Linked {
        /// Attributes of the file.
        pub attributes: Option<Attributes>,
        /// The directory of the new name.
        pub directory: Wcc,
    }

    /// Of READDIR and READDIRPLUS, before the entries. A `true` precedes each entry. After the last one
    /// follow a `false`, and whether the directory ends there.
    pub struct Listing {
        /// Attributes of the directory.
        pub attributes: Option<Attributes>,
        /// The client returns it with the cookies.
        pub verifier: [u8; 8],
    }

    /// An entry of READDIR.
    pub struct Entry<'a> {
        /// The number of the file.
        pub file_number: u64,
        /// The name.
        pub name: &'a [u8],
        /// The cookie with which the next call continues after it.
        pub cookie: u64,
    }

    /// The additional fields of READDIRPLUS, after each entry.
    pub struct EntryPlus {
        /// Attributes of the file.
        pub attributes: Option<Attributes>,
        /// Its handle.
        pub object: Option<FileHandle>,
    }

    /// Of FSSTAT.
    pub struct Fsstat {
        /// Attributes of the root.
        pub attributes: Option<Attributes>,
        /// The whole space in bytes.
        pub total_bytes: u64,
        /// The free space in bytes.
        pub free_bytes: u64,
        /// The free space in bytes that the caller may use.
        pub available_bytes: u64,
        /// The highest number of files.
        pub total_files: u64,
        /// The number of files that can still be made.
        pub free_files: u64,
        /// The number of files that the caller can still make.
        pub available_files: u64,
        /// The seconds for which these numbers will not change.
        pub constant_s: u32,
    }

    /// Of FSINFO.
    pub struct Fsinfo {
        /// Attributes of the root.
        pub attributes: Option<Attributes>,
        /// The longest READ.
        pub read_bytes_max: u32,
        /// The preferred length of a READ.
        pub read_bytes_preferred: u32,
        /// The preferred multiple of a READ's length.
        pub read_bytes_multiple: u32,
        /// The longest WRITE.
        pub write_bytes_max: u32,
        /// The preferred length of a WRITE.
        pub write_bytes_preferred: u32,
        /// The preferred multiple of a WRITE's length.
        pub write_bytes_multiple: u32,
        /// The preferred length of a READDIR.
        pub readdir_bytes_preferred: u32,
        /// The longest file.
        pub file_bytes_max: u64,
        /// The resolution of times.
        pub time_delta: Time,
        /// Bits of [`properties`].
        pub properties: u32,
    }

    /// Of PATHCONF.
    pub struct Pathconf {
        /// Attributes of the file.
        pub attributes: Option<Attributes>,
        /// The most names of a file.
        pub links_max: u32,
        /// The longest name.
        pub name_bytes_max: u32,
        /// Whether a longer name is an error; otherwise it is truncated.
        pub no_truncation: bool,
        /// Whether only root may change the owner of a file.
        pub chown_restricted: bool,
        /// Whether names that differ only in case are the same.
        pub case_insensitive: bool,
        /// Whether the case of names is kept.
        pub case_preserving: bool,
    }

    /// Of COMMIT.
    pub struct Commit {
        /// The file before and after.
        pub file: Wcc,
        /// As in [`Write`].
        pub verifier: [u8; 8],
    }
}

/// Bits of FSINFO (RFC 1813 section 3.3.19).
pub mod properties {
    /// The file system has hard links.
    pub const LINK: u32 = 0x01;
    /// The file system has symbolic links.
    pub const SYMLINK: u32 = 0x02;
    /// PATHCONF is the same for all files.
    pub const HOMOGENEOUS: u32 = 0x08;
    /// Times can be set.
    pub const CAN_SET_TIME: u32 = 0x10;
}

/// Decodes a status, and the results or the fields of a failure.
///
/// # Errors
/// [`Malformed`], after which the position of the reader is undefined.
pub fn decode<'a, Done: Decode<'a>, Failed: Decode<'a>>(
    reader: &mut Reader<'a>,
) -> Result<Result<Done, (Status, Failed)>, Malformed> {
    Ok(match Status::decode(reader)? {
        Status::Ok => Ok(Done::decode(reader)?),
        status => Err((status, Failed::decode(reader)?)),
    })
}
