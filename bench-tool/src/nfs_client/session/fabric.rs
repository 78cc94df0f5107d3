//! A server over a fabric of this project: polling cores, and connections between them and the server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rpcrdma_control::{ConnectOptions, Connection, CoreChoice, Node, NodeConfig, Provider};
use rpcrdma_tuning::Loaded;

use super::{CALL_TIMEOUT, Session};
use crate::address::Address;
use crate::authentication::of_server;
use crate::exit::Failure;
use crate::fabric::Fabric;
use crate::nfs_client::caller::{CallFailed, NfsCaller};
use crate::nfs_client::config::NfsConfig;
use crate::nfs_client::credential::Credential;
use crate::nfs_client::load::fabric::{Answer, Caller, Desk, Order};
use crate::nfs_client::load::{Amount, Measured};
use crate::nfs_client::request::{ARGUMENTS_BYTES_MAX, Request};
use crate::nfs_client::workload::Work;
use crate::run::Watch;
use crate::run::config::Limit;
use crate::sizing::{BulkNeed, Need};

/// The most bytes of a READ that is no part of a load: with all else its reply fits a message of any server.
const READ_BYTES_MAX: u32 = 512;

/// Payloads are at least as long as those that fill the files.
const PAYLOAD_BYTES_LEAST: u64 = crate::nfs_client::FILL_BYTES_MAX as u64;

/// How long outstanding calls may take after the measurement.
const END_TIMEOUT: Duration = Duration::from_secs(60);

/// The tuning profile for a run.
///
/// # Errors
/// A usage failure when it cannot carry what is asked for.
pub(crate) fn profile(config: &NfsConfig, fabric: &Fabric) -> Result<Loaded, Failure> {
    let cores = u32::try_from(config.cores.len()).unwrap_or(u32::MAX).max(1);
    let connections = config.connections.div_ceil(cores);
    let depth = config.depth.max(crate::nfs_client::FILL_DEPTH);
    let calls = connections.saturating_mul(depth);
    if calls > 1 << 16 {
        return Err(Failure::usage(format!(
            "{connections} connections with {depth} calls each are more than the 65536 calls that one core can have outstanding"
        ))
        .advice("lower --depth or --connections, or give --cores more of them"));
    }
    Need {
        connections_per_core: Some(connections),
        credits: Some(depth),
        payload_bytes: Some(PAYLOAD_BYTES_LEAST.max(config.size_bytes.into())),
        bulk: BulkNeed { calls, payloads: 1 },
        calls_per_core: Some(calls),
        cores,
        park: false,
    }
    .profile(&config.profile, fabric)
}

/// Connections to a server over a fabric.
pub(crate) struct FabricSession<V: Provider> {
    node: Node<V, Caller>,
    desks: Vec<Arc<Desk>>,
    connections: Vec<Connection>,
}

impl<V: Provider> FabricSession<V> {
    /// Starts the cores and makes the connections.
    pub(crate) fn connect(
        provider: V,
        config: &NfsConfig,
        credential: &Credential,
        address: &Address,
        loaded: &Loaded,
    ) -> Result<Self, Failure> {
        // A core without a connection has nothing to do.
        let connections = config.connections as usize;
        let cores: Vec<_> = config.cores.iter().take(connections).copied().collect();
        let desks: Vec<Arc<Desk>> = cores.iter().map(|_| Arc::default()).collect();
        let cores: Vec<_> = cores.into_iter().map(Some).collect();
        let node_config = NodeConfig::from_profile(&loaded.profile, cores);
        let node = Node::start(provider, &node_config, |core| {
            let desk = desks.get(core).map(Arc::clone).unwrap_or_default();
            Caller::new(desk, credential.clone())
        })
        .map_err(|error| Failure::failed("the cores could not be set up").because(error))?;
        let mut session = Self {
            node,
            desks,
            connections: Vec::with_capacity(connections),
        };
        for number in 0..connections {
            let connection = session.make_connection(number, config, address, loaded)?;
            session.connections.push(connection);
        }
        Ok(session)
    }

    /// The version of RPC-over-RDMA that is spoken.
    pub(crate) fn version(&self) -> u32 {
        self.connections.first().map_or(2, |it| it.version)
    }

    fn make_connection(
        &self,
        number: usize,
        config: &NfsConfig,
        address: &Address,
        loaded: &Loaded,
    ) -> Result<Connection, Failure> {
        let options = ConnectOptions {
            core: CoreChoice::Core(number % self.desks.len().max(1)),
            timeout: Duration::from_millis(loaded.profile.connect_timeout_ms.into()),
            authentication: of_server(None),
            versions: config.protocol.versions(),
        };
        let pending = self.node.connect_start(&address.to_string(), options);
        pending.wait().map_err(|error| {
            Failure::failed(format!("cannot connect to {address}"))
                .because(error)
                .advice("the server must serve NFS there, over RPC-over-RDMA of a version that is spoken here")
        })
    }
}

impl<V: Provider> Session for FabricSession<V> {
    fn measure(
        &mut self,
        work: Arc<Work>,
        amount: &Amount,
        watch: &Watch,
    ) -> Result<Measured, Failure> {
        let parts = u32::try_from(self.desks.len()).unwrap_or(1);
        for (core, (desk, part)) in self.desks.iter().zip(0_u32..).enumerate() {
            let own = self.connections.iter().filter(|it| it.core == core);
            desk.ask(Order::Load {
                connections: own.map(|connection| connection.key).collect(),
                work: Arc::clone(&work),
                amount: amount.share(part, parts),
                part,
                parts,
                watch: watch.clone(),
            });
        }
        let mut deadline = match amount.limit {
            Limit::Duration(time) => Some(Instant::now() + amount.warmup + time + END_TIMEOUT),
            Limit::Count(_) => None,
        };
        let mut measured = Measured::new(&[]);
        for desk in &self.desks {
            let answer = desk.wait(|| {
                if deadline.is_none() && watch.stop.is_asked() {
                    deadline = Some(Instant::now() + END_TIMEOUT);
                }
                deadline.is_none_or(|deadline| Instant::now() < deadline)
            });
            match answer {
                Some(Answer::Measured(part)) => measured.merge(*part),
                _ => {
                    return Err(Failure::failed(format!(
                        "calls were still outstanding {} s after the measurement",
                        END_TIMEOUT.as_secs()
                    ))
                    .advice("the server may be stopped or overloaded"));
                }
            }
        }
        Ok(measured)
    }

    fn caller(&mut self) -> Result<Box<dyn NfsCaller + '_>, Failure> {
        let desk = self.desks.first();
        match (desk, self.connections.first()) {
            (Some(desk), Some(connection)) => Ok(Box::new(OverFabric { desk, connection })),
            _ => Err(Failure::failed("there is no connection to call on")),
        }
    }
}

/// Single calls, on the first connection.
struct OverFabric<'a> {
    desk: &'a Desk,
    connection: &'a Connection,
}

impl NfsCaller for OverFabric<'_> {
    fn call(&mut self, request: &Request<'_>) -> Result<Vec<u8>, CallFailed> {
        let mut args = [0; ARGUMENTS_BYTES_MAX];
        let bytes = request.encode(&mut args)?;
        self.desk.ask(Order::Call {
            connection: self.connection.key,
            procedure: request.procedure().number(),
            args: args.get(..bytes).unwrap_or(&[]).to_vec(),
        });
        let deadline = Instant::now() + CALL_TIMEOUT;
        match self.desk.wait(|| Instant::now() < deadline) {
            Some(Answer::Results(results)) => results.map_err(CallFailed::Fabric),
            _ => Err(CallFailed::Fabric("no answer came in time".to_owned())),
        }
    }

    fn read_bytes_max(&self) -> u32 {
        READ_BYTES_MAX
    }
}

#[cfg(test)]
mod tests;
