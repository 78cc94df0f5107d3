//! The calls of the client, and their arguments (RFC 1813 section 3.3).

use rpcrdma_protocol::EncodeError;
use rpcrdma_protocol::xdr::Writer;

use crate::wire::arguments::{Commit, Create, CreateHow, Mkdir, Read, Setattr, Write};
use crate::wire::types::{Place, SetAttributes, Stability};
use crate::wire::xdr::Encode;
use crate::wire::{FileHandle, Procedure};

/// The longest arguments of these calls, without the data of a WRITE: a handle, a name of 255 bytes, attributes.
pub const ARGUMENTS_BYTES_MAX: usize = 512;

/// The permissions of new files: everybody can read them, for example to clean up after a crash.
const FILE_MODE: u32 = 0o644;

/// The permissions of their folder.
const FOLDER_MODE: u32 = 0o755;

/// A call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// NULL.
    Null,
    /// GETATTR.
    Getattr(FileHandle),
    /// SETATTR that sets only the size.
    Resize(FileHandle, u64),
    /// LOOKUP.
    Lookup(Place<'a>),
    /// READ.
    Read(Read),
    /// WRITE, up to and including the length of the data. The caller appends the padded data.
    Write(Write),
    /// CREATE of a file that must not exist.
    Create(Place<'a>),
    /// MKDIR.
    Mkdir(Place<'a>),
    /// REMOVE.
    Remove(Place<'a>),
    /// RMDIR.
    Rmdir(Place<'a>),
    /// FSINFO.
    Fsinfo(FileHandle),
    /// COMMIT of the whole file.
    Commit(FileHandle),
}

impl Request<'_> {
    /// The procedure.
    pub const fn procedure(&self) -> Procedure {
        match self {
            Self::Null => Procedure::Null,
            Self::Getattr(_) => Procedure::Getattr,
            Self::Resize(..) => Procedure::Setattr,
            Self::Lookup(_) => Procedure::Lookup,
            Self::Read(_) => Procedure::Read,
            Self::Write(_) => Procedure::Write,
            Self::Create(_) => Procedure::Create,
            Self::Mkdir(_) => Procedure::Mkdir,
            Self::Remove(_) => Procedure::Remove,
            Self::Rmdir(_) => Procedure::Rmdir,
            Self::Fsinfo(_) => Procedure::Fsinfo,
            Self::Commit(_) => Procedure::Commit,
        }
    }

    /// Writes the arguments to the start of `space`, which has [`ARGUMENTS_BYTES_MAX`] bytes. Returns their length.
    ///
    /// # Errors
    /// `NoSpace`.
    #[inline]
    pub fn encode(&self, space: &mut [u8]) -> Result<usize, EncodeError> {
        let writer = &mut Writer::new(space);
        match self {
            Self::Null => {}
            Self::Getattr(handle) | Self::Fsinfo(handle) => handle.encode(writer)?,
            Self::Resize(object, size_bytes) => {
                let attributes = SetAttributes {
                    size_bytes: Some(*size_bytes),
                    ..SetAttributes::default()
                };
                let setattr = Setattr {
                    object: *object,
                    attributes,
                    guard: None,
                };
                setattr.encode(writer)?;
            }
            Self::Lookup(place) | Self::Remove(place) | Self::Rmdir(place) => {
                place.encode(writer)?;
            }
            Self::Read(read) => read.encode(writer)?,
            Self::Write(write) => {
                write.encode(writer)?;
                writer.write_u32(write.count_bytes)?;
            }
            Self::Create(place) => {
                let how = CreateHow::Guarded(with_mode(FILE_MODE));
                Create { place: *place, how }.encode(writer)?;
            }
            Self::Mkdir(place) => {
                let attributes = with_mode(FOLDER_MODE);
                let mkdir = Mkdir {
                    place: *place,
                    attributes,
                };
                mkdir.encode(writer)?;
            }
            Self::Commit(file) => {
                let commit = Commit {
                    file: *file,
                    offset_bytes: 0,
                    // 0 means up to the end of the file.
                    count_bytes: 0,
                };
                commit.encode(writer)?;
            }
        }
        Ok(writer.position())
    }
}

fn with_mode(mode: u32) -> SetAttributes {
    SetAttributes {
        mode: Some(mode),
        ..SetAttributes::default()
    }
}

/// A READ of `count_bytes` from `offset_bytes` on.
pub const fn read(file: FileHandle, offset_bytes: u64, count_bytes: u32) -> Request<'static> {
    Request::Read(Read {
        file,
        offset_bytes,
        count_bytes,
    })
}

/// A WRITE of `count_bytes` at `offset_bytes`.
pub const fn write(
    file: FileHandle,
    offset_bytes: u64,
    count_bytes: u32,
    stability: Stability,
) -> Request<'static> {
    Request::Write(Write {
        file,
        offset_bytes,
        count_bytes,
        stability,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(request: &Request<'_>) -> Vec<u8> {
        let mut space = [0xee; ARGUMENTS_BYTES_MAX];
        let bytes = request.encode(&mut space).unwrap();
        for short in 0..bytes {
            assert!(request.encode(&mut space[..short].to_vec()).is_err());
        }
        space[..bytes].to_vec()
    }

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    #[test]
    fn arguments_are_those_of_the_rfc() {
        // Five bytes: padded with three. "ab" with its length and its padding.
        let file = FileHandle::new(&[1, 2, 3, 4, 5]).unwrap();
        let place = Place {
            directory: file,
            name: b"ab",
        };
        let (handle, name) = ([5, 0x0102_0304, 0x0500_0000], [2, 0x6162_0000]);
        let cases: [(Request<'_>, u32, Vec<u32>); 12] = [
            (Request::Null, 0, vec![]),
            (Request::Getattr(file), 1, vec![]),
            (
                Request::Resize(file, 0x1_0000_0002),
                2,
                vec![0, 0, 0, 1, 1, 2, 0, 0, 0],
            ),
            (Request::Lookup(place), 3, name.to_vec()),
            (read(file, 0x0a_0000_000b, 77), 6, vec![10, 11, 77]),
            (
                write(file, 0x0a_0000_000b, 77, Stability::FileSync),
                7,
                vec![10, 11, 77, 2, 77],
            ),
            (
                Request::Create(place),
                8,
                [&name[..], &[1, 1, 0o644, 0, 0, 0, 0, 0]].concat(),
            ),
            (
                Request::Mkdir(place),
                9,
                [&name[..], &[1, 0o755, 0, 0, 0, 0, 0]].concat(),
            ),
            (Request::Remove(place), 12, name.to_vec()),
            (Request::Rmdir(place), 13, name.to_vec()),
            (Request::Fsinfo(file), 19, vec![]),
            (Request::Commit(file), 21, vec![0, 0, 0]),
        ];
        for (request, procedure, rest) in cases {
            assert_eq!(request.procedure().number(), procedure);
            let start: &[u32] = if procedure == 0 { &[] } else { &handle };
            assert_eq!(
                encoded(&request),
                words(&[start, &rest].concat()),
                "{request:?}"
            );
        }
    }

    #[test]
    fn the_longest_arguments_fit() {
        let place = Place {
            directory: FileHandle::new(&[7; 64]).unwrap(),
            name: &[b'n'; 255],
        };
        assert_eq!(encoded(&Request::Create(place)).len(), 68 + 260 + 4 + 28);
    }
}
