//! What [`Connection`](super::Connection) tells its caller, and what it is told.

use core::fmt;

use super::phase::{IllegalEvent, PhaseEvent};
use crate::chunks::ChunkLists;
use crate::constants::RPCRDMA_VERSION_2;
use crate::v2::error::TransportError;
use crate::v2::header::Direction;
use crate::v2::properties::{Properties, PropertySet};
use crate::v2::rtr::{
    Arrival, MessageItems, ReportError, ResponseSets, TransmissionId, TransmitLists,
};

/// Which end of the connection this is. Either end may call the other (-00 section 3.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// It asked for the connection, and speaks first.
    Client,
    /// It accepted the connection.
    Server,
}

/// What a connection is told when it begins.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Which end this is.
    pub role: Role,
    /// Receives posted for the connection before it begins, the spare one included: at least 2. The connection
    /// never has the peer believe in more.
    pub receive_reserve: u16,
    /// Our own transport properties. The send size must be at least 1024 octets.
    pub properties: Properties,
    /// The longest RPC message that is put together from a continued sequence, in octets.
    pub message_bytes_max: u32,
}

/// A received message that is a whole RPC message without chunks: what most messages are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WholeMessage<'m> {
    /// Call or reply.
    pub direction: Direction,
    /// The XID.
    pub xid: u32,
    /// The RPC message. XID and message type at its start were checked against the header.
    pub payload: &'m [u8],
    /// The handle that the requester asks to be invalidated with the reply; 0 for none.
    pub invalidate_handle: u32,
}

/// What one received message means.
///
/// The bytes are those of the message: the caller is done with them, or has copied them, before it posts the Receive
/// again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'m> {
    /// An RPC call. XID and message type at its start were checked against the header, unless it is a long call,
    /// whose payload is empty and which is read from a Position-Zero Read chunk: check that with
    /// [`rpc_start_matches`].
    Call {
        /// The XID.
        xid: u32,
        /// The call, without what the Read list holds.
        payload: &'m [u8],
        /// The chunk lists.
        chunks: ChunkLists<'m>,
        /// The handle that the requester asks to be invalidated with the reply; 0 for none.
        invalidate_handle: u32,
    },
    /// An RPC reply. Checked as a call is; whether a call of ours has that XID, the caller knows.
    Reply {
        /// The XID.
        xid: u32,
        /// The reply, without what was written to the Write chunks. Empty for a long reply, which is in the Reply
        /// chunk.
        payload: &'m [u8],
        /// The returned chunk lists. There is no Read list.
        chunks: ChunkLists<'m>,
        /// Without meaning in a reply; the caller sees it for diagnosis.
        invalidate_handle: u32,
    },
    /// A part of an RPC message that comes in several. Copy the payload to `offset` of the reassembly buffer; with
    /// `last` the message is complete, and `offset + payload.len()` octets long. One sequence is open at a time.
    Fragment {
        /// Call or reply.
        direction: Direction,
        /// The XID, the same in all parts.
        xid: u32,
        /// Where the payload belongs in the message, in octets. 0 begins a new sequence.
        offset: u32,
        /// The part.
        payload: &'m [u8],
        /// Whether the message ends with it.
        last: bool,
        /// The chunk lists of the message; empty but in the last part.
        chunks: ChunkLists<'m>,
        /// As in a call; 0 but in the last part.
        invalidate_handle: u32,
    },
    /// The peer's transport properties. The control plane decides and calls
    /// [`handle_peer_properties`](super::Connection::handle_peer_properties).
    Properties {
        /// The XID with which an error is to be answered.
        xid: u32,
        /// The properties: well formed, and each value that we know of its type.
        set: PropertySet<'m>,
    },
    /// A part of a property set that comes in several messages. When it is complete, `PropertySet::decode` the
    /// whole; if that fails, answer with [`Refusal::new`] of `BadXdr`.
    PropertiesFragment {
        /// The XID, the same in all parts.
        xid: u32,
        /// Where the bytes belong in the set, in octets. 0 begins a new sequence.
        offset: u32,
        /// The part.
        bytes: &'m [u8],
        /// Whether the set ends with it.
        last: bool,
    },
    /// An asynchronous grant or keep-alive: ask [`credits_available`](super::Connection::credits_available) again.
    Credits,
    /// The peer refused what we sent with this XID: a call, or our properties.
    TransportError {
        /// The XID of what was refused.
        xid: u32,
        /// Why.
        error: TransportError,
    },
    /// The server does not speak version 2, and the connection goes on with version 1, as a client was told to: what
    /// was sent so far counts for nothing. Told by [`crate::connection`] alone.
    FellBack,
    /// The server does not speak our version, but these versions. This connection state is of no more use.
    VersionMismatch {
        /// The lowest version that it supports.
        low: u32,
        /// The highest.
        high: u32,
    },
    /// A transmission of the extension RTR: an RPC message, or a part of one, whose items may be in the message too.
    Transmission(Transmission<'m>),
    /// A transmission group was wrong, or a message broke one: answer with
    /// [`encode_report_error`](super::Connection::encode_report_error). The connection goes on.
    TransmissionRefused(TransmissionRefusal),
    /// The peer found something wrong with a transmission of ours. A call, or a reply, that it names is sent again as
    /// plain version 2.
    ErrorReported(ReportError),
    /// A message of a header type of the application
    /// ([`set_header_types`](super::Connection::set_header_types)).
    ApplicationMessage {
        /// The header type.
        header_type: u32,
        /// The XID. With `is_response`, whether a message of ours has it, the caller knows.
        xid: u32,
        /// Its sender says that we chose the XID (F_RESPONSE, -00 section 6.3.2.1). An error cannot answer it.
        is_response: bool,
        /// What follows the prefix.
        body: &'m [u8],
    },
    /// The message was dropped in silence. Count it.
    Discarded(DiscardReason),
    /// The message was refused: answer with [`encode_error`](super::Connection::encode_error). The connection goes
    /// on.
    Refused(Refusal),
    /// The peer broke the protocol beyond repair: close the connection.
    Close(CloseReason),
}

/// A received transmission of the extension RTR (RTR sections 9.2 to 9.4).
///
/// The payload streams of a group, joined, and the items are the RPC message. All that the header says of itself was
/// checked: order and number of the transmissions, XID and message type at the start of the payload stream, places
/// and displacements of items ([`crate::v2::rtr::item_checks`]), ranges of directions. So with the last transmission
/// every item that was placed is there, in octets that this group has brought. Not known here are what explicit RDMA
/// will move, and what a call of ours has allowed its reply: see `transmissions`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmission<'m> {
    /// XID, direction, and place in the group. 0 begins a new group.
    pub id: TransmissionId,
    /// How many transmissions the group has. Of a reply, the caller compares it with what it allowed
    /// (`response_transmissions_max` of its call), and gives up a longer group with
    /// [`handle_group_refused`](super::Connection::handle_group_refused).
    pub transmissions: u32,
    /// What its header says beside that.
    pub part: TransmissionPart<'m>,
    /// The sizes of header, payload stream and message: items lie behind them, in the buffer of the message.
    pub arrival: Arrival,
    /// Where the payload belongs in the payload stream of the group, in octets.
    pub stream_offset: u32,
    /// The payload stream of this transmission; may be empty.
    pub payload: &'m [u8],
}

impl Transmission<'_> {
    /// Whether the group is complete with it.
    #[inline]
    #[must_use]
    pub const fn is_last(&self) -> bool {
        self.id.sequence + 1 == self.transmissions
    }
}

/// What the header of a transmission says of the whole group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransmissionPart<'m> {
    /// The first transmission of a call.
    Request {
        /// What was taken out of the call.
        items: MessageItems<'m>,
        /// What is asked of the reply's bulk data.
        directions: ResponseSets<'m>,
        /// How many transmissions the reply may take, at least 1.
        response_transmissions_max: u32,
    },
    /// The first transmission of a reply.
    Response {
        /// How the directions were followed.
        items: MessageItems<'m>,
    },
    /// A later transmission.
    Continue,
}

impl TransmissionPart<'_> {
    /// Where the lists of a first transmission are in its header, which can be kept without being decoded again.
    #[must_use]
    pub fn lists(&self) -> Option<TransmitLists> {
        match self {
            Self::Request {
                items, directions, ..
            } => Some(TransmitLists::of_request(items, directions)),
            Self::Response { items } => Some(TransmitLists::of_response(items)),
            Self::Continue => None,
        }
    }
}

/// A transmission that is answered with a Report Error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransmissionRefusal {
    /// The answer.
    pub report: ReportError,
    /// It broke, or ended, the group that was being received: give up what was kept of it.
    pub group_given_up: bool,
}

/// Why a message was dropped in silence. Where an XID is told, the reply to that call will never be complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DiscardReason {
    /// It is shorter than the least size of its version and type.
    Short,
    /// As `Short`, and it was part of the open sequence or transmission group, whose bytes now have a gap: give up
    /// the reassembly.
    SequenceBroken {
        /// The XID of the sequence or group.
        xid: u32,
    },
    /// It belongs to a sequence, or a transmission group, that was given up before.
    SequenceRest,
    /// It is a reply whose XID or message type is not that of its header (-00 leaves it open; ours is to drop it).
    /// If it continued a sequence or a transmission group, give up the reassembly.
    ReplyMismatch {
        /// The XID of the header.
        xid: u32,
    },
    /// The continued reply is longer than our limit: end the call, and give up the reassembly.
    ReplyTooLong {
        /// The XID.
        xid: u32,
    },
    /// It is a transport error, and we have sent nothing that could be wrong.
    UnexpectedError,
    /// Version 1: it is RDMA_DONE, or a requester got another version, and nobody answers that (RFC 8166 sections
    /// 4.5.1 and 4.6.2).
    Unanswerable,
    /// The connection is over: it mismatched, or is to be closed.
    Over,
}

/// Why the connection cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CloseReason {
    /// The peer sent more messages than it had credits, or more asynchronous grants than there were Receives.
    OverSend,
    /// The peer's grants exceed the maximum that it announced.
    OverGrant,
    /// The peer changed the protocol version (-00 section 4.3.3.3).
    VersionChanged,
    /// The server spoke before the client had sent anything.
    SpokeFirst,
    /// A message for us as the requester was wrong. A requester cannot answer with an error (-00 section 6.4.3); this
    /// is the error that it would have been.
    BadReply(TransportError),
    /// A transport error could not be decoded.
    BadError,
}

impl From<IllegalEvent> for CloseReason {
    fn from(illegal: IllegalEvent) -> Self {
        match illegal.event {
            PhaseEvent::OtherVersion => Self::VersionChanged,
            _ => Self::SpokeFirst,
        }
    }
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OverSend => f.write_str("the peer sent more messages than it had credits for"),
            Self::OverGrant => {
                f.write_str("the peer granted more credits than the maximum that it announced")
            }
            Self::VersionChanged => f.write_str("the peer changed the protocol version"),
            Self::SpokeFirst => {
                f.write_str("the server sent a message before the client had sent one")
            }
            Self::BadReply(error) => {
                write!(
                    f,
                    "the peer sent a wrong reply (error code {})",
                    error.code()
                )
            }
            Self::BadError => f.write_str("the peer sent a transport error that cannot be decoded"),
        }
    }
}

impl core::error::Error for CloseReason {}

/// A message that is answered with a transport error.
///
/// It is answered when a credit is there; a peer that sends wrong messages and grants nothing to answer them with may
/// be disconnected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The XID of the message that is refused.
    pub xid: u32,
    /// Its version.
    pub version: u32,
    /// What was wrong.
    pub error: TransportError,
    /// The message broke, or ended, a sequence or a transmission group that was being put together: give up the
    /// reassembly.
    pub sequence_given_up: bool,
}

impl Refusal {
    /// A refusal by the caller, for instance of a call with too many chunks (-00 section 6.4.3).
    #[must_use]
    pub const fn new(xid: u32, error: TransportError) -> Self {
        Self {
            xid,
            version: RPCRDMA_VERSION_2,
            error,
            sequence_given_up: false,
        }
    }
}

/// Why nothing was sent. The connection is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SendRefused {
    /// No credit, or not one for each transmission of a group: wait for [`Event::Credits`], for any other message, or, when the spare Receive is in use, for the
    /// Receive to be posted again.
    NoCredit,
    /// The server may not speak before it knows the client's version.
    VersionUnknown,
    /// The client's first message was not answered yet.
    AwaitingFirstAnswer,
    /// The version is agreed: it cannot be refused any more.
    VersionKnown,
    /// A continued message, or a transmission group, is under way: finish it first.
    SequenceOpen,
    /// No transmission group is under way that could be continued.
    NoGroup,
    /// One of the ends has not announced this message of the extension RTR, or the header type is not one of the
    /// application.
    NotAnnounced,
    /// The group has more transmissions than its receiver takes, or than we said that we send; or none.
    TooManyTransmissions,
    /// An asynchronous grant is on its way for which the peer may have used its only spare Receive.
    GrantInFlight,
    /// One of the ends is not ready for calls in the reverse direction, or not for chunks in them (-00 section 5.2.5).
    NotTaken,
    /// No new calls: the connection drains.
    Draining,
    /// The message is longer than the inline threshold.
    TooLong,
    /// The message is shorter than the least size of its type.
    TooShort,
    /// The space given does not hold the header.
    NoSpace,
    /// The connection is over.
    Over,
}

impl fmt::Display for SendRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoCredit => "the peer has not granted a credit",
            Self::VersionUnknown => "the client has not sent its first message",
            Self::AwaitingFirstAnswer => "the server has not answered the first message",
            Self::VersionKnown => "the protocol version is already agreed",
            Self::SequenceOpen => "a continued message is under way",
            Self::NoGroup => "no transmission group is under way",
            Self::NotAnnounced => "one of the ends has not announced this message",
            Self::TooManyTransmissions => "the group has more transmissions than may be sent",
            Self::GrantInFlight => "an asynchronous grant is already on its way",
            Self::NotTaken => "one of the ends does not take such calls in the reverse direction",
            Self::Draining => "the connection drains and takes no new calls",
            Self::TooLong => "the message exceeds the inline threshold",
            Self::TooShort => "the message is below the least size of its type",
            Self::NoSpace => "the space given does not hold the transport header",
            Self::Over => "the connection is over",
        })
    }
}

impl core::error::Error for SendRefused {}

/// A message of the peer that has begun and not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unfinished {
    /// Its XID.
    pub xid: u32,
    /// How much of it has come: octets of a continued message, transmissions of a group.
    pub taken: u32,
}

impl Unfinished {
    /// Whether it is the message that was found before, as far as can be told: an XID that is used again at once, for a
    /// message that has come further, cannot be told from it.
    #[must_use]
    pub const fn continues(&self, before: Self) -> bool {
        self.xid == before.xid && self.taken >= before.taken
    }
}

/// What a keep-alive tick asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tick {
    /// Nothing.
    Quiet,
    /// Send an asynchronous grant: the connection was silent from our side.
    SendKeepAlive,
    /// The peer was silent for the set number of ticks: take it for dead.
    PeerSilent,
}

/// Whether a payload that begins at octet `offset` of an RPC message has there the XID and the message type that its
/// header told (RFC 8166 section 4.2.1, -00 section 6.3.2.1). A payload that ends before them matches as far as it goes.
#[must_use]
pub fn rpc_start_matches(xid: u32, direction: Direction, offset: usize, payload: &[u8]) -> bool {
    let start = u64::from(xid) << 32 | u64::from(direction.message_type());
    let start = start.to_be_bytes();
    if let (0, Some(first)) = (offset, payload.first_chunk()) {
        return start == *first;
    }
    start
        .get(offset..)
        .is_none_or(|expected| expected.iter().zip(payload).all(|(e, p)| e == p))
}
