//! Finds the RDMA packet in a captured frame: reads the link layer, IP, and UDP to the port of RoCEv2.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::capture::container::LinkType;
use crate::capture::octets::Octets;

/// The UDP port of RoCEv2 (InfiniBand Architecture, annex A17).
pub const ROCE_PORT: u16 = 4791;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPES_VLAN: [u16; 3] = [0x8100, 0x88a8, 0x9100];
/// The largest number of VLAN tags of a frame. Real frames have one or two; the bound ends a loop over a hostile one.
const VLAN_TAGS_MAX: usize = 4;
const PROTOCOL_UDP: u8 = 17;
/// The largest number of extension headers of an IPv6 packet before UDP.
const IPV6_EXTENSIONS_MAX: usize = 8;

/// The contents of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// A packet of RoCEv2.
    Roce(Datagram<'a>),
    /// Other traffic, which is ignored.
    Other,
    /// A packet of RoCEv2, or the start of one, that cannot be read; with the reason.
    Damaged(&'static str),
}

/// A UDP datagram to the port of RoCEv2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// The address of the sender.
    pub source: IpAddr,
    /// The address of the receiver.
    pub destination: IpAddr,
    /// The payload of UDP: from the base transport header to the invariant checksum.
    pub octets: &'a [u8],
}

const CUT: Frame<'_> = Frame::Damaged("the capture kept only the beginning of this packet");

/// Searches a frame for a packet of RoCEv2.
#[must_use]
pub fn read(link: LinkType, octets: &[u8]) -> Frame<'_> {
    let mut frame = Octets(octets);
    match network_protocol(link, &mut frame) {
        Some(ETHERTYPE_IPV4) => ipv4(frame),
        Some(ETHERTYPE_IPV6) => ipv6(frame),
        _ => Frame::Other,
    }
}

/// Removes the header of the link layer and returns the Ethernet type of the next header.
fn network_protocol(link: LinkType, frame: &mut Octets<'_>) -> Option<u16> {
    match link {
        LinkType::Ethernet => {
            frame.take(12)?;
            behind_tags(frame)
        }
        // The protocol is the last word of the header.
        LinkType::LinuxCooked => {
            frame.take(14)?;
            behind_tags(frame)
        }
        // The protocol is the first word of the header. A VLAN tag comes after the header.
        LinkType::LinuxCooked2 => {
            let protocol = frame.u16()?;
            frame.take(18)?;
            if ETHERTYPES_VLAN.contains(&protocol) {
                frame.take(2)?;
                return behind_tags(frame);
            }
            Some(protocol)
        }
        LinkType::RawIp => match frame.0.first()? >> 4 {
            4 => Some(ETHERTYPE_IPV4),
            6 => Some(ETHERTYPE_IPV6),
            _ => None,
        },
        LinkType::Unknown(_) => None,
    }
}

/// Skips VLAN tags and returns the Ethernet type after them.
fn behind_tags(frame: &mut Octets<'_>) -> Option<u16> {
    for _ in 0..=VLAN_TAGS_MAX {
        let protocol = frame.u16()?;
        if !ETHERTYPES_VLAN.contains(&protocol) {
            return Some(protocol);
        }
        frame.take(2)?;
    }
    None
}

fn ipv4(packet: Octets<'_>) -> Frame<'_> {
    read_ipv4(packet).unwrap_or(Frame::Other)
}

/// `None` for traffic other than UDP to the port of RoCEv2, and for packets that are too short to tell.
fn read_ipv4(mut packet: Octets<'_>) -> Option<Frame<'_>> {
    let mut whole = packet;
    let version_and_length = packet.u8()?;
    let header_bytes = usize::from(version_and_length & 0xf) * 4;
    packet.take(1)?;
    let total_bytes = usize::from(packet.u16()?);
    packet.take(2)?;
    let fragment = packet.u16()?;
    packet.take(1)?;
    let protocol = packet.u8()?;
    packet.take(2)?;
    let source = Ipv4Addr::from(packet.u32()?);
    let destination = Ipv4Addr::from(packet.u32()?);
    if version_and_length >> 4 != 4 || header_bytes < 20 || protocol != PROTOCOL_UDP {
        return None;
    }
    whole.take(header_bytes)?;
    // Only the first fragment has the UDP port, so later ones cannot be recognized as RoCEv2. RoCEv2 is never
    // fragmented, because its packets fit the path MTU.
    if fragment & 0x1fff != 0 {
        return None;
    }
    let udp = udp(whole, total_bytes.saturating_sub(header_bytes))?;
    Some(datagram(
        source.into(),
        destination.into(),
        udp,
        fragment & 0x2000 != 0,
    ))
}

fn ipv6(packet: Octets<'_>) -> Frame<'_> {
    read_ipv6(packet).unwrap_or(Frame::Other)
}

/// `None` as in [`read_ipv4`].
fn read_ipv6(mut packet: Octets<'_>) -> Option<Frame<'_>> {
    let first = packet.u32()?;
    let payload_bytes = usize::from(packet.u16()?);
    let mut next = packet.u8()?;
    packet.take(1)?;
    let source = Ipv6Addr::from(packet.array::<16>()?);
    let destination = Ipv6Addr::from(packet.array::<16>()?);
    if first >> 28 != 6 {
        return None;
    }
    let behind_header = packet.0.len();
    let mut is_fragment = false;
    for _ in 0..=IPV6_EXTENSIONS_MAX {
        match next {
            PROTOCOL_UDP => {
                let extensions = behind_header - packet.0.len();
                let udp = udp(packet, payload_bytes.saturating_sub(extensions))?;
                return Some(datagram(
                    source.into(),
                    destination.into(),
                    udp,
                    is_fragment,
                ));
            }
            // Hop-by-hop, routing and destination options: the length counts units of 8 octets after the first unit.
            0 | 43 | 60 => {
                next = packet.u8()?;
                let length = usize::from(packet.u8()?) * 8 + 6;
                packet.take(length)?;
            }
            // Fragment header: only the first fragment has the UDP port.
            44 => {
                next = packet.u8()?;
                packet.take(1)?;
                let offset_and_more = packet.u16()?;
                packet.take(4)?;
                if offset_and_more >> 3 != 0 {
                    return None;
                }
                is_fragment |= offset_and_more & 1 != 0;
            }
            _ => return None,
        }
    }
    None
}

/// The payload of a UDP datagram to the port of RoCEv2, or the fault of the datagram; `None` for another port.
/// `length` is the length of the datagram according to IP.
fn udp(mut packet: Octets<'_>, length: usize) -> Option<Result<&[u8], Frame<'_>>> {
    packet.take(2)?;
    if packet.u16()? != ROCE_PORT {
        return None;
    }
    let udp_length = usize::from(packet.u16()?);
    packet.take(2)?;
    if udp_length < 8 || udp_length > length {
        return Some(Err(Frame::Damaged(
            "the length in the UDP header is not that of the packet",
        )));
    }
    Some(packet.take(udp_length - 8).ok_or(CUT))
}

fn datagram<'a>(
    source: IpAddr,
    destination: IpAddr,
    octets: Result<&'a [u8], Frame<'a>>,
    is_fragment: bool,
) -> Frame<'a> {
    match octets {
        _ if is_fragment => Frame::Damaged("the packet is a fragment, which RoCEv2 never sends"),
        Ok(octets) => Frame::Roce(Datagram {
            source,
            destination,
            octets,
        }),
        Err(damaged) => damaged,
    }
}
