//! A connection manager with faults.

use std::sync::Arc;
use std::time::Duration;

use rpcrdma_fabric::interface::{
    ConnectionId, Counted, DeviceLevels, ListenerId, Manager, ManagerError, ManagerEvent,
    PortSetup, RejectReason, SetupError,
};

use super::draws::Draws;
use super::fault::FaultKind;
use super::plan::FaultPlan;
use super::port::FaultyPort;

/// The connection manager of a [`FaultyProvider`](crate::FaultyProvider): it rejects connects.
pub struct FaultyManager<M: Manager> {
    inner: M,
    refuse: Draws,
    /// Events of the fabric, emptied after each wait.
    told: Vec<ManagerEvent<M::Port>>,
}

impl<M: Manager> FaultyManager<M> {
    pub(super) fn new(inner: M, plan: &FaultPlan) -> Self {
        Self {
            inner,
            refuse: Draws::new(plan, FaultKind::RefuseConnect, 0),
            told: Vec::new(),
        }
    }
}

impl<M: Manager> Manager for FaultyManager<M> {
    type Port = FaultyPort<M::Port>;
    type PortHandle = M::PortHandle;

    fn listen(&mut self, address: &str) -> Result<ListenerId, ManagerError> {
        self.inner.listen(address)
    }

    fn listener_address(&self, listener: ListenerId) -> Option<String> {
        self.inner.listener_address(listener)
    }

    fn close_listener(&mut self, listener: ListenerId) {
        self.inner.close_listener(listener);
    }

    fn connect(
        &mut self,
        address: &str,
        port: &M::PortHandle,
        private_data: &[u8],
    ) -> Result<ConnectionId, ManagerError> {
        self.inner.connect(address, port, private_data)
    }

    fn prepare(
        &mut self,
        connection: ConnectionId,
        port: &M::PortHandle,
    ) -> Result<<M::Port as PortSetup>::PreparedQueuePair, SetupError> {
        self.inner.prepare(connection, port)
    }

    fn accept(
        &mut self,
        connection: ConnectionId,
        private_data: &[u8],
    ) -> Result<(), ManagerError> {
        self.inner.accept(connection, private_data)
    }

    fn reject(&mut self, connection: ConnectionId, reason: RejectReason, private_data: &[u8]) {
        self.inner.reject(connection, reason, private_data);
    }

    fn confirm(&mut self, connection: ConnectionId) -> Result<(), ManagerError> {
        self.inner.confirm(connection)
    }

    fn disconnect(&mut self, connection: ConnectionId) {
        self.inner.disconnect(connection);
    }

    fn leads_elsewhere(&self, connection: ConnectionId, address: &str) -> bool {
        self.inner.leads_elsewhere(connection, address)
    }

    fn devices(&self) -> Vec<DeviceLevels> {
        self.inner.devices()
    }

    fn cut_connections(&mut self) -> Vec<ConnectionId> {
        self.inner.cut_connections()
    }

    fn abandon(&mut self, connection: ConnectionId) {
        self.inner.abandon(connection);
    }

    fn wait(
        &mut self,
        timeout: Duration,
        events: &mut Vec<ManagerEvent<Self::Port>>,
    ) -> Result<(), ManagerError> {
        let waited = self.inner.wait(timeout, &mut self.told);
        for event in self.told.drain(..) {
            match event {
                ManagerEvent::ConnectRequest { connection, .. }
                    if self.refuse.strike().is_some() =>
                {
                    let reason = RejectReason::ConnectionsExhausted;
                    self.inner.reject(connection, reason, &[]);
                }
                // A faulty port has the port events of its fabric.
                event => events.push(event.for_port(|_, port_event| port_event)),
            }
        }
        waited
    }

    fn each_counter(&self, each: &mut dyn FnMut(Counted)) {
        self.inner.each_counter(each);
    }

    fn waker(&self) -> Arc<dyn Fn() + Send + Sync> {
        self.inner.waker()
    }
}
