//! The command line, as clap reads it, and the commands that are little else. `--help`, completions, manual pages and
//! the checks of documents come from it.

mod authentication;
mod common;
mod compare;
pub(crate) mod decode;
pub(crate) mod doctor;
pub(crate) mod manual;
pub(crate) mod nfs;
mod nfs3;
mod operate;
mod profile;
mod sweep;
pub(crate) mod values;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use rpcrdma_control::{Fault, Versions};

pub(crate) use self::authentication::AuthenticationArgs;
pub(crate) use self::common::{CommonArgs, LengthArgs, OutputArgs, SlowedArgs};
pub(crate) use self::compare::CompareArgs;
pub(crate) use self::decode::DecodeArgs;
pub(crate) use self::doctor::DoctorArgs;
pub(crate) use self::manual::{CompletionsArgs, ManArgs};
pub(crate) use self::nfs::NfsArgs;
pub(crate) use self::nfs3::Nfs3Args;
pub(crate) use self::operate::{LogFormat, LogLevel, OperateArgs};
pub(crate) use self::profile::settings_of;
pub(crate) use self::profile::{
    ProfileAction, ProfileArgs, ProfileCheckArgs, ProfileChoice, ProfileDetectArgs, ProfileShowArgs,
};
pub(crate) use self::sweep::SweepArgs;
use crate::address::{Address, ListenAddress};
use crate::workloads::bench::sizes::Sizes;
use rpcrdma_doctor::{CoreList, core_list};

/// The whole command line.
#[derive(Debug, Parser)]
#[command(
    name = "bench-tool",
    version = crate::VERSION_LINE,
    about = "Measures RPC-over-RDMA (round-trip times, rates, and the machine's own floor), and explains captured traffic.",
    after_help = "Exit status: 0 success, 1 failure (the message says what to do), 2 the command line is wrong.\n\
                  `bench-tool COMMAND --help` explains a command and shows examples.",
    max_term_width = 110,
    disable_help_subcommand = true
)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Call a server and report round-trip times
    Run(RunArgs),
    /// Answer the calls of `bench-tool run`, or serve NFS
    Serve(ServeArgs),
    /// Call any NFS server, check its answers and report round-trip times
    Nfs(NfsArgs),
    /// Make a run for every combination of sizes, depths, placements and so on
    Sweep(Box<SweepArgs>),
    /// Say whether two groups of runs differ beyond noise
    Compare(CompareArgs),
    /// Measure the machine's own limits, which no transport here can beat
    Floor(FloorArgs),
    /// Explain the messages of a capture or of hex, and what is wrong with them
    Decode(DecodeArgs),
    /// Find what will slow or stop a run on this machine, and the command that fixes it
    Doctor(DoctorArgs),
    /// Show, detect and check tuning profiles
    Profile(ProfileArgs),
    /// Write completions for a shell
    Completions(CompletionsArgs),
    /// Write the manual pages
    Man(ManArgs),
    /// Hold silent connections for a run
    #[command(hide = true)]
    Idle(IdleArgs),
}

/// The procedure that `run` calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Op {
    /// No arguments, no results: the cost of the call itself
    Null,
    /// The server returns the payload
    Echo,
    /// Payloads come from the server
    Read,
    /// Payloads go to the server
    Write,
    /// Reads and writes, drawn by --seed and --read-percent
    Mix,
}

impl Op {
    /// The name used on the command line and in reports.
    #[must_use]
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Echo => "echo",
            Self::Read => "read",
            Self::Write => "write",
            Self::Mix => "mix",
        }
    }

    /// Whether its payload may travel beside the message.
    #[must_use]
    pub(crate) const fn is_bulk(self) -> bool {
        matches!(self, Self::Read | Self::Write | Self::Mix)
    }
}

/// How payloads of `read`, `write` and `mix` travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Placement {
    /// The two ends choose, by size and by what they support
    #[default]
    Auto,
    /// In the messages, copied
    Inline,
    /// Placed by the Sends: one round trip, no registration, no RDMA
    Send,
    /// By RDMA Read and Write, through memory that is exposed for one call
    Rdma,
}

impl Placement {
    /// The name used on the command line and in reports.
    #[must_use]
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Inline => "inline",
            Self::Send => "send",
            Self::Rdma => "rdma",
        }
    }
}

/// The version of RPC-over-RDMA that calls are made with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Protocol {
    /// Version 2, or version 1 if the server has no other
    #[default]
    Auto,
    /// Version 1 (RFC 8166)
    V1,
    /// Version 2, and no other
    V2,
}

impl Protocol {
    /// What a connect is told.
    pub(crate) fn versions(self) -> Versions {
        match self {
            Self::Auto => Versions::Both,
            Self::V1 => Versions::One,
            Self::V2 => Versions::Two,
        }
    }

    /// The arguments that ask for it.
    pub(crate) fn arguments(self) -> [String; 2] {
        let value = self.to_possible_value();
        let name = value.map_or_else(String::new, |value| value.get_name().to_owned());
        ["--protocol".to_owned(), name]
    }
}

/// The fabric of a run's own server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum OwnFabric {
    /// Shared memory: no device is needed
    #[default]
    Shm,
    /// An RDMA device of this machine, which sends to itself
    Rdma,
}

/// What `serve` serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ServiceName {
    /// The calls of `bench-tool run`
    #[default]
    Bench,
    /// NFS version 3: /export, with files in memory
    Nfs3,
}

/// Operations of one call, as clap counts.
const OPERATIONS_MAX: i64 = 8;

const _: () = assert!(crate::bench_program::OPERATIONS_MAX == 8, "the same");

/// `bench-tool run`.
#[derive(Args, Debug)]
#[command(after_help = "\
Latency is round-trip time, from the request to its reply. Minimum, maximum and count are exact; nothing is \
trimmed.\n\n\
Without --rate the loop is closed: each call waits for an earlier one, and a stall is one slow call. \
With --rate it is open: latency counts from when the call was due, so a stall counts for every call that it \
delayed.\n\n\
Examples:
  bench-tool run
      null calls, one at a time, to its own server, for 5 s
  bench-tool run --depth 32 --duration 10s
      how many calls a pair of cores carries
  bench-tool run --op echo --size 4KiB --json run.json
      payload both ways; save the report
  bench-tool run --op write --size 4KiB --placement send
  bench-tool run --op write --size 4KiB --placement rdma
      compare round trips, Sends, registrations and copies per call
  bench-tool run --op write --size 4KiB --placement rdma --delay 500us
      the same with a one-way delay of 500 us, some 62 miles
  bench-tool run --op mix --read-percent 70 --operations 4 --size 64KiB --depth 8
      four operations in each call; seven of ten read
  bench-tool run --op mix --read-percent 70 --sizes 4k=80,64k=20 --seed 7 --depth 8
      eight of ten operations have 4 KiB, two 64 KiB; each run draws the same
  bench-tool run --rate 200k --depth 64 --hgrm run.hgrm
      latency at a given load, for HdrHistogram plotters
  bench-tool run --to-knee --depth 64 --html knee.html
      latency against rate, and the rate at which it turns upward
  bench-tool run --duration 1m --interval 5s --intervals --hlog run.hlog
      how steady it is: a line for every 5 s, and a log for HistogramLogAnalyzer
  bench-tool run --duration 1m --html run.html
      the percentile curve, and rate and latency over time, as a page
  bench-tool run --reverse --op echo --size 256
      the server calls its client on the client's connection, as in a callback
  bench-tool run --connect shm:bench --cores 0
      against `bench-tool serve --listen shm:bench`
  bench-tool run --connect rdma:server:20049
      over a network, against `bench-tool serve --listen rdma:0.0.0.0:20049`
  bench-tool run --connect rdma:server:20049 --psk-file keys --identity client
      the same; both ends prove that they hold a key of the file")]
pub(crate) struct RunArgs {
    /// Procedure to call
    #[arg(long, value_enum, default_value_t = Op::Null)]
    pub op: Op,

    /// Payload of one operation [default: 64 for echo, 4KiB for read, write and mix; null has none]
    #[arg(long, value_name = "BYTES", value_parser = values::size_bytes)]
    pub size: Option<u64>,

    /// Payloads of several sizes, each with its share of the operations, such as 4k=80,64k=20; drawn by --seed
    #[arg(long, value_name = "BYTES=SHARE,...", value_parser = values::sizes, conflicts_with = "size")]
    pub sizes: Option<Sizes>,

    /// How payloads of read, write and mix travel
    #[arg(long, value_enum, default_value_t = Placement::Auto)]
    pub placement: Placement,

    /// Calls outstanding on each connection
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub depth: u32,

    /// Connections that carry calls
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub connections: u32,

    /// Open loop: calls per second over all connections, whether or not replies come, such as 200k
    #[arg(long, value_name = "CALLS_PER_S", value_parser = values::rate_per_s)]
    pub rate: Option<u64>,

    /// How long to retry after a lost connection, with calls in flight repeated [default: 0: it ends the run]
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = values::time, conflicts_with = "idle_connections")]
    pub retry: Duration,

    /// The server calls this end, null or echo, in the reverse direction, and reports the times; start it with `serve --reverse`
    #[arg(long, conflicts_with_all = ["rate", "to_knee"])]
    pub reverse: bool,

    /// Measure latency against rate: a closed loop, then open loops at 10 to 100 percent of its rate; each takes --duration [default: 2s]
    #[arg(long, conflicts_with_all = ["rate", "count", "hgrm", "hlog", "interval", "intervals"])]
    pub to_knee: bool,

    /// Options of every run
    #[command(flatten)]
    pub common: CommonArgs,

    /// Where the report goes
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `bench-tool serve`.
#[derive(Args, Debug)]
#[command(after_help = "\
Prints one line that begins with `listening on ADDR` when it is ready. Ctrl-C or SIGTERM lets calls in \
progress finish, then ends; a second one ends immediately.\n\n\
Faults: --fault KIND or --fault KIND:OPTION=VALUE,... injects faults, to see how clients handle them. The log counts \
them at the end, the metrics at any time.
  delay-message:for=TIME  an arrived message reaches its core TIME late, such as for=10ms
  late-receive:for=TIME   a Receive is posted again TIME late, after its credit was granted
  disconnect              the connection is lost instead of a Send
  refuse-connect          a connection request is rejected
  drop-reply              a call is accepted and never answered
  error-reply             a call is answered with SYSTEM_ERR
  fail-read, fail-write   the client's device refuses an RDMA Read or Write: the connection is lost\n\n\
Without an option a fault occurs at every occasion: message, Receive, Send, request, call, RDMA Read or Write. \
Each core counts its occasions, so the same traffic gets the same faults.
  every=N                 at each Nth occasion
  one-in=N                at each occasion with probability 1/N, drawn by seed=N
  after=N                 not at the first N occasions
  times=N                 at most N times\n\n\
Examples:
  bench-tool serve --listen shm:bench
  bench-tool serve --listen shm:bench --cores 2,3 --max-connections 4200 --set message_bytes_max=65536
      each connection is guaranteed memory for four messages of that size
  bench-tool serve --listen rdma:0.0.0.0:20049
  bench-tool serve --listen rdma:[2001:db8::7]:0        the system chooses the port, and the line shows it
  bench-tool serve --listen rdma:0.0.0.0:20049 --psk-file keys --identity server
      accepts clients that hold a key of the file; without keys it accepts any client
  bench-tool serve --listen rdma:0.0.0.0:20049 --reverse
      for `bench-tool run --reverse` too: calls clients that request it
  bench-tool serve --listen rdma:0.0.0.0:20049 --metrics 127.0.0.1:9464
      curl http://127.0.0.1:9464/metrics
  bench-tool serve --service nfs3 --listen rdma:0.0.0.0:20049 --space 8GiB
      mount -t nfs -o vers=3,proto=rdma,port=20049,mountport=20048,mountproto=tcp,nolock server:/export /mnt
  bench-tool serve --service nfs3 --listen tcp:0.0.0.0:2049
      mount -t nfs -o vers=3,proto=tcp,port=2049,mountport=2049,mountproto=tcp,nolock server:/export /mnt
  bench-tool serve --listen shm:bench --fault drop-reply:every=1000
      each 1000th call of a core gets no reply, and its client times out
  bench-tool serve --service nfs3 --listen rdma:0.0.0.0:20049 --fault disconnect:every=5000
      each 5000th Send of a core loses its connection")]
pub(crate) struct ServeArgs {
    /// Address to listen on: shm:NAME or rdma:HOST:PORT, for nfs3 tcp:HOST:PORT; `0.0.0.0` and `[::]` are all addresses, port 0 is any free port
    #[arg(long, value_name = "ADDR")]
    pub listen: ListenAddress,

    /// What to serve
    #[arg(long, value_enum, default_value_t = ServiceName::Bench)]
    pub service: ServiceName,

    /// Limits of the NFS server
    #[command(flatten)]
    pub nfs3: Nfs3Args,

    /// RDMA device, as `rdma link` names it [default: the one with the address, or the first active one]
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,

    /// Cores to poll on, such as 0,1 or 2-3 [default: the last core that this process may use]
    #[arg(long, value_name = "LIST", value_parser = core_list)]
    pub cores: Option<CoreList>,

    /// Tuning
    #[command(flatten)]
    pub profile: ProfileChoice,

    /// Concurrent connections; receive memory for all of them is reserved at start-up [default: the profile's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub max_connections: Option<u32>,

    /// Calls that each connection may have outstanding [default: the profile's, or fewer if many connections share the memory]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub credits: Option<u32>,

    /// The largest payload of one call [default: 1 MiB]
    #[arg(long, value_name = "BYTES", value_parser = values::size_bytes)]
    pub max_payload: Option<u64>,

    /// Host authentication of this end and its clients
    #[command(flatten)]
    pub authentication: AuthenticationArgs,

    /// Most reads and writes in one call; memory is reserved for them
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=OPERATIONS_MAX))]
    pub max_operations: u32,

    /// Concurrent calls with reads and writes on each core; each needs registered memory of --max-payload [default: 32; with 0, payloads travel in messages only]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=65_535))]
    pub bulk_calls: Option<u32>,

    /// Call clients that request it (`run --reverse`), on their own connections; in version 1 a quarter of --credits is then reserved for these calls
    #[arg(long)]
    pub reverse: bool,

    /// Artificial delays
    #[command(flatten)]
    pub slowed: SlowedArgs,

    /// Inject a fault, such as drop-reply:every=100 or delay-message:for=10ms; may be repeated; see below
    #[arg(long = "fault", value_name = "KIND[:OPTION=VALUE,...]")]
    pub faults: Vec<Fault>,

    /// Metrics, limits and log
    #[command(flatten)]
    pub operate: OperateArgs,

    /// End when standard input closes: how `run` makes sure that its server never outlives it
    #[arg(long, hide = true)]
    pub exit_with_stdin: bool,
}

/// `bench-tool idle`, which `run` starts for itself.
#[derive(Args, Debug)]
pub(crate) struct IdleArgs {
    /// The server
    #[arg(long, value_name = "ADDR", value_parser = Address::to_connect)]
    pub connect: Address,

    /// RDMA device
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,

    /// Host authentication of this end and the server
    #[command(flatten)]
    pub authentication: AuthenticationArgs,

    /// Version of RPC-over-RDMA
    #[arg(long, value_enum, default_value_t = Protocol::Auto)]
    pub protocol: Protocol,

    /// Connections to hold
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub connections: u32,
}

/// `bench-tool floor`.
#[derive(Args, Debug)]
#[command(after_help = "\
Four measurements on two pinned cores, without any transport:
  round trip  one cache line each way, through a ring of 64: no call is faster
  copy        one core rewrites a payload, the other copies it: no bulk data is faster
  clock       the cost of a clock reading, and so of measuring
  gaps        time that the system took from a polling core: it causes the far tail

Examples:
  bench-tool floor                     all of it, about 8 s
  bench-tool floor --quick --json -    about 2 s, JSON for a script
  bench-tool floor --cores 2,6         another pair of cores
  bench-tool floor --size 4KiB,1M --depth 32 --buffers 64")]
pub(crate) struct FloorArgs {
    /// The two cores, such as 0,1 [default: two that share no physical core]
    #[arg(long, value_name = "LIST", value_parser = core_list)]
    pub cores: Option<CoreList>,

    /// Payload sizes of the copy
    #[arg(
        long,
        value_name = "BYTES,...",
        value_delimiter = ',',
        default_value = "64KiB,1MiB",
        value_parser = values::size_bytes
    )]
    pub size: Vec<u64>,

    /// Payloads in flight in the copy
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub depth: u32,

    /// Buffers that the copy's receiver rotates through; many do not fit its cache [default: the depth]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub buffers: Option<u32>,

    /// Take a quarter of the time, with less certain results
    #[arg(long)]
    pub quick: bool,

    /// Write the report as JSON; `-` is standard output, instead of the table
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use clap::CommandFactory;
    use clap::error::ErrorKind;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split_whitespace())
    }

    fn run(line: &str) -> RunArgs {
        match parse(line).unwrap().command {
            Command::Run(args) => args,
            other => panic!("not a run: {other:?}"),
        }
    }

    #[test]
    fn clap_finds_no_contradiction() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_bare_run_has_the_documented_defaults() {
        let args = run("bench-tool run");
        assert_eq!(args.op, Op::Null);
        assert_eq!(
            (args.depth, args.connections, args.common.idle_connections),
            (1, 1, 0)
        );
        assert_eq!(args.common.length.warmup, Duration::from_millis(500));
        assert!(args.common.connect.is_none() && args.size.is_none() && args.rate.is_none());
        assert!(
            args.common.length.duration.is_none()
                && args.common.length.count.is_none()
                && !args.common.quiet
        );
    }

    #[test]
    fn every_flag_of_run_is_read() {
        let args = run(
            "bench-tool run --connect shm:x --op echo --size 4KiB --depth 32 --connections 2 \
             --idle-connections 4096 --cores 0,2-3 --rate 250k --duration 10s --warmup 0 --profile shm --set reap_batch=4 \
             --json - --hgrm a.hgrm --hlog a.hlog --html a.html --interval 500ms --intervals --quiet",
        );
        assert_eq!(args.common.connect, Some(Address::Shm("x".to_owned())));
        assert_eq!(args.op, Op::Echo);
        assert_eq!(args.size, Some(4096));
        assert_eq!(
            (args.depth, args.connections, args.common.idle_connections),
            (32, 2, 4096)
        );
        assert_eq!(args.common.cores, Some(CoreList(vec![0, 2, 3])));
        assert_eq!(args.rate, Some(250_000));
        assert_eq!(args.common.length.duration, Some(Duration::from_secs(10)));
        assert_eq!(args.common.length.warmup, Duration::ZERO);
        assert_eq!(args.common.profile.profile.as_deref(), Some("shm"));
        assert_eq!(args.common.profile.set, ["reap_batch=4"]);
        assert_eq!(args.output.json, Some(PathBuf::from("-")));
        assert_eq!(args.output.hlog, Some(PathBuf::from("a.hlog")));
        assert_eq!(args.output.html, Some(PathBuf::from("a.html")));
        assert_eq!(args.output.interval, Some(Duration::from_millis(500)));
        assert!(args.common.quiet && args.output.intervals);
    }

    #[test]
    fn contradictions_and_unknown_flags_are_usage_errors() {
        for (line, kind) in [
            (
                "bench-tool run --duration 1s --count 5",
                ErrorKind::ArgumentConflict,
            ),
            (
                "bench-tool run --to-knee --rate 5k",
                ErrorKind::ArgumentConflict,
            ),
            ("bench-tool run --colour", ErrorKind::UnknownArgument),
            ("bench-tool lap", ErrorKind::InvalidSubcommand),
            ("bench-tool sweep --depth 1,0", ErrorKind::ValueValidation),
            ("bench-tool sweep --plot a.jpg", ErrorKind::ValueValidation),
            ("bench-tool sweep --plot a.png", ErrorKind::ValueValidation),
            ("bench-tool sweep --figure max", ErrorKind::ValueValidation),
            ("bench-tool compare", ErrorKind::MissingRequiredArgument),
            (
                "bench-tool compare a.json b.json -- run -- run",
                ErrorKind::ArgumentConflict,
            ),
            (
                "bench-tool compare a.json b.json --fail-if p99",
                ErrorKind::ValueValidation,
            ),
            ("bench-tool run --depth 0", ErrorKind::ValueValidation),
            ("bench-tool run --duration 10", ErrorKind::ValueValidation),
            ("bench-tool run --connect host", ErrorKind::ValueValidation),
            ("bench-tool run --op append", ErrorKind::InvalidValue),
            ("bench-tool run --placement", ErrorKind::InvalidValue),
            (
                "bench-tool run --op write --operations 9",
                ErrorKind::ValueValidation,
            ),
            (
                "bench-tool run --op mix --read-percent 101",
                ErrorKind::ValueValidation,
            ),
            ("bench-tool run --delay 5", ErrorKind::ValueValidation),
            ("bench-tool serve", ErrorKind::MissingRequiredArgument),
        ] {
            let error = parse(line).unwrap_err();
            assert_eq!(error.kind(), kind, "{line}");
            assert_eq!(error.exit_code(), 2, "{line}");
        }
    }

    #[test]
    fn floor_takes_a_list_of_sizes() {
        let Command::Floor(args) = parse("bench-tool floor --size 4KiB,1M --depth 32")
            .unwrap()
            .command
        else {
            panic!("not a floor")
        };
        assert_eq!(args.size, vec![4096, 1 << 20]);
        assert_eq!((args.depth, args.buffers), (32, None));
    }
}
