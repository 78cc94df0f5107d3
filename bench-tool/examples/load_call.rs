//! Null calls of the load generator of `bench-tool run` to the service of `bench-tool serve`, with both cores by turns
//! in one thread: the work of a call at both ends, without the way between processors.
//!
//! `SOLO=ROUNDS cargo run --release -p bench-tool --example load_call -- [DEPTH] [ITERATIONS]`
//!
//! Each round has ITERATIONS of both cores. `tests/instruction_counts.sh` counts the instructions of `iterate_both`.
//! The example `null_call` of the engine does the same with an application that is as bare as can be: what is above it
//! is the generator's, with its histogram, and the service's.

#[path = "../../dataplane/engine/examples/ends/by_turns.rs"]
mod by_turns;
#[path = "../../dataplane/engine/examples/ends/mod.rs"]
mod ends;

use std::time::{Duration, Instant};

use bench_tool::NullCalls;
use rpcrdma_fabric::clock::Clock;
use rpcrdma_protocol::connection::Versions;

use by_turns::{Rounds, iterate_both};
use ends::{connect, ends};

/// Iterations before the first round, in which the generator begins to record. They are not counted.
const FIRST_ITERATIONS: usize = 64;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default: u32| {
        arguments
            .next()
            .map_or(default, |text| text.parse().expect("a number"))
    };
    let (depth, iterations) = (number(1), number(200_000) as usize);
    let rounds = std::env::var("SOLO")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(1);
    let calls = NullCalls::new(depth);
    let config = calls.core();
    let clock = Clock::new();
    let (mut client, mut server) = ends(
        &clock,
        Versions::Two,
        (&config, calls.generator()),
        (&config, calls.service()),
    );
    let connection = connect(&mut client, &mut server);
    calls.start(vec![connection], Duration::from_secs(1));
    for _ in 0..FIRST_ITERATIONS {
        let _ = client.core.iterate();
        let _ = server.core.iterate();
    }
    let mut measured = Rounds::new();
    for _ in 0..rounds {
        let (before, start) = (client.handle.counters(), Instant::now());
        iterate_both(&mut client, &mut server, iterations);
        let took = start.elapsed();
        let calls = client.handle.counters().since(&before).replies_received;
        measured.add(took, calls);
    }
    let Rounds { best_ns, calls } = measured;
    println!("solo at depth {depth}: {best_ns:.1} ns for a call at both ends, {calls} calls");
}
