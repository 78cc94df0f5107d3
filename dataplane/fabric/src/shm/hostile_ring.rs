//! A port whose peer writes arbitrary records into the ring between them, for fuzzers.

use super::copy::{write_u32, write_u64};
use super::record::{Header, UNIT_BYTES};
use super::ring::{RingMemory as _, sequence_of};
use super::{Port, PortConfig, PortHandle, join};
use crate::clock::Clock;
use crate::interface::prelude::*;
use crate::interface::{
    Access, CompletionBatch, CompletionKind, FormShape, Forms, QueuePairId, ReceiveQueueAttributes,
    ReceiveQueueId, RemoteAddress, SetupError, Window,
};
use crate::memory::{Arena, ArenaOptions, HugePages, Pool, PoolShape};

const RECEIVES: u32 = 8;
const POOL: PoolShape = PoolShape {
    buffers: 32,
    buffer_bytes: 4096,
    stride_bytes: 4096,
    align_bytes: 4096,
};
/// The number of polls after each record.
const POLLS: usize = 8;
/// The number of polls after the end of the connection.
const LAST_POLLS: usize = 16;
/// The bytes of the input that describe a record: control, acknowledged units, payload length (2), operation, flags.
const RECORD_HEAD_BYTES: usize = 6;

/// The destination comes from the input and not from the queue pair.
const CONTROL_WRONG_DESTINATION: u8 = 1;
/// The first bytes of the payload name the bound window, like those of an RDMA Write.
const CONTROL_WINDOW: u8 = 2;
/// The port polls with the largest time, so that no record waits for its delay.
const CONTROL_LATE: u8 = 4;

/// Two forms, whose headers are zeroes.
const FORMS: Forms = Forms {
    number: 1,
    shapes: &[
        FormShape {
            words: 1,
            header_bytes: 60,
        },
        FormShape {
            words: 4,
            header_bytes: 76,
        },
    ],
    unfold: |formed, rest, out| {
        let header_bytes = if formed.form == 0 { 60 } else { 76 };
        let (headers, behind) = out.split_at_mut_checked(header_bytes)?;
        headers.fill(0);
        behind.get_mut(..rest.len())?.copy_from_slice(rest);
        Some(header_bytes + rest.len())
    },
};

/// Two ports of this process. One of them writes records that no correct port writes.
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
    /// Creates two ports with posted Receives and without a connection.
    ///
    /// # Errors
    ///
    /// The system refuses memory or descriptors.
    pub fn new() -> Result<Self, SetupError> {
        let clock = Clock::new();
        Ok(Self {
            hostile: End::new(0, &clock)?,
            victim: End::new(1, &clock)?,
        })
    }

    /// Connects the ports, writes `data` as records, each after the port has polled for the one before it, and ends the
    /// connection.
    ///
    /// # Errors
    ///
    /// The system refuses memory or descriptors.
    ///
    /// # Panics
    ///
    /// The port loses a Receive or a buffer, or does not report the end of the connection exactly once.
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

    /// The counters of the port that reads the records, as (name, value).
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
        port.set_forms(FORMS);
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

    /// Takes one record from the start of `data` and publishes it at the next position that `victim` polls. Returns its
    /// control byte; `None` if `data` has no record or a port has no channel.
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
            // SAFETY: the place is after the first 16 bytes of the unit and before the end of the ring; the peer reads
            // these bytes only by copies.
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

    /// Polls `polls` times, and returns the number of connections that ended.
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
