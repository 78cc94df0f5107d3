//! Inputs as they come: hex here, captures in their own file.

mod captures;
mod summary;

use std::io::{self, Write};

use rpcrdma_testkit::CheckWords;

use super::text::tests::WORDS_PER_LINE_MAX;
use super::*;

const CORPUS: &str = include_str!("../../../../../tests/corpus/linux-6.1-nfsv3.jsonl");

/// Whether anything was wrong, and the output.
fn run(input: &str, form: Form) -> (bool, String) {
    let mut explainer = Explainer::new(Vec::new(), form);
    explainer.explain(input.as_bytes(), "the input").unwrap();
    let found_wrong = explainer.found_wrong();
    let output = String::from_utf8(explainer.into_inner()).unwrap();
    (found_wrong, output)
}

#[test]
fn all_that_linux_sent_is_right_and_tells_its_rpc() {
    let (found_wrong, output) = run(CORPUS, Form::Json);
    assert!(!found_wrong);
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
    let (found_wrong, output) = run(CORPUS, Form::Text);
    assert!(!found_wrong);
    assert_eq!(output.matches("message ").count(), CORPUS.lines().count());
    output.check_words(&[
        "NFS version 3 READ",
        "Reply chunk",
        "Write list",
        "asks for 128",
        "NULL",
    ]);
    for line in output.lines() {
        assert!(line.split(' ').count() < WORDS_PER_LINE_MAX, "{line}");
    }
}

#[test]
fn one_wrong_message_fails_the_whole_and_hides_no_other() {
    let good = "00000001 00000001 00000020 00000000 000000000000000000000000 0000000100000001 00000000 00000000 00000000 00000000";
    let (found_wrong, output) = run(&format!("{good}\nzz\n# a comment\n\n{good}\n"), Form::Json);
    assert!(found_wrong);
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
        let mut explainer = Explainer::new(Vec::new(), Form::Text);
        let error = explainer
            .explain(input.as_bytes(), "the input")
            .unwrap_err();
        assert!(error.advice().contains("--help"), "{error}");
    }
}

#[test]
fn a_message_is_shown_before_the_next_one_is_read() {
    const LINE: &[u8] = b"00000007 00000001 00000020 00000004 00000001 00000001 00000002\n";
    #[derive(Clone, Default)]
    struct Shown(std::rc::Rc<std::cell::Cell<usize>>);
    impl Write for Shown {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.set(self.0.get() + bytes.len());
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    struct Live {
        shown: Shown,
        reads: u8,
    }
    impl io::Read for Live {
        fn read(&mut self, space: &mut [u8]) -> io::Result<usize> {
            self.reads += 1;
            if self.reads > 1 {
                assert!(self.shown.0.get() > 0, "nothing was shown so far");
                return Ok(0);
            }
            space[..LINE.len()].copy_from_slice(LINE);
            Ok(LINE.len())
        }
    }
    let shown = Shown::default();
    let live = Live {
        shown: shown.clone(),
        reads: 0,
    };
    let mut explainer = Explainer::new(io::BufWriter::new(shown), Form::Text);
    explainer
        .explain(io::BufReader::new(live), "a pipe")
        .unwrap();
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
    let mut explainer = Explainer::new(Closed, Form::Json);
    explainer.explain(CORPUS.as_bytes(), "the input").unwrap();
    assert!(explainer.is_closed() && !explainer.found_wrong());
}
