//! A small HTTP/1.1 server for a few pages, on its own thread. It reads the request head, ignores any body, answers
//! and closes. Whatever a client sends or withholds, it uses only a limited number of slots, bytes and seconds.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

/// Upper bound of the simultaneous clients. A further client replaces the oldest one of the peer that has the most, so that
/// silent clients cannot block the page for other peers.
const CLIENTS_MAX: usize = 64;

/// Upper bound of a request head in bytes.
const REQUEST_BYTES_MAX: usize = 8192;

/// Time limit for a client, from its connection to the last byte of the answer.
const TIME_MAX: Duration = Duration::from_secs(5);

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// Status code and phrase (RFC 9110 section 15).
    pub status: &'static str,
    /// Media type of the body.
    pub content_type: &'static str,
    /// The body.
    pub body: String,
}

impl Answer {
    /// A response with one line of text.
    #[must_use]
    pub(crate) fn text(status: &'static str, line: &str) -> Self {
        Self {
            status,
            content_type: "text/plain; charset=utf-8",
            body: format!("{line}\n"),
        }
    }

    fn encode(&self, is_head: bool) -> Vec<u8> {
        let Self {
            status,
            content_type,
            body,
        } = self;
        let allow = if status.starts_with("405") {
            "Allow: GET, HEAD\r\n"
        } else {
            ""
        };
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\
             Cache-Control: no-store\r\n{allow}Connection: close\r\n\r\n",
            body.len()
        );
        let body = if is_head { "" } else { body };
        [head.as_bytes(), body.as_bytes()].concat()
    }
}

/// Returns the page for a path, or `None` if there is none.
pub(crate) type Pages = dyn Fn(&str) -> Option<Answer> + Send;

/// The HTTP server. Dropping this ends it.
#[derive(Debug)]
pub(crate) struct HttpServer {
    address: SocketAddr,
    end: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl HttpServer {
    /// Starts the server on `listener`. `prepare` runs first, on the server's thread.
    ///
    /// # Errors
    /// If the system refuses an event descriptor or a thread, or the listener cannot be made non-blocking.
    pub(crate) fn start(
        listener: TcpListener,
        pages: Box<Pages>,
        prepare: impl FnOnce() + Send + 'static,
    ) -> io::Result<Self> {
        Self::start_with(listener, pages, prepare, TIME_MAX)
    }

    /// As [`HttpServer::start`], with the time limit of a client.
    fn start_with(
        listener: TcpListener,
        pages: Box<Pages>,
        prepare: impl FnOnce() + Send + 'static,
        time_max: Duration,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let end = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let ended = end.try_clone()?;
        let thread = std::thread::Builder::new()
            .name("metrics".to_owned())
            .spawn(move || {
                prepare();
                let mut clients = Vec::new();
                while turn(&listener, &ended, &mut clients, &*pages, time_max) {}
            })?;
        Ok(Self {
            address,
            end,
            thread: Some(thread),
        })
    }

    /// The address that it listens on.
    #[must_use]
    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        // Fails only if the counter is full, and then it wakes the thread as well.
        let _ = rustix::io::write(&self.end, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has already been printed; a destructor cannot report it.
            // WAIT: for one turn, which the end wakes; pages are made without a wait.
            let _ = thread.join();
        }
    }
}

/// One client, with its request and its answer.
struct Client {
    stream: TcpStream,
    peer: IpAddr,
    request: Vec<u8>,
    answer: Vec<u8>,
    sent: usize,
    deadline: Instant,
}

/// Waits for events and handles them. Returns false when the server must end.
fn turn(
    listener: &TcpListener,
    ended: &OwnedFd,
    clients: &mut Vec<Client>,
    pages: &Pages,
    time_max: Duration,
) -> bool {
    let now = Instant::now();
    let due = clients.iter().map(|client| client.deadline).min();
    let timeout = due.map(|due| {
        let left = due.saturating_duration_since(now);
        Timespec::try_from(left).unwrap_or_default()
    });
    let mut waited = vec![
        PollFd::new(ended, PollFlags::IN),
        PollFd::new(listener, PollFlags::IN),
    ];
    for client in clients.iter() {
        let interest = if client.answer.is_empty() {
            PollFlags::IN
        } else {
            PollFlags::OUT
        };
        waited.push(PollFd::new(&client.stream, interest));
    }
    // WAIT: for the first deadline of a client, or for a client or the end of the server, in a separate thread.
    match poll(&mut waited, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        // `poll` fails only for lack of memory or a wrong argument: waiting would fail again.
        Err(_) => return false,
    }
    let ready: Vec<bool> = waited.iter().map(|one| !one.revents().is_empty()).collect();
    let (Some(is_ended), Some(has_arrivals)) = (ready.first(), ready.get(1)) else {
        return false;
    };
    let (is_ended, has_arrivals) = (*is_ended, *has_arrivals);
    let mut ready = ready.into_iter().skip(2);
    clients.retain_mut(|client| !ready.next().unwrap_or(false) || client.go_on(pages).is_ok());
    // Only now: what came while this thread did not run is answered, however late it is.
    clients.retain(|client| client.deadline > now);
    if has_arrivals {
        // WAIT: never, since the listener does not block.
        match listener.accept() {
            Ok((stream, address)) => {
                let peer = peer_of(address.ip());
                if clients.len() >= CLIENTS_MAX {
                    displace_one(clients, peer);
                }
                // Read the clock again: the wait may have been long, and would shorten the client's time.
                clients.extend(Client::new(stream, peer, Instant::now() + time_max));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // For example no free descriptors. The listener stays readable, so without a pause this would be a busy
            // loop.
            // WAIT: this time.
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
    !is_ended
}

/// What counts as one peer: an address of IPv4, or a network of IPv6 (/64), of which one host can have all addresses.
fn peer_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        address => address,
    }
}

/// Ends a client in favour of one of `peer`: the oldest one of the peer that has the most, with the new one.
fn displace_one(clients: &mut Vec<Client>, peer: IpAddr) {
    let count = |of: IpAddr| {
        let all = clients.iter().filter(|client| client.peer == of);
        all.count() + usize::from(of == peer)
    };
    let most = clients.iter().map(|client| count(client.peer)).max();
    let place = clients
        .iter()
        .position(|client| Some(count(client.peer)) == most);
    if let Some(place) = place {
        clients.remove(place);
    }
}

impl Client {
    fn new(stream: TcpStream, peer: IpAddr, deadline: Instant) -> Option<Self> {
        stream.set_nonblocking(true).ok()?;
        Some(Self {
            stream,
            peer,
            request: Vec::new(),
            answer: Vec::new(),
            sent: 0,
            deadline,
        })
    }

    /// Reads the request and, when it is complete, sends the answer. Returns an error when the client is finished,
    /// also after success.
    fn go_on(&mut self, pages: &Pages) -> io::Result<()> {
        // All of it that has come: there may be no later turn. A request that is too long has an answer too.
        while self.answer.is_empty() {
            let mut space = [0; 1024];
            // WAIT: never, since the stream does not block.
            let count = match self.stream.read(&mut space) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            self.request.extend(space.iter().take(count));
            self.answer = answer(&self.request, pages).unwrap_or_default();
        }
        let rest = self.answer.get(self.sent..).unwrap_or(&[]);
        // WAIT: never, as above.
        match self.stream.write(rest) {
            Ok(count) if count < rest.len() => self.sent += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
            Ok(_) => {
                self.stream.shutdown(std::net::Shutdown::Write)?;
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }
}

/// The answer to the bytes received so far, or `None` if the request head is not complete.
fn answer(request: &[u8], pages: &Pages) -> Option<Vec<u8>> {
    let is_whole = request.windows(4).any(|end| end == b"\r\n\r\n")
        || request.windows(2).any(|end| end == b"\n\n");
    if !is_whole && request.len() < REQUEST_BYTES_MAX {
        return None;
    }
    if !is_whole {
        let too_long = "431 Request Header Fields Too Large";
        return Some(Answer::text(too_long, "the request is too long").encode(false));
    }
    let line = request.split(|byte| matches!(byte, b'\r' | b'\n')).next();
    let line = line.and_then(|line| std::str::from_utf8(line).ok());
    let mut words = line.unwrap_or_default().split(' ');
    let words = (words.next(), words.next(), words.next(), words.next());
    let (Some(method), Some(target), Some("HTTP/1.0" | "HTTP/1.1"), None) = words else {
        return Some(
            Answer::text("400 Bad Request", "this is not an HTTP/1 request").encode(false),
        );
    };
    if !matches!(method, "GET" | "HEAD") {
        let refused = Answer::text("405 Method Not Allowed", "only GET and HEAD are supported");
        return Some(refused.encode(false));
    }
    let path = target.split('?').next().unwrap_or_default();
    let found =
        pages(path).unwrap_or_else(|| Answer::text("404 Not Found", "there is no such page"));
    Some(found.encode(method == "HEAD"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that nobody is too slow for.
    fn server() -> HttpServer {
        server_with(Duration::from_secs(3600))
    }

    /// A server with this time limit for its clients.
    fn server_with(time_max: Duration) -> HttpServer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let pages = |path: &str| (path == "/page").then(|| Answer::text("200 OK", "words"));
        HttpServer::start_with(listener, Box::new(pages), || (), time_max).unwrap()
    }

    fn connect(server: &HttpServer) -> TcpStream {
        let stream = TcpStream::connect(server.address()).unwrap();
        let patience = Some(rpcrdma_testkit::PATIENCE);
        stream.set_read_timeout(patience).unwrap();
        stream
    }

    fn try_ask(server: &HttpServer, request: &[u8]) -> io::Result<String> {
        let mut stream = connect(server);
        stream.write_all(request)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    fn ask(server: &HttpServer, request: &[u8]) -> String {
        try_ask(server, request).unwrap()
    }

    #[test]
    fn pages_are_read_and_nothing_else() {
        let server = server();
        let page = ask(&server, b"GET /page HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(page.starts_with("HTTP/1.1 200 OK\r\n"), "{page}");
        assert!(page.contains("Content-Length: 6\r\n"), "{page}");
        assert!(page.ends_with("\r\n\r\nwords\n"), "{page}");
        let head = ask(&server, b"HEAD /page?x=1 HTTP/1.0\n\n");
        assert!(
            head.contains("200 OK") && head.ends_with("\r\n\r\n"),
            "{head}"
        );
        for (request, status) in [
            (&b"GET /other HTTP/1.1\r\n\r\n"[..], "404"),
            (b"GET /page/../page HTTP/1.1\r\n\r\n", "404"),
            (b"POST /page HTTP/1.1\r\nContent-Length: 5\r\n\r\n", "405"),
            (b"GET /page HTTP/2\r\n\r\n", "400"),
            (b"GET  /page HTTP/1.1\r\n\r\n", "400"),
            (b"\xff\xfe\r\n\r\n", "400"),
            (b"\r\n\r\n", "400"),
        ] {
            let answer = ask(&server, request);
            let wanted = format!("HTTP/1.1 {status} ");
            assert!(answer.starts_with(&wanted), "{request:?}: {answer}");
            assert!(answer.contains("Connection: close"), "{answer}");
        }
    }

    /// The time limit of a client starts with its connection, however long no client came before.
    #[test]
    fn a_server_that_was_idle_for_long_answers() {
        let time_max = Duration::from_millis(500);
        let server = server_with(time_max);
        // Where this thread does not run for the limit between connection and request, it is too late, and comes again.
        let page = rpcrdma_testkit::until("a page", || {
            // TIME: the server is idle for longer than its limit; however much longer it is, is the same to it.
            std::thread::sleep(time_max * 2);
            let page = try_ask(&server, b"GET /page HTTP/1.1\r\n\r\n").ok()?;
            (!page.is_empty()).then_some(page)
        });
        assert!(page.ends_with("words\n"), "{page}");
    }

    #[test]
    fn a_request_is_bounded() {
        let server = server();
        let endless = vec![b'a'; REQUEST_BYTES_MAX];
        let answer = ask(&server, &endless);
        assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    }

    /// A request may arrive byte by byte. Silent clients are closed when others need their slots.
    #[test]
    fn slow_clients_keep_no_others_out() {
        let server = server();
        let mut silent: Vec<TcpStream> = (0..2 * CLIENTS_MAX).map(|_| connect(&server)).collect();
        let mut stream = connect(&server);
        for byte in b"GET /page HTTP/1.1\r\n\r\n" {
            stream.write_all(&[*byte]).unwrap();
        }
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with("words\n"), "{answer}");
        let mut nothing = [0; 1];
        for stream in &mut silent[..=CLIENTS_MAX] {
            assert_eq!(stream.read(&mut nothing).unwrap(), 0, "closed");
        }
    }

    #[test]
    fn silent_clients_displace_their_own_and_not_those_of_other_peers() {
        use rustix::net::{AddressFamily, SocketType, bind, connect as connect_to, socket};
        let server = server();
        let other = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&other, &SocketAddr::from(([127, 0, 0, 2], 0))).unwrap();
        connect_to(&other, &server.address()).unwrap();
        let mut other = TcpStream::from(other);
        let patience = Some(rpcrdma_testkit::PATIENCE);
        other.set_read_timeout(patience).unwrap();
        let mut silent: Vec<TcpStream> = (0..2 * CLIENTS_MAX).map(|_| connect(&server)).collect();
        // The server has accepted all of them when it has closed this one.
        assert_eq!(silent[CLIENTS_MAX].read(&mut [0; 1]).unwrap(), 0, "closed");
        other.write_all(b"GET /page HTTP/1.1\r\n\r\n").unwrap();
        let mut answer = String::new();
        other.read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with("words\n"), "{answer}");
        let of = |text: &str| peer_of(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:127.0.0.1"), of("127.0.0.1"));
    }

    #[test]
    fn silent_clients_are_closed_when_their_time_is_over() {
        let server = server_with(Duration::from_millis(100));
        let mut silent: Vec<TcpStream> = (0..3).map(|_| connect(&server)).collect();
        for stream in &mut silent {
            assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0, "closed");
        }
    }

    /// A thread that did not run while a request came is late, and its client is not.
    #[test]
    fn a_request_that_came_in_its_time_is_answered_after_it() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        let ended = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let pages = |path: &str| (path == "/page").then(|| Answer::text("200 OK", "words"));
        let mut stream = TcpStream::connect(address).unwrap();
        let more = "x".repeat(3_000);
        let request = format!("GET /page HTTP/1.1\r\nx-more: {more}\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut clients = Vec::new();
        // It accepts; then the time of the client is over.
        assert!(turn(
            &listener,
            &ended,
            &mut clients,
            &pages,
            Duration::ZERO
        ));
        assert_eq!(clients.len(), 1);
        // So that a turn which has closed the client does not wait for another one.
        rustix::io::write(&ended, &1_u64.to_ne_bytes()).unwrap();
        turn(&listener, &ended, &mut clients, &pages, Duration::ZERO);
        assert!(clients.is_empty());
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with("words\n"), "{answer}");
    }
}
