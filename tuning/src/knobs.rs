//! The table of knobs: name, type, default, unit, values, the reason for the default, and the meaning as the
//! documentation comment. Nothing repeats what it says: [`Profile`], [`Settings`], the checks, `docs/tuning.md` and
//! `bench-tool profile show` come from here.

use serde::de::MapAccess;

use crate::choices::{
    Hugepages, Idle, ReceiveQueues, RelaxedOrdering, ThreadDomains, WithoutWindows,
};
use crate::entry::Entry;
use crate::expand::knobs;
use crate::values::{KnobInfo, KnobValue, Value, Values};

use Values::{OneOf, PowersOfTwo, Range, Words, ZeroOrRange};

const KIB: u32 = 1024;
const MIB: u32 = 1024 * KIB;
const GIB: u32 = 1024 * MIB;
const HOUR_MS: u32 = 3_600_000;

/// Sizes of buffers that start on cache lines.
const fn lines(least: u32, most: u32) -> Values {
    let because = "buffers start on cache lines, so that no two cores share one";
    Values::Multiples {
        of: 64,
        least,
        most,
        because,
    }
}

/// Sizes of buffers that start on pages.
const fn pages(least: u32, most: u32) -> Values {
    let because =
        "these buffers start on pages, so that their content can be passed on without a copy";
    Values::Multiples {
        of: 4096,
        least,
        most,
        because,
    }
}

knobs! {
    /// Connections of one core. Three receives for each are reserved at start; a further connect is rejected.
    connections_max: u32 = 64, "connections", Range(1, 65_536),
        because "inferred: receive buffers of 8 MiB at the default sizes";
    /// Connections of one peer (one process on shm, one address on verbs), over all cores of this process.
    peers_connections_max: u32 = 64, "connections", Range(1, MIB),
        because "inferred: one peer may take what one core has";

    /// Size of one receive buffer, transport header included. It is announced to the peer as the inline threshold
    /// (the receive buffer size property, -00 section 5.2.2). The minimum is what every receiver must accept (-00
    /// section 4.3.2).
    receive_buffer_bytes: u32 = 4096, "bytes", lines(4096, MIB),
        because "-00 section 4.3.2 asks for 4096 at least, and Linux announces as many: a header with its lists, and a small call";
    /// Placement segments of one receive buffer: a peer's Send places bulk data in them. With 0 a receive buffer is one
    /// segment of `receive_buffer_bytes`. Otherwise it is one segment of `inline_segment_bytes` and these, and their
    /// sum is announced to the peer.
    placement_segments: u32 = 0, "segments", Range(0, 16),
        because "inferred: placement takes registered memory for every receive, so it is asked for";
    /// Size of one placement segment.
    placement_segment_bytes: u32 = 65_536, "bytes", pages(4096, MIB),
        because "inferred: one segment for most payloads; bench-tool takes shorter ones where leases are to be small";
    /// Size of the first segment of a receive buffer with placement segments. It holds headers and short messages.
    inline_segment_bytes: u32 = 1024, "bytes", lines(256, 64 * KIB),
        because "-00 section 6.4.4: the first message may have 1024 octets";
    /// Placement segments of one core beyond those of its receives. Services can hold as many before messages wait.
    placement_spares: u32 = 64, "segments", Range(1, 65_536),
        because "inferred: 4 MiB that services may keep";
    /// Bulk data up to this size stays in the stream of its message, where both ends place bulk data by Sends.
    inline_item_bytes_max: u32 = 512, "bytes", Range(0, MIB),
        because "inferred: below, copying costs less than a segment";
    /// Bulk data up to this size is placed by Sends, where both ends can. Longer data goes by explicit RDMA, where both
    /// ends can.
    send_placement_bytes_max: u32 = 65_536, "bytes", Range(0, 16 * MIB),
        because "inferred: one placement segment at its default size";
    /// A stream up to this size is continued over several Sends. A longer one goes by explicit RDMA, where both ends
    /// can.
    continued_bytes_max: u32 = 16_384, "bytes", Range(0, 16 * MIB),
        because "inferred: four Sends at the default size; beyond, explicit RDMA has fewer copies";
    /// Size of one send buffer: the longest Send, transport header included (the maximum send size property, -00 section
    /// 5.2.1). The peer's receive buffer size lowers it for each connection. The minimum is the longest first message
    /// (-00 section 6.4.4).
    send_buffer_bytes: u32 = 4096, "bytes", lines(1024, MIB),
        because "as receive_buffer_bytes: longer Sends find no receive at a peer of the same profile";
    /// Longest RPC message, RPC header included, that is sent or received in several Sends (continuation, -00 section
    /// 4.5.2). A longer one is discarded, and answered with a transport error. The default carries 1 MiB of payload.
    message_bytes_max: u32 = MIB + 4096, "bytes", Range(4096, GIB),
        because "inferred: 1 MiB, the largest read or write of common NFS mounts, and a header";
    /// Receives of one connection that can be granted to the peer as credits. One more is reserved for a credit
    /// update. The maximum is that of the 16-bit credit fields (-00 section 4.3.1.1). Calls in the reverse direction
    /// need 3. A message whose data is placed by a Send takes two.
    credits_per_connection: u32 = 32, "receives", Range(1, 65_535),
        because "inferred: as many calls as keep a link busy within a machine room";
    /// Receives that the connections of one core share, beyond the three of each. Busy connections borrow up to
    /// `credits_per_connection`, and return them as they use them. 0 means as many as give 64 connections all their
    /// credits. Never more are made than all connections together can use. Where each connection has a receive queue,
    /// all have equal parts.
    receives_shared: u32 = 0, "receives", Range(0, 1 << 24),
        because "inferred: the default of connections_max has all its credits, and more connections have memory by load";
    /// Buffers of `message_bytes_max` bytes that the connections of one core share, for messages that arrive or leave in
    /// several Sends; further messages wait. Each connection has four more.
    reassembly_buffers: u32 = 32, "buffers", Range(1, 65_536),
        because "inferred: half as many as connections; what finds none waits";
    /// Calls that one core can have outstanding as a requester, over all its connections. The maximum is what half of
    /// an XID can distinguish.
    calls_outstanding_max: u32 = 4096, "calls", Range(1, 65_536),
        because "inferred: all credits of 128 connections";
    /// Calls that services of one core can keep to answer later, shared by its connections. Each connection has one
    /// more.
    deferred_replies_max: u32 = 1024, "calls", Range(1, 65_536),
        because "inferred: a quarter of calls_outstanding_max";
    /// Sends in flight that the connections of one core share, each from a send buffer; further Sends wait. Each
    /// connection has two more, but no more than 1024 connections at a time.
    send_buffers: u32 = 256, "Sends", Range(1, 65_536),
        because "inferred: eight connections with all their credits in flight";
    /// Work requests that one queue pair of a NIC has outstanding: Sends, grants and RDMA together. Further ones wait in
    /// the engine. Has no meaning on shm.
    send_queue_depth_max: u32 = 256, "work requests", Range(16, 32_768),
        because "inferred: all Sends, grants and RDMA of a connection with 64 credits";
    /// Commands of other threads that one core's mailbox holds.
    mailbox_depth: u32 = 256, "commands", Range(1, 65_536),
        because "inferred: commands are few, and who finds no room waits";
    /// RDMA Reads outstanding on one connection, of either end. The peer's limit lowers it. On iWARP it limits only
    /// those of the peer: this end posts none.
    read_depth_max: u32 = 16, "RDMA Reads", Range(1, 255),
        because "the limit of most NICs (ConnectX, and twice that of irdma)";
    /// Buffers of one core for bulk data outside the streams of messages. Peers' data is read into them, and applications
    /// keep them as long as they like. With 0 there are none: data of peers comes in the streams, copied, and calls with
    /// bulk data are refused here. Nodes of the crate `rpcrdma` that are given no profile have 64.
    bulk_buffers: u32 = 0, "buffers", Range(0, 65_536),
        because "inferred: bulk data takes registered memory, so it is asked for";
    /// Size of one bulk buffer.
    bulk_buffer_bytes: u32 = 65_536, "bytes", pages(4096, 16 * MIB),
        because "inferred: a few of them fit the caches; bench-tool raises it for longer payloads";
    /// Calls with bulk data that one core has under way, and as many of peers; further ones wait.
    bulk_calls_max: u32 = 64, "calls", Range(1, 65_535),
        because "inferred: two connections with all their credits";
    /// RDMA segments that a peer may put into one header (RCSIZ, -00 section 5.2.4). The maximum is what a header of
    /// 4096 bytes holds.
    rdma_segments_max: u32 = 64, "segments", Range(1, 160),
        because "inferred: a payload of 4 MiB in buffers of 64 KiB";

    /// Completions that one poll takes from the completion queue.
    reap_batch: u32 = 8, "completions", Range(1, 64),
        because "inferred: more in one poll delays the replies to the first of them";
    /// Bytes that one poll copies. The next poll resumes a longer copy.
    copy_bytes_per_poll: u32 = 266_240, "bytes", Range(4096, 16 * MIB),
        because "inferred: 256 KiB with their headers in one poll; at most about 40 us, of which others have half";

    /// Size of the ring of one shm channel, which is one direction between two cores.
    channel_ring_bytes: u32 = 32_768, "bytes", PowersOfTwo {
        least: 8192, most: 16 * MIB, because: "positions in a ring wrap by a mask",
    }, because "inferred: it fits the first-level cache of most processors";
    /// Inbound shm channels that every poll looks at. The others are looked at when their doorbell rings.
    hot_channels_max: u32 = 8, "channels", Range(1, 64),
        because "measured on a prototype of shm: up to so many cost less by being looked at than by doorbells";
    /// Polls between two looks at a cold shm channel whose doorbell does not ring.
    cold_sweep_polls: u32 = 16, "polls", Range(1, 65_536),
        because "measured on a prototype of shm: silent channels cost little compared with a poll";
    /// A Send up to this size goes through the ring of shm. The receiver pulls a larger one from the sender's
    /// registered memory.
    inline_bytes_max: u32 = 1024, "bytes", Range(0, MIB),
        because "measured on shm: above, pulling from the sender's registered memory wins";
    /// Registered memory of one core of a peer that shm maps. A peer with more is refused.
    peer_arena_mib_max: u32 = 4096, "MiB", Range(1, MIB),
        because "inferred: five times what a core with 65 536 connections registers at the default sizes";
    /// Memory of all peers that shm maps: the registered memory of each of their cores once, and a ring for each
    /// channel. A peer that does not fit is refused.
    peer_memory_mib_max: u32 = 65_536, "MiB", Range(1, MIB),
        because "inferred: sixteen cores of the largest size; the peers have this memory, and the mappings take 1/512 of it";

    /// A NIC takes the payload of a Send up to this size from the work request instead of from memory
    /// (`max_inline_data`). Has no meaning on shm.
    device_inline_bytes_max: u32 = 64, "bytes", Range(0, 4096),
        because "inferred: Sends up to 64 to 128 bytes gain from it, and every NIC but X722 takes 64";
    /// Entries of a Send's gather list.
    send_gather_entries_max: u32 = 4, "entries", Range(1, 64),
        because "inferred: header, stream, item and padding; no NIC has fewer";
    /// Entries of a posted receive's scatter list.
    receive_scatter_entries_max: u32 = 2, "entries", Range(1, 64),
        because "inferred: an inline segment and one placement segment";

    /// Where the receives of a core are posted: in one queue that its connections share (`shared`, where the device has
    /// such queues), or in a queue for each connection (`own`).
    receive_queues: ReceiveQueues = ReceiveQueues::Shared, "", Words(ReceiveQueues::WORDS),
        because "inferred: receive memory by load, not by connection";
    /// What replaces explicit RDMA on a device without memory windows of type 2. With `refuse`, bulk data stays in
    /// messages. With `register`, memory is registered for each call, with a key that opens the buffer to every peer of
    /// the core, or to one peer alone where `receive_queues` is `own` (-00 section 10.1.1). Has no meaning on shm.
    without_windows: WithoutWindows = WithoutWindows::Refuse, "", Words(WithoutWindows::WORDS),
        because "-00 section 10.1.1: no memory is opened to other peers unless somebody asks for it";
    /// Whether the device may write incoming data to memory in any order (`IBV_ACCESS_RELAXED_ORDERING`), which raises the
    /// bandwidth of some machines. Completions stay in order and show whole data, and nothing here looks at data before.
    /// Devices and kernels without it ignore it. Has no meaning on shm.
    relaxed_ordering: RelaxedOrdering = RelaxedOrdering::Allow, "", Words(RelaxedOrdering::WORDS),
        because "ibv_reg_mr(3): a completion ensures that all data is visible; not measured by this project";
    /// Whether the queue pairs of a core are in a thread domain (`ibv_alloc_td`), in which libraries of some devices leave
    /// out the lock of each post. With `prefer`, a core whose device has none keeps the locks: `Node::warnings` of the Rust API
    /// and the warnings of `bench-tool run`, `nfs` and `serve` say so, and the C API does not. Has no meaning on shm.
    thread_domains: ThreadDomains = ThreadDomains::Never, "", Words(ThreadDomains::WORDS),
        because "inferred: nobody else takes the lock of a queue pair, so that it costs nanoseconds; cores may wait for the lock of \
                 a doorbell register of mlx5, but with MLX5_TOTAL_UUARS=64, 52 queue pairs have a register each; not measured, and \
                 tried on no device";

    /// Time until a NIC resends what was not acknowledged: 4.096 µs times two to this power (InfiniBand specification,
    /// section 9.7.6.1.3). 14 is 67 ms, 16 is 268 ms, 18 is 1.07 s. A device may wait up to four times as long.
    ack_timeout_exponent: u32 = 16, "exponent", Range(1, 31),
        because "inferred: with retry_count a dead peer is noticed in two to nine seconds";
    /// Times that a NIC resends what was not acknowledged before the connection breaks. With `ack_timeout_exponent` it
    /// decides how soon a dead peer is noticed. Soft-RoCE resends without end at 7: there keep-alives find dead peers.
    retry_count: u32 = 7, "retries", Range(0, 7),
        because "InfiniBand volume 1: the most that the three bits of a queue pair's attribute hold";
    /// Times that a NIC resends to a peer that had no receive posted, each time after the time that the peer asks for
    /// (its `min_rnr_timer_code`). 7 means without end. `stall_timeout_ms` ends a connection whose peer takes nothing.
    rnr_retry_count: u32 = 7, "retries", Range(0, 7),
        because "InfiniBand volume 1: 7 is without end; fewer would break connections of honest peers";
    /// Time that a peer waits when no receive is posted here, as the code of the InfiniBand specification, section
    /// 9.7.5.2.8. 1 is 0.01 ms, 12 is 0.64 ms, 31 is 491 ms, and 0, the system's default, is 655 ms.
    min_rnr_timer_code: u32 = 12, "code", Range(0, 31),
        because "reports of others: code 0 (655 ms) stalls for seconds, 12 to 13 does not";
    /// Type of service byte (DSCP and ECN) of RoCE v2 and iWARP packets. 0 leaves it to the system. 104 is DSCP 26, a
    /// common choice for RDMA with priority flow control.
    type_of_service: u32 = 0, "byte", Range(0, 255),
        because "inferred: the system's administrator knows the network";

    /// Whether registered memory is on hugepages. With `prefer`, other pages replace missing hugepages; with `require`,
    /// a process without them does not start.
    hugepages: Hugepages = Hugepages::Prefer, "", Words(Hugepages::WORDS),
        because "inferred: fewer translations for processor and NIC; a machine without any still works";
    /// Size of one hugepage.
    hugepage_bytes: u32 = 2 * MIB, "bytes", OneOf {
        numbers: &[2 * MIB, GIB], because: "hugepages are 2 MiB or 1 GiB large",
    }, because "x86-64 and arm64 with pages of 4 KiB: the size that every such machine has";

    /// What a core does after a poll that found nothing: poll again (`spin`), pause first (`pause`), or sleep after
    /// `idle_park_after_us` (`park`).
    idle: Idle = Idle::Spin, "", Words(Idle::WORDS),
        because "measured on shm: a wake-up costs about 35 us each way, on a virtual machine";
    /// Time without work after which a core sleeps, with `idle = "park"`.
    idle_park_after_us: u32 = 100, "µs", Range(1, 10_000_000),
        because "inferred: about three times what a wake-up costs";
    /// The share of its time that a core stays awake without work, with `idle = "park"`: it bounds what the processor does
    /// where work comes more often than every `idle_park_after_us`. 100 sets no bound.
    idle_awake_percent: u32 = 100, "%", Range(0, 100),
        because "inferred: a core that has work often is better awake; an appliance that shares processors chooses 10 to 20";

    /// Time for a connect, version and property exchange included.
    connect_timeout_ms: u32 = 15_000, "ms", Range(1, HOUR_MS),
        because "inferred: the Linux connection manager repeats a lost request after 4.3 s, so that three are sent";
    /// Rate of attempts to make lost connections again, over all peers of a process.
    reconnects_per_second_max: u32 = 100, "1/s", Range(1, 65_536),
        because "inferred: a server that comes back is not buried by its clients";
    /// Time after which a call without a reply fails.
    call_timeout_ms: u32 = 30_000, "ms", Range(1, HOUR_MS),
        because "inferred: longer than a device goes on trying to send";
    /// Time between keep-alive ticks, the same at both ends: an end that sent nothing for so long sends a message that
    /// grants nothing. At each tick a peer that has not answered the first message is sent a probe. 0 disables both, for a
    /// peer that does not know them.
    keep_alive_interval_ms: u32 = 1_000, "ms", ZeroOrRange {
        least: 10, most: HOUR_MS, because: "a tick must last much longer than a message takes",
    }, because "inferred: one message in a second costs nothing";
    /// Ticks without any message after which a peer is considered dead, and the connection is closed. The minimum is 3
    /// because an end sends at every second tick.
    keep_alive_silent_ticks_max: u32 = 10, "ticks", Range(3, 255),
        because "inferred: ten seconds, longer than a device goes on trying to send";
    /// Time for a peer to send its first message, to continue a message, to grant credits for replies, to take what is
    /// sent to it, and to acknowledge a probe. Then its connection is closed, up to a quarter later. 0 means no limit.
    stall_timeout_ms: u32 = 60_000, "ms", ZeroOrRange {
        least: 100, most: HOUR_MS, because: "a peer that is only busy must not lose its connection",
    }, because "inferred: longer than calls wait for replies";
    /// At a client with several addresses: time without a sign of life from a path, while a call waits for its reply. Then the
    /// path is sent a probe, which the peer's device answers also when its service is slow. 0 sends none.
    path_suspect_ms: u32 = 200, "ms", ZeroOrRange {
        least: 20, most: HOUR_MS, because: "a core looks four times within it",
    }, because "inferred: a Send is acknowledged within microseconds, and a pause of the network lasts milliseconds";
    /// Time for the answer to that probe. Then the connection ends, and the client connects at the next address. Both times
    /// together must be longer than one transfer of bulk data takes, and than a server is without a posted receive.
    path_probe_ms: u32 = 200, "ms", Range(20, HOUR_MS),
        because "inferred: as path_suspect_ms";
    /// Time for outstanding calls when a connection is closed in order.
    drain_timeout_ms: u32 = 5_000, "ms", Range(1, HOUR_MS),
        because "inferred: longer than calls take";
}
