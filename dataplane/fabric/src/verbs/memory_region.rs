//! Registered memory.

use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::Arc;

use super::bindings::{self, ibv_access_flags as flag, ibv_mr};
use super::context::DeviceLimits;
use super::errno::{done, failed, made};
use super::leaked;
use super::protection_domain::ProtectionDomain;
use crate::interface::{Access, SetupError};
use crate::memory::{ExternalMemory, Mapping, Origin};

/// Memory that the device may access.
#[derive(Debug)]
pub(crate) struct MemoryRegion {
    raw: NonNull<ibv_mr>,
    local_key: u32,
    domain: Arc<ProtectionDomain>,
    mapping: Arc<Mapping>,
}

// SAFETY: calls that take a memory region may be made from any thread.
unsafe impl Send for MemoryRegion {}
// SAFETY: as above.
unsafe impl Sync for MemoryRegion {}

impl MemoryRegion {
    /// Registers a whole mapping for local work requests, and for windows to be bound to it. Peers have
    /// no access by its key.
    pub(crate) fn new(
        domain: &Arc<ProtectionDomain>,
        mapping: &Arc<Mapping>,
    ) -> Result<Self, SetupError> {
        let access = own_access(domain.context().limits());
        Self::register(domain, mapping, mapping.start(), mapping.bytes(), access)
    }

    /// Registers memory of the application, as [`MemoryRegion::new`].
    pub(crate) fn of_application(
        domain: &Arc<ProtectionDomain>,
        memory: &ExternalMemory,
    ) -> Result<Self, SetupError> {
        let access = own_access(domain.context().limits());
        let mapping = memory.mapping();
        let Origin::DmaBuf(file) = memory.origin() else {
            return Self::register(domain, mapping, mapping.start(), mapping.bytes(), access);
        };
        let device = domain.context().name();
        let bytes = mapping.bytes();
        let refused = |source| SetupError::System {
            doing: format!(
                "the dma-buf of {bytes} bytes could not be registered with `{device}`, whose driver may not support that"
            ),
            source,
        };
        let register = bindings::ibv_reg_dmabuf_mr().map_err(refused)?;
        let access = i32::try_from(access.0).unwrap_or(i32::MAX);
        let start = mapping.start().addr() as u64;
        let file = file.as_raw_fd();
        // SAFETY: the domain and the descriptor are open. The region keeps the mapping, and thereby the memory, as
        // in `register`; the library keeps no descriptor.
        let raw =
            made(|| unsafe { register(domain.raw(), 0, mapping.bytes(), start, file, access) });
        Ok(Self::made(raw.map_err(refused)?, domain, mapping))
    }

    /// Registers `bytes` bytes from `start`, which lie within `mapping`, for one call of a peer. It
    /// replaces a window on a device that has none.
    pub(crate) fn exposed(
        domain: &Arc<ProtectionDomain>,
        mapping: &Arc<Mapping>,
        start: *mut u8,
        bytes: usize,
        access: Access,
    ) -> Result<Self, SetupError> {
        let mut flags = flag::IBV_ACCESS_LOCAL_WRITE;
        if access.remote_read {
            flags |= flag::IBV_ACCESS_REMOTE_READ;
        }
        if access.remote_write {
            flags |= flag::IBV_ACCESS_REMOTE_WRITE;
        }
        Self::register(domain, mapping, start, bytes, flags)
    }

    fn register(
        domain: &Arc<ProtectionDomain>,
        mapping: &Arc<Mapping>,
        start: *mut u8,
        bytes: usize,
        access: flag,
    ) -> Result<Self, SetupError> {
        if domain.is_relaxed()
            && let Ok(register) = bindings::ibv_reg_mr_iova2()
        {
            let relaxed = access | flag::IBV_ACCESS_RELAXED_ORDERING;
            let address = start.addr() as u64;
            // SAFETY: as below.
            let raw =
                made(|| unsafe { register(domain.raw(), start.cast(), bytes, address, relaxed.0) });
            // A driver should ignore the flag that it does not know. One that refuses it is asked without it.
            if let Ok(raw) = raw {
                return Ok(Self::made(raw, domain, mapping));
            }
        }
        let access = i32::try_from(access.0).unwrap_or(i32::MAX);
        // SAFETY: the range lies within the mapping, which this value keeps mapped until the
        // region is given back; the device writes only to what is posted or exposed, for which
        // tokens were moved into the port.
        let raw =
            made(|| unsafe { bindings::ibv_reg_mr(domain.raw(), start.cast(), bytes, access) });
        let raw = raw.map_err(failed(format!(
            "{bytes} bytes could not be registered: is the limit of locked memory \
             (`ulimit -l`) high enough?"
        )))?;
        Ok(Self::made(raw, domain, mapping))
    }

    fn made(raw: NonNull<ibv_mr>, domain: &Arc<ProtectionDomain>, mapping: &Arc<Mapping>) -> Self {
        Self {
            raw,
            // SAFETY: the caller has just made the region.
            local_key: unsafe { raw.as_ref() }.lkey,
            domain: Arc::clone(domain),
            mapping: Arc::clone(mapping),
        }
    }

    /// The key for our work requests.
    #[inline]
    pub(crate) fn local_key(&self) -> u32 {
        self.local_key
    }

    /// The key for a peer.
    pub(crate) fn remote_key(&self) -> u32 {
        // SAFETY: the region is registered as long as `self` lives.
        unsafe { self.raw.as_ref() }.rkey
    }

    pub(crate) fn raw(&self) -> *mut ibv_mr {
        self.raw.as_ptr()
    }

    pub(crate) fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.domain
    }

    pub(crate) fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }
}

/// The access of a whole mapping, which allows nothing to a peer. An RDMA Read on iWARP would need
/// remote writing, so there are no RDMA Reads there ([`DeviceLimits::reads_outstanding`]).
fn own_access(limits: &DeviceLimits) -> flag {
    let mut access = flag::IBV_ACCESS_LOCAL_WRITE;
    if limits.windows > 0 {
        access |= flag::IBV_ACCESS_MW_BIND;
    }
    access
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // SAFETY: from `ibv_reg_mr`, given back only here; windows on it hold the Arc around it.
        leaked(
            "memory region",
            done(unsafe { bindings::ibv_dereg_mr(self.raw()) }),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_peer_has_access_to_a_whole_mapping_on_any_device() {
        let remote = flag::IBV_ACCESS_REMOTE_READ
            | flag::IBV_ACCESS_REMOTE_WRITE
            | flag::IBV_ACCESS_REMOTE_ATOMIC;
        for (windows, iwarp) in [(0, false), (0, true), (64, false), (64, true)] {
            let limits = DeviceLimits {
                windows,
                iwarp,
                ..DeviceLimits::for_tests()
            };
            let access = own_access(&limits).0;
            assert_eq!(access & remote.0, 0, "{limits:?}");
            assert_ne!(access & flag::IBV_ACCESS_LOCAL_WRITE.0, 0);
            let binds = access & flag::IBV_ACCESS_MW_BIND.0 != 0;
            assert_eq!(binds, windows > 0);
        }
    }
}
