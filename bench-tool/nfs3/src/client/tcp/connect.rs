//! Connects over TCP, from a privileged port where that is possible.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};

use crate::client::ClientError;

/// The privileged ports to connect from. Ports below 512 belong to well-known services.
const RESERVED_PORTS: std::ops::RangeInclusive<u16> = 512..=1023;

/// Connects to `port` of `host`, where the program `what` listens; the name is for error texts.
///
/// Servers accept MOUNT and NFS calls only from a privileged port, unless the export has the option `insecure`. So the
/// connection comes from a privileged port if this process may use one, and from an ordinary port otherwise.
///
/// # Errors
/// An error with host, port, program, cause and advice.
pub fn connect(
    host: &str,
    port: u16,
    what: &str,
    timeout: Duration,
) -> Result<TcpStream, ClientError> {
    let cannot = |error: io::Error| {
        let advice = match error.kind() {
            io::ErrorKind::ConnectionRefused => {
                format!("nothing listens there: start {what} on the server, or give another port")
            }
            io::ErrorKind::TimedOut => {
                "no answer: check the address, and firewalls in between".to_owned()
            }
            _ => "check the address, and whether the server is up".to_owned(),
        };
        ClientError::failed(format!(
            "cannot connect to {what} on {host} port {port} (TCP)"
        ))
        .because(error)
        .advice(advice)
    };
    let deadline = Instant::now() + timeout;
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    // WAIT: the time-outs of the resolver (resolv.conf).
    for address in (host, port).to_socket_addrs().map_err(cannot)? {
        match connect_to(address, deadline) {
            Ok(stream) => {
                stream.set_nodelay(true).map_err(cannot)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(cannot(last))
}

fn connect_to(address: SocketAddr, deadline: Instant) -> io::Result<TcpStream> {
    for port in RESERVED_PORTS.rev() {
        match connect_from(Some(port), address, deadline) {
            // The port is in use, or was in use with this server a moment ago: try the next.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable
                ) => {}
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => break,
            result => return result,
        }
    }
    connect_from(None, address, deadline)
}

fn connect_from(port: Option<u16>, to: SocketAddr, deadline: Instant) -> io::Result<TcpStream> {
    let (family, any) = match to {
        SocketAddr::V4(_) => (AddressFamily::INET, IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        SocketAddr::V6(_) => (AddressFamily::INET6, IpAddr::V6(Ipv6Addr::UNSPECIFIED)),
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    if let Some(port) = port {
        bind(&socket, &SocketAddr::new(any, port))?;
    }
    // WAIT: never, since the socket does not block.
    match rustix::net::connect(&socket, &to) {
        Ok(()) => {}
        Err(Errno::INPROGRESS) => {
            let left = deadline.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).map_err(|_| io::ErrorKind::InvalidInput)?;
            let mut ready = [PollFd::new(&socket, PollFlags::OUT)];
            // WAIT: until `deadline`.
            if poll(&mut ready, Some(&left))? == 0 {
                return Err(io::ErrorKind::TimedOut.into());
            }
            sockopt::socket_error(&socket)??;
        }
        Err(error) => return Err(error.into()),
    }
    let stream = TcpStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rpcrdma_testkit::PATIENCE;
    use std::net::TcpListener;

    #[test]
    fn it_connects_and_says_what_is_wrong_when_it_cannot() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let stream = connect("127.0.0.1", port, "a test", PATIENCE).unwrap();
        let (_, peer) = listener.accept().unwrap();
        assert_eq!(stream.local_addr().unwrap().port(), peer.port());
        // Nobody else can listen on a port that this test has, and it does not.
        let taken = socket_with(
            AddressFamily::INET,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        bind(&taken, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let port = SocketAddr::try_from(rustix::net::getsockname(&taken).unwrap())
            .unwrap()
            .port();
        let error = connect("127.0.0.1", port, "mountd", PATIENCE).unwrap_err();
        let (text, advice) = (error.to_string(), error.what_to_do().unwrap());
        assert!(text.contains("mountd on 127.0.0.1 port"), "{text}");
        assert!(advice.contains("start mountd"), "{advice}");
    }
}
