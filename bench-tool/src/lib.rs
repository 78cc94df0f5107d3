//! `bench-tool`: measures RPC-over-RDMA and the machine underneath, and explains transport headers.
//!
//! | module | contents |
//! |---|---|
//! | `commands` | the command line, from which it builds the configurations of the other modules; also the small commands `decode`, `doctor`, `completions`, `man` |
//! | `run` | `run`: its configuration, its own server, its phases |
//! | `load`, `workloads` | the load generator, and the calls of its two RPC programs |
//! | `serve` | `serve`: the server |
//! | `bench_program`, `sizing` | the bench program (RPC), and the resources that client and server need |
//! | `nfs_client` | `nfs`: puts a load on NFS servers |
//! | `fleet` | `fleet`, `agent`, `merge`: many clients as one run, and sums of reports |
//! | `sweep` | `sweep`: a run for every combination of sizes, depths, placements |
//! | `compare` | `compare`: whether two groups of runs differ beyond noise |
//! | `floor` | `floor`: the machine's own limits, which no transport can beat |
//! | `profile` | `profile`: the tuning profiles, and the profile of a device |
//! | `report` | table, JSON, charts, percentile distribution, and their output files |
//! | `histogram` | latency histograms |
//! | `progress`, `signals`, `exit` | the progress line, the clean stop, exit codes and errors |
//! | `machine`, `clock`, `address`, `fabric`, `protocol` | the machine, the clock, server addresses, fabrics, versions of RPC-over-RDMA |
//!
//! `docs/bench-tool.md` is the manual.
#![forbid(unsafe_code)]

mod address;
mod authentication;
mod bench_program;
mod clock;
mod commands;
mod compare;
mod draw;
mod exit;
mod fabric;
mod fleet;
mod floor;
mod histogram;
mod load;
mod machine;
mod nfs_client;
mod profile;
mod progress;
mod protocol;
mod report;
mod run;
mod serve;
mod signals;
mod sizing;
mod sweep;
mod workloads;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};

pub use self::workloads::bench::null_calls::NullCalls;

/// Version of the tool.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Git revision that the tool was built from, or `unknown`.
const REVISION: &str = env!("BENCH_TOOL_REVISION");

/// What `--version` prints after the name.
const VERSION_LINE: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (revision ",
    env!("BENCH_TOOL_REVISION"),
    ", ",
    env!("BENCH_TOOL_BUILD_PROFILE"),
    " build, ",
    env!("BENCH_TOOL_RDMA_CORE"),
    ")"
);

/// The whole program: reads the command line, runs the command, and returns the exit status.
#[must_use]
pub fn main() -> ExitCode {
    let cli = commands::Cli::parse();
    let status = commands::execute(&cli.command, typed()).unwrap_or_else(|failure| {
        eprintln!("bench-tool: {failure}");
        failure.status()
    });
    status.into()
}

/// The definition of the command line, for programs that generate or check command lines.
#[must_use]
pub fn command_line() -> clap::Command {
    commands::Cli::command()
}

/// The command line as typed, for reports.
fn typed() -> String {
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
