//! Tests of two ports of an RDMA device, connected without a connection manager, in one thread. Runs in the lab
//! (tests/lab), on the device in `LAB_DEV`.

mod closing;
mod moving;
mod windows;

use std::time::Duration;

use rpcrdma_fabric::clock::Clock;
use rpcrdma_fabric::interface::prelude::*;
use rpcrdma_fabric::interface::{
    Completion, CompletionBatch, CompletionKind, Gather, QueuePairId, ReceiveQueueAttributes,
    ReceiveQueueId, Status, WorkId,
};
use rpcrdma_fabric::memory::{Arena, ArenaOptions, Buffer, HugePages, Pool, PoolShape};
use rpcrdma_fabric::verbs::{Port, PortConfig, PortHandle, WithoutWindows, join};
use rpcrdma_testkit::Wait;

/// The time that ports give a device to flush, but in a test of that time.
// TIME: a day is longer than any test may run, so no slow device is taken for one that flushes nothing.
const NEVER: Duration = Duration::from_secs(24 * 60 * 60);
const BUFFER_BYTES: u32 = 16 << 10;
const RECEIVES: u32 = 16;

/// Tests that cannot run on software iWARP, with the reason.
#[rustfmt::skip]
const SKIPPED_ON_IWARP: &[(&str, &str)] = &[
    (
        "a_probe_finds_a_peer_that_is_gone",
        "what is posted after the peer has gone never completes: RDMA-CM tells of the end",
    ),
    ("reads_beyond_the_depth_wait", "this end posts no RDMA Reads on iWARP"),
    ("reads_of_many_segments_are_cut", "this end posts no RDMA Reads on iWARP"),
    ("the_peer_invalidates_once", "it has no memory windows, and a peer cannot invalidate a registration"),
    (
        "a_key_of_another_queue_pair_is_refused",
        "it has no memory windows, and a registration is of no one queue pair",
    ),
];

fn device() -> String {
    std::env::var("LAB_DEV").expect("LAB_DEV: run this in the lab, tests/lab")
}

/// Whether the lab's device is software iWARP.
fn is_iwarp() -> bool {
    device().starts_with("siw")
}

/// Returns true, and prints the reason, if the test cannot run on the lab's device.
fn skips(test: &str) -> bool {
    let why = SKIPPED_ON_IWARP.iter().find(|(name, _)| *name == test);
    let why = why.filter(|_| is_iwarp());
    why.inspect(|(_, why)| println!("skipped {test}: {why}"))
        .is_some()
}

/// Skipped tests are printed, and the list has only existing tests.
#[test]
fn port_skip_list_names_existing_tests() {
    let program = std::env::current_exe().expect("a test program");
    let listed = std::process::Command::new(program).arg("--list").output();
    let listed = listed.expect("it names its tests").stdout;
    let listed = String::from_utf8(listed).expect("names");
    for (test, _) in SKIPPED_ON_IWARP {
        let name = format!("::{test}: test");
        assert!(listed.lines().any(|line| line.ends_with(&name)), "{test}");
        assert_eq!(skips(test), is_iwarp());
    }
}

fn clock() -> Clock {
    static CLOCK: std::sync::OnceLock<Clock> = std::sync::OnceLock::new();
    CLOCK.get_or_init(Clock::new).clone()
}

/// A port with a pool and posted Receives.
struct End {
    port: Port,
    handle: PortHandle,
    pool: Pool,
    queue: ReceiveQueueId,
    completions: Vec<Completion>,
}

impl End {
    fn new(adjust: impl Fn(&mut PortConfig)) -> Self {
        let arena = Arena::private(&ArenaOptions {
            bytes: 4 << 20,
            huge_pages: HugePages::Never,
        })
        .expect("memory");
        let mut config = PortConfig::new(arena, clock());
        config.device = Some(device());
        config.without_windows = WithoutWindows::Register;
        config.queue_pairs_max = 16;
        config.work_requests_max = 512;
        config.receives_max = 512;
        config.send_queue_depth_max = 64;
        config.windows_max = 32;
        config.flush_timeout = NEVER;
        adjust(&mut config);
        let (mut port, handle) = Port::new(config).expect("an RDMA device with an active port");
        let mut pool = port
            .carve(PoolShape {
                buffers: 128,
                buffer_bytes: BUFFER_BYTES,
                stride_bytes: BUFFER_BYTES,
                align_bytes: 4096,
            })
            .expect("the arena holds the pool");
        let queue = port
            .create_receive_queue(ReceiveQueueAttributes {
                depth: RECEIVES,
                segments_max: 1,
            })
            .expect("a receive queue");
        for _ in 0..RECEIVES {
            let buffer = pool.take().expect("a buffer");
            let receive = port
                .create_receive(queue, &mut std::iter::once(buffer))
                .expect("a Receive");
            port.post_receive(receive);
        }
        port.flush_receives();
        Self {
            port,
            handle,
            pool,
            queue,
            completions: Vec::new(),
        }
    }

    fn turn(&mut self) {
        self.port.flush_receives();
        self.port.flush_sends();
        let mut batch = CompletionBatch::new();
        self.port.poll(clock().now(), &mut batch);
        self.completions.extend(batch.drain());
        while let Some(buffer) = self.port.next_returned() {
            self.pool.give(buffer);
        }
    }

    fn buffer_with(&mut self, data: &[u8]) -> Buffer {
        let mut buffer = self.pool.take().expect("a buffer");
        self.port.memory().bytes_mut(&mut buffer)[..data.len()].copy_from_slice(data);
        buffer
    }

    fn gather(&mut self, parts: &[&[u8]]) -> Gather {
        let mut list = Gather::new();
        for part in parts {
            let bytes = u32::try_from(part.len()).expect("a short part");
            let buffer = self.buffer_with(part);
            list.push(buffer, 0, bytes).expect("it fits");
        }
        list
    }

    fn counter(&self, name: &str) -> u64 {
        self.port
            .counters()
            .into_iter()
            .find_map(|(other, value)| (other == name).then_some(value))
            .unwrap_or_else(|| panic!("there is no counter {name}"))
    }
}

/// Two ends with one queue pair.
struct Pair {
    a: End,
    b: End,
    a_id: QueuePairId,
    b_id: QueuePairId,
}

impl Pair {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(adjust: impl Fn(&mut PortConfig)) -> Self {
        let (mut a, mut b) = (End::new(&adjust), End::new(&adjust));
        let queues = (a.queue, b.queue);
        let (a_id, b_id) = join(&mut a.port, &a.handle, &mut b.port, &b.handle, queues)
            .expect("two queue pairs of one device");
        Self { a, b, a_id, b_id }
    }

    fn until<R>(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> Option<R>) -> R {
        let wait = Wait::begin(what);
        loop {
            if let Some(result) = done(self) {
                return result;
            }
            wait.look(|| {
                let [a, b] = [&self.a, &self.b]
                    .map(|end| format!("{:?} {:?}", end.completions, end.port.counters()));
                format!("\na {a}\nb {b}")
            });
            self.a.turn();
            self.b.turn();
        }
    }

    /// The next message at `b` with the status of its Receive. The Receive is posted again.
    fn arrival(
        &mut self,
    ) -> (
        Status,
        Vec<u8>,
        Option<rpcrdma_fabric::interface::RemoteKey>,
    ) {
        let completion = self.until("a message", |pair| take_receive(&mut pair.b));
        let CompletionKind::Receive {
            receive,
            bytes,
            invalidated,
        } = completion.kind
        else {
            panic!("{completion:?} is no Receive");
        };
        let data = self.b.port.received(&receive)[..bytes as usize].to_vec();
        self.b.port.post_receive(receive);
        (completion.status, data, invalidated)
    }

    /// Waits for a signalled work of `a` to complete.
    fn finished(&mut self, work: WorkId) -> (Status, Option<Gather>) {
        self.until("signalled work", |pair| take_work(&mut pair.a, work))
    }

    /// Handles a work that the peer refuses: its status shows it or, on iWARP, where a work is complete when it has
    /// left, the connection ends.
    fn refused(&mut self, status: Status) {
        if is_iwarp() {
            assert!(matches!(status, Status::Success | Status::Flushed));
            // Without a connection manager nothing notifies the port, and everything that it posts from now on is
            // lost.
            self.a.port.disconnect(self.a_id);
            self.b.port.disconnect(self.b_id);
            self.ended();
        } else {
            assert_eq!(status, Status::RemoteAccess);
        }
    }

    fn ended(&mut self) {
        self.until("the end", |pair| {
            // The two queue pairs may have the same id, because each port counts its own.
            let ends = [(&pair.a, pair.a_id), (&pair.b, pair.b_id)];
            let has_ended = |(end, id): (&End, QueuePairId)| {
                end.completions.iter().any(|completion| {
                    completion.queue_pair == id
                        && matches!(completion.kind, CompletionKind::Disconnected)
                })
            };
            ends.into_iter().all(has_ended).then_some(())
        });
    }
}

fn take_receive(end: &mut End) -> Option<Completion> {
    let place = end
        .completions
        .iter()
        .position(|completion| matches!(completion.kind, CompletionKind::Receive { .. }))?;
    Some(end.completions.remove(place))
}

fn take_work(end: &mut End, work: WorkId) -> Option<(Status, Option<Gather>)> {
    let place = end
        .completions
        .iter()
        .position(|completion| match &completion.kind {
            CompletionKind::Send(of)
            | CompletionKind::Write(of)
            | CompletionKind::Read(of, _)
            | CompletionKind::Invalidated(of, _) => *of == work,
            _ => false,
        })?;
    let completion = end.completions.remove(place);
    let list = match completion.kind {
        CompletionKind::Read(_, list) => Some(list),
        _ => None,
    };
    Some((completion.status, list))
}

/// Bytes whose values depend on their position.
fn pattern(seed: u8, bytes: usize) -> Vec<u8> {
    rpcrdma_testkit::pattern(bytes, seed.into())
}
