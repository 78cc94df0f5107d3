//! Runs the peers in turn, each between two measurements of the floor, and prints the table.
//!
//! `tests/peers/run` builds the peers and calls this program; see its `--help`.

mod floor;
mod record;
mod table;

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use peer_common::Failure;
use record::{Outcome, Peer, Record};

/// A run that takes longer has failed.
const TIME_MAX_S: &str = "60";

/// How a program says its result.
#[derive(Clone, Copy)]
enum Format {
    /// The line of `peer_common` and `common.h`.
    Line,
    /// The last line of the example `null_call`.
    NullCall,
    /// `bench-tool run --json -`.
    BenchTool,
    /// `ucx_perftest -f`, which prints half round trips in microseconds.
    Perftest,
}

struct Entry {
    peer: Peer,
    /// How to run it, or why it cannot be run.
    way: Result<(Format, Vec<String>), String>,
}

/// An entry has its fields between tabs: name, title, version, format, command.
fn entry(line: &str) -> Result<Entry, Failure> {
    let fields: Vec<&str> = line.split('\t').collect();
    let [name, title, version, format, rest] = fields[..] else {
        return Err(format!("not five fields: {line}").into());
    };
    let format = match format {
        "line" => Some(Format::Line),
        "null_call" => Some(Format::NullCall),
        "bench-tool" => Some(Format::BenchTool),
        "perftest" => Some(Format::Perftest),
        "skipped" => None,
        _ => return Err(format!("unknown format: {line}").into()),
    };
    Ok(Entry {
        peer: Peer {
            name: name.to_owned(),
            title: title.to_owned(),
            version: version.to_owned(),
        },
        way: format
            .map(|format| (format, rest.split(' ').map(str::to_owned).collect()))
            .ok_or_else(|| rest.to_owned()),
    })
}

/// The number after `key` in a line of words.
fn number_after(text: &str, key: &str) -> Option<f64> {
    let rest = text.split_once(key)?.1.trim_start();
    let end = rest
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(rest.len());
    rest[..end].parse().ok()
}

/// Median round trip in nanoseconds, and round trips a second.
fn parse(format: Format, output: &str) -> Option<(f64, f64)> {
    match format {
        Format::Line => {
            let number = |key| number_after(output, key);
            let rate = number("round_trips=")? / number("elapsed_ns=")? * 1e9;
            Some((number("p50_ns=")?, rate))
        }
        Format::NullCall => {
            let line = output.lines().find(|line| line.starts_with("medians"))?;
            let (_, rate) = line.rsplit_once(',')?;
            Some((number_after(line, "p50")?, number_after(rate, " ")? * 1e6))
        }
        Format::BenchTool => {
            let report: serde_json::Value = serde_json::from_str(output).ok()?;
            // Replies with another payload are errors.
            if report["errors"].as_u64()? > 0 {
                return None;
            }
            Some((
                report["latency_ns"]["p50"].as_f64()?,
                report["rate_per_s"].as_f64()?,
            ))
        }
        Format::Perftest => {
            // Messages, then typical, average and overall latency: the last line of numbers alone.
            let numbers: Vec<f64> = output
                .lines()
                .filter_map(|line| {
                    line.split_whitespace()
                        .map(|word| word.parse().ok())
                        .collect()
                })
                .rfind(|numbers: &Vec<f64>| !numbers.is_empty())?;
            let [_, typical_us, _, overall_us, ..] = numbers[..] else {
                return None;
            };
            Some((2e3 * typical_us, 1e6 / (2.0 * overall_us)))
        }
    }
}

fn run(format: Format, command: &[String]) -> Result<(f64, f64), String> {
    let output = Command::new("timeout")
        .args(["--kill-after=5", TIME_MAX_S])
        .args(command)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("timeout: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let reason = || {
        let errors = String::from_utf8_lossy(&output.stderr);
        let last = errors.lines().rfind(|line| !line.trim().is_empty());
        let last = last.unwrap_or("no message").replace('|', "/");
        format!("{last} ({})", output.status)
    };
    if !output.status.success() {
        return Err(reason());
    }
    parse(format, &text).ok_or_else(|| format!("its output has no result: {}", reason()))
}

fn measured(format: Format, command: &[String], cores: [usize; 2]) -> Result<Outcome, Failure> {
    let floor_before_ns = floor::floor_ns(cores)?;
    let result = run(format, command);
    let floor_after_ns = floor::floor_ns(cores)?;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "nanoseconds far below 2^52"
    )]
    Ok(match result {
        Ok((p50_ns, round_trips_per_s)) => Outcome::Measured {
            p50_ns: p50_ns.round() as u64,
            round_trips_per_s,
            floor_before_ns,
            floor_after_ns,
        },
        Err(reason) => Outcome::Failed(reason),
    })
}

/// The order of a round, drawn by the clock: earlier runs of the command had others.
fn order(count: usize) -> Result<Vec<usize>, Failure> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let mut state = now.as_secs() ^ u64::from(now.subsec_nanos());
    let mut order: Vec<usize> = (0..count).collect();
    for last in (1..count).rev() {
        state = state
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        let other = (state >> 33) % (u64::try_from(last)? + 1);
        order.swap(last, usize::try_from(other)?);
    }
    Ok(order)
}

fn records(file: &str) -> Result<Vec<Record>, Failure> {
    let mut records = Vec::new();
    for line in BufReader::new(File::open(file)?).lines() {
        records.push(serde_json::from_str(&line?)?);
    }
    Ok(records)
}

fn measure(entries: &[Entry], rounds: u32, cores: [usize; 2], raw: &str) -> Result<(), Failure> {
    let mut raw = OpenOptions::new().create(true).append(true).open(raw)?;
    for round in 0..rounds {
        for index in order(entries.len())? {
            let Entry { peer, way } = &entries[index];
            let outcome = match way {
                Ok((format, command)) => measured(*format, command, cores)?,
                Err(reason) => Outcome::Skipped(reason.clone()),
            };
            let record = Record {
                unix_s: SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs(),
                round,
                cores,
                peer: peer.clone(),
                outcome,
            };
            eprintln!(
                "round {} of {rounds}: {}: {:?}",
                round + 1,
                record.peer.name,
                record.outcome
            );
            writeln!(raw, "{}", serde_json::to_string(&record)?)?;
        }
    }
    Ok(())
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["measure", entries, rounds, ping, pong, raw] => {
            let entries = BufReader::new(File::open(entries)?)
                .lines()
                .map(|line| entry(&line?))
                .collect::<Result<Vec<Entry>, Failure>>()?;
            measure(
                &entries,
                rounds.parse()?,
                [ping.parse()?, pong.parse()?],
                raw,
            )
        }
        ["table", ref files @ ..] => {
            let mut all = Vec::new();
            for file in files {
                all.extend(records(file)?);
            }
            print!("{}", table::table(&all));
            Ok(())
        }
        _ => Err("usage: measure ENTRIES ROUNDS CORE CORE RAW | table RAW...".into()),
    }
}
