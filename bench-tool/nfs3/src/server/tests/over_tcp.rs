//! NFS and MOUNT by TCP: a whole node.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};

use rpcrdma::{Authentication, Idle, Node, Profile};
use rpcrdma_protocol::constants::{AUTH_NONE, AUTH_SYS, RPCSEC_GSS};
use rpcrdma_protocol::rpc::{
    AcceptStatus, AuthStatus, CallHeader, OpaqueAuth, RejectStatus, ReplyBody, ReplyHeader,
};

use crate::server::application::NfsApplication;
use crate::server::{DATA_BYTES_MAX, EXPORT, Service};
use crate::store::{HeapPages, Limits, Store};
use crate::wire::types::{Place, SetAttributes, SetTime, Stability};
use crate::wire::xdr::Encode;
use crate::wire::{ACL_PROGRAM, FileHandle, PROGRAM, Procedure, VERSION, arguments, mount};
use rpcrdma::record;

/// A server, and its address.
struct Running {
    address: SocketAddr,
    root: FileHandle,
    _node: Node,
}

impl Running {
    fn start(connections_max: u32) -> Self {
        let pages = HeapPages::new(64 << 20, 4096);
        let clients = connections_max as usize;
        let service = Service::new(pages, Limits { files_max: 100 }, clients);
        let root = service.store().handle(Store::<HeapPages>::ROOT).unwrap();
        let mut application = Some(NfsApplication::new(service));
        let node = Node::builder()
            .profile(Profile {
                connections_max: 1,
                idle: Idle::Park,
                ..Profile::default()
            })
            .tcp_connections(connections_max)
            .application(move |_| application.take().unwrap())
            .start("tcp:")
            .unwrap();
        let address = node.listen("tcp:127.0.0.1:0", Authentication::None);
        Self {
            address: address.unwrap()["tcp:".len()..].parse().unwrap(),
            root,
            _node: node,
        }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream
            .set_read_timeout(Some(rpcrdma_testkit::PATIENCE))
            .unwrap();
        stream
    }

    /// From another address of this host, as of another host.
    fn connect_from(&self, address: Ipv4Addr) -> TcpStream {
        use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
        let stream = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&stream, &SocketAddr::from((address, 0))).unwrap();
        connect(&stream, &self.address).unwrap();
        let stream = TcpStream::from(stream);
        stream
            .set_read_timeout(Some(rpcrdma_testkit::PATIENCE))
            .unwrap();
        stream
    }
}

fn call(xid: u32, program: u32, version: u32, procedure: u32, args: &[u8]) -> Vec<u8> {
    let header = CallHeader {
        xid,
        program,
        version,
        procedure,
        credential: OpaqueAuth::NONE,
        verifier: OpaqueAuth::NONE,
    };
    let mut space = [0; 64];
    let bytes = header.encode(&mut space).unwrap();
    let mark = record::header(bytes + args.len()).unwrap();
    [&mark[..], &space[..bytes], args].concat()
}

fn reply(stream: &mut TcpStream) -> Vec<u8> {
    let mut mark = [0; 4];
    stream.read_exact(&mut mark).unwrap();
    let bytes = u32::from_be_bytes(mark) & !record::LAST_FRAGMENT;
    let mut reply = vec![0; bytes as usize];
    stream.read_exact(&mut reply).unwrap();
    reply
}

/// Calls a procedure of NFS.
fn send(stream: &mut TcpStream, xid: u32, procedure: Procedure, args: &[u8]) {
    let call = call(xid, PROGRAM, VERSION, procedure.number(), args);
    stream.write_all(&call).unwrap();
}

fn bytes_of(values: &[&dyn Fn(&mut rpcrdma_protocol::xdr::Writer<'_>)]) -> Vec<u8> {
    let mut space = vec![0; 2 << 20];
    let mut writer = rpcrdma_protocol::xdr::Writer::new(&mut space);
    values.iter().for_each(|write| write(&mut writer));
    let bytes = writer.position();
    space.truncate(bytes);
    space
}

/// Results of a successful reply.
fn results(reply: &[u8]) -> &[u8] {
    let (header, bytes) = ReplyHeader::decode(reply).unwrap();
    let success = AcceptStatus::Success;
    assert_eq!(header, ReplyHeader::accepted(header.xid, success));
    &reply[bytes..]
}

#[test]
fn each_program_is_answered_as_what_it_is() {
    let server = Running::start(4);
    let mut stream = server.connect();
    let mismatch = AcceptStatus::ProgMismatch { low: 3, high: 3 };
    for (program, version, expected) in [
        (PROGRAM, VERSION, AcceptStatus::Success),
        (PROGRAM, 4, mismatch),
        (mount::PROGRAM, mount::VERSION, AcceptStatus::Success),
        (mount::PROGRAM, 1, mismatch),
        (ACL_PROGRAM, 3, AcceptStatus::ProgUnavail),
    ] {
        let call = call(7, program, version, 0, &[]);
        stream.write_all(&call).unwrap();
        let reply = reply(&mut stream);
        let (header, _) = ReplyHeader::decode(&reply).unwrap();
        let expected = ReplyHeader::accepted(7, expected);
        assert_eq!(header, expected, "{program} {version}");
    }
    let mut old = call(7, PROGRAM, VERSION, 0, &[]);
    old[12..16].copy_from_slice(&1_u32.to_be_bytes());
    stream.write_all(&old).unwrap();
    let reply = reply(&mut stream);
    let denied = RejectStatus::RpcMismatch { low: 2, high: 2 };
    let (header, _) = ReplyHeader::decode(&reply).unwrap();
    assert_eq!(header.body, ReplyBody::Denied(denied));
}

#[test]
fn replies_to_a_client_that_does_not_read_wait_and_none_is_lost() {
    let server = Running::start(4);
    let mut stream = server.connect();
    let place = Place {
        directory: server.root,
        name: b"file",
    };
    let how = arguments::CreateHow::Guarded(SetAttributes::default());
    let create = arguments::Create { place, how };
    let args = bytes_of(&[&|writer| create.encode(writer).unwrap()]);
    send(&mut stream, 1, Procedure::Create, &args);
    let made = reply(&mut stream);
    let file = FileHandle::new(&results(&made)[12..28]).unwrap();
    let data = vec![0x5a; DATA_BYTES_MAX as usize];
    let write = arguments::Write {
        file,
        offset_bytes: 0,
        count_bytes: DATA_BYTES_MAX,
        stability: Stability::FileSync,
    };
    let args = bytes_of(&[&|writer| write.encode(writer).unwrap(), &|writer| {
        (&data[..]).encode(writer).unwrap();
    }]);
    send(&mut stream, 2, Procedure::Write, &args);
    assert_eq!(results(&reply(&mut stream))[..4], [0; 4]);
    let read = arguments::Read {
        file,
        offset_bytes: 0,
        count_bytes: DATA_BYTES_MAX,
    };
    let args = bytes_of(&[&|writer| read.encode(writer).unwrap()]);
    // Far more than the server keeps, and the sockets hold.
    let count = 40;
    for xid in 10..10 + count {
        send(&mut stream, xid, Procedure::Read, &args);
    }
    // Others are served meanwhile.
    let mut other = server.connect();
    send(&mut other, 3, Procedure::Null, &[]);
    assert!(results(&reply(&mut other)).is_empty());
    for xid in 10..10 + count {
        let reply = reply(&mut stream);
        assert_eq!(reply[..4], xid.to_be_bytes());
        assert!(reply.ends_with(&data));
    }
}

/// The status of the results of a reply.
fn status(stream: &mut TcpStream) -> u32 {
    u32::from_be_bytes(*results(&reply(stream)).first_chunk().unwrap())
}

const DONE: u32 = 0;
const EXISTS: u32 = 17;

/// The arguments of MKDIR.
fn mkdir_in(directory: FileHandle) -> Vec<u8> {
    let place = Place {
        directory,
        name: b"made",
    };
    let attributes = SetAttributes::default();
    let mkdir = arguments::Mkdir { place, attributes };
    bytes_of(&[&|writer| mkdir.encode(writer).unwrap()])
}

/// Two programs may use one verifier: the Linux client makes it of its clock and the process, and opens through two mounts
/// within a jiffy have the same. Its server keeps the verifier in the times of the file (nfsd3_create_file, Linux 6.1), where
/// the SETATTR that follows each such CREATE, or a WRITE, ends it.
#[test]
fn exclusive_create_is_recognized_until_its_file_changes() {
    let server = Running::start(4);
    let (mut first, mut second) = (server.connect(), server.connect());
    let set = |attributes: SetAttributes| {
        move |object: FileHandle| {
            let setattr = arguments::Setattr {
                object,
                attributes,
                guard: None,
            };
            bytes_of(&[&|writer| setattr.encode(writer).unwrap()])
        }
    };
    let times = set(SetAttributes {
        accessed: SetTime::ToServer,
        modified: SetTime::ToServer,
        ..SetAttributes::default()
    });
    let mode = set(SetAttributes {
        mode: Some(0o600),
        ..SetAttributes::default()
    });
    let write = |file: FileHandle| {
        let write = arguments::Write {
            file,
            offset_bytes: 0,
            count_bytes: 1,
            stability: Stability::Unstable,
        };
        bytes_of(&[&|writer| write.encode(writer).unwrap(), &|writer| {
            (&b"x"[..]).encode(writer).unwrap();
        }])
    };
    type Args<'a> = &'a dyn Fn(FileHandle) -> Vec<u8>;
    let changes: [(Procedure, Args<'_>); 3] = [
        (Procedure::Setattr, &times),
        (Procedure::Setattr, &mode),
        (Procedure::Write, &write),
    ];
    for (xid, (procedure, args)) in (0_u32..).step_by(10).zip(changes) {
        let place = Place {
            directory: server.root,
            name: &xid.to_be_bytes().map(|octet| octet + b'a'),
        };
        let how = arguments::CreateHow::Exclusive([7; 8]);
        let create = arguments::Create { place, how };
        let create = bytes_of(&[&|writer| create.encode(writer).unwrap()]);
        send(&mut first, xid, Procedure::Create, &create);
        let made = reply(&mut first);
        let file = FileHandle::new(&results(&made)[12..28]).unwrap();
        // Nothing tells it from a repetition that the server forgot.
        send(&mut second, xid + 1, Procedure::Create, &create);
        assert_eq!(results(&reply(&mut second))[..28], results(&made)[..28]);
        send(&mut first, xid + 2, procedure, &args(file));
        assert_eq!(status(&mut first), DONE);
        send(&mut second, xid + 3, Procedure::Create, &create);
        assert_eq!(status(&mut second), EXISTS, "after {procedure:?}");
        send(&mut second, xid, Procedure::Create, &create);
        assert_eq!(reply(&mut second), made, "the same call gets its answer");
    }
}

#[test]
fn call_is_known_on_any_connection_of_its_host_after_a_flood_of_another() {
    let server = Running::start(4);
    let mkdir = mkdir_in(server.root);
    let mut first = server.connect();
    send(&mut first, 7, Procedure::Mkdir, &mkdir);
    assert_eq!(status(&mut first), DONE);
    let setattr = arguments::Setattr {
        object: server.root,
        attributes: SetAttributes::default(),
        guard: None,
    };
    let setattr = bytes_of(&[&|writer| setattr.encode(writer).unwrap()]);
    let flood = |stream: &mut TcpStream, count: u32| {
        for xid in 1000..1000 + count {
            send(stream, xid, Procedure::Setattr, &setattr);
            assert_eq!(status(stream), DONE);
        }
    };
    let mut other = server.connect_from(Ipv4Addr::new(127, 0, 0, 2));
    flood(&mut other, 4200);
    let mut second = server.connect();
    send(&mut second, 7, Procedure::Mkdir, &mkdir);
    assert_eq!(status(&mut second), DONE);
    // Other connections of a host share its entries.
    flood(&mut second, 120);
    drop(first);
    send(&mut second, 7, Procedure::Mkdir, &mkdir);
    assert_eq!(status(&mut second), DONE);
    send(&mut other, 7, Procedure::Mkdir, &mkdir);
    assert_eq!(status(&mut other), EXISTS, "it is another host");
}

#[test]
fn connected_host_is_not_forgotten_for_others_that_come_and_go() {
    let server = Running::start(4);
    let mkdir = mkdir_in(server.root);
    let call = |stream: &mut TcpStream| {
        send(stream, 7, Procedure::Mkdir, &mkdir);
        status(stream)
    };
    let mut stays = server.connect();
    assert_eq!(call(&mut stays), DONE);
    // The server keeps what it knows of eight hosts.
    for host in 2..20 {
        let mut other = server.connect_from(Ipv4Addr::new(127, 0, 0, host));
        assert_eq!(call(&mut other), EXISTS);
    }
    assert_eq!(call(&mut stays), DONE);
    let mut again = server.connect();
    drop(stays);
    assert_eq!(call(&mut again), DONE);
}

#[test]
fn symlink_with_another_target_is_another_call() {
    let server = Running::start(4);
    let place = Place {
        directory: server.root,
        name: b"link",
    };
    let attributes = SetAttributes::default();
    let symlink = arguments::Symlink { place, attributes };
    let mut target = vec![b't'; 4095];
    let args = |target: &[u8]| {
        bytes_of(&[&|writer| symlink.encode(writer).unwrap(), &|writer| {
            target.encode(writer).unwrap();
        }])
    };
    let mut stream = server.connect();
    for (changed, expected) in [(b't', DONE), (b't', DONE), (b'u', EXISTS)] {
        target[4000] = changed;
        send(&mut stream, 7, Procedure::Symlink, &args(&target));
        assert_eq!(status(&mut stream), expected);
    }
}

const XID: u32 = 7;
const NFS: u32 = PROGRAM;
const MOUNT: u32 = mount::PROGRAM;
/// A stamp, no name of a machine, user 1, group 1, no further groups.
const SYS: [u32; 5] = [0, 0, 1, 1, 0];

fn octets(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

fn message(named: [u32; 3], flavor: u32, body: &[u32], args: &[u8]) -> Vec<u8> {
    let [program, version, procedure] = named;
    let bytes = u32::try_from(4 * body.len()).unwrap();
    let head = [XID, 0, 2, program, version, procedure, flavor, bytes];
    let head = octets(&[&head[..], body, &[AUTH_NONE, 0]].concat());
    [&head, args].concat()
}

/// The body of the reply.
fn answer(stream: &mut TcpStream, message: &[u8]) -> ReplyBody<'static> {
    let mark = record::header(message.len()).unwrap();
    stream.write_all(&[&mark[..], message].concat()).unwrap();
    let reply = reply(stream);
    let (header, _) = ReplyHeader::decode(&reply).unwrap();
    assert_eq!(header.xid, XID);
    match header.body {
        ReplyBody::Accepted { status, .. } => accepted(status),
        ReplyBody::Denied(status) => ReplyBody::Denied(status),
    }
}

fn accepted(status: AcceptStatus) -> ReplyBody<'static> {
    ReplyHeader::accepted(XID, status).body
}

fn auth_error(status: AuthStatus) -> ReplyBody<'static> {
    ReplyBody::Denied(RejectStatus::AuthError(status))
}

#[test]
fn both_programs_refuse_the_same_credentials() {
    let server = Running::start(4);
    let rpc = &mut server.connect();
    let path = [
        &octets(&[u32::try_from(EXPORT.len()).unwrap()]),
        EXPORT.as_bytes(),
        &[0][..],
    ];
    let path = path.concat();
    for (named, args) in [([NFS, 3, 1], &[][..]), ([MOUNT, 3, 1], &path)] {
        let denied = [
            (AUTH_SYS, &[][..], AuthStatus::BAD_CREDENTIAL),
            (AUTH_SYS, &SYS[..4], AuthStatus::BAD_CREDENTIAL),
            (RPCSEC_GSS, &[1, 0, 1, 1, 0], AuthStatus::TOO_WEAK),
            (99, &[], AuthStatus::TOO_WEAK),
        ];
        for (flavor, body, status) in denied {
            let message = message(named, flavor, body, args);
            assert_eq!(
                answer(rpc, &message),
                auth_error(status),
                "{named:?} {flavor}"
            );
        }
        let message = message(named, AUTH_SYS, &SYS, args);
        let right = if args.is_empty() {
            AcceptStatus::GarbageArgs
        } else {
            AcceptStatus::Success
        };
        assert_eq!(answer(rpc, &message), accepted(right), "{named:?}");
    }
}

#[test]
fn both_programs_answer_null_alike() {
    let server = Running::start(4);
    let rpc = &mut server.connect();
    let garbage = accepted(AcceptStatus::GarbageArgs);
    for program in [NFS, MOUNT] {
        let null = |flavor, body: &[u32], args: &[u8]| message([program, 3, 0], flavor, body, args);
        let success = accepted(AcceptStatus::Success);
        assert_eq!(answer(rpc, &null(AUTH_NONE, &[], &[])), success);
        assert_eq!(answer(rpc, &null(AUTH_SYS, &SYS, &[])), success);
        assert_eq!(answer(rpc, &null(AUTH_NONE, &[], &[0; 4])), garbage);
        let init = null(RPCSEC_GSS, &[1, 1, 0, 1, 0], &[0; 4]);
        assert_eq!(answer(rpc, &init), auth_error(AuthStatus::TOO_WEAK));
    }
}

#[test]
fn calls_of_others_are_refused() {
    let server = Running::start(4);
    let rpc = &mut server.connect();
    let mismatch = AcceptStatus::ProgMismatch { low: 3, high: 3 };
    for (named, status) in [
        ([ACL_PROGRAM, 3, 0], AcceptStatus::ProgUnavail),
        // The lock manager and the port mapper. Where a port mapper refuses so, the Linux client (6.1) fails a lock with EIO immediately.
        ([100_021, 4, 2], AcceptStatus::ProgUnavail),
        ([100_000, 2, 3], AcceptStatus::ProgUnavail),
        ([NFS, 4, 0], mismatch),
        ([MOUNT, 1, 0], mismatch),
        ([NFS, 3, 22], AcceptStatus::ProcUnavail),
        ([MOUNT, 3, 6], AcceptStatus::ProcUnavail),
    ] {
        let message = message(named, AUTH_NONE, &[], &[]);
        assert_eq!(answer(rpc, &message), accepted(status), "{named:?}");
    }
}
