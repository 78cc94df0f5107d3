//! The command line, parsed by clap. Each command's arguments become the configuration of the module that implements
//! it. `--help`, completions, manual pages and the checks of documents are generated from these definitions.

mod agent;
mod authentication;
mod choices;
mod common;
mod compare;
mod decode;
mod doctor;
mod fleet;
mod fleet_sweep;
mod floor;
mod idle;
mod manual;
mod merge;
mod nfs;
mod nfs3;
mod operate;
mod profile;
mod report;
mod run;
mod serve;
mod sweep;
mod values;

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser, Subcommand};

use self::agent::AgentArgs;
use self::compare::CompareArgs;
use self::decode::DecodeArgs;
use self::doctor::DoctorArgs;
use self::fleet::FleetArgs;
use self::floor::FloorArgs;
use self::idle::IdleArgs;
use self::manual::{CompletionsArgs, ManArgs};
use self::merge::MergeArgs;
use self::nfs::NfsArgs;
use self::profile::ProfileArgs;
use self::report::ReportArgs;
use self::run::RunArgs;
use self::serve::ServeArgs;
use self::sweep::SweepArgs;
use crate::exit::{Failure, Status};
use crate::run::node_load::NodeLoad;

/// The whole command line.
#[derive(Debug, Parser)]
#[command(
    name = "bench-tool",
    version = crate::VERSION_LINE,
    about = "Measures RPC-over-RDMA (round-trip times, rates, and the machine's own floor), and explains captured traffic.",
    after_help = "Exit status: 0 success, 1 failure (the message says what to do), 2 the command line is wrong.\n\
                  `bench-tool COMMAND --help` explains a command and shows examples.",
    max_term_width = 110
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
    /// Run many clients on many hosts as one run, with one report
    Fleet(FleetArgs),
    /// Run the load of one client of a fleet; `fleet` starts it
    Agent(AgentArgs),
    /// Add reports: the sum of their histograms, calls and rates
    Merge(MergeArgs),
    /// Show saved reports again: their tables and pages, alone or side by side
    Report(ReportArgs),
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
    /// Hold idle connections for a run
    #[command(hide = true)]
    Idle(IdleArgs),
}

/// What to do about a command line that is wrong in a way that the parser does not know.
pub(crate) fn hint(
    error: &clap::Error,
    arguments: impl Iterator<Item = OsString>,
) -> Option<&'static str> {
    let words: Vec<OsString> = arguments.collect();
    let is_fleet = words.first().is_some_and(|it| it == "fleet");
    let has_command = ["run", "sweep", "nfs"]
        .iter()
        .any(|command| words.iter().any(|it| it == command));
    let is_apart = words.iter().any(|it| it == "--");
    let is_unknown = matches!(
        error.kind(),
        ErrorKind::UnknownArgument
            | ErrorKind::MissingRequiredArgument
            | ErrorKind::InvalidSubcommand
    );
    (is_fleet && has_command && !is_apart && is_unknown).then_some(
        "put `--` before the command of the clients, as in: bench-tool fleet --clients 2 -- run --connect ADDR",
    )
}

/// Runs the command; `typed` is the command line, for reports.
///
/// # Errors
/// Those of the command.
pub(crate) fn execute(command: &Command, typed: String) -> Result<Status, Failure> {
    let done = match command {
        Command::Run(args) => run::execute(args, typed, &mut NodeLoad),
        Command::Serve(args) => serve::execute(args),
        Command::Nfs(args) => nfs::execute(args, typed),
        Command::Fleet(args) => fleet::execute(args, typed),
        Command::Agent(args) => agent::execute(args),
        Command::Merge(args) => merge::execute(args, typed),
        Command::Report(args) => report::execute(args, typed),
        Command::Sweep(args) => return sweep::execute(args, typed, &mut NodeLoad),
        Command::Compare(args) => return compare::execute(args, typed),
        Command::Floor(args) => floor::execute(args, typed),
        Command::Decode(args) => return decode::execute(args),
        Command::Doctor(args) => return doctor::execute(args, typed),
        Command::Profile(args) => profile::execute(args),
        Command::Completions(args) => manual::completions(args, &Cli::command()),
        Command::Man(args) => manual::man(args, Cli::command()),
        Command::Idle(args) => idle::execute(args),
    };
    done.map(|()| Status::Success)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use super::*;
    use crate::workloads::bench::op::Op;
    use clap::CommandFactory;
    use rpcrdma_control::Address;
    use rpcrdma_doctor::CoreList;

    pub(crate) use super::nfs::tests::{config as nfs, config_at as nfs_at};
    pub(crate) use super::run::execute as execute_run;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split_whitespace())
    }

    pub(crate) fn run(line: &str) -> RunArgs {
        match parse(line).unwrap().command {
            Command::Run(args) => args,
            other => panic!("not a run: {other:?}"),
        }
    }

    pub(crate) fn serve(arguments: &[String]) -> ServeArgs {
        match parse(&format!("bench-tool {}", arguments.join(" ")))
            .unwrap()
            .command
        {
            Command::Serve(args) => args,
            other => panic!("not a serve: {other:?}"),
        }
    }

    pub(crate) fn sweep(line: &str) -> SweepArgs {
        match parse(&format!("bench-tool sweep {line}")).unwrap().command {
            Command::Sweep(args) => *args,
            other => panic!("not a sweep: {other:?}"),
        }
    }

    #[test]
    fn clap_finds_no_contradiction() {
        Cli::command().debug_assert();
    }

    #[test]
    fn fleet_without_the_two_dashes_gets_a_hint() {
        let hint_of = |line: &str| {
            let error = parse(line).unwrap_err();
            hint(&error, line.split_whitespace().skip(1).map(OsString::from))
        };
        for line in [
            "bench-tool fleet --clients 2 run --connect shm:x",
            "bench-tool fleet --clients 2 sweep",
            "bench-tool fleet nfs --clients 2",
        ] {
            assert!(
                hint_of(line).is_some_and(|it| it.contains("put `--`")),
                "{line}"
            );
        }
        for line in [
            "bench-tool run --wrong",
            "bench-tool fleet --wrong -- run --connect shm:x",
            "bench-tool fleet --clients 2",
            "bench-tool fleet --clients none",
        ] {
            assert_eq!(hint_of(line), None, "{line}");
        }
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
        assert!(args.common.connect.is_none() && args.size.is_none() && args.pace.rate.is_none());
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
        let server = Address::Shm("x".to_owned()).into();
        assert_eq!(args.common.connect, Some(server));
        assert_eq!(args.op, Op::Echo);
        assert_eq!(args.size, Some(4096));
        assert_eq!(
            (args.depth, args.connections, args.common.idle_connections),
            (32, 2, 4096)
        );
        assert_eq!(args.common.cores, Some(CoreList(vec![0, 2, 3])));
        assert_eq!(args.pace.rate, Some(250_000));
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
            ("bench-tool run --delay 11s", ErrorKind::ValueValidation),
            (
                "bench-tool serve --listen shm:x --delay 10001ms",
                ErrorKind::ValueValidation,
            ),
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
