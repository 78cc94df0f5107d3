//! `bench-tool serve`: serves the bench program or NFS until a signal stops it.
//!
//! | module | contents |
//! |---|---|
//! | `config` | the configuration |
//! | [`operate`] | the operator's view: health, readiness, limits |
//! | [`metrics`] | the metrics |
//! | `nfs3` | NFS version 3 |
//! | `listening` | start and end of serving |
//! | [`limits`] | limits that can change at run time |
//! | [`log`] | the log |
//! | [`notify`] | readiness for the service manager |

pub(crate) mod config;
pub(crate) mod limits;
mod listening;
pub(crate) mod log;
pub(crate) mod metrics;
pub(crate) mod nfs3;
pub(crate) mod notify;
pub(crate) mod operate;

use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use rpcrdma_control::{Node, NodeConfig, NodeError, Provider};
use rpcrdma_engine::{Application, CoreHandle};
use rpcrdma_protocol::v2::ReverseRequestSupport;
use rpcrdma_tuning::Loaded;

use crate::bench_program::{BenchService, Common};
use crate::exit::Failure;
use crate::fabric::{Fabric, Job};
use crate::machine::Machine;
use crate::record::{Limits, Record};
use crate::signals::Stop;
use crate::sizing::call_payload_bytes_max;

use self::config::{ServeConfig, Service};
use self::listening::{end, listen};
use self::nfs3::ServeOnFabric;
use self::operate::Operator;

/// Serves over RPC-over-RDMA until a signal, or the end of the run, stops it.
///
/// # Errors
/// A usage failure for an unusable profile; a failure if the server cannot be set up or cannot listen.
pub(crate) fn execute(config: &ServeConfig) -> Result<(), Failure> {
    let fabric = Fabric::to_listen(&config.listen, config.device.as_deref())?;
    let fabric = fabric.delayed(config.delay)?;
    let loaded = &config.need.profile(&config.profile, &fabric)?;
    let operator = Operator::start(&config.operation, &config.cores)?;
    for warning in crate::profile::warnings_here(loaded) {
        operator.warn(&warning);
    }
    match &config.service {
        Service::Bench { time, reverse } => {
            let serve = Serve {
                config,
                time: *time,
                reverse: *reverse,
                loaded,
                fabric: &fabric,
                operator,
            };
            fabric.run(&loaded.profile, serve)
        }
        Service::Nfs3(nfs3) => {
            let serve = ServeOnFabric {
                config,
                nfs3,
                loaded,
                operator,
            };
            fabric.run(&loaded.profile, serve)
        }
    }
}

/// The bench server, generic over the fabric.
struct Serve<'a> {
    config: &'a ServeConfig,
    time: Duration,
    reverse: bool,
    loaded: &'a Loaded,
    fabric: &'a Fabric,
    operator: Operator,
}

impl Job for Serve<'_> {
    type Output = ();

    fn run<V: Provider>(self, provider: V) -> Result<(), Failure> {
        let cores = self.config.cores.iter().copied().map(Some).collect();
        let mut config = NodeConfig {
            events: Some(self.operator.events()),
            ..NodeConfig::from_profile(&self.loaded.profile, cores)
        };
        if self.reverse {
            config = config.with_reverse_calls(ReverseRequestSupport::Inline);
        }
        let common = Arc::new(Common::new(
            config.core.bulk_buffers,
            config.core.bulk_buffer_bytes,
        ));
        let time = self.time;
        let service = |_| BenchService::new(Arc::clone(&common)).working_for(time);
        let failed =
            |error: NodeError| Failure::failed("the server could not be set up").because(error);
        let faults = self.operator.faults().clone();
        if faults.is_empty() {
            let node = Node::start(provider, &config, service).map_err(failed)?;
            self.serve(node, &common)
        } else {
            let node = Node::start_with_faults(provider, &config, &faults, service);
            self.serve(node.map_err(failed)?, &common)
        }
    }
}

impl Serve<'_> {
    fn serve<V: Provider, A: Application>(
        mut self,
        node: Node<V, A>,
        common: &Common,
    ) -> Result<(), Failure> {
        self.operator.attend(&node)?;
        let cores = node.cores().to_vec();
        common.set_counters(Box::new(move || {
            let all = cores.iter().map(CoreHandle::counters);
            all.reduce(|sum, core| sum.plus(&core)).unwrap_or_default()
        }));
        common.set_facts(self.facts());
        let listening = listen(&node, &self.config.listen, self.config.host.as_ref())?;
        let operator = &mut self.operator;
        operator.ready(&listening)?;
        if self.config.operation.is_of_run {
            ask_when_stdin_closes(operator.stop().clone());
        }
        operator.wait(&node);
        end(node, &self.loaded.profile, operator)
    }
}

impl Serve<'_> {
    /// The record of this server, for its clients' reports.
    fn facts(&self) -> String {
        let (machine, cores) = (Machine::detect(), &self.config.cores);
        let record = Record::new(&machine, cores, self.loaded, self.fabric);
        let record = record.with_limits(Limits {
            call_payload_bytes_max: call_payload_bytes_max(&self.loaded.profile),
        });
        serde_json::to_string(&record).unwrap_or_default()
    }
}

/// Stops the server when standard input closes. The run that started the server holds the other end, and it closes
/// however that process ends, even by SIGKILL.
fn ask_when_stdin_closes(stop: Stop) {
    std::thread::spawn(move || {
        let mut rest = [0; 64];
        while matches!(std::io::stdin().lock().read(&mut rest), Ok(bytes) if bytes > 0) {}
        stop.ask();
    });
}
