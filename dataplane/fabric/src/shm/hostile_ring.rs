//! A port whose peer writes what it likes into the ring between them, for fuzzers.

use super::copy::{write_u32, write_u64};
use super::record::{Header, UNIT_BYTES};
use super::ring::{RingMemory as _, sequence_of};
use super::{Port, PortConfig, PortHandle, join};
use crate::clock::Clock;
use crate::interface::prelude::*;
use crate::interface::{
    Access, CompletionBatch, CompletionKind, QueuePairId, ReceiveQueueAttributes, ReceiveQueueId,
    RemoteAddress, SetupError, Window,
};
use crate::memory::{Arena, ArenaOptions, HugePages, Pool, PoolShape};

const RECEIVES: u32 = 8;
const POOL: PoolShape = PoolShape {
    buffers: 32,
    buffer_bytes: 4096,
    stride_bytes: 4096,
    align_bytes: 4096,
};
/// Polls after each record, and after the connection has ended.
const POLLS: usize = 8;
const LAST_POLLS: usize = 16;
/// Bytes that say what a record is: control, acknowledged units, payload bytes (2), operation, flags.
const RECORD_HEAD_BYTES: usize = 6;

/// The destination is what the record's first bytes say, and not the queue pair.
const CONTROL_WRONG_DESTINATION: u8 = 1;
/// The first 16 bytes of the payload name the window that is open, as an RDMA Write does.
const CONTROL_WINDOW: u8 = 2;
/// The port polls at the end of time, so that no record waits for its delay.
const CONTROL_LATE: u8 = 4;

/// Two ports of this process, of which one writes records that no port would.
#[derive(Debug)]
pub struct HostileRing {
    hostile: End,
    victim: End,
}

#[derive(Debug)]
struct End {
    port: Port,
    handle: PortHandle,
    pool: Pool,
    queue: ReceiveQueueId,
}

impl HostileRing {
    /// Two ports with Receives posted, and no connection.
    ///
    /// # Errors
    ///
    /// When the system refuses memory or descriptors.
    pub fn new() -> Result<Self, SetupError> {
        let clock = Clock::new();
        Ok(Self {
            hostile: End::new(0, &clock)?,
            victim: End::new(1, &clock)?,
        })
    }

    /// Connects the ports, writes `data` as records, one after the other as they are consumed, and ends
    /// the connection.
    ///
    /// # Errors
    ///
    /// When the system refuses memory or descriptors.
    ///
    /// # Panics
    ///
    /// When the port loses a Receive or a buffer, or says twice that the connection is over.
    pub fn take(&mut self, data: &[u8]) -> Result<(), SetupError> {
        let Self { hostile, victim } = self;
        let queues = (hostile.queue, victim.queue);
        let (hostile_id, id) = join(
            &mut hostile.port,
            &hostile.handle,
            &mut victim.port,
            &victim.handle,
            queues,
        )?;
        let mut window = None;
        if let Some(buffer) = victim.pool.take() {
            let access = Access {
                remote_read: true,
                remote_write: true,
            };
            match victim
                .port
                .bind_window(id, buffer, POOL.buffer_bytes, access)
            {
                Ok(bound) => window = Some(bound),
                Err((_, buffer)) => victim.pool.give(buffer),
            }
        }
        let target = window.as_ref().map(Window::remote);
        let mut ended = 0;
        let mut rest = data;
        while ended == 0
            && let Some(control) = hostile.write(&mut rest, &victim.port, id, target)
        {
            ended += victim.poll(POLLS, control & CONTROL_LATE != 0);
        }
        victim.port.disconnect(id);
        ended += victim.poll(LAST_POLLS, true);
        assert_eq!(ended, 1, "a connection ends once");
        victim.port.destroy_queue_pair(id);
        hostile.port.disconnect(hostile_id);
        hostile.poll(POLLS, true);
        hostile.port.destroy_queue_pair(hostile_id);
        victim.check();
        hostile.check();
        Ok(())
    }

    /// What the port that is written to has counted, as (name, value).
    #[must_use]
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        self.victim.port.counters()
    }
}

impl End {
    fn new(number: u32, clock: &Clock) -> Result<Self, SetupError> {
        let arena = Arena::shared(&ArenaOptions {
            bytes: u64::from(POOL.buffers) * u64::from(POOL.stride_bytes),
            huge_pages: HugePages::Never,
        })?;
        let mut config = PortConfig::new(number, arena, clock.clone());
        config.queue_pairs_max = 4;
        config.windows_max = 4;
        config.channel_ring_bytes = 8192;
        let (mut port, handle) = Port::new(config)?;
        let mut pool = port.carve(POOL)?;
        let queue = port.create_receive_queue(ReceiveQueueAttributes {
            depth: RECEIVES,
            segments_max: 1,
        })?;
        for _ in 0..RECEIVES {
            let receive = port.create_receive(queue, &mut pool.take().into_iter())?;
            port.post_receive(receive);
        }
        port.flush_receives();
        Ok(Self {
            port,
            handle,
            pool,
            queue,
        })
    }

    /// Takes one record off the front of `data` and publishes it where `victim` looks next. Returns its
    /// control byte; `None` when there is no record, or nobody looks any more.
    fn write(
        &mut self,
        data: &mut &[u8],
        victim: &Port,
        id: QueuePairId,
        target: Option<RemoteAddress>,
    ) -> Option<u8> {
        let head = victim.channels().first()?.as_deref()?.consumed();
        let ring = self.port.channels().first()?.as_deref()?.producer.memory();
        let (&[control, acked, low, high, op, flags], rest) =
            data.split_first_chunk::<RECORD_HEAD_BYTES>()?;
        let index = head & (ring.units() - 1);
        let header = Header {
            destination: if control & CONTROL_WRONG_DESTINATION == 0 {
                id.index | id.generation << 16
            } else {
                u32::from_le_bytes([acked, low, high, op])
            },
            acked: acked.into(),
            payload_bytes: u16::from_le_bytes([low, high]),
            op,
            flags,
        };
        let room = (ring.units() - index) * UNIT_BYTES;
        let behind = room.min(header.payload_offset() + u32::from(header.payload_bytes)) as usize;
        let taken = rest.len().min(behind.saturating_sub(16));
        let (body, rest) = rest.split_at(taken);
        *data = rest;
        let place = ring.unit(index).wrapping_add(16);
        for (offset, byte) in body.iter().enumerate() {
            // SAFETY: behind the first 16 bytes of the unit, and before the end of the ring; the peer
            // reads these bytes only by copying them.
            unsafe { place.wrapping_add(offset).write(*byte) };
        }
        if let Some(target) = target
            && control & CONTROL_WINDOW != 0
        {
            let place = ring
                .unit(index)
                .wrapping_add(header.payload_offset() as usize);
            // SAFETY: offset and key lie in the first unit of the record, aligned to 16.
            unsafe {
                write_u64(place, target.offset);
                write_u32(place.wrapping_add(8), target.key.0);
            }
        }
        ring.write_header(index, header);
        ring.publish(index, sequence_of(head));
        Some(control)
    }

    /// Polls so often; how many connections ended.
    fn poll(&mut self, polls: usize, late: bool) -> usize {
        let mut ended = 0;
        for _ in 0..polls {
            let mut batch = CompletionBatch::new();
            let now = if late { u64::MAX } else { 1 };
            self.port.poll(now, &mut batch);
            for completion in batch.drain() {
                match completion.kind {
                    CompletionKind::Receive { receive, .. } => {
                        let refused = self.port.post_receive(receive);
                        assert!(refused.is_none(), "a Receive of this port");
                    }
                    CompletionKind::Disconnected => ended += 1,
                    other => panic!("{other:?} of a port that posted no work"),
                }
            }
            self.port.flush_receives();
            self.port.flush_sends();
        }
        ended
    }

    fn check(&mut self) {
        while let Some(buffer) = self.port.next_returned() {
            self.pool.give(buffer);
        }
        assert_eq!(self.port.receives_posted(self.queue), RECEIVES, "Receives");
        let free = (POOL.buffers - RECEIVES) as usize;
        assert_eq!(self.pool.available(), free, "buffers");
    }
}
