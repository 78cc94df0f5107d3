//! The state of a connection of either version, and the choice of the version (RFC 8166 section 7; -00 section 4.3.3).
//!
//! [`Connection`] has the state of version 2 and, once the connection uses version 1, the state of that. It returns the
//! events of [`v2::connection`](crate::v2::connection), and is called in the same order.
//!
//! | configured | client | server |
//! |---|---|---|
//! | [`Versions::One`] | begins with version 1 | accepts only version 1: ERR_VERS for others |
//! | [`Versions::Two`] | begins with version 2 | accepts only version 2: ERR_VERS for others |
//! | [`Versions::Both`] | begins with version 2; changes to version 1, on the same connection, if the server answers that it has it ([`Event::FellBack`]) | uses the version of the first message that is one of the two |
//!
//! Each message is first offered to version 2, so that version 2 costs the same as without version 1. Only if the
//! connection is not one of version 2, version 1 is asked.

mod chunks_at;

pub use chunks_at::{ChunksAt, chunks_of};

use crate::chunks::{ChunkLists, EncodeChunkLists, ListSpans};
use crate::cm_private_data::PrivateData;
use crate::common::CommonPrefix;
use crate::constants::{
    COMMON_PREFIX_BYTES, RPCRDMA_VERSION_1, RPCRDMA_VERSION_2, V1_HEADER_BYTES_WITHOUT_CHUNKS,
    V2_HEADER_BYTES_WITHOUT_CHUNKS, V2_PREFIX_BYTES,
};
use crate::form::{Form, may_have_form};
use crate::v1;
use crate::v2::connection::{
    self as v2, CreditView, Direction, Event, Phase, Refusal, Role, SendRefused, Tick,
    TransmissionHeading, WholeMessage,
};
use crate::v2::{ErrVers, Properties, ReverseRequestSupport, TransportError};

/// Where the chunk lists of version 2 begin: behind the prefix and the handle that the reply may invalidate.
const V2_LISTS_AT: usize = V2_PREFIX_BYTES + 4;

/// A received Send, sorted by how it has to be handled ([`Connection::receive`]).
#[derive(Debug)]
pub enum Received<'m> {
    /// An RPC message without chunks.
    Whole(WholeMessage<'m>),
    /// A call with chunks; their contents are still to be read.
    ChunkedCall {
        /// Its XID.
        xid: u32,
        /// The end of the message: the payload stream; empty if a Position-Zero Read chunk has it.
        payload: &'m [u8],
        /// Where its chunks are.
        chunks_at: ChunksAt,
    },
    /// A reply with chunks.
    ChunkedReply {
        /// Its XID.
        xid: u32,
        /// The payload stream; empty if it was written to the Reply chunk.
        payload: &'m [u8],
        /// Where its chunks are.
        chunks_at: ChunksAt,
    },
    /// A transmission of the extension RTR.
    Transmission(TransmissionHeading),
    /// Anything else: parts of messages, properties, grants, errors, and wrong messages. Never one of the events above.
    Other {
        /// The event.
        event: Event<'m>,
        /// The message.
        message: &'m [u8],
        /// Whether it ended a transmission group that was open, unfinished.
        gives_group_up: bool,
    },
}

/// The versions that an end may use on a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Versions {
    /// Version 1 alone.
    One,
    /// Version 2 alone.
    #[default]
    Two,
    /// Either: a client asks for version 2 first, a server takes what the client begins with.
    Both,
}

/// What the two ends exchanged when the connection was made; version 1 takes its limits from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// The versions that may be used.
    pub versions: Versions,
    /// The private data of this end.
    pub own: PrivateData,
    /// The private data of the peer; the default if it sent none.
    pub peer: PrivateData,
}

/// A connection of either version. See the module.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct Connection {
    v2: v2::Connection,
    v1: Option<v1::connection::Connection>,
    terms: Terms,
}

impl Connection {
    /// A new connection: `config.receive_reserve` Receives are posted, no message was sent or received.
    ///
    /// # Panics
    /// As [`v2::Connection::new`].
    #[must_use]
    pub fn new(config: &v2::Config, terms: &Terms) -> Self {
        let mut connection = Self {
            v2: v2::Connection::new(config),
            v1: None,
            terms: *terms,
        };
        if terms.versions == Versions::One {
            connection.begin_version_1();
        }
        connection
    }

    // ---- Versions ----

    /// The version of the connection: `None` until it is agreed. An end that supports only version 1 returns that from
    /// the start.
    #[must_use]
    pub const fn version(&self) -> Option<u32> {
        match (self.v2.phase(), &self.v1) {
            (_, Some(_)) => Some(RPCRDMA_VERSION_1),
            (Phase::Established, None) => Some(RPCRDMA_VERSION_2),
            _ => None,
        }
    }

    /// Whether it uses version 1.
    #[inline]
    #[must_use]
    pub const fn is_version_1(&self) -> bool {
        matches!(self.v2.phase(), Phase::Mismatched) && self.v1.is_some()
    }

    /// The state of version 2, for what version 1 lacks: properties, grants, continued messages, and the extension RTR.
    /// On a connection of version 1 none of them is active, and encoding them is refused with [`SendRefused::Over`].
    #[inline]
    #[must_use]
    pub const fn version_2(&self) -> &v2::Connection {
        &self.v2
    }

    /// As [`version_2`](Self::version_2), to encode and to configure. What was received or has completed goes to the
    /// methods of this type, which know the version.
    #[inline]
    pub const fn version_2_mut(&mut self) -> &mut v2::Connection {
        &mut self.v2
    }

    /// Whether `message` is of version 1 and the connection is, or becomes with it, one of version 1.
    #[must_use]
    pub fn begins_version_1(&self, message: &[u8]) -> bool {
        let version = CommonPrefix::peek(message).map(|prefix| prefix.version);
        let is_open = self.v2.phase() == Phase::ServerStart;
        let may_be = is_open && self.terms.versions == Versions::Both;
        version == Some(RPCRDMA_VERSION_1) && (may_be || self.v1.is_some())
    }

    /// Makes it a connection of version 1, unless it is one of version 2 already: nothing of version 2 is sent or
    /// received from now on. [`handle_message`](Self::handle_message) does so itself.
    pub fn begin_version_1(&mut self) {
        if self.v1.is_some() {
            return;
        }
        if self.v2.phase() != Phase::Mismatched && !self.v2.handle_other_version_chosen() {
            return;
        }
        self.v1 = Some(self.version_1());
    }

    /// A new state of version 1, with the Receives that the connection has.
    fn version_1(&self) -> v1::connection::Connection {
        let credits = self.v2.credits();
        let narrow = |count| u16::try_from(count).unwrap_or(u16::MAX);
        let reserve = credits.receives_reserved;
        v1::connection::Connection::new(&v1::connection::Config {
            role: self.v2.role(),
            receive_reserve: narrow(reserve),
            receives_taken: narrow(reserve.saturating_sub(credits.receives_posted)),
            own: self.terms.own,
            peer: self.terms.peer,
            reverse_requests: self.v2.properties().reverse_requests,
        })
    }

    // ---- What happened ----

    /// Sorts one received Send by how it has to be handled. Sends have to be passed in order.
    ///
    /// It has `message_bytes` octets; `first` are those in one piece. `head` is called if these are not enough, and
    /// returns more in one piece: all, or, of a transmission of the extension RTR, at least header and payload stream
    /// ([`transmission_head_bytes`](crate::v2::transmission_head_bytes)).
    ///
    /// On a hot path, find the [form](crate::form::fold) of the message, and call [`receive_form`](Self::receive_form) first.
    #[inline]
    pub fn receive<'m>(
        &mut self,
        first: &'m [u8],
        message_bytes: usize,
        head: impl FnOnce() -> &'m [u8],
    ) -> Received<'m> {
        let mut message = first;
        let is_longer = message_bytes > first.len();
        // A transmission with the header of the previous one needs no further check of its items.
        if (is_longer || !may_have_form(first))
            && let Some(heading) = self.v2.handle_like_last(first, message_bytes)
        {
            return Received::Transmission(heading);
        }
        if is_longer {
            message = head();
        }
        if may_have_form(message)
            && let Some(whole) = self.v2.handle_whole_message(message)
        {
            return Received::Whole(whole);
        }
        self.receive_any(message, message_bytes)
    }

    /// As [`receive`](Self::receive), for a message of a [form](crate::form) with this credit word. Its Receive counts as posted
    /// again; if it is kept, call [`handle_form_kept`](Self::handle_form_kept). `false`, without any change, if the message is
    /// not to be taken so: as octets it goes to that function, which says why.
    #[inline]
    #[must_use]
    pub fn receive_form(&mut self, form: Form, credit: u32) -> bool {
        if form.is_version_1() {
            return self.v1_form(form.direction(), credit);
        }
        self.v2.handle_form(form.direction(), credit)
    }

    /// Notes that the Receive of the last message that [`receive_form`](Self::receive_form) took is not posted again yet.
    #[cold]
    pub fn handle_form_kept(&mut self) {
        match &mut self.v1 {
            Some(v1) if matches!(self.v2.phase(), Phase::Mismatched) => v1.handle_form_kept(),
            _ => self.v2.handle_form_kept(),
        }
    }

    #[inline(never)]
    fn v1_form(&mut self, direction: Direction, credit: u32) -> bool {
        match &mut self.v1 {
            Some(v1) => v1.handle_form(direction, credit),
            None => false,
        }
    }

    #[inline(never)]
    fn receive_any<'m>(&mut self, message: &'m [u8], message_bytes: usize) -> Received<'m> {
        let was_group_open = self.v2.is_group_open();
        // Nearly all messages in one piece that come here have chunks: try that first.
        let chunked = match message_bytes == message.len() {
            true => self.v2.handle_chunked_message(message),
            false => None,
        };
        let event = match chunked {
            Some(event) => event,
            None => self.handle_transmission(message, message_bytes),
        };
        match event {
            Event::Transmission(it) => {
                let number = self.v2.header_number(it.id.direction);
                Received::Transmission(it.heading(number))
            }
            Event::Call {
                xid,
                payload,
                chunks,
                invalidate_handle,
            } => self.sorted(Direction::Call, xid, payload, &chunks, invalidate_handle),
            Event::Reply {
                xid,
                payload,
                chunks,
                invalidate_handle,
            } => self.sorted(Direction::Reply, xid, payload, &chunks, invalidate_handle),
            event => Received::Other {
                event,
                message,
                gives_group_up: was_group_open && !self.v2.is_group_open(),
            },
        }
    }

    /// Sorts a whole RPC message, and keeps the places of its chunks, so that they are decoded only once.
    #[inline]
    fn sorted<'m>(
        &self,
        direction: Direction,
        xid: u32,
        payload: &'m [u8],
        chunks: &ChunkLists<'_>,
        invalidate_handle: u32,
    ) -> Received<'m> {
        if chunks.are_empty() {
            return Received::Whole(WholeMessage {
                direction,
                xid,
                payload,
                invalidate_handle,
            });
        }
        let chunks_at = match &self.v1 {
            Some(_) => ChunksAt {
                inv_handle: v1::connection::only_handle(chunks),
                spans: ListSpans::of(chunks, COMMON_PREFIX_BYTES),
            },
            None => ChunksAt {
                inv_handle: invalidate_handle,
                spans: ListSpans::of(chunks, V2_LISTS_AT),
            },
        };
        match direction {
            Direction::Call => Received::ChunkedCall {
                xid,
                payload,
                chunks_at,
            },
            Direction::Reply => Received::ChunkedReply {
                xid,
                payload,
                chunks_at,
            },
        }
    }

    /// As [`receive`](Self::receive), for a message in one piece, not sorted.
    pub fn handle_message<'m>(&mut self, message: &'m [u8]) -> Event<'m> {
        self.handle_transmission(message, message.len())
    }

    fn handle_transmission<'m>(&mut self, head: &'m [u8], message_bytes: usize) -> Event<'m> {
        if self.begins_version_1(head) {
            self.begin_version_1();
        }
        if let Some(v1) = &mut self.v1 {
            return v1.handle_message(head);
        }
        let event = self.v2.handle_transmission(head, message_bytes);
        if self.terms.versions != Versions::Both {
            return event;
        }
        match event {
            Event::VersionMismatch { low, high } if (low..=high).contains(&RPCRDMA_VERSION_1) => {
                self.begin_version_1();
                Event::FellBack
            }
            Event::Refused(
                refusal @ Refusal {
                    error: TransportError::Vers(_),
                    ..
                },
            ) => Event::Refused(Refusal {
                error: TransportError::Vers(ErrVers {
                    low: RPCRDMA_VERSION_1,
                    high: RPCRDMA_VERSION_2,
                }),
                ..refusal
            }),
            event => event,
        }
    }

    /// As [`v2::Connection::handle_receives_posted`].
    #[inline]
    pub fn handle_receives_posted(&mut self, count: u16) {
        if self.is_version_1() {
            return self.v1_receives_posted(count);
        }
        self.v2.handle_receives_posted(count);
    }

    #[cold]
    fn v1_receives_posted(&mut self, count: u16) {
        if let Some(v1) = &mut self.v1 {
            v1.handle_receives_posted(count);
        }
    }

    /// As [`v2::Connection::raise_credit_limit`]. In version 1 a server grants as many more calls, and a client asks
    /// for as many more.
    pub fn raise_credit_limit(&mut self, limit: u16) -> u16 {
        let added = self.v2.raise_credit_limit(limit);
        if let Some(v1) = &mut self.v1 {
            v1.handle_receives_added(added);
        }
        added
    }

    /// As [`v2::Connection::lower_credit_limit`]. In version 1 the limit is never lowered after the first message, and
    /// this returns 0 then.
    pub fn lower_credit_limit(&mut self, limit: u16) -> u16 {
        if let Some(v1) = &self.v1
            && (v1.received_total(), v1.sent_total(), self.messages_passed()) != (0, 0, (0, 0))
        {
            return 0;
        }
        let taken = self.v2.lower_credit_limit(limit);
        if self.v1.is_some() {
            self.v1 = Some(self.version_1());
        }
        taken
    }

    /// As [`v2::Connection::handle_peer_properties`].
    pub fn handle_peer_properties(&mut self, peer: &Properties) {
        self.v2.handle_peer_properties(peer);
    }

    /// As [`v2::Connection::handle_tick`]; version 1 has no message that could keep a connection alive.
    pub fn handle_tick(&mut self, silent_ticks_max: u8) -> Tick {
        self.v2.handle_tick(silent_ticks_max)
    }

    // ---- What may be sent ----

    /// Messages that may be sent now, grants apart; in version 1, where replies need no credit of their own
    /// ([`credits_for_replies`](Self::credits_for_replies)), calls.
    #[inline]
    #[must_use]
    pub fn credits_available(&self) -> u32 {
        if self.is_version_1() {
            return self.v1_calls();
        }
        self.v2.credits_available()
    }

    #[cold]
    fn v1_calls(&self) -> u32 {
        let v1 = self.v1.as_ref();
        v1.map_or(0, v1::connection::Connection::calls_available)
    }

    /// Replies of one message that may be sent now. In version 1 each call has brought the credit for its own, so that
    /// it is all or none of them.
    #[inline]
    #[must_use]
    pub fn credits_for_replies(&self) -> u32 {
        if self.is_version_1() {
            return self.v1_replies();
        }
        self.v2.credits_available()
    }

    #[cold]
    fn v1_replies(&self) -> u32 {
        match &self.v1 {
            Some(v1) if v1.may_reply() => v1.granted(),
            _ => 0,
        }
    }

    /// The longest message that may be sent, in octets, header included.
    #[inline]
    #[must_use]
    pub const fn send_threshold_bytes(&self) -> u32 {
        // In this order, so that a connection of version 2 does not read the state of version 1.
        if self.is_version_1()
            && let Some(v1) = &self.v1
        {
            return v1.send_threshold_bytes();
        }
        self.v2.send_threshold_bytes()
    }

    /// The longest message that the peer may send, likewise.
    #[must_use]
    pub const fn receive_threshold_bytes(&self) -> u32 {
        match &self.v1 {
            Some(v1) => v1.receive_threshold_bytes(),
            None => self.v2.properties().receive_buffer_bytes,
        }
    }

    /// Octets of payload of the next message when `remaining` octets of an RPC message are left, and messages are
    /// encoded in `space_bytes` octets ([`v2::Connection::fragment_bytes_within`]). Version 1 has no continued
    /// messages: all of them; check with [`fits_in_one_message`](Self::fits_in_one_message) whether they fit.
    #[must_use]
    pub fn fragment_bytes_within(&self, remaining: usize, space_bytes: usize) -> usize {
        if self.is_version_1() {
            return remaining;
        }
        self.v2.fragment_bytes_within(remaining, space_bytes)
    }

    /// Whether an RPC message of `rpc_bytes` octets can be sent without chunks. In version 2 any can, in as many
    /// messages as necessary.
    #[must_use]
    pub fn can_send_without_chunks(&self, rpc_bytes: usize) -> bool {
        self.fits_in_one_message(rpc_bytes, 0) || !self.is_version_1()
    }

    /// Whether an RPC message of `rpc_bytes` octets fits into one message, with chunk lists that take `list_bytes` more
    /// octets than empty ones.
    #[must_use]
    pub fn fits_in_one_message(&self, rpc_bytes: usize, list_bytes: usize) -> bool {
        let header_bytes = if self.is_version_1() {
            V1_HEADER_BYTES_WITHOUT_CHUNKS
        } else {
            V2_HEADER_BYTES_WITHOUT_CHUNKS
        };
        let message_bytes = header_bytes.saturating_add(rpc_bytes);
        let message_bytes = message_bytes.saturating_add(list_bytes);
        u32::try_from(message_bytes).is_ok_and(|bytes| bytes <= self.send_threshold_bytes())
    }

    /// As [`v2::Connection::grant_due`]; in version 1 only replies grant.
    #[inline]
    #[must_use]
    pub fn grant_due(&self) -> bool {
        self.v2.grant_due()
    }

    /// As [`v2::Connection::encode_message`]. Returns the octets of the header.
    ///
    /// # Errors
    /// As there; `TooLong` for a message that continues in version 1.
    #[inline]
    pub fn encode_message(
        &mut self,
        out: &mut [u8],
        xid: u32,
        direction: Direction,
        more: bool,
        payload_bytes: usize,
    ) -> Result<usize, SendRefused> {
        if self.is_version_1() {
            return self.encode_v1_message(out, xid, direction, more, payload_bytes);
        }
        self.v2
            .encode_message(out, xid, direction, more, payload_bytes)
    }

    /// The credit word of a message of this form, which has the version of the connection, with `message_bytes` octets: it may
    /// be sent now. `None` if it may not be sent so, or no more than `kept` credits are left:
    /// [`encode_message`](Self::encode_message) says why, or encodes it.
    #[inline(always)]
    #[must_use]
    pub fn credit_for_form(&self, form: Form, message_bytes: usize, kept: u32) -> Option<u32> {
        let direction = form.direction();
        if form.is_version_1() {
            let v1 = self.v1.as_ref()?;
            return v1.credit_for_form(direction, message_bytes, kept);
        }
        self.v2.credit_for_form(direction, message_bytes, kept)
    }

    /// Notes that a message of this form was sent, with the `credit` word of [`credit_for_form`](Self::credit_for_form), since
    /// which nothing has happened.
    #[inline]
    pub fn handle_form_sent(&mut self, form: Form, credit: u32) {
        if !form.is_version_1() {
            return self.v2.handle_form_sent(credit);
        }
        if let Some(v1) = &mut self.v1 {
            v1.handle_form_sent(form.direction());
        }
    }

    #[cold]
    fn encode_v1_message(
        &mut self,
        out: &mut [u8],
        xid: u32,
        direction: Direction,
        more: bool,
        payload_bytes: usize,
    ) -> Result<usize, SendRefused> {
        match &mut self.v1 {
            Some(_) if more => Err(SendRefused::TooLong),
            Some(v1) => v1.encode_message(out, xid, direction, payload_bytes),
            None => Err(SendRefused::Over),
        }
    }

    /// As [`v2::Connection::encode_message_with_chunks`]. Version 1 has no field for `invalidate_handle`: its responder
    /// derives the handle from the chunks ([`v1::connection::only_handle`]).
    ///
    /// # Errors
    /// As there.
    pub fn encode_message_with_chunks(
        &mut self,
        out: &mut [u8],
        xid: u32,
        direction: Direction,
        invalidate_handle: u32,
        chunks: &impl EncodeChunkLists,
        payload_bytes: usize,
    ) -> Result<usize, SendRefused> {
        match &mut self.v1 {
            Some(v1) => v1.encode_message_with_chunks(out, xid, direction, chunks, payload_bytes),
            None => self.v2.encode_message_with_chunks(
                out,
                xid,
                direction,
                invalidate_handle,
                chunks,
                payload_bytes,
            ),
        }
    }

    /// As [`v2::Connection::encode_long_message`].
    ///
    /// # Errors
    /// As there.
    pub fn encode_long_message(
        &mut self,
        out: &mut [u8],
        xid: u32,
        direction: Direction,
        invalidate_handle: u32,
        chunks: &impl EncodeChunkLists,
    ) -> Result<usize, SendRefused> {
        match &mut self.v1 {
            Some(v1) => v1.encode_long_message(out, xid, direction, chunks),
            None => self
                .v2
                .encode_long_message(out, xid, direction, invalidate_handle, chunks),
        }
    }

    /// As [`v2::Connection::encode_error`].
    ///
    /// # Errors
    /// As there.
    pub fn encode_error(
        &mut self,
        out: &mut [u8],
        refusal: &Refusal,
    ) -> Result<usize, SendRefused> {
        match &mut self.v1 {
            Some(v1) => v1.encode_error(out, refusal),
            None => self.v2.encode_error(out, refusal),
        }
    }

    // ---- What it is ----

    /// Which end this is.
    #[inline]
    #[must_use]
    pub const fn role(&self) -> Role {
        self.v2.role()
    }

    /// Our own transport properties.
    #[inline]
    #[must_use]
    pub const fn properties(&self) -> &Properties {
        self.v2.properties()
    }

    /// Which calls of ours may be sent.
    #[inline]
    #[must_use]
    pub const fn own_calls(&self) -> ReverseRequestSupport {
        if self.is_version_1()
            && let Some(v1) = &self.v1
        {
            return v1.own_calls();
        }
        self.v2.own_calls()
    }

    /// Which calls of the peer this end accepts.
    #[must_use]
    pub const fn peer_calls(&self) -> ReverseRequestSupport {
        match &self.v1 {
            Some(v1) => v1.peer_calls(),
            None => self.v2.peer_calls(),
        }
    }

    /// Whether a reply may invalidate the handle that [`chunks_of`] returns for its call.
    #[must_use]
    pub const fn may_invalidate(&self) -> bool {
        match &self.v1 {
            Some(v1) => v1.may_invalidate(),
            None => true,
        }
    }

    /// The credit counters of version 2.
    #[must_use]
    pub fn credits(&self) -> CreditView {
        self.v2.credits()
    }

    /// Credits that the peer has: in version 1 those that every reply grants, in version 2 those that it has not used
    /// in messages that were handled.
    #[must_use]
    pub fn credits_granted(&self) -> u32 {
        match &self.v1 {
            Some(v1) if self.is_version_1() => v1.granted(),
            _ => self.v2.credits().unconsumed(),
        }
    }

    /// Messages received and sent, grants apart, modulo 2^32.
    #[must_use]
    pub fn messages_passed(&self) -> (u32, u32) {
        let credits = self.v2.credits();
        let (received, sent) = match &self.v1 {
            Some(v1) => (v1.received_total(), v1.sent_total()),
            None => (0, 0),
        };
        (
            credits.consumed_total.wrapping_add(received),
            credits.sent_total.wrapping_add(sent),
        )
    }

    /// Whether this end has begun to send and has received no message of the version in use: the peer may not have seen
    /// the first message.
    #[must_use]
    pub fn awaits_first_answer(&self) -> bool {
        match &self.v1 {
            Some(v1) if self.is_version_1() => v1.sent_total() != 0 && v1.received_total() == 0,
            _ => self.v2.phase() == Phase::ClientWaiting,
        }
    }

    /// As [`v1::connection::Connection::calls_beyond_grant_total`]; in version 2 a message beyond what was granted
    /// closes the connection.
    #[must_use]
    pub fn calls_beyond_grant_total(&self) -> u32 {
        let v1 = self.v1.as_ref();
        v1.map_or(0, v1::connection::Connection::calls_beyond_grant_total)
    }
}
