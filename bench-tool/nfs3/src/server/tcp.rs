//! NFS and MOUNT on TCP: one thread serves all connections.

use std::convert::Infallible;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use rpcrdma::once::{ClientId, Clients, Peer};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::DATA_BYTES_MAX;
use crate::wire::record::Records;

/// The longest message: the longest WRITE, with room for its headers and other arguments.
const MESSAGE_BYTES_MAX: usize = DATA_BYTES_MAX as usize + 64 * 1024;

/// The most octets of replies that wait to be sent on a connection. Above that, its calls wait.
const OUTPUT_BYTES_MAX: usize = 4 << 20;

/// The buffer that a connection keeps when it has nothing to send.
const OUTPUT_BYTES_KEPT: usize = 256 * 1024;

/// The period in which the server checks whether it has to stop.
const LOOK_PERIOD: Duration = Duration::from_millis(50);

/// Answers RPC calls.
pub trait Answers {
    /// Appends the reply to the RPC call `message`, with its record mark.
    ///
    /// # Errors
    /// When the call cannot be answered. The connection must be closed then. A message that is no call is ignored.
    fn answer(&mut self, peer: IpAddr, message: &[u8], output: &mut Vec<u8>) -> io::Result<()>;

    /// The duplicate request cache, if there is one: a host is one of its clients while it has a connection.
    fn clients(&self) -> Option<&Clients<Infallible>>;
}

/// The server: what answers, and the connections by which it is called.
#[derive(Debug)]
pub struct TcpServer<A> {
    listener: TcpListener,
    connections_max: usize,
    connections: Vec<Connection>,
    /// False after `accept` failed, for example for lack of descriptors. The next turn does not wait for
    /// the listener then, which stays readable and would keep the thread busy.
    is_accepting: bool,
    answers: A,
}

#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    peer: IpAddr,
    /// Its host is noted as connected in the duplicate request cache, which may have no room for it.
    is_attached: bool,
    records: Records,
    output: Vec<u8>,
    /// Octets of the output that were sent.
    sent: usize,
}

impl<A: Answers> TcpServer<A> {
    /// A server for the connections of `listener`, at most `connections_max` at a time.
    ///
    /// # Errors
    /// When the listener cannot be set to non-blocking.
    pub fn new(listener: TcpListener, connections_max: usize, answers: A) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self {
            listener,
            connections_max,
            connections: Vec::new(),
            is_accepting: true,
            answers,
        })
    }

    /// Serves until `is_asked` returns true. It is called at least twenty times a second.
    ///
    /// # Errors
    /// When waiting for the connections fails. An error of one connection ends only that connection.
    pub fn run(&mut self, mut is_asked: impl FnMut() -> bool) -> io::Result<()> {
        while !is_asked() {
            self.turn()?;
        }
        Ok(())
    }

    /// Waits until a connection or the listener is ready, and serves each ready one once.
    fn turn(&mut self) -> io::Result<()> {
        let timeout = Timespec::try_from(LOOK_PERIOD).unwrap_or_default();
        let arrivals = if std::mem::replace(&mut self.is_accepting, true) {
            PollFlags::IN
        } else {
            PollFlags::empty()
        };
        let mut waited: Vec<PollFd<'_>> = vec![PollFd::new(&self.listener, arrivals)];
        for connection in &self.connections {
            waited.push(PollFd::new(&connection.stream, connection.interest()));
        }
        // WAIT: `timeout`.
        match poll(&mut waited, Some(&timeout)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(()),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        let mut ready = waited.iter().map(|one| !one.revents().is_empty());
        let has_arrivals = ready.next().unwrap_or(false);
        let ready: Vec<bool> = ready.collect();
        let mut ready = ready.into_iter();
        let answers = &mut self.answers;
        self.connections.retain_mut(|connection| {
            let stays = !ready.next().unwrap_or(false) || connection.serve(answers).is_ok();
            if let Some(clients) = answers
                .clients()
                .filter(|_| !stays && connection.is_attached)
            {
                clients.detach(&connection.client());
            }
            stays
        });
        if has_arrivals {
            self.accept();
        }
        Ok(())
    }

    fn accept(&mut self) {
        loop {
            // WAIT: never, since the listener does not block.
            let (stream, address) = match self.listener.accept() {
                Ok(arrival) => arrival,
                Err(error) => {
                    self.is_accepting = is_passing(&error);
                    return;
                }
            };
            // A connection above the limit is closed immediately.
            if self.connections.len() < self.connections_max
                && let Ok(mut connection) = Connection::new(stream, address)
            {
                if let Some(clients) = self.answers.clients() {
                    connection.is_attached = clients.attach(&connection.client()).is_some();
                }
                self.connections.push(connection);
            }
        }
    }
}

impl Connection {
    fn new(stream: TcpStream, address: SocketAddr) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            peer: address.ip().to_canonical(),
            is_attached: false,
            records: Records::new(MESSAGE_BYTES_MAX),
            output: Vec::new(),
            sent: 0,
        })
    }

    fn client(&self) -> ClientId {
        ClientId::Unnamed(Peer::Host(self.peer))
    }

    fn interest(&self) -> PollFlags {
        let mut interest = PollFlags::empty();
        if self.output.len() < OUTPUT_BYTES_MAX {
            interest |= PollFlags::IN;
        }
        if self.sent < self.output.len() {
            interest |= PollFlags::OUT;
        }
        interest
    }

    /// Sends waiting replies and answers received calls. Then it receives once and answers again.
    ///
    /// # Errors
    /// When the connection has ended.
    fn serve(&mut self, answers: &mut impl Answers) -> io::Result<()> {
        self.send()?;
        if self.answer_all(answers)? {
            // WAIT: never, since the stream does not block.
            match self.stream.read(self.records.space()) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.records.filled(count),
                Err(error) if is_passing(&error) => {}
                Err(error) => return Err(error),
            }
            self.answer_all(answers)?;
        }
        Ok(())
    }

    /// Answers received calls and sends the replies. Returns whether all were answered; the others wait
    /// until more replies can be sent.
    fn answer_all(&mut self, answers: &mut impl Answers) -> io::Result<bool> {
        loop {
            let all_answered = self.answer(answers)?;
            self.send()?;
            if all_answered || !self.output.is_empty() {
                return Ok(all_answered);
            }
        }
    }

    /// Answers received calls while there is room for replies. Returns whether all were answered.
    fn answer(&mut self, answers: &mut impl Answers) -> io::Result<bool> {
        while self.output.len() < OUTPUT_BYTES_MAX {
            let message = self.records.next_message().map_err(io::Error::other)?;
            let Some(message) = message else {
                return Ok(true);
            };
            answers.answer(self.peer, message, &mut self.output)?;
        }
        Ok(false)
    }

    fn send(&mut self) -> io::Result<()> {
        while let Some(rest) = self.output.get(self.sent..).filter(|rest| !rest.is_empty()) {
            // WAIT: never, as above.
            match self.stream.write(rest) {
                Ok(count) => self.sent += count,
                Err(error) if is_passing(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        self.output.clear();
        self.output.shrink_to(OUTPUT_BYTES_KEPT);
        self.sent = 0;
        Ok(())
    }
}

/// Whether the same call can succeed later.
fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread::JoinHandle;

    use rpcrdma_protocol::rpc::{
        AcceptStatus, CallHeader, OpaqueAuth, RejectStatus, ReplyBody, ReplyHeader,
    };

    use super::super::Service;
    use super::super::rpc_service::RpcService;
    use super::*;
    use crate::store::{HeapPages, Limits, Store};
    use crate::wire::types::{Place, SetAttributes, Stability};
    use crate::wire::xdr::Encode;
    use crate::wire::{ACL_PROGRAM, FileHandle, PROGRAM, Procedure, VERSION, arguments};
    use crate::wire::{mount, record};

    /// A server on a thread, which ends with it.
    struct Running {
        address: SocketAddr,
        root: FileHandle,
        ends: Arc<AtomicBool>,
        thread: Option<JoinHandle<()>>,
    }

    impl Running {
        fn start(connections_max: usize) -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let pages = HeapPages::new(64 << 20, 4096);
            let service = Service::new(pages, Limits { files_max: 100 }, connections_max);
            let root = service.store().handle(Store::<HeapPages>::ROOT).unwrap();
            let mut server =
                TcpServer::new(listener, connections_max, RpcService::new(service)).unwrap();
            let ends = Arc::new(AtomicBool::new(false));
            let is_asked = Arc::clone(&ends);
            // Relaxed: nothing else is told by it.
            let run = move || server.run(|| is_asked.load(Ordering::Relaxed)).unwrap();
            Self {
                address,
                root,
                ends,
                thread: Some(std::thread::spawn(run)),
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

    impl Drop for Running {
        fn drop(&mut self) {
            self.ends.store(true, Ordering::Relaxed);
            if let Some(thread) = self.thread.take() {
                thread.join().unwrap();
            }
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

    #[test]
    fn non_rpc_clients_and_excess_connections_are_disconnected() {
        let server = Running::start(1);
        let mut stream = server.connect();
        send(&mut stream, 1, Procedure::Null, &[]);
        reply(&mut stream);
        let mut other = server.connect();
        assert_eq!(other.read(&mut [0; 4]).unwrap(), 0, "one too many");
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        assert!(matches!(stream.read(&mut [0; 4]), Ok(0) | Err(_)));
        // Others are refused until the server has seen to what it read.
        rpcrdma_testkit::until("the place is free again", || {
            let mut third = server.connect();
            let call = call(2, PROGRAM, VERSION, 0, &[]);
            let is_answered = third.write_all(&call).is_ok()
                && third.read(&mut [0; 4]).is_ok_and(|bytes| bytes > 0);
            is_answered.then_some(())
        });
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
}
