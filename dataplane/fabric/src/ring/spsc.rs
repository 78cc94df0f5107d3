//! A bounded ring between one producer and one consumer.
//!
//! Both ends keep their own position in a plain field and a copy of the other's position, which
//! they read again only when the ring looks full or empty. So while the ring is neither, an
//! operation touches the other end's cache line not at all: the only line that moves is the one
//! with the item.
//!
//! Positions run freely over `u32` and are masked on use, so a ring of any power of two up to 2^31
//! items can be filled to the last slot.

use std::mem::MaybeUninit;

use super::CachePadded;
use super::cell::Slot;
use crate::sync::Arc;
use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The largest capacity: one more would make a full ring look like an empty one.
pub const CAPACITY_MAX: u32 = 1 << 31;

/// Makes a ring that holds `capacity` items.
///
/// # Panics
///
/// When `capacity` is not a power of two (zero is not).
#[must_use]
pub fn channel<T: Send>(capacity: u32) -> (Producer<T>, Consumer<T>) {
    assert!(
        capacity.is_power_of_two(),
        "the capacity of a ring is a power of two, not {capacity}"
    );
    let shared = Arc::new(Shared {
        tail: CachePadded::new(AtomicU32::new(0)),
        head: CachePadded::new(AtomicU32::new(0)),
        slots: (0..capacity)
            .map(|_| Slot::new(MaybeUninit::uninit()))
            .collect(),
        mask: capacity - 1,
        producer_gone: AtomicBool::new(false),
        consumer_gone: AtomicBool::new(false),
    });
    let producer = Producer {
        shared: Arc::clone(&shared),
        tail: 0,
        head_seen: 0,
    };
    let consumer = Consumer {
        shared,
        head: 0,
        tail_seen: 0,
    };
    (producer, consumer)
}

#[derive(Debug)]
struct Shared<T> {
    /// Items ever pushed, modulo 2^32; written by the producer.
    tail: CachePadded<AtomicU32>,
    /// Items ever popped, modulo 2^32; written by the consumer.
    head: CachePadded<AtomicU32>,
    // From here on nothing is written until an end is dropped, so the line stays shared.
    slots: Box<[Slot<MaybeUninit<T>>]>,
    mask: u32,
    producer_gone: AtomicBool,
    consumer_gone: AtomicBool,
}

// SAFETY: the items are the only thing in here that is not Sync. A slot is touched by the producer
// alone from the time that `head` passes it until `tail` passes it, and by the consumer alone from
// then until `head` passes it again; both hand-overs are Release/Acquire pairs (spsc-filled,
// spsc-freed), and there is one producer and one consumer because neither can be cloned and both
// need `&mut self`. So items move between threads but are never shared: T: Send suffices.
unsafe impl<T: Send> Sync for Shared<T> {}
// SAFETY: as above; the last owner drops what is left, which moves the items to its thread.
unsafe impl<T: Send> Send for Shared<T> {}

impl<T> Shared<T> {
    #[inline]
    fn slot(&self, position: u32) -> &Slot<MaybeUninit<T>> {
        &self.slots[(position & self.mask) as usize]
    }

    #[inline]
    fn capacity(&self) -> u32 {
        self.mask + 1
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        // Relaxed: dropping the last Arc is ordered after everything that both ends did.
        let tail = self.tail.load(Ordering::Relaxed);
        let mut head = self.head.load(Ordering::Relaxed);
        while head != tail {
            self.slot(head).with_mut(|item| {
                // SAFETY: positions from `head` to `tail` hold items that were pushed and not
                // popped; `&mut self` excludes everybody else, and `head` passes each one once.
                unsafe { (*item).assume_init_drop() };
            });
            head = head.wrapping_add(1);
        }
    }
}

/// The end that pushes.
#[derive(Debug)]
pub struct Producer<T> {
    shared: Arc<Shared<T>>,
    /// What `shared.tail` holds.
    tail: u32,
    /// What `shared.head` held when last read; the ring is at most as full as this says.
    head_seen: u32,
}

impl<T: Send> Producer<T> {
    /// Appends `item`; gives it back when the ring is full.
    #[inline]
    pub fn push(&mut self, item: T) -> Result<(), T> {
        if self.free_seen() == 0 {
            // SYNC POINT spsc-freed: Acquire pairs with the Release in `Consumer::publish`; the
            // consumer has moved the old item out of the slot before we write a new one there.
            self.head_seen = self.shared.head.load(Ordering::Acquire);
            if self.free_seen() == 0 {
                return Err(item);
            }
        }
        self.shared.slot(self.tail).with_mut(|slot| {
            // SAFETY: the slot is free (checked above), so it is ours alone until `tail` passes
            // it, and writing over it loses no item.
            unsafe { (*slot).write(item) };
        });
        self.tail = self.tail.wrapping_add(1);
        // SYNC POINT spsc-filled: Release pairs with the Acquire in `Consumer::filled`; who sees
        // the new position also sees the item.
        self.shared.tail.store(self.tail, Ordering::Release);
        Ok(())
    }

    #[inline]
    fn free_seen(&self) -> u32 {
        self.shared.capacity() - self.tail.wrapping_sub(self.head_seen)
    }

    /// Items in the ring: a hint, of which the consumer may have taken some by now.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.tail
            .wrapping_sub(self.shared.head.load(Ordering::Relaxed))
    }

    /// Whether the ring is empty; for a producer a fact, until it pushes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Items that the ring can hold.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.shared.capacity()
    }

    /// Whether the consumer is gone, so that nobody will ever pop what is pushed.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        self.shared.consumer_gone.load(Ordering::Relaxed)
    }
}

impl<T> Drop for Producer<T> {
    fn drop(&mut self) {
        // SYNC POINT spsc-ended: Release pairs with the Acquire in `Consumer::is_abandoned`; who
        // sees the end also sees every item pushed before it.
        self.shared.producer_gone.store(true, Ordering::Release);
    }
}

/// The end that pops.
#[derive(Debug)]
pub struct Consumer<T> {
    shared: Arc<Shared<T>>,
    /// Items taken; `shared.head` follows when the slots are given free.
    head: u32,
    /// What `shared.tail` held when last read; there are at least as many items as this says.
    tail_seen: u32,
}

impl<T: Send> Consumer<T> {
    /// Takes the oldest item.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        let item = self.take()?;
        self.publish();
        Some(item)
    }

    /// Takes at most `count_max` items, oldest first, and gives their slots free together, when
    /// the iterator is dropped: one write for the whole batch. Items that the iterator was not
    /// asked for stay in the ring.
    ///
    /// The iterator ends at what was in the ring when this was called, so it is bounded even when
    /// the producer keeps pushing.
    #[inline]
    pub fn drain(&mut self, count_max: u32) -> Drain<'_, T> {
        let left = self.filled().min(count_max);
        Drain {
            consumer: self,
            left,
        }
    }

    /// The items that are there, after a fresh look at the producer's position.
    #[inline]
    fn filled(&mut self) -> u32 {
        // SYNC POINT spsc-filled: Acquire pairs with the Release in `Producer::push`.
        self.tail_seen = self.shared.tail.load(Ordering::Acquire);
        self.tail_seen.wrapping_sub(self.head)
    }

    /// Moves the oldest item out without giving its slot free.
    #[inline]
    fn take(&mut self) -> Option<T> {
        if self.head == self.tail_seen && self.filled() == 0 {
            return None;
        }
        let item = self.shared.slot(self.head).with_mut(|slot| {
            // SAFETY: `tail` has passed the slot and `head` has not, so it holds an item and is
            // ours alone; `head` passes it below, so that the item is moved out once.
            unsafe { (*slot).assume_init_read() }
        });
        self.head = self.head.wrapping_add(1);
        Some(item)
    }

    #[inline]
    fn publish(&mut self) {
        // SYNC POINT spsc-freed: Release pairs with the Acquire in `Producer::push`; the items
        // have left their slots before the producer may fill them again.
        self.shared.head.store(self.head, Ordering::Release);
    }

    /// Items in the ring: a hint, to which the producer may have added by now.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.shared
            .tail
            .load(Ordering::Relaxed)
            .wrapping_sub(self.head)
    }

    /// Whether the ring was empty a moment ago.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Items that the ring can hold.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.shared.capacity()
    }

    /// Whether the producer is gone. What it pushed before is still there: after `true`, the ring
    /// has ended once [`Consumer::pop`] yields nothing.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        // SYNC POINT spsc-ended: Acquire pairs with the Release in the producer's drop.
        self.shared.producer_gone.load(Ordering::Acquire)
    }
}

impl<T> Drop for Consumer<T> {
    fn drop(&mut self) {
        // Relaxed: it is a hint, nothing is handed over by it.
        self.shared.consumer_gone.store(true, Ordering::Relaxed);
    }
}

/// Items on their way out of a ring; see [`Consumer::drain`].
#[derive(Debug)]
pub struct Drain<'a, T: Send> {
    consumer: &'a mut Consumer<T>,
    left: u32,
}

impl<T: Send> Iterator for Drain<'_, T> {
    type Item = T;

    #[inline]
    fn next(&mut self) -> Option<T> {
        self.left = self.left.checked_sub(1)?;
        self.consumer.take()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left as usize, Some(self.left as usize))
    }
}

impl<T: Send> ExactSizeIterator for Drain<'_, T> {}

impl<T: Send> Drop for Drain<'_, T> {
    fn drop(&mut self) {
        self.consumer.publish();
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod loom_tests;
