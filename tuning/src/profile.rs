//! [`Profile`], every knob with its unit, and [`Settings`], the same knobs as one layer sets them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::knobs::{Hugepages, Idle, Limited as _, ReceiveQueues, WithoutWindows};
use crate::table::Sourced;

/// Declares the knobs once, as [`Profile`] (all of them set), as [`Settings`] (any of them set) and as
/// [`Table`] (any of them, as a file writes them), so that they cannot drift apart. Each default has
/// the reason for it.
macro_rules! knobs {
    ($( $(#[$doc:meta])* $name:ident: $kind:ty = $default:expr, because $source:literal; )*) => {
        /// Every knob of a process, each with a value.
        ///
        /// A profile that came from [`Layers::build`](crate::Layers::build) has been checked; one
        /// that was changed afterwards is to be checked again with
        /// [`validate`](Profile::validate).
        #[derive(Debug, Clone, PartialEq, Eq, Serialize)]
        pub struct Profile {
            $( $(#[$doc])* pub $name: $kind, )*
        }

        impl Default for Profile {
            /// The built-in defaults, the lowest layer.
            fn default() -> Self {
                Self { $( $name: $default, )* }
            }
        }

        /// The knobs that one layer sets; `None` leaves the value of the layers below.
        #[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct Settings {
            $(
                $(#[$doc])*
                #[serde(skip_serializing_if = "Option::is_none")]
                pub $name: Option<$kind>,
            )*
        }

        /// A table of knobs in a file, `[settings]` or `[limits]`: each may be there, as a value or as
        /// a value with its source.
        #[derive(Debug, Clone, Default, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub(crate) struct Table {
            $( $name: Option<Sourced<$kind>>, )*
        }

        impl Table {
            /// The values alone.
            pub(crate) fn settings(&self) -> Settings {
                Settings { $( $name: self.$name.as_ref().map(|entry| entry.value), )* }
            }

            /// The names of the knobs that are there, with their sources.
            pub(crate) fn sources(&self) -> BTreeMap<&'static str, Option<String>> {
                let mut sources = BTreeMap::new();
                $(
                    if let Some(entry) = &self.$name {
                        sources.insert(stringify!($name), entry.source.clone());
                    }
                )*
                sources
            }
        }

        impl Profile {
            /// The names of all knobs, in the order in which they are documented.
            pub const KNOBS: &'static [&'static str] = &[$( stringify!($name) ),*];

            /// Why the default of each knob is what it is, in the order of [`Profile::KNOBS`].
            pub(crate) const DEFAULT_SOURCES: &'static [&'static str] = &[$( $source ),*];

            /// Sets every knob that `settings` sets, and tells its name.
            pub(crate) fn apply(&mut self, settings: &Settings, mut set: impl FnMut(&'static str)) {
                $(
                    if let Some(value) = settings.$name {
                        self.$name = value;
                        set(stringify!($name));
                    }
                )*
            }

            /// Cuts every knob down to what `limits` has for it, and tells the name of each that was
            /// beyond.
            pub(crate) fn clamp(&mut self, limits: &Settings, mut cut: impl FnMut(&'static str)) {
                $(
                    if let Some(limit) = limits.$name
                        && let Some(value) = self.$name.cut_to(limit)
                    {
                        self.$name = value;
                        cut(stringify!($name));
                    }
                )*
            }
        }

        impl Settings {
            /// The names of the knobs that are set.
            pub(crate) fn names(&self) -> Vec<&'static str> {
                let mut names = Vec::new();
                $( if self.$name.is_some() { names.push(stringify!($name)); } )*
                names
            }

            /// Takes over every knob that `other` sets.
            pub(crate) fn merge(&mut self, other: &Settings) {
                $( if other.$name.is_some() { self.$name = other.$name; } )*
            }
        }
    };
}

knobs! {
    /// Connections that one core can hold; three receives for each of them are reserved at start,
    /// and a connect beyond it is rejected. From 1 to 65 536.
    connections_max: u32 = 64,
        because "inferred: receive buffers of 8 MiB at the default sizes";
    /// Connections that one peer (one process on shm, one address on verbs) may hold at a time, over
    /// all cores of the process. From 1 to 1 048 576.
    peers_connections_max: u32 = 64,
        because "inferred: one peer may take what one core has";

    /// Bytes of one receive buffer: the inline threshold that is announced to the peer, transport
    /// header included (the receive buffer size property, -00 section 5.2.2). A multiple of 64, from
    /// 4096, which every receiver takes (-00 section 4.3.2), to 1 MiB.
    receive_buffer_bytes: u32 = 4096,
        because "-00 section 4.3.2 asks for 4096 at least, and Linux announces as many: a header with its lists, and a small call";
    /// Placement segments of one receive buffer, into which peers place bulk data by the Send that
    /// carries it. With 0 a receive buffer is one segment of `receive_buffer_bytes`; otherwise a
    /// segment of `inline_segment_bytes` and these, and the sum is what the peer is told. From 0 to
    /// 16.
    placement_segments: u32 = 0,
        because "inferred: placement takes registered memory for every receive, so it is asked for";
    /// Bytes of one placement segment. A multiple of 4096, so that segments are whole pages, from
    /// 4096 to 1 MiB.
    placement_segment_bytes: u32 = 65_536,
        because "inferred: one segment for most payloads; bench-tool takes shorter ones where leases are to be small";
    /// Bytes of the first segment of a receive buffer with placement segments: it holds headers and
    /// short messages. A multiple of 64, from 256 to 64 KiB.
    inline_segment_bytes: u32 = 1024,
        because "-00 section 6.4.4: the first message may have 1024 octets";
    /// Placement segments of one core beyond those of its receives: as many can be in the hands of
    /// services before messages wait. From 1 to 65 536, and at least `placement_segments`.
    placement_spares: u32 = 64,
        because "inferred: 4 MiB that services may keep";
    /// Bytes up to which an item of bulk data stays in the stream of its message, where both ends
    /// place bulk data by Sends. From 0 to 1 MiB.
    inline_item_bytes_max: u32 = 512,
        because "inferred: below, copying costs less than a segment of its own";
    /// Bytes up to which an item of bulk data is placed by Sends, where both ends can; a longer one
    /// goes by explicit RDMA where that can be. From 0 to 16 MiB.
    send_placement_bytes_max: u32 = 65_536,
        because "inferred: one placement segment at its default size";
    /// Bytes up to which the stream of a message is continued over several Sends; a longer one goes
    /// by explicit RDMA where that can be. From 0 to 16 MiB.
    continued_bytes_max: u32 = 16_384,
        because "inferred: four Sends at the default size; beyond, explicit RDMA has fewer copies";
    /// Bytes of one send buffer: the largest Send that is built in one piece, transport header included
    /// (the maximum send size property, -00 section 5.2.1). The peer's receive buffer size lowers it
    /// for each connection. A multiple of 64, from 1024 to 1 MiB.
    send_buffer_bytes: u32 = 4096,
        because "as receive_buffer_bytes: longer Sends find no receive at a peer of the same profile";
    /// Bytes of the largest RPC message, RPC header included, that is sent or received in several
    /// Sends (continuation, -00 section 4.5.2); a larger one is answered with a transport error and
    /// discarded. From 4096 to 1 GiB, and at least `receive_buffer_bytes`. The default carries
    /// 1 MiB of payload.
    message_bytes_max: u32 = 1024 * 1024 + 4096,
        because "inferred: 1 MiB, the largest read or write of common NFS mounts, and a header";
    /// Receives of one connection that can be granted to the peer as credits. One more is reserved
    /// beside them, so that a credit update always finds a receive. From 1 to 65 535, the largest
    /// value of the 16-bit credit fields (-00 section 4.3.1.1).
    credits_per_connection: u32 = 32,
        because "inferred: as many calls as keep a link busy within a machine room";
    /// Receives that the connections of one core share, beyond the three that each of them always has: busy ones
    /// are lent as many as `credits_per_connection` asks for, and give them back as they use them. 0 is as many as
    /// give 64 connections all their credits, and more than all connections together can use are not made. Where each
    /// connection has a receive queue, all have equal parts of them. From 0 to 16 777 216.
    receives_shared: u32 = 0,
        because "inferred: the default of connections_max has all its credits, and more connections have memory by load";
    /// Buffers of `message_bytes_max` bytes in which one core holds messages that arrive or leave in
    /// several Sends; further ones wait. From 1 to 65 536.
    reassembly_buffers: u32 = 32,
        because "inferred: half as many as connections; what finds none waits";
    /// Calls that one core can have outstanding as a requester, over all its connections. From 1 to
    /// 65 536, since half of an XID tells calls apart, and at least `credits_per_connection`.
    calls_outstanding_max: u32 = 4096,
        because "inferred: all credits of 128 connections";
    /// Calls of peers that services of one core can keep to answer later. From 1 to 65 536.
    deferred_replies_max: u32 = 1024,
        because "inferred: a quarter of calls_outstanding_max";
    /// Sends that one core can have in flight, over all its connections, each from a send buffer;
    /// further ones wait. From 1 to 65 536.
    send_buffers: u32 = 256,
        because "inferred: eight connections with all their credits in flight";
    /// Work requests that one queue pair has outstanding at most, Sends, grants and RDMA together;
    /// what does not fit waits in the engine. The device's limit lowers it. Has no meaning on shm.
    /// From 16 to 32 768.
    send_queue_depth_max: u32 = 256,
        because "inferred: all Sends, grants and RDMA of a connection with 64 credits";
    /// Commands of other threads that one core's mailbox holds. From 1 to 65 536.
    mailbox_depth: u32 = 256,
        because "inferred: commands are few, and who finds no room waits";
    /// RDMA Reads outstanding on one connection, of either end. The peer's limit and the device's
    /// lower it; on iWARP this end posts none. From 1 to 255, the largest value that a queue pair can
    /// be given.
    read_depth_max: u32 = 16,
        because "the limit of most NICs (ConnectX, and twice that of irdma)";
    /// Buffers of one core for bulk data that travels beside the streams of its messages; 0 for a
    /// core that takes none. Peers' items are read into them, and applications keep them as long
    /// as they like. From 0 to 65 536.
    bulk_buffers: u32 = 0,
        because "inferred: bulk data takes registered memory, so it is asked for";
    /// Bytes of one bulk buffer: a multiple of 4096, so that each starts on a page. From 4096 to
    /// 16 MiB.
    bulk_buffer_bytes: u32 = 65_536,
        because "inferred: a few of them fit the caches; bench-tool raises it for longer payloads";
    /// Calls with bulk data that one core has under way, its own and as many of peers; further ones
    /// wait. From 1 to 65 535.
    bulk_calls_max: u32 = 64,
        because "inferred: two connections with all their credits";
    /// RDMA segments that a peer may put into one header (RCSIZ, -00 section 5.2.4). From 1 to 160,
    /// as many as a header of 4096 bytes holds.
    rdma_segments_max: u32 = 64,
        because "inferred: a payload of 4 MiB in buffers of 64 KiB";

    /// Completions that one poll takes from the completion queue. From 1 to 64.
    reap_batch: u32 = 8,
        because "inferred: more in one poll delays the replies to the first of them";
    /// Bytes that one poll copies at most; the rest of a longer copy is resumed by the next poll.
    /// From 4096 to 16 MiB.
    copy_bytes_per_poll: u32 = 65_536,
        because "inferred: about 10 us, so that one long copy delays no other connection longer";

    /// Bytes of the ring of one shm channel, that is of one direction between two cores. A power of
    /// two, from 8192 to 16 MiB.
    channel_ring_bytes: u32 = 32_768,
        because "inferred: it fits the first-level cache of most processors";
    /// Inbound shm channels that every poll looks at; the others are looked at when their doorbell
    /// rings. From 1 to 64.
    hot_channels_max: u32 = 8,
        because "measured on a prototype of shm: up to so many cost less by being looked at than by doorbells";
    /// One cold shm channel is looked at every so many polls, doorbell or not. From 1 to 65 536.
    cold_sweep_polls: u32 = 16,
        because "measured on a prototype of shm: silent channels cost little beside a poll";
    /// Bytes of a Send up to which shm copies the payload through the ring; the receiver pulls a
    /// larger one from the sender's registered memory. From 0 to 1 MiB, at most
    /// `send_buffer_bytes`, and at most a quarter of `channel_ring_bytes` with the record's header.
    inline_bytes_max: u32 = 1024,
        because "measured on shm: above, pulling from the sender's registered memory wins";
    /// MiB of the registered memory of one core of a peer that shm maps; a peer with more is refused.
    /// From 1 to 1 048 576 (1 TiB).
    peer_arena_mib_max: u32 = 4096,
        because "inferred: a core with 30 000 connections at the default sizes registers as much";
    /// MiB that shm maps of all peers together: the registered memory of each of their cores once,
    /// and a ring for each channel. A peer that does not fit is refused. From 1 to 1 048 576 (1 TiB).
    peer_memory_mib_max: u32 = 65_536,
        because "inferred: sixteen cores of the largest size; the peers have this memory, and the mappings take 1/512 of it";

    /// Bytes of a Send up to which a NIC is asked to take the payload from the work request instead
    /// of from memory (`max_inline_data`). Has no meaning on shm. From 0 to 4096.
    device_inline_bytes_max: u32 = 64,
        because "inferred: Sends up to 64 to 128 bytes gain from it, and every NIC but X722 takes 64";
    /// Entries of a Send's gather list. From 1 to 64.
    send_gather_entries_max: u32 = 4,
        because "inferred: header, stream, item and padding; no NIC has fewer";
    /// Entries of a posted receive's scatter list. From 1 to 64.
    receive_scatter_entries_max: u32 = 2,
        because "inferred: an inline segment and one placement segment";

    /// Where the receives of a core are posted: `shared` among its connections where the device can,
    /// or in a queue for each (`own`), as it is on devices without shared receive queues.
    receive_queues: ReceiveQueues = ReceiveQueues::Shared,
        because "inferred: receive memory by load, not by connection";

    /// What becomes of explicit RDMA on a device without memory windows of type 2: `refuse`, and bulk
    /// data stays in messages, or `register`, a registration for each call with a key that opens the
    /// buffer to every peer of the core, or with own receive queues to its own peer alone (-00 section
    /// 10.1.1). Has no meaning on shm.
    without_windows: WithoutWindows = WithoutWindows::Refuse,
        because "-00 section 10.1.1: no memory is opened to other peers unless somebody asks for it";

    /// How long a NIC waits for an acknowledgement before it sends again, as the exponent of two of
    /// 4.096 µs (InfiniBand specification, section 9.7.6.1.3): 14 is 67 ms, 16 is 268 ms, 18 is 1.07 s.
    /// A device may wait up to four times as long. From 1 to 31.
    ack_timeout_exponent: u32 = 16,
        because "inferred: with retry_count a peer that is gone is noticed in two to nine seconds";
    /// How often a NIC sends again what was not acknowledged, before the connection breaks. From 0
    /// to 7; with the ACK timeout it decides how soon a peer that is gone is noticed. Soft-RoCE takes 7
    /// for without end: there it is keep-alives that notice.
    retry_count: u32 = 7,
        because "InfiniBand volume 1: the most that the three bits of a queue pair's attribute hold";
    /// How often a NIC sends again when the peer had no receive posted, each time after the time
    /// that the peer asks for (its `min_rnr_timer_code`). From 0 to 7, which is for ever. An honest
    /// peer posts a receive for each credit, so that retries are needed only while it is delayed. Six
    /// retries take between 4 ms (code 12) and four seconds (code 0, as Linux asks for), which may be
    /// less than the delay of an honest peer. What ends a connection whose peer takes nothing is `stall_timeout_ms`.
    rnr_retry_count: u32 = 7,
        because "InfiniBand volume 1: 7 is for ever; fewer would break connections over nothing";
    /// The time that a peer is told to wait when no receive is posted here, as the code of the
    /// InfiniBand specification, section 9.7.5.2.8: 1 is 0.01 ms, 12 is 0.64 ms, 31 is 491 ms, and 0,
    /// which is what connections get unless it is set, is 655 ms. From 0 to 31.
    min_rnr_timer_code: u32 = 12,
        because "reports of others: code 0 (655 ms) stalls for seconds, 12 to 13 does not";
    /// The type of service byte (DSCP and ECN) of RoCE v2 and iWARP packets; 0 leaves it to the
    /// system. From 0 to 255; 104 is DSCP 26, a common choice for RDMA with priority flow control.
    type_of_service: u32 = 0,
        because "inferred: the system's administrator knows the network";

    /// Whether registered memory is made of hugepages: `prefer`, `require` or `never`.
    hugepages: Hugepages = Hugepages::Prefer,
        because "inferred: fewer translations for processor and NIC; a machine without any still works";
    /// Bytes of one hugepage: 2 MiB (2 097 152) or 1 GiB (1 073 741 824).
    hugepage_bytes: u32 = 2 * 1024 * 1024,
        because "x86-64 and arm64 with pages of 4 KiB: the size that every such machine has";

    /// What a core does between polls that found nothing: `spin`, `pause` or `park`.
    idle: Idle = Idle::Spin,
        because "measured on shm: a wake-up costs about 35 us each way, on a virtual machine";
    /// Microseconds without work after which a core sleeps, with `idle = "park"`. From 1 to
    /// 10 000 000 (ten seconds).
    idle_park_after_us: u32 = 100,
        because "inferred: about three times what a wake-up costs";

    /// Milliseconds that a connect may take, version and property exchange included. From 1 to
    /// 3 600 000 (an hour).
    connect_timeout_ms: u32 = 15_000,
        because "inferred: the Linux connection manager repeats a lost request after 4.3 s, so that three are sent";
    /// Attempts in a second at most to make lost connections again, over all peers of a process.
    /// From 1 to 65 536.
    reconnects_per_second_max: u32 = 100,
        because "inferred: a server that comes back is not buried by its clients";
    /// Milliseconds after which a call without a reply fails. From 1 to 3 600 000.
    call_timeout_ms: u32 = 30_000,
        because "inferred: longer than a device goes on trying to send";
    /// Milliseconds between keep-alive ticks: an end that sent nothing for so long sends a message
    /// that grants nothing. 0 is no keep-alive, for a peer that knows none; otherwise from 10 to
    /// 3 600 000, and the same at both ends.
    keep_alive_interval_ms: u32 = 1_000,
        because "inferred: one message in a second costs nothing";
    /// Ticks without any message after which a peer is taken for dead, and the connection closed.
    /// From 3, because an end speaks at every second tick, to 255. The default is longer than a
    /// device goes on trying to send (`ack_timeout_exponent`, `retry_count`).
    keep_alive_silent_ticks_max: u32 = 10,
        because "inferred: ten seconds, longer than a device goes on trying to send";
    /// Milliseconds that a peer may leave a message in several Sends unfinished, or replies without
    /// the credits to send them, before its connection is closed; it may be a quarter longer. 0 is no
    /// limit; otherwise from 100 to 3 600 000. The default is longer than calls wait for replies.
    stall_timeout_ms: u32 = 60_000,
        because "inferred: longer than calls wait for replies";
    /// Milliseconds that outstanding calls are given to end when a connection is closed in good
    /// order. From 1 to 3 600 000.
    drain_timeout_ms: u32 = 5_000,
        because "inferred: longer than calls take";
}

impl Profile {
    /// The profile of an embedded family, or of one of its devices as `FAMILY/DEVICE`, with no
    /// further layers.
    ///
    /// # Errors
    /// [`Error::UnknownProfile`] when there is none of that name.
    pub fn by_name(name: &str) -> Result<Self, Error> {
        Ok(crate::Layers::named(name)?.build()?.profile)
    }

    /// The profile of a user's file, with the family under it that the file names, and no further
    /// layers.
    ///
    /// # Errors
    /// [`Error::Read`] or [`Error::Parse`] when the file cannot be read or understood,
    /// [`Error::UnknownProfile`] when it builds on a family that does not exist, and
    /// [`Error::Range`], [`Error::Form`] or [`Error::Relation`] when its values cannot be used.
    pub fn load(path: impl AsRef<std::path::Path>) -> Result<Self, Error> {
        Ok(crate::Layers::file(path)?.build()?.profile)
    }

    /// The profile as TOML, one knob a line.
    #[must_use]
    pub fn to_toml(&self) -> String {
        // Serialization fails on maps without string keys and on writers that fail; this struct of
        // integers and unit variants, written to a string, has neither.
        toml::to_string(self).expect("a struct of integers and names is always valid TOML")
    }

    /// The value of the knob of that name as TOML writes it, or `None` when there is no such knob.
    #[must_use]
    pub fn value_text(&self, knob: &str) -> Option<String> {
        let table = toml::Table::try_from(self).ok()?;
        Some(table.get(knob)?.to_string())
    }
}

impl Settings {
    /// Sets one knob from `NAME=VALUE`, as a command line gives it. A later assignment of the same
    /// knob replaces the earlier one. Quotes around a word are optional (`idle=park`).
    ///
    /// # Errors
    /// [`Error::Assignment`] when there is no `=`, no knob of that name, or the value is not of
    /// the knob's kind.
    pub fn assign(&mut self, assignment: &str) -> Result<(), Error> {
        let refuse = |reason: String| Error::Assignment {
            text: assignment.to_owned(),
            reason,
        };
        let (name, value) = assignment
            .split_once('=')
            .map(|(name, value)| (name.trim(), value.trim()))
            .ok_or_else(|| refuse("write it as NAME=VALUE".to_owned()))?;
        if !Profile::KNOBS.contains(&name) {
            return Err(refuse(format!(
                "no knob is called {name:?}; the knobs are {}",
                Profile::KNOBS.join(", ")
            )));
        }
        let value = value.trim_matches('"');
        let is_word = value.starts_with(|first: char| first.is_ascii_alphabetic());
        let quote = if is_word { "\"" } else { "" };
        // A line break would smuggle in a second assignment.
        if value.chars().any(char::is_control) {
            return Err(refuse("the value holds a control character".to_owned()));
        }
        let one: Settings = toml::from_str(&format!("{name} = {quote}{value}{quote}"))
            .map_err(|error| refuse(error.message().to_owned()))?;
        self.merge(&one);
        Ok(())
    }
}
