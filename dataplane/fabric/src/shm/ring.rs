//! The ring of records: the order in which its words are written and read, and nothing else.
//!
//! A ring is an array of units of 128 bytes. A record takes whole, adjacent units; its first word
//! is a sequence number that is derived from the absolute position of the unit and stored last.
//! There is no shared tail: the consumer looks at the word where the next record must begin. What
//! stands there from an earlier lap is the number of a record of one unit, which names another
//! position; or it is what a longer record, or the pad before it, left: payload that looks like any
//! number. For one lap behind such a record the producer therefore clears that word before it
//! publishes the record in front of it. A ring of short records alone never needs that, and a store
//! to a line that the consumer has is saved. A record that does not fit before the end of the ring
//! is preceded by a pad that fills the rest.
//!
//! The protocol is generic over the memory, so that the model checker runs the very same code.
//!
//! The consumer has the ring mapped for reading only, where the contract of the standard library's
//! atomics covers Relaxed loads alone. So it loads the sequence number Relaxed, and a fence follows
//! when it is the one that was waited for.

/// The words of a ring that both sides look at. Indices are smaller than `units()`.
pub(super) trait RingMemory {
    /// Units in the ring: a power of two.
    fn units(&self) -> u32;
    /// Reads the sequence word of a unit, Relaxed.
    fn load_sequence(&self, index: u32) -> u32;
    /// Orders what follows behind the load of this sequence word. SYNC POINT record: an Acquire
    /// fence, partner of `publish`.
    fn acquire_record(&self, index: u32);
    /// Stores the sequence word. SYNC POINT record: Release, partner of `acquire_record`; it
    /// orders the payload, and the cleared word behind it, before the number.
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

/// Units from `from` to `to`, over the wrap of the counter.
#[inline]
pub(super) fn distance(from: u32, to: u32) -> u32 {
    to.wrapping_sub(from)
}

/// The writing end.
#[derive(Debug)]
pub(super) struct Producer<M> {
    memory: M,
    /// Where the next record will start, in units since the beginning.
    tail: u32,
    /// What the consumer has given back, as far as it is known here.
    freed: u32,
    /// Units behind the tail where something else than a sequence number may stand.
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

    /// Where the next record will start.
    #[inline]
    pub(super) fn tail(&self) -> u32 {
        self.tail
    }

    /// Takes note of what the consumer gave back. False when that is more than was written.
    #[inline]
    #[must_use]
    pub(super) fn set_freed(&mut self, freed: u32) -> bool {
        let plausible = distance(self.freed, freed) <= distance(self.freed, self.tail);
        if plausible {
            self.freed = freed;
        }
        plausible
    }

    /// Whether the units of the record at `position` have not been written again since.
    pub(super) fn still_holds(&self, position: u32) -> bool {
        // The word behind the tail may be cleared already.
        distance(position, self.tail) < self.memory.units()
    }

    /// Finds room for a record of `units` units, publishing a pad first where it must. Returns
    /// the index where the record is to be written, or `None` when the ring is full.
    #[inline]
    pub(super) fn reserve(&mut self, units: u32) -> Option<u32> {
        let capacity = self.memory.units();
        let index = self.tail & (capacity - 1);
        let to_end = capacity - index;
        let pad = if units <= to_end { 0 } else { to_end };
        let free = capacity - distance(self.freed, self.tail);
        // One more: the word where the header after this record will stand.
        if pad + units + 1 > free {
            return None;
        }
        if pad == 0 {
            return Some(index);
        }
        self.memory.clear_sequence(0);
        self.memory.write_pad(index);
        self.memory.publish(index, sequence_of(self.tail));
        self.tail = self.tail.wrapping_add(pad);
        self.unclean = capacity;
        Some(0)
    }

    /// As [`Producer::reserve`] for one unit, which needs no pad.
    #[inline]
    pub(super) fn reserve_one(&self) -> Option<u32> {
        let capacity = self.memory.units();
        // One more: the word where the header after this record will stand.
        (distance(self.freed, self.tail) + 2 <= capacity).then_some(self.tail & (capacity - 1))
    }

    /// Clears the word behind the record of `units` units at the tail, if it is not clean. To be
    /// called before [`Producer::publish`], and as early as is convenient.
    #[inline]
    pub(super) fn clear_next(&mut self, units: u32) {
        if units > 1 {
            self.unclean = self.memory.units();
        }
        if self.unclean != 0 {
            self.unclean -= 1;
            let next = self.tail.wrapping_add(units) & (self.memory.units() - 1);
            self.memory.clear_sequence(next);
        }
    }

    /// Publishes the record of `units` units that was written at the reserved index. Returns its
    /// position.
    #[inline]
    pub(super) fn publish(&mut self, units: u32) -> u32 {
        let position = self.tail;
        let index = position & (self.memory.units() - 1);
        self.memory.publish(index, sequence_of(position));
        self.tail = position.wrapping_add(units);
        position
    }
}

/// The reading end.
#[derive(Debug)]
pub(super) struct Consumer<M> {
    memory: M,
    head: u32,
}

impl<M: RingMemory> Consumer<M> {
    /// The reading end of a ring from its beginning.
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
        let index = self.head & (self.memory.units() - 1);
        if self.memory.load_sequence(index) != sequence_of(self.head) {
            return None;
        }
        self.memory.acquire_record(index);
        Some(index)
    }

    /// Goes on behind a record of `units` units.
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
        producer.clear_next(units);
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
    fn records_of_one_unit_clear_nothing_but_for_a_lap_behind_a_longer_one() {
        let words = Words::default();
        let mut producer = Producer::new(&words);
        let mut consumer = Consumer::new(&words);
        let mut clears_of = |units: u32| {
            let before = words.clears.get();
            assert!(send(&mut producer, units, units, 1));
            assert_eq!(take(&mut consumer, |units| units), [units]);
            assert!(producer.set_freed(consumer.head()));
            words.clears.get() - before
        };
        assert!((0..3 * UNITS).all(|_| clears_of(1) == 0));
        assert_eq!(clears_of(2), 1);
        let after: u32 = (0..3 * UNITS).map(|_| clears_of(1)).sum();
        assert_eq!(after, UNITS - 1);
    }
}
