//! The command line of `bench-tool fleet`.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::agent::ClientCommand;
use super::fleet_sweep::{self, SWEEP};
use super::nfs3::host_port;
use super::sweep::SweepFilesArgs;
use super::values;
use crate::children::OWN_PROGRAM;
use crate::exit::Failure;
use crate::fleet;
use crate::fleet::config::{FleetConfig, FleetSweep, FleetWork};
use crate::fleet::launch::Launch;
use crate::fleet::plan::{CLIENTS_MAX, FleetPlan, Pattern, divide};
use crate::machine::Machine;
use crate::metrics::MetricsAddress;
use crate::report::output::Outputs;

/// The host of clients on this machine.
const LOCALHOST: &str = "localhost";

/// `bench-tool fleet`.
#[derive(Args, Debug)]
#[command(
    override_usage = "bench-tool fleet [OPTIONS] --launch COMMAND --hosts HOST,... -- run|sweep|nfs ...\n       \
                      bench-tool fleet [OPTIONS] --clients N -- run|sweep|nfs ...",
    after_help = "\
Runs the command after the `--`, `run`, `sweep` or `nfs` with its options, on all clients at the same time, and writes one \
report: the merged histogram, whose count is checked against the clients' calls and whose percentiles are never \
averaged; each client's figures; the slowest client; Jain's index of fairness of their rates; and how far the starts \
were apart, by clocks that are compared before.\n\n\
Each client is a process of `bench-tool agent`, launched by the command of --launch, whose standard input and output \
carry the messages: there are no ports and no keys. It is split into words as a shell does, but no shell runs it; \
{host} and {index} stand for the client's host and its number from 0, in the clients' command too. This program has to \
be on every host, in the same version.\n\n\
--rate is the total: it is divided. Every client has its own seed. Without --cores, clients of one host take its cores in \
turns.\n\n\
A sweep is a run of the fleet for every combination of its lists, --repeats times, with one agent of each client for all \
of them. Its table has medians over the repeats as that of `bench-tool sweep`, and of each combination how many clients it \
had, their fairness and the slowest.\n\n\
A client that dies, says nothing for a while or is not ready in time is named, and the others go on; the exit status \
is then 1. The first Ctrl-C ends all loads, and the report covers what was measured until then; the second one kills \
the agents.\n\n\
Examples:
  bench-tool fleet --launch 'ssh {host} bench-tool agent' --hosts a,b,c -- run --connect rdma:server:20049 --depth 8
      three clients of one server
  bench-tool fleet --launch 'ssh {host} bench-tool agent' --hosts a,b,c -- run --connect rdma:server:20049 --rate 300k --depth 64
      the same at 100,000 calls a second each
  bench-tool fleet --clients 8 --json fleet.json --html fleet.html -- run --connect shm:bench --set idle=park
      eight processes on this machine, against `bench-tool serve --listen shm:bench`
  bench-tool fleet --launch 'srun --overlap -N1 -n1 -w {host} bench-tool agent' --hosts-file nodes -- run --connect rdma:server:20049 --to-knee --depth 16
      on the nodes of a Slurm job: latency against the total rate, up to the knee
  bench-tool fleet --launch 'ssh {host} bench-tool agent' --hosts a,b,c --plot depths.svg --html depths.html -- sweep --connect rdma:server:20049 --depth 1,4,16,64 --duration 2s
      rate and latency of three clients together against their depth
  bench-tool fleet --launch 'kubectl exec -i {host} -- bench-tool agent' --hosts-file pods -- nfs --connect tcp:server:2049 --export /srv --op read
      in the pods of a Kubernetes job, reading from an NFS server
  bench-tool fleet --launch 'ssh {host} bench-tool agent' --hosts a,b --targets rdma:s1:20049,rdma:s2:20049 -- run --connect {target}
      every host calls every server: four clients"
)]
pub(crate) struct FleetArgs {
    /// Command that launches an agent, with {host} and {index} for those of the client [default with --clients: this program's own agent]
    #[arg(long, value_name = "COMMAND")]
    pub launch: Option<String>,

    /// Hosts of the clients; a host that is named several times has several clients
    #[arg(long, value_name = "HOST,...", value_delimiter = ',', required_unless_present_any = ["hosts_file", "clients"])]
    pub hosts: Vec<String>,

    /// The same from a file, one host a line; `#` begins a comment
    #[arg(long, value_name = "FILE", conflicts_with = "hosts")]
    pub hosts_file: Option<PathBuf>,

    /// So many clients on this machine
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096), conflicts_with_all = ["hosts", "hosts_file"])]
    pub clients: Option<u32>,

    /// Servers; each client has one of them, in place of {target} in its command
    #[arg(long, value_name = "ADDR,...", value_delimiter = ',')]
    pub targets: Vec<String>,

    /// Who calls whom: a client for each pair of a host and a server [default: the one that hosts and servers make]
    #[arg(long, value_enum)]
    pub pattern: Option<Pattern>,

    /// How long a client may take until it is ready: launched, connected and, for nfs, with its files
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = values::time_above_zero)]
    pub start_timeout: Duration,

    /// How long a client may be silent, or read nothing of a message to it; it sends a sign of life every second
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = values::time_above_zero)]
    pub silence_timeout: Duration,

    /// Write the report as JSON, with the report of each client; `-` is standard output, and the table then goes to standard error
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Write the percentile distribution of all calls as text that HdrHistogram plotters load
    #[arg(long, value_name = "FILE")]
    pub hgrm: Option<PathBuf>,

    /// Write the report as an HTML page without scripts: the percentiles, the clients with the slowest first, and what failed
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// Serve Prometheus metrics of all clients at http://HOST:PORT/metrics while they run; port 0 is any free port
    #[arg(long, value_name = "HOST:PORT", value_parser = host_port)]
    pub metrics: Option<MetricsAddress>,

    /// Show only errors and warnings, no table and no progress
    #[arg(long, short)]
    pub quiet: bool,

    /// What every client runs: `run`, `sweep` or `nfs`, with its options
    #[arg(
        last = true,
        required = true,
        value_name = "COMMAND",
        allow_hyphen_values = true
    )]
    pub command: Vec<String>,

    /// Outputs of a sweep. They are last, since arguments behind them would have their heading
    #[command(flatten, next_help_heading = "Of a sweep")]
    pub sweep: SweepFilesArgs,
}

impl ValueEnum for Pattern {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::ManyToOne, Self::OneToMany, Self::AllToAll]
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        let help = match self {
            Self::ManyToOne => "all clients call one server",
            Self::OneToMany => "one host calls every server",
            Self::AllToAll => "every host calls every server",
        };
        Some(clap::builder::PossibleValue::new(self.name()).help(help))
    }
}

/// Runs the command.
///
/// # Errors
/// Contradictory arguments, and those of [`fleet::execute`].
pub(super) fn execute(args: &FleetArgs, command: String) -> Result<(), Failure> {
    let config = args.config(command)?;
    let without_hgrm = match &config.work {
        FleetWork::Once(_) => None,
        FleetWork::ToKnee => Some(("--to-knee", "the closed loop")),
        FleetWork::Sweep(_) => Some(("a sweep", "each run")),
    };
    if let (Some((with, of)), Some(_)) = (without_hgrm, &args.hgrm) {
        return Err(Failure::usage(format!("--hgrm has no effect with {with}"))
            .advice(format!("leave it out; the JSON has the histogram of {of}")));
    }
    let files = [
        ("--json", args.json.as_deref()),
        ("--hgrm", args.hgrm.as_deref()),
        ("--html", args.html.as_deref()),
        ("--csv", args.sweep.csv.as_deref()),
    ];
    let outputs = Outputs::check(&files, args.quiet)?;
    let chart = match &config.work {
        FleetWork::Sweep(sweep) => args.sweep.chart(&sweep.plan.points)?,
        FleetWork::Once(_) | FleetWork::ToKnee => None,
    };
    outputs.check_other(chart.as_ref())?;
    let machine = Machine::detect();
    let metrics = args.metrics.as_ref();
    fleet::execute(&config, &machine, &outputs, chart.as_ref(), metrics)
}

impl FleetArgs {
    /// # Errors
    /// A usage failure with the argument and what to give instead.
    fn config(&self, command: String) -> Result<FleetConfig, Failure> {
        let hosts = self.hosts()?;
        let plan = |words| FleetPlan::new(&hosts, &self.targets, self.pattern, words);
        let (plan, sweep) = match self.command.first().is_some_and(|it| it == SWEEP) {
            true => {
                let shared = fleet_sweep::shared_words(&self.command)?;
                let (of_run, as_given) = (plan(&shared)?, plan(&self.command)?);
                let clients = as_given.clients.iter().map(|it| &it.arguments[..]);
                (of_run, Some(fleet_sweep::sweep(clients, shared)?))
            }
            false => (plan(&self.command)?, None),
        };
        let launch = self.launch(&hosts)?;
        // All clients have the same options: only hosts, numbers and servers differ.
        let commands = plan
            .clients
            .iter()
            .map(|it| ClientCommand::parse(&it.arguments));
        let commands: Vec<ClientCommand> = commands.collect::<Result<_, _>>()?;
        let Some(first) = commands.first() else {
            return Err(Failure::usage("there are no clients").advice("give --hosts, or --clients"));
        };
        if first.repeats_disturbed() {
            let what = "--repeat-disturbed has no effect in a fleet: its rates are measured once";
            return Err(Failure::usage(what).advice("leave it out"));
        }
        let work = self.work(first, sweep, plan.clients.len())?;
        Ok(FleetConfig {
            command,
            launch,
            client_command: self.command.join(" "),
            work,
            expected: first.expected(),
            start_timeout: self.start_timeout,
            silence_timeout: self.silence_timeout,
            report_bytes_max: commands
                .iter()
                .map(ClientCommand::report_bytes_max)
                .max()
                .unwrap_or(0),
            quiet: self.quiet,
            plan,
        })
    }

    /// What the clients, whose command is `first`, do together.
    fn work(
        &self,
        first: &ClientCommand,
        sweep: Option<FleetSweep>,
        clients: usize,
    ) -> Result<FleetWork, Failure> {
        let Some(sweep) = sweep else {
            if let Some(option) = self.sweep.given() {
                return Err(
                    Failure::usage(format!("{option} has no effect without a sweep"))
                        .advice("leave it out, or write `-- sweep ...`"),
                );
            }
            if let Some(rate) = first.rate_per_s() {
                divide(rate, clients)?;
            }
            return Ok(match first.is_to_knee() {
                true => FleetWork::ToKnee,
                false => FleetWork::Once(first.rate_per_s()),
            });
        };
        for rate in sweep.plan.points.iter().filter_map(|it| it.rate_per_s) {
            divide(rate, clients)?;
        }
        Ok(FleetWork::Sweep(FleetSweep {
            figure: self.sweep.figure,
            ..sweep
        }))
    }

    fn hosts(&self) -> Result<Vec<String>, Failure> {
        if let Some(clients) = self.clients {
            let clients = usize::try_from(clients).unwrap_or(CLIENTS_MAX);
            return Ok(vec![LOCALHOST.to_owned(); clients]);
        }
        let hosts: Vec<String> = match &self.hosts_file {
            None => self.hosts.clone(),
            Some(file) => {
                let text = fs::read_to_string(file).map_err(|error| {
                    Failure::usage(format!("cannot read {} (--hosts-file)", file.display()))
                        .because(error)
                        .advice("write a file with one host a line, or give --hosts a,b,c")
                })?;
                let hosts = text
                    .lines()
                    .map(|it| it.split('#').next().unwrap_or("").trim());
                hosts
                    .filter(|it| !it.is_empty())
                    .map(str::to_owned)
                    .collect()
            }
        };
        // A host that begins with a dash would be an option of ssh, and a terminal would execute a control character.
        let is_none =
            |it: &&String| it.is_empty() || it.starts_with('-') || it.contains(char::is_control);
        match hosts.iter().find(is_none) {
            Some(host) => Err(
                Failure::usage(format!("`{}` is no host", host.escape_debug()))
                    .advice("give names or addresses, as in --hosts a,b,c"),
            ),
            None => Ok(hosts),
        }
    }

    fn launch(&self, hosts: &[String]) -> Result<Launch, Failure> {
        let advice = "write it as in --launch 'ssh {host} bench-tool agent'";
        match &self.launch {
            Some(line) => {
                let launch = Launch::parse(line)?;
                let are_several = hosts.iter().any(|it| Some(it) != hosts.first());
                if are_several && !launch.names_client() {
                    let what = "there are several hosts, and --launch has no {host}";
                    return Err(Failure::usage(what).advice(advice));
                }
                Ok(launch)
            }
            None if self.clients.is_some() => Ok(Launch::program(OWN_PROGRAM, "agent")),
            None => Err(
                Failure::usage("nothing says how to launch agents on these hosts").advice(advice),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Cli, Command};
    use super::*;
    use crate::exit::Status;
    use clap::Parser as _;
    use rpcrdma_testkit::{CheckWords, Folder};

    fn config(line: &str) -> Result<FleetConfig, Failure> {
        let line = format!("bench-tool fleet {line}");
        let Command::Fleet(args) = Cli::parse_from(line.split_whitespace()).command else {
            panic!("no fleet");
        };
        args.config(line)
    }

    const LAUNCH: &str = "--launch launch-{host}";

    #[test]
    fn hosts_make_the_clients() {
        let fleet = config("--clients 3 -- run --connect shm:x --rate 10 --duration 1s").unwrap();
        assert_eq!(fleet.plan.clients.len(), 3);
        assert!(matches!(fleet.work, FleetWork::Once(Some(10))));
        assert_eq!(fleet.expected, Some(Duration::from_millis(1_500)));
        assert_eq!(
            fleet.client_command,
            "run --connect shm:x --rate 10 --duration 1s"
        );
        let words = fleet.launch.words_for(LOCALHOST, 0);
        assert_eq!(words[1..], ["agent"]);
        let fleet = config(&format!(
            "{LAUNCH} --hosts a,b,a -- run --connect shm:{{host}}"
        ))
        .unwrap();
        assert_eq!(fleet.launch.words_for("b", 1), ["launch-b"]);
        assert_eq!(fleet.plan.clients[1].arguments[2], "shm:b");
        let folder = Folder::new("hosts");
        let file = folder.write("hosts", "# rack 1\na\n\n  b # slow\n");
        let of_file = format!("{LAUNCH} --hosts-file {file} -- run --connect shm:x");
        let fleet = config(&of_file).unwrap();
        let hosts: Vec<_> = fleet.plan.clients.iter().map(|it| &it.host[..]).collect();
        assert_eq!(hosts, ["a", "b"]);
        folder.write("hosts", "a\u{1b}[2J\n");
        let refused = config(&of_file).unwrap_err();
        refused.check_words(&["`a\\u{1b}[2J` is no host"]);
        let line = format!(
            "{LAUNCH} --hosts a,b --targets shm:x,shm:y --pattern all-to-all -- run --connect {{target}} --to-knee"
        );
        let fleet = config(&line).unwrap();
        assert_eq!(fleet.plan.clients.len(), 4);
        assert!(matches!(fleet.work, FleetWork::ToKnee));
    }

    #[test]
    fn a_sweep_is_a_run_for_each_combination() {
        let line = format!(
            "{LAUNCH} --hosts a,b --targets shm:x,shm:y --figure p99 -- sweep --connect {{target}} --depth 1,4 \
             --rate 10k,20k --duration 1s"
        );
        let fleet = config(&line).unwrap();
        let FleetWork::Sweep(sweep) = &fleet.work else {
            panic!("{:?}", fleet.work);
        };
        assert_eq!((sweep.plan.points.len(), sweep.options.len()), (4, 4));
        assert_eq!(sweep.figure, Some(crate::report::metric::Metric::P99));
        assert_eq!(sweep.shared[..3], ["run", "--connect", "{target}"]);
        let client = &fleet.plan.clients[3];
        assert_eq!(client.arguments[..3], ["run", "--connect", "shm:y"]);
        let share = client.share(3, None, &sweep.options[3]);
        let expected = "--op null --depth 4 --connections 1 --rate 20000";
        assert!(share.arguments.join(" ").ends_with(expected), "{share:?}");
        assert_eq!(fleet.expected, Some(Duration::from_millis(1_500)));
        assert!(fleet.client_command.starts_with("sweep --connect {target}"));
    }

    #[test]
    fn invalid_fleet_options_are_usage_failures_with_advice() {
        for (line, words) in [
            ("--hosts a -- run --connect shm:x", "nothing says how"),
            ("--launch x --hosts a,b -- run --connect shm:x", "no {host}"),
            ("--launch ' --hosts a -- run --connect shm:x", "quote"),
            (
                "--launch {host} --hosts=-oX -- run --connect shm:x",
                "is no host",
            ),
            (
                "--launch {host} --hosts a,,b -- run --connect shm:x",
                "`` is no host",
            ),
            (
                "--launch {host} --hosts-file /nonexistent -- run --connect shm:x",
                "cannot read",
            ),
            ("--clients 2 -- run", "names no server"),
            ("--clients 9 -- run --connect shm:x --rate 8", "9 clients"),
            ("--clients 2 -- run --connect {target}", "--targets"),
            (
                "--clients 2 -- run --connect shm:x --to-knee --repeat-disturbed 1",
                "leave it out",
            ),
            (
                "--clients 2 --csv a -- run --connect shm:x",
                "without a sweep",
            ),
            ("--clients 2 -- sweep --depth 1,2", "names no server"),
            (
                "--clients 2 -- sweep --connect shm:x --csv a",
                "before the `--`",
            ),
            (
                "--clients 9 -- sweep --connect shm:x --rate 90,8",
                "9 clients",
            ),
            (
                "--clients 2 -- sweep --connect shm:x --depth {index}",
                "cannot be run",
            ),
            (
                "--clients 2 --targets shm:x -- run --connect shm:y",
                "{target}",
            ),
            (
                "--clients 1 --targets shm:x,y -- run --connect {target}",
                "cannot be run",
            ),
        ] {
            let failure = config(line).unwrap_err();
            assert_eq!(failure.status(), Status::Usage, "{line}");
            failure.check_words(&[words]);
        }
    }
}
