//! What the manager keeps of a connection.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Instant;

use super::blocking_calls;
use super::machine::Stage;
use super::negotiate::ReadDepths;
use crate::interface::{ConnectionId, ManagerEvent, QueuePairId};
use crate::verbs::cm::channel::Event;
use crate::verbs::cm::event::Parameters;
use crate::verbs::cm::id::{ConnectionParameters, Id};
use crate::verbs::queue_pair::QueuePair;
use crate::verbs::{ManagerOptions, Port, PortHandle};

/// Which end this is.
pub(super) enum Side {
    /// We asked for the connection.
    Client(Client),
    /// A peer asked for it.
    Server,
}

/// What only a client knows.
pub(super) struct Client {
    /// As it was given, for errors.
    pub(super) address: String,
    pub(super) port: PortHandle,
    pub(super) private_data: Vec<u8>,
    /// Addresses of the host that have not been tried.
    pub(super) candidates: VecDeque<SocketAddr>,
}

pub(super) struct Connection {
    pub(super) side: Side,
    pub(super) stage: Stage,
    /// None while a client's host name is resolved.
    pub(super) id: Option<Id>,
    /// A client's, from the request until it is handed over.
    pub(super) queue_pair: Option<QueuePair>,
    /// Events that came while another thread had the identifier.
    pub(super) early: Vec<Event>,
    /// What the peer said last.
    pub(super) peer: Parameters,
    /// Once the queue pair has been handed over.
    pub(super) prepared: Option<Prepared>,
    pub(super) timer: Option<Instant>,
}

impl Connection {
    /// Whether a connect is under way on iWARP, where letting go of it waits.
    pub(super) fn is_held_by_a_connect(&self) -> bool {
        match &self.side {
            Side::Client(client) => {
                self.stage == Stage::Requesting && client.port.context().limits().iwarp
            }
            Side::Server => false,
        }
    }

    /// Lets go of the identifier, of which no event is of use any more, and of what goes with it.
    pub(super) fn let_go(&mut self) {
        let (id, queue_pair) = (self.id.take(), self.queue_pair.take());
        if self.is_held_by_a_connect() {
            blocking_calls::let_go(id, queue_pair);
        }
    }
}

/// What is left here of a queue pair that its port has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prepared {
    pub(super) port: usize,
    pub(super) queue_pair: QueuePairId,
    pub(super) facts: QueuePairFacts,
    pub(super) depths: ReadDepths,
}

/// What the peer is told of a queue pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueuePairFacts {
    pub(super) number: u32,
    pub(super) shared_receive_queue: bool,
}

impl QueuePairFacts {
    pub(super) fn of(queue_pair: &QueuePair) -> Self {
        Self {
            number: queue_pair.number(),
            shared_receive_queue: !queue_pair.has_own_receive_queue(),
        }
    }

    pub(super) fn parameters<'a>(
        &self,
        depths: ReadDepths,
        options: &ManagerOptions,
        private_data: &'a [u8],
    ) -> ConnectionParameters<'a> {
        ConnectionParameters {
            private_data,
            responder_resources: depths.responder_resources,
            initiator_depth: depths.initiator_depth,
            retry_count: options.retry_count,
            rnr_retry_count: options.rnr_retry_count,
            shared_receive_queue: self.shared_receive_queue,
            queue_pair_number: self.number,
        }
    }
}

impl ManagerEvent<Port> {
    /// The connection that it is of.
    pub(super) fn connection(&self) -> ConnectionId {
        match self {
            Self::ConnectRequest { connection, .. }
            | Self::ConnectReply { connection, .. }
            | Self::Established { connection, .. }
            | Self::Rejected { connection, .. }
            | Self::Failed { connection, .. }
            | Self::Disconnected { connection, .. } => *connection,
        }
    }
}

/// What a queue pair of `port` may have in flight at most.
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
