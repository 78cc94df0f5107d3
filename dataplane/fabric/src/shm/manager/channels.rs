//! Chooses the channel for each connection.
//!
//! A channel is a pair of channel files, one from each core; each file has a ring and ring positions.
//! Many connections share a channel. A port drops its half with the last queue pair of the channel.
//! The two ends drop their halves at different times, and neither sees when the other does. A new
//! connection must get either two halves that are both in use, or two new ones: a new half beside an
//! old one would start at other ring positions. So:
//!
//! * **The server names the channel.** A channel has a number, from a counter of the server's manager
//!   that only rises. The counter starts at the time of day, so that a later process with the same
//!   pid starts higher. The reply carries the number. The client creates its half when it first
//!   receives a number.
//! * **A half lives as long as its mapping.** The registry holds a `Weak`; prepared queue pairs and
//!   ports hold the `Arc`. Another connection joins a channel by upgrading the `Weak`. A port drops
//!   an idle channel only when it holds the last `Arc`; otherwise a prepared queue pair of the channel
//!   is on its way, or a pinned handshake may still produce one.
//! * **The client pins.** From its request until the end of the handshake, a client keeps its halves
//!   of all channels between this port and this server process, including those that are created in
//!   that time. The request lists them (`alive`), and carries the newest number that the port has
//!   received from that process (`seen_up_to`).
//! * **The server chooses** a channel whose own half lives and that the request lists as alive, or
//!   whose number is above `seen_up_to`: the client did not know that channel when it began to pin, so
//!   it cannot have dropped its half before. Otherwise the server creates a channel. Requests that are
//!   sent together therefore share one channel, although none of them can list it.
//!
//! The doorbell number and the file of a channel are released with its mapping. A port's channels as
//! client and as server are separate. The key includes the peer's pid, which comes from the kernel, so
//! that a process cannot reach another's channels by claiming its identity.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::{SystemTime, UNIX_EPOCH};

use super::wire::{ALIVE_CHANNELS_MAX, Request};
use crate::interface::SetupError;
use crate::memory::Mapping;
use crate::shm::doorbell::CHANNELS_MAX as CHANNELS_PER_PORT_MAX;
use crate::shm::{ChannelFile, CoreIdentity, PortHandle};

/// The port's role in a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Client,
    Server,
}

/// The two ends of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ends {
    end: End,
    local: CoreIdentity,
    peer: CoreIdentity,
    pid: u32,
}

#[derive(Debug)]
struct Entry {
    ends: Ends,
    number: u64,
    doorbell_number: u32,
    file: Arc<OwnedFd>,
    mapping: Weak<Mapping>,
    /// Held while a handshake of the client port is under way.
    pinned: Option<Arc<Mapping>>,
}

/// Our half of a channel, for one connection.
#[derive(Clone, Debug)]
pub(super) struct Half {
    /// The channel's number.
    pub(super) number: u64,
    /// The channel's bit in our doorbell.
    pub(super) doorbell_number: u32,
    /// Our channel file, for the peer.
    pub(super) file: Arc<OwnedFd>,
    /// The same, mapped.
    pub(super) mapping: Arc<Mapping>,
}

/// A client port and a server process.
type Route = (CoreIdentity, u32);

/// What a request says about the client's channels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct View {
    pub(super) seen_up_to: u64,
    pub(super) alive: Vec<u64>,
}

/// All channels of the ports of one manager.
#[derive(Debug)]
pub(super) struct Channels {
    entries: Vec<Entry>,
    /// Handshakes under way, by route.
    pins: HashMap<Route, usize>,
    /// The newest channel number received, by route. Entries are never removed: a channel that this
    /// end has dropped would look unknown, and the server could choose it again. Costs a few bytes
    /// for each server process.
    seen_up_to: HashMap<Route, u64>,
    next_number: u64,
}

impl Channels {
    pub(super) fn new() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let start = since.map_or(0, |since| since.as_nanos());
        Self {
            entries: Vec::new(),
            pins: HashMap::new(),
            seen_up_to: HashMap::new(),
            next_number: u64::try_from(start).unwrap_or(0).max(1),
        }
    }

    /// A client handshake begins: keeps the channels of the route alive and lists them.
    pub(super) fn pin(&mut self, local: CoreIdentity, pid: u32) -> View {
        *self.pins.entry((local, pid)).or_default() += 1;
        let mut alive = Vec::new();
        for entry in self.entries.iter_mut().rev() {
            if entry.ends.end != End::Client || entry.ends.local != local || entry.ends.pid != pid {
                continue;
            }
            if entry.pinned.is_none() {
                entry.pinned = entry.mapping.upgrade();
            }
            if entry.pinned.is_some() && alive.len() < ALIVE_CHANNELS_MAX {
                alive.push(entry.number);
            }
        }
        View {
            seen_up_to: self.seen_up_to.get(&(local, pid)).copied().unwrap_or(0),
            alive,
        }
    }

    /// A client handshake has ended, whether or not it succeeded.
    pub(super) fn unpin(&mut self, local: CoreIdentity, pid: u32) {
        let Some(count) = self.pins.get_mut(&(local, pid)) else {
            return;
        };
        *count -= 1;
        if *count > 0 {
            return;
        }
        self.pins.remove(&(local, pid));
        for entry in &mut self.entries {
            if entry.ends.local == local && entry.ends.pid == pid {
                entry.pinned = None;
            }
        }
        self.sweep();
    }

    /// The client's half of the channel that a reply names; `view` is what the request said.
    /// Must be called between [`Channels::pin`] and [`Channels::unpin`].
    pub(super) fn client_half(
        &mut self,
        port: &PortHandle,
        peer: CoreIdentity,
        pid: u32,
        number: u64,
        view: &View,
    ) -> Result<Half, SetupError> {
        let ends = Ends {
            end: End::Client,
            local: port.identity,
            peer,
            pid,
        };
        let seen = self.seen_up_to.entry((port.identity, pid)).or_default();
        *seen = number.max(*seen);
        if let Some(half) = self.find(&ends, |candidate| candidate == number) {
            return Ok(half);
        }
        if number <= view.seen_up_to && !view.alive.contains(&number) {
            return Err(SetupError::Peer {
                what: format!("reply names channel {number}, which this end has closed"),
            });
        }
        self.create(port, ends, number)
    }

    /// The server's half of the channel for a connection that `request` asks for.
    pub(super) fn server_half(
        &mut self,
        port: &PortHandle,
        pid: u32,
        request: &Request,
    ) -> Result<Half, SetupError> {
        let ends = Ends {
            end: End::Server,
            local: port.identity,
            peer: request.core,
            pid,
        };
        let usable = |number: u64| number > request.seen_up_to || request.alive.contains(&number);
        if let Some(half) = self.find(&ends, usable) {
            return Ok(half);
        }
        let number = self.next_number;
        self.next_number += 1;
        self.create(port, ends, number)
    }

    /// The newest channel between `ends` that lives and whose number is `usable`.
    fn find(&self, ends: &Ends, usable: impl Fn(u64) -> bool) -> Option<Half> {
        self.entries
            .iter()
            .rev()
            .filter(|entry| entry.ends == *ends && usable(entry.number))
            .find_map(|entry| {
                Some(Half {
                    number: entry.number,
                    doorbell_number: entry.doorbell_number,
                    file: Arc::clone(&entry.file),
                    mapping: entry.mapping.upgrade()?,
                })
            })
    }

    fn create(&mut self, port: &PortHandle, ends: Ends, number: u64) -> Result<Half, SetupError> {
        self.sweep();
        let doorbell_number = self.free_doorbell_number(port)?;
        let (file, mapping) = ChannelFile::create(port.channel_ring_bytes)?;
        let file = Arc::new(file);
        let pinned = self.pins.contains_key(&(ends.local, ends.pid)) && ends.end == End::Client;
        self.entries.push(Entry {
            ends,
            number,
            doorbell_number,
            file: Arc::clone(&file),
            mapping: Arc::downgrade(&mapping),
            pinned: pinned.then(|| Arc::clone(&mapping)),
        });
        Ok(Half {
            number,
            doorbell_number,
            file,
            mapping,
        })
    }

    /// The smallest doorbell number of `port` that no known channel uses.
    fn free_doorbell_number(&self, port: &PortHandle) -> Result<u32, SetupError> {
        let limit = CHANNELS_PER_PORT_MAX;
        let mut taken = vec![false; limit as usize];
        for entry in &self.entries {
            if entry.ends.local == port.identity
                && let Some(slot) = taken.get_mut(entry.doorbell_number as usize)
            {
                *slot = true;
            }
        }
        (0..limit)
            .zip(taken)
            .find_map(|(number, taken)| (!taken).then_some(number))
            .ok_or(SetupError::Limit {
                what: "channels of one core (pairs of cores that are connected at a time)",
                asked: u64::from(limit) + 1,
                limit: u64::from(limit),
            })
    }

    /// Removes the channels that no prepared queue pair, port or pin holds: closes their files and
    /// frees their doorbell numbers.
    pub(super) fn sweep(&mut self) {
        self.entries
            .retain(|entry| entry.mapping.strong_count() > 0);
    }

    /// The number of known channels, including those that the next sweep removes.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
}
