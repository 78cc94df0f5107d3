//! The events, errors and configuration of [`Connection`](super::Connection).

use core::fmt;

use super::phase::{IllegalEvent, PhaseEvent};
use crate::chunks::ChunkLists;
use crate::constants::RPCRDMA_VERSION_2;
use crate::rpc::Direction;
use crate::v2::error::TransportError;
use crate::v2::properties::{Properties, PropertySet};
use crate::v2::rtr::{
    Arrival, MessageItems, ReportError, ResponseSets, TransmissionId, TransmitLists,
};

/// Which end of the connection this is. Either end may call the other (-00 section 3.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// It asked for the connection, and sends the first message.
    Client,
    /// It accepted the connection.
    Server,
}

/// The configuration of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Which end this is.
    pub role: Role,
    /// Receives posted for the connection before it begins, including the spare one: at least 2. The connection
    /// never grants more.
    pub receive_reserve: u16,
    /// Our own transport properties. The send size must be at least 1024 octets.
    pub properties: Properties,
    /// The longest RPC message that is assembled from a continued sequence, in octets.
    pub message_bytes_max: u32,
}

/// A received message that is a whole RPC message without chunks, the most frequent kind.
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

/// The result of handling one received message.
///
/// Its bytes are those of the message: use or copy them before the Receive is posted again.
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
    /// An RPC reply, checked as a call is. The caller has to check that a call of ours has that XID.
    Reply {
        /// The XID.
        xid: u32,
        /// The reply, without what was written to the Write chunks. Empty for a long reply, which is in the Reply
        /// chunk.
        payload: &'m [u8],
        /// The returned chunk lists. There is no Read list.
        chunks: ChunkLists<'m>,
        /// Meaningless in a reply; for diagnosis.
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
        /// The chunk lists of the message; empty except in the last part.
        chunks: ChunkLists<'m>,
        /// As in a call; 0 except in the last part.
        invalidate_handle: u32,
    },
    /// The peer's transport properties. The control plane decides and calls
    /// [`handle_peer_properties`](super::Connection::handle_peer_properties).
    Properties {
        /// The XID with which an error is to be answered.
        xid: u32,
        /// The properties: well formed, and each known value conforms to its type.
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
    /// The server does not support version 2, and the connection continues with version 1, as configured: messages sent
    /// so far have no effect. Only [`crate::connection`] returns this.
    FellBack,
    /// The server does not support our version, but these versions. This connection state cannot be used any more.
    VersionMismatch {
        /// The lowest version that it supports.
        low: u32,
        /// The highest.
        high: u32,
    },
    /// A transmission of the extension RTR: an RPC message, or a part of one, whose items may be in the message too.
    Transmission(Transmission<'m>),
    /// A transmission group was wrong, or a message broke one: answer with
    /// [`encode_report_error`](super::Connection::encode_report_error). The connection stays usable.
    TransmissionRefused(TransmissionRefusal),
    /// The peer reported an error in a transmission of ours. Send the call or reply that it names again as plain
    /// version 2.
    ErrorReported(ReportError),
    /// A message of a header type of the application
    /// ([`set_header_types`](super::Connection::set_header_types)).
    ApplicationMessage {
        /// The header type.
        header_type: u32,
        /// The XID. With `is_response`, the caller has to check that a message of ours has it.
        xid: u32,
        /// F_RESPONSE is set: according to the sender, we chose the XID (-00 section 6.3.2.1). It cannot be answered
        /// with an error.
        is_response: bool,
        /// What follows the prefix.
        body: &'m [u8],
    },
    /// The message was dropped in silence. Count it.
    Discarded(DiscardReason),
    /// The message was refused: answer with [`encode_error`](super::Connection::encode_error). The connection stays
    /// usable.
    Refused(Refusal),
    /// The peer broke the protocol in a way that cannot be answered: close the connection.
    Close(CloseReason),
}

/// A received transmission of the extension RTR (RTR sections 9.2 to 9.4).
///
/// The joined payload streams of a group and its items are the RPC message. Everything that can be checked from the
/// headers was checked: order and number of the transmissions, XID and message type at the start of the payload stream,
/// places and displacements of items ([`crate::v2::rtr::item_checks`]), ranges of directions. So after the last
/// transmission every placed item is complete, in octets of this group. Not checked are data that explicit RDMA will
/// move, and the transmissions that a call of ours allowed its reply: see `transmissions`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmission<'m> {
    /// XID, direction, and place in the group. 0 begins a new group.
    pub id: TransmissionId,
    /// How many transmissions the group has. For a reply, the caller has to compare it with what it allowed
    /// (`response_transmissions_max` of its call), and gives up a longer group with
    /// [`handle_group_refused`](super::Connection::handle_group_refused).
    pub transmissions: u32,
    /// The rest of its header.
    pub part: TransmissionPart<'m>,
    /// The sizes of header, payload stream and message. Items follow the first two in the buffer of the message.
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

    /// What is known of it without its octets. `header_number` is that of its header
    /// ([`header_number`](super::Connection::header_number)) if it is the only one of its group.
    #[must_use]
    pub fn heading(&self, header_number: u32) -> TransmissionHeading {
        TransmissionHeading {
            id: self.id,
            transmissions: self.transmissions,
            arrival: self.arrival,
            lists: self.part.lists(),
            response_transmissions_max: match self.part {
                TransmissionPart::Request {
                    response_transmissions_max,
                    ..
                } => response_transmissions_max,
                TransmissionPart::Response { .. } | TransmissionPart::Continue => 0,
            },
            header_number: match self.id.sequence {
                0 if self.is_last() => header_number,
                _ => 0,
            },
        }
    }
}

/// A [`Transmission`] without its octets: all that a receiver needs that keeps them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransmissionHeading {
    /// XID, direction, and place in the group.
    pub id: TransmissionId,
    /// How many transmissions the group has, as in [`Transmission`].
    pub transmissions: u32,
    /// The sizes of header, payload stream and message, in octets.
    pub arrival: Arrival,
    /// Where the lists are in the header; `None` of a later transmission.
    pub lists: Option<TransmitLists>,
    /// How many transmissions the reply may take; 0 if it is not the first of a call.
    pub response_transmissions_max: u32,
    /// The number of its header ([`header_number`](super::Connection::header_number)); 0 if it has none.
    pub header_number: u32,
}

impl TransmissionHeading {
    /// The only transmission of a group, whose header and payload stream are in `head`.
    pub(super) fn transmission<'m>(&self, head: &'m [u8]) -> Transmission<'m> {
        let lists = self.lists.as_ref();
        let items = lists.map_or_else(MessageItems::default, |it| it.items(head));
        let [begin, end] = [self.arrival.header_bytes, self.arrival.stream_end()]
            .map(|at| usize::try_from(at).unwrap_or(usize::MAX));
        Transmission {
            id: self.id,
            transmissions: self.transmissions,
            part: match lists.and_then(|it| it.directions(head)) {
                Some(directions) => TransmissionPart::Request {
                    items,
                    directions,
                    response_transmissions_max: self.response_transmissions_max,
                },
                None => TransmissionPart::Response { items },
            },
            arrival: self.arrival,
            stream_offset: 0,
            payload: head.get(begin..end).unwrap_or_default(),
        }
    }
}

/// The part of the header of a transmission that concerns the whole group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransmissionPart<'m> {
    /// The first transmission of a call.
    Request {
        /// The items that were taken out of the call.
        items: MessageItems<'m>,
        /// The directions for the reply's bulk data.
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
    /// Whether it broke, or ended, the group that was being received: discard what was kept of it.
    pub group_given_up: bool,
}

/// Why a message was dropped in silence. If there is an XID, the reply to that call will never be complete.
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
    /// It is a reply whose XID or message type is not that of its header (-00 does not say what to do; we drop it).
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
    /// Version 1: it is RDMA_DONE, or a requester received another version; neither is answered (RFC 8166 sections
    /// 4.5.1 and 4.6.2).
    Unanswerable,
    /// The connection has ended: the versions did not match, or it has to be closed.
    Over,
}

/// Why the connection has to be closed.
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
/// The answer needs a credit; a peer that sends wrong messages and grants no credits for the answers may
/// be disconnected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The XID of the message that is refused.
    pub xid: u32,
    /// Its version.
    pub version: u32,
    /// What was wrong.
    pub error: TransportError,
    /// Whether the message broke, or ended, a sequence or a transmission group that was being assembled: discard what
    /// was kept of it.
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

/// Why nothing was encoded. The connection is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SendRefused {
    /// No credit, or not one for each transmission of a group: wait for [`Event::Credits`], for any other message, or,
    /// if the spare Receive is in use, until it is posted again.
    NoCredit,
    /// The server may not send before it knows the client's version.
    VersionUnknown,
    /// The client's first message was not answered yet.
    AwaitingFirstAnswer,
    /// The version is agreed: it cannot be refused any more.
    VersionKnown,
    /// A continued message, or a transmission group, is incomplete: complete it first.
    SequenceOpen,
    /// No transmission group is incomplete.
    NoGroup,
    /// One of the ends has not announced this message of the extension RTR, or the header type is not one of the
    /// application.
    NotAnnounced,
    /// The group has more transmissions than its receiver accepts, or than we announced that we send; or none.
    TooManyTransmissions,
    /// An asynchronous grant may be in flight, for which the peer needs its only spare Receive.
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

/// An incomplete message of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unfinished {
    /// Its XID.
    pub xid: u32,
    /// How much of it has arrived: octets of a continued message, transmissions of a group.
    pub taken: u32,
}

impl Unfinished {
    /// Whether it seems to be the same message as `before`. A new message with the same XID, of which more has arrived,
    /// cannot be distinguished.
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
    /// The peer was silent for the configured number of ticks: it counts as dead.
    PeerSilent,
}

/// Whether a payload that begins at octet `offset` of an RPC message has the XID and the message type of its
/// header there (RFC 8166 section 4.2.1, -00 section 6.3.2.1). Of a shorter payload only its octets are compared.
#[inline(always)]
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
