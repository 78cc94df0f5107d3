//! Files of every kind, whole and broken, and frames of every kind.

use std::time::Duration;

use crate::build::{A, B, FORMATS, Send, a_to_b, acknowledged_by_b, file, mapped, read_request};
use proptest::prelude::*;
use rpcrdma_explain::capture::frame::{self, Frame};
use rpcrdma_explain::capture::{
    CaptureError, Fault, LinkType, Packet, Packets, Traffic, is_capture,
};

fn packets(file: &[u8]) -> Result<Vec<Packet>, CaptureError> {
    Packets::new(file)?.collect()
}

fn frames() -> Vec<Vec<u8>> {
    (0..3)
        .map(|number| a_to_b(4, number, &[7; 5]).ethernet())
        .collect()
}

#[test]
fn every_format_gives_the_same_packets() {
    for format in FORMATS {
        let file = file(format, 1, &frames());
        assert!(is_capture(&file), "{format:?}");
        let read = packets(&file).unwrap_or_else(|error| panic!("{format:?}: {error}"));
        for (index, packet) in read.iter().enumerate() {
            let index = u64::try_from(index).unwrap();
            assert_eq!(packet.number, index + 1, "{format:?}");
            assert_eq!(
                packet.time,
                Duration::from_millis(1000 + index),
                "{format:?}"
            );
            assert_eq!(packet.link, LinkType::Ethernet);
        }
        let octets: Vec<Vec<u8>> = read.into_iter().map(|packet| packet.octets).collect();
        assert_eq!(octets, frames(), "{format:?}");
    }
}

#[test]
fn hex_and_text_are_no_captures() {
    for text in ["", "0a0d0d0a", "\n\n# a comment", "{\"hex\": \"00\"}", "\n"] {
        assert!(!is_capture(text.as_bytes()), "{text:?}");
        let error = packets(text.as_bytes()).unwrap_err();
        assert!(matches!(error.fault, Fault::NotACapture), "{text:?}");
    }
}

#[test]
fn a_file_that_is_cut_gives_what_is_whole_and_says_where() {
    for format in FORMATS {
        let whole = file(format, 1, &frames());
        let two = file(format, 1, &frames()[..2]).len();
        for length in two..whole.len() {
            let mut read = Packets::new(&whole[..length]).unwrap();
            assert!(read.next().unwrap().is_ok() && read.next().unwrap().is_ok());
            let end = read.next();
            if length == two {
                assert!(end.is_none(), "{format:?}: it ends between packets");
                continue;
            }
            let error = end.expect("an error").unwrap_err();
            assert!(matches!(error.fault, Fault::Cut), "{format:?}: {error}");
            assert_eq!((error.packets, error.offset), (2, two as u64), "{format:?}");
            assert!(
                read.next().is_none(),
                "{format:?}: nothing comes behind an error"
            );
        }
    }
}

#[test]
fn capture_with_impossible_fields_is_refused() {
    let whole = file(FORMATS[4], 1, &frames());
    let interface = 28;
    let packet = interface + 32 + 28;
    let changed = |at: usize, octet: u8| {
        let mut file = whole.clone();
        file[at] = octet;
        packets(&file).unwrap_err()
    };
    // The octets of the least significance come first.
    assert!(matches!(
        changed(interface + 4, 33).fault,
        Fault::Length(33)
    ));
    assert!(matches!(changed(interface + 4, 8).fault, Fault::Length(8)));
    assert!(matches!(
        changed(interface + 7, 0x7f).fault,
        Fault::Length(_)
    ));
    assert!(matches!(
        changed(interface + 28, 36).fault,
        Fault::Lengths(32, 36)
    ));
    assert!(matches!(changed(12, 2).fault, Fault::Version(2)));
    let unknown = changed(packet + 8, 1);
    assert!(matches!(unknown.fault, Fault::Interface(1)));
    assert_eq!((unknown.packets, unknown.offset), (0, packet as u64));
    assert!(matches!(changed(packet + 21, 0xff).fault, Fault::Short(6)));
    assert!(matches!(
        packets(&file(FORMATS[0], 1, &[vec![0; 17 << 20]]))
            .unwrap_err()
            .fault,
        Fault::Length(_)
    ));
}

/// What is in a frame, with the addresses of its ends.
fn read(link: u32, octets: &[u8]) -> Option<(String, String, Vec<u8>)> {
    match frame::read(LinkType::from(link), octets) {
        Frame::Roce(datagram) => Some((
            datagram.source.to_string(),
            datagram.destination.to_string(),
            datagram.octets.to_vec(),
        )),
        _ => None,
    }
}

#[test]
fn packets_are_found_behind_every_link_layer() {
    let send = a_to_b(4, 1, b"hello");
    let expected = Some(("10.9.0.1".to_owned(), "10.9.0.2".to_owned(), send.roce()));
    let behind = |header: &[u8], packet: Vec<u8>| [header, &packet].concat();
    let ethernet = |types: &[u8]| behind(&[&[2; 12], types].concat(), send.ipv4());
    assert_eq!(read(1, &ethernet(&[8, 0])), expected);
    assert_eq!(read(1, &ethernet(&[0x81, 0, 0, 5, 8, 0])), expected);
    assert_eq!(
        read(1, &ethernet(&[0x88, 0xa8, 0, 5, 0x81, 0, 0, 6, 8, 0])),
        expected
    );
    assert_eq!(
        read(113, &behind(&[&[0; 14][..], &[8, 0]].concat(), send.ipv4())),
        expected
    );
    assert_eq!(
        read(276, &behind(&[&[8, 0][..], &[0; 18]].concat(), send.ipv4())),
        expected
    );
    for link in [12, 101, 228] {
        assert_eq!(read(link, &send.ipv4()), expected);
    }
    let (from, to) = (mapped(A).to_string(), mapped(B).to_string());
    assert_eq!(read(101, &send.ipv6()), Some((from, to, send.roce())));
    // Padding of the link layer is none of the packet.
    assert_eq!(read(1, &[ethernet(&[8, 0]), vec![0; 9]].concat()), expected);
    assert_eq!(read(147, &send.ipv4()), None);
}

#[test]
fn non_rdma_frames_are_skipped_and_truncated_ones_reported() {
    let whole = a_to_b(4, 1, b"hello").ethernet();
    let mut other_port = whole.clone();
    other_port[37] ^= 1;
    assert_eq!(frame::read(LinkType::Ethernet, &other_port), Frame::Other);
    let mut later_fragment = whole.clone();
    later_fragment[21] = 9;
    assert_eq!(
        frame::read(LinkType::Ethernet, &later_fragment),
        Frame::Other
    );
    let mut first_fragment = whole.clone();
    first_fragment[20] = 0x20;
    assert!(matches!(
        frame::read(LinkType::Ethernet, &first_fragment),
        Frame::Damaged(_)
    ));
    for length in 0..whole.len() {
        let found = frame::read(LinkType::Ethernet, &whole[..length]);
        // The ports and the length are in front of what is cut.
        match length {
            0..42 => assert_eq!(found, Frame::Other, "{length}"),
            _ => assert!(matches!(found, Frame::Damaged(_)), "{length}"),
        }
    }
}

/// A file that begins well.
fn seeds() -> Vec<Vec<u8>> {
    let sends: Vec<Send> = vec![
        a_to_b(0, 5, &[1; 256]),
        a_to_b(2, 6, &[2; 9]),
        acknowledged_by_b(6),
        read_request(7, 1000),
    ];
    let frames: Vec<Vec<u8>> = sends.iter().map(Send::ethernet).collect();
    FORMATS.map(|format| file(format, 1, &frames)).to_vec()
}

proptest! {
    #[test]
    fn no_file_panics(
        seed in 0..FORMATS.len(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..12),
        rest in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let mut file = seeds()[seed].clone();
        for (at, octet) in changes {
            let at = at.index(file.len());
            file[at] = octet;
        }
        file.extend(rest);
        let mut traffic = Traffic::default();
        if let Ok(packets) = Packets::new(file.as_slice()) {
            for packet in packets.flatten() {
                traffic.packet(&packet);
            }
        }
        traffic.finish();
    }
}
