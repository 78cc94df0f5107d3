//! Whole calls: arguments in XDR, results in XDR.

mod half_open;
mod over_tcp;
mod wild;

use std::net::{IpAddr, Ipv4Addr};

use proptest::prelude::*;
use rpcrdma::once::{ClientId, Peer};
use rpcrdma_protocol::constants::AUTH_SYS;
use rpcrdma_protocol::rpc::OpaqueAuth;
use rpcrdma_protocol::xdr::{Reader, Writer};

use super::application::item_of;
use super::call::NoItems;
use super::*;
use crate::store::{HeapPages, Piece};
use crate::wire::arguments::{self, CreateHow};
use crate::wire::auth_sys::AuthSys;
use crate::wire::results;
use crate::wire::types::{
    Attributes, Device, FileHandle, FileKind, Place, SetAttributes, Stability, Wcc,
};
use crate::wire::xdr::{Decode, Encode};
use crate::wire::{Status, mount as mount_wire};

fn encoded(values: &[&dyn Fn(&mut Writer<'_>)]) -> Vec<u8> {
    let mut space = vec![0; 1 << 17];
    let mut writer = Writer::new(&mut space);
    values.iter().for_each(|value| value(&mut writer));
    let bytes = writer.position();
    space.truncate(bytes);
    space
}

fn bytes_of(value: impl Encode) -> Vec<u8> {
    encoded(&[&|writer| value.encode(writer).unwrap()])
}

/// A client that holds a service.
struct Client {
    service: Service<HeapPages>,
    reply: Reply,
    xid: u32,
    credential: Vec<u8>,
    session: Arc<Session>,
}

/// Where it is.
const PEER: Peer = Peer::Host(IpAddr::V4(Ipv4Addr::LOCALHOST));

impl Client {
    fn new(pages: u64, files_max: u32) -> Self {
        let pages = HeapPages::new(pages * 4096, 4096);
        let body = AuthSys {
            stamp: 1,
            machine_name: b"test",
            identity: Identity::ROOT,
        };
        let service = Service::new(pages, Limits { files_max }, 4);
        let session = service.clients.attach(&ClientId::Unnamed(PEER));
        Self {
            session: session.unwrap(),
            service,
            reply: Reply::new(),
            xid: 0,
            credential: bytes_of(body),
        }
    }

    /// A call of this client, of which nothing is kept.
    fn call_of<'a>(&self, credential: &'a [u8], procedure: u32, args: &'a [u8]) -> Call<'a> {
        Call {
            peer: PEER,
            session: None,
            arrival: 0,
            xid: self.xid,
            procedure,
            credential: OpaqueAuth {
                flavor: AUTH_SYS,
                body: credential,
            },
            args,
        }
    }

    fn place<'a>(&self, name: &'a [u8]) -> Place<'a> {
        Place {
            directory: self.root(),
            name,
        }
    }

    fn root(&self) -> FileHandle {
        let store = self.service.store();
        store.handle(Store::<HeapPages>::ROOT).unwrap()
    }

    /// Calls as the last time, with the same number: a retransmission.
    fn again(&mut self, procedure: u32, args: &[u8]) -> Outcome {
        self.again_with(procedure, args, &NoItems)
    }

    fn again_with(&mut self, procedure: u32, args: &[u8], items: &impl Items) -> Outcome {
        let credential = self.credential.clone();
        let session = Arc::clone(&self.session);
        let call = Call {
            session: Some(&session),
            ..self.call_of(&credential, procedure, args)
        };
        self.service.call(&call, items, &mut self.reply)
    }

    fn raw(&mut self, procedure: u32, args: &[u8]) -> Outcome {
        self.xid += 1;
        self.again(procedure, args)
    }

    /// The results with their payload.
    fn results(&self) -> Vec<u8> {
        let stream = self.reply.stream();
        let Some(payload) = self.reply.payload() else {
            return stream.to_vec();
        };
        let (before, after) = stream.split_at(payload.stream_offset);
        let mut results = before.to_vec();
        self.service
            .payload(payload)
            .for_each(|piece| results.extend_from_slice(piece));
        let data_bytes = results.len() - before.len();
        assert_eq!(
            data_bytes, payload.bytes as usize,
            "the length that was told"
        );
        results.resize(results.len().next_multiple_of(4), 0);
        results.extend_from_slice(after);
        results
    }

    fn call(&mut self, procedure: Procedure, args: impl Encode) -> Vec<u8> {
        self.call_raw(procedure, &bytes_of(args))
    }

    /// The results of a call that succeeds, whatever it says that became of it.
    fn call_raw(&mut self, procedure: Procedure, args: &[u8]) -> Vec<u8> {
        assert_eq!(self.raw(procedure.number(), args), Outcome::Success);
        self.results()
    }

    /// Calls for results without a payload.
    fn done<Done, Failed>(
        &mut self,
        procedure: Procedure,
        args: impl Encode,
    ) -> Result<Done, (Status, Failed)>
    where
        Done: for<'a> Decode<'a>,
        Failed: for<'a> Decode<'a>,
    {
        let bytes = self.call(procedure, args);
        let mut reader = Reader::new(&bytes);
        let result = results::decode(&mut reader).unwrap();
        assert!(reader.is_at_end());
        result
    }

    fn create(&mut self, name: &[u8]) -> FileHandle {
        let place = self.place(name);
        let how = CreateHow::Guarded(SetAttributes::default());
        let create = arguments::Create { place, how };
        let made: results::Created = self.done::<_, Wcc>(Procedure::Create, create).unwrap();
        made.object.unwrap()
    }

    fn write(
        &mut self,
        file: FileHandle,
        offset_bytes: u64,
        data: &[u8],
    ) -> Result<results::Write, Status> {
        let write = arguments::Write {
            file,
            offset_bytes,
            count_bytes: u32::try_from(data.len()).unwrap(),
            stability: Stability::Unstable,
        };
        let args = encoded(&[&|writer| write.encode(writer).unwrap(), &|writer| {
            data.encode(writer).unwrap();
        }]);
        let bytes = self.call_raw(Procedure::Write, &args);
        let written: Result<results::Write, (Status, Wcc)> =
            results::decode(&mut Reader::new(&bytes)).unwrap();
        written.map_err(|(status, _)| status)
    }

    fn read(&mut self, file: FileHandle, offset_bytes: u64, count_bytes: u32) -> (Vec<u8>, bool) {
        let args = arguments::Read {
            file,
            offset_bytes,
            count_bytes,
        };
        let bytes = self.call(Procedure::Read, args);
        let mut reader = Reader::new(&bytes);
        let read: Result<results::Read, (Status, Option<Attributes>)> =
            results::decode(&mut reader).unwrap();
        let read = read.unwrap();
        let data = <&[u8]>::decode(&mut reader).unwrap();
        assert!(reader.is_at_end());
        assert_eq!(data.len(), read.count_bytes as usize);
        (data.to_vec(), read.is_end)
    }
}

#[test]
fn nfs_read_returns_the_bytes_written() {
    let mut client = Client::new(100, 100);
    let file = client.create(b"file");
    let bytes: Vec<u8> = (0..10_001_u32).flat_map(u32::to_be_bytes).collect();
    let written = client.write(file, 3, &bytes).unwrap();
    assert_eq!(written.count_bytes, 40_004);
    assert_eq!(written.committed, Stability::Unstable);
    let (before, after) = (written.file.before.unwrap(), written.file.after.unwrap());
    assert_eq!((before.size_bytes, after.size_bytes), (0, 40_007));
    assert_ne!(before.changed, after.changed);
    assert_eq!(client.read(file, 3, 40_004), (bytes.clone(), true));
    assert_eq!(client.read(file, 7, 5), (bytes[4..9].to_vec(), false));
    assert_eq!(client.read(file, 0, 3), (vec![0; 3], false));
    assert_eq!(client.read(file, 40_007, 9), (vec![], true));
    assert_eq!(client.read(file, u64::MAX, u32::MAX), (vec![], true));
    let commit = arguments::Commit {
        file,
        offset_bytes: 0,
        count_bytes: 0,
    };
    let committed: results::Commit = client.done::<_, Wcc>(Procedure::Commit, commit).unwrap();
    assert_eq!(committed.verifier, written.verifier);
    // As by the Linux server (nfsd_commit, 6.1).
    let of_directory = arguments::Commit {
        file: client.root(),
        ..commit
    };
    let refused = client.done::<results::Commit, Wcc>(Procedure::Commit, of_directory);
    assert_eq!(refused.unwrap_err().0, Status::IsDirectory);
}

#[test]
fn a_retransmission_is_not_done_again() {
    let mut client = Client::new(10, 10);
    client.create(b"x");
    let args = bytes_of(client.place(b"x"));
    let first = client.call_raw(Procedure::Remove, &args);
    let remove = Procedure::Remove.number();
    assert_eq!(client.again(remove, &args), Outcome::Success);
    assert_eq!(client.results(), first);
    assert_eq!(first[..4], [0; 4]);
    let second = client.call_raw(Procedure::Remove, &args);
    assert_eq!(second[..4], Status::NoEntry.number().to_be_bytes());
    // What may be done twice is done again: it sees what is there now.
    let gone = client.call_raw(Procedure::Lookup, &args);
    client.create(b"x");
    assert_ne!(client.call_raw(Procedure::Lookup, &args), gone);
}

/// By RPC-over-RDMA data need registered memory, and where none is left at the moment the reply says so.
#[test]
fn data_for_which_there_is_no_memory_are_to_be_asked_for_again() {
    let mut client = Client::new(16, 10);
    let file = client.create(b"file");
    client.write(file, 0, b"bytes").unwrap();
    let read = arguments::Read {
        file,
        offset_bytes: 0,
        count_bytes: 5,
    };
    client.call(Procedure::Read, read);
    let Client { service, reply, .. } = &mut client;
    assert!(item_of(service, reply, || None).is_none());
    let bytes = client.results();
    let mut reader = Reader::new(&bytes);
    let read: Result<results::Read, (Status, Option<Attributes>)> =
        results::decode(&mut reader).unwrap();
    assert_eq!(read.map(|_| ()), Err((Status::Jukebox, None)));
    assert!(reader.is_at_end());
    assert_eq!(client.read(file, 0, 5), (b"bytes".to_vec(), true));
}

#[test]
fn a_symbolic_link_keeps_its_target() {
    let mut client = Client::new(100, 10);
    let target = vec![b't'; 4095];
    let symlink = arguments::Symlink {
        place: client.place(b"link"),
        attributes: SetAttributes::default(),
    };
    let args = encoded(&[&|writer| symlink.encode(writer).unwrap(), &|writer| {
        (&target[..]).encode(writer).unwrap();
    }]);
    let bytes = client.call_raw(Procedure::Symlink, &args);
    let made: Result<results::Created, (Status, Wcc)> =
        results::decode(&mut Reader::new(&bytes)).unwrap();
    let link = made.unwrap().object.unwrap();
    let bytes = client.call(Procedure::Readlink, link);
    let mut reader = Reader::new(&bytes);
    type ReadlinkResult = Result<Option<Attributes>, (Status, Option<Attributes>)>;
    let attributes: ReadlinkResult = results::decode(&mut reader).unwrap();
    assert_eq!(attributes.unwrap().unwrap().kind, FileKind::SymbolicLink);
    assert_eq!(<&[u8]>::decode(&mut reader), Ok(&target[..]));
}

/// Lists a directory in pieces of `count_bytes`; the names, and the calls that it took.
///
/// The Linux server (6.1) takes any verifier and gives back the one that it got (nfsd3_proc_readdir); a client that was written
/// for it may send zero always.
fn list(
    client: &mut Client,
    count_bytes: u32,
    plus: bool,
    keeps_verifier: bool,
) -> (Vec<Vec<u8>>, u32) {
    let (mut names, mut calls) = (Vec::new(), 0);
    let (mut cookie, mut verifier) = (0, [0; 8]);
    loop {
        calls += 1;
        let directory = client.root();
        let bytes = if plus {
            let readdirplus = arguments::Readdirplus {
                directory,
                cookie,
                verifier,
                names_bytes: count_bytes,
                count_bytes,
            };
            client.call(Procedure::Readdirplus, readdirplus)
        } else {
            let readdir = arguments::Readdir {
                directory,
                cookie,
                verifier,
                count_bytes,
            };
            client.call(Procedure::Readdir, readdir)
        };
        assert!(bytes.len() <= 4 + count_bytes as usize, "{}", bytes.len());
        let mut reader = Reader::new(&bytes);
        let listing: Result<results::Listing, (Status, Option<Attributes>)> =
            results::decode(&mut reader).unwrap();
        let current = listing.unwrap().verifier;
        if keeps_verifier {
            verifier = current;
        }
        while bool::decode(&mut reader).unwrap() {
            let entry = results::Entry::decode(&mut reader).unwrap();
            if plus {
                let more = results::EntryPlus::decode(&mut reader).unwrap();
                assert_eq!(more.attributes.unwrap().file_number, entry.file_number);
                assert!(client.service.store().find(&more.object.unwrap()).is_ok());
            }
            cookie = entry.cookie;
            names.push(entry.name.to_vec());
        }
        let is_end = bool::decode(&mut reader).unwrap();
        assert!(reader.is_at_end());
        if is_end {
            return (names, calls);
        }
    }
}

#[test]
fn ten_thousand_names_are_listed_once_each_in_replies_as_long_as_was_asked() {
    let mut client = Client::new(10, 20_000);
    let mut expected = vec![b".".to_vec(), b"..".to_vec()];
    for index in 0..10_000 {
        let name = format!("{index:0width$}", width = 1 + index % 40).into_bytes();
        let name = [name, format!("-{index}").into_bytes()].concat();
        client.create(&name);
        expected.push(name);
    }
    for plus in [false, true] {
        for count_bytes in [1024, 4096, 65_536] {
            for keeps_verifier in [true, false] {
                let (names, calls) = list(&mut client, count_bytes, plus, keeps_verifier);
                assert_eq!(names, expected);
                assert!(calls > 3);
            }
        }
    }
    // Of another life of the server, whose cookies say nothing here.
    let (cookie, verifier) = (3, [1; 8]);
    let directory = client.root();
    let readdir = |cookie, count_bytes| arguments::Readdir {
        directory,
        cookie,
        verifier,
        count_bytes,
    };
    let plus = arguments::Readdirplus {
        directory,
        cookie,
        verifier,
        names_bytes: 4096,
        count_bytes: 4096,
    };
    let refused = [
        client.done::<u32, Option<Attributes>>(Procedure::Readdir, readdir(cookie, 4096)),
        client.done(Procedure::Readdirplus, plus),
        client.done(Procedure::Readdir, readdir(0, 100)),
    ];
    let refused = refused.map(|refused| refused.unwrap_err().0);
    let bad_cookie = Status::BadCookie;
    assert_eq!(refused, [bad_cookie, bad_cookie, Status::TooSmall]);
}

/// An item of bulk data, in two pieces.
struct OneItem {
    args_offset: usize,
    data: Vec<u8>,
    is_version_1: bool,
}

impl Items for OneItem {
    fn at(&self, args_offset: usize) -> Option<usize> {
        (args_offset == self.args_offset).then_some(0)
    }

    fn is_of(&self, _index: usize, bytes: usize) -> bool {
        let there = self.data.len();
        there == bytes || (self.is_version_1 && there == bytes.next_multiple_of(4))
    }

    fn count(&self) -> usize {
        1
    }

    fn pieces(&self, index: usize) -> impl Iterator<Item = Piece<'_>> {
        let (a, b) = self.data.split_at(self.data.len() / 3);
        let pieces = [a, b].into_iter().filter(move |_| index == 0);
        pieces.map(Piece::from)
    }
}

#[test]
fn data_beside_the_stream_are_written_as_those_in_it() {
    let mut client = Client::new(10, 10);
    let file = client.create(b"x");
    let data: Vec<u8> = (0..7001_u32).map(|index| index.to_be_bytes()[3]).collect();
    let count_bytes = 7001;
    let write = arguments::Write {
        file,
        offset_bytes: 5,
        count_bytes,
        stability: Stability::FileSync,
    };
    let args = encoded(&[&|writer| write.encode(writer).unwrap(), &|writer| {
        writer.write_u32(count_bytes).unwrap();
    }]);
    let mut items = OneItem {
        args_offset: args.len(),
        data: data.clone(),
        is_version_1: false,
    };
    let call = |client: &mut Client, args: &[u8], items: &OneItem| {
        client.xid += 1;
        client.again_with(Procedure::Write.number(), args, items)
    };
    let refused = Outcome::GarbageArgs;
    assert_eq!(call(&mut client, &args, &items), Outcome::Success);
    assert_eq!(client.read(file, 5, count_bytes), (data.clone(), true));
    // Its round-up comes with it, and is no data.
    items.data.extend_from_slice(&[0xaa; 3]);
    assert_eq!(call(&mut client, &args, &items), refused);
    items.is_version_1 = true;
    assert_eq!(call(&mut client, &args, &items), Outcome::Success);
    assert_eq!(client.read(file, 5, count_bytes + 3), (data, true));
    items.data.truncate(7001);
    items.args_offset += 4;
    assert_eq!(call(&mut client, &args, &items), refused);
    items.args_offset -= 4;
    items.data.pop();
    assert_eq!(call(&mut client, &args, &items), refused);
    client.xid += 1;
    let getattr = client.again_with(Procedure::Getattr.number(), &bytes_of(file), &items);
    assert_eq!(getattr, refused);
}

#[test]
fn written_data_tell_calls_apart_by_their_ends() {
    let mut client = Client::new(10, 10);
    let file = client.create(b"x");
    let write = |data: &[u8], is_item: bool| {
        let count_bytes = u32::try_from(data.len()).unwrap();
        let write = arguments::Write {
            file,
            offset_bytes: 0,
            count_bytes,
            stability: Stability::FileSync,
        };
        encoded(&[
            &|writer| write.encode(writer).unwrap(),
            &|writer| match is_item {
                true => writer.write_u32(count_bytes).unwrap(),
                false => data.encode(writer).unwrap(),
            },
        ])
    };
    for is_item in [true, false] {
        client.xid += 1;
        let mut call = |data: &[u8]| {
            let args = write(data, is_item);
            let item = OneItem {
                args_offset: args.len(),
                data: data.to_vec(),
                is_version_1: false,
            };
            let number = Procedure::Write.number();
            let outcome = match is_item {
                true => client.again_with(number, &args, &item),
                false => client.again(number, &args),
            };
            assert_eq!(outcome, Outcome::Success);
            client.service.repeated()
        };
        let data = [7; 3000];
        let before = call(&data);
        assert_eq!(call(&data), before + 1);
        for at in [0, 255, 3000 - 256, 2999] {
            let mut other = data;
            other[at] = 8;
            assert_eq!(call(&other), before + 1, "{at}");
        }
        // Data that nothing but a copy engine touches are not read for this.
        let mut other = data;
        other[1500] = 8;
        assert_eq!(call(&other), before + 2);
        assert_eq!(call(&data[..2996]), before + 2, "shorter");
    }
}

/// Its data comes beside the stream or in it, as its client chooses each time; in a chunk of version 1 also with its padding.
#[test]
fn write_that_comes_again_in_another_form_is_not_done_again() {
    let mut client = Client::new(10, 10);
    let file = client.create(b"x");
    for length in [1_u32, 3, 4, 300, 3001] {
        client.xid += 1;
        let data = vec![7; length as usize];
        let write = arguments::Write {
            file,
            offset_bytes: 0,
            count_bytes: length,
            stability: Stability::FileSync,
        };
        let before_data = encoded(&[&|writer| write.encode(writer).unwrap(), &|writer| {
            writer.write_u32(length).unwrap();
        }]);
        let in_stream = encoded(&[&|writer| write.encode(writer).unwrap(), &|writer| {
            data.as_slice().encode(writer).unwrap();
        }]);
        let number = Procedure::Write.number();
        let before = client.service.repeated();
        assert_eq!(client.again(number, &in_stream), Outcome::Success);
        for is_version_1 in [false, true] {
            let mut data = data.clone();
            if is_version_1 {
                data.resize(data.len().next_multiple_of(4), 0);
            }
            let item = OneItem {
                args_offset: before_data.len(),
                data,
                is_version_1,
            };
            let outcome = client.again_with(number, &before_data, &item);
            assert_eq!(outcome, Outcome::Success);
        }
        assert_eq!(client.service.repeated(), before + 2, "{length}");
    }
}

#[test]
fn mount_hands_out_directories_of_the_export() {
    let mut client = Client::new(10, 10);
    let root = client.root();
    let mkdir = arguments::Mkdir {
        place: client.place(b"below"),
        attributes: SetAttributes::default(),
    };
    let made: results::Created = client.done::<_, Wcc>(Procedure::Mkdir, mkdir).unwrap();
    let below = made.object.unwrap();
    client.create(b"file");
    let mut mounts = mount::Mounts::default();
    let mut call = |procedure: mount_wire::MountProcedure, args: &[u8]| {
        let call = Call {
            credential: OpaqueAuth::NONE,
            ..client.call_of(&[], procedure.number(), args)
        };
        let outcome = mounts.call(&call, &client.service, &mut client.reply);
        (outcome, client.reply.stream().to_vec())
    };
    use mount_wire::{MountProcedure, MountStatus};
    for (path, expected) in [
        (&b"/export"[..], Ok(root)),
        (b"/export/", Ok(root)),
        (b"/export/below", Ok(below)),
        (b"/export/below/..", Ok(root)),
        (b"/export/file", Err(MountStatus::NotDirectory)),
        (b"/export/none", Err(MountStatus::NoEntry)),
        (b"/exports", Err(MountStatus::NoEntry)),
        (b"/", Err(MountStatus::NoEntry)),
        (b"", Err(MountStatus::NoEntry)),
    ] {
        let (outcome, results) = call(MountProcedure::Mnt, &bytes_of(path));
        assert_eq!(outcome, Outcome::Success);
        let mut reader = Reader::new(&results);
        let status = MountStatus::decode(&mut reader).unwrap();
        let handle = (status == MountStatus::Ok).then(|| FileHandle::decode(&mut reader).unwrap());
        assert_eq!(handle.ok_or(status), expected, "{path:?}");
    }
    let mounted = call(MountProcedure::Dump, &[]).1;
    let entries = |dump: &[u8]| {
        let mut reader = Reader::new(dump);
        let mut entries = 0;
        while bool::decode(&mut reader).unwrap() {
            assert_eq!(<&[u8]>::decode(&mut reader), Ok(&b"127.0.0.1"[..]));
            <&[u8]>::decode(&mut reader).unwrap();
            entries += 1;
        }
        assert!(reader.is_at_end());
        entries
    };
    assert_eq!(entries(&mounted), 4);
    call(MountProcedure::Umnt, &bytes_of(&b"/export"[..]));
    assert_eq!(entries(&call(MountProcedure::Dump, &[]).1), 3);
    call(MountProcedure::Umntall, &[]);
    assert_eq!(entries(&call(MountProcedure::Dump, &[]).1), 0);
    let exports = call(MountProcedure::Export, &[]).1;
    let expected = [&[0, 0, 0, 1, 0, 0, 0, 7][..], b"/export\0", &[0; 8]].concat();
    assert_eq!(exports, expected);
    let long = bytes_of(&[b'x'; 1025][..]);
    assert_eq!(call(MountProcedure::Mnt, &long).0, Outcome::GarbageArgs);
}

#[test]
fn the_clock_never_stands() {
    let mut clock = Clock {
        last: Time {
            seconds: u32::MAX - 1,
            nanoseconds: 999_999_999,
        },
    };
    let first = clock.now();
    let second = clock.now();
    assert!(first < second);
    let mut clock = Clock::default();
    let readings: Vec<Time> = (0..1000).map(|_| clock.now()).collect();
    assert!(readings.is_sorted_by(|a, b| a < b));
}
