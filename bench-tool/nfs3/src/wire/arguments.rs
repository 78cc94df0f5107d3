//! Arguments of the procedures (RFC 1813 section 3.3). GETATTR, READLINK, FSSTAT, FSINFO and
//! PATHCONF take a [`FileHandle`] alone; LOOKUP, REMOVE and RMDIR a [`Place`].

use rpcrdma_protocol::EncodeError;
use rpcrdma_protocol::xdr::{Reader, Writer};

use super::types::{Device, FileHandle, FileKind, Place, SetAttributes, Stability, Time};
use super::xdr::{Decode, Encode, Malformed, structures, unknown_value};

structures! {
    /// Of SETATTR.
    pub struct Setattr {
        /// The file.
        pub object: FileHandle,
        /// What to set.
        pub attributes: SetAttributes,
        /// Only if this is when the file last changed.
        pub guard: Option<Time>,
    }

    /// Of ACCESS.
    pub struct Access {
        /// The file.
        pub object: FileHandle,
        /// What is asked for: bits of [`access`].
        pub access: u32,
    }

    /// Of READ.
    pub struct Read {
        /// The file.
        pub file: FileHandle,
        /// Where to begin, in bytes from its start.
        pub offset_bytes: u64,
        /// How many bytes, at most.
        pub count_bytes: u32,
    }

    /// Of WRITE. The data follow, as variable-length opaque.
    pub struct Write {
        /// The file.
        pub file: FileHandle,
        /// Where to begin, in bytes from its start.
        pub offset_bytes: u64,
        /// How many bytes of the data.
        pub count_bytes: u32,
        /// How lasting they are to be.
        pub stability: Stability,
    }

    /// Of CREATE.
    pub struct Create<'a> {
        /// The name to be made.
        pub place: Place<'a>,
        /// How.
        pub how: CreateHow,
    }

    /// Of MKDIR.
    pub struct Mkdir<'a> {
        /// The name to be made.
        pub place: Place<'a>,
        /// Attributes of the directory.
        pub attributes: SetAttributes,
    }

    /// Of SYMLINK. The target follows, as a string.
    pub struct Symlink<'a> {
        /// The name to be made.
        pub place: Place<'a>,
        /// Attributes of the link.
        pub attributes: SetAttributes,
    }

    /// Of MKNOD.
    pub struct Mknod<'a> {
        /// The name to be made.
        pub place: Place<'a>,
        /// What it is.
        pub node: Node,
    }

    /// Of RENAME.
    pub struct Rename<'a> {
        /// The name there is.
        pub from: Place<'a>,
        /// The name to be.
        pub to: Place<'a>,
    }

    /// Of LINK.
    pub struct Link<'a> {
        /// The file.
        pub file: FileHandle,
        /// Its new name.
        pub link: Place<'a>,
    }

    /// Of READDIR.
    pub struct Readdir {
        /// The directory.
        pub directory: FileHandle,
        /// Where to go on: the cookie of the last entry seen; 0 to begin.
        pub cookie: u64,
        /// What came with the cookie.
        pub verifier: [u8; 8],
        /// The longest result, in octets of XDR.
        pub count_bytes: u32,
    }

    /// Of READDIRPLUS.
    pub struct Readdirplus {
        /// The directory.
        pub directory: FileHandle,
        /// Where to go on: the cookie of the last entry seen; 0 to begin.
        pub cookie: u64,
        /// What came with the cookie.
        pub verifier: [u8; 8],
        /// The longest result without attributes and handles, in octets of XDR.
        pub names_bytes: u32,
        /// The longest result, in octets of XDR.
        pub count_bytes: u32,
    }

    /// Of COMMIT.
    pub struct Commit {
        /// The file.
        pub file: FileHandle,
        /// Where to begin, in bytes from its start.
        pub offset_bytes: u64,
        /// How many bytes; 0 is all that follow.
        pub count_bytes: u32,
    }
}

/// Bits of ACCESS (RFC 1813 section 3.3.4).
pub mod access {
    /// Read data of a file, or the names of a directory.
    pub const READ: u32 = 0x01;
    /// Look up a name in a directory.
    pub const LOOKUP: u32 = 0x02;
    /// Rewrite bytes of a file, or change names of a directory.
    pub const MODIFY: u32 = 0x04;
    /// Write new bytes, or add names.
    pub const EXTEND: u32 = 0x08;
    /// Take names away.
    pub const DELETE: u32 = 0x10;
    /// Execute a file.
    pub const EXECUTE: u32 = 0x20;
}

/// How CREATE makes a file (createhow3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateHow {
    /// A file that is there already is taken.
    Unchecked(SetAttributes),
    /// A file that is there already is an error.
    Guarded(SetAttributes),
    /// As guarded, but a call with the verifier that made the file finds it.
    Exclusive([u8; 8]),
}

impl Encode for CreateHow {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        match self {
            Self::Unchecked(attributes) => {
                writer.write_u32(0)?;
                attributes.encode(writer)
            }
            Self::Guarded(attributes) => {
                writer.write_u32(1)?;
                attributes.encode(writer)
            }
            Self::Exclusive(verifier) => {
                writer.write_u32(2)?;
                verifier.encode(writer)
            }
        }
    }
}

impl Decode<'_> for CreateHow {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        match reader.read_u32()? {
            0 => SetAttributes::decode(reader).map(Self::Unchecked),
            1 => SetAttributes::decode(reader).map(Self::Guarded),
            2 => Decode::decode(reader).map(Self::Exclusive),
            value => Err(unknown_value(reader, value)),
        }
    }
}

/// What MKNOD makes (mknoddata3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// What it is. Devices, sockets and named pipes can be made; others have no attributes.
    pub kind: FileKind,
    /// Its attributes.
    pub attributes: SetAttributes,
    /// Of a device, which.
    pub device: Device,
}

impl Node {
    const fn is_device(&self) -> bool {
        matches!(self.kind, FileKind::BlockDevice | FileKind::CharacterDevice)
    }

    /// Whether MKNOD can make it.
    #[must_use]
    pub const fn is_makeable(&self) -> bool {
        self.is_device() || matches!(self.kind, FileKind::Socket | FileKind::NamedPipe)
    }
}

impl Encode for Node {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        self.kind.encode(writer)?;
        if self.is_makeable() {
            self.attributes.encode(writer)?;
        }
        if self.is_device() {
            self.device.encode(writer)?;
        }
        Ok(())
    }
}

impl Decode<'_> for Node {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut node = Self {
            kind: FileKind::decode(reader)?,
            attributes: SetAttributes::default(),
            device: Device::default(),
        };
        if node.is_makeable() {
            node.attributes = Decode::decode(reader)?;
        }
        if node.is_device() {
            node.device = Decode::decode(reader)?;
        }
        Ok(node)
    }
}
