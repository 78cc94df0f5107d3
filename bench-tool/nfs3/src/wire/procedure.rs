//! The procedures of NFS version 3 (RFC 1813 section 3.3).

use super::xdr::enumerations;

enumerations! {
    /// A procedure.
    pub enum Procedure {
        /// Nothing: is anybody there?
        Null = 0,
        /// Attributes of a file.
        Getattr = 1,
        /// Sets attributes of a file.
        Setattr = 2,
        /// The file of a name in a directory.
        Lookup = 3,
        /// What the caller may do with a file.
        Access = 4,
        /// The target of a symbolic link.
        Readlink = 5,
        /// Bytes of a file.
        Read = 6,
        /// Writes bytes to a file.
        Write = 7,
        /// Makes a file.
        Create = 8,
        /// Makes a directory.
        Mkdir = 9,
        /// Makes a symbolic link.
        Symlink = 10,
        /// Makes a device, a socket or a named pipe.
        Mknod = 11,
        /// Takes a name away.
        Remove = 12,
        /// Takes a directory away.
        Rmdir = 13,
        /// Moves a name.
        Rename = 14,
        /// Gives a file another name.
        Link = 15,
        /// Names in a directory.
        Readdir = 16,
        /// Names in a directory with attributes and handles.
        Readdirplus = 17,
        /// How much space there is.
        Fsstat = 18,
        /// What the server can do.
        Fsinfo = 19,
        /// What names and links may be like.
        Pathconf = 20,
        /// Makes written bytes last.
        Commit = 21,
    }
}

impl Procedure {
    /// Whether doing it twice is not the same as doing it once: what a retransmission must not do.
    #[must_use]
    pub const fn is_idempotent(self) -> bool {
        !matches!(
            self,
            Self::Setattr
                | Self::Write
                | Self::Create
                | Self::Mkdir
                | Self::Symlink
                | Self::Mknod
                | Self::Remove
                | Self::Rmdir
                | Self::Rename
                | Self::Link
        )
    }

    /// Its name, as RFC 1813 writes it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Null => "NULL",
            Self::Getattr => "GETATTR",
            Self::Setattr => "SETATTR",
            Self::Lookup => "LOOKUP",
            Self::Access => "ACCESS",
            Self::Readlink => "READLINK",
            Self::Read => "READ",
            Self::Write => "WRITE",
            Self::Create => "CREATE",
            Self::Mkdir => "MKDIR",
            Self::Symlink => "SYMLINK",
            Self::Mknod => "MKNOD",
            Self::Remove => "REMOVE",
            Self::Rmdir => "RMDIR",
            Self::Rename => "RENAME",
            Self::Link => "LINK",
            Self::Readdir => "READDIR",
            Self::Readdirplus => "READDIRPLUS",
            Self::Fsstat => "FSSTAT",
            Self::Fsinfo => "FSINFO",
            Self::Pathconf => "PATHCONF",
            Self::Commit => "COMMIT",
        }
    }
}
