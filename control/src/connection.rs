//! One connection as the control thread sees it.

use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use rpcrdma_engine::ConnectionKey;
use rpcrdma_fabric::interface::{ConnectionId, PeerIdentity};

use crate::authentication::Session;
use crate::error::{ConnectError, Stage};
use crate::node::Connection;

/// Which end of the connection this is.
#[derive(Debug)]
pub(crate) enum End {
    /// We asked for it, and somebody may be waiting for the outcome.
    Client(Attempt),
    /// A peer asked for it.
    Server,
}

/// An attempt to connect, until it is answered.
#[derive(Debug)]
pub(crate) struct Attempt {
    pub(crate) address: String,
    pub(crate) timeout: Duration,
    pub(crate) deadline: Instant,
    /// Taken when the outcome is known.
    pub(crate) waiter: Option<Sender<Result<Connection, ConnectError>>>,
}

impl Attempt {
    /// Tells the waiter the outcome; the first one counts.
    pub(crate) fn answer(&mut self, outcome: Result<Connection, ConnectError>) {
        if let Some(waiter) = self.waiter.take() {
            // Whoever waited may have given up; the connection is closed by its handle then.
            let _ = waiter.send(outcome);
        }
    }
}

/// A connection from its request to its end.
#[derive(Debug)]
pub(crate) struct Tracked {
    pub(crate) id: ConnectionId,
    pub(crate) end: End,
    pub(crate) core: usize,
    /// Known once the core has planted the queue pair.
    pub(crate) key: Option<ConnectionKey>,
    pub(crate) stage: Stage,
    /// Known to the server at once, to the client with the reply.
    pub(crate) peer: Option<PeerIdentity>,
    /// Its property sets, and host authentication in them.
    pub(crate) session: Session,
    /// The fabric's connection is gone, or is to go: close as soon as there is a key to close by.
    pub(crate) ending: bool,
}

impl Tracked {
    pub(crate) fn attempt(&mut self) -> Option<&mut Attempt> {
        match &mut self.end {
            End::Client(attempt) => Some(attempt),
            End::Server => None,
        }
    }

    /// Fails the attempt, if this is one that still waits; returns whether it did.
    pub(crate) fn fail(&mut self, why: impl FnOnce(&Attempt, Stage) -> ConnectError) -> bool {
        let stage = self.stage;
        let Some(attempt) = self.attempt() else {
            return false;
        };
        if attempt.waiter.is_none() {
            return false;
        }
        let error = why(attempt, stage);
        attempt.answer(Err(error));
        true
    }
}
