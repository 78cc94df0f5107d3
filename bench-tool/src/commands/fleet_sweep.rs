//! The sweep of a fleet: its command line becomes options of `run` for each combination. An agent knows no sweeps.

use clap::builder::ValueParser;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, CommandFactory as _, Parser};

use super::agent::{cannot_be_run, no_output};
use super::sweep::SweepArgs;
use crate::exit::Failure;
use crate::fleet::config::FleetSweep;
use crate::sweep::grid::Point;

/// The name of the command.
pub(super) const SWEEP: &str = "sweep";

/// Upper bound of the clients' reports in the report of a sweep: it has those of all runs.
const REPORTS_MAX: usize = 10_000;

/// The options that a sweep has for itself: its lists, and how often to make the runs.
const OWN: [&str; 8] = [
    "op",
    "size",
    "placement",
    "depth",
    "connections",
    "rate",
    "repeats",
    "repeat_disturbed",
];

/// The command of the clients.
#[derive(Debug, Parser)]
#[command(name = "bench-tool sweep")]
struct SweepLine {
    #[command(flatten)]
    args: SweepArgs,
}

/// What all combinations share, as words of `run`: the words of a sweep without its own options. Words that stand for
/// hosts and servers stay in them.
///
/// # Errors
/// A usage failure for words that are no options of a sweep, and for outputs.
pub(super) fn shared_words(words: &[String]) -> Result<Vec<String>, Failure> {
    // `{target}` is no address, and becomes one later.
    let unchecked = |arg: Arg| match arg.get_action().takes_values() {
        true => arg.value_parser(ValueParser::string()),
        false => arg,
    };
    let mut command = SweepLine::command().mut_args(unchecked);
    let matches = command.try_get_matches_from_mut(words);
    let matches = matches.map_err(|error| cannot_be_run(&error))?;
    let mut shared = vec!["run".to_owned()];
    for arg in command.get_arguments() {
        let id = arg.get_id().as_str();
        let is_given = matches.value_source(id) == Some(ValueSource::CommandLine);
        if let (Some(name), true) = (arg.get_long(), is_given && !OWN.contains(&id)) {
            add_words(&mut shared, name, arg, &matches);
        }
    }
    Ok(shared)
}

fn add_words(words: &mut Vec<String>, name: &str, arg: &Arg, matches: &ArgMatches) {
    let name = format!("--{name}");
    if !arg.get_action().takes_values() {
        words.push(name);
        return;
    }
    let delimiter = arg.get_value_delimiter().unwrap_or(',').to_string();
    let occurrences = matches.get_raw_occurrences(arg.get_id().as_str());
    for values in occurrences.into_iter().flatten() {
        let values: Vec<_> = values.map(|it| it.to_string_lossy()).collect();
        match values.join(&delimiter) {
            value if value.starts_with('-') => words.push(format!("{name}={value}")),
            value => words.extend([name.clone(), value]),
        }
    }
}

/// The options of `run` for a combination.
fn options(point: &Point) -> Vec<String> {
    let given = [
        ("--op", Some(point.op.name().to_owned())),
        ("--size", point.size.map(|it| it.to_string())),
        (
            "--placement",
            (point.op.is_bulk()).then(|| point.placement.name().to_owned()),
        ),
        ("--depth", Some(point.depth.to_string())),
        ("--connections", Some(point.connections.to_string())),
        ("--rate", point.rate_per_s.map(|it| it.to_string())),
    ];
    let given = given.into_iter();
    let given = given.filter_map(|(name, value)| Some([name.to_owned(), value?]));
    given.flatten().collect()
}

/// The sweep of clients with these command lines, which share `shared`.
///
/// # Errors
/// A usage failure for combinations that no client can run, or for too many, and for lists that are not those of all
/// clients.
pub(super) fn sweep<'a>(
    clients: impl Iterator<Item = &'a [String]>,
    shared: Vec<String>,
) -> Result<FleetSweep, Failure> {
    let parse = |words: &[String]| {
        let line = SweepLine::try_parse_from(words);
        line.map(|it| it.args)
            .map_err(|error| cannot_be_run(&error))
    };
    let mut all = clients.map(parse);
    let first = all
        .next()
        .unwrap_or_else(|| Err(Failure::usage("there are no clients")))?;
    if let Some(option) = first.output() {
        return Err(no_output(option));
    }
    let plan = first.plan()?;
    let mut count = 1;
    for other in all {
        count += 1;
        if other?.plan()? != plan {
            let what = "the lists of a sweep are not the same for all clients";
            return Err(Failure::usage(what).advice("write no {host} and no {index} in them"));
        }
    }
    // A run that the machine disturbed is made again, and both are in the report.
    let of_point = u64::from(plan.repeats) * (1 + u64::from(plan.repeat_disturbed));
    let runs = usize::try_from(of_point).unwrap_or(usize::MAX);
    let runs = runs.saturating_mul(plan.points.len());
    let reports = runs.saturating_mul(count);
    if reports > REPORTS_MAX {
        return Err(Failure::usage(format!(
            "up to {runs} runs of {count} clients make {reports} reports, and {REPORTS_MAX} are the most"
        ))
        .advice("make the lists shorter, or give fewer --repeats or --repeat-disturbed"));
    }
    for point in &plan.points {
        first.run_args(point).work()?;
    }
    Ok(FleetSweep {
        options: plan.points.iter().map(options).collect(),
        plan,
        shared,
        figure: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::agent::ClientCommand;
    use crate::exit::Status;
    use rpcrdma_testkit::CheckWords;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn sweep_options_shared_by_combinations_form_a_run() {
        let line = "sweep --depth 1,2 --connect {target} --set idle=park --set reap_batch=4 --size=1k,4k --op write \
                    --placement send,rdma --seed=-3 --repeats 2 -q --repeat-disturbed 0 --rate 5k --cores 0,2";
        let shared = shared_words(&words(line)).unwrap();
        let expected = "run --connect {target} --seed=-3 --cores 0,2 --set idle=park --set reap_batch=4 --quiet";
        let sorted = |words: Vec<String>| {
            let mut words = words;
            words.sort();
            words
        };
        assert_eq!(shared[0], "run");
        assert_eq!(sorted(shared), sorted(words(expected)));
    }

    #[test]
    fn each_combination_is_a_run_with_its_options() {
        let line = words(
            "sweep --connect shm:x --op read --size 4k --depth 2,8 --rate 100k --repeats 2 --duration 1s",
        );
        let shared = shared_words(&line).unwrap();
        let sweep = sweep([&line[..]; 3].into_iter(), shared.clone()).unwrap();
        assert_eq!(
            sweep.options[1].join(" "),
            "--op read --size 4096 --placement auto --depth 8 --connections 1 --rate 100000"
        );
        assert_eq!((sweep.plan.repeats, sweep.plan.points.len()), (2, 2));
        let run = ClientCommand::parse(&[&shared[..], &sweep.options[1]].concat()).unwrap();
        let ClientCommand::Run(run) = run else {
            panic!("{run:?}");
        };
        assert_eq!((run.depth, run.size), (8, Some(4096)));
        assert_eq!(
            run.common.length.duration,
            Some(std::time::Duration::from_secs(1))
        );
        let null = words("sweep --connect shm:x");
        let sweep = super::sweep(std::iter::once(&null[..]), Vec::new()).unwrap();
        assert_eq!(
            sweep.options[0].join(" "),
            "--op null --depth 1 --connections 1"
        );
    }

    #[test]
    fn invalid_fleet_sweep_is_a_usage_failure() {
        let failed = |lines: [&str; 2]| {
            let lines = lines.map(words);
            sweep(lines.iter().map(|it| &it[..]), Vec::new()).unwrap_err()
        };
        let same = |line| failed([line, line]);
        for (failure, advice) in [
            (same("sweep --depth 1,0"), "0 is not in"),
            (same("sweep --op null,write --size 4k"), "leave --size out"),
            (
                same("sweep --op null,write --placement rdma"),
                "--placement",
            ),
            (
                same("sweep --depth 1,2,3 --connections 1,2,3,4 --repeats 500"),
                "up to 12000 runs of 2 clients make 24000 reports",
            ),
            (failed(["sweep --depth 1", "sweep --depth 2"]), "no {index}"),
        ] {
            assert_eq!(failure.status(), Status::Usage, "{failure}");
            failure.check_words(&[advice]);
        }
        let unknown = shared_words(&words("sweep --to-knee")).unwrap_err();
        unknown.check_words(&["cannot be run", "--to-knee"]);
    }
}
