//! Sizes that follow from the knobs: sums with one term per holder, so that a pool that runs dry is
//! a wrong term here and nothing else.
//!
//! Everything is per core. The sums are taken in 64 bits, which no checked profile overflows.

use crate::knobs::Hugepages;
use crate::profile::Profile;

/// Bytes of an ordinary page.
const PAGE_BYTES: u64 = 4096;

/// Bytes of a cache line.
const CACHE_LINE_BYTES: u64 = 64;

impl Profile {
    /// Receives that one connection has a claim on.
    #[must_use]
    pub fn receives_per_connection(&self) -> u64 {
        // Granted: the peer may send this many messages, the implicit credit of the first message
        // included.
        u64::from(self.credits_per_connection)
            // Spare: an empty NOMSG consumes no credit but does land in a receive.
            + 1
    }

    /// Receives that a core keeps posted when no message is in its hands, which is the depth of its
    /// shared receive queue.
    ///
    /// There is no further term for messages that a service still holds: their credits have been
    /// consumed, and are granted again only when the buffer is back.
    #[must_use]
    pub fn receives_posted(&self) -> u64 {
        u64::from(self.connections_max) * self.receives_per_connection()
    }

    /// Bytes of a core's receive buffers.
    #[must_use]
    pub fn receive_pool_bytes(&self) -> u64 {
        self.receives_posted() * u64::from(self.receive_buffer_bytes)
    }

    /// Send buffers of a core.
    #[must_use]
    pub fn send_buffers(&self) -> u64 {
        // Requester: one for each call, from its encoding to the completion of its Send.
        u64::from(self.calls_outstanding_max)
            // Responder: one for each reply on its way.
            + u64::from(self.calls_outstanding_max)
            // Kept back: one for each connection, so that a grant or a transport error never waits
            // for a call.
            + u64::from(self.connections_max)
    }

    /// Bytes of a core's send buffers.
    #[must_use]
    pub fn send_pool_bytes(&self) -> u64 {
        self.send_buffers() * u64::from(self.send_buffer_bytes)
    }

    /// Bytes of the buffers in which a core puts continued messages together. Each is rounded up to
    /// whole cache lines.
    #[must_use]
    pub fn reassembly_pool_bytes(&self) -> u64 {
        u64::from(self.reassembly_buffers)
            * u64::from(self.message_bytes_max).next_multiple_of(CACHE_LINE_BYTES)
    }

    /// Entries of a core's completion queue.
    #[must_use]
    pub fn completions_max(&self) -> u64 {
        // Every posted receive completes once.
        self.receives_posted()
            // Every Send may complete, unsignalled ones too: a flush completes them all.
            + self.send_buffers()
            // Every RDMA Read completes once.
            + u64::from(self.connections_max) * u64::from(self.read_depth_max)
    }

    /// Bytes that a core's pools take up.
    #[must_use]
    pub fn arena_bytes_used(&self) -> u64 {
        self.receive_pool_bytes() + self.send_pool_bytes() + self.reassembly_pool_bytes()
    }

    /// Bytes of a core's arena of registered memory: its pools, rounded up to whole pages of the
    /// kind that is asked for.
    #[must_use]
    pub fn arena_bytes(&self) -> u64 {
        let page_bytes = match self.hugepages {
            Hugepages::Prefer | Hugepages::Require => u64::from(self.hugepage_bytes),
            Hugepages::Never => PAGE_BYTES,
        };
        self.arena_bytes_used().next_multiple_of(page_bytes)
    }
}
