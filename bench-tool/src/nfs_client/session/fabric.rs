//! A server over a fabric of this project: polling cores, and connections between them and the server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rpcrdma_control::{
    ConnectOptions, Connection, CoreChoice, GivenUp, Node, NodeConfig, Provider, Reconnect, Target,
    TargetEvent,
};
use rpcrdma_tuning::Loaded;

use super::Session;
use crate::address::Address;
use crate::authentication::of_server;
use crate::exit::Failure;
use crate::fabric::Fabric;
use crate::load::intervals::Collector;
use crate::nfs_client::config::NfsConfig;
use crate::nfs_client::load::desk::{Answer, Desk, Order, Single};
use crate::nfs_client::load::fabric::Caller;
use crate::nfs_client::load::{Amount, Measured};
use crate::nfs_client::workload::Work;
use crate::run::Watch;
use crate::run::config::Limit;
use crate::sizing::{BulkNeed, Need};
use rpcrdma_nfs3::client::CALL_TIMEOUT;
use rpcrdma_nfs3::client::caller::{CallFailed, NfsCaller, Results};
use rpcrdma_nfs3::client::credential::Credential;
use rpcrdma_nfs3::client::request::{ARGUMENTS_BYTES_MAX, Request};

/// How a connection that was lost is made again.
const RECONNECT: Reconnect = Reconnect {
    first_ms: 100,
    most_ms: 1000,
    factor: 2,
    jitter_percent: 50,
    attempts_max: None,
};

/// How soon a connection that was made again is noticed where nothing else is waited for.
const LOOK_PERIOD: Duration = Duration::from_millis(10);

/// How long outstanding calls may take after the measurement.
const END_TIMEOUT: Duration = Duration::from_secs(60);

/// The longest payload of a run: at least one of those that fill the files.
fn payload_bytes(config: &NfsConfig) -> u32 {
    config.size_bytes.max(crate::nfs_client::FILL_BYTES_MAX)
}

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
        payload_bytes: Some(payload_bytes(config).into()),
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
    lines: Vec<Line>,
    /// How long a lost connection is tried again; 0 does not.
    retry: Duration,
    /// The most bytes of a READ that is no part of a load.
    read_bytes_max: u32,
}

/// A connection, and what makes it again when it is lost.
struct Line {
    connection: Connection,
    /// `None` where a lost connection is not made again.
    target: Option<Target>,
    /// Since when it is lost, and why it is not made again so far.
    lost: Option<(Instant, String)>,
    reconnects: u64,
}

impl Line {
    /// Takes note of what became of the connection, and tells its core.
    ///
    /// # Errors
    /// When it is not going to be made again, or not in time.
    fn look_after(
        &mut self,
        desks: &[Arc<Desk>],
        retry: Duration,
        is_stopping: bool,
    ) -> Result<(), Failure> {
        let gone = |why: &str| {
            Failure::failed("a connection was lost, and could not be made again")
                .because(why.to_owned())
                .advice("look at the server's messages; --retry TIME says how long it may be away")
        };
        while let Some(event) = self.target.as_ref().and_then(Target::next_event) {
            match event {
                TargetEvent::Established { connection } => {
                    if let Some(desk) = desks.get(connection.core) {
                        desk.replace(self.connection.key, connection.key);
                    }
                    self.connection = connection;
                    self.reconnects += 1;
                    self.lost = None;
                }
                TargetEvent::Lost { reason, .. } => {
                    self.lost = Some((Instant::now(), reason.to_string()));
                }
                TargetEvent::Failed { error, .. } if is_stopping => {
                    return Err(gone(&error.to_string()));
                }
                TargetEvent::Failed { error, .. } => {
                    if let Some((_, why)) = &mut self.lost {
                        *why = error.to_string();
                    }
                }
                TargetEvent::GivenUp(GivenUp::Failed(error)) => {
                    return Err(gone(&error.to_string()));
                }
                TargetEvent::GivenUp(GivenUp::Closed(reason)) => {
                    return Err(gone(&reason.to_string()));
                }
            }
        }
        match &self.lost {
            Some((since, why)) if since.elapsed() > retry => Err(gone(why)),
            _ => Ok(()),
        }
    }
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
            lines: Vec::with_capacity(connections),
            retry: config.retry,
            read_bytes_max: payload_bytes(config),
        };
        for number in 0..connections {
            let line = session.make_line(number, config, address, loaded)?;
            session.lines.push(line);
        }
        Ok(session)
    }

    /// The version of RPC-over-RDMA that is spoken.
    pub(crate) fn version(&self) -> u32 {
        self.lines.first().map_or(2, |it| it.connection.version)
    }

    fn make_line(
        &self,
        number: usize,
        config: &NfsConfig,
        address: &Address,
        loaded: &Loaded,
    ) -> Result<Line, Failure> {
        let timeout = Duration::from_millis(loaded.profile.connect_timeout_ms.into());
        let options = ConnectOptions {
            core: CoreChoice::Core(number % self.desks.len().max(1)),
            timeout,
            authentication: of_server(None),
            versions: config.protocol.versions(),
        };
        let address = address.to_string();
        let line = |connection, target| Line {
            connection,
            target,
            lost: None,
            reconnects: 0,
        };
        let failed = |error| {
            Failure::failed(format!("cannot connect to {address}"))
                .because(error)
                .advice("the server must serve NFS there, over RPC-over-RDMA of a version that is spoken here")
        };
        if config.retry.is_zero() {
            let connection = self.node.connect(&address, options).map_err(failed)?;
            return Ok(line(connection, None));
        }
        let target = self.node.keep_connected(&address, options, RECONNECT);
        match target.wait(timeout.saturating_mul(2)) {
            Some(TargetEvent::Established { connection }) => Ok(line(connection, Some(target))),
            Some(
                TargetEvent::Failed { error, .. } | TargetEvent::GivenUp(GivenUp::Failed(error)),
            ) => Err(failed(error)),
            _ => Err(Failure::failed(format!("cannot connect to {address}"))),
        }
    }
}

impl<V: Provider> Session for FabricSession<V> {
    fn measure(
        &mut self,
        work: Arc<Work>,
        amount: &Amount,
        watch: &Watch,
    ) -> Result<Measured, Failure> {
        let Self { desks, lines, .. } = self;
        let (desks, retry) = (&desks[..], self.retry);
        let parts = u32::try_from(desks.len()).unwrap_or(1);
        for (core, (desk, part)) in desks.iter().zip(0_u32..).enumerate() {
            let own = lines.iter().map(|line| &line.connection);
            let own = own.filter(|connection| connection.core == core);
            desk.ask(Order::Load {
                connections: own.map(|connection| connection.key).collect(),
                work: Arc::clone(&work),
                amount: amount.share(part, parts),
                part,
                parts,
                watch: watch.clone(),
                goes_on: !retry.is_zero(),
            });
        }
        let mut deadline = match amount.limit {
            Limit::Duration(time) => {
                Some(Instant::now() + amount.warmup + time + retry + END_TIMEOUT)
            }
            Limit::Count(_) => None,
        };
        let mut measured = Measured::new(&[]);
        let mut lost = Ok(());
        let mut collectors: Vec<Collector> = desks.iter().map(|_| Collector::default()).collect();
        for (place, desk) in desks.iter().enumerate() {
            let answer = desk.wait(|| {
                for (collector, desk) in collectors.iter_mut().zip(desks) {
                    collector.collect(&desk.exchange);
                }
                let is_stopping = watch.stop.is_asked();
                let mut lines = lines.iter_mut();
                lost = lines.try_for_each(|line| line.look_after(desks, retry, is_stopping));
                if lost.is_err() {
                    return false;
                }
                if deadline.is_none() && is_stopping {
                    deadline = Some(Instant::now() + END_TIMEOUT);
                }
                deadline.is_none_or(|deadline| Instant::now() < deadline)
            });
            match answer {
                Some(Answer::Measured(mut part, last)) => {
                    let collector = collectors.get_mut(place).map(std::mem::take);
                    let collector = collector.unwrap_or_default();
                    let elapsed = part.elapsed;
                    let timeline = collector.finish(&desk.exchange, &last, place, elapsed);
                    part.timelines.push(timeline);
                    measured.merge(*part);
                }
                _ => {
                    lost?;
                    return Err(Failure::failed(format!(
                        "calls were still outstanding {} s after the measurement",
                        (retry + END_TIMEOUT).as_secs()
                    ))
                    .advice("the server may be stopped or overloaded"));
                }
            }
        }
        for line in lines {
            measured.reconnects += std::mem::take(&mut line.reconnects);
        }
        Ok(measured)
    }

    fn caller(&mut self) -> Result<Box<dyn NfsCaller + '_>, Failure> {
        let (Some(desk), Some(line)) = (self.desks.first(), self.lines.first_mut()) else {
            return Err(Failure::failed("there is no connection to call on"));
        };
        line.look_after(&self.desks, self.retry, false)?;
        while line.lost.is_some() {
            std::thread::sleep(LOOK_PERIOD);
            line.look_after(&self.desks, self.retry, false)?;
        }
        Ok(Box::new(OverFabric {
            desk,
            line,
            desks: &self.desks,
            retry: self.retry,
            read_bytes_max: self.read_bytes_max,
        }))
    }
}

/// Single calls, on the first connection.
struct OverFabric<'a> {
    desk: &'a Desk,
    line: &'a mut Line,
    desks: &'a [Arc<Desk>],
    retry: Duration,
    read_bytes_max: u32,
}

impl NfsCaller for OverFabric<'_> {
    fn call_once(
        &mut self,
        request: &Request<'_>,
        data_bytes_max: u32,
    ) -> Result<Results, CallFailed> {
        let mut args = [0; ARGUMENTS_BYTES_MAX];
        let bytes = request.encode(&mut args)?;
        self.desk.ask(Order::Call(Single {
            connection: self.line.connection.key,
            procedure: request.procedure().number(),
            args: args.get(..bytes).unwrap_or(&[]).to_vec(),
            data_bytes_max,
        }));
        let deadline = Instant::now() + CALL_TIMEOUT;
        match self.desk.wait(|| Instant::now() < deadline) {
            Some(Answer::Results(results)) => results,
            _ => Err(CallFailed::Fabric("no answer came in time".to_owned())),
        }
    }

    fn restore(&mut self) -> bool {
        let lost = self.line.connection.key;
        let deadline = Instant::now() + self.retry;
        while Instant::now() < deadline {
            let looked = self.line.look_after(self.desks, self.retry, false);
            if looked.is_err() {
                return false;
            }
            if self.line.connection.key != lost && self.line.lost.is_none() {
                return true;
            }
            std::thread::sleep(LOOK_PERIOD);
        }
        false
    }

    fn read_bytes_max(&self) -> u32 {
        self.read_bytes_max
    }
}

#[cfg(test)]
mod tests;
