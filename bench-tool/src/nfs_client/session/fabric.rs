//! A server over RPC-over-RDMA: polling cores, and their connections to the server.

use std::sync::Arc;
use std::time::Duration;

use rpcrdma::Node;
use rpcrdma_control::{ConnectOptions, Fabric, ServerAddresses};
use rpcrdma_engine::{Call, CallError};
use rpcrdma_protocol::rpc::AcceptStatus;
use rpcrdma_tuning::Loaded;

use super::Session;
use crate::authentication::of_server;
use crate::exit::Failure;
use crate::load::connections::Connections;
use crate::load::control::{SingleCall, SingleError, SingleReply};
use crate::load::cores::LoadCores;
use crate::load::measure::Checkpoints;
use crate::load::measured::Measured;
use crate::load::{Amount, Watch};
use crate::nfs_client::config::{FILL_BYTES_MAX, FILL_DEPTH, NfsConfig};
use crate::profile::{warnings_here, warnings_of_node};
use crate::signals::Stop;
use crate::sizing::{BulkNeed, Need};
use crate::workloads::nfs::tally::Tally;
use crate::workloads::nfs::{NfsWorkload, RESULTS_BYTES_MAX, Work, call_of};
use rpcrdma_nfs3::client::CALL_TIMEOUT;
use rpcrdma_nfs3::client::caller::{CallFailed, NfsCaller, Results};
use rpcrdma_nfs3::client::credential::Credential;
use rpcrdma_nfs3::client::mount::REPLY_BYTES_MAX as MOUNT_REPLY_BYTES_MAX;
use rpcrdma_nfs3::client::request::{ARGUMENTS_BYTES_MAX, Request};
use rpcrdma_nfs3::wire::mount::{self, MountProcedure};

/// How long outstanding calls may take after the measurement.
const END_TIMEOUT: Duration = Duration::from_secs(60);

/// The largest payload of a run. The WRITEs that fill the files count too.
fn payload_bytes(config: &NfsConfig) -> u32 {
    config.size_bytes.max(FILL_BYTES_MAX)
}

/// The tuning profile for a run.
///
/// # Errors
/// A usage failure if no profile allows the configured load.
pub(crate) fn profile(config: &NfsConfig, fabric: &Fabric) -> Result<Loaded, Failure> {
    let cores = u32::try_from(config.load.cores.len())
        .unwrap_or(u32::MAX)
        .max(1);
    let connections = config.load.connections.div_ceil(cores);
    let depth = config.load.depth.max(FILL_DEPTH);
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
        is_known: false,
        payload_bytes: Some(payload_bytes(config).into()),
        bulk: BulkNeed { calls, payloads: 1 },
        calls_per_core: Some(calls),
        cores,
        park: false,
    }
    .profile_of_calls(&config.profile, fabric)
}

/// Connections to a server over RPC-over-RDMA.
pub(crate) struct FabricSession {
    // Declared before the node, so dropped before it: reconnecting must end before the cores do.
    connections: Connections,
    /// Keeps the cores running.
    node: Node,
    cores: LoadCores<NfsWorkload>,
    credential: Credential,
    /// Upper bound of a READ outside of a load, in bytes.
    read_bytes_max: u32,
    stop: Stop,
}

impl FabricSession {
    /// Starts the cores and makes the connections.
    pub(crate) fn connect(
        fabric: &Fabric,
        config: &NfsConfig,
        credential: &Credential,
        addresses: &ServerAddresses,
        loaded: &Loaded,
        stop: &Stop,
    ) -> Result<Self, Failure> {
        // Start no more cores than connections: a core without one would only spin.
        let count = config.load.connections as usize;
        let numbers: Vec<usize> = config.load.cores.iter().take(count).copied().collect();
        let cores = LoadCores::new(&numbers);
        let node = Node::builder()
            .profile(loaded.profile.clone())
            .pinned(numbers)
            .application(cores.generators())
            .start_on(fabric.clone())
            .map_err(|error| Failure::failed("the cores could not be set up").because(error))?;
        let options = ConnectOptions {
            timeout: Duration::from_millis(loaded.profile.connect_timeout_ms.into()),
            authentication: of_server(config.host.as_ref()),
            versions: config.protocol.versions(),
            ..ConnectOptions::default()
        };
        // WAIT: see there.
        let connections = Connections::connect(
            &node,
            addresses,
            (count, cores.count()),
            &options,
            config.load.retry,
            &Stop::new(),
        )
        .map_err(|failure| {
            failure.advice("the server must serve NFS at this address, over a version of RPC-over-RDMA that --protocol allows")
        })?;
        Ok(Self {
            connections,
            node,
            cores,
            credential: credential.clone(),
            read_bytes_max: payload_bytes(config),
            stop: stop.clone(),
        })
    }

    /// The negotiated version of RPC-over-RDMA.
    pub(crate) fn version(&self) -> u32 {
        self.connections.first().map_or(2, |it| it.version)
    }

    /// The warnings about the profile that was `loaded`, and about what the devices of the cores lack of it.
    pub(crate) fn warnings(&self, loaded: &Loaded) -> Vec<String> {
        let mut warnings = warnings_here(loaded);
        warnings.extend(warnings_of_node(&self.node, loaded).cloned());
        warnings
    }
}

impl Session for FabricSession {
    fn measure(
        &mut self,
        work: Arc<Work>,
        amount: &Amount,
        watch: &Watch,
        checkpoints: &mut Checkpoints<'_>,
    ) -> Result<(Measured, Tally), Failure> {
        watch.gate.pass(&watch.progress, &watch.stop);
        let workload =
            |part, parts| NfsWorkload::new(Arc::clone(&work), self.credential.clone(), part, parts);
        let (mut measured, workloads) = self.cores.measure(
            &mut self.connections,
            workload,
            amount,
            END_TIMEOUT,
            watch,
            checkpoints,
        );
        if amount.retry.is_zero() {
            let broken = measured.broken(self.connections.count(), self.connections.address());
            measured.failure = measured.failure.take().or(broken);
        }
        measured.paths = self.connections.paths(&measured.losses);
        let mut tally = Tally::default();
        for workload in workloads {
            tally.merge(workload.tally);
        }
        Ok((measured, tally))
    }

    fn caller(&mut self) -> Result<Box<dyn NfsCaller + '_>, Failure> {
        self.connections.restore(&self.cores, || false)?;
        self.caller_now()
    }

    fn caller_now(&mut self) -> Result<Box<dyn NfsCaller + '_>, Failure> {
        Ok(Box::new(OverFabric {
            connections: &mut self.connections,
            cores: &self.cores,
            credential: &self.credential,
            read_bytes_max: self.read_bytes_max,
            stop: &self.stop,
        }))
    }
}

/// Single calls on the first connection.
struct OverFabric<'a> {
    connections: &'a mut Connections,
    cores: &'a LoadCores<NfsWorkload>,
    credential: &'a Credential,
    read_bytes_max: u32,
    stop: &'a Stop,
}

impl OverFabric<'_> {
    fn call_single(
        &self,
        call: Call,
        args: &[u8],
        results_bytes_max: usize,
        data_bytes_max: u32,
    ) -> Result<SingleReply, CallFailed> {
        let Some(first) = self.connections.first() else {
            return Err(CallFailed::Closed);
        };
        let auth = self.credential.auth();
        let call = SingleCall {
            connection: first.key,
            call,
            credential: (auth.flavor, auth.body.to_vec()),
            args: args.to_vec(),
            results_bytes_max,
            data_bytes_max,
        };
        let control = self.cores.control(first.core);
        control.call(call, CALL_TIMEOUT).map_err(failed)
    }
}

fn failed(error: SingleError) -> CallFailed {
    let refused = CallFailed::Refused;
    match error {
        SingleError::Failed(CallError::ProgramUnavailable) => refused(AcceptStatus::ProgUnavail),
        SingleError::Failed(CallError::ProgramMismatch { low, high }) => {
            refused(AcceptStatus::ProgMismatch { low, high })
        }
        error if error.is_lost() => CallFailed::Lost(error.to_string()),
        error => CallFailed::Fabric(error.to_string()),
    }
}

impl NfsCaller for OverFabric<'_> {
    fn call_once(
        &mut self,
        request: &Request<'_>,
        data_bytes_max: u32,
    ) -> Result<Results, CallFailed> {
        let mut args = [0; ARGUMENTS_BYTES_MAX];
        let bytes = request.encode(&mut args)?;
        let args = args.get(..bytes).unwrap_or(&[]);
        let call = call_of(request.procedure().number());
        let reply = self.call_single(call, args, RESULTS_BYTES_MAX, data_bytes_max)?;
        Ok(Results {
            stream: reply.results,
            bulk: reply.bulk,
            ..Results::default()
        })
    }

    fn call_mount_once(
        &mut self,
        procedure: MountProcedure,
        args: &[u8],
    ) -> Result<Vec<u8>, CallFailed> {
        let call = Call {
            program: mount::PROGRAM,
            version: mount::VERSION,
            procedure: procedure.number(),
        };
        let reply = self.call_single(call, args, MOUNT_REPLY_BYTES_MAX, 0)?;
        Ok(reply.results)
    }

    fn restore(&mut self) -> bool {
        let lost = self.connections.first().map(|it| it.key);
        lost.is_some_and(|lost| {
            self.connections
                .restore_first(self.cores, lost, || self.stop.is_asked())
        })
    }

    fn read_bytes_max(&self) -> u32 {
        self.read_bytes_max
    }
}

#[cfg(test)]
mod tests;
