//! A server's steps, and the steps that both ends share.

use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use super::client::{check_private_data, system, wrong_order};
use super::connection::{Connection, Prepared, Side, depths_of, number_of};
use super::drive;
use super::machine::Stage;
use super::negotiate::QueuePairFacts;
use super::{Listener, Manager};
use crate::interface::{
    ConnectionId, ListenerId, ManagerError, ManagerEvent, RejectReason, SetupError,
};
use crate::verbs::cm::address::{self, Target};
use crate::verbs::cm::event::Parameters;
use crate::verbs::cm::id::Id;
use crate::verbs::cm::private_data;
use crate::verbs::queue_pair::QueuePair;
use crate::verbs::{PortEvent, PortHandle, PreparedQueuePair};

fn gone() -> SetupError {
    SetupError::Peer {
        what: "connection is gone".to_owned(),
    }
}

impl Manager {
    pub(super) fn start_listening(&mut self, address: &str) -> Result<ListenerId, ManagerError> {
        let target = Target::parse(address)?;
        let bad = |error: io::Error| ManagerError::BadAddress {
            address: address.to_owned(),
            why: error.to_string(),
        };
        let local = target.resolve().map_err(bad)?;
        let Some(local) = local.first() else {
            return Err(bad(io::ErrorKind::NotFound.into()));
        };
        let number = self.new_number();
        let listening = || -> io::Result<Id> {
            let mut id = Id::create(&self.channel, number)?;
            if let Some(value) = self.options.type_of_service {
                id.set_type_of_service(value)?;
            }
            id.bind(*local)?;
            id.listen()?;
            Ok(id)
        };
        let id = listening().map_err(|error| {
            let taken = error.raw_os_error() == Some(libc::EADDRNOTAVAIL)
                && local.port() != 0
                && self.is_ours(*local);
            if taken {
                return listen_error(address, io::Error::from_raw_os_error(libc::EADDRINUSE));
            }
            listen_error(address, error)
        })?;
        self.listeners.insert(number, Listener { id });
        Ok(ListenerId(number))
    }

    /// Whether a device here has the address. RDMA-CM gives the same error for an address that no
    /// device has and, where one of two listeners is on a wildcard, for a port that is in use. So
    /// this tries the address with port 0.
    fn is_ours(&self, mut address: SocketAddr) -> bool {
        address.set_port(0);
        Id::create(&self.channel, 0)
            .and_then(|mut id| id.bind(address))
            .is_ok()
    }

    pub(super) fn address_of(&self, listener: ListenerId) -> Option<String> {
        let local = self.listeners.get(&listener.0)?.id.local_address()?;
        Some(address::display(local))
    }

    /// Handles a connection request of a peer.
    pub(super) fn on_request(&mut self, listener: u64, mut id: Id, peer: Parameters) {
        if !self.listeners.contains_key(&listener) {
            // Dropping the identifier rejects the request.
            return;
        }
        self.counters.requests += 1;
        let number = self.new_number();
        id.set_number(number);
        self.ready.push(ManagerEvent::ConnectRequest {
            connection: ConnectionId(number),
            listener: ListenerId(listener),
            peer: self.peer(id.peer_address()),
            private_data: peer.private_data.clone(),
        });
        let connection = Connection {
            side: Side::Server,
            stage: Stage::Requested,
            id: Some(id),
            queue_pair: None,
            early: Vec::new(),
            peer,
            prepared: None,
            timer: None,
            disconnects_late: false,
        };
        self.connections.insert(number, connection);
    }

    /// A connection that the application has not ended.
    pub(super) fn open(&mut self, number: u64) -> Result<&mut Connection, ManagerError> {
        self.connections
            .get_mut(&number)
            .filter(|connection| connection.stage != Stage::Closing)
            .ok_or(ManagerError::UnknownConnection)
    }

    pub(super) fn prepare_queue_pair(
        &mut self,
        number: u64,
        port: &PortHandle,
    ) -> Result<PreparedQueuePair, SetupError> {
        self.know(port).map_err(|source| SetupError::System {
            doing: "watching the device of a port".to_owned(),
            source,
        })?;
        let options = self.options;
        let connection = self.connections.get_mut(&number).ok_or_else(gone)?;
        let next = connection.stage.prepared().ok_or_else(gone)?;
        let id = connection.id.as_mut().ok_or_else(gone)?;
        if id.context() != port.context().raw() {
            return Err(SetupError::Peer {
                what: format!(
                    "request arrived on the device `{}`, but this core polls `{}`",
                    id.device_name().unwrap_or_else(|| "none".to_owned()),
                    port.context().name()
                ),
            });
        }
        let depths = depths_of(port).agreed(&connection.peer);
        let queue_pair = match connection.queue_pair.take() {
            Some(queue_pair) => queue_pair,
            None => {
                let queue_pair = QueuePair::create(port)?;
                drive::to_init(id, &queue_pair)?;
                queue_pair
            }
        };
        // On iWARP the kernel changes these states when the connection is established.
        if !port.context().limits().iwarp {
            drive::to_ready(id, &queue_pair, depths, &options)?;
        }
        connection.prepared = Some(Prepared {
            port: number_of(port),
            queue_pair: queue_pair.id(),
            facts: QueuePairFacts::of(&queue_pair),
            depths,
        });
        let established = matches!(connection.side, Side::Client(_));
        connection.stage = next;
        self.by_queue_pair
            .insert((number_of(port), queue_pair.id()), number);
        Ok(PreparedQueuePair {
            queue_pair,
            initiator_depth: depths.initiator_depth,
            established,
        })
    }

    pub(super) fn send_reply(
        &mut self,
        number: u64,
        private_data: &[u8],
    ) -> Result<(), ManagerError> {
        check_private_data(private_data, private_data::REPLY_BYTES_MAX)?;
        let options = self.options;
        let connection = self.open(number)?;
        let (Stage::ServerPrepared, Some(prepared), Some(id)) =
            (connection.stage, connection.prepared, &mut connection.id)
        else {
            return Err(wrong_order("accepting a connection"));
        };
        let parameters = prepared
            .facts
            .parameters(prepared.depths, &options, private_data);
        id.accept(parameters)
            .map_err(|error| system("accepting a connection", error))?;
        connection.stage = Stage::Accepted;
        self.set_timer(number, Some(Instant::now() + options.handshake_timeout));
        Ok(())
    }

    pub(super) fn send_reject(&mut self, number: u64, reason: RejectReason, private_data: &[u8]) {
        let Ok(connection) = self.open(number) else {
            return;
        };
        if let (Stage::Requested | Stage::ServerPrepared, Some(id)) =
            (connection.stage, &mut connection.id)
        {
            // If this fails, destroying the identifier rejects without a reason.
            let _ = id.reject(&private_data::rejection(reason, private_data));
            self.remove(number);
        }
    }

    /// Ends a connection for the application.
    pub(super) fn close(&mut self, number: u64) {
        let Ok(connection) = self.open(number) else {
            return;
        };
        if !connection.disconnect() {
            // Destroying the identifier withdraws our request, or rejects the peer's.
            self.remove(number);
            return;
        }
        connection.stage = Stage::Closing;
        if let Some(prepared) = connection.prepared.take() {
            self.by_queue_pair
                .remove(&(prepared.port, prepared.queue_pair));
        }
        let deadline = Instant::now() + self.options.handshake_timeout;
        self.set_timer(number, Some(deadline));
    }

    /// Removes a connection that the peer or the fabric has ended, and queues `Disconnected`.
    pub(super) fn lose(&mut self, number: u64) {
        let Some(mut connection) = self.remove(number) else {
            return;
        };
        self.counters.disconnected += 1;
        if let (true, Some(id)) = (connection.stage.peer_answers_the_end(), &mut connection.id) {
            // Answers the peer's disconnect, so that the peer does not repeat it. This fails when the
            // peer waits for no answer.
            let _ = id.disconnect();
        }
        self.ready.push(ManagerEvent::Disconnected {
            connection: ConnectionId(number),
            port_event: connection
                .prepared
                .map(|prepared| PortEvent::PeerGone(prepared.queue_pair)),
        });
    }

    /// Removes a connection. Dropping it destroys its identifier and its queue pair.
    pub(super) fn remove(&mut self, number: u64) -> Option<Connection> {
        self.set_timer(number, None);
        let mut connection = self.connections.remove(&number)?;
        if connection.is_held_by_a_connect() {
            connection.let_go();
        }
        if let Some(prepared) = connection.prepared {
            self.by_queue_pair
                .remove(&(prepared.port, prepared.queue_pair));
        }
        Some(connection)
    }
}

pub(super) fn listen_error(address: &str, error: io::Error) -> ManagerError {
    let bad = |why: &str| ManagerError::BadAddress {
        address: address.to_owned(),
        why: why.to_owned(),
    };
    match error.raw_os_error() {
        Some(libc::EADDRINUSE) => ManagerError::InUse {
            address: address.to_owned(),
        },
        Some(libc::EADDRNOTAVAIL | libc::ENODEV) => bad(
            "no RDMA device of this host has that address; `rdma link` and `ip address` show what there is",
        ),
        Some(libc::EACCES) => bad("ports below 1024 need the capability CAP_NET_BIND_SERVICE"),
        _ => system(format!("listening on `{address}`"), error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn why_nobody_can_listen_is_said() {
        for (errno, word) in [
            (libc::EADDRINUSE, "another process listens"),
            (libc::EADDRNOTAVAIL, "rdma link"),
            (libc::ENODEV, "rdma link"),
            (libc::EACCES, "CAP_NET_BIND_SERVICE"),
            (libc::ENOMEM, "listening on"),
        ] {
            let error = listen_error("rdma:a:1", io::Error::from_raw_os_error(errno)).to_string();
            assert!(
                error.contains("rdma:a:1") && error.contains(word),
                "{error}"
            );
        }
    }
}
