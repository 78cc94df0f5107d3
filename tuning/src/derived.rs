//! Sizes that follow from the knobs: sums with one term per holder, so that a pool that runs dry is
//! a wrong term here and nothing else.
//!
//! Everything is per core. The sums are taken in 64 bits, which no checked profile overflows. The
//! engine rounds each pool up to cache lines and pages when it carves it from its arena.

use crate::knobs::Profile;

/// Receives that each connection always has: those of two credits, and the spare one.
const RECEIVES_GUARANTEED: u64 = 3;
/// Connections that can have their own send buffers at a time.
const SENDERS_AT_A_TIME: u64 = 1024;
/// Connections that `receives_shared` gives all their credits by default.
const WHOLE_WINDOWS: u64 = 64;

impl Profile {
    /// Receives of one connection that has all its credits.
    #[must_use]
    pub fn receives_per_connection(&self) -> u64 {
        // Granted: the peer may send this many messages, the implicit credit of the first message
        // included.
        u64::from(self.credits_per_connection)
            // Spare: an empty NOMSG consumes no credit but takes a receive.
            + 1
    }

    /// Receives that one connection always has: those of two credits and the spare one.
    #[must_use]
    pub fn receives_guaranteed(&self) -> u64 {
        self.receives_per_connection().min(RECEIVES_GUARANTEED)
    }

    /// Receives that a core keeps posted when no message is in its hands, which is the depth of its
    /// shared receive queue.
    ///
    /// There is no further term for messages that a service still holds: their credits have been
    /// consumed, and are granted again only when the buffer is back.
    #[must_use]
    pub fn receives_posted(&self) -> u64 {
        let connections = u64::from(self.connections_max);
        let lent = self.receives_per_connection() - self.receives_guaranteed();
        let shared = match self.receives_shared {
            0 => lent * WHOLE_WINDOWS,
            shared => shared.into(),
        };
        // Those of each connection, and those lent to busy ones: capped by what all connections together could borrow.
        connections * self.receives_guaranteed() + shared.min(connections * lent)
    }

    /// Bytes of one whole receive buffer: the size that is announced to peers.
    #[must_use]
    pub fn receive_bytes(&self) -> u64 {
        if self.placement_segments == 0 {
            return self.receive_buffer_bytes.into();
        }
        // What every message begins in ...
        u64::from(self.inline_segment_bytes)
            // ... and what bulk data is placed in.
            + u64::from(self.placement_segments) * u64::from(self.placement_segment_bytes)
    }

    /// Bytes of a core's placement segments that are in no receive.
    #[must_use]
    pub fn placement_spare_bytes(&self) -> u64 {
        if self.placement_segments == 0 {
            return 0;
        }
        u64::from(self.placement_spares) * u64::from(self.placement_segment_bytes)
    }

    /// Bytes of receive buffers of one connection that has all its credits.
    #[must_use]
    pub fn connection_bytes(&self) -> u64 {
        self.receives_per_connection() * self.receive_bytes()
    }

    /// Bytes of a core's receive buffers.
    #[must_use]
    pub fn receive_pool_bytes(&self) -> u64 {
        self.receives_posted() * self.receive_bytes()
    }

    /// Bytes of a core's send buffers.
    #[must_use]
    pub fn send_pool_bytes(&self) -> u64 {
        // Those that connections share ...
        let buffers = u64::from(self.send_buffers)
            // ... and the guaranteed ones, for a message and for a grant or an error: for as many connections as can
            // have theirs at a time.
            + 2 * u64::from(self.connections_max).min(SENDERS_AT_A_TIME);
        buffers * u64::from(self.send_buffer_bytes)
    }

    /// Bytes of a core's zeroed padding buffers: a page for each Send in flight, and for each entry
    /// of the longest gather list.
    #[must_use]
    pub fn padding_pool_bytes(&self) -> u64 {
        if self.placement_segments == 0 || self.bulk_buffers == 0 {
            return 0;
        }
        (u64::from(self.send_buffers) + 32) * 4096
    }

    /// Bytes of a core's bulk buffers.
    #[must_use]
    pub fn bulk_pool_bytes(&self) -> u64 {
        u64::from(self.bulk_buffers) * u64::from(self.bulk_buffer_bytes)
    }

    /// Bytes of registered memory that a core takes.
    #[must_use]
    pub fn registered_bytes(&self) -> u64 {
        // Peers send into these.
        self.receive_pool_bytes()
            // These replace segments that services keep.
            + self.placement_spare_bytes()
            // Sends are made from these.
            + self.send_pool_bytes()
            // Sent between the pieces of bulk data.
            + self.padding_pool_bytes()
            // Bulk data.
            + self.bulk_pool_bytes()
    }

    /// Bytes of the buffers that connections share for messages that come or go in several Sends. They are ordinary
    /// memory: no peer reaches them.
    #[must_use]
    pub fn reassembly_pool_bytes(&self) -> u64 {
        u64::from(self.reassembly_buffers) * u64::from(self.message_bytes_max)
    }

    /// Bytes of the buffers of that kind that connections have of their own, four each. They take no memory before they
    /// are used, and keep it then: if each peer uses all of its own, this much.
    #[must_use]
    pub fn reassembly_guaranteed_bytes(&self) -> u64 {
        // One each for a received call, a received reply, a sent call and a sent reply.
        let buffers = 4 * u64::from(self.connections_max);
        buffers * u64::from(self.message_bytes_max)
    }
}
