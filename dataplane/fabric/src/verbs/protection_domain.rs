//! Protection domains.

use std::ptr::NonNull;
use std::sync::Arc;

use super::bindings::{self, ibv_pd};
use super::context::Context;
use super::errno::{done, failed, made};
use super::leaked;
use crate::interface::SetupError;

/// A protection domain of a port, or of one of its queue pairs. Objects of one domain can be used together, but not with
/// those of another.
#[derive(Debug)]
pub(crate) struct ProtectionDomain {
    raw: NonNull<ibv_pd>,
    context: Arc<Context>,
    is_relaxed: bool,
}

// SAFETY: calls that take a protection domain may be made from any thread.
unsafe impl Send for ProtectionDomain {}
// SAFETY: as above.
unsafe impl Sync for ProtectionDomain {}

impl ProtectionDomain {
    /// A domain. If `is_relaxed`, the device may write to its regions in any order.
    pub(crate) fn new(context: &Arc<Context>, is_relaxed: bool) -> Result<Self, SetupError> {
        // SAFETY: an open context.
        let raw = made(|| unsafe { bindings::ibv_alloc_pd(context.raw()) })
            .map_err(failed("the device refused a protection domain"))?;
        Ok(Self {
            raw,
            context: Arc::clone(context),
            is_relaxed,
        })
    }

    pub(crate) fn raw(&self) -> *mut ibv_pd {
        self.raw.as_ptr()
    }

    /// Whether the device may write to its regions in any order.
    pub(crate) fn is_relaxed(&self) -> bool {
        self.is_relaxed
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
