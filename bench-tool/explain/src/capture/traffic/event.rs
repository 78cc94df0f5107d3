//! What happened in a capture.

use std::net::IpAddr;
use std::time::Duration;

use crate::capture::roce::RemoteMemory;

/// One direction of a connection: the packets to one queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flow {
    /// The address of the sender.
    pub source: IpAddr,
    /// The address of the receiver.
    pub destination: IpAddr,
    /// The queue pair of the receiver.
    pub queue_pair: u32,
}

/// An event, and its place in the capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Happened {
    /// The direction; `None` for a damaged packet.
    pub flow: Option<Flow>,
    /// The number of the connection, counted from 1 in the order of appearance; `None` for events without one.
    pub connection: Option<u64>,
    /// The number of the first packet.
    pub first_packet: u64,
    /// The number of the last packet.
    pub last_packet: u64,
    /// The time of the first packet, since 1970.
    pub began: Duration,
    /// The time of the last packet, since 1970.
    pub ended: Duration,
    /// The event.
    pub event: Event,
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// One end requests a connection.
    ConnectRequest {
        /// The port of RDMA-CM, if the service is one of RDMA-CM.
        port: Option<u16>,
        /// The private data of the application, with the zeros that fill the field.
        private_data: Vec<u8>,
    },
    /// The other end accepts the request.
    ConnectReply {
        /// The private data of the application, with the zeros that fill the field.
        private_data: Vec<u8>,
    },
    /// The other end rejects the request.
    ConnectReject {
        /// The number of the reason; 28 is a rejection by the application.
        reason: u16,
        /// The private data of the application, with the zeros that fill the field.
        private_data: Vec<u8>,
    },
    /// One end closes a connection.
    Disconnect,
    /// A whole Send.
    Message(Message),
    /// An RDMA Read from the memory of the receiver.
    Read(RemoteAccess),
    /// An RDMA Write into the memory of the receiver.
    Write(RemoteAccess),
    /// A part of the traffic is missing.
    Gap(Gap),
    /// A packet that cannot be read, with the reason.
    Damaged(&'static str),
}

/// A Send, assembled from its packets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// The payload.
    pub octets: Vec<u8>,
    /// The immediate data.
    pub immediate: Option<u32>,
    /// The key that the device of the receiver invalidates.
    pub invalidated: Option<u32>,
}

/// An RDMA Read or Write.
pub type RemoteAccess = RemoteMemory;

/// A part of the traffic that the capture does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gap {
    /// This many packets of the direction are missing, according to the sequence numbers around them. Their message
    /// is lost.
    Missing(u32),
    /// The capture starts within a message, which is lost.
    NoBeginning,
    /// The capture or the connection ends within a message, or another message starts.
    NoEnd,
    /// A message is longer than the limit for messages.
    TooLong,
}
