//! Traffic that was captured in the lab (`tests/lab/scenarios/pair-captured.sh`): our requester and the Linux NFS
//! server, the Linux NFS client and our responder, and two of ours with version 2 and the round-trip reduction. Every
//! message decodes, as the reference decoder does it, and encodes to the same octets.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::path::Path;

use rpcrdma_explain::capture::{Event, Packets, Traffic};
use rpcrdma_protocol::common::CommonPrefix;
use rpcrdma_protocol::v2::rtr::RtrSupport;
use rpcrdma_protocol::{v1, v2};
use rpcrdma_tests::fuzz_targets;

/// The captures may take no more room than this in all.
const CORPUS_BYTES_MAX: u64 = 300 << 10;

/// All that happened in a capture.
fn events(name: &str) -> Vec<Event> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(name);
    let file = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut traffic = Traffic::default();
    let mut events = Vec::new();
    for packet in Packets::new(file.as_slice()).expect("a capture") {
        events.extend(traffic.packet(&packet.expect("a packet")));
    }
    events.extend(traffic.finish());
    let counts = traffic.counts();
    assert_eq!((counts.other, counts.damaged), (0, 0), "{name}");
    events.into_iter().map(|happened| happened.event).collect()
}

/// The header type of a message, which decodes, and encodes to the same octets.
fn round_trip(octets: &[u8]) -> (u32, u32) {
    let prefix = CommonPrefix::peek(octets).expect("four words");
    let target = match (prefix.version, prefix.header_type) {
        (1, _) => {
            v1::decode(octets).expect("version 1");
            "v1_header"
        }
        (2, header_type) => {
            v2::decode_with_rtr(octets, RtrSupport::ALL).expect("version 2");
            match RtrSupport::ALL.has_header_type(header_type) {
                true => "rtr_header",
                false => "v2_header",
            }
        }
        (version, _) => panic!("version {version}"),
    };
    // Asserts that decoder and reference agree, and that what is encoded from the one is what it was decoded from.
    fuzz_targets::run(target, octets);
    (prefix.version, prefix.header_type)
}

/// How many messages of each version and header type a capture has, none of which may be missing.
fn messages(name: &str) -> BTreeMap<(u32, u32), usize> {
    let mut counts = BTreeMap::new();
    for event in events(name) {
        match event {
            Event::Message(message) => *counts.entry(round_trip(&message.octets)).or_default() += 1,
            Event::Gap(gap) => panic!("{name}: {gap:?}"),
            _ => {}
        }
    }
    counts
}

fn at_least(counts: &BTreeMap<(u32, u32), usize>, kind: (u32, u32), least: usize) {
    let found = counts.get(&kind).copied().unwrap_or_default();
    assert!(found >= least, "{kind:?}: {found} of {least}");
}

#[test]
fn our_requester_and_the_linux_server() {
    let counts = messages("requester-knfsd.pcap");
    at_least(&counts, (1, 0), 40);
    assert!(counts.keys().all(|(version, _)| *version == 1));
}

#[test]
fn the_linux_client_and_our_responder() {
    let counts = messages("client-responder.pcap");
    at_least(&counts, (1, 0), 80);
    // Long calls and long replies.
    at_least(&counts, (1, 1), 1);
    assert!(counts.keys().all(|(version, _)| *version == 1));
}

#[test]
fn two_of_ours_in_version_2() {
    let counts = messages("version-2.pcap");
    at_least(&counts, (2, 0), 20);
    at_least(&counts, (2, 1), 1);
    at_least(&counts, (2, 5), 6);
    for transmission in 0x5254_5201..=0x5254_5203 {
        at_least(&counts, (2, transmission), 1);
    }
    assert!(counts.keys().all(|(version, _)| *version == 2));
}

/// RDMA Reads and Writes are of memory that was offered in a message before.
#[test]
fn rdma_goes_to_the_memory_that_was_offered() {
    for name in [
        "requester-knfsd.pcap",
        "client-responder.pcap",
        "version-2.pcap",
    ] {
        let mut offered: Vec<(u32, u64, u64)> = Vec::new();
        let mut found = [0, 0];
        for event in events(name) {
            let (kind, access) = match event {
                Event::Message(message) => {
                    offered.extend(segments(&message.octets));
                    continue;
                }
                Event::Read(access) => (0, access),
                Event::Write(access) => (1, access),
                _ => continue,
            };
            let end = access.address + u64::from(access.length);
            assert!(
                offered
                    .iter()
                    .any(|&(handle, first, behind)| handle == access.key
                        && first <= access.address
                        && end <= behind),
                "{name}: {access:?}"
            );
            found[kind] += 1;
        }
        assert!(found.iter().all(|count| *count > 0), "{name}: {found:?}");
    }
}

/// The memory that a message tells of: handle, first octet, and the first behind it.
fn segments(octets: &[u8]) -> Vec<(u32, u64, u64)> {
    let lists = match CommonPrefix::peek(octets).expect("four words").version {
        1 => v1::decode(octets)
            .expect("version 1")
            .chunk_lists()
            .copied(),
        _ => v2::decode_with_rtr(octets, RtrSupport::ALL)
            .expect("version 2")
            .chunks()
            .map(|chunks| chunks.lists),
    };
    let Some(lists) = lists else {
        return Vec::new();
    };
    let reads = lists.reads.into_iter().map(|read| read.target);
    let writes = lists.writes.into_iter().flatten();
    reads
        .chain(writes)
        .chain(lists.reply.into_iter().flatten())
        .map(|segment| {
            let behind = segment.offset + u64::from(segment.length_bytes);
            (segment.handle, segment.offset, behind)
        })
        .collect()
}

#[test]
fn the_captures_are_small() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let bytes: u64 = std::fs::read_dir(folder)
        .expect("the corpus")
        .map(|entry| entry.expect("a file").metadata().expect("a size").len())
        .sum();
    assert!(bytes <= CORPUS_BYTES_MAX, "{bytes} octets");
}
