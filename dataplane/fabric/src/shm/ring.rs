//! The ring of records: the order in which its words are written and read.
//!
//! A ring is an array of units of 128 bytes. A record takes whole, adjacent units. Its first word is a sequence number
//! that is derived from the absolute position of the unit, and it is stored last. There is no shared tail: the consumer
//! polls the word at which the next record must begin. It must not find the expected number there before the record is
//! published. What that word holds from the previous lap is the number of another position, or payload of a longer
//! record, and payload can equal the expected number by chance (one time in four billion, if it is random). So when the
//! producer writes a longer record, it checks the payload for the numbers that the next lap expects. If it finds one, it
//! clears words for one lap: before it publishes a record, it clears the word at which the next one will begin. In all
//! other cases it clears no word, which saves a store to a line that the consumer polls. A record that does not fit
//! before the end of the ring is preceded by a pad that fills the rest.
//!
//! The protocol is generic over the memory, so that the model checker runs the same code.
//!
//! The consumer has the ring mapped read-only, where the contract of the standard library's atomics
//! allows only Relaxed loads. So it loads the sequence number Relaxed, and adds a fence when it finds the
//! expected number.

/// The words of a ring that both ends access. Indices are smaller than `units()`.
pub(super) trait RingMemory {
    /// Units in the ring: a power of two.
    fn units(&self) -> u32;
    /// Reads the sequence word of a unit, Relaxed.
    fn load_sequence(&self, index: u32) -> u32;
    /// Orders what follows behind the load of this sequence word. SYNC POINT record: an Acquire
    /// fence, partner of `publish`.
    fn acquire_record(&self, index: u32);
    /// Stores the sequence word. SYNC POINT record: Release, partner of `acquire_record`; it
    /// orders the payload, and a cleared word behind it, before the number.
    fn publish(&self, index: u32, sequence: u32);
    /// Clears the sequence word of a unit that is free.
    fn clear_sequence(&self, index: u32);
    /// Writes the header of a pad, without its sequence word.
    fn write_pad(&self, index: u32);
}

/// The sequence number of a record that starts at `position`: never zero.
#[inline]
pub(super) fn sequence_of(position: u32) -> u32 {
    (position << 1) | 1
}

/// Units from `from` to `to`; positions wrap around.
#[inline]
pub(super) fn distance(from: u32, to: u32) -> u32 {
    to.wrapping_sub(from)
}

/// The writing end.
#[derive(Debug)]
pub(super) struct Producer<M> {
    memory: M,
    /// The position of the next record, in units since the beginning.
    tail: u32,
    /// The position up to which the consumer has freed units, as last read.
    freed: u32,
    /// The number of records that still have to clear the word after them, because a word of this lap or the last equals
    /// the number of a future record.
    unclean: u32,
}

impl<M: RingMemory> Producer<M> {
    /// The writing end of a ring whose words are all zero.
    pub(super) fn new(memory: M) -> Self {
        Self {
            memory,
            tail: 0,
            freed: 0,
            unclean: 0,
        }
    }

    #[inline]
    pub(super) fn memory(&self) -> &M {
        &self.memory
    }

    /// The position of the next record.
    #[inline]
    pub(super) fn tail(&self) -> u32 {
        self.tail
    }

    /// Handles the consumer's position. Returns false, and ignores it, if it is beyond the tail.
    #[inline]
    #[must_use]
    pub(super) fn set_freed(&mut self, freed: u32) -> bool {
        let plausible = distance(self.freed, freed) <= distance(self.freed, self.tail);
        if plausible {
            self.freed = freed;
        }
        plausible
    }

    /// Whether the ring still has the record at `position`: none of its units was written again.
    pub(super) fn still_holds(&self, position: u32) -> bool {
        // Strictly less, because the word after the tail may have been cleared.
        distance(position, self.tail) < self.memory.units()
    }

    /// Units that are known to be free.
    #[inline]
    pub(super) fn known_room(&self) -> u32 {
        self.memory.units() - distance(self.freed, self.tail)
    }

    /// Whether half of the units, or more, are known to be free.
    #[inline]
    pub(super) fn knows_half(&self) -> bool {
        self.known_room() >= self.memory.units() / 2
    }

    /// Finds room for a record of `units` units, and publishes a pad before it if that is needed. Returns
    /// the index for the record, or `None` when the ring is full.
    #[inline]
    pub(super) fn reserve(&mut self, units: u32) -> Option<u32> {
        let capacity = self.memory.units();
        let index = self.tail & (capacity - 1);
        let to_end = capacity - index;
        let pad = if units <= to_end { 0 } else { to_end };
        // One unit more, because the word at which the next record begins may have to be cleared.
        if pad + units + 1 > self.known_room() {
            return None;
        }
        if pad == 0 {
            return Some(index);
        }
        self.find_lookalikes(pad);
        self.memory.write_pad(index);
        self.memory.publish(index, sequence_of(self.tail));
        self.tail = self.tail.wrapping_add(pad);
        Some(0)
    }

    /// As [`Producer::reserve`], only if there is known room and no pad is needed.
    #[inline]
    pub(super) fn reserve_here(&self, units: u32) -> Option<u32> {
        let capacity = self.memory.units();
        let index = self.tail & (capacity - 1);
        let fits = units < self.known_room() && index + units <= capacity;
        fits.then_some(index)
    }

    /// Publishes the record of `units` units that was written at the reserved index. Returns its
    /// position.
    #[inline]
    pub(super) fn publish(&mut self, units: u32) -> u32 {
        let position = self.tail;
        let sequence = self.pass(units);
        self.memory
            .publish(position & (self.memory.units() - 1), sequence);
        position
    }

    /// Moves the tail past the record of `units` units that was written at the reserved index. Returns its sequence number,
    /// which the caller publishes immediately.
    #[inline(always)]
    pub(super) fn pass(&mut self, units: u32) -> u32 {
        let position = self.tail;
        if units > 1 {
            self.find_lookalikes(units);
        }
        self.tail = position.wrapping_add(units);
        if self.unclean != 0 {
            self.clear_next();
        }
        sequence_of(position)
    }

    /// Clears the word at which the next record will begin.
    #[cold]
    fn clear_next(&mut self) {
        self.unclean -= 1;
        let next = self.tail & (self.memory.units() - 1);
        self.memory.clear_sequence(next);
    }

    /// Searches the units after the first one of a record or pad at the tail for words that equal the
    /// number of a record of the next lap.
    #[inline(never)]
    fn find_lookalikes(&mut self, units: u32) {
        let capacity = self.memory.units();
        for unit in 1..units {
            let position = self.tail.wrapping_add(unit);
            let word = self.memory.load_sequence(position & (capacity - 1));
            if word == sequence_of(position.wrapping_add(capacity)) {
                self.unclean = capacity;
            }
        }
    }
}

/// The reading end.
#[derive(Debug)]
pub(super) struct Consumer<M> {
    memory: M,
    head: u32,
}

impl<M: RingMemory> Consumer<M> {
    /// The reading end of a ring, at its beginning.
    pub(super) fn new(memory: M) -> Self {
        Self { memory, head: 0 }
    }

    #[inline]
    pub(super) fn memory(&self) -> &M {
        &self.memory
    }

    /// The position of the next record.
    #[inline]
    pub(super) fn head(&self) -> u32 {
        self.head
    }

    /// The index of the next record, when it is published.
    #[inline]
    pub(super) fn peek(&self) -> Option<u32> {
        if !self.is_published(self.head) {
            return None;
        }
        let index = self.head & (self.memory.units() - 1);
        self.memory.acquire_record(index);
        Some(index)
    }

    /// Whether the word at `position` is the number that a published record would have there.
    #[inline]
    pub(super) fn is_published(&self, position: u32) -> bool {
        let index = position & (self.memory.units() - 1);
        self.memory.load_sequence(index) == sequence_of(position)
    }

    /// Moves past a record of `units` units.
    #[inline]
    pub(super) fn advance(&mut self, units: u32) {
        self.head = self.head.wrapping_add(units);
    }

    /// Units from `index` to the end of the ring.
    #[inline]
    pub(super) fn to_end(&self, index: u32) -> u32 {
        self.memory.units() - index
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::{Cell, RefCell};

    use proptest::prelude::*;

    use super::*;

    const UNITS: u32 = 8;

    /// Sequence words, and who wrote the unit: the value of a record, or a pad.
    #[derive(Default)]
    struct Words {
        sequences: RefCell<[u32; UNITS as usize]>,
        values: RefCell<[Option<u32>; UNITS as usize]>,
        clears: Cell<u32>,
    }

    impl RingMemory for &Words {
        fn units(&self) -> u32 {
            UNITS
        }

        fn load_sequence(&self, index: u32) -> u32 {
            self.sequences.borrow()[index as usize]
        }

        fn acquire_record(&self, _index: u32) {}

        fn publish(&self, index: u32, sequence: u32) {
            self.sequences.borrow_mut()[index as usize] = sequence;
        }

        fn clear_sequence(&self, index: u32) {
            self.clears.set(self.clears.get() + 1);
            self.sequences.borrow_mut()[index as usize] = 0;
        }

        fn write_pad(&self, index: u32) {
            self.values.borrow_mut()[index as usize] = None;
        }
    }

    /// Sends a record whose units behind the first look like headers of the lap `laps` on.
    fn send(producer: &mut Producer<&Words>, units: u32, value: u32, laps: u32) -> bool {
        let Some(index) = producer.reserve(units) else {
            return false;
        };
        let words = *producer.memory();
        words.values.borrow_mut()[index as usize] = Some(value);
        for unit in 1..units {
            let position = producer.tail() + unit + laps * UNITS;
            words.publish(index + unit, sequence_of(position));
        }
        producer.publish(units);
        true
    }

    /// Takes all records there are.
    fn take(consumer: &mut Consumer<&Words>, units_of: impl Fn(u32) -> u32) -> Vec<u32> {
        let mut taken = Vec::new();
        while let Some(index) = consumer.peek() {
            let value = consumer.memory().values.borrow()[index as usize];
            taken.extend(value);
            consumer.advance(value.map_or(consumer.to_end(index), &units_of));
        }
        taken
    }

    proptest! {
        #[test]
        fn nothing_is_taken_but_what_was_sent(
            records in proptest::collection::vec((1_u32..4, 1_u32..4, any::<bool>()), 0..200),
        ) {
            let words = Words::default();
            let mut producer = Producer::new(&words);
            let mut consumer = Consumer::new(&words);
            let units_of = |value: u32| records[value as usize].0;
            let mut expected = Vec::new();
            let mut taken = Vec::new();
            for ((units, laps, take_now), value) in records.iter().copied().zip(0..) {
                if take_now {
                    taken.extend(take(&mut consumer, units_of));
                    prop_assert!(producer.set_freed(consumer.head()));
                }
                if send(&mut producer, units, value, laps) {
                    expected.push(value);
                }
            }
            taken.extend(take(&mut consumer, units_of));
            prop_assert_eq!(taken, expected);
        }
    }

    #[test]
    fn nothing_is_cleared_but_for_a_lap_behind_a_record_that_looks_like_one_to_come() {
        let words = Words::default();
        let mut producer = Producer::new(&words);
        let mut consumer = Consumer::new(&words);
        let mut clears_of = |units: u32, laps: u32| {
            let before = words.clears.get();
            assert!(send(&mut producer, units, units, laps));
            assert_eq!(take(&mut consumer, |units| units), [units]);
            assert!(producer.set_freed(consumer.head()));
            words.clears.get() - before
        };
        assert!((0..3 * UNITS).all(|number| clears_of(1 + number % 3, 0) == 0));
        assert_eq!(clears_of(3, 1), 1);
        let after: u32 = (0..3 * UNITS).map(|_| clears_of(1, 0)).sum();
        assert_eq!(after, UNITS - 1);
    }

    /// What a pad covers is not written, and may be of any earlier lap.
    #[test]
    fn a_number_in_front_of_the_end_is_seen_when_a_pad_leaves_it_there() {
        let words = Words::default();
        let mut producer = Producer::new(&words);
        let mut consumer = Consumer::new(&words);
        let mut pass = |units: u32, laps: u32| {
            assert!(send(&mut producer, units, units, laps));
            assert_eq!(take(&mut consumer, |units| units), [units]);
            assert!(producer.set_freed(consumer.head()));
        };
        // The second lap ends with a pad of two units, the last of which has the third lap's number.
        for (units, laps) in [(5, 0), (3, 2), (3, 0), (3, 0), (3, 0), (4, 0), (3, 0)] {
            pass(units, laps);
        }
        assert_eq!(words.clears.get(), 3, "of the last three records");
    }
}
