//! What a fabric has to implement for a [`Node`](crate::Node).

mod rails;
mod shm;
mod verbs;

use rpcrdma_fabric::clock::Clock;
use rpcrdma_fabric::interface::{Manager, ManagerError, Port, SetupError};
use rpcrdma_fabric::memory::{Arena, ExternalMemory, HugePageSize, HugePages};

pub use self::rails::RailsProvider;
pub use self::shm::ShmProvider;
pub use self::verbs::VerbsProvider;

/// What one core needs of its port.
#[derive(Clone, Debug)]
pub struct PortNeed {
    /// Bytes of registered memory.
    pub arena_bytes: u64,
    /// The part of `arena_bytes` that takes no memory before it is written: see
    /// [`carve_untouched`](rpcrdma_fabric::interface::PortSetup::carve_untouched).
    pub untouched_bytes: u64,
    /// Hugepages or not.
    pub huge_pages: HugePages,
    /// Their size.
    pub huge_page_size: HugePageSize,
    /// Queue pairs; one for each connection.
    pub queue_pairs_max: u32,
    /// Receives posted at a time.
    pub receives_max: u32,
    /// Sends in flight at a time, over all connections.
    pub sends_max: u32,
    /// Memory windows bound at a time, if the device has windows.
    pub windows_max: u32,
    /// Cores of the node, which share what the device has of windows.
    pub cores: u32,
    /// Memory of the application to use as the core's own.
    pub external: Vec<ExternalMemory>,
}

impl PortNeed {
    /// Attaches the application's memory to the arena of a port.
    pub(crate) fn attach_to(&self, arena: &mut Arena) -> Result<(), SetupError> {
        let mut external = self.external.iter();
        external.try_for_each(|external| arena.attach(external))
    }

    /// Work requests of a port.
    pub(crate) fn work_requests(&self) -> u32 {
        // A busy queue pair needs several. With many queue pairs, most are idle at a time and need fewer.
        const PER_QUEUE_PAIR: u32 = 4;
        const LEAST_PER_QUEUE_PAIR: u32 = 2;
        const BUSY_QUEUE_PAIRS: u32 = 1024;
        let busy = self.queue_pairs_max.min(BUSY_QUEUE_PAIRS);
        LEAST_PER_QUEUE_PAIR
            .saturating_mul(self.queue_pairs_max - busy)
            .saturating_add(PER_QUEUE_PAIR * busy)
            .max(self.sends_max.saturating_mul(2))
            // Three for each window: bind, read or write, invalidate.
            .max(self.windows_max.saturating_mul(3))
    }
}

/// A port of a provider, and what its manager needs to know of the port.
pub type PortAndHandle<V> = (
    <V as Provider>::Port,
    <<V as Provider>::Manager as Manager>::PortHandle,
);

/// Makes the ports and the connection manager of one fabric.
pub trait Provider: Send + Sync + 'static {
    /// Whether the fabric itself checks that a peer may connect. If so, a listener may accept every peer that the
    /// fabric admits.
    const VOUCHES_FOR_PEERS: bool;

    /// A core's view of the device.
    type Port: Port;
    /// The connection manager.
    type Manager: Manager<Port = Self::Port>;

    /// Makes the connection manager. Called once, by the control thread's owner.
    fn manager(&self) -> Result<Self::Manager, ManagerError>;

    /// How many devices each port joins ([`rpcrdma_fabric::rails`]).
    fn rails(&self) -> u32 {
        1
    }

    /// The memory of a port. Called on the thread that will own it, so that it is first touched there and lies on that core's
    /// NUMA node.
    fn arena(&self, need: &PortNeed) -> Result<Arena, SetupError>;

    /// Makes a port with this memory, on the same thread.
    fn port_in(
        &self,
        arena: Arena,
        need: &PortNeed,
        clock: &Clock,
    ) -> Result<PortAndHandle<Self>, SetupError>;

    /// Makes a port with its memory, on the thread that will own it.
    fn port(&self, need: &PortNeed, clock: &Clock) -> Result<PortAndHandle<Self>, SetupError> {
        self.port_in(self.arena(need)?, need, clock)
    }
}
