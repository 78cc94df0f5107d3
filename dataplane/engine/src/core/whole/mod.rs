//! One core against any peers, in virtual time: some of them are honest, and the others do whatever is drawn.
//!
//! A case is a list of steps, each of which is a word ([`step`]): a peer does something, legal or not, and the core
//! polls. While they pass, and when they have passed, six things hold ([`world`], [`ledger`]):
//!
//! 1. **Neighbours are served**: a null call of an honest client, of either version, and a call of the core to an honest
//!    server are answered in a bounded number of polls, whatever the others do.
//! 2. **Everything held is given back** when a connection ends: no table has anything of a connection that is gone,
//!    and when all are gone, every pool is as full as it was.
//! 3. **Each obligation ends by its deadline**: no peer owes anything for twice `stall_timeout`, no call of the core
//!    waits for longer than `call_timeout`, and a connection that is closed is gone in a bounded number of polls.
//! 4. **No call is lost or answered twice**: a call that was right is answered, with a reply or an error, or its connection
//!    ends. No message is answered more often than it was sent, and each call of the core ends once.
//! 5. **Sums match the pools**: what the shared tables say that connections have, and what is free, is what there is.
//! 6. **Nobody sleeps through anything**: in some cases the core sleeps when it has nothing to do, and is polled when an
//!    event of its port, its mailbox or the time wakes it. All the rest holds nevertheless, and a poll while it sleeps
//!    finds nothing.
//!
//! A case that fails is made shorter, and printed as words for `KEPT`, the cases that are played first each time.

mod device;
mod groups;
mod ledger;
mod messages;
mod peer;
mod service;
mod step;
mod world;

use std::any::Any;
use std::cell::RefCell;
use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::{TestError, TestRunner};
use rpcrdma_fabric::clock::Clock;
use rpcrdma_fabric::memory::{Arena, ArenaOptions, HugePages};
use rpcrdma_fabric::shm;
use rpcrdma_protocol::v2::ApplicationHeaderTypes;
use rpcrdma_testkit::Random;

use self::step::Step;
use self::world::World;
use crate::config::CoreConfig;
use crate::counters::CounterSnapshot;
use crate::placement_segments::PlacementConfig;

/// Peers that do what is drawn.
const HOSTILE: u32 = 6;

/// When a call of the core ends without an answer.
const CALL_TIMEOUT_MS: u32 = 10_000;

/// Steps of a case: half as many on average.
const STEPS_MAX: usize = 2000;

/// Cases of each of the two properties: half a million steps, which take 33 s of a processor.
const CASES: u32 = 500;
/// How often a case that fails is played again to shorten it.
const PLAYED_AGAIN_MAX: usize = 4000;
/// Where the environment has `RPCRDMA_WHOLE`; a larger number there is taken instead.
const CASES_WHOLE: u32 = 2 * CASES;

fn cases() -> u32 {
    let Ok(whole) = std::env::var("RPCRDMA_WHOLE") else {
        return CASES;
    };
    whole.parse().unwrap_or(0).max(CASES_WHOLE)
}

/// What does not happen here, and must not: ports keep their promise that nothing comes behind the end of a queue pair,
/// nobody authenticates himself, shared memory has no probes, and no peer offers more Write chunks than are taken, and the
/// service discards no call.
const NEVER: &[&str] = &[
    "completions_late",
    "messages_unauthenticated",
    "probes_sent",
    "paths_dead",
    "errors_sent_write_chunks",
    "calls_discarded",
];

/// What happens so seldom that a run may pass without it, and would be right: a message that finds no Receive at a peer
/// that withholds them, a message that no buffer is put together in, and RDMA Reads beyond those that a connection may
/// have in flight.
const SELDOM: &[&str] = &[
    "receiver_not_ready",
    "reassemblies_refused",
    "awaiting_read_depth",
];

/// Whether a counter counts what happens here.
fn is_drawn(name: &str, keep_alive: bool) -> bool {
    let is_of_keep_alive = matches!(name, "peers_silent" | "keep_alives_sent");
    !NEVER.contains(&name) && !SELDOM.contains(&name) && (keep_alive || !is_of_keep_alive)
}

/// What a case is of, beside its steps.
#[derive(Clone, Copy, Debug)]
struct Form {
    keep_alive: bool,
    /// Each connection of the core has a receive queue, as on a device without shared ones.
    own_queues: bool,
    /// Connections share Receives, and have whole windows only when they are busy and others are not.
    lends: bool,
    /// The core drains at the end.
    drains: bool,
    /// The core sleeps when it has nothing to do, and is polled when something wakes it or is due.
    sleeps: bool,
}

/// Of a core that is short of everything.
fn config(connections: u32, form: Form) -> CoreConfig {
    let keep_alive = form.keep_alive;
    CoreConfig {
        connections_max: connections,
        // The partner waits for half of eight, and one more.
        credits_per_connection: if form.lends { 14 } else { 8 },
        credits_guaranteed: 8,
        receives_shared: if form.lends { 11 } else { 0 },
        placement: Some(PlacementConfig {
            inline_segment_bytes: messages::INLINE_BYTES,
            segments: 1,
            segment_bytes: messages::PAGE_BYTES,
            spares: 3,
        }),
        send_buffers: 4,
        message_bytes_max: 20_000,
        message_buffers: 2,
        calls_outstanding_max: 4,
        deferred_max: 3,
        bulk_buffers: 6,
        bulk_buffer_bytes: 4096,
        bulk_calls: 3,
        call_timeout: Duration::from_millis(CALL_TIMEOUT_MS.into()),
        keep_alive_interval: Duration::from_secs(if keep_alive { 2 } else { 0 }),
        stall_timeout: Duration::from_secs(20),
        header_types: ApplicationHeaderTypes::NONE
            .with(messages::OWN)
            .expect("a number of applications"),
        ..CoreConfig::default()
    }
}

/// A port that is short of most things, with so many works outstanding on a connection.
fn port(
    number: u32,
    arena_bytes: u64,
    send_queue_depth_max: u32,
    own_receive_queues: bool,
    clock: &Clock,
) -> (shm::Port, shm::PortHandle) {
    let arena = Arena::shared(&ArenaOptions {
        bytes: arena_bytes,
        huge_pages: HugePages::Never,
    });
    let arena = arena.expect("memory for a test");
    shm::Port::new(shm::PortConfig {
        channel_ring_bytes: 16_384,
        hot_channels_max: 4,
        queue_pairs_max: 12,
        windows_max: 6,
        send_queue_depth_max,
        work_requests_max: 24,
        own_receive_queues,
        ..shm::PortConfig::new(number, arena, clock.clone())
    })
    .expect("a port")
}

/// Plays a case.
fn play(steps: &[Step], clock: &Clock, form: Form) -> Passed {
    let mut world = World::new(clock, form);
    for step in steps {
        world.step(*step);
    }
    world.finish(form.drains)
}

/// What came of cases.
#[derive(Clone, Copy, Debug, Default)]
struct Passed {
    steps: u64,
    polls: u64,
    /// The most polls that an honest peer waited.
    longest_wait: u64,
    /// The same for the partner, and for the core where it waits for the partner.
    longest_of_partner: u64,
    /// The most polls until all was answered, once all peers did what they should.
    longest_end: u64,
    counters: CounterSnapshot,
}

impl Passed {
    fn add(&mut self, other: &Self) {
        self.steps += other.steps;
        self.polls += other.polls;
        self.longest_wait = self.longest_wait.max(other.longest_wait);
        self.longest_of_partner = self.longest_of_partner.max(other.longest_of_partner);
        self.longest_end = self.longest_end.max(other.longest_end);
        self.counters = self.counters.plus(&other.counters);
    }
}

fn cases_of(keep_alive: bool) -> impl Strategy<Value = (Form, Vec<Step>)> {
    let draws = (0..4_u32, any::<bool>(), 0..4_u32, 0..4_u32);
    let form = draws.prop_map(move |(own_queues, lends, drains, sleeps)| Form {
        keep_alive,
        own_queues: own_queues == 0,
        lends,
        drains: drains == 0,
        sleeps: sleeps == 0,
    });
    let steps = (any::<u64>(), 0..=STEPS_MAX).prop_map(|(seed, count)| steps_of(seed, count));
    (form, steps)
}

/// So many steps, drawn from the seed. Drawing each of them from the strategy takes a sixth of the time of the test, and
/// what that is for, a shorter case of one that fails, is done here.
fn steps_of(seed: u64, count: usize) -> Vec<Step> {
    let mut random = Random(seed);
    (0..count).map(|_| Step(random.next())).collect()
}

/// What a test panicked with.
fn text_of(panicked: &(dyn Any + Send)) -> &str {
    let text = panicked.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panicked.downcast_ref::<&str>().copied())
        .unwrap_or("a panic without a text")
}

/// Leaves out of a case that fails what it fails without: runs of steps, from halves of the case to single steps.
fn shortened(mut steps: Vec<Step>, fails: impl Fn(&[Step]) -> bool) -> Vec<Step> {
    let mut run = steps.len().div_ceil(2);
    let mut left = PLAYED_AGAIN_MAX;
    while run != 0 {
        let (mut start, mut is_shorter) = (0, false);
        while start < steps.len() && left != 0 {
            let end = (start + run).min(steps.len());
            let rest = [&steps[..start], &steps[end..]].concat();
            left -= 1;
            if fails(&rest) {
                (steps, is_shorter) = (rest, true);
            } else {
                start = end;
            }
        }
        if left == 0 || (run == 1 && !is_shorter) {
            break;
        }
        run = if run == 1 { 1 } else { run / 2 };
    }
    steps
}

/// Plays what is drawn, and says how much that was.
fn play_all(keep_alive: bool) {
    let clock = Clock::new();
    // TIME: it is printed, and compared with nothing.
    let begin = Instant::now();
    let passed = RefCell::new(Passed::default());
    let config = ProptestConfig {
        // What fails is shortened below.
        max_shrink_iters: 0,
        failure_persistence: None,
        ..ProptestConfig::with_cases(cases())
    };
    let result = TestRunner::new(config).run(&cases_of(keep_alive), |(form, steps)| {
        passed.borrow_mut().add(&play(&steps, &clock, form));
        Ok(())
    });
    if let Err(error) = result {
        let TestError::Fail(reason, (form, steps)) = error else {
            panic!("{error}");
        };
        let quietly = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| ()));
        let failure = |steps: &[Step]| {
            let played = AssertUnwindSafe(|| play(steps, &clock, form));
            let panicked = std::panic::catch_unwind(played).err()?;
            Some(text_of(&*panicked).to_owned())
        };
        let steps = shortened(steps, |steps| failure(steps).is_some());
        let last = failure(&steps);
        std::panic::set_hook(quietly);
        let words: Vec<_> = steps.iter().map(|it| format!("{:#018x},", it.0)).collect();
        panic!(
            "{reason}\n{} steps are enough: {}\n{form:?}\n{steps:#?}\nfor KEPT: {}",
            steps.len(),
            last.unwrap_or_default(),
            words.join(" ")
        );
    }
    let passed = passed.into_inner();
    // TIME: as above.
    let elapsed = begin.elapsed();
    println!(
        "{} steps and {} polls in {elapsed:?}",
        passed.steps, passed.polls
    );
    println!(
        "an honest peer waited for {} polls at most, the partner for {}, the last answer came after {}",
        passed.longest_wait, passed.longest_of_partner, passed.longest_end
    );
    println!("{}", passed.counters);
    // What is drawn gets everywhere.
    let counted = passed.counters.iter();
    let never: Vec<_> = counted
        .filter(|(name, count)| *count == 0 && is_drawn(name, keep_alive))
        .map(|(name, _)| name)
        .collect();
    assert!(never.is_empty(), "these never happened: {never:?}");
}

/// Without keep-alives nothing but what a peer owes tells that it is not there.
#[test]
fn any_peers_leave_a_core_whole() {
    play_all(false);
}

#[test]
fn any_peers_leave_a_core_whole_that_keeps_them_alive() {
    play_all(true);
}

/// A few cases with fixed seeds. They take seconds, which is short enough for the table of mutants.
#[test]
fn a_few_cases_leave_a_core_whole() {
    let clock = Clock::new();
    for seed in 0..16 {
        let form = Form {
            keep_alive: seed & 1 != 0,
            own_queues: seed & 2 != 0,
            lends: seed & 3 == 0,
            drains: seed & 4 != 0,
            sleeps: seed & 8 != 0,
        };
        play(&steps_of(seed, STEPS_MAX), &clock, form);
    }
}

/// As [`KEPT`], of one that fails with no fewer steps: of a drain that waited for the rest of a group without end, because its
/// peer had no credit to send it.
const LONG: &str = include_str!("drain.words");

/// Cases that failed once, when they were as short as they became: the words of their steps.
const KEPT: &[&[u64]] = &[
    // Octets at random that were a call without chunks, which the service took for one whose RDMA Read had failed.
    &[0x0f20_facd_3184_0546],
    // Of a core that was made to leave the slot of a call with chunks to a connection that had ended.
    &[
        0x3107_5f04_608d_603e,
        0x2e0c_f239_4a29_bf3a,
        0x2b11_7de5_751b_f12f,
        0x1e55_9947_c783_5473,
    ],
    // Of a call whose time was up when its connection ended: the next call in its slot was taken for it.
    &[
        0x599e_b7d6_bbd0_f418,
        0x3d29_1875_1f21_5d2d,
        0x7744_dd15_6f1c_1ecd,
        0x0e16_34ce_23b0_ab3b,
        0xb764_d9f2_ad3f_60b0,
        0x5783_20aa_d983_56ae,
        0xb293_bed8_21ce_f709,
        0xbf1e_88be_f349_6518,
        0x47c2_f817_780d_aa53,
        0xf579_cada_3294_e857,
        0x5645_b160_77f7_4e0d,
        0xb75c_aadf_e9eb_5cde,
        0x3c19_af8e_b990_e52e,
        0x65a6_62f6_a1df_6a42,
        0x1c84_66ed_4e14_1a12,
        0xaf97_0f14_db36_72c1,
        0x666e_a887_345d_dec0,
        0x747b_b318_c964_dc3f,
        0x6df6_e7a8_ead8_2abb,
        0x0ad6_0704_5894_77f0,
        0x3f3e_f1b3_174e_6b9c,
        0xb36a_dd5b_7e52_307d,
        0x0e10_f250_8fea_b7f5,
        0xb8ef_aee6_ee27_623a,
        0x6474_3285_f718_872a,
        0x4f56_6e57_4a2a_3e50,
        0x355d_78d6_5be1_50fa,
        0xcbf5_6a46_bf24_04e4,
        0x0734_6a1e_efe1_e6ab,
        0x8934_3246_b927_80e0,
        0xa0ac_8f34_ae46_e93b,
        0x6d59_41d7_943b_14d5,
        0x1073_d3c3_e6f9_cdee,
        0x5ed2_2029_9d71_979b,
        0x9cf4_5cb1_1861_5616,
        0x3ad7_886d_3228_d84b,
        0xdb85_7ce1_5eb3_191e,
        0x4042_5c0b_e136_956e,
        0xf742_452e_2d15_099d,
        0x445f_7358_cc70_82b9,
        0x3eb2_8d8a_5875_0f71,
        0x4504_906c_b250_fe79,
        0xefb6_301d_0582_9931,
        0x01cd_af61_ac70_3bd2,
        0x10a3_af28_4e9d_08f0,
        0x2320_6b1e_c998_8b08,
        0x53b8_ddca_444a_f2c2,
        0x96ed_67fa_4fa5_48f6,
    ],
    // Whose last reply waits for buffers that calls of the core have until their time is up.
    &[
        0x2253_3409_940e_0950,
        0xf131_97d5_99a0_8dea,
        0xc692_ca8f_e086_360a,
        0xf1c5_e3e8_af06_7f90,
        0xa073_b423_c797_aa78,
        0x798e_efb1_2272_9d8f,
        0x8e9a_8873_9080_ef9a,
        0x2c40_7cdd_d81e_79fd,
        0x2f76_1ca9_8080_d6c5,
        0x96cf_834a_3482_a837,
        0x1504_2066_50fd_3348,
        0xc013_d297_b0a8_b7b5,
        0xb15f_6dad_61ce_0b29,
        0xc506_728b_cd3b_7741,
        0x0864_0765_dec8_9b72,
        0x2c02_f7a7_19fa_b7e0,
        0xde8b_17cf_7435_bbe5,
        0x8917_900f_6a36_d760,
        0xbd42_3b93_d728_457f,
        0xeb5a_4ebc_377c_4551,
        0xbab5_3be6_e69c_4751,
        0x6514_2db7_eb54_8bd5,
        0x2f59_073d_e738_9094,
        0x327e_c49b_811c_3d8c,
        0xbe26_f9ec_8f27_ffaf,
        0x813c_8e36_7ec0_2723,
        0x2093_ca84_878d_ecd7,
        0x3712_961b_0fac_b83b,
        0x9362_a393_4cb9_b2af,
        0x0814_d0d0_b56d_b678,
        0x1db8_d5bc_6cbb_e2ff,
        0x4e62_30fd_0fe3_628e,
        0x5720_5b0c_e908_fd66,
        0x91ca_6a1e_0055_3bfe,
        0x5f68_5d01_f35f_2098,
        0x183f_0fb8_64f3_f63e,
        0xdea2_16e3_eee8_0f14,
        0x2a52_1ab2_c5d7_82ec,
    ],
];

#[test]
fn sequences_that_failed_before_pass() {
    let clock = Clock::new();
    let long = LONG.split_whitespace().map(|word| {
        let digits = word.trim_start_matches("0x");
        u64::from_str_radix(digits, 16).expect("a word")
    });
    let long: Vec<_> = long.collect();
    for words in KEPT.iter().copied().chain([&*long]) {
        let steps: Vec<_> = words.iter().copied().map(Step).collect();
        for bits in 0..32 {
            let form = Form {
                keep_alive: bits & 1 != 0,
                own_queues: bits & 2 != 0,
                lends: bits & 16 != 0,
                drains: bits & 4 != 0,
                sleeps: bits & 8 != 0,
            };
            play(&steps, &clock, form);
        }
    }
}
