//! The connection manager of cores with several rails.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::port::{OnRail, Rails, RailsHandle};
use crate::interface::{
    ChoosePort, ConnectionId, Counted, DeviceLevels, ListenerId, Manager, ManagerError,
    ManagerEvent, PortSetup, RejectReason, SetupError,
};

/// A manager whose cores have several rails each. A listener is for all of them.
pub struct RailsManager<M: Manager> {
    inner: M,
    /// The rails of connections whose queue pairs were prepared.
    rails: HashMap<ConnectionId, usize>,
    /// Events of the fabric, emptied after each wait.
    reported: Vec<ManagerEvent<M::Port>>,
}

impl<M: Manager> RailsManager<M> {
    /// The same manager, for cores with several rails.
    pub fn new(inner: M) -> Self {
        Self {
            inner,
            rails: HashMap::new(),
            reported: Vec::new(),
        }
    }

    /// The event for a core with several rails.
    fn of_rails(&mut self, event: ManagerEvent<M::Port>) -> ManagerEvent<Rails<M::Port>> {
        let ended = match &event {
            ManagerEvent::Disconnected { connection, .. } => Some(*connection),
            _ => None,
        };
        let event = event.for_port(|connection, it| {
            // It is known: only a queue pair that was prepared has events.
            let rail = self.rails.get(&connection).copied().unwrap_or(0);
            OnRail { rail, it }
        });
        if let Some(connection) = ended {
            self.rails.remove(&connection);
        }
        event
    }
}

impl<M: ChoosePort> Manager for RailsManager<M> {
    type Port = Rails<M::Port>;
    type PortHandle = RailsHandle<M::PortHandle>;

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
        port: &Self::PortHandle,
        private_data: &[u8],
    ) -> Result<ConnectionId, ManagerError> {
        self.inner.connect_from(address, port.rails(), private_data)
    }

    fn prepare(
        &mut self,
        connection: ConnectionId,
        port: &Self::PortHandle,
    ) -> Result<<Self::Port as PortSetup>::PreparedQueuePair, SetupError> {
        let (rail, it) = self.inner.prepare_for(connection, port.rails())?;
        self.rails.insert(connection, rail);
        Ok(OnRail { rail, it })
    }

    fn accept(
        &mut self,
        connection: ConnectionId,
        private_data: &[u8],
    ) -> Result<(), ManagerError> {
        self.inner.accept(connection, private_data)
    }

    fn reject(&mut self, connection: ConnectionId, reason: RejectReason, private_data: &[u8]) {
        self.rails.remove(&connection);
        self.inner.reject(connection, reason, private_data);
    }

    fn confirm(&mut self, connection: ConnectionId) -> Result<(), ManagerError> {
        self.inner.confirm(connection)
    }

    fn disconnect(&mut self, connection: ConnectionId) {
        self.rails.remove(&connection);
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
        let mut reported = std::mem::take(&mut self.reported);
        let waited = self.inner.wait(timeout, &mut reported);
        events.extend(reported.drain(..).map(|event| self.of_rails(event)));
        self.reported = reported;
        waited
    }

    fn each_counter(&self, each: &mut dyn FnMut(Counted)) {
        self.inner.each_counter(each);
    }

    fn waker(&self) -> Arc<dyn Fn() + Send + Sync> {
        self.inner.waker()
    }
}

impl<M: Manager> std::fmt::Debug for RailsManager<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RailsManager")
            .field("prepared", &self.rails.len())
            .finish_non_exhaustive()
    }
}
