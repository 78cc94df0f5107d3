//! Runs that `compare` makes itself: it alternates between two commands.

use std::io::{self, Read};
use std::process::{Child, Stdio};
use std::thread;
use std::time::Duration;

use super::runs::{Run, from_text};
use crate::children::{OWN_PROGRAM, command, terminate};
use crate::exit::Failure;
use crate::progress::{Rounds, say};
use crate::report::saved::{FILE_BYTES_MAX, read};
use crate::signals::Stop;
use crate::threads;

/// How often to check a command and the stop request.
const PERIOD: Duration = Duration::from_millis(20);

/// How long a command may take to end after a stop request: a run gives its calls half a minute and its server one.
const STOP_TIMEOUT: Duration = Duration::from_secs(100);

/// Upper bound of the standard error output that is kept from a command.
const MESSAGES_BYTES_MAX: u64 = 64 << 10;

/// Commands of this program; the user writes them without a program name.
const OWN_COMMANDS: [&str; 2] = ["run", "nfs"];

/// The two sides, A first.
const SIDES: [&str; 2] = ["A", "B"];

/// Splits the words after the first `--` at the second `--`.
///
/// # Errors
/// A usage failure if there are not exactly two commands.
pub(crate) fn split(words: &[String]) -> Result<[&[String]; 2], Failure> {
    let mut commands = words.split(|word| word == "--");
    match (commands.next(), commands.next(), commands.next()) {
        (Some(a), Some(b), None) if !a.is_empty() && !b.is_empty() => Ok([a, b]),
        _ => Err(Failure::usage("compare needs two commands, each after a `--`")
            .advice("write `bench-tool compare -- COMMAND_A -- COMMAND_B`; a command that has a `--` itself goes into a script")),
    }
}

/// Makes `count` runs of each command, alternating. After a stop request it returns the complete rounds.
///
/// # Errors
/// A command that cannot be started, fails, or does not write the JSON of one run.
pub(crate) fn take_turns(
    commands: [&[String]; 2],
    count: u32,
    quiet: bool,
    stop: &Stop,
) -> Result<[Vec<Run>; 2], Failure> {
    let mut runs = [Vec::new(), Vec::new()];
    let mut rounds = Rounds::start(u64::from(count) * 2, quiet);
    for round in 0..count {
        // Alternate which side comes first: otherwise B would always run on a machine that A has just warmed up.
        let order = if round.is_multiple_of(2) {
            [0, 1]
        } else {
            [1, 0]
        };
        for side in order {
            rounds.next(SIDES[side]);
            let name = format!("run {} of {}", round + 1, SIDES[side]);
            let Some(text) = output_of(commands[side], &name, stop)? else {
                let complete = runs.iter().map(Vec::len).min().unwrap_or(0);
                runs.iter_mut().for_each(|side| side.truncate(complete));
                return Ok(runs);
            };
            runs[side].push(one(&text, &name)?);
        }
    }
    Ok(runs)
}

fn one(text: &str, name: &str) -> Result<Run, Failure> {
    let mut runs = from_text(text, &format!("what {name} wrote to standard output"))?;
    match runs.pop() {
        Some(run) if runs.is_empty() => Ok(run),
        _ => Err(
            Failure::failed(format!("{name} wrote more than one run to standard output"))
                .advice("give a command that makes one run; compare repeats it"),
        ),
    }
}

/// Runs a command to its end and returns its standard output; `None` after a stop request.
fn output_of(words: &[String], name: &str, stop: &Stop) -> Result<Option<String>, Failure> {
    let mut child = Running(start(words, name)?);
    // One thread for each pipe: a command blocks if either of its pipes is full.
    let stdout = child.0.stdout.take();
    let read = move || stdout.map_or(Ok(String::new()), read_all);
    let reader = threads::start("output", read)?;
    let stderr = child.0.stderr.take();
    let read = move || stderr.map(read_messages).unwrap_or_default();
    let messages = threads::start("messages", read)?;
    let status = loop {
        if stop.is_asked() {
            return Ok(None);
        }
        match child.0.try_wait() {
            Ok(Some(status)) => break status,
            // WAIT: for the command, which has the time that its user gives it, or for a stop request.
            Ok(None) => thread::sleep(PERIOD),
            Err(error) => {
                return Err(Failure::failed(format!("cannot wait for {name}")).because(error));
            }
        }
    };
    // A process that the command left behind may keep its output open.
    let goes_on = || !stop.is_asked();
    // A signal from the terminal also reaches the command and ends it early. Its output is then incomplete.
    if stop.is_asked() {
        return Ok(None);
    }
    if !status.success() {
        // Warnings of a run are in its report, but the reason of a failure is only here.
        let messages = threads::join_while(messages, goes_on).unwrap_or_default();
        say(String::from_utf8_lossy(&messages).trim_end());
        return Err(
            Failure::failed(format!("{name} failed ({status}): {}", words.join(" ")))
                .advice("its own message, above, says why"),
        );
    }
    let Some(text) = threads::join_while(reader, goes_on) else {
        return Ok(None);
    };
    let text = text.map_err(|error| {
        Failure::failed(format!("cannot read what {name} wrote to standard output")).because(error)
    })?;
    Ok(Some(text))
}

/// Reads up to the limit and discards the rest, so that the command does not block on a full pipe.
fn read_all(mut stdout: impl Read) -> io::Result<String> {
    let text = read(&mut stdout, FILE_BYTES_MAX);
    // WAIT: for the end of the output, in a separate thread.
    io::copy(&mut stdout, &mut io::sink())?;
    text
}

/// Reads a command's messages up to the limit and discards the rest.
fn read_messages(mut stderr: impl Read) -> Vec<u8> {
    let mut messages = Vec::new();
    // Ignore read errors: the exit status already says whether the command failed.
    let _ = (&mut stderr)
        .take(MESSAGES_BYTES_MAX)
        .read_to_end(&mut messages);
    // WAIT: as above.
    let _ = io::copy(&mut stderr, &mut io::sink());
    messages
}

fn start(words: &[String], name: &str) -> Result<Child, Failure> {
    let (program, arguments) = match words {
        [first, ..] if OWN_COMMANDS.contains(&first.as_str()) => {
            let report = ["--json", "-", "--quiet"].map(str::to_owned);
            (OWN_PROGRAM, [words, &report].concat())
        }
        [first, rest @ ..] => (first.as_str(), rest.to_vec()),
        [] => ("", vec![]),
    };
    command(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // WAIT: for the start of the program (exec), which needs no event.
        .spawn()
        .map_err(|error| {
            Failure::failed(format!("cannot start {name}, {program}"))
                .because(error)
                .advice("a command begins with `run`, `nfs`, or the path of a program")
        })
}

/// A running command. Dropping this terminates it and waits for its end.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        terminate(&mut self.0, STOP_TIMEOUT);
    }
}

#[cfg(test)]
mod tests {
    use super::super::runs::tests::report;
    use super::*;
    use crate::report::metric::Metric;
    use rpcrdma_testkit::{Folder, until};
    use rustix::process::{Pid, Signal, kill_process};
    use std::path::Path;

    fn words(text: &[&str]) -> Vec<String> {
        text.iter().map(|&word| word.to_owned()).collect()
    }

    fn shell(script: &str) -> Vec<String> {
        words(&["sh", "-c", script])
    }

    #[test]
    fn two_commands_are_split_at_their_separator() {
        let both = words(&["run", "--depth", "2", "--", "./other", "-x"]);
        let [a, b] = split(&both).unwrap();
        assert_eq!((a.len(), b), (3, &words(&["./other", "-x"])[..]));
        for wrong in [
            &["run"][..],
            &["--", "run"],
            &["run", "--"],
            &["a", "--", "b", "--", "c"],
            &[],
        ] {
            assert!(split(&words(wrong)).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn commands_take_turns() {
        let folder = Folder::new("turns");
        let order = folder.path("order");
        let script = |side: &str, p50: f64| {
            let report = report(p50);
            shell(&format!("printf {side} >> {order}; echo '{report}'"))
        };
        let (a, b) = (script("a", 400.0), script("b", 500.0));
        let runs = take_turns([&a, &b], 4, true, &Stop::new()).unwrap();
        assert_eq!(folder.read("order"), "abbaabba");
        assert_eq!(runs.each_ref().map(Vec::len), [4, 4]);
        assert!((runs[1][3].value(Metric::P50) - 500.0).abs() < 1e-9);
    }

    #[test]
    fn a_command_that_fails_is_named() {
        let good = shell(&format!("echo '{}'", report(400.0)));
        for (bad, says) in [
            (shell("exit 7"), "exit status: 7"),
            (shell("echo nonsense"), "what run 1 of B wrote"),
            (shell("true"), "no run"),
            (
                shell(&format!("echo '{0} {0}'", report(1.0))),
                "more than one run",
            ),
            (
                words(&["/nonexistent/bench-tool"]),
                "/nonexistent/bench-tool",
            ),
        ] {
            let failure = take_turns([&good, &bad], 2, true, &Stop::new()).unwrap_err();
            assert!(failure.to_string().contains(says), "{failure}");
        }
    }

    /// The processes whose numbers a command writes to this file, in one line.
    fn processes<const COUNT: usize>(file: &str) -> [Pid; COUNT] {
        let line = until("a command has begun", || {
            let text = std::fs::read_to_string(file).ok()?;
            text.ends_with('\n').then_some(text)
        });
        let pids = line.split_whitespace();
        let pids: Vec<Pid> = pids
            .map(|it| Pid::from_raw(it.parse().unwrap()).unwrap())
            .collect();
        pids.try_into().unwrap()
    }

    #[test]
    fn the_end_is_obeyed_and_leaves_no_process() {
        let folder = Folder::new("sleeps");
        let file = folder.path("pid");
        let stop = Stop::new();
        let (asks, told) = (stop.clone(), file.clone());
        let asker = thread::spawn(move || {
            let [sleeps] = processes(&told);
            asks.ask();
            sleeps
        });
        let sleeps = shell(&format!("echo $$ > {file}; exec sleep 1000"));
        let runs = take_turns([&sleeps, &sleeps], 2, true, &stop).unwrap();
        assert_eq!(runs.each_ref().map(Vec::len), [0, 0]);
        // It was waited for.
        let sleeps = asker.join().unwrap().as_raw_pid();
        assert!(!Path::new(&format!("/proc/{sleeps}")).exists());
    }

    #[test]
    fn the_end_is_obeyed_where_a_process_that_is_left_holds_the_output() {
        let folder = Folder::new("left");
        let file = folder.path("pid");
        let stop = Stop::new();
        let (asks, told) = (stop.clone(), file.clone());
        let asker = thread::spawn(move || {
            let [command, left] = processes(&told);
            let state = format!("/proc/{}/stat", command.as_raw_pid());
            until("the command itself has ended", || {
                let state = std::fs::read_to_string(&state);
                state.map_or(true, |it| it.contains(") Z ")).then_some(())
            });
            asks.ask();
            left
        });
        let leaves = shell(&format!("sleep 1000 & echo $$ $! > {file}"));
        let runs = take_turns([&leaves, &leaves], 2, true, &stop);
        let _ = kill_process(asker.join().unwrap(), Signal::KILL);
        assert_eq!(runs.unwrap().each_ref().map(Vec::len), [0, 0]);
    }
}
