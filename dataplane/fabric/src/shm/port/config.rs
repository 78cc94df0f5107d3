//! The configuration of a port, and its construction.

use std::collections::VecDeque;
use std::time::Duration;

use super::super::counters::Counters;
use super::super::files;
use super::super::key_table::Windows;
use super::super::queue_pair::{Checked, QueuePair};
use super::super::record::{
    DESCRIPTOR_BYTES_MAX, EXTENSION_BYTES, HEAD_BYTES_MAX, HEADER_BYTES, UNIT_BYTES,
};
use super::super::work::Works;
use super::core::{Core, Shapes};
use super::inbox::Inbox;
use super::sends::MESSAGE_BYTES_MAX;
use crate::clock::Clock;
use crate::interface::{Attributes, Forms, PortNumber, SEGMENTS_MAX, SetupError};
use crate::memory::Arena;
use crate::share::works_guaranteed;

/// The largest delay of a port. A record carries the time from which it may be delivered, and its channel
/// stays open until then, even if the sender is dead. The bound makes a time that is further ahead an
/// error.
pub(super) const DELAY_MAX: Duration = Duration::from_secs(10);

/// The configuration of a port.
#[derive(Debug)]
pub struct PortConfig {
    /// The port's number within its process.
    pub port: u32,
    /// The registered memory; pools are carved from it before or after.
    pub arena: Arena,
    /// Bytes of the ring in each channel file of this port; a power of two from 8192.
    pub channel_ring_bytes: u32,
    /// The longest Send that goes through the ring, in bytes. The receiver pulls a longer one from the
    /// sender's arena.
    pub inline_bytes_max: u32,
    /// The most bytes that one poll pulls; at least 4.
    pub copy_bytes_per_poll: u32,
    /// Channels that every poll checks; at most 64.
    pub hot_channels_max: u32,
    /// The number of polls after which one cold channel is checked without a doorbell; rounded up to a
    /// power of two.
    pub cold_sweep_polls: u32,
    /// Queue pairs; at most 65536.
    pub queue_pairs_max: u32,
    /// Memory windows; rounded up to a power of two.
    pub windows_max: u32,
    /// Work requests outstanding per queue pair.
    pub send_queue_depth_max: u32,
    /// Work requests outstanding on the whole port that are signalled or hold buffers. At least two for each queue pair:
    /// one is guaranteed to it, and the others can be borrowed.
    pub work_requests_max: u32,
    /// Give each queue pair its own receive queue, to test the behaviour of devices without shared ones.
    pub own_receive_queues: bool,
    /// The one-way delay of a delivery; zero for none, at most 10 s.
    pub delay: Duration,
    /// The clock whose readings [`crate::interface::PortPoll::poll`] gets.
    pub clock: Clock,
}

impl PortConfig {
    /// The default sizes, for a port with this memory.
    #[must_use]
    pub fn new(port: u32, arena: Arena, clock: Clock) -> Self {
        Self {
            port,
            arena,
            channel_ring_bytes: 32_768,
            inline_bytes_max: 1024,
            copy_bytes_per_poll: 260 * 1024,
            hot_channels_max: 8,
            cold_sweep_polls: 16,
            queue_pairs_max: 256,
            windows_max: 1024,
            send_queue_depth_max: 256,
            work_requests_max: 1024,
            own_receive_queues: false,
            delay: Duration::ZERO,
            clock,
        }
    }

    /// Checks the sizes. Returns the work requests that each queue pair is guaranteed.
    pub(super) fn check(&self) -> Result<u32, SetupError> {
        files::check_ring_bytes(self.channel_ring_bytes)?;
        let descriptor = HEADER_BYTES + EXTENSION_BYTES + DESCRIPTOR_BYTES_MAX + HEAD_BYTES_MAX;
        let delay_ms = self.delay.as_millis();
        let limits = [
            (
                "milliseconds of delay of a port",
                u32::try_from(delay_ms).unwrap_or(u32::MAX),
                u32::try_from(DELAY_MAX.as_millis()).unwrap_or(u32::MAX),
            ),
            (
                "bytes of a Send through the ring",
                self.inline_bytes_max,
                // A record fits into an empty ring together with the pad before it and the cleared word
                // after it.
                (self.channel_ring_bytes / 4).max(descriptor) - 2 * UNIT_BYTES,
            ),
            ("hot channels of a port", self.hot_channels_max, 64),
            ("queue pairs of a port", self.queue_pairs_max, 1 << 16),
            (
                "work requests of a port",
                self.work_requests_max,
                u32::MAX >> 1,
            ),
        ];
        for (what, asked, limit) in limits {
            if asked > limit {
                return Err(SetupError::Limit {
                    what,
                    asked: asked.into(),
                    limit: limit.into(),
                });
            }
        }
        works_guaranteed(
            self.work_requests_max,
            self.queue_pairs_max,
            "raise work_requests_max, or lower queue_pairs_max",
        )
    }
}

pub(super) fn attributes(config: &PortConfig) -> Attributes {
    Attributes {
        provider: "shm",
        device: format!("shm port {}", config.port),
        queue_pairs_max: config.queue_pairs_max.max(1),
        receive_queue_depth_max: 1 << 20,
        receive_segments_max: u32::try_from(SEGMENTS_MAX).unwrap_or(u32::MAX),
        send_segments_max: u32::try_from(SEGMENTS_MAX).unwrap_or(u32::MAX),
        send_queue_depth_max: config.send_queue_depth_max,
        inline_bytes_max: config.inline_bytes_max,
        message_bytes_max: MESSAGE_BYTES_MAX,
        read_depth_max: config.send_queue_depth_max,
        windows_max: config.windows_max.max(1).next_power_of_two(),
        shared_receive_queue: !config.own_receive_queues,
        send_with_invalidate: true,
        rails: 1,
        thread_domain_refused: None,
    }
}

/// `works_guaranteed` is the number of work requests that each queue pair is guaranteed.
pub(super) fn new_core(
    config: &PortConfig,
    works_guaranteed: u32,
    number: PortNumber,
    windows: Windows,
) -> Core {
    let queue_pairs = config.queue_pairs_max.max(1) as usize;
    let works = config.work_requests_max as usize;
    let held = works * SEGMENTS_MAX + config.windows_max as usize;
    Core {
        number,
        memory: config.arena.memory(),
        queue_pairs: (0..queue_pairs).map(|_| QueuePair::vacant()).collect(),
        checked: Checked::NOTHING,
        receive_queues: Vec::new(),
        windows,
        works: Works::new(
            config.work_requests_max,
            config.queue_pairs_max.max(1),
            works_guaranteed,
        ),
        ready: VecDeque::with_capacity(queue_pairs),
        readers: VecDeque::with_capacity(queue_pairs),
        untold: Vec::new(),
        awaiting: VecDeque::new(),
        returned: Vec::with_capacity(held),
        inbox: Inbox::new(),
        forms: Forms::NONE,
        shapes: Shapes::new(&Forms::NONE),
        counters: Counters::default(),
        clock: config.clock.clone(),
        delay: config.clock.ticks(config.delay),
        // Twice the largest delay, because each process calibrates its own clock.
        not_before_ahead_max: config.clock.ticks(2 * DELAY_MAX),
        send_queue_depth_max: config.send_queue_depth_max,
        // At least 4, so that each class of the module `share` gets a byte.
        copy_bytes_per_poll: config.copy_bytes_per_poll.max(4),
        copy_budget: 0,
        not_ready_polls: 0,
    }
}
