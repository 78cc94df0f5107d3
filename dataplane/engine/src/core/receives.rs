//! The Receives of a core: the queues on which they are posted, and messages that fill several of
//! their segments.

use std::ops::Range;

use rpcrdma_fabric::interface::{
    Port, Receive, ReceiveQueueAttributes, ReceiveQueueId, SetupError,
};
use rpcrdma_fabric::memory::{Buffer, Pool};
use rpcrdma_protocol::v2::transmission_head_bytes;

use crate::config::CoreConfig;
use crate::counters::Counters;
use crate::placement_segments::PlacementSegments;

/// The buffers for the first segments of Receives.
struct ReceiveBuffers {
    pool: Pool,
    /// Buffers whose memory is allocated when it is first written.
    untouched: Option<Pool>,
    /// Whether these are posted first. A shared queue hands out the Receive that was posted last, so untouched memory
    /// is used only when all other Receives are in use.
    untouched_first: bool,
}

impl ReceiveBuffers {
    fn new<P: Port>(port: &mut P, config: &CoreConfig, receives: u32) -> Result<Self, SetupError> {
        let shape = config.receive_pool_untouched();
        let untouched = if shape.buffers == 0 {
            None
        } else {
            port.carve_untouched(shape)?
        };
        let elsewhere = untouched.as_ref().map_or(0, |_| shape.buffers);
        let pool = port.carve(config.receive_pool_of(receives.saturating_sub(elsewhere)))?;
        Ok(Self {
            pool,
            untouched,
            untouched_first: port.attributes().shared_receive_queue,
        })
    }

    /// The buffer of the next Receive.
    fn take(&mut self) -> Option<Buffer> {
        let Self {
            pool, untouched, ..
        } = self;
        let mut of_untouched = || untouched.as_mut().and_then(Pool::take);
        if self.untouched_first {
            of_untouched().or_else(|| pool.take())
        } else {
            pool.take().or_else(of_untouched)
        }
    }
}

/// The receive queues of a core.
#[derive(Debug)]
pub(super) enum ReceiveQueues {
    /// One shared by all connections.
    Shared(ReceiveQueueId),
    /// One for each place of the table of connections, on a device without shared queues. A
    /// later connection at a place uses the same queue.
    OfPlaces(Box<[ReceiveQueueId]>),
}

impl ReceiveQueues {
    /// Makes the queues and their Receives, and posts all of them. On a queue of a place they take effect when a queue
    /// pair is adopted there.
    pub(super) fn new<P: Port>(
        port: &mut P,
        config: &CoreConfig,
    ) -> Result<(Self, PlacementSegments), SetupError> {
        let is_shared = port.attributes().shared_receive_queue;
        let (queues, depth) = if is_shared {
            (1, config.receives())
        } else {
            (config.connections_max, config.receives_of_own_queue())
        };
        let receives = config.on_all_rails(queues * depth);
        let mut inline = ReceiveBuffers::new(port, config, receives)?;
        let mut placement = match config.placement_pool_of(receives) {
            Some(shape) => PlacementSegments::new(port.carve(shape)?),
            None => PlacementSegments::default(),
        };
        let segments = config.receive_segments();
        let mut make = |port: &mut P, depth| -> Result<ReceiveQueueId, SetupError> {
            let queue = port.create_receive_queue(ReceiveQueueAttributes {
                depth,
                segments_max: segments,
            })?;
            // The port makes them on its rails in turn.
            for _ in 0..config.on_all_rails(depth) {
                let placed = (1..segments).filter_map(|_| placement.take_for_receive());
                let mut list = inline.take().into_iter().chain(placed);
                let receive = port.create_receive(queue, &mut list)?;
                port.post_receive(receive);
            }
            Ok(queue)
        };
        let queues = if is_shared {
            Self::Shared(make(port, depth)?)
        } else {
            let of_places = (0..queues).map(|_| make(port, depth));
            Self::OfPlaces(of_places.collect::<Result<_, _>>()?)
        };
        port.flush_receives();
        Ok((queues, placement))
    }

    /// The queue of the connection at `place`.
    pub(super) fn of(&self, place: u32) -> Option<ReceiveQueueId> {
        match self {
            Self::Shared(queue) => Some(*queue),
            Self::OfPlaces(queues) => queues.get(place as usize).copied(),
        }
    }

    /// Receives that were made.
    pub(super) fn made(&self, config: &CoreConfig) -> u32 {
        config.on_all_rails(match self {
            Self::Shared(_) => config.receives(),
            Self::OfPlaces(_) => config.connections_max * config.receives_of_own_queue(),
        })
    }

    /// Receives of a connection with its whole window: `reserve`, but not more than its queue has if it has its own.
    pub(super) fn window_reserve(&self, reserve: u16, config: &CoreConfig) -> u16 {
        match self {
            Self::Shared(_) => reserve,
            Self::OfPlaces(_) => {
                let of_queue = u16::try_from(config.receives_of_own_queue());
                reserve.min(of_queue.unwrap_or(u16::MAX))
            }
        }
    }

    /// Receives that are posted on the queue that all connections share; 0 where each has its own.
    pub(super) fn posted_shared<P: Port>(&self, port: &P) -> u32 {
        match self {
            Self::Shared(queue) => port.receives_posted(*queue),
            Self::OfPlaces(_) => 0,
        }
    }

    /// How many Receives are posted for a connection to be adopted at `place`. Fewer than `reserve` means that messages
    /// of earlier connections there still hold some. A shared queue always has those of all places.
    pub(super) fn posted<P: Port>(&self, port: &P, place: u32, reserve: u32) -> u32 {
        match self {
            Self::Shared(_) => reserve,
            Self::OfPlaces(queues) => queues
                .get(place as usize)
                .map_or(0, |queue| port.receives_posted(*queue)),
        }
    }
}

/// Space to copy a message together that fills several segments of its Receive.
#[derive(Debug)]
pub(super) struct Gathered {
    bytes: Box<[u8]>,
}

impl Gathered {
    pub(super) fn new(config: &CoreConfig) -> Self {
        let needed = if config.receive_segments() > 1 {
            config.receive_bytes() as usize
        } else {
            0
        };
        // Not zeroes, which would leave the pages unallocated: the first message must not cause page faults.
        Self {
            bytes: vec![0xa5; needed].into_boxed_slice(),
        }
    }

    /// The first `bytes` bytes of a Receive in one piece: in place if its first segment holds
    /// them, otherwise as a copy.
    #[inline]
    pub(super) fn message<'a, P: Port>(
        &'a mut self,
        port: &'a P,
        receive: &Receive,
        bytes: usize,
        counters: &Counters,
    ) -> &'a [u8] {
        match port.received(receive).get(..bytes) {
            Some(message) => message,
            None => self.copy(port, receive, bytes, counters),
        }
    }

    /// A part of the message that was copied together last.
    #[cold]
    pub(super) fn range(&self, range: Range<usize>) -> &[u8] {
        self.bytes.get(range).unwrap_or(&[])
    }

    /// As [`Gathered::message`], but only as much as the protocol has to see: for a transmission whose
    /// header and payload stream are in the first segment, that segment without a copy.
    #[inline]
    pub(super) fn head<'a, P: Port>(
        &'a mut self,
        port: &'a P,
        receive: &Receive,
        bytes: usize,
        counters: &Counters,
    ) -> &'a [u8] {
        match port.received(receive).get(..bytes) {
            Some(message) => message,
            None => self.long_head(port, receive, bytes, counters),
        }
    }

    #[inline(never)]
    fn long_head<'a, P: Port>(
        &'a mut self,
        port: &'a P,
        receive: &Receive,
        bytes: usize,
        counters: &Counters,
    ) -> &'a [u8] {
        let first = port.received(receive);
        match transmission_head_bytes(first) {
            Some(head_bytes) if head_bytes <= first.len() => first,
            _ => self.copy(port, receive, bytes, counters),
        }
    }

    #[cold]
    #[inline(never)]
    fn copy<P: Port>(
        &mut self,
        port: &P,
        receive: &Receive,
        bytes: usize,
        counters: &Counters,
    ) -> &[u8] {
        let mut done = 0;
        let mut index = 0;
        while let Some(segment) = port.received_segment(receive, index) {
            let count = segment.len().min(bytes - done);
            let (Some(from), Some(to)) =
                (segment.get(..count), self.bytes.get_mut(done..done + count))
            else {
                break;
            };
            to.copy_from_slice(from);
            done += count;
            index += 1;
        }
        debug_assert_eq!(done, bytes, "no more arrives than the segments hold");
        counters.messages_gathered.increment();
        self.bytes.get(..done).unwrap_or(&[])
    }
}

#[cfg(test)]
mod tests {
    use rpcrdma_fabric::clock::Clock;
    use rpcrdma_fabric::interface::PortSetup as _;
    use rpcrdma_fabric::memory::{Arena, ArenaOptions, HugePageSize, HugePages};
    use rpcrdma_fabric::shm;

    use super::*;

    /// A shared queue takes what was posted last: that is to be what has its memory.
    #[test]
    fn untouched_buffers_are_posted_first_on_a_shared_queue() {
        let config = CoreConfig {
            connections_max: 100,
            ..CoreConfig::default()
        };
        let options = ArenaOptions {
            bytes: config.arena_bytes() - config.untouched_bytes(),
            huge_pages: HugePages::Never,
        };
        for (is_shared, untouched_at) in [(true, 0..108), (false, 64 * 33..2220)] {
            let arena = Arena::shared_with_untouched(
                &options,
                HugePageSize::default(),
                config.untouched_bytes(),
            )
            .expect("memory");
            let touched_bytes = arena.report().arena_bytes;
            let clock = Clock::new();
            let mut port_config = shm::PortConfig::new(0, arena, clock);
            port_config.own_receive_queues = !is_shared;
            let (mut port, _handle) = shm::Port::new(port_config).expect("a port");
            let mut buffers =
                ReceiveBuffers::new(&mut port, &config, config.receives()).expect("room");
            for place in 0..config.receives() {
                let buffer = buffers.take().expect("one for each Receive");
                let is_untouched = port.memory().offset_of(&buffer) >= touched_bytes;
                assert_eq!(is_untouched, untouched_at.contains(&place), "{place}");
            }
            assert!(buffers.take().is_none());
        }
    }
}
