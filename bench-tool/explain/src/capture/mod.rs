//! Captured RoCEv2 traffic: reads a file of packets and assembles the messages of queue pairs.
//!
//! [`Packets`] reads pcap and pcapng. [`frame`] finds the RDMA packet in a frame. [`roce`] reads the transport headers,
//! and [`manager`] the messages of the connection manager. [`Traffic`] combines them: it pairs the two queue pairs of
//! a connection, joins the packets of each message, drops retransmitted packets and reports missing ones.
//!
//! The contents of a file are not trusted: an invalid file gives an error with the offset of the fault. The memory in
//! use is bounded by the number of bytes that were read.
//!
//! ```no_run
//! use rpcrdma_explain::capture::{Event, Packets, Traffic};
//!
//! let file = std::fs::File::open("mount.pcapng")?;
//! let mut traffic = Traffic::default();
//! for packet in Packets::new(std::io::BufReader::new(file))? {
//!     for happened in traffic.packet(&packet?) {
//!         if let Event::Message(message) = happened.event {
//!             println!("packet {}: {} octets", happened.last_packet, message.octets.len());
//!         }
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod container;
pub mod frame;
pub mod manager;
mod octets;
pub mod roce;
mod traffic;

pub use container::{CaptureError, Fault, LinkType, Packet, Packets, is_capture};
pub use traffic::{Counts, Event, Flow, Gap, Happened, Message, RemoteAccess, Traffic};
