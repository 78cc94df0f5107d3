//! RDMA devices as a provider.

use rpcrdma_fabric::clock::Clock;
use rpcrdma_fabric::interface::{ManagerError, SetupError};
use rpcrdma_fabric::memory::{Arena, ArenaOptions};
use rpcrdma_fabric::verbs;

use super::{PortNeed, Provider};

/// An RDMA device. All cores of a node share it; each has its own protection domain, completion queue and shared
/// receive queue.
///
/// On kernels before 5.12, spawn child processes before the node is started: `docs/verbs.md` explains why.
#[derive(Clone, Debug)]
pub struct VerbsProvider {
    /// The device's name; `None` for the first that has an active port. Peers must be reached
    /// through it: [`rpcrdma_fabric::verbs::device_towards`] finds the one for an address.
    pub device: Option<String>,
    /// How connections are made.
    pub manager: verbs::ManagerOptions,
    /// RDMA Reads outstanding on one connection, each way.
    pub read_depth_max: u8,
    /// Bytes of a Send up to which the payload is copied, which frees its buffer immediately.
    pub inline_bytes_max: u32,
    /// Bytes of a Send up to which the device is asked to take it from the work request.
    pub device_inline_bytes_max: u32,
    /// Segments of a Send's gather list.
    pub send_segments_max: u32,
    /// Segments of a Receive's scatter list.
    pub receive_segments_max: u32,
    /// Work requests that one queue pair has outstanding at most; what does not fit waits in the
    /// engine.
    pub send_queue_depth_max: u32,
    /// How explicit RDMA works on a device without memory windows.
    pub without_windows: verbs::WithoutWindows,
    /// Let the device write incoming data in any order.
    pub relaxed_ordering: bool,
    /// Put the queue pairs of each core in a thread domain, where the device has such.
    pub thread_domain: bool,
    /// Give each connection its own receive queue, even if the device has shared ones.
    pub own_receive_queues: bool,
}

impl Default for VerbsProvider {
    fn default() -> Self {
        Self {
            device: None,
            manager: verbs::ManagerOptions::default(),
            read_depth_max: 16,
            inline_bytes_max: 1024,
            device_inline_bytes_max: 64,
            send_segments_max: 4,
            receive_segments_max: 2,
            send_queue_depth_max: 256,
            without_windows: verbs::WithoutWindows::Refuse,
            relaxed_ordering: true,
            thread_domain: false,
            own_receive_queues: false,
        }
    }
}

impl Provider for VerbsProvider {
    /// Any host that reaches the device may connect.
    const VOUCHES_FOR_PEERS: bool = false;

    type Port = verbs::Port;
    type Manager = verbs::Manager;

    fn manager(&self) -> Result<verbs::Manager, ManagerError> {
        verbs::Manager::with_options(self.manager)
    }

    fn arena(&self, need: &PortNeed) -> Result<Arena, SetupError> {
        // Private memory: the device accesses it by physical address, and peers do not map it as on shm.
        let options = ArenaOptions {
            bytes: need.arena_bytes,
            huge_pages: need.huge_pages,
        };
        let mut arena = Arena::private_in(&options, need.huge_page_size)?;
        need.attach_to(&mut arena)?;
        Ok(arena)
    }

    fn port_in(
        &self,
        arena: Arena,
        need: &PortNeed,
        clock: &Clock,
    ) -> Result<(verbs::Port, verbs::PortHandle), SetupError> {
        let work_requests = need.work_requests().max(self.send_queue_depth_max);
        verbs::Port::new(verbs::PortConfig {
            device: self.device.clone(),
            queue_pairs_max: need.queue_pairs_max,
            receives_max: need.receives_max,
            receive_segments_max: self.receive_segments_max,
            work_requests_max: work_requests,
            send_queue_depth_max: self.send_queue_depth_max,
            without_windows: self.without_windows,
            relaxed_ordering: self.relaxed_ordering,
            thread_domain: self.thread_domain,
            send_segments_max: self.send_segments_max,
            inline_bytes_max: self.inline_bytes_max,
            device_inline_bytes_max: self.device_inline_bytes_max,
            own_receive_queues: self.own_receive_queues,
            responder_resources: self.read_depth_max,
            initiator_depth: self.read_depth_max,
            windows_max: need.windows_max,
            ports: need.cores,
            ..verbs::PortConfig::new(arena, clock.clone())
        })
    }
}
