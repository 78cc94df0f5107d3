//! Shares of a common resource: what each holder can always have, and what all may borrow.

use crate::interface::SetupError;

/// Work requests that each queue pair of a port can always have at most.
const WORKS_GUARANTEED_MAX: u32 = 32;

/// Work requests that each of the queue pairs of a port with `works` of them can always have. All guarantees together
/// are at most half of the works, so that a busy queue pair can borrow; and none is less than one: a queue pair without
/// a guaranteed work would wait for as long as the peers of other queue pairs leave theirs unfinished. `remedy` says
/// what to change otherwise.
pub(crate) fn works_guaranteed(
    works: u32,
    queue_pairs: u32,
    remedy: &'static str,
) -> Result<u32, SetupError> {
    let needed = 2 * u64::from(queue_pairs.max(1));
    if u64::from(works) < needed {
        return Err(SetupError::Guarantees {
            what: "one work request for each queue pair",
            sum: format!("2 (no more than half of them is kept) × {queue_pairs} queue pairs"),
            needed,
            available: works.into(),
            of: "work requests of the port",
            remedy,
        });
    }
    Ok((works / (2 * queue_pairs.max(1))).min(WORKS_GUARANTEED_MAX))
}

/// The free part of one resource, and how much of that is reserved for holders below their guarantee.
///
/// A share only counts: the owner of the resource records how much each holder has. The capacity is at least the sum of
/// all guarantees. Any holder can borrow the rest, so a holder that takes all it can get leaves every other holder its
/// guarantee.
#[derive(Clone, Debug)]
pub struct Share {
    free: u32,
    kept: u32,
    kept_max: u32,
}

impl Share {
    /// A resource of `capacity`, of which `guaranteed` is the sum of what all holders are guaranteed, or of what as many
    /// holders are guaranteed as can have it at a time; no more than `capacity` is kept.
    #[must_use]
    pub fn new(capacity: u32, guaranteed: u32) -> Self {
        let kept_max = guaranteed.min(capacity);
        Self {
            free: capacity,
            kept: kept_max,
            kept_max,
        }
    }

    /// The free part.
    #[inline]
    #[must_use]
    pub fn free(&self) -> u32 {
        self.free
    }

    /// Whether a holder of `held` that is guaranteed `guaranteed` may take `count` more.
    #[inline]
    #[must_use]
    pub fn may_take(&self, held: u32, guaranteed: u32, count: u32) -> bool {
        let for_all = self.free - self.kept;
        if for_all >= count {
            return true;
        }
        let own = guaranteed.saturating_sub(held);
        for_all + own.min(self.kept) >= count
    }

    /// Takes one more for a holder of `held`. Call it only after [`Share::may_take`] has permitted it.
    #[inline]
    pub fn take(&mut self, held: &mut u32, guaranteed: u32) {
        debug_assert!(self.free != 0, "it was asked for");
        self.free = self.free.saturating_sub(1);
        if *held < guaranteed {
            self.kept = self.kept.saturating_sub(1);
        }
        // A caller that did not check borrows from a guarantee: the count must not wrap.
        self.kept = self.kept.min(self.free);
        *held += 1;
    }

    /// Returns one from a holder of `held`.
    #[inline]
    pub fn give(&mut self, held: &mut u32, guaranteed: u32) {
        debug_assert!(*held != 0, "it was taken");
        *held = held.saturating_sub(1);
        self.free += 1;
        if *held < guaranteed {
            // If not all holders can have their guarantees at a time, this one may not have been reserved.
            self.kept = (self.kept + 1).min(self.kept_max);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_queue_pair_has_a_work_of_its_own_or_there_is_no_port() {
        for (works, queue_pairs, guaranteed) in [
            (2, 1, 1),
            (2, 0, 1),
            (1024, 512, 1),
            (1025, 512, 1),
            (2047, 512, 1),
            (2048, 512, 2),
            (u32::MAX, 1 << 16, WORKS_GUARANTEED_MAX),
        ] {
            let found = works_guaranteed(works, queue_pairs, "raise it");
            assert_eq!(found.unwrap(), guaranteed, "{works} of {queue_pairs}");
        }
        for (works, queue_pairs) in [(0, 0), (1, 1), (1023, 512), (1024, 1024), (1, u32::MAX)] {
            let refused = works_guaranteed(works, queue_pairs, "raise it");
            assert!(refused.is_err(), "{works} of {queue_pairs}");
        }
        let text = works_guaranteed(1024, 1024, "raise it")
            .unwrap_err()
            .to_string();
        assert_eq!(
            text,
            "one work request for each queue pair cannot be guaranteed: 2 (no more than half of \
             them is kept) × 1024 queue pairs = 2048 needed, and there are 1024 work requests of the port; raise it"
        );
    }

    proptest! {
        /// With fewer kept than all are guaranteed, those that hold nothing have what is kept, and when all is given back
        /// it is as at first.
        #[test]
        fn reserve_is_kept_for_holders_below_their_guarantee(
            to_borrow in 0_u32..6,
            steps in proptest::collection::vec((0_usize..9, any::<bool>()), 0..200),
        ) {
            // Of nine holders with two each, three can have theirs at a time.
            let capacity = 6 + to_borrow;
            let mut share = Share::new(capacity, 6);
            let mut held = [0; 9];
            for (holder, takes) in steps {
                let place = &mut held[holder];
                if takes && share.may_take(*place, 2, 1) {
                    share.take(place, 2);
                } else if !takes && *place != 0 {
                    share.give(place, 2);
                }
                prop_assert_eq!(share.free() + held.iter().sum::<u32>(), capacity);
                let beyond: u32 = held.iter().map(|held| held.saturating_sub(2)).sum();
                prop_assert!(beyond <= to_borrow, "what is kept is borrowed by nobody");
                let has_least = share.free() == 0 || share.may_take(0, 2, 1);
                prop_assert!(has_least, "one that holds nothing has what is free");
            }
            for place in &mut held {
                while *place != 0 {
                    share.give(place, 2);
                }
            }
            prop_assert!(share.may_take(2, 2, to_borrow) && !share.may_take(2, 2, to_borrow + 1));
        }

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
