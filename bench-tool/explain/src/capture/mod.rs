//! Captured RoCEv2 traffic: from a file of packets to whole messages of queue pairs.
//!
//! [`Packets`] reads pcap and pcapng, [`frame`] finds what is RDMA in an Ethernet frame or a cooked one, [`roce`] reads
//! the transport headers, [`manager`] the messages of the connection manager, and [`Traffic`] puts all of it together:
//! it pairs the two queue pairs of a connection, joins the packets of each message, takes what was sent again once,
//! and says what is missing.
//!
//! Nothing in a file is trusted: whatever it holds, it is read or refused with the place where it is wrong.
//! Memory is bounded by what was read.
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
