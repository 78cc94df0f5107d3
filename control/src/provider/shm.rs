//! The embedded fabric as a provider.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rpcrdma_fabric::clock::Clock;
use rpcrdma_fabric::interface::{ManagerError, SetupError};
use rpcrdma_fabric::memory::{Arena, ArenaOptions};
use rpcrdma_fabric::shm;

use super::{PortNeed, Provider};

/// Numbers the shm ports of this process over all its nodes: peers distinguish cores by it.
static NEXT_PORT: AtomicU32 = AtomicU32::new(0);

/// The embedded fabric: processes and threads of one machine.
#[derive(Clone, Debug)]
pub struct ShmProvider {
    /// Bytes of the ring of one channel; a power of two.
    pub channel_ring_bytes: u32,
    /// Bytes of a Send up to which the payload goes through the ring.
    pub inline_bytes_max: u32,
    /// Bytes that one poll copies at most.
    pub copy_bytes_per_poll: u32,
    /// Channels that every poll looks at.
    pub hot_channels_max: u32,
    /// One cold channel is swept every so many polls.
    pub cold_sweep_polls: u32,
    /// The time that a peer has for its part of a connect.
    pub handshake_timeout: Duration,
    /// Bytes of the registered memory of one core of a peer that are mapped at most.
    pub peer_arena_bytes_max: u64,
    /// Bytes that are mapped at most of all peers together.
    pub peer_memory_bytes_max: u64,
    /// Give each connection its own receive queue, as on devices without shared ones.
    pub own_receive_queues: bool,
    /// One-way delay of every delivery, to simulate distance on one machine; at most 10 s.
    pub delay: Duration,
}

impl Default for ShmProvider {
    fn default() -> Self {
        let manager = shm::ManagerOptions::default();
        Self {
            channel_ring_bytes: 32 * 1024,
            inline_bytes_max: 1024,
            copy_bytes_per_poll: 260 * 1024,
            hot_channels_max: 8,
            cold_sweep_polls: 16,
            handshake_timeout: manager.handshake_timeout,
            peer_arena_bytes_max: manager.peer_arena_bytes_max,
            peer_memory_bytes_max: manager.peer_memory_bytes_max,
            own_receive_queues: false,
            delay: Duration::ZERO,
        }
    }
}

impl Provider for ShmProvider {
    /// Each end asks the kernel whether the peer belongs to the same user.
    const VOUCHES_FOR_PEERS: bool = true;

    type Port = shm::Port;
    type Manager = shm::Manager;

    fn manager(&self) -> Result<shm::Manager, ManagerError> {
        shm::Manager::with_options(shm::ManagerOptions {
            handshake_timeout: self.handshake_timeout,
            peer_arena_bytes_max: self.peer_arena_bytes_max,
            peer_memory_bytes_max: self.peer_memory_bytes_max,
            ..shm::ManagerOptions::default()
        })
    }

    fn arena(&self, need: &PortNeed) -> Result<Arena, SetupError> {
        let options = ArenaOptions {
            bytes: need.arena_bytes.saturating_sub(need.untouched_bytes),
            huge_pages: need.huge_pages,
        };
        let untouched = need.untouched_bytes;
        let mut arena = Arena::shared_with_untouched(&options, need.huge_page_size, untouched)?;
        need.attach_to(&mut arena)?;
        Ok(arena)
    }

    fn port_in(
        &self,
        arena: Arena,
        need: &PortNeed,
        clock: &Clock,
    ) -> Result<(shm::Port, shm::PortHandle), SetupError> {
        let number = NEXT_PORT.fetch_add(1, Ordering::Relaxed);
        let usual = shm::PortConfig::new(number, arena, clock.clone());
        let config = shm::PortConfig {
            channel_ring_bytes: self.channel_ring_bytes,
            inline_bytes_max: self.inline_bytes_max,
            copy_bytes_per_poll: self.copy_bytes_per_poll,
            hot_channels_max: self.hot_channels_max,
            cold_sweep_polls: self.cold_sweep_polls,
            queue_pairs_max: need.queue_pairs_max,
            windows_max: need.windows_max,
            own_receive_queues: self.own_receive_queues,
            delay: self.delay,
            work_requests_max: need.work_requests().max(usual.work_requests_max),
            ..usual
        };
        shm::Port::new(config)
    }
}
