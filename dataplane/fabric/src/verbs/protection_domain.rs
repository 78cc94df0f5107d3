//! Protection domains.

use std::ptr::NonNull;
use std::sync::Arc;

use super::bindings::{self, ibv_pd};
use super::context::Context;
use super::errno::{done, failed, made};
use super::leaked;
use super::memory_region::MemoryRegion;
use crate::interface::SetupError;

/// A protection domain of a port, or of one of its queue pairs. Objects of one domain can be used together, but not with
/// those of another.
#[derive(Debug)]
pub(crate) struct ProtectionDomain {
    raw: NonNull<ibv_pd>,
    context: Arc<Context>,
}

// SAFETY: calls that take a protection domain may be made from any thread.
unsafe impl Send for ProtectionDomain {}
// SAFETY: as above.
unsafe impl Sync for ProtectionDomain {}

impl ProtectionDomain {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self, SetupError> {
        // SAFETY: an open context.
        let raw = made(unsafe { bindings::ibv_alloc_pd(context.raw()) })
            .map_err(failed("the device refused a protection domain"))?;
        Ok(Self {
            raw,
            context: Arc::clone(context),
        })
    }

    pub(crate) fn raw(&self) -> *mut ibv_pd {
        self.raw.as_ptr()
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: from `ibv_alloc_pd`, given back only here; everything made in it holds the Arc
        // around it, and so is gone.
        leaked(
            "protection domain",
            done(unsafe { bindings::ibv_dealloc_pd(self.raw()) }),
        );
    }
}

/// The protection domain of one queue pair: the registrations of the port's memory in it, for the queue pair's work
/// requests. Memory exposed to its peer is registered there too, so its keys are useless to other peers.
#[derive(Debug)]
pub(super) struct OwnDomain {
    /// The memory for messages, sent and received.
    pub(super) arena: Arc<MemoryRegion>,
    /// The memory for copied Sends.
    pub(super) staging: MemoryRegion,
}

/// The keys of the port's memory for the work requests of a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LocalKeys {
    pub(super) arena: u32,
    pub(super) staging: u32,
}

impl OwnDomain {
    pub(super) fn local_keys(&self) -> LocalKeys {
        LocalKeys {
            arena: self.arena.local_key(),
            staging: self.staging.local_key(),
        }
    }
}
