// Packets and files for the tests and the examples, written from the specifications of the formats and not with the
// code of the crate.

use std::net::{Ipv4Addr, Ipv6Addr};

use rpcrdma_explain::capture::{Counts, Happened, Packets, Traffic};

/// A and B.
pub(crate) const A: [u8; 4] = [10, 9, 0, 1];
pub(crate) const B: [u8; 4] = [10, 9, 0, 2];

/// One packet of RoCEv2 to be.
#[derive(Clone, Debug)]
pub(crate) struct Send {
    pub(crate) from: [u8; 4],
    pub(crate) to: [u8; 4],
    pub(crate) opcode: u8,
    pub(crate) queue_pair: u32,
    pub(crate) sequence: u32,
    /// Extended headers.
    pub(crate) extended: Vec<u8>,
    pub(crate) payload: Vec<u8>,
}

pub(crate) fn a_to_b(opcode: u8, sequence: u32, payload: &[u8]) -> Send {
    Send {
        from: A,
        to: B,
        opcode,
        queue_pair: 17,
        sequence,
        extended: Vec::new(),
        payload: payload.to_vec(),
    }
}

pub(crate) fn b_to_a(opcode: u8, sequence: u32, payload: &[u8]) -> Send {
    Send {
        from: B,
        to: A,
        queue_pair: 23,
        ..a_to_b(opcode, sequence, payload)
    }
}

/// B has got all up to this number.
pub(crate) fn acknowledged_by_b(sequence: u32) -> Send {
    Send {
        extended: vec![0, 0, 0, 1],
        ..b_to_a(0x11, sequence, &[])
    }
}

pub(crate) fn read_request(sequence: u32, length: u32) -> Send {
    let mut extended = vec![0, 0, 0, 0, 0x12, 0x34, 0, 0, 0, 0, 0xab, 0xcd];
    extended.extend(length.to_be_bytes());
    Send {
        extended,
        ..a_to_b(0x0c, sequence, &[])
    }
}

/// A message of the connection manager, with these fields behind its header.
pub(crate) fn managed(from_a: bool, attribute: u8, fields: &[(usize, &[u8])]) -> Send {
    let mut payload = vec![0; 256];
    payload[1] = 7;
    payload[17] = attribute;
    for (at, octets) in fields {
        payload[24 + at..24 + at + octets.len()].copy_from_slice(octets);
    }
    let packet = if from_a {
        a_to_b(0x64, 0, &payload)
    } else {
        b_to_a(0x64, 0, &payload)
    };
    Send {
        queue_pair: 1,
        extended: vec![0, 0, 0, 0, 0, 0, 0, 1],
        ..packet
    }
}

impl Send {
    /// From the base transport header to the checksum.
    pub(crate) fn roce(&self) -> Vec<u8> {
        let padding = self.payload.len().wrapping_neg() % 4;
        let mut octets = vec![self.opcode, u8::try_from(padding).unwrap() << 4, 0xff, 0xff];
        octets.extend(self.queue_pair.to_be_bytes());
        octets.extend(self.sequence.to_be_bytes());
        octets.extend(&self.extended);
        octets.extend(&self.payload);
        octets.extend(vec![0; padding + 4]);
        octets
    }

    pub(crate) fn udp(&self) -> Vec<u8> {
        let roce = self.roce();
        let mut octets = vec![0xc0, 0x00, 0x12, 0xb7];
        octets.extend(u16::try_from(roce.len() + 8).unwrap().to_be_bytes());
        octets.extend([0, 0]);
        octets.extend(roce);
        octets
    }

    pub(crate) fn ipv4(&self) -> Vec<u8> {
        let udp = self.udp();
        let mut octets = vec![0x45, 0];
        octets.extend(u16::try_from(udp.len() + 20).unwrap().to_be_bytes());
        octets.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
        octets.extend(Ipv4Addr::from(self.from).octets());
        octets.extend(Ipv4Addr::from(self.to).octets());
        octets.extend(udp);
        octets
    }

    /// With a header of options in front of UDP.
    pub(crate) fn ipv6(&self) -> Vec<u8> {
        let udp = self.udp();
        let mut octets = vec![0x60, 0, 0, 0];
        octets.extend(u16::try_from(udp.len() + 8).unwrap().to_be_bytes());
        octets.extend([60, 64]);
        for end in [self.from, self.to] {
            octets.extend(Ipv4Addr::from(end).to_ipv6_mapped().octets());
        }
        octets.extend([17, 0, 1, 4, 0, 0, 0, 0]);
        octets.extend(udp);
        octets
    }

    pub(crate) fn ethernet(&self) -> Vec<u8> {
        let mut octets = vec![2; 12];
        octets.extend([8, 0]);
        octets.extend(self.ipv4());
        octets
    }
}

/// The address that [`Send::ipv6`] makes of one.
pub(crate) fn mapped(end: [u8; 4]) -> Ipv6Addr {
    Ipv4Addr::from(end).to_ipv6_mapped()
}

/// The ways to write a capture that every reader must know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Pcap { is_little: bool, is_fine: bool },
    Pcapng { is_little: bool },
}

pub(crate) const FORMATS: [Format; 6] = [
    Format::Pcap {
        is_little: true,
        is_fine: false,
    },
    Format::Pcap {
        is_little: true,
        is_fine: true,
    },
    Format::Pcap {
        is_little: false,
        is_fine: false,
    },
    Format::Pcap {
        is_little: false,
        is_fine: true,
    },
    Format::Pcapng { is_little: true },
    Format::Pcapng { is_little: false },
];

/// A file of these frames, the first captured a second after 1970, and each later one a millisecond after the one
/// before.
pub(crate) fn file(format: Format, link: u16, frames: &[Vec<u8>]) -> Vec<u8> {
    match format {
        Format::Pcap { is_little, is_fine } => pcap(is_little, is_fine, link, frames),
        Format::Pcapng { is_little } => pcapng(is_little, link, frames),
    }
}

fn word(is_little: bool, word: usize) -> [u8; 4] {
    let word = u32::try_from(word).unwrap();
    if is_little {
        word.to_le_bytes()
    } else {
        word.to_be_bytes()
    }
}

fn half(is_little: bool, half: u16) -> [u8; 2] {
    if is_little {
        half.to_le_bytes()
    } else {
        half.to_be_bytes()
    }
}

fn pcap(is_little: bool, is_fine: bool, link: u16, frames: &[Vec<u8>]) -> Vec<u8> {
    let (magic, tick) = if is_fine {
        (0xa1b2_3c4d, 1_000_000)
    } else {
        (0xa1b2_c3d4, 1000)
    };
    let mut file = word(is_little, magic).to_vec();
    file.extend(half(is_little, 2));
    file.extend(half(is_little, 4));
    for value in [0, 0, 65_535, usize::from(link)] {
        file.extend(word(is_little, value));
    }
    for (index, frame) in frames.iter().enumerate() {
        for value in [1, index * tick, frame.len(), frame.len()] {
            file.extend(word(is_little, value));
        }
        file.extend(frame);
    }
    file
}

fn block(is_little: bool, kind: usize, body: &[u8]) -> Vec<u8> {
    let length = word(is_little, body.len() + 12);
    [&word(is_little, kind)[..], &length, body, &length].concat()
}

/// With a block that holds no packet, and a time in nanoseconds.
fn pcapng(is_little: bool, link: u16, frames: &[Vec<u8>]) -> Vec<u8> {
    let mut section = word(is_little, 0x1a2b_3c4d).to_vec();
    section.extend(half(is_little, 1));
    section.extend([0; 2]);
    section.extend([0xff; 8]);
    let mut file = block(is_little, 0x0a0d_0d0a, &section);
    let mut interface = half(is_little, link).to_vec();
    interface.extend([0; 6]);
    interface.extend(half(is_little, 9));
    interface.extend(half(is_little, 1));
    interface.extend([9, 0, 0, 0, 0, 0, 0, 0]);
    file.extend(block(is_little, 1, &interface));
    file.extend(block(is_little, 5, &[0; 16]));
    for (index, frame) in frames.iter().enumerate() {
        let ticks = 1_000_000_000_u64 + u64::try_from(index).unwrap() * 1_000_000;
        let mut packet = word(is_little, 0).to_vec();
        packet.extend(word(is_little, usize::try_from(ticks >> 32).unwrap()));
        packet.extend(word(
            is_little,
            usize::try_from(ticks & 0xffff_ffff).unwrap(),
        ));
        packet.extend(word(is_little, frame.len()));
        packet.extend(word(is_little, frame.len()));
        packet.extend(frame);
        packet.resize(packet.len().next_multiple_of(4), 0);
        file.extend(block(is_little, 6, &packet));
    }
    file
}

/// What happened in a capture of these packets, to its end.
pub(crate) fn happened(packets: &[Send]) -> Vec<Happened> {
    happened_with_counts(packets).0
}

pub(crate) fn happened_with_counts(packets: &[Send]) -> (Vec<Happened>, Counts) {
    let frames: Vec<Vec<u8>> = packets.iter().map(Send::ethernet).collect();
    let file = file(FORMATS[0], 1, &frames);
    let mut traffic = Traffic::default();
    let mut all = Vec::new();
    for packet in Packets::new(file.as_slice()).expect("a capture") {
        all.extend(traffic.packet(&packet.expect("a packet")));
    }
    all.extend(traffic.finish());
    (all, traffic.counts())
}
