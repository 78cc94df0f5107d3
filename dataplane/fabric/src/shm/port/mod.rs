//! A port of the `shm` provider: one core's channels, queue pairs, receive queues and windows.

mod arrivals;
mod complete;
mod config;
mod core;
mod fault;
mod inbound;
mod inbox;
mod poll;
mod pull;
mod receives;
mod schedule;
mod sends;
mod setup;
mod share;
mod short;
mod windows;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crossbeam_queue::ArrayQueue;

pub use self::config::PortConfig;
use self::core::{Channels, Core};
use self::inbox::Found;
use self::poll::BUSY_EXCHANGE_POLLS;
use self::schedule::Schedule;
use super::files;
use super::files::CoreIdentity;
use super::key_table::Windows;
use super::link::{PortFiles, PortHandle, QueuePairNumber};
use super::mapped::MappedBell;
use crate::interface::{Attributes, PortNumber, SetupError};
use crate::memory::Arena;

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
    /// Receive queues with Receives that were staged since the last flush, each once.
    staged: Vec<u16>,
    /// Channels with records that were published since the last flush.
    dirty: Vec<u32>,
    /// Short messages that the last poll found.
    found: Found,
    attributes: Attributes,
    inline_bytes_max: u32,
    sweep_mask: u64,
    /// Selects the polls in which a cold channel is swept, or progress is exchanged in any case.
    rare_mask: u64,
    /// Whether the last poll found something to do.
    was_busy: bool,
    arena: Arena,
}

impl Port {
    /// Makes a port, and the handle by which the connection manager makes queue pairs for it.
    ///
    /// # Errors
    ///
    /// When a size exceeds its limit, when the sizes guarantee no work request to a queue pair, and when
    /// the system refuses memory or descriptors.
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
            external: external_files(&config.arena)?,
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
        let sweep_mask = u64::from(config.cold_sweep_polls.max(1).next_power_of_two()) - 1;
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
            sweep_mask,
            rare_mask: sweep_mask.min(BUSY_EXCHANGE_POLLS - 1),
            was_busy: false,
            arena: config.arena,
        };
        Ok((port, handle))
    }
}

fn private_arena() -> SetupError {
    SetupError::System {
        doing: "a port of shm needs a shared arena, which its peers can map".into(),
        source: std::io::ErrorKind::InvalidInput.into(),
    }
}

/// The files of the application's memory.
fn external_files(arena: &Arena) -> Result<Vec<OwnedFd>, SetupError> {
    let files = arena.external().iter().map(|external| {
        let copied = external.sealed_file()?.try_clone_to_owned();
        copied.map_err(|source| SetupError::System {
            doing: "a descriptor could not be duplicated".into(),
            source,
        })
    });
    files.collect()
}

fn duplicate(file: &OwnedFd) -> Result<OwnedFd, SetupError> {
    file.try_clone().map_err(|source| SetupError::System {
        doing: "a descriptor could not be duplicated".into(),
        source,
    })
}

#[cfg(feature = "testing")]
impl Port {
    /// The channels. Tests read their progress, and write records that no port would write.
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
