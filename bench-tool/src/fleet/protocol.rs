//! The messages between the coordinator of a fleet and its agents: one JSON object a line, over the standard input and
//! output of the agent.
//!
//! | From | Messages, in their order |
//! |---|---|
//! | agent | `hello`; for each round: `ready`, and `report` or `failed`; `clock` when asked; `progress` every second |
//! | coordinator | `hello`; for each round: `prepare`, several `clock`, `start`; `stop` to end a round early |
//!
//! The end of the agent's standard input ends the agent.

use std::io::{self, BufRead, Read as _, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::load::timeline::INTERVALS_MAX;
use crate::progress::Figures;
use crate::report::escape::{plain_text, plain_value};
use rpcrdma_units::size;

/// Version of the protocol. It changes with every change that another version would not understand.
pub(crate) const PROTOCOL: u32 = 2;

/// Upper bounds of a message in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BytesMax {
    /// Of a report.
    pub(crate) report: u64,
    /// Of any other message.
    pub(crate) other: u64,
}

impl BytesMax {
    /// Of the first message. A launcher that prints something else is found out soon.
    pub(crate) const HELLO: Self = Self::any(4 << 10);

    /// Of a coordinator, which sends the words of a command line. Linux allows 6 MiB of them.
    pub(crate) const OF_COORDINATOR: Self = Self::any(16 << 20);

    const fn any(bytes: u64) -> Self {
        Self {
            report: bytes,
            other: bytes,
        }
    }

    /// Of an agent with reports of at most `report` bytes: see [`report_bytes_max`]. What else it sends is figures and
    /// sentences.
    pub(crate) const fn of_agent(report: u64) -> Self {
        Self {
            report,
            other: 64 << 10,
        }
    }
}

/// Upper bound of a report without its intervals, and without what it has of each part of the load: two records, the
/// histogram, counters and warnings.
const REPORT_BYTES: u64 = 4 << 20;

/// Upper bound of what a report has of each part of the load: its figures, and a thousand gaps.
const PART_BYTES: u64 = 128 << 10;

/// Upper bound of an interval in a report.
const INTERVAL_BYTES: u64 = 256;

/// Upper bound of the report of a load with so many parts, which are cores, or connections with a thread. It has the
/// intervals of all parts together and of each.
pub(crate) fn report_bytes_max(parts: u64) -> u64 {
    let of_intervals = u64::from(INTERVALS_MAX) * INTERVAL_BYTES;
    let of_parts = parts.saturating_mul(PART_BYTES + of_intervals);
    of_parts.saturating_add(REPORT_BYTES + of_intervals)
}

/// How the line of a report begins. No other message may be as long.
const REPORT_BEGINS: &[u8] = br#"{"message":"report""#;

/// How much of a line that is no message is shown.
const SHOWN_CHARS_MAX: usize = 80;

/// The version of an end. Its keys never change, so that any two versions understand each other's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Versions {
    /// Of the protocol.
    pub(crate) protocol: u32,
    /// Of the tool, whose reports the other end reads.
    pub(crate) version: String,
}

impl Versions {
    /// Those of this program.
    pub(crate) fn own() -> Self {
        Self {
            protocol: PROTOCOL,
            version: crate::VERSION.to_owned(),
        }
    }

    /// Why this program cannot speak with the other end, whose name is `whose`; `None` if it can.
    pub(crate) fn refuses(&self, whose: &str, other: &Self) -> Option<String> {
        let name = |it: &Self| format!("bench-tool {} (protocol {})", it.version, it.protocol);
        (self != other).then(|| {
            format!(
                "{whose} has {}, and this end has {}: install the same version at both",
                name(other),
                name(self)
            )
        })
    }
}

/// What a client has to run in a round.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Share {
    /// The command line without the program's name, such as `run --connect shm:x`.
    pub(crate) arguments: Vec<String>,
    /// This client's share of the rate; `None` for a closed loop.
    pub(crate) rate_per_s: Option<u64>,
    /// Added to the seed of the command line, so that clients do not make identical sequences.
    pub(crate) seed_offset: u64,
    /// The number of this client among those of its host, from 0.
    pub(crate) place: usize,
    /// How many clients its host has.
    pub(crate) places: usize,
    /// Whether signs of life have the latencies so far.
    pub(crate) shows_latency: bool,
}

/// A message of the coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "snake_case")]
pub(crate) enum ToAgent {
    /// The first message.
    Hello(Versions),
    /// Connect, say that you are ready, and wait for the start.
    Prepare(Share),
    /// What does your clock say?
    Clock {
        /// Comes back in the answer.
        number: u32,
    },
    /// Begin when your clock says this.
    Start {
        /// In nanoseconds of the agent's clock.
        agent_ns: u64,
    },
    /// End the round now, and report what was measured.
    Stop,
}

/// A message of an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "snake_case")]
pub(crate) enum FromAgent {
    /// The first message.
    Hello {
        /// The versions of this end.
        #[serde(flatten)]
        versions: Versions,
        /// Its process.
        process_id: u32,
        /// The name that its machine gives itself.
        node: String,
    },
    /// What the clock says.
    Clock {
        /// From the question.
        number: u32,
        /// Nanoseconds of the agent's clock.
        agent_ns: u64,
    },
    /// The connections are made, and the calls can begin.
    Ready,
    /// A sign of life, with what the load has done so far.
    Progress(Figures),
    /// The round is over.
    Report {
        /// The JSON report of `run` or `nfs`.
        report: Value,
        /// When the calls began, in nanoseconds of the agent's clock; `None` if they did not.
        started_ns: Option<u64>,
        /// Why the command would have failed after its report.
        failure: Option<String>,
    },
    /// The round ended without a report.
    Failed {
        /// The message for the user.
        why: String,
    },
}

impl FromAgent {
    /// The message without control characters: its texts are shown on a terminal, and the agent is another program on
    /// another host. Texts of several lines become one.
    pub(crate) fn plain(self) -> Self {
        match self {
            Self::Hello {
                versions,
                process_id,
                node,
            } => Self::Hello {
                versions: Versions {
                    version: plain_text(versions.version),
                    ..versions
                },
                process_id,
                node: plain_text(node),
            },
            Self::Report {
                report,
                started_ns,
                failure,
            } => Self::Report {
                report: plain_value(report),
                started_ns,
                failure: failure.map(|it| one_line(&it)),
            },
            Self::Failed { why } => Self::Failed {
                why: one_line(&why),
            },
            other @ (Self::Clock { .. } | Self::Ready | Self::Progress(_)) => other,
        }
    }
}

/// A message with its advice in one line, without control characters.
fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim).collect::<Vec<_>>();
    plain_text(lines.join("; "))
}

/// A line that is no message.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("its standard output has a line that is no message of an agent: `{0}`")]
    NoMessage(String),
    #[error("it sent a line of more than {} that is no report", size(*.0))]
    TooLong(u64),
    #[error("it sent a report of more than {}, and its command makes none of that size", size(*.0))]
    ReportTooLong(u64),
}

/// Reads the next message; `None` at the end of the input.
///
/// # Errors
/// A line that is no message or has more bytes than its kind may have, and an input that cannot be read.
pub(crate) fn read<M: DeserializeOwned>(
    input: &mut impl BufRead,
    bytes_max: BytesMax,
) -> Result<Option<M>, ReadError> {
    let mut line = Vec::new();
    // WAIT: for the other end, in a thread that nobody waits for.
    let bytes = input.take(bytes_max.other).read_until(b'\n', &mut line)?;
    if bytes == 0 {
        return Ok(None);
    }
    let is_cut =
        |line: &[u8], bytes_max| line.len() as u64 >= bytes_max && line.last() != Some(&b'\n');
    if is_cut(&line, bytes_max.other) {
        if !line.starts_with(REPORT_BEGINS) {
            return Err(ReadError::TooLong(bytes_max.other));
        }
        let more = bytes_max.report.saturating_sub(bytes_max.other);
        // WAIT: for the other end, in a thread that nobody waits for.
        input.take(more).read_until(b'\n', &mut line)?;
        if is_cut(&line, bytes_max.report) {
            return Err(ReadError::ReportTooLong(bytes_max.report));
        }
    }
    serde_json::from_slice(&line).map(Some).map_err(|_| {
        let text = String::from_utf8_lossy(&line);
        let shown = text.trim_end().chars().take(SHOWN_CHARS_MAX);
        ReadError::NoMessage(plain_text(shown.collect()))
    })
}

/// Writes a message, and flushes it.
///
/// # Errors
/// If the other end has closed its input.
pub(crate) fn write(output: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    // WAIT: for the other end, which reads or ends; the coordinator writes to memory.
    output.write_all(&line)?;
    output.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::histogram::LatencyHistogram;
    use crate::load::timeline::{Gap, IntervalFigures, IntervalLatency};
    use crate::progress::{LATENCY_BOUNDS_NS, LatencyCounts};
    use crate::run::report::tests::report;
    use serde_json::json;

    const MAX: BytesMax = BytesMax::of_agent(1 << 20);

    fn read_all<M: DeserializeOwned>(mut text: &[u8]) -> Vec<Result<Option<M>, ReadError>> {
        let mut all = Vec::new();
        loop {
            let next = read(&mut text, MAX);
            let is_end = matches!(next, Ok(None));
            all.push(next);
            if is_end {
                return all;
            }
        }
    }

    /// Each message is one line with its name, and is read again as it was.
    fn check_lines<M, const N: usize>(messages: &[M; N], names: [&str; N])
    where
        M: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug,
    {
        for (message, name) in messages.iter().zip(names) {
            let mut line = Vec::new();
            write(&mut line, message).unwrap();
            let value: Value = serde_json::from_slice(&line).unwrap();
            assert_eq!(value["message"], name);
            assert_eq!(line.iter().filter(|it| **it == b'\n').count(), 1);
            let read = read::<M>(&mut &*line, MAX).unwrap().unwrap();
            assert_eq!(&read, message);
        }
    }

    #[test]
    fn messages_are_lines_of_json_with_fixed_names() {
        let share = Share {
            arguments: vec!["run".to_owned(), "--op".to_owned(), "echo".to_owned()],
            rate_per_s: Some(250),
            seed_offset: 3,
            place: 1,
            places: 2,
            shows_latency: true,
        };
        let versions = Versions {
            protocol: 1,
            version: "9.9.9".to_owned(),
        };
        let to = [
            ToAgent::Hello(versions.clone()),
            ToAgent::Prepare(share),
            ToAgent::Clock { number: 7 },
            ToAgent::Start { agent_ns: 1 << 60 },
            ToAgent::Stop,
        ];
        let names = ["hello", "prepare", "clock", "start", "stop"];
        check_lines(&to, names);
        let mut counts = [0; LATENCY_BOUNDS_NS.len() + 1];
        counts[0] = 9;
        let from = [
            FromAgent::Hello {
                versions,
                process_id: 12,
                node: "a".to_owned(),
            },
            FromAgent::Clock {
                number: 7,
                agent_ns: u64::MAX,
            },
            FromAgent::Ready,
            FromAgent::Progress(Figures {
                calls: 9,
                errors: 1,
                latency: Some(LatencyCounts {
                    counts: Box::new(counts),
                    sum_ns: 90,
                }),
                ..Figures::default()
            }),
            FromAgent::Report {
                report: json!({"calls": 9, "text": "two\nlines"}),
                started_ns: Some(5),
                failure: None,
            },
            FromAgent::Failed {
                why: "no server".to_owned(),
            },
        ];
        let names = ["hello", "clock", "ready", "progress", "report", "failed"];
        check_lines(&from, names);
    }

    #[test]
    fn a_line_that_is_no_message_is_shown() {
        let text = b"Welcome to host b\n{\"message\":\"stop\"}\n";
        let all = read_all::<ToAgent>(text);
        let shown = all[0].as_ref().unwrap_err().to_string();
        assert!(shown.ends_with("`Welcome to host b`"), "{shown}");
        assert_eq!(all[1].as_ref().unwrap(), &Some(ToAgent::Stop));
        assert_eq!((all.len(), all[2].as_ref().unwrap()), (3, &None));
        let long = read_all::<ToAgent>(&[b'x'; 500])[0]
            .as_ref()
            .unwrap_err()
            .to_string();
        assert!(long.len() < 200, "{long}");
        // A message that is too long has its own error: it is not reported as a greeting.
        let text = format!("{}\n", "x".repeat(40));
        let read = |bytes| read::<ToAgent>(&mut text.as_bytes(), BytesMax::any(bytes)).unwrap_err();
        assert!(matches!(read(40), ReadError::TooLong(40)));
        assert!(matches!(read(41), ReadError::NoMessage(_)));
        // A message that is cut off is none.
        assert!(read_all::<ToAgent>(b"{\"message\":\"st")[0].is_err());
    }

    #[test]
    fn only_a_report_may_be_long_and_no_longer_than_its_command_makes_it() {
        let read = |message: &FromAgent, report| {
            let mut line = Vec::new();
            write(&mut line, message).unwrap();
            let bytes = line.len() as u64;
            let read = read::<FromAgent>(&mut &*line, BytesMax::of_agent(report));
            (bytes, read)
        };
        let failed = FromAgent::Failed {
            why: "x".repeat(64 << 10),
        };
        let (_, refused) = read(&failed, 1 << 20);
        let refused = refused.unwrap_err().to_string();
        assert!(
            refused.contains("more than 64 KiB that is no report"),
            "{refused}"
        );
        let long = FromAgent::Report {
            report: json!({"text": "x".repeat(70 << 10)}),
            started_ns: None,
            failure: None,
        };
        let (bytes, taken) = read(&long, 1 << 20);
        assert_eq!(taken.unwrap(), Some(long.clone()));
        assert!(read(&long, bytes).1.is_ok());
        let refused = read(&long, bytes - 1).1.unwrap_err();
        assert!(matches!(refused, ReadError::ReportTooLong(it) if it == bytes - 1));
    }

    /// A report as large as it can be: one with every interval, every gap, and a count in each bucket.
    #[test]
    fn the_largest_report_is_taken() {
        let long = 1.0 / 3.0 * 1e5;
        let mut report = report();
        let interval = IntervalFigures {
            start_s: long,
            duration_s: long,
            calls: u64::MAX,
            rate_per_s: long,
            latency_ns: Some(IntervalLatency {
                p50: u64::MAX,
                p99: u64::MAX,
                max: u64::MAX,
            }),
        };
        // With the comma.
        let bytes = |json: serde_json::Result<String>| json.unwrap().len() as u64 + 1;
        assert!(bytes(serde_json::to_string(&interval)) <= INTERVAL_BYTES);
        let intervals = vec![interval; INTERVALS_MAX as usize];
        let cores = 3;
        report.load.intervals.clone_from(&intervals);
        let mut core = report.per_core[0].clone();
        core.intervals = intervals;
        report.per_core = vec![core; cores];
        let gap = Gap {
            start_s: long,
            duration_s: long,
        };
        assert!(bytes(serde_json::to_string(&gap)) * 1_000 <= PART_BYTES);
        report.load.gaps = vec![gap; 1_000 * cores];
        let mut latency = LatencyHistogram::new();
        let mut value = 1;
        while value < crate::histogram::LATENCY_NS_MAX {
            // Counts that do not compress well.
            latency.record_equal(value, value.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 24);
            value += value / 2_000 + 1;
        }
        report.load.histogram = latency.encode();
        let message = FromAgent::Report {
            report: serde_json::to_value(report).unwrap(),
            started_ns: Some(u64::MAX),
            failure: None,
        };
        let mut line = Vec::new();
        write(&mut line, &message).unwrap();
        let max = report_bytes_max(cores as u64);
        assert!(line.len() as u64 <= max, "{} of {max}", line.len());
        assert!(max < line.len() as u64 * 2, "{} of {max}", line.len());
    }

    #[test]
    fn no_control_character_of_an_agent_is_kept() {
        let ugly = "\u{1b}]0;x\u{7}\u{9b}2J";
        let hello = FromAgent::Hello {
            versions: Versions {
                protocol: 1,
                version: ugly.to_owned(),
            },
            process_id: 1,
            node: ugly.to_owned(),
        };
        let report = FromAgent::Report {
            report: json!({ugly: [ugly, 5], "warnings": [{"a": ugly}]}),
            started_ns: None,
            failure: Some(format!("{ugly}\n  give {ugly}\r\n")),
        };
        let failed = FromAgent::Failed {
            why: format!("lost\tit\n{ugly}"),
        };
        for message in [hello, report, failed] {
            let text = format!("{:?}", message.clone().plain());
            assert!(text.contains("?]0;x??2J"), "{text}");
            for escaped in ["\\u{1b}", "\\u{7}", "\\u{9b}", "\\n", "\\t", "\\r"] {
                assert!(!text.contains(escaped), "{escaped}: {text}");
            }
        }
        let one = FromAgent::Failed {
            why: "no server\n  start one\n".to_owned(),
        };
        let why = "no server; start one".to_owned();
        assert_eq!(one.plain(), FromAgent::Failed { why });
        let line = b"\x1b[2Jhello\n";
        let shown = read::<FromAgent>(&mut &line[..], MAX).unwrap_err();
        assert!(shown.to_string().contains("`?[2Jhello`"), "{shown}");
    }

    #[test]
    fn a_sign_of_life_has_as_many_counts_as_there_are_bounds() {
        let line = |counts: usize| {
            let counts = vec![1; counts];
            json!({"message": "progress", "latency": {"counts": counts, "sum_ns": 1}}).to_string()
        };
        let expected = LATENCY_BOUNDS_NS.len() + 1;
        for (counts, is_taken) in [
            (0, false),
            (expected - 1, false),
            (expected, true),
            (expected + 1, false),
        ] {
            let read = read::<FromAgent>(&mut line(counts).as_bytes(), MAX);
            assert_eq!(read.is_ok(), is_taken, "{counts}: {read:?}");
        }
    }

    #[test]
    fn versions_that_differ_are_both_named() {
        let own = Versions::own();
        assert_eq!(own.refuses("host b", &own.clone()), None);
        for other in [
            Versions {
                protocol: PROTOCOL + 1,
                ..own.clone()
            },
            Versions {
                version: "0.0.7".to_owned(),
                ..own.clone()
            },
        ] {
            let words = own.refuses("host b", &other).unwrap();
            let [mine, theirs] = [&own, &other]
                .map(|it| format!("bench-tool {} (protocol {})", it.version, it.protocol));
            assert!(words.starts_with("host b has "), "{words}");
            assert!(words.contains(&mine) && words.contains(&theirs), "{words}");
        }
        // A later version may have more keys.
        let later = r#"{"message":"hello","protocol":2,"version":"9.0.0","node":"b","process_id":5,"colour":1}"#;
        let read: FromAgent = read(&mut later.as_bytes(), BytesMax::HELLO)
            .unwrap()
            .unwrap();
        assert!(matches!(read, FromAgent::Hello { versions, .. } if versions.protocol == 2));
    }
}
