//! `bench-tool`: measures RPC-over-RDMA and the machine underneath, serves, and explains transport headers.
//!
//! It is a program: install it with `cargo install --path bench-tool`, and read `docs/guide.md` for a first measurement and
//! `docs/bench-tool.md` for each command. This library is what its `main` calls, and gives other programs the definition of
//! the command line, for completions or to check command lines in documents:
//!
//! ```
//! let command_line = bench_tool::command_line();
//! let run = command_line.find_subcommand("run").expect("a command");
//! assert!(run.get_arguments().any(|argument| argument.get_long() == Some("connect")));
//! ```
//!
//! # For who changes it
//!
//! `commands` reads the command line and builds the configurations of everything else: one module each for `run`, `serve`, `nfs`
//! (`nfs_client`), `fleet` (`agent` and `merge` too), `report` (`saved`), `sweep`, `compare`, `floor` and `profile`, which know nothing of clap.
//! `load` makes calls at a rate or depth, for any RPC program that `workloads` has; `bench_program` is the one that `run` calls.
//! `report` writes tables, JSON and charts of a result; `metrics` serves pages for Prometheus, of `serve` and of loads that go on.
//! The crates `rpcrdma-explain`, `rpcrdma-doctor` and `rpcrdma-nfs3` decode, examine machines, and have the NFS client and server.
#![forbid(unsafe_code)]
// Both panic when nobody is left to print to, such as after the loss of a terminal: `progress::say`, `report::output::print`.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

mod address;
mod authentication;
mod bench_program;
mod children;
mod clock;
mod commands;
mod compare;
mod date;
mod draw;
mod exit;
mod fleet;
mod floor;
mod histogram;
mod load;
mod machine;
mod metrics;
mod nfs_client;
mod profile;
mod progress;
mod protocol;
mod record;
mod report;
mod run;
mod saved;
mod serve;
mod signals;
mod sizing;
mod sweep;
mod threads;
mod workloads;

use std::process::ExitCode;
use std::sync::Arc;

use clap::{CommandFactory as _, Parser as _};
use signal_hook::consts::SIGXFSZ;

use self::exit::{Failure, Status, written};

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
    // A child that `children::OWN_PROGRAM` started would be called `exe` in lists of processes.
    let _ = rustix::thread::set_name(c"bench-tool");
    // A file beyond the limit of the process (ulimit -f) is an error of the write, and no death without a word.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
    let done = match commands::Cli::try_parse() {
        Ok(cli) => commands::execute(&cli.command, typed()),
        Err(error) => not_parsed(&error),
    };
    let status = done.unwrap_or_else(|failure| {
        progress::say(&format!("bench-tool: {failure}"));
        failure.status()
    });
    status.into()
}

/// Prints the help or the version, or what is wrong with the command line.
fn not_parsed(error: &clap::Error) -> Result<Status, Failure> {
    let printed = error.print();
    if !error.use_stderr() {
        return written(printed).map(|()| Status::Success);
    }
    if let Some(hint) = commands::hint(error, std::env::args_os().skip(1)) {
        progress::say(&format!("\n  what to do: {hint}"));
    }
    Ok(Status::Usage)
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
