//! The connections of a load. With `--retry`, a lost connection is replaced by a new one.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rpcrdma::Node;
use rpcrdma_control::{
    ConnectError, ConnectOptions, Connection, CoreChoice, GivenUp, PendingConnect, Reconnect,
    ServerAddresses, Target, TargetEvent,
};
use rpcrdma_engine::ConnectionKey;

use super::cores::LoadCores;
use super::measured::Losses;
use super::workload::Workload;
use crate::exit::Failure;
use crate::report::figures::PathFigures;
use crate::signals::Stop;

/// Connects in flight at the same time: enough to hide the scheduling delays of the server.
pub(crate) const CONNECTS_IN_FLIGHT: usize = 64;

/// The pauses between attempts to replace a lost connection. The attempts themselves are unlimited: `--retry` ends
/// them.
const RECONNECT: Reconnect = Reconnect {
    first_ms: 100,
    most_ms: 1000,
    factor: 2,
    jitter_percent: 50,
    attempts_max: None,
};

/// How long the first connection of a load waits for a server that is starting; `--retry` can make it longer. A client of
/// the library waits as long by default.
const START_PATIENCE: Duration = Duration::from_secs(5);

/// The pause before another attempt at the first connection.
const START_PAUSE: Duration = Duration::from_millis(100);

/// How often the thread looks for a new connection while it waits for nothing else.
const LOOK_PERIOD: Duration = Duration::from_millis(10);

/// The connections of a load. Connection `i` is on core `i % cores`.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    /// The server's addresses, for messages.
    address: String,
    /// The same, one by one.
    addresses: Vec<String>,
    lines: Vec<Line>,
    /// How long a lost connection may stay lost; with 0 it is not replaced.
    retry: Duration,
    /// Losses since the last [`Connections::take_losses`].
    losses: Losses,
}

/// A connection, and the target that replaces it after a loss.
#[derive(Debug)]
struct Line {
    connection: Connection,
    /// `None` if a lost connection is not replaced.
    target: Option<Target>,
    /// When it was lost, and the last reason why there is no new connection yet.
    lost: Option<(Instant, String)>,
}

impl Connections {
    /// Makes `count` connections to the server at `addresses`, beginning with each of these in turn, and spreads them over `cores`
    /// cores. `options` holds everything but the core. If `stop` is set meanwhile, it returns fewer. The first one waits for a
    /// server that is starting.
    ///
    /// # Errors
    /// The first connection that fails; the message has its number.
    pub(crate) fn connect(
        node: &Node,
        addresses: &ServerAddresses,
        (count, cores): (usize, usize),
        options: &ConnectOptions,
        retry: Duration,
        stop: &Stop,
    ) -> Result<Self, Failure> {
        let options = |index: usize| ConnectOptions {
            core: CoreChoice::Core(index % cores.max(1)),
            application_properties: Some(node.new_name()),
            ..options.clone()
        };
        let failed = |made: usize, error: Option<ConnectError>| {
            let failure = Failure::failed(if count == 1 {
                format!("cannot connect to {addresses}")
            } else {
                format!(
                    "connection {} of {count} to {addresses} could not be made",
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
        let deadline = Instant::now() + retry.max(START_PATIENCE);
        // The others begin when the first one is there.
        let others = count.saturating_sub(1);
        let lines: Vec<Line> = if retry.is_zero() {
            // WAIT: never: the connection is made meanwhile.
            let start_at = |number: usize, index| {
                let address = addresses.beginning_at(number).first().to_string();
                node.control().connect_start(&address, options(index))
            };
            let start = |index| start_at(index, index);
            // One of the addresses may not be there at the moment.
            let mut tries = 0..;
            let mut try_first = || start_at(tries.next().unwrap_or(0), 0);
            // WAIT: for the time-out of the connection.
            let first = until_started(|| try_first().wait(), (deadline, addresses.len()), stop);
            let first = first.map_err(|error| failed(0, Some(error)))?;
            let made = connect_many(others, |index| start(index + 1), stop);
            let made = made.map_err(|(made, error)| failed(made + 1, Some(error)))?;
            let all = first.into_iter().chain(made);
            all.map(|it| line(it, None)).collect()
        } else {
            let start = |index| {
                let options = options(index);
                // Twice the time-out: an attempt that starts just before the first one expires still gets its full
                // time.
                let patience = options.timeout.saturating_mul(2);
                let all = addresses.beginning_at(index).to_string();
                let target = node.control().keep_connected(&all, options, RECONNECT);
                Attempts {
                    target,
                    patience,
                    addresses: addresses.len(),
                }
            };
            let first = established_until(start(0), deadline, stop);
            let first = first.map_err(|error| failed(0, error))?;
            let made = start_many(others, |index| start(index + 1), established, stop);
            let made = made.map_err(|(made, error)| failed(made + 1, error))?;
            first.into_iter().chain(made).collect()
        };
        Ok(Self {
            address: addresses.to_string(),
            addresses: addresses.iter().map(ToString::to_string).collect(),
            lines,
            retry,
            losses: Losses::default(),
        })
    }

    /// The server's address.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Where the connections that are not lost are. Without `--retry` nobody knows here which of them the `losses` are, and the
    /// result is empty if there are any.
    pub(crate) fn paths(&self, losses: &Losses) -> Vec<PathFigures> {
        if self.retry.is_zero() && losses.connections > 0 {
            return Vec::new();
        }
        let connected = self.lines.iter().filter(|line| line.lost.is_none());
        let at = connected.map(|line| line.connection.address.as_str());
        PathFigures::count(&self.addresses, at)
    }

    /// The server's addresses, one by one.
    pub(crate) fn addresses(&self) -> &[String] {
        &self.addresses
    }

    pub(crate) fn count(&self) -> usize {
        self.lines.len()
    }

    /// The first connection.
    pub(crate) fn first(&self) -> Option<&Connection> {
        self.lines.first().map(|line| &line.connection)
    }

    /// The connections of the core with this index.
    pub(crate) fn keys(&self, core: usize) -> Vec<ConnectionKey> {
        let connections = self.lines.iter().map(|line| &line.connection);
        let own = connections.filter(|it| it.core == core);
        own.map(|connection| connection.key).collect()
    }

    /// Counts lost and replaced connections, and passes each new connection to its core.
    ///
    /// # Errors
    /// If a lost connection cannot be replaced, or stays lost for longer than `retry`.
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
            ..
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

    /// Waits until no connection is lost or `is_stopping` returns true; returns immediately if none is lost.
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
            // WAIT: `LOOK_PERIOD`; the whole until `retry` has passed, or a stop request.
            std::thread::sleep(LOOK_PERIOD);
            self.look_after(cores, false)?;
        }
        Ok(())
    }

    /// Waits until a new connection replaces the first one, `lost`, for at most `retry`, or until `is_stopping`. Returns whether
    /// one did.
    pub(crate) fn restore_first<W: Workload>(
        &mut self,
        cores: &LoadCores<W>,
        lost: ConnectionKey,
        is_stopping: impl Fn() -> bool,
    ) -> bool {
        let deadline = Instant::now() + self.retry;
        while Instant::now() < deadline && !is_stopping() {
            if self.look_after(cores, false).is_err() {
                return false;
            }
            let first = self.lines.first();
            if first.is_some_and(|it| it.connection.key != lost && it.lost.is_none()) {
                return true;
            }
            // WAIT: `LOOK_PERIOD`; the whole until `retry` has passed, or a stop request.
            std::thread::sleep(LOOK_PERIOD);
        }
        false
    }

    /// Losses since the last [`Connections::take_losses`].
    pub(crate) fn losses(&self) -> &Losses {
        &self.losses
    }

    /// Losses since the last call.
    pub(crate) fn take_losses(&mut self) -> Losses {
        std::mem::take(&mut self.losses)
    }
}

impl Line {
    /// # Errors
    /// The reason why there is no new connection.
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
                    let lost = self.lost.take();
                    losses.replaced(lost.map_or_else(Instant::now, |(since, _)| since));
                }
                TargetEvent::Lost { reason, .. } => {
                    losses.connections += 1;
                    self.lost = Some((Instant::now(), reason.to_string()));
                }
                // While the tool stops, one failed attempt is enough: no further calls need the connection.
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

/// Connects, and tries again until `deadline` while the server may be starting. `None` after a stop request.
fn until_started<T>(
    mut connect: impl FnMut() -> Result<T, ConnectError>,
    (deadline, addresses): (Instant, usize),
    stop: &Stop,
) -> Result<Option<T>, ConnectError> {
    let mut tried = 0;
    while !stop.is_asked() {
        tried += 1;
        // WAIT: for the time-out of a connection.
        match connect() {
            // Each address is tried once, whether or not another can be reached.
            Err(error)
                if tried < addresses || may_be_starting(&error) && Instant::now() < deadline =>
            {
                // WAIT: for a server that is starting, until `deadline` or a stop request.
                std::thread::sleep(START_PAUSE);
            }
            made => return made.map(Some),
        }
    }
    Ok(None)
}

/// Whether a server that is starting is a possible reason. One that answers has started.
fn may_be_starting(error: &ConnectError) -> bool {
    !error.is_permanent() && !matches!(error, ConnectError::Rejected { .. })
}

/// The first attempts of a target.
struct Attempts {
    target: Target,
    /// For one, at one address.
    patience: Duration,
    addresses: usize,
}

/// The same for a target, which makes its attempts itself. One that is under way at the deadline has its time.
fn established_until(
    attempts: Attempts,
    deadline: Instant,
    stop: &Stop,
) -> Result<Option<Line>, Option<ConnectError>> {
    let Attempts {
        target,
        patience,
        addresses,
    } = attempts;
    let count = u32::try_from(addresses).unwrap_or(u32::MAX);
    let given_up = deadline.max(Instant::now() + patience.saturating_mul(count));
    let mut failed = 0;
    while !stop.is_asked() {
        // WAIT: until the deadline, or a stop request.
        match target.wait(START_PAUSE) {
            None if Instant::now() >= given_up => return Err(None),
            None => {}
            Some(TargetEvent::Failed { error, .. })
                if failed + 1 < addresses
                    || may_be_starting(&error) && Instant::now() < deadline =>
            {
                failed += 1;
            }
            Some(event) => return line_of(target, event).map(Some),
        }
    }
    Ok(None)
}

/// Waits for the first connection of a target.
fn established(attempts: Attempts) -> Result<Line, Option<ConnectError>> {
    let Attempts {
        target,
        patience,
        addresses,
    } = attempts;
    let mut left = addresses;
    loop {
        left = left.saturating_sub(1);
        // WAIT: `patience` for each address.
        match target.wait(patience).ok_or(None)? {
            TargetEvent::Failed { .. } if left > 0 => {}
            event => return line_of(target, event),
        }
    }
}

fn line_of(target: Target, event: TargetEvent) -> Result<Line, Option<ConnectError>> {
    match event {
        TargetEvent::Established { connection } => Ok(Line {
            connection,
            target: Some(target),
            lost: None,
        }),
        TargetEvent::Failed { error, .. } | TargetEvent::GivenUp(GivenUp::Failed(error)) => {
            Err(Some(error))
        }
        _ => Err(None),
    }
}

/// Makes `count` connections, a limited number at a time; lost ones are not replaced. An error comes with the number
/// of connections made before it.
pub(crate) fn connect_many(
    count: usize,
    start: impl Fn(usize) -> PendingConnect,
    stop: &Stop,
) -> Result<Vec<Connection>, (usize, ConnectError)> {
    start_many(count, start, PendingConnect::wait, stop)
}

/// Starts `count` operations, at most [`CONNECTS_IN_FLIGHT`] at a time, and waits for each in order. An error comes
/// with the number of operations completed before it.
fn start_many<S, D, E>(
    count: usize,
    start: impl Fn(usize) -> S,
    wait: impl Fn(S) -> Result<D, E>,
    stop: &Stop,
) -> Result<Vec<D>, (usize, E)> {
    let mut done = Vec::with_capacity(count);
    let mut pending = VecDeque::with_capacity(CONNECTS_IN_FLIGHT);
    let mut started = 0;
    while done.len() < count && !stop.is_asked() {
        while started < count && pending.len() < CONNECTS_IN_FLIGHT {
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

#[cfg(test)]
mod tests {
    use super::*;
    use rpcrdma_fabric::interface::{ManagerError, RejectReason};
    use std::cell::Cell;

    #[test]
    fn first_connection_waits_for_a_server_that_is_starting_and_for_nothing_else() {
        let nobody = || {
            ConnectError::Fabric(ManagerError::Refused {
                address: "shm:x".to_owned(),
            })
        };
        // TIME: the first deadline is never met, the second one has passed.
        let (far, past) = (Instant::now() + rpcrdma_testkit::PATIENCE, Instant::now());
        let tries = Cell::new(0);
        let third = || {
            tries.set(tries.get() + 1);
            (tries.get() == 3).then_some(()).ok_or_else(nobody)
        };
        let stop = Stop::new();
        assert!(matches!(
            until_started(third, (far, 1), &stop),
            Ok(Some(()))
        ));
        assert!(until_started(|| Err::<(), _>(nobody()), (past, 1), &stop).is_err());
        let permanent = || Err::<(), _>(ConnectError::ShuttingDown);
        assert!(until_started(permanent, (far, 1), &stop).is_err());
        let full = || {
            Err::<(), _>(ConnectError::Rejected {
                address: "shm:x".to_owned(),
                reason: RejectReason::ConnectionsExhausted,
            })
        };
        assert!(until_started(full, (far, 1), &stop).is_err());
        // The third address is tried, although the first two failed for good.
        tries.set(0);
        let third_address = || {
            tries.set(tries.get() + 1);
            match tries.get() {
                1 => permanent(),
                2 => full(),
                _ => Ok(()),
            }
        };
        let reached = until_started(third_address, (past, 3), &stop);
        assert!(matches!(reached, Ok(Some(()))));
        stop.ask();
        assert!(matches!(until_started(third, (far, 1), &stop), Ok(None)));
    }
}
