//! Numbers that are the same in every run.

/// A generator (splitmix64).
#[derive(Clone, Debug)]
pub(super) struct Random(pub(super) u64);

impl Random {
    /// Any number.
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Any word.
    pub(super) fn word(&mut self) -> u32 {
        u32::try_from(self.next() >> 32).expect("32 bits")
    }

    /// A number below `end`.
    pub(super) fn below(&mut self, end: usize) -> usize {
        let number = self.next() % u64::try_from(end.max(1)).expect("64 bits");
        usize::try_from(number).expect("below a usize")
    }

    /// A number from `least` to `most`.
    pub(super) fn between(&mut self, least: u32, most: u32) -> u32 {
        let span = u64::from(most - least) + 1;
        least + u32::try_from(self.next() % span).expect("32 bits")
    }

    /// True once in `times`.
    pub(super) fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// One of these.
    pub(super) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}
