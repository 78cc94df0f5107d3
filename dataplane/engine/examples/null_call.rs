//! Null calls between two cores of one process, beside the floor of the machine.
//!
//! `cargo run --release -p rpcrdma-engine --example null_call -- [DEPTH] [PAIRS] [SECONDS] [BYTES]
//! [ITERATIONS]`
//!
//! With BYTES each call has so many bytes of arguments, and its reply the same.
//!
//! With `SOLO=ROUNDS` both cores run by turns in one thread, which measures the work of a call without
//! the way between processors, and is little disturbed by other load. Each round has ITERATIONS of
//! both cores. `tests/instruction_counts.sh` counts the instructions of `iterate_both`.
//!
//! `CPUS=A,B` chooses the two processors (0 and 1). With `CHECK=1` the first eight bytes of the arguments
//! are others in each call, and every reply must carry the arguments of its call.
//!
//! The floor is a cache line each way, rotating through 64 slots. Floor and calls are measured by
//! turns, and the medians over all turns are compared.

#[path = "ends/by_turns.rs"]
mod by_turns;
mod ends;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rpcrdma_engine::{
    Activity, Application, Call, CallError, CallTag, ConnectionKey, Context, CoreConfig,
    HostIdentity, Outcome, Reply, ReplyWriter, Request, pin_current_thread,
};
use rpcrdma_fabric::clock::{Clock, Ticks};
use rpcrdma_fabric::interface::Port;
use rpcrdma_protocol::connection::Versions;
use rpcrdma_protocol::v2::connection::Role;

use by_turns::{Rounds, iterate_both};
use ends::{connect, control, ends};

const PROGRAM: u32 = 0x2000_0001;

struct Service;

impl Application for Service {
    const CLOCK_INTERVAL_POLLS: u32 = 16;

    fn call(&mut self, request: &Request<'_>, reply: &mut ReplyWriter<'_>) -> Outcome {
        if request.program != PROGRAM {
            return Outcome::ProgramUnavailable;
        }
        match reply.write(request.args) {
            Ok(()) => Outcome::Success,
            Err(_) => Outcome::SystemError,
        }
    }
}

/// Keeps `depth` calls outstanding, and notes how long each took.
struct Caller {
    connection: Option<ConnectionKey>,
    idle: Vec<CallTag>,
    arguments: Vec<u8>,
    started: Vec<Ticks>,
    histogram: Vec<u32>,
    errors: u64,
    /// With `CHECK`: the first bytes of the arguments of each call that is outstanding.
    stamps: Option<Vec<[u8; 8]>>,
    stamped: u64,
    /// Replies without the arguments of their call.
    wrong: u64,
}

impl Caller {
    fn new(depth: usize, bytes: usize) -> Self {
        Self {
            connection: None,
            // None of them is zero: fewer lines would do for zeroes.
            arguments: vec![0xa5; bytes],
            idle: (0_u64..).take(depth).collect(),
            started: vec![0; depth],
            histogram: vec![0; 1 << 20],
            errors: 0,
            stamps: (std::env::var_os("CHECK").is_some() && bytes >= 8)
                .then(|| vec![[0; 8]; depth]),
            stamped: 0,
            wrong: 0,
        }
    }

    fn stamp(&mut self, index: usize) {
        if let Some(stamps) = &mut self.stamps {
            self.stamped += 1;
            // None of its bytes is zero either.
            let word = self.stamped.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 0x0101_0101_0101_0101;
            stamps[index] = word.to_ne_bytes();
            self.arguments[..8].copy_from_slice(&stamps[index]);
        }
    }

    fn check(&mut self, index: usize, reply: Reply<'_>) {
        if let Some(stamps) = &self.stamps {
            let is_right = reply.results.len() == self.arguments.len()
                && reply.results[..8] == stamps[index]
                && reply.results[8..] == self.arguments[8..];
            self.wrong += u64::from(!is_right);
        }
    }
}

impl Application for Caller {
    const CLOCK_INTERVAL_POLLS: u32 = 16;

    fn completed(
        &mut self,
        tag: CallTag,
        _connection: ConnectionKey,
        result: Result<Reply<'_>, CallError>,
        now: Ticks,
    ) {
        let index = usize::try_from(tag).unwrap_or(0);
        let took = now.saturating_sub(self.started[index]);
        let last = self.histogram.len() - 1;
        let bucket = usize::try_from(took).unwrap_or(last).min(last);
        self.histogram[bucket] += 1;
        match result {
            Ok(reply) => self.check(index, reply),
            Err(_) => self.errors += 1,
        }
        self.idle.push(tag);
    }

    fn poll<P: Port>(&mut self, core: &mut Context<'_, P>, now: Ticks) -> Activity {
        let Some(connection) = self.connection else {
            return Activity::Idle;
        };
        let call = Call {
            program: PROGRAM,
            version: 1,
            procedure: 0,
        };
        let mut busy = false;
        while let Some(&tag) = self.idle.last() {
            let index = usize::try_from(tag).unwrap_or(0);
            self.stamp(index);
            if core.call(connection, call, &self.arguments, tag).is_err() {
                break;
            }
            self.idle.pop();
            self.started[index] = now;
            busy = true;
        }
        Activity::from_busy(busy)
    }

    fn connected(&mut self, connection: ConnectionKey, _peer: Option<&HostIdentity>) {
        self.connection = Some(connection);
    }
}

fn percentile(histogram: &[u32], share: f64) -> u64 {
    let total: u64 = histogram.iter().map(|&count| u64::from(count)).sum();
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "counts far below 2^52"
    )]
    let rank = (total as f64 * share) as u64;
    let mut seen = 0;
    for (bucket, &count) in (0_u64..).zip(histogram) {
        seen += u64::from(count);
        if seen > rank {
            return bucket;
        }
    }
    0
}

#[repr(align(128))]
struct Line(AtomicU64);

/// The median round trip of a line each way, in nanoseconds.
fn floor(clock: &Clock, cpus: (usize, usize)) -> u64 {
    const SLOTS: usize = 64;
    const ROUNDS: u64 = 300_000;
    let lines = || {
        (0..SLOTS)
            .map(|_| Line(AtomicU64::new(0)))
            .collect::<Vec<_>>()
    };
    let (there, back) = (lines(), lines());
    let at = |round: u64| usize::try_from(round).unwrap_or(0) % SLOTS;
    let mut histogram = vec![0_u32; 1 << 20];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin_current_thread(cpus.1).expect("a second processor");
            for round in 1..=ROUNDS {
                while there[at(round)].0.load(Ordering::Acquire) != round {
                    std::hint::spin_loop();
                }
                back[at(round)].0.store(round, Ordering::Release);
            }
        });
        pin_current_thread(cpus.0).expect("a first processor");
        for round in 1..=ROUNDS {
            let start = clock.now();
            there[at(round)].0.store(round, Ordering::Release);
            while back[at(round)].0.load(Ordering::Acquire) != round {
                std::hint::spin_loop();
            }
            let took = usize::try_from(clock.now() - start).unwrap_or(usize::MAX);
            let bucket = took.min(histogram.len() - 1);
            histogram[bucket] += 1;
        }
    });
    clock.nanos_between(0, percentile(&histogram, 0.5))
}

struct Measured {
    p50_ns: u64,
    p99_ns: u64,
    rate_per_s: f64,
}

fn config(depth: usize, cpu: Option<usize>) -> CoreConfig {
    CoreConfig {
        cpu,
        connections_max: 1,
        credits_per_connection: u16::try_from(depth.max(32)).expect("a sensible depth"),
        calls_outstanding_max: u32::try_from(depth).expect("a sensible depth"),
        ..CoreConfig::default()
    }
}

/// Both cores by turns in this thread: nanoseconds of work for a call, at both ends together.
fn solo(clock: &Clock, depth: usize, bytes: usize, iterations: usize) {
    let config = config(depth, None);
    let (mut client, mut server) = ends(
        clock,
        Versions::Two,
        (&config, Caller::new(depth, bytes)),
        (&config, Service),
    );
    connect(&mut client, &mut server);
    let mut measured = Rounds::new();
    let mut best_empty_ns = f64::MAX;
    // One round under an instruction counter, many to find a quiet moment.
    let rounds = std::env::var("SOLO")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(1);
    for _ in 0..rounds {
        let (before, start) = (client.handle.counters(), Instant::now());
        iterate_both(&mut client, &mut server, iterations);
        let took = start.elapsed();
        let calls = client.handle.counters().since(&before).replies_received;
        measured.add(took, calls);
        let start = Instant::now();
        for _ in 0..iterations {
            // After the second iteration the client has all replies, and the server no calls.
            let _ = server.core.iterate();
        }
        #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
        let empty_ns = start.elapsed().as_secs_f64() * 1e9 / iterations as f64;
        best_empty_ns = best_empty_ns.min(empty_ns);
    }
    let Rounds { best_ns, calls } = measured;
    println!(
        "solo at depth {depth}: {best_ns:.1} ns for a call at both ends, \
         {best_empty_ns:.1} ns for an empty iteration, {calls} calls"
    );
}

fn calls(
    clock: &Clock,
    (depth, bytes): (usize, usize),
    time: Duration,
    cpus: (usize, usize),
) -> Measured {
    let (client_config, server_config) = (config(depth, Some(cpus.0)), config(depth, Some(cpus.1)));
    let (client, server) = ends(
        clock,
        Versions::Two,
        (&client_config, Caller::new(depth, bytes)),
        (&server_config, Service),
    );
    let (client_handle, server_handle) = (client.handle, server.handle);
    let (client, server) = (client.core, server.core);
    std::thread::scope(|scope| {
        let server = scope.spawn(move || server.run().map(drop));
        let client = scope.spawn(move || client.run());
        let (mut client_ready, mut server_ready) = (false, false);
        while !(client_ready && server_ready) {
            client_ready |= control(&client_handle, Role::Client).is_some();
            server_ready |= control(&server_handle, Role::Server).is_some();
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(50));
        let (before, start) = (client_handle.counters(), Instant::now());
        std::thread::sleep(time);
        let (after, took) = (client_handle.counters(), start.elapsed());
        client_handle.stop();
        let caller = client.join().expect("no panic").expect("pinned");
        assert_eq!(
            caller.wrong, 0,
            "replies without the arguments of their call"
        );
        let server_counters = server_handle.counters();
        server_handle.stop();
        server.join().expect("no panic").expect("pinned");
        let difference = after.since(&before);
        if std::env::var_os("COUNTERS").is_some() {
            println!("client:\n{difference}\nserver:\n{server_counters}");
        }
        #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
        let rate_per_s = difference.replies_received as f64 / took.as_secs_f64();
        Measured {
            p50_ns: clock.nanos_between(0, percentile(&caller.histogram, 0.5)),
            p99_ns: clock.nanos_between(0, percentile(&caller.histogram, 0.99)),
            rate_per_s,
        }
    })
}

fn median<T: PartialOrd + Copy>(values: &mut [T]) -> T {
    values.sort_by(|a, b| a.partial_cmp(b).expect("no NaN"));
    values[values.len() / 2]
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default: usize| {
        arguments
            .next()
            .map_or(default, |text| text.parse().expect("a number"))
    };
    let (depth, pairs, seconds, bytes) = (number(1), number(7), number(1), number(0));
    let iterations = number(200_000);
    let time = Duration::from_secs(u64::try_from(seconds).expect("a sensible time"));
    let clock = Clock::new();
    if std::env::var_os("SOLO").is_some() {
        return solo(&clock, depth, bytes, iterations);
    }
    let cpus = std::env::var("CPUS").map_or((0, 1), |text| {
        let (client, server) = text.split_once(',').expect("CPUS=A,B");
        let number = |text: &str| text.parse().expect("the number of a processor");
        (number(client), number(server))
    });
    let (mut floors, mut p50s, mut p99s, mut rates) = (vec![], vec![], vec![], vec![]);
    for _ in 0..pairs {
        let floor_ns = floor(&clock, cpus);
        let measured = calls(&clock, (depth, bytes), time, cpus);
        println!(
            "floor {floor_ns} ns   p50 {} ns   p99 {} ns   {:.2} M calls/s",
            measured.p50_ns,
            measured.p99_ns,
            measured.rate_per_s / 1e6
        );
        floors.push(floor_ns);
        p50s.push(measured.p50_ns);
        p99s.push(measured.p99_ns);
        rates.push(measured.rate_per_s);
    }
    let (floor_ns, p50_ns) = (median(&mut floors), median(&mut p50s));
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let ratio = p50_ns as f64 / floor_ns as f64;
    println!(
        "medians at depth {depth}: floor {floor_ns} ns, p50 {p50_ns} ns ({ratio:.2} x), p99 {} ns, {:.2} M calls/s",
        median(&mut p99s),
        median(&mut rates) / 1e6
    );
}
