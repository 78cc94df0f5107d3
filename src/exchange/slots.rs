//! Where threads and tasks wait for the replies of one client.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use atomic_waker::AtomicWaker;
use crossbeam_utils::CachePadded;
use crossbeam_utils::atomic::AtomicCell;
use rpcrdma_fabric::memory::fetch_to_write;

use super::Message;

/// As many slots as calls may be under way on a connection: a call goes when it has one.
pub(crate) struct Slots {
    slots: Box<[CachePadded<Slot>]>,
    /// A bit for each slot that is free, 64 to a word.
    free: Box<[CachePadded<AtomicU64>]>,
    /// Some thread or task waits for a free slot.
    is_awaited: AtomicBool,
    waiters: Mutex<Waiters>,
}

/// The wakers of those that wait for a free slot, by the key of each [`Waiter`]: in the order in which they began.
#[derive(Default)]
struct Waiters {
    wakers: BTreeMap<u64, Waker>,
    keys: u64,
}

/// One that waits for a free slot. Its waker goes with it, so that a future that is dropped leaves nothing behind.
pub(crate) struct Waiter {
    slots: Arc<Slots>,
    key: u64,
}

/// Where one thread or task waits for one call. It fills its cache lines. State and message share one, so that the core takes
/// it only once from the waiter, who reads the state all the time.
#[derive(Default)]
struct Slot {
    /// [`EMPTY`], [`WAITING`], [`DONE`] or [`ABANDONED`].
    state: AtomicU8,
    message: AtomicCell<Option<Box<Message>>>,
    waker: AtomicWaker,
}

const EMPTY: u8 = 0;
/// The waiter sleeps, and its waker is registered.
const WAITING: u8 = 1;
/// The message is there.
const DONE: u8 = 2;
/// Nobody waits for the message any more.
const ABANDONED: u8 = 3;

const _: () = assert!(AtomicCell::<Option<Box<Message>>>::is_lock_free());

impl Slots {
    pub(crate) fn new(slots: u32) -> Self {
        // The bits of a word that stand for slots.
        let word = |first: u32| u64::MAX >> (64 - (slots - first).min(64));
        Self {
            slots: (0..slots).map(|_| CachePadded::<Slot>::default()).collect(),
            free: (0..slots)
                .step_by(64)
                .map(|first| CachePadded::new(AtomicU64::new(word(first))))
                .collect(),
            is_awaited: AtomicBool::new(false),
            waiters: Mutex::default(),
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.slots.len()
    }

    /// Takes a free slot.
    #[inline]
    pub(crate) fn take(&self) -> Option<usize> {
        for (number, word) in self.free.iter().enumerate() {
            // SeqCst, with those of `give` and `await_free`: who registers and then finds no slot is seen by who gives one.
            let mut free = word.load(Ordering::SeqCst);
            while free != 0 {
                let rest = free & (free - 1);
                match word.compare_exchange_weak(free, rest, Ordering::SeqCst, Ordering::SeqCst) {
                    Ok(_) => return Some(64 * number + free.trailing_zeros() as usize),
                    Err(now) => free = now,
                }
            }
        }
        None
    }

    /// Gives a slot back.
    #[inline]
    pub(crate) fn give(&self, index: usize) {
        if let Some(word) = self.free.get(index / 64) {
            word.fetch_or(1 << (index % 64), Ordering::SeqCst);
        }
        if self.is_awaited.load(Ordering::SeqCst) {
            self.wake_all();
        }
    }

    /// Who is woken when a slot is free, in place of who was before. Try to take one again after this.
    #[cold]
    pub(crate) fn await_free(self: &Arc<Self>, waiter: &mut Option<Waiter>, waker: &Waker) {
        // The code of a waker runs without the lock: it may come back here.
        let waker = waker.clone();
        let before = {
            let mut waiters = self.waiters();
            let waiter = waiter.get_or_insert_with(|| {
                waiters.keys += 1;
                Waiter {
                    slots: Arc::clone(self),
                    key: waiters.keys,
                }
            });
            self.is_awaited.store(true, Ordering::SeqCst);
            waiters.wakers.insert(waiter.key, waker)
        };
        drop(before);
    }

    #[cold]
    fn wake_all(&self) {
        let woken = {
            let mut waiters = self.waiters();
            self.is_awaited.store(false, Ordering::SeqCst);
            std::mem::take(&mut waiters.wakers)
        };
        for waker in woken.into_values() {
            waker.wake();
        }
    }

    fn waiters(&self) -> MutexGuard<'_, Waiters> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a message into the slot that its tag names, for whoever waits there.
    pub(super) fn put(&self, message: Box<Message>) {
        let Ok(index) = usize::try_from(message.tag) else {
            return;
        };
        let Some(slot) = self.slots.get(index) else {
            return;
        };
        slot.message.store(Some(message));
        // Release, with the Acquire of `look`: who sees that it is done finds the message. Acquire, with the Release of
        // `register` and `abandon`.
        match slot.state.swap(DONE, Ordering::AcqRel) {
            WAITING => slot.waker.wake(),
            ABANDONED => {
                drop(slot.empty());
                self.give(index);
            }
            _ => {}
        }
    }

    /// The message of a slot, once it is there. The slot is free then.
    #[inline]
    pub(crate) fn look(&self, index: usize) -> Option<Box<Message>> {
        let slot = self.slots.get(index)?;
        // Acquire, with the Release of `put`.
        if slot.state.load(Ordering::Acquire) != DONE {
            return None;
        }
        let message = slot.empty();
        if let Some(message) = &message {
            fetch_to_write(&**message);
        }
        self.give(index);
        message
    }

    /// Nobody waits in a slot any more. Gives the message back when it is there; else the core frees it, and then the slot.
    pub(crate) fn abandon(&self, index: usize) -> Option<Box<Message>> {
        let slot = self.slots.get(index)?;
        // Before the core can give the slot to another, whose waker it would be.
        drop(slot.waker.take());
        // Release, with the Acquire of `put`. Acquire, with its Release: the message is there.
        if slot.state.swap(ABANDONED, Ordering::AcqRel) != DONE {
            return None;
        }
        let message = slot.empty();
        self.give(index);
        message
    }

    /// Who is woken when the message comes. Look for it again after this.
    pub(crate) fn register(&self, index: usize, waker: &Waker) {
        let Some(slot) = self.slots.get(index) else {
            return;
        };
        slot.waker.register(waker);
        let (from, to) = (EMPTY, WAITING);
        // Release, with the Acquire of `put`: the core finds the waker. It fails when the message is there already, and when
        // this waiter was registered before.
        let registered =
            slot.state
                .compare_exchange(from, to, Ordering::Release, Ordering::Relaxed);
        if registered == Err(DONE) {
            // Nobody would take it before the slot is used again.
            drop(slot.waker.take());
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        // Its code runs without the lock.
        let waker = self.slots.waiters().wakers.remove(&self.key);
        drop(waker);
    }
}

impl Slot {
    /// Takes the message out, for the next call.
    #[inline]
    fn empty(&self) -> Option<Box<Message>> {
        // Relaxed: who takes the slot next sees it by the word of free slots.
        self.state.store(EMPTY, Ordering::Relaxed);
        self.message.take()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;

    #[test]
    fn each_slot_is_taken_once_and_again_when_it_is_given_back() {
        for count in [1, 63, 64, 65, 130] {
            let slots = Slots::new(count);
            let taken: Vec<_> = std::iter::from_fn(|| slots.take()).collect();
            assert_eq!(taken, (0..count as usize).collect::<Vec<_>>());
            slots.give(count as usize / 2);
            assert_eq!(slots.take(), Some(count as usize / 2));
            assert_eq!(slots.take(), None);
        }
    }

    #[test]
    fn an_abandoned_slot_is_free_when_its_message_has_come() {
        let slots = Slots::new(1);
        for _ in 0..3 {
            let index = slots.take().expect("it is free");
            assert!(slots.abandon(index).is_none());
            assert_eq!(slots.take(), None);
            slots.put(Message::with_room(0));
            assert!(slots.look(index).is_none());
        }
        let index = slots.take().expect("it is free");
        slots.put(Message::with_room(0));
        assert!(slots.abandon(index).is_some());
        assert_eq!(slots.take(), Some(0));
    }

    #[test]
    fn threads_that_share_slots_lose_none() {
        let slots = Arc::new(Slots::new(3));
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        let Some(index) = slots.take() else { continue };
                        let mut message = Message::with_room(0);
                        message.tag = index as u64;
                        slots.put(message);
                        assert!(slots.look(index).is_some());
                    }
                });
            }
        });
        assert_eq!(std::iter::from_fn(|| slots.take()).count(), 3);
    }
}
