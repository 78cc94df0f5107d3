//! Types that several procedures use (RFC 1813 sections 2.5 and 2.6).

use rpcrdma_protocol::EncodeError;
use rpcrdma_protocol::xdr::{Reader, Writer};

use super::FILE_HANDLE_BYTES_MAX;
use super::xdr::{Decode, Encode, Malformed, enumerations, structures, unknown_value};

/// The server's name for a file: at most 64 octets, which only the server interprets.
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
    /// The kind of a file (ftype3).
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

    /// The stability of written bytes, asked for or provided (stable_how).
    pub enum Stability {
        /// They may be lost until a COMMIT.
        Unstable = 0,
        /// The data is durable, with the metadata to find it.
        DataSync = 1,
        /// The data and all attributes are durable.
        FileSync = 2,
    }
}

structures! {
    /// A point in time, since 1970 (nfstime3).
    #[derive(Default, PartialOrd, Ord)]
    pub struct Time {
        /// Whole seconds.
        pub seconds: u32,
        /// The rest, in nanoseconds.
        pub nanoseconds: u32,
    }

    /// The numbers of a device (specdata3).
    #[derive(Default)]
    pub struct Device {
        /// The number of the driver.
        pub major: u32,
        /// The number of the device in its driver.
        pub minor: u32,
    }

    /// The attributes of a file (fattr3).
    pub struct Attributes {
        /// The kind of the file.
        pub kind: FileKind,
        /// The permissions: the low twelve bits.
        pub mode: u32,
        /// The number of hard links.
        pub links: u32,
        /// The owner.
        pub uid: u32,
        /// The group.
        pub gid: u32,
        /// The length in bytes.
        pub size_bytes: u64,
        /// The space on the server in bytes.
        pub used_bytes: u64,
        /// The numbers of a device.
        pub device: Device,
        /// The number of the file system.
        pub file_system: u64,
        /// The number of the file in the file system.
        pub file_number: u64,
        /// The time of the last access.
        pub accessed: Time,
        /// The time of the last change of its bytes.
        pub modified: Time,
        /// The time of the last change of its bytes or attributes.
        pub changed: Time,
    }

    /// The attributes that show whether a file has changed (wcc_attr).
    pub struct WccAttributes {
        /// The length in bytes.
        pub size_bytes: u64,
        /// The time of the last change of its bytes.
        pub modified: Time,
        /// The time of the last change of its bytes or attributes.
        pub changed: Time,
    }

    /// A file before and after an operation; a server may leave either out (wcc_data).
    #[derive(Default)]
    pub struct Wcc {
        /// Before.
        pub before: Option<WccAttributes>,
        /// After.
        pub after: Option<Attributes>,
    }

    /// Attributes to set; `None` leaves one unchanged (sattr3).
    #[derive(Default)]
    pub struct SetAttributes {
        /// The permissions.
        pub mode: Option<u32>,
        /// The owner.
        pub uid: Option<u32>,
        /// The group.
        pub gid: Option<u32>,
        /// The length in bytes.
        pub size_bytes: Option<u64>,
        /// The time of the last access.
        pub accessed: SetTime,
        /// The time of the last change of its bytes.
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

/// The change of a time (set_atime, set_mtime).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetTime {
    /// Leave it unchanged.
    #[default]
    Keep,
    /// Set it to the server's time.
    ToServer,
    /// Set it to this time.
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
