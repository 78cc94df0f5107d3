//! XIDs of calls of ours, and the slots of their calls.
//!
//! XIDs count up by one, so that each is reused as late as 32 bits permit: a server may keep a reply for minutes, and
//! use it to answer a call that has the XID of the old one. The slot of a call does not depend on its XID, so the slot
//! that is still in the cache can be used next.

const NONE: u32 = u32::MAX;

/// Gives out XIDs, and finds the slots of those in use. All its memory is allocated at start-up.
///
/// A table has the slot of each XID at the place given by the XID's low bits. An XID whose place is in use by
/// another is skipped.
///
/// **Period**: an XID is reused only after the count has gone once through all 2^32. There are at least twice as many
/// places as slots. In one turn through the places the count skips only places of calls that were outstanding when the
/// turn began, so at most half of them: between two calls with one XID there are at least 2^31 others; if calls end
/// before their place comes again, as serial ones do, 2^32. For the same reason a call skips at most one place on
/// average.
///
/// A call that is made again on another connection has its old XID ([`Xids::repeat`]), which is no part of this count.
#[derive(Debug)]
pub(crate) struct Xids {
    /// Their number is a power of two.
    places: Box<[u32]>,
    /// The XID of the next call. Its place is free.
    next: u32,
}

impl Xids {
    /// For `slots` slots, at most 2^30. The first XID is `first`.
    pub(crate) fn new(slots: u32, first: u32) -> Self {
        let places = slots.max(1).saturating_mul(2).next_power_of_two();
        Self {
            places: vec![NONE; places as usize].into_boxed_slice(),
            next: first,
        }
    }

    /// The XID that [`Xids::take`] will give.
    #[inline]
    pub(crate) const fn next(&self) -> u32 {
        self.next
    }

    /// Gives the call in `slot` the next XID.
    #[inline]
    pub(crate) fn take(&mut self, slot: u32) -> u32 {
        let xid = self.next;
        if let Some(place) = self.place(xid) {
            *place = slot;
        }
        self.advance();
        xid
    }

    /// Moves on to the next XID: no other call gets the one that [`Xids::next`] returned.
    #[inline]
    pub(crate) fn advance(&mut self) {
        // Terminates, because at most half of the places are in use.
        loop {
            self.next = self.next.wrapping_add(1);
            if self.slot_of(self.next).is_none() {
                return;
            }
        }
    }

    /// Lets the next call have `xid`, which an earlier call had. Returns what [`Xids::go_on`] takes once that call is made,
    /// or was refused; `None` while another call has the place of `xid`.
    pub(crate) fn repeat(&mut self, xid: u32) -> Option<u32> {
        if self.slot_of(xid).is_some() {
            return None;
        }
        Some(std::mem::replace(&mut self.next, xid))
    }

    /// Goes on with the count, which stood at `next`.
    pub(crate) fn go_on(&mut self, next: u32) {
        self.next = next;
        // The call in between may have taken its place.
        if self.slot_of(next).is_some() {
            self.advance();
        }
    }

    /// The slot of the XID in use that has the same place as `xid`: the caller compares the XIDs.
    #[inline]
    pub(crate) fn slot_of(&self, xid: u32) -> Option<u32> {
        let slot = self.places.get(self.index(xid)).copied();
        slot.filter(|&slot| slot != NONE)
    }

    /// Frees the place of an XID that was in use.
    #[inline]
    pub(crate) fn free(&mut self, xid: u32) {
        if let Some(place) = self.place(xid) {
            *place = NONE;
        }
    }

    fn place(&mut self, xid: u32) -> Option<&mut u32> {
        let index = self.index(xid);
        self.places.get_mut(index)
    }

    fn index(&self, xid: u32) -> usize {
        xid as usize & (self.places.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_goes_past_the_last_xid() {
        let mut xids = Xids::new(2, u32::MAX);
        assert_eq!([xids.take(0), xids.take(1)], [u32::MAX, 0]);
        assert_eq!(xids.slot_of(u32::MAX), Some(0));
        assert_eq!(xids.slot_of(0), Some(1));
    }

    #[test]
    fn a_call_is_made_again_under_its_xid_and_the_count_goes_on() {
        let mut xids = Xids::new(4, 10);
        let first = xids.take(0);
        xids.free(first);
        let next = xids.repeat(first).expect("nobody has its place");
        assert_eq!((xids.next(), xids.take(1)), (10, 10));
        xids.go_on(next);
        assert_eq!(xids.slot_of(10), Some(1));
        assert_eq!(xids.repeat(10), None, "it is in use");
        assert_eq!(xids.repeat(18), None, "its place is in use");
        // One that has the place of the next in the count.
        let next = xids.repeat(3).expect("nobody has its place");
        assert_eq!(xids.take(2), 3);
        xids.go_on(next);
        assert_eq!(xids.take(3), 12);
        // One that is refused changes nothing.
        let next = xids.repeat(77).expect("nobody has its place");
        xids.go_on(next);
        assert_eq!(xids.next(), 13);
    }

    /// All slots but one are taken for good, by the first XIDs: in every turn these are left out.
    #[test]
    fn xids_whose_places_are_taken_are_left_out() {
        let mut xids = Xids::new(4, 0);
        for slot in 0..3 {
            xids.take(slot);
        }
        let serial: Vec<u32> = (0..10)
            .map(|_| {
                let xid = xids.take(3);
                xids.free(xid);
                xid
            })
            .collect();
        assert_eq!(serial, [3, 4, 5, 6, 7, 11, 12, 13, 14, 15]);
        assert_eq!(xids.next(), 19);
        for slot in 0..3 {
            assert_eq!(xids.slot_of(slot), Some(slot));
        }
    }
}
