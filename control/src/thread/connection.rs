//! One connection as the control thread sees it.

use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use rpcrdma_engine::{CloseReason, ConnectionKey};
use rpcrdma_fabric::interface::{ConnectionId, PeerIdentity};

use rpcrdma_protocol::cm_private_data::PrivateData;
use rpcrdma_protocol::connection::Versions;
use rpcrdma_protocol::v2::ApplicationProperties;

use crate::authentication::Session;
use crate::connection::Connection;
use crate::error::{ConnectError, Stage};
use crate::reconnect::TargetId;

/// Which end of the connection this is.
#[derive(Debug)]
pub(crate) enum End {
    /// This end requested it. A waiter may be waiting for the outcome.
    Client(Attempt),
    /// A peer requested it.
    Server,
}

/// Who waits for the outcome of an attempt.
#[derive(Debug)]
pub(crate) enum Waiter {
    /// The application.
    Application(Sender<Result<Connection, ConnectError>>),
    /// The control thread itself, for a target that it keeps connected.
    Target(TargetId, Sender<(TargetId, ConnectionReport)>),
}

impl Waiter {
    pub(crate) fn answer(self, outcome: Result<Connection, ConnectError>) {
        match self {
            // The application may have dropped its `PendingConnect`: then nobody takes the outcome.
            Self::Application(waiter) => drop(waiter.send(outcome)),
            // The receiver belongs to this thread, so it exists.
            Self::Target(id, waiter) => drop(waiter.send((id, ConnectionReport::Outcome(outcome)))),
        }
    }
}

/// The outcome of a target's attempt, or the end of its connection.
#[derive(Debug)]
pub(crate) enum ConnectionReport {
    Outcome(Result<Connection, ConnectError>),
    Lost(CloseReason),
}

/// An attempt to connect; it stays with the connection that it leads to.
#[derive(Debug)]
pub(crate) struct Attempt {
    pub(crate) address: String,
    pub(crate) timeout: Duration,
    pub(crate) deadline: Option<Instant>,
    /// Taken when the outcome is known.
    pub(crate) waiter: Option<Waiter>,
    /// The target for which the attempt is made.
    pub(crate) target: Option<TargetId>,
}

impl Attempt {
    pub(crate) fn new(address: String, timeout: Duration, waiter: Waiter) -> Self {
        let target = match waiter {
            Waiter::Application(_) => None,
            Waiter::Target(id, _) => Some(id),
        };
        Self {
            address,
            timeout,
            deadline: Instant::now().checked_add(timeout),
            waiter: Some(waiter),
            target,
        }
    }

    /// Reports the outcome to the waiter. Only the first outcome counts.
    pub(crate) fn answer(&mut self, outcome: Result<Connection, ConnectError>) {
        if let Some(waiter) = self.waiter.take() {
            waiter.answer(outcome);
        }
    }
}

/// A connection from its request to its end.
#[derive(Debug)]
pub(crate) struct Tracked {
    pub(crate) id: ConnectionId,
    pub(crate) end: End,
    pub(crate) core: usize,
    /// Known once the core has adopted the queue pair.
    pub(crate) key: Option<ConnectionKey>,
    pub(crate) stage: Stage,
    /// A server knows it from the request, a client from the reply.
    pub(crate) peer: Option<PeerIdentity>,
    /// The versions that it may speak, and the peer's private data.
    pub(crate) versions: Versions,
    pub(crate) peer_data: PrivateData,
    /// Its property sets, and host authentication in them.
    pub(crate) session: Session,
    /// What it announces for the application, if it is not what all others do.
    pub(crate) announces: Option<ApplicationProperties>,
    /// The fabric's connection has ended or has to end: closed for this reason once the core has given it a key.
    pub(crate) ending: Option<CloseReason>,
}

impl Tracked {
    pub(crate) fn attempt(&mut self) -> Option<&mut Attempt> {
        match &mut self.end {
            End::Client(attempt) => Some(attempt),
            End::Server => None,
        }
    }

    /// The peer, for people.
    pub(crate) fn peer_name(&self) -> String {
        let peer = self.peer.as_ref();
        peer.map_or_else(String::new, |peer| peer.name.clone())
    }

    /// Whether this is a target's attempt that is still under way.
    pub(crate) fn is_attempt_for(&self, target: TargetId) -> bool {
        match &self.end {
            End::Client(attempt) => attempt.waiter.is_some() && attempt.target == Some(target),
            End::Server => false,
        }
    }

    /// The target whose established connection this is.
    pub(crate) fn target(&self) -> Option<TargetId> {
        match &self.end {
            End::Client(attempt) if self.stage == Stage::Ready => attempt.target,
            _ => None,
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
