//! A server's steps, and the steps that both ends share.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::client::{check_private_data, port_of, system, wrong_order};
use super::connection::{Connection, Prepared, Side, depths_of, number_of};
use super::drive;
use super::machine::Stage;
use super::negotiate::QueuePairFacts;
use super::{Listener, Manager};
use crate::interface::{
    ConnectionId, ListenerId, ManagerError, ManagerEvent, RejectReason, SetupError,
};
use crate::verbs::cm::address::{self, Target};
use crate::verbs::cm::channel::Channel;
use crate::verbs::cm::event::Parameters;
use crate::verbs::cm::id::{Families, Id};
use crate::verbs::cm::private_data;
use crate::verbs::queue_pair::QueuePair;
use crate::verbs::{PortEvent, PortHandle, PreparedQueuePair};

/// The time between two attempts to listen at an address whose device is removed.
const LISTEN_AGAIN: Duration = Duration::from_secs(1);

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
        let id = self
            .listen_at(number, *local)
            .map_err(|error| not_listening(&self.channel, (address, *local), error))?;
        let listener = Listener {
            address: id.local_address().unwrap_or(*local),
            id: Some(id),
            timer: None,
        };
        self.listeners.insert(number, listener);
        Ok(ListenerId(number))
    }

    /// Listens at an address. A wildcard of IPv6 takes IPv4 as well, unless somebody listens at the port for IPv4 already.
    fn listen_at(&self, number: u64, address: SocketAddr) -> io::Result<Id> {
        if !(address.is_ipv6() && address.ip().is_unspecified()) {
            return self.listen_for(number, address, Families::Own);
        }
        match self.listen_for(number, address, Families::Both) {
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::EADDRINUSE | libc::EADDRNOTAVAIL)
                ) =>
            {
                self.listen_for(number, address, Families::Own)
            }
            listening => listening,
        }
    }

    fn listen_for(&self, number: u64, address: SocketAddr, families: Families) -> io::Result<Id> {
        let mut id = Id::create(&self.channel, number)?;
        if let Some(value) = self.options.type_of_service {
            id.set_type_of_service(value)?;
        }
        id.bind(address, families)?;
        id.listen()?;
        Ok(id)
    }

    /// Forgets a listener.
    pub(super) fn stop_listening(&mut self, number: u64) {
        if let Some(mut listener) = self.listeners.remove(&number) {
            self.waiting.set_timer(number, &mut listener.timer, None);
        }
    }

    /// The device of a listener is removed, which waits until the identifier is destroyed.
    pub(super) fn lose_listener(&mut self, number: u64) {
        let Some(listener) = self.listeners.get_mut(&number) else {
            return;
        };
        listener.id = None;
        let at = Instant::now() + LISTEN_AGAIN;
        self.waiting
            .set_timer(number, &mut listener.timer, Some(at));
        self.counters.listeners_lost += 1;
        self.ready.push(ManagerEvent::ListenerLost {
            listener: ListenerId(number),
            address: address::display(listener.address),
        });
    }

    /// Tries to listen again with a listener that lost its device, and sets the time of the next attempt.
    pub(super) fn listen_again(&mut self, number: u64, now: Instant) {
        let Some(lost) = self.listeners.get(&number) else {
            return;
        };
        let address = lost.address;
        let id = self.listen_at(number, address).ok();
        let is_back = id.is_some();
        if let Some(listener) = self.listeners.get_mut(&number) {
            // The timer that is due was taken off the queue.
            listener.timer = None;
            listener.id = id;
            let at = (!is_back).then_some(now + LISTEN_AGAIN);
            self.waiting.set_timer(number, &mut listener.timer, at);
        }
        if is_back {
            self.counters.listeners_restored += 1;
            self.ready.push(ManagerEvent::ListenerRestored {
                listener: ListenerId(number),
                address: address::display(address),
            });
        }
    }

    pub(super) fn address_of(&self, listener: ListenerId) -> Option<String> {
        let local = self.listeners.get(&listener.0)?.address;
        Some(address::display(local))
    }

    /// Handles a connection request of a peer.
    pub(super) fn on_request(&mut self, listener: u64, mut id: Id, peer: Parameters) {
        if !self.listeners.contains_key(&listener) {
            // Dropping the identifier rejects the request.
            return;
        }
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
        ports: &[PortHandle],
    ) -> Result<(usize, PreparedQueuePair), SetupError> {
        ports
            .iter()
            .try_for_each(|port| self.know(port))
            .map_err(|source| SetupError::System {
                doing: "watching the device of a port".to_owned(),
                source,
            })?;
        let options = self.options;
        let connection = self.connections.get_mut(&number).ok_or_else(gone)?;
        let next = connection.stage.prepared().ok_or_else(gone)?;
        let id = connection.id.as_mut().ok_or_else(gone)?;
        let Some((index, port)) =
            port_of(ports, id.context()).and_then(|it| Some((it, ports.get(it)?)))
        else {
            let names: Vec<_> = ports.iter().map(|it| it.context().name()).collect();
            return Err(SetupError::Peer {
                what: format!(
                    "request arrived on the device `{}`, but this core polls `{}`",
                    id.device_name().unwrap_or_else(|| "none".to_owned()),
                    names.join(",")
                ),
            });
        };
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
        let prepared = PreparedQueuePair {
            queue_pair,
            initiator_depth: depths.initiator_depth,
            established,
        };
        Ok((index, prepared))
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
        self.counters.connections_lost += 1;
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

/// Why nobody can listen at an address. RDMA-CM gives the same error for an address that no device has and, where one of
/// two listeners is on a wildcard, for a port that is in use. So this tries the address with port 0.
pub(super) fn not_listening(
    channel: &Arc<Channel>,
    (address, local): (&str, SocketAddr),
    error: io::Error,
) -> ManagerError {
    let is_ours = || {
        let any_port = SocketAddr::new(local.ip(), 0);
        Id::create(channel, 0)
            .and_then(|mut id| id.bind(any_port, Families::Own))
            .is_ok()
    };
    let is_no_address = error.raw_os_error() == Some(libc::EADDRNOTAVAIL);
    if is_no_address && local.port() != 0 && is_ours() {
        return listen_error(address, io::Error::from_raw_os_error(libc::EADDRINUSE));
    }
    listen_error(address, error)
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

#[cfg(all(test, not(loom), not(feature = "rdma-sys")))]
mod listener_tests {
    use super::*;
    use crate::interface::Manager as _;
    use crate::verbs::Port;
    use crate::verbs::fake::{Card, Fake};

    fn events(manager: &mut Manager, patience: Duration) -> Vec<ManagerEvent<Port>> {
        let mut events = Vec::new();
        manager.wait(patience, &mut events).expect("no failure");
        events
    }

    #[test]
    fn a_listener_that_loses_its_device_comes_back_with_it() {
        let fake = Fake::install(Card::HONEST);
        let mut manager = Manager::new().expect("a manager");
        let id = manager.listen("rdma:10.9.0.1:20049").expect("listening");
        fake.set_removed(true);
        let lost = events(&mut manager, Duration::ZERO);
        assert!(
            matches!(&lost[..], [ManagerEvent::ListenerLost { listener, address }]
                if *listener == id && address == "rdma:10.9.0.1:20049")
        );
        assert_eq!(fake.listening(), [], "the device can be removed");
        // Twice while it is removed, by time that the test itself adds.
        for _ in 0..2 {
            let later = Instant::now() + LISTEN_AGAIN * 2; // TIME: the time of the timer, which is not waited for.
            manager.fire_timers(later);
        }
        assert_eq!(events(&mut manager, Duration::ZERO).len(), 0);
        fake.set_removed(false);
        let later = Instant::now() + LISTEN_AGAIN * 8; // TIME: as above.
        manager.fire_timers(later);
        let back = events(&mut manager, Duration::ZERO);
        assert!(
            matches!(&back[..], [ManagerEvent::ListenerRestored { listener, .. }] if *listener == id)
        );
        assert_eq!(fake.listening(), [(libc::AF_INET, true)]);
        for counted in [
            ("device_removals", 1),
            ("listeners_lost", 1),
            ("listeners_restored", 1),
        ] {
            assert!(manager.counters().contains(&counted), "{counted:?}");
        }
        // One that is closed while its device is removed does not come back.
        fake.set_removed(true);
        events(&mut manager, Duration::ZERO);
        manager.close_listener(id);
        fake.set_removed(false);
        manager.fire_timers(later + LISTEN_AGAIN * 2);
        assert_eq!(fake.listening(), []);
    }

    #[test]
    fn an_ipv6_wildcard_takes_ipv4_as_well_unless_somebody_else_does() {
        let fake = Fake::install(Card::HONEST);
        let mut manager = Manager::new().expect("a manager");
        let both = manager.listen("rdma:[::]:20049").expect("listening");
        assert_eq!(fake.listening(), [(libc::AF_INET6, false)]);
        manager.close_listener(both);
        manager.listen("rdma:0.0.0.0:20049").expect("listening");
        manager.listen("rdma:[::]:20049").expect("listening");
        let own = [(libc::AF_INET, true), (libc::AF_INET6, true)];
        assert_eq!(fake.listening(), own);
    }
}
