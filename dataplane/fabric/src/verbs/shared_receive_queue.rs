//! Shared receive queues.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use super::bindings::{
    self, ibv_recv_wr, ibv_srq, ibv_srq_attr, ibv_srq_attr_mask, ibv_srq_init_attr,
};
use super::errno::{done, failed, made};
use super::leaked;
use super::protection_domain::ProtectionDomain;
use crate::interface::SetupError;

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct SharedReceiveQueue {
    raw: NonNull<ibv_srq>,
    _domain: Arc<ProtectionDomain>,
}

// SAFETY: calls that take a shared receive queue may be made from any thread; the library locks.
unsafe impl Send for SharedReceiveQueue {}
// SAFETY: as above.
unsafe impl Sync for SharedReceiveQueue {}

impl SharedReceiveQueue {
    /// A queue of `depth` Receives of at most `segments` segments. Events about it carry `port`.
    pub(crate) fn new(
        domain: &Arc<ProtectionDomain>,
        depth: u32,
        segments: u32,
        port: usize,
    ) -> Result<Self, SetupError> {
        let mut attributes = ibv_srq_init_attr {
            srq_context: std::ptr::without_provenance_mut(port),
            attr: ibv_srq_attr {
                max_wr: depth,
                max_sge: segments,
                srq_limit: 0,
            },
        };
        // SAFETY: a protection domain that lives, and a whole structure; the mark is a number.
        let raw = made(|| unsafe { bindings::ibv_create_srq(domain.raw(), &raw mut attributes) });
        let raw = raw.map_err(failed(format!(
            "the device refused a shared receive queue of {depth} Receives with {segments} segments"
        )))?;
        Ok(Self {
            raw,
            _domain: Arc::clone(domain),
        })
    }

    pub(crate) fn raw(&self) -> *mut ibv_srq {
        self.raw.as_ptr()
    }

    /// Requests one event, which the device raises when fewer than `limit` Receives are posted.
    pub(crate) fn arm(&self, limit: u32) -> io::Result<()> {
        let mut attributes = ibv_srq_attr {
            max_wr: 0,
            max_sge: 0,
            srq_limit: limit,
        };
        let mask = i32::try_from(ibv_srq_attr_mask::IBV_SRQ_LIMIT.0).unwrap_or(0);
        // SAFETY: a queue that lives, and a whole structure.
        done(unsafe { bindings::ibv_modify_srq(self.raw(), &raw mut attributes, mask) })
    }

    /// Posts a chain of Receives with one doorbell. The error is the first Receive that was not posted.
    ///
    /// # Safety
    ///
    /// `first` begins a chain of work requests that ends with null and whose segments lie in
    /// registered memory that nobody else touches until the Receives complete.
    #[inline]
    pub(crate) unsafe fn post(&self, first: *mut ibv_recv_wr) -> Result<(), *mut ibv_recv_wr> {
        let mut bad = std::ptr::null_mut();
        // SAFETY: as the caller promises; the library copies the chain before it returns.
        let returned = unsafe { bindings::ibv_post_srq_recv(self.raw(), first, &raw mut bad) };
        if returned == 0 { Ok(()) } else { Err(bad) }
    }
}

impl Drop for SharedReceiveQueue {
    fn drop(&mut self) {
        // SAFETY: from `ibv_create_srq`, given back only here; queue pairs hold the Arc around it.
        leaked(
            "shared receive queue",
            done(unsafe { bindings::ibv_destroy_srq(self.raw()) }),
        );
    }
}
