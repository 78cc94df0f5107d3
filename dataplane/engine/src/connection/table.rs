//! The table of connections: by key for the application, by queue pair for completions.

use std::collections::VecDeque;

use rpcrdma_fabric::interface::QueuePairId;
use rpcrdma_fabric::memory::prefer_hugepages;
use rpcrdma_protocol::connection::Terms;
use rpcrdma_protocol::v2::Properties;
use rpcrdma_protocol::v2::connection as v2;

use super::{Connection, Stage};
use crate::rpc::ConnectionKey;

/// Connections whose states stay in the second cache of a processor, of 512 KiB and more. To ask for them ahead would cost more
/// than it saves.
const CACHED_MAX: usize = 512;
/// Marks a queue pair without a connection.
const NONE: u32 = u32::MAX;

/// All connections of a core; every slot is made at start-up.
#[derive(Debug)]
pub(crate) struct ConnectionTable {
    slots: Box<[Connection]>,
    free: Vec<u32>,
    by_queue_pair: Box<[u32]>,
}

impl ConnectionTable {
    /// Slots for `connections_max` connections, each with room for `complaints` error messages.
    pub(crate) fn new(connections_max: u32, queue_pairs_max: u32, complaints: u16) -> Self {
        let config = v2::Config {
            role: v2::Role::Server,
            receive_reserve: 2,
            properties: Properties::default(),
            message_bytes_max: 0,
        };
        let mut slots = Vec::with_capacity(connections_max as usize);
        prefer_hugepages(slots.spare_capacity_mut());
        slots.extend((0..connections_max).map(|_| Connection {
            refusals: VecDeque::with_capacity(complaints.into()),
            ..Connection::unused(0, &config, &Terms::default())
        }));
        Self {
            slots: slots.into_boxed_slice(),
            free: (0..connections_max).rev().collect(),
            by_queue_pair: vec![NONE; queue_pairs_max as usize].into_boxed_slice(),
        }
    }

    /// The slot at `index`, whichever connection uses it now.
    #[inline]
    pub(crate) fn at(&mut self, index: u32) -> Option<&mut Connection> {
        self.slots.get_mut(index as usize)
    }

    /// The connection that `key` names.
    #[inline]
    pub(crate) fn get(&self, key: ConnectionKey) -> Option<&Connection> {
        self.slots
            .get(key.index as usize)
            .filter(|slot| slot.generation == key.generation && slot.stage != Stage::Free)
    }

    /// The connection that `key` names.
    #[inline]
    pub(crate) fn get_mut(&mut self, key: ConnectionKey) -> Option<&mut Connection> {
        self.slots
            .get_mut(key.index as usize)
            .filter(|slot| slot.generation == key.generation && slot.stage != Stage::Free)
    }

    /// Whether messages are received and sent on the connection that `key` names.
    #[inline]
    pub(crate) fn is_live(&self, key: ConnectionKey) -> bool {
        self.get(key).is_some_and(Connection::is_live)
    }

    /// The connection of a queue pair, unless it was removed.
    #[inline]
    pub(crate) fn of_queue_pair(
        &mut self,
        queue_pair: QueuePairId,
    ) -> Option<(u32, &mut Connection)> {
        let index = *self.by_queue_pair.get(queue_pair.index as usize)?;
        self.slots
            .get_mut(index as usize)
            .filter(|slot| slot.queue_pair == queue_pair)
            .map(|slot| (index, slot))
    }

    /// Whether there are so many that they do not stay in a cache, so that [`ConnectionTable::fetch_ahead`] saves time.
    #[inline]
    pub(crate) fn are_many(&self) -> bool {
        self.slots.len() > CACHED_MAX
    }

    /// Asks for the memory of the connection of a queue pair, whose message is handled soon.
    pub(crate) fn fetch_ahead(&self, queue_pair_index: u32) {
        let index = self.by_queue_pair.get(queue_pair_index as usize);
        if let Some(connection) = index.and_then(|index| self.slots.get(*index as usize)) {
            connection.fetch_ahead();
        }
    }

    /// The slot that the next connection gets.
    pub(crate) fn next_place(&self) -> Option<u32> {
        self.free.last().copied()
    }

    pub(crate) fn in_use(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Takes a free slot for a queue pair; `stage` is its first stage.
    pub(crate) fn insert(
        &mut self,
        queue_pair: QueuePairId,
        config: &v2::Config,
        terms: &Terms,
        stage: Stage,
    ) -> Option<ConnectionKey> {
        let entry = self.by_queue_pair.get_mut(queue_pair.index as usize)?;
        let index = self.free.pop()?;
        let slot = self.slots.get_mut(index as usize)?;
        *entry = index;
        // Its memory is reused, so that no connection allocates. It was cleared at the last close.
        let refusals = std::mem::take(&mut slot.refusals);
        *slot = Connection {
            queue_pair,
            stage,
            refusals,
            ..Connection::unused(slot.generation, config, terms)
        };
        Some(slot.key(index))
    }

    /// Frees a slot and raises its generation, so that old keys name nothing. What the connection held must have been
    /// taken out.
    pub(crate) fn remove(&mut self, index: u32) {
        let Some(slot) = self.slots.get_mut(index as usize) else {
            return;
        };
        debug_assert!(!slot.unposted.is_some() && slot.outbound.is_empty());
        if let Some(entry) = self.by_queue_pair.get_mut(slot.queue_pair.index as usize) {
            *entry = NONE;
        }
        slot.stage = Stage::Free;
        slot.generation = slot.generation.wrapping_add(1);
        slot.queue_pair.index = NONE;
        slot.peer_properties = None;
        self.free.push(index);
    }

    /// The keys of all connections in use.
    pub(crate) fn keys(&self) -> impl Iterator<Item = ConnectionKey> + '_ {
        self.slots
            .iter()
            .zip(0_u32..)
            .filter(|(slot, _)| slot.stage != Stage::Free)
            .map(|(slot, index)| slot.key(index))
    }
}
