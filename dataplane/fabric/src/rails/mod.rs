//! Several devices as one port.
//!
//! A *rail* is a port of a core on one device. [`Rails`] joins the rails of a core: the core polls all of them, its memory
//! is registered with each device, and a connection uses the rail of the device that leads to its peer. So a connection that is
//! lost with one device and made again by another one is on the same core, with the same buffers.
//!
//! Each rail has its own queue pairs, receive queues and memory windows, all for as many connections as the core may have:
//! when one device fails, all of them may come to another one. So Receives take the memory of one rail times their number.

mod manager;
mod port;
#[cfg(all(test, not(loom)))]
mod tests;

pub use manager::RailsManager;
pub use port::{OnRail, Rails, RailsHandle};

/// The most rails of a core.
pub const RAILS_MAX: usize = 8;
