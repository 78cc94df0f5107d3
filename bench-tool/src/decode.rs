//! `bench-tool decode`: what transport headers say, for people or for scripts.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, IsTerminal as _, Write};
use std::path::Path;

use rpcrdma_explain::{ExplainError, Explainer, Form};
use rpcrdma_units::count;

use crate::cli::DecodeArgs;
use crate::exit::{Failure, Status};

/// Runs the command on its files, or on standard input, and on standard output.
///
/// # Errors
/// When an input cannot be read or standard output not be written. Wrong messages are no error of the tool: the
/// status is [`Status::Failure`] then.
pub fn execute(args: &DecodeArgs) -> Result<Status, Failure> {
    let form = if args.json { Form::Json } else { Form::Text };
    let mut explainer = Explainer::new(BufWriter::new(io::stdout().lock()), form);
    if args.files.is_empty() {
        let stdin = io::stdin();
        if stdin.is_terminal() {
            eprintln!("reading hex from the terminal, one message a line; Ctrl-D ends it");
        }
        explain(&mut explainer, stdin.lock(), "standard input")?;
    }
    for path in &args.files {
        if explainer.is_closed() {
            break;
        }
        let name = path.display().to_string();
        explain(&mut explainer, BufReader::new(open(path, &name)?), &name)?;
    }
    Ok(if explainer.found_wrong() {
        Status::Failure
    } else {
        Status::Success
    })
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
) -> Result<(), Failure> {
    let explained = explainer.explain(input, name);
    if let Some(counts) = explainer.counts() {
        eprintln!(
            "{name}: {} packets of RoCEv2, of which {} were sent again; {} others, {} that cannot be read",
            count(counts.roce),
            count(counts.again),
            count(counts.other),
            count(counts.damaged)
        );
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
