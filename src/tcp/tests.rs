use std::io::Read as _;
use std::net::TcpStream;

use super::*;

#[test]
fn connection_on_which_nothing_moves_is_closed() {
    let cores: Arc<[_]> = [CoreShared::new(1, 1, (0, 0))].into();
    let idle = |idle| Limits {
        connections_max: 4,
        peer_connections_max: 4,
        message_bytes_max: 64,
        first_index: 1,
        idle,
    };
    for (limits, is_closed) in [(idle(Duration::ZERO), true), (idle(IDLE_LIMIT), false)] {
        let tcp = Tcp::new(&cores, limits);
        let address = tcp.listen("tcp:127.0.0.1:0", &Authentication::None);
        let address = address.expect("a port");
        let mut stream = TcpStream::connect(&address[SCHEME.len()..]).expect("a connection");
        if is_closed {
            assert_eq!(stream.read(&mut [0]).expect("its end"), 0);
            continue;
        }
        // It lives until the thread ends.
        while tcp.counters().values()[0].1 == 0 {
            std::thread::yield_now();
        }
        stream.set_nonblocking(true).expect("a socket");
        let nothing = stream.read(&mut [0]).expect_err("no octet");
        assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock);
        stream.set_nonblocking(false).expect("a socket");
        drop(tcp);
        assert_eq!(stream.read(&mut [0]).expect("its end"), 0);
    }
}
