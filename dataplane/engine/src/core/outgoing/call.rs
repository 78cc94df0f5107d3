//! The slot of a call of ours with bulk data, and its states.

use rpcrdma_fabric::interface::Window;
use rpcrdma_fabric::memory::{Buffer, Lease};
use rpcrdma_protocol::v2::TransportError;
use rpcrdma_protocol::v2::plan::Direction;
use rpcrdma_protocol::v2::rtr::StreamRange;

use super::lists::{OfferedSegment, Role};
use crate::bulk::{BULK_ITEMS_MAX, BULK_PARTS_MAX, BulkPart, BulkPool, Home, NO_INDEX};
use crate::core::group::{Group, GroupArrival};
use crate::core::incoming::Stream;
use crate::core::step::{Step, Wait};
use crate::limits::LANDINGS_MAX;
use crate::rpc::{CallError, CallTag, ConnectionKey};

/// The state of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OutgoingState {
    /// Nobody uses the slot.
    #[default]
    Free,
    /// Its memory is being exposed.
    Binding,
    /// It waits to be sent.
    Sending,
    /// It waits for its reply.
    Waiting,
    /// Its reply has arrived, and waits for spare placement segments that replace those with its results.
    Placing,
    /// Its reply has arrived. Its windows have to be invalidated before the exposed memory may be read.
    AwaitingInvalidation,
}

/// A piece of memory that a call exposes, or is about to.
#[derive(Debug)]
pub(crate) struct CallPart {
    pub(crate) role: Role,
    /// How many of its bytes are exposed.
    pub(crate) bytes: u32,
    /// How many bytes the peer wrote, from its start.
    pub(crate) written_bytes: u32,
    pub(crate) buffer: Option<Buffer>,
    pub(crate) window: Option<Window>,
    /// The index of its buffer in the bulk pool; [`NO_INDEX`] for a buffer of another pool.
    pub(crate) index: u32,
    /// A local invalidation of its window is under way.
    pub(crate) invalidating: bool,
}

/// The outcome of a call.
#[derive(Debug, Default)]
pub(crate) enum Answer {
    /// None yet.
    #[default]
    None,
    /// A reply in its Receive, or assembled from parts.
    Stream(Stream),
    /// A reply in the Reply chunk.
    Long,
    /// No reply.
    Error(CallError),
    /// The peer does not accept it as a transmission group: it is made again as plain version 2, or ends
    /// with this error.
    Refused(TransportError),
}

/// A call of ours.
#[derive(Debug, Default)]
pub(crate) struct OutgoingCall {
    /// The index of its slot.
    pub(crate) index: u32,
    /// How often the slot was used before.
    pub(crate) generation: u32,
    pub(crate) state: OutgoingState,
    pub(crate) connection: ConnectionKey,
    pub(crate) tag: CallTag,
    pub(crate) xid: u32,
    /// It timed out, and the application was notified.
    pub(crate) notified: bool,
    /// Whether it is the second attempt.
    pub(crate) again: bool,
    /// The RPC call without its items, when it is sent in the message.
    pub(crate) stream: Box<[u8]>,
    pub(crate) stream_bytes: usize,
    pub(crate) parts: Vec<CallPart>,
    pub(crate) segments: Vec<OfferedSegment>,
    /// How many results are expected.
    pub(crate) results: u8,
    /// How many of the first results have Write chunks, and the most bytes of each result.
    pub(crate) chunks: u8,
    pub(crate) chunk_bytes: [u32; BULK_ITEMS_MAX],
    /// Bytes of the Reply chunk; 0 for none.
    pub(crate) reply_bytes: u32,
    /// The most bytes of the RPC reply, without its results.
    pub(crate) rpc_reply_bytes_max: u32,
    /// How many windows are open.
    pub(crate) windows: u32,
    /// How many bulk buffers it holds, for its results and for itself, until it ends.
    pub(in crate::core) buffers: u32,
    pub(crate) answer: Answer,
    /// The call as a transmission group; empty in a call of plain version 2.
    pub(crate) group: Group,
    /// The directions of the group for its results.
    pub(crate) directions: Vec<CallDirection>,
    /// A result with fewer bytes stays in the stream of the reply.
    pub(crate) minimum_bytes: u32,
    /// The most transmissions of the reply.
    pub(crate) reply_transmissions_max: u32,
    /// The reply, if it comes as a transmission group.
    pub(crate) arrival: GroupArrival,
    /// The pieces that Sends of the reply placed, each with the number of its result.
    pub(crate) placed: Vec<(usize, Lease)>,
    pub(in crate::core) wait: Wait,
}

/// The direction of a call for a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallDirection {
    pub(crate) range: StreamRange,
    pub(crate) way: Direction,
    pub(crate) bytes_max: u32,
    /// Where its result belongs in the stream of the reply with all items, once that is known.
    pub(crate) displacement: Option<u32>,
}

impl OutgoingCall {
    pub(crate) fn new(index: u32, stream_bytes: u32) -> Self {
        Self {
            index,
            stream: vec![0; stream_bytes as usize].into_boxed_slice(),
            parts: Vec::with_capacity(CALL_PARTS_MAX),
            segments: Vec::with_capacity(CALL_SEGMENTS_MAX),
            group: Group::new(),
            directions: Vec::with_capacity(BULK_ITEMS_MAX),
            arrival: GroupArrival::new(false),
            placed: Vec::with_capacity(LANDINGS_MAX),
            ..Self::default()
        }
    }

    /// Ends the wait for its reply, with this answer: its windows are invalidated next.
    #[inline(always)]
    pub(crate) fn answered(&mut self, answer: Answer) -> Step {
        self.answer = answer;
        self.state = OutgoingState::AwaitingInvalidation;
        Step::GoesOn
    }

    /// Ends it because it cannot be sent as planned: the peer's sizes have changed, or the device does not support it.
    pub(crate) fn fails(&mut self) -> Step {
        self.answered(Answer::Error(CallError::Transport(TransportError::System)))
    }

    /// Adds a piece of memory to expose. The piece has to start at the start of its buffer.
    pub(crate) fn push_part(&mut self, role: Role, part: BulkPart) {
        self.parts.push(CallPart {
            role,
            bytes: part.bytes,
            written_bytes: 0,
            buffer: part.buffer,
            window: None,
            index: part.index,
            invalidating: false,
        });
    }

    /// Adds new memory for `bytes` bytes. The caller has checked that there is enough.
    pub(crate) fn push_fresh(&mut self, pool: &mut BulkPool, role: Role, bytes: u32) {
        let mut rest = bytes;
        while rest != 0
            && let Some(buffer) = pool.take()
        {
            let bytes = rest.min(buffer.capacity());
            rest -= bytes;
            self.push_part(role, BulkPart::new(buffer, 0, bytes));
        }
    }

    /// Makes the port bring its memory back to this call.
    #[inline(always)]
    pub(crate) fn set_homes(&self, pool: &mut BulkPool) {
        for (piece, part) in self.parts.iter().zip(0..) {
            let slot = self.index;
            pool.set_home(piece.index, Home::Call { slot, part });
        }
    }

    /// Gives back the memory for its results.
    pub(crate) fn give_results_back(&mut self, pool: &mut BulkPool) {
        self.parts.retain_mut(|part| {
            let is_result = part.role.is_written();
            if is_result && let Some(buffer) = part.buffer.take() {
                pool.give(buffer);
            }
            !is_result
        });
        self.segments.clear();
    }

    /// Gives the memory of a long call back: its stream is in a message now.
    pub(super) fn give_stream_back(&mut self, pool: &mut BulkPool) {
        self.parts.retain_mut(|part| {
            let is_stream = part.role == Role::Stream;
            if is_stream && let Some(buffer) = part.buffer.take() {
                pool.give(buffer);
            }
            !is_stream
        });
    }

    /// Whether the peer reads no long calls, and it is one with all of its items in it: it goes in the stream then.
    pub(super) fn is_long_and_unread(&self, error: TransportError) -> bool {
        let has_beside = || {
            let mut parts = self.parts.iter();
            parts.any(|part| matches!(part.role, Role::Argument { .. }))
        };
        matches!(error, TransportError::ReadChunks { max_chunks: 0 })
            && self.is_long()
            && !has_beside()
    }

    /// Whether nothing of it was sent in messages yet.
    pub(super) fn is_before_send(&self) -> bool {
        let is_before = matches!(self.state, OutgoingState::Binding | OutgoingState::Sending);
        is_before && self.group.sent == 0
    }

    /// Whether it is, or will be, a transmission group.
    pub(crate) fn is_group(&self) -> bool {
        self.group.transmissions != 0
    }

    /// Makes the slot free. Its buffers must have been taken out.
    #[inline(always)]
    pub(crate) fn reset(&mut self) {
        debug_assert!(self.parts.iter().all(|part| part.buffer.is_none()));
        self.generation = self.generation.wrapping_add(1);
        self.state = OutgoingState::Free;
        self.parts.clear();
        self.segments.clear();
        self.answer = Answer::None;
        self.group.reset();
        self.directions.clear();
        self.arrival.end();
        self.placed.clear();
        (self.minimum_bytes, self.reply_transmissions_max) = (0, 0);
        (self.notified, self.again) = (false, false);
        self.wait.ends();
        (self.results, self.chunks, self.windows, self.stream_bytes) = (0, 0, 0, 0);
    }

    /// Whether the peer can reach nothing of the call any more: its windows are invalidated, and the buffers of its
    /// results have come back with them.
    pub(crate) fn is_home(&self) -> bool {
        let mut results = self.parts.iter().filter(|it| it.role.is_written());
        self.windows == 0 && results.all(|part| part.buffer.is_some())
    }

    /// Whether a buffer of an item has not come back yet.
    pub(crate) fn awaits_items(&self) -> bool {
        let is_away = |part: &CallPart| part.buffer.is_none() && part.index != NO_INDEX;
        self.parts.iter().any(is_away)
    }

    /// Whether its stream is still here, to be sent again: a call that was sent inline has given it away.
    pub(crate) fn keeps_stream(&self) -> bool {
        self.stream_bytes != 0 || self.is_long()
    }

    /// Whether the call itself is in a Position-Zero Read chunk.
    pub(crate) fn is_long(&self) -> bool {
        self.parts.iter().any(|part| part.role == Role::Stream)
    }

    /// Whether all of its items are here.
    pub(crate) fn has_items(&self) -> bool {
        self.parts.iter().all(|part| part.buffer.is_some())
    }
}

/// The most parts of a call: those of its items, its results, itself, and its reply.
pub(crate) const CALL_PARTS_MAX: usize = 2 * BULK_PARTS_MAX + 2 * BULK_ITEMS_MAX;

/// The most segments of a call.
pub(crate) const CALL_SEGMENTS_MAX: usize = 2 * CALL_PARTS_MAX;
