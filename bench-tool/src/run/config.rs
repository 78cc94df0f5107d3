//! What a run shall do: the command line, checked against itself and against the machine.

use std::time::Duration;

use crate::address::Address;
use crate::authentication::Host;
use crate::commands::{Op, OwnFabric, Placement, ProfileChoice, Protocol, RunArgs, SlowedArgs};
use crate::exit::Failure;
use crate::load::Limit;
use crate::machine::Machine;
use crate::report::timeline::INTERVALS_MAX;
use crate::workloads::bench::sizes::Sizes;

/// Measured time when neither `--duration` nor `--count` is given.
pub(crate) const DURATION_DEFAULT: Duration = Duration::from_secs(5);

/// The same of each step to the knee.
pub(crate) const DURATION_TO_KNEE_DEFAULT: Duration = Duration::from_secs(2);

/// Length of an interval when `--interval` is not given, in runs up to [`INTERVALS_DEFAULT`] of them.
const INTERVAL_DEFAULT: Duration = Duration::from_secs(1);

/// Intervals of a longer run, at most, when `--interval` is not given.
const INTERVALS_DEFAULT: u32 = 3_600;

/// The shortest interval: its histograms are looked after every 20 ms.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Payload of `echo` when `--size` is not given.
pub(crate) const ECHO_SIZE_BYTES_DEFAULT: u64 = 64;

/// Payload of `read`, `write` and `mix` when `--size` is not given.
pub(crate) const BULK_SIZE_BYTES_DEFAULT: u64 = 4096;

/// The share of reads in a mix when nobody says otherwise.
const READ_PERCENT_DEFAULT: u32 = 50;

/// The largest payload: what the XDR length of an opaque can say is far more than any receiver here takes.
pub(crate) const SIZE_BYTES_MAX: u64 = 64 << 20;

/// Who answers the calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Server {
    /// A server of the run's own, in a second process.
    Own {
        /// The fabric between the two.
        fabric: OwnFabric,
        /// The cores that it polls on.
        cores: Vec<usize>,
    },
    /// A server that is there already.
    At(Address),
}

/// What calls with bulk data do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BulkConfig {
    /// Operations in one call.
    pub operations: u32,
    /// Of 100 operations, how many read.
    pub read_percent: u32,
    /// What a mix is drawn from.
    pub seed: u64,
    /// How payloads are to travel.
    pub placement: Placement,
}

/// A run that can be made on this machine.
#[derive(Clone, Debug)]
pub(crate) struct RunConfig {
    /// The command line, for the report.
    pub command: String,
    /// Who answers the calls.
    pub server: Server,
    /// The procedure to call.
    pub op: Op,
    /// Payload of one operation; 0 for null.
    pub size_bytes: u64,
    /// The sizes that operations are drawn from; `size_bytes` is the largest of them then.
    pub sizes: Option<Sizes>,
    /// What the calls do; `None` for null and echo.
    pub bulk: Option<BulkConfig>,
    /// The server makes the calls, in the reverse direction.
    pub reverse: bool,
    /// The version of RPC-over-RDMA.
    pub protocol: Protocol,
    /// What is made slower, at both ends where the server is the run's own.
    pub slowed: SlowedArgs,
    /// Calls outstanding on each connection.
    pub depth: u32,
    /// Connections that carry calls, spread over the cores.
    pub connections: u32,
    /// Connections beside them that stay silent.
    pub idle_connections: u32,
    /// The client's polling cores; at least one.
    pub cores: Vec<usize>,
    /// Open loop: calls per second in all. `None` is a closed loop.
    pub rate_per_s: Option<u64>,
    /// When to stop.
    pub limit: Limit,
    /// How long a lost connection is tried again; 0 does not.
    pub retry: Duration,
    /// Time before the measurement.
    pub warmup: Duration,
    /// The measured time is reported in intervals of this length too.
    pub interval: Duration,
    /// RDMA device as given; `None` leaves it to the address.
    pub device: Option<String>,
    /// Tuning profile as given.
    pub profile: ProfileChoice,
    /// This end, where both ends prove themselves.
    pub host: Option<Host>,
    /// What is doubtful about the plan itself.
    pub warnings: Vec<String>,
}

impl RunConfig {
    /// Checks the arguments against each other and against the machine, and chooses what they left open.
    ///
    /// # Errors
    /// A usage failure that names the argument and what to give instead.
    pub(crate) fn new(args: &RunArgs, machine: &Machine, command: String) -> Result<Self, Failure> {
        let bulk = bulk(args)?;
        let largest = args.sizes.map(|sizes| sizes.bytes_max());
        let size_bytes = payload_size(args.op, largest.or(args.size))?;
        if let Some(cores) = &args.common.cores {
            machine.check_cores(cores)?;
        }
        if args.common.connect.is_some() && !args.common.slowed.service_time.is_zero() {
            let what =
                "--service-time slows the run's own server, and means nothing with --connect";
            return Err(Failure::usage(what).advice("give it to serve"));
        }
        let (cores, server, mut warnings) = place(args, machine)?;
        let connections = usize::try_from(args.connections).unwrap_or(usize::MAX);
        if connections < cores.len() {
            warnings.push(format!(
                "{} client cores but {connections} connections: the rest of the cores has nothing to do",
                cores.len()
            ));
        }
        let duration = if args.to_knee {
            DURATION_TO_KNEE_DEFAULT
        } else {
            DURATION_DEFAULT
        };
        let limit = args.common.length.limit(duration);
        Ok(Self {
            command,
            server,
            op: args.op,
            size_bytes,
            sizes: args.sizes,
            bulk,
            reverse: args.reverse,
            protocol: args.common.protocol,
            slowed: args.common.slowed,
            depth: args.depth,
            connections: args.connections,
            idle_connections: args.common.idle_connections,
            cores,
            rate_per_s: args.rate,
            limit,
            retry: args.retry,
            warmup: args.common.length.warmup,
            interval: interval(args.output.interval, limit)?,
            device: args.common.device.clone(),
            profile: args.common.profile.clone(),
            host: Host::new(&args.common.authentication)?,
            warnings,
        })
    }

    /// The two cores whose floor the run is set against: the first of the client and the first of its own server.
    /// `None` where the server is elsewhere, or shares the client's core.
    #[must_use]
    pub(crate) fn floor_cores(&self) -> Option<[usize; 2]> {
        let Server::Own { cores, .. } = &self.server else {
            return None;
        };
        let (&client, &server) = (self.cores.first()?, cores.first()?);
        (client != server).then_some([client, server])
    }

    /// Payload of one call, all of its operations together.
    #[must_use]
    pub(crate) fn call_bytes(&self) -> u64 {
        let operations = self.bulk.map_or(1, |bulk| bulk.operations);
        self.size_bytes.saturating_mul(operations.into())
    }

    /// Credits that a connection of the run needs of each end. In version 1 a quarter of them is for calls in the
    /// reverse direction.
    #[must_use]
    pub(crate) fn credits(&self) -> u32 {
        let times = if self.reverse { 4 } else { 1 };
        self.depth.saturating_mul(times).min(u16::MAX.into())
    }

    /// How long the run should take, warm-up included; `None` where that is up to the calls.
    #[must_use]
    pub(crate) fn expected(&self) -> Option<Duration> {
        match self.limit {
            Limit::Duration(duration) => Some(self.warmup + duration),
            Limit::Count(_) => None,
        }
    }
}

/// What the calls of `read`, `write` and `mix` do; flags that are for those alone are refused elsewhere.
fn bulk(args: &RunArgs) -> Result<Option<BulkConfig>, Failure> {
    let refuse = |flag: &str, op: &str| {
        Err(
            Failure::usage(format!("{flag} means nothing with --op {}", args.op.name()))
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

/// The length of an interval: as asked for, or a second, or whole seconds so that a long run has
/// some thousands of them.
pub(crate) fn interval(asked: Option<Duration>, limit: Limit) -> Result<Duration, Failure> {
    let refuse = |what: String, advice: String| Err(Failure::usage(what).advice(advice));
    let shown = rpcrdma_units::duration;
    let measured = match limit {
        Limit::Duration(duration) => duration,
        Limit::Count(_) => Duration::ZERO,
    };
    match asked {
        None => {
            let seconds = (measured / INTERVALS_DEFAULT).as_secs_f64().ceil();
            Ok(Duration::from_secs_f64(seconds).max(INTERVAL_DEFAULT))
        }
        Some(interval) if interval < INTERVAL_MIN => refuse(
            format!(
                "intervals of {} are too short to be looked after",
                shown(interval)
            ),
            format!(
                "give --interval {} at least",
                shown(INTERVAL_MIN).replace(' ', "")
            ),
        ),
        Some(interval) if measured > interval * INTERVALS_MAX => refuse(
            format!("more than {INTERVALS_MAX} intervals are more than anybody reads"),
            "give a longer --interval, or a shorter --duration".to_owned(),
        ),
        Some(interval) => Ok(interval),
    }
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
            "the null procedure has no payload, so --size means nothing with it",
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
                "a payload of {} is more than one call carries",
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

/// Which cores are the client's and which the server's.
fn place(args: &RunArgs, machine: &Machine) -> Result<Places, Failure> {
    let chosen = args.common.cores.as_ref().map(|list| list.0.clone());
    if let Some(address) = &args.common.connect {
        // The core that `serve` would choose by itself is the last one: the client takes the first.
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
    use crate::commands::{Cli, Command};
    use crate::exit::Status;
    use clap::Parser;

    fn own(cores: &[usize]) -> Server {
        Server::Own {
            fabric: OwnFabric::Shm,
            cores: cores.to_vec(),
        }
    }

    fn config_on(cores: &[usize], line: &str) -> Result<RunConfig, Failure> {
        let cli = Cli::try_parse_from(
            ["bench-tool", "run"]
                .into_iter()
                .chain(line.split_whitespace()),
        );
        let Command::Run(args) = cli.unwrap().command else {
            panic!("not a run")
        };
        let machine = Machine {
            cores_usable: cores.to_vec(),
            ..Machine::detect()
        };
        RunConfig::new(&args, &machine, format!("bench-tool run {line}"))
    }

    #[test]
    fn a_bare_run_uses_two_cores_and_five_seconds() {
        let config = config_on(&[900, 901], "").unwrap();
        assert_eq!(config.cores, [900]);
        assert_eq!(config.server, own(&[901]));
        assert_eq!(config.limit, Limit::Duration(DURATION_DEFAULT));
        assert_eq!(config.size_bytes, 0);
        assert_eq!(config.floor_cores(), Some([900, 901]));
        assert_eq!(config.expected(), Some(Duration::from_millis(5_500)));
        assert!(config.warnings.is_empty());
    }

    #[test]
    fn the_list_of_cores_is_split_for_an_own_server_only() {
        let config = config_on(&[0, 1, 2, 3, 4], "--cores 4,1-3 --connections 2").unwrap();
        assert_eq!((config.cores, config.server), (vec![4, 1], own(&[2, 3])));
        let config = config_on(&[0, 1, 2], "--cores 0-2 --connections 3").unwrap();
        assert_eq!((config.cores, config.server), (vec![0], own(&[1, 2])));
        let config = config_on(&[0, 1, 2], "--cores 0-2 --connections 3 --connect shm:x").unwrap();
        assert_eq!(config.cores, [0, 1, 2]);
        assert_eq!(config.floor_cores(), None);
    }

    #[test]
    fn one_core_runs_and_says_clearly_what_that_means() {
        let config = config_on(&[5], "").unwrap();
        assert_eq!(
            (config.cores.clone(), config.server.clone()),
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
        let interval = |line: &str| config_on(&[0, 1], line).unwrap().interval;
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
    fn what_cannot_be_is_a_usage_failure_with_advice() {
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
        assert_eq!(config.limit, Limit::Count(1_000_000));
        assert_eq!(config.expected(), None);
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
