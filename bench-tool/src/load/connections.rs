//! The connections of a load, and what replaces those that are lost.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rpcrdma_control::{
    ConnectError, ConnectOptions, Connection, CoreChoice, GivenUp, Node, PendingConnect, Provider,
    Reconnect, Target, TargetEvent,
};
use rpcrdma_engine::{Application, ConnectionKey};

use super::cores::LoadCores;
use super::measured::Losses;
use super::workload::Workload;
use crate::exit::Failure;
use crate::signals::Stop;

/// Connects that are under way at a time: enough to hide the other side's scheduling.
const CONNECTS_AT_ONCE: usize = 64;

/// How a connection that was lost is made again.
const RECONNECT: Reconnect = Reconnect {
    first_ms: 100,
    most_ms: 1000,
    factor: 2,
    jitter_percent: 50,
    attempts_max: None,
};

/// How soon a connection that was made again is noticed where nothing else is waited for.
const LOOK_PERIOD: Duration = Duration::from_millis(10);

/// The connections of a load, in the order of their numbers: core by core in turn.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    /// Of the server.
    address: String,
    lines: Vec<Line>,
    /// How long a lost connection is tried again; 0 does not.
    retry: Duration,
    /// Since the losses were taken last.
    losses: Losses,
}

/// A connection, and what makes it again when it is lost.
#[derive(Debug)]
struct Line {
    connection: Connection,
    /// `None` where a lost connection is not made again.
    target: Option<Target>,
    /// Since when it is lost, and why it is not made again so far.
    lost: Option<(Instant, String)>,
}

impl Connections {
    /// Makes `count` connections to `address`, over `cores` cores in turn; `options` has the rest. Fewer when `stop` was
    /// asked for.
    ///
    /// # Errors
    /// A failure that says which of them could not be made.
    pub(crate) fn connect<V: Provider, A: Application>(
        node: &Node<V, A>,
        address: &str,
        (count, cores): (usize, usize),
        options: &ConnectOptions,
        retry: Duration,
        stop: &Stop,
    ) -> Result<Self, Failure> {
        let options = |index: usize| ConnectOptions {
            core: CoreChoice::Core(index % cores.max(1)),
            ..options.clone()
        };
        let failed = |made: usize, error: Option<ConnectError>| {
            let failure = Failure::failed(if count == 1 {
                format!("cannot connect to {address}")
            } else {
                format!(
                    "connection {} of {count} to {address} could not be made",
                    made + 1
                )
            });
            match error {
                Some(error) => failure.because(error),
                None => failure.because("no answer came in time".to_owned()),
            }
        };
        let line = |connection, target| Line {
            connection,
            target,
            lost: None,
        };
        let lines: Vec<Line> = if retry.is_zero() {
            let start = |index| node.connect_start(address, options(index));
            let made = connect_many(count, start, stop);
            let made = made.map_err(|(made, error)| failed(made, Some(error)))?;
            made.into_iter().map(|it| line(it, None)).collect()
        } else {
            let start = |index| {
                let options = options(index);
                // Twice: an attempt may be under way when the first time is over.
                let patience = options.timeout.saturating_mul(2);
                (node.keep_connected(address, options, RECONNECT), patience)
            };
            let made = start_many(count, start, established, stop);
            made.map_err(|(made, error)| failed(made, error))?
        };
        Ok(Self {
            address: address.to_owned(),
            lines,
            retry,
            losses: Losses::default(),
        })
    }

    /// The first one.
    pub(crate) fn first(&self) -> Option<&Connection> {
        self.lines.first().map(|line| &line.connection)
    }

    /// Those of the core with this index.
    pub(crate) fn keys(&self, core: usize) -> Vec<ConnectionKey> {
        let connections = self.lines.iter().map(|line| &line.connection);
        let own = connections.filter(|it| it.core == core);
        own.map(|connection| connection.key).collect()
    }

    /// Notes which connections were lost and made again, and gives the cores the new ones.
    ///
    /// # Errors
    /// When one is not going to be made again, or not in time.
    pub(crate) fn look_after<W: Workload>(
        &mut self,
        cores: &LoadCores<W>,
        is_stopping: bool,
    ) -> Result<(), Failure> {
        let Self {
            address,
            lines,
            retry,
            losses,
        } = self;
        lines
            .iter_mut()
            .try_for_each(|line| {
                line.look_after(losses, *retry, is_stopping, |index, lost, fresh| {
                    cores.replace(index, lost, fresh);
                })
            })
            .map_err(|why| {
                Failure::failed(format!(
                    "a connection to {address} was lost, and could not be made again"
                ))
                .because(why)
                .advice("look at the server's messages; --retry TIME says how long it may be away")
            })
    }

    /// Waits until all connections are there, or `is_stopping`; returns immediately if none is lost.
    ///
    /// # Errors
    /// As [`Connections::look_after`].
    pub(crate) fn restore<W: Workload>(
        &mut self,
        cores: &LoadCores<W>,
        is_stopping: impl Fn() -> bool,
    ) -> Result<(), Failure> {
        self.look_after(cores, false)?;
        while self.lines.iter().any(|line| line.lost.is_some()) && !is_stopping() {
            std::thread::sleep(LOOK_PERIOD);
            self.look_after(cores, false)?;
        }
        Ok(())
    }

    /// Waits until another connection has taken the place of the first one, `lost`; whether one has.
    pub(crate) fn restore_first<W: Workload>(
        &mut self,
        cores: &LoadCores<W>,
        lost: ConnectionKey,
    ) -> bool {
        let deadline = Instant::now() + self.retry;
        while Instant::now() < deadline {
            if self.look_after(cores, false).is_err() {
                return false;
            }
            let first = self.lines.first();
            if first.is_some_and(|it| it.connection.key != lost && it.lost.is_none()) {
                return true;
            }
            std::thread::sleep(LOOK_PERIOD);
        }
        false
    }

    /// What was lost since the losses were taken last.
    pub(crate) fn take_losses(&mut self) -> Losses {
        std::mem::take(&mut self.losses)
    }
}

impl Line {
    /// # Errors
    /// Why the connection is not made again.
    fn look_after(
        &mut self,
        losses: &mut Losses,
        retry: Duration,
        is_stopping: bool,
        mut replace: impl FnMut(usize, ConnectionKey, ConnectionKey),
    ) -> Result<(), String> {
        while let Some(event) = self.target.as_ref().and_then(Target::next_event) {
            match event {
                TargetEvent::Established { connection } => {
                    replace(connection.core, self.connection.key, connection.key);
                    self.connection = connection;
                    losses.reconnects += 1;
                    if let Some((since, _)) = self.lost.take() {
                        losses.longest = losses.longest.max(since.elapsed());
                    }
                }
                TargetEvent::Lost { reason, .. } => {
                    losses.connections += 1;
                    self.lost = Some((Instant::now(), reason.to_string()));
                }
                TargetEvent::Failed { error, .. } if is_stopping => {
                    return Err(error.to_string());
                }
                TargetEvent::Failed { error, .. } => {
                    if let Some((_, why)) = &mut self.lost {
                        *why = error.to_string();
                    }
                }
                TargetEvent::GivenUp(GivenUp::Failed(error)) => {
                    return Err(error.to_string());
                }
                TargetEvent::GivenUp(GivenUp::Closed(reason)) => {
                    return Err(reason.to_string());
                }
            }
        }
        match &self.lost {
            Some((since, why)) if since.elapsed() > retry => Err(why.clone()),
            _ => Ok(()),
        }
    }
}

/// The first connection of a target.
fn established((target, patience): (Target, Duration)) -> Result<Line, Option<ConnectError>> {
    match target.wait(patience) {
        Some(TargetEvent::Established { connection }) => Ok(Line {
            connection,
            target: Some(target),
            lost: None,
        }),
        Some(TargetEvent::Failed { error, .. } | TargetEvent::GivenUp(GivenUp::Failed(error))) => {
            Err(Some(error))
        }
        _ => Err(None),
    }
}

/// Makes `count` connections that are not made again, some at a time. A failure has the number of those that were made.
pub(crate) fn connect_many(
    count: usize,
    start: impl Fn(usize) -> PendingConnect,
    stop: &Stop,
) -> Result<Vec<Connection>, (usize, ConnectError)> {
    start_many(count, start, PendingConnect::wait, stop)
}

/// Starts `count` of something, some at a time, and waits for each. A failure has the number of those before it.
fn start_many<S, D, E>(
    count: usize,
    start: impl Fn(usize) -> S,
    wait: impl Fn(S) -> Result<D, E>,
    stop: &Stop,
) -> Result<Vec<D>, (usize, E)> {
    let mut done = Vec::with_capacity(count);
    let mut pending = VecDeque::with_capacity(CONNECTS_AT_ONCE);
    let mut started = 0;
    while done.len() < count && !stop.is_asked() {
        while started < count && pending.len() < CONNECTS_AT_ONCE {
            pending.push_back(start(started));
            started += 1;
        }
        let Some(next) = pending.pop_front() else {
            break;
        };
        match wait(next) {
            Ok(it) => done.push(it),
            Err(error) => return Err((done.len(), error)),
        }
    }
    Ok(done)
}
