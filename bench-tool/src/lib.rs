//! `bench-tool`: measures RPC-over-RDMA, the machine underneath, and explains transport headers.
//!
//! | module | what |
//! |---|---|
//! | [`cli`] | the command line |
//! | [`run`] | `run`: configuration, the server of its own, the course of a run |
//! | [`load`] | the connections and the load of a run |
//! | [`serve`] | `serve`: the server |
//! | [`bench_program`], [`sizing`] | the RPC program that both speak, and the sizes that they need |
//! | [`nfs_client`] | `nfs`: drives NFS servers |
//! | [`sweep`] | `sweep`: a run for every combination of sizes, depths, placements |
//! | [`compare`] | `compare`: whether two groups of runs differ beyond noise |
//! | [`floor`] | `floor`: what no transport on this machine can beat |
//! | [`decode`] | `decode`: transport headers from hex |
//! | [`doctor`] | `doctor`: what stands in the way on this machine |
//! | [`profile`] | `profile`: the tuning profiles, and which one a device takes |
//! | [`manual`] | `completions` and `man`: what shells and `man` know of the commands |
//! | [`report`] | table, JSON, percentile distribution, and the files they go to |
//! | [`histogram`] | latency histograms |
//! | [`progress`], [`signals`], [`exit`] | the manners of a command: a live line, a clean stop, exit codes |
//! | [`machine`], [`clock`], [`address`], [`fabric`] | where it runs, what times it, whom it calls, and by what |
//!
//! The user's view is `docs/bench-tool.md`.
#![forbid(unsafe_code)]

pub mod address;
pub mod authentication;
pub mod bench_program;
pub mod cli;
pub mod clock;
pub mod compare;
pub mod decode;
pub mod doctor;
pub mod exit;
pub mod fabric;
pub mod floor;
pub mod histogram;
pub mod load;
pub mod machine;
pub mod manual;
pub mod nfs_client;
pub mod profile;
pub mod progress;
pub mod report;
pub mod run;
pub mod serve;
pub mod signals;
pub mod sizing;
pub mod sweep;

use std::process::ExitCode;

use clap::Parser;

use self::exit::{Failure, Status};

/// Version of the tool.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Git revision that the tool was built from, or `unknown`.
pub const REVISION: &str = env!("BENCH_TOOL_REVISION");

/// What `--version` prints after the name.
pub const VERSION_LINE: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (revision ",
    env!("BENCH_TOOL_REVISION"),
    ", ",
    env!("BENCH_TOOL_BUILD_PROFILE"),
    " build)"
);

/// The whole program: reads the command line, does what it says, and returns the exit status.
#[must_use]
pub fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    let status = execute(&cli.command).unwrap_or_else(|failure| {
        eprintln!("bench-tool: {failure}");
        failure.status()
    });
    status.into()
}

fn execute(command: &cli::Command) -> Result<Status, Failure> {
    match command {
        cli::Command::Floor(args) => {
            floor::command::execute(args, command_line()).map(|()| Status::Success)
        }
        cli::Command::Decode(args) => decode::execute(args),
        cli::Command::Doctor(args) => doctor::execute(args, command_line()),
        cli::Command::Profile(args) => profile::execute(args),
        cli::Command::Completions(args) => manual::completions(args),
        cli::Command::Man(args) => manual::man(args),
        cli::Command::Run(args) => {
            run::execute(args, command_line(), &mut load::NodeLoad).map(|()| Status::Success)
        }
        cli::Command::Nfs(args) => {
            nfs_client::execute(args, command_line()).map(|()| Status::Success)
        }
        cli::Command::Sweep(args) => sweep::execute(args, command_line(), &mut load::NodeLoad),
        cli::Command::Compare(args) => compare::execute(args, command_line()),
        cli::Command::Serve(args) => serve::execute(args).map(|()| Status::Success),
        cli::Command::Idle(args) => load::idle::execute(args).map(|()| Status::Success),
    }
}

/// The command line as typed, for reports.
fn command_line() -> String {
    let quote = |argument: String| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,=+@%".contains(c);
        if !argument.is_empty() && argument.chars().all(plain) {
            argument
        } else {
            format!("'{}'", argument.replace('\'', "'\\''"))
        }
    };
    let arguments = std::env::args_os()
        .skip(1)
        .map(|a| quote(a.to_string_lossy().into_owned()));
    std::iter::once("bench-tool".to_owned())
        .chain(arguments)
        .collect::<Vec<_>>()
        .join(" ")
}
