//! Shares of something that many have in common: what each holder can always have, and what all may borrow.

/// What is left of one resource, and how much of that is kept for holders that have less than they are guaranteed.
///
/// A share counts and holds nothing: whoever has the resource keeps what each holder has of it. The capacity is at
/// least the sum of all guarantees. What is beyond that sum can be borrowed by anybody, so a holder that takes all
/// it can get leaves every other holder its guarantee.
///
/// # Example
///
/// ```
/// use rpcrdma_fabric::share::Share;
///
/// // Two holders with one each, and two that either may borrow.
/// let mut share = Share::new(4, 2);
/// let [mut greedy, mut modest] = [0, 0];
/// while share.may_take(greedy, 1, 1) {
///     share.take(&mut greedy, 1);
/// }
/// assert_eq!(greedy, 3);
/// assert!(share.may_take(modest, 1, 1));
/// share.take(&mut modest, 1);
/// assert!(!share.may_take(modest, 1, 1));
/// share.give(&mut greedy, 1);
/// assert!(share.may_take(modest, 1, 1));
/// ```
#[derive(Clone, Debug)]
pub struct Share {
    free: u32,
    kept: u32,
}

impl Share {
    /// A resource of `capacity`, of which `guaranteed` is the sum of what all holders are guaranteed; no more than
    /// `capacity` is kept.
    #[must_use]
    pub fn new(capacity: u32, guaranteed: u32) -> Self {
        Self {
            free: capacity,
            kept: guaranteed.min(capacity),
        }
    }

    /// What nobody holds.
    #[inline]
    #[must_use]
    pub fn free(&self) -> u32 {
        self.free
    }

    /// Whether a holder of `held` that is guaranteed `guaranteed` may take `count` more.
    #[inline]
    #[must_use]
    pub fn may_take(&self, held: u32, guaranteed: u32, count: u32) -> bool {
        let own = guaranteed.saturating_sub(held);
        self.free - self.kept + own.min(self.kept) >= count
    }

    /// Takes one more for a holder of `held`, for which [`Share::may_take`] was asked.
    #[inline]
    pub fn take(&mut self, held: &mut u32, guaranteed: u32) {
        debug_assert!(self.free != 0, "it was asked for");
        self.free = self.free.saturating_sub(1);
        if *held < guaranteed {
            self.kept = self.kept.saturating_sub(1);
        }
        // Whoever did not ask borrows from a guarantee, which must not make the count wrong.
        self.kept = self.kept.min(self.free);
        *held += 1;
    }

    /// Gives one back that a holder of `held` had.
    #[inline]
    pub fn give(&mut self, held: &mut u32, guaranteed: u32) {
        debug_assert!(*held != 0, "it was taken");
        *held = held.saturating_sub(1);
        self.free += 1;
        if *held < guaranteed {
            self.kept += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever some holders take and give back, each has its guarantee whenever it asks for it.
        #[test]
        fn every_holder_has_its_guarantee(
            guaranteed in 0_u32..4,
            to_borrow in 0_u32..6,
            steps in proptest::collection::vec((0_usize..5, any::<bool>()), 0..200),
        ) {
            let capacity = 5 * guaranteed + to_borrow;
            let mut share = Share::new(capacity, 5 * guaranteed);
            let mut held = [0; 5];
            for (holder, takes) in steps {
                let place = &mut held[holder];
                if !takes {
                    if *place != 0 {
                        share.give(place, guaranteed);
                    }
                } else if share.may_take(*place, guaranteed, 1) {
                    share.take(place, guaranteed);
                }
                prop_assert_eq!(share.free(), capacity - held.iter().sum::<u32>());
                let borrowed: u32 = held.iter().map(|held| held.saturating_sub(guaranteed)).sum();
                prop_assert!(borrowed <= to_borrow);
                for held in held {
                    let own = guaranteed.saturating_sub(held);
                    prop_assert!(share.may_take(held, guaranteed, own + to_borrow - borrowed));
                    prop_assert!(!share.may_take(held, guaranteed, own + to_borrow - borrowed + 1));
                }
            }
        }
    }
}
