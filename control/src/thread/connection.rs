//! One connection as the control thread sees it.

use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use rpcrdma_engine::{CloseReason, ConnectionKey};
use rpcrdma_fabric::interface::{ConnectionId, PeerIdentity};

use rpcrdma_protocol::cm_private_data::PrivateData;
use rpcrdma_protocol::connection::Versions;
use rpcrdma_protocol::v2::ApplicationProperties;

use crate::authentication::Session;
use crate::connection::{Connection, ConnectionName};
use crate::error::{ConnectError, Stage};
use crate::reconnect::TargetId;
use crate::request::{ConnectId, Owner};

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
    Application(ConnectId, Sender<Result<Connection, ConnectError>>),
    /// The control thread itself, for a target that it keeps connected.
    Target(TargetId, Sender<(TargetId, ConnectionReport)>),
}

impl Waiter {
    pub(crate) const fn owner(&self) -> Owner {
        match self {
            Self::Application(id, _) => Owner::Connect(*id),
            Self::Target(id, _) => Owner::Target(*id),
        }
    }

    pub(crate) fn answer(self, outcome: Result<Connection, ConnectError>) {
        match self {
            // The application may have dropped its `PendingConnect`, whose order to end the connection follows.
            Self::Application(_, waiter) => drop(waiter.send(outcome)),
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
    /// Who has asked for it.
    pub(crate) owner: Owner,
    /// How its connection of version 2 ended, if this is one of version 1 in its place.
    closed: Option<ConnectError>,
}

impl Attempt {
    pub(crate) fn new(address: String, timeout: Duration, waiter: Waiter) -> Self {
        Self {
            address,
            timeout,
            deadline: Instant::now().checked_add(timeout),
            owner: waiter.owner(),
            waiter: Some(waiter),
            closed: None,
        }
    }

    /// The same attempt by another connection, after the server closed this one. Nobody waits for this one any more.
    pub(crate) fn go_on(&mut self) -> Self {
        let address = self.address.clone();
        let stage = Stage::ExchangingProperties;
        Self {
            closed: Some(ConnectError::PeerGone { address, stage }),
            address: self.address.clone(),
            waiter: self.waiter.take(),
            ..*self
        }
    }

    /// Reports the outcome to the waiter. Only the first outcome counts. A try of version 1 that ends without a reason says less
    /// than the close before.
    pub(crate) fn answer(&mut self, outcome: Result<Connection, ConnectError>) {
        if let Some(waiter) = self.waiter.take() {
            waiter.answer(match (outcome, self.closed.take()) {
                (Ok(connection), _) => Ok(connection),
                (Err(error), Some(closed)) if error.says_nothing() => Err(closed),
                (Err(error), _) => Err(error),
            });
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
    /// What its client calls it, if this end is the server.
    pub(crate) name: Option<ConnectionName>,
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

    /// Who has asked for this connection, if this end did.
    pub(crate) fn owner(&self) -> Option<Owner> {
        match &self.end {
            End::Client(attempt) => Some(attempt.owner),
            End::Server => None,
        }
    }

    /// The target whose established connection this is.
    pub(crate) fn target(&self) -> Option<TargetId> {
        match self.owner() {
            Some(Owner::Target(id)) if self.stage == Stage::Ready => Some(id),
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
