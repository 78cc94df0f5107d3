//! A small hash table from a device's numbers to our indices.

/// No entry.
const EMPTY: (u32, u32) = (u32::MAX, u32::MAX);

/// Open addressing with linear probing, at most half full. A lookup nearly always reads one cache line,
/// and nothing allocates after the table is made.
#[derive(Debug)]
pub(super) struct NumberTable {
    entries: Box<[(u32, u32)]>,
    mask: usize,
    count: usize,
}

impl NumberTable {
    /// A table for `count` numbers, all of them smaller than `u32::MAX`.
    pub(super) fn new(count: u32) -> Self {
        let places = (count as usize).max(1).next_power_of_two() * 2;
        Self {
            entries: vec![EMPTY; places].into_boxed_slice(),
            mask: places - 1,
            count: 0,
        }
    }

    /// The place of `number` in an otherwise empty table.
    #[inline]
    fn home(&self, number: u32) -> usize {
        // Fibonacci hashing: device numbers are often multiples of something.
        (number.wrapping_mul(0x9E37_79B9) >> 7) as usize & self.mask
    }

    /// The place of `number`, or the empty place at which the search for it ends.
    #[inline]
    fn place(&self, number: u32) -> usize {
        let mut place = self.home(number);
        while let Some((other, _)) = self.entries.get(place) {
            if *other == number || *other == EMPTY.0 {
                break;
            }
            place = (place + 1) & self.mask;
        }
        place
    }

    /// The index of `number`.
    #[inline]
    pub(super) fn get(&self, number: u32) -> Option<u32> {
        match self.entries.get(self.place(number)) {
            Some((found, index)) if *found == number && number != EMPTY.0 => Some(*index),
            _ => None,
        }
    }

    /// Sets the index of `number`, replacing an earlier one. Returns whether there was room.
    pub(super) fn set(&mut self, number: u32, index: u32) -> bool {
        let place = self.place(number);
        let new = self.entries[place].0 == EMPTY.0;
        if number == EMPTY.0 || (new && self.count * 2 >= self.entries.len()) {
            return false;
        }
        self.count += usize::from(new);
        self.entries[place] = (number, index);
        true
    }

    /// Forgets `number`.
    pub(super) fn remove(&mut self, number: u32) {
        let mut hole = self.place(number);
        if number == EMPTY.0 || self.entries[hole].0 == EMPTY.0 {
            return;
        }
        self.count -= 1;
        // Entries behind the hole move up, unless an entry would then be before its home place, where a search would
        // miss it.
        let mut place = hole;
        loop {
            place = (place + 1) & self.mask;
            let entry = self.entries[place];
            if entry.0 == EMPTY.0 {
                break;
            }
            let from_home = place.wrapping_sub(self.home(entry.0)) & self.mask;
            let from_hole = place.wrapping_sub(hole) & self.mask;
            if from_home >= from_hole {
                self.entries[hole] = entry;
                hole = place;
            }
        }
        self.entries[hole] = EMPTY;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a map of the standard library, with numbers that collide a lot.
        #[test]
        fn it_is_a_map(steps in prop::collection::vec((0..3u8, 0..40u32, any::<u32>()), 0..200)) {
            let mut table = NumberTable::new(16);
            let mut model = HashMap::new();
            for (step, number, index) in steps {
                let number = number << 17;
                match step {
                    0 => {
                        let room = model.contains_key(&number) || model.len() < 16;
                        prop_assert_eq!(table.set(number, index), room);
                        if room {
                            model.insert(number, index);
                        }
                    }
                    1 => {
                        table.remove(number);
                        model.remove(&number);
                    }
                    _ => {}
                }
                for number in 0..40 {
                    let number = number << 17;
                    prop_assert_eq!(table.get(number), model.get(&number).copied());
                }
            }
        }
    }

    #[test]
    fn the_number_that_marks_an_empty_place_is_never_there() {
        let mut table = NumberTable::new(4);
        assert!(!table.set(u32::MAX, 1));
        assert_eq!(table.get(u32::MAX), None);
        table.remove(u32::MAX);
        assert_eq!(table.get(7), None);
    }
}
