//! Receive buffers of several segments, and the leases on what a Send placed in them.
//!
//! A Send fills the segments of its Receive one after the other: a small *inline segment*, then
//! page-aligned *placement segments*. An item that the peer placed in a placement segment
//! (RTR section 7.2) can be handed to the application as a [`Lease`]: the segment leaves the Receive,
//! a spare takes its place, and the Receive is posted again. When no spare is left, the
//! message waits in its Receive, which is not posted, and so not granted, until a lease comes back.

use rpcrdma_fabric::interface::{Port, Receive, SetupError};
use rpcrdma_fabric::memory::{Buffer, Lease, Pool};
use rpcrdma_protocol::v2::rtr::{
    BufferSegment, ReceiveBufferStructure, SegmentGroup, StructureError,
};

use crate::limits::PAGE_BYTES;
use crate::limits::within;

/// How receive buffers of several segments are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacementConfig {
    /// Bytes of the first segment, which holds the headers and short messages; at least 1.
    pub inline_segment_bytes: u32,
    /// Placement segments of each receive buffer, at least 1.
    pub segments: u32,
    /// Bytes of each of them, at least 1.
    pub segment_bytes: u32,
    /// Placement segments in addition to those of the Receives, over all connections: applications can
    /// hold as many before messages wait. At least `segments`, so that any message
    /// can continue once all leases are back.
    pub spares: u32,
}

impl Default for PlacementConfig {
    fn default() -> Self {
        Self {
            inline_segment_bytes: 1024,
            segments: 1,
            segment_bytes: 64 << 10,
            spares: 64,
        }
    }
}

impl PlacementConfig {
    /// Bytes of the placement segments of one receive buffer.
    pub(crate) fn bytes_per_receive(&self) -> u32 {
        self.segments.saturating_mul(self.segment_bytes)
    }

    pub(crate) fn structure(&self) -> Result<ReceiveBufferStructure, StructureError> {
        ReceiveBufferStructure::new(&[
            SegmentGroup {
                count: 1,
                segment: BufferSegment {
                    length_bytes: self.inline_segment_bytes,
                    align_bytes: 0,
                    is_targetable: false,
                },
            },
            SegmentGroup {
                count: self.segments,
                segment: BufferSegment {
                    length_bytes: self.segment_bytes,
                    align_bytes: PAGE_BYTES,
                    is_targetable: true,
                },
            },
        ])
    }

    pub(crate) fn validate(&self) -> Result<(), SetupError> {
        within("placement spares", self.spares, self.segments..)?;
        self.structure()
            .map(drop)
            .map_err(|error| SetupError::System {
                doing: format!("receive buffers of {self:?}: {error}"),
                source: std::io::ErrorKind::InvalidInput.into(),
            })
    }
}

/// Why a piece of a Receive was not leased. The Receive is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotLeased {
    /// Applications hold all spares.
    #[error("applications hold all spare placement segments")]
    NoSpare,
    /// The Receive has no such placement segment, or the range does not lie within it.
    #[error("the Receive has no such range in a placement segment")]
    NoSuchRange,
}

/// The placement segments of a core that are in no Receive: spares, and leased ones. There are none by default.
#[derive(Debug, Default)]
pub struct PlacementSegments {
    /// The spares; `None` if receive buffers have one segment.
    pool: Option<Pool>,
    /// Segments that were leased and have not come back.
    leased: usize,
}

/// Segments taken back in one iteration.
const RECLAIMED_MAX: usize = 16;

impl PlacementSegments {
    /// Hands out the segments of `pool`, first to Receives that are made, then as spares.
    #[must_use]
    pub fn new(pool: Pool) -> Self {
        Self {
            pool: Some(pool),
            leased: 0,
        }
    }

    /// A segment for a Receive that is made, at start-up.
    pub fn take_for_receive(&mut self) -> Option<Buffer> {
        self.pool.as_mut()?.take()
    }

    /// Spares: as many segments can be leased now.
    #[inline]
    #[must_use]
    pub fn spares(&self) -> usize {
        self.pool.as_ref().map_or(0, Pool::available)
    }

    /// Segments that were leased and have not come back.
    #[inline]
    #[must_use]
    pub fn leased(&self) -> usize {
        self.leased
    }

    /// Leases `bytes` bytes from `offset` of placement segment `segment` (counted from 0, without the inline
    /// segment) of a Receive that completed. A spare takes the segment's place, so that the Receive can be
    /// posted again.
    ///
    /// A segment can be leased once for each message; several items in it share that lease.
    ///
    /// # Errors
    /// [`NotLeased`]; the Receive and its bytes are unchanged.
    #[inline(always)]
    pub fn lease<P: Port>(
        &mut self,
        port: &mut P,
        receive: &mut Receive,
        segment: usize,
        offset: u32,
        bytes: u32,
    ) -> Result<Lease, NotLeased> {
        let pool = self.pool.as_mut().ok_or(NotLeased::NoSuchRange)?;
        let fits = offset
            .checked_add(bytes)
            .is_some_and(|end| end <= pool.shape().buffer_bytes);
        // The first segment is the inline one.
        let index = segment.checked_add(1).filter(|_| fits);
        let index = index.ok_or(NotLeased::NoSuchRange)?;
        let fresh = pool.take().ok_or(NotLeased::NoSpare)?;
        match port.replace_segment(receive, index, fresh) {
            Ok(filled) => {
                self.leased += 1;
                pool.lease(filled, offset, bytes)
                    .ok_or(NotLeased::NoSuchRange)
            }
            Err(fresh) => {
                pool.give(fresh);
                Err(NotLeased::NoSuchRange)
            }
        }
    }

    /// Takes back a segment whose lease was turned into a buffer, to send from it or to expose it,
    /// after the port has finished with it.
    pub(crate) fn give(&mut self, buffer: Buffer) {
        if let Some(pool) = &mut self.pool {
            pool.give(buffer);
            self.leased = self.leased.saturating_sub(1);
        }
    }

    /// Ends a lease on one of these segments; returns any other lease.
    pub(crate) fn end_lease(&mut self, lease: Lease) -> Option<Lease> {
        let is_ours = self.pool.as_ref().is_some_and(|it| it.owns_lease(&lease));
        if !is_ours {
            return Some(lease);
        }
        if let Some((buffer, ..)) = lease.into_buffer() {
            self.give(buffer);
        }
        None
    }

    /// Takes back some segments of dropped leases. Returns how many.
    #[inline]
    pub fn reclaim(&mut self) -> usize {
        if self.leased == 0 {
            return 0;
        }
        self.reclaim_some()
    }

    #[inline(never)]
    fn reclaim_some(&mut self) -> usize {
        let Some(pool) = &mut self.pool else {
            return 0;
        };
        let came = pool.reclaim(RECLAIMED_MAX);
        self.leased -= came;
        came
    }
}
