//! The command line of `bench-tool agent`, and the command of a fleet's client, which an agent runs.

use std::io::{self, IsTerminal as _};
use std::thread;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand};
use rpcrdma_doctor::CoreList;

use super::common::{LengthArgs, OutputArgs};
use super::nfs::NfsArgs;
use super::run::RunArgs;
use crate::exit::Failure;
use crate::fleet::agent::{Done, Ends, serve};
use crate::fleet::protocol::{Share, report_bytes_max};
use crate::load::gate::Gate;
use crate::machine::Machine;
use crate::nfs_client;
use crate::progress::say;
use crate::report::view::LoadReport;
use crate::run::node_load::NodeLoad;
use crate::run::report::Report;
use crate::run::{self, Gated};
use crate::signals::Stop;
use crate::workloads::bench::op::Op;

/// How long a load may take to end when the coordinator is gone. A NFS client removes its files meanwhile.
const END_TIMEOUT: Duration = Duration::from_secs(20);

/// `bench-tool agent`.
#[derive(Args, Debug)]
#[command(after_help = "\
A coordinator starts it: `bench-tool fleet` launches an agent for each of its clients, by the command of --launch, \
and speaks with it over its standard input and output. There is nothing to type and nothing to configure; only this \
program has to be on the host, in the same version.\n\n\
It ends when its standard input ends, so none is left when the coordinator is killed or the network fails. SIGTERM \
and SIGINT end its load, with a report of what was measured until then.\n\n\
Examples:
  bench-tool fleet --hosts a,b --launch 'ssh {host} bench-tool agent' -- run --connect rdma:server:20049
      starts one on each of two hosts")]
pub(crate) struct AgentArgs {}

/// Follows the coordinator at standard input and output.
///
/// # Errors
/// Those of [`serve`].
pub(super) fn execute(AgentArgs {}: &AgentArgs) -> Result<(), Failure> {
    if io::stdin().is_terminal() {
        say("bench-tool: an agent is started by `bench-tool fleet`; Ctrl-D ends it");
    }
    let stop = Stop::on_signals()?;
    let machine = Machine::detect();
    let ends = Ends {
        // WAIT: for the coordinator: see `serve`.
        input: io::BufReader::new(io::stdin()),
        output: io::stdout(),
    };
    let on_end = || {
        // WAIT: `END_TIMEOUT`, for a load that should end meanwhile.
        thread::sleep(END_TIMEOUT);
        // The load does not end, and nobody is there who could do something about it.
        std::process::exit(1);
    };
    serve(ends, &stop, on_end, &mut |share, stop, gate| {
        ClientCommand::parse(&share.arguments)?.measure(share, &machine, stop, gate)
    })
}

/// The command line of a fleet's client.
#[derive(Debug, Parser)]
#[command(name = "bench-tool", disable_help_subcommand = true)]
struct ClientLine {
    #[command(subcommand)]
    command: ClientCommand,
}

/// The command of a fleet's client: `run` or `nfs`.
#[derive(Debug, Subcommand)]
pub(super) enum ClientCommand {
    Run(Box<RunArgs>),
    Nfs(Box<NfsArgs>),
}

/// The failure for an output of a client.
pub(super) fn no_output(option: &str) -> Failure {
    Failure::usage(format!("{option} has no effect in the clients' command"))
        .advice("give the files to fleet, before the `--`; its JSON has the report of each client")
}

/// The failure for a command line of the clients that is wrong.
pub(super) fn cannot_be_run(error: &clap::Error) -> Failure {
    let text = error.render().to_string();
    let text = text.trim().trim_start_matches("error: ").to_owned();
    Failure::usage(format!("the clients' command cannot be run: {text}"))
}

impl ClientCommand {
    /// Reads a command line without the program's name.
    ///
    /// # Errors
    /// A usage failure for what `run` or `nfs` refuses, and for options that a client cannot have.
    pub(super) fn parse(arguments: &[String]) -> Result<Self, Failure> {
        let words = std::iter::once("bench-tool").chain(arguments.iter().map(String::as_str));
        let ClientLine { command } = ClientLine::try_parse_from(words).map_err(|error| {
            if error.kind() == ErrorKind::InvalidSubcommand {
                return Failure::usage("the clients of a fleet run `run`, `sweep` or `nfs`").advice(
                    "write `-- run --connect ADDR`, `-- sweep --connect ADDR --depth 1,2,4`, or `-- nfs --connect ADDR \
                     --export PATH`",
                );
            }
            cannot_be_run(&error)
        })?;
        command.refuse_what_a_client_cannot_have()?;
        Ok(command)
    }

    fn refuse_what_a_client_cannot_have(&self) -> Result<(), Failure> {
        if let Some(option) = self.output().given() {
            return Err(no_output(option));
        }
        match self {
            Self::Run(args) if args.common.connect.is_none() => {
                Err(Failure::usage("the clients' command names no server")
                    .advice("start one with `bench-tool serve`, and give --connect ADDR"))
            }
            _ => Ok(()),
        }
    }

    fn output(&self) -> &OutputArgs {
        match self {
            Self::Run(args) => &args.output,
            Self::Nfs(args) => &args.output,
        }
    }

    pub(super) fn rate_per_s(&self) -> Option<u64> {
        match self {
            Self::Run(args) => args.pace.rate,
            Self::Nfs(args) => args.pace.rate,
        }
    }

    pub(super) fn is_to_knee(&self) -> bool {
        match self {
            Self::Run(args) => args.pace.to_knee,
            Self::Nfs(args) => args.pace.to_knee,
        }
    }

    pub(super) fn repeats_disturbed(&self) -> bool {
        matches!(self, Self::Run(args) if args.repeat_disturbed.is_some())
    }

    fn length(&self) -> &LengthArgs {
        match self {
            Self::Run(args) => &args.common.length,
            Self::Nfs(args) => &args.length,
        }
    }

    /// The expected time of a load, with the warm-up; `None` for a number of calls.
    pub(super) fn expected(&self) -> Option<Duration> {
        let length = self.length();
        length.limit(self.is_to_knee()).expected(length.warmup)
    }

    /// Upper bound of the report of a load in bytes.
    pub(super) fn report_bytes_max(&self) -> u64 {
        let (cores, connections) = match self {
            // Those of a bench client share its cores.
            Self::Run(args) => (&args.common.cores, 1),
            Self::Nfs(args) => (&args.cores, args.connections),
        };
        let cores = cores.as_ref().map_or(1, |it| it.0.len());
        let cores = u64::try_from(cores).unwrap_or(u64::MAX);
        report_bytes_max(cores.max(connections.into()))
    }

    /// Makes the load of a round.
    fn measure(
        self,
        share: &Share,
        machine: &Machine,
        stop: &Stop,
        gate: &Gate,
    ) -> Result<Done, Failure> {
        let command = format!("bench-tool {}", share.arguments.join(" "));
        let is_step = self.is_to_knee();
        match self {
            Self::Run(mut args) => {
                args.pace.rate = share.rate_per_s;
                if args.op == Op::Mix || args.sizes.is_some() {
                    let seed = args.common.seed.unwrap_or(1);
                    args.common.seed = Some(seed.wrapping_add(share.seed_offset));
                }
                take_turns(&mut args.common.cores, share, machine);
                let config = args.config(machine, command)?;
                let mut load = Gated {
                    gate,
                    load: &mut NodeLoad,
                };
                let (result, floor) =
                    run::measure(&config, true, stop.clone(), &mut load, &mut |_| {})?;
                let report = Report::new(&config, machine, &result, floor.as_ref());
                let failure = result.totals.failure;
                let may_be_empty = is_step || stop.is_asked();
                let advice = "the counters of its report say which errors";
                done(&report, failure, may_be_empty, advice)
            }
            Self::Nfs(mut args) => {
                args.pace.rate = share.rate_per_s;
                args.seed = args.seed.wrapping_add(share.seed_offset);
                let config = args.config(machine, command)?;
                let (report, failure) = nfs_client::measure(&config, machine, stop, gate)?;
                let may_be_empty = is_step || stop.is_asked();
                let advice = "the warnings of its report say which error came first";
                done(&report, failure, may_be_empty, advice)
            }
        }
    }
}

/// Clients of one host take its cores in turns. Without this all of them would poll on the first one.
fn take_turns(cores: &mut Option<CoreList>, share: &Share, machine: &Machine) {
    let usable = &machine.cores_usable;
    let own = usable.get(share.place % usable.len().max(1));
    if let (None, true, Some(own)) = (&cores, share.places > 1, own) {
        *cores = Some(CoreList(vec![*own]));
    }
}

/// The report as JSON, and why the command would have failed after it: `failure` if the load broke off. A step of
/// `--to-knee`, and a client that was stopped, may have no calls, or some without an answer.
fn done(
    report: &impl LoadReport,
    failure: Option<Failure>,
    may_be_empty: bool,
    advice: &str,
) -> Result<Done, Failure> {
    let view = report.view();
    let verdict = view.load.account().verdict(advice).err();
    let verdict = verdict.filter(|_| view.load.errors > 0 || !may_be_empty);
    let report = serde_json::to_value(report).map_err(Failure::of)?;
    Ok((report, failure.or(verdict).map(|it| it.to_string())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Status;
    use rpcrdma_testkit::CheckWords;

    fn parse(line: &str) -> Result<ClientCommand, Failure> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        ClientCommand::parse(&words)
    }

    #[test]
    fn a_client_runs_run_or_nfs_with_their_options() {
        let run = parse("run --connect shm:x --rate 10k --duration 3s").unwrap();
        assert_eq!((run.rate_per_s(), run.is_to_knee()), (Some(10_000), false));
        assert_eq!(run.expected(), Some(Duration::from_millis(3_500)));
        let knee = parse("nfs --connect tcp:a:2049 --export /srv --to-knee").unwrap();
        assert!(knee.is_to_knee());
        assert_eq!(knee.expected(), Some(Duration::from_millis(2_500)));
        let bytes = [
            "run --connect shm:x --connections 900",
            "run --connect shm:x --cores 0-3",
            "nfs --connect tcp:a:2049 --export /srv --connections 9",
        ]
        .map(|line| parse(line).unwrap().report_bytes_max());
        assert!(bytes.is_sorted_by(|a, b| a < b), "{bytes:?}");
        let counted = parse("run --connect shm:x --count 5").unwrap();
        assert_eq!(counted.expected(), None);
    }

    #[test]
    fn command_a_fleet_client_cannot_run_is_a_usage_failure() {
        for (line, words) in [
            ("run", "--connect ADDR"),
            ("serve --listen shm:x", "`sweep` or `nfs`"),
            ("fleet --clients 2 -- run", "`sweep` or `nfs`"),
            ("run --connect shm:x --json a.json", "--json has no effect"),
            (
                "run --connect shm:x --intervals",
                "--intervals has no effect",
            ),
            ("run --connect shm:x --depth 0", "0 is not in"),
            ("", "cannot be run"),
        ] {
            let failure = parse(line).unwrap_err();
            assert_eq!(failure.status(), Status::Usage, "{line}");
            failure.check_words(&[words]);
        }
    }

    #[test]
    fn clients_of_one_host_take_its_cores_in_turns() {
        let machine = Machine {
            cores_usable: vec![4, 6],
            ..Machine::detect()
        };
        let cores = |given: Option<Vec<usize>>, place, places| {
            let mut cores = given.map(CoreList);
            let share = Share {
                arguments: Vec::new(),
                rate_per_s: None,
                seed_offset: 0,
                place,
                places,
                shows_latency: false,
            };
            take_turns(&mut cores, &share, &machine);
            cores.map(|it| it.0)
        };
        assert_eq!(cores(None, 0, 1), None, "the command's own default");
        let turns: Vec<_> = (0..3).map(|place| cores(None, place, 3)).collect();
        assert_eq!(turns, [Some(vec![4]), Some(vec![6]), Some(vec![4])]);
        assert_eq!(cores(Some(vec![9]), 1, 3), Some(vec![9]));
    }
}
