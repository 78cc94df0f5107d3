//! The sizes of a core, and the memory that they need.

use std::time::Duration;

use rpcrdma_fabric::interface::{Attributes, REAP_MAX, SetupError};
use rpcrdma_fabric::memory::PoolShape;
use rpcrdma_protocol::constants::{
    RBSIZ_DEFAULT_BYTES, RTR_TRANSMISSIONS_MAX, V2_FIRST_MESSAGE_BYTES_MAX,
    V2_HEADER_BYTES_WITHOUT_CHUNKS, V2_MSG_BYTES_LEAST,
};
use rpcrdma_protocol::v2::plan::Thresholds;
use rpcrdma_protocol::v2::rtr::RtrSupport;
use rpcrdma_protocol::v2::{ApplicationHeaderTypes, ApplicationProperties, Properties};

use crate::ledger;
use crate::limits::{PAGE_BYTES, within};
use crate::placement_segments::PlacementConfig;

/// What a core does while it has no work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IdlePolicy {
    /// Poll again at once: the lowest latency, and the default.
    #[default]
    Spin,
    /// Execute the processor's spin-loop hint between polls, which leaves more of the processor to its
    /// other hardware thread.
    Pause,
    /// Pause; after a time without work, sleep until the fabric or a command wakes the core, or its application has
    /// work ([`Application::next_due`](crate::Application::next_due)).
    Park {
        /// How long the core stays awake without work, at most.
        after: Duration,
        /// The share of its time that the core stays awake without work, in percent. Where gaps between calls are shorter
        /// than `after`, this bounds what they cost. 100 sets no bound.
        awake_percent: u32,
    },
}

/// The sizes of a core. Everything is reserved from them at start-up.
///
/// # Example
/// ```
/// use rpcrdma_engine::CoreConfig;
///
/// let default = CoreConfig::default();
/// let deeper = CoreConfig { credits_per_connection: 128, ..default.clone() };
/// // 96 more Receives for each of 64 connections, of 4096 bytes and a cache line each.
/// assert_eq!(deeper.receives() - default.receives(), 64 * 96);
/// assert_eq!(deeper.arena_bytes() - default.arena_bytes(), 64 * 96 * (4096 + 64));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoreConfig {
    /// The processor that the core is pinned to; `None` leaves that to the scheduler.
    pub cpu: Option<usize>,
    /// The rails of its port, at least 1: see [`rpcrdma_fabric::rails`]. Each has Receives for all connections.
    pub rails: u32,
    /// Connections that receive memory is reserved for; more cannot be adopted.
    pub connections_max: u32,
    /// The most credits that a peer ever holds on one connection, at least 1. Where both ends call
    /// each other, one of them needs 3 or more: then the other keeps one credit for replies. With fewer at
    /// both, calls whose replies wait for credits may occupy all Receives of both ends.
    pub credits_per_connection: u16,
    /// The credits that each peer can always have: at least 1; values above `credits_per_connection` act as that. If
    /// Receives are lent, the rule above for calls in both directions applies to this number.
    pub credits_guaranteed: u16,
    /// Receives that connections share, in addition to those of the guaranteed credits. Busy peers are lent credits
    /// from them, up to `credits_per_connection` each. 0 means enough for the whole windows of 64 connections. If there
    /// are enough for all connections, each has its whole window from the start. On a device without shared receive
    /// queues each connection has an equal, fixed part of them.
    pub receives_shared: u32,
    /// Bytes of a receive buffer of one segment, at least 4096 (-00 section 4.3.2). Not used with `placement`.
    pub receive_buffer_bytes: u32,
    /// Receive buffers of several segments, at least 4096 bytes together, so that peers can place bulk data in them;
    /// `None` for buffers of one segment.
    pub placement: Option<PlacementConfig>,
    /// The sizes that decide whether bulk data goes in the stream, is placed by Sends, or is moved by
    /// explicit RDMA.
    pub thresholds: Thresholds,
    /// Send buffers that connections share. Each connection has two more.
    pub send_buffers: u32,
    /// Bytes of a send buffer: the SBSIZ property (-00 section 5.2.1), at least 1024.
    pub send_buffer_bytes: u32,
    /// The longest RPC message, header included, that is assembled from parts or sent in parts.
    pub message_bytes_max: u32,
    /// Buffers of `message_bytes_max` that connections share, for messages that arrive or leave in parts and for
    /// replies that wait for credits. Each connection has four more, one for each such use. The system
    /// provides their memory on first use. A message that finds no buffer waits in its Receives.
    pub message_buffers: u32,
    /// Calls of ours that may wait for their replies, over all connections; at most 65 536. One more is reserved for
    /// each connection.
    pub calls_outstanding_max: u32,
    /// Calls of peers whose replies may be deferred, over all connections. One more is reserved for each connection.
    pub deferred_max: u32,
    /// Buffers for bulk data; 0 for a core without bulk data. They hold the items that the
    /// application fills, those of peers' calls and of replies, and items that services keep.
    pub bulk_buffers: u32,
    /// Additional bulk buffers for data that the application keeps for long, such as a store whose files consist of the
    /// buffers that its calls brought. As long as it holds no more than these, calls do not wait because of it.
    pub bulk_buffers_kept: u32,
    /// Bytes of a bulk buffer.
    pub bulk_buffer_bytes: u32,
    /// Calls with bulk data under way at a time: so many of ours, and so many of peers; at most 65 535. Peers have one
    /// more place for each connection, so that other peers alone cannot keep a peer waiting.
    pub bulk_calls: u32,
    /// RDMA Reads in flight on one connection; the device may allow fewer.
    pub read_depth_max: u32,
    /// The most completions that one poll takes, from 1 to [`REAP_MAX`].
    pub reap_batch: u32,
    /// What the core does while it has no work.
    pub idle: IdlePolicy,
    /// How long a call waits for its reply.
    pub call_timeout: Duration,
    /// The interval between ticks of a connection. An end that sent nothing for an interval sends a
    /// keep-alive. Zero disables keep-alives, and silence closes no connection. Both ends should use
    /// the same value: an end with a longer interval is silent for longer.
    pub keep_alive_interval: Duration,
    /// A peer from which nothing came for so many intervals counts as dead, and its connection is
    /// closed; at least 3, because an end sends something at every second tick.
    pub keep_alive_silent_ticks_max: u8,
    /// How long a peer may leave something unfinished that holds buffers of this core: a message in
    /// several Sends, from its first to its last, or replies for which it grants no credit. Its
    /// connection is closed then, at most a quarter of this time later. It should be longer than peers
    /// wait for replies, so that no call is lost by it. Zero means no limit.
    pub stall_timeout: Duration,
    /// How long a path may be silent while a call waits, before it is sent a probe. Paths are watched where the peer can be
    /// reached by another one ([`Command::Adopt`](crate::Command::Adopt)). Zero watches none.
    pub path_suspect_after: Duration,
    /// How long the answer to a probe of a silent path may take. Then the connection ends. A probe waits for what was posted
    /// before it, and both times begin anew when any of that is done. So both together must be longer than one work
    /// request with bulk data takes, and than a peer is without a Receive. Zero watches no path.
    pub path_probe_timeout: Duration,
    /// Commands that the mailbox holds.
    pub mailbox_depth: u32,
    /// Header types that the application defines (-00 appendix B.1): messages of them go to
    /// [`Application::message`](crate::Application::message) instead of being refused, and may be sent.
    pub header_types: ApplicationHeaderTypes,
    /// Properties that the application defines (-00 appendix B.3), announced to every peer with the others.
    pub application_properties: ApplicationProperties,
}

impl Default for CoreConfig {
    fn default() -> Self {
        Self {
            cpu: None,
            rails: 1,
            connections_max: 64,
            credits_per_connection: 32,
            credits_guaranteed: ledger::CREDITS,
            receives_shared: 0,
            receive_buffer_bytes: 4096,
            placement: None,
            thresholds: Thresholds {
                inline_item_bytes_max: 512,
                send_placement_bytes_max: 65_536,
                continued_bytes_max: 16_384,
            },
            send_buffers: 256,
            send_buffer_bytes: 4096,
            message_bytes_max: (1 << 20) + 4096,
            message_buffers: 32,
            calls_outstanding_max: 4096,
            deferred_max: 1024,
            bulk_buffers: 0,
            bulk_buffers_kept: 0,
            bulk_buffer_bytes: 65_536,
            bulk_calls: 64,
            read_depth_max: 16,
            reap_batch: 8,
            idle: IdlePolicy::Spin,
            call_timeout: Duration::from_secs(60),
            keep_alive_interval: Duration::from_secs(1),
            // Longer than devices retry a Send: a link that comes back in that time costs no
            // connection.
            keep_alive_silent_ticks_max: 10,
            stall_timeout: Duration::from_secs(60),
            path_suspect_after: Duration::from_millis(200),
            path_probe_timeout: Duration::from_millis(200),
            mailbox_depth: 256,
            header_types: ApplicationHeaderTypes::NONE,
            application_properties: ApplicationProperties::NONE,
        }
    }
}

/// One cache line between buffers. With a power of two as stride, the first lines of all buffers would fall
/// into the same few sets of the cache.
const STRIDE_EXTRA_BYTES: u32 = 64;

/// Bytes of a padding buffer. A longer padding takes several.
pub(crate) const PADDING_BYTES: u32 = 4096;

/// Entries of one gather list at most.
const PADDING_ENTRIES_MAX: u32 = 32;

/// A live end sends something at every second tick at least, so two silent ticks mean nothing.
const KEEP_ALIVE_SILENT_TICKS_LEAST: u8 = 3;

/// The most calls outstanding of one core.
const CALLS_OUTSTANDING_LIMIT: u32 = 1 << 16;

/// Views for each call of a peer: enough for a reply of 1 MiB in pieces of 64 KiB.
const VIEWS_PER_CALL: u32 = 16;

/// Connections that can have their whole windows at a time by default.
const WHOLE_WINDOWS: u32 = 64;

/// Adopted, Properties (one is open at a time), Ready, VersionMismatch and Closed.
pub(crate) const NOTIFICATIONS_PER_CONNECTION: u32 = 5;

impl CoreConfig {
    /// Receives that the core makes on each rail. While no message is being handled, all of them are posted.
    #[must_use]
    pub fn receives(&self) -> u32 {
        // Each connection's own ...
        let guaranteed = self
            .connections_max
            .saturating_mul(self.receives_guaranteed());
        // ... and those that busy ones are lent.
        guaranteed.saturating_add(self.receives_lendable())
    }

    /// Receives that each connection can always have.
    #[must_use]
    pub fn receives_guaranteed(&self) -> u32 {
        let granted = self.credits_guaranteed.min(self.credits_per_connection);
        // The spare one, as in `receives_per_connection`.
        u32::from(granted.max(1)) + 1
    }

    /// Receives that connections are lent: those that they share, but no more than their windows can use.
    #[must_use]
    pub fn receives_lendable(&self) -> u32 {
        let of_window = self.receives_beyond_guaranteed();
        let shared = match self.receives_shared {
            0 => of_window.saturating_mul(WHOLE_WINDOWS),
            shared => shared,
        };
        shared.min(of_window.saturating_mul(self.connections_max))
    }

    /// Receives of a connection with its whole window, beyond those that it can always have.
    fn receives_beyond_guaranteed(&self) -> u32 {
        // Saturating, since zero credits are refused only later, by `validate`.
        let of_window = self.receives_per_connection();
        of_window.saturating_sub(self.receives_guaranteed())
    }

    /// Whether there are fewer Receives than the whole windows of all connections need.
    #[must_use]
    pub fn lends_receives(&self) -> bool {
        let of_window = self.receives_beyond_guaranteed();
        self.receives_lendable() < of_window.saturating_mul(self.connections_max)
    }

    /// Receives of each connection on a device without shared receive queues.
    #[must_use]
    pub fn receives_of_own_queue(&self) -> u32 {
        self.receives() / self.connections_max.max(1)
    }

    /// The credits that each peer can have at any time, whatever others have.
    fn credits_always(&self) -> u16 {
        if self.lends_receives() {
            self.credits_guaranteed.min(self.credits_per_connection)
        } else {
            self.credits_per_connection
        }
    }

    /// Receives of a connection with its whole window.
    #[must_use]
    pub fn receives_per_connection(&self) -> u32 {
        // The credits that its peer may hold ...
        let granted = u32::from(self.credits_per_connection);
        // ... and one for a credit grant, which is sent without a credit (-00 section 4.3.1).
        let spare = 1;
        granted + spare
    }

    /// Bytes of a whole receive buffer: the RBSIZ property (-00 section 5.2.2).
    #[must_use]
    pub fn receive_bytes(&self) -> u32 {
        let placed = self
            .placement
            .map_or(0, |placement| placement.bytes_per_receive());
        self.inline_segment_bytes().saturating_add(placed)
    }

    /// Bytes of the first segment of a receive buffer, which is the only one without `placement`.
    #[must_use]
    pub fn inline_segment_bytes(&self) -> u32 {
        self.placement
            .map_or(self.receive_buffer_bytes, |it| it.inline_segment_bytes)
    }

    /// Segments of a receive buffer.
    #[must_use]
    pub fn receive_segments(&self) -> u32 {
        // The inline segment, and those for placement.
        1_u32.saturating_add(self.placement.map_or(0, |it| it.segments))
    }

    /// Whether bulk data is placed by Sends, in both directions.
    #[must_use]
    pub fn places_by_send(&self) -> bool {
        self.placement.is_some() && self.bulk_buffers != 0
    }

    /// Bytes of the longest Send: the SBSIZ property (-00 section 5.2.1). A Send that places bulk data
    /// is gathered from several buffers: it may be as long as our longest Receive, and has room for the longest item
    /// that `thresholds` places by Send, even when our own placement segments are shorter.
    #[must_use]
    pub fn send_bytes_max(&self) -> u32 {
        if self.places_by_send() {
            let by_choice = self.thresholds.send_placement_bytes_max;
            self.receive_bytes()
                .max(self.send_buffer_bytes.saturating_add(by_choice))
        } else {
            self.send_buffer_bytes
        }
    }

    /// The properties that this core announces to peers, based on `properties` (-00 section 5.2, RTR section 8).
    /// It announces the extension if [`CoreConfig::places_by_send`].
    #[must_use]
    pub fn announced(&self, properties: Properties) -> Properties {
        let structure = self.placement.map(|placement| placement.structure());
        let plain = Properties {
            send_bytes_max: self.send_bytes_max(),
            receive_buffer_bytes: self.receive_bytes(),
            receive_buffer_structure: structure.and_then(Result::ok),
            ..properties
        };
        match plain.receive_buffer_structure {
            Some(_) if self.places_by_send() => Properties {
                rtr_support: RtrSupport::ALL,
                request_transmissions_max: self.request_transmissions_max(),
                response_transmissions_max: u32::try_from(RTR_TRANSMISSIONS_MAX).unwrap_or(1),
                ..plain
            },
            _ => plain,
        }
    }

    /// The most transmissions of a call that this core receives. The spares bound it, because items are handed out only
    /// when there is a spare for each of their segments. Half of the guaranteed credits bounds it, because a peer
    /// that has used half of its window is sent a new grant, and so never waits for one.
    fn request_transmissions_max(&self) -> u32 {
        let most = u32::try_from(RTR_TRANSMISSIONS_MAX).unwrap_or(1);
        let by_spares = self.messages_leased_at_once();
        let by_credits = u32::from(self.credits_always()) / 2;
        most.min(by_spares).min(by_credits).max(1)
    }

    /// Messages whose placement segments can all be leased at once.
    pub(crate) fn messages_leased_at_once(&self) -> u32 {
        self.placement
            .map_or(0, |placement| placement.spares / placement.segments.max(1))
    }

    /// Message buffers that the core makes.
    #[must_use]
    pub fn message_buffers_total(&self) -> u32 {
        // Each connection's own ...
        let guaranteed = self.connections_max.saturating_mul(ledger::MESSAGE_BUFFERS);
        // ... and those that any of them may use in addition.
        guaranteed.saturating_add(self.message_buffers)
    }

    /// Send buffers that the core makes.
    #[must_use]
    pub fn send_buffers_total(&self) -> u32 {
        // Registered Sends in flight, and messages that wait for a place in a send queue: each connection's own ...
        let guaranteed = self.send_buffers_guaranteed();
        // ... and those that any of them may use in addition ...
        let shared = self.send_buffers;
        // ... and one into which messages are written before the core knows how to send them.
        let scratch = 1;
        guaranteed.saturating_add(shared).saturating_add(scratch)
    }

    /// Send buffers that are kept for connections with fewer than they are guaranteed.
    pub(crate) fn send_buffers_guaranteed(&self) -> u32 {
        let connections = self.connections_max.min(ledger::SENDERS_AT_A_TIME);
        connections.saturating_mul(ledger::SEND_BUFFERS)
    }

    /// The Receives of all rails, where each has so many.
    pub(crate) fn on_all_rails(&self, receives: u32) -> u32 {
        receives.saturating_mul(self.rails)
    }

    /// The pool of receive buffers; with `placement` that of their inline segments.
    #[must_use]
    pub fn receive_pool(&self) -> PoolShape {
        self.receive_pool_of(self.on_all_rails(self.receives()))
    }

    /// As [`CoreConfig::receive_pool`], for so many Receives.
    pub(crate) fn receive_pool_of(&self, receives: u32) -> PoolShape {
        pool(receives, self.inline_segment_bytes())
    }

    /// The Receives whose memory is touched at start-up: those that are lent, and those of as many connections as can
    /// have their whole windows. The memory of the others is touched only when that many messages are handled at a
    /// time, because a port takes the Receive that was posted last.
    fn receives_touched(&self) -> u32 {
        let connections = self.connections_max.min(WHOLE_WINDOWS);
        let own = connections.saturating_mul(self.receives_guaranteed());
        own.saturating_add(self.receives_lendable())
    }

    /// The pool of receive buffers whose memory is not touched at start-up, if the port supports that.
    pub(crate) fn receive_pool_untouched(&self) -> PoolShape {
        let untouched = self.receives() - self.receives_touched();
        self.receive_pool_of(self.on_all_rails(untouched))
    }

    /// Bytes of [`CoreConfig::arena_bytes`] that take no physical memory before they are written, if the port supports
    /// that.
    #[must_use]
    pub fn untouched_bytes(&self) -> u64 {
        let shape = self.receive_pool_untouched();
        u64::from(shape.buffers) * u64::from(shape.stride_bytes)
    }

    /// The pool of placement segments, if there are any. They start on pages, so that what arrives in them can be
    /// handed to storage.
    #[must_use]
    pub fn placement_pool(&self) -> Option<PoolShape> {
        self.placement_pool_of(self.on_all_rails(self.receives()))
    }

    /// As [`CoreConfig::placement_pool`], for so many Receives.
    pub(crate) fn placement_pool_of(&self, receives: u32) -> Option<PoolShape> {
        let placement = self.placement?;
        // Those of all Receives ...
        let in_receives = receives.saturating_mul(placement.segments);
        // ... and those that replace segments which applications keep.
        let spares = placement.spares;
        let segments = in_receives.saturating_add(spares);
        Some(page_pool(segments, placement.segment_bytes))
    }

    pub(crate) fn send_pool(&self) -> PoolShape {
        pool(self.send_buffers_total(), self.send_buffer_bytes)
    }

    /// The pool of zeroed buffers that padding is sent from; they are never written.
    pub(crate) fn padding_pool(&self) -> PoolShape {
        let buffers = if self.places_by_send() {
            // One for each Send in flight: bulk data of one item needs one ...
            let in_flight = self.send_buffers;
            // ... and as many as one Send can need, so that some Send can always be posted.
            let longest = PADDING_ENTRIES_MAX;
            in_flight.saturating_add(longest)
        } else {
            0
        };
        page_pool(buffers, PADDING_BYTES)
    }

    /// The pool of bulk buffers. They start on page boundaries, so that storage can take their bytes without a copy.
    pub(crate) fn bulk_pool(&self) -> PoolShape {
        let buffers = self.bulk_buffers.saturating_add(self.bulk_buffers_kept);
        page_pool(buffers, self.bulk_buffer_bytes)
    }

    /// Views for shared bytes that are sent: some for each call of a peer, as many for replies that are kept for a resend, and
    /// one for each bulk buffer, which a call of ours may share.
    pub(crate) fn views(&self) -> u32 {
        let calls = self.bulk_serves().saturating_add(self.bulk_calls_in_use());
        let for_replies = calls.saturating_mul(VIEWS_PER_CALL);
        for_replies.saturating_add(self.bulk_buffers)
    }

    /// Memory windows that the core may have bound at a time.
    #[must_use]
    pub fn windows(&self) -> u32 {
        // Each exposes one bulk buffer, for one call.
        self.bulk_buffers
    }

    /// Slots for calls of peers with bulk data.
    pub(crate) fn bulk_serves(&self) -> u32 {
        let shared = self.bulk_calls_in_use();
        if shared == 0 {
            return 0;
        }
        self.bulk_serves_own().saturating_add(shared)
    }

    /// Slots for calls of peers with bulk data that are kept for connections which have none.
    pub(crate) fn bulk_serves_own(&self) -> u32 {
        let connections = self.connections_max.min(ledger::SERVED_AT_A_TIME);
        connections.saturating_mul(ledger::INCOMING_SLOTS)
    }

    /// Slots for calls of ours with bulk data, and those for calls of peers that connections share.
    pub(crate) fn bulk_calls_in_use(&self) -> u32 {
        if self.bulk_buffers == 0 {
            0
        } else {
            self.bulk_calls
        }
    }

    /// Bytes of registered memory that the core carves out of its port's arena.
    #[must_use]
    pub fn arena_bytes(&self) -> u64 {
        [
            // What messages arrive in ...
            Some(self.receive_pool()),
            // ... with what bulk data is placed in, ...
            self.placement_pool(),
            // ... what they are sent from, ...
            Some(self.send_pool()),
            // ... with zeroes between, ...
            self.places_by_send().then(|| self.padding_pool()),
            // ... and bulk data beside them.
            Some(self.bulk_pool()),
        ]
        .iter()
        .flatten()
        // Each pool, and what aligning its start may skip.
        .map(|it| u64::from(it.buffers) * u64::from(it.stride_bytes) + u64::from(it.align_bytes))
        .sum()
    }

    pub(crate) fn notifications(&self) -> u32 {
        let all_connections = self
            .connections_max
            .saturating_mul(NOTIFICATIONS_PER_CONNECTION);
        // Those that open connections may still send ...
        let to_come = all_connections;
        // ... those of them and of their predecessors that were not read yet: a place takes its next
        // connection only when the last notification of the one before was read ...
        let untaken = all_connections;
        // ... refusals of commands to adopt a connection that found no place ...
        let refusals = self.mailbox_depth;
        // ... and the one that reports the end of a drain.
        let drained = 1;
        to_come
            .saturating_add(untaken)
            .saturating_add(refusals)
            .saturating_add(drained)
    }

    /// Checks the sizes against each other, against the device and against the memory of the machine.
    ///
    /// # Errors
    /// [`SetupError::Limit`] names the first size that does not fit; otherwise as [`CoreConfig::check_memory`].
    pub fn validate(&self, attributes: &Attributes) -> Result<(), SetupError> {
        let first = u32::try_from(V2_FIRST_MESSAGE_BYTES_MAX).unwrap_or(u32::MAX);
        let longest = attributes.message_bytes_max;
        let queue_pairs = attributes.queue_pairs_max;
        let reaped = u32::try_from(REAP_MAX).unwrap_or(u32::MAX);
        // Fewer Receives than each rail is to have would let a peer send more than fits.
        within("rails", self.rails, attributes.rails..=attributes.rails)?;
        within("connections", self.connections_max, 1..=queue_pairs)?;
        within("credits per connection", self.credits_per_connection, 1..)?;
        within("credits guaranteed", self.credits_guaranteed, 1..)?;
        within(
            "receive buffer bytes",
            self.receive_bytes(),
            RBSIZ_DEFAULT_BYTES..,
        )?;
        self.validate_receives(attributes)?;
        within("send buffer bytes", self.send_buffer_bytes, first..=longest)?;
        within("send buffers", self.send_buffers, 1..)?;
        within("message bytes", self.message_bytes_max, first..)?;
        within("mailbox entries", self.mailbox_depth, 1..)?;
        let ticks = self.keep_alive_silent_ticks_max;
        within("silent ticks", ticks, KEEP_ALIVE_SILENT_TICKS_LEAST..)?;
        within("completions of a poll", self.reap_batch, 1..=reaped)?;
        let calls = self.calls_outstanding_max;
        within("outstanding calls", calls, 1..=CALLS_OUTSTANDING_LIMIT)?;
        within(
            "bulk calls",
            self.bulk_calls,
            ..=CALLS_OUTSTANDING_LIMIT - 1,
        )?;
        within("bulk buffer bytes", self.bulk_buffer_bytes, first..=longest)?;
        self.check_memory(1)
    }

    fn validate_receives(&self, attributes: &Attributes) -> Result<(), SetupError> {
        let (what, receives) = if attributes.shared_receive_queue {
            let what = "receives (those guaranteed to each connection, and those shared)";
            (what, self.receives())
        } else {
            let what = "receives of a connection (credits and one)";
            (what, self.receives_of_own_queue())
        };
        within(what, receives, ..=attributes.receive_queue_depth_max)?;
        let Some(placement) = self.placement else {
            return Ok(());
        };
        placement.validate()?;
        let what = "segments of a receive buffer (the inline one and those for placement)";
        let segments_max = attributes.receive_segments_max;
        within(what, self.receive_segments(), ..=segments_max)
    }
}

const _: () = assert!(
    V2_HEADER_BYTES_WITHOUT_CHUNKS < V2_MSG_BYTES_LEAST
        && V2_MSG_BYTES_LEAST < V2_FIRST_MESSAGE_BYTES_MAX,
    "the smallest buffer holds a header and a piece of a message"
);

fn pool(buffers: u32, buffer_bytes: u32) -> PoolShape {
    PoolShape {
        buffers,
        buffer_bytes,
        stride_bytes: buffer_bytes.next_multiple_of(64) + STRIDE_EXTRA_BYTES,
        align_bytes: PAGE_BYTES,
    }
}

/// Buffers that start on pages.
fn page_pool(buffers: u32, buffer_bytes: u32) -> PoolShape {
    let stride_bytes = buffer_bytes.checked_next_multiple_of(PAGE_BYTES);
    PoolShape {
        buffers,
        buffer_bytes,
        stride_bytes: stride_bytes.unwrap_or(u32::MAX),
        align_bytes: PAGE_BYTES,
    }
}

#[cfg(test)]
mod tests;
