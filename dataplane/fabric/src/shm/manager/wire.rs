//! The messages of the connection handshake. Each is one datagram.
//!
//! All integers are little-endian and there is no padding. A message whose length differs from the
//! length of its fields is refused.
//!
//! ```text
//! every message  magic "RSHM" 4 | version 2 | kind 2
//! request (1)    process 16 | port 4 | queue pair 4 | seen_up_to 8 | alive count 2 | private bytes 2 |
//!                alive 8 each | private data
//! reply   (2)    process 16 | port 4 | queue pair 4 | doorbell 4 | channel 8 | private bytes 2 |
//!                private data                                                      + files
//! confirm (3)    doorbell 4                                                        + files
//! reject  (4)    reason 4 | code 4 | private bytes 2 | private data
//! ```
//!
//! The files are five, and behind them those of the application's memory, in the order in which they are mapped.
//!
//! The first line and the layout of `reject` stay the same in every version, so that a process can
//! read why a process of another version rejects it. [`super::channels`] explains `seen_up_to` and
//! `alive`.

use crate::interface::RejectReason;
use crate::shm::{CoreIdentity, QueuePairNumber};

/// The version of the handshake that this code implements.
pub(super) const VERSION: u16 = 1;
/// The longest message in bytes.
pub(super) const MESSAGE_BYTES_MAX: usize = 1024;
/// Private data of a request: as much as RDMA-CM leaves to the application in `RDMA_PS_TCP`.
pub(super) const REQUEST_PRIVATE_BYTES_MAX: usize = 56;
/// Private data of a reply, as in RDMA-CM.
pub(super) const REPLY_PRIVATE_BYTES_MAX: usize = 196;
/// Private data of a rejection, as in RDMA-CM.
pub(super) const REJECT_PRIVATE_BYTES_MAX: usize = 148;
/// Channels that one request can list as alive; a client that has more lists the newest.
pub(super) const ALIVE_CHANNELS_MAX: usize = 64;

const MAGIC: [u8; 4] = *b"RSHM";
const KIND_REQUEST: u16 = 1;
const KIND_REPLY: u16 = 2;
const KIND_CONFIRM: u16 = 3;
const KIND_REJECT: u16 = 4;

// The receive buffer holds a request and a reply at their limits.
const _: () = assert!(
    8 + 20 + 4 + 8 + 4 + 8 * ALIVE_CHANNELS_MAX + REQUEST_PRIVATE_BYTES_MAX <= MESSAGE_BYTES_MAX
);
const _: () = assert!(8 + 20 + 4 + 4 + 8 + 2 + REPLY_PRIVATE_BYTES_MAX <= MESSAGE_BYTES_MAX);

/// A client asks for a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// The client's core.
    pub(super) core: CoreIdentity,
    /// The client's queue pair, so that the server can adopt its own before it replies.
    pub(super) queue_pair: QueuePairNumber,
    /// The newest channel number that this core has received from this server process.
    pub(super) seen_up_to: u64,
    /// The channels of this core and this server process that the client keeps alive until the
    /// handshake is over.
    pub(super) alive: Vec<u64>,
    /// For the server's application.
    pub(super) private_data: Vec<u8>,
}

/// A server accepts. The message carries the server's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reply {
    /// The server's core.
    pub(super) core: CoreIdentity,
    /// Its queue pair.
    pub(super) queue_pair: QueuePairNumber,
    /// The channel's bit in the server's doorbell.
    pub(super) doorbell_number: u32,
    /// The channel that carries the connection.
    pub(super) channel: u64,
    /// For the client's application.
    pub(super) private_data: Vec<u8>,
}

/// The client is ready. The message carries the client's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Confirm {
    /// The channel's bit in the client's doorbell.
    pub(super) doorbell_number: u32,
}

/// A server rejects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reject {
    /// The server's handshake version; [`VERSION`] in a rejection that we send.
    pub(super) version: u16,
    /// Why.
    pub(super) reason: RejectReason,
    /// For the client's application.
    pub(super) private_data: Vec<u8>,
}

/// Any message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    Request(Request),
    Reply(Reply),
    Confirm(Confirm),
    Reject(Reject),
}

/// Why a datagram is not a valid message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ParseError {
    /// It does not begin with the magic.
    NotOurs,
    /// It has another version, and is not a rejection.
    Version(u16),
    /// Its kind is unknown.
    Kind(u16),
    /// It ends before its last field, or continues after it.
    Length,
    /// The list of channels or the private data exceeds its limit.
    TooLong,
}

impl std::fmt::Display for ParseError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotOurs => f.write_str("not a message of this protocol"),
            Self::Version(theirs) => write!(
                f,
                "connection protocol has version {theirs}, but this process has version {VERSION}: run the same release on both ends"
            ),
            Self::Kind(kind) => write!(f, "a message of the unknown kind {kind}"),
            Self::Length => f.write_str("a message whose length is not what its fields say"),
            Self::TooLong => f.write_str("a message with a list that is longer than allowed"),
        }
    }
}

impl Message {
    /// The bytes of the message. Truncates private data and lists to their limits; the callers have
    /// checked private data before, where they can return an error.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(MESSAGE_BYTES_MAX);
        out.extend_from_slice(&MAGIC);
        match self {
            Self::Request(request) => {
                put_head(&mut out, VERSION, KIND_REQUEST);
                put_core(&mut out, &request.core);
                out.extend_from_slice(&request.queue_pair.0.to_le_bytes());
                out.extend_from_slice(&request.seen_up_to.to_le_bytes());
                let alive = cut(&request.alive, ALIVE_CHANNELS_MAX);
                let private_data = cut(&request.private_data, REQUEST_PRIVATE_BYTES_MAX);
                put_length(&mut out, alive.len());
                put_length(&mut out, private_data.len());
                for channel in alive {
                    out.extend_from_slice(&channel.to_le_bytes());
                }
                out.extend_from_slice(private_data);
            }
            Self::Reply(reply) => {
                put_head(&mut out, VERSION, KIND_REPLY);
                put_core(&mut out, &reply.core);
                out.extend_from_slice(&reply.queue_pair.0.to_le_bytes());
                out.extend_from_slice(&reply.doorbell_number.to_le_bytes());
                out.extend_from_slice(&reply.channel.to_le_bytes());
                put_private_data(&mut out, &reply.private_data, REPLY_PRIVATE_BYTES_MAX);
            }
            Self::Confirm(confirm) => {
                put_head(&mut out, VERSION, KIND_CONFIRM);
                out.extend_from_slice(&confirm.doorbell_number.to_le_bytes());
            }
            Self::Reject(reject) => {
                put_head(&mut out, reject.version, KIND_REJECT);
                let (reason, code) = reason_to_wire(reject.reason);
                out.extend_from_slice(&reason.to_le_bytes());
                out.extend_from_slice(&code.to_le_bytes());
                put_private_data(&mut out, &reject.private_data, REJECT_PRIVATE_BYTES_MAX);
            }
        }
        out
    }

    /// Parses a message. Does not panic for any input.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let mut reader = Reader(bytes);
        if reader.array::<4>() != Ok(MAGIC) {
            return Err(ParseError::NotOurs);
        }
        let version = reader.u16()?;
        let kind = reader.u16()?;
        if version != VERSION && kind != KIND_REJECT {
            return Err(ParseError::Version(version));
        }
        let message = match kind {
            KIND_REQUEST => Self::Request(parse_request(&mut reader)?),
            KIND_REPLY => Self::Reply(Reply {
                core: reader.core()?,
                queue_pair: QueuePairNumber(reader.u32()?),
                doorbell_number: reader.u32()?,
                channel: reader.u64()?,
                private_data: reader.private_data(REPLY_PRIVATE_BYTES_MAX)?,
            }),
            KIND_CONFIRM => Self::Confirm(Confirm {
                doorbell_number: reader.u32()?,
            }),
            KIND_REJECT => {
                let (reason, code) = (reader.u32()?, reader.u32()?);
                Self::Reject(Reject {
                    version,
                    reason: reason_from_wire(reason, code),
                    private_data: reader.private_data(REJECT_PRIVATE_BYTES_MAX)?,
                })
            }
            other => return Err(ParseError::Kind(other)),
        };
        if reader.0.is_empty() {
            Ok(message)
        } else {
            Err(ParseError::Length)
        }
    }
}

fn parse_request(reader: &mut Reader<'_>) -> Result<Request, ParseError> {
    let core = reader.core()?;
    let queue_pair = QueuePairNumber(reader.u32()?);
    let seen_up_to = reader.u64()?;
    let alive_count = usize::from(reader.u16()?);
    let private_bytes = usize::from(reader.u16()?);
    if alive_count > ALIVE_CHANNELS_MAX || private_bytes > REQUEST_PRIVATE_BYTES_MAX {
        return Err(ParseError::TooLong);
    }
    let alive = (0..alive_count)
        .map(|_| reader.u64())
        .collect::<Result<_, _>>()?;
    Ok(Request {
        core,
        queue_pair,
        seen_up_to,
        alive,
        private_data: reader.take(private_bytes)?.to_vec(),
    })
}

const REASON_OTHER: u32 = 6;

fn reason_to_wire(reason: RejectReason) -> (u32, u32) {
    match reason {
        RejectReason::ConnectionsExhausted => (1, 0),
        RejectReason::PeerLimit => (2, 0),
        RejectReason::Draining => (3, 0),
        RejectReason::VersionMismatch => (4, 0),
        RejectReason::NotPermitted => (5, 0),
        RejectReason::Other(code) => (REASON_OTHER, code),
    }
}

/// A reason that this version does not know becomes `Other`, so that the application still gets its
/// code.
fn reason_from_wire(reason: u32, code: u32) -> RejectReason {
    match reason {
        1 => RejectReason::ConnectionsExhausted,
        2 => RejectReason::PeerLimit,
        3 => RejectReason::Draining,
        4 => RejectReason::VersionMismatch,
        5 => RejectReason::NotPermitted,
        REASON_OTHER => RejectReason::Other(code),
        unknown => RejectReason::Other(unknown),
    }
}

fn put_head(out: &mut Vec<u8>, version: u16, kind: u16) {
    out.extend_from_slice(&version.to_le_bytes());
    out.extend_from_slice(&kind.to_le_bytes());
}

fn put_core(out: &mut Vec<u8>, core: &CoreIdentity) {
    out.extend_from_slice(&core.process);
    out.extend_from_slice(&core.port.to_le_bytes());
}

fn put_private_data(out: &mut Vec<u8>, private_data: &[u8], limit: usize) {
    let private_data = cut(private_data, limit);
    put_length(out, private_data.len());
    out.extend_from_slice(private_data);
}

/// The caller has truncated the length to a limit far below 65536.
fn put_length(out: &mut Vec<u8>, length: usize) {
    let length = u16::try_from(length).unwrap_or(u16::MAX);
    out.extend_from_slice(&length.to_le_bytes());
}

fn cut<T>(list: &[T], limit: usize) -> &[T] {
    list.get(..limit).unwrap_or(list)
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], ParseError> {
        let (taken, rest) = self.0.split_at_checked(bytes).ok_or(ParseError::Length)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], ParseError> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(ParseError::Length)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn u16(&mut self) -> Result<u16, ParseError> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, ParseError> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, ParseError> {
        self.array().map(u64::from_le_bytes)
    }

    fn core(&mut self) -> Result<CoreIdentity, ParseError> {
        Ok(CoreIdentity {
            process: self.array()?,
            port: self.u32()?,
        })
    }

    fn private_data(&mut self, limit: usize) -> Result<Vec<u8>, ParseError> {
        let bytes = usize::from(self.u16()?);
        if bytes > limit {
            return Err(ParseError::TooLong);
        }
        self.take(bytes).map(<[u8]>::to_vec)
    }
}
