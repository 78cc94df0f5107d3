//! The clients of a node, and what is kept of the calls of each.

use std::collections::{BTreeMap, HashMap};
use std::hash::RandomState;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rpcrdma_engine::{DeferToken, HostIdentity, Outcome};

use super::property::NAME_BYTES;
use super::window::{Begun, Key, Ticket, Window};
use crate::exchange::CoreShared;

/// Who calls, by what stays the same when it connects again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ClientId {
    /// One that announced a name, together with the host that it proved to be, so that no other host can use the name.
    Named([u8; NAME_BYTES], Option<HostIdentity>),
    /// One of that address: all programs of a host.
    Host(IpAddr),
    /// A peer that has no address, by what the fabric counts it as: a process of this machine.
    Process(u64),
}

/// Who sent a call again that runs: a call on this core that is answered later.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) core: Arc<CoreShared>,
    pub(crate) token: DeferToken,
}

impl Waiter {
    fn answer(self, outcome: Outcome, results: &[u8]) {
        let mut answer = self.core.new_answer();
        answer.token = Some(self.token);
        answer.outcome = Some(outcome);
        answer.results.extend_from_slice(results);
        self.core.answer(answer);
    }
}

/// What is kept of the calls of one client. Each of its methods holds the lock for less than a microsecond, and no service
/// runs meanwhile.
#[derive(Debug)]
pub(crate) struct Session {
    window: Mutex<Window<Waiter>>,
    /// Its client has announced no name. Another client may later use the same address and XIDs, so calls are forgotten
    /// after [`super::window::KEPT_FOR`].
    forgets: bool,
}

impl Session {
    fn new(id: &ClientId) -> Self {
        Self {
            window: Mutex::new(Window::new()),
            forgets: !matches!(id, ClientId::Named(..)),
        }
    }

    fn window(&self) -> MutexGuard<'_, Window<Waiter>> {
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Option<Instant> {
        self.forgets.then(Instant::now)
    }

    /// As [`Window::begin`]. Whoever waited before gets an error: its connection has ended, or it sent the call twice by
    /// the same one.
    pub(super) fn begin(
        &self,
        key: &Key,
        results: &mut Vec<u8>,
        wait: impl FnOnce() -> Option<Waiter>,
    ) -> Begun<Waiter> {
        let begun = self.window().begin(key, self.now(), results, wait);
        if let Begun::Waits(Some(before)) = begun {
            before.answer(Outcome::SystemError, &[]);
            return Begun::Waits(None);
        }
        begun
    }

    /// Notes how a call ended, and answers who waits for it.
    pub(super) fn finish(&self, ticket: Ticket, outcome: Outcome, results: Option<&[u8]>) {
        let waiter = self.window().finish(ticket, self.now(), outcome, results);
        match (waiter, results) {
            (None, _) => {}
            (Some(waiter), Some(results)) => waiter.answer(outcome, results),
            // As for who comes later.
            (Some(waiter), None) => waiter.answer(Outcome::SystemError, &[]),
        }
    }
}

/// The clients of a node. All of its cores share it; its own lock is taken when a connection begins or ends.
#[derive(Debug)]
pub(crate) struct Clients {
    table: Mutex<Table>,
    /// Calls that came again.
    repeated: AtomicU64,
    pub(super) hash: RandomState,
}

#[derive(Debug)]
struct Table {
    clients: HashMap<ClientId, Place>,
    /// Clients without a connection, by when the last one ended.
    departed: BTreeMap<u64, ClientId>,
    departures: u64,
    /// Each is the entries for one connection.
    units: usize,
    units_max: usize,
}

#[derive(Debug)]
struct Place {
    session: Arc<Session>,
    connections: usize,
    units: usize,
    /// Its number in `departed`, while it has no connection.
    departure: u64,
}

impl Clients {
    /// For so many connections, and as many clients that may connect again.
    pub(crate) fn new(connections_max: usize) -> Self {
        let table = Table {
            clients: HashMap::new(),
            departed: BTreeMap::new(),
            departures: 0,
            units: 0,
            units_max: connections_max.saturating_mul(2),
        };
        Self {
            table: Mutex::new(table),
            repeated: AtomicU64::new(0),
            hash: RandomState::new(),
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection of a client begins. `None` when nothing is left to keep its calls in: clients without a connection hold
    /// all of it, and all of them have calls that run.
    pub(super) fn attach(&self, id: &ClientId) -> Option<Arc<Session>> {
        let mut table = self.table();
        let table = &mut *table;
        if !table.clients.contains_key(id) {
            table.make_room().then_some(())?;
            let place = Place {
                session: Arc::new(Session::new(id)),
                connections: 0,
                units: 1,
                departure: 0,
            };
            table.units += 1;
            table.clients.insert(id.clone(), place);
        }
        let place = table.clients.get_mut(id)?;
        table.departed.remove(&place.departure);
        place.connections += 1;
        let session = Arc::clone(&place.session);
        // One with a name has a single connection, or a second one before the first is known to be lost. Without room the
        // connections of others share what there is.
        let has_several = session.forgets && place.connections > place.units;
        if has_several && table.make_room() {
            session.window().grow();
            table.units += 1;
            if let Some(place) = table.clients.get_mut(id) {
                place.units += 1;
            }
        }
        Some(session)
    }

    /// A connection of a client has ended.
    pub(super) fn detach(&self, id: &ClientId) {
        let mut table = self.table();
        let table = &mut *table;
        let Some(place) = table.clients.get_mut(id) else {
            return;
        };
        place.connections = place.connections.saturating_sub(1);
        if place.connections == 0 {
            table.departures += 1;
            place.departure = table.departures;
            table.departed.insert(place.departure, id.clone());
        }
    }

    pub(super) fn count_repeated(&self) {
        self.repeated.fetch_add(1, Ordering::Relaxed);
    }

    /// Calls that came again.
    pub(crate) fn repeated(&self) -> u64 {
        self.repeated.load(Ordering::Relaxed)
    }
}

impl Table {
    /// Makes room for the calls of one more connection: the client without a connection that left first is forgotten,
    /// unless one of its calls runs.
    fn make_room(&mut self) -> bool {
        while self.units >= self.units_max {
            let mut departed = self.departed.iter();
            let first = departed.find(|(_, id)| {
                let place = self.clients.get(*id);
                place.is_none_or(|place| place.session.window().is_idle())
            });
            let Some((&departure, _)) = first else {
                return false;
            };
            let id = self.departed.remove(&departure);
            let place = id.and_then(|id| self.clients.remove(&id));
            self.units -= place.map_or(0, |place| place.units);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: u8) -> ClientId {
        ClientId::Named([name; NAME_BYTES], None)
    }

    fn key(xid: u32) -> Key {
        Key {
            xid,
            ..Key::default()
        }
    }

    fn run(session: &Session, xid: u32) -> Ticket {
        match session.begin(&key(xid), &mut Vec::new(), || None) {
            Begun::Run(ticket) => ticket,
            other => panic!("{xid} is new: {other:?}"),
        }
    }

    fn knows(session: &Session, xid: u32) -> bool {
        match session.begin(&key(xid), &mut Vec::new(), || None) {
            Begun::Finished(_) | Begun::CannotWait => true,
            Begun::Run(ticket) => {
                session.finish(ticket, Outcome::Success, None);
                false
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_client_that_comes_again_finds_its_calls_and_no_other_does() {
        let clients = Clients::new(4);
        let host = |name| HostIdentity::new(name).ok();
        let ids = [
            named(1),
            named(2),
            ClientId::Named([1; NAME_BYTES], host("host")),
            ClientId::Named([1; NAME_BYTES], host("other")),
            ClientId::Host(IpAddr::from([192, 0, 2, 7])),
            ClientId::Host(IpAddr::from([192, 0, 2, 8])),
            ClientId::Process(1),
        ];
        for (id, xid) in ids.iter().zip(1..) {
            let session = clients.attach(id).unwrap();
            let ticket = run(&session, xid);
            session.finish(ticket, Outcome::Success, Some(b"done"));
            clients.detach(id);
        }
        for (id, xid) in ids.iter().zip(1..) {
            let session = clients.attach(id).unwrap();
            for other in 1..=7 {
                assert_eq!(knows(&session, other), other == xid, "{id:?} {other}");
            }
            clients.detach(id);
        }
    }

    #[test]
    fn the_client_that_left_first_makes_room_but_none_with_a_connection_or_a_call_that_runs() {
        let clients = Clients::new(2);
        let sessions: Vec<_> = (0..4)
            .map(|it| clients.attach(&named(it)).unwrap())
            .collect();
        assert!(clients.attach(&named(9)).is_none(), "all are connected");
        let tickets: Vec<_> = sessions.iter().map(|session| run(session, 1)).collect();
        for leaving in [2, 0, 1] {
            clients.detach(&named(leaving));
        }
        assert!(
            clients.attach(&named(9)).is_none(),
            "all have calls that run"
        );
        for (session, ticket) in sessions.iter().zip(tickets) {
            session.finish(ticket, Outcome::Success, None);
        }
        // The third is there again, so the first is the one that left first.
        clients.attach(&named(2)).unwrap();
        clients.attach(&named(9)).unwrap();
        assert!(knows(&clients.attach(&named(1)).unwrap(), 1));
        assert!(knows(&clients.attach(&named(3)).unwrap(), 1));
        assert!(
            clients.attach(&named(0)).is_none(),
            "it was forgotten, and the others are there"
        );
    }

    #[test]
    fn each_connection_of_an_address_brings_entries() {
        let clients = Clients::new(2);
        let id = ClientId::Process(1);
        let session = clients.attach(&id).unwrap();
        clients.attach(&id).unwrap();
        let tickets: Vec<_> = (0..256).map(|xid| run(&session, xid)).collect();
        let full = session.begin(&key(256), &mut Vec::new(), || None);
        assert!(matches!(full, Begun::Full));
        assert_eq!(tickets.len(), 256);
        // They stay: a connection that comes again brings no more.
        clients.detach(&id);
        clients.attach(&id).unwrap();
        assert_eq!(clients.table().units, 2);
    }
}
