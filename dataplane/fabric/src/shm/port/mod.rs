//! A port of the `shm` provider: one core's channels, queue pairs, receive queues and windows.

mod arrivals;
mod complete;
mod config;
mod core;
mod fault;
mod inbound;
mod interface;
mod lifecycle;
mod post;
mod pull;
mod schedule;
mod share;
mod short;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crossbeam_queue::ArrayQueue;

use self::arrivals::Found;
pub use self::config::PortConfig;
use self::core::{Channels, Core, channel_mut};
use self::schedule::Schedule;
use super::doorbell::BellMemory;
use super::files;
use super::key_table::Windows;
use super::link::{CoreIdentity, PortFiles, PortHandle, QueuePairNumber};
use super::mapped::MappedBell;
use crate::clock::Ticks;
use crate::interface::{Attributes, CompletionBatch, PortNumber, SetupError};
use crate::memory::Arena;

/// Polls after which progress is exchanged with peers although there is other work.
const BUSY_EXCHANGE_POLLS: u64 = 64;
/// Cold channels that rang and that one poll looks at.
const COLD_VISITS_PER_POLL: u32 = 8;

/// A port. See [`crate::interface::Port`] for the order of the calls.
#[derive(Debug)]
pub struct Port {
    core: Core,
    channels: Channels,
    schedule: Schedule,
    bell: MappedBell,
    /// Becomes readable when a peer wakes us.
    event: OwnedFd,
    /// Holds the peers' end of `event` open.
    _files: Arc<PortFiles>,
    numbers: Arc<ArrayQueue<QueuePairNumber>>,
    /// Receive queues with Receives that were staged since the last flush; each once.
    staged: Vec<u16>,
    /// Channels that were sent on since the last flush.
    dirty: Vec<u32>,
    /// Short messages that the last poll found.
    found: Found,
    attributes: Attributes,
    inline_bytes_max: u32,
    sweep_mask: u64,
    /// The last poll found something to do.
    was_busy: bool,
    arena: Arena,
}

impl Port {
    /// Makes a port, and the handle by which the connection manager makes queue pairs for it.
    ///
    /// # Errors
    ///
    /// When a size is beyond its limit, or the system refuses memory or descriptors.
    pub fn new(config: PortConfig) -> Result<(Self, PortHandle), SetupError> {
        let works_guaranteed = config.check()?;
        let number = PortNumber::new()?;
        let (keys_file, keys) = files::create_key_table(config.windows_max)?;
        let (doorbell_file, bell) = files::create_doorbell()?;
        let (event, peers_end) = files::create_event()?;
        let files = Arc::new(PortFiles {
            arena: duplicate(config.arena.file().ok_or_else(private_arena)?)?,
            keys: keys_file,
            doorbell: doorbell_file,
            event: peers_end,
        });
        let count = config.queue_pairs_max.max(1);
        let numbers = Arc::new(ArrayQueue::new(count as usize));
        for index in 0..count {
            let index = u16::try_from(index).unwrap_or(u16::MAX);
            let _ = numbers.push(QueuePairNumber::new(index, 1));
        }
        let handle = PortHandle {
            identity: CoreIdentity::of_this_process(config.port),
            files: Arc::clone(&files),
            numbers: Arc::clone(&numbers),
            channel_ring_bytes: config.channel_ring_bytes,
        };
        let port = Self {
            attributes: config::attributes(&config),
            core: config::new_core(
                &config,
                works_guaranteed,
                number,
                Windows::new(keys, number),
            ),
            channels: Vec::new(),
            schedule: Schedule::new(config.hot_channels_max.max(1) as usize),
            bell,
            event,
            _files: files,
            numbers,
            staged: Vec::new(),
            dirty: Vec::new(),
            found: Found::new(config.hot_channels_max.max(1) as usize),
            inline_bytes_max: config.inline_bytes_max,
            sweep_mask: u64::from(config.cold_sweep_polls.max(1).next_power_of_two()) - 1,
            was_busy: false,
            arena: config.arena,
        };
        Ok((port, handle))
    }

    /// Looks at one channel. Whether something was done.
    #[inline]
    fn visit(&mut self, number: u32, now: Ticks, batch: &mut CompletionBatch) -> bool {
        let Some(channel) = channel_mut(&mut self.channels, number) else {
            return false;
        };
        if channel.broken {
            return false;
        }
        let visit = self.core.visit(channel, now, batch);
        if visit.is_busy() && channel.hot {
            channel.last_active = self.core.counters.polls;
        } else if visit.is_again() && !channel.hot {
            self.schedule.mark(number);
        }
        if visit.is_broken() {
            self.break_channel(number);
        }
        visit.is_busy()
    }

    /// Looks at the hot channels, in the order of the [`share`] module. Whether something was done, and how many places
    /// of the batch are kept for short messages that were found.
    #[inline]
    fn visit_hot(&mut self, now: Ticks, batch: &mut CompletionBatch) -> (bool, usize) {
        let mut busy = false;
        let mut place = 0;
        let mut kept_back = 0;
        while let Some(number) = self.schedule.hot(place) {
            if self.look_at(number, &mut kept_back, now, batch) {
                busy = true;
                if self.core.is_used_up(batch) {
                    self.end_hot(place, &mut kept_back, now, batch);
                    break;
                }
            }
            place += 1;
        }
        (busy, kept_back)
    }

    /// The hot channel at this place has used up the batch or the copy budget. Where only the budget
    /// is used up, those behind it are looked at all the same.
    #[inline(never)]
    fn end_hot(
        &mut self,
        used_at: usize,
        kept_back: &mut usize,
        now: Ticks,
        batch: &mut CompletionBatch,
    ) {
        let mut place = used_at + 1;
        while !batch.is_full()
            && let Some(number) = self.schedule.hot(place)
        {
            self.look_at(number, kept_back, now, batch);
            place += 1;
        }
        let poll = self.core.counters.polls;
        let was_active = |place| {
            let number = self.schedule.hot(place).unwrap_or(u32::MAX);
            channel_mut(&mut self.channels, number).is_some_and(|c| c.last_active == poll)
        };
        let had_all = !(0..used_at).any(was_active);
        self.schedule.begin_hot_at(used_at + usize::from(had_all));
    }

    /// Looks at cold channels, within their share of the poll: at the one whose turn it is, when
    /// this is a poll for that, and at those that were rung for. Whether something was done.
    #[inline(never)]
    fn visit_some_cold(&mut self, is_sweep: bool, now: Ticks, batch: &mut CompletionBatch) -> bool {
        let swept = if is_sweep { self.upkeep() } else { None };
        if swept.is_none() && !self.schedule.has_pending() {
            return false;
        }
        // Sweeps come in even polls: their half is the larger one.
        let kept = self.core.keep_half(batch, self.core.counters.polls + 1);
        let mut busy = false;
        if let Some(number) = swept {
            if self.core.is_used_up(batch) {
                self.schedule.mark(number);
            }
            busy = self.visit_cold(number, now, batch);
        }
        let mut next_first = None;
        for _ in 0..COLD_VISITS_PER_POLL {
            if batch.is_full() {
                break;
            }
            let Some(number) = self.schedule.take_pending() else {
                break;
            };
            self.core.counters.doorbells_in += 1;
            let had_all = !busy;
            busy |= self.visit_cold(number, now, batch);
            if next_first.is_none() && self.core.is_used_up(batch) {
                next_first = Some(number + u32::from(had_all));
            }
        }
        if let Some(number) = next_first {
            self.schedule.begin_pending_at(number);
        }
        self.core.give_rest(batch, &kept);
        busy
    }

    fn visit_cold(&mut self, number: u32, now: Ticks, batch: &mut CompletionBatch) -> bool {
        if channel_mut(&mut self.channels, number).is_none_or(|channel| channel.hot) {
            return false;
        }
        let busy = self.visit(number, now, batch);
        if busy {
            let poll = self.core.counters.polls;
            let moved = self
                .schedule
                .note_cold_work(&mut self.channels, number, poll);
            self.core.counters.promotions += u64::from(moved.promoted);
            self.core.counters.demotions += u64::from(moved.demoted);
        }
        busy
    }

    /// What is done now and then: a sleeping hot channel is made cold, and the cold channel whose
    /// turn it is to be looked at is found.
    fn upkeep(&mut self) -> Option<u32> {
        let poll = self.core.counters.polls;
        let moved = self.schedule.cool_down(&mut self.channels, poll);
        self.core.counters.demotions += u64::from(moved.demoted);
        let swept = self.schedule.next_to_sweep(&mut self.channels);
        self.core.counters.sweeps += u64::from(swept.is_some());
        swept
    }
}

fn private_arena() -> SetupError {
    SetupError::System {
        doing: "a port of shm needs a shared arena, which its peers can map".into(),
        source: std::io::ErrorKind::InvalidInput.into(),
    }
}

fn duplicate(file: &OwnedFd) -> Result<OwnedFd, SetupError> {
    file.try_clone().map_err(|source| SetupError::System {
        doing: "a descriptor could not be duplicated".into(),
        source,
    })
}

impl Port {
    /// Whether nothing is to be done that nobody would wake us for, but for what `waits_unnotified` says.
    fn is_idle(&mut self) -> bool {
        let core = &self.core;
        if self.schedule.has_pending() || self.bell.rung() {
            return false;
        }
        if !self.found.is_empty() {
            return false;
        }
        if !core.ready.is_empty() || !core.readers.is_empty() || !core.untold.is_empty() {
            return false;
        }
        let mut place = 0;
        while let Some(number) = self.schedule.hot(place) {
            // What a broken channel holds is never worked off.
            let peer = channel_mut(&mut self.channels, number)
                .filter(|channel| !channel.broken)
                .and_then(|channel| channel.peer.as_ref());
            if peer.is_some_and(|peer| peer.consumer.peek().is_some()) {
                return false;
            }
            place += 1;
        }
        true
    }
}

#[cfg(feature = "testing")]
impl Port {
    /// The channels, to see how far they are and to write what no port would.
    pub(in crate::shm) fn channels(&self) -> &[Option<Box<super::channel::Channel>>] {
        &self.channels
    }
}

#[cfg(test)]
impl Port {
    /// The channels, to write what no port would.
    #[cfg(not(loom))]
    pub(in crate::shm) fn channels_for_tests(
        &mut self,
    ) -> &mut [Option<Box<super::channel::Channel>>] {
        &mut self.channels
    }
}
