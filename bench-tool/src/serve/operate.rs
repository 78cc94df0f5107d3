//! What operators see of a server: metrics and health by HTTP, readiness for the service manager.
//! All of it is on the thread that waits for the end, and on one for HTTP; cores take no part.

use std::io::Write as _;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rpcrdma_control::{
    DrainReport, EventSink, Fault, FaultPlan, Node, NodeEvent, NodeLimits, NodeSnapshot, Provider,
};
use rpcrdma_engine::{Application, CloseReason, ConnectionKey};
use signal_hook::consts::SIGHUP;

use super::http::{Answer, HttpServer};
use super::limits::{Limited, Limits};
use super::log::{Event, Log, LogFormat, LogLevel, Logger};
use super::metrics::{self, Identity};
use super::notify::Notifier;
use crate::address::{Address, ListenAddress};
use crate::exit::{Failure, written};
use crate::machine;
use crate::run::own_server::READY_PREFIX;
use crate::signals::Stop;

/// How soon the wish to end is noticed.
const WAIT_PERIOD: Duration = Duration::from_millis(50);

/// How often the server is looked after.
const LOOK_PERIOD: Duration = Duration::from_millis(250);

/// How long a core may go without a poll before the server is not healthy.
const STUCK_AFTER: Duration = Duration::from_secs(5);

/// Reads what a node shows of itself.
pub(crate) type Watch = dyn Fn() -> NodeSnapshot + Send + Sync;

/// How far the server has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Phase {
    Starting,
    Ready,
    Draining,
}

/// What the thread that waits and the one for HTTP have in common.
struct Board {
    identity: Identity,
    phase: AtomicU8,
    /// The core that does not poll, and one more; 0 is none.
    stuck: AtomicU8,
    watch: OnceLock<Box<Watch>>,
}

impl Board {
    // Relaxed throughout: no other data is told by these.

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
                content_type: "text/plain; version=0.0.4; charset=utf-8",
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

/// Whether each core goes on polling: a core that sleeps does so some times a second, too.
#[derive(Debug, Default)]
struct Pulse {
    /// Polls of each core, and since when there were no more.
    cores: Vec<(u64, Option<Instant>)>,
}

impl Pulse {
    /// The first core that has not polled for too long.
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

/// How a server is watched.
pub(crate) struct Operation {
    /// Where it listens.
    pub listen: ListenAddress,
    /// The name of what is served.
    pub service: &'static str,
    /// Faults to inject.
    pub faults: Vec<Fault>,
    /// Where metrics are served.
    pub metrics: Option<(String, u16)>,
    /// The file of the limits.
    pub limits: Option<PathBuf>,
    /// Format of the log.
    pub log_format: LogFormat,
    /// Lowest level that is logged.
    pub log_level: LogLevel,
    /// A run started the server for itself: it ends with standard input.
    pub is_of_run: bool,
}

/// What operators have of one server.
pub(crate) struct Operator {
    board: Arc<Board>,
    http: Option<HttpServer>,
    notifier: Notifier,
    pulse: Pulse,
    stuck_before: Option<usize>,
    looked: Instant,
    stop: Stop,
    limits: Option<PathBuf>,
    /// A run started it for itself.
    is_of_run: bool,
    /// SIGHUP came.
    reload: Arc<AtomicBool>,
    /// What the service manager is told when it is ready.
    status: String,
    logger: Logger,
    /// Last, so that what the others say is still written.
    _log: Log,
}

impl Operator {
    /// Begins to answer at `--metrics`: the server is starting. `processors` are those of the cores.
    ///
    /// # Errors
    /// A failure when the address of the metrics cannot be listened on, the service manager's socket
    /// cannot be used, or signals cannot be taken.
    pub(crate) fn start(operation: &Operation, processors: &[usize]) -> Result<Self, Failure> {
        let identity = Identity {
            address: operation.listen.to_string(),
            service: operation.service,
            fabric: match &operation.listen {
                ListenAddress::Tcp { .. } => "tcp",
                ListenAddress::Fabric(Address::Shm(_)) => "shm",
                ListenAddress::Fabric(Address::Rdma { .. }) => "verbs",
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
        // The server of a run is nobody's service: what the environment says is of the run.
        let notifier = if operation.is_of_run {
            Notifier::default()
        } else {
            Notifier::from_environment().map_err(|error| {
                Failure::failed("the socket that $NOTIFY_SOCKET names cannot be used")
                    .because(error)
            })?
        };
        let (log, logger) = Log::start(operation.log_format, operation.log_level, processors)
            .map_err(|error| Failure::failed("there can be no log").because(error))?;
        let reload = Arc::new(AtomicBool::new(false));
        // Others end when their terminal goes.
        if operation.limits.is_some() || notifier.is_heard() {
            signal_hook::flag::register(SIGHUP, Arc::clone(&reload)).map_err(|error| {
                Failure::failed("cannot install the handler of SIGHUP").because(error)
            })?;
        }
        let http = match &operation.metrics {
            Some((host, port)) => Some(serve_pages(&board, host, *port, processors)?),
            None => None,
        };
        Ok(Self {
            board,
            http,
            notifier,
            pulse: Pulse::default(),
            stuck_before: None,
            looked: Instant::now(),
            stop: Stop::on_signals()?,
            limits: operation.limits.clone(),
            is_of_run: operation.is_of_run,
            reload,
            status: String::new(),
            logger,
            _log: log,
        })
    }

    /// The node is there: it shows itself, and keeps the limits of the file.
    ///
    /// # Errors
    /// A failure when the limits cannot be read or kept.
    pub(crate) fn attend<V: Provider, A: Application>(
        &self,
        node: &Node<V, A>,
    ) -> Result<(), Failure> {
        // There is one node.
        let _ = self.board.watch.set(Box::new(node.watch()));
        let pages = node.pages().iter();
        for warning in pages.filter_map(|pages| pages.warning.as_ref()) {
            self.warn(warning);
        }
        self.read_limits(node).map(drop)
    }

    /// Reads the limits, and has `limited` keep them; what they come to.
    fn read_limits(&self, limited: &dyn Limited) -> Result<Option<NodeLimits>, Failure> {
        let Some(path) = &self.limits else {
            return Ok(None);
        };
        let limits = Limits::read(path)?;
        let kept = limited.limit(&limits).map_err(|error| {
            Failure::usage(format!("the limits in {} cannot be kept", path.display()))
                .because(error)
                .advice(
                    "lower them, or start the server with larger --max-connections and --credits",
                )
        })?;
        Ok(Some(kept))
    }

    /// Reads the limits again. What cannot be read or kept is told, and the old ones stay.
    fn reload(&mut self, limited: &dyn Limited) {
        self.notifier.reloading();
        let event = match self.read_limits(limited) {
            Ok(Some(kept)) => Event::new(LogLevel::Info, "limits_changed")
                .with("connections_per_core", kept.connections_per_core)
                .with("connections_per_client", kept.peer_connections_max)
                .with("credits", kept.credits_per_connection),
            Ok(None) => Event::new(LogLevel::Warn, "limits_missing").with(
                "what",
                "there are none to be read again: --limits names a file",
            ),
            Err(failure) => Event::new(LogLevel::Error, "limits_refused")
                .with("what", "the old limits stay")
                .telling("why", failure),
        };
        self.logger.log(event);
        self.notifier.ready(&self.status);
    }

    /// The faults that were asked for.
    #[must_use]
    pub(crate) fn faults(&self) -> &FaultPlan {
        &self.board.identity.faults
    }

    /// What asks for the end.
    #[must_use]
    pub(crate) const fn stop(&self) -> &Stop {
        &self.stop
    }

    /// Clients are taken at `address`, which is followed by what there is to say of it.
    ///
    /// # Errors
    /// When standard output cannot be written.
    pub(crate) fn ready(&mut self, address: &str) -> Result<(), Failure> {
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
        let mut out = std::io::stdout().lock();
        let line = format_args!("{READY_PREFIX}{address}{metrics}{injects}");
        let told = writeln!(out, "{line}").and_then(|()| out.flush());
        written(told)?;
        self.status = format!("{READY_PREFIX}{address}");
        self.notifier.ready(&self.status);
        self.logger
            .log(Event::new(LogLevel::Info, "listening").with("address", address));
        for fault in faults {
            let event = Event::new(LogLevel::Warn, "fault_on");
            self.logger.log(event.with("fault", fault));
        }
        Ok(())
    }

    /// Waits until somebody asks for the end.
    pub(crate) fn wait(&mut self, limited: &dyn Limited) {
        while !self.is_asked_to_stop(Some(limited)) {
            std::thread::sleep(WAIT_PERIOD);
        }
    }

    /// Looks after the server and its limits, and says whether its end was asked for. Whoever serves on a thread of
    /// its own calls this often.
    pub(crate) fn is_asked_to_stop(&mut self, limited: Option<&dyn Limited>) -> bool {
        let now = Instant::now();
        if now.duration_since(self.looked) >= LOOK_PERIOD {
            self.looked = now;
            self.look(now);
            // Relaxed: the flag tells of nothing but itself.
            if self.reload.swap(false, Ordering::Relaxed)
                && let Some(limited) = limited
            {
                self.reload(limited);
            }
        }
        self.stop.is_asked()
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

    /// No client is taken any more, and calls in hand finish within `at_most`.
    pub(crate) fn draining(&mut self, at_most: Duration) {
        self.board.enter(Phase::Draining);
        self.notifier.stopping("draining", at_most);
        let event = Event::new(LogLevel::Info, "draining");
        self.logger
            .log(event.with("at_most_ms", saturating_ms(at_most)));
    }

    /// The server is at its end. Every call that was handed to the service was answered, unless it was
    /// still under way when the time was up.
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

    /// Warns of something.
    pub(crate) fn warn(&self, what: &str) {
        // A run tells of its own profile and pages, which are those of its server.
        if !self.is_of_run {
            self.logger
                .log(Event::new(LogLevel::Warn, "warning").with("what", what));
        }
    }

    /// Where the node is to tell of its connections.
    #[must_use]
    pub(crate) fn events(&self) -> EventSink {
        let logger = self.logger.clone();
        EventSink::new(move |event| logger.log(of_node(event)))
    }
}

/// What a node tells, as it stands in the log. What a client did wrong, or was refused, is a warning.
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
    }
}

/// A connection's name on its core.
fn name(key: ConnectionKey) -> String {
    format!("{}.{}", key.index, key.generation)
}

fn saturating_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn serve_pages(
    board: &Arc<Board>,
    host: &str,
    port: u16,
    processors: &[usize],
) -> Result<HttpServer, Failure> {
    let cannot = |error| {
        Failure::failed(format!("cannot serve metrics at {host}:{port}"))
            .because(error)
            .advice("give --metrics an address of this machine and a port that is free")
    };
    let listener = TcpListener::bind((host, port)).map_err(cannot)?;
    let board = Arc::clone(board);
    let pages = move |path: &str| board.page(path);
    let processors = processors.to_vec();
    let prepare = move || machine::keep_off(&processors);
    HttpServer::start(listener, Box::new(pages), prepare).map_err(cannot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_that_does_not_poll_is_found_and_forgiven() {
        let mut pulse = Pulse::default();
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
