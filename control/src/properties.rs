//! The decision on a peer's properties (-00 section 5).

use rpcrdma_protocol::v2::{Properties, PropertySet};

/// The smallest receive buffers that a peer may announce, in octets: what the first message of a
/// connection may take (-00 section 4.3.3). Section 4.3.2 asks for 4096 of every receiver; below
/// the first message, a connection could not even carry its own set-up.
pub const RECEIVE_BUFFER_BYTES_LEAST: u32 = 1024;

/// The decision on a peer's properties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Use the connection, with these properties of the peer.
    Accept(Properties),
    /// The connection cannot be used: the peer's receive buffers, in octets, hold no message.
    ReceiveBufferTooSmall(u32),
}

/// Decides on the properties that a peer announced. Properties do not change during a connection (-00 section 6.4.4),
/// so this is called once; later sets are checked with [`changes`].
#[must_use]
pub fn decide(peer: &Properties) -> Decision {
    if peer.receive_buffer_bytes < RECEIVE_BUFFER_BYTES_LEAST {
        return Decision::ReceiveBufferTooSmall(peer.receive_buffer_bytes);
    }
    Decision::Accept(*peer)
}

/// Whether a set that follows the first one has another value for a property, which is not allowed (-00 section 6.4.4).
/// A property that the set does not name keeps its value.
#[must_use]
pub fn changes(peer: &Properties, set: &PropertySet<'_>) -> bool {
    let mut changed = *peer;
    for property in *set {
        changed.apply(property);
    }
    changed != *peer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_accepted_as_they_are() {
        let peer = Properties::default();
        assert_eq!(decide(&peer), Decision::Accept(peer));
    }

    #[test]
    fn receive_buffers_that_hold_no_first_message_are_refused() {
        let peer = Properties {
            receive_buffer_bytes: 1023,
            ..Properties::default()
        };
        assert_eq!(decide(&peer), Decision::ReceiveBufferTooSmall(1023));
        let peer = Properties {
            receive_buffer_bytes: 1024,
            ..Properties::default()
        };
        assert_eq!(decide(&peer), Decision::Accept(peer));
    }
}
