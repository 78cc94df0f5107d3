//! What a client has to know to make calls again that were lost with their connection.

use rpcrdma_engine::{ConnectionKey, PeerProperties};

use super::CALLS_MAX;
use super::property::Announced;
use crate::exchange::Way;

/// How a call was sent, and what it takes to send it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) xid: u32,
    /// The node that it was sent to, if that has announced one.
    pub(crate) node: Option<[u8; 12]>,
    /// By what its client was known there.
    pub(crate) way: Way,
    /// Its number among the calls of its connection, if the server keeps replies.
    pub(crate) number: Option<u32>,
}

/// The servers at the other ends of a core's connections, by the index of the connection.
#[derive(Debug, Default)]
pub(crate) struct Servers(Vec<Option<Announced>>);

impl Servers {
    /// A connection begins: its peer has announced nothing.
    pub(crate) fn opened(&mut self, connection: ConnectionKey) {
        if let Some(place) = self.0.get_mut(connection.index as usize) {
            *place = None;
        }
    }

    pub(crate) fn announced(&mut self, connection: ConnectionKey, properties: &PeerProperties) {
        let index = connection.index as usize;
        if self.0.len() <= index {
            self.0.resize(index + 1, None);
        }
        self.0[index] = Announced::of(properties);
    }

    /// The node at the other end. A call that was sent to another must not be sent to it again: what that kept of it is
    /// not here.
    pub(crate) fn node(&self, connection: ConnectionKey) -> Option<[u8; 12]> {
        self.of(connection).map(|announced| announced.node())
    }

    /// How many calls may be made while the oldest of them has no answer, so that the server keeps the replies to all of
    /// them. `None` if it keeps no replies, or does not say how many.
    pub(crate) fn calls_max(&self, connection: ConnectionKey) -> Option<u32> {
        let announced = self.of(connection)?.calls_max;
        (announced > 0).then_some(announced.min(CALLS_MAX))
    }

    fn of(&self, connection: ConnectionKey) -> Option<&Announced> {
        self.0.get(connection.index as usize)?.as_ref()
    }
}
