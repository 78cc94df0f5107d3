//! The state of a connection in the manager.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Instant;

use super::blocking_calls;
use super::machine::Stage;
use super::negotiate::{QueuePairFacts, ReadDepths};
use crate::interface::{ManagerError, QueuePairId};
use crate::verbs::PortHandle;
use crate::verbs::cm::event::{Event, Parameters};
use crate::verbs::cm::id::Id;
use crate::verbs::queue_pair::QueuePair;

/// Which end this is.
pub(super) enum Side {
    /// We asked for the connection.
    Client(Client),
    /// A peer asked for it.
    Server,
}

/// What a client keeps for its request.
pub(super) struct Client {
    /// As the application gave it, for error texts.
    pub(super) address: String,
    /// The ports that it may connect from, each of another device.
    pub(super) ports: Box<[PortHandle]>,
    /// The one of the device that leads to the address; before that is known, the first.
    pub(super) port: PortHandle,
    pub(super) private_data: Vec<u8>,
    /// The host's addresses that were not tried yet.
    pub(super) candidates: VecDeque<SocketAddr>,
    /// Why those that were tried failed.
    pub(super) failed: Option<ManagerError>,
}

pub(super) struct Connection {
    pub(super) side: Side,
    pub(super) stage: Stage,
    /// `None` while a client's host name is resolved, and while another thread sends the request.
    pub(super) id: Option<Id>,
    /// A client's queue pair, from the request until `prepare` hands it over.
    pub(super) queue_pair: Option<QueuePair>,
    /// Events that arrived while another thread had the identifier. They are handled when it is back.
    pub(super) early: Vec<Event>,
    /// The parameters of the peer's request or reply.
    pub(super) peer: Parameters,
    /// `Some` after `prepare` has handed the queue pair over.
    pub(super) prepared: Option<Prepared>,
    pub(super) timer: Option<Instant>,
    /// It was disconnected before the client had confirmed it, which sends nothing.
    pub(super) disconnects_late: bool,
}

impl Connection {
    /// Sends a disconnect, or answers the peer's. Returns whether there is one to send, now or later: RDMA-CM sends none before
    /// the client has confirmed the connection, and does not say so.
    pub(super) fn disconnect(&mut self) -> bool {
        if !self.stage.peer_answers_the_end() {
            return false;
        }
        self.disconnects_late |= self.stage == Stage::Accepted;
        let id = self.id.as_mut();
        id.is_some_and(|id| id.disconnect().is_ok())
    }

    /// The client has confirmed the connection.
    pub(super) fn confirmed(&mut self) {
        if std::mem::take(&mut self.disconnects_late)
            && let Some(id) = &mut self.id
        {
            // This fails only when the peer has ended the connection already, which is an event too.
            let _ = id.disconnect();
        }
    }

    /// Whether dropping the identifier may block: a connect in progress on iWARP.
    pub(super) fn is_held_by_a_connect(&self) -> bool {
        match &self.side {
            Side::Client(client) => {
                self.stage == Stage::Requesting && client.port.context().limits().iwarp
            }
            Side::Server => false,
        }
    }

    /// Drops the identifier and the queue pair, in another thread where that may block.
    pub(super) fn let_go(&mut self) {
        let (id, queue_pair) = (self.id.take(), self.queue_pair.take());
        if self.is_held_by_a_connect() {
            blocking_calls::let_go(id, queue_pair);
        }
    }
}

/// What the manager keeps of a queue pair that it handed over.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prepared {
    pub(super) port: usize,
    pub(super) queue_pair: QueuePairId,
    pub(super) facts: QueuePairFacts,
    pub(super) depths: ReadDepths,
}

/// The highest number of RDMA Reads in flight on a queue pair of `port`, each way.
pub(super) fn depths_of(port: &PortHandle) -> ReadDepths {
    ReadDepths {
        responder_resources: port.responder_resources(),
        initiator_depth: port.initiator_depth(),
    }
}

/// The number of `port` among those of this process.
pub(super) fn number_of(port: &PortHandle) -> usize {
    port.shared.events.port
}
