//! Who calls by which connection of a core.

use std::sync::Arc;

use rpcrdma_engine::{ConnectionKey, HostIdentity, PeerProperties};
use rpcrdma_fabric::interface::PeerIdentity;

use super::clients::{ClientId, Clients, Peer, Session, Waits};
use super::property::Announced;

/// The clients at the other ends of a core's connections. Its methods are those of the same names of
/// [`Application`](rpcrdma_engine::Application).
#[derive(Debug)]
pub struct Callers<W: Waits> {
    clients: Arc<Clients<W>>,
    /// By the index of their connection.
    callers: Vec<Option<Caller<W>>>,
}

#[derive(Debug)]
struct Caller<W> {
    peer: Peer,
    id: ClientId,
    /// [`PeerIdentity::arrival`].
    arrival: u64,
    /// What is kept of its calls. `None` before it is connected, or where there is no room for it.
    session: Option<Arc<Session<W>>>,
}

impl<W: Waits> Callers<W> {
    /// Those of a core that keeps what it knows of them in `clients`.
    #[must_use]
    pub fn new(clients: &Arc<Clients<W>>) -> Self {
        Self {
            clients: Arc::clone(clients),
            callers: Vec::new(),
        }
    }

    /// What all cores share.
    #[must_use]
    pub fn clients(&self) -> &Clients<W> {
        &self.clients
    }

    /// A connection begins.
    pub fn opened(&mut self, connection: ConnectionKey, peer: &PeerIdentity) {
        // One that never became ready has not ended for an application.
        self.disconnected(connection);
        let index = connection.index as usize;
        if self.callers.len() <= index {
            self.callers.resize_with(index + 1, || None);
        }
        let arrival = peer.arrival;
        let peer = Peer::from(peer);
        self.callers[index] = Some(Caller {
            peer,
            arrival,
            id: ClientId::Unnamed(peer),
            session: None,
        });
    }

    /// Its peer has announced its properties.
    pub fn announced(&mut self, connection: ConnectionKey, properties: &PeerProperties) {
        let caller = self.caller(connection);
        // One that has called before its properties were there goes on as what it was then.
        let caller = caller.filter(|caller| caller.session.is_none());
        if let (Some(caller), Some(announced)) = (caller, Announced::of(properties)) {
            caller.id = ClientId::Named(announced.name, None);
        }
    }

    /// Its peer may call, and is this host if it had to prove that.
    pub fn connected(&mut self, connection: ConnectionKey, host: Option<&HostIdentity>) {
        let caller = self.caller(connection);
        let Some(caller) = caller.filter(|caller| caller.session.is_none()) else {
            return;
        };
        if let ClientId::Named(_, proved) = &mut caller.id {
            *proved = host.cloned();
        }
        self.attach(connection);
    }

    /// It has ended.
    pub fn disconnected(&mut self, connection: ConnectionKey) {
        let place = self.callers.get_mut(connection.index as usize);
        let caller = place.and_then(Option::take);
        if let Some(caller) = caller.filter(|caller| caller.session.is_some()) {
            self.clients.detach(&caller.id);
        }
    }

    /// What is kept of the calls of its client; `None` if there is no room for it.
    pub fn session(&mut self, connection: ConnectionKey) -> Option<&Arc<Session<W>>> {
        if self.caller(connection)?.session.is_none() {
            // It calls before it is connected, as one may that proves no identity.
            self.attach(connection);
        }
        self.caller(connection)?.session.as_ref()
    }

    /// When the connection was asked for, among those of the process, for [`Clients::begin`].
    #[must_use]
    pub fn arrival(&self, connection: ConnectionKey) -> u64 {
        let caller = self.callers.get(connection.index as usize);
        caller
            .and_then(Option::as_ref)
            .map_or(0, |caller| caller.arrival)
    }

    /// Where its client is.
    #[must_use]
    pub fn peer(&self, connection: ConnectionKey) -> Option<Peer> {
        let caller = self.callers.get(connection.index as usize)?.as_ref()?;
        Some(caller.peer)
    }

    fn caller(&mut self, connection: ConnectionKey) -> Option<&mut Caller<W>> {
        self.callers.get_mut(connection.index as usize)?.as_mut()
    }

    fn attach(&mut self, connection: ConnectionKey) {
        let clients = Arc::clone(&self.clients);
        if let Some(caller) = self.caller(connection) {
            caller.session = clients.attach(&caller.id);
            if let Some(session) = &caller.session {
                session.supersede(caller.arrival);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::net::IpAddr;

    use super::*;

    #[test]
    fn a_host_is_the_same_client_in_each_of_its_connections() {
        let (one, other) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 2]));
        let identity = |key, address| PeerIdentity {
            key,
            address,
            ..PeerIdentity::default()
        };
        let at = |index, generation| ConnectionKey { index, generation };
        let clients = Arc::new(Clients::<Infallible>::new(1));
        let mut callers = Callers::new(&clients);
        callers.opened(at(3, 0), &identity(1, Some(one)));
        callers.opened(at(0, 0), &identity(2, Some(other)));
        callers.opened(at(1, 0), &identity(77, None));
        assert_eq!(callers.peer(at(3, 0)), Some(Peer::Host(one)));
        assert_eq!(callers.peer(at(0, 0)), Some(Peer::Host(other)));
        assert_eq!(callers.peer(at(1, 0)), Some(Peer::Process(77)));
        let first = Arc::clone(callers.session(at(3, 0)).unwrap());
        // It never ended for an application, and its place is used again.
        callers.opened(at(3, 1), &identity(2, Some(other)));
        assert_eq!(callers.peer(at(3, 1)), Some(Peer::Host(other)));
        let second = Arc::clone(callers.session(at(3, 1)).unwrap());
        assert!(!Arc::ptr_eq(&first, &second));
        // So the first host has no connection, and makes room.
        let third = ClientId::Unnamed(Peer::Process(3));
        assert!(clients.attach(&third).is_some());
        clients.detach(&third);
        let first = clients.attach(&ClientId::Unnamed(Peer::Host(one))).unwrap();
        callers.opened(at(4, 0), &identity(1, Some(one)));
        assert!(Arc::ptr_eq(&first, callers.session(at(4, 0)).unwrap()));
        assert!(Arc::ptr_eq(&second, callers.session(at(0, 0)).unwrap()));
        assert_eq!(callers.peer(at(9, 0)), None);
        assert!(callers.session(at(9, 0)).is_none());
    }
}
