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
        /// The attributes to set.
        pub attributes: SetAttributes,
        /// Set them only if the file last changed at this time.
        pub guard: Option<Time>,
    }

    /// Of ACCESS.
    pub struct Access {
        /// The file.
        pub object: FileHandle,
        /// The rights to check: bits of [`access`].
        pub access: u32,
    }

    /// Of READ.
    pub struct Read {
        /// The file.
        pub file: FileHandle,
        /// The offset of the first byte.
        pub offset_bytes: u64,
        /// The most bytes to read.
        pub count_bytes: u32,
    }

    /// Of WRITE. The data follow, as variable-length opaque.
    pub struct Write {
        /// The file.
        pub file: FileHandle,
        /// The offset of the first byte.
        pub offset_bytes: u64,
        /// The number of bytes.
        pub count_bytes: u32,
        /// The stability that the client asks for.
        pub stability: Stability,
    }

    /// Of CREATE.
    pub struct Create<'a> {
        /// The new name.
        pub place: Place<'a>,
        /// The mode of creation.
        pub how: CreateHow,
    }

    /// Of MKDIR.
    pub struct Mkdir<'a> {
        /// The new name.
        pub place: Place<'a>,
        /// Attributes of the directory.
        pub attributes: SetAttributes,
    }

    /// Of SYMLINK. The target follows, as a string.
    pub struct Symlink<'a> {
        /// The new name.
        pub place: Place<'a>,
        /// Attributes of the link.
        pub attributes: SetAttributes,
    }

    /// Of MKNOD.
    pub struct Mknod<'a> {
        /// The new name.
        pub place: Place<'a>,
        /// The kind of the file, with its attributes.
        pub node: Node,
    }

    /// Of RENAME.
    pub struct Rename<'a> {
        /// The old name.
        pub from: Place<'a>,
        /// The new name.
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
        /// The cookie of the last entry that the client has; 0 to begin.
        pub cookie: u64,
        /// The verifier of the reply with that cookie.
        pub verifier: [u8; 8],
        /// The longest result, in octets of XDR.
        pub count_bytes: u32,
    }

    /// Of READDIRPLUS.
    pub struct Readdirplus {
        /// The directory.
        pub directory: FileHandle,
        /// The cookie of the last entry that the client has; 0 to begin.
        pub cookie: u64,
        /// The verifier of the reply with that cookie.
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
        /// The offset of the first byte.
        pub offset_bytes: u64,
        /// The number of bytes; 0 means up to the end of the file.
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
    /// Remove names.
    pub const DELETE: u32 = 0x10;
    /// Execute a file.
    pub const EXECUTE: u32 = 0x20;
}

/// The mode of CREATE (createhow3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateHow {
    /// An existing file is used.
    Unchecked(SetAttributes),
    /// An existing file is an error.
    Guarded(SetAttributes),
    /// As guarded, but a repeated call with the verifier that made the file succeeds.
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

/// The file that MKNOD makes (mknoddata3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// The kind. Devices, sockets and named pipes can be made; other kinds have no attributes here.
    pub kind: FileKind,
    /// Its attributes.
    pub attributes: SetAttributes,
    /// The numbers of a device.
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
