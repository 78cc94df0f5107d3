//! `bench-tool serve`: answers the bench program, or NFS, until it is told to end.
//!
//! | module | what |
//! |---|---|
//! | [`operate`] | what operators see of it |
//! | [`metrics`], [`exposition`] | what Prometheus reads, and its text |
//! | [`http`] | the pages by HTTP |
//! | `nfs3` | NFS version 3 |
//! | `listening` | how serving begins and ends |
//! | [`limits`] | what changes while it runs |
//! | [`log`] | its log |
//! | [`notify`] | readiness, for the service manager |

pub(crate) mod exposition;
pub(crate) mod http;
pub(crate) mod limits;
mod listening;
pub(crate) mod log;
pub(crate) mod metrics;
mod nfs3;
pub(crate) mod notify;
pub(crate) mod operate;

use std::io::Read;
use std::sync::Arc;

use rpcrdma_control::{Fault, Node, NodeConfig, NodeError, Provider};
use rpcrdma_engine::{Application, CoreHandle};
use rpcrdma_protocol::v2::ReverseRequestSupport;
use rpcrdma_tuning::Loaded;

use crate::address::{Address, ListenAddress};
use crate::authentication::Host;
use crate::bench_program::{BenchService, Common};
use crate::commands::{ServeArgs, ServiceName};
use crate::exit::Failure;
use crate::fabric::{Fabric, Job};
use crate::machine::Machine;
use crate::signals::Stop;
use crate::sizing::{BulkNeed, Need};

use self::listening::{end, listen};
use self::nfs3::ServeOnFabric;
use self::operate::Operator;

/// Calls with bulk data that a core has memory for when nobody says otherwise.
const BULK_CALLS_DEFAULT: u32 = 32;

/// Runs the command.
///
/// # Errors
/// A usage failure for cores or a profile that cannot be used, and a failure when the server
/// cannot be set up or the address cannot be listened on.
pub(crate) fn execute(args: &ServeArgs) -> Result<(), Failure> {
    let listen = match &args.listen {
        ListenAddress::Fabric(listen) => listen,
        ListenAddress::Tcp { host, port } if args.service == ServiceName::Nfs3 => {
            check_tcp(args)?;
            return nfs3::serve_on_tcp(args, host, *port);
        }
        ListenAddress::Tcp { .. } => {
            return Err(Failure::usage(format!(
                "the bench service cannot be served at {}: it measures RPC-over-RDMA",
                args.listen
            ))
            .advice("listen on shm:NAME or rdma:HOST:PORT, or serve --service nfs3"));
        }
    };
    if let Some(fault) = given_twice(&args.faults) {
        return Err(Failure::usage(format!("--fault {fault} is given twice")));
    }
    let machine = Machine::detect();
    let cores = server_cores(args, &machine)?;
    let fabric = Fabric::to_listen(listen, args.device.as_deref())?.delayed(args.slowed.delay)?;
    let core_count = u32::try_from(cores.len()).unwrap_or(u32::MAX);
    let need = Need {
        connections_per_core: args.max_connections.map(|all| all.div_ceil(core_count)),
        credits: args.credits,
        payload_bytes: args.max_payload,
        bulk: BulkNeed {
            calls: args.bulk_calls.unwrap_or(BULK_CALLS_DEFAULT),
            payloads: args.max_operations,
        },
        calls_per_core: None,
        cores: core_count,
        park: false,
    };
    let loaded = need.profile(&args.profile, &fabric)?;
    let operator = Operator::start(args, &cores)?;
    for warning in crate::profile::warnings_here(&loaded) {
        operator.warn(&warning);
    }
    if args.service == ServiceName::Nfs3 {
        if !args.slowed.service_time.is_zero() {
            let what = "--service-time slows the bench service, and means nothing with nfs3";
            return Err(Failure::usage(what));
        }
        let [core] = cores[..] else {
            return Err(Failure::usage(
                "one core owns the files of nfs3: give --cores one",
            ));
        };
        let serve = ServeOnFabric {
            args,
            listen,
            host: Host::new(&args.authentication)?,
            core,
            loaded: &loaded,
            operator,
        };
        return fabric.run(&loaded.profile, serve);
    }
    let serve = Serve {
        args,
        listen,
        host: Host::new(&args.authentication)?,
        operator,
        cores,
        loaded: &loaded,
    };
    fabric.run(&loaded.profile, serve)
}

/// Refuses what says nothing of TCP, rather than to let it have no effect.
fn check_tcp(args: &ServeArgs) -> Result<(), Failure> {
    let given = [
        ("--device", args.device.is_some()),
        ("--cores", args.cores.is_some()),
        ("--profile and --set", args.profile.given().is_some()),
        ("--credits", args.credits.is_some()),
        ("--reverse", args.reverse),
        ("--max-payload", args.max_payload.is_some()),
        ("--bulk-calls", args.bulk_calls.is_some()),
        ("--delay", !args.slowed.delay.is_zero()),
        ("--service-time", !args.slowed.service_time.is_zero()),
        ("--fault", !args.faults.is_empty()),
        ("--psk-file", args.authentication.psk_file.is_some()),
        ("--limits", args.operate.limits.is_some()),
    ];
    match given.iter().find(|(_, is_given)| *is_given) {
        Some((option, _)) => Err(Failure::usage(format!(
            "{option} is of RPC-over-RDMA, and says nothing of {}",
            args.listen
        ))),
        None => Ok(()),
    }
}

/// Serving, on whatever fabric.
struct Serve<'a> {
    args: &'a ServeArgs,
    listen: &'a Address,
    host: Option<Host>,
    cores: Vec<usize>,
    loaded: &'a Loaded,
    operator: Operator,
}

impl Job for Serve<'_> {
    type Output = ();

    fn run<V: Provider>(self, provider: V) -> Result<(), Failure> {
        let cores = self.cores.iter().copied().map(Some).collect();
        let mut config = NodeConfig {
            events: Some(self.operator.events()),
            ..NodeConfig::from_profile(&self.loaded.profile, cores)
        };
        if self.args.reverse {
            config = config.with_reverse_calls(ReverseRequestSupport::Inline);
        }
        let common = Arc::new(Common::new(
            config.core.bulk_buffers,
            config.core.bulk_buffer_bytes,
        ));
        let service_time = self.args.slowed.service_time;
        let service = |_| BenchService::new(Arc::clone(&common)).working_for(service_time);
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
        let listening = listen(&node, self.listen, self.host.as_ref())?;
        let operator = &mut self.operator;
        operator.ready(&listening)?;
        if self.args.exit_with_stdin {
            ask_when_stdin_closes(operator.stop().clone());
        }
        operator.wait(&node);
        end(node, &self.loaded.profile, operator)
    }
}

/// The first fault that is there before: metrics could not tell the two apart.
fn given_twice(faults: &[Fault]) -> Option<&Fault> {
    let mut before = faults.iter().enumerate();
    let twice = before.find(|(place, fault)| faults.iter().take(*place).any(|it| it == *fault));
    twice.map(|(_, fault)| fault)
}

fn server_cores(args: &ServeArgs, machine: &Machine) -> Result<Vec<usize>, Failure> {
    if let Some(cores) = &args.cores {
        machine.check_cores(cores)?;
        return Ok(cores.0.clone());
    }
    machine
        .cores_usable
        .last()
        .map(|core| vec![*core])
        .ok_or_else(|| Failure::failed("this process may use no core"))
}

/// Whoever started us holds the other end of standard input; it closes however that process ends.
fn ask_when_stdin_closes(stop: Stop) {
    std::thread::spawn(move || {
        let mut rest = [0; 64];
        while matches!(std::io::stdin().lock().read(&mut rest), Ok(bytes) if bytes > 0) {}
        stop.ask();
    });
}
