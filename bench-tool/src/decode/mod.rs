//! `bench-tool decode`: what transport headers say, for people or for scripts.
//!
//! [`input`] reads hex, [`captured`] captures of packets. [`conversation`] decodes messages one after another (a reply
//! is explained by the call that was seen before it), [`message`] is what they say, [`text`] and JSON are how it is shown.

pub mod captured;
mod captured_text;
pub mod conversation;
mod convert;
pub mod input;
pub mod message;
mod round_trips;
mod rtr;
mod rtr_text;
pub mod text;

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, IsTerminal, Read, Write};
use std::path::Path;

use serde::Serialize;

use self::conversation::Conversation;
use self::message::Decoded;
use crate::cli::DecodeArgs;
use crate::exit::{Failure, Status, written};

/// Runs the command on its files, or on standard input, and on standard output.
///
/// # Errors
/// When an input cannot be read or standard output not be written. Wrong messages are no error of the tool: the
/// status is [`Status::Failure`] then.
pub fn execute(args: &DecodeArgs) -> Result<Status, Failure> {
    let mut output = Output::new(BufWriter::new(io::stdout().lock()), args.json);
    if args.files.is_empty() {
        let stdin = io::stdin();
        if stdin.is_terminal() {
            eprintln!("reading hex from the terminal, one message a line; Ctrl-D ends it");
        }
        decode(stdin.lock(), "standard input", &mut output)?;
    }
    for path in &args.files {
        if output.is_closed {
            break;
        }
        let name = path.display().to_string();
        decode(BufReader::new(open(path, &name)?), &name, &mut output)?;
    }
    Ok(output.status)
}

fn open(path: &Path, name: &str) -> Result<File, Failure> {
    File::open(path).map_err(|error| {
        Failure::failed(format!("cannot open {name}"))
            .because(error)
            .advice("give a capture, or a file with hex, one message a line")
    })
}

/// Where what was decoded is shown, and what came of it.
struct Output<W> {
    write: W,
    json: bool,
    status: Status,
    /// Paragraphs or objects so far.
    shown: u64,
    /// The reader has seen enough.
    is_closed: bool,
}

impl<W: Write> Output<W> {
    fn new(write: W, json: bool) -> Self {
        Self {
            write,
            json,
            status: Status::Success,
            shown: 0,
            is_closed: false,
        }
    }

    /// Shows one object, or the paragraph of the number that it is given.
    fn show(
        &mut self,
        value: &impl Serialize,
        paragraph: impl FnOnce(u64) -> String,
    ) -> Result<(), Failure> {
        self.shown += 1;
        let shown = self.try_show(value, paragraph);
        self.is_closed |= shown
            .as_ref()
            .is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe);
        written(shown)
    }

    fn try_show(
        &mut self,
        value: &impl Serialize,
        paragraph: impl FnOnce(u64) -> String,
    ) -> io::Result<()> {
        if self.json {
            serde_json::to_writer(&mut self.write, value)?;
            self.write.write_all(b"\n")?;
        } else {
            if self.shown > 1 {
                self.write.write_all(b"\n")?;
            }
            self.write.write_all(paragraph(self.shown).as_bytes())?;
        }
        self.write.flush()
    }
}

/// Decodes all of an input, which is a capture when it begins as one.
fn decode(
    mut input: impl BufRead,
    name: &str,
    output: &mut Output<impl Write>,
) -> Result<(), Failure> {
    let mut start = Vec::new();
    input
        .by_ref()
        .take(4)
        .read_to_end(&mut start)
        .map_err(|error| unreadable(name, error))?;
    let input = start.as_slice().chain(input);
    if rpcrdma_capture::is_capture(&start) {
        return captured::decode(input, name, output);
    }
    decode_lines(input, name, output)
}

fn unreadable(name: &str, error: io::Error) -> Failure {
    Failure::failed(format!("cannot read {name}"))
        .because(error)
        .advice("give a capture, or hex, one message a line")
}

/// Decodes lines of hex. Reading is by line, so that a live pipe is answered at once.
fn decode_lines(
    mut input: impl BufRead,
    name: &str,
    output: &mut Output<impl Write>,
) -> Result<(), Failure> {
    let mut conversation = Conversation::default();
    let (mut line, mut line_number, mut messages) = (Vec::new(), 0_u64, 0_u64);
    while !output.is_closed {
        line.clear();
        let bytes = input
            .read_until(b'\n', &mut line)
            .map_err(|error| unreadable(name, error))?;
        if bytes == 0 {
            break;
        }
        line_number += 1;
        let decoded = match input::message_bytes(&line) {
            Ok(None) => continue,
            Ok(Some(message)) => conversation.decode(&message, line_number),
            Err(error) => Decoded::from_input_error(&error, line_number),
        };
        messages += 1;
        if decoded.is_wrong() {
            output.status = Status::Failure;
        }
        output.show(&decoded, |number| text::paragraph(&decoded, number))?;
    }
    if messages == 0 {
        return Err(Failure::failed(format!("there was no message in {name}"))
            .advice("give hex, one message a line, or JSON lines with a field `hex`; `bench-tool decode --help` has examples"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::text::tests::WORDS_PER_LINE_MAX;

    const CORPUS: &str = include_str!("../../../tests/corpus/linux-6.1-nfsv3.jsonl");

    fn run(input: &str, json: bool) -> (Status, String) {
        let mut output = Output::new(Vec::new(), json);
        decode(input.as_bytes(), "the input", &mut output).unwrap();
        (output.status, String::from_utf8(output.write).unwrap())
    }

    #[test]
    fn all_that_linux_sent_is_right_and_tells_its_rpc() {
        let (status, output) = run(CORPUS, true);
        assert_eq!(status, Status::Success);
        assert_eq!(output.lines().count(), CORPUS.lines().count());
        for (captured, decoded) in CORPUS.lines().zip(output.lines()) {
            let captured: serde_json::Value = serde_json::from_str(captured).unwrap();
            let decoded: serde_json::Value = serde_json::from_str(decoded).unwrap();
            let bytes = u64::try_from(captured["hex"].as_str().unwrap().len() / 2).unwrap();
            assert_eq!(decoded["version"], 1);
            assert!(decoded["payload_bytes"].as_u64().unwrap() < bytes);
            if decoded["type"] == "NOMSG" {
                assert!(decoded["rpc"].is_null(), "{decoded}");
                assert!(!decoded["reply_chunk"].is_null(), "{decoded}");
                continue;
            }
            // The capture says who sent it and which procedure it was: an oracle that did not decode anything.
            let rpc = &decoded["rpc"];
            let direction = if captured["from"] == "client" {
                "call"
            } else {
                "reply"
            };
            assert_eq!(rpc["direction"], direction);
            let called = serde_json::json!([rpc["program"], rpc["version"], rpc["procedure"]]);
            assert_eq!(called, captured["call"]);
        }
    }

    #[test]
    fn the_text_of_all_that_linux_sent_is_readable() {
        let (status, output) = run(CORPUS, false);
        assert_eq!(status, Status::Success);
        assert_eq!(output.matches("message ").count(), CORPUS.lines().count());
        for part in [
            "NFS version 3 READ",
            "Reply chunk",
            "Write list",
            "asks for 128",
            "NULL",
        ] {
            assert!(output.contains(part), "{part}");
        }
        for line in output.lines() {
            assert!(line.split(' ').count() < WORDS_PER_LINE_MAX, "{line}");
        }
    }

    #[test]
    fn one_wrong_message_fails_the_whole_and_hides_no_other() {
        let good = "00000001 00000001 00000020 00000000 000000000000000000000000 0000000100000001 00000000 00000000 00000000 00000000";
        let (status, output) = run(&format!("{good}\nzz\n# a comment\n\n{good}\n"), true);
        assert_eq!(status, Status::Failure);
        let objects: Vec<serde_json::Value> = output
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(objects.len(), 3);
        assert_eq!(objects[0]["type"], "MSG");
        assert_eq!(objects[1]["error_at"], 0);
        assert_eq!(objects[1]["line"], 2);
        assert!(objects[1]["reason"].as_str().unwrap().contains("hex"));
        assert_eq!(objects[2]["type"], "MSG");
    }

    #[test]
    fn nothing_to_decode_is_a_failure_with_advice() {
        for input in ["", "\n\n# only a comment\n"] {
            let mut output = Output::new(Vec::new(), false);
            let failure = decode(input.as_bytes(), "the input", &mut output).unwrap_err();
            assert!(failure.to_string().contains("--help"), "{failure}");
        }
    }

    #[test]
    fn a_reader_that_leaves_is_no_error() {
        struct Closed;
        impl Write for Closed {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut output = Output::new(Closed, true);
        decode(CORPUS.as_bytes(), "the input", &mut output).unwrap();
        assert_eq!((output.status, output.shown), (Status::Success, 1));
    }
}
