//! Summaries, with figures that tshark counted in the same captures.

use rpcrdma_testkit::CheckWords;
use serde_json::{Value, json};

use super::captures::{CAPTURES, packets};
use super::*;

/// The summary of an input as JSON and as text, with at most `slowest` calls.
fn summary(input: &[u8], slowest: usize) -> (Value, String) {
    let of = |form| {
        let mut explainer = Explainer::new(Vec::new(), form).only_summary(slowest);
        explainer.explain(input, "a.pcap").unwrap();
        String::from_utf8(explainer.into_inner()).unwrap()
    };
    let json = of(Form::Json);
    assert_eq!(json.lines().count(), 1, "{json}");
    (serde_json::from_str(&json).unwrap(), of(Form::Text))
}

fn capture(name: &str) -> &'static [u8] {
    let found = CAPTURES.iter().find(|(known, _)| *known == name);
    found.unwrap().1
}

/// A capture with only the packets that `keeps` takes, by their number and their octets.
fn filtered(file: &[u8], keeps: impl Fn(usize, &[u8]) -> bool) -> Vec<u8> {
    let kept = packets(file).enumerate();
    let kept = kept.filter(|(number, packet)| keeps(number + 1, &packet[16..]));
    let all: Vec<u8> = kept.flat_map(|(_, packet)| packet.to_vec()).collect();
    [&file[..24], &all].concat()
}

/// tshark: `-Y rpcordma -T fields -e ip.src -e rpcordma.msg_type -e rpcordma.flow_control`, and for version 2 the same of
/// docs/wireshark. Calls are its different xids by queue pair.
#[test]
fn messages_calls_and_credits_are_those_that_tshark_counts() {
    for (name, packets, again, connections, calls, sent, credits) in [
        (
            "requester-knfsd",
            141,
            0,
            2,
            29,
            [vec![("MSG", 29)], vec![("MSG", 29)]],
            json!([[null, 32], [64, null]]),
        ),
        (
            "client-responder",
            253,
            0,
            1,
            59,
            [vec![("MSG", 59)], vec![("MSG", 58), ("NOMSG", 1)]],
            json!([[null, 128], [32, null]]),
        ),
        (
            "version-2",
            223,
            1,
            7,
            29,
            [
                vec![
                    ("CONNPROP", 7),
                    ("MSG", 25),
                    ("TRANSMIT_CONTINUE", 1),
                    ("TRANSMIT_REQUEST", 6),
                ],
                vec![
                    ("CONNPROP", 7),
                    ("MSG", 25),
                    ("NOMSG", 7),
                    ("TRANSMIT_CONTINUE", 1),
                    ("TRANSMIT_RESPONSE", 6),
                ],
            ],
            json!([[31, null], [32, null]]),
        ),
    ] {
        let (json, _) = summary(capture(name), 0);
        assert_eq!(json["what"], "summary", "{json}");
        let found = &json["packets"];
        assert_eq!(
            [&found["roce"], &found["again"]],
            [packets, again],
            "{name}"
        );
        assert_eq!(json["connections"]["with_messages"], connections, "{name}");
        assert_eq!(json["connections"]["granted"], connections, "{name}");
        assert_eq!(json["connections"]["ended"], connections, "{name}");
        assert_eq!(json["connections"]["one_way"], json!([]), "{name}");
        let all = json!({
            "calls": calls, "repeated": 0, "answered": calls, "unanswered": 0, "replies_without_call": 0
        });
        assert_eq!(json["calls"], all, "{name}");
        let mut most = Vec::new();
        for (direction, sent) in json["directions"].as_array().unwrap().iter().zip(sent) {
            let kinds = direction["messages"].as_array().unwrap().iter();
            let kinds: Vec<_> = kinds
                .map(|it| {
                    (
                        it["type"].as_str().unwrap(),
                        it["messages"].as_u64().unwrap(),
                    )
                })
                .collect();
            assert_eq!(kinds, sent, "{name}");
            let credits = &direction["credits"][0];
            most.push([&credits["granted"]["most"], &credits["asked"]["most"]].map(Clone::clone));
        }
        assert_eq!(json!(most), credits, "{name}");
        let of_procedures = json["procedures"].as_array().unwrap().iter();
        let of_procedures = of_procedures.map(|it| it["calls"].as_u64().unwrap());
        assert_eq!(of_procedures.sum::<u64>(), calls, "{name}");
        let errors = &json["errors"];
        assert_eq!(errors["transport"], json!({}), "{name}");
        assert_eq!(
            [&errors["gaps"], &errors["wrong_messages"]],
            [0, 0],
            "{name}"
        );
    }
}

/// tshark: `-e frame.number -e frame.time_epoch -e rpcordma.xid`, paired by xid and sorted by hand.
#[test]
fn the_slowest_calls_have_the_packets_and_times_of_tshark() {
    for (name, expected) in [
        (
            "requester-knfsd",
            [
                (0xf687_0000_u32, 4, 6, 587_829_828),
                (0xfbc4_0000, 107, 112, 71_225_881),
                (0xfbc1_0000, 95, 97, 67_616_939),
            ],
        ),
        (
            "client-responder",
            [
                (0xeec1_8c96, 65, 67, 143_243_074),
                (0xe7c1_8c96, 32, 37, 134_464_979),
                (0xe8c1_8c96, 39, 43, 124_879_121),
            ],
        ),
    ] {
        let (json, text) = summary(capture(name), 3);
        let slowest = json["slowest"].as_array().unwrap();
        assert_eq!(slowest.len(), 3, "{name}");
        for (slow, (xid, call, reply, time_ns)) in slowest.iter().zip(expected) {
            assert_eq!(slow["xid"], xid, "{slow}");
            assert_eq!([&slow["call_packet"], &slow["reply_packet"]], [call, reply]);
            // tshark's times are doubles of seconds since 1970: half a microsecond is their precision.
            let apart = slow["round_trip_ns"].as_u64().unwrap().abs_diff(time_ns);
            assert!(apart < 1_000, "{slow}");
            assert_eq!(slow["procedure"][0], 100_003, "{slow}");
            assert!(text.contains(&format!("{xid:#010x}")), "{text}");
        }
        let (all, _) = summary(capture(name), usize::MAX);
        let all = all["slowest"].as_array().unwrap();
        assert_eq!(all.len() as u64, json["calls"]["answered"], "{name}");
        let times: Vec<_> = all.iter().map(|it| it["round_trip_ns"].as_u64()).collect();
        assert!(times.is_sorted_by(|a, b| a >= b), "{times:?}");
        // The extremes of the procedures are those of the calls.
        let ends = |of: &'static str| {
            let procedures = json["procedures"].as_array().unwrap().iter();
            procedures.map(move |it| it["round_trip_ns"][of].as_u64().unwrap())
        };
        assert_eq!(ends("most").max(), times[0], "{name}");
        assert_eq!(ends("least").min(), times[times.len() - 1], "{name}");
        let (mut least, mut most) = (ends("least"), ends("most"));
        let mut between = |mean| (least.next().unwrap()..=most.next().unwrap()).contains(&mean);
        assert!(ends("mean").all(&mut between), "{name}");
    }
}

#[test]
fn chunks_are_counted_by_kind_with_what_was_offered_and_what_was_used() {
    // The sizes of the reads and writes of the lab: 5,000 bytes each, a READ of 8 KiB that found 6,000 bytes.
    let (json, text) = summary(capture("client-responder"), 0);
    let volume = |count: u64, bytes: u64| json!({"count": count, "bytes": bytes});
    let chunks = &json["chunks"];
    for (kind, count, bytes) in [
        ("read", 2, 10_000),
        ("write_offered", 1, 8_192),
        ("write_filled", 1, 6_000),
        ("reply_offered", 2, 69_884),
        ("reply_filled", 2, 4_120),
        ("items_placed", 0, 0),
    ] {
        assert_eq!(chunks[kind], volume(count, bytes), "{kind}");
    }
    // What RDMA moved is what the chunks say.
    let moved = &json["directions"][1];
    assert_eq!(moved["reads"], volume(2, 10_000));
    assert_eq!(moved["writes"], volume(3, 6_000 + 4_120));
    text.check_words(&[
        "       1  Write chunks offered, 8 KiB\n",
        ": 3 RDMA Writes of 10,120 B\n",
        "summary of a.pcap: 118 messages on 1 connection in 14.90 s\n",
    ]);
    let (json, _) = summary(capture("version-2"), 0);
    assert_eq!(json["chunks"]["items_placed"], volume(10, 38_000));
}

/// The address of the sender of an Ethernet frame with IPv4 ends with this number.
fn is_from(frame: &[u8], number: u8) -> bool {
    frame[29] == number
}

#[test]
fn a_direction_that_is_missing_is_named_and_no_call_of_it_is_made_up() {
    let file = capture("requester-knfsd");
    // From the requester, which is 10.9.0.2, come calls only.
    let (json, text) = summary(&filtered(file, |_, frame| is_from(frame, 2)), 10);
    let calls = &json["calls"];
    assert_eq!([&calls["calls"], &calls["unanswered"]], [29, 29], "{json}");
    assert_eq!([&calls["answered"], &calls["replies_without_call"]], [0, 0]);
    assert_eq!(json["unanswered"].as_array().unwrap().len(), 29);
    assert_eq!(json["slowest"], json!([]));
    let one_way = json["connections"]["one_way"].as_array().unwrap();
    assert_eq!(one_way.len(), 2, "{json}");
    assert_eq!(
        [&one_way[0]["from"], &one_way[0]["to"]],
        ["10.9.0.2", "10.9.0.1"]
    );
    text.check_words(&[
        "connection 1: the capture has no message from 10.9.0.1 to 10.9.0.2\n",
        "29, of which 0 with a reply, 29 without one\n",
        "  unanswered  xid 0xf6870000, connection 1, packet 3: NFS version 3 FSINFO\n",
        "and 19 more calls without a reply: --json --summary has them\n",
    ]);
    assert!(!text.contains("slowest"), "{text}");
    // From the server come replies only.
    let (json, text) = summary(&filtered(file, |_, frame| is_from(frame, 1)), 10);
    let calls = &json["calls"];
    assert_eq!(
        [&calls["calls"], &calls["replies_without_call"]],
        [0, 29],
        "{json}"
    );
    assert_eq!([&calls["answered"], &calls["unanswered"]], [0, 0]);
    text.check_words(&[
        "the capture has no message from 10.9.0.2 to 10.9.0.1\n",
        "; 29 replies whose call is not there\n",
    ]);
}

#[test]
fn packets_that_are_missing_are_in_the_errors() {
    // The reply of packet 6 is left out: there is a gap, and its call has no reply.
    let file = filtered(capture("requester-knfsd"), |number, _| number != 6);
    let (json, text) = summary(&file, 1);
    assert_eq!(json["calls"]["unanswered"], 1, "{json}");
    assert_eq!(json["unanswered"][0]["xid"], 0xf687_0000_u32);
    assert_eq!(json["slowest"][0]["xid"], 0xfbc4_0000_u32, "the second");
    let errors = &json["errors"];
    assert_eq!([&errors["gaps"], &errors["packets_missing"]], [1, 1]);
    text.check_words(&["1 gap, in which at least 1 packet is missing\n"]);
}

/// The other fields of the file say who sent each message, and the types were counted from the words of the hex.
#[test]
fn hex_has_a_summary_without_times_and_senders() {
    let (json, text) = summary(CORPUS.as_bytes(), 10);
    let kinds = json["directions"][0]["messages"].as_array().unwrap();
    let kinds: Vec<_> = kinds
        .iter()
        .map(|it| json!([it["type"], it["is_reply"], it["messages"]]))
        .collect();
    let expected = [
        json!(["MSG", false, 37]),
        json!(["MSG", true, 32]),
        json!(["NOMSG", true, 5]),
    ];
    assert_eq!(kinds, expected, "{json}");
    assert_eq!(json["directions"][0]["from"], Value::Null);
    let calls = &json["calls"];
    assert_eq!([&calls["calls"], &calls["answered"]], [37, 37], "{json}");
    for key in ["packets", "begin_ns", "duration_ns"] {
        assert!(json.get(key).is_none(), "{key}");
    }
    assert!(
        !text.contains("slowest") && !text.contains("connection"),
        "{text}"
    );
    // Without its reply, a call is named by its line.
    let cut: String = CORPUS.lines().take(3).map(|it| format!("{it}\n")).collect();
    let (_, text) = summary(cut.as_bytes(), 10);
    text.check_words(&["unanswered  xid 0xd8811d8b, line 3: NFS version 3 FSINFO"]);
}

#[test]
fn errors_are_counted_by_name() {
    let call = "00000007 00000001 00000020 00000000 000000000000000000000000 \
                0000000700000000 00000002 20524443 00000001 00000000 00000000 00000000 00000000 00000000";
    let lost = call.replace("00000007", "00000009");
    let unavailable = "00000007 00000001 00000020 00000000 000000000000000000000000 \
                       00000007 00000001 00000000 00000000 00000000 00000001";
    let version = "00000009 00000001 00000020 00000004 00000001 00000001 00000002";
    let input = format!("{call}\n{call}\n{unavailable}\n{lost}\n{version}\n{version}\nzz\n");
    let (json, text) = summary(input.as_bytes(), 10);
    let errors = &json["errors"];
    assert_eq!(errors["transport"], json!({"ERR_VERS": 2}), "{json}");
    assert_eq!(errors["rpc"], json!({"the program is not there": 1}));
    assert_eq!(errors["wrong_messages"], 1);
    let calls = json!({
        "calls": 2, "repeated": 1, "answered": 2, "unanswered": 0, "replies_without_call": 1
    });
    assert_eq!(json["calls"], calls);
    text.check_words(&[
        "2 ERR_VERS\n",
        "1 reply: the program is not there\n",
        "1 message wrong\n",
    ]);
}

#[test]
fn a_capture_ends_with_its_summary_as_text_and_json_stays_one_object_for_each_event() {
    let file = capture("requester-knfsd");
    let output = |form, summary: bool| {
        let explainer = Explainer::new(Vec::new(), form);
        let mut explainer = match summary {
            true => explainer.with_summary(1),
            false => explainer,
        };
        explainer.explain(file, "a.pcap").unwrap();
        String::from_utf8(explainer.into_inner()).unwrap()
    };
    let (events, with_summary) = (output(Form::Text, false), output(Form::Text, true));
    let (_, summary) = summary(file, 1);
    assert_eq!(with_summary, format!("{events}\n{summary}"));
    for line in summary.lines() {
        assert!(
            line.split_whitespace().count() < WORDS_PER_LINE_MAX,
            "{line}"
        );
    }
    assert!(!output(Form::Json, false).contains("\"what\":\"summary\""));
}

#[test]
fn a_call_without_a_time_has_no_part_in_the_mean() {
    let mut file = capture("requester-knfsd")[..24].to_vec();
    for (number, packet) in (1..).zip(packets(capture("requester-knfsd"))) {
        let mut packet = packet.to_vec();
        // The reply of the slowest of two calls of FSINFO: the seconds of its time.
        if number == 6 {
            packet[..4].fill(0);
        }
        file.extend(packet);
    }
    let (json, _) = summary(&file, 3);
    let procedures = json["procedures"].as_array().unwrap().iter();
    let mut fsinfo = procedures.filter(|it| it["procedure"] == json!([100_003, 3, 19]));
    let fsinfo = fsinfo.next().unwrap();
    assert_eq!(fsinfo["answered"], 2);
    let times = &fsinfo["round_trip_ns"];
    assert!(times["least"].as_u64().unwrap() > 0, "{times}");
    assert_eq!([&times["mean"], &times["most"]], [&times["least"]; 2]);
}

/// A call, sent by so many other addresses, each to another queue pair, and again and again by one of them.
#[test]
fn summary_lists_no_more_than_its_limits_and_counts_all() {
    const FORGED: u32 = 20_000;
    const AGAIN: u32 = FORGED / 100;
    let file = capture("client-responder");
    let call = packets(file)
        .find(|it| it.len() > 100 && it[16 + 42] == 4)
        .unwrap();
    let call_of = |sender: u32, sequence: u32| {
        let mut packet = call.to_vec();
        // The addresses of IPv4, the queue pair and the packet sequence number.
        packet[16 + 26..16 + 30].copy_from_slice(&(0x0a00_0000 + sender).to_be_bytes());
        packet[16 + 47..16 + 50].copy_from_slice(&sender.to_be_bytes()[1..]);
        packet[16 + 51..16 + 54].copy_from_slice(&sequence.to_be_bytes()[1..]);
        packet
    };
    let mut forged = file[..24].to_vec();
    for number in 0..FORGED {
        forged.extend(call_of(number, 0));
        if number % 100 == 0 {
            forged.extend(call_of(FORGED, number / 100));
        }
    }
    let (summary, text) = summary(&forged, 1);
    let count = |key: &str| summary[key].as_array().unwrap().len();
    assert_eq!(summary["messages"], FORGED + AGAIN);
    assert_eq!(count("directions"), 4097);
    assert_eq!(summary["directions"][4096]["from"], "others");
    assert_eq!(summary["connections"]["with_messages"], FORGED + 1);
    assert_eq!(
        summary["connections"]["one_way"].as_array().unwrap().len(),
        4096
    );
    assert!(summary["packets"]["flows_forgotten"].as_u64() > Some(10_000));
    assert!(
        text.contains("flows forgotten, because there were too many others, or too much waited"),
        "{text}"
    );
}
