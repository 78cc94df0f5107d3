//! `bench-tool decode`: what a transport header says, for people or for scripts.
//!
//! [`input`] reads hex, [`conversation`] decodes messages one after another (a reply is explained by the call that
//! was seen before it), [`message`] is what they say, [`text`] and JSON are how it is shown.

pub mod conversation;
mod convert;
pub mod input;
pub mod message;
mod rtr;
mod rtr_text;
pub mod text;

use std::io::{self, BufRead, BufWriter, IsTerminal, Write};

use self::conversation::Conversation;
use self::message::Decoded;
use crate::cli::DecodeArgs;
use crate::exit::{Failure, Status, written};

/// Runs the command on standard input and output.
///
/// # Errors
/// When standard input cannot be read or standard output not be written. Wrong messages are no error of the tool: the
/// status is [`Status::Failure`] then.
pub fn execute(args: &DecodeArgs) -> Result<Status, Failure> {
    let stdin = io::stdin();
    if stdin.is_terminal() {
        eprintln!("reading hex from the terminal, one message a line; Ctrl-D ends it");
    }
    decode(stdin.lock(), BufWriter::new(io::stdout().lock()), args.json)
}

/// Decodes all of `input` to `output`. Reading is by line, so that a live pipe is answered at once.
fn decode(mut input: impl BufRead, mut output: impl Write, json: bool) -> Result<Status, Failure> {
    let mut conversation = Conversation::default();
    let (mut line, mut line_number, mut message_number) = (Vec::new(), 0_u64, 0_u64);
    let mut status = Status::Success;
    loop {
        line.clear();
        let bytes = input.read_until(b'\n', &mut line).map_err(|error| {
            Failure::failed("cannot read standard input")
                .because(error)
                .advice("give hex, one message a line")
        })?;
        if bytes == 0 {
            break;
        }
        line_number += 1;
        let decoded = match input::message_bytes(&line) {
            Ok(None) => continue,
            Ok(Some(message)) => conversation.decode(&message, line_number),
            Err(error) => Decoded::from_input_error(&error, line_number),
        };
        message_number += 1;
        if decoded.is_wrong() {
            status = Status::Failure;
        }
        let shown = show(&mut output, &decoded, message_number, json);
        if shown
            .as_ref()
            .is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
        {
            // The reader has seen enough.
            return Ok(status);
        }
        written(shown)?;
    }
    if message_number == 0 {
        return Err(Failure::failed("there was no message on standard input")
            .advice("give hex, one message a line, or JSON lines with a field `hex`; `bench-tool decode --help` has examples"));
    }
    Ok(status)
}

fn show(output: &mut impl Write, decoded: &Decoded, number: u64, json: bool) -> io::Result<()> {
    if json {
        serde_json::to_writer(&mut *output, decoded)?;
        output.write_all(b"\n")?;
    } else {
        if number > 1 {
            output.write_all(b"\n")?;
        }
        output.write_all(text::paragraph(decoded, number).as_bytes())?;
    }
    output.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::text::tests::WORDS_PER_LINE_MAX;

    const CORPUS: &str = include_str!("../../../tests/corpus/linux-6.1-nfsv3.jsonl");

    fn run(input: &str, json: bool) -> (Status, String) {
        let mut output = Vec::new();
        let status = decode(input.as_bytes(), &mut output, json).unwrap();
        (status, String::from_utf8(output).unwrap())
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
            let failure = decode(input.as_bytes(), Vec::new(), false).unwrap_err();
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
        assert_eq!(
            decode(CORPUS.as_bytes(), Closed, true).unwrap(),
            Status::Success
        );
    }
}
