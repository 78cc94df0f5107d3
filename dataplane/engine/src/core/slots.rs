//! Slots for calls with bulk data, and the queue of calls to retry. All slots are made at start-up.

use std::collections::VecDeque;

use rpcrdma_fabric::memory::Buffer;

/// The slots for calls of one direction. A call is taken out of its slot while the core works on it, so that the call
/// and the rest of the core can be borrowed separately.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    slots: Box<[Slot<T>]>,
    free: Vec<u32>,
    /// Slots of calls to retry; no duplicates.
    queue: VecDeque<u32>,
    /// Slots of calls to retry when something happens on their connections; no duplicates.
    waiting: Vec<u32>,
}

#[derive(Debug)]
struct Slot<T> {
    /// `None` while the call is taken out.
    call: Option<Box<T>>,
    /// The slot is in the queue.
    is_queued: bool,
    is_waiting: bool,
}

impl<T> Slots<T> {
    /// `count` slots; `make` makes the call for an index.
    pub(crate) fn new(count: u32, make: impl Fn(u32) -> T) -> Self {
        let slot = |index| Slot {
            call: Some(Box::new(make(index))),
            is_queued: false,
            is_waiting: false,
        };
        Self {
            slots: (0..count).map(slot).collect(),
            free: (0..count).rev().collect(),
            queue: VecDeque::with_capacity(count as usize),
            waiting: Vec::with_capacity(count as usize),
        }
    }

    /// How many slots there are.
    pub(crate) fn len(&self) -> u32 {
        u32::try_from(self.slots.len()).unwrap_or(u32::MAX)
    }

    /// How many slots are free.
    pub(crate) fn free_count(&self) -> usize {
        self.free.len()
    }

    /// Whether all slots are free.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    /// Takes the call of a free slot. [`Slots::put`] puts it into the slot; [`Slots::give`] frees the slot again.
    pub(crate) fn begin(&mut self) -> Option<Box<T>> {
        let index = self.free.pop()?;
        self.take(index)
    }

    /// The call at `index`, unless it is taken out.
    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        self.slots.get(index as usize)?.call.as_deref()
    }

    /// As [`Slots::get`], by mutable reference.
    #[inline]
    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.slots.get_mut(index as usize)?.call.as_deref_mut()
    }

    /// Takes the call at `index` out, which comes back with [`Slots::put`] or [`Slots::give`].
    #[inline]
    pub(crate) fn take(&mut self, index: u32) -> Option<Box<T>> {
        self.slots.get_mut(index as usize)?.call.take()
    }

    /// Puts a call back that was taken out.
    #[inline]
    pub(crate) fn put(&mut self, index: u32, call: Box<T>) {
        if let Some(slot) = self.slots.get_mut(index as usize) {
            debug_assert!(slot.call.is_none(), "it was taken out");
            slot.call = Some(call);
        }
    }

    /// Puts a call back that has ended: its slot is free.
    pub(crate) fn give(&mut self, index: u32, call: Box<T>) {
        self.put(index, call);
        self.free.push(index);
    }

    /// Returns a buffer from the port to its call at `index`, and queues the call. `place` finds the place for the
    /// buffer and the index of the buffer that belongs there. An error with the buffer if the slot has another call by
    /// now.
    pub(crate) fn bring_home(
        &mut self,
        index: u32,
        buffer: Buffer,
        place: impl FnOnce(&mut T) -> Option<(&mut Option<Buffer>, u32)>,
    ) -> Result<(), Buffer> {
        match self.get_mut(index).and_then(place) {
            Some((place, number)) if place.is_none() && number == buffer.index() => {
                *place = Some(buffer);
                self.queue(index);
                Ok(())
            }
            _ => Err(buffer),
        }
    }

    /// Queues the call at `index` for this poll or the next.
    #[inline]
    pub(crate) fn queue(&mut self, index: u32) {
        if let Some(slot) = self.slots.get_mut(index as usize)
            && !std::mem::replace(&mut slot.is_queued, true)
        {
            self.queue.push_back(index);
        }
    }

    /// Queues the call at `index` at the next [`Slots::wake`].
    pub(crate) fn wait(&mut self, index: u32) {
        if let Some(slot) = self.slots.get_mut(index as usize)
            && !std::mem::replace(&mut slot.is_waiting, true)
        {
            self.waiting.push(index);
        }
    }

    /// Queues all waiting calls, the one that waits longest first: otherwise it could wait for ever while others come. Each then
    /// checks whether its own connection can continue: a list of waiting calls for each connection would cost more.
    #[cold]
    pub(crate) fn wake(&mut self) {
        let mut waiting = std::mem::take(&mut self.waiting);
        for index in waiting.drain(..) {
            if let Some(slot) = self.slots.get_mut(index as usize) {
                slot.is_waiting = false;
            }
            self.queue(index);
        }
        // With the memory that it has.
        self.waiting = waiting;
    }

    /// Slots in the queue.
    #[inline]
    pub(crate) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Takes the call that was queued first out of its slot; `None` if it is taken out already.
    pub(crate) fn next_queued(&mut self) -> Option<Box<T>> {
        let index = self.queue.pop_front()?;
        let slot = self.slots.get_mut(index as usize)?;
        slot.is_queued = false;
        slot.call.take()
    }

    /// Whether the call at `index` is in the queue.
    #[cfg(test)]
    pub(crate) fn is_queued(&self, index: u32) -> bool {
        self.queue.contains(&index)
    }

    /// All calls, those of free slots too, with their indexes.
    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..self.len()).filter_map(|index| Some((index, self.get(index)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_calls_are_woken_in_the_order_in_which_they_began_to_wait() {
        let mut slots = Slots::new(4, |index| index);
        for index in [2, 0, 3, 0] {
            slots.wait(index);
        }
        for _ in 0..2 {
            slots.wake();
            let woken: Vec<u32> = std::iter::from_fn(|| slots.next_queued())
                .map(|call| *call)
                .collect();
            assert_eq!(woken, [2, 0, 3]);
            for index in [2, 0, 3] {
                slots.put(index, Box::new(index));
                slots.wait(index);
            }
        }
    }
}
