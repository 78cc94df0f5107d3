//! The store by itself, and what must hold of it whatever was asked of it.

use std::collections::HashMap;

use super::contents::Contents;
use super::*;
use crate::wire::arguments::{CreateHow, access};
use crate::wire::types::{SetAttributes, SetTime};

impl<P: Pages> Store<P> {
    /// What must always hold: every file has the names that its links say, the free list is what is
    /// free, pages are in one file or free, and directories form one tree.
    pub(crate) fn check(&self) {
        let mut names: HashMap<u32, u32> = HashMap::new();
        let mut folders: HashMap<u32, u32> = HashMap::new();
        let (mut pages, mut files, mut all_names) = (0, 0, 0);
        for (index, slot) in self.slots.iter().enumerate() {
            let number = Number(u32::try_from(index).unwrap());
            let Some(inode) = slot.file.as_deref() else {
                assert!(self.free.contains(&number), "{number:?} is lost");
                continue;
            };
            files += 1;
            pages += inode.contents().map_or(0, Contents::page_count);
            if let Body::Directory(table) = &inode.body {
                for (cookie, name, file) in table.entries_behind(0) {
                    assert!(cookie > directory::COOKIE_PARENT);
                    assert_eq!(table.find(name), Some(file));
                    *names.entry(file.0).or_default() += 1;
                    all_names += 1;
                    if let Body::Directory(below) = &self.inode(file).unwrap().body {
                        assert_eq!(below.parent, number, "{name:?}");
                        *folders.entry(number.0).or_default() += 1;
                    }
                }
            }
        }
        for (index, slot) in self.slots.iter().enumerate() {
            let number = u32::try_from(index).unwrap();
            let Some(inode) = slot.file.as_deref() else {
                assert!(!names.contains_key(&number), "{number} is gone and named");
                continue;
            };
            let named = names.get(&number).copied().unwrap_or(0);
            if inode.is_directory() {
                let below = folders.get(&number).copied().unwrap_or(0);
                assert_eq!(inode.links, 2 + below);
                assert_eq!(named, u32::from(number != Self::ROOT.0));
            } else {
                assert_eq!(inode.links, named);
                assert!(named > 0, "{number} has no name");
            }
        }
        assert_eq!(files, self.files);
        assert_eq!(all_names, self.names);
        assert_eq!(files as usize + self.free.len(), self.slots.len());
        let pages = u64::try_from(pages).unwrap();
        assert_eq!(pages + self.pages.free(), self.pages.total());
    }
}

const ROOT_USER: Identity = Identity::ROOT;

fn user(uid: u32) -> Identity {
    Identity::new(uid, uid, &[500])
}

fn at(seconds: u32) -> Time {
    Time {
        seconds,
        nanoseconds: 0,
    }
}

fn store() -> Store<HeapPages> {
    let limits = Limits { files_max: 100 };
    Store::new(HeapPages::new(64 * 4096, 4096), limits, 7, at(1))
}

const ROOT: Number = Store::<HeapPages>::ROOT;

fn mode(mode: u32) -> SetAttributes {
    SetAttributes {
        mode: Some(mode),
        ..SetAttributes::default()
    }
}

fn make(store: &mut Store<HeapPages>, directory: Number, name: &str, new: NewFile<'_>) -> Number {
    let nothing = SetAttributes::default();
    store
        .make(directory, name.as_bytes(), new, &nothing, &ROOT_USER, at(2))
        .unwrap()
}

fn file(store: &mut Store<HeapPages>, name: &str) -> Number {
    make(store, ROOT, name, NewFile::Regular)
}

fn write(
    store: &mut Store<HeapPages>,
    file: Number,
    at_bytes: u64,
    bytes: &[u8],
) -> Result<u32, Status> {
    let count = u32::try_from(bytes.len()).unwrap();
    store.write(
        file,
        (at_bytes, count),
        std::iter::once(bytes),
        &ROOT_USER,
        at(3),
    )
}

fn rename(
    store: &mut Store<HeapPages>,
    from: (Number, &str),
    to: (Number, &str),
) -> Result<(), Status> {
    let (from, to) = ((from.0, from.1.as_bytes()), (to.0, to.1.as_bytes()));
    store.rename(from, to, &ROOT_USER, at(4))
}

#[test]
fn a_handle_is_stale_when_its_file_is_gone_and_when_the_server_is_another() {
    let mut store = store();
    let first = file(&mut store, "a");
    let handle = store.handle(first).unwrap();
    assert_eq!(store.find(&handle), Ok(first));
    store.remove(ROOT, b"a", &ROOT_USER, at(2)).unwrap();
    assert_eq!(store.find(&handle), Err(Status::Stale));
    let second = file(&mut store, "b");
    assert_eq!(second, first, "the place is used again");
    assert_eq!(store.find(&handle), Err(Status::Stale));
    let mut other = Store::new(
        HeapPages::new(4096, 4096),
        Limits { files_max: 9 },
        8,
        at(1),
    );
    let same_place = file(&mut other, "a");
    assert_eq!(same_place, first);
    let handle = other.handle(same_place).unwrap();
    assert_eq!(store.find(&handle), Err(Status::Stale));
    // Who has mounted the one goes on with the other.
    assert_eq!(store.find(&other.handle(ROOT).unwrap()), Ok(ROOT));
    let file_system = |store: &Store<HeapPages>| store.attributes(ROOT).unwrap().file_system;
    assert_eq!(file_system(&store), file_system(&other));
    let short = FileHandle::new(&[0; 15]).unwrap();
    assert_eq!(store.find(&short), Err(Status::BadHandle));
    store.check();
}

#[test]
fn a_file_lives_as_long_as_it_has_a_name() {
    let mut store = store();
    let one = file(&mut store, "one");
    write(&mut store, one, 0, b"bytes").unwrap();
    store.link(one, ROOT, b"two", &ROOT_USER, at(5)).unwrap();
    assert_eq!(store.attributes(one).unwrap().links, 2);
    store.remove(ROOT, b"one", &ROOT_USER, at(6)).unwrap();
    assert_eq!(store.lookup(ROOT, b"two", &ROOT_USER), Ok(one));
    assert_eq!(store.attributes(one).unwrap().links, 1);
    store.remove(ROOT, b"two", &ROOT_USER, at(7)).unwrap();
    assert_eq!(store.attributes(one), None);
    store.check();
}

#[test]
fn renaming_over_takes_the_place_of_what_was_there() {
    let mut store = store();
    let (a, b) = (file(&mut store, "a"), file(&mut store, "b"));
    write(&mut store, b, 0, b"gone").unwrap();
    rename(&mut store, (ROOT, "a"), (ROOT, "b")).unwrap();
    assert_eq!(store.lookup(ROOT, b"b", &ROOT_USER), Ok(a));
    assert_eq!(store.lookup(ROOT, b"a", &ROOT_USER), Err(Status::NoEntry));
    // Two names of one file: nothing happens.
    store.link(a, ROOT, b"c", &ROOT_USER, at(5)).unwrap();
    rename(&mut store, (ROOT, "b"), (ROOT, "c")).unwrap();
    assert_eq!(store.lookup(ROOT, b"b", &ROOT_USER), Ok(a));
    rename(&mut store, (ROOT, "b"), (ROOT, "b")).unwrap();
    store.check();
}

#[test]
fn a_directory_moves_with_what_is_below_and_never_into_itself() {
    let mut store = store();
    let outer = make(&mut store, ROOT, "outer", NewFile::Directory);
    let inner = make(&mut store, outer, "inner", NewFile::Directory);
    let full = make(&mut store, ROOT, "full", NewFile::Directory);
    make(&mut store, full, "x", NewFile::Regular);
    let empty = make(&mut store, ROOT, "empty", NewFile::Directory);
    file(&mut store, "file");
    for (from, to, status) in [
        ((ROOT, "outer"), (inner, "x"), Status::Invalid),
        ((ROOT, "outer"), (outer, "x"), Status::Invalid),
        ((outer, "inner"), (ROOT, "full"), Status::NotEmpty),
        ((outer, "inner"), (ROOT, "file"), Status::NotDirectory),
        ((ROOT, "file"), (ROOT, "empty"), Status::IsDirectory),
        ((ROOT, "none"), (ROOT, "y"), Status::NoEntry),
        ((ROOT, "."), (ROOT, "y"), Status::Invalid),
        ((ROOT, "file"), (ROOT, ".."), Status::Invalid),
    ] {
        assert_eq!(rename(&mut store, from, to), Err(status), "{from:?} {to:?}");
        store.check();
    }
    rename(&mut store, (outer, "inner"), (ROOT, "empty")).unwrap();
    store.check();
    assert_eq!(store.attributes(empty), None);
    assert_eq!(store.lookup(inner, b"..", &ROOT_USER), Ok(ROOT));
    rename(&mut store, (ROOT, "empty"), (full, "again")).unwrap();
    assert_eq!(store.lookup(inner, b"..", &ROOT_USER), Ok(full));
    store.check();
}

#[test]
fn only_empty_directories_are_taken_away() {
    let mut store = store();
    let folder = make(&mut store, ROOT, "folder", NewFile::Directory);
    make(&mut store, folder, "x", NewFile::Regular);
    let rmdir = |store: &mut Store<HeapPages>, name: &[u8]| {
        store.remove_directory(ROOT, name, &ROOT_USER, at(9))
    };
    assert_eq!(rmdir(&mut store, b"folder"), Err(Status::NotEmpty));
    assert_eq!(rmdir(&mut store, b"."), Err(Status::Invalid));
    assert_eq!(rmdir(&mut store, b".."), Err(Status::Exists));
    assert_eq!(
        store.remove(ROOT, b"folder", &ROOT_USER, at(9)),
        Err(Status::IsDirectory)
    );
    store.remove(folder, b"x", &ROOT_USER, at(9)).unwrap();
    assert_eq!(store.attributes(ROOT).unwrap().links, 3);
    rmdir(&mut store, b"folder").unwrap();
    assert_eq!(store.attributes(ROOT).unwrap().links, 2);
    file(&mut store, "file");
    assert_eq!(rmdir(&mut store, b"file"), Err(Status::NotDirectory));
    store.check();
}

#[test]
fn space_files_and_sizes_end() {
    let mut store = store();
    let big = file(&mut store, "big");
    let bytes = vec![1; 40 * 4096];
    assert_eq!(write(&mut store, big, 0, &bytes), Ok(40 * 4096));
    assert_eq!(
        write(&mut store, big, 40 * 4096, &bytes),
        Ok(24 * 4096),
        "as far as there is space"
    );
    assert_eq!(
        write(&mut store, big, 64 * 4096, b"x"),
        Err(Status::NoSpace)
    );
    assert_eq!(
        write(&mut store, big, 0, b"x"),
        Ok(1),
        "what is there can be rewritten"
    );
    let nothing = SetAttributes::default();
    let link = NewFile::SymbolicLink(b"target");
    let made = store.make(ROOT, b"link", link, &nothing, &ROOT_USER, at(2));
    assert_eq!(made, Err(Status::NoSpace));
    assert_eq!(store.space().free_bytes, 0);
    let cut = |size_bytes| SetAttributes {
        size_bytes: Some(size_bytes),
        ..SetAttributes::default()
    };
    store
        .set_attributes(big, &cut(10), None, &ROOT_USER, at(5))
        .unwrap();
    assert_eq!(store.space().free_bytes, 63 * 4096);
    store
        .set_attributes(big, &cut(1 << 60), None, &ROOT_USER, at(5))
        .unwrap();
    assert_eq!(
        store.attributes(big).unwrap().used_bytes,
        4096,
        "holes cost nothing"
    );
    let too_big = store.set_attributes(big, &cut(1 << 63), None, &ROOT_USER, at(5));
    assert_eq!(too_big, Err(Status::TooBig));
    assert_eq!(
        write(&mut store, big, FILE_BYTES_MAX, b"x"),
        Err(Status::TooBig)
    );
    assert_eq!(write(&mut store, big, u64::MAX, b"x"), Err(Status::TooBig));
    for index in 2..100 {
        file(&mut store, &format!("f{index}"));
    }
    let how = CreateHow::Guarded(nothing);
    let one_more = store.create(ROOT, b"more", &how, &ROOT_USER, at(2));
    assert_eq!(one_more, Err(Status::NoSpace));
    assert_eq!(store.space().free_files, 0);
    store.check();
}

#[test]
fn names_are_checked() {
    let mut store = store();
    let long = [b'x'; 256];
    let nothing = SetAttributes::default();
    for (name, status) in [
        (&long[..], Status::NameTooLong),
        (b"", Status::Invalid),
        (b"a/b", Status::Invalid),
        (b"a\0", Status::Invalid),
        (b".", Status::Exists),
        (b"..", Status::Exists),
    ] {
        let made = store.make(ROOT, name, NewFile::Regular, &nothing, &ROOT_USER, at(2));
        assert_eq!(made, Err(status), "{name:?}");
    }
    store
        .make(
            ROOT,
            &long[1..],
            NewFile::Regular,
            &nothing,
            &ROOT_USER,
            at(2),
        )
        .unwrap();
    let target = vec![b'a'; TARGET_BYTES_MAX + 1];
    for (target, expected) in [
        (&b""[..], Some(Status::Invalid)),
        (b"a\0b", Some(Status::Invalid)),
        (&target[..], Some(Status::NameTooLong)),
        (&target[1..], None),
    ] {
        let new = NewFile::SymbolicLink(target);
        let made = store.make(ROOT, b"link", new, &nothing, &ROOT_USER, at(2));
        assert_eq!(made.err(), expected, "{}", target.len());
    }
    let link = store.lookup(ROOT, b"link", &ROOT_USER).unwrap();
    assert_eq!(
        store.target_bytes(link, at(3)),
        Ok(u32::try_from(TARGET_BYTES_MAX).unwrap())
    );
    store.check();
}

#[test]
fn an_exclusive_create_that_comes_again_finds_its_file() {
    let mut store = store();
    let create =
        |store: &mut Store<HeapPages>, how| store.create(ROOT, b"x", &how, &ROOT_USER, at(2));
    let made = create(&mut store, CreateHow::Exclusive([1; 8])).unwrap();
    assert_eq!(create(&mut store, CreateHow::Exclusive([1; 8])), Ok(made));
    assert_eq!(
        create(&mut store, CreateHow::Exclusive([2; 8])),
        Err(Status::Exists)
    );
    let nothing = SetAttributes::default();
    assert_eq!(
        create(&mut store, CreateHow::Guarded(nothing)),
        Err(Status::Exists)
    );
    write(&mut store, made, 0, b"bytes").unwrap();
    assert_eq!(create(&mut store, CreateHow::Unchecked(nothing)), Ok(made));
    assert_eq!(store.attributes(made).unwrap().size_bytes, 5);
    let cut = SetAttributes {
        size_bytes: Some(0),
        ..nothing
    };
    assert_eq!(create(&mut store, CreateHow::Unchecked(cut)), Ok(made));
    assert_eq!(store.attributes(made).unwrap().size_bytes, 0);
}

#[test]
fn a_listing_goes_on_where_it_was_though_names_come_and_go() {
    let mut store = store();
    for index in 0..50 {
        file(&mut store, &format!("f{index}"));
    }
    let mut seen = Vec::new();
    let mut cookie = 0;
    loop {
        let entries = store.list(ROOT, cookie, &ROOT_USER, at(3)).unwrap();
        let some: Vec<(u64, Vec<u8>)> = entries
            .take(7)
            .map(|entry| (entry.cookie, entry.name.to_vec()))
            .collect();
        let Some((last, _)) = some.last() else { break };
        cookie = *last;
        for (_, name) in some {
            // What was seen goes, and something else comes.
            if store.remove(ROOT, &name, &ROOT_USER, at(4)).is_ok() && seen.len() < 30 {
                file(&mut store, &format!("g{}", seen.len()));
            }
            seen.push(name);
        }
    }
    let mut all = seen.clone();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), seen.len(), "nothing twice");
    assert!((0..50).all(|index| seen.contains(&format!("f{index}").into_bytes())));
    assert_eq!(&seen[..2], [b".".to_vec(), b"..".to_vec()]);
    store.check();
}

#[test]
fn permissions_are_those_of_the_mode() {
    let mut store = store();
    let (owner, member, other) = (user(10), Identity::new(11, 11, &[10]), user(12));
    let folder = store
        .make(
            ROOT,
            b"folder",
            NewFile::Directory,
            &mode(0o750),
            &owner,
            at(2),
        )
        .unwrap();
    let inside = store
        .make(folder, b"x", NewFile::Regular, &mode(0o640), &owner, at(2))
        .unwrap();
    assert_eq!(store.lookup(folder, b"x", &member), Ok(inside));
    assert_eq!(store.lookup(folder, b"x", &other), Err(Status::Access));
    assert_eq!(
        store.remove(folder, b"x", &member, at(3)),
        Err(Status::Access)
    );
    assert!(store.read(inside, 0, 9, &member, at(3)).is_ok());
    assert_eq!(store.read(inside, 0, 9, &other, at(3)), Err(Status::Access));
    let one = |caller: &Identity, store: &mut Store<HeapPages>| {
        store.write(inside, (0, 1), std::iter::once(&b"x"[..]), caller, at(3))
    };
    assert_eq!(one(&member, &mut store), Err(Status::Access));
    // The owner goes on with a file that it has opened, whatever the mode has become.
    store
        .set_attributes(inside, &mode(0), None, &owner, at(4))
        .unwrap();
    assert_eq!(one(&owner, &mut store), Ok(1));
    assert_eq!(one(&ROOT_USER, &mut store), Ok(1));
    let all = access::READ | access::MODIFY | access::EXTEND | access::EXECUTE;
    assert_eq!(store.access(inside, all, &owner), Ok(0));
    assert_eq!(
        store.access(inside, all, &ROOT_USER),
        Ok(all & !access::EXECUTE)
    );
    assert_eq!(
        store.access(folder, access::LOOKUP | access::DELETE, &member),
        Ok(access::LOOKUP)
    );
    // The root is everybody's, but names are their owners'.
    assert_eq!(
        store.remove_directory(ROOT, b"folder", &other, at(5)),
        Err(Status::NotOwner)
    );
}

#[test]
fn attributes_are_set_by_who_may() {
    let mut store = store();
    let (owner, other) = (user(10), user(12));
    let x = store
        .make(ROOT, b"x", NewFile::Regular, &mode(0o4666), &owner, at(2))
        .unwrap();
    let set = |store: &mut Store<HeapPages>, set: SetAttributes, caller: &Identity| {
        store.set_attributes(x, &set, None, caller, at(5))
    };
    let nothing = SetAttributes::default();
    let to_time = SetAttributes {
        modified: SetTime::To(at(1)),
        ..nothing
    };
    let to_now = SetAttributes {
        modified: SetTime::ToServer,
        ..nothing
    };
    let uid = |uid| SetAttributes {
        uid: Some(uid),
        ..nothing
    };
    let gid = |gid| SetAttributes {
        gid: Some(gid),
        ..nothing
    };
    assert_eq!(set(&mut store, mode(0o600), &other), Err(Status::NotOwner));
    assert_eq!(set(&mut store, to_time, &other), Err(Status::NotOwner));
    assert_eq!(
        set(&mut store, to_now, &other),
        Ok(()),
        "who may write may touch"
    );
    assert_eq!(store.attributes(x).unwrap().modified, at(5));
    assert_eq!(set(&mut store, to_time, &owner), Ok(()));
    assert_eq!(store.attributes(x).unwrap().modified, at(1));
    assert_eq!(store.attributes(x).unwrap().changed, at(5));
    assert_eq!(set(&mut store, uid(12), &owner), Err(Status::NotOwner));
    assert_eq!(set(&mut store, gid(77), &owner), Err(Status::NotOwner));
    assert_eq!(store.attributes(x).unwrap().mode, 0o4666);
    assert_eq!(set(&mut store, gid(500), &owner), Ok(()));
    assert_eq!(
        store.attributes(x).unwrap().mode,
        0o666,
        "another group ends set-user-id"
    );
    assert_eq!(set(&mut store, uid(12), &ROOT_USER), Ok(()));
    let before = store.attributes(x);
    // As for utimensat. The server of Linux 6.1 takes them, and clients see a time that is none.
    for nanoseconds in [1_000_000_000, u32::MAX] {
        let time = SetTime::To(Time {
            seconds: 1,
            nanoseconds,
        });
        let (accessed, modified) = (time, time);
        for no_time in [
            SetAttributes {
                accessed,
                ..mode(0)
            },
            SetAttributes {
                modified,
                ..mode(0)
            },
        ] {
            assert_eq!(set(&mut store, no_time, &ROOT_USER), Err(Status::Invalid));
        }
    }
    assert_eq!(store.attributes(x), before);
    let guarded = store.set_attributes(x, &mode(0), Some(at(4)), &ROOT_USER, at(6));
    assert_eq!(guarded, Err(Status::NotSync));
    let guarded = store.set_attributes(x, &mode(0), Some(at(5)), &ROOT_USER, at(6));
    assert_eq!(guarded, Ok(()));
}

#[test]
fn writes_by_others_end_set_user_id() {
    let mut store = store();
    let x = store
        .make(
            ROOT,
            b"x",
            NewFile::Regular,
            &mode(0o6777),
            &user(10),
            at(2),
        )
        .unwrap();
    let piece = || std::iter::once(&b"x"[..]);
    store.write(x, (0, 1), piece(), &ROOT_USER, at(3)).unwrap();
    assert_eq!(
        store.attributes(x).unwrap().mode & 0o6000,
        0o6000,
        "root's writes change nothing"
    );
    store.write(x, (0, 1), piece(), &user(12), at(3)).unwrap();
    assert_eq!(store.attributes(x).unwrap().mode & 0o6000, 0);
}

#[test]
fn directories_hand_their_group_down() {
    let mut store = store();
    let gid = SetAttributes {
        mode: Some(0o2777),
        gid: Some(500),
        ..SetAttributes::default()
    };
    let folder = store
        .make(ROOT, b"folder", NewFile::Directory, &gid, &user(10), at(2))
        .unwrap();
    let below = store
        .make(
            folder,
            b"below",
            NewFile::Directory,
            &mode(0o755),
            &user(12),
            at(2),
        )
        .unwrap();
    let attributes = store.attributes(below).unwrap();
    assert_eq!((attributes.gid, attributes.mode), (500, 0o2755));
    let special = NewFile::Special(FileKind::NamedPipe, crate::wire::types::Device::default());
    let pipe = store
        .make(below, b"pipe", special, &mode(0o600), &user(12), at(2))
        .unwrap();
    assert_eq!(store.attributes(pipe).unwrap().kind, FileKind::NamedPipe);
    assert_eq!(
        store.read(pipe, 0, 1, &ROOT_USER, at(3)),
        Err(Status::Invalid)
    );
    assert_eq!(
        store.read(below, 0, 1, &ROOT_USER, at(3)),
        Err(Status::IsDirectory)
    );
}
