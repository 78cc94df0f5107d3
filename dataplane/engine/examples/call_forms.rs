//! Calls of other forms than those of `null_call`, with both cores by turns in one thread: the work of a call at both ends,
//! without the way between processors.
//!
//! `SOLO=ROUNDS cargo run --release -p rpcrdma-engine --example call_forms -- [FORM] [DEPTH] [ITERATIONS]`
//!
//! FORM is `version-1` (null calls), `auth-sys` (null calls with a credential whose body has 100 bytes) or `deferred` (null
//! calls that the service answers at its next poll). Each round has ITERATIONS of both cores. `tests/instruction_counts.sh`
//! counts the instructions of `iterate_both`.

#[path = "ends/by_turns.rs"]
mod by_turns;
mod ends;

use std::time::Instant;

use rpcrdma_engine::{
    Activity, Application, Call, CallError, CallTag, ConnectionKey, Context, CoreConfig,
    DeferToken, HostIdentity, Outcome, Reply, ReplyWriter, Request,
};
use rpcrdma_fabric::clock::{Clock, Ticks};
use rpcrdma_fabric::interface::Port;
use rpcrdma_protocol::connection::Versions;
use rpcrdma_protocol::rpc::OpaqueAuth;

use by_turns::{Rounds, iterate_both};
use ends::{connect, ends};

const CALL: Call = Call {
    program: 0x2000_0001,
    version: 1,
    procedure: 0,
};

/// Answers without results: with `DEFERRED` at its next poll. A constant, so that one form costs no other anything.
#[derive(Default)]
struct Service<const DEFERRED: bool> {
    deferred: Vec<DeferToken>,
}

impl<const DEFERRED: bool> Application for Service<DEFERRED> {
    const CLOCK_INTERVAL_POLLS: u32 = 16;

    fn call(&mut self, request: &Request<'_>, _reply: &mut ReplyWriter<'_>) -> Outcome {
        if request.program != CALL.program {
            return Outcome::ProgramUnavailable;
        }
        if DEFERRED {
            let token = request.defer().expect("there is room for every call");
            self.deferred.push(token);
            return Outcome::Deferred;
        }
        Outcome::Success
    }

    fn poll<P: Port>(&mut self, core: &mut Context<'_, P>, _now: Ticks) -> Activity {
        let busy = DEFERRED && !self.deferred.is_empty();
        for token in self.deferred.drain(..) {
            core.reply(token, Outcome::Success, &[])
                .expect("there is room for the reply");
        }
        Activity::from_busy(busy)
    }
}

/// Keeps calls outstanding: with `AUTH_SYS` their credential has this body.
struct Caller<const AUTH_SYS: bool> {
    connection: Option<ConnectionKey>,
    idle: Vec<CallTag>,
    body: Vec<u8>,
}

impl<const AUTH_SYS: bool> Application for Caller<AUTH_SYS> {
    const CLOCK_INTERVAL_POLLS: u32 = 16;

    fn completed(
        &mut self,
        tag: CallTag,
        _connection: ConnectionKey,
        result: Result<Reply<'_>, CallError>,
        _now: Ticks,
    ) {
        result.expect("each call succeeds");
        self.idle.push(tag);
    }

    fn poll<P: Port>(&mut self, core: &mut Context<'_, P>, _now: Ticks) -> Activity {
        let Some(connection) = self.connection else {
            return Activity::Idle;
        };
        let mut busy = false;
        while let Some(&tag) = self.idle.last() {
            let made = if AUTH_SYS {
                let credential = OpaqueAuth {
                    flavor: 1,
                    body: &self.body,
                };
                core.call_authenticated(connection, CALL, credential, 0, tag, |_| 0)
            } else {
                core.call(connection, CALL, &[], tag)
            };
            if made.is_err() {
                break;
            }
            self.idle.pop();
            busy = true;
        }
        Activity::from_busy(busy)
    }

    fn connected(&mut self, connection: ConnectionKey, _peer: Option<&HostIdentity>) {
        self.connection = Some(connection);
    }
}

/// The body of a credential of AUTH_SYS: a stamp, a name of 16 bytes, a user, a group and 16 more (RFC 5531 appendix A).
fn body() -> Vec<u8> {
    let host = u32::from_be_bytes(*b"host");
    let words = [0x5a5a_5a5a, 16, host, host, host, host, 1000, 1000, 16];
    let words = words.into_iter().chain(100..116);
    words.flat_map(u32::to_be_bytes).collect()
}

fn run<const AUTH_SYS: bool, const DEFERRED: bool>(
    versions: Versions,
    (depth, iterations): (u16, usize),
) -> Rounds {
    let config = CoreConfig {
        connections_max: 1,
        credits_per_connection: depth.max(32),
        calls_outstanding_max: depth.into(),
        ..CoreConfig::default()
    };
    let caller = Caller::<AUTH_SYS> {
        connection: None,
        idle: (0..depth.into()).collect(),
        body: body(),
    };
    let service = Service::<DEFERRED>::default();
    let clock = Clock::new();
    let (mut client, mut server) = ends(&clock, versions, (&config, caller), (&config, service));
    connect(&mut client, &mut server);
    let rounds = std::env::var("SOLO").ok();
    let rounds = rounds.map_or(1, |text| text.parse().expect("a number"));
    let mut measured = Rounds::new();
    for _ in 0..rounds {
        let (before, start) = (client.handle.counters(), Instant::now());
        iterate_both(&mut client, &mut server, iterations);
        let took = start.elapsed();
        let calls = client.handle.counters().since(&before).replies_received;
        measured.add(took, calls);
    }
    measured
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let form = arguments.next().unwrap_or_else(|| "version-1".to_owned());
    let mut number = |default: usize| {
        let text = arguments.next();
        text.map_or(default, |text| text.parse().expect("a number"))
    };
    let (depth, iterations) = (number(1), number(200_000));
    let size = (u16::try_from(depth).expect("a sensible depth"), iterations);
    let Rounds { best_ns, calls } = match form.as_str() {
        "version-1" => run::<false, false>(Versions::One, size),
        "auth-sys" => run::<true, false>(Versions::Two, size),
        "deferred" => run::<false, true>(Versions::Two, size),
        _ => panic!("{form}: FORM is version-1, auth-sys or deferred"),
    };
    println!("{form} at depth {depth}: {best_ns:.1} ns for a call at both ends, {calls} calls");
}
