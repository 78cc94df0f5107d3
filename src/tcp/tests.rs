use std::io::Read as _;
use std::net::TcpStream;

use super::*;
use crate::Node;

#[test]
fn connection_on_which_nothing_moves_is_closed() {
    for (number, idle) in [Duration::ZERO, IDLE_LIMIT].into_iter().enumerate() {
        let address = format!("shm:idle-{}-{number}", std::process::id());
        let node = Node::builder().start(&address).expect("a node");
        let limits = Limits {
            connections_max: 4,
            message_bytes_max: 64,
            first_index: 64,
            idle,
        };
        let tcp = Tcp::new(&node.cores, &node.handle, limits);
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
