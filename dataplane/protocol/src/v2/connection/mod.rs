//! The state machine of one version 2 connection: credits, version, thresholds and continued messages, without any I/O.
//!
//! [`Connection`] decides what may be sent and interprets received messages; bytes and events are its arguments. It
//! allocates nothing, reads no clock, and keeps no payload.
//!
//! # The order of calls
//!
//! 1. Post `receive_reserve` Receives, then [`Connection::new`].
//! 2. For each received Send, in order, [`handle_message`](Connection::handle_message) once; act on the
//!    [`Event`]. Or, on a hot path, first [`handle_whole_message`](Connection::handle_whole_message) or
//!    [`handle_like_last`](Connection::handle_like_last), and the other only if that returned `None`.
//! 3. For each Receive that is posted again in place of one that a message of this connection used,
//!    [`handle_receives_posted`](Connection::handle_receives_posted), whatever the message was. A Receive is posted
//!    *before* it is reported, and reported before the message is sent that grants it.
//! 4. After 2 or 3, check [`credits_available`](Connection::credits_available) for waiting messages, and encode them
//!    with an `encode_…` function. On `Ok` the message *must* be sent, in the order in which the messages were encoded;
//!    on `Err` nothing has changed.
//! 5. After that, if [`grant_due`](Connection::grant_due), send an
//!    [`encode_grant`](Connection::encode_grant). Every other message, except an error, grants what is owed, so a grant
//!    is due only when there is nothing else to send.
//! 6. On each keep-alive tick, [`handle_tick`](Connection::handle_tick).
//!
//! The accounting of credits, with its invariant, is in the `credits` module next to this one; the tables of states
//! and events are in `phase`, `continued_messages` and `group`; `reverse` decides which calls the server may make.
//!
//! # What a receiver does about wrong messages
//!
//! -00 section 6.4.3 makes a responder answer with RDMA2_ERROR, and forbids that to a requester. So F_RESPONSE decides:
//! a wrong message without it, and any wrong CONNPROP, is [`Event::Refused`]; one with it is
//! [`Event::Close`], but a reply that only contradicts its header is dropped. An RDMA2_ERROR is never answered with
//! another.
//!
//! # Header types of the application
//!
//! A message of a type in [`Connection::set_header_types`] is returned as [`Event::ApplicationMessage`]. Its sender and
//! receiver agree on its contents; credits, version and flags are as in any message. It is one Send: F_MORE is
//! RDMA2_ERR_INVAL_FLAG, and it may not come inside a continued message or a transmission group.
//!
//! # The extension RTR
//!
//! Its messages are accepted if our properties announce them ([`Properties::rtr_support`]), and sent if the peer's
//! do too. An RPC message is then one [`Transmission`] or several: see [`Event::Transmission`]. An error of a
//! group as such is answered by a Report Error, in either direction; an error of a header as above.

mod continued_messages;
mod credits;
mod event;
mod group;
mod header_cache;
mod phase;
mod receive;
mod receive_rtr;
mod reverse;
mod send;
mod send_rtr;

use crate::constants::{
    RBSIZ_DEFAULT_BYTES, RTR_TRANSMISSIONS_DEFAULT, RTR_TRANSMISSIONS_MAX,
    V1_INLINE_THRESHOLD_DEFAULT_BYTES, V2_FIRST_MESSAGE_BYTES_MAX, V2_HEADER_BYTES_WITHOUT_CHUNKS,
};
use crate::v2::application::ApplicationHeaderTypes;
use crate::v2::properties::{Properties, ReverseRequestSupport};
use crate::v2::rtr::RtrSupport;
use crate::v2::rtr::item_checks::Expectations;
use continued_messages::{Inbound, Outbound};
use credits::Credits;
use header_cache::HeaderCache;
use reverse::Calls;

pub use crate::rpc::Direction;
pub use credits::CreditView;
pub use event::{
    CloseReason, Config, DiscardReason, Event, Refusal, Role, SendRefused, Tick, Transmission,
    TransmissionHeading, TransmissionPart, TransmissionRefusal, Unfinished, WholeMessage,
    rpc_start_matches,
};
pub use phase::{IllegalEvent, Phase, PhaseEvent};

/// The minimum of our send size and of a peer's receive buffer size, in octets: the first message of a connection may
/// have this length (-00 section 4.3.3).
const SEND_BYTES_LEAST: u32 = V1_INLINE_THRESHOLD_DEFAULT_BYTES;

/// The versions in the ERR_VERS of a server that supports only version 2.
const VERSIONS_SUPPORTED: crate::v2::ErrVers = crate::v2::ErrVers {
    low: crate::constants::RPCRDMA_VERSION_2,
    high: crate::constants::RPCRDMA_VERSION_2,
};

/// One version 2 connection. See the module for the order of calls.
///
/// The fields that every message touches come first, so that they are in as few cache lines as possible.
///
/// # Example
/// ```
/// use rpcrdma_protocol::v2::Properties;
/// use rpcrdma_protocol::v2::connection::{Config, Connection, Direction, Event, Role};
///
/// let properties = Properties::default();
/// let config = |role| Config { role, receive_reserve: 8, properties, message_bytes_max: 1 << 20 };
/// let [mut client, mut server] = [Role::Client, Role::Server].map(|role| Connection::new(&config(role)));
/// let mut call = [0; 48];
/// let at = client.encode_message(&mut call, 7, Direction::Call, false, 12)?;
/// call[at..].copy_from_slice(b"\0\0\0\x07\0\0\0\0rest");
/// assert!(matches!(server.handle_message(&call), Event::Call { xid: 7, .. }));
/// server.handle_receives_posted(1);
/// // The call has brought six credits beside the implicit one; the client waits for those of the reply.
/// assert_eq!((server.credits_available(), client.credits_available()), (7, 0));
/// # Ok::<(), rpcrdma_protocol::v2::connection::SendRefused>(())
/// ```
#[derive(Clone, Debug)]
#[repr(C)]
pub struct Connection {
    credits: Credits,
    phase: Phase,
    role: Role,
    calls: Calls,
    draining: bool,
    keep_alive_due: bool,
    /// An asynchronous grant, or a message that used no credit, came since the last tick.
    heard_uncounted: bool,
    /// The same since our latest asynchronous grant.
    heard_uncounted_since_async: bool,
    /// An asynchronous grant that was no keep-alive was sent since the last tick.
    sent_async: bool,
    silent_ticks: u8,
    inbound: Inbound,
    outbound: Outbound,
    group: group::Inbound,
    group_outbound: group::Outbound,
    send_threshold_bytes: u32,
    peer_receive_bytes: u32,
    message_bytes_max: u32,
    /// The counter as it was when our latest asynchronous grant was sent.
    consumed_at_async: u32,
    peer_rtr_support: RtrSupport,
    /// The most transmissions of a call that the peer receives.
    peer_request_transmissions_max: u32,
    properties: Properties,
    /// The counters as they were at the last tick.
    ticked_consumed: u32,
    ticked_sent: u32,
    /// What the items of the incoming group require of its later transmissions.
    expectations: Expectations,
    /// The latest groups of one transmission: of calls, and of replies.
    remembered: [HeaderCache; 2],
    /// Header types that are not refused as unknown.
    header_types: ApplicationHeaderTypes,
}

impl Connection {
    /// A new connection: `receive_reserve` Receives are posted, no message was sent or received.
    ///
    /// # Panics
    /// When the reserve is below 2, the own send size below 1024 octets, the receive buffer structure not as long as
    /// the receive buffer size, or when we receive calls of no transmission or of more than `RTR_TRANSMISSIONS_MAX`:
    /// the profile is wrong.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        assert!(
            config.receive_reserve >= 2,
            "a connection needs a Receive for a message and a spare one"
        );
        assert!(
            config.properties.send_bytes_max >= SEND_BYTES_LEAST,
            "a send size below 1024 octets does not carry the first message"
        );
        assert_eq!(
            config.properties.receive_structure().length_bytes(),
            config.properties.receive_buffer_bytes.max(1),
            "the receive buffer structure has the octets of the receive buffer size"
        );
        let transmissions_max = usize::try_from(config.properties.request_transmissions_max);
        assert!(
            transmissions_max.is_ok_and(|most| (1..=RTR_TRANSMISSIONS_MAX).contains(&most)),
            "a call has at least one transmission, and what its items ask of each is remembered"
        );
        let mut connection = Self {
            credits: Credits::new(config.receive_reserve),
            phase: match config.role {
                Role::Client => Phase::ClientStart,
                Role::Server => Phase::ServerStart,
            },
            role: config.role,
            calls: Calls::new(config.role, config.properties.reverse_requests),
            draining: false,
            keep_alive_due: false,
            heard_uncounted: false,
            heard_uncounted_since_async: false,
            sent_async: false,
            silent_ticks: 0,
            inbound: Inbound::IDLE,
            outbound: Outbound::default(),
            group: group::Inbound::IDLE,
            group_outbound: group::Outbound::default(),
            send_threshold_bytes: 0,
            peer_receive_bytes: RBSIZ_DEFAULT_BYTES,
            message_bytes_max: config.message_bytes_max,
            ticked_consumed: 0,
            ticked_sent: 0,
            consumed_at_async: 0,
            properties: config.properties,
            expectations: Expectations::NONE,
            remembered: [HeaderCache::NONE; 2],
            header_types: ApplicationHeaderTypes::NONE,
            peer_rtr_support: RtrSupport::NONE,
            peer_request_transmissions_max: RTR_TRANSMISSIONS_DEFAULT,
        };
        connection.set_threshold();
        connection
    }

    /// The header types of the application, which are received and may be sent from now on; none at first.
    pub fn set_header_types(&mut self, header_types: ApplicationHeaderTypes) {
        self.header_types = header_types;
    }

    // ---- What happened ----

    /// Notes that Receives were posted in place of those that messages of this connection used: except for the spare,
    /// they are granted with the next message.
    #[inline]
    pub fn handle_receives_posted(&mut self, count: u16) {
        self.credits.receives_posted(count);
    }

    /// Raises the credit limit of the peer, to the window at most. Returns how many Receives the connection gains: the
    /// caller has posted as many and assigned them to no connection. The next message grants them.
    pub fn raise_credit_limit(&mut self, limit: u16) -> u16 {
        self.credits.raise_limit(limit)
    }

    /// Lowers the credit limit of the peer, to 1 at least. Returns how many posted Receives the connection loses.
    /// Granted credits stay: the peer may have more than the limit until it has used them, and a later call with the
    /// same limit returns their Receives.
    ///
    /// The limit of a new connection is its window. Lowered before the first message, it bounds the first grant, too.
    pub fn lower_credit_limit(&mut self, limit: u16) -> u16 {
        self.credits.lower_limit(limit)
    }

    /// Applies the peer's properties, which the control plane accepted (-00 section 5.2). They set the send threshold:
    /// the smaller of the peer's receive buffer size and our send size. A buffer size below 1024 octets, with which no
    /// connection can begin, counts as 1024. They also decide what may be sent of the extension RTR, and which calls a
    /// server may make.
    pub fn handle_peer_properties(&mut self, peer: &Properties) {
        self.peer_receive_bytes = peer.receive_buffer_bytes.max(SEND_BYTES_LEAST);
        let announced = self.properties.reverse_requests;
        self.calls
            .settle(self.role, announced, peer.reverse_requests);
        self.peer_rtr_support = peer.rtr_support;
        self.peer_request_transmissions_max = peer.request_transmissions_max;
        self.set_threshold();
    }

    /// Sends no new calls from now on. Replies, parts of a call that has begun, and received messages are not affected.
    pub fn handle_drain(&mut self) {
        self.draining = true;
    }

    /// Handles the end of a keep-alive interval. Intervals are much longer than a message and the posting of its
    /// Receive take; `silent_ticks_max` of them in a row without any message mean that the peer is dead.
    ///
    /// An end that sent nothing for an interval sends an asynchronous grant, provided that it received something since
    /// its last one: so the two ends take turns, each at its own tick. A connection never falls silent while both ends
    /// live, each end hears the other at least at every second tick, and keep-alives do not use up the Receives of a
    /// peer that is stopped. `silent_ticks_max` has to be at least 3 for that.
    pub fn handle_tick(&mut self, silent_ticks_max: u8) -> Tick {
        let heard = self.heard_uncounted || self.credits.consumed_total() != self.ticked_consumed;
        let sent = self.sent_async || self.credits.sent_total() != self.ticked_sent;
        self.heard_uncounted = false;
        self.sent_async = false;
        self.ticked_consumed = self.credits.consumed_total();
        self.ticked_sent = self.credits.sent_total();
        self.silent_ticks = if heard {
            0
        } else {
            self.silent_ticks.saturating_add(1)
        };
        if self.phase.is_over() || self.phase == Phase::ServerStart {
            return Tick::Quiet;
        }
        if self.silent_ticks >= silent_ticks_max {
            return Tick::PeerSilent;
        }
        let heard_since_async = self.heard_uncounted_since_async
            || self.credits.consumed_total() != self.consumed_at_async;
        // A grant that waits for the arrival of an earlier one is sent as well: after an interval that has arrived.
        self.keep_alive_due = self.phase == Phase::Established
            && !sent
            && (heard_since_async || self.credits.owed() > 0 || self.async_may_be_sent());
        if self.keep_alive_due {
            Tick::SendKeepAlive
        } else {
            Tick::Quiet
        }
    }

    /// Ends this state because the connection uses another version, which has to be chosen before anything was sent or
    /// received here. False, without any change, when it is too late for that.
    #[must_use]
    pub fn handle_other_version_chosen(&mut self) -> bool {
        self.advance(PhaseEvent::OtherVersionChosen).is_ok()
    }

    // ---- What may be sent ----

    /// Messages, grants apart, that may be sent now. For a client that has sent nothing it is 1, then 0 until the
    /// server has granted more (-00 section 4.3.3).
    #[inline]
    #[must_use]
    pub fn credits_available(&self) -> u32 {
        if self.phase == Phase::Established || self.phase.is_opening() {
            self.credits.available()
        } else {
            0
        }
    }

    /// The longest message that may be sent, in octets, header included: 1024 for a client until the server has
    /// sent a version 2 message, then the smaller of the peer's receive buffer size (4096 until it announces another)
    /// and our send size (-00 sections 4.3.2 and 4.3.3).
    #[inline]
    #[must_use]
    pub const fn send_threshold_bytes(&self) -> u32 {
        self.send_threshold_bytes
    }

    /// Octets of payload of the next message when `remaining` octets of an RPC message are left: all of them if they
    /// fit, otherwise as many as fill the message and leave enough for another one.
    #[must_use]
    pub fn fragment_bytes(&self, remaining: usize) -> usize {
        self.fragment_bytes_within(remaining, usize::MAX)
    }

    /// As [`fragment_bytes`](Self::fragment_bytes), if messages with payload are encoded in `space_bytes`
    /// octets, at least 1024.
    #[must_use]
    pub fn fragment_bytes_within(&self, remaining: usize, space_bytes: usize) -> usize {
        let threshold = usize::try_from(self.send_threshold_bytes).unwrap_or(usize::MAX);
        let threshold = threshold.min(space_bytes.max(V2_FIRST_MESSAGE_BYTES_MAX));
        let room = threshold - V2_HEADER_BYTES_WITHOUT_CHUNKS;
        if remaining <= room {
            return remaining;
        }
        let whole_words = room & !3;
        // The last part needs at least one word, or its receiver would discard it as too short.
        if remaining - whole_words < 4 {
            whole_words - 4
        } else {
            whole_words
        }
    }

    /// Which calls of ours may be sent: as the client all, as the server those that both ends are ready for.
    #[inline]
    #[must_use]
    pub const fn own_calls(&self) -> ReverseRequestSupport {
        self.calls.own
    }

    /// Which calls of the peer this end accepts: as the server all, as the client those that our properties announce.
    #[inline]
    #[must_use]
    pub const fn peer_calls(&self) -> ReverseRequestSupport {
        self.calls.peer
    }

    /// Whether an asynchronous grant is due: the peer has used at least half of the credits that it may have, there are
    /// posted Receives to grant, and a grant may be sent.
    #[inline]
    #[must_use]
    pub fn grant_due(&self) -> bool {
        self.phase == Phase::Established && self.credits.is_half_used() && self.async_may_be_sent()
    }

    // ---- What it is ----

    /// Which end this is.
    #[must_use]
    pub const fn role(&self) -> Role {
        self.role
    }

    /// Our own transport properties.
    #[must_use]
    pub const fn properties(&self) -> &Properties {
        &self.properties
    }

    /// The state of version negotiation.
    #[must_use]
    pub const fn phase(&self) -> Phase {
        self.phase
    }

    /// Whether a continued message or a transmission group of ours is incomplete: it has to be completed before another
    /// payload is sent.
    #[must_use]
    pub const fn sequence_open(&self) -> bool {
        self.outbound.is_open()
    }

    /// The continued message or transmission group that the peer has not completed.
    #[must_use]
    pub const fn unfinished(&self) -> Option<Unfinished> {
        if self.group.is_open() {
            let next = self.group.expected();
            return Some(Unfinished {
                xid: next.xid,
                taken: next.sequence,
            });
        }
        match self.inbound.in_progress() {
            Some((xid, _)) => Some(Unfinished {
                xid,
                taken: self.inbound.received_bytes(),
            }),
            None => None,
        }
    }

    /// The credit counters.
    #[must_use]
    pub fn credits(&self) -> CreditView {
        self.credits.view()
    }

    /// Whether an asynchronous grant may be sent, with a credit left for each transmission of an open group.
    fn async_may_be_sent(&self) -> bool {
        let reserved = self.group_outbound.remaining();
        let peer_continues = !self.inbound.is_idle();
        self.credits.async_may_be_sent(reserved, peer_continues)
    }

    /// Applies an event to the phase.
    fn advance(&mut self, event: PhaseEvent) -> Result<(), IllegalEvent> {
        self.phase = self.phase.next(event)?;
        self.set_threshold();
        Ok(())
    }

    /// Notes a message that used no credit.
    fn hear_uncounted(&mut self) {
        self.heard_uncounted = true;
        self.heard_uncounted_since_async = true;
    }

    fn set_threshold(&mut self) {
        let peer_bytes = match self.phase {
            // The server may be one of version 1, whose Receives may be no longer.
            Phase::ClientStart | Phase::ClientWaiting => {
                u32::try_from(V2_FIRST_MESSAGE_BYTES_MAX).unwrap_or(u32::MAX)
            }
            _ => self.peer_receive_bytes,
        };
        self.send_threshold_bytes = peer_bytes.min(self.properties.send_bytes_max);
    }
}

#[cfg(test)]
mod tests {
    use super::Connection;

    /// What is behind is looked at when properties are exchanged, and by transmission groups.
    #[test]
    fn per_message_state_fits_in_two_cache_lines() {
        assert!(core::mem::offset_of!(Connection, properties) <= 128);
    }
}
