//! The operator's view of a server: metrics and health over HTTP, readiness for the service manager, log and limits.
//! All of it runs on the waiting thread and the HTTP thread; polling cores take no part.

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rpcrdma::Node;
use rpcrdma_control::{
    Address, DrainReport, EventSink, Fault, FaultPlan, NodeEvent, NodeLimits, NodeSnapshot,
};
use rpcrdma_engine::{CloseReason, ConnectionKey};

use super::limits::Limits;
use super::listening::Listener;
use super::log::{Event, Log, LogFormat, LogLevel, Logger};
use super::metrics::{self, Identity};
use super::notify::Notifier;
use crate::address::ListenAddress;
use crate::exit::{Failure, written};
use crate::metrics::http::{Answer, HttpServer};
use crate::metrics::{self as pages, TEXT_FORMAT};
use crate::run::own_server::READY_PREFIX;
use crate::signals::Stop;

/// How often the waiting thread looks for a stop request.
const WAIT_PERIOD: Duration = Duration::from_millis(50);

/// How often health, watchdog and reload are checked.
const LOOK_PERIOD: Duration = Duration::from_millis(250);

/// A core without a poll for this long makes the server unhealthy.
const STUCK_AFTER: Duration = Duration::from_secs(5);

/// Reads a node's snapshot.
pub(crate) type Watch = dyn Fn() -> NodeSnapshot + Send + Sync;

/// The state of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Phase {
    Starting,
    Ready,
    Draining,
}

/// The state that the waiting thread shares with the HTTP thread.
struct Board {
    identity: Identity,
    phase: AtomicU8,
    /// One plus the index of a core that does not poll; 0 if all poll.
    stuck: AtomicU8,
    watch: OnceLock<Box<Watch>>,
}

impl Board {
    // Relaxed everywhere: these values publish no other data.

    fn is_in(&self, phase: Phase) -> bool {
        self.phase.load(Ordering::Relaxed) == phase as u8
    }

    fn enter(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
    }

    fn snapshot(&self) -> NodeSnapshot {
        self.watch.get().map(|watch| watch()).unwrap_or_default()
    }

    fn page(&self, path: &str) -> Option<Answer> {
        const OK: &str = "200 OK";
        const UNAVAILABLE: &str = "503 Service Unavailable";
        match path {
            "/metrics" => Some(Answer {
                status: OK,
                content_type: TEXT_FORMAT,
                body: metrics::page(&self.identity, self.is_in(Phase::Ready), &self.snapshot()),
            }),
            "/healthz" => Some(match self.stuck.load(Ordering::Relaxed) {
                0 => Answer::text(OK, "alive"),
                core => Answer::text(UNAVAILABLE, &format!("core {} does not poll", core - 1)),
            }),
            "/ready" if self.is_in(Phase::Ready) => Some(Answer::text(OK, "ready")),
            "/ready" if self.is_in(Phase::Draining) => Some(Answer::text(UNAVAILABLE, "draining")),
            "/ready" => Some(Answer::text(UNAVAILABLE, "starting")),
            _ => None,
        }
    }
}

/// Detects cores that stop polling. A sleeping core also polls several times a second.
#[derive(Debug, Default)]
struct Pulse {
    /// The number of polls of each core, and since when it has not changed.
    cores: Vec<(u64, Option<Instant>)>,
}

impl Pulse {
    /// The first core without a poll for [`STUCK_AFTER`].
    fn stuck(&mut self, polls: impl Iterator<Item = u64>, now: Instant) -> Option<usize> {
        let mut stuck = None;
        for (number, polls) in polls.enumerate() {
            if self.cores.len() <= number {
                self.cores.push((polls, None));
            }
            if let Some((before, since)) = self.cores.get_mut(number) {
                if *before != polls {
                    (*before, *since) = (polls, None);
                }
                let since = *since.get_or_insert(now);
                if now.duration_since(since) >= STUCK_AFTER {
                    stuck = stuck.or(Some(number));
                }
            }
        }
        stuck
    }
}

/// The options for operators.
pub(crate) struct Operation {
    /// The address that the server listens on.
    pub listen: ListenAddress,
    /// The name of the RPC program.
    pub service: &'static str,
    /// Faults to inject.
    pub faults: Vec<Fault>,
    /// Host and port of the metrics.
    pub metrics: Option<(String, u16)>,
    /// The file of `--limits`.
    pub limits: Option<PathBuf>,
    /// Format of the log.
    pub log_format: LogFormat,
    /// The least severe level that is logged.
    pub log_level: LogLevel,
    /// Whether a run started this server. Then it ends with its standard input.
    pub is_of_run: bool,
}

/// The operator's side of one server.
pub(crate) struct Operator {
    board: Arc<Board>,
    http: Option<HttpServer>,
    notifier: Notifier,
    pulse: Pulse,
    stuck_before: Option<usize>,
    looked: Instant,
    stop: Stop,
    limits: Option<PathBuf>,
    /// Whether a run started this server.
    is_of_run: bool,
    /// Set by SIGHUP.
    reload: Arc<AtomicBool>,
    /// The status text for the service manager.
    status: String,
    logger: Logger,
    /// The last field, so dropped last: events of the other fields' destructors are still written.
    _log: Log,
}

impl Operator {
    /// Starts log and metrics; the server's state is "starting". `processors` are the CPUs of the polling cores.
    ///
    /// # Errors
    /// If the metrics address or the service manager's socket cannot be used, or a signal handler cannot be
    /// installed.
    pub(crate) fn start(operation: &Operation, processors: &[usize]) -> Result<Self, Failure> {
        let identity = Identity {
            address: operation.listen.to_string(),
            service: operation.service,
            fabric: match &operation.listen {
                ListenAddress::Tcp { .. } => "tcp",
                ListenAddress::Fabric(addresses) => match addresses.first() {
                    Address::Shm(_) => "shm",
                    Address::Rdma { .. } => "verbs",
                },
            },
            started_s: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0.0, |since| since.as_secs_f64()),
            processors: processors.to_vec(),
            faults: FaultPlan::new(operation.faults.iter().copied()),
        };
        let board = Arc::new(Board {
            identity,
            phase: AtomicU8::new(Phase::Starting as u8),
            stuck: AtomicU8::new(0),
            watch: OnceLock::new(),
        });
        // The server of a run is not a service: `$NOTIFY_SOCKET` in its environment belongs to the run.
        let notifier = if operation.is_of_run {
            Notifier::default()
        } else {
            Notifier::from_environment().map_err(|error| {
                Failure::failed("the socket that $NOTIFY_SOCKET names cannot be used")
                    .because(error)
            })?
        };
        let (log, logger) = Log::start(operation.log_format, operation.log_level, processors)
            .map_err(|error| Failure::failed("the log cannot be started").because(error))?;
        // With nothing to read again, SIGHUP ends the server as SIGTERM does.
        let (stop, reload) = if operation.limits.is_some() || notifier.is_heard() {
            Stop::on_signals_with_reload()?
        } else {
            (Stop::on_signals()?, Arc::default())
        };
        let http = match &operation.metrics {
            Some(at) => {
                let board = Arc::clone(&board);
                let page = move |path: &str| board.page(path);
                Some(pages::serve(at, Box::new(page), processors)?)
            }
            None => None,
        };
        Ok(Self {
            board,
            http,
            notifier,
            pulse: Pulse::default(),
            stuck_before: None,
            looked: Instant::now(),
            stop,
            limits: operation.limits.clone(),
            is_of_run: operation.is_of_run,
            reload,
            status: String::new(),
            logger,
            _log: log,
        })
    }

    /// Attaches the node: metrics show its snapshot, and it gets the limits of the file.
    ///
    /// # Errors
    /// If the limits cannot be read or applied.
    pub(crate) fn attend(&self, node: &Node) -> Result<(), Failure> {
        // Fails only for a second node, and there is only one.
        let metrics = node.metrics();
        let _ = self.board.watch.set(Box::new(move || metrics.snapshot()));
        let pages = node.control().pages().iter();
        for warning in pages.filter_map(|pages| pages.warning.as_ref()) {
            self.warn(warning);
        }
        self.read_limits(node).map(drop)
    }

    /// Reads the limits and applies them to `node`. Returns the resulting limits; `None` without a file.
    fn read_limits(&self, node: &Node) -> Result<Option<NodeLimits>, Failure> {
        let Some(path) = &self.limits else {
            return Ok(None);
        };
        let limits = Limits::read(path)?;
        let kept = limits.apply(node).map_err(|error| {
            Failure::usage(format!("the limits in {} cannot be kept", path.display()))
                .because(error)
                .advice(
                    "lower them, or start the server with larger --max-connections and --credits",
                )
        })?;
        Ok(Some(kept))
    }

    /// Reads and applies the limits again. On an error it logs an event, and the old limits stay.
    fn reload(&mut self, node: &Node) {
        self.notifier.reloading();
        let event = match self.read_limits(node) {
            Ok(Some(kept)) => Event::new(LogLevel::Info, "limits_changed")
                .with("connections_per_core", kept.connections_per_core)
                .with("connections_per_client", kept.peer_connections_max)
                .with("credits", kept.credits_per_connection),
            Ok(None) => Event::new(LogLevel::Warn, "limits_missing").with(
                "what",
                "there is no file to read again: give --limits at the start",
            ),
            Err(failure) => Event::new(LogLevel::Error, "limits_refused")
                .with("what", "the old limits stay")
                .telling("why", failure),
        };
        self.logger.log(event);
        self.notifier.ready(&self.status);
    }

    /// The faults from the command line.
    #[must_use]
    pub(crate) fn faults(&self) -> &FaultPlan {
        &self.board.identity.faults
    }

    /// The stop request.
    #[must_use]
    pub(crate) const fn stop(&self) -> &Stop {
        &self.stop
    }

    /// Reports that the server accepts clients at `listeners`. `remark` follows them.
    ///
    /// # Errors
    /// If standard output cannot be written.
    pub(crate) fn ready(&mut self, listeners: &[Listener], remark: &str) -> Result<(), Failure> {
        self.board.enter(Phase::Ready);
        let metrics = self.http.as_ref().map_or_else(String::new, |http| {
            format!(" (metrics at http://{}/metrics)", http.address())
        });
        let faults: Vec<_> = self.faults().faults().map(|it| it.to_string()).collect();
        let injects = if faults.is_empty() {
            String::new()
        } else {
            format!(" (injects {})", faults.join(" and "))
        };
        let addresses = listeners.iter();
        let addresses = addresses.map(|it| format!("{} for {}", it.address, it.clients));
        let addresses: Vec<_> = addresses.collect();
        self.status = format!("{READY_PREFIX}{}{remark}", addresses.join(", and on "));
        // WAIT: for the reader of standard output, who asked for the line.
        let mut out = std::io::stdout().lock();
        // WAIT: for the reader of standard output, who asked for this line.
        let written_line = writeln!(out, "{}{metrics}{injects}", self.status);
        let told = written_line.and_then(|()| out.flush());
        written(told)?;
        self.notifier.ready(&self.status);
        for listener in listeners {
            let event = Event::new(LogLevel::Info, "listening");
            let event = event.with("address", &*listener.address);
            self.logger.log(event.with("clients", listener.clients));
        }
        for fault in faults {
            let event = Event::new(LogLevel::Warn, "fault_on");
            self.logger.log(event.with("fault", fault));
        }
        Ok(())
    }

    /// Waits for a stop request. Meanwhile it checks the server's health, and reloads limits.
    pub(crate) fn wait(&mut self, node: &Node) {
        while !self.stop.is_asked() {
            let now = Instant::now();
            if now.duration_since(self.looked) >= LOOK_PERIOD {
                self.looked = now;
                self.look(now);
                // Relaxed: the flag publishes no other data.
                if self.reload.swap(false, Ordering::Relaxed) {
                    self.reload(node);
                }
            }
            // WAIT: `WAIT_PERIOD`; the whole until a stop request.
            std::thread::sleep(WAIT_PERIOD);
        }
    }

    fn look(&mut self, now: Instant) {
        let node = self.board.snapshot();
        let polls = node.cores.iter().map(|core| core.counters.polls);
        let stuck = self.pulse.stuck(polls, now);
        let told = stuck.map_or(0, |core| u8::try_from(core + 1).unwrap_or(u8::MAX));
        self.board.stuck.store(told, Ordering::Relaxed);
        if stuck.is_none() {
            self.notifier.alive(now);
        }
        if let Some(core) = stuck.filter(|_| self.stuck_before != stuck) {
            let event = Event::new(LogLevel::Error, "core_stuck");
            self.logger.log(event.with("core", core));
        }
        self.stuck_before = stuck;
    }

    /// Reports the drain: the server accepts no clients, and running calls finish within `at_most`.
    pub(crate) fn draining(&mut self, at_most: Duration) {
        self.board.enter(Phase::Draining);
        self.notifier.stopping("draining", at_most);
        let event = Event::new(LogLevel::Info, "draining");
        self.logger
            .log(event.with("at_most_ms", saturating_ms(at_most)));
    }

    /// Reports the end, with totals. Every call that reached the service was answered, unless it was still running at
    /// the end of the drain time.
    pub(crate) fn ended(&self, drained: &DrainReport, at_most: Duration) {
        if !drained.complete {
            self.warn(&format!(
                "calls were still under way after {at_most:?}; they were abandoned"
            ));
        }
        for (fault, times) in self.faults().injected() {
            let event = Event::new(LogLevel::Warn, "fault_injected");
            let event = event.telling("fault", fault).with("times", times);
            self.logger.log(event);
        }
        let cores = self.board.snapshot().cores;
        let sum = |count: fn(&rpcrdma_engine::CounterSnapshot) -> u64| {
            cores.iter().map(|core| count(&core.counters)).sum::<u64>()
        };
        let event = Event::new(LogLevel::Info, "ended")
            .with("calls", sum(|counters| counters.calls_received))
            .with("replies", sum(|counters| counters.replies_sent))
            .with("connections_at_drain", drained.connections);
        self.logger.log(event);
    }

    /// Logs a warning.
    pub(crate) fn warn(&self, what: &str) {
        // The run itself gives the same warnings about profile and pages.
        if !self.is_of_run {
            self.logger
                .log(Event::new(LogLevel::Warn, "warning").with("what", what));
        }
    }

    /// The sink for the node's connection events.
    #[must_use]
    pub(crate) fn events(&self) -> EventSink {
        let logger = self.logger.clone();
        EventSink::new(move |event| logger.log(of_node(event)))
    }
}

/// The log event for a node event. A client's errors and rejected clients are warnings.
fn of_node(event: NodeEvent) -> Event {
    match event {
        NodeEvent::Ready {
            core,
            key,
            peer,
            identity,
            version,
        } => {
            let event = Event::new(LogLevel::Info, "connection_ready")
                .with("core", core)
                .telling("connection", name(key))
                .with("peer", peer)
                .with("version", version);
            match identity {
                Some(identity) => event.telling("identity", identity),
                None => event,
            }
        }
        NodeEvent::Closed {
            core,
            key,
            peer,
            reason,
            counters,
        } => {
            let level = match reason {
                CloseReason::Local | CloseReason::Stopped | CloseReason::Peer => LogLevel::Info,
                _ => LogLevel::Warn,
            };
            Event::new(level, "connection_closed")
                .with("core", core)
                .telling("connection", name(key))
                .with("peer", peer)
                .telling("reason", reason)
                .with("messages_received", counters.messages_received)
                .with("messages_sent", counters.messages_sent)
        }
        NodeEvent::Rejected { peer, reason } => Event::new(LogLevel::Warn, "connection_rejected")
            .with("peer", peer)
            .telling("reason", reason),
        NodeEvent::ListenerLost { address } => {
            Event::new(LogLevel::Warn, "listener_lost").with("address", address)
        }
        NodeEvent::ListenerRestored { address } => {
            Event::new(LogLevel::Info, "listener_restored").with("address", address)
        }
    }
}

/// The name of a connection on its core.
fn name(key: ConnectionKey) -> String {
    format!("{}.{}", key.index, key.generation)
}

fn saturating_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_that_does_not_poll_is_found_and_forgiven() {
        let mut pulse = Pulse::default();
        // TIME: nothing waits: all times are computed from one reading.
        let begin = Instant::now();
        let mut look =
            |polls: [u64; 2], after: Duration| pulse.stuck(polls.into_iter(), begin + after);
        assert_eq!(look([1, 1], Duration::ZERO), None);
        assert_eq!(look([2, 1], STUCK_AFTER / 2), None);
        assert_eq!(look([3, 1], STUCK_AFTER), Some(1));
        assert_eq!(look([4, 2], STUCK_AFTER * 2), None, "it went on");
        assert_eq!(look([5, 3], STUCK_AFTER * 9), None);
        assert_eq!(look([5, 4], STUCK_AFTER * 10), Some(0));
    }

    #[test]
    fn pages_say_how_far_the_server_has_come() {
        let board = Board {
            identity: Identity::default(),
            phase: AtomicU8::new(Phase::Starting as u8),
            stuck: AtomicU8::new(0),
            watch: OnceLock::new(),
        };
        let page = |path| board.page(path).map(|page| (page.status, page.body));
        let unavailable = |word: &str| Some(("503 Service Unavailable", format!("{word}\n")));
        assert_eq!(page("/ready"), unavailable("starting"));
        board.enter(Phase::Ready);
        assert_eq!(page("/ready"), Some(("200 OK", "ready\n".to_owned())));
        assert_eq!(page("/healthz"), Some(("200 OK", "alive\n".to_owned())));
        board.enter(Phase::Draining);
        assert_eq!(page("/ready"), unavailable("draining"));
        board.stuck.store(2, Ordering::Relaxed);
        assert_eq!(page("/healthz"), unavailable("core 1 does not poll"));
        assert!(page("/metrics").unwrap().1.contains("\nrpcrdma_ready 0\n"));
        assert_eq!(page("/"), None);
    }
}
