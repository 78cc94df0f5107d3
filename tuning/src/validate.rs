//! The ranges of the knobs, and what must hold between them.

use crate::error::{Error, Knob};
use crate::layers::Origin;
use crate::profile::Profile;

/// The first message of a connection, either way, may be this long before anything is negotiated,
/// so no receive buffer is shorter (-00 section 6.4.4).
const FIRST_MESSAGE_BYTES_MAX: u32 = 1024;
/// What a receiver of version 2 takes at least (-00 section 4.3.2).
const RECEIVE_BUFFER_BYTES_LEAST: u32 = 4096;

/// Room that a ring record needs beside its payload, rounded up to a cache line.
const RING_RECORD_HEADER_BYTES: u32 = 64;

/// Buffers start on cache lines, so that no two cores share one.
const CACHE_LINE_BYTES: u32 = 64;

/// Bulk buffers start on pages, so that what lies in them can be handed to others without a copy.
const PAGE_BYTES: u32 = 4096;

/// More receives than this on one core are taken for a slip: 64 GiB at the default buffer size.
const RECEIVES_POSTED_MAX: u64 = 1 << 24;

/// A keep-alive relies on the one before to have arrived, and its receive to be posted again.
const KEEP_ALIVE_INTERVAL_MS_LEAST: u32 = 10;
/// Below, a peer that is merely busy would lose its connection.
const STALL_TIMEOUT_MS_LEAST: u32 = 100;

/// Of `rnr_retry_count`: a NIC sends again without end (InfiniBand volume 1).
const RNR_RETRY_FOR_EVER: u32 = 7;

/// A queue pair takes the Sends of a small window, its grants, and what binds and unbinds a call's windows.
const SEND_QUEUE_DEPTH_LEAST: u32 = 16;

const MIB: u32 = 1024 * 1024;
const GIB: u32 = 1024 * MIB;
const HOUR_MS: u32 = 3_600_000;

/// Makes the description of a knob for an error, given its name.
type Describe<'a> = &'a dyn Fn(&'static str) -> Knob;

impl Profile {
    /// Checks every value against its range, and the relations between the values.
    ///
    /// # Errors
    /// [`Error::Range`], [`Error::Form`] or [`Error::Relation`] for the first value that cannot be
    /// used. The origin in it is always the built-in defaults here;
    /// [`Layers::build`](crate::Layers::build) does the same check and knows the layer.
    pub fn validate(&self) -> Result<(), Error> {
        self.validate_with(&|name| Knob {
            name,
            value: self.value_text(name).unwrap_or_default(),
            origin: Origin::Defaults,
        })
    }

    pub(crate) fn validate_with(&self, describe: Describe<'_>) -> Result<(), Error> {
        self.validate_ranges(describe)?;
        self.validate_forms(describe)?;
        self.validate_messages(describe)?;
        self.validate_placement(describe)?;
        self.validate_channels(describe)?;
        self.validate_deadlines(describe)?;
        self.validate_memory(describe)
    }

    /// Every value alone.
    pub(crate) fn validate_ranges(&self, describe: Describe<'_>) -> Result<(), Error> {
        let ranges: &[(&'static str, u32, u32, u32)] = &[
            ("connections_max", self.connections_max, 1, 65_536),
            ("peers_connections_max", self.peers_connections_max, 1, MIB),
            (
                "receive_buffer_bytes",
                self.receive_buffer_bytes,
                RECEIVE_BUFFER_BYTES_LEAST,
                MIB,
            ),
            ("placement_segments", self.placement_segments, 0, 16),
            (
                "placement_segment_bytes",
                self.placement_segment_bytes,
                PAGE_BYTES,
                MIB,
            ),
            (
                "inline_segment_bytes",
                self.inline_segment_bytes,
                256,
                65_536,
            ),
            ("placement_spares", self.placement_spares, 1, 65_536),
            ("inline_item_bytes_max", self.inline_item_bytes_max, 0, MIB),
            (
                "send_placement_bytes_max",
                self.send_placement_bytes_max,
                0,
                16 * MIB,
            ),
            ("continued_bytes_max", self.continued_bytes_max, 0, 16 * MIB),
            (
                "send_buffer_bytes",
                self.send_buffer_bytes,
                FIRST_MESSAGE_BYTES_MAX,
                MIB,
            ),
            ("message_bytes_max", self.message_bytes_max, 4096, GIB),
            (
                "credits_per_connection",
                self.credits_per_connection,
                1,
                65_535,
            ),
            ("receives_shared", self.receives_shared, 0, 1 << 24),
            ("reassembly_buffers", self.reassembly_buffers, 1, 65_536),
            (
                "calls_outstanding_max",
                self.calls_outstanding_max,
                1,
                65_536,
            ),
            ("deferred_replies_max", self.deferred_replies_max, 1, 65_536),
            ("send_buffers", self.send_buffers, 1, 65_536),
            (
                "send_queue_depth_max",
                self.send_queue_depth_max,
                SEND_QUEUE_DEPTH_LEAST,
                32_768,
            ),
            ("mailbox_depth", self.mailbox_depth, 1, 65_536),
            ("read_depth_max", self.read_depth_max, 1, 255),
            ("bulk_buffers", self.bulk_buffers, 0, 65_536),
            ("bulk_buffer_bytes", self.bulk_buffer_bytes, 4096, 16 * MIB),
            ("bulk_calls_max", self.bulk_calls_max, 1, 65_535),
            ("rdma_segments_max", self.rdma_segments_max, 1, 160),
            ("reap_batch", self.reap_batch, 1, 64),
            (
                "copy_bytes_per_poll",
                self.copy_bytes_per_poll,
                4096,
                16 * MIB,
            ),
            (
                "channel_ring_bytes",
                self.channel_ring_bytes,
                8192,
                16 * MIB,
            ),
            ("hot_channels_max", self.hot_channels_max, 1, 64),
            ("cold_sweep_polls", self.cold_sweep_polls, 1, 65_536),
            ("inline_bytes_max", self.inline_bytes_max, 0, MIB),
            ("peer_arena_mib_max", self.peer_arena_mib_max, 1, MIB),
            ("peer_memory_mib_max", self.peer_memory_mib_max, 1, MIB),
            (
                "device_inline_bytes_max",
                self.device_inline_bytes_max,
                0,
                4096,
            ),
            (
                "send_gather_entries_max",
                self.send_gather_entries_max,
                1,
                64,
            ),
            (
                "receive_scatter_entries_max",
                self.receive_scatter_entries_max,
                1,
                64,
            ),
            ("ack_timeout_exponent", self.ack_timeout_exponent, 1, 31),
            ("retry_count", self.retry_count, 0, 7),
            ("rnr_retry_count", self.rnr_retry_count, 0, 7),
            ("min_rnr_timer_code", self.min_rnr_timer_code, 0, 31),
            ("type_of_service", self.type_of_service, 0, 255),
            ("idle_park_after_us", self.idle_park_after_us, 1, 10_000_000),
            ("connect_timeout_ms", self.connect_timeout_ms, 1, HOUR_MS),
            (
                "reconnects_per_second_max",
                self.reconnects_per_second_max,
                1,
                65_536,
            ),
            ("call_timeout_ms", self.call_timeout_ms, 1, HOUR_MS),
            (
                "keep_alive_interval_ms",
                self.keep_alive_interval_ms,
                0,
                HOUR_MS,
            ),
            (
                "keep_alive_silent_ticks_max",
                self.keep_alive_silent_ticks_max,
                3,
                255,
            ),
            ("stall_timeout_ms", self.stall_timeout_ms, 0, HOUR_MS),
            ("drain_timeout_ms", self.drain_timeout_ms, 1, HOUR_MS),
        ];
        for &(name, value, least, most) in ranges {
            if !(least..=most).contains(&value) {
                return Err(Error::Range {
                    knob: describe(name),
                    least: least.into(),
                    most: most.into(),
                });
            }
        }
        Ok(())
    }

    fn validate_forms(&self, describe: Describe<'_>) -> Result<(), Error> {
        let whole_lines = "buffers start on cache lines, so set it to a multiple of 64";
        let forms: &[(&'static str, bool, &'static str)] = &[
            (
                "receive_buffer_bytes",
                self.receive_buffer_bytes.is_multiple_of(CACHE_LINE_BYTES),
                whole_lines,
            ),
            (
                "placement_segment_bytes",
                self.placement_segment_bytes.is_multiple_of(PAGE_BYTES),
                "placement segments are whole pages, so set it to a multiple of 4096",
            ),
            (
                "inline_segment_bytes",
                self.inline_segment_bytes.is_multiple_of(CACHE_LINE_BYTES),
                whole_lines,
            ),
            (
                "send_buffer_bytes",
                self.send_buffer_bytes.is_multiple_of(CACHE_LINE_BYTES),
                whole_lines,
            ),
            (
                "bulk_buffer_bytes",
                self.bulk_buffer_bytes.is_multiple_of(PAGE_BYTES),
                "bulk buffers start on pages, so set it to a multiple of 4096",
            ),
            (
                "channel_ring_bytes",
                self.channel_ring_bytes.is_power_of_two(),
                "positions in a ring wrap by a mask, so set it to a power of two",
            ),
            (
                "hugepage_bytes",
                [2 * MIB, GIB].contains(&self.hugepage_bytes),
                "hugepages are 2097152 (2 MiB) or 1073741824 (1 GiB) bytes large",
            ),
            (
                "keep_alive_interval_ms",
                self.keep_alive_interval_ms == 0
                    || self.keep_alive_interval_ms >= KEEP_ALIVE_INTERVAL_MS_LEAST,
                "a tick must last much longer than a message takes, so set it to 10 or more, or to \
                 0 for no keep-alive",
            ),
            (
                "stall_timeout_ms",
                self.stall_timeout_ms == 0 || self.stall_timeout_ms >= STALL_TIMEOUT_MS_LEAST,
                "a busy peer may take some time to go on, so set it to 100 or more, or to 0 for no \
                 limit",
            ),
        ];
        match forms.iter().find(|&&(_, holds, _)| !holds) {
            Some(&(name, _, rule)) => Err(Error::Form {
                knob: describe(name),
                rule,
            }),
            None => Ok(()),
        }
    }

    fn validate_messages(&self, describe: Describe<'_>) -> Result<(), Error> {
        if self.message_bytes_max < self.receive_buffer_bytes {
            return Err(Error::Relation {
                left: Box::new(describe("message_bytes_max")),
                right: Box::new(describe("receive_buffer_bytes")),
                rule: "a message that is put together is at least as long as one receive buffer",
                remedy: format!(
                    "set message_bytes_max to {} or more",
                    self.receive_buffer_bytes
                ),
            });
        }
        if self.calls_outstanding_max < self.credits_per_connection {
            return Err(Error::Relation {
                left: Box::new(describe("calls_outstanding_max")),
                right: Box::new(describe("credits_per_connection")),
                rule: "the credits of one connection could never all be used",
                remedy: format!(
                    "set calls_outstanding_max to {} or more, or credits_per_connection to {} or \
                     less",
                    self.credits_per_connection, self.calls_outstanding_max
                ),
            });
        }
        Ok(())
    }

    fn validate_placement(&self, describe: Describe<'_>) -> Result<(), Error> {
        if self.placement_segments > self.placement_spares {
            return Err(Error::Relation {
                left: Box::new(describe("placement_spares")),
                right: Box::new(describe("placement_segments")),
                rule: "a message whose segments are all kept needs as many spares at once",
                remedy: format!(
                    "set placement_spares to {} or more",
                    self.placement_segments
                ),
            });
        }
        if self.placement_segments >= self.receive_scatter_entries_max {
            return Err(Error::Relation {
                left: Box::new(describe("placement_segments")),
                right: Box::new(describe("receive_scatter_entries_max")),
                rule: "a receive has the inline segment beside its placement segments",
                remedy: format!(
                    "set placement_segments to {} or less, or receive_scatter_entries_max to {} or \
                     more where the device has so many",
                    self.receive_scatter_entries_max - 1,
                    self.placement_segments + 1
                ),
            });
        }
        Ok(())
    }

    fn validate_channels(&self, describe: Describe<'_>) -> Result<(), Error> {
        if self.inline_bytes_max > self.send_buffer_bytes {
            return Err(Error::Relation {
                left: Box::new(describe("inline_bytes_max")),
                right: Box::new(describe("send_buffer_bytes")),
                rule: "no Send is longer than a send buffer",
                remedy: format!("set inline_bytes_max to {} or less", self.send_buffer_bytes),
            });
        }
        let record_bytes = self.inline_bytes_max + RING_RECORD_HEADER_BYTES;
        let record_bytes_max = self.channel_ring_bytes / 4;
        if record_bytes > record_bytes_max {
            return Err(Error::Relation {
                left: Box::new(describe("inline_bytes_max")),
                right: Box::new(describe("channel_ring_bytes")),
                rule: "a ring must take at least four of the largest records, header included, or \
                       sender and receiver take turns instead of working at the same time",
                remedy: format!(
                    "set channel_ring_bytes to {} or more, or inline_bytes_max to {} or less",
                    (record_bytes * 4).next_power_of_two(),
                    record_bytes_max - RING_RECORD_HEADER_BYTES
                ),
            });
        }
        Ok(())
    }

    fn validate_deadlines(&self, describe: Describe<'_>) -> Result<(), Error> {
        if self.stall_timeout_ms == 0 && self.rnr_retry_count == RNR_RETRY_FOR_EVER {
            return Err(Error::Relation {
                left: Box::new(describe("stall_timeout_ms")),
                right: Box::new(describe("rnr_retry_count")),
                rule: "a peer that posts no receives would keep its connection, and what is sent to it, \
                       for ever",
                remedy: format!(
                    "set stall_timeout_ms to {STALL_TIMEOUT_MS_LEAST} or more, or rnr_retry_count to \
                     {} or less",
                    RNR_RETRY_FOR_EVER - 1
                ),
            });
        }
        Ok(())
    }

    fn validate_memory(&self, describe: Describe<'_>) -> Result<(), Error> {
        let receives_posted = self.receives_posted();
        if receives_posted > RECEIVES_POSTED_MAX {
            return Err(Error::Relation {
                left: Box::new(describe("connections_max")),
                right: Box::new(describe("receives_shared")),
                rule: "the receives of all connections of a core must be at most 16777216",
                remedy: format!(
                    "they come to {receives_posted}: lower one of the two, or use more cores with \
                     fewer connections each"
                ),
            });
        }
        Ok(())
    }
}
