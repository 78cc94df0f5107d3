//! MOUNT version 3 (RFC 1813 appendix I): the handle of the root of an export.

use super::xdr::enumerations;

/// The MOUNT program.
pub const PROGRAM: u32 = 100_005;

/// The version for NFS version 3.
pub const VERSION: u32 = 3;

/// The longest path, in octets (MNTPATHLEN).
pub const PATH_BYTES_MAX: usize = 1024;

/// The longest name of a client, in octets (MNTNAMLEN).
pub const NAME_BYTES_MAX: usize = 255;

enumerations! {
    /// A procedure.
    pub enum MountProcedure {
        /// Does nothing.
        Null = 0,
        /// Mounts a path. Returns a [`MountStatus`], and with success the file handle and a list of the
        /// credential flavors that the server accepts.
        Mnt = 1,
        /// Lists the known mounts.
        Dump = 2,
        /// Ends the mount of a path.
        Umnt = 3,
        /// Ends all mounts of this client.
        Umntall = 4,
        /// Lists the exports.
        Export = 5,
    }

    /// The status of MNT (mountstat3).
    pub enum MountStatus {
        /// Success.
        Ok = 0,
        /// MNT3ERR_PERM: the caller is not the owner.
        NotOwner = 1,
        /// MNT3ERR_NOENT: no such path.
        NoEntry = 2,
        /// MNT3ERR_IO: the storage failed.
        Io = 5,
        /// MNT3ERR_ACCES: the path is not exported to this client.
        Access = 13,
        /// MNT3ERR_NOTDIR: the path is not a directory.
        NotDirectory = 20,
        /// MNT3ERR_INVAL: an argument is not valid.
        Invalid = 22,
        /// MNT3ERR_NAMETOOLONG: the path is too long.
        NameTooLong = 63,
        /// MNT3ERR_NOTSUPP: the server does not support the operation.
        NotSupported = 10_004,
        /// MNT3ERR_SERVERFAULT: the server failed in a way for which there is no other status.
        ServerFault = 10_006,
    }
}

impl MountStatus {
    /// Its name, as RFC 1813 writes it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "MNT3_OK",
            Self::NotOwner => "MNT3ERR_PERM",
            Self::NoEntry => "MNT3ERR_NOENT",
            Self::Io => "MNT3ERR_IO",
            Self::Access => "MNT3ERR_ACCES",
            Self::NotDirectory => "MNT3ERR_NOTDIR",
            Self::Invalid => "MNT3ERR_INVAL",
            Self::NameTooLong => "MNT3ERR_NAMETOOLONG",
            Self::NotSupported => "MNT3ERR_NOTSUPP",
            Self::ServerFault => "MNT3ERR_SERVERFAULT",
        }
    }
}
