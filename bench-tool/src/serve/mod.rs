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

use rpcrdma::Node;
use rpcrdma_control::{CoreView, Fabric, NodeConfig, Use};
use rpcrdma_engine::Application;
use rpcrdma_protocol::v2::ReverseRequestSupport;
use rpcrdma_tuning::{Loaded, Profile};

use crate::bench_program::{BenchService, Common};
use crate::exit::Failure;
use crate::machine::Machine;
use crate::profile::warnings_of_node;
use crate::record::{Limits, Record};
use crate::signals::Stop;
use crate::sizing::call_payload_bytes_max;
use crate::threads;

use self::config::{ServeConfig, Service};
use self::listening::{check_free, end, listen_at_all};
use self::nfs3::serve_on_fabric;
use self::operate::Operator;

/// Serves over RPC-over-RDMA until a signal, or the end of the run, stops it.
///
/// # Errors
/// A usage failure for an unusable profile; a failure if the server cannot be set up or cannot listen.
pub(crate) fn execute(config: &ServeConfig) -> Result<(), Failure> {
    let fabric = Fabric::of(config.listen.iter(), config.device.as_deref(), Use::Listen)?;
    let fabric = fabric.delayed(config.delay)?;
    check_free(&config.addresses())?;
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
            serve.run()
        }
        Service::Nfs3(nfs3) => serve_on_fabric(config, nfs3, loaded, &fabric, operator),
    }
}

/// Starts a server's node, which runs `application` on each core.
///
/// # Errors
/// If the node cannot be set up.
fn start_node<A: Application>(
    config: &ServeConfig,
    fabric: &Fabric,
    profile: Profile,
    operator: &Operator,
    configure: impl FnOnce(NodeConfig) -> NodeConfig + 'static,
    application: impl FnMut(usize) -> A + 'static,
) -> Result<Node, Failure> {
    let events = operator.events();
    Node::builder()
        .profile(profile)
        .pinned(config.cores.iter().copied())
        .faults(operator.faults())
        .configure(|config| NodeConfig {
            events: Some(events),
            ..configure(config)
        })
        .application(application)
        .start_on(fabric.clone())
        .map_err(|error| Failure::failed("the server could not be set up").because(error))
}

/// The bench server.
struct Serve<'a> {
    config: &'a ServeConfig,
    time: Duration,
    reverse: bool,
    loaded: &'a Loaded,
    fabric: &'a Fabric,
    operator: Operator,
}

impl Serve<'_> {
    fn run(mut self) -> Result<(), Failure> {
        let (time, reverse) = (self.time, self.reverse);
        let core = NodeConfig::from_profile(&self.loaded.profile, Vec::new()).core;
        let common = Arc::new(Common::new(core.bulk_buffers, core.bulk_buffer_bytes));
        let configure = move |config: NodeConfig| match reverse {
            true => config.with_reverse_calls(ReverseRequestSupport::Inline),
            false => config,
        };
        let shared = Arc::clone(&common);
        let service = move |_| BenchService::new(Arc::clone(&shared)).working_for(time);
        let node = start_node(
            self.config,
            self.fabric,
            self.loaded.profile.clone(),
            &self.operator,
            configure,
            service,
        )?;
        warnings_of_node(&node, self.loaded).for_each(|it| self.operator.warn(it));
        self.operator.attend(&node)?;
        let cores = node.control().cores().to_vec();
        common.set_counters(Box::new(move || {
            let all = cores.iter().map(CoreView::counters);
            all.reduce(|sum, core| sum.plus(&core)).unwrap_or_default()
        }));
        common.set_facts(self.facts());
        let listeners = listen_at_all(&node, self.config)?;
        let operator = &mut self.operator;
        if self.config.operation.is_of_run {
            ask_when_stdin_closes(operator.stop().clone())?;
        }
        operator.ready(&listeners, "")?;
        // WAIT: for a stop request.
        operator.wait(&node);
        end(node, &self.loaded.profile, operator)
    }

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
fn ask_when_stdin_closes(stop: Stop) -> Result<(), Failure> {
    let read = move || {
        let mut rest = [0; 64];
        // WAIT: for the end of the run, in a thread that nobody waits for.
        while matches!(std::io::stdin().lock().read(&mut rest), Ok(bytes) if bytes > 0) {}
        stop.ask();
    };
    threads::start("stdin", read).map(drop)
}
