//! The status of a procedure (RFC 1813 section 2.6, nfsstat3).

use std::fmt;

use super::xdr::enumerations;

enumerations! {
    /// A status. Numbers that RFC 1813 does not list cannot be decoded.
    pub enum Status {
        /// Success.
        Ok = 0,
        /// NFS3ERR_PERM: the caller is not the owner.
        NotOwner = 1,
        /// NFS3ERR_NOENT: no such name.
        NoEntry = 2,
        /// NFS3ERR_IO: the storage failed.
        Io = 5,
        /// NFS3ERR_NXIO: no such device.
        NoDevice = 6,
        /// NFS3ERR_ACCES: the permissions do not allow it.
        Access = 13,
        /// NFS3ERR_EXIST: the name exists already.
        Exists = 17,
        /// NFS3ERR_XDEV: the two names are on different file systems.
        CrossDevice = 18,
        /// NFS3ERR_NODEV: the device cannot do that.
        NoSuchDevice = 19,
        /// NFS3ERR_NOTDIR: it is not a directory.
        NotDirectory = 20,
        /// NFS3ERR_ISDIR: it is a directory.
        IsDirectory = 21,
        /// NFS3ERR_INVAL: an argument is not valid.
        Invalid = 22,
        /// NFS3ERR_FBIG: the file would exceed the longest file.
        TooBig = 27,
        /// NFS3ERR_NOSPC: no space is left.
        NoSpace = 28,
        /// NFS3ERR_ROFS: the file system is read-only.
        ReadOnly = 30,
        /// NFS3ERR_MLINK: the file would have too many names.
        TooManyLinks = 31,
        /// NFS3ERR_NAMETOOLONG: the name is too long.
        NameTooLong = 63,
        /// NFS3ERR_NOTEMPTY: the directory is not empty.
        NotEmpty = 66,
        /// NFS3ERR_DQUOT: the caller's quota is used up.
        Quota = 69,
        /// NFS3ERR_STALE: the file of this handle no longer exists.
        Stale = 70,
        /// NFS3ERR_REMOTE: the file is on another server.
        Remote = 71,
        /// NFS3ERR_BADHANDLE: the handle is invalid.
        BadHandle = 10_001,
        /// NFS3ERR_NOT_SYNC: the guard of SETATTR does not match.
        NotSync = 10_002,
        /// NFS3ERR_BAD_COOKIE: READDIR cannot continue at this cookie.
        BadCookie = 10_003,
        /// NFS3ERR_NOTSUPP: the server does not support the operation.
        NotSupported = 10_004,
        /// NFS3ERR_TOOSMALL: the reply would be longer than the caller allows.
        TooSmall = 10_005,
        /// NFS3ERR_SERVERFAULT: the server failed in a way for which there is no other status.
        ServerFault = 10_006,
        /// NFS3ERR_BADTYPE: the server cannot make files of that kind.
        BadType = 10_007,
        /// NFS3ERR_JUKEBOX: the server cannot serve the call now; repeat it later.
        Jukebox = 10_008,
    }
}

impl Status {
    /// Its name, as RFC 1813 writes it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "NFS3_OK",
            Self::NotOwner => "NFS3ERR_PERM",
            Self::NoEntry => "NFS3ERR_NOENT",
            Self::Io => "NFS3ERR_IO",
            Self::NoDevice => "NFS3ERR_NXIO",
            Self::Access => "NFS3ERR_ACCES",
            Self::Exists => "NFS3ERR_EXIST",
            Self::CrossDevice => "NFS3ERR_XDEV",
            Self::NoSuchDevice => "NFS3ERR_NODEV",
            Self::NotDirectory => "NFS3ERR_NOTDIR",
            Self::IsDirectory => "NFS3ERR_ISDIR",
            Self::Invalid => "NFS3ERR_INVAL",
            Self::TooBig => "NFS3ERR_FBIG",
            Self::NoSpace => "NFS3ERR_NOSPC",
            Self::ReadOnly => "NFS3ERR_ROFS",
            Self::TooManyLinks => "NFS3ERR_MLINK",
            Self::NameTooLong => "NFS3ERR_NAMETOOLONG",
            Self::NotEmpty => "NFS3ERR_NOTEMPTY",
            Self::Quota => "NFS3ERR_DQUOT",
            Self::Stale => "NFS3ERR_STALE",
            Self::Remote => "NFS3ERR_REMOTE",
            Self::BadHandle => "NFS3ERR_BADHANDLE",
            Self::NotSync => "NFS3ERR_NOT_SYNC",
            Self::BadCookie => "NFS3ERR_BAD_COOKIE",
            Self::NotSupported => "NFS3ERR_NOTSUPP",
            Self::TooSmall => "NFS3ERR_TOOSMALL",
            Self::ServerFault => "NFS3ERR_SERVERFAULT",
            Self::BadType => "NFS3ERR_BADTYPE",
            Self::Jukebox => "NFS3ERR_JUKEBOX",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::error::Error for Status {}
