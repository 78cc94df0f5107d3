//! What the cores of a test talk through.

use std::time::Duration;

use rpcrdma_fabric::clock::Clock;
use rpcrdma_fabric::interface::{Port, PortSetup};
use rpcrdma_fabric::memory::{Arena, ArenaOptions, HugePages};
use rpcrdma_fabric::shm;

use super::Form;

/// How large a port is to be.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub arena_bytes: u64,
    pub connections: u32,
    pub receives_per_connection: u32,
    /// Less than usual of what is short otherwise at many connections alone.
    pub limits: Option<Limits>,
}

/// What a port is short of.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub windows: u32,
    /// Works outstanding on a connection.
    pub send_queue_depth: u32,
}

/// Which of the two ends of a joint are polled.
pub type Polled = [bool; 2];

/// Each test program names one, as `TestFabric`.
pub trait Fabric {
    type Port: Port;
    /// What prepared queue pairs are made of.
    type Handle;
    /// What joins two ports.
    type Joint;

    /// How much time passes in a turn, for the cores.
    const TURN: Duration;
    /// How much passes while the device has something under way: enough that a core looks for its work.
    // TIME: such a turn takes 100 us at least, so the longest wait of a test passes 12 ms. No deadline is that short.
    const TURN_AT_WORK: Duration = Duration::from_nanos(10);
    /// Whether what is sent takes its time. Otherwise each turn brings what was sent in the one before.
    const WORKS_BY_ITSELF: bool;
    /// Of the cases or rounds of a campaign, one in so many: a device of the lab is emulated.
    const ONE_CASE_IN: u32;
    /// Whether its ports have probes.
    const HAS_PROBES: bool;
    /// The tests that cannot run, and why.
    const SKIPPED: &'static [(&'static str, &'static str)];

    /// The same, with what the device at hand cannot do.
    fn skipped() -> Vec<(&'static str, &'static str)> {
        Self::SKIPPED.to_vec()
    }

    fn port(number: u32, sizes: &Sizes, clock: &Clock) -> (Self::Port, Self::Handle);

    fn join(a: (&Self::Port, &Self::Handle), b: (&Self::Port, &Self::Handle)) -> Self::Joint;

    /// The two ends of one more connection.
    fn prepared_pair(
        joint: &mut Self::Joint,
        a: &Self::Handle,
        b: &Self::Handle,
    ) -> [PreparedQueuePair<Self>; 2];

    /// What a connection manager would tell the ports now.
    fn port_events(
        joint: &mut Self::Joint,
        a: &Self::Handle,
        b: &Self::Handle,
    ) -> [Option<Told<Self>>; 2];

    /// Whether the device works on something that polls of these ends bring.
    fn is_under_way(joint: &Self::Joint, polled: Polled) -> bool;

    /// Lets a device work.
    fn work();

    /// A fault by which the first connection of a port breaks.
    fn broken_link() -> Told<Self>;
}

/// An end of a connection.
pub type PreparedQueuePair<F> = <<F as Fabric>::Port as PortSetup>::PreparedQueuePair;
/// What a connection manager tells a port.
pub type Told<F> = <<F as Fabric>::Port as PortSetup>::PortEvent;

/// Whether the test cannot run on the fabric of this program; then it says so.
pub fn skips(test: &str) -> bool {
    let skipped = crate::TestFabric::skipped().into_iter();
    let why = skipped
        .filter(|(name, _)| *name == test)
        .map(|(_, why)| why);
    why.inspect(|why| println!("skipped {test}: {why}")).count() > 0
}

/// Ends the test if the fabric of this program cannot run it.
macro_rules! unless_skipped {
    ($test:literal) => {
        if $crate::support::fabric::skips($test) {
            return;
        }
    };
}
pub(crate) use unless_skipped;

/// Fails unless what is skipped is told, and the list of it is of tests that there are.
pub fn check_skipped() {
    let program = std::env::current_exe().expect("a test program");
    let listed = std::process::Command::new(program).arg("--list").output();
    let listed = listed.expect("it names its tests").stdout;
    let listed = String::from_utf8(listed).expect("names");
    for (test, _) in crate::TestFabric::skipped() {
        let name = format!("::{test}: test");
        assert!(listed.lines().any(|line| line.ends_with(&name)), "{test}");
        assert!(skips(test), "it is told");
    }
}

/// How many of all rounds of a campaign are run here; all of them where the environment has `RPCRDMA_WHOLE`.
pub fn rounds(all: usize) -> usize {
    if std::env::var_os("RPCRDMA_WHOLE").is_some() {
        return all;
    }
    all / usize::try_from(crate::TestFabric::ONE_CASE_IN).expect("small")
}

/// The cases of a list that are run here, the first among them; all of them where the environment has `RPCRDMA_WHOLE`.
pub fn some_of<T>(cases: impl IntoIterator<Item = T>) -> impl Iterator<Item = T> {
    const MANY: usize = 1 << 10;
    // An odd step: every value comes of what the cases combine, also where it takes turns with one other.
    cases.into_iter().step_by((MANY / rounds(MANY)) | 1)
}

/// Shared memory. Whatever is sent is there when the peer polls, and time is what the test says.
#[derive(Debug)]
pub struct Shm;

impl Fabric for Shm {
    type Port = shm::Port;
    type Handle = shm::PortHandle;
    type Joint = shm::Joint;

    const TURN: Duration = Duration::from_micros(1);
    const WORKS_BY_ITSELF: bool = false;
    const ONE_CASE_IN: u32 = 1;
    const HAS_PROBES: bool = false;
    const SKIPPED: &'static [(&'static str, &'static str)] = &[];

    fn port(number: u32, sizes: &Sizes, clock: &Clock) -> (shm::Port, shm::PortHandle) {
        let arena = Arena::shared(&ArenaOptions {
            bytes: sizes.arena_bytes,
            huge_pages: HugePages::Never,
        })
        .expect("memory for a test");
        let mut config = shm::PortConfig {
            own_receive_queues: crate::FORM == Form::OwnQueues,
            ..shm::PortConfig::new(number, arena, clock.clone())
        };
        config.queue_pairs_max = config.queue_pairs_max.max(sizes.connections);
        config.work_requests_max = config.work_requests_max.max(2 * config.queue_pairs_max);
        if let Some(limits) = sizes.limits {
            config.windows_max = limits.windows;
            config.send_queue_depth_max = limits.send_queue_depth;
            config.queue_pairs_max = sizes.connections;
            config.work_requests_max = (limits.send_queue_depth + 1).max(2 * sizes.connections);
            config.channel_ring_bytes = 8192;
        }
        shm::Port::new(config).expect("a port")
    }

    fn join(a: (&shm::Port, &shm::PortHandle), b: (&shm::Port, &shm::PortHandle)) -> shm::Joint {
        shm::Joint::new(a.0, a.1, b.0, b.1).expect("a channel")
    }

    fn prepared_pair(
        joint: &mut shm::Joint,
        a: &shm::PortHandle,
        b: &shm::PortHandle,
    ) -> [shm::PreparedQueuePair; 2] {
        let (a, b) = joint.prepared_pair(a, b).expect("a queue pair");
        [a, b]
    }

    fn port_events(
        _: &mut shm::Joint,
        _: &shm::PortHandle,
        _: &shm::PortHandle,
    ) -> [Option<shm::PortEvent>; 2] {
        [None, None]
    }

    fn is_under_way(_: &shm::Joint, _: Polled) -> bool {
        false
    }

    fn work() {}

    fn broken_link() -> shm::PortEvent {
        // The first queue pair of the port: index 0, generation 1.
        let local = shm::QueuePairNumber(1 << 16);
        shm::PortEvent::Inject(shm::Fault::DropConnection { local })
    }
}
