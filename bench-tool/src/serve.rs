//! `bench-tool serve`: answers the bench program until it is told to end.

use std::io::{Read, Write as _};
use std::time::Duration;

use rpcrdma_control::{ListenOptions, Node, NodeConfig, ShmProvider};

use crate::address::Address;
use crate::bench_program::BenchService;
use crate::cli::ServeArgs;
use crate::exit::{Failure, written};
use crate::machine::Machine;
use crate::run::own_server::READY_PREFIX;
use crate::signals::Stop;
use crate::sizing::Need;

/// How soon the wish to end is noticed.
const LOOK_PERIOD: Duration = Duration::from_millis(50);

/// Runs the command.
///
/// # Errors
/// A usage failure for cores or a profile that cannot be used, and a failure when the server
/// cannot be set up or the address cannot be listened on.
pub fn execute(args: &ServeArgs) -> Result<(), Failure> {
    let machine = Machine::detect();
    let cores = server_cores(args, &machine)?;
    shm_name(&args.listen)?;
    let stop = Stop::on_signals()?;
    let core_count = u32::try_from(cores.len()).unwrap_or(u32::MAX);
    let need = Need {
        connections_per_core: args.max_connections.map(|all| all.div_ceil(core_count)),
        credits: args.credits,
        payload_bytes: args.max_payload,
        calls_per_core: None,
        cores: core_count,
        park: false,
    };
    let loaded = need.profile(args.profile.as_deref())?;
    let config = NodeConfig::from_profile(&loaded.profile, cores.into_iter().map(Some).collect());
    let provider = ShmProvider::from_profile(&loaded.profile);
    let node = Node::start(provider, &config, |_| BenchService)
        .map_err(|error| Failure::failed("the server could not be set up").because(error))?;
    // A run tells of its own pages, which are had as its server's are.
    let shown = usize::from(!args.exit_with_stdin);
    for warning in node
        .pages()
        .iter()
        .filter_map(|pages| pages.warning.as_ref())
        .take(shown)
    {
        eprintln!("bench-tool: warning: {warning}");
    }
    let address = args.listen.to_string();
    node.listen(&address, ListenOptions::default())
        .map_err(|error| Failure::failed(format!("cannot listen on {address}")).because(error))?;
    written(announce(&address))?;
    if args.exit_with_stdin {
        ask_when_stdin_closes(stop.clone());
    }
    while !stop.is_asked() {
        std::thread::sleep(LOOK_PERIOD);
    }
    let timeout = Duration::from_millis(u64::from(loaded.profile.drain_timeout_ms));
    let report = node
        .drain(timeout)
        .map_err(|error| Failure::failed("the server did not end in good order").because(error))?;
    if !report.complete {
        eprintln!(
            "bench-tool: warning: calls were still under way after {timeout:?}; they were abandoned"
        );
    }
    drop(node.shutdown());
    Ok(())
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

/// The name on the shm fabric.
///
/// # Errors
/// A usage failure for an address of a fabric that this build does not have.
pub fn shm_name(address: &Address) -> Result<&str, Failure> {
    match address {
        Address::Shm(name) => Ok(name),
        Address::Rdma { .. } => Err(Failure::usage(format!(
            "{address} needs the verbs fabric, which this build does not have"
        ))
        .advice("use shm:NAME, which joins processes of one machine")),
    }
}

fn announce(address: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{READY_PREFIX}{address}")?;
    out.flush()
}

/// Whoever started us holds the other end of standard input; it closes however that process ends.
fn ask_when_stdin_closes(stop: Stop) {
    std::thread::spawn(move || {
        let mut rest = [0; 64];
        while matches!(std::io::stdin().lock().read(&mut rest), Ok(bytes) if bytes > 0) {}
        stop.ask();
    });
}
