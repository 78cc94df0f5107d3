//! Messages of the InfiniBand connection manager (volume 1, chapter 12) that set up and end connections, with the
//! private data of the applications. In a request, a header of RDMA-CM comes before the private data.

use crate::capture::octets::Octets;

const CLASS_COMMUNICATION_MANAGEMENT: u8 = 7;
/// The length of the header of RDMA-CM before the private data of the application, in requests only (annex A11).
const RDMA_CM_HEADER_BYTES: usize = 36;
/// The first octets of the service identifiers of RDMA-CM. The last two octets hold the port.
const RDMA_CM_SERVICE: u64 = 0x0000_0000_0100_0000;

/// What one end says about itself during connection setup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// The communication ID: its name for the connection during setup.
    pub id: u32,
    /// The number of its queue pair.
    pub queue_pair: u32,
    /// The sequence number that it expects in the first packet from the other end.
    pub first_sequence: u32,
}

/// A message of the connection manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ManagerMessage<'a> {
    /// Asks for a connection.
    Request {
        /// The end that asks.
        end: End,
        /// The port of RDMA-CM, if the service is one of RDMA-CM.
        port: Option<u16>,
        /// The largest payload of a packet, in octets; 0 if the field holds an unknown code.
        path_mtu: u32,
        /// The private data of the application, with the zeros that fill the field.
        private_data: &'a [u8],
    },
    /// Accepts a request.
    Reply {
        /// The end that accepts.
        end: End,
        /// The communication ID of the other end.
        peer_id: u32,
        /// The private data of the application, with the zeros that fill the field.
        private_data: &'a [u8],
    },
    /// Rejects a request.
    Reject {
        /// The communication ID of the other end.
        peer_id: u32,
        /// The number of the reason (section 12.6.7.2); 28 is a rejection by the application.
        reason: u16,
        /// The private data of the application, with the zeros that fill the field.
        private_data: &'a [u8],
    },
    /// The end that sent the request is ready.
    ReadyToUse,
    /// One end closes the connection.
    DisconnectRequest,
    /// The other end confirms the close.
    DisconnectReply,
    /// Another attribute of this class.
    Other(u16),
}

/// Reads a management datagram. `None` if its class is another one or if it is too short.
#[must_use]
pub fn read(octets: &[u8]) -> Option<ManagerMessage<'_>> {
    let mut rest = Octets(octets);
    rest.u8()?;
    if rest.u8()? != CLASS_COMMUNICATION_MANAGEMENT {
        return None;
    }
    rest.take(14)?;
    let attribute = rest.u16()?;
    rest.take(6)?;
    Some(match attribute {
        0x10 => request(rest)?,
        0x12 => reject(rest)?,
        0x13 => reply(rest)?,
        0x14 => ManagerMessage::ReadyToUse,
        0x15 => ManagerMessage::DisconnectRequest,
        0x16 => ManagerMessage::DisconnectReply,
        other => ManagerMessage::Other(other),
    })
}

fn request(mut rest: Octets<'_>) -> Option<ManagerMessage<'_>> {
    let id = rest.u32()?;
    rest.take(4)?;
    let service = rest.u64()?;
    rest.take(16)?;
    let queue_pair = rest.u24()?;
    rest.take(9)?;
    let first_sequence = rest.u24()?;
    rest.take(3)?;
    let path_mtu = match rest.u8()? >> 4 {
        code @ 1..=5 => 128 << code,
        _ => 0,
    };
    rest.take(89)?;
    let mut private_data = Octets(rest.take(92)?);
    let port = (service & !0x00ff_ffff == RDMA_CM_SERVICE)
        .then(|| u16::try_from(service & 0xffff).unwrap_or_default());
    if port.is_some() {
        private_data.take(RDMA_CM_HEADER_BYTES)?;
    }
    Some(ManagerMessage::Request {
        end: End {
            id,
            queue_pair,
            first_sequence,
        },
        port,
        path_mtu,
        private_data: private_data.0,
    })
}

fn reply(mut rest: Octets<'_>) -> Option<ManagerMessage<'_>> {
    let id = rest.u32()?;
    let peer_id = rest.u32()?;
    rest.take(4)?;
    let queue_pair = rest.u24()?;
    rest.take(5)?;
    let first_sequence = rest.u24()?;
    rest.take(13)?;
    Some(ManagerMessage::Reply {
        end: End {
            id,
            queue_pair,
            first_sequence,
        },
        peer_id,
        private_data: rest.take(196)?,
    })
}

fn reject(mut rest: Octets<'_>) -> Option<ManagerMessage<'_>> {
    rest.take(4)?;
    let peer_id = rest.u32()?;
    rest.take(2)?;
    let reason = rest.u16()?;
    rest.take(72)?;
    Some(ManagerMessage::Reject {
        peer_id,
        reason,
        private_data: rest.take(148)?,
    })
}
