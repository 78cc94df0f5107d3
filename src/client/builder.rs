//! Choosing how a client calls.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rpcrdma_control::{Authentication, ConnectOptions, CoreChoice, Reconnect, Use, Versions};
use rpcrdma_fabric::memory::ExternalMemory;
use rpcrdma_tuning::Profile;

use super::Client;
use super::connection::ClientConnection;
use super::home::{Home, Plan, Returns};
use crate::error::{Error, Failure};
use crate::exchange::{PeerConnection, Slots};
use crate::node::{Node, NodeBuilder};

/// Chooses how a [`Client`] calls.
pub struct ClientBuilder {
    node: Option<Node>,
    new_node: NodeBuilder,
    connections: usize,
    first_core: usize,
    versions: Versions,
    depth: u32,
    connect_timeout: Duration,
    timeout: Option<Duration>,
    patience: Option<Duration>,
    spin: Duration,
    reconnect: Reconnect,
    return_after: Option<Duration>,
    start: Start,
    authentication: Authentication,
    repeat: bool,
}

/// At which of the addresses of a server the connections of a client are made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Start {
    /// The first connection has the first address, the second one the second, and so on: all addresses carry calls.
    #[default]
    Spread,
    /// All have the first address. The others carry calls only when it does not work.
    Standby,
}

impl Default for ClientBuilder {
    fn default() -> Self {
        Self {
            node: None,
            new_node: NodeBuilder::default(),
            connections: 1,
            first_core: 0,
            versions: ConnectOptions::default().versions,
            depth: 64,
            connect_timeout: Duration::from_secs(5),
            timeout: None,
            patience: None,
            spin: Duration::from_micros(50),
            reconnect: Reconnect::default(),
            return_after: Some(Duration::from_secs(2)),
            start: Start::default(),
            authentication: Authentication::default(),
            repeat: false,
        }
    }
}

impl Node {
    /// Chooses how a client of this node calls the server at an address.
    #[must_use]
    pub fn client(&self) -> ClientBuilder {
        ClientBuilder {
            node: Some(self.clone()),
            ..ClientBuilder::default()
        }
    }
}

impl ClientBuilder {
    /// Sizes the client's own node; see [`NodeBuilder::profile`]. A node that is shared has its profile.
    #[must_use]
    pub fn profile(mut self, profile: Profile) -> Self {
        self.new_node = self.new_node.profile(profile);
        self
    }

    /// Sizes the client's own node; see [`NodeBuilder::profile_named`].
    #[must_use]
    pub fn profile_named(mut self, name_or_path: &str) -> Self {
        self.new_node = self.new_node.profile_named(name_or_path);
        self
    }

    /// Sets a knob of the client's own node; see [`NodeBuilder::knob`].
    #[must_use]
    pub fn knob(mut self, assignment: &str) -> Self {
        self.new_node = self.new_node.knob(assignment);
        self
    }

    /// Memory of the program for the client's own node; see [`NodeBuilder::memory`].
    #[must_use]
    pub fn memory(mut self, memory: &ExternalMemory) -> Self {
        self.new_node = self.new_node.memory(memory);
        self
    }

    /// Cores of the client's own node; see [`NodeBuilder::pinned`].
    #[must_use]
    pub fn pinned(mut self, cpus: impl IntoIterator<Item = usize>) -> Self {
        self.new_node = self.new_node.pinned(cpus);
        self
    }

    /// The RDMA devices of the client's own node; see [`NodeBuilder::device`].
    #[must_use]
    pub fn device(mut self, names: &str) -> Self {
        self.new_node = self.new_node.device(names);
        self
    }

    /// Makes so many connections, on the cores in turn, and gives each call to the next (default: 1).
    #[must_use]
    pub fn connections(mut self, connections: usize) -> Self {
        self.connections = connections.max(1);
        self
    }

    /// The core of the first connection; the next one is on the next core. Without this it is the first core of the node.
    /// Numbers beyond the last core go on from the first.
    #[must_use]
    pub fn core(mut self, core: usize) -> Self {
        self.first_core = core;
        self
    }

    /// The versions of RPC-over-RDMA that it tries. The default is version 2, and version 1 where the server speaks no other.
    /// Where authentication is required, only version 2 is spoken, and this changes nothing.
    #[must_use]
    pub fn versions(mut self, versions: Versions) -> Self {
        self.versions = versions;
        self
    }

    /// Calls that may be under way on each connection (default: 64). Further ones wait.
    ///
    /// A call or reply whose data is placed by a Send takes two credits, and an end grants 32 by default. Data of calls that
    /// find too few is fetched by RDMA Read, and that of replies goes into the stream, which is a copy. For so many calls with
    /// bulk data set `.knob("credits_per_connection=N")` at both ends, with N twice the depth.
    #[must_use]
    pub fn depth(mut self, depth: u32) -> Self {
        self.depth = depth.max(1);
        self
    }

    /// The time for [`ClientBuilder::connect`] (default: 5 s), and for each attempt to connect again. Of several addresses of a
    /// server, an attempt at one has its part of this time.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How long [`Request::call`](crate::Request::call) waits for a reply. The default is `call_timeout_ms` of the
    /// profile, after which the core itself ends every call.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// How long a call that was not sent waits for a lost connection (default: `call_timeout_ms` of the profile). With zero
    /// it fails immediately.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = Some(patience);
        self
    }

    /// How long a thread that waits for a reply looks for it before it sleeps (default: 50 us). Sleeping costs some
    /// microseconds for each call; looking costs the processor.
    #[must_use]
    pub fn spin(mut self, spin: Duration) -> Self {
        self.spin = spin;
        self
    }

    /// When a lost connection is made again.
    #[must_use]
    pub fn reconnect(mut self, reconnect: Reconnect) -> Self {
        self.reconnect = reconnect;
        self
    }

    /// Of several addresses of a server: at which the connections are made (default: [`Start::Spread`]).
    #[must_use]
    pub fn start(mut self, start: Start) -> Self {
        self.start = start;
        self
    }

    /// How long a connection stays at another address than that where it is made, before it goes back (default: 2 s). `None` is for
    /// ever.
    ///
    /// The first address is tried from then on, while calls go on at the other one. When the new connection is there, the calls
    /// move to it, and the old one is closed. For that no call may be under way: new ones wait until the others have ended, but for
    /// at most 100 ms. With calls that take longer the connection stays where it is, and tries again after twice the time. So it
    /// does where the first address loses connections soon. It waits for at most 5 minutes, and up to half longer at random.
    /// Attempts that fail are repeated as [`ClientBuilder::reconnect`] says.
    #[must_use]
    pub fn return_after(mut self, after: Option<Duration>) -> Self {
        self.return_after = after;
        self
    }

    /// Who the server must be; this end proves itself in the same exchange.
    #[must_use]
    pub fn authentication(mut self, authentication: Authentication) -> Self {
        self.authentication = authentication;
        self
    }

    /// Makes calls again that were lost with their connection, when it is there again (default: no; they fail with
    /// [`ErrorKind::Disconnected`](crate::ErrorKind::Disconnected)). The server must not run them twice: its procedures are
    /// idempotent or marked ([`NodeBuilder::procedure_once`]), or it knows repeated calls by address and XID, as NFS servers
    /// do.
    ///
    /// A lost call is repeated for as long as one that was not sent waits ([`ClientBuilder::patience`], counted from the first
    /// loss). It fails with `Disconnected` in three cases: this time is over; the server was restarted and has lost what it
    /// kept; or the core has too little memory for the results. A server of version 1, or one that announces no name, does not show that it was restarted: the call runs again there. Such a server also knows a client
    /// only by the address that it comes from, so a call is not repeated to it by another of its addresses.
    ///
    /// Bulk data that a call sends stays in its buffer until the call has ended. Results of a repeated call do not come into the
    /// memory of [`Request::expect_bulk_into`](crate::Request::expect_bulk_into), but into memory of the core (`bulk_buffers`): the
    /// server may still write to the other by the lost connection.
    ///
    /// At most 64 calls of a connection are made from the oldest one without an answer to the newest, so that the server has
    /// the replies to all of them; further ones wait. So one call that takes long holds up others behind the next 63.
    #[must_use]
    pub fn repeat(mut self, repeat: bool) -> Self {
        self.repeat = repeat;
        self
    }

    /// Connects to the server at `address`, and returns when all connections are there.
    ///
    /// `address` may be several addresses of the same server, as in `rdma:10.0.0.1:20049,10.0.1.1:20049` or `shm:a,b`: 8 at most,
    /// where the server listens ([`NodeBuilder::also_at`](crate::NodeBuilder::also_at)). [`ClientBuilder::start`] says where
    /// connections begin. One that is lost is made again at the next address, immediately if that has not failed lately, and goes
    /// back when the first one works again ([`ClientBuilder::return_after`]). Calls that were under way when it was lost fail, or
    /// are made again with [`ClientBuilder::repeat`]. All addresses are reached through the device of the node.
    ///
    /// # Errors
    /// [`ErrorKind::NotConnected`](crate::ErrorKind::NotConnected) when they are not there in time, with the reason of the
    /// last attempt; and those of [`NodeBuilder::start`].
    pub fn connect(self, address: &str) -> Result<Client, Error> {
        let given = self.connect_timeout;
        let (client, changes) = self.begin(address)?;
        // From here: starting the node does not count.
        let deadline = Instant::now().checked_add(given);
        for connection in &client.inner.connections {
            changes.wait(&connection.peer, deadline, given)?;
        }
        Ok(client)
    }

    /// As [`ClientBuilder::connect`], but returns immediately: calls wait for their connection. For threads that poll the core
    /// themselves ([`NodeBuilder::polled_by_caller`]), which nobody does while they wait.
    ///
    /// # Errors
    /// Those of [`NodeBuilder::start`].
    pub fn connect_later(self, address: &str) -> Result<Client, Error> {
        self.begin(address).map(|(client, _)| client)
    }

    fn begin(self, address: &str) -> Result<(Client, Arc<Changes>), Error> {
        let node = match self.node {
            Some(node) => node,
            None => self.new_node.start_for(address, Use::Connect)?,
        };
        let addresses = node.addresses(address)?;
        let profile = node.profile();
        let timeout = Duration::from_millis(profile.call_timeout_ms.into());
        let patience = self.patience.unwrap_or(timeout);
        let timeout = self.timeout.unwrap_or(timeout);
        let results_bytes_max = profile.message_bytes_max as usize;
        let count = u32::try_from(addresses.len()).unwrap_or(1);
        let changes = Arc::new(Changes::default());
        let mut connections = Vec::with_capacity(self.connections);
        for number in 0..self.connections {
            let addresses = match self.start {
                Start::Spread => addresses.beginning_at(number),
                Start::Standby => addresses.clone(),
            };
            let each: Vec<_> = addresses.iter().map(ToString::to_string).collect();
            let number = self.first_core.wrapping_add(number) % node.cores();
            let core = Arc::clone(node.core(number));
            let peer = Arc::new(PeerConnection::new(&each, patience, self.repeat));
            let slots = Arc::new(Slots::new(self.depth));
            let submissions = core.open_to_slots(&peer, &slots)?;
            let options = ConnectOptions {
                core: CoreChoice::Core(number),
                versions: self.versions,
                // So that `connect` tries all addresses, also where the first one does not answer.
                timeout: self.connect_timeout / count,
                authentication: self.authentication.clone(),
                ..ConnectOptions::default()
            };
            let plan = Plan {
                control: Arc::clone(&node.handle),
                names: [node.new_name(), node.new_name()],
                addresses: addresses.to_string(),
                options,
                reconnect: self.reconnect,
                returns: Returns(self.return_after),
            };
            let parts = (Arc::clone(&peer), Arc::clone(&core), Arc::clone(&changes));
            let home = Home::open(plan, parts.0, parts.1, parts.2);
            connections.push(Arc::new(ClientConnection {
                peer,
                core,
                slots,
                submissions: Mutex::new(submissions),
                results_bytes_max,
                timeout,
                spin: self.spin,
                home,
                node: node.clone(),
            }));
        }
        Ok((Client::new(connections), changes))
    }
}

impl fmt::Debug for ClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientBuilder")
            .field("connections", &self.connections)
            .field("depth", &self.depth)
            .finish_non_exhaustive()
    }
}

/// Tells the thread that connects that a connection has changed.
#[derive(Default)]
pub(super) struct Changes {
    count: Mutex<u64>,
    changed: Condvar,
}

impl Changes {
    pub(super) fn tell(&self) {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.changed.notify_all();
    }

    /// Waits until the connection is there; for ever without a deadline.
    fn wait(
        &self,
        peer: &PeerConnection,
        deadline: Option<Instant>,
        given: Duration,
    ) -> Result<(), Error> {
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if peer.is_connected() {
                return Ok(());
            }
            let address = peer.address.clone();
            if peer.is_given_up() {
                let why = peer.why().unwrap_or_default();
                return Err(Failure::GivenUp { address, why }.into());
            }
            let left = deadline.map_or(Duration::MAX, |it| {
                it.saturating_duration_since(Instant::now())
            });
            if left.is_zero() {
                return Err(Failure::NotConnected {
                    address,
                    after_ms: u64::try_from(given.as_millis()).unwrap_or(u64::MAX),
                    last: peer.why(),
                }
                .into());
            }
            let waited = self.changed.wait_timeout(count, left);
            (count, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}
