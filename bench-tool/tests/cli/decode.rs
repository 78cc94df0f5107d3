//! `decode`, as a user meets it.

use super::signal::signal_taken;
use super::*;

const CALL: &str = "d7811d8b000000010000008000000000000000000000000000000000d7811d8b0000000000000002000186a3000000030000000000000000000000000000000000000000";

fn decode(arguments: &str, input: &str) -> Ended {
    Ended::of_input(
        &mut command(BENCH_TOOL, &format!("decode {arguments}")),
        input,
    )
}

#[test]
fn decode_explains_a_message() {
    let output = decode("", CALL).with_code(0);
    output.check_out(&["call of NFS version 3 NULL"]);
    assert!(output.errors.is_empty(), "{output}");
}

#[test]
fn decode_gives_one_object_a_line_and_1_when_any_was_wrong() {
    let cut = &CALL[..20];
    let input = format!("{CALL}\n{{\"hex\": \"{CALL}\"}}\n0x{cut}\nnonsense\n");
    let output = decode("--json", &input).with_code(1);
    let lines = output.out.lines();
    let objects: Vec<Value> = lines.map(|it| serde_json::from_str(it).unwrap()).collect();
    assert_eq!(objects.len(), 4);
    assert_eq!(objects[0], objects[1]);
    assert_eq!(objects[0]["rpc"]["program"], 100_003);
    assert_eq!(objects[2]["error_at"], 10);
    assert_eq!(objects[2]["line"], 3);
    assert!(objects[3]["reason"].as_str().unwrap().contains("hex"));
    let nothing = decode("", "").with_code(1);
    nothing.check_errors(&["what to do"]);
}

#[test]
fn decode_to_a_full_device_fails_with_advice() {
    let line = format!("echo {CALL} | '{BENCH_TOOL}' decode > /dev/full");
    let output = Ended::of(command("/bin/sh", "-c").arg(line)).with_code(1);
    output.check_errors(&["standard output"]);
}

#[test]
fn a_compressed_capture_is_named_with_the_way_to_read_it() {
    let folder = Folder::new("compressed");
    for (start, program) in [
        (&[0x1f, 0x8b, 8, 0][..], "gzip"),
        (&[0x28, 0xb5, 0x2f, 0xfd], "zstd"),
        (b"\xfd7zXZ\0", "xz"),
        (b"BZh91AY", "bzip2"),
    ] {
        let file = folder.write("capture", start);
        let ended = Ended::of(&mut command(BENCH_TOOL, &format!("decode {file}")));
        ended.check_failed(
            1,
            &[&format!("{file} is compressed by {program}"), "gzip -dc"],
        );
    }
}

const CAPTURE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../tests/corpus/requester-knfsd.pcap"
);

#[test]
fn decode_of_a_capture_ends_with_its_summary_and_the_slowest_calls() {
    let whole = decode(CAPTURE, "").with_code(0);
    whole.check_out(&[
        "message 58: ",
        "summary of ",
        "29, of which 29 with a reply",
    ]);
    assert!(whole.errors.is_empty(), "{whole}");
    let slow = |output: &Ended| {
        let (_, slowest) = output.out.split_once("  slowest").unwrap_or_default();
        slowest.lines().count().saturating_sub(1)
    };
    assert_eq!(slow(&whole), 10);
    let short = decode(&format!("--summary --slowest 3 {CAPTURE}"), "").with_code(0);
    assert!(short.out.starts_with("summary of ") && slow(&short) == 3);
    // The text has its columns where the numbers of packets are.
    short.check_out(&[
        "587.8 ms  0xf6870000          4          6          1  NFS version 3 FSINFO",
    ]);
    let json = decode(&format!("--summary --json {CAPTURE} {CAPTURE}"), "").with_code(0);
    let lines: Vec<Value> = json
        .out
        .lines()
        .map(|it| serde_json::from_str(it).unwrap())
        .collect();
    assert_eq!(lines.len(), 2, "one for each input");
    assert_eq!(lines[0]["slowest"].as_array().unwrap().len(), 10);
    let events = decode(&format!("--json {CAPTURE}"), "").with_code(0);
    assert!(!events.out.contains("summary"), "{events}");
    events.check_errors(&["141 packets of RoCEv2"]);
    let useless = decode(&format!("--json --slowest 3 {CAPTURE}"), "");
    useless.check_failed(2, &["--slowest has no effect", "give --summary too"]);
}

#[test]
fn a_capture_through_a_pipe_that_ctrl_c_ends_has_its_summary() {
    let file = std::fs::read(CAPTURE).unwrap();
    let mut line = command(BENCH_TOOL, "decode");
    line.stdin(Stdio::piped());
    let mut decode = Running::start(&mut line);
    let mut input = decode.input.take().unwrap();
    // Not its last packet: that comes after the signal, as of a capturing program that ends itself.
    let (first, last) = file.split_at(file.len() - 100);
    input.write_all(first).unwrap();
    let begun = decode.line().unwrap();
    assert!(begun.starts_with("event 1"), "{begun}");
    signal_taken(&decode, Signal::INT);
    input.write_all(last).unwrap();
    drop(input);
    let ended = decode.end().with_code(0);
    ended.check_out(&["summary of standard input: 58 messages on 2 connections"]);
    // A second signal ends it while its input goes on.
    let mut decode = Running::start(&mut line);
    let mut input = decode.input.take().unwrap();
    input.write_all(first).unwrap();
    let _ = decode.line();
    signal_taken(&decode, Signal::INT);
    let ended = decode.end_by(Signal::INT).with_code(130);
    assert!(!ended.out.contains("summary of"), "{ended}");
    drop(input);
}

#[test]
fn sigterm_ends_decode_and_without_a_summary_ctrl_c_does_too() {
    for (arguments, signal) in [
        ("", Signal::TERM),
        ("--json", Signal::TERM),
        ("--json", Signal::INT),
    ] {
        let mut line = command(BENCH_TOOL, &format!("decode {arguments}"));
        line.stdin(Stdio::piped());
        let mut decode = Running::start(&mut line);
        let mut input = decode.input.take().unwrap();
        input.write_all(&std::fs::read(CAPTURE).unwrap()).unwrap();
        let _ = decode.line().unwrap();
        // Its input does not end.
        let ended = decode.end_by(signal);
        assert_eq!(ended.code, None, "a signal ended it: {ended}");
        drop(input);
    }
}
