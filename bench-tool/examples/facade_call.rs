//! Null calls as `bench-tool run` makes them: the load generator and the service of `bench-tool serve` on the cores of two nodes of
//! the crate `rpcrdma`, both polled by turns in one thread.
//!
//! `SOLO=ROUNDS cargo run --release -p bench-tool --example facade_call -- [DEPTH] [ITERATIONS]`
//!
//! What is above the example `load_call`, which has the same applications on bare cores, is the library's.
//! `tests/instruction_counts.sh` counts the instructions of `iterate_both`.

use std::time::{Duration, Instant};

use bench_tool::NullCalls;
use rpcrdma::{Authentication, Node, PolledCore};
use rpcrdma_control::{ConnectOptions, Fabric};
use rpcrdma_engine::Application;

/// Iterations before the first round, in which the generator begins to record. They are not counted.
const FIRST_ITERATIONS: usize = 64;

/// A node of one core, which runs `application`.
fn node<A: Application>(calls: &NullCalls, application: A) -> (Node, PolledCore) {
    let mut application = Some(application);
    let node = Node::builder()
        .profile(calls.profile())
        .polled_by_caller()
        .application(move |_| application.take().expect("one core"))
        .start_on(Fabric::SHM)
        .expect("a node of one core");
    let core = node.take_core(0).expect("its core");
    (node, core)
}

#[inline(never)]
fn iterate_both(client: &mut PolledCore, server: &mut PolledCore, iterations: usize) {
    for _ in 0..iterations {
        client.poll();
        server.poll();
    }
}

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
    let (server_node, mut server) = node(&calls, calls.service());
    let (client_node, mut client) = node(&calls, calls.generator());
    let address = format!("shm:facade-call-{}", std::process::id());
    let address = server_node
        .listen(&address, Authentication::Fabric)
        .expect("the name is free");
    // Under callgrind, the first messages take longer than a server may otherwise need.
    let options = ConnectOptions {
        timeout: Duration::from_secs(300),
        ..ConnectOptions::default()
    };
    let pending = client_node.control().connect_start(&address, options);
    // The connection is made by threads of the nodes and by the cores, which only this thread polls.
    let connected = std::thread::spawn(move || pending.wait());
    while !connected.is_finished() {
        iterate_once(&mut client, &mut server);
        // callgrind runs one thread at a time, and gives others no turn while this one spins.
        std::thread::sleep(Duration::from_millis(1));
    }
    let connection = connected.join().expect("no panic").expect("a connection");
    calls.start(vec![connection.key], Duration::from_secs(1));
    for _ in 0..FIRST_ITERATIONS {
        iterate_once(&mut client, &mut server);
    }
    let counters = || client_node.control().cores()[0].counters();
    let (mut best_ns, mut all) = (f64::INFINITY, 0);
    for _ in 0..rounds {
        let (before, start) = (counters(), Instant::now());
        iterate_both(&mut client, &mut server, iterations);
        let took = start.elapsed();
        let calls = counters().since(&before).replies_received;
        all += calls;
        #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
        let each_ns = took.as_secs_f64() * 1e9 / calls as f64;
        best_ns = best_ns.min(each_ns);
    }
    println!("solo at depth {depth}: {best_ns:.1} ns for a call at both ends, {all} calls");
}

/// As [`iterate_both`], which is counted.
fn iterate_once(client: &mut PolledCore, server: &mut PolledCore) {
    client.poll();
    server.poll();
}
