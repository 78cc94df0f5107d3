//! The places for calls that are free, first in, first out: the connections take turns.

/// Numbers of free slots. Made for a set number of slots, so that it never grows.
#[derive(Debug, Default)]
pub(super) struct FreeSlots {
    /// A ring; as many entries as a power of two has.
    ring: Box<[u32]>,
    /// Taken out and put in so far, modulo the size of a word. They differ by no more than there are slots.
    taken: usize,
    given: usize,
}

impl FreeSlots {
    /// Slots 0 to `slots` - 1, all of them free.
    pub(super) fn new(slots: u32) -> Self {
        let entries = slots.max(1).next_power_of_two();
        Self {
            ring: (0..entries).collect(),
            taken: 0,
            given: slots as usize,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.taken == self.given
    }

    /// The slot that has been free the longest.
    #[inline]
    pub(super) fn take(&mut self) -> Option<u32> {
        if self.is_empty() {
            return None;
        }
        let slot = *self.ring.get(self.taken & (self.ring.len() - 1))?;
        self.taken = self.taken.wrapping_add(1);
        Some(slot)
    }

    /// A slot that was taken is free again.
    #[inline]
    pub(super) fn give(&mut self, slot: u32) {
        let at = self.given & (self.ring.len().wrapping_sub(1));
        if let Some(place) = self.ring.get_mut(at) {
            *place = slot;
            self.given = self.given.wrapping_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slot_that_is_free_the_longest_comes_first() {
        for slots in [1, 2, 3, 8, 100] {
            let mut free = FreeSlots::new(slots);
            // Round and round, also where the ring begins anew.
            for round in 0..20 {
                for slot in 0..slots {
                    assert_eq!(free.take(), Some(slot), "{slots} {round}");
                }
                assert!(free.is_empty() && free.take().is_none());
                (0..slots).for_each(|slot| free.give(slot));
            }
            // What is given back comes behind what is there.
            let first = free.take().unwrap();
            free.give(first);
            let order: Vec<_> = std::iter::from_fn(|| free.take()).collect();
            let expected: Vec<_> = (1..slots).chain([0]).collect();
            assert_eq!(order, expected);
        }
        assert!(FreeSlots::default().take().is_none());
        assert!(FreeSlots::new(0).take().is_none());
    }
}
