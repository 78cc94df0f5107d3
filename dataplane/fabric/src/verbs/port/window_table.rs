//! The memory windows of a port, or the registrations that replace them.

use std::collections::VecDeque;
use std::sync::Arc;

use super::super::memory_region::MemoryRegion;
use super::super::memory_window::MemoryWindow;
use super::super::number_table::NumberTable;
use super::super::protection_domain::ProtectionDomain;
use crate::interface::Access;
use crate::memory::{Buffer, Mapping};

/// No window.
pub(super) const NONE: u32 = u32::MAX;

/// The state of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Not in use.
    Free,
    /// Bound, or its binding is staged.
    Bound,
    /// Its local invalidation is staged or posted.
    Invalidating,
    /// The peer has invalidated it.
    InvalidatedByPeer,
}

/// Whose window a peer has invalidated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Invalidated {
    /// A window that was bound on the peer's queue pair.
    Own,
    /// A window of another queue pair. A device must refuse that (InfiniBand volume 1, section
    /// 10.6.7.2.6), but some do not.
    Foreign,
    /// The key is of no bound window.
    Unknown,
}

/// The object that exposes the memory.
#[derive(Debug)]
enum Means {
    Window(MemoryWindow),
    /// A registration for one call; `None` while the slot is free.
    Registration(Option<MemoryRegion>),
    /// The device refused a new window for the slot, or the port is closing.
    Lost,
}

#[derive(Debug)]
struct Slot {
    means: Means,
    buffer: Option<Buffer>,
    state: State,
    queue_pair: u32,
    next: u32,
    previous: u32,
}

/// All windows of a port.
#[derive(Debug)]
pub(super) struct Windows {
    slots: Vec<Slot>,
    /// First in, first out, so that a window rests as long as possible: a key that a peer kept becomes
    /// valid again after 256 bindings of its window.
    free: VecDeque<u32>,
    /// The slot for the upper 24 bits of a key, which name the window.
    by_key: NumberTable,
    region: Arc<MemoryRegion>,
    registers: bool,
    pub(super) registrations: u64,
}

impl Windows {
    /// Makes `count` windows on `region`, or as many as the device gives, which may be none: its limit may be of all
    /// processes together. They are used in a random order, so that a key reveals little about the next.
    pub(super) fn new(region: &Arc<MemoryRegion>, count: u32, registers: bool, seed: u64) -> Self {
        let mut windows = Self {
            slots: Vec::with_capacity(count as usize),
            free: VecDeque::with_capacity(count as usize),
            by_key: NumberTable::new(count),
            region: Arc::clone(region),
            registers,
            registrations: 0,
        };
        for slot in 0..count {
            let means = if registers {
                Means::Registration(None)
            } else {
                // One was made when the device was opened: so there are no more.
                let Ok(window) = MemoryWindow::new(region) else {
                    break;
                };
                windows.by_key.set(window.key() >> 8, slot);
                Means::Window(window)
            };
            windows.slots.push(Slot {
                means,
                buffer: None,
                state: State::Free,
                queue_pair: NONE,
                next: NONE,
                previous: NONE,
            });
        }
        windows.free.extend(shuffled(windows.count(), seed));
        windows
    }

    /// Windows that there are.
    pub(super) fn count(&self) -> u32 {
        u32::try_from(self.slots.len()).unwrap_or(u32::MAX)
    }

    /// Whether a work request binds a window. A registration takes effect within the call.
    #[inline]
    pub(super) fn need_work(&self) -> bool {
        !self.registers
    }

    pub(super) fn any_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Takes a free window for `buffer` and adds it to the list at `head`, which is that of a queue
    /// pair in `domain`. `mapping` has the buffer. Returns the slot and the key that the window will have.
    pub(super) fn open(
        &mut self,
        head: &mut u32,
        (domain, mapping): (&Arc<ProtectionDomain>, &Arc<Mapping>),
        queue_pair: u32,
        buffer: Buffer,
        bytes: u32,
        access: Access,
    ) -> Result<(u32, u32), Buffer> {
        let Some(index) = self.free.pop_front() else {
            return Err(buffer);
        };
        let slot = &mut self.slots[index as usize];
        let key = match &mut slot.means {
            Means::Window(window) => window.next_key(),
            Means::Registration(place) => {
                let made =
                    MemoryRegion::exposed(domain, mapping, buffer.start(), bytes as usize, access);
                let Ok(made) = made else {
                    self.free.push_front(index);
                    return Err(buffer);
                };
                self.registrations += 1;
                place.insert(made).remote_key()
            }
            Means::Lost => return Err(buffer),
        };
        slot.buffer = Some(buffer);
        slot.state = State::Bound;
        slot.queue_pair = queue_pair;
        slot.previous = NONE;
        slot.next = *head;
        if let Some(next) = self.slots.get_mut(*head as usize) {
            next.previous = index;
        }
        *head = index;
        Ok((index, key))
    }

    /// The device's window, for the work request that binds it.
    #[inline]
    pub(super) fn window(&self, index: u32) -> Option<&MemoryWindow> {
        match &self.slots.get(index as usize)?.means {
            Means::Window(window) => Some(window),
            _ => None,
        }
    }

    /// Stores the new key in the library's object, after the binding work request was posted. The next
    /// binding replaces that key, and the library does not store it by itself.
    #[inline]
    pub(super) fn note_bound(&mut self, index: u32) {
        if let Some(slot) = self.slots.get_mut(index as usize)
            && let Means::Window(window) = &mut slot.means
        {
            window.note_bound();
        }
    }

    /// Frees the windows of a list. Their slots are not used again.
    pub(super) fn abandon(&mut self, head: u32) {
        let mut index = head;
        while let Some(slot) = self.slots.get_mut(index as usize) {
            slot.means = Means::Lost;
            index = std::mem::replace(&mut slot.next, NONE);
        }
    }

    #[inline]
    pub(super) fn state(&self, index: u32) -> State {
        let slot = self.slots.get(index as usize);
        slot.map_or(State::Free, |slot| slot.state)
    }

    pub(super) fn queue_pair(&self, index: u32) -> Option<u32> {
        self.slots.get(index as usize).map(|slot| slot.queue_pair)
    }

    /// Sets whether a local invalidation is in progress.
    pub(super) fn set_invalidating(&mut self, index: u32, under_way: bool) {
        if let Some(slot) = self.slots.get_mut(index as usize) {
            slot.state = if under_way {
                State::Invalidating
            } else {
                State::Bound
            };
        }
    }

    /// The device reports that a peer's Send on `queue_pair` invalidated `key`. Returns whose window
    /// that was.
    #[inline]
    pub(super) fn invalidated_by_peer(&mut self, key: u32, queue_pair: u32) -> Invalidated {
        let slot = self
            .by_key
            .get(key >> 8)
            .and_then(|index| self.slots.get_mut(index as usize));
        let Some(slot) = slot else {
            return Invalidated::Unknown;
        };
        let is_window = matches!(&slot.means, Means::Window(window) if window.key() == key);
        if !is_window || slot.state == State::Free {
            return Invalidated::Unknown;
        }
        slot.state = State::InvalidatedByPeer;
        if slot.queue_pair == queue_pair {
            Invalidated::Own
        } else {
            Invalidated::Foreign
        }
    }

    /// Frees a window that is no longer bound, and returns its buffer.
    pub(super) fn close(&mut self, head: &mut u32, index: u32) -> Option<Buffer> {
        let slot = self.slots.get_mut(index as usize)?;
        if slot.state == State::Free {
            return None;
        }
        slot.state = State::Free;
        slot.queue_pair = NONE;
        if let Means::Registration(registration) = &mut slot.means {
            // Ends the peer's access; the buffer is not returned before.
            *registration = None;
        }
        let (next, previous) = (slot.next, slot.previous);
        let buffer = slot.buffer.take();
        match self.slots.get_mut(previous as usize) {
            Some(slot) => slot.next = next,
            None => *head = next,
        }
        if let Some(slot) = self.slots.get_mut(next as usize) {
            slot.previous = previous;
        }
        self.free.push_back(index);
        buffer
    }

    /// Frees a window of a queue pair that ends. The port cannot know whether it is still bound, so
    /// it replaces it by a new one, unless the peer has invalidated it. Not for the hot path.
    pub(super) fn end(&mut self, head: &mut u32, index: u32) -> Option<Buffer> {
        if let Some(slot) = self.slots.get_mut(index as usize)
            && let Means::Window(window) = &slot.means
            && slot.state != State::InvalidatedByPeer
        {
            self.by_key.remove(window.key() >> 8);
            // The old one goes first, because the device may be at its limit of windows.
            slot.means = Means::Lost;
            if let Ok(window) = MemoryWindow::new(&self.region) {
                self.by_key.set(window.key() >> 8, index);
                slot.means = Means::Window(window);
            }
        }
        let buffer = self.close(head, index);
        let lost = self.slots.get(index as usize);
        if lost.is_some_and(|slot| matches!(slot.means, Means::Lost)) {
            self.free.retain(|other| *other != index);
        }
        buffer
    }
}

/// The numbers below `count`, shuffled by `seed`.
fn shuffled(count: u32, seed: u64) -> Vec<u32> {
    let mut order: Vec<u32> = (0..count).collect();
    let mut state = seed | 1;
    for place in (1..order.len()).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let other = usize::try_from(state % (place as u64 + 1)).unwrap_or(0);
        order.swap(place, other);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shuffling_loses_nothing_and_depends_on_the_seed() {
        let mut first = shuffled(100, 1);
        assert_ne!(first, shuffled(100, 2));
        first.sort_unstable();
        assert_eq!(first, (0..100).collect::<Vec<_>>());
        assert!(shuffled(0, 7).is_empty());
    }
}
