//! MOUNT version 3 (RFC 1813 appendix I): the handle of the root of an export.

use super::xdr::enumerations;

/// The MOUNT program.
pub const PROGRAM: u32 = 100_005;

/// The version of it that goes with NFS version 3.
pub const VERSION: u32 = 3;

/// The longest path, in octets (MNTPATHLEN).
pub const PATH_BYTES_MAX: usize = 1024;

/// The longest name of a client, in octets (MNTNAMLEN).
pub const NAME_BYTES_MAX: usize = 255;

enumerations! {
    /// A procedure.
    pub enum MountProcedure {
        /// Nothing.
        Null = 0,
        /// The root of an export: takes a path; a [`MountStatus`], then the file handle and a list of
        /// the credential flavors that are taken.
        Mnt = 1,
        /// Who has mounted what, as far as anybody knows.
        Dump = 2,
        /// A path is not used any more.
        Umnt = 3,
        /// Nothing of this client is used any more.
        Umntall = 4,
        /// What is exported.
        Export = 5,
    }

    /// How MNT ended (mountstat3).
    pub enum MountStatus {
        /// Done.
        Ok = 0,
        /// MNT3ERR_PERM: the caller is not the owner.
        NotOwner = 1,
        /// MNT3ERR_NOENT: no such path.
        NoEntry = 2,
        /// MNT3ERR_IO: the storage failed.
        Io = 5,
        /// MNT3ERR_ACCES: the path is not exported to this client.
        Access = 13,
        /// MNT3ERR_NOTDIR: the path is no directory.
        NotDirectory = 20,
        /// MNT3ERR_INVAL: an argument is not valid.
        Invalid = 22,
        /// MNT3ERR_NAMETOOLONG: the path is too long.
        NameTooLong = 63,
        /// MNT3ERR_NOTSUPP: the server does not do that.
        NotSupported = 10_004,
        /// MNT3ERR_SERVERFAULT: the server failed in a way that has no other name.
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
