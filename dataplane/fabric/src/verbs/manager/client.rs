//! A client's steps: from an address to a request, and the outcomes of the request.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use super::blocking_calls::{self, Request, Sent};
use super::connection::{Client, Connection, Side, depths_of};
use super::drive;
use super::host_names::Answer;
use super::machine::Stage;
use super::negotiate::QueuePairFacts;
use super::{ADDRESSES_REMEMBERED, Manager};
use crate::interface::{ConnectionId, ManagerError, ManagerEvent, RejectReason, SetupError};
use crate::verbs::PortHandle;
use crate::verbs::bindings::ibv_context;
use crate::verbs::cm::address::Target;
use crate::verbs::cm::event::{EventKind, Parameters};
use crate::verbs::cm::id::Id;
use crate::verbs::cm::{private_data, refusal};
use crate::verbs::queue_pair::QueuePair;

/// Checks that private data has at most `limit` bytes.
pub(super) fn check_private_data(private_data: &[u8], limit: usize) -> Result<(), ManagerError> {
    if private_data.len() <= limit {
        return Ok(());
    }
    Err(ManagerError::Setup(SetupError::Limit {
        what: "bytes of private data",
        asked: private_data.len() as u64,
        limit: limit as u64,
    }))
}

pub(super) fn wrong_order(doing: &str) -> ManagerError {
    let source = io::Error::new(
        io::ErrorKind::InvalidInput,
        "the connection is not at that step",
    );
    system(doing, source)
}

pub(super) fn system(doing: impl Into<String>, source: io::Error) -> ManagerError {
    ManagerError::System {
        doing: doing.into(),
        source,
    }
}

/// The error for an event that ended a client's attempt.
pub(super) fn failure(address: &str, event: EventKind, status: i32) -> ManagerError {
    let address = address.to_owned();
    let said = match status {
        0 => String::new(),
        status => format!(
            " ({})",
            io::Error::from_raw_os_error(status.saturating_abs())
        ),
    };
    let why = match event {
        EventKind::DeviceRemoval => return ManagerError::DeviceRemoved { address },
        EventKind::AddressError => return no_way(address, status.saturating_abs(), &said),
        EventKind::RouteError => format!("there is no path to it{said}"),
        EventKind::Unreachable => format!(
            "its connection manager does not answer{said}; check that the host is up and that UDP port 4791 is open"
        ),
        EventKind::AddressChange => {
            "the address of this end moved to another device; connect again".to_owned()
        }
        _ => format!("the connection failed while it was being made{said}"),
    };
    ManagerError::Unreachable { address, why }
}

/// The error for an address that could not be resolved to a device.
pub(super) fn no_way(address: String, errno: i32, said: &str) -> ManagerError {
    let why = match errno {
        libc::ENODEV | libc::EADDRNOTAVAIL => {
            "the route to it starts at an address that no RDMA device has; compare `ip route get` with `rdma link`"
                .to_owned()
        }
        libc::ENETUNREACH | libc::EHOSTUNREACH => {
            format!("there is no route to it, or no host at its end{said}")
        }
        libc::ETIMEDOUT => "no host answers for its address (ARP or neighbour discovery timed out)".to_owned(),
        _ => format!("its address could not be resolved to a device{said}"),
    };
    ManagerError::Unreachable { address, why }
}

/// The error for a request that could not be sent. On iWARP the call also connects TCP, hence the
/// errors of TCP.
fn not_sent(address: &str, error: io::Error) -> ManagerError {
    let unreachable = |why: &str| ManagerError::Unreachable {
        address: address.to_owned(),
        why: format!("{why} ({error})"),
    };
    match error.raw_os_error() {
        Some(libc::ECONNREFUSED) => ManagerError::Refused {
            address: address.to_owned(),
        },
        Some(libc::ENETUNREACH | libc::EHOSTUNREACH) => unreachable("there is no route to it"),
        Some(libc::ETIMEDOUT) => unreachable(
            "its TCP does not answer; check that the host is up and that the port is open",
        ),
        _ => system(format!("sending a request to `{address}`"), error),
    }
}

/// The error for a rejection that carries no reason of ours.
fn refused(address: &str, reason: i32) -> ManagerError {
    let address = address.to_owned();
    if reason == refusal::INVALID_SERVICE_ID || reason == -libc::ECONNREFUSED {
        return ManagerError::Refused { address };
    }
    ManagerError::RefusedByPeer {
        address,
        why: refusal::describe(reason),
    }
}

/// Who rejected a client's request.
pub(super) enum Rejection {
    /// An rpcrdma application, with its reason and private data.
    ByApplication(RejectReason, Vec<u8>),
    /// Another program, or the peer's connection manager.
    Otherwise(ManagerError),
}

pub(super) fn read_rejection(address: &str, status: i32, peer: &Parameters) -> Rejection {
    match private_data::parse_rejection(&peer.private_data) {
        Some((reason, data)) => Rejection::ByApplication(reason, data.to_vec()),
        None => Rejection::Otherwise(refused(address, status)),
    }
}

impl Manager {
    pub(super) fn start_connecting(
        &mut self,
        address: &str,
        ports: &[PortHandle],
        private_data: &[u8],
    ) -> Result<ConnectionId, ManagerError> {
        let target = Target::parse(address)?;
        check_private_data(private_data, private_data::REQUEST_BYTES_MAX)?;
        if target.port() == 0 {
            return Err(bad(
                address,
                "port 0 cannot be connected to: name the port that the server listens on",
            ));
        }
        let numeric = target.numeric().map_err(|error| bad(address, error))?;
        for port in ports {
            self.know(port)
                .map_err(|error| system("watching the device of a port", error))?;
        }
        let Some(first) = ports.first() else {
            return Err(bad(address, "there is no port to connect from"));
        };
        let number = self.new_number();
        let client = Client {
            address: address.to_owned(),
            ports: ports.into(),
            port: first.clone(),
            private_data: private_data.to_vec(),
            candidates: VecDeque::new(),
            failed: None,
        };
        let connection = Connection {
            side: Side::Client(client),
            stage: Stage::ResolvingName,
            id: None,
            queue_pair: None,
            early: Vec::new(),
            peer: Parameters::default(),
            prepared: None,
            timer: None,
            disconnects_late: false,
        };
        if numeric.is_none() {
            self.host_names
                .ask(number, target)
                .map_err(|error| system("starting the thread that resolves host names", error))?;
        }
        self.connections.insert(number, connection);
        self.set_timer(
            number,
            Some(Instant::now() + self.options.handshake_timeout),
        );
        if let Some(numeric) = numeric {
            self.try_addresses(number, vec![numeric]);
        }
        Ok(ConnectionId(number))
    }

    /// The host name was resolved, or could not be.
    pub(super) fn on_answer(&mut self, answer: Answer) {
        match answer.addresses {
            Ok(addresses) => self.try_addresses(answer.connection, addresses),
            Err(error) => {
                let why = error.to_string();
                self.fail(answer.connection, |address| bad(address, why));
            }
        }
    }

    fn try_addresses(&mut self, number: u64, addresses: Vec<SocketAddr>) {
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        if let (Side::Client(client), Stage::ResolvingName) =
            (&mut connection.side, connection.stage)
        {
            client.candidates = addresses.into();
            self.try_next(number, None);
        }
    }

    /// Tries the next address of the host after this error. When none is left the connect fails with the error of the last
    /// address that the port's device reaches, if there is one: an address of another device says nothing of the server.
    pub(super) fn try_next(&mut self, number: u64, mut error: Option<ManagerError>) {
        loop {
            let Some(connection) = self.connections.get_mut(&number) else {
                return;
            };
            // Identifier, queue pair and events of the previous address.
            connection.let_go();
            connection.early.clear();
            let Side::Client(client) = &mut connection.side else {
                return;
            };
            if let Some(error) = error.take()
                && !(client.failed.is_some() && matches!(error, ManagerError::OtherDevice { .. }))
            {
                client.failed = Some(error);
            }
            let address = client.address.clone();
            let Some(candidate) = client.candidates.pop_front() else {
                let failed = client.failed.take();
                let error = failed.unwrap_or_else(|| bad(&address, "the host has no address"));
                self.fail(number, |_| error);
                return;
            };
            match self.resolve(number, candidate) {
                Ok(id) => {
                    if let Some(connection) = self.connections.get_mut(&number) {
                        connection.id = Some(id);
                        connection.stage = Stage::ResolvingAddress;
                    }
                    return;
                }
                Err(refused) => {
                    let said = format!(" ({refused})");
                    let errno = refused.raw_os_error().unwrap_or(0);
                    error = Some(no_way(address, errno, &said));
                }
            }
        }
    }

    fn resolve(&self, number: u64, address: SocketAddr) -> io::Result<Id> {
        let mut id = Id::create(&self.channel, number)?;
        if let Some(value) = self.options.type_of_service {
            id.set_type_of_service(value)?;
        }
        // Kernels before 5.3 refuse this option. That is harmless: `drive::to_ready` sets the timeout
        // of the queue pair in any case.
        let _ = id.set_ack_timeout(self.options.ack_timeout_exponent);
        id.resolve_address(address, self.options.resolve_timeout)?;
        Ok(id)
    }

    /// The address was resolved to a device. Resolves the path if one of the ports is of that device. Otherwise this address
    /// fails, because no port has queue pairs there.
    pub(super) fn resolve_route(&mut self, number: u64) {
        let timeout = self.options.resolve_timeout;
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        let (Side::Client(client), Some(id)) = (&mut connection.side, &mut connection.id) else {
            return;
        };
        let Some(port) = port_of(&client.ports, id.context()) else {
            let address = client.address.clone();
            let device = id.device_name().unwrap_or_else(|| "none".to_owned());
            let names: Vec<_> = client.ports.iter().map(|it| it.context().name()).collect();
            let error = match names.contains(&&*device) {
                // It was removed and came back: the port is of what it was before.
                true => ManagerError::DeviceReplaced { address, device },
                false => ManagerError::OtherDevice {
                    address,
                    device,
                    port_device: names.join(","),
                },
            };
            return self.try_next(number, Some(error));
        };
        client.port = client.ports[port].clone();
        let (address, device) = (client.address.clone(), id.context().addr());
        if self.devices_of_addresses.len() >= ADDRESSES_REMEMBERED {
            self.devices_of_addresses.clear();
        }
        self.devices_of_addresses.insert(address, device);
        if let Err(error) = id.resolve_route(timeout) {
            let address = client.address.clone();
            let errno = error.raw_os_error().unwrap_or(0);
            let error = no_way(address, errno, &format!(" ({error})"));
            self.try_next(number, Some(error));
        }
    }

    /// The path is known. Creates the queue pair first, because the request carries its number.
    pub(super) fn send_request(&mut self, number: u64) {
        let options = self.options;
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        let (Side::Client(client), Some(id)) = (&connection.side, &mut connection.id) else {
            return;
        };
        let is_iwarp = client.port.context().limits().iwarp;
        let depths = depths_of(&client.port);
        let mut request = || -> Result<QueuePair, ManagerError> {
            let queue_pair = QueuePair::create(&client.port)?;
            drive::to_init(id, &queue_pair)?;
            if !is_iwarp {
                let facts = QueuePairFacts::of(&queue_pair);
                let parameters = facts.parameters(depths, &options, &client.private_data);
                id.connect(parameters)
                    .map_err(|error| not_sent(&client.address, error))?;
            }
            Ok(queue_pair)
        };
        let queue_pair = match request() {
            Ok(queue_pair) => queue_pair,
            Err(error) => return self.try_next(number, Some(error)),
        };
        let facts = QueuePairFacts::of(&queue_pair);
        connection.queue_pair = Some(queue_pair);
        if is_iwarp && let Some(id) = connection.id.take() {
            let sent = self.blocking_calls.send(Request {
                connection: number,
                id,
                facts,
                depths,
                options,
                private_data: client.private_data.clone(),
            });
            if let Err(error) = sent {
                let error = not_sent(&client.address.clone(), error);
                self.try_next(number, Some(error));
            }
        }
    }

    /// Takes the identifier of a request back from the thread that sent it.
    pub(super) fn on_sent(&mut self, sent: Sent) {
        let Sent {
            connection: number,
            id,
            result,
        } = sent;
        let connection = self.connections.get_mut(&number);
        let Some(connection) = connection.filter(|it| it.stage == Stage::Requesting) else {
            // The connection was closed or timed out in the meantime.
            return blocking_calls::let_go(Some(id), None);
        };
        connection.id = Some(id);
        match (result, &connection.side) {
            (Err(error), Side::Client(client)) => {
                let error = not_sent(&client.address, error);
                self.try_next(number, Some(error));
            }
            _ => {
                for event in std::mem::take(&mut connection.early) {
                    self.on_event(event);
                }
            }
        }
    }

    /// Removes a client's connection that failed before the reply, and queues `Failed`.
    pub(super) fn fail(&mut self, number: u64, error: impl FnOnce(&str) -> ManagerError) {
        let Some(connection) = self.remove(number) else {
            return;
        };
        if let Side::Client(client) = &connection.side {
            self.counters.connects_failed += 1;
            self.ready.push(ManagerEvent::Failed {
                connection: ConnectionId(number),
                error: error(&client.address),
            });
        }
    }

    pub(super) fn send_confirm(&mut self, number: u64) -> Result<(), ManagerError> {
        let connection = self.open(number)?;
        let (Stage::ClientPrepared, Some(id)) = (connection.stage, &mut connection.id) else {
            return Err(wrong_order("confirming a connection"));
        };
        let is_iwarp = match &connection.side {
            Side::Client(client) => client.port.context().limits().iwarp,
            Side::Server => false,
        };
        if !is_iwarp {
            id.establish()
                .map_err(|error| system("confirming a connection", error))?;
        }
        connection.stage = Stage::Established;
        self.counters.connections_established += 1;
        self.ready.push(ManagerEvent::Established {
            connection: ConnectionId(number),
            port_event: None,
        });
        Ok(())
    }
}

/// The index of the port of this device.
pub(super) fn port_of(ports: &[PortHandle], device: *mut ibv_context) -> Option<usize> {
    ports.iter().position(|it| it.context().raw() == device)
}

pub(super) fn bad(address: &str, why: impl ToString) -> ManagerError {
    ManagerError::BadAddress {
        address: address.to_owned(),
        why: why.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_name_the_address_and_what_to_look_at() {
        let text = |event, status| failure("rdma:a:1", event, status).to_string();
        for (event, status, word) in [
            (EventKind::AddressError, -libc::ENODEV, "rdma link"),
            (EventKind::AddressError, -libc::ETIMEDOUT, "ARP"),
            (EventKind::AddressError, -libc::EHOSTUNREACH, "no route"),
            (EventKind::AddressError, i32::MIN, "resolved to a device"),
            (EventKind::RouteError, -libc::ETIMEDOUT, "no path"),
            (EventKind::Unreachable, -libc::ETIMEDOUT, "4791"),
            (EventKind::ConnectError, 0, "being made"),
            (EventKind::DeviceRemoval, 0, "removed"),
            (EventKind::AddressChange, 0, "another device"),
        ] {
            let text = text(event, status);
            assert!(text.contains("rdma:a:1") && text.contains(word), "{text}");
        }
    }

    #[test]
    fn rejections_are_distinguished() {
        let with = |private_data: &[u8]| Parameters {
            private_data: private_data.to_vec(),
            ..Parameters::default()
        };
        let ours = private_data::rejection(RejectReason::Draining, b"abc");
        match read_rejection("rdma:a:1", refusal::CONSUMER_DEFINED, &with(&ours)) {
            Rejection::ByApplication(RejectReason::Draining, data) => assert_eq!(data, b"abc"),
            _ => panic!("our own reason"),
        }
        for (status, word) in [
            (refusal::INVALID_SERVICE_ID, "nobody listens on `rdma:a:1`"),
            (-libc::ECONNREFUSED, "nobody listens on `rdma:a:1`"),
            (refusal::CONSUMER_DEFINED, "without a reason"),
            (10, "stale connection"),
        ] {
            match read_rejection("rdma:a:1", status, &with(&[0; 148])) {
                Rejection::Otherwise(error) => {
                    assert!(error.to_string().contains(word), "{error}");
                }
                Rejection::ByApplication(..) => panic!("nobody gave a reason of ours"),
            }
        }
    }
}

#[cfg(all(test, not(loom), not(feature = "rdma-sys")))]
mod replaced_tests {
    use super::*;
    use crate::clock::Clock;
    use crate::interface::{Manager as _, ManagerEvent};
    use crate::memory::{Arena, ArenaOptions, HugePages};
    use crate::verbs::fake::{Card, Fake};
    use crate::verbs::{Port, PortConfig};
    use std::time::Duration;

    #[test]
    fn connect_through_a_device_that_came_back_says_that_the_port_is_of_the_removed_one() {
        let mut fake = Fake::install(Card::HONEST);
        let arena = Arena::private(&ArenaOptions {
            bytes: 1 << 20,
            huge_pages: HugePages::Never,
        });
        let (_port, handle) = Port::new(PortConfig {
            device: Some(fake.name().to_owned()),
            queue_pairs_max: 4,
            receives_max: 16,
            work_requests_max: 64,
            ..PortConfig::new(arena.expect("memory"), Clock::new())
        })
        .expect("a port");
        fake.replace();
        let mut manager = Manager::new().expect("a manager");
        let connecting = manager.connect("rdma:10.9.0.2:20049", &handle, b"");
        let connecting = connecting.expect("an address");
        let mut events: Vec<ManagerEvent<Port>> = Vec::new();
        manager
            .wait(Duration::ZERO, &mut events)
            .expect("no failure");
        let [ManagerEvent::Failed { connection, error }] = &events[..] else {
            panic!("{} events", events.len());
        };
        assert_eq!(*connection, connecting);
        assert!(
            matches!(error, ManagerError::DeviceReplaced { device, .. } if device == fake.name()),
            "{error:?}"
        );
        assert!(
            error.to_string().contains("start the node again"),
            "{error}"
        );
    }
}
