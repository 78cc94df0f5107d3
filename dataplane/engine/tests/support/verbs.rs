//! An RDMA device, the one that `LAB_DEV` names, without a connection manager.

use std::time::Duration;

use rpcrdma_fabric::clock::Clock;
use rpcrdma_fabric::interface::QueuePairId;
use rpcrdma_fabric::memory::{Arena, ArenaOptions, HugePages};
use rpcrdma_fabric::verbs::{self, Notice, PortHandle};

use super::Form;
use super::fabric::{Fabric, Sizes};

/// An RDMA device, which works while the cores do something else. Time is what the test says, and
/// passes ten times as slowly as it does: so much later may something come on a busy machine.
#[derive(Debug)]
pub struct Verbs;

/// The connections of two ports: what each calls them.
#[derive(Debug, Default)]
pub struct Joint {
    connections: Vec<[QueuePairId; 2]>,
}

impl Fabric for Verbs {
    type Port = verbs::Port;
    type Handle = PortHandle;
    type Joint = Joint;

    const TURN: Duration = Duration::from_micros(10);
    const IDLE_TURNS: Option<usize> = Some(100);
    const ONE_CASE_IN: u32 = 4;
    const SKIPPED: &'static [(&'static str, &'static str)] = &[
        (
            "a_full_send_queue_is_waited_for",
            "the device sends on while the peer does not poll",
        ),
        ("a_link_that_breaks", "no fault can be injected"),
        (
            "notices_that_nobody_took_yet_refuse_no_connection_within_the_reserve",
            "a connection does not close within a turn",
        ),
    ];

    fn port(_: u32, sizes: &Sizes, clock: &Clock) -> (verbs::Port, PortHandle) {
        let arena = Arena::private(&ArenaOptions {
            bytes: sizes.arena_bytes,
            huge_pages: HugePages::Never,
        })
        .expect("memory for a test");
        let device = std::env::var("LAB_DEV").expect("LAB_DEV: run this in the lab, tests/lab");
        // More than a core takes: it is the core that is to refuse them.
        let queue_pairs = 2 * sizes.connections;
        let mut config = verbs::PortConfig {
            device: Some(device),
            queue_pairs_max: queue_pairs,
            receives_max: queue_pairs * sizes.receives_per_connection,
            own_receive_queues: crate::FORM == Form::OwnQueues,
            // An inline segment, and more for placement than the profiles have.
            receive_segments_max: 8,
            // Half of the turns after which nothing is under way any more.
            last_receive_timeout: Self::TURN * 50,
            ..verbs::PortConfig::new(arena, clock.clone())
        };
        if let Some(limits) = sizes.limits {
            config.windows_max = limits.windows;
            config.send_queue_depth_max = limits.send_queue_depth;
        }
        verbs::Port::new(config).expect("an RDMA device with an active port")
    }

    fn join(_: (&verbs::Port, &PortHandle), _: (&verbs::Port, &PortHandle)) -> Joint {
        Joint::default()
    }

    fn seeds(joint: &mut Joint, a: &PortHandle, b: &PortHandle) -> [verbs::Seed; 2] {
        let (a, b) = verbs::seeds(a, b).expect("two queue pairs of one device");
        joint
            .connections
            .push([a.queue_pair.id(), b.queue_pair.id()]);
        [a, b]
    }

    fn notices(joint: &mut Joint, a: &PortHandle, b: &PortHandle) -> [Option<Notice>; 2] {
        let told = |handle: &PortHandle, own: usize| {
            let closing = handle.next_closing()?;
            let mut connections = joint.connections.iter().rev();
            let ended = connections.find(|ends| ends[own] == closing)?;
            Some(Notice::PeerGone(ended[1 - own]))
        };
        let (to_b, to_a) = (told(a, 0), told(b, 1));
        [to_a, to_b]
    }

    fn work() {
        std::thread::sleep(Self::TURN * 10);
    }

    fn broken_link() -> Notice {
        unreachable!("no fault can be injected")
    }
}
