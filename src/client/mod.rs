//! Clients: threads and tasks that call a server.

mod builder;
mod connection;
mod home;
mod poller;
mod request;
mod response;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

pub use self::builder::{ClientBuilder, Start};
pub use self::poller::{Ended, Poller};
pub use self::request::{Pending, Request};
pub use self::response::Response;

use self::connection::ClientConnection;
use crate::buffers::Buffers;
use crate::error::Error;
use crate::node::Node;
use crate::procedure::Procedure;

/// Calls the server at one address, from any number of threads and tasks.
///
/// A client is cheap to clone, and its clones share its connections. It connects again when a connection is lost: calls
/// that were sent then fail with [`ErrorKind::Disconnected`](crate::ErrorKind::Disconnected), because the server may have
/// executed them; calls that were not sent yet wait for the new connection.
///
/// # Example
/// ```
/// use rpcrdma::prelude::*;
///
/// # fn main() -> rpcrdma::Result<()> {
/// # let address = format!("shm:client-{}", std::process::id());
/// const ECHO: Procedure = Procedure::new(0x2000_0001, 1, 1);
/// # let server = Server::builder().procedure(ECHO, |call, reply| {
/// #     reply.opaque(call.args().opaque()?);
/// #     Ok(())
/// # }).listen(&address)?;
/// let client = Client::connect(&address)?;
/// let mut answer = client.request(ECHO).opaque(b"ping").call()?;
/// assert_eq!(answer.results().opaque()?, b"ping");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    connections: Box<[Arc<ClientConnection>]>,
    next: AtomicUsize,
}

impl Client {
    fn new(connections: Vec<Arc<ClientConnection>>) -> Self {
        Self {
            inner: Arc::new(Inner {
                connections: connections.into(),
                next: AtomicUsize::new(0),
            }),
        }
    }

    /// Connects to the server at `address` (`shm:NAME` or `rdma:HOST:PORT`), on a new node with one core.
    /// Returns when the connection is there.
    ///
    /// # Errors
    /// [`ErrorKind::NotConnected`](crate::ErrorKind::NotConnected) when it is not there in five seconds, and those of
    /// [`NodeBuilder::start`](crate::NodeBuilder::start).
    pub fn connect(address: &str) -> Result<Self, Error> {
        Self::builder().connect(address)
    }

    /// Chooses the node, the time limits, and how much may be under way.
    #[must_use]
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// Begins a call: add the arguments with the methods of [`Encode`](crate::Encode), then send it.
    #[inline]
    pub fn request(&self, procedure: Procedure) -> Request {
        Request::new(self.connection(), procedure)
    }

    /// As [`Client::request`], in the memory of a reply that has been read, of this client or another: a loop that hands on
    /// what it got saves a look for spare memory in each call.
    #[inline]
    pub fn again(&self, procedure: Procedure, last: Response) -> Request {
        Request::again(self.connection(), procedure, last)
    }

    /// Calls `procedure` with a stream of XDR, and waits for the reply.
    ///
    /// # Errors
    /// Those of [`Request::call`].
    #[inline]
    pub fn call(&self, procedure: Procedure, args: &[u8]) -> Result<Response, Error> {
        use crate::encode::Encode as _;
        self.request(procedure).bytes(args).call()
    }

    /// As [`Client::call`], as a future that needs no runtime of ours.
    #[inline]
    pub fn call_async(&self, procedure: Procedure, args: &[u8]) -> Pending {
        use crate::encode::Encode as _;
        self.request(procedure).bytes(args).call_async()
    }

    /// A queue of up to `depth` calls for one thread, which sends and takes replies without waiting.
    ///
    /// # Errors
    /// [`ErrorKind::Configuration`](crate::ErrorKind::Configuration) when the core has no room for so many calls.
    pub fn poller(&self, depth: u32) -> Result<Poller, Error> {
        Poller::new(self.connection(), depth)
    }

    /// Registered memory for bulk data of this client's calls. With several connections it is of the core of the first, and
    /// calls of the other cores cannot send it; [`Encode::buffer_for`](crate::Encode::buffer_for) of a request always fits.
    #[must_use]
    pub fn buffers(&self) -> Buffers {
        Buffers::new(&self.inner.connections[0].core)
    }

    /// Whether all of its connections are there.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        let mut connections = self.inner.connections.iter();
        connections.all(|connection| connection.peer.is_connected())
    }

    /// The address at which each of its connections was made, in their order; `None` for one that is not there now.
    #[must_use]
    pub fn connected_at(&self) -> Vec<Option<String>> {
        let connections = self.inner.connections.iter();
        connections
            .map(|connection| connection.peer.connected_at().map(str::to_owned))
            .collect()
    }

    /// How often a lost connection was made again.
    #[must_use]
    pub fn reconnects(&self) -> u64 {
        let connections = self.inner.connections.iter();
        connections
            .map(|connection| connection.peer.established().saturating_sub(1))
            .sum()
    }

    /// How often a connection went back to its first address ([`ClientBuilder::return_after`]).
    #[must_use]
    pub fn returns(&self) -> u64 {
        let connections = self.inner.connections.iter();
        connections.map(|connection| connection.peer.moves()).sum()
    }

    /// Its node.
    #[must_use]
    pub fn node(&self) -> &Node {
        &self.inner.connections[0].node
    }

    /// The next connection in turn.
    #[inline]
    fn connection(&self) -> &Arc<ClientConnection> {
        let connections = &self.inner.connections;
        if let [connection] = &**connections {
            return connection;
        }
        let next = self.inner.next.fetch_add(1, Ordering::Relaxed);
        &connections[next % connections.len()]
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("address", &self.inner.connections[0].peer.address)
            .field("connections", &self.inner.connections.len())
            .finish_non_exhaustive()
    }
}
