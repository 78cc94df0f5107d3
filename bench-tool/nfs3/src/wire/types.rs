//! What several procedures have in common (RFC 1813 sections 2.5 and 2.6).

use rpcrdma_protocol::EncodeError;
use rpcrdma_protocol::xdr::{Reader, Writer};

use super::FILE_HANDLE_BYTES_MAX;
use super::xdr::{Decode, Encode, Malformed, enumerations, structures, unknown_value};

/// The server's own name for a file: up to 64 octets that mean nothing to anybody else.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileHandle {
    bytes: [u8; FILE_HANDLE_BYTES_MAX],
    length_bytes: u8,
}

impl FileHandle {
    /// A handle of these octets; `None` for more than 64.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut handle = Self {
            bytes: [0; FILE_HANDLE_BYTES_MAX],
            length_bytes: u8::try_from(bytes.len()).ok()?,
        };
        handle.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(handle)
    }

    /// Its octets.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes
            .get(..usize::from(self.length_bytes))
            .unwrap_or(&[])
    }
}

impl std::fmt::Debug for FileHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FileHandle(")?;
        for byte in self.as_bytes() {
            write!(f, "{byte:02x}")?;
        }
        f.write_str(")")
    }
}

impl Encode for FileHandle {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        writer.write_opaque(self.as_bytes())
    }
}

impl Decode<'_> for FileHandle {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let bytes = reader.read_opaque(FILE_HANDLE_BYTES_MAX)?;
        Self::new(bytes).ok_or_else(|| unknown_value(reader, u32::MAX))
    }
}

enumerations! {
    /// What a file is (ftype3).
    pub enum FileKind {
        /// A file with bytes.
        Regular = 1,
        /// A directory.
        Directory = 2,
        /// A block device.
        BlockDevice = 3,
        /// A character device.
        CharacterDevice = 4,
        /// A symbolic link.
        SymbolicLink = 5,
        /// A socket.
        Socket = 6,
        /// A named pipe.
        NamedPipe = 7,
    }

    /// How lasting the bytes of a WRITE are to be, or are (stable_how).
    pub enum Stability {
        /// A COMMIT makes them last.
        Unstable = 0,
        /// The data, and what is needed to find them.
        DataSync = 1,
        /// The data and all attributes.
        FileSync = 2,
    }
}

structures! {
    /// A moment, since 1970 (nfstime3).
    #[derive(Default, PartialOrd, Ord)]
    pub struct Time {
        /// Whole seconds.
        pub seconds: u32,
        /// The rest, in nanoseconds.
        pub nanoseconds: u32,
    }

    /// Numbers of a device (specdata3).
    #[derive(Default)]
    pub struct Device {
        /// Which driver.
        pub major: u32,
        /// Which of its devices.
        pub minor: u32,
    }

    /// All about a file but its bytes (fattr3).
    pub struct Attributes {
        /// What it is.
        pub kind: FileKind,
        /// Permissions: the low twelve bits.
        pub mode: u32,
        /// Hard links.
        pub links: u32,
        /// Owner.
        pub uid: u32,
        /// Group.
        pub gid: u32,
        /// Its length, in bytes.
        pub size_bytes: u64,
        /// What it takes of the server's space, in bytes.
        pub used_bytes: u64,
        /// Of a device, which.
        pub device: Device,
        /// The file system that it is on.
        pub file_system: u64,
        /// Its number in the file system.
        pub file_number: u64,
        /// When it was last read.
        pub accessed: Time,
        /// When its bytes last changed.
        pub modified: Time,
        /// When anything of it last changed.
        pub changed: Time,
    }

    /// What tells whether a file changed (wcc_attr).
    pub struct WccAttributes {
        /// Its length, in bytes.
        pub size_bytes: u64,
        /// When its bytes last changed.
        pub modified: Time,
        /// When anything of it last changed.
        pub changed: Time,
    }

    /// A file before and after an operation, as far as the server tells (wcc_data).
    #[derive(Default)]
    pub struct Wcc {
        /// Before.
        pub before: Option<WccAttributes>,
        /// After.
        pub after: Option<Attributes>,
    }

    /// Attributes that are to be set; `None` leaves one as it is (sattr3).
    #[derive(Default)]
    pub struct SetAttributes {
        /// Permissions.
        pub mode: Option<u32>,
        /// Owner.
        pub uid: Option<u32>,
        /// Group.
        pub gid: Option<u32>,
        /// Length, in bytes.
        pub size_bytes: Option<u64>,
        /// When it was last read.
        pub accessed: SetTime,
        /// When its bytes last changed.
        pub modified: SetTime,
    }

    /// A name in a directory (diropargs3).
    pub struct Place<'a> {
        /// The directory.
        pub directory: FileHandle,
        /// The name.
        pub name: &'a [u8],
    }
}

/// A time that is to be set (set_atime, set_mtime).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetTime {
    /// Leave it.
    #[default]
    Keep,
    /// To what the server's clock says.
    ToServer,
    /// To this.
    To(Time),
}

impl Encode for SetTime {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        match self {
            Self::Keep => writer.write_u32(0),
            Self::ToServer => writer.write_u32(1),
            Self::To(time) => {
                writer.write_u32(2)?;
                time.encode(writer)
            }
        }
    }
}

impl Decode<'_> for SetTime {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        match reader.read_u32()? {
            0 => Ok(Self::Keep),
            1 => Ok(Self::ToServer),
            2 => Ok(Self::To(Time::decode(reader)?)),
            value => Err(unknown_value(reader, value)),
        }
    }
}
