//! Pseudo-random numbers that are the same in every run.

/// A generator (SplitMix64) with its seed.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next number.
    #[expect(clippy::should_implement_trait, reason = "the sequence never ends")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A word of 32 bits: the upper half of the next number.
    pub fn word(&mut self) -> u32 {
        u32::try_from(self.next() >> 32).expect("32 bits are left")
    }

    /// A number below `end`; 0 if `end` is 0.
    pub fn below(&mut self, end: usize) -> usize {
        let number = self.next() % u64::try_from(end.max(1)).expect("a usize has at most 64 bits");
        usize::try_from(number).expect("the number is below a usize")
    }

    /// A number from `least` to `most`, both included.
    pub fn between(&mut self, least: u32, most: u32) -> u32 {
        let span = u64::from(most - least) + 1;
        least + u32::try_from(self.next() % span).expect("the number is at most `most - least`")
    }

    /// True with a probability of one in `times`.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// A random element of `of`, which must not be empty.
    pub fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())].clone()
    }
}

/// Pseudo-random bytes. Different seeds give different bytes, so a test finds data at a wrong place.
#[must_use]
pub fn pattern(bytes: usize, seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    let mut all = vec![0; bytes];
    // One number fills eight bytes: tests are built without optimisation, and those of the lab run under emulation.
    for some in all.chunks_mut(8) {
        some.copy_from_slice(&random.next().to_le_bytes()[..some.len()]);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first numbers of the reference implementation (Vigna, splitmix64.c) from the seed 1234567.
    #[test]
    fn numbers_are_those_of_splitmix64() {
        let mut random = Random(1_234_567);
        let first = [(); 3].map(|()| random.next());
        let reference = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
        ];
        assert_eq!(first, reference);
        assert!((0..100).all(|_| (3..=5).contains(&random.between(3, 5))));
        assert!((0..100).all(|_| random.below(7) < 7) && random.below(0) == 0);
    }

    #[test]
    fn patterns_of_other_seeds_are_different() {
        assert_eq!(pattern(13, 3)[..11], pattern(11, 3));
        assert_ne!(pattern(8, 3), pattern(8, 4));
    }
}
