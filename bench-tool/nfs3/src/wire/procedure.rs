//! The procedures of NFS version 3 (RFC 1813 section 3.3).

use super::xdr::enumerations;

enumerations! {
    /// A procedure.
    pub enum Procedure {
        /// Does nothing: shows that the server answers.
        Null = 0,
        /// Returns the attributes of a file.
        Getattr = 1,
        /// Sets attributes of a file.
        Setattr = 2,
        /// Returns the file of a name in a directory.
        Lookup = 3,
        /// Returns the rights that the caller has to a file.
        Access = 4,
        /// Returns the target of a symbolic link.
        Readlink = 5,
        /// Reads bytes of a file.
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
        /// Removes a name.
        Remove = 12,
        /// Removes a directory.
        Rmdir = 13,
        /// Renames a file.
        Rename = 14,
        /// Adds a name to a file.
        Link = 15,
        /// Lists the names in a directory.
        Readdir = 16,
        /// Lists the names in a directory, with attributes and handles.
        Readdirplus = 17,
        /// Returns the space of the file system.
        Fsstat = 18,
        /// Returns the abilities of the server.
        Fsinfo = 19,
        /// Returns the limits of names and links.
        Pathconf = 20,
        /// Makes written bytes durable.
        Commit = 21,
    }
}

impl Procedure {
    /// Whether executing it twice has the effect of executing it once. A retransmission of any other procedure
    /// must not be executed again.
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
