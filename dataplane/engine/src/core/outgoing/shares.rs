//! How connections share the slots and bulk buffers for calls of ours with bulk data: a server that does not answer
//! must not block calls to all others.

/// A resource that the calls of all connections share. Any connection may take some while more than half is free. After
/// that, a connection that has some may take no more than its part of the total, and has to leave a part for a
/// connection that has none yet.
#[derive(Debug)]
pub(crate) struct CallShare {
    total: u32,
    free: u32,
    /// How much each connection holds, by its place.
    held: Box<[u32]>,
    /// How many connections hold any.
    holders: u32,
}

impl CallShare {
    pub(crate) fn new(total: u32, connections_max: u32) -> Self {
        Self {
            total,
            free: total,
            held: vec![0; connections_max as usize].into_boxed_slice(),
            holders: 0,
        }
    }

    /// Whether the connection at `place`, one of `open` connections, may take `count` more.
    #[inline(always)]
    pub(crate) fn may_take(&self, place: u32, count: u32, open: u32) -> bool {
        if count > self.free {
            return false;
        }
        let held = self.held.get(place as usize).copied().unwrap_or(u32::MAX);
        if held == 0 || self.free - count >= self.total / 2 {
            return true;
        }
        // The holders, and one connection that may want some.
        let parts = self.holders.saturating_add(1).min(open).max(1);
        let part = self.total / parts;
        let left = if parts > self.holders { part } else { 0 };
        held.saturating_add(count) <= part && self.free - count >= left
    }

    /// Notes that the connection at `place` took `count`, as [`CallShare::may_take`] allowed.
    pub(crate) fn take(&mut self, place: u32, count: u32) {
        if let Some(held) = self.held.get_mut(place as usize) {
            self.holders += u32::from(*held == 0 && count != 0);
            *held += count;
            self.free = self.free.saturating_sub(count);
        }
    }

    /// Notes that the connection at `place` gave `count` back.
    pub(crate) fn give(&mut self, place: u32, count: u32) {
        if let Some(held) = self.held.get_mut(place as usize) {
            debug_assert!(*held >= count, "what is given was taken");
            *held = held.saturating_sub(count);
            self.holders -= u32::from(*held == 0 && count != 0);
            self.free += count;
        }
    }

    /// For the sums: what is free, of how many, what each connection has by its place, and how many have any.
    #[cfg(test)]
    pub(crate) fn ledger(&self) -> (u32, u32, &[u32], u32) {
        (self.free, self.total, &self.held, self.holders)
    }
}

/// The resources that all calls of ours share.
#[derive(Debug)]
pub(crate) struct Shares {
    pub(in crate::core) slots: CallShare,
    pub(in crate::core) buffers: CallShare,
}

impl Shares {
    pub(super) fn new(slots: u32, buffers: u32, connections_max: u32) -> Self {
        Self {
            slots: CallShare::new(slots, connections_max),
            buffers: CallShare::new(buffers, connections_max),
        }
    }

    /// Whether the connection at `place`, one of `open` connections, may begin a call that takes so many bulk
    /// buffers.
    pub(super) fn may_take(&self, place: u32, buffers: u32, open: u32) -> bool {
        self.slots.may_take(place, 1, open) && self.buffers.may_take(place, buffers, open)
    }

    /// Notes that a call of the connection at `place` begins.
    pub(super) fn take(&mut self, place: u32, buffers: u32) {
        self.slots.take(place, 1);
        self.buffers.take(place, buffers);
    }

    /// Notes that a call of the connection at `place` has ended.
    pub(super) fn give(&mut self, place: u32, buffers: u32) {
        self.slots.give(place, 1);
        self.buffers.give(place, buffers);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(share: &mut CallShare, place: u32, open: u32) -> u32 {
        let mut taken = 0;
        while share.may_take(place, 1, open) {
            share.take(place, 1);
            taken += 1;
        }
        taken
    }

    #[test]
    fn one_connection_alone_has_all() {
        let mut share = CallShare::new(8, 4);
        assert_eq!(taken(&mut share, 2, 1), 8);
        share.give(2, 8);
        assert_eq!(share.ledger().0, 8);
        assert_eq!(taken(&mut share, 0, 1), 8);
    }

    #[test]
    fn connections_that_keep_all_they_get_leave_some_to_the_next() {
        let mut share = CallShare::new(12, 4);
        assert_eq!(taken(&mut share, 0, 4), 6);
        assert_eq!(taken(&mut share, 1, 4), 2);
        assert_eq!(taken(&mut share, 2, 4), 1);
        assert_eq!(taken(&mut share, 3, 4), 3, "there is nobody else");
        share.give(0, 6);
        assert!(share.may_take(0, 3, 4) && !share.may_take(3, 1, 4));
    }
}
