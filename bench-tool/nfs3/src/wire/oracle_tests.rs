//! What our structures encode, an independent implementation decodes as the same, and the other way
//! round; and octets worked out by hand.

use nfs3_types::nfs3 as theirs;
use nfs3_types::xdr_codec::{Pack, Unpack};
use proptest::prelude::*;
use rpcrdma_protocol::xdr::{Reader, Writer};

use super::types::{
    Attributes, Device, FileHandle, FileKind, Place, SetAttributes, SetTime, Stability, Time, Wcc,
    WccAttributes,
};
use super::xdr::{Decode, Encode, decode_all};
use super::{Procedure, Status, arguments, results};

fn encoded(value: &impl Encode) -> Vec<u8> {
    let mut space = vec![0xee; 4096];
    let mut writer = Writer::new(&mut space);
    value.encode(&mut writer).unwrap();
    let bytes = writer.position();
    space.truncate(bytes);
    space
}

/// Ours, encoded, is theirs, is ours; every cut of it is an error.
fn agrees<Theirs: Pack + Unpack>(ours: &impl Encode, tail: &[u8], bytes: &mut Vec<u8>) {
    *bytes = encoded(ours);
    bytes.extend_from_slice(tail);
    let (value, read) = Theirs::unpack(&mut &bytes[..]).expect("they decode it");
    assert_eq!(read, bytes.len(), "they read all of it");
    let mut again = Vec::new();
    value.pack(&mut again).unwrap();
    assert_eq!(again, *bytes, "they encode the same");
}

fn both_ways<Ours, Theirs: Pack + Unpack>(ours: &Ours)
where
    Ours: Encode + PartialEq + std::fmt::Debug + for<'a> Decode<'a>,
{
    let mut bytes = Vec::new();
    agrees::<Theirs>(ours, &[], &mut bytes);
    assert_eq!(decode_all::<Ours>(&bytes).as_ref(), Some(ours));
    for end in 0..bytes.len() {
        assert!(decode_all::<Ours>(&bytes[..end]).is_none(), "{end}");
    }
}

/// As [`both_ways`], for what borrows.
macro_rules! both_ways_borrowed {
    ($ours:expr, $ours_type:ident, $theirs:ty) => {
        let ours = $ours;
        let mut bytes = Vec::new();
        agrees::<$theirs>(&ours, &[], &mut bytes);
        assert_eq!(decode_all::<arguments::$ours_type<'_>>(&bytes), Some(ours));
        for end in 0..bytes.len() {
            let cut = decode_all::<arguments::$ours_type<'_>>(&bytes[..end]);
            assert!(cut.is_none(), "{end}");
        }
    };
}

fn time() -> impl Strategy<Value = Time> {
    any::<(u32, u32)>().prop_map(|(seconds, nanoseconds)| Time {
        seconds,
        nanoseconds,
    })
}

fn handle() -> impl Strategy<Value = FileHandle> {
    prop::collection::vec(any::<u8>(), 0..=64).prop_map(|bytes| FileHandle::new(&bytes).unwrap())
}

fn one_of<T: Copy + std::fmt::Debug>(all: &'static [T]) -> impl Strategy<Value = T> {
    (0..all.len()).prop_map(move |index| all[index])
}

fn set_time() -> impl Strategy<Value = SetTime> {
    prop_oneof![
        Just(SetTime::Keep),
        Just(SetTime::ToServer),
        time().prop_map(SetTime::To)
    ]
}

fn set_attributes() -> impl Strategy<Value = SetAttributes> {
    let words = any::<(Option<u32>, Option<u32>, Option<u32>, Option<u64>)>();
    (words, set_time(), set_time()).prop_map(
        |((mode, uid, gid, size_bytes), accessed, modified)| SetAttributes {
            mode,
            uid,
            gid,
            size_bytes,
            accessed,
            modified,
        },
    )
}

fn attributes() -> impl Strategy<Value = Attributes> {
    let words = any::<([u32; 6], [u64; 4])>();
    (one_of(FileKind::ALL), words, time(), time(), time()).prop_map(
        |(kind, (small, large), accessed, modified, changed)| Attributes {
            kind,
            mode: small[0],
            links: small[1],
            uid: small[2],
            gid: small[3],
            size_bytes: large[0],
            used_bytes: large[1],
            device: Device {
                major: small[4],
                minor: small[5],
            },
            file_system: large[2],
            file_number: large[3],
            accessed,
            modified,
            changed,
        },
    )
}

fn wcc() -> impl Strategy<Value = Wcc> {
    let before = prop::option::of((any::<u64>(), time(), time()));
    (before, prop::option::of(attributes())).prop_map(|(before, after)| Wcc {
        before: before.map(|(size_bytes, modified, changed)| WccAttributes {
            size_bytes,
            modified,
            changed,
        }),
        after,
    })
}

fn node() -> impl Strategy<Value = arguments::Node> {
    let kinds = [
        FileKind::BlockDevice,
        FileKind::CharacterDevice,
        FileKind::Socket,
        FileKind::NamedPipe,
    ];
    (0..kinds.len(), set_attributes(), any::<(u32, u32)>()).prop_map(
        move |(index, attributes, (major, minor))| {
            let is_device = index < 2;
            arguments::Node {
                kind: kinds[index],
                attributes,
                device: if is_device {
                    Device { major, minor }
                } else {
                    Device::default()
                },
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn arguments_without_names(
        file in handle(),
        set in set_attributes(),
        guard in prop::option::of(time()),
        (offset_bytes, count_bytes, word, verifier) in any::<(u64, u32, u32, [u8; 8])>(),
        stability in one_of(Stability::ALL),
        data in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        both_ways::<_, theirs::GETATTR3args>(&file);
        let setattr = arguments::Setattr { object: file, attributes: set, guard };
        both_ways::<_, theirs::SETATTR3args>(&setattr);
        let access = arguments::Access { object: file, access: word };
        both_ways::<_, theirs::ACCESS3args>(&access);
        let read = arguments::Read { file, offset_bytes, count_bytes };
        both_ways::<_, theirs::READ3args>(&read);
        let commit = arguments::Commit { file, offset_bytes, count_bytes };
        both_ways::<_, theirs::COMMIT3args>(&commit);
        let write = arguments::Write { file, offset_bytes, count_bytes, stability };
        let mut bytes = Vec::new();
        agrees::<theirs::WRITE3args<'static>>(&write, &encoded(&&data[..]), &mut bytes);
        let mut reader = Reader::new(&bytes);
        prop_assert_eq!(arguments::Write::decode(&mut reader), Ok(write));
        prop_assert_eq!(<&[u8]>::decode(&mut reader), Ok(&data[..]));
        let readdir = arguments::Readdir { directory: file, cookie: offset_bytes, verifier, count_bytes };
        both_ways::<_, theirs::READDIR3args>(&readdir);
        let readdirplus = arguments::Readdirplus {
            directory: file,
            cookie: offset_bytes,
            verifier,
            names_bytes: word,
            count_bytes,
        };
        both_ways::<_, theirs::READDIRPLUS3args>(&readdirplus);
    }

    #[test]
    fn arguments_with_names(
        directory in handle(),
        file in handle(),
        name in prop::collection::vec(any::<u8>(), 0..300),
        set in set_attributes(),
        verifier in any::<[u8; 8]>(),
        node in node(),
    ) {
        let place = Place { directory, name: &name };
        let how = [
            arguments::CreateHow::Unchecked(set),
            arguments::CreateHow::Guarded(set),
            arguments::CreateHow::Exclusive(verifier),
        ];
        for how in how {
            both_ways_borrowed!(arguments::Create { place, how }, Create, theirs::CREATE3args<'static>);
        }
        both_ways_borrowed!(arguments::Mkdir { place, attributes: set }, Mkdir, theirs::MKDIR3args<'static>);
        both_ways_borrowed!(arguments::Mknod { place, node }, Mknod, theirs::MKNOD3args<'static>);
        let to = Place { directory: file, name: &name };
        both_ways_borrowed!(arguments::Rename { from: place, to }, Rename, theirs::RENAME3args<'static, 'static>);
        both_ways_borrowed!(arguments::Link { file, link: place }, Link, theirs::LINK3args<'static>);
        let symlink = arguments::Symlink { place, attributes: set };
        let mut bytes = Vec::new();
        agrees::<theirs::SYMLINK3args<'static>>(&symlink, &encoded(&&name[..]), &mut bytes);
    }

    #[test]
    fn results_agree(
        attributes in prop::option::of(attributes()),
        file in handle(),
        wcc in wcc(),
        small in any::<[u32; 8]>(),
        large in any::<[u64; 6]>(),
        flags in any::<[bool; 5]>(),
        verifier in any::<[u8; 8]>(),
        committed in one_of(Stability::ALL),
    ) {
        let lookup = results::Lookup { object: file, attributes, directory: wcc.after };
        both_ways::<_, theirs::LOOKUP3resok>(&lookup);
        let access = results::Access { attributes, access: small[0] };
        both_ways::<_, theirs::ACCESS3resok>(&access);
        let write = results::Write { file: wcc, count_bytes: small[0], committed, verifier };
        both_ways::<_, theirs::WRITE3resok>(&write);
        let created = results::Created { object: flags[0].then_some(file), attributes, directory: wcc };
        both_ways::<_, theirs::CREATE3resok>(&created);
        both_ways::<_, theirs::RENAME3resok>(&results::Renamed { from: wcc, to: Wcc::default() });
        both_ways::<_, theirs::LINK3resok>(&results::Linked { attributes, directory: wcc });
        let fsstat = results::Fsstat {
            attributes,
            total_bytes: large[0],
            free_bytes: large[1],
            available_bytes: large[2],
            total_files: large[3],
            free_files: large[4],
            available_files: large[5],
            constant_s: small[0],
        };
        both_ways::<_, theirs::FSSTAT3resok>(&fsstat);
        let fsinfo = results::Fsinfo {
            attributes,
            read_bytes_max: small[0],
            read_bytes_preferred: small[1],
            read_bytes_multiple: small[2],
            write_bytes_max: small[3],
            write_bytes_preferred: small[4],
            write_bytes_multiple: small[5],
            readdir_bytes_preferred: small[6],
            file_bytes_max: large[0],
            time_delta: Time::default(),
            properties: small[7],
        };
        both_ways::<_, theirs::FSINFO3resok>(&fsinfo);
        let pathconf = results::Pathconf {
            attributes,
            links_max: small[0],
            name_bytes_max: small[1],
            no_truncation: flags[1],
            chown_restricted: flags[2],
            case_insensitive: flags[3],
            case_preserving: flags[4],
        };
        both_ways::<_, theirs::PATHCONF3resok>(&pathconf);
        both_ways::<_, theirs::COMMIT3resok>(&results::Commit { file: wcc, verifier });
    }
}

#[test]
fn numbers_of_statuses_and_procedures_agree() {
    for status in Status::ALL {
        let bytes = encoded(status);
        let (their_status, _) = theirs::nfsstat3::unpack(&mut &bytes[..]).unwrap();
        assert_eq!(their_status.to_string(), status.name());
    }
    assert_eq!(Status::ALL.len(), 29);
    for procedure in Procedure::ALL {
        let their_procedure = theirs::NFS_PROGRAM::try_from(procedure.number()).unwrap();
        let name = format!("NFSPROC3_{}", procedure.name());
        assert_eq!(their_procedure.to_string(), name);
    }
    assert_eq!(Procedure::ALL.len(), 22);
}

#[test]
fn a_read_is_these_octets() {
    let read = arguments::Read {
        file: FileHandle::new(&[0xaa, 0xbb, 0xcc, 0xdd, 0xee]).unwrap(),
        offset_bytes: 0x1_0000_0002,
        count_bytes: 4096,
    };
    let octets = [
        0, 0, 0, 5, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0, 0, 0, // handle and padding
        0, 0, 0, 1, 0, 0, 0, 2, // offset
        0, 0, 0x10, 0, // count
    ];
    assert_eq!(encoded(&read), octets);
}

#[test]
fn values_that_the_format_does_not_know_are_malformed() {
    assert!(decode_all::<FileKind>(&[0, 0, 0, 8]).is_none());
    assert!(decode_all::<SetTime>(&[0, 0, 0, 3]).is_none());
    assert!(decode_all::<Status>(&[0, 0, 0, 3]).is_none());
    let long = [&[0, 0, 0, 65][..], &[1; 68]].concat();
    assert!(decode_all::<FileHandle>(&long).is_none());
    assert!(FileHandle::new(&[0; 65]).is_none());
}
