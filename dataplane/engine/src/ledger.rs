//! The resources that the connections of a core share, and how many of each a connection can always have, whatever the
//! others take. The pools are made with these numbers, and `docs/security.md` has the table.

/// Credits: one is used while the next is granted. A core whose connections call both ways keeps one more.
pub(crate) const CREDITS: u16 = 2;

/// Receives: those of the credits, and a spare one.
pub(crate) const RECEIVES: u32 = CREDITS as u32 + 1;

/// Send buffers: one for a message, and one for a grant or an error, without which the peer could not continue.
pub(crate) const SEND_BUFFERS: u32 = 2;

/// Message buffers for each use.
pub(crate) const MESSAGE_BUFFERS_OF_A_USE: u32 = 1;

/// Message buffers for all uses.
pub(crate) const MESSAGE_BUFFERS: u32 = 4 * MESSAGE_BUFFERS_OF_A_USE;

/// Calls of its peer that its service answers later.
pub(crate) const DEFERRED_CALLS: u32 = 1;

/// Calls of ours to it that wait for their replies.
pub(crate) const OUTSTANDING_CALLS: u32 = 1;

/// Slots for its peer's calls with bulk data.
pub(crate) const INCOMING_SLOTS: u32 = 1;

/// How many connections can have their guaranteed send buffers at a time. Each further one would cost 8 KiB.
pub(crate) const SENDERS_AT_A_TIME: u32 = 1024;

/// How many connections can have their guaranteed slots for calls with bulk data at a time. Each further one would cost
/// about 48 KiB.
pub(crate) const SERVED_AT_A_TIME: u32 = 256;

/// A resource that the connections of a core share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedgerEntry {
    /// What it is.
    pub resource: &'static str,
    /// How many each connection can always have; `None` if none are reserved.
    pub guaranteed: Option<u32>,
    /// The purpose of the guaranteed ones, or the rule that replaces a guarantee.
    pub note: &'static str,
    /// The knob of the profile that sets how many connections may borrow in addition.
    pub borrowed: &'static str,
    /// The counter of messages or calls that waited for it, or were refused because it was lacking.
    pub counter: &'static str,
}

/// All resources that the connections of a core share.
pub const LEDGER: &[LedgerEntry] = &[
    LedgerEntry {
        resource: "Receives, and with them credits",
        guaranteed: Some(RECEIVES),
        note: "two credits, and one Receive for a grant; busy connections are lent up to `credits_per_connection`",
        borrowed: "receives_shared",
        counter: "awaiting_receives",
    },
    LedgerEntry {
        resource: "send buffers: Sends in flight, or waiting for the send queue",
        guaranteed: Some(SEND_BUFFERS),
        note: "one for a message, one for a grant or an error; 1024 connections have theirs at a time",
        borrowed: "send_buffers",
        counter: "awaiting_send_buffer",
    },
    LedgerEntry {
        resource: "message buffers: messages in several Sends, and replies that wait",
        guaranteed: Some(MESSAGE_BUFFERS),
        note: "a call and a reply in, a call and a reply out",
        borrowed: "reassembly_buffers",
        counter: "awaiting_message_buffer",
    },
    LedgerEntry {
        resource: "places for deferred calls",
        guaranteed: Some(DEFERRED_CALLS),
        note: "a call that finds none is answered with SYSTEM_ERR",
        borrowed: "deferred_replies_max",
        counter: "rpc_errors_sent",
    },
    LedgerEntry {
        resource: "slots for calls of ours",
        guaranteed: Some(OUTSTANDING_CALLS),
        note: "free again when the call times out",
        borrowed: "calls_outstanding_max",
        counter: "calls_refused_no_slot",
    },
    LedgerEntry {
        resource: "slots for calls of peers with bulk data",
        guaranteed: Some(INCOMING_SLOTS),
        note: "the next call waits in its Receive; 256 connections have theirs at a time",
        borrowed: "bulk_calls_max",
        counter: "awaiting_call_slot",
    },
    LedgerEntry {
        resource: "slots for calls of ours with bulk data",
        guaranteed: None,
        note: "a connection that has some leaves as many to one that has none",
        borrowed: "bulk_calls_max",
        counter: "calls_refused_no_slot",
    },
    LedgerEntry {
        resource: "bulk buffers",
        guaranteed: None,
        note: "while no more than half are free, for as many calls as could be answered, and two",
        borrowed: "bulk_buffers",
        counter: "awaiting_bulk_buffer",
    },
    LedgerEntry {
        resource: "memory windows",
        guaranteed: None,
        note: "one for each bulk buffer; where the device has fewer, a call of ours waits until another ends",
        borrowed: "bulk_buffers",
        counter: "awaiting_window",
    },
    LedgerEntry {
        resource: "placement segments: spares for those that applications keep",
        guaranteed: None,
        note: "a message waits for one in its Receives",
        borrowed: "placement_spares",
        counter: "awaiting_placement_segment",
    },
];
