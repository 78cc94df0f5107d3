//! NFS version 3 (RFC 1813) and MOUNT version 3 for both ends: numbers, types, and their XDR.
//!
//! | module | contents |
//! |---|---|
//! | [`xdr`] | encoding and decoding of whole structures, on the reader and writer of `rpcrdma-protocol` |
//! | [`types`] | file handles, times, attributes, weak cache consistency data |
//! | [`procedure`], [`arguments`], [`results`] | the 22 procedures |
//! | [`status`] | every error by its name |
//! | [`mount`] | the MOUNT program |
//! | [`auth_sys`] | the credential of a caller (RFC 5531 appendix A) |
//!
//! Names and paths are borrowed from the message, and nothing here allocates. The payloads of READ,
//! READLINK, WRITE and SYMLINK are not part of the structures, because RDMA may move them outside the
//! stream (RFC 8267 section 2).

pub mod arguments;
pub mod auth_sys;
pub mod mount;
pub mod procedure;
pub mod results;
pub mod status;
pub mod types;
pub mod xdr;

#[cfg(test)]
mod oracle_tests;

pub use self::procedure::Procedure;
pub use self::status::Status;
pub use self::types::FileHandle;

/// The NFS program (RFC 1813 section 3.1).
pub const PROGRAM: u32 = 100_003;

/// The version of it that is spoken here.
pub const VERSION: u32 = 3;

/// The program of POSIX access control lists, which Linux asks for on the same connection.
pub const ACL_PROGRAM: u32 = 100_227;

/// The longest file handle (RFC 1813 section 2.4), in octets.
pub const FILE_HANDLE_BYTES_MAX: usize = 64;
