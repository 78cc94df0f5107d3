//! A fabric with faults.

use std::sync::atomic::{AtomicUsize, Ordering};

use rpcrdma_fabric::clock::Clock;
use rpcrdma_fabric::interface::{ManagerError, SetupError};
use rpcrdma_fabric::memory::Arena;

use super::manager::FaultyManager;
use super::plan::FaultPlan;
use super::port::FaultyPort;
use crate::provider::{PortAndHandle, PortNeed, Provider};

/// A fabric whose ports and connection manager inject the faults of a plan.
/// [`Node::start_with_faults`](crate::Node::start_with_faults) makes it.
#[derive(Debug)]
pub struct FaultyProvider<V> {
    inner: V,
    plan: FaultPlan,
    /// Ports that were made: a node makes those of its cores in order.
    ports: AtomicUsize,
}

impl<V> FaultyProvider<V> {
    pub(crate) fn new(inner: V, plan: FaultPlan) -> Self {
        Self {
            inner,
            plan,
            ports: AtomicUsize::new(0),
        }
    }
}

impl<V: Provider> Provider for FaultyProvider<V> {
    const VOUCHES_FOR_PEERS: bool = V::VOUCHES_FOR_PEERS;

    type Port = FaultyPort<V::Port>;
    type Manager = FaultyManager<V::Manager>;

    fn manager(&self) -> Result<Self::Manager, ManagerError> {
        let inner = self.inner.manager()?;
        Ok(FaultyManager::new(inner, &self.plan))
    }

    fn rails(&self) -> u32 {
        self.inner.rails()
    }

    fn arena(&self, need: &PortNeed) -> Result<Arena, SetupError> {
        self.inner.arena(need)
    }

    fn port_in(
        &self,
        arena: Arena,
        need: &PortNeed,
        clock: &Clock,
    ) -> Result<PortAndHandle<Self>, SetupError> {
        let (inner, handle) = self.inner.port_in(arena, need, clock)?;
        let core = self.ports.fetch_add(1, Ordering::Relaxed);
        Ok((
            FaultyPort::new(inner, &self.plan, core, need, clock),
            handle,
        ))
    }
}
