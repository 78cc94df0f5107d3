//! The file formats of captures: pcap, and the blocks of pcapng that describe packets.
//!
//! Both byte orders are read, with times in microseconds, in nanoseconds or in the resolution of the interface. Blocks
//! of pcapng without packets (names, statistics, secrets) are skipped, as its specification requires.

use std::fmt;
use std::io::{self, Read};
use std::time::Duration;

use crate::capture::octets::Octets;

/// Blocks and packets of this length or more are refused. No Ethernet frame comes near it, so the length is wrong.
const BLOCK_BYTES_MAX: u32 = 16 << 20;

const PCAP_MICROSECONDS: u32 = 0xa1b2_c3d4;
const PCAP_NANOSECONDS: u32 = 0xa1b2_3c4d;
const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
const INTERFACE: u32 = 1;
const OBSOLETE_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;
const OPTION_END: u16 = 0;
const OPTION_TIME_RESOLUTION: u16 = 9;
const OPTION_TIME_OFFSET: u16 = 14;

/// The header at the start of a frame. The numbers are those of the registry of link types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkType {
    /// 1: Ethernet.
    Ethernet,
    /// 101, 228 and 229 (and 12 and 14 of some systems): the frame starts with the IP header.
    RawIp,
    /// 113: the "cooked" header, which Linux writes for a capture on the interface "any".
    LinuxCooked,
    /// 276: the second version of the cooked header.
    LinuxCooked2,
    /// Another header. Its frames are not searched for RDMA packets.
    Unknown(u32),
}

impl From<u32> for LinkType {
    fn from(number: u32) -> Self {
        match number {
            1 => Self::Ethernet,
            12 | 14 | 101 | 228 | 229 => Self::RawIp,
            113 => Self::LinuxCooked,
            276 => Self::LinuxCooked2,
            other => Self::Unknown(other),
        }
    }
}

/// A packet as it was captured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Its place in the file, counted from 1 like in Wireshark.
    pub number: u64,
    /// The time of the capture, since 1970; zero if the file does not give it.
    pub time: Duration,
    /// The type of the header at the start of `octets`.
    pub link: LinkType,
    /// The frame, or its start if the capture kept only that.
    pub octets: Vec<u8>,
}

/// Why reading a file stopped.
#[derive(Debug, thiserror::Error)]
#[error("at byte {offset}, after {packets} whole packet(s): {fault}")]
pub struct CaptureError {
    /// The number of packets that were read before the error.
    pub packets: u64,
    /// The offset of the wrong record or block in the file, in bytes.
    pub offset: u64,
    /// The fault of the record or block.
    #[source]
    pub fault: Fault,
}

/// A fault of a file.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// Reading failed.
    #[error("reading failed")]
    Read(#[from] io::Error),
    /// The file does not start with the magic number of a capture.
    #[error("this is neither pcap nor pcapng")]
    NotACapture,
    /// The file ends within a record or block.
    #[error("the file ends within a packet or block; the capture may have been interrupted")]
    Cut,
    /// The length of a record or block is too short, too long or no multiple of 4.
    #[error("the length of the packet or block, {0} bytes, is not valid")]
    Length(u32),
    /// The length at the start of a block differs from the length at its end.
    #[error("the length of the block is {0} at its start but {1} at its end")]
    Lengths(u32, u32),
    /// A block is shorter than its fields.
    #[error("the block of type {0} is shorter than its fields")]
    Short(u32),
    /// The packet belongs to an interface that no block before it describes.
    #[error("the packet belongs to interface {0}, which the file does not describe")]
    Interface(u32),
    /// The major version is neither 2 (pcap) nor 1 (pcapng).
    #[error("version {0} of the format is not supported")]
    Version(u16),
}

/// Whether a file with these first octets is a capture. Four octets are enough.
#[must_use]
pub fn is_capture(octets: &[u8]) -> bool {
    octets.first_chunk().is_some_and(|&first| {
        [u32::from_be_bytes(first), u32::from_le_bytes(first)]
            .iter()
            .any(|word| matches!(*word, PCAP_MICROSECONDS | PCAP_NANOSECONDS | SECTION_HEADER))
    })
}

/// The packets of a file, in order. The iterator ends after an error.
pub struct Packets<R> {
    source: Source<R>,
    format: Format,
    packets: u64,
    is_over: bool,
}

impl<R> fmt::Debug for Packets<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Packets")
            .field("format", &self.format)
            .field("packets", &self.packets)
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
enum Format {
    Pcap(Interface),
    /// Holds the interfaces of the current section.
    Pcapng(Vec<Interface>),
}

/// An interface that packets were captured on: how to read their headers and times.
#[derive(Clone, Copy, Debug)]
struct Interface {
    link: LinkType,
    /// The capture keeps at most this many bytes of a packet; 0 means no limit.
    snap_bytes: u32,
    ticks_per_second: u64,
    offset_seconds: i64,
}

impl Interface {
    fn time(&self, ticks: u64) -> Duration {
        let fraction = u128::from(ticks % self.ticks_per_second) * 1_000_000_000
            / u128::from(self.ticks_per_second);
        let seconds = (ticks / self.ticks_per_second).saturating_add_signed(self.offset_seconds);
        Duration::from_secs(seconds)
            .saturating_add(Duration::from_nanos(u64::try_from(fraction).unwrap_or(0)))
    }
}

impl<R: Read> Packets<R> {
    /// Reads the header of a file.
    ///
    /// # Errors
    /// The file does not start with the header of a capture.
    pub fn new(read: R) -> Result<Self, CaptureError> {
        let mut source = Source {
            read,
            offset: 0,
            is_little: false,
        };
        let format = source.format().map_err(|fault| CaptureError {
            packets: 0,
            offset: 0,
            fault,
        })?;
        Ok(Self {
            source,
            format,
            packets: 0,
            is_over: false,
        })
    }

    fn read_packet(&mut self) -> Result<Option<Packet>, Fault> {
        match &mut self.format {
            Format::Pcap(interface) => self.source.record(interface),
            Format::Pcapng(interfaces) => self.source.packet_block(interfaces),
        }
    }
}

impl<R: Read> Iterator for Packets<R> {
    type Item = Result<Packet, CaptureError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        let result = self.read_packet();
        match result {
            Ok(Some(mut packet)) => {
                self.packets += 1;
                packet.number = self.packets;
                Some(Ok(packet))
            }
            Ok(None) => {
                self.is_over = true;
                None
            }
            Err(fault) => {
                self.is_over = true;
                Some(Err(CaptureError {
                    packets: self.packets,
                    offset: self.source.offset,
                    fault,
                }))
            }
        }
    }
}

/// A file that is read forward only, because a pipe cannot seek.
struct Source<R> {
    read: R,
    /// The offset of the current record or block.
    offset: u64,
    /// Whether the words of the file are little-endian.
    is_little: bool,
}

/// Reads words in the byte order of the file.
struct Fields<'a> {
    octets: Octets<'a>,
    is_little: bool,
}

impl<'a> Fields<'a> {
    fn u16(&mut self) -> Option<u16> {
        let word = self.octets.u16()?;
        Some(if self.is_little {
            word.swap_bytes()
        } else {
            word
        })
    }

    fn u32(&mut self) -> Option<u32> {
        let word = self.octets.u32()?;
        Some(if self.is_little {
            word.swap_bytes()
        } else {
            word
        })
    }

    /// Reads two words as one number. The high word comes first in both byte orders.
    fn u64_of_words(&mut self) -> Option<u64> {
        let high = self.u32()?;
        let low = self.u32()?;
        Some(u64::from(high) << 32 | u64::from(low))
    }

    fn take(&mut self, length: u32) -> Option<&'a [u8]> {
        self.octets.take(usize::try_from(length).ok()?)
    }
}

impl<R: Read> Source<R> {
    /// Reads `length` octets. `None` if the file ends here.
    fn octets(&mut self, length: u32) -> Result<Option<Vec<u8>>, Fault> {
        let mut octets = Vec::new();
        // The vector grows with the octets that are read: a file that claims a large length costs no memory.
        self.read
            .by_ref()
            .take(u64::from(length))
            .read_to_end(&mut octets)?;
        match u32::try_from(octets.len()) {
            Ok(read) if read == length => Ok(Some(octets)),
            Ok(0) => Ok(None),
            _ => Err(Fault::Cut),
        }
    }

    fn octets_of_block(&mut self, length: u32) -> Result<Vec<u8>, Fault> {
        match length {
            0 => Ok(Vec::new()),
            BLOCK_BYTES_MAX.. => Err(Fault::Length(length)),
            _ => self.octets(length)?.ok_or(Fault::Cut),
        }
    }

    fn fields<'a>(&self, octets: &'a [u8]) -> Fields<'a> {
        Fields {
            octets: Octets(octets),
            is_little: self.is_little,
        }
    }

    fn format(&mut self) -> Result<Format, Fault> {
        let Ok(Some(first)) = self.octets(4) else {
            return Err(Fault::NotACapture);
        };
        let word = Octets(&first).u32().unwrap_or_default();
        match word {
            SECTION_HEADER => {
                let mut interfaces = Vec::new();
                self.section(&mut interfaces)?;
                Ok(Format::Pcapng(interfaces))
            }
            PCAP_MICROSECONDS | PCAP_NANOSECONDS => self.pcap_header(word),
            _ => {
                self.is_little = true;
                self.pcap_header(word.swap_bytes())
            }
        }
    }

    fn pcap_header(&mut self, magic: u32) -> Result<Format, Fault> {
        let ticks_per_second = match magic {
            PCAP_MICROSECONDS => 1_000_000,
            PCAP_NANOSECONDS => 1_000_000_000,
            _ => return Err(Fault::NotACapture),
        };
        let header = self.octets_of_block(20)?;
        let mut fields = self.fields(&header);
        let interface = (|| {
            let major = fields.u16()?;
            fields.take(10)?;
            let snap_bytes = fields.u32()?;
            // The upper half of the word describes checksums at the end of frames.
            let link = LinkType::from(fields.u32()? & 0xffff);
            let interface = Interface {
                link,
                snap_bytes,
                ticks_per_second,
                offset_seconds: 0,
            };
            Some((major, interface))
        })();
        self.offset += 24;
        match interface {
            Some((2, interface)) => Ok(Format::Pcap(interface)),
            Some((major, _)) => Err(Fault::Version(major)),
            None => Err(Fault::Cut),
        }
    }

    /// Reads the next record of a pcap file.
    fn record(&mut self, interface: &Interface) -> Result<Option<Packet>, Fault> {
        let Some(header) = self.octets(16)? else {
            return Ok(None);
        };
        let mut fields = self.fields(&header);
        let words = (|| Some((fields.u32()?, fields.u32()?, fields.u32()?)))();
        let (seconds, fraction, length) = words.ok_or(Fault::Cut)?;
        let octets = self.octets_of_block(length)?;
        self.offset += 16 + u64::from(length);
        let ticks = u64::from(seconds) * interface.ticks_per_second + u64::from(fraction);
        Ok(Some(Packet {
            number: 0,
            time: interface.time(ticks),
            link: interface.link,
            octets,
        }))
    }

    /// Reads a section header after its type.
    fn section(&mut self, interfaces: &mut Vec<Interface>) -> Result<(), Fault> {
        let start = self.octets_of_block(8)?;
        let mut fields = Octets(&start);
        let (length, order) = (
            fields.u32().unwrap_or_default(),
            fields.u32().unwrap_or_default(),
        );
        self.is_little = match order {
            BYTE_ORDER => false,
            _ if order.swap_bytes() == BYTE_ORDER => true,
            _ => return Err(Fault::NotACapture),
        };
        let length = if self.is_little {
            length.swap_bytes()
        } else {
            length
        };
        let body = self.body(length, 12)?;
        let major = self
            .fields(&body)
            .u16()
            .ok_or(Fault::Short(SECTION_HEADER))?;
        if major != 1 {
            return Err(Fault::Version(major));
        }
        interfaces.clear();
        Ok(())
    }

    /// Reads the rest of a block of `length` octets, of which `read` were read. Returns it without the length at its
    /// end.
    fn body(&mut self, length: u32, read: u32) -> Result<Vec<u8>, Fault> {
        let rest = length
            .checked_sub(read)
            .filter(|rest| *rest >= 4 && length.is_multiple_of(4))
            .ok_or(Fault::Length(length))?;
        let mut body = self.octets_of_block(rest)?;
        let tail = body.split_off(body.len() - 4);
        let again = self.fields(&tail).u32().ok_or(Fault::Cut)?;
        if again != length {
            return Err(Fault::Lengths(length, again));
        }
        self.offset += u64::from(length);
        Ok(body)
    }

    /// Reads the next packet of a pcapng file, and the sections and interfaces before it. Skips other blocks.
    fn packet_block(&mut self, interfaces: &mut Vec<Interface>) -> Result<Option<Packet>, Fault> {
        loop {
            let Some(kind) = self.octets(4)? else {
                return Ok(None);
            };
            // The type of a section header is the same in both byte orders. The new section may change the order.
            let kind = self.fields(&kind).u32().ok_or(Fault::Cut)?;
            if kind == SECTION_HEADER {
                self.section(interfaces)?;
                continue;
            }
            let length = self.octets_of_block(4)?;
            let length = self.fields(&length).u32().ok_or(Fault::Cut)?;
            let begins = self.offset;
            let body = self.body(length, 8)?;
            let fields = self.fields(&body);
            let taken = match kind {
                INTERFACE => interface(fields).map(|interface| {
                    interfaces.push(interface);
                    Ok(None)
                }),
                ENHANCED_PACKET | OBSOLETE_PACKET => timed_packet(fields, kind, interfaces),
                SIMPLE_PACKET => simple_packet(fields, interfaces),
                _ => continue,
            };
            let taken = taken.unwrap_or(Err(Fault::Short(kind)));
            // An error names the start of its block, but `body` has moved the offset to the end.
            if taken.is_err() {
                self.offset = begins;
            }
            if let Some(packet) = taken? {
                return Ok(Some(packet));
            }
        }
    }
}

/// Reads the description of an interface. `None` if it is too short.
fn interface(mut fields: Fields<'_>) -> Option<Interface> {
    let link = LinkType::from(u32::from(fields.u16()?));
    fields.u16()?;
    let mut interface = Interface {
        link,
        snap_bytes: fields.u32()?,
        ticks_per_second: 1_000_000,
        offset_seconds: 0,
    };
    // A description may have no options, and the option that ends the list may be missing too.
    while let Some((code, length)) = fields.u16().zip(fields.u16()) {
        if code == OPTION_END {
            break;
        }
        let value = fields.take(u32::from(length))?;
        fields.take(u32::from(length.wrapping_neg() % 4))?;
        match (code, value) {
            (OPTION_TIME_RESOLUTION, [exponent]) => {
                let base: u64 = if exponent & 0x80 == 0 { 10 } else { 2 };
                // No interface has a resolution that overflows 64 bits; such a value counts as the default.
                interface.ticks_per_second = base
                    .checked_pow(u32::from(exponent & 0x7f))
                    .unwrap_or(1_000_000);
            }
            (OPTION_TIME_OFFSET, value) => {
                let offset = value.first_chunk().map(|word| match fields.is_little {
                    true => i64::from_le_bytes(*word),
                    false => i64::from_be_bytes(*word),
                });
                interface.offset_seconds = offset.unwrap_or_default();
            }
            _ => {}
        }
    }
    Some(interface)
}

/// Reads an enhanced packet, or the obsolete kind that it replaced. `None` if it is too short.
fn timed_packet(
    mut fields: Fields<'_>,
    kind: u32,
    interfaces: &[Interface],
) -> Option<Result<Option<Packet>, Fault>> {
    let index = if kind == OBSOLETE_PACKET {
        let index = u32::from(fields.u16()?);
        fields.u16()?;
        index
    } else {
        fields.u32()?
    };
    let ticks = fields.u64_of_words()?;
    let captured_bytes = fields.u32()?;
    fields.u32()?;
    let octets = fields.take(captured_bytes)?.to_vec();
    Some(interface_of(interfaces, index).map(|interface| {
        Some(Packet {
            number: 0,
            time: interface.time(ticks),
            link: interface.link,
            octets,
        })
    }))
}

/// Reads a simple packet, which has no time and belongs to the first interface. `None` if it is too short.
fn simple_packet(
    mut fields: Fields<'_>,
    interfaces: &[Interface],
) -> Option<Result<Option<Packet>, Fault>> {
    let original_bytes = fields.u32()?;
    let interface = match interface_of(interfaces, 0) {
        Ok(interface) => interface,
        Err(fault) => return Some(Err(fault)),
    };
    // The block has no field for the captured length.
    let captured_bytes = match interface.snap_bytes {
        0 => original_bytes,
        snap_bytes => original_bytes.min(snap_bytes),
    };
    Some(Ok(Some(Packet {
        number: 0,
        time: Duration::ZERO,
        link: interface.link,
        octets: fields.take(captured_bytes)?.to_vec(),
    })))
}

fn interface_of(interfaces: &[Interface], index: u32) -> Result<&Interface, Fault> {
    usize::try_from(index)
        .ok()
        .and_then(|index| interfaces.get(index))
        .ok_or(Fault::Interface(index))
}
