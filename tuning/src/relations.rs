//! What must hold between the knobs. `docs/tuning.md` lists it from here.

use crate::knobs::Profile;

/// Bytes that a record of an shm ring needs for its header, rounded up to a cache line.
const RECORD_HEADER_BYTES: u32 = 64;

/// More receives than this on one core are considered a mistake: 64 GiB at the default buffer size.
const RECEIVES_POSTED_MAX: u64 = 1 << 24;

/// The `rnr_retry_count` with which a NIC resends without end (InfiniBand volume 1).
const RNR_RETRY_WITHOUT_END: u32 = 7;

/// Something that must hold between two knobs: a row of the table `Profile::RELATIONS`.
#[derive(Debug, Clone, Copy)]
pub struct Relation {
    /// The name of the first knob.
    pub left: &'static str,
    /// The name of the second knob.
    pub right: &'static str,
    /// What must hold, as Markdown.
    pub rule: &'static str,
    /// Why.
    pub because: &'static str,
    pub(crate) holds: fn(&Profile) -> bool,
    /// What to change in a profile where it does not hold.
    pub(crate) remedy: fn(&Profile) -> String,
}

impl Profile {
    /// What must hold between the knobs, in the order in which it is checked.
    pub const RELATIONS: &'static [Relation] = &[
        Relation {
            left: "message_bytes_max",
            right: "receive_buffer_bytes",
            rule: "`message_bytes_max` ≥ `receive_buffer_bytes`",
            because: "a message in several Sends is at least as long as one receive buffer",
            holds: |it| it.message_bytes_max >= it.receive_buffer_bytes,
            remedy: |it| {
                format!(
                    "set message_bytes_max to {} or more",
                    it.receive_buffer_bytes
                )
            },
        },
        Relation {
            left: "calls_outstanding_max",
            right: "credits_per_connection",
            rule: "`calls_outstanding_max` ≥ `credits_per_connection`",
            because: "the credits of one connection could never all be used",
            holds: |it| it.calls_outstanding_max >= it.credits_per_connection,
            remedy: |it| {
                format!(
                    "set calls_outstanding_max to {} or more, or credits_per_connection to {} or less",
                    it.credits_per_connection, it.calls_outstanding_max
                )
            },
        },
        Relation {
            left: "placement_spares",
            right: "placement_segments",
            rule: "`placement_spares` ≥ `placement_segments`",
            because: "a message whose segments are all kept needs as many spares",
            holds: |it| it.placement_spares >= it.placement_segments,
            remedy: |it| format!("set placement_spares to {} or more", it.placement_segments),
        },
        Relation {
            left: "placement_segments",
            right: "receive_scatter_entries_max",
            rule: "`placement_segments` + 1 ≤ `receive_scatter_entries_max`",
            because: "a receive has an inline segment in front of its placement segments",
            holds: |it| it.placement_segments < it.receive_scatter_entries_max,
            remedy: |it| {
                format!(
                    "set placement_segments to {} or less, or receive_scatter_entries_max to {} or more where the device has \
                     so many",
                    it.receive_scatter_entries_max - 1,
                    it.placement_segments + 1
                )
            },
        },
        Relation {
            left: "inline_bytes_max",
            right: "send_buffer_bytes",
            rule: "`inline_bytes_max` ≤ `send_buffer_bytes`",
            because: "no Send is longer than a send buffer",
            holds: |it| it.inline_bytes_max <= it.send_buffer_bytes,
            remedy: |it| format!("set inline_bytes_max to {} or less", it.send_buffer_bytes),
        },
        Relation {
            left: "inline_bytes_max",
            right: "channel_ring_bytes",
            rule: "4 × (`inline_bytes_max` + 64) ≤ `channel_ring_bytes`",
            because: "a ring must hold at least four of the largest records, header included, or sender and receiver take \
                      turns instead of working at the same time",
            holds: |it| record_bytes(it) <= it.channel_ring_bytes / 4,
            remedy: |it| {
                format!(
                    "set channel_ring_bytes to {} or more, or inline_bytes_max to {} or less",
                    (record_bytes(it) * 4).next_power_of_two(),
                    it.channel_ring_bytes / 4 - RECORD_HEADER_BYTES
                )
            },
        },
        Relation {
            left: "stall_timeout_ms",
            right: "rnr_retry_count",
            rule: "`stall_timeout_ms` > 0 or `rnr_retry_count` < 7",
            because: "a peer that posts no receives would keep its connection, and what is sent to it, without end",
            holds: |it| it.stall_timeout_ms > 0 || it.rnr_retry_count < RNR_RETRY_WITHOUT_END,
            remedy: |_| {
                format!(
                    "set stall_timeout_ms to 100 or more, or rnr_retry_count to {} or less",
                    RNR_RETRY_WITHOUT_END - 1
                )
            },
        },
        Relation {
            left: "connections_max",
            right: "receives_shared",
            rule: "[receives posted](#sizes-that-follow) ≤ 16777216",
            because: "more receives on one core are considered a mistake",
            holds: |it| it.receives_posted() <= RECEIVES_POSTED_MAX,
            remedy: |it| {
                format!(
                    "this profile has {}, and {RECEIVES_POSTED_MAX} are allowed: lower one of the two, or use more cores with \
                     fewer connections each",
                    it.receives_posted()
                )
            },
        },
    ];
}

fn record_bytes(profile: &Profile) -> u32 {
    profile.inline_bytes_max + RECORD_HEADER_BYTES
}
