//! Results of the procedures (RFC 1813 section 3.3). Each begins with its [`Status`]; what follows is
//! one thing when that is [`Status::Ok`], and another when it is not.
//!
//! | procedure | done | failed |
//! |---|---|---|
//! | GETATTR | [`Attributes`] | nothing |
//! | SETATTR, REMOVE, RMDIR | [`Wcc`] | [`Wcc`] |
//! | LOOKUP | [`Lookup`] | `Option<Attributes>` of the directory |
//! | ACCESS, READ, WRITE, COMMIT, FSSTAT, FSINFO, PATHCONF | as named | `Option<Attributes>`; [`Wcc`] for WRITE and COMMIT |
//! | READLINK | `Option<Attributes>`, then the target | `Option<Attributes>` |
//! | CREATE, MKDIR, SYMLINK, MKNOD | [`Created`] | [`Wcc`] of the directory |
//! | RENAME | [`Renamed`] | [`Renamed`] |
//! | LINK | [`Linked`] | [`Linked`] |
//! | READDIR, READDIRPLUS | [`Listing`], then entries, then whether these are all | `Option<Attributes>` |

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
        /// Of what was asked for, what is allowed: bits of [`super::arguments::access`].
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
        /// How lasting they are.
        pub committed: Stability,
        /// Changes when the server may have lost bytes that were not committed.
        pub verifier: [u8; 8],
    }

    /// Of CREATE, MKDIR, SYMLINK and MKNOD.
    pub struct Created {
        /// What was made.
        pub object: Option<FileHandle>,
        /// Its attributes.
        pub attributes: Option<Attributes>,
        /// The directory before and after.
        pub directory: Wcc,
    }

    /// Of RENAME.
    #[derive(Default)]
    pub struct Renamed {
        /// The directory of the name there was.
        pub from: Wcc,
        /// The directory of the name there is.
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

    /// Of READDIR and READDIRPLUS, before the entries: each has a `true` in front, behind the last
    /// is a `false`, and then whether the directory ends there.
    pub struct Listing {
        /// Attributes of the directory.
        pub attributes: Option<Attributes>,
        /// To be sent back with the cookies.
        pub verifier: [u8; 8],
    }

    /// An entry of READDIR.
    pub struct Entry<'a> {
        /// The number of the file.
        pub file_number: u64,
        /// The name.
        pub name: &'a [u8],
        /// Where the next call goes on.
        pub cookie: u64,
    }

    /// What READDIRPLUS has in addition, behind each entry.
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
        /// All the space, in bytes.
        pub total_bytes: u64,
        /// What is free of it.
        pub free_bytes: u64,
        /// What the caller may use of that.
        pub available_bytes: u64,
        /// All files that there may be.
        pub total_files: u64,
        /// How many more can be made.
        pub free_files: u64,
        /// How many more the caller may make.
        pub available_files: u64,
        /// For how long this is not going to change, in seconds.
        pub constant_s: u32,
    }

    /// Of FSINFO.
    pub struct Fsinfo {
        /// Attributes of the root.
        pub attributes: Option<Attributes>,
        /// The longest READ.
        pub read_bytes_max: u32,
        /// The READ that the server likes best.
        pub read_bytes_preferred: u32,
        /// What READs should be a multiple of.
        pub read_bytes_multiple: u32,
        /// The longest WRITE.
        pub write_bytes_max: u32,
        /// The WRITE that the server likes best.
        pub write_bytes_preferred: u32,
        /// What WRITEs should be a multiple of.
        pub write_bytes_multiple: u32,
        /// The READDIR that the server likes best.
        pub readdir_bytes_preferred: u32,
        /// The longest file.
        pub file_bytes_max: u64,
        /// How exact times are.
        pub time_delta: Time,
        /// Bits of [`properties`].
        pub properties: u32,
    }

    /// Of PATHCONF.
    pub struct Pathconf {
        /// Attributes of the file.
        pub attributes: Option<Attributes>,
        /// Names that a file may have.
        pub links_max: u32,
        /// The longest name.
        pub name_bytes_max: u32,
        /// Whether longer names are an error, and not cut.
        pub no_truncation: bool,
        /// Whether only root may give files away.
        pub chown_restricted: bool,
        /// Whether names that differ in case alone are the same.
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
    /// There are hard links.
    pub const LINK: u32 = 0x01;
    /// There are symbolic links.
    pub const SYMLINK: u32 = 0x02;
    /// PATHCONF is the same for all files.
    pub const HOMOGENEOUS: u32 = 0x08;
    /// Times can be set.
    pub const CAN_SET_TIME: u32 = 0x10;
}

/// Decodes a status and what follows it: the results, or what a failure comes with.
///
/// # Errors
/// [`Malformed`]; the reader then stands anywhere.
pub fn decode<'a, Done: Decode<'a>, Failed: Decode<'a>>(
    reader: &mut Reader<'a>,
) -> Result<Result<Done, (Status, Failed)>, Malformed> {
    Ok(match Status::decode(reader)? {
        Status::Ok => Ok(Done::decode(reader)?),
        status => Err((status, Failed::decode(reader)?)),
    })
}
