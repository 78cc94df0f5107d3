//! The requester.

use std::fmt::Write as _;
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant, SystemTime};

use rpcrdma_control::{ConnectOptions, Node, NodeConfig, Provider};
use rpcrdma_engine::{
    Activity, Application, CallError, CallTag, CloseReason, ConnectionKey, Context, Reply,
};
use rpcrdma_fabric::clock::Ticks;
use rpcrdma_fabric::interface::Port;

use crate::book::Name;
use crate::serve::told;
use crate::{APPEND, Failure};

/// What to do.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Where the log goes.
    pub(crate) log: PathBuf,
    /// Calls to make.
    pub(crate) count: u64,
    /// How long to make calls.
    pub(crate) duration: Option<Duration>,
    /// Whether to make calls until standard input ends.
    pub(crate) until_input_ends: bool,
    /// Calls outstanding at a time.
    pub(crate) depth: u64,
    /// How long to try to connect again when the connection ended; zero is not to try.
    pub(crate) reconnect_within: Duration,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Outstanding,
    Answered { position: u64 },
    Failed(CallError),
    NotAPosition,
}

/// What the thread that connects is told.
#[derive(Debug)]
enum Event {
    /// The connection ended.
    Ended(CloseReason),
    /// No more calls are wanted.
    Enough,
    /// All calls were made, and all of them ended.
    Done,
}

struct Requester {
    requester: u64,
    count: u64,
    depth: u64,
    connection: Option<ConnectionKey>,
    outstanding: u64,
    /// Indexed by a call's number.
    calls: Vec<End>,
    ended_twice: u64,
    /// Set when time is over: no more calls.
    stop: Arc<AtomicBool>,
    events: Sender<Event>,
    is_done: bool,
}

impl Requester {
    fn has_calls_to_make(&self) -> bool {
        self.number() < self.count && !self.stop.load(Ordering::Relaxed)
    }

    /// The number of the next call.
    fn number(&self) -> u64 {
        u64::try_from(self.calls.len()).unwrap_or(u64::MAX)
    }
}

impl Application for Requester {
    fn completed(
        &mut self,
        tag: CallTag,
        _connection: ConnectionKey,
        result: Result<Reply<'_>, CallError>,
        _now: Ticks,
    ) {
        let call = usize::try_from(tag)
            .ok()
            .and_then(|number| self.calls.get_mut(number));
        match call {
            Some(call @ End::Outstanding) => {
                *call = match result.map(|reply| <[u8; 8]>::try_from(reply.results)) {
                    Ok(Ok(position)) => End::Answered {
                        position: u64::from_be_bytes(position),
                    },
                    Ok(Err(_)) => End::NotAPosition,
                    Err(error) => End::Failed(error),
                };
                self.outstanding -= 1;
            }
            _ => self.ended_twice += 1,
        }
    }

    fn poll<P: Port>(&mut self, core: &mut Context<'_, P>, _now: Ticks) -> Activity {
        let mut busy = false;
        while self.outstanding < self.depth
            && self.has_calls_to_make()
            && let Some(connection) = self.connection
        {
            let number = self.number();
            let name = Name {
                requester: self.requester,
                number,
            };
            if core
                .call(connection, APPEND, &name.to_xdr(), number)
                .is_err()
            {
                break;
            }
            self.calls.push(End::Outstanding);
            self.outstanding += 1;
            busy = true;
        }
        if !self.is_done && self.outstanding == 0 && !self.has_calls_to_make() {
            self.is_done = true;
            // Whoever waited may have given up.
            let _ = self.events.send(Event::Done);
        }
        Activity::from_busy(busy)
    }

    fn connected(&mut self, connection: ConnectionKey) {
        self.connection = Some(connection);
    }

    fn disconnected(&mut self, connection: ConnectionKey, reason: CloseReason) {
        if self.connection == Some(connection) {
            self.connection = None;
        }
        let _ = self.events.send(Event::Ended(reason));
    }
}

/// How long an end may be late: the core's timers, and a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long to wait before connecting is tried again.
const RETRY_PERIOD: Duration = Duration::from_millis(100);

/// Makes the calls, and writes the log.
pub(crate) fn run<V: Provider>(
    provider: V,
    config: &NodeConfig,
    address: &str,
    plan: &Plan,
) -> Result<(), Failure> {
    let (events, told_by_core) = mpsc::channel();
    let stop = Arc::new(AtomicBool::new(false));
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    let mut requester = Some(Requester {
        // Tells runs apart that share a book.
        requester: u64::try_from(since_epoch.as_nanos())? ^ u64::from(std::process::id()),
        count: plan.count,
        depth: plan.depth,
        connection: None,
        outstanding: 0,
        calls: Vec::new(),
        ended_twice: 0,
        stop: Arc::clone(&stop),
        events: events.clone(),
        is_done: false,
    });
    let node = Node::start(provider, config, |_| {
        requester.take().expect("the node has one core")
    })
    .map_err(told)?;
    // The first connection is not tried again: what refuses it will not change.
    node.connect(address, ConnectOptions::default())
        .map_err(told)?;
    println!("connected to {address}");
    if plan.until_input_ends {
        std::thread::spawn(move || {
            let mut rest = [0; 64];
            while matches!(std::io::stdin().read(&mut rest), Ok(bytes) if bytes > 0) {}
            let _ = events.send(Event::Enough);
        });
    }
    let mut run = Run {
        node: &node,
        address,
        reconnect_within: plan.reconnect_within,
        stop,
        last_end: config.core.call_timeout + PATIENCE,
    };
    let outcome = run.watch(plan.duration, &told_by_core);
    let requester = node.shutdown().pop().ok_or("the core is gone")?;
    write_log(&requester, plan)?;
    outcome?;
    summary(&requester)
}

/// The thread that connects.
struct Run<'a, V: Provider> {
    node: &'a Node<V, Requester>,
    address: &'a str,
    reconnect_within: Duration,
    stop: Arc<AtomicBool>,
    /// How long after the last call was made all must have ended.
    last_end: Duration,
}

impl<V: Provider> Run<'_, V> {
    /// Connects again whenever the connection ends, until all calls are made and have ended.
    fn watch(
        &mut self,
        duration: Option<Duration>,
        events: &Receiver<Event>,
    ) -> Result<(), Failure> {
        let mut end_of_calls = duration.map(|duration| Instant::now() + duration);
        let mut end_of_patience = None;
        loop {
            let end = end_of_patience.or(end_of_calls);
            let left = end.map_or(PATIENCE, |end| {
                end.saturating_duration_since(Instant::now())
            });
            match events.recv_timeout(left) {
                Ok(Event::Done) => return Ok(()),
                Ok(Event::Ended(reason)) => {
                    println!("connection ended: {reason}");
                    if self.reconnect_within.is_zero() {
                        end_of_calls = Some(Instant::now());
                    } else if end_of_patience.is_none() {
                        self.reconnect()?;
                    }
                }
                Ok(Event::Enough) => end_of_calls = Some(Instant::now()),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err("the core is gone".into()),
            }
            let now = Instant::now();
            if end_of_patience.is_some_and(|end| now >= end) {
                return Err("calls were still outstanding long after their time was up".into());
            }
            if end_of_patience.is_none() && end_of_calls.is_some_and(|end| now >= end) {
                self.stop.store(true, Ordering::Relaxed);
                self.node.wake_cores();
                end_of_patience = Some(now + self.last_end);
            }
        }
    }

    fn reconnect(&self) -> Result<(), Failure> {
        let start = Instant::now();
        loop {
            match self
                .node
                .connect(self.address, ConnectOptions::default())
                .map_err(told)
            {
                Ok(_) => {
                    println!("connected again after {} ms", start.elapsed().as_millis());
                    return Ok(());
                }
                Err(error) if start.elapsed() >= self.reconnect_within => {
                    let seconds = self.reconnect_within.as_secs();
                    return Err(format!("not connected again in {seconds} s: {error}").into());
                }
                Err(_) => std::thread::sleep(RETRY_PERIOD),
            }
        }
    }
}

/// A line for each call: its name, and how it ended.
fn write_log(requester: &Requester, plan: &Plan) -> Result<(), Failure> {
    let mut text = String::new();
    for (number, call) in requester.calls.iter().enumerate() {
        write!(text, "{:016x} {number:016x} ", requester.requester)?;
        match call {
            End::Outstanding => writeln!(text, "outstanding")?,
            End::Answered { position } => writeln!(text, "answered {position}")?,
            End::Failed(error) => writeln!(text, "failed {error}")?,
            End::NotAPosition => writeln!(text, "garbage")?,
        }
    }
    std::fs::write(&plan.log, text)
        .map_err(|error| format!("{}: {error}", plan.log.display()).into())
}

fn summary(requester: &Requester) -> Result<(), Failure> {
    let count =
        |wanted: fn(&End) -> bool| requester.calls.iter().filter(|call| wanted(call)).count();
    println!(
        "{} calls: {} answered, {} failed",
        requester.calls.len(),
        count(|call| matches!(call, End::Answered { .. })),
        count(|call| matches!(call, End::Failed(_))),
    );
    match (
        requester.ended_twice,
        count(|call| matches!(call, End::NotAPosition)),
    ) {
        (0, 0) => Ok(()),
        (twice, garbage) => Err(format!(
            "{twice} calls ended twice, or ended and were never made; {garbage} were answered with garbage"
        )
        .into()),
    }
}
