//! A server: a node that listens.

use std::ops::RangeInclusive;
use std::time::Duration;

use rpcrdma_control::{Authentication, DrainReport};
use rpcrdma_tuning::Profile;

use crate::error::Error;
use crate::metrics::Metrics;
use crate::node::{Listen, Node, NodeBuilder};
use crate::procedure::Procedure;
use crate::service::{Incoming, Refusal, Reply, Service};

/// Serves programs at one or several addresses, until it is dropped.
///
/// # Example
/// ```
/// use rpcrdma::prelude::*;
///
/// # fn main() -> rpcrdma::Result<()> {
/// # let address = format!("shm:server-{}", std::process::id());
/// const ADD: Procedure = Procedure::new(0x2000_0001, 1, 1);
/// // One closure for each procedure; `program` takes a service with state instead.
/// let server = Server::builder()
///     .procedure(ADD, |call, reply| {
///         let sum = call.args().u32()?.wrapping_add(call.args().u32()?);
///         reply.u32(sum);
///         Ok(())
///     })
///     .listen(&address)?;
/// let client = Client::connect(&address)?;
/// let mut sum = client.request(ADD).u32(40).u32(2).call()?;
/// assert_eq!(sum.results().u32()?, 42);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Server {
    node: Node,
    addresses: Vec<String>,
}

impl Server {
    /// Chooses what the server is made of. Add what it serves with [`ServerBuilder::procedure`] or
    /// [`ServerBuilder::program`].
    #[must_use]
    pub fn builder() -> ServerBuilder {
        ServerBuilder::default()
    }

    /// Where it listens, with what the system chose.
    #[must_use]
    pub fn address(&self) -> &str {
        self.addresses.first().map_or("", String::as_str)
    }

    /// All addresses, in the order in which they were added.
    #[must_use]
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// Its cores and connections.
    #[must_use]
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// What it counts, for exporters.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        self.node.metrics()
    }

    /// Accepts no more connections and calls, lets those under way finish within `timeout`, and closes all connections.
    ///
    /// # Errors
    /// When the node has failed.
    pub fn drain(&self, timeout: Duration) -> Result<DrainReport, Error> {
        self.node.drain(timeout)
    }
}

/// Chooses what a [`Server`] is made of.
#[derive(Debug, Default)]
pub struct ServerBuilder {
    node: NodeBuilder,
    listen: Listen,
    more: Vec<String>,
}

impl ServerBuilder {
    /// As [`NodeBuilder::profile`].
    #[must_use]
    pub fn profile(mut self, profile: Profile) -> Self {
        self.node = self.node.profile(profile);
        self
    }

    /// As [`NodeBuilder::profile_named`].
    #[must_use]
    pub fn profile_named(mut self, name_or_path: &str) -> Self {
        self.node = self.node.profile_named(name_or_path);
        self
    }

    /// As [`NodeBuilder::pinned`].
    #[must_use]
    pub fn pinned(mut self, cpus: impl IntoIterator<Item = usize>) -> Self {
        self.node = self.node.pinned(cpus);
        self
    }

    /// As [`NodeBuilder::cores`].
    #[must_use]
    pub fn cores(mut self, cores: usize) -> Self {
        self.node = self.node.cores(cores);
        self
    }

    /// As [`NodeBuilder::device`].
    #[must_use]
    pub fn device(mut self, name: &str) -> Self {
        self.node = self.node.device(name);
        self
    }

    /// As [`NodeBuilder::program`].
    #[must_use]
    pub fn program<S: Service>(
        mut self,
        program: u32,
        versions: RangeInclusive<u32>,
        service: impl Fn(usize) -> S + 'static,
    ) -> Self {
        self.node = self.node.program(program, versions, service);
        self
    }

    /// Answers `procedure` with a closure. All cores share it, so what it changes must be atomic or locked; a [`Service`]
    /// has state of its core alone.
    #[must_use]
    pub fn procedure(
        mut self,
        procedure: Procedure,
        handler: impl Fn(&mut Incoming<'_>, &mut Reply<'_, '_>) -> Result<(), Refusal>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.node = self.node.procedure(procedure, handler);
        self
    }

    /// Who may connect. It must be chosen for `rdma:` addresses; on `shm` the kernel vouches for the peer's user.
    #[must_use]
    pub fn authentication(mut self, authentication: Authentication) -> Self {
        self.listen.authentication = authentication;
        self
    }

    /// Listens at a further address of the same fabric.
    #[must_use]
    pub fn also_at(mut self, address: &str) -> Self {
        self.more.push(address.to_owned());
        self
    }

    /// Starts the cores, and listens at `address`: `shm:NAME`, or `rdma:HOST:PORT`.
    ///
    /// # Errors
    /// Those of [`NodeBuilder::start`] and [`Node::listen`].
    pub fn listen(self, address: &str) -> Result<Server, Error> {
        let node = self.node.start(address)?;
        let more = self.more.iter().map(String::as_str);
        let addresses = std::iter::once(address)
            .chain(more)
            .map(|address| node.listen(address, self.listen.clone()))
            .collect::<Result<_, _>>()?;
        Ok(Server { node, addresses })
    }
}
