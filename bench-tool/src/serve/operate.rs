//! What operators see of a server: metrics and health by HTTP, readiness for the service manager.
//! All of it is on the thread that waits for the end, and on one for HTTP; cores take no part.

use std::io::Write as _;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rpcrdma_control::{Node, NodeSnapshot, Provider};
use rpcrdma_engine::Application;
use signal_hook::consts::SIGHUP;

use super::http::{Answer, HttpServer};
use super::limits::{Limited, Limits};
use super::metrics::{self, Identity};
use super::notify::Notifier;
use crate::address::{Address, ListenAddress};
use crate::cli::{ServeArgs, ServiceName};
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
pub type Watch = dyn Fn() -> NodeSnapshot + Send + Sync;

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

/// What operators have of one server.
pub struct Operator {
    board: Arc<Board>,
    http: Option<HttpServer>,
    notifier: Notifier,
    pulse: Pulse,
    looked: Instant,
    stop: Stop,
    limits: Option<PathBuf>,
    /// SIGHUP came.
    reload: Arc<AtomicBool>,
    /// What the service manager is told when it is ready.
    status: String,
}

impl Operator {
    /// Begins to answer at `--metrics`: the server is starting. `processors` are those of the cores.
    ///
    /// # Errors
    /// A failure when the address of the metrics cannot be listened on, the service manager's socket
    /// cannot be used, or signals cannot be taken.
    pub fn start(args: &ServeArgs, processors: &[usize]) -> Result<Self, Failure> {
        let identity = Identity {
            address: args.listen.to_string(),
            service: match args.service {
                ServiceName::Bench => "bench",
                ServiceName::Nfs3 => "nfs3",
            },
            fabric: match &args.listen {
                ListenAddress::Tcp { .. } => "tcp",
                ListenAddress::Fabric(Address::Shm(_)) => "shm",
                ListenAddress::Fabric(Address::Rdma { .. }) => "verbs",
            },
            started_s: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0.0, |since| since.as_secs_f64()),
            processors: processors.to_vec(),
        };
        let board = Arc::new(Board {
            identity,
            phase: AtomicU8::new(Phase::Starting as u8),
            stuck: AtomicU8::new(0),
            watch: OnceLock::new(),
        });
        // The server of a run is nobody's service: what the environment says is of the run.
        let notifier = if args.exit_with_stdin {
            Notifier::default()
        } else {
            Notifier::from_environment().map_err(|error| {
                Failure::failed("the socket that $NOTIFY_SOCKET names cannot be used")
                    .because(error)
            })?
        };
        let reload = Arc::new(AtomicBool::new(false));
        // Others end when their terminal goes.
        if args.operate.limits.is_some() || notifier.is_heard() {
            signal_hook::flag::register(SIGHUP, Arc::clone(&reload)).map_err(|error| {
                Failure::failed("cannot install the handler of SIGHUP").because(error)
            })?;
        }
        let http = match &args.operate.metrics {
            Some((host, port)) => Some(serve_pages(&board, host, *port, processors)?),
            None => None,
        };
        Ok(Self {
            board,
            http,
            notifier,
            pulse: Pulse::default(),
            looked: Instant::now(),
            stop: Stop::on_signals()?,
            limits: args.operate.limits.clone(),
            reload,
            status: String::new(),
        })
    }

    /// The node is there: it shows itself, and keeps the limits of the file.
    ///
    /// # Errors
    /// A failure when the limits cannot be read or kept.
    pub fn attend<V: Provider, A: Application>(&self, node: &Node<V, A>) -> Result<(), Failure> {
        // There is one node.
        let _ = self.board.watch.set(Box::new(node.watch()));
        self.read_limits(node).map(drop)
    }

    /// Reads the limits, and has `limited` keep them; what they are, for people.
    fn read_limits(&self, limited: &dyn Limited) -> Result<Option<String>, Failure> {
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
        Ok(Some(format!(
            "{} connections of a core, {} of a client, {} credits",
            kept.connections_per_core, kept.peer_connections_max, kept.credits_per_connection
        )))
    }

    /// Reads the limits again. What cannot be read or kept is told, and the old ones stay.
    fn reload(&mut self, limited: &dyn Limited) {
        self.notifier.reloading();
        match self.read_limits(limited) {
            Ok(Some(limits)) => eprintln!("bench-tool: limits read again: {limits}"),
            Ok(None) => {
                eprintln!(
                    "bench-tool: there are no limits to be read again: --limits names a file"
                );
            }
            Err(failure) => eprintln!("bench-tool: the old limits stay: {failure}"),
        }
        self.notifier.ready(&self.status);
    }

    /// What asks for the end.
    #[must_use]
    pub const fn stop(&self) -> &Stop {
        &self.stop
    }

    /// Clients are taken at `address`, which is followed by what there is to say of it.
    ///
    /// # Errors
    /// When standard output cannot be written.
    pub fn ready(&mut self, address: &str) -> Result<(), Failure> {
        self.board.enter(Phase::Ready);
        let metrics = self.http.as_ref().map_or_else(String::new, |http| {
            format!(" (metrics at http://{}/metrics)", http.address())
        });
        let mut out = std::io::stdout().lock();
        let told = writeln!(out, "{READY_PREFIX}{address}{metrics}").and_then(|()| out.flush());
        written(told)?;
        self.status = format!("{READY_PREFIX}{address}");
        self.notifier.ready(&self.status);
        Ok(())
    }

    /// Waits until somebody asks for the end.
    pub fn wait(&mut self, limited: &dyn Limited) {
        while !self.is_asked_to_stop(Some(limited)) {
            std::thread::sleep(WAIT_PERIOD);
        }
    }

    /// Looks after the server and its limits, and says whether its end was asked for. Whoever serves on a thread of
    /// its own calls this often.
    pub fn is_asked_to_stop(&mut self, limited: Option<&dyn Limited>) -> bool {
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
    }

    /// No client is taken any more, and calls in hand finish within `at_most`.
    pub fn draining(&mut self, at_most: Duration) {
        self.board.enter(Phase::Draining);
        self.notifier.stopping("draining", at_most);
    }
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
