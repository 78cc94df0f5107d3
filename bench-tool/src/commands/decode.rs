//! `bench-tool decode`: explains transport headers, as text or JSON.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, IsTerminal as _, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use clap::Args;
use rpcrdma_explain::{ExplainError, Explainer, Form};
use rpcrdma_units::count;
use rustix::fs::FileType;

use crate::exit::{Failure, Status};
use crate::progress::say;
use crate::signals::Stop;

/// `bench-tool decode`.
#[derive(Args, Debug)]
#[command(after_help = "\
Input: captures of RoCEv2 traffic (pcap or pcapng, as tcpdump and Wireshark write them), or hex; the first bytes \
decide. Both versions of the protocol are explained: RFC 8166, and \
draft-ietf-nfsv4-rpcrdma-version-two-00 with the round-trip reduction. A reply is explained with its call, if \
that came before.\n\n\
Hex: one message a line; spaces, colons and a leading 0x are allowed. A line that begins with `{` is \
JSON, and its field `hex` is read. Blank lines and lines that begin with `#` are skipped.\n\n\
A capture ends with a summary: messages, connections, calls with and without a reply, errors, credits, chunks, \
round trips of each procedure, and the slowest calls with the numbers of their packets, as Wireshark counts \
them. `--summary` writes nothing else. Ctrl-C while the input comes through a pipe does not end the program before \
the input ends, so that the summary is written; a second one does, and so does SIGTERM.\n\n\
Exit status: 1 when any message is wrong or packets are missing.\n\n\
Examples:
  tcpdump -i eth0 -U -w - udp port 4791 | bench-tool decode
  bench-tool decode --json mount.pcapng
  bench-tool decode --summary --slowest 20 mount.pcapng
  echo 00000007 00000001 00000020 00000004 00000001 00000001 00000002 | bench-tool decode
  bench-tool decode --json < messages.hex")]
pub(crate) struct DecodeArgs {
    /// Files to read, in this order [default: standard input]
    pub files: Vec<PathBuf>,

    /// Write one JSON object a line instead of text
    #[arg(long)]
    pub json: bool,

    /// Write only a summary of each input
    #[arg(long)]
    pub summary: bool,

    /// Number of the slowest calls in the summary of a capture [default: 10]
    #[arg(long, value_name = "N")]
    pub slowest: Option<usize>,
}

/// The number of calls in a summary unless it was given.
const SLOWEST: usize = 10;

impl DecodeArgs {
    fn explainer<W: Write>(&self, write: W) -> Result<Explainer<W>, Failure> {
        let form = if self.json { Form::Json } else { Form::Text };
        let explainer = Explainer::new(write, form);
        let slowest = self.slowest.unwrap_or(SLOWEST);
        match (self.json, self.summary) {
            (_, true) => Ok(explainer.only_summary(slowest)),
            (false, false) => Ok(explainer.with_summary(slowest)),
            (true, false) if self.slowest.is_some() => Err(Failure::usage(
                "--slowest has no effect on --json without --summary",
            )
            .advice("give --summary too, or leave --slowest out")),
            // One object for each message: those who read them count on it.
            (true, false) => Ok(explainer),
        }
    }
}

/// Explains the given files, or standard input, on standard output.
///
/// # Errors
/// If an input cannot be read, or standard output cannot be written. Wrong messages are not an error: the status is
/// then [`Status::Failure`].
pub(crate) fn execute(args: &DecodeArgs) -> Result<Status, Failure> {
    // WAIT: for the reader of standard output; a second signal ends the process.
    let mut explainer = args.explainer(BufWriter::new(io::stdout().lock()))?;
    let has_counts = args.summary || !args.json;
    if args.files.is_empty() {
        let stdin = io::stdin();
        if stdin.is_terminal() {
            say("reading hex from the terminal, one message a line; Ctrl-D ends it");
        } else if has_counts && is_pipe(&stdin) {
            // Ctrl-C reaches the capturing program as well, which then ends the input: the summary is still to come.
            // A second one ends this program. SIGTERM does so immediately: it was sent to this program alone.
            let _ = Stop::on_interrupt()?;
        }
        // WAIT: as above.
        explain(&mut explainer, stdin.lock(), "standard input", has_counts)?;
    }
    for path in &args.files {
        if explainer.is_closed() {
            break;
        }
        let name = path.display().to_string();
        let input = BufReader::new(open(path, &name)?);
        explain(&mut explainer, input, &name, has_counts)?;
    }
    Ok(if explainer.found_wrong() {
        Status::Failure
    } else {
        Status::Success
    })
}

/// Whether the input is a pipe, which may be that of a capturing program.
fn is_pipe(input: impl AsFd) -> bool {
    let status = rustix::fs::fstat(input);
    status.is_ok_and(|it| FileType::from_raw_mode(it.st_mode) == FileType::Fifo)
}

fn open(path: &Path, name: &str) -> Result<File, Failure> {
    File::open(path).map_err(|error| {
        Failure::failed(format!("cannot open {name}"))
            .because(error)
            .advice("give a capture, or a file with hex, one message a line")
    })
}

fn explain(
    explainer: &mut Explainer<impl Write>,
    input: impl BufRead,
    name: &str,
    has_counts: bool,
) -> Result<(), Failure> {
    let explained = explainer.explain(input, name);
    // The summary has them already.
    if let Some(counts) = explainer.counts().filter(|_| !has_counts) {
        say(&format!(
            "{name}: {} packets of RoCEv2, of which {} were sent again; {} others, {} that cannot be read{}",
            count(counts.roce),
            count(counts.again),
            count(counts.other),
            count(counts.damaged),
            match counts.forgotten {
                0 => String::new(),
                flows => format!(
                    "; {} flows forgotten, because there were too many others",
                    count(flows)
                ),
            }
        ));
    }
    explained.map_err(failure)
}

fn failure(error: ExplainError) -> Failure {
    let advice = error.advice();
    let failure = match error {
        ExplainError::Unwritable(source) => {
            Failure::failed("cannot write to standard output").because(source)
        }
        other => Failure::of(other),
    };
    failure.advice(advice)
}
