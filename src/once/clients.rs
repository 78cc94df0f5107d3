//! The clients of a server, and what is kept of the calls of each.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::fmt;
use std::hash::RandomState;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rpcrdma_engine::{HostIdentity, Outcome};
use rpcrdma_fabric::interface::PeerIdentity;

use super::property::{NAME_BYTES, is_of_a_connection};
use super::window::{Begun, ENTRIES, ENTRIES_MAX, Key, Ticket, Window};

/// Where a client is, as far as the transport knows. It is the same for all connections of a host, on any transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    /// A host.
    Host(IpAddr),
    /// A peer that has no address, by what the fabric counts it as: a process of this machine.
    Process(u64),
}

impl From<&PeerIdentity> for Peer {
    fn from(peer: &PeerIdentity) -> Self {
        peer.address.map_or(Self::Process(peer.key), Self::Host)
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(address) => address.fmt(f),
            Self::Process(key) => write!(f, "process {key}"),
        }
    }
}

/// Who calls, by what stays the same when it connects again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ClientId {
    /// One that announced a name, together with the host that it proved to be, so that no other host can use the name.
    Named([u8; NAME_BYTES], Option<HostIdentity>),
    /// One without a name: all programs of a host.
    Unnamed(Peer),
}

/// Who sent a call again while it runs.
pub trait Waits: Sized {
    /// The call has ended so. The results are those of a success.
    fn answer(self, outcome: Outcome, results: &[u8]);

    /// The call came once more, and who sent it then waits instead. By default this one gets SYSTEM_ERR. A transport that
    /// retransmits on the connection that it has must give no answer: its caller would take it for that of the call.
    fn displaced(self) {
        self.answer(Outcome::SystemError, &[]);
    }
}

/// Nobody waits where each call has ended before the next one begins.
impl Waits for Infallible {
    fn answer(self, _: Outcome, _: &[u8]) {
        match self {}
    }
}

/// What is kept of the calls of one client. Each of its methods holds the lock for less than a microsecond, except where
/// the client is lent entries, and no service runs meanwhile.
#[derive(Debug)]
pub struct Session<W> {
    window: Mutex<Window<W>>,
    /// Its client has announced no name. Another client may later use the same address and XIDs, so calls are forgotten
    /// after [`super::KEPT_FOR`]. It can have any number of calls under way, so it may be lent entries; one with a name
    /// keeps to what it is sure of.
    is_unnamed: bool,
    /// Its client has one connection at a time: its name has the number of a connection. Without a number it is that of a node,
    /// whose connections share it.
    has_one_connection: bool,
    /// The last connection of such a client, by [`PeerIdentity::arrival`]. The client has lost the ones before it.
    newest: AtomicU64,
}

impl<W: Waits> Session<W> {
    fn new(id: &ClientId) -> Self {
        Self {
            window: Mutex::new(Window::new(ENTRIES)),
            is_unnamed: matches!(id, ClientId::Unnamed(_)),
            has_one_connection: match id {
                ClientId::Named(name, _) => is_of_a_connection(name),
                ClientId::Unnamed(_) => false,
            },
            newest: AtomicU64::new(0),
        }
    }

    fn window(&self) -> MutexGuard<'_, Window<W>> {
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection of the client begins. No call of an earlier one begins from now on: its client sends it again by this one, and
    /// a core that is slow could otherwise run a call that was repeated, answered and forgotten in the meantime.
    pub(super) fn supersede(&self, arrival: u64) {
        if self.has_one_connection {
            // The lock of the window orders it for `begin`: a call by this connection takes that lock later.
            self.newest.fetch_max(arrival, Ordering::Relaxed);
        }
    }

    fn now(&self) -> Option<Instant> {
        self.is_unnamed.then(Instant::now)
    }

    /// Notes how a call ended, and answers who waits for it. `results` are `None` where they are too long to keep: who sends
    /// the call again learns that it failed.
    pub fn finish(&self, ticket: Ticket, outcome: Outcome, results: Option<&[u8]>) {
        let waiter = self.window().finish(ticket, self.now(), outcome, results);
        match (waiter, results) {
            (None, _) => {}
            (Some(waiter), Some(results)) => waiter.answer(outcome, results),
            // As for who comes later.
            (Some(waiter), None) => waiter.answer(Outcome::SystemError, &[]),
        }
    }
}

/// The clients of a server. All of its cores share it; its own lock is taken when a connection begins or ends, and when a
/// client needs more entries than it is sure of.
#[derive(Debug)]
pub struct Clients<W> {
    table: Mutex<Table<W>>,
    /// Calls that came again.
    repeated: AtomicU64,
    pub(super) hash: RandomState,
}

#[derive(Debug)]
struct Table<W> {
    clients: HashMap<ClientId, Place<W>>,
    /// Clients without a connection, by when the last one ended.
    departed: BTreeMap<u64, ClientId>,
    departures: u64,
    clients_max: usize,
    /// Entries that can be lent, in addition to those that clients are sure of.
    free: usize,
}

#[derive(Debug)]
struct Place<W> {
    session: Arc<Session<W>>,
    connections: usize,
    /// Its number in `departed`, while it has no connection.
    departure: u64,
}

impl<W: Waits> Clients<W> {
    /// For so many connections, and as many clients that may connect again. There are [`ENTRIES`] for each of them, and
    /// half as many in all to be lent, or [`ENTRIES_MAX`].
    #[must_use]
    pub fn new(connections_max: usize) -> Self {
        let table = Table {
            clients: HashMap::new(),
            departed: BTreeMap::new(),
            departures: 0,
            clients_max: connections_max.saturating_mul(2),
            free: connections_max.saturating_mul(ENTRIES).max(ENTRIES_MAX),
        };
        Self {
            table: Mutex::new(table),
            repeated: AtomicU64::new(0),
            hash: RandomState::new(),
        }
    }

    fn table(&self) -> MutexGuard<'_, Table<W>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection of a client begins. `None` when nothing is left to keep its calls in: there are too many clients, and those
    /// without a connection have calls that run.
    pub fn attach(&self, id: &ClientId) -> Option<Arc<Session<W>>> {
        let mut table = self.table();
        let table = &mut *table;
        if !table.clients.contains_key(id) {
            table.make_room().then_some(())?;
            let place = Place {
                session: Arc::new(Session::new(id)),
                connections: 0,
                departure: 0,
            };
            table.clients.insert(id.clone(), place);
        }
        let place = table.clients.get_mut(id)?;
        table.departed.remove(&place.departure);
        place.connections += 1;
        Some(Arc::clone(&place.session))
    }

    /// A connection of a client has ended.
    pub fn detach(&self, id: &ClientId) {
        let mut table = self.table();
        let table = &mut *table;
        let place = table.clients.get_mut(id);
        let Some(place) = place.filter(|place| place.connections > 0) else {
            return;
        };
        place.connections -= 1;
        if place.connections == 0 {
            table.departures += 1;
            place.departure = table.departures;
            table.departed.insert(place.departure, id.clone());
        }
    }

    /// Looks for a call of a client, and enters it if it is new. It came by the connection of `arrival`
    /// ([`Callers::arrival`](super::Callers::arrival)). The results of one that has run are put into `results`. `wait` makes somebody who waits for one that runs. Whoever waited before does so no more ([`Waits::displaced`]): its
    /// connection has ended, or it sent the call twice by the same one.
    pub fn begin(
        &self,
        session: &Session<W>,
        arrival: u64,
        key: &Key,
        results: &mut Vec<u8>,
        wait: impl FnOnce() -> Option<W>,
    ) -> Begun<W> {
        let now = session.now();
        let mut window = session.window();
        if arrival < session.newest.load(Ordering::Relaxed) {
            return Begun::Superseded;
        }
        if let Some(now) = now.filter(|now| window.lacks_entries(key, *now)) {
            // The lock of the table comes first.
            drop(window);
            self.table().lend(session, now);
            window = session.window();
        }
        let begun = window.begin(key, now, results, wait);
        drop(window);
        if !matches!(begun, Begun::Run(_) | Begun::Full) {
            self.repeated.fetch_add(1, Ordering::Relaxed);
        }
        if let Begun::Waits(Some(before)) = begun {
            before.displaced();
            return Begun::Waits(None);
        }
        begun
    }

    /// Calls that came again.
    #[must_use]
    pub fn repeated(&self) -> u64 {
        self.repeated.load(Ordering::Relaxed)
    }
}

impl<W: Waits> Table<W> {
    /// Makes room for one more client: the client without a connection that left first is forgotten, unless one of its
    /// calls runs.
    fn make_room(&mut self) -> bool {
        while self.clients.len() >= self.clients_max {
            let mut departed = self.departed.iter();
            let first = departed.find(|(_, id)| {
                let place = self.clients.get(*id);
                place.is_none_or(|place| place.session.window().is_idle())
            });
            let Some((&departure, _)) = first else {
                return false;
            };
            let id = self.departed.remove(&departure);
            if let Some(place) = id.and_then(|id| self.clients.remove(&id)) {
                self.free += place.session.window().entries() - ENTRIES;
            }
        }
        true
    }

    /// Lends a client as many entries as it has, if so many are free or others no longer need theirs.
    #[cold]
    fn lend(&mut self, session: &Session<W>, now: Instant) {
        let entries = session.window().entries();
        let more = entries.min(ENTRIES_MAX.saturating_sub(entries));
        if self.free < more {
            self.take_back(now);
        }
        let more = more.min(self.free);
        // Another of its connections may have come first.
        let mut window = session.window();
        if more > 0 && window.entries() == entries {
            window.resize(entries + more);
            self.free -= more;
        }
    }

    /// Takes back what was lent and is not needed now.
    fn take_back(&mut self, now: Instant) {
        for place in self.clients.values() {
            let mut window = place.session.window();
            let entries = window.entries();
            if entries > ENTRIES && window.in_use(now) <= ENTRIES {
                window.resize(ENTRIES);
                self.free += entries - ENTRIES;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Somebody who waits, and whom nobody asks what became of it.
    #[derive(Debug)]
    struct Nobody;

    impl Waits for Nobody {
        fn answer(self, _: Outcome, _: &[u8]) {}
    }

    fn named(name: u8) -> ClientId {
        ClientId::Named([name; NAME_BYTES], None)
    }

    fn unnamed(host: u8) -> ClientId {
        ClientId::Unnamed(Peer::Host(IpAddr::from([192, 0, 2, host])))
    }

    fn key(xid: u32) -> Key {
        Key {
            xid,
            ..Key::default()
        }
    }

    /// A client with one connection.
    struct Client<'a> {
        clients: &'a Clients<Nobody>,
        session: Arc<Session<Nobody>>,
        arrival: u64,
    }

    impl<'a> Client<'a> {
        fn attach(clients: &'a Clients<Nobody>, id: &ClientId) -> Option<Self> {
            let session = clients.attach(id)?;
            let arrival = 0;
            Some(Self {
                clients,
                session,
                arrival,
            })
        }

        fn begin(&self, xid: u32) -> Begun<Nobody> {
            let (results, nobody) = (&mut Vec::new(), || None);
            self.clients
                .begin(&self.session, self.arrival, &key(xid), results, nobody)
        }

        fn run(&self, xid: u32) -> Ticket {
            match self.begin(xid) {
                Begun::Run(ticket) => ticket,
                other => panic!("{xid} is new: {other:?}"),
            }
        }

        fn finish(&self, ticket: Ticket) {
            self.session.finish(ticket, Outcome::Success, Some(b"done"));
        }

        /// Whether a call is known. It is afterwards.
        fn knows(&self, xid: u32) -> bool {
            match self.begin(xid) {
                Begun::Finished(_) | Begun::CannotWait => true,
                Begun::Run(ticket) => {
                    self.finish(ticket);
                    false
                }
                other => panic!("{other:?}"),
            }
        }

        /// Makes these calls, which are new.
        fn call(&self, xids: std::ops::Range<u32>) {
            xids.for_each(|xid| self.finish(self.run(xid)));
        }

        fn entries(&self) -> usize {
            self.session.window().entries()
        }
    }

    /// A slow core has a call in a Receive, while its client loses the connection, repeats the call by another core,
    /// and makes as many others as are remembered.
    #[test]
    fn late_call_of_a_connection_that_its_client_has_lost_does_not_run() {
        let clients = Clients::new(4);
        let at = |arrival, id: &ClientId| {
            let mut client = Client::attach(&clients, id).unwrap();
            client.session.supersede(arrival);
            client.arrival = arrival;
            client
        };
        let lost = at(7, &named(1));
        let running = lost.run(1);
        let newest = at(9, &named(1));
        // One between them, which a slow core learns of last.
        let between = at(8, &named(1));
        for client in [&lost, &between] {
            assert!(matches!(client.begin(2), Begun::Superseded));
        }
        assert!(!newest.knows(2), "it runs here");
        assert!(newest.knows(1), "what ran before the loss is known");
        lost.finish(running);
        newest.call(1000..2000);
        assert!(!newest.knows(2), "it is forgotten");
        assert!(matches!(lost.begin(2), Begun::Superseded), "it ran twice");
        // Several programs of a host have its address, and the connections of a node its name.
        let mut node = [1; NAME_BYTES];
        node[NAME_BYTES - 4..].fill(0);
        for shared in [unnamed(1), ClientId::Named(node, None)] {
            let (first, second) = (at(3, &shared), at(4, &shared));
            assert!(!first.knows(5) && second.knows(5));
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
            unnamed(7),
            unnamed(8),
            ClientId::Unnamed(Peer::Process(1)),
        ];
        for (id, xid) in ids.iter().zip(1..) {
            Client::attach(&clients, id).unwrap().call(xid..xid + 1);
            clients.detach(id);
        }
        for (id, xid) in ids.iter().zip(1..) {
            let client = Client::attach(&clients, id).unwrap();
            for other in 1..=7 {
                assert_eq!(client.knows(other), other == xid, "{id:?} {other}");
            }
            clients.detach(id);
        }
    }

    #[test]
    fn the_client_that_left_first_makes_room_but_none_with_a_connection_or_a_call_that_runs() {
        let clients = Clients::new(2);
        let attach = |name| Client::attach(&clients, &named(name));
        let there: Vec<_> = (0..4).map(|it| attach(it).unwrap()).collect();
        assert!(attach(9).is_none(), "all are connected");
        let tickets: Vec<_> = there.iter().map(|client| client.run(1)).collect();
        for leaving in [2, 0, 1] {
            clients.detach(&named(leaving));
        }
        assert!(attach(9).is_none(), "all have calls that run");
        for (client, ticket) in there.iter().zip(tickets) {
            client.finish(ticket);
        }
        // The third is there again, so the first is the one that left first.
        attach(2).unwrap();
        attach(9).unwrap();
        assert!(attach(1).unwrap().knows(1));
        assert!(attach(3).unwrap().knows(1));
        assert!(
            attach(0).is_none(),
            "it was forgotten, and the others are there"
        );
    }

    #[test]
    fn flood_of_a_client_leaves_others_their_sure_entries() {
        let clients = Clients::new(2);
        let attach = |id| Client::attach(&clients, &id).unwrap();
        let (sure, named, flood) = (attach(unnamed(1)), attach(named(1)), attach(unnamed(2)));
        sure.call(0..128);
        named.call(0..128);
        flood.call(0..10_000);
        assert_eq!((sure.entries(), flood.entries()), (ENTRIES, ENTRIES_MAX));
        assert!((0..128).all(|xid| sure.knows(xid) && named.knows(xid)));
        assert!((10_000 - 4096..10_000).all(|xid| flood.knows(xid)));
        // The other has what is left, and one with a name keeps to its own.
        sure.call(128..10_000);
        named.call(128..129);
        assert_eq!((sure.entries(), named.entries()), (2 * ENTRIES, ENTRIES));
        assert!((10_000 - 256..10_000).all(|xid| sure.knows(xid)));
        assert!((1..129).all(|xid| named.knows(xid)));
        assert!(!named.knows(0));
        assert_eq!(clients.table().free, 0);
    }

    #[test]
    fn entries_come_back_when_they_are_old_or_their_client_is_forgotten() {
        let clients = Clients::new(1);
        let attach = |id: &ClientId| Client::attach(&clients, id).unwrap();
        let first = attach(&unnamed(1));
        let runs = first.run(10_000);
        first.call(0..5000);
        let other = attach(&unnamed(2));
        other.call(0..256);
        assert_eq!((other.entries(), clients.table().free), (256, 0));
        // TIME: the test adds what passes; it ends long before a call of it is old.
        let now = Instant::now();
        clients.table().lend(&other.session, now);
        assert_eq!(other.entries(), 256, "none of them is old");
        clients
            .table()
            .lend(&other.session, now + super::super::KEPT_FOR * 2);
        assert_eq!((first.entries(), other.entries()), (ENTRIES, 128));
        assert!(first.knows(10_000), "it runs");
        first.finish(runs);
        assert!(first.knows(10_000));
        // It is forgotten with the entries that it is lent.
        first.call(5000..10_000);
        assert_eq!(clients.table().free, ENTRIES);
        clients.detach(&unnamed(1));
        attach(&unnamed(3));
        assert_eq!(clients.table().free, ENTRIES_MAX);
    }

    proptest! {
        // Each takes some milliseconds.
        #![proptest_config(ProptestConfig::with_cases(16))]
        /// Clients call in turn; each call comes again after so many others.
        #[test]
        fn sure_calls_are_known_after_any_calls_of_others(
            bursts in prop::collection::vec((0_usize..4, 1_u32..700, 0_u32..128), 1..30),
        ) {
            let clients = Clients::new(2);
            let ids = [named(1), named(2), unnamed(1), unnamed(2)];
            let there = ids.each_ref().map(|id| Client::attach(&clients, id).unwrap());
            let mut made = [0_u32; 4];
            for (which, calls, back) in bursts {
                let client = &there[which];
                client.call(made[which]..made[which] + calls);
                made[which] += calls;
                for (client, made) in there.iter().zip(made) {
                    if let Some(xid) = made.checked_sub(1 + back) {
                        prop_assert!(client.knows(xid), "{back} calls back");
                    }
                }
                let lent = there.iter().map(|it| it.entries() - ENTRIES).sum::<usize>();
                prop_assert_eq!(lent + clients.table().free, ENTRIES_MAX);
                // Another connection of the same client finds the same.
                clients.detach(&ids[which]);
                let again = clients.attach(&ids[which]).unwrap();
                prop_assert!(Arc::ptr_eq(&again, &client.session));
            }
        }
    }
}
