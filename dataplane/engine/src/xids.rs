//! XIDs of calls of ours, and the slots of the calls that they name.
//!
//! XIDs count up by one, so that one comes again as late as 32 bits permit: a server may keep a reply
//! for minutes, and answer a call that seems to be the old one with it. The slot of a call does not
//! follow from its XID, and can be used again while it is in the cache.

const NONE: u32 = u32::MAX;

/// Gives out XIDs, and finds the slots of those in use. All its memory is there from the start.
///
/// The slot of an XID is written in the place that the XID's low bits name. An XID whose place is
/// taken by another is left out.
///
/// **Period**: an XID comes again only after the count has gone once through all 2^32. There are at
/// least twice as many places as slots. In one turn through the places the count leaves out only
/// places of calls that were outstanding when the turn began, so at most half of them: between two
/// calls of one XID there are at least 2^31 others, and where calls end before their place comes
/// again, as serial ones do, 2^32. For the same reason a call costs one place that is left out at
/// most, on average.
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

    /// Gives the call in `slot`, which has no XID, the next one.
    #[inline]
    pub(crate) fn take(&mut self, slot: u32) -> u32 {
        let xid = self.next;
        if let Some(place) = self.place(xid) {
            *place = slot;
        }
        self.advance();
        xid
    }

    /// Goes on to the next XID: no other call gets the one that [`Xids::next`] told.
    #[inline]
    pub(crate) fn advance(&mut self) {
        // Ends, because at most half of the places are taken.
        loop {
            self.next = self.next.wrapping_add(1);
            if self.slot_of(self.next).is_none() {
                return;
            }
        }
    }

    /// The slot of the XID in use that has the same place as `xid`: the caller compares the XIDs.
    #[inline]
    pub(crate) fn slot_of(&self, xid: u32) -> Option<u32> {
        let slot = self.places.get(self.index(xid)).copied();
        slot.filter(|&slot| slot != NONE)
    }

    /// The XID, which was in use, is so no more.
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
