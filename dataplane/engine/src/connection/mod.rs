//! The connections of a core.

mod backlog;
mod credits;
mod owed;
mod path;
mod reassembly;
mod table;

pub(crate) use backlog::{Backlog, Outbound, OutgoingMessage};
pub(crate) use owed::{Debts, Owing, Silence, VISITS};
pub(crate) use path::{Passed, Path, Patience, Verdict};
pub(crate) use reassembly::{Assembled, GroupIn, Lane, Taken};
pub(crate) use table::ConnectionTable;

use std::collections::VecDeque;
use std::mem::offset_of;

use rpcrdma_fabric::interface::{Gather, QueuePairId, SendOptions};
use rpcrdma_fabric::memory::fetch_ahead;
use rpcrdma_protocol::connection as protocol;
use rpcrdma_protocol::v2::connection as v2;
use rpcrdma_protocol::v2::rtr::ReportError;
use rpcrdma_protocol::v2::{
    ApplicationProperties, Properties, ReverseRequestSupport, TransportError,
};

use crate::application_messages::PeerProperties;
use crate::authentication::AuthenticationMessage;
use crate::close_reason::CloseReason;
use crate::requester::CallsOf;
use crate::rpc::ConnectionKey;

/// How many messages of a connection the counters of its version contain already.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MessagesCounted {
    pub(crate) received: u32,
    pub(crate) sent: u32,
    pub(crate) calls_beyond_grant: u32,
}

/// The stage in the life of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The slot is free.
    Free,
    /// Adopted, and the peer has to authenticate itself first: its calls and ours are refused.
    Guarded,
    /// Adopted. Calls of the peer are served; ours are refused until properties were exchanged.
    Open,
    /// Properties were exchanged: both ends may call.
    Ready,
    /// Closing: nothing is received or sent any more, and its calls end.
    Closing,
}

/// An error message about a wrong message of the peer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Complaint {
    /// A transport error.
    Error(v2::Refusal),
    /// A Report Error, about a transmission group.
    Report(ReportError),
}

/// An encoded message that found the send queue full, if there is one.
#[derive(Debug, Default)]
pub(crate) struct UnpostedSend {
    /// The gather list to send; empty when there is no such message.
    pub(crate) list: Gather,
    pub(crate) options: SendOptions,
}

impl UnpostedSend {
    #[inline]
    pub(crate) fn is_some(&self) -> bool {
        !self.list.is_empty()
    }
}

/// One connection: the protocol's state, and what waits to be sent.
///
/// In this order, because each message needs lines of a connection that, among thousands, are in no cache: the first ones of the
/// protocol's state, and the two of what follows it, up to `serves`.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Connection {
    pub(crate) protocol: protocol::Connection,
    pub(crate) unposted: UnpostedSend,
    /// Error messages that wait for a credit. There is room for one about each message that the peer can have in flight
    /// ([`Connection::push_refusal`]).
    pub(crate) refusals: VecDeque<Complaint>,
    pub(crate) queue_pair: QueuePairId,
    /// Calls of ours.
    pub(crate) calls: CallsOf,
    /// Messages that wait for credits or a place in the send queue.
    pub(crate) outbound: Outbound,
    /// The slot of a call of ours that waits for the credits of its whole group. No other call begins before it: each
    /// would take credits from it.
    pub(crate) group_first: Option<u32>,
    pub(crate) generation: u32,
    /// Transmissions that replies to the peer's group calls may take.
    pub(crate) replies_reserved: u32,
    /// Transmissions that replies to calls of ours may take, beyond one for each call.
    pub(crate) reply_transmissions_extra: u32,
    pub(crate) stage: Stage,
    /// On the core's list of connections that have something to send.
    pub(crate) pending: bool,
    /// Calls in slots, or held messages, wait until something happens on the connection.
    pub(crate) is_awaited: bool,
    /// Our properties, or the message in `authentication_out`, are to be sent.
    pub(crate) properties_due: bool,
    /// A keep-alive is to be sent.
    pub(crate) keep_alive_due: bool,
    /// This end answers calls of the peer, so a credit is reserved for replies.
    pub(crate) serves: bool,
    /// The peer refused even the chunk of a long call: calls to it go without chunks.
    pub(crate) refuses_chunks: bool,
    /// The queue pair is flushed and can be destroyed.
    pub(crate) flushed: bool,
    /// The application was notified of the connection.
    pub(crate) connected_notified: bool,
    /// What the connection waits for. Kept so that each wait is counted once.
    pub(crate) waiting: Option<Waiting>,
    /// The most unused credits that the peer will ever have granted at one time, as it announced; 0 before it did.
    pub(crate) peer_window: u16,
    /// The properties that the peer announced, as far as later refusals leave them.
    pub(crate) peer: Properties,
    pub(crate) reads_in_flight: u32,
    /// In version 1, how long the peer has been silent; in both, whether it has acknowledged its probe.
    pub(crate) silence: Silence,
    /// Incoming calls and property sets.
    pub(crate) calls_in: Lane,
    /// Incoming replies.
    pub(crate) replies_in: Lane,
    /// The lane of the message or transmission group that is incomplete. The peer may send one at a time.
    pub(crate) open_in: Option<v2::Direction>,
    pub(crate) debts: Debts,
    pub(crate) path: Path,
    /// Receives that are lent to it.
    pub(crate) lent: u16,
    /// How many messages had arrived when `lent` was last decided.
    pub(crate) received_before: u32,
    /// Messages of it that were added to the counters.
    pub(crate) messages_counted: MessagesCounted,
    pub(crate) close_reason: CloseReason,
    /// The control plane has a property set of the peer and has not answered yet.
    pub(crate) awaits_control: bool,
    /// The unknown properties of the peer's first set; empty once the application has seen them.
    pub(crate) peer_properties: Option<PeerProperties>,
    /// What is announced for the application, if it is not what the core announces to others.
    pub(crate) application_properties: Option<Box<ApplicationProperties>>,
    /// A message of host authentication that is to be sent.
    pub(crate) authentication_out: Option<Box<AuthenticationMessage>>,
}

/// The bytes of a cache line.
const LINE_BYTES: usize = 64;
/// The bytes of the protocol's state that each message needs.
const PROTOCOL_BYTES: usize = 3 * LINE_BYTES;
const _: () = {
    let first = offset_of!(Connection, refusals) / LINE_BYTES;
    let last = offset_of!(Connection, serves) / LINE_BYTES;
    assert!(last <= first + 1, "what each message needs is in two lines");
};

/// The scarce resource that a message waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// The peer has no Receive for it.
    Credit,
    /// The send queue, or the way to the peer, is full.
    SendSlot,
    /// All send buffers are in flight.
    SendBuffer,
}

impl Connection {
    fn unused(generation: u32, config: &v2::Config, terms: &protocol::Terms) -> Self {
        Self {
            protocol: protocol::Connection::new(config, terms),
            queue_pair: QueuePairId {
                index: u32::MAX,
                generation: 0,
            },
            generation,
            stage: Stage::Free,
            pending: false,
            properties_due: false,
            keep_alive_due: false,
            flushed: false,
            connected_notified: false,
            is_awaited: false,
            waiting: None,
            serves: config.role == v2::Role::Server,
            peer_window: 0,
            peer: Properties::default(),
            refuses_chunks: false,
            reads_in_flight: 0,
            silence: Silence::default(),
            calls: CallsOf::default(),
            outbound: Outbound::EMPTY,
            unposted: UnpostedSend::default(),
            group_first: None,
            reply_transmissions_extra: 0,
            replies_reserved: 0,
            calls_in: Lane::default(),
            replies_in: Lane::default(),
            open_in: None,
            debts: Debts::default(),
            path: Path::default(),
            lent: 0,
            received_before: 0,
            messages_counted: MessagesCounted::default(),
            close_reason: CloseReason::Local,
            awaits_control: false,
            peer_properties: None,
            application_properties: None,
            authentication_out: None,
            refusals: VecDeque::new(),
        }
    }

    /// Asks for the lines that a message needs.
    #[inline]
    pub(crate) fn fetch_ahead(&self) {
        fetch_ahead(&self.protocol, PROTOCOL_BYTES);
        fetch_ahead(&self.refusals, LINE_BYTES);
        fetch_ahead(&self.outbound, LINE_BYTES);
    }

    /// Whether calls of ours may have chunks: in the reverse direction only if both ends announced support for that
    /// (-00 section 5.2.5), and never to a peer that refuses all chunks.
    pub(crate) fn calls_may_have_chunks(&self) -> bool {
        self.protocol.own_calls() == ReverseRequestSupport::General && !self.refuses_chunks
    }

    /// Remembers what a refusal says about all calls, not only about the refused one (-00 section 6.4.3): how many
    /// segments the peer serves, and whether it reads no chunks at all.
    #[cold]
    pub(crate) fn remember_refusal(&mut self, error: TransportError, of_long_call: bool) {
        match error {
            TransportError::Segments { max_segments } => {
                self.peer.segment_count_max = self.peer.segment_count_max.min(max_segments);
            }
            // For another call it may mean only that the peer takes no items outside the stream.
            TransportError::ReadChunks { max_chunks: 0 } if of_long_call => {
                self.refuses_chunks = true;
            }
            _ => {}
        }
    }

    /// Whether messages are received and sent.
    #[inline]
    pub(crate) fn is_live(&self) -> bool {
        matches!(self.stage, Stage::Guarded | Stage::Open | Stage::Ready)
    }

    /// Whether RPC messages of the peer are accepted: if [`Connection::is_live`], and the peer does not have to
    /// authenticate itself first.
    #[inline]
    pub(crate) fn takes_calls(&self) -> bool {
        matches!(self.stage, Stage::Open | Stage::Ready)
    }

    /// The incoming lane of a direction.
    #[inline]
    pub(crate) fn lane_mut(&mut self, direction: v2::Direction) -> &mut Lane {
        match direction {
            v2::Direction::Call => &mut self.calls_in,
            v2::Direction::Reply => &mut self.replies_in,
        }
    }

    /// As [`Connection::lane_mut`], by shared reference.
    #[inline]
    pub(crate) fn lane(&self, direction: v2::Direction) -> &Lane {
        match direction {
            v2::Direction::Call => &self.calls_in,
            v2::Direction::Reply => &self.replies_in,
        }
    }

    /// Whether parts or transmissions wait in their Receives in the lane of the incomplete message.
    pub(crate) fn open_lane_waits(&self) -> bool {
        self.open_in.is_some_and(|lane| self.lane(lane).parts.any())
    }

    /// Whether there is something to send, now or when the peer grants credits.
    // Always: it is short, and asked for each message.
    #[inline(always)]
    pub(crate) fn wants_to_send(&self) -> bool {
        self.has_backlog() | self.keep_alive_due || self.protocol.grant_due()
    }

    /// Whether the arrival of a message may let waiting work continue: in slots, in held messages, or to be sent.
    #[inline(always)]
    pub(crate) fn has_news(&self) -> bool {
        self.is_awaited || (!self.pending && self.wants_to_send())
    }

    /// Counts a Receive that was posted again; whether there is something to do then.
    #[inline]
    pub(crate) fn takes_posted(&mut self) -> bool {
        self.protocol.handle_receives_posted(1);
        self.has_news()
    }

    /// Whether this end serves calls in the reverse direction (RFC 8167 section 2), as a client does.
    #[inline]
    pub(crate) fn serves_reverse(&self) -> bool {
        self.protocol.role() == v2::Role::Client
    }

    /// Whether both ends support the round-trip-reduction extension.
    #[inline]
    pub(crate) fn places_by_send(&self) -> bool {
        let own = self.protocol.properties().rtr_support;
        own.has_request() && self.peer.rtr_support.has_request()
    }

    /// Keeps an error message until it can be sent. False when too many wait.
    #[must_use]
    pub(crate) fn push_refusal(&mut self, refusal: Complaint) -> bool {
        // The peer decides how many errors it causes: the queue must not grow with them.
        let has_room = self.refusals.len() < self.refusals.capacity();
        if has_room {
            self.refusals.push_back(refusal);
        }
        has_room
    }

    /// The key of the connection at `index`.
    #[inline]
    pub(crate) fn key(&self, index: u32) -> ConnectionKey {
        ConnectionKey {
            index,
            generation: self.generation,
        }
    }
}
