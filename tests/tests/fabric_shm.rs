//! The conformance suite of the fabric, on the `shm` provider.
#![forbid(unsafe_code)]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rpcrdma_fabric::clock::{Clock, Ticks};
use rpcrdma_fabric::interface::QueuePairId;
use rpcrdma_fabric::memory::{Arena, ArenaOptions, HugePages};
use rpcrdma_fabric::shm;
use rpcrdma_tests::fabric_conformance::{Extras, Fault, Harness, PortOptions};

/// Calibrating a clock takes time, so there is one for all tests.
fn clock() -> Clock {
    static CLOCK: OnceLock<Clock> = OnceLock::new();
    CLOCK.get_or_init(Clock::new).clone()
}

/// Tests run in threads of one process, in which ports and names are to be told apart.
fn unique() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Ports and managers of `shm`, with a clock that can be set forward.
struct ShmHarness {
    clock: Clock,
    passed: Ticks,
}

impl Harness for ShmHarness {
    type Port = shm::Port;
    type Manager = shm::Manager;

    fn new() -> Self {
        Self {
            clock: clock(),
            passed: 0,
        }
    }

    fn extras() -> Extras {
        Extras {
            set_delay: true,
            faults: true,
            copied_bytes_per_poll_max: Some(64 << 10),
        }
    }

    fn malformed_address() -> &'static str {
        "no address at all"
    }

    fn port(&mut self, options: PortOptions) -> (shm::Port, shm::PortHandle) {
        let arena = Arena::shared(&ArenaOptions {
            bytes: options.arena_bytes,
            huge_pages: HugePages::Never,
        })
        .expect("an arena of ordinary pages");
        let mut config = shm::PortConfig::new(unique(), arena, self.clock.clone());
        config.queue_pairs_max = options.queue_pairs;
        config.send_queue_depth_max = options.send_queue_depth;
        config.windows_max = options.windows;
        config.delay = options.delay;
        shm::Port::new(config).expect("a port of moderate size")
    }

    fn manager(&mut self) -> shm::Manager {
        shm::Manager::new().expect("a manager")
    }

    fn fresh_address(&mut self) -> String {
        format!("shm:conformance-{}-{}", std::process::id(), unique())
    }

    fn now(&self) -> Ticks {
        self.clock.now() + self.passed
    }

    fn pass(&mut self, time: Duration) {
        self.passed += self.clock.ticks(time);
    }

    fn fault(&self, queue_pair: QueuePairId, fault: Fault) -> Option<shm::Notice> {
        let local = shm::QueuePairNumber(queue_pair.index | queue_pair.generation << 16);
        Some(shm::Notice::Inject(match fault {
            Fault::DropConnection => shm::Fault::DropConnection { local },
            Fault::FailNextWork(status) => shm::Fault::FailNextWork { local, status },
            Fault::ReceiverNotReady { polls } => shm::Fault::ReceiverNotReady { polls },
        }))
    }
}

rpcrdma_tests::fabric_conformance!(conformance, ShmHarness, skipped []);
