//! A piece of an item of a call, until the core takes it.

use std::ops::Deref;

use rpcrdma_fabric::memory::{Lease, Memory, SharedLease};

/// A piece of an item of a call.
#[derive(Debug)]
pub(crate) enum Piece {
    /// The caller hands it to the core.
    Own(Lease),
    /// The caller keeps a share of it, and may send it again.
    Shared(SharedLease),
}

impl Piece {
    /// Whether this core cannot send it from where it is.
    pub(crate) fn is_foreign(&self, memory: &Memory) -> bool {
        match self {
            Self::Own(lease) => is_foreign(lease, memory),
            Self::Shared(lease) => !lease.is_of(memory),
        }
    }

    /// Whether the core sends it by a view.
    pub(crate) fn needs_view(&self) -> bool {
        match self {
            Self::Own(lease) => lease.is_external(),
            Self::Shared(_) => true,
        }
    }
}

/// Whether this core cannot use a lease that it is to own. Its buffer is used from the start.
pub(crate) fn is_foreign(lease: &Lease, memory: &Memory) -> bool {
    !lease.is_of(memory) || (lease.offset() != 0 && !lease.is_external())
}

impl Deref for Piece {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Own(lease) => lease,
            Self::Shared(lease) => lease,
        }
    }
}
