//! A port of the `verbs` provider: one core's protection domain, completion queue, receive
//! queues, queue pairs and windows.
//!
//! # How work goes through it
//!
//! Posting writes a work request into the port's table and chains it to those of its queue pair;
//! [`flush_sends`](crate::interface::PortSends::flush_sends) hands each chain over with one doorbell.
//! A work without a completion of its own is known to be done when a later one of its queue pair
//! completes. So the last work of a chain asks for a completion if one before it holds buffers,
//! and at the latest every few works (`PortConfig::work_requests_max`): buffers come back in
//! bounded time, and the queue never fills with works of which nothing is heard.
//!
//! # How a queue pair ends
//!
//! A work that fails, an event of the device, the manager's word or a disconnect puts it in the
//! error state (a system call, as is all that follows from it). The device then flushes every
//! work that it has not done, also those that asked for no completion; they are counted. Of those
//! that were done without a completion it tells nothing: a marker that is posted behind them, and
//! flushed, does. When none is left, and the device has said that the queue pair takes no more Receives (or a time has passed, because not
//! every device says so), and the completion queue was seen empty after that, `Disconnected` is
//! reported. If the flush does not come either, the queue pair is reset, which ends the device's
//! use of its buffers. A Receive that completes later still is posted again in silence, so the
//! books on Receives balance, except where a device drops one that a broken queue pair had begun to
//! fill: the specification lets it (InfiniBand volume 1, section 10.2.9.5), and nothing tells.
//!
//! # What was found on soft-RoCE (Linux 6.1)
//!
//! It never says that a queue pair takes no more Receives; it flushes each work, signalled or not;
//! it does not hold a peer to the range of a window, nor ask whose window a peer invalidates; it
//! reports an invalidation by a flag of the kernel's numbering. A window that the peer has
//! invalidated must not be invalidated again: its kernel panics. So
//! [`invalidate_window`](crate::interface::PortWindows::invalidate_window) refuses that with
//! [`PostError::NoWindow`](crate::interface::PostError::NoWindow), and the window is closed instead.
//! A peer whose Send With Invalidate crosses our own invalidation cannot be kept from it.
//!
//! # What was found on software iWARP (Linux 6.1)
//!
//! It flushes everything that is posted in the very call that puts a queue pair in error, and never
//! what is posted to one that is in error already, which it is as soon as the peer is gone. So no
//! marker is posted: once the completion queue was seen empty after that call, what is left was done
//! without a completion, or came too late.
//!
//! A work completes when TCP has taken its bytes, whatever becomes of them. Of a work of a page or more
//! that asks for no completion TCP takes the pages instead of the bytes, and reads them when it
//! sends, or sends again: after a later work has completed, and our buffer is somebody else's. So
//! such works ask for a completion. A message that meets no Receive ends the connection.

mod closing;
mod complete;
mod config;
mod counters;
mod poll;
mod queue_pairs;
mod reads;
mod receive_queue;
mod receives;
mod sends;
mod setup;
mod window_table;
mod windows;
mod works;

use std::collections::VecDeque;
use std::sync::Arc;

pub use self::config::{PortConfig, WithoutWindows};
use self::counters::Counters;
use self::queue_pairs::QueuePairs;
use self::receive_queue::ReceiveQueues;
use self::window_table::Windows;
use self::works::Works;
use super::completion_queue::CompletionQueue;
use super::context::Context;
use super::events::EventRing;
use super::link::{PortHandle, PortShared};
use super::memory_region::MemoryRegion;
use super::protection_domain::{LocalKeys, ProtectionDomain};
use super::queue_pair::probe_inline_bytes;
use crate::clock::Ticks;
use crate::interface::{Attributes, Completion, PortNumber, SetupError};
use crate::memory::{Arena, Buffer, Memory};

/// From this length on software iWARP sends without a copy what asks for no completion.
const SOFT_IWARP_COPIED_BYTES: u64 = 4096;

/// A port. See [`crate::interface::Port`] for the order of the calls.
#[derive(Debug)]
pub struct Port {
    number: PortNumber,
    // Dropped in this order: queue pairs, receive queues, windows, memory, then what they share.
    queue_pairs: QueuePairs,
    receive_queues: ReceiveQueues,
    windows: Windows,
    works: Works,
    region: Arc<MemoryRegion>,
    /// Of queue pairs in the protection domain of the port.
    local_keys: LocalKeys,
    shared: Arc<PortShared>,
    completion_queue: Arc<CompletionQueue>,
    /// Receive queues with Receives that the device does not have yet, each once; those of a queue
    /// without a queue pair wait for one.
    staged: Vec<u16>,
    /// Queue pairs with works that the device does not have yet.
    dirty: Vec<u32>,
    /// Queue pairs in error whose end was not reported.
    closing: Vec<u32>,
    /// Queue pairs whose peers are gone, but of whose messages some may still be unread.
    gone: Vec<u32>,
    /// Completions that no completion of the device stands for.
    pending: VecDeque<Completion>,
    returned: Vec<Buffer>,
    counters: Counters,
    attributes: Attributes,
    /// Bytes that the device takes in a work request.
    device_inline_bytes_max: u32,
    read_segments_max: u32,
    unsignalled_max: u32,
    invalidated_flags: u32,
    /// The device flushes everything as it is told of the error, and nothing that is posted later.
    flushes_at_once: bool,
    /// Works of so many bytes ask for a completion.
    signalled_bytes_min: u64,
    last_receive_timeout: Ticks,
    flush_timeout: Ticks,
    receives_max: u32,
    memory: Memory,
    arena: Arena,
}

impl Port {
    /// Makes a port, and the handle by which the connection manager makes queue pairs for it.
    ///
    /// # Errors
    ///
    /// When there is no such device, or it or the system refuses memory or objects.
    pub fn new(mut config: PortConfig) -> Result<(Self, PortHandle), SetupError> {
        let context = Context::open(config.device.as_deref())?;
        let limits = context.limits();
        config.clamp(limits);
        let works_guaranteed = config.works_guaranteed()?;
        let number = PortNumber::new()?;
        // What the device's objects carry, so that its events find their port.
        let mark = number.get() as usize;
        let domain = Arc::new(ProtectionDomain::new(&context)?);
        let entries = config.receives_max + config.work_requests_max;
        let completion_queue = Arc::new(CompletionQueue::new(&context, entries, mark)?);
        let memory = config.arena.memory();
        let region = Arc::new(MemoryRegion::new(&domain, memory.mapping())?);
        let mut sizes = config.queue_pair_sizes(limits);
        sizes.inline_bytes =
            probe_inline_bytes(&domain, &completion_queue, sizes, sizes.inline_bytes)?;
        let registers = config.registers(limits);
        let windows = Windows::new(&region, config.windows_max, registers, config.clock.now())?;
        let works = Works::new(
            &domain,
            config.work_requests_max,
            (config.queue_pairs_max, works_guaranteed),
            config.send_segments_max,
            config.inline_bytes_max,
        )?;
        let events = Arc::new(EventRing::new(mark));
        context.listeners.add(&events);
        let attributes = config.attributes(context.name(), limits);
        let queue_pairs = config.queue_pairs_max;
        let shared = Arc::new(PortShared::new(
            domain,
            Arc::clone(&completion_queue),
            events,
            !config.own_receive_queues,
            sizes,
            queue_pairs,
            config.responder_resources,
            config.initiator_depth,
            config
                .domains_apart(limits)
                .then(|| [Arc::clone(memory.mapping()), Arc::clone(works.mapping())]),
        ));
        let held = config.work_requests_max as usize * config.send_segments_max as usize
            + config.windows_max as usize;
        let local_keys = LocalKeys {
            arena: region.local_key(),
            staging: works.local_key(),
        };
        let port = Self {
            number,
            local_keys,
            queue_pairs: QueuePairs::new(queue_pairs),
            receive_queues: ReceiveQueues::new(number),
            windows,
            works,
            region,
            completion_queue,
            staged: Vec::new(),
            dirty: Vec::with_capacity(queue_pairs as usize),
            closing: Vec::with_capacity(queue_pairs as usize),
            gone: Vec::with_capacity(queue_pairs as usize),
            pending: VecDeque::with_capacity(config.windows_max as usize),
            returned: Vec::with_capacity(held),
            counters: Counters::default(),
            attributes,
            device_inline_bytes_max: sizes.inline_bytes,
            read_segments_max: config.read_segments_max,
            unsignalled_max: config.unsignalled_max(works_guaranteed),
            invalidated_flags: limits.invalidated_flags,
            flushes_at_once: limits.soft_iwarp,
            signalled_bytes_min: if limits.soft_iwarp {
                SOFT_IWARP_COPIED_BYTES
            } else {
                u64::MAX
            },
            last_receive_timeout: config.clock.ticks(config.last_receive_timeout),
            flush_timeout: config.clock.ticks(config.flush_timeout),
            receives_max: config.receives_max,
            memory,
            arena: config.arena,
            shared: Arc::clone(&shared),
        };
        Ok((port, PortHandle::new(shared)))
    }
}

impl Drop for Port {
    /// Takes the windows off the queue pairs, which some devices want before those go.
    fn drop(&mut self) {
        for index in 0..self.queue_pairs.count() {
            if let Some(entry) = self.queue_pairs.get_mut(index) {
                let head = std::mem::replace(&mut entry.windows, window_table::NONE);
                self.windows.abandon(head);
            }
        }
    }
}
