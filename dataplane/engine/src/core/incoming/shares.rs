//! How connections share the slots for calls of peers, and the bulk buffers for these calls.
//!
//! One slot is reserved for each connection: whatever others do, one of its calls can be served at a time. A core with
//! more connections than reserved slots gives them out first come, first served; a later connection takes a shared
//! slot, or waits. The other slots are shared. Any connection may take them while more than half of them are free.
//! After that, a connection may take only as many as its credits allow replies for, and no more than its share: all
//! shared slots divided by the number of connections that have calls in slots.
//!
//! A call in a slot holds bulk buffers from the reading of its chunks, or from its service, to its end. While no more
//! than half of the buffers are free, a connection has buffers for only as many calls as its credits allow replies for,
//! and two more: so a peer that receives no replies holds the buffers of two calls at most.

use crate::ledger::INCOMING_SLOTS;

/// Calls of a connection that are begun even if it grants no credits for their replies: one
/// is being answered, one is next.
const UNANSWERABLE_MAX: u32 = 2;

/// The calls of one connection that are in slots.
#[derive(Clone, Copy, Debug, Default)]
struct Calls {
    all: u32,
    /// How many have bulk buffers, or may take them.
    with_buffers: u32,
    /// All of its slots are shared ones: no reserved one was left for its first call.
    has_no_own: bool,
}

/// Counts the slots that are in use, by place in the table of connections.
#[derive(Debug)]
pub(crate) struct Shares {
    in_use: Box<[Calls]>,
    /// Connections with calls in slots.
    connections: u32,
    /// Slots that are reserved for the first call of a connection, and how many of them are free.
    own: u32,
    own_free: u32,
    /// Slots that any call may have, and how many of them are free.
    shared: u32,
    shared_free: u32,
    /// Slots that were given back, modulo 2^64.
    given: u64,
}

impl Shares {
    /// `own` slots are reserved for first calls of connections; any call may have the `shared` ones.
    pub(crate) fn new(connections_max: u32, own: u32, shared: u32) -> Self {
        Self {
            own,
            own_free: own,
            in_use: vec![Calls::default(); connections_max as usize].into_boxed_slice(),
            connections: 0,
            shared,
            shared_free: shared,
            given: 0,
        }
    }

    /// Whether the connection at `place`, to which `answerable` replies could be sent now, may take one
    /// more slot; there is a free one if so.
    #[inline]
    pub(crate) fn may_take(&self, place: u32, answerable: u32) -> bool {
        let in_use = self.in_use_at(place);
        if in_use < INCOMING_SLOTS {
            return self.own_free != 0 || self.shared_free != 0;
        }
        if self.shared_free == 0 {
            return false;
        }
        // The reserved one does not count.
        let of_shared = in_use - INCOMING_SLOTS;
        self.shared_free > self.shared / 2
            || (in_use < UNANSWERABLE_MAX.saturating_add(answerable)
                && of_shared < (self.shared / self.connections.max(1)).max(1))
    }

    /// Notes that the connection at `place` took a slot, as [`Shares::may_take`] allowed.
    pub(crate) fn take(&mut self, place: u32) {
        let Some(calls) = self.in_use.get_mut(place as usize) else {
            return;
        };
        self.connections += u32::from(calls.all == 0);
        if calls.all == 0 {
            calls.has_no_own = self.own_free == 0;
        }
        if calls.all >= INCOMING_SLOTS || calls.has_no_own {
            self.shared_free = self.shared_free.saturating_sub(1);
        } else {
            self.own_free -= 1;
        }
        calls.all += 1;
    }

    /// Whether a call of the connection at `place`, to which `answerable` replies could be sent now, may have bulk
    /// buffers; if so, it is counted. `is_plenty` says that more than half of the buffers are free.
    pub(crate) fn begin_buffers(&mut self, place: u32, answerable: u32, is_plenty: bool) -> bool {
        let Some(calls) = self.in_use.get_mut(place as usize) else {
            return false;
        };
        let most = UNANSWERABLE_MAX.saturating_add(answerable);
        let may_have = is_plenty || calls.with_buffers < most;
        calls.with_buffers += u32::from(may_have);
        may_have
    }

    /// Notes that a call of the connection at `place` gave back its buffers.
    pub(crate) fn end_buffers(&mut self, place: u32) {
        if let Some(calls) = self.in_use.get_mut(place as usize) {
            debug_assert_ne!(calls.with_buffers, 0, "it had some");
            calls.with_buffers = calls.with_buffers.saturating_sub(1);
        }
    }

    /// Slots that were given back so far.
    pub(crate) fn given(&self) -> u64 {
        self.given
    }

    /// Notes that the connection at `place` gave a slot back.
    pub(crate) fn give(&mut self, place: u32) {
        self.given = self.given.wrapping_add(1);
        let Some(calls) = self.in_use.get_mut(place as usize) else {
            return;
        };
        debug_assert_ne!(calls.all, 0, "what is given was taken");
        calls.all = calls.all.saturating_sub(1);
        if calls.all >= INCOMING_SLOTS || calls.has_no_own {
            self.shared_free += 1;
        } else {
            self.own_free = (self.own_free + 1).min(self.own);
        }
        if calls.all == 0 {
            self.connections = self.connections.saturating_sub(1);
        }
    }

    /// For the sums: the slots that each connection has by its place, and those of them with buffers, the connections
    /// that have any, the slots that are shared, and those of them that are free.
    #[cfg(test)]
    pub(crate) fn ledger(&self) -> (impl Iterator<Item = (u32, u32)>, u32, u32, u32) {
        (
            self.in_use.iter().map(|it| (it.all, it.with_buffers)),
            self.connections,
            self.shared,
            self.shared_free,
        )
    }

    /// Slots that the connection at `place` has.
    pub(crate) fn in_use_at(&self, place: u32) -> u32 {
        self.in_use.get(place as usize).map_or(0, |it| it.all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes all that it may; how many.
    fn take_all(shares: &mut Shares, place: u32, answerable: u32) -> u32 {
        let mut taken = 0;
        while shares.may_take(place, answerable) {
            shares.take(place);
            taken += 1;
            assert!(taken < 1000, "there is an end");
        }
        taken
    }

    #[test]
    fn one_connection_alone_has_all_that_is_shared() {
        let mut shares = Shares::new(4, 4, 16);
        assert_eq!(take_all(&mut shares, 0, 100), 1 + 16);
    }

    #[test]
    fn a_connection_without_credits_leaves_half_to_others() {
        let mut shares = Shares::new(4, 4, 16);
        assert_eq!(take_all(&mut shares, 0, 0), 1 + 8);
        assert_eq!(take_all(&mut shares, 1, 0), 2);
        assert_eq!(take_all(&mut shares, 2, 4), 6);
    }

    #[test]
    fn every_connection_gets_one_whatever_the_others_have() {
        for connections in [2, 3, 64] {
            for shared in [1, 2, 7, 64] {
                let mut shares = Shares::new(connections, connections, shared);
                let taken: u32 = (0..connections)
                    .map(|place| {
                        let taken = take_all(&mut shares, place, 1000);
                        assert_ne!(taken, 0, "{place} of {connections} at {shared}");
                        taken
                    })
                    .sum();
                assert!(taken <= connections + shared);
            }
        }
    }

    #[test]
    fn connection_over_share_is_refused_a_slot() {
        let mut shares = Shares::new(4, 4, 12);
        assert_eq!(take_all(&mut shares, 0, 100), 13);
        for place in 1..4 {
            assert_eq!(take_all(&mut shares, place, 100), 1, "its own");
        }
        // Four have calls: each one's share is three.
        for _ in 0..6 {
            shares.give(0);
            assert!(!shares.may_take(0, 100));
        }
        assert_eq!(take_all(&mut shares, 1, 100), 3);
        assert_eq!(take_all(&mut shares, 2, 100), 3);
        assert_eq!(take_all(&mut shares, 3, 100), 0);
        assert_eq!(shares.in_use_at(0), 7);
    }

    #[test]
    fn a_connection_without_credits_has_buffers_for_two_calls_when_they_are_scarce() {
        let mut shares = Shares::new(2, 2, 16);
        let has = |shares: &mut Shares, place, answerable, is_plenty| {
            let tries = 0..20;
            let had = tries.filter(|_| shares.begin_buffers(place, answerable, is_plenty));
            had.count()
        };
        assert_eq!(has(&mut shares, 0, 0, true), 20);
        assert_eq!(has(&mut shares, 0, 20, false), 2);
        assert_eq!(has(&mut shares, 1, 0, false), 2);
        assert_eq!(has(&mut shares, 1, 3, false), 3);
        shares.end_buffers(1);
        assert_eq!(has(&mut shares, 1, 3, false), 1);
    }

    #[test]
    fn a_core_with_more_connections_than_own_slots_serves_them_in_turn() {
        let mut shares = Shares::new(9, 2, 3);
        let taken: Vec<u32> = (0..9)
            .map(|place| {
                let may = shares.may_take(place, 100);
                if may {
                    shares.take(place);
                }
                may.into()
            })
            .collect();
        assert_eq!(taken, [1, 1, 1, 1, 1, 0, 0, 0, 0]);
        // Each gives one back, whichever kind that was, and the next one takes it.
        for place in 0..4 {
            shares.give(place);
            assert!(shares.may_take(place + 5, 100), "{place}");
            shares.take(place + 5);
        }
        for place in 4..9 {
            shares.give(place);
        }
        assert_eq!((shares.own_free, shares.shared_free), (2, 3));
        assert_eq!(take_all(&mut shares, 0, 100), 1 + 3);
    }

    #[test]
    fn returned_call_slots_can_be_taken_again() {
        let mut shares = Shares::new(2, 2, 4);
        for _ in 0..3 {
            let taken = take_all(&mut shares, 0, 100);
            assert_eq!(taken, 5);
            for _ in 0..taken {
                shares.give(0);
            }
        }
        assert_eq!(take_all(&mut shares, 1, 0), 3);
    }
}
