//! Reads and writes of bulk data between two cores that run by turns in one thread: the work of a
//! call at both ends, without the way between processors.
//!
//! `cargo run --release -p rpcrdma-engine --example bulk_call -- [read|write] [send|rdma|inline]
//! [BYTES] [DEPTH] [ROUNDS] [CALLS]`
//!
//! Each round has CALLS calls or a few more. `tests/instruction_counts.sh` counts the instructions of
//! `iterate_both`.
//!
//! The quickest of the rounds counts, so that other load disturbs little. The payload is neither
//! written nor looked at: what is measured is what the engine and the fabric do.

#[path = "ends/by_turns.rs"]
mod by_turns;
mod ends;

use std::time::Instant;

use rpcrdma_engine::{
    Activity, Application, BulkArguments, BulkCall, BulkItem, BulkReply, Call, CallError, CallTag,
    ConnectionKey, Context, CoreConfig, ExpectedResult, HostIdentity, Outcome, Placement,
    PlacementConfig, Reply, ReplyWriter, Request,
};
use rpcrdma_fabric::clock::{Clock, Ticks};
use rpcrdma_fabric::interface::Port;

use by_turns::{Rounds, iterate_both};
use ends::{connect, ends};
use rpcrdma_protocol::connection::Versions;

const PROGRAM: u32 = 0x2000_0001;
const READ: u32 = 1;
const WRITE: u32 = 2;
/// Calls of one round, if the command line does not say.
const CALLS: u32 = 20_000;

/// What is called.
#[derive(Clone, Copy, Debug)]
struct Load {
    procedure: u32,
    placement: Placement,
    bytes: u32,
    depth: u32,
}

/// A WRITE has its bytes after the first word of its arguments, and is answered with one word. A
/// READ says how many bytes it wants, and gets them behind their number.
struct Service;

impl Application for Service {
    const CLOCK_INTERVAL_POLLS: u32 = 16;

    fn call(&mut self, request: &Request<'_>, reply: &mut ReplyWriter<'_>) -> Outcome {
        let Some((word, _)) = request.args.split_first_chunk::<4>() else {
            return Outcome::GarbageArgs;
        };
        let bytes = u32::from_be_bytes(*word);
        if reply.write_u32(bytes).is_err() {
            return Outcome::SystemError;
        }
        if request.procedure == READ {
            let Some(mut piece) = reply.take_bulk() else {
                return Outcome::SystemError;
            };
            piece.set_len(bytes as usize);
            if reply.attach(0, &mut BulkItem::from(piece)).is_err() {
                return Outcome::SystemError;
            }
        }
        Outcome::Success
    }

    fn call_bulk(
        &mut self,
        request: &Request<'_>,
        _items: &mut BulkArguments<'_>,
        reply: &mut ReplyWriter<'_>,
    ) -> Outcome {
        self.call(request, reply)
    }
}

/// Keeps calls outstanding.
struct Caller {
    load: Load,
    connection: Option<ConnectionKey>,
    outstanding: u32,
    errors: u64,
}

impl Application for Caller {
    const CLOCK_INTERVAL_POLLS: u32 = 16;

    fn completed(
        &mut self,
        _tag: CallTag,
        _connection: ConnectionKey,
        result: Result<Reply<'_>, CallError>,
        _now: Ticks,
    ) {
        self.outstanding -= 1;
        self.errors += u64::from(result.is_err());
    }

    fn completed_bulk(
        &mut self,
        tag: CallTag,
        connection: ConnectionKey,
        result: Result<BulkReply<'_>, CallError>,
        now: Ticks,
    ) {
        self.completed(tag, connection, result.map(|bulk| bulk.reply), now);
    }

    fn poll<P: Port>(&mut self, core: &mut Context<'_, P>, _now: Ticks) -> Activity {
        let Some(connection) = self.connection else {
            return Activity::Idle;
        };
        let mut busy = false;
        while self.outstanding < self.load.depth {
            let call = Call {
                program: PROGRAM,
                version: 1,
                procedure: self.load.procedure,
            };
            let args = self.load.bytes.to_be_bytes();
            let mut call = BulkCall::new(call, &args);
            call.placement = self.load.placement;
            call.results_bytes_max = 4;
            let prepared = if self.load.procedure == READ {
                call.expect(ExpectedResult {
                    request_range: 0..4,
                    bytes_min: 0,
                    bytes_max: self.load.bytes,
                })
            } else {
                let Some(mut piece) = core.take_bulk() else {
                    break;
                };
                piece.set_len(self.load.bytes as usize);
                call.add(4, &mut BulkItem::from(piece))
            };
            if prepared.is_err() || core.call_bulk(connection, &mut call, 0).is_err() {
                break;
            }
            self.outstanding += 1;
            busy = true;
        }
        Activity::from_busy(busy)
    }

    fn connected(&mut self, connection: ConnectionKey, _peer: Option<&HostIdentity>) {
        self.connection = Some(connection);
    }
}

/// Nanoseconds of work for a call, at both ends together, in the quickest of the rounds, and the
/// calls of all rounds.
fn measure(clock: &Clock, load: Load, rounds: usize, round_calls: u64) -> (f64, u64) {
    let config = CoreConfig {
        connections_max: 1,
        placement: Some(PlacementConfig::default()),
        bulk_buffers: 64,
        bulk_calls: 16,
        ..CoreConfig::default()
    };
    let caller = Caller {
        load,
        connection: None,
        outstanding: 0,
        errors: 0,
    };
    let (mut client, mut server) =
        ends(clock, Versions::Two, (&config, caller), (&config, Service));
    connect(&mut client, &mut server);
    let mut measured = Rounds::new();
    for _ in 0..rounds {
        let replies = || client.handle.counters().replies_received;
        let (before, start) = (replies(), Instant::now());
        let mut calls = 0;
        while calls < round_calls {
            iterate_both(&mut client, &mut server, 64);
            calls = client.handle.counters().replies_received - before;
        }
        measured.add(start.elapsed(), calls);
    }
    if std::env::var_os("COUNTERS").is_some() {
        println!(
            "client:\n{}\nserver:\n{}",
            client.handle.counters(),
            server.handle.counters()
        );
    }
    (measured.best_ns, measured.calls)
}

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let number = |place: usize, default: u32| {
        let text = arguments.get(place);
        text.map_or(default, |text| text.parse().expect("a number"))
    };
    let word = |place: usize| arguments.get(place).map_or("", String::as_str);
    let load = Load {
        procedure: if word(0) == "read" { READ } else { WRITE },
        placement: match word(1) {
            "rdma" => Placement::Rdma,
            "inline" => Placement::Inline,
            _ => Placement::Send,
        },
        bytes: number(2, 4096),
        depth: number(3, 1),
    };
    let rounds = usize::try_from(number(4, 10)).expect("a sensible number");
    let clock = Clock::new();
    let (each_ns, calls) = measure(&clock, load, rounds, u64::from(number(5, CALLS)));
    println!("{load:?}: {each_ns:.1} ns of work at both ends, {calls} calls");
}
