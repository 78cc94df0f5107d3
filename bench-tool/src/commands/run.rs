//! The command line of `bench-tool run`.

use std::time::Duration;

use clap::Args;

use super::common::{CommonArgs, OutputArgs, PaceArgs};
use super::serve::knobs_of_run;
use super::values;
use crate::exit::Failure;
use crate::machine::Machine;
use crate::metrics::load::LoadMetrics;
use crate::run::config::{BulkConfig, RunConfig, Server};
use crate::run::through::{THREADS_MAX, Through};
use crate::run::{self, Gated, Load};
use crate::workloads::bench::op::{Op, Placement};
use crate::workloads::bench::sizes::Sizes;

/// Default of `--size` for `echo`.
const ECHO_SIZE_BYTES_DEFAULT: u64 = 64;

/// Default of `--size` for `read`, `write` and `mix`.
const BULK_SIZE_BYTES_DEFAULT: u64 = 4096;

/// Default percentage of reads in a mix.
const READ_PERCENT_DEFAULT: u32 = 50;

/// Upper bound of a payload. XDR would allow far more, but no receiver here accepts more.
const SIZE_BYTES_MAX: u64 = 64 << 20;

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
  bench-tool run --through poller --depth 32
      what a program gets whose thread calls by a poller of the library; call and async are blocking calls and futures
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

    /// Rate of the calls
    #[command(flatten)]
    pub pace: PaceArgs,

    /// How often --to-knee repeats what the machine disturbed: by other work, stolen time or a changing frequency [default: 2]
    #[arg(long, value_name = "N", requires = "to_knee", value_parser = clap::value_parser!(u32).range(0..=10))]
    pub repeat_disturbed: Option<u32>,

    /// How long to retry after a lost connection, with calls in flight repeated [default: 0: it ends the run], and to wait for a server that is starting [at least 5s]
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = values::time, conflicts_with = "idle_connections")]
    pub retry: Duration,

    /// The server calls this end, null or echo, in the reverse direction, and reports the times; start it with `serve --reverse`
    #[arg(long, conflicts_with_all = ["rate", "to_knee"])]
    pub reverse: bool,

    /// Who makes the calls: with all but `core`, what a program gets that calls from its own threads; null and echo only
    #[arg(long, value_enum, default_value_t = Through::Core, conflicts_with_all = ["reverse", "retry"])]
    pub through: Through,

    /// Options of every run
    #[command(flatten)]
    pub common: CommonArgs,

    /// Where the report goes
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Makes the run.
///
/// # Errors
/// Arguments that this machine cannot satisfy, and those of [`run::execute`].
pub(crate) fn execute(
    args: &RunArgs,
    command: String,
    load: &mut impl Load,
) -> Result<(), Failure> {
    let machine = Machine::detect();
    let config = args.config(&machine, command)?;
    let outputs = args.output.check(args.common.quiet)?;
    let quiet = args.common.quiet;
    let metrics = args.output.metrics("run", &config.all_cores(), quiet)?;
    let gate = metrics.as_ref().map(LoadMetrics::gate).unwrap_or_default();
    let load = &mut Gated { gate: &gate, load };
    let ended = if args.pace.to_knee {
        run::to_knee(&config, &machine, &outputs, args.repeats(), load)
    } else {
        run::execute(&config, &machine, &outputs, load)
    };
    let options = knobs_of_run(config.size_bytes > 0);
    ended.map_err(|failure| failure.naming_options(options))
}

impl RunArgs {
    /// How often `--to-knee` repeats what was disturbed.
    fn repeats(&self) -> u32 {
        self.repeat_disturbed.unwrap_or(2)
    }

    /// Checks the arguments against each other and against the machine, and sets defaults.
    ///
    /// # Errors
    /// A usage failure with the argument and what to give instead.
    pub(super) fn config(&self, machine: &Machine, command: String) -> Result<RunConfig, Failure> {
        let (bulk, size_bytes) = self.work()?;
        let threads = self.through.threads(self.connections, self.depth);
        if threads > THREADS_MAX {
            let what = format!(
                "--through {} would take {threads} threads, and {THREADS_MAX} are the most",
                self.through.name()
            );
            return Err(Failure::usage(what).advice("lower --depth or --connections"));
        }
        if let Some(cores) = &self.common.cores {
            machine.check_cores(cores)?;
        }
        let (cores, server, mut warnings) = place(self, machine)?;
        let connections = usize::try_from(self.connections).unwrap_or(usize::MAX);
        if connections < cores.len() {
            warnings.push(format!(
                "{} client cores but {connections} connections: the rest of the cores has nothing to do",
                cores.len()
            ));
        }
        let load = self.pace.load(
            &self.common.length,
            &self.output,
            self.retry,
            (self.depth, self.connections),
            cores,
        )?;
        Ok(RunConfig {
            command,
            server,
            op: self.op,
            size_bytes,
            sizes: self.sizes,
            bulk,
            reverse: self.reverse,
            through: self.through,
            protocol: self.common.protocol,
            slowed: self.common.slowed.slowed(),
            load,
            idle_connections: self.common.idle_connections,
            device: self.common.device.clone(),
            profile: self.common.profile.choice(),
            host: self.common.authentication.host()?,
            warnings,
        })
    }

    /// Checks the work that a run asks for, which does not depend on the machine: its operations, and the size of a
    /// payload.
    ///
    /// # Errors
    /// A usage failure with the argument and what to give instead.
    pub(super) fn work(&self) -> Result<(Option<BulkConfig>, u64), Failure> {
        let bulk = bulk(self)?;
        let largest = self.sizes.map(|sizes| sizes.bytes_max());
        let size_bytes = payload_size(self.op, largest.or(self.size))?;
        if self.common.connect.is_some() && !self.common.slowed.service_time.is_zero() {
            let what =
                "--service-time slows the run's own server, and has no effect with --connect";
            return Err(Failure::usage(what).advice("give it to serve"));
        }
        Ok((bulk, size_bytes))
    }
}

/// The options of `read`, `write` and `mix`. With other operations these options are refused, instead of ignored.
fn bulk(args: &RunArgs) -> Result<Option<BulkConfig>, Failure> {
    let refuse = |flag: &str, op: &str| {
        Err(
            Failure::usage(format!("{flag} has no effect with --op {}", args.op.name()))
                .advice(format!("add --op {op}, or leave {flag} out")),
        )
    };
    if args.op != Op::Mix && args.common.read_percent.is_some() {
        return refuse("--read-percent", "mix");
    }
    if args.op != Op::Mix && args.sizes.is_none() && args.common.seed.is_some() {
        return refuse("--seed", "mix");
    }
    if args.reverse && args.op.is_bulk() {
        let what = format!(
            "a server does not {} in the reverse direction",
            args.op.name()
        );
        return Err(Failure::usage(what).advice("give --op null or --op echo with --reverse"));
    }
    if args.through != Through::Core && args.op.is_bulk() {
        let what = format!(
            "--through {} makes calls without bulk data, and --op {} has some",
            args.through.name(),
            args.op.name()
        );
        return Err(Failure::usage(what).advice("give --op null or --op echo, or --through core"));
    }
    if !args.op.is_bulk() && args.sizes.is_some() {
        return refuse("--sizes", "read, --op write or --op mix");
    }
    if !args.op.is_bulk() {
        return match (args.placement, args.common.operations) {
            (Placement::Auto, 1) => Ok(None),
            (Placement::Auto, _) => refuse("--operations", "read, --op write or --op mix"),
            _ => refuse("--placement", "read, --op write or --op mix"),
        };
    }
    Ok(Some(BulkConfig {
        operations: args.common.operations,
        read_percent: match args.op {
            Op::Read => 100,
            Op::Mix => args.common.read_percent.unwrap_or(READ_PERCENT_DEFAULT),
            _ => 0,
        },
        seed: args.common.seed.unwrap_or(1),
        placement: args.placement,
    }))
}

fn payload_size(op: Op, size: Option<u64>) -> Result<u64, Failure> {
    let default = if op.is_bulk() {
        BULK_SIZE_BYTES_DEFAULT
    } else {
        ECHO_SIZE_BYTES_DEFAULT
    };
    match (op, size) {
        (Op::Null, None | Some(0)) => Ok(0),
        (Op::Null, Some(_)) => Err(Failure::usage(
            "the null procedure has no payload, so --size has no effect",
        )
        .advice("add --op echo, or leave --size out")),
        (Op::Read | Op::Write | Op::Mix, Some(0)) => Err(Failure::usage(format!(
            "a {} of nothing moves nothing",
            op.name()
        ))
        .advice("give --size at least one byte, or --op null")),
        (Op::Echo | Op::Read | Op::Write | Op::Mix, size) => match size.unwrap_or(default) {
            size if size <= SIZE_BYTES_MAX => Ok(size),
            size => Err(Failure::usage(format!(
                "a payload of {} is more than one call can carry",
                rpcrdma_units::size(size)
            ))
            .advice(format!(
                "give --size {} at most",
                rpcrdma_units::size(SIZE_BYTES_MAX).replace(' ', "")
            ))),
        },
    }
}

type Places = (Vec<usize>, Server, Vec<String>);

/// Chooses the cores of client and server.
fn place(args: &RunArgs, machine: &Machine) -> Result<Places, Failure> {
    let chosen = args.common.cores.as_ref().map(|list| list.0.clone());
    if let Some(address) = &args.common.connect {
        // By default `serve` takes the last core, so the client takes the first.
        let cores = chosen.or_else(|| machine.cores_usable.first().map(|&core| vec![core]));
        let cores = cores.ok_or_else(|| Failure::failed("this process may use no core"))?;
        return Ok((cores, Server::At(address.clone()), vec![]));
    }
    let cores = match chosen {
        Some(cores) => cores,
        None => match machine.default_pair() {
            Ok(pair) => pair.to_vec(),
            Err(_) => machine.cores_usable.iter().take(1).copied().collect(),
        },
    };
    let own = |cores| Server::Own {
        fabric: args.common.fabric,
        cores,
    };
    match cores[..] {
        [] => Err(Failure::failed("this process may use no core")),
        [only] => Ok((
            vec![only],
            own(vec![only]),
            vec![format!(
                "client and server share core {only}: each waits for the other's time slice, so these latencies \
                 show the scheduler and not the transport{}",
                if machine.cores_usable.len() == 1 {
                    " (this process may use one core only)"
                } else {
                    "; give --cores two of them"
                }
            )],
        )),
        _ => {
            let (client, server) = cores.split_at(cores.len() / 2);
            Ok((client.to_vec(), own(server.to_vec()), vec![]))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::tests::run;
    use crate::exit::Status;
    use crate::load::Limit;
    use crate::run::config::OwnFabric;

    fn own(cores: &[usize]) -> Server {
        Server::Own {
            fabric: OwnFabric::Shm,
            cores: cores.to_vec(),
        }
    }

    fn config_on(cores: &[usize], line: &str) -> Result<RunConfig, Failure> {
        let machine = Machine {
            cores_usable: cores.to_vec(),
            ..Machine::detect()
        };
        let line = format!("bench-tool run {line}");
        run(&line).config(&machine, line)
    }

    #[test]
    fn hints_name_options_that_the_load_has() {
        let named = |has_payloads| {
            let failure = Failure::failed("lower message_bytes_max or connections_max");
            let failure = failure.naming_options(knobs_of_run(has_payloads));
            failure.to_string().contains("--size")
        };
        assert_eq!([named(false), named(true)], [false, true]);
    }

    #[test]
    fn a_bare_run_uses_two_cores_and_five_seconds() {
        let config = config_on(&[900, 901], "").unwrap();
        assert_eq!(config.load.cores, [900]);
        assert_eq!(config.server, own(&[901]));
        assert_eq!(config.load.limit, Limit::Duration(Duration::from_secs(5)));
        assert_eq!(config.size_bytes, 0);
        assert_eq!(config.floor_cores(), Some([900, 901]));
        assert_eq!(
            config.load.limit.expected(config.load.warmup),
            Some(Duration::from_millis(5_500))
        );
        assert!(config.warnings.is_empty());
    }

    #[test]
    fn the_list_of_cores_is_split_for_an_own_server_only() {
        let config = config_on(&[0, 1, 2, 3, 4], "--cores 4,1-3 --connections 2").unwrap();
        assert_eq!(
            (config.load.cores, config.server),
            (vec![4, 1], own(&[2, 3]))
        );
        let config = config_on(&[0, 1, 2], "--cores 0-2 --connections 3").unwrap();
        assert_eq!((config.load.cores, config.server), (vec![0], own(&[1, 2])));
        let config = config_on(&[0, 1, 2], "--cores 0-2 --connections 3 --connect shm:x").unwrap();
        assert_eq!(config.load.cores, [0, 1, 2]);
        assert_eq!(config.floor_cores(), None);
    }

    #[test]
    fn one_core_runs_and_says_clearly_what_that_means() {
        let config = config_on(&[5], "").unwrap();
        assert_eq!(
            (config.load.cores.clone(), config.server.clone()),
            (vec![5], own(&[5]))
        );
        assert_eq!(config.floor_cores(), None);
        assert!(
            config.warnings[0].contains("one core only"),
            "{:?}",
            config.warnings
        );
        let config = config_on(&[0, 1], "--cores 1").unwrap();
        assert!(
            config.warnings[0].contains("--cores two of them"),
            "{:?}",
            config.warnings
        );
    }

    #[test]
    fn intervals_are_seconds_unless_the_run_is_long() {
        let interval = |line: &str| config_on(&[0, 1], line).unwrap().load.interval;
        for (line, expected_ms) in [
            ("", 1_000),
            ("--count 5M", 1_000),
            ("--duration 1h", 1_000),
            ("--duration 24h", 24_000),
            ("--duration 2m --interval 250ms", 250),
        ] {
            assert_eq!(interval(line), Duration::from_millis(expected_ms), "{line}");
        }
    }

    #[test]
    fn invalid_run_options_are_usage_failures_with_advice() {
        for (line, words) in [
            ("--size 64", "--op echo"),
            ("--op echo --size 1GiB", "64MiB"),
            ("--op write --size 0", "at least one byte"),
            ("--placement rdma", "--op read"),
            ("--op echo --operations 2", "--op mix"),
            ("--op write --seed 3", "--op mix"),
            ("--op read --read-percent 30", "--op mix"),
            ("--cores 0,7", "numbers from 0,1"),
            ("--op echo --sizes 1k=1,2k=1", "--op read"),
            ("--op read --sizes 1k=1,128M=1", "64MiB"),
            ("--service-time 1us --connect shm:x", "give it to serve"),
            ("--interval 99ms", "100ms at least"),
            ("--interval 100ms --duration 1h", "longer --interval"),
        ] {
            let failure = config_on(&[0, 1], line).unwrap_err();
            assert_eq!(failure.status(), Status::Usage, "{line}");
            assert!(failure.to_string().contains(words), "{failure}");
        }
    }

    #[test]
    fn echo_has_a_payload_and_a_count_replaces_the_time() {
        let config = config_on(&[0, 1], "--op echo --count 1M").unwrap();
        assert_eq!(config.size_bytes, ECHO_SIZE_BYTES_DEFAULT);
        assert_eq!(config.load.limit, Limit::Count(1_000_000));
        assert_eq!(config.load.limit.expected(config.load.warmup), None);
        assert_eq!(
            config_on(&[0, 1], "--op echo --size 4KiB")
                .unwrap()
                .size_bytes,
            4096
        );
    }

    #[test]
    fn reads_and_writes_say_what_their_calls_do() {
        let config = config_on(&[0, 1], "--op write").unwrap();
        assert_eq!((config.size_bytes, config.call_bytes()), (4096, 4096));
        let bulk = BulkConfig {
            operations: 1,
            read_percent: 0,
            seed: 1,
            placement: Placement::Auto,
        };
        assert_eq!(config.bulk, Some(bulk));
        let line = "--op mix --size 64KiB --operations 4 --placement rdma --delay 50us";
        let config = config_on(&[0, 1], line).unwrap();
        assert_eq!(config.call_bytes(), 256 << 10);
        let bulk = BulkConfig {
            operations: 4,
            read_percent: 50,
            placement: Placement::Rdma,
            ..bulk
        };
        assert_eq!(config.bulk, Some(bulk));
        assert_eq!(config.slowed.delay, Duration::from_micros(50));
        let config = config_on(&[0, 1], "--op read --sizes 4k=80,64k=20 --seed 3").unwrap();
        assert_eq!((config.size_bytes, config.bulk.unwrap().seed), (65_536, 3));
        assert_eq!(config.sizes, Sizes::new(&[(4096, 80), (65_536, 20)]).ok());
        let config = config_on(&[0, 1], "--op read --size 1").unwrap();
        assert_eq!(config.bulk.unwrap().read_percent, 100);
    }

    #[test]
    fn cores_without_a_connection_are_pointed_out() {
        let config = config_on(&[0, 1, 2, 3], "--cores 0-3").unwrap();
        assert!(
            config.warnings[0].contains("2 client cores but 1 connections"),
            "{:?}",
            config.warnings
        );
    }
}
