//! Which channel carries which connection.
//!
//! A channel is a pair of channel files, one of each core, with the positions of both rings in
//! them. Many connections share it, and a port throws its half away with the last queue pair of
//! it. The two ends do that at different times, and neither sees when the other does; yet a new
//! connection must find either both halves of an old channel, in use, or two fresh ones. So:
//!
//! * **The server names the channel.** A channel has a number, drawn by the server's manager from
//!   a counter that only rises (and that starts at the clock, so that a later process with the
//!   same pid starts higher). A reply says which channel carries the connection. The client
//!   makes its half when it first hears a number.
//! * **A half lives as long as its mapping.** The registry holds a `Weak`; prepared queue pairs and ports hold
//!   the `Arc`. To put another connection on a channel is to upgrade the `Weak`. A port lets go
//!   of an idle channel only when nobody else holds the `Arc`; else a prepared queue pair of the channel is
//!   under way, or may come.
//! * **The client pins.** From the moment it sends a request until the handshake is over, it
//!   keeps its halves of all channels between that port and that server process, those that
//!   come into being meanwhile included. The request names them (`alive`), and says which is the
//!   newest channel that the port has heard of from that process (`seen_up_to`).
//! * **The server chooses** a channel whose own half lives, and that is either named as alive, or
//!   newer than `seen_up_to`: the client had not heard of that one when it began to pin, so it
//!   cannot have thrown it away before. Else it makes a fresh one. Many requests sent at once
//!   therefore share one channel, although none of them could name it.
//!
//! Doorbell numbers and files of a channel are free again when its mapping is gone. Channels in
//! which a port is the client and those in which it is the server are apart. The peer's pid, as
//! the kernel tells it, is part of the key, so that no process gets at the channels of another by
//! naming itself after it.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::{SystemTime, UNIX_EPOCH};

use super::wire::{ALIVE_CHANNELS_MAX, Request};
use crate::interface::SetupError;
use crate::memory::Mapping;
use crate::shm::{ChannelFile, CoreIdentity, PortHandle};

/// The end that a port is of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Client,
    Server,
}

/// Who is at both ends of a channel.
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
    /// The bit that stands for it among those of our doorbell.
    pub(super) doorbell_number: u32,
    /// Our channel file, for the peer.
    pub(super) file: Arc<OwnedFd>,
    /// The same, mapped.
    pub(super) mapping: Arc<Mapping>,
}

/// A client port and a server process.
type Route = (CoreIdentity, u32);

/// What the client port says of itself in a request.
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
    /// The newest channel heard of, by route. Never forgotten: that would make old channels look
    /// new. A few bytes for each server process ever connected to.
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

    /// A client handshake begins: keeps the channels of the route, and says which they are.
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

    /// A client handshake is over, one way or the other.
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
                what: format!("reply names channel {number}, which this process has closed"),
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

    /// The smallest doorbell number of `port` that no living channel has.
    fn free_doorbell_number(&self, port: &PortHandle) -> Result<u32, SetupError> {
        let limit = super::CHANNELS_PER_PORT_MAX;
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

    /// Forgets the channels that no prepared queue pair and no port holds: closes their files and frees their
    /// doorbell numbers.
    pub(super) fn sweep(&mut self) {
        self.entries
            .retain(|entry| entry.mapping.strong_count() > 0);
    }

    /// Channels that are known, the dead ones not yet swept included.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
}
