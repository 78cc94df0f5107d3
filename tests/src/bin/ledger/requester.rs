//! The requester's core: makes calls, and remembers how each of them ended.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;

use rpcrdma_engine::{
    Activity, Application, CallError, CallTag, CloseReason, ConnectionKey, Context, HostIdentity,
    Reply,
};
use rpcrdma_fabric::clock::Ticks;
use rpcrdma_fabric::interface::Port;

use crate::book::Name;
use crate::{APPEND, Failure};

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
pub(crate) enum Event {
    /// A connection ended.
    Ended(CloseReason),
    /// The call of this number failed.
    Failed(u64, CallError),
    /// As many calls as are wanted were made, and all of them ended.
    Done,
    /// No more calls are wanted.
    Enough,
}

/// What is wanted of the core. Relaxed throughout: nothing else is handed over by it.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    /// The calls to have made in the end.
    pub(crate) calls: AtomicU64,
    /// Make no more calls.
    pub(crate) stop: AtomicBool,
}

/// The application.
pub(crate) struct Requester {
    requester: u64,
    depth: u64,
    wanted: Arc<Wanted>,
    connections: Vec<ConnectionKey>,
    outstanding: u64,
    /// Indexed by a call's number.
    calls: Vec<End>,
    ended_twice: u64,
    events: Sender<Event>,
    /// What was wanted when [`Event::Done`] was last told: calls, and whether to stop.
    done: (u64, bool),
}

impl Requester {
    /// `requester` names it in the book; `depth` calls are outstanding at a time.
    pub(crate) fn new(
        requester: u64,
        depth: u64,
        wanted: Arc<Wanted>,
        events: Sender<Event>,
    ) -> Self {
        Self {
            requester,
            depth,
            wanted,
            connections: Vec::new(),
            outstanding: 0,
            calls: Vec::new(),
            ended_twice: 0,
            events,
            done: (0, false),
        }
    }

    fn wanted(&self) -> (u64, bool) {
        (
            self.wanted.calls.load(Ordering::Relaxed),
            self.wanted.stop.load(Ordering::Relaxed),
        )
    }

    fn wants_more(&self) -> bool {
        let (calls, stop) = self.wanted();
        self.number() < calls && !stop
    }

    /// The number of the next call.
    fn number(&self) -> u64 {
        u64::try_from(self.calls.len()).unwrap_or(u64::MAX)
    }

    /// Makes the next call, on the connection whose turn it is. False when it cannot be made now.
    fn call<P: Port>(&mut self, core: &mut Context<'_, P>) -> bool {
        let turn = self.calls.len().checked_rem(self.connections.len());
        let Some(connection) = turn.and_then(|turn| self.connections.get(turn)) else {
            return false;
        };
        let number = self.number();
        let name = Name {
            requester: self.requester,
            number,
        };
        if core
            .call(*connection, APPEND, &name.to_xdr(), number)
            .is_err()
        {
            return false;
        }
        self.calls.push(End::Outstanding);
        self.outstanding += 1;
        true
    }

    /// Writes a line for each call: its name, and how it ended.
    pub(crate) fn write_log(&self, path: &Path) -> Result<(), Failure> {
        let mut text = String::new();
        for (number, call) in self.calls.iter().enumerate() {
            write!(text, "{:016x} {number:016x} ", self.requester)?;
            match call {
                End::Outstanding => writeln!(text, "outstanding")?,
                End::Answered { position } => writeln!(text, "answered {position}")?,
                End::Failed(error) => writeln!(text, "failed {error}")?,
                End::NotAPosition => writeln!(text, "garbage")?,
            }
        }
        std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()).into())
    }

    /// Tells how the calls ended.
    ///
    /// # Errors
    /// When a call ended twice, or was answered with something else than a position.
    pub(crate) fn summary(&self) -> Result<String, Failure> {
        let count =
            |wanted: fn(&End) -> bool| self.calls.iter().filter(|call| wanted(call)).count();
        let garbage = count(|call| matches!(call, End::NotAPosition));
        if self.ended_twice > 0 || garbage > 0 {
            let twice = self.ended_twice;
            return Err(format!(
                "{twice} calls ended twice, or ended and were never made; {garbage} were answered with garbage"
            )
            .into());
        }
        Ok(format!(
            "{} calls: {} answered, {} failed",
            self.calls.len(),
            count(|call| matches!(call, End::Answered { .. })),
            count(|call| matches!(call, End::Failed(_))),
        ))
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
                    Err(error) => {
                        let _ = self.events.send(Event::Failed(tag, error));
                        End::Failed(error)
                    }
                };
                self.outstanding -= 1;
            }
            _ => self.ended_twice += 1,
        }
    }

    fn poll<P: Port>(&mut self, core: &mut Context<'_, P>, _now: Ticks) -> Activity {
        let mut busy = false;
        while self.outstanding < self.depth && self.wants_more() && self.call(core) {
            busy = true;
        }
        let wanted = self.wanted();
        if self.done != wanted && self.outstanding == 0 && !self.wants_more() {
            self.done = wanted;
            // Whoever waited may have given up.
            let _ = self.events.send(Event::Done);
        }
        Activity::from_busy(busy)
    }

    fn connected(&mut self, connection: ConnectionKey, _peer: Option<&HostIdentity>) {
        self.connections.push(connection);
    }

    fn disconnected(&mut self, connection: ConnectionKey, reason: CloseReason) {
        self.connections.retain(|other| *other != connection);
        let _ = self.events.send(Event::Ended(reason));
    }
}
