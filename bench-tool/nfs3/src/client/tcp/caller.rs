//! A TCP connection for one call at a time. Measured calls do not use it.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rpcrdma::record::{self, Records};
use rpcrdma_protocol::EncodeError;
use rpcrdma_protocol::rpc::{AcceptStatus, CallHeader, OpaqueAuth, ReplyBody, ReplyHeader};

use super::{connect, first_xid};
use crate::client::ClientError;
use crate::client::caller::CallFailed;

/// The longest header of a call: six words, and credential and verifier of 400 bytes.
const HEADER_BYTES_MAX: usize = 24 + 2 * 408;

/// The configuration of a connection for single calls.
#[derive(Clone, Debug)]
pub struct TcpCallerConfig<'a> {
    /// Name or address of the server.
    pub host: &'a str,
    /// Its port.
    pub port: u16,
    /// The program that listens there, for error texts.
    pub what: &'a str,
    /// The time limit of the connect, and of each answer.
    pub timeout: Duration,
    /// The longest reply in bytes.
    pub reply_bytes_max: usize,
}

/// The connection.
#[derive(Debug)]
pub struct TcpCaller {
    stream: TcpStream,
    records: Records,
    message: Vec<u8>,
    xid: u32,
    timeout: Duration,
}

impl TcpCaller {
    /// Connects.
    ///
    /// # Errors
    /// When the server cannot be reached in time.
    pub fn connect(config: &TcpCallerConfig<'_>) -> Result<Self, ClientError> {
        // WAIT: `config.timeout`.
        let stream = connect(config.host, config.port, config.what, config.timeout)?;
        let timeouts = stream
            .set_read_timeout(Some(config.timeout))
            .and_then(|()| stream.set_write_timeout(Some(config.timeout)));
        timeouts.map_err(|error| {
            ClientError::failed(format!(
                "cannot set the timeouts of the connection to {} on {} port {}",
                config.what, config.host, config.port
            ))
            .because(error)
        })?;
        Ok(Self {
            stream,
            records: Records::new(config.reply_bytes_max),
            message: Vec::new(),
            timeout: config.timeout,
            // Servers remember XIDs by address and port, so an earlier process with the same port must not have used them.
            xid: first_xid(),
        })
    }

    /// Makes a call and waits for its results. Replies to other calls are skipped.
    pub fn call(
        &mut self,
        (program, version, procedure): (u32, u32, u32),
        credential: OpaqueAuth<'_>,
        args: &[u8],
    ) -> Result<Vec<u8>, CallFailed> {
        self.xid = self.xid.wrapping_add(1);
        let header = CallHeader {
            xid: self.xid,
            program,
            version,
            procedure,
            credential,
            verifier: OpaqueAuth::NONE,
        };
        self.message.clear();
        self.message
            .resize(record::HEADER_BYTES + HEADER_BYTES_MAX, 0);
        let header_bytes = header.encode(
            self.message
                .get_mut(record::HEADER_BYTES..)
                .unwrap_or(&mut []),
        )?;
        self.message.truncate(record::HEADER_BYTES + header_bytes);
        self.message.extend_from_slice(args);
        let mark = record::header(self.message.len() - record::HEADER_BYTES)
            .ok_or(EncodeError::TooLong)?;
        if let Some(place) = self.message.first_chunk_mut() {
            *place = mark;
        }
        // WAIT: `timeout` for each part; the whole has as many as the kernel takes.
        self.stream.write_all(&self.message)?;
        self.results()
    }

    fn results(&mut self) -> Result<Vec<u8>, CallFailed> {
        // A server that sends other messages, or parts of one, does not renew the limit.
        let deadline = Instant::now() + self.timeout;
        loop {
            if let Some(record) = self.records.next_message()? {
                // Calls of the server, and replies to other calls.
                if ReplyHeader::xid_of(record) != Some(self.xid) {
                    if Instant::now() < deadline {
                        continue;
                    }
                    return Err(late().into());
                }
                let (header, bytes) = ReplyHeader::decode(record).map_err(CallFailed::Reply)?;
                return match header.body {
                    ReplyBody::Accepted {
                        status: AcceptStatus::Success,
                        ..
                    } => Ok(record.get(bytes..).unwrap_or(&[]).to_vec()),
                    ReplyBody::Accepted { status, .. } => Err(CallFailed::Refused(status)),
                    ReplyBody::Denied(status) => Err(CallFailed::Denied(status)),
                };
            }
            // WAIT: `timeout`.
            match self.stream.read(self.records.space()) {
                Ok(0) => return Err(CallFailed::Closed),
                Ok(_) if Instant::now() >= deadline => return Err(late().into()),
                Ok(bytes) => self.records.filled(bytes),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(late().into());
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "no answer in time")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn server_that_sends_an_answer_byte_by_byte_does_not_renew_the_limit() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            // The mark of a record of 16 MiB; it ends when the client leaves.
            let mut bytes = [0x81, 0, 0, 0].into_iter().chain(std::iter::repeat(7));
            while bytes
                .next()
                .is_some_and(|byte| stream.write_all(&[byte]).is_ok())
            {
                // TIME: far less than the limit, so that bytes come as long as the client waits.
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let mut caller = TcpCaller::connect(&TcpCallerConfig {
            host: "127.0.0.1",
            port,
            what: "a test",
            reply_bytes_max: 32 << 20,
            timeout: Duration::from_millis(200),
        })
        .unwrap();
        let failed = caller.call((1, 1, 0), OpaqueAuth::NONE, &[]);
        assert!(
            matches!(&failed, Err(CallFailed::Connection(error)) if error.kind() == io::ErrorKind::TimedOut),
            "{failed:?}"
        );
        drop(caller);
        server.join().unwrap();
    }
}
