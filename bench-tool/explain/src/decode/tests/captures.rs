//! Captures of the lab, and what is made of them.

use std::collections::HashMap;

use rpcrdma_testkit::CheckWords;

use super::super::conversation::Conversation;
use super::super::input;
use super::super::*;

pub(super) const CAPTURES: [(&str, &[u8]); 3] = [
    (
        "requester-knfsd",
        include_bytes!("../../../../../tests/corpus/requester-knfsd.pcap"),
    ),
    (
        "client-responder",
        include_bytes!("../../../../../tests/corpus/client-responder.pcap"),
    ),
    (
        "version-2",
        include_bytes!("../../../../../tests/corpus/version-2.pcap"),
    ),
];

/// How it ended, whether anything was wrong, and the output.
fn run(file: &[u8], form: Form) -> (Result<(), ExplainError>, bool, String) {
    let mut explainer = Explainer::new(Vec::new(), form);
    let result = explainer.explain(file, "a.pcap");
    let found_wrong = explainer.found_wrong();
    let output = String::from_utf8(explainer.into_inner()).unwrap();
    (result, found_wrong, output)
}

/// The packets of a capture, each with its header of 16 bytes.
pub(super) fn packets(file: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = &file[24..];
    std::iter::from_fn(move || {
        let length = u32::from_le_bytes(rest.get(8..12)?.try_into().unwrap());
        let (packet, others) = rest.split_at(16 + usize::try_from(length).unwrap());
        rest = others;
        Some(packet)
    })
}

#[test]
fn every_call_in_the_captures_has_its_reply() {
    for (name, file) in CAPTURES {
        let (result, found_wrong, output) = run(file, Form::Json);
        result.unwrap();
        assert!(!found_wrong, "{name}");
        let mut waiting = HashMap::new();
        let mut replies = 0;
        for line in output.lines() {
            let object: serde_json::Value = serde_json::from_str(line).unwrap();
            assert_ne!(object["what"], "gap", "{name}: {object}");
            let direction = object["rpc"]["direction"].as_str().unwrap_or_default();
            let key = (object["connection"].clone(), object["xid"].clone());
            if direction == "call" {
                waiting.insert(key, object);
            } else if let Some(round_trip) = object["round_trip_ns"].as_u64() {
                assert!(round_trip > 0, "{name}: {object}");
                waiting.remove(&key);
                replies += 1;
            }
        }
        assert!(waiting.is_empty(), "{name}: {waiting:?}");
        assert!(replies > 10, "{name}: {replies}");
    }
}

#[test]
fn people_read_what_happened() {
    let text: String = CAPTURES.map(|(_, file)| run(file, Form::Text).2).concat();
    text.check_words(&[
        "asks for a connection at port 20049; sends up to",
        "grants the connection; sends up to 4 KiB and receives up to 4 KiB inline",
        "an RDMA Read of 5,000 B at ",
        "an RDMA Write of 5,000 B at ",
        "NFS version 3 READDIRPLUS",
        "after its call began",
        "ends a connection",
        "transmission 2 of its group",
        "invalidates handle",
    ]);
}

#[test]
fn a_capture_that_is_cut_says_where_and_shows_what_came_before() {
    let (_, file) = CAPTURES[0];
    let (result, _, output) = run(&file[..file.len() - 1], Form::Json);
    let error = result.unwrap_err();
    let cause = std::error::Error::source(&error).unwrap();
    let words = format!("{error}: {cause}");
    words.check_words(&["a.pcap", "after 140 whole", "at byte"]);
    assert!(output.lines().count() > 50);
    let (result, ..) = run(&file[..24], Form::Json);
    let failure = result.unwrap_err().to_string();
    assert!(failure.contains("no message in a.pcap"), "{failure}");
}

#[test]
fn missing_packets_are_reported_and_fail_the_command() {
    let (_, file) = CAPTURES[0];
    // Every tenth packet is left out.
    let mut thinned = file[..24].to_vec();
    for (number, packet) in (1..).zip(packets(file)) {
        if number % 10 != 0 {
            thinned.extend(packet);
        }
    }
    let (result, found_wrong, output) = run(&thinned, Form::Json);
    result.unwrap();
    assert!(found_wrong);
    output.check_words(&["\"what\":\"gap\",\"packets\":1"]);
}

/// Wireshark's dissector and this decoder agree on what is malformed (tests/wireshark/check has the other half).
#[test]
fn decoder_agrees_with_dissector_on_malformed_messages() {
    let mut counts = [0, 0];
    for line in include_str!("../../../../../tests/wireshark/messages")
        .lines()
        .filter(|line| !line.starts_with('#'))
    {
        let [filter, header, hex] = line.split('|').map(str::trim).collect::<Vec<_>>()[..] else {
            continue;
        };
        let message = input::message_bytes(hex.as_bytes()).unwrap().unwrap();
        let is_malformed = header == "0";
        let decoded = Conversation::default().decode(&message, None);
        assert_eq!(decoded.is_wrong(), is_malformed, "{filter}: {decoded:?}");
        counts[usize::from(is_malformed)] += 1;
        for bytes in (20..header.parse().unwrap()).step_by(4) {
            let decoded = Conversation::default().decode(&message[..bytes], None);
            let is_version_1 = bytes == 28;
            assert!(decoded.is_wrong() || is_version_1, "{bytes} of {filter}");
        }
    }
    assert!(counts[0] > 20 && counts[1] > 15, "{counts:?}");
}
