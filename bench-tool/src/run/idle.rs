//! Connections that stay silent beside the busy ones, held by processes of their own.
//!
//! Their cores sleep, so that they take nothing from the measured ones. After the run each of
//! the connections makes one call, to show that it is alive and how soon it answers. The process
//! that calls is pinned to a core of the load's, which is free by then: left to the scheduler it
//! may wake up on the core where the server spins, and the time slices would be measured.

use std::io::{BufRead, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use rpcrdma_control::{ConnectOptions, Node, NodeConfig, Provider};
use rpcrdma_engine::{
    Activity, Application, CallError, CallTag, ConnectionKey, Context, Reply, pin_current_thread,
};
use rpcrdma_fabric::clock::{Clock, Ticks};
use rpcrdma_fabric::interface::Port;
use rpcrdma_tuning::Loaded;

use crate::address::Address;
use crate::authentication::{Host, of_server};
use crate::bench_program::{self, NULL};
use crate::exit::{Failure, written};
use crate::fabric::{Fabric, Job};
use crate::load::connections::connect_many;
use crate::protocol::Protocol;
use crate::run::config::RunConfig;
use crate::run::report::RunResult;
use crate::signals::Stop;
use crate::sizing::{Need, ProfileChoice};

/// Processes that the silent connections are spread over.
const PROCESSES_MAX: u32 = 8;

/// The first word of the line that asks a process to probe its connections; the core to do it on
/// may follow.
const PROBE: &str = "probe";

/// The first word of what a process prints when its connections stand; behind it, how many of them speak version 1.
const READY: &str = "ready";

/// An answer is soon up to this, in nanoseconds.
const SOON_NS: u64 = 1_000_000;

/// How long the probe of one process may take.
const PROBE_TIMEOUT: Duration = Duration::from_secs(30);

/// How each connection answered its one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Probe {
    /// Connections that answered.
    pub answered: u64,
    /// Of those, the ones that took longer than a millisecond.
    pub late: u64,
    /// The slowest answer, in nanoseconds.
    pub slowest_ns: u64,
    /// The processes that held them.
    pub processes: u64,
    /// All connections.
    pub connections: u64,
    /// Of those, the ones that speak version 1.
    pub of_version_1: u64,
}

impl Probe {
    /// Adds the outcome to a report: as counters, and as a warning where it was not what it must be.
    pub(crate) fn report(&self, result: &mut RunResult) {
        let entries = [
            ("idle_connections_probed", self.connections),
            ("idle_connections_answered", self.answered),
            ("idle_connections_answered_after_1_ms", self.late),
            ("idle_connections_of_version_1", self.of_version_1),
            ("idle_processes", self.processes),
            ("idle_probe_slowest_ns", self.slowest_ns),
        ];
        for (name, value) in entries {
            result.counters.insert(name.to_owned(), value);
        }
        if self.answered < self.connections {
            result.totals.errors += self.connections - self.answered;
            result.warnings.push(format!(
                "{} of {} idle connections did not answer their call after the run",
                self.connections - self.answered,
                self.connections
            ));
        }
    }
}

/// The processes; they end when this is dropped.
pub(crate) struct IdleProcesses {
    processes: Vec<IdleProcess>,
    connections: u64,
    of_version_1: u64,
}

/// What a process tells of its probe: answers, late ones, the slowest in nanoseconds.
type Told = (u64, u64, u64);

struct IdleProcess {
    child: Child,
    // Closing it tells the process to end.
    stdin: Option<ChildStdin>,
    lines: BufReader<ChildStdout>,
}

impl IdleProcesses {
    /// Opens the silent connections of a run to `address`; `None` for none.
    ///
    /// # Errors
    /// When a process cannot be started, or cannot connect: its own message stands on standard error.
    pub(crate) fn start(address: &str, config: &RunConfig) -> Result<Option<Self>, Failure> {
        let connections = config.idle_connections;
        if connections == 0 {
            return Ok(None);
        }
        let count = PROCESSES_MAX.min(connections);
        let mut all = Self {
            processes: Vec::new(),
            connections: u64::from(connections),
            of_version_1: 0,
        };
        for number in 0..count {
            let share = connections / count + u32::from(number < connections % count);
            all.processes
                .push(IdleProcess::start(address, config, share)?);
        }
        for process in &mut all.processes {
            all.of_version_1 += process.ready()?;
        }
        Ok(Some(all))
    }

    /// Has every connection make its call, one process after another, on `core` when there is one
    /// on which nothing else runs.
    ///
    /// # Errors
    /// When a process is gone.
    pub(crate) fn probe(mut self, core: Option<usize>) -> Result<Probe, Failure> {
        let mut probe = Probe {
            processes: self.processes.len() as u64,
            connections: self.connections,
            of_version_1: self.of_version_1,
            ..Probe::default()
        };
        for process in &mut self.processes {
            let (answered, late, slowest_ns) = process.probe(core)?;
            probe.answered += answered;
            probe.late += late;
            probe.slowest_ns = probe.slowest_ns.max(slowest_ns);
        }
        Ok(probe)
    }
}

impl IdleProcess {
    fn start(address: &str, config: &RunConfig, connections: u32) -> Result<Self, Failure> {
        let failed = |error: std::io::Error| {
            Failure::failed("cannot start a process for the idle connections")
                .because(error)
                .advice("check the limit of processes (ulimit -u)")
        };
        let program = std::env::current_exe().map_err(failed)?;
        let mut child = Command::new(program)
            .args([
                "idle",
                "--connect",
                address,
                "--connections",
                &connections.to_string(),
            ])
            .args(config.device.iter().flat_map(|device| ["--device", device]))
            .args(["--protocol", config.protocol.name()])
            .args(config.host.iter().flat_map(Host::arguments))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let stdin = child.stdin.take();
        let Some(stdout) = child.stdout.take() else {
            return Err(Failure::failed(
                "a process for the idle connections has no output",
            ));
        };
        Ok(Self {
            child,
            stdin,
            lines: BufReader::new(stdout),
        })
    }

    fn line(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        match self.lines.read_line(&mut line) {
            Ok(bytes) if bytes > 0 => Ok(line.trim_end().to_owned()),
            _ => Err(Failure::failed(
                "a process with idle connections ended; its message is above",
            )),
        }
    }

    /// Waits until the connections stand. How many of them speak version 1.
    fn ready(&mut self) -> Result<u64, Failure> {
        let line = self.line()?;
        let count = line.strip_prefix(READY).map(str::trim_start);
        count
            .and_then(|count| count.parse().ok())
            .ok_or_else(|| unexpected(&line))
    }

    fn probe(&mut self, core: Option<usize>) -> Result<Told, Failure> {
        let core = core.map_or_else(String::new, |core| format!(" {core}"));
        if let Some(stdin) = &mut self.stdin {
            // A process that is gone shows at the next line.
            let _ = writeln!(stdin, "{PROBE}{core}");
        }
        let line = self.line()?;
        let numbers: Vec<u64> = line
            .split(' ')
            .filter_map(|word| word.parse().ok())
            .collect();
        match numbers[..] {
            [answered, late, slowest_ns] => Ok((answered, late, slowest_ns)),
            _ => Err(unexpected(&line)),
        }
    }
}

fn unexpected(line: &str) -> Failure {
    Failure::failed(format!("a process with idle connections said `{line}`"))
}

impl Drop for IdleProcess {
    fn drop(&mut self) {
        drop(self.stdin.take());
        // It ends by itself when its input closes; the kill is for one that hangs.
        for _ in 0..100 {
            if matches!(self.child.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a process is asked to do.
#[derive(Debug, PartialEq, Eq)]
struct Order {
    /// The core to call from.
    core: Option<usize>,
    connections: Vec<ConnectionKey>,
}

/// The core that a line asks to probe on; `None` for a line that does not ask for a probe.
fn asked(line: &str) -> Option<Option<usize>> {
    match line.strip_prefix(PROBE)?.trim() {
        "" => Some(None),
        core => core.parse().ok().map(Some),
    }
}

/// The application of such a process: it calls once on each connection, one after another.
struct Prober {
    orders: Receiver<Order>,
    outcome: Sender<Told>,
    ordered: Arc<AtomicU64>,
    seen: u64,
    waiting: Vec<ConnectionKey>,
    clock: Clock,
    started: Option<Ticks>,
    answered: u64,
    late: u64,
    slowest_ns: u64,
}

impl Prober {
    fn next<P: Port>(&mut self, core: &mut Context<'_, P>, now: Ticks) -> bool {
        let Some(connection) = self.waiting.last().copied() else {
            return false;
        };
        match core.call(connection, bench_program::call(NULL), &[], 0) {
            Ok(()) => {
                self.waiting.pop();
                self.started = Some(now);
            }
            Err(refused) if refused.is_transient() => return false,
            Err(_) => {
                self.waiting.pop();
            }
        }
        if self.waiting.is_empty() && self.started.is_none() {
            self.tell();
        }
        true
    }

    fn tell(&mut self) {
        // The other end waits with a timeout, and may have gone.
        let _ = self
            .outcome
            .send((self.answered, self.late, self.slowest_ns));
    }
}

impl Application for Prober {
    fn completed(
        &mut self,
        _tag: CallTag,
        _connection: ConnectionKey,
        result: Result<Reply<'_>, CallError>,
        now: Ticks,
    ) {
        if let (Some(started), Ok(_)) = (self.started.take(), result) {
            let took_ns = self.clock.nanos_between(started, now);
            self.answered += 1;
            self.late += u64::from(took_ns > SOON_NS);
            self.slowest_ns = self.slowest_ns.max(took_ns);
        }
        if self.waiting.is_empty() {
            self.tell();
        }
    }

    fn poll<P: Port>(&mut self, core: &mut Context<'_, P>, now: Ticks) -> Activity {
        // SYNC POINT idle-order: pairs with the Release store in `hold`.
        let ordered = self.ordered.load(Ordering::Acquire);
        if ordered != self.seen {
            self.seen = ordered;
            if let Ok(order) = self.orders.try_recv() {
                if let Some(core) = order.core
                    && let Err(error) = pin_current_thread(core)
                {
                    eprintln!("bench-tool: warning: idle connections are probed unpinned: {error}");
                }
                self.waiting = order.connections;
            }
        }
        if self.started.is_some() {
            return Activity::Busy;
        }
        Activity::from_busy(self.next(core, now))
    }
}

/// What a process that holds silent connections does.
pub(crate) struct IdleConfig {
    /// The server.
    pub connect: Address,
    /// RDMA device.
    pub device: Option<String>,
    /// This end, where both ends prove themselves.
    pub host: Option<Host>,
    /// The version of RPC-over-RDMA.
    pub protocol: Protocol,
    /// Connections to hold.
    pub connections: u32,
}

/// Runs the command `idle`, which `run` starts for itself.
///
/// # Errors
/// When the server cannot be reached.
pub(crate) fn execute(config: &IdleConfig) -> Result<(), Failure> {
    let fabric = Fabric::to_connect(&config.connect, config.device.as_deref())?;
    let need = Need {
        connections_per_core: Some(config.connections),
        credits: Some(1),
        cores: 1,
        park: true,
        ..Need::default()
    };
    let loaded = need.profile(&ProfileChoice::default(), &fabric)?;
    let hold = Hold {
        config,
        loaded: &loaded,
    };
    fabric.run(&loaded.profile, hold)
}

/// Holding connections, on whatever fabric.
struct Hold<'a> {
    config: &'a IdleConfig,
    loaded: &'a Loaded,
}

impl Job for Hold<'_> {
    type Output = ();

    fn run<V: Provider>(self, provider: V) -> Result<(), Failure> {
        let Self { config, loaded } = self;
        let address = config.connect.to_string();
        let node_config = NodeConfig::from_profile(&loaded.profile, vec![None]);
        let (order, orders) = mpsc::channel();
        let (outcome, outcomes) = mpsc::channel();
        let ordered = Arc::new(AtomicU64::new(0));
        let mut prober = Some(Prober {
            orders,
            outcome,
            ordered: Arc::clone(&ordered),
            seen: 0,
            waiting: Vec::new(),
            clock: Clock::new(),
            started: None,
            answered: 0,
            late: 0,
            slowest_ns: 0,
        });
        let application = |_| {
            prober
                .take()
                .unwrap_or_else(|| unreachable!("a node of one core"))
        };
        let node = Node::start(provider, &node_config, application).map_err(|error| {
            Failure::failed("idle connections could not be set up").because(error)
        })?;
        let start = |_| {
            node.connect_start(
                &address,
                ConnectOptions {
                    timeout: Duration::from_secs(30),
                    authentication: of_server(config.host.as_ref()),
                    versions: config.protocol.versions(),
                    ..ConnectOptions::default()
                },
            )
        };
        let connections = connect_many(config.connections as usize, start, &Stop::new()).map_err(
            |(made, error)| {
                let what = format!(
                    "idle connection {} of {} to {address}",
                    made + 1,
                    config.connections
                );
                Failure::failed(what).because(error)
            },
        )?;
        let of_version_1 = connections.iter().filter(|it| it.version == 1).count();
        say(&format!("{READY} {of_version_1}"))?;
        for line in std::io::stdin().lines() {
            let Some(core) = line.ok().and_then(|line| asked(&line)) else {
                break;
            };
            let keys = connections.iter().map(|connection| connection.key);
            let asked = Order {
                core,
                connections: keys.collect(),
            };
            if order.send(asked).is_err() {
                break;
            }
            // SYNC POINT idle-order: pairs with the Acquire load in `Prober::poll`.
            ordered.fetch_add(1, Ordering::Release);
            // A parked core looks at its mailbox when something comes in; the notice wakes it.
            node.wake_cores();
            let (answered, late, slowest_ns) =
                outcomes.recv_timeout(PROBE_TIMEOUT).unwrap_or_default();
            say(&format!("{answered} {late} {slowest_ns}"))?;
        }
        drop(node.shutdown());
        Ok(())
    }
}

fn say(line: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    written(writeln!(out, "{line}").and_then(|()| out.flush()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_asks_for_a_probe_with_or_without_a_core() {
        assert_eq!(asked("probe"), Some(None));
        assert_eq!(asked("probe 3"), Some(Some(3)));
        for other in ["", "prob", "probe x", "probe 3 4", "stop"] {
            assert_eq!(asked(other), None, "{other:?}");
        }
    }
}
