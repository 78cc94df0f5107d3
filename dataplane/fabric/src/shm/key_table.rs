//! Memory windows: the owner's private table, and the table of keys that peers read.
//!
//! For an RDMA Read the peer finds the entry by its key, and checks range, access and generation, and that the window is
//! bound to its queue pair. Then it copies the bytes and checks the generation again. If the window ended during the copy,
//! the generation has changed, and the peer discards the copy. The owner executes RDMA Writes and uses the private table.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use crate::interface::{Access, PortNumber, RemoteKey, Window};
use crate::memory::{Buffer, Mapping};

/// The first page: parked flag, secret, number of entries.
pub(super) const TABLE_HEAD_BYTES: usize = 4096;
/// Bytes of an entry.
pub(super) const ENTRY_BYTES: usize = 32;
/// Windows that a port may have.
pub(super) const WINDOWS_MAX: u32 = 1 << 16;

const PARKED_OFFSET: usize = 0;
/// On another line than the parked flag.
const SECRET_OFFSET: usize = 128;

const ACCESS_READ: u32 = 1;
const ACCESS_WRITE: u32 = 2;

/// The holder of a window: the channel's number at the owner, and the queue pair's at the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Holder {
    pub(super) channel: u32,
    pub(super) queue_pair: u32,
}

/// A table of keys in mapped memory: the owner's, or a peer's.
#[derive(Debug)]
pub(super) struct KeyMemory {
    mapping: Arc<Mapping>,
    entries: u32,
}

/// The contents of an entry, and its generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    index: u32,
    generation: u32,
    start: u64,
    bytes: u32,
    access: u32,
    holder: Holder,
}

impl KeyMemory {
    /// The table in a file; `None` when its size is not that of a table.
    pub(super) fn new(mapping: Arc<Mapping>) -> Option<Self> {
        let bytes = mapping.bytes().checked_sub(TABLE_HEAD_BYTES)?;
        let entries = u32::try_from(bytes / ENTRY_BYTES).ok()?;
        let whole = bytes.is_multiple_of(ENTRY_BYTES) && entries.is_power_of_two();
        (whole && entries <= WINDOWS_MAX).then_some(Self { mapping, entries })
    }

    fn head_word(&self, offset: usize) -> &AtomicU32 {
        debug_assert!(offset + 4 <= TABLE_HEAD_BYTES);
        // SAFETY: within the first page of the mapping (checked in `new`), aligned, and only
        // used as an atomic. A peer's table is mapped for reading only: its words are only loaded,
        // and Relaxed, which is all that the contract of `std::sync::atomic` allows there.
        unsafe { AtomicU32::from_ptr(self.mapping.start().add(offset).cast()) }
    }

    fn word(&self, index: u32, word: usize) -> &AtomicU32 {
        let offset = TABLE_HEAD_BYTES + (index & (self.entries - 1)) as usize * ENTRY_BYTES;
        debug_assert!(word < ENTRY_BYTES / 4);
        // SAFETY: the masked index lies within the table (checked in `new`); aligned; only used
        // as an atomic, and as in `head_word` where it is a peer's.
        unsafe { AtomicU32::from_ptr(self.mapping.start().add(offset + word * 4).cast()) }
    }

    fn start_word(&self, index: u32) -> &AtomicU64 {
        let place: *mut u32 = self.word(index, 4).as_ptr();
        // SAFETY: words 4 and 5 of an entry of 32 bytes, so aligned to 8; only used as an atomic
        // of this width, and as in `head_word` where it is a peer's.
        unsafe { AtomicU64::from_ptr(place.cast()) }
    }

    /// Whether the owner of the table sleeps.
    #[inline]
    pub(super) fn is_parked(&self) -> bool {
        self.head_word(PARKED_OFFSET).load(Ordering::Relaxed) != 0
    }

    /// Shows the peers whether the owner sleeps.
    pub(super) fn set_parked(&self, parked: bool) {
        let word = self.head_word(PARKED_OFFSET);
        word.store(u32::from(parked), Ordering::Relaxed);
        // Orders the flag before the owner's last check of its rings. The senders have no matching fence,
        // because it would cost them time for each message, so a wake can be missed. The sleeper's
        // timeout covers that.
        fence(Ordering::SeqCst);
    }

    /// The grant of a key; `None` if no bound window has it.
    pub(super) fn find(&self, key: RemoteKey) -> Option<Grant> {
        let secret = self.head_word(SECRET_OFFSET).load(Ordering::Relaxed);
        let index = (key.0 ^ secret) & (self.entries - 1);
        let generation = self.word(index, 0).load(Ordering::Relaxed);
        // SYNC POINT window: Acquire, partner of `publish`.
        fence(Ordering::Acquire);
        let grant = Grant {
            index,
            generation,
            access: self.word(index, 2).load(Ordering::Relaxed),
            holder: Holder {
                channel: self.word(index, 3).load(Ordering::Relaxed),
                queue_pair: self.word(index, 7).load(Ordering::Relaxed),
            },
            start: self.start_word(index).load(Ordering::Relaxed),
            bytes: self.word(index, 6).load(Ordering::Relaxed),
        };
        let key_there = self.word(index, 1).load(Ordering::Relaxed);
        (generation & 1 == 1 && key_there == key.0 && self.still_holds(&grant)).then_some(grant)
    }

    /// Whether the window has been bound all the time since the grant was found.
    pub(super) fn still_holds(&self, grant: &Grant) -> bool {
        // SYNC POINT window end: Acquire, partner of `retract`: whoever copied a byte of a later
        // use sees that the generation went on.
        fence(Ordering::Acquire);
        self.word(grant.index, 0).load(Ordering::Relaxed) == grant.generation
    }

    fn publish(&self, index: u32, key: u32, access: u32, holder: Holder, start: u64, bytes: u32) {
        self.word(index, 1).store(key, Ordering::Relaxed);
        self.word(index, 2).store(access, Ordering::Relaxed);
        self.word(index, 3).store(holder.channel, Ordering::Relaxed);
        self.start_word(index).store(start, Ordering::Relaxed);
        self.word(index, 6).store(bytes, Ordering::Relaxed);
        self.word(index, 7)
            .store(holder.queue_pair, Ordering::Relaxed);
        let generation = self.word(index, 0).load(Ordering::Relaxed);
        // SYNC POINT window: Release, partner of `find`; odd while bound.
        self.word(index, 0)
            .store(generation.wrapping_add(1) | 1, Ordering::Release);
    }

    fn retract(&self, index: u32) {
        let generation = self.word(index, 0).load(Ordering::Relaxed);
        let next = generation.wrapping_add(1) & !1;
        self.word(index, 0).store(next, Ordering::Relaxed);
        // SYNC POINT window end: Release, before any later use of the memory; partner of
        // `still_holds`.
        fence(Ordering::Release);
    }
}

impl Grant {
    /// Whether `holder` may read `bytes` bytes at `offset`, and where they are in the arena.
    pub(super) fn readable(&self, holder: Holder, offset: u64, bytes: u32) -> Option<u64> {
        let allowed = self.holder == holder && self.access & ACCESS_READ != 0;
        let within = within(self.start, self.bytes, offset, bytes);
        (allowed && within).then_some(offset)
    }
}

fn within(start: u64, length: u32, offset: u64, bytes: u32) -> bool {
    let end = start.saturating_add(u64::from(length));
    let asked_end = offset.checked_add(u64::from(bytes));
    offset >= start && asked_end.is_some_and(|asked_end| asked_end <= end)
}

/// The state of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Bound,
    /// The peer invalidated it; the application still holds its token.
    Invalidated,
}

#[derive(Debug)]
struct Entry {
    state: State,
    key: u32,
    queue_pair: u32,
    start: u64,
    bytes: u32,
    access: Access,
    buffer: Option<Buffer>,
    /// The next window of the same queue pair, or the next free one.
    next: u32,
    previous: u32,
}

/// No entry.
pub(super) const NONE: u32 = u32::MAX;

/// The owner's side of its windows.
#[derive(Debug)]
pub(super) struct Windows {
    /// The port that they are of.
    port: PortNumber,
    memory: KeyMemory,
    entries: Vec<Entry>,
    free: u32,
    secret: u32,
    random: RandomState,
    counter: u64,
    /// The other half of the last random number.
    spare: Option<u32>,
}

/// Why a remote invalidation or a write was refused: the peer has no such right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refused;

impl Windows {
    /// The windows of a port, with the table that its peers see.
    pub(super) fn new(memory: KeyMemory, port: PortNumber) -> Self {
        let random = RandomState::new();
        let secret = low_half(random.hash_one("secret"));
        memory
            .head_word(SECRET_OFFSET)
            .store(secret, Ordering::Relaxed);
        let count = memory.entries;
        let entry = |index: u32| Entry {
            state: State::Free,
            key: 0,
            queue_pair: NONE,
            start: 0,
            bytes: 0,
            access: Access {
                remote_read: false,
                remote_write: false,
            },
            buffer: None,
            next: if index + 1 < count { index + 1 } else { NONE },
            previous: NONE,
        };
        Self {
            port,
            entries: (0..count).map(entry).collect(),
            memory,
            free: 0,
            secret,
            random,
            counter: 0,
            spare: None,
        }
    }

    /// The table that peers see.
    pub(super) fn memory(&self) -> &KeyMemory {
        &self.memory
    }

    /// A new key for the entry. XORed with the secret, its low bits are the index; the others are random.
    fn fresh_key(&mut self, index: u32, last: u32) -> u32 {
        let mask = self.memory.entries - 1;
        loop {
            // One hash makes two keys, because the hash costs more than all other steps of a binding.
            let random = self.spare.take().unwrap_or_else(|| {
                self.counter += 1;
                let both = self.random.hash_one(self.counter);
                self.spare = Some(low_half(both >> 32));
                low_half(both)
            });
            let key = ((random & !mask) | index) ^ self.secret;
            if key != last && key != 0 {
                return key;
            }
        }
    }

    /// Binds a window; `list` is the head of the queue pair's list of windows. Gives the buffer
    /// back when no window is free.
    #[inline(always)]
    pub(super) fn bind(
        &mut self,
        list: &mut u32,
        (queue_pair, holder): (u32, Holder),
        (buffer, start, bytes): (Buffer, u64, u32),
        access: Access,
    ) -> Result<Window, Buffer> {
        let index = self.free;
        let Some(entry) = self.entries.get(index as usize) else {
            return Err(buffer);
        };
        let (after, last_key) = (entry.next, entry.key);
        let key = self.fresh_key(index, last_key);
        self.free = after;
        self.entries[index as usize] = Entry {
            state: State::Bound,
            key,
            queue_pair,
            start,
            bytes,
            access,
            buffer: Some(buffer),
            next: *list,
            previous: NONE,
        };
        if let Some(second) = self.entries.get_mut(*list as usize) {
            second.previous = index;
        }
        *list = index;
        let write = u32::from(access.remote_write) * ACCESS_WRITE;
        let bits = (u32::from(access.remote_read) * ACCESS_READ) | write;
        self.memory.publish(index, key, bits, holder, start, bytes);
        Ok(Window {
            port: self.port,
            slot: index,
            key: RemoteKey(key),
            bytes,
            offset: start,
        })
    }

    fn index_of(&self, key: RemoteKey) -> Option<u32> {
        let index = (key.0 ^ self.secret) & (self.memory.entries - 1);
        let entry = self.entries.get(index as usize)?;
        (entry.state == State::Bound && entry.key == key.0).then_some(index)
    }

    /// The peer of `queue_pair` invalidates a key (Send With Invalidate).
    pub(super) fn invalidate_remotely(
        &mut self,
        key: RemoteKey,
        queue_pair: u32,
    ) -> Result<(), Refused> {
        let index = self.index_of(key).ok_or(Refused)?;
        let entry = &mut self.entries[index as usize];
        if entry.queue_pair != queue_pair {
            return Err(Refused);
        }
        entry.state = State::Invalidated;
        self.memory.retract(index);
        Ok(())
    }

    /// Where the peer of `queue_pair` may write `bytes` bytes at `offset`: the place in our arena.
    pub(super) fn writable(
        &self,
        key: RemoteKey,
        queue_pair: u32,
        offset: u64,
        bytes: u32,
    ) -> Result<u64, Refused> {
        let index = self.index_of(key).ok_or(Refused)?;
        let entry = &self.entries[index as usize];
        let allowed = entry.queue_pair == queue_pair
            && entry.access.remote_write
            && within(entry.start, entry.bytes, offset, bytes);
        if allowed { Ok(offset) } else { Err(Refused) }
    }

    /// Whether the token is of this port.
    pub(super) fn owns(&self, window: &Window) -> bool {
        window.port == self.port
    }

    /// The queue pair that a window is bound on, when the token is good and the peer has not
    /// invalidated it.
    pub(super) fn bound_on(&self, window: &Window) -> Option<u32> {
        self.in_state(window, State::Bound)
    }

    /// The queue pair of a window that the peer has invalidated.
    pub(super) fn invalidated_on(&self, window: &Window) -> Option<u32> {
        self.in_state(window, State::Invalidated)
    }

    fn in_state(&self, window: &Window, state: State) -> Option<u32> {
        let entry = self.entries.get(window.slot as usize)?;
        let good = self.owns(window) && entry.state == state && entry.key == window.key.0;
        good.then_some(entry.queue_pair)
    }

    /// Ends the window at `index` of the list that begins at `list`, and returns its buffer.
    pub(super) fn end(&mut self, list: &mut u32, index: u32) -> Option<Buffer> {
        let entry = self.entries.get_mut(index as usize)?;
        if entry.state == State::Bound {
            self.memory.retract(index);
        }
        let (next, previous) = (entry.next, entry.previous);
        let buffer = entry.buffer.take();
        entry.state = State::Free;
        entry.queue_pair = NONE;
        entry.next = self.free;
        entry.previous = NONE;
        self.free = index;
        match self.entries.get_mut(previous as usize) {
            Some(entry) => entry.next = next,
            None => *list = next,
        }
        if let Some(entry) = self.entries.get_mut(next as usize) {
            entry.previous = previous;
        }
        buffer
    }
}

fn low_half(value: u64) -> u32 {
    let [a, b, c, d, ..] = value.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// The place `offset` bytes into an arena, for copying.
#[inline]
pub(super) fn place(mapping: &Mapping, offset: u64) -> Option<NonNull<u8>> {
    let offset = usize::try_from(offset).ok()?;
    if offset > mapping.bytes() {
        return None;
    }
    // SAFETY: at most one past the end of the mapping.
    NonNull::new(unsafe { mapping.start().add(offset) })
}

#[cfg(test)]
mod tests {
    use super::within;

    #[test]
    fn a_range_whose_end_wraps_is_outside() {
        assert!(within(1000, 100, 1000, 100));
        assert!(!within(1000, 100, 1000, 101));
        assert!(!within(1000, 100, 999, 1));
        assert!(!within(1000, 100, u64::MAX - 5, 1100));
    }
}
