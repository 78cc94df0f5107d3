//! Thread domains, and the parent domains that join them to protection domains.
//!
//! The library of a device locks each post, because any thread may post. A queue pair in a thread domain is posted to by
//! one thread at a time, so that some libraries leave the lock out. Of a port only the queue pairs are in its thread domain:
//! after a queue pair is adopted, the owner of the port alone posts to it, changes its state and destroys it. The completion
//! queue and the shared receive queues are used by the manager too, when it destroys a queue pair that was not adopted.

use std::ptr::NonNull;
use std::sync::Arc;

use super::bindings::{self, ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr};
use super::context::Context;
use super::errno::{done, failed, made};
use super::leaked;
use super::protection_domain::ProtectionDomain;
use crate::interface::SetupError;

/// A thread domain of a port.
#[derive(Debug)]
struct ThreadDomain {
    raw: NonNull<ibv_td>,
    /// The device, which must outlive it.
    _context: Arc<Context>,
}

// SAFETY: calls that take a thread domain may be made from any thread.
unsafe impl Send for ThreadDomain {}
// SAFETY: as above.
unsafe impl Sync for ThreadDomain {}

impl ThreadDomain {
    fn new(context: &Arc<Context>) -> Result<Self, SetupError> {
        let mut attributes = ibv_td_init_attr { comp_mask: 0 };
        // SAFETY: an open context, and a whole structure.
        let raw = made(|| unsafe { bindings::ibv_alloc_td(context.raw(), &raw mut attributes) })
            .map_err(failed("the device refused a thread domain"))?;
        Ok(Self {
            raw,
            _context: Arc::clone(context),
        })
    }
}

impl Drop for ThreadDomain {
    fn drop(&mut self) {
        // SAFETY: from `ibv_alloc_td`, given back only here; parent domains hold the Arc around it.
        leaked(
            "thread domain",
            done(unsafe { bindings::ibv_dealloc_td(self.raw.as_ptr()) }),
        );
    }
}

/// A protection domain together with a thread domain.
#[derive(Debug)]
struct ParentDomain {
    raw: NonNull<ibv_pd>,
    thread: Arc<ThreadDomain>,
    /// The protection domain, which must outlive it.
    _protection: Arc<ProtectionDomain>,
}

// SAFETY: calls that take a parent domain may be made from any thread.
unsafe impl Send for ParentDomain {}
// SAFETY: as above.
unsafe impl Sync for ParentDomain {}

impl ParentDomain {
    fn new(
        protection: &Arc<ProtectionDomain>,
        thread: &Arc<ThreadDomain>,
    ) -> Result<Self, SetupError> {
        let mut attributes = ibv_parent_domain_init_attr {
            pd: protection.raw(),
            td: thread.raw.as_ptr(),
            comp_mask: 0,
            alloc: None,
            free: None,
            pd_context: std::ptr::null_mut(),
        };
        let context = protection.context().raw();
        // SAFETY: an open context, and a whole structure with two domains of it that live.
        let raw =
            made(|| unsafe { bindings::ibv_alloc_parent_domain(context, &raw mut attributes) })
                .map_err(failed("the device refused a parent domain"))?;
        Ok(Self {
            raw,
            thread: Arc::clone(thread),
            _protection: Arc::clone(protection),
        })
    }
}

impl Drop for ParentDomain {
    fn drop(&mut self) {
        // SAFETY: from `ibv_alloc_parent_domain`, given back only here; queue pairs hold what has it.
        leaked(
            "parent domain",
            done(unsafe { bindings::ibv_dealloc_pd(self.raw.as_ptr()) }),
        );
    }
}

/// Where queue pairs are made: in a protection domain, or in a parent domain of it.
#[derive(Debug)]
pub(super) struct QueuePairDomain {
    parent: Option<ParentDomain>,
    protection: Arc<ProtectionDomain>,
}

impl QueuePairDomain {
    /// Queue pairs that any thread may post to.
    pub(super) fn new(protection: &Arc<ProtectionDomain>) -> Self {
        Self {
            parent: None,
            protection: Arc::clone(protection),
        }
    }

    /// Queue pairs that one thread at a time posts to, in a new thread domain.
    ///
    /// # Errors
    ///
    /// The device or its library has no thread domains.
    pub(super) fn of_one_thread(protection: &Arc<ProtectionDomain>) -> Result<Self, SetupError> {
        let thread = Arc::new(ThreadDomain::new(protection.context())?);
        Ok(Self {
            parent: Some(ParentDomain::new(protection, &thread)?),
            protection: Arc::clone(protection),
        })
    }

    /// The same thread domain, if there is one, with another protection domain. If the device refuses to join them, any
    /// thread may post to the queue pairs.
    pub(super) fn with(&self, protection: &Arc<ProtectionDomain>) -> Self {
        let parent = self.parent.as_ref();
        // A port may mix the two kinds: it posts to both in the same way.
        let parent = parent.and_then(|it| ParentDomain::new(protection, &it.thread).ok());
        Self {
            parent,
            protection: Arc::clone(protection),
        }
    }

    /// The domain for `ibv_create_qp`, which lives as long as `self`.
    pub(super) fn raw(&self) -> *mut ibv_pd {
        let parent = self.parent.as_ref();
        parent.map_or_else(|| self.protection.raw(), |it| it.raw.as_ptr())
    }

    /// The protection domain, in which everything else is made.
    pub(super) fn protection(&self) -> &Arc<ProtectionDomain> {
        &self.protection
    }
}

#[cfg(all(test, not(loom), not(feature = "rdma-sys")))]
mod tests;
