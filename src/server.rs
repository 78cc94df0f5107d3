//! A server: a node that listens.

use std::time::Duration;

use rpcrdma_control::DrainReport;
use rpcrdma_engine::Application;

use crate::error::Error;
use crate::metrics::Metrics;
use crate::node::{Node, NodeBuilder};

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
    /// Chooses what the server is made of. Add what it serves with [`NodeBuilder::procedure`] or
    /// [`NodeBuilder::program`], then start it with [`NodeBuilder::listen`].
    #[must_use]
    pub fn builder() -> NodeBuilder {
        NodeBuilder::default()
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

impl<A: Application> NodeBuilder<A> {
    /// Starts the cores, and listens at `address`: `shm:NAME`, `rdma:HOST:PORT` or `tcp:HOST:PORT`.
    ///
    /// # Errors
    /// Those of [`NodeBuilder::start`] and [`Node::listen`].
    pub fn listen(self, address: &str) -> Result<Server, Error> {
        let (node, addresses) = self.start_listening(address)?;
        Ok(Server { node, addresses })
    }
}
