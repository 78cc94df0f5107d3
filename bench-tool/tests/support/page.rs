//! Pages that programs serve by HTTP.

use std::io::{Read, Write};
use std::net::TcpStream;

use rpcrdma_testkit::{PATIENCE, until};

/// The page at `path` of an address of metrics: the head and the body.
pub(crate) fn page_at(host: &str, path: &str) -> (String, String) {
    // A server closes a connection whose request does not come within some seconds. Where this program does not run for so
    // long, it asks again.
    until("a page", || {
        let mut stream = TcpStream::connect(host).expect("somebody listens");
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        Some((head.to_owned(), body.to_owned()))
    })
}
