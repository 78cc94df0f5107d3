//! Calls at random, damaged ones among them: the store stays whole, and all are answered.

use super::*;

/// A call made of parts that are mostly right.
#[derive(Clone, Debug)]
struct Wild {
    procedure: u32,
    files: [usize; 2],
    names: [usize; 2],
    words: [u32; 5],
    offset: u64,
    data: Vec<u8>,
    cut: Option<prop::sample::Index>,
    flip: Option<(prop::sample::Index, u8)>,
    again: bool,
}

fn wild() -> impl Strategy<Value = Wild> {
    let word = prop_oneof![0_u32..9, 0_u32..0o1000, any::<u32>()];
    let offset = prop_oneof![0_u64..50_000, any::<u64>()];
    let choices = (0_u32..22, any::<[usize; 2]>(), any::<[usize; 2]>());
    let damage = (
        prop::option::weighted(0.05, any::<prop::sample::Index>()),
        prop::option::weighted(0.1, any::<(prop::sample::Index, u8)>()),
        any::<bool>(),
    );
    let words = prop::array::uniform5(word);
    let data = prop::collection::vec(any::<u8>(), 0..9000);
    (choices, words, offset, data, damage).prop_map(
        |((procedure, files, names), words, offset, data, (cut, flip, again))| Wild {
            procedure,
            files,
            names,
            words,
            offset,
            data,
            cut,
            flip,
            again,
        },
    )
}

const NAMES: &[&[u8]] = &[
    b"a",
    b"b",
    b"c",
    b"d",
    b"dir",
    b"dir2",
    b".",
    b"..",
    b"x/y",
    b"",
    &[b'n'; 256],
];

impl Wild {
    fn set(&self) -> SetAttributes {
        let [mode, uid, gid, size, _] = self.words;
        let some = |word: u32, value: u32| word.is_multiple_of(3).then_some(value);
        SetAttributes {
            mode: some(mode, mode),
            uid: some(uid, uid),
            gid: some(gid, gid),
            size_bytes: some(size, 0).map(|_| self.offset),
            ..SetAttributes::default()
        }
    }

    fn args(&self, handles: &[FileHandle]) -> Vec<u8> {
        let handle = |index: usize| handles[self.files[index] % handles.len()];
        let place = |index: usize| Place {
            directory: handle(index),
            name: NAMES[self.names[index] % NAMES.len()],
        };
        let [w0, w1, w2, ..] = self.words;
        let (directory, cookie, verifier) = (handle(0), u64::from(w0), [0; 8]);
        let (file, offset_bytes) = (handle(0), self.offset);
        let count_bytes = w1;
        let attributes = self.set();
        let data = |writer: &mut Writer<'_>| (&self.data[..]).encode(writer).unwrap();
        let kind = FileKind::ALL[w0 as usize % FileKind::ALL.len()];
        let how = match w0 % 3 {
            0 => CreateHow::Unchecked(attributes),
            1 => CreateHow::Guarded(attributes),
            _ => CreateHow::Exclusive([1; 8]),
        };
        match Procedure::from_number(self.procedure).unwrap() {
            Procedure::Null => vec![],
            Procedure::Getattr
            | Procedure::Readlink
            | Procedure::Fsstat
            | Procedure::Fsinfo
            | Procedure::Pathconf => bytes_of(file),
            Procedure::Setattr => bytes_of(arguments::Setattr {
                object: file,
                attributes,
                guard: None,
            }),
            Procedure::Lookup | Procedure::Remove | Procedure::Rmdir => bytes_of(place(0)),
            Procedure::Access => bytes_of(arguments::Access {
                object: file,
                access: w0,
            }),
            Procedure::Read => bytes_of(arguments::Read {
                file,
                offset_bytes,
                count_bytes,
            }),
            Procedure::Write => {
                let count_bytes = u32::try_from(self.data.len()).unwrap();
                let stability = Stability::ALL[w0 as usize % 3];
                let write = arguments::Write {
                    file,
                    offset_bytes,
                    count_bytes,
                    stability,
                };
                encoded(&[&|writer| write.encode(writer).unwrap(), &data])
            }
            Procedure::Create => bytes_of(arguments::Create {
                place: place(0),
                how,
            }),
            Procedure::Mkdir => bytes_of(arguments::Mkdir {
                place: place(0),
                attributes,
            }),
            Procedure::Symlink => {
                let symlink = arguments::Symlink {
                    place: place(0),
                    attributes,
                };
                encoded(&[&|writer| symlink.encode(writer).unwrap(), &data])
            }
            Procedure::Mknod => {
                let device = Device::default();
                let node = arguments::Node {
                    kind,
                    attributes,
                    device,
                };
                bytes_of(arguments::Mknod {
                    place: place(0),
                    node,
                })
            }
            Procedure::Rename => bytes_of(arguments::Rename {
                from: place(0),
                to: place(1),
            }),
            Procedure::Link => bytes_of(arguments::Link {
                file: handle(1),
                link: place(0),
            }),
            Procedure::Readdir => bytes_of(arguments::Readdir {
                directory,
                cookie,
                verifier,
                count_bytes,
            }),
            Procedure::Readdirplus => {
                let names_bytes = w2;
                bytes_of(arguments::Readdirplus {
                    directory,
                    cookie,
                    verifier,
                    names_bytes,
                    count_bytes,
                })
            }
            Procedure::Commit => bytes_of(arguments::Commit {
                file,
                offset_bytes,
                count_bytes,
            }),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever is called with whatever arguments, the file system stays whole, and results are what
    /// their length says.
    #[test]
    fn the_store_stays_whole_whatever_is_called(calls in prop::collection::vec(wild(), 1..250)) {
        let mut client = Client::new(20, 24);
        let mut handles = vec![client.root(), FileHandle::new(&[7; 16]).unwrap()];
        for wild in calls {
            let mut args = wild.args(&handles);
            if let (Some((at, bits)), false) = (&wild.flip, args.is_empty()) {
                let at = at.index(args.len());
                args[at] ^= bits;
            }
            if let Some(cut) = &wild.cut {
                args.truncate(cut.index(args.len() + 1));
            }
            let outcome = client.raw(wild.procedure, &args);
            prop_assert!(matches!(outcome, Outcome::Success | Outcome::GarbageArgs), "{outcome:?}");
            if outcome == Outcome::Success {
                let results = client.results();
                let is_made = (8..=11).contains(&wild.procedure) && results[..4] == [0; 4];
                if let (true, Some(handle)) = (is_made, made_handle(&results)) {
                    handles.push(handle);
                }
                let is_idempotent = Procedure::from_number(wild.procedure).unwrap().is_idempotent();
                if wild.again && !is_idempotent {
                    prop_assert_eq!(client.again(wild.procedure, &args), Outcome::Success);
                    prop_assert_eq!(client.results(), results);
                }
            }
            client.service.store().check();
        }
    }

    #[test]
    fn any_octets_are_answered(
        procedure in 0_u32..24,
        args in prop::collection::vec(prop_oneof![Just(0_u8), any::<u8>()], 0..200),
    ) {
        let mut client = Client::new(20, 24);
        let with_root = [bytes_of(client.root()), args.clone()].concat();
        for args in [args, with_root] {
            let _ = client.raw(procedure, &args);
            client.service.store().check();
        }
    }
}

/// The handle in the results of a procedure that made something.
fn made_handle(results: &[u8]) -> Option<FileHandle> {
    let mut reader = Reader::new(results);
    let made: Result<results::Created, (Status, Wcc)> = results::decode(&mut reader).ok()?;
    made.ok()?.object
}
