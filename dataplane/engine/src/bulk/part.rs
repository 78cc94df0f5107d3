//! A piece of bulk data in the hands of the core.

use rpcrdma_fabric::memory::{Buffer, Lease, Memory, SharedLease};

use super::{BulkPool, NO_INDEX, Piece, give_lease};

/// A piece of an item, or of a chunk.
#[derive(Debug)]
pub(crate) struct BulkPart {
    /// `None` while a work request has it.
    pub(crate) buffer: Option<Buffer>,
    /// The index of its buffer in the bulk pool; [`NO_INDEX`] for a buffer of another pool.
    pub(crate) index: u32,
    pub(crate) offset: u32,
    pub(crate) bytes: u32,
}

impl BulkPart {
    /// A piece in a bulk buffer.
    pub(crate) fn new(buffer: Buffer, offset: u32, bytes: u32) -> Self {
        Self {
            index: buffer.index(),
            buffer: Some(buffer),
            offset,
            bytes,
        }
    }

    /// The memory of a lease of this core. `None` for an empty lease, which is given back. For one on memory of the
    /// application the caller has checked that a token is left ([`BulkPool::views_available`]).
    #[inline(always)]
    pub(crate) fn of_lease(pool: &mut BulkPool, lease: Lease) -> Option<Self> {
        if lease.is_empty() {
            give_lease(pool, lease);
            return None;
        }
        let is_bulk = pool.owns_lease(&lease);
        if !is_bulk && lease.is_external() {
            let bytes = u32::try_from(lease.len()).unwrap_or(u32::MAX);
            let token = pool.lend(lease);
            debug_assert!(token.is_some(), "they were counted before");
            return Some(Self::new(token?, 0, bytes));
        }
        let (buffer, offset, bytes) = lease.into_buffer()?;
        let mut part = Self::new(buffer, offset, bytes);
        if !is_bulk {
            part.index = NO_INDEX;
        }
        Some(part)
    }

    /// The memory of a piece of a call, as [`BulkPart::of_lease`]. Of a shared piece it is a view, for which the caller has checked the same.
    #[inline(always)]
    pub(crate) fn of_piece(pool: &mut BulkPool, piece: Piece) -> Option<Self> {
        match piece {
            Piece::Own(lease) => Self::of_lease(pool, lease),
            Piece::Shared(lease) => Self::of_shared(pool, lease),
        }
    }

    /// A view of a shared lease. `None` for an empty one.
    pub(crate) fn of_shared(pool: &mut BulkPool, lease: SharedLease) -> Option<Self> {
        if lease.is_empty() {
            return None;
        }
        let view = pool.show(lease);
        debug_assert!(view.is_some(), "they were counted before");
        let view = view?;
        let bytes = view.capacity();
        Some(Self::new(view, 0, bytes))
    }

    /// Moves the piece out with its buffer; `self` keeps its place and counts as away.
    pub(crate) fn take(&mut self) -> Self {
        Self {
            buffer: self.buffer.take(),
            ..*self
        }
    }

    /// Whether a work request has its buffer. Buffers of other pools do not count: nobody waits for them here.
    pub(crate) fn is_away(&self) -> bool {
        self.buffer.is_none() && self.index != NO_INDEX
    }
}

/// The first bytes of a buffer; none while it is away.
pub(crate) fn start_of<'a>(memory: &'a Memory, buffer: Option<&'a Buffer>, bytes: u32) -> &'a [u8] {
    let all = buffer.map_or(&[][..], |it| memory.bytes(it));
    all.get(..bytes as usize).unwrap_or(&[])
}
