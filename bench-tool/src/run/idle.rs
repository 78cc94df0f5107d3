//! Idle connections in addition to the busy ones, held by separate processes.
//!
//! The cores of these processes sleep, so that they take no time from the measured cores. After the run each idle
//! connection makes one call, to show that it is alive and how fast it answers. The probing process is pinned to a
//! core of the load, which is free by then. Unpinned, the scheduler could place it on the core where the server
//! spins, and the probe would measure time slices.

use std::io::Write as _;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use rpcrdma::Node;
use rpcrdma_control::{ConnectOptions, Fabric, ServerAddresses, Use};
use rpcrdma_engine::{
    Activity, Application, CallError, CallTag, ConnectionKey, Context, Reply, pin_current_thread,
};
use rpcrdma_fabric::clock::{Clock, Ticks};
use rpcrdma_fabric::interface::Port;
use rpcrdma_tuning::Loaded;

use crate::authentication::{Host, of_server};
use crate::bench_program::{self, NULL};
use crate::children::{OWN_PROGRAM, command, kill, lines, wait_for};
use crate::exit::{Failure, written};
use crate::load::connections::{CONNECTS_IN_FLIGHT, connect_many};
use crate::progress;
use crate::protocol::Protocol;
use crate::run::config::RunConfig;
use crate::run::report::RunResult;
use crate::signals::Stop;
use crate::sizing::{Need, ProfileChoice};

/// Upper bound of the processes that share the idle connections.
const PROCESSES_MAX: u32 = 8;

/// First word of the line that asks a process to probe its connections; the core to use may follow.
const PROBE: &str = "probe";

/// First word of the line that a process prints when its connections are established; the number of version 1
/// connections follows.
const READY: &str = "ready";

/// An answer that takes longer counts as late, in nanoseconds.
const SOON_NS: u64 = 1_000_000;

/// Time limit of one idle connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// Time limit of a process for what it does before and after its connections and its probe.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Time limit for a process to end after its input closes.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// Time limit of the probe of one process.
const PROBE_TIMEOUT: Duration = Duration::from_secs(30);

/// The result of the probe: one call on each idle connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Probe {
    /// Connections that answered.
    pub answered: u64,
    /// Of those, connections that took longer than a millisecond.
    pub late: u64,
    /// The slowest answer, in nanoseconds.
    pub slowest_ns: u64,
    /// Processes that held the connections.
    pub processes: u64,
    /// All connections.
    pub connections: u64,
    /// Of those, connections that use version 1.
    pub of_version_1: u64,
}

impl Probe {
    /// Adds the probe to a report: as counters, and with a warning and errors if connections did not answer.
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

/// The processes with the idle connections. Dropping this ends them.
pub(crate) struct IdleProcesses {
    processes: Vec<IdleProcess>,
    connections: u64,
    of_version_1: u64,
}

/// The result of one process: answers, late answers, and the slowest answer in nanoseconds.
type Told = (u64, u64, u64);

struct IdleProcess {
    child: Child,
    // Closing it makes the process end.
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    connections: u32,
}

impl IdleProcesses {
    /// Opens the idle connections of a run to a server. Returns `None` if the run has none.
    ///
    /// # Errors
    /// If a process cannot be started or cannot connect; in the second case its own message is on standard error.
    pub(crate) fn start(
        server: &ServerAddresses,
        config: &RunConfig,
    ) -> Result<Option<Self>, Failure> {
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
            // All together begin at the addresses in turn.
            let address = server.beginning_at(number as usize).to_string();
            all.processes
                .push(IdleProcess::start(&address, config, share)?);
        }
        // Wait only after all are started: they connect at the same time.
        for process in &mut all.processes {
            all.of_version_1 += process.ready()?;
        }
        Ok(Some(all))
    }

    /// Makes the call of every connection, one process after another, pinned to `core` if there is a free one.
    ///
    /// # Errors
    /// If a process has ended.
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
        let mut child = command(OWN_PROGRAM)
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
            // WAIT: for the start of the program (exec), which needs no event.
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
            lines: lines(stdout, |line| Some(line.to_owned()))?,
            connections,
        })
    }

    /// The next line of the process, which works on it for at most `time`.
    fn line(&mut self, time: Duration) -> Result<String, Failure> {
        let time = time + ANSWER_TIMEOUT;
        // WAIT: `time`.
        self.lines.recv_timeout(time).map_err(|error| {
            Failure::failed(match error {
                RecvTimeoutError::Disconnected => {
                    "a process with idle connections ended; its message is above".to_owned()
                }
                RecvTimeoutError::Timeout => format!(
                    "a process with idle connections did not answer within {}",
                    rpcrdma_units::duration(time)
                ),
            })
        })
    }

    /// Waits until the connections are established. Returns how many of them use version 1.
    fn ready(&mut self) -> Result<u64, Failure> {
        let in_flight = u32::try_from(CONNECTS_IN_FLIGHT).unwrap_or(1);
        let batches = self.connections.div_ceil(in_flight);
        let line = self.line(CONNECT_TIMEOUT * batches)?;
        let count = line.strip_prefix(READY).map(str::trim_start);
        count
            .and_then(|count| count.parse().ok())
            .ok_or_else(|| unexpected(&line))
    }

    fn probe(&mut self, core: Option<usize>) -> Result<Told, Failure> {
        let core = core.map_or_else(String::new, |core| format!(" {core}"));
        if let Some(stdin) = &mut self.stdin {
            // If the process has ended, reading its line below fails and reports it.
            // WAIT: never, since a pipe takes a line whose predecessor has been answered.
            let _ = writeln!(stdin, "{PROBE}{core}");
        }
        let line = self.line(PROBE_TIMEOUT)?;
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
        // The process ends by itself when its input closes. The kill is for one that hangs.
        if matches!(wait_for(&mut self.child, END_TIMEOUT), Ok(None)) {
            kill(&mut self.child);
        }
    }
}

/// The order to probe connections.
#[derive(Debug, PartialEq, Eq)]
struct Order {
    /// The core to pin to.
    core: Option<usize>,
    connections: Vec<ConnectionKey>,
}

/// Parses a probe line: the core to use, if one is given. `None` if the line is not a probe line.
fn asked(line: &str) -> Option<Option<usize>> {
    match line.strip_prefix(PROBE)?.trim() {
        "" => Some(None),
        core => core.parse().ok().map(Some),
    }
}

/// The application of an idle process. It makes one call on each connection, one after another.
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
        // The receiver waits with a time limit, and may have given up.
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
                    progress::say(&format!(
                        "bench-tool: warning: idle connections are probed unpinned: {error}"
                    ));
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

/// The configuration of a process that holds idle connections.
pub(crate) struct IdleConfig {
    /// The server.
    pub connect: ServerAddresses,
    /// RDMA device.
    pub device: Option<String>,
    /// This endpoint's identity; `None` without host authentication.
    pub host: Option<Host>,
    /// The allowed versions of RPC-over-RDMA.
    pub protocol: Protocol,
    /// Connections to hold.
    pub connections: u32,
}

/// Runs the hidden command `idle`, which `run` starts.
///
/// # Errors
/// If the server cannot be reached.
pub(crate) fn execute(config: &IdleConfig) -> Result<(), Failure> {
    let fabric = Fabric::of(
        config.connect.iter(),
        config.device.as_deref(),
        Use::Connect,
    )?;
    let need = Need {
        connections_per_core: Some(config.connections),
        credits: Some(1),
        payload_bytes: Some(0),
        is_known: true,
        cores: 1,
        park: true,
        ..Need::default()
    };
    let loaded = need.profile(&ProfileChoice::default(), &fabric)?;
    hold(config, fabric, &loaded)
}

/// Holds connections, and probes them when asked.
fn hold(config: &IdleConfig, fabric: Fabric, loaded: &Loaded) -> Result<(), Failure> {
    let addresses = &config.connect;
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
    let application = move |_| {
        prober
            .take()
            .unwrap_or_else(|| unreachable!("a node of one core"))
    };
    let node = Node::builder()
        .profile(loaded.profile.clone())
        .application(application)
        .start_on(fabric)
        .map_err(|error| Failure::failed("idle connections could not be set up").because(error))?;
    let start = |index| {
        // WAIT: never: the connection is made meanwhile.
        node.control().connect_start(
            &addresses.beginning_at(index).first().to_string(),
            ConnectOptions {
                timeout: CONNECT_TIMEOUT,
                authentication: of_server(config.host.as_ref()),
                versions: config.protocol.versions(),
                ..ConnectOptions::default()
            },
        )
    };
    let connections = connect_many(config.connections as usize, start, &Stop::new()).map_err(
        |(made, error)| {
            let what = format!(
                "idle connection {} of {} to {addresses}",
                made + 1,
                config.connections
            );
            Failure::failed(what).because(error)
        },
    )?;
    let of_version_1 = connections.iter().filter(|it| it.version == 1).count();
    say(&format!("{READY} {of_version_1}"))?;
    // WAIT: for the run that has started this process: its input ends with it.
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
        // The core is asleep and reads the order only after a wake-up.
        node.control().wake_cores();
        // WAIT: `PROBE_TIMEOUT`.
        let (answered, late, slowest_ns) = outcomes.recv_timeout(PROBE_TIMEOUT).unwrap_or_default();
        say(&format!("{answered} {late} {slowest_ns}"))?;
    }
    drop(node);
    Ok(())
}

fn say(line: &str) -> Result<(), Failure> {
    // WAIT: for the run that has started this process, which reads a line.
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
