//! Joins two ports of one process without a socket, for tests and for pairs of threads.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use super::files::{ChannelFile, CheckedPeer, PeerFiles};
use super::link::{NumberHold, PortHandle, PreparedQueuePair, QueuePairNumber};
use super::peer_memory::{PeerMemory, PeerMemoryLimits};
use super::port::Port;
use crate::interface::prelude::*;
use crate::interface::{QueuePairId, ReceiveQueueId, SetupError};

/// Joins two ports by a new channel, with a queue pair at each end. Each port uses its lowest free channel number.
///
/// # Errors
///
/// When a port has no number left, or the system refuses memory or descriptors.
pub fn join(
    a: &mut Port,
    a_handle: &PortHandle,
    b: &mut Port,
    b_handle: &PortHandle,
    queues: (ReceiveQueueId, ReceiveQueueId),
) -> Result<(QueuePairId, QueuePairId), SetupError> {
    let joint = Joint::new(a, a_handle, b, b_handle)?;
    joint.connect(a, a_handle, b, b_handle, queues)
}

/// The files of a channel between two ports of one process. It can carry many connections.
#[derive(Debug)]
pub struct Joint {
    ends: [End; 2],
    memory: Mutex<PeerMemory>,
}

#[derive(Debug)]
struct End {
    file: OwnedFd,
    mapping: Arc<crate::memory::Mapping>,
    doorbell_number: u32,
}

impl Joint {
    /// Makes the files of a channel.
    ///
    /// # Errors
    ///
    /// As [`join`].
    pub fn new(
        a: &Port,
        a_handle: &PortHandle,
        b: &Port,
        b_handle: &PortHandle,
    ) -> Result<Self, SetupError> {
        let end = |port: &Port, handle: &PortHandle| -> Result<End, SetupError> {
            let (file, mapping) = ChannelFile::create(handle.channel_ring_bytes)?;
            Ok(End {
                file,
                mapping,
                doorbell_number: port.free_channel(),
            })
        };
        Ok(Self {
            ends: [end(a, a_handle)?, end(b, b_handle)?],
            // Both ports are of this process, so limits on a peer's memory are not needed.
            memory: Mutex::new(PeerMemory::new(PeerMemoryLimits {
                arena_bytes_max: u64::MAX,
                total_bytes_max: u64::MAX,
            })),
        })
    }

    /// The same files, where `b` has channels of lower numbers that carry no connection yet: with other ports.
    #[must_use]
    pub fn at_channel(mut self, number: u32) -> Self {
        let [_, b] = &mut self.ends;
        b.doorbell_number = number;
        self
    }

    /// Connects one more pair of queue pairs on the channel, adopted at both ends.
    ///
    /// # Errors
    ///
    /// As [`join`].
    pub fn connect(
        &self,
        a: &mut Port,
        a_handle: &PortHandle,
        b: &mut Port,
        b_handle: &PortHandle,
        queues: (ReceiveQueueId, ReceiveQueueId),
    ) -> Result<(QueuePairId, QueuePairId), SetupError> {
        let (a_prepared, b_prepared) = self.prepared_pair(a_handle, b_handle)?;
        let a_id = a.adopt_queue_pair(a_prepared, queues.0)?;
        let b_id = b.adopt_queue_pair(b_prepared, queues.1)?;
        Ok((a_id, b_id))
    }

    /// One more pair of connected queue pairs, each with the other port's memory.
    ///
    /// # Errors
    ///
    /// As [`join`].
    pub fn prepared_pair(
        &self,
        a_handle: &PortHandle,
        b_handle: &PortHandle,
    ) -> Result<(PreparedQueuePair, PreparedQueuePair), SetupError> {
        let (a_number, b_number) = (NumberHold::take(a_handle)?, NumberHold::take(b_handle)?);
        let (to_a, to_b) = (a_number.number(), b_number.number());
        let [a_end, b_end] = &self.ends;
        Ok((
            self.prepared(a_end, a_number, to_b, b_handle, b_end)?,
            self.prepared(b_end, b_number, to_a, a_handle, a_end)?,
        ))
    }

    fn prepared(
        &self,
        end: &End,
        number: NumberHold,
        remote: QueuePairNumber,
        peer: &PortHandle,
        peer_end: &End,
    ) -> Result<PreparedQueuePair, SetupError> {
        let files = peer_files(peer, peer_end)?;
        // The lock guards a cache: after a panic under the lock, a file may at most be mapped twice.
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(PreparedQueuePair {
            number,
            remote,
            peer: peer.identity,
            channel: Arc::clone(&end.mapping),
            doorbell_number: end.doorbell_number,
            memory: Some(CheckedPeer::map(files, std::process::id(), &mut memory)?),
        })
    }
}

/// The files of a port, as a peer would receive them over a socket.
fn peer_files(peer: &PortHandle, end: &End) -> Result<PeerFiles, SetupError> {
    let copy = |file: &OwnedFd| {
        file.try_clone().map_err(|source| SetupError::System {
            doing: "a descriptor could not be duplicated".into(),
            source,
        })
    };
    Ok(PeerFiles {
        channel: copy(&end.file)?,
        arena: copy(&peer.files.arena)?,
        external: peer
            .files
            .external
            .iter()
            .map(copy)
            .collect::<Result<_, _>>()?,
        keys: copy(&peer.files.keys)?,
        doorbell: copy(&peer.files.doorbell)?,
        event: copy(&peer.files.event)?,
        doorbell_number: end.doorbell_number,
    })
}
