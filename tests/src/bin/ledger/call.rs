//! The requester's other thread: connects, and connects again.

use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime};

use rpcrdma_control::{
    ConnectError, ConnectOptions, Connection, Node, NodeConfig, Provider, Versions,
};
use rpcrdma_engine::CloseReason;
use rpcrdma_fabric::interface::RejectReason;
use rpcrdma_testkit::PATIENCE;

use crate::requester::{Event, Requester, Wanted};
use crate::serve::told;
use crate::{Failure, LONG};

/// What to do.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Where the log goes.
    pub(crate) log: PathBuf,
    /// Calls to make in a round.
    pub(crate) count: u64,
    /// How long to make calls.
    pub(crate) duration: Option<Duration>,
    /// Whether to make calls until standard input ends.
    pub(crate) until_input_ends: bool,
    /// Calls outstanding at a time.
    pub(crate) depth: u64,
    /// Connections that the calls go over, in turn. They are all asked for at once.
    pub(crate) connections: u64,
    /// How often to connect, make the calls of a round, and disconnect.
    pub(crate) rounds: u64,
    /// How long to try to connect again when a connection ended; zero is not to try.
    pub(crate) reconnect_within: Duration,
}

/// The time for a connect that is tried again. A server may die in the midst of one.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(20);

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
    let wanted = Arc::new(Wanted::default());
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    // Tells requesters apart that share a book.
    let name = u64::try_from(since_epoch.as_nanos())? ^ u64::from(std::process::id());
    let requester = Requester::new(name, plan.depth, Arc::clone(&wanted), events.clone());
    let mut requester = Some(requester);
    let node = Node::start(provider, config, |_| {
        requester.take().expect("the node has one core")
    })
    .map_err(told)?;
    if plan.until_input_ends {
        std::thread::spawn(move || {
            let mut rest = [0; 64];
            while matches!(std::io::stdin().read(&mut rest), Ok(bytes) if bytes > 0) {}
            let _ = events.send(Event::Enough);
        });
    }
    let run = Run {
        node: &node,
        address,
        plan,
        wanted,
        events: told_by_core,
        last_end: config.core.call_timeout + PATIENCE,
    };
    let outcome = run.rounds();
    let requester = node.shutdown().pop().ok_or("the core is gone")?;
    requester.write_log(&plan.log)?;
    outcome?;
    println!("{}", requester.summary()?);
    Ok(())
}

struct Run<'a> {
    node: &'a Node<Requester>,
    address: &'a str,
    plan: &'a Plan,
    wanted: Arc<Wanted>,
    events: Receiver<Event>,
    /// How long after the last call was made all must have ended.
    last_end: Duration,
}

impl Run<'_> {
    fn rounds(&self) -> Result<(), Failure> {
        // TIME: how long calls are made. No limit for what they do.
        let end_of_calls = self.plan.duration.map(|duration| Instant::now() + duration);
        let mut round = 0;
        loop {
            round += 1;
            let connections = self.connect_all()?;
            let calls = self.plan.count.saturating_mul(round);
            self.wanted.calls.store(calls, Ordering::Relaxed);
            self.node.wake_cores();
            self.watch(end_of_calls)?;
            if round == self.plan.rounds || self.wanted.stop.load(Ordering::Relaxed) {
                if self.plan.rounds > 1 {
                    println!("{round} rounds");
                }
                return Ok(());
            }
            self.disconnect_all(&connections)?;
        }
    }

    /// Asks for all connections at once. The first ones are not tried again: what refuses them
    /// will not change.
    fn connect_all(&self) -> Result<Vec<Connection>, Failure> {
        // TIME: it is printed, and compared with nothing.
        let start = Instant::now();
        let pending: Vec<_> = (0..self.plan.connections)
            .map(|_| self.node.connect_start(self.address, options(LONG)))
            .collect();
        let outcomes: Vec<_> = pending
            .into_iter()
            .map(|one| self.with_room(one.wait()))
            .collect();
        let asked = outcomes.len();
        let mut connections = Vec::new();
        let mut refused = None;
        for outcome in outcomes {
            match outcome {
                Ok(connection) => connections.push(connection),
                Err(error) => refused = Some(error),
            }
        }
        let made = connections.len();
        if self.plan.rounds == 1 {
            // TIME: it is printed, and compared with nothing.
            let after_ms = start.elapsed().as_millis();
            println!(
                "connected to {}: {made} of {asked} after {after_ms} ms",
                self.address
            );
        }
        match refused {
            None => Ok(connections),
            Some(error) => {
                Err(format!("{made} of {asked} connections were made: {}", told(error)).into())
            }
        }
    }

    /// Places are given back a little after their connections ended: a round that begins may have
    /// to wait for those of the one before.
    fn with_room(
        &self,
        mut outcome: Result<Connection, ConnectError>,
    ) -> Result<Connection, ConnectError> {
        // TIME: for the limit below.
        let start = Instant::now();
        while self.plan.rounds > 1
            && matches!(
                outcome,
                Err(ConnectError::NoRoom { .. }
                    | ConnectError::Rejected {
                        reason: RejectReason::ConnectionsExhausted,
                        ..
                    })
            )
            // TIME: the limit of all waits is far longer than a connection takes to end.
            && start.elapsed() < PATIENCE
        {
            // TIME: a pause between two tries.
            std::thread::sleep(RETRY_PERIOD);
            outcome = self.node.connect(self.address, options(LONG));
        }
        outcome
    }

    fn disconnect_all(&self, connections: &[Connection]) -> Result<(), Failure> {
        for connection in connections {
            self.node.close(connection);
        }
        let mut ended = 0;
        while ended < connections.len() {
            match self.events.recv_timeout(PATIENCE) {
                Ok(Event::Ended(CloseReason::Local)) => ended += 1,
                Ok(event) => return Err(format!("{event:?} while connections were closed").into()),
                Err(_) => return Err("connections were closed, and did not end".into()),
            }
        }
        Ok(())
    }

    /// Connects again whenever a connection ends, until the calls are made and have ended.
    fn watch(&self, mut end_of_calls: Option<Instant>) -> Result<(), Failure> {
        let mut end_of_patience = None;
        // How many connections are missing, and since when.
        let (mut missing, mut since) = (0, None);
        loop {
            // TIME: when no more calls are to be made, and when the last must have ended. A look that comes late makes
            // calls go on for longer, and whatever was told before it is handled before the limit.
            let end = end_of_patience.or(end_of_calls);
            let mut left = end.map_or(PATIENCE, |end: Instant| {
                end.saturating_duration_since(Instant::now())
            });
            if missing > 0 {
                left = left.min(RETRY_PERIOD);
            }
            match self.events.recv_timeout(left) {
                Ok(Event::Done) => return Ok(()),
                Ok(Event::Failed(number, error)) => println!("call {number} failed: {error}"),
                Ok(Event::Ended(reason)) => {
                    println!("connection ended: {reason}");
                    // TIME: it begins the limit for the next connection, and ends calls where there is to be none.
                    let now = Instant::now();
                    if self.plan.reconnect_within.is_zero() {
                        end_of_calls = Some(now);
                    } else {
                        missing += 1;
                        since.get_or_insert(now);
                    }
                }
                // TIME: the end of input ends the calls.
                Ok(Event::Enough) => end_of_calls = Some(Instant::now()),
                Err(RecvTimeoutError::Timeout) => {
                    // TIME: the limit for the last call's end is its own and that of all waits.
                    if end_of_patience.is_some_and(|end| Instant::now() >= end) {
                        let text = "calls were still outstanding long after their time was up";
                        return Err(text.into());
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return Err("the core is gone".into()),
            }
            // TIME: as above.
            let now = Instant::now();
            if end_of_patience.is_none() && end_of_calls.is_some_and(|end| now >= end) {
                self.wanted.stop.store(true, Ordering::Relaxed);
                self.node.wake_cores();
                end_of_patience = Some(now + self.last_end);
                missing = 0;
            }
            if let Some(since) = since.filter(|_| missing > 0)
                && self.connects_again(since)?
            {
                missing -= 1;
            }
            since = since.filter(|_| missing > 0);
        }
    }

    /// Tries once to connect again, where a connection has been missing since then. The end of the calls is not to wait
    /// for more than that.
    fn connects_again(&self, since: Instant) -> Result<bool, Failure> {
        match self.node.connect(self.address, options(RECONNECT_TIMEOUT)) {
            Ok(_) => {
                // TIME: it is printed, and compared with nothing.
                println!("connected again after {} ms", since.elapsed().as_millis());
                Ok(true)
            }
            // TIME: the limit is what the command line says; every test says far more than a server takes to start.
            Err(error) if since.elapsed() >= self.plan.reconnect_within => {
                let seconds = self.plan.reconnect_within.as_secs();
                let error = told(error);
                Err(format!("not connected again in {seconds} s: {error}").into())
            }
            Err(_) => Ok(false),
        }
    }
}

fn options(timeout: Duration) -> ConnectOptions {
    ConnectOptions {
        timeout,
        // Servers die in the middle of a connect here, which says nothing of their version.
        versions: Versions::Two,
        ..ConnectOptions::default()
    }
}
