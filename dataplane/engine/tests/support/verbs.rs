//! An RDMA device, the one that `LAB_DEV` names, without a connection manager.

use std::sync::OnceLock;
use std::time::Duration;

use rpcrdma_fabric::clock::Clock;
use rpcrdma_fabric::memory::{Arena, ArenaOptions, HugePages};
use rpcrdma_fabric::verbs::{self, PortEvent};
use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};

use super::Form;
use super::fabric::{Fabric, Polled, Sizes};
use super::under_way::{CountedHandle, CountedPort, Joint, counted};

/// An RDMA device, which works while the cores do something else. Time is what the test says, and
/// passes while the device has nothing under way.
#[derive(Debug)]
pub struct Verbs;

const READS: &str = "the callee posts no RDMA Reads on iWARP";
const INVALIDATED: &str = "no peer invalidates a registration, which stands for a window there";
const UNRECEIVED: &str = "a message that meets no Receive ends the connection on iWARP";

const PIECES: &str = "the device gathers from six places at most";
const REFUSED: &str = "a work is done on iWARP when it has left, and RDMA-CM would tell of the end";

const UNPOLLED: &str = "the device sends on while the peer does not poll";

/// Tests of placement that cannot run on a device, and why.
#[rustfmt::skip]
const PLACEMENT: &[(&str, &str)] = &[
    ("a_placed_item_that_waits_to_be_sent_on_comes_back_when_the_connection_closes", UNPOLLED),
    ("a_reply_that_waits_behind_a_group_leaves_with_its_end", UNPOLLED),
    ("a_reply_that_waits_behind_a_group_of_a_call_leaves_with_its_end", UNPOLLED),
];

/// Tests of placement that cannot run on software iWARP either, and why.
#[rustfmt::skip]
const PLACEMENT_ON_IWARP: &[(&str, &str)] = &[
    ("calls_that_repeat_themselves_and_others_between_them", READS),
    ("a_peer_without_the_extension_is_called_in_plain_version_2", READS),
    ("a_reply_beyond_what_was_reserved_is_asked_for_again", READS),
    ("several_items_and_results_with_continuation", READS),
    ("both_ends_place_at_once_down_to_the_last_credit", READS),
    ("calls_that_may_have_no_chunks_are_placed_or_in_the_stream", READS),
    ("windows_of_a_single_credit_carry_calls_one_way", READS),
    ("a_reply_that_is_found_wrong_is_sent_again", READS),
    ("items_and_results_of_one_call_go_both_ways", READS),
    ("many_calls_of_all_kinds_with_few_windows_and_a_short_send_queue", READS),
    ("call_is_retried_when_its_reply_or_results_do_not_fit", READS),
    ("placement_demanded_by_the_caller_is_used", READS),
    ("shared_results_are_placed_and_come_home", PIECES),
    ("shared_items_are_placed_twice_from_where_they_are", PIECES),
    ("a_late_write_to_a_call_of_both_kinds_is_refused", REFUSED),
    ("a_late_write_to_a_call_that_was_placed_first_is_refused", REFUSED),
];

/// Tests of the engine that cannot run there.
#[rustfmt::skip]
const ENGINE_ON_IWARP: &[(&str, &str)] = &[
    ("calls_that_need_memory_kept_for_peers_are_refused", READS),
    ("a_write_chunk_that_is_too_small_is_made_larger_once", READS),
    ("every_combination_of_lists", READS),
    ("shared_items_are_sent_twice_from_where_they_are", READS),
    ("segments_are_no_longer_than_the_peer_takes", READS),
    ("a_call_for_many_buffers_is_not_passed_by_calls_for_few", READS),
    ("many_calls_at_once_with_few_buffers_and_slots", READS),
    ("many_calls_at_once_with_few_windows_and_a_short_send_queue", READS),
    ("kept_items_are_registered_memory_and_return_on_drop", READS),
    ("windows_of_a_single_credit_carry_bulk_data_both_ways", READS),
    ("a_call_that_is_never_answered_ends_and_then_its_connection", READS),
    ("a_late_reply_gives_the_memory_of_its_call_back", READS),
    ("reads_that_the_requester_does_not_allow_cost_its_connection_alone", READS),
    ("calls_of_the_server_obey_the_levels_of_both_ends", READS),
    ("both_ends_call_inline_in_parts_and_with_chunks_at_once", READS),
    ("calls_have_several_chunks_of_each_kind", READS),
    ("long_calls_and_replies_go_to_chunks", READS),
    ("streams_that_are_not_reduced_go_to_chunks_whole", READS),
    ("a_core_has_drained_when_its_peer_has_taken_the_replies", UNRECEIVED),
    ("a_peer_that_posts_no_receives_leaves_the_others_their_sends_and_is_left_in_time", UNRECEIVED),
    ("a_flood_stays_within_credits_and_keeps_nobody_waiting", UNRECEIVED),
];

/// Tests of the engine that cannot run where registrations replace windows.
#[rustfmt::skip]
const ENGINE_WITHOUT_WINDOWS: &[(&str, &str)] = &[
    ("items_are_read_whatever_their_size", INVALIDATED),
    ("items_are_read_from_read_chunks", INVALIDATED),
    ("a_key_is_dead_when_its_call_has_ended", INVALIDATED),
    ("no_handle_is_to_be_invalidated_of_a_call_with_several_windows", INVALIDATED),
    ("a_handle_that_is_none_of_the_calls_is_not_invalidated", INVALIDATED),
];

/// Whether the device has no memory windows: software iWARP, and cards of tests/lab/as-card.
fn has_no_windows() -> bool {
    static WINDOWS: OnceLock<u32> = OnceLock::new();
    let windows = WINDOWS.get_or_init(|| {
        let context = verbs::Context::open(Some(&device()));
        context.expect("the lab's device").limits().windows
    });
    *windows == 0
}

fn device() -> String {
    std::env::var("LAB_DEV").expect("LAB_DEV: run this in the lab, tests/lab")
}

/// Keeps this thread on the processor that it runs on. A software device works for a thread on that thread's processor. So
/// it has had its turn whenever the thread has slept, also in a guest one of whose processors is held up for a while.
fn stay_on_this_processor() {
    let mut this = CpuSet::new();
    this.set(sched_getcpu());
    sched_setaffinity(None, &this).expect("it runs there already");
}

/// Whether this is the program of the tests of placement.
fn is_of_placement() -> bool {
    let program = std::env::current_exe().expect("a test program");
    let name = program.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.starts_with("placement"))
}

/// Whether the lab's device is software iWARP.
fn is_iwarp() -> bool {
    device().starts_with("siw")
}

impl Fabric for Verbs {
    type Port = CountedPort;
    type Handle = CountedHandle;
    type Joint = Joint;

    const TURN: Duration = Duration::from_micros(10);
    const WORKS_BY_ITSELF: bool = true;
    const ONE_CASE_IN: u32 = 8;
    const HAS_PROBES: bool = true;
    const SKIPPED: &'static [(&'static str, &'static str)] = &[
        ("a_full_send_queue_is_waited_for", UNPOLLED),
        ("a_link_that_breaks", "no fault can be injected"),
        (
            "notices_that_nobody_took_yet_refuse_no_connection_within_the_reserve",
            "a connection does not close within a turn",
        ),
    ];

    fn skipped() -> Vec<(&'static str, &'static str)> {
        let (all, on_iwarp, without_windows): (_, _, &[_]) = match is_of_placement() {
            true => (PLACEMENT, PLACEMENT_ON_IWARP, &[]),
            false => (Self::SKIPPED, ENGINE_ON_IWARP, ENGINE_WITHOUT_WINDOWS),
        };
        let on_iwarp = on_iwarp.iter().filter(|_| is_iwarp());
        let without_windows = without_windows.iter().filter(|_| has_no_windows());
        all.iter()
            .chain(on_iwarp)
            .chain(without_windows)
            .copied()
            .collect()
    }

    fn port(_: u32, sizes: &Sizes, clock: &Clock) -> (CountedPort, CountedHandle) {
        stay_on_this_processor();
        let arena = Arena::private(&ArenaOptions {
            bytes: sizes.arena_bytes,
            huge_pages: HugePages::Never,
        })
        .expect("memory for a test");
        // More than a core takes: it is the core that is to refuse them.
        let queue_pairs = 2 * sizes.connections;
        let mut config = verbs::PortConfig {
            device: Some(device()),
            // Software iWARP has none.
            without_windows: verbs::WithoutWindows::Register,
            queue_pairs_max: queue_pairs,
            receives_max: queue_pairs * sizes.receives_per_connection,
            own_receive_queues: crate::FORM == Form::OwnQueues,
            // An inline segment, and more for placement than the profiles have.
            receive_segments_max: 8,
            // TIME: so many turns of a device that works. A Receive that completes later is posted again, and its
            // message was of a connection that has ended.
            last_receive_timeout: Self::TURN_AT_WORK * 50,
            // Each is a call of the kernel, to make it and to end it.
            windows_max: 128,
            ..verbs::PortConfig::new(arena, clock.clone())
        };
        if let Some(limits) = sizes.limits {
            config.windows_max = limits.windows;
            config.send_queue_depth_max = limits.send_queue_depth;
        }
        counted(verbs::Port::new(config).expect("an RDMA device with an active port"))
    }

    fn join(a: (&CountedPort, &CountedHandle), b: (&CountedPort, &CountedHandle)) -> Joint {
        Joint::new(a.1, b.1, is_iwarp())
    }

    fn prepared_pair(
        joint: &mut Joint,
        a: &CountedHandle,
        b: &CountedHandle,
    ) -> [verbs::PreparedQueuePair; 2] {
        joint.prepared_pair(a, b)
    }

    fn port_events(
        joint: &mut Joint,
        a: &CountedHandle,
        b: &CountedHandle,
    ) -> [Option<PortEvent>; 2] {
        joint.events([a, b])
    }

    fn is_under_way(joint: &Joint, polled: Polled) -> bool {
        joint.is_under_way(polled)
    }

    fn work() {
        // TIME: gives the processor to a software device. A shorter pause costs polls in which nothing comes.
        std::thread::sleep(Duration::from_micros(100));
    }

    fn broken_link() -> PortEvent {
        unreachable!("no fault can be injected")
    }
}
