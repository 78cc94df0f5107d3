use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::*;
use crate::Node;

/// Set in a process that runs one test alone.
const ALONE: &str = "RPCRDMA_TEST_ALONE";

/// Whether this process runs one test alone, and so may change its limits. If not, the test is run so.
fn is_alone(test: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let this = std::env::current_exe().expect("a program");
    let mut child = Command::new(this);
    let child = child.args(["--exact", &format!("tcp::tests::{test}"), "--nocapture"]);
    let ended = child.env(ALONE, "").output().expect("it runs");
    assert!(ended.status.success(), "{ended:?}");
    false
}

/// Does something while a soft limit of this process is so low.
fn limited<T>(resource: Resource, soft: u64, act: impl FnOnce() -> T) -> T {
    let before = getrlimit(resource);
    let lowered = Rlimit {
        current: Some(soft),
        ..before
    };
    setrlimit(resource, lowered).expect("a lower limit");
    let result = act();
    setrlimit(resource, before).expect("the limit before");
    result
}

fn limits() -> Limits {
    Limits {
        connections_max: 4,
        message_bytes_max: 64,
        first_index: 64,
        idle: IDLE_LIMIT,
    }
}

#[test]
fn connections_outlive_a_poll_that_fails() {
    if !is_alone("connections_outlive_a_poll_that_fails") {
        return;
    }
    let node = Node::builder().start("shm:poll-fails").expect("a node");
    let tcp = Tcp::new(&node.cores, &node.handle, limits());
    let wake = Arc::new(eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd"));
    let (requests, inbox) = mpsc::channel();
    let mut thread = Thread::new(&tcp, inbox, &wake);
    let listener = bind("tcp:127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("a socket");
    let mut stream = TcpStream::connect(listener.local_addr().expect("a port")).expect("it hears");
    let asked = requests.send(Request::Listen(listener));
    assert!(asked.is_ok());
    while tcp.counters().values()[0].1 == 0 {
        assert!(thread.turn());
    }
    // No poll may have as many descriptors as it has.
    assert!(limited(Resource::Nofile, 1, || thread.turn()));
    assert!(thread.turn());
    stream.set_nonblocking(true).expect("a socket");
    let nothing = stream.read(&mut [0]).expect_err("no octet, and no end");
    assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
}

#[test]
fn calls_are_answered_after_a_thread_could_not_be_started() {
    if !is_alone("calls_are_answered_after_a_thread_could_not_be_started") {
        return;
    }
    let node = Node::builder().start("shm:no-thread").expect("a node");
    let tcp = Tcp::new(&node.cores, &node.handle, limits());
    let listen = || tcp.listen("tcp:127.0.0.1:0", &Authentication::None);
    // There is no room for the stack of a thread, and enough for all else.
    let memory = std::fs::read_to_string("/proc/self/statm").expect("the size of this process");
    let pages: u64 = memory
        .split(' ')
        .next()
        .and_then(|it| it.parse().ok())
        .expect("a number");
    let bytes = pages * rustix::param::page_size() as u64 + (1 << 20);
    let refused = limited(Resource::As, bytes, listen).expect_err("no thread");
    assert!(
        refused.to_string().contains("cannot listen on"),
        "{refused}"
    );
    let address = listen().expect("a port");
    let mut stream = TcpStream::connect(&address[SCHEME.len()..]).expect("a connection");
    // A record mark, and a call of a program that nobody serves.
    let call = [0x8000_0028_u32, 7, 0, 2, 0x2000_0001, 1, 0, 0, 0, 0, 0];
    let call = call.map(u32::to_be_bytes).concat();
    stream.write_all(&call).expect("a connection");
    // TIME: a reply takes microseconds; without it the read waits for ever.
    let patience = Some(Duration::from_secs(60));
    stream.set_read_timeout(patience).expect("a socket");
    let mut reply = [0; 8];
    stream.read_exact(&mut reply).expect("a reply");
    assert_eq!(reply[4..], 7_u32.to_be_bytes());
}

#[test]
fn connection_on_which_nothing_moves_is_closed() {
    for (number, idle) in [Duration::ZERO, IDLE_LIMIT].into_iter().enumerate() {
        let address = format!("shm:idle-{}-{number}", std::process::id());
        let node = Node::builder().start(&address).expect("a node");
        let tcp = Tcp::new(&node.cores, &node.handle, Limits { idle, ..limits() });
        let address = tcp.listen("tcp:127.0.0.1:0", &Authentication::None);
        let address = address.expect("a port");
        let mut stream = TcpStream::connect(&address[SCHEME.len()..]).expect("a connection");
        if !idle.is_zero() {
            while tcp.counters().values()[0].1 == 0 {
                std::thread::yield_now();
            }
            stream.set_nonblocking(true).expect("a socket");
            let nothing = stream.read(&mut [0]).expect_err("no octet");
            assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
            stream.set_nonblocking(false).expect("a socket");
            // It lives until its thread ends.
            drop(tcp);
        }
        assert_eq!(stream.read(&mut [0]).expect("its end"), 0);
    }
}
