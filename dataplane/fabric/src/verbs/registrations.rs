//! The registrations of a port's memory: in the protection domain of the port, or in that of one queue pair.

use std::sync::Arc;

use super::memory_region::MemoryRegion;
use super::protection_domain::ProtectionDomain;
use super::thread_domain::QueuePairDomain;
use crate::interface::SetupError;
use crate::memory::{Buffer, ExternalMemory, Mapping};

/// The memory of the application, registered in one domain, each with its unique number.
#[derive(Debug)]
pub(super) struct ExternalRegions(Box<[(u32, Arc<MemoryRegion>)]>);

impl ExternalRegions {
    pub(super) fn new(
        domain: &Arc<ProtectionDomain>,
        external: &[ExternalMemory],
    ) -> Result<Self, SetupError> {
        let regions = external.iter().map(|memory| {
            let region = MemoryRegion::of_application(domain, memory)?;
            Ok((memory.number(), Arc::new(region)))
        });
        Ok(Self(regions.collect::<Result<_, _>>()?))
    }

    /// The registration of the memory that has `buffer`, which is not in the arena.
    #[cold]
    pub(super) fn of(&self, buffer: &Buffer) -> Option<&Arc<MemoryRegion>> {
        let mut all = self.0.iter();
        let found = all.find(|(number, _)| *number == buffer.arena());
        found.map(|(_, region)| region)
    }
}

/// The memory of a port, to be registered in further domains.
#[derive(Debug)]
pub(super) struct PortMemory {
    /// For messages, sent and received.
    pub(super) arena: Arc<Mapping>,
    /// For copied Sends.
    pub(super) staging: Arc<Mapping>,
    /// That of the application.
    pub(super) external: Box<[ExternalMemory]>,
}

/// The protection domain of one queue pair: the registrations of the port's memory in it, for the queue pair's work
/// requests. Memory exposed to its peer is registered there too, so its keys are useless to other peers.
#[derive(Debug)]
pub(super) struct OwnDomain {
    /// The memory for messages, sent and received.
    pub(super) arena: Arc<MemoryRegion>,
    /// The memory for copied Sends.
    staging: MemoryRegion,
    /// The memory of the application.
    pub(super) external: ExternalRegions,
    /// Where the queue pair is made.
    pub(super) queue_pair_domain: QueuePairDomain,
}

/// The keys of the port's memory for the work requests of a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LocalKeys {
    pub(super) arena: u32,
    pub(super) staging: u32,
}

impl OwnDomain {
    pub(super) fn new(
        queue_pair_domain: QueuePairDomain,
        memory: &PortMemory,
    ) -> Result<Self, SetupError> {
        let domain = queue_pair_domain.protection();
        Ok(Self {
            arena: Arc::new(MemoryRegion::new(domain, &memory.arena)?),
            staging: MemoryRegion::new(domain, &memory.staging)?,
            external: ExternalRegions::new(domain, &memory.external)?,
            queue_pair_domain,
        })
    }

    pub(super) fn local_keys(&self) -> LocalKeys {
        LocalKeys {
            arena: self.arena.local_key(),
            staging: self.staging.local_key(),
        }
    }
}
