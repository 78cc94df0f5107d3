//! Reproducible pseudo-random numbers: SplitMix64.

/// A sequence of pseudo-random numbers; the field is its state.
#[derive(Clone, Debug)]
pub(crate) struct Draw(pub(crate) u64);

impl Draw {
    /// Number `n` of the sequence with this seed, without computing the numbers before it.
    pub(crate) fn nth(seed: u64, n: u64) -> u64 {
        Self(seed.wrapping_add(n.wrapping_mul(0x9e37_79b9_7f4a_7c15))).next()
    }

    /// The next number.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_of_a_sequence_is_known_without_those_before_it() {
        let mut draw = Draw(7);
        let drawn: Vec<u64> = (0..5).map(|_| draw.next()).collect();
        let expected: Vec<u64> = (0..5).map(|n| Draw::nth(7, n)).collect();
        assert_eq!(drawn, expected);
    }
}
