//! Payloads of several sizes, each with a share of the operations.

/// Upper bound of the sizes in one mix.
pub(crate) const SIZES_MAX: usize = 8;

/// Sizes with their shares. The size of an operation depends only on the seed and the operation's number. So the
/// check of the reply computes it again, and nothing is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// Size in bytes, and the sum of the shares up to and including it. Unused entries repeat the last one.
    choices: [(u32, u32); SIZES_MAX],
    count: usize,
}

impl Sizes {
    /// Each size in bytes with its share of the operations, in any unit.
    ///
    /// # Errors
    /// A message: no size, more than [`SIZES_MAX`] sizes, a repeated size, or a size or share of 0 or too large.
    pub(crate) fn new(shares: &[(u64, u32)]) -> Result<Self, String> {
        if shares.is_empty() || shares.len() > SIZES_MAX {
            return Err(format!("give from one to {SIZES_MAX} sizes"));
        }
        let mut choices = [(0, 0); SIZES_MAX];
        let (mut last, mut seen) = ((0_u32, 0_u32), Vec::new());
        for (index, choice) in choices.iter_mut().enumerate() {
            if let Some(&(bytes, share)) = shares.get(index) {
                if bytes == 0 || share == 0 || seen.contains(&bytes) {
                    return Err(
                        "each size must be above zero, occur once, and have a share".to_owned()
                    );
                }
                seen.push(bytes);
                let bytes = u32::try_from(bytes).map_err(|_| {
                    let size = rpcrdma_units::size(bytes);
                    format!("{size} is more than one call can carry")
                })?;
                let sum = last.1.checked_add(share);
                last = (
                    bytes,
                    sum.ok_or_else(|| "the shares are too large".to_owned())?,
                );
            }
            *choice = last;
        }
        Ok(Self {
            choices,
            count: shares.len(),
        })
    }

    /// The size for `drawn`, a random number with all 64 bits.
    #[inline]
    #[must_use]
    pub(crate) fn of(&self, drawn: u64) -> u32 {
        let [.., (last, total)] = self.choices;
        let at = drawn % u64::from(total.max(1));
        let found = self.choices.iter().find(|(_, end)| at < u64::from(*end));
        found.map_or(last, |(bytes, _)| *bytes)
    }

    /// The largest size.
    #[must_use]
    pub(crate) fn bytes_max(&self) -> u64 {
        let largest = self.choices.iter().map(|(bytes, _)| *bytes).max();
        u64::from(largest.unwrap_or(0))
    }

    /// Each size in bytes with its share of all operations in percent.
    pub(crate) fn shares(&self) -> impl Iterator<Item = (u64, f64)> {
        let [.., (_, total)] = self.choices;
        let mut before = 0;
        self.choices
            .iter()
            .take(self.count)
            .map(move |(bytes, end)| {
                let share = end - before;
                before = *end;
                (
                    u64::from(*bytes),
                    f64::from(share) * 100.0 / f64::from(total),
                )
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_drawn_by_their_shares() {
        let sizes = Sizes::new(&[(4096, 80), (65_536, 15), (100, 5)]).unwrap();
        let drawn: Vec<u32> = (0..100).map(|number| sizes.of(number)).collect();
        let count = |bytes| drawn.iter().filter(|it| **it == bytes).count();
        assert_eq!([count(4096), count(65_536), count(100)], [80, 15, 5]);
        assert_eq!(sizes.bytes_max(), 65_536);
        let shares: Vec<_> = sizes.shares().collect();
        assert_eq!(shares, [(4096, 80.0), (65_536, 15.0), (100, 5.0)]);
        let one = Sizes::new(&[(7, 3)]).unwrap();
        assert_eq!((one.of(u64::MAX), one.shares().count()), (7, 1));
    }

    #[test]
    fn invalid_size_mix_is_refused() {
        for shares in [
            &[][..],
            &[(1, 1); 2],
            &[(0, 1)],
            &[(1, 0)],
            &[(1 << 32, 1)],
            &[(1, u32::MAX), (2, 1)],
            &[
                (1, 1),
                (2, 1),
                (3, 1),
                (4, 1),
                (5, 1),
                (6, 1),
                (7, 1),
                (8, 1),
                (9, 1),
            ],
        ] {
            assert!(Sizes::new(shares).is_err(), "{shares:?}");
        }
    }
}
