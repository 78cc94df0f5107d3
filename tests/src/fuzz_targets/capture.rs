//! Captures: files of packets, and what is made of the packets in them.

use rpcrdma_explain::capture::{Event, Fault, Packet, Packets, Traffic};

pub(super) fn run(data: &[u8]) {
    let mut traffic = Traffic::default();
    let mut read = Vec::new();
    let mut message_bytes = 0;
    let mut count = |happened: &rpcrdma_explain::capture::Happened| {
        assert!(happened.first_packet <= happened.last_packet);
        if let Event::Message(message) = &happened.event {
            message_bytes += message.octets.len();
        }
    };
    let error = match Packets::new(data) {
        Ok(packets) => {
            let mut error = None;
            for packet in packets {
                assert!(error.is_none(), "a packet behind an error");
                match packet {
                    Ok(packet) => {
                        traffic.packet(&packet).iter().for_each(&mut count);
                        read.push(packet);
                    }
                    Err(failed) => error = Some(failed),
                }
            }
            error
        }
        Err(error) => Some(error),
    };
    traffic.finish().iter().for_each(&mut count);
    assert!(message_bytes <= data.len(), "more came out than went in");
    let counts = traffic.counts();
    assert_eq!(
        counts.roce + counts.other + counts.damaged,
        read.len() as u64
    );
    if let Some(error) = &error {
        assert!(!matches!(error.fault, Fault::Read(_)));
        assert_eq!(error.packets, read.len() as u64);
        assert!(error.offset <= data.len() as u64);
    }
    if let Some((expected, is_whole)) = reference(data) {
        let octets: Vec<&[u8]> = read.iter().map(|packet: &Packet| &*packet.octets).collect();
        assert_eq!((octets, error.is_none()), (expected, is_whole));
    }
}

/// The packets of a pcap file whose words have their least significant octet first, and whether nothing else is there;
/// `None` of any other file.
fn reference(data: &[u8]) -> Option<(Vec<&[u8]>, bool)> {
    let magic = data.get(..4)?;
    let is_ours = magic == [0xd4, 0xc3, 0xb2, 0xa1] || magic == [0x4d, 0x3c, 0xb2, 0xa1];
    if !is_ours || data.len() < 24 || data[4..6] != [2, 0] {
        return None;
    }
    let mut packets = Vec::new();
    let mut at = 24;
    while at < data.len() {
        let Some(length) = data.get(at + 8..at + 12).filter(|_| at + 16 <= data.len()) else {
            return Some((packets, false));
        };
        let length = u32::from_le_bytes(length.try_into().expect("four octets")) as usize;
        let Some(packet) = data.get(at + 16..).and_then(|rest| rest.get(..length)) else {
            return Some((packets, false));
        };
        packets.push(packet);
        at += 16 + length;
    }
    Some((packets, true))
}
