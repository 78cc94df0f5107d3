//! Numbered calls that must not be executed twice, held against the responder's ledger.
//!
//! `ledger serve` executes calls that are not idempotent: each appends an entry to a book, and is
//! answered with the entry's position. `ledger call` makes such calls, each with a number of its
//! own, keeps a log of how each one ended, and connects again when the connection ends; it never
//! repeats a call. `ledger check` holds books and logs against each other. Whatever happens to the
//! link or to either process in between, no call may be executed twice or answered twice, none may
//! be lost without an error, and an answer must be true.
#![forbid(unsafe_code)]

mod book;
mod call;
mod check;
mod requester;
mod serve;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use rpcrdma_control::VerbsProvider;
use rpcrdma_control::{NodeConfig, ShmProvider};
use rpcrdma_engine::Call;
use rpcrdma_tuning::{Hugepages, Idle, Profile};

/// Why the program ends without success: a line for people.
type Failure = Box<dyn std::error::Error>;

/// The one procedure: append an entry.
const APPEND: Call = Call {
    program: 0x2000_1ed6,
    version: 1,
    procedure: 1,
};

const USAGE: &str = "\
usage: ledger serve ADDRESS --book FILE [--connections N] [--silent-ms-max MS]
       ledger call ADDRESS --log FILE [--count N] [--seconds S] [--depth N]
                   [--connections N] [--rounds N] [--reconnect-within S]
                   [--call-timeout-ms MS] [--silent-ms-max MS]
       ledger check --book FILE --log FILE...

ADDRESS is shm:NAME or rdma:HOST:PORT.

serve   appends an entry to the book for each call, until it is killed; it
        prints a line that begins with `listening on` when it is ready. A book
        that is there is continued, as after a restart. Takes up to
        --connections (64).
call    makes calls for --seconds, or --count of them, or until its standard
        input ends, --depth (8) at a time, in turn over --connections (1),
        which it asks for at once. A connection that ends is made again, within
        --reconnect-within seconds (0: never). With --rounds it disconnects
        after every --count calls, and begins anew. Prints what happens to its
        connections and which calls fail, each as it happens. Fails when a call
        does not end, or ends twice.
check   fails when a call was executed twice, when an answer is not what the
        book says, or when a log lacks the end of a call.

A peer that is silent for --silent-ms-max milliseconds (120000) is left. An end
sends something every two seconds. A connect and a call have five minutes; a
call has --call-timeout-ms where that is given.";

/// The limit for what no test is about: a connect, a call, and a peer that stalls. No machine takes as long, also an
/// emulated guest that stands still for a minute.
const LONG: Duration = Duration::from_secs(300);

/// How long a peer may be silent in ticks of a second, unless a test says otherwise. In the lab a machine may stand still
/// for longer than the ten seconds of the default. Soft-RoCE tells of no peer that is gone, so after so long its end is
/// noticed.
const SILENT_TICKS_MAX: u32 = 120;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ledger: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<(), Failure> {
    let mut arguments = Arguments::new(arguments);
    match arguments.next_word("a command")?.as_str() {
        "serve" => {
            let address = arguments.next_word("an address")?;
            let book = arguments.one("--book")?;
            let connections = arguments.number("--connections")?.unwrap_or(64);
            let silent_ms_max = arguments.number("--silent-ms-max")?;
            arguments.end()?;
            let profile = profile(connections, silent_ms_max, None)?;
            serve_on(&address, &profile, book.as_ref())
        }
        "call" => {
            let address = arguments.next_word("an address")?;
            let plan = plan(&mut arguments)?;
            let call_timeout_ms = arguments.number("--call-timeout-ms")?;
            let silent_ms_max = arguments.number("--silent-ms-max")?;
            arguments.end()?;
            // A round that begins is not to wait for the places of the one before.
            let places = plan.connections.saturating_mul(2);
            let profile = profile(places, silent_ms_max, call_timeout_ms)?;
            call_on(&address, &profile, &plan)
        }
        "check" => {
            let books = arguments.all("--book")?;
            let logs = arguments.all("--log")?;
            arguments.end()?;
            check::run(&books, &logs)
        }
        _ => Err(USAGE.into()),
    }
}

fn plan(arguments: &mut Arguments) -> Result<call::Plan, Failure> {
    let count = arguments.number("--count")?;
    let duration = arguments.number("--seconds")?.map(Duration::from_secs);
    let reconnect_within_s = arguments.number("--reconnect-within")?.unwrap_or(0);
    Ok(call::Plan {
        log: arguments.one("--log")?.into(),
        count: count.unwrap_or(u64::MAX),
        duration,
        until_input_ends: count.is_none() && duration.is_none(),
        depth: arguments.number("--depth")?.unwrap_or(8),
        connections: arguments.number("--connections")?.unwrap_or(1).max(1),
        rounds: arguments.number("--rounds")?.unwrap_or(1),
        reconnect_within: Duration::from_secs(reconnect_within_s),
    })
}

/// A node of one core that leaves the processor to others while there is nothing to do.
fn profile(
    connections: u64,
    silent_ms_max: Option<u64>,
    call_timeout_ms: Option<u64>,
) -> Result<Profile, Failure> {
    let long_ms = u32::try_from(LONG.as_millis())?;
    let mut profile = Profile {
        hugepages: Hugepages::Never,
        idle: Idle::Park,
        idle_park_after_us: 50,
        connections_max: u32::try_from(connections)?,
        connect_timeout_ms: long_ms,
        call_timeout_ms: call_timeout_ms.map_or(Ok(long_ms), u32::try_from)?,
        stall_timeout_ms: long_ms,
        keep_alive_silent_ticks_max: SILENT_TICKS_MAX,
        credits_per_connection: 8,
        // Its messages are short, and each connection is guaranteed memory for four.
        message_bytes_max: 16_384,
        ..Profile::default()
    };
    if let Some(silent_ms_max) = silent_ms_max {
        // The peer speaks every two seconds at least, whatever the interval is here.
        profile.keep_alive_silent_ticks_max = 10;
        profile.keep_alive_interval_ms = u32::try_from(silent_ms_max / 10)?;
    }
    profile.peers_connections_max = profile.peers_connections_max.max(profile.connections_max);
    Ok(profile)
}

/// The device of an address is looked for this long.
const RESOLVE_TIMEOUT: Duration = LONG;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fabric {
    Shm,
    Rdma,
}

/// # Errors
/// When the address is of no fabric.
fn fabric_of(address: &str) -> Result<Fabric, Failure> {
    match address.split_once(':') {
        Some(("shm", _)) => Ok(Fabric::Shm),
        Some(("rdma", _)) => Ok(Fabric::Rdma),
        _ => Err(format!("`{address}` is no address; {USAGE}").into()),
    }
}

fn serve_on(address: &str, profile: &Profile, book: &Path) -> Result<(), Failure> {
    let config = NodeConfig::from_profile(profile, vec![None]);
    match fabric_of(address)? {
        Fabric::Shm => serve::run(ShmProvider::from_profile(profile), &config, address, book),
        Fabric::Rdma => {
            let device = rpcrdma_fabric::verbs::device_at(address).map_err(serve::told)?;
            let provider = VerbsProvider::from_profile(profile, device);
            serve::run(provider, &config, address, book)
        }
    }
}

fn call_on(address: &str, profile: &Profile, plan: &call::Plan) -> Result<(), Failure> {
    let config = NodeConfig::from_profile(profile, vec![None]);
    match fabric_of(address)? {
        Fabric::Shm => call::run(ShmProvider::from_profile(profile), &config, address, plan),
        Fabric::Rdma => {
            let device = rpcrdma_fabric::verbs::device_towards(address, RESOLVE_TIMEOUT)
                .map_err(serve::told)?;
            let provider = VerbsProvider::from_profile(profile, Some(device));
            call::run(provider, &config, address, plan)
        }
    }
}

/// The words of the command line.
struct Arguments {
    words: Vec<String>,
}

impl Arguments {
    fn new(words: &[String]) -> Self {
        Self {
            words: words.to_vec(),
        }
    }

    fn next_word(&mut self, what: &str) -> Result<String, Failure> {
        if self.words.is_empty() {
            return Err(format!("{what} is missing\n{USAGE}").into());
        }
        Ok(self.words.remove(0))
    }

    /// Takes an option and its value out, if it is there.
    fn option(&mut self, name: &str) -> Result<Option<String>, Failure> {
        let Some(place) = self.words.iter().position(|word| word == name) else {
            return Ok(None);
        };
        if place + 1 >= self.words.len() {
            return Err(format!("{name} needs a value").into());
        }
        self.words.remove(place);
        Ok(Some(self.words.remove(place)))
    }

    fn one(&mut self, name: &str) -> Result<String, Failure> {
        self.option(name)?
            .ok_or_else(|| format!("{name} is missing\n{USAGE}").into())
    }

    fn all(&mut self, name: &str) -> Result<Vec<String>, Failure> {
        let mut values = vec![self.one(name)?];
        while let Some(value) = self.option(name)? {
            values.push(value);
        }
        Ok(values)
    }

    fn number(&mut self, name: &str) -> Result<Option<u64>, Failure> {
        match self.option(name)? {
            None => Ok(None),
            Some(value) => match value.parse() {
                Ok(number) => Ok(Some(number)),
                Err(_) => Err(format!("{name}: `{value}` is not a number").into()),
            },
        }
    }

    fn end(self) -> Result<(), Failure> {
        match self.words.first() {
            None => Ok(()),
            Some(word) => Err(format!("`{word}` is not understood\n{USAGE}").into()),
        }
    }
}
