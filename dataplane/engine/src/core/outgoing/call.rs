//! A call of ours with bulk data, and the states that it goes through.

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

/// How far a call has come.
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
    /// Its reply is there, and waits for spare placement segments to take the places of those that
    /// its results lie in.
    Placing,
    /// Its reply is there; its windows have to go before anybody looks at what they exposed.
    AwaitingInvalidation,
}

/// A piece of memory that a call exposes, or is about to.
#[derive(Debug)]
pub(crate) struct CallPart {
    pub(crate) role: Role,
    /// The bytes of it that are exposed.
    pub(crate) bytes: u32,
    /// The bytes of it that were written, from its start.
    pub(crate) written_bytes: u32,
    pub(crate) buffer: Option<Buffer>,
    pub(crate) window: Option<Window>,
    /// The index of its buffer in the bulk pool; that of no buffer when it is another pool's.
    pub(crate) index: u32,
    /// A local invalidation of its window is under way.
    pub(crate) invalidating: bool,
}

/// What a call ends with.
#[derive(Debug, Default)]
pub(crate) enum Answer {
    /// It has not come.
    #[default]
    None,
    /// A reply in its Receive, or put together from parts.
    Stream(Stream),
    /// A reply in the Reply chunk.
    Long,
    /// No reply.
    Error(CallError),
    /// The peer takes no transmission group for it: it is made again as plain version 2, or ends
    /// with this.
    Refused(TransportError),
}

/// A call of ours.
#[derive(Debug, Default)]
pub(crate) struct OutgoingCall {
    /// Of its slot.
    pub(crate) index: u32,
    /// How often the slot was used before.
    pub(crate) generation: u32,
    pub(crate) state: OutgoingState,
    pub(crate) connection: ConnectionKey,
    pub(crate) tag: CallTag,
    pub(crate) xid: u32,
    /// The application was told of its end: it timed out.
    pub(crate) notified: bool,
    /// Whether it is the second attempt.
    pub(crate) again: bool,
    /// The RPC call without its items, when it is sent in the message.
    pub(crate) stream: Box<[u8]>,
    pub(crate) stream_bytes: usize,
    pub(crate) parts: Vec<CallPart>,
    pub(crate) segments: Vec<OfferedSegment>,
    /// Results that were expected.
    pub(crate) results: u8,
    /// Write chunks for the first of them, and the bytes of each result.
    pub(crate) chunks: u8,
    pub(crate) chunk_bytes: [u32; BULK_ITEMS_MAX],
    /// Bytes of the Reply chunk; 0 for none.
    pub(crate) reply_bytes: u32,
    /// Bytes of the RPC reply at most, without its results.
    pub(crate) rpc_reply_bytes_max: u32,
    /// Windows that are open.
    pub(crate) windows: u32,
    /// Bulk buffers that it has, for its results and for itself, until it ends.
    pub(in crate::core) buffers: u32,
    pub(crate) answer: Answer,
    /// What is sent as a transmission group; nothing in a call of plain version 2.
    pub(crate) group: Group,
    /// What the group asks of the results.
    pub(crate) directions: Vec<CallDirection>,
    /// A shorter result stays in the stream of the reply.
    pub(crate) minimum_bytes: u32,
    /// Transmissions that the reply may take.
    pub(crate) reply_transmissions_max: u32,
    /// The reply, when it comes as a transmission group.
    pub(crate) arrival: GroupArrival,
    /// What the Sends of the reply have placed: each for its result.
    pub(crate) placed: Vec<(usize, Lease)>,
    pub(in crate::core) wait: Wait,
}

/// What a call asks of a result.
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

    /// It has its answer, or never will: now its windows go.
    pub(crate) fn answered(&mut self, answer: Answer) -> Step {
        self.answer = answer;
        self.state = OutgoingState::AwaitingInvalidation;
        Step::GoesOn
    }

    /// It can not be sent as it was planned, since the peer's sizes have changed, or the device does not do it.
    pub(crate) fn fails(&mut self) -> Step {
        self.answered(Answer::Error(CallError::Transport(TransportError::System)))
    }

    /// Adds a piece of memory that it exposes, which starts with its buffer.
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

    /// Adds fresh memory for `bytes` bytes, of which there is enough.
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

    /// Has the memory that it exposes brought back to it.
    pub(crate) fn set_homes(&self, pool: &mut BulkPool) {
        for (piece, part) in self.parts.iter().zip(0..) {
            let slot = self.index;
            pool.set_home(piece.index, Home::Call { slot, part });
        }
    }

    /// Gives back what it has for its results.
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

    /// Whether it is, or will be, a transmission group.
    pub(crate) fn is_group(&self) -> bool {
        self.group.transmissions != 0
    }

    /// Makes the slot free. Its buffers must have been taken out.
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

    /// Whether everything that the call exposed is here again: its windows are gone, and with
    /// them came the buffers that hold results.
    pub(crate) fn is_home(&self) -> bool {
        let mut results = self.parts.iter().filter(|it| it.role.is_written());
        self.windows == 0 && results.all(|part| part.buffer.is_some())
    }

    /// Whether an item is still on its way home.
    pub(crate) fn awaits_items(&self) -> bool {
        let is_away = |part: &CallPart| part.buffer.is_none() && part.index != NO_INDEX;
        self.parts.iter().any(is_away)
    }

    /// Whether its stream is here, to be sent once more: a call that went inline has given it away.
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

/// Parts of a call: its items, its results, itself, and its reply.
pub(crate) const CALL_PARTS_MAX: usize = 2 * BULK_PARTS_MAX + 2 * BULK_ITEMS_MAX;

/// Segments of a call.
pub(crate) const CALL_SEGMENTS_MAX: usize = 2 * CALL_PARTS_MAX;
