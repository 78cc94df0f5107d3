//! A port of the `verbs` provider: one core's protection domain, completion queue, receive
//! queues, queue pairs and windows.
//!
//! # The way of a work request
//!
//! Posting fills a work request in the port's table and links it to the chain of its queue pair;
//! [`flush_sends`](crate::interface::PortSends::flush_sends) hands each chain to the device with one
//! doorbell. The device completes only the work requests that ask for it. The others are known to be
//! done when a later one of the same queue pair completes. So the last work request of a chain asks
//! for a completion if one since the last such request holds buffers, and every few work requests one
//! asks in any case (`PortConfig::unsignalled_max`). Buffers therefore return in bounded time, and a
//! send queue cannot fill with work requests whose end nothing reports.
//!
//! # The end of a queue pair
//!
//! A failed work request, an event of the device, an event of the manager or a disconnect puts a
//! queue pair in the error state, by a system call. The device then flushes every work request that
//! it has not done: it completes them all, also those that asked for no completion, and the port
//! counts them. The device reports nothing for unsignalled work requests that were done before the
//! error. For these the port posts a marker behind all others: when the marker is flushed, they are
//! done. `Disconnected` is reported when three conditions hold: no work request is left; the device
//! has reported that the queue pair takes no more Receives, or a timeout has passed, because not
//! every device reports it; the completion queue was empty after that. If the device does not flush
//! in time, the port resets the queue pair, which ends the device's use of its buffers. A Receive
//! that completes after `Disconnected` is posted again without an event, so that no Receive is lost.
//! One exception remains: a device may drop a Receive that a broken queue pair had begun to fill
//! (InfiniBand volume 1, section 10.2.9.5), and nothing reports that.
//!
//! # Observed on soft-RoCE (Linux 6.1)
//!
//! * It never reports that a queue pair takes no more Receives.
//! * It flushes each work request, signalled or not.
//! * It does not check the range of a window, nor to whom a window belongs that a peer invalidates.
//! * It reports an invalidation by the kernel's number of the flag, which differs from that of verbs.
//! * The kernel panics when a window that the peer has invalidated is invalidated again. So
//!   [`invalidate_window`](crate::interface::PortWindows::invalidate_window) refuses that with
//!   [`PostError::NoWindow`](crate::interface::PostError::NoWindow), and the window is closed instead.
//!   Nothing protects against a peer whose Send With Invalidate crosses our own invalidation.
//!
//! # Observed on software iWARP (Linux 6.1)
//!
//! * It flushes all posted work requests within the call that puts a queue pair in error. It never
//!   flushes what is posted later, and a queue pair is in error as soon as its peer is gone. So the
//!   port posts no marker there: once the completion queue was empty after that call, what is left
//!   was done without a completion, or was posted too late.
//! * A work request completes when TCP has taken its bytes, whether or not they reach the peer. If it
//!   has a page or more and asks for no completion, TCP takes references to the pages instead of the
//!   bytes, and reads them when it sends or resends. By then a later work request may have completed
//!   and our buffer may have another use. So such work requests ask for a completion.
//! * A message that finds no Receive ends the connection.

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
use super::protection_domain::ProtectionDomain;
use super::queue_pair::probe_inline_bytes;
use super::registrations::{ExternalRegions, LocalKeys, PortMemory};
use super::thread_domain::QueuePairDomain;
use crate::clock::Ticks;
use crate::interface::{Attributes, Completion, PortNumber, SetupError};
use crate::memory::{Arena, Buffer, ExternalMemory, Memory, Origin};

/// From this length on, software iWARP does not copy a work request that asks for no completion.
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
    /// The application's memory.
    external: ExternalRegions,
    /// The keys for queue pairs in the protection domain of the port.
    local_keys: LocalKeys,
    shared: Arc<PortShared>,
    completion_queue: Arc<CompletionQueue>,
    /// Receive queues with Receives that are staged but not posted, each once. A queue without a
    /// queue pair leaves the list: adopting one posts its Receives.
    staged: Vec<u16>,
    /// Queue pairs with work requests that are staged but not posted.
    dirty: Vec<u32>,
    /// Queue pairs in error whose `Disconnected` was not reported yet.
    closing: Vec<u32>,
    /// Queue pairs whose peers have gone. Their messages that arrived before are still to be reaped.
    gone: Vec<u32>,
    /// Completions that found no room in a batch, or that the device did not produce.
    pending: VecDeque<Completion>,
    returned: Vec<Buffer>,
    counters: Counters,
    attributes: Attributes,
    /// Bytes that a work request can carry inline.
    device_inline_bytes_max: u32,
    read_segments_max: u32,
    unsignalled_max: u32,
    invalidated_flags: u32,
    /// The device flushes all work requests within the call that sets the error state, and none that
    /// is posted later.
    flushes_at_once: bool,
    /// A work request of this many bytes or more asks for a completion.
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
    /// When there is no such device, when the sizes guarantee no work request to a queue pair, and
    /// when the device or the system refuses memory or objects.
    pub fn new(mut config: PortConfig) -> Result<(Self, PortHandle), SetupError> {
        let context = Context::open(config.device.as_deref())?;
        let limits = context.limits();
        config.clamp(limits);
        let works_guaranteed = config.works_guaranteed()?;
        let number = PortNumber::new()?;
        // The device's objects carry this number, so that their events find the port.
        let mark = number.get() as usize;
        let domain = ProtectionDomain::new(&context, config.relaxed_ordering)?;
        let domain = Arc::new(domain);
        let entries = config.receives_max + config.work_requests_max;
        let completion_queue = Arc::new(CompletionQueue::new(&context, entries, mark)?);
        let memory = config.arena.memory();
        let region = Arc::new(MemoryRegion::new(&domain, memory.mapping())?);
        let external = ExternalRegions::new(&domain, config.arena.external())?;
        let mut sizes = config.queue_pair_sizes(limits);
        let probe = |domain: &QueuePairDomain| {
            probe_inline_bytes(domain, &completion_queue, sizes, sizes.inline_bytes)
        };
        let made = config.thread_domain.then(|| {
            let made = QueuePairDomain::of_one_thread(&domain)?;
            Ok((probe(&made)?, made))
        });
        let (made, thread_domain_refused) = split(made);
        let (inline_bytes, queue_pair_domain) = match made {
            Some(made) => made,
            None => {
                let plain = QueuePairDomain::new(&domain);
                (probe(&plain)?, plain)
            }
        };
        sizes.inline_bytes = inline_bytes;
        let registers = config.registers(limits);
        check_dma_bufs(config.arena.external(), registers)?;
        let windows = Windows::new(&region, config.windows_max, registers, config.clock.now());
        config.windows_max = windows.count();
        let works = Works::new(
            &domain,
            config.work_requests_max,
            (config.queue_pairs_max, works_guaranteed),
            config.send_segments_max,
            config.inline_bytes_max,
        )?;
        let events = Arc::new(EventRing::new(mark));
        context.listeners.add(&events);
        let attributes = Attributes {
            thread_domain_refused,
            ..config.attributes(context.name(), limits)
        };
        let queue_pairs = config.queue_pairs_max;
        let shared = Arc::new(PortShared::new(
            queue_pair_domain,
            Arc::clone(&completion_queue),
            events,
            !config.own_receive_queues,
            sizes,
            queue_pairs,
            config.responder_resources,
            config.initiator_depth,
            config.domains_apart(limits).then(|| PortMemory {
                arena: Arc::clone(memory.mapping()),
                staging: Arc::clone(works.mapping()),
                external: config.arena.external().into(),
            }),
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
            external,
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

/// What was made, and why it was not, if it was wanted.
fn split<T>(made: Option<Result<T, SetupError>>) -> (Option<T>, Option<String>) {
    match made {
        None => (None, None),
        Some(Ok(made)) => (Some(made), None),
        Some(Err(error)) => (None, Some(error.to_string())),
    }
}

/// A call exposes memory of a device by a window only.
fn check_dma_bufs(external: &[ExternalMemory], registers: bool) -> Result<(), SetupError> {
    let is_dma_buf = |memory: &ExternalMemory| matches!(memory.origin(), Origin::DmaBuf(_));
    if registers && external.iter().any(is_dma_buf) {
        return Err(SetupError::System {
            doing: "a dma-buf needs a device with memory windows, and this one has none".into(),
            source: std::io::ErrorKind::Unsupported.into(),
        });
    }
    Ok(())
}

impl Drop for Port {
    /// Frees the windows before their queue pairs, because some devices keep a queue pair that has
    /// windows.
    fn drop(&mut self) {
        for index in 0..self.queue_pairs.count() {
            if let Some(entry) = self.queue_pairs.get_mut(index) {
                let head = std::mem::replace(&mut entry.windows, window_table::NONE);
                self.windows.abandon(head);
            }
        }
    }
}
