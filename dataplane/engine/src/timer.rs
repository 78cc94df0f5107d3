//! A timer wheel over a fixed set of timers, all memory of which is there from the start.
//!
//! A timer that is set again to a later time stays where it is linked and is moved on when the
//! wheel comes by, and one that is cancelled is unlinked then. So the common case, a call that is
//! answered long before its timeout and whose slot is used again at once, costs one store.

use rpcrdma_fabric::clock::Ticks;

/// Buckets of the wheel, a power of two. Timers that lie further ahead than one revolution stay in
/// their bucket for another.
const BUCKETS: u32 = 256;

/// Marks the end of a list.
const NONE: u32 = u32::MAX;

/// A deadline that never comes.
const NEVER: Ticks = Ticks::MAX;

#[derive(Clone, Copy, Debug)]
struct Timer {
    deadline: Ticks,
    /// The granule whose bucket it is linked in, while `linked`.
    granule: u64,
    next: u32,
    previous: u32,
    linked: bool,
}

/// The wheel. Timers are named by index.
#[derive(Debug)]
pub(crate) struct TimerWheel {
    timers: Box<[Timer]>,
    buckets: Box<[u32]>,
    granule_shift: u32,
    /// The first granule that was not visited to its end.
    current: u64,
    /// Before this time there is nothing to visit.
    next_visit: Ticks,
    /// The timer to go on with in the current bucket, when a visit ran out of its budget.
    resume: u32,
    resuming: bool,
}

impl TimerWheel {
    /// A wheel of `timers` timers. A timer fires at most `granularity` ticks, rounded up to a
    /// power of two, later than it should.
    pub(crate) fn new(timers: u32, granularity: Ticks, now: Ticks) -> Self {
        let granule_shift = granularity.max(1).next_power_of_two().trailing_zeros();
        let current = now >> granule_shift;
        let timer = Timer {
            deadline: NEVER,
            granule: 0,
            next: NONE,
            previous: NONE,
            linked: false,
        };
        Self {
            timers: vec![timer; timers as usize].into_boxed_slice(),
            buckets: vec![NONE; BUCKETS as usize].into_boxed_slice(),
            granule_shift,
            current,
            next_visit: (current + 1) << granule_shift,
            resume: NONE,
            resuming: false,
        }
    }

    /// Sets timer `index` to fire once `deadline` has passed.
    #[inline]
    pub(crate) fn set(&mut self, index: u32, deadline: Ticks) {
        let Some(timer) = self.timers.get_mut(index as usize) else {
            debug_assert!(false, "timer {index} does not exist");
            return;
        };
        timer.deadline = deadline;
        // A bucket that is being visited takes no new timers: the visit may be past them.
        let earliest = self.current + u64::from(self.resuming);
        let granule = (deadline >> self.granule_shift).max(earliest);
        if !timer.linked || granule < timer.granule {
            self.link_anew(index, granule);
        }
    }

    /// Cancels timer `index`.
    #[inline]
    pub(crate) fn cancel(&mut self, index: u32) {
        if let Some(timer) = self.timers.get_mut(index as usize) {
            timer.deadline = NEVER;
        }
    }

    /// Whether [`TimerWheel::poll`] has anything to visit.
    #[inline]
    pub(crate) fn is_due(&self, now: Ticks) -> bool {
        now >= self.next_visit
    }

    /// Calls `fire` with timers whose deadline has passed. Visits at most `budget` timers and
    /// buckets, and goes on at the next call. Returns how many fired.
    pub(crate) fn poll(&mut self, now: Ticks, mut budget: u32, mut fire: impl FnMut(u32)) -> u32 {
        if !self.is_due(now) {
            return 0;
        }
        let passed = now >> self.granule_shift;
        // After a long pause one revolution visits every bucket there is.
        if passed.saturating_sub(self.current) > u64::from(BUCKETS) {
            self.current = passed - u64::from(BUCKETS);
            self.resuming = false;
        }
        let mut fired = 0;
        while self.current < passed {
            let mut index = if self.resuming {
                self.resume
            } else {
                self.bucket(self.current)
            };
            self.resuming = true;
            while index != NONE {
                if budget == 0 {
                    self.resume = index;
                    return fired;
                }
                budget -= 1;
                let Some(&timer) = self.timers.get(index as usize) else {
                    break;
                };
                if timer.deadline >> self.granule_shift <= self.current {
                    self.unlink(index);
                    self.cancel(index);
                    fired += 1;
                    fire(index);
                } else if timer.deadline == NEVER {
                    self.unlink(index);
                } else {
                    self.link_anew(index, timer.deadline >> self.granule_shift);
                }
                index = timer.next;
            }
            self.resuming = false;
            self.current += 1;
            if budget == 0 {
                return fired;
            }
            budget -= 1;
        }
        self.next_visit = (self.current + 1) << self.granule_shift;
        fired
    }

    fn bucket(&self, granule: u64) -> u32 {
        self.buckets
            .get(bucket_index(granule))
            .copied()
            .unwrap_or(NONE)
    }

    #[cold]
    fn link_anew(&mut self, index: u32, granule: u64) {
        self.unlink(index);
        let bucket = bucket_index(granule);
        let head = self.buckets.get(bucket).copied().unwrap_or(NONE);
        if let Some(timer) = self.timers.get_mut(index as usize) {
            timer.granule = granule;
            timer.linked = true;
            timer.previous = NONE;
            timer.next = head;
        }
        if let Some(next) = self.timers.get_mut(head as usize) {
            next.previous = index;
        }
        if let Some(slot) = self.buckets.get_mut(bucket) {
            *slot = index;
        }
    }

    fn unlink(&mut self, index: u32) {
        let Some(timer) = self.timers.get_mut(index as usize) else {
            return;
        };
        if !std::mem::take(&mut timer.linked) {
            return;
        }
        let (previous, next, bucket) = (timer.previous, timer.next, bucket_index(timer.granule));
        if self.resuming && self.resume == index {
            self.resume = next;
        }
        if let Some(next) = self.timers.get_mut(next as usize) {
            next.previous = previous;
        }
        if let Some(previous) = self.timers.get_mut(previous as usize) {
            previous.next = next;
        } else if let Some(head) = self.buckets.get_mut(bucket) {
            *head = next;
        }
    }
}

fn bucket_index(granule: u64) -> usize {
    usize::try_from(granule & u64::from(BUCKETS - 1)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Operation {
        Set(u32, u64),
        Cancel(u32),
        Advance(u64, u32),
    }

    const TIMERS: u32 = 12;
    const GRANULARITY: u64 = 16;

    fn operations() -> impl Strategy<Value = Vec<Operation>> {
        let ahead = prop_oneof![0_u64..100, 0_u64..3 * GRANULARITY * u64::from(BUCKETS)];
        let step = prop_oneof![0_u64..40, 0_u64..2 * GRANULARITY * u64::from(BUCKETS)];
        let operation = prop_oneof![
            4 => (0..TIMERS, ahead).prop_map(|(timer, ahead)| Operation::Set(timer, ahead)),
            1 => (0..TIMERS).prop_map(Operation::Cancel),
            3 => (step, 0_u32..20).prop_map(|(step, budget)| Operation::Advance(step, budget)),
        ];
        proptest::collection::vec(operation, 0..200)
    }

    proptest! {
        /// The oracle is a table of deadlines. A timer never fires early or twice, and once the
        /// wheel has been polled without running out of its budget, none is more than a granule late.
        #[test]
        fn fires_as_a_table_of_deadlines_would(start in 0_u64..1 << 40, operations in operations()) {
            let mut now = start;
            let mut wheel = TimerWheel::new(TIMERS, GRANULARITY, now);
            let mut deadlines = vec![NEVER; TIMERS as usize];
            for operation in operations {
                match operation {
                    Operation::Set(timer, ahead) => {
                        wheel.set(timer, now + ahead);
                        deadlines[timer as usize] = now + ahead;
                    }
                    Operation::Cancel(timer) => {
                        wheel.cancel(timer);
                        deadlines[timer as usize] = NEVER;
                    }
                    Operation::Advance(step, budget) => {
                        now += step;
                        let mut fired = Vec::new();
                        wheel.poll(now, budget, |timer| fired.push(timer));
                        prop_assert!(fired.len() <= budget as usize);
                        if budget % 2 == 0 {
                            wheel.poll(now, u32::MAX, |timer| fired.push(timer));
                            for timer in 0..TIMERS {
                                let late = deadlines[timer as usize] < now.saturating_sub(GRANULARITY);
                                prop_assert!(!late || fired.contains(&timer), "timer {timer} is late");
                            }
                        }
                        for timer in fired {
                            prop_assert!(deadlines[timer as usize] <= now, "early, or twice");
                            deadlines[timer as usize] = NEVER;
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_slot_that_is_used_again_is_not_linked_again() {
        let mut wheel = TimerWheel::new(1, 16, 0);
        wheel.set(0, 1000);
        for deadline in 1001..2000 {
            wheel.cancel(0);
            wheel.set(0, deadline);
        }
        let mut fired = Vec::new();
        wheel.poll(1999, 1000, |timer| fired.push(timer));
        assert!(fired.is_empty());
        wheel.poll(2016, 1000, |timer| fired.push(timer));
        assert_eq!(fired, [0]);
    }
}
