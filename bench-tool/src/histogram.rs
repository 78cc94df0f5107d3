//! Latency histograms: one per core during a measurement, merged afterwards.

use std::io::Read as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use flate2::read::ZlibDecoder;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer, V2DeflateSerializer, V2Serializer};

/// The largest latency with its own bucket: one hour. A longer one goes into the last bucket; the maximum is still
/// exact.
pub(crate) const LATENCY_NS_MAX: u64 = 3_600_000_000_000;

/// Significant decimal digits: every percentile is within 0.1 % of a recorded value.
pub(crate) const SIGNIFICANT_DIGITS: u8 = 3;

/// The first bytes of the compressed version 2 format.
const COMPRESSED_COOKIE: [u8; 4] = [0x1c, 0x84, 0x93, 0x14];

/// Upper bound of a histogram of a report in bytes, not compressed. One with a count in each of the buckets of
/// [`LatencyHistogram`] has a tenth of that.
const PLAIN_BYTES_MAX: u64 = 4 << 20;

/// Upper bound of the latencies of a histogram of a report: a million calls each second for nine years. The sum of as many
/// reports as a computer has room for stays below 2^64.
const COUNT_MAX: u64 = 1 << 48;

/// Bytes of the header of version 2 before the counts; its bytes 4 to 8 are the length of the counts.
const PLAIN_HEADER_BYTES: usize = 40;

/// Latencies in nanoseconds, with exact count, minimum, maximum and mean.
///
/// The bounds are fixed, so recording never allocates. The HDR buckets round, so extremes and sum are kept separately
/// and are exact.
#[derive(Clone, Debug)]
pub(crate) struct LatencyHistogram {
    buckets: Histogram<u64>,
    sum_ns: u128,
    min_ns: u64,
    max_ns: u64,
}

impl LatencyHistogram {
    /// An empty histogram. Allocates about 270 KiB and touches all of it.
    ///
    /// # Panics
    /// Never: the bounds are constants that a test checks.
    #[must_use]
    pub(crate) fn new() -> Self {
        let buckets = Histogram::new_with_bounds(1, LATENCY_NS_MAX, SIGNIFICANT_DIGITS)
            .expect("constant bounds are valid");
        let mut histogram = Self {
            buckets,
            sum_ns: 0,
            min_ns: u64::MAX,
            max_ns: 0,
        };
        // Touch all pages now: a page fault during the measurement would add to a latency.
        histogram.clear();
        histogram
    }

    /// Removes all recorded values but keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.buckets.reset();
        (self.sum_ns, self.min_ns, self.max_ns) = (0, u64::MAX, 0);
    }

    /// Records one latency. Allocates nothing.
    #[inline]
    pub(crate) fn record(&mut self, latency_ns: u64) {
        self.record_equal(latency_ns, 1);
    }

    /// Records `count` equal latencies, at least one. Allocates nothing.
    #[inline]
    pub(crate) fn record_equal(&mut self, latency_ns: u64, count: u64) {
        self.buckets.saturating_record_n(latency_ns, count);
        self.sum_ns += u128::from(latency_ns) * u128::from(count);
        self.min_ns = self.min_ns.min(latency_ns);
        self.max_ns = self.max_ns.max(latency_ns);
    }

    /// Records `count` latencies, none longer than the one before it, in a time that does not depend on `count`.
    /// `latency_ns` returns each of them by its place. The sum is that of latencies that fall evenly within a bucket.
    pub(crate) fn record_falling(&mut self, count: u64, latency_ns: impl Fn(u64) -> u64) {
        let mut first = 0;
        while first < count {
            let longest = latency_ns(first);
            let least_of_bucket = self.buckets.lowest_equivalent(longest);
            let (mut last, mut next) = (first, count);
            while next - last > 1 {
                let middle = last + (next - last) / 2;
                match latency_ns(middle) >= least_of_bucket {
                    true => last = middle,
                    false => next = middle,
                }
            }
            let (shortest, number) = (latency_ns(last), next - first);
            self.buckets.saturating_record_n(longest, number);
            let twice_the_mean = u128::from(longest) + u128::from(shortest);
            self.sum_ns += twice_the_mean * u128::from(number) / 2;
            self.min_ns = self.min_ns.min(shortest);
            self.max_ns = self.max_ns.max(longest);
            first = next;
        }
    }

    /// Adds the values of another histogram.
    ///
    /// # Panics
    /// Never: all histograms of this type have the same bounds.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.buckets.add(&other.buckets).expect("same bounds");
        self.sum_ns += other.sum_ns;
        self.min_ns = self.min_ns.min(other.min_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// The number of recorded latencies.
    #[must_use]
    pub(crate) fn count(&self) -> u64 {
        self.buckets.len()
    }

    /// The sum of all latencies in nanoseconds, exact.
    #[must_use]
    pub(crate) const fn sum_ns(&self) -> u128 {
        self.sum_ns
    }

    /// How many latencies are up to each of these rising bounds and above the one before, and how many are above all
    /// of them.
    #[must_use]
    pub(crate) fn counts_between<const N: usize>(&self, bounds_ns: &[u64]) -> [u64; N] {
        let mut counts = [0; N];
        for value in self.buckets.iter_recorded() {
            let latency_ns = value.value_iterated_to().min(self.max_ns);
            let place = bounds_ns.partition_point(|bound| *bound < latency_ns);
            if let Some(count) = counts.get_mut(place) {
                *count += value.count_at_value();
            }
        }
        counts
    }

    /// The smallest latency, exact; 0 if there is none.
    #[must_use]
    pub(crate) fn min_ns(&self) -> u64 {
        if self.count() == 0 { 0 } else { self.min_ns }
    }

    /// The largest latency, exact; 0 if there is none.
    #[must_use]
    pub(crate) const fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// The arithmetic mean; 0 if there is none.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "a mean for people and plots")]
    pub(crate) fn mean_ns(&self) -> f64 {
        if self.count() == 0 {
            0.0
        } else {
            self.sum_ns as f64 / self.count() as f64
        }
    }

    /// The standard deviation, from the buckets and so with their error of 0.1 %.
    #[must_use]
    pub(crate) fn stddev_ns(&self) -> f64 {
        if self.count() == 0 {
            0.0
        } else {
            self.buckets.stdev()
        }
    }

    /// The percentile for `percent`, 0 to 100, with up to six decimals; never outside the exact extremes. It is the least latency
    /// that so many percent of all do not exceed. The rank is exact: floating point would take call 1999 of 2000 for p99.9.
    #[must_use]
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a percentage is between 0 and 100"
    )]
    pub(crate) fn percentile_ns(&self, percent: f64) -> u64 {
        if self.count() == 0 {
            return 0;
        }
        let millionths = (percent.clamp(0.0, 100.0) * 1e6).round() as u128;
        let rank = (millionths * u128::from(self.count())).div_ceil(100_000_000);
        let mut below = 0;
        let mut values = self.buckets.iter_recorded();
        let value = values.find(|value| {
            below += u128::from(value.count_at_value());
            below >= rank
        });
        let value = value.map_or(self.max_ns, |value| value.value_iterated_to());
        value.clamp(self.min_ns, self.max_ns)
    }

    /// The figures of every report.
    #[must_use]
    pub(crate) fn summary(&self) -> LatencySummary {
        LatencySummary {
            count: self.count(),
            min: self.min_ns(),
            mean: round_to_picoseconds(self.mean_ns()),
            stddev: round_to_picoseconds(self.stddev_ns()),
            p50: self.percentile_ns(50.0),
            p90: self.percentile_ns(90.0),
            p99: self.percentile_ns(99.0),
            p99_9: self.percentile_ns(99.9),
            p99_99: self.percentile_ns(99.99),
            max: self.max_ns(),
        }
    }

    /// The latencies as seen by callers that call every `interval_ns` without waiting for replies. For each latency
    /// longer than one interval, it adds those of the calls that would have started meanwhile. An estimate: it
    /// assumes that only the wait kept these calls.
    #[must_use]
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a mean of latencies, never negative"
    )]
    pub(crate) fn corrected(&self, interval_ns: u64) -> Self {
        let mut buckets = self.buckets.clone();
        for value in self.buckets.iter_recorded().filter(|_| interval_ns > 0) {
            let mut missing_ns = value.value_iterated_to().saturating_sub(interval_ns);
            while missing_ns >= interval_ns {
                // All that belong into one bucket are added together: in an hour there may be one each nanosecond.
                let least_ns = buckets.lowest_equivalent(missing_ns).max(interval_ns);
                let more = (missing_ns - least_ns) / interval_ns;
                missing_ns -= more * interval_ns;
                let count = value.count_at_value().saturating_mul(more + 1);
                buckets.saturating_record_n(missing_ns, count);
                missing_ns -= interval_ns;
            }
        }
        let sum_ns = (buckets.mean() * buckets.len() as f64).round() as u128;
        Self {
            buckets,
            sum_ns,
            min_ns: self.min_ns,
            max_ns: self.max_ns,
        }
    }

    /// The same data in a few KiB, to keep many histograms.
    ///
    /// # Panics
    /// Never: writing to memory cannot fail.
    #[must_use]
    pub(crate) fn pack(&self) -> PackedHistogram {
        let mut buckets = Vec::new();
        V2Serializer::new()
            .serialize(&self.buckets, &mut buckets)
            .expect("memory takes all buckets");
        PackedHistogram {
            buckets: buckets.into_boxed_slice(),
            sum_ns: self.sum_ns,
            min_ns: self.min_ns,
            max_ns: self.max_ns,
        }
    }

    /// The buckets as the JSON of reports has them: HdrHistogram's compressed version 2 format, in base64. Its tools
    /// and libraries read it.
    ///
    /// # Panics
    /// Never: writing to memory cannot fail.
    #[must_use]
    pub(crate) fn encode(&self) -> String {
        let mut bytes = Vec::new();
        V2DeflateSerializer::new()
            .serialize(&self.buckets, &mut bytes)
            .expect("memory takes all buckets");
        BASE64.encode(bytes)
    }

    /// Restores a histogram of a report: its buckets, compressed or not, and its exact figures, which are beside them
    /// in the report.
    ///
    /// # Errors
    /// Why it is no such histogram: no base64, another format, values beyond the bounds, more of them than sums of many reports
    /// can count, or another number of values than `exact` says.
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the sum is restored from a mean, which is rounded to picoseconds"
    )]
    pub(crate) fn decode(text: &str, exact: &ExactFigures) -> Result<Self, DecodeError> {
        let bytes = BASE64.decode(text)?;
        let bytes = plain(bytes)?;
        let buckets: Histogram<u64> = Deserializer::new()
            .deserialize(&mut &*bytes)
            .map_err(|error| DecodeError::Format(error.to_string()))?;
        let counts = buckets
            .iter_recorded()
            .map(|it| u128::from(it.count_at_value()));
        if counts.sum::<u128>() > u128::from(COUNT_MAX) {
            return Err(DecodeError::Many);
        }
        if buckets.len() != exact.count {
            return Err(DecodeError::Count {
                buckets: buckets.len(),
                count: exact.count,
            });
        }
        let mut histogram = Self::new();
        if exact.count == 0 {
            return Ok(histogram);
        }
        let is_mean = exact.mean >= exact.min as f64 * 0.999 && exact.mean.is_finite();
        if exact.min > exact.max || !is_mean {
            return Err(DecodeError::Exact);
        }
        let added = histogram.buckets.add(&buckets);
        added.map_err(|_| DecodeError::Range)?;
        histogram.sum_ns = (exact.mean * exact.count as f64).round() as u128;
        (histogram.min_ns, histogram.max_ns) = (exact.min, exact.max);
        Ok(histogram)
    }

    /// The buckets, for the percentile distribution.
    #[must_use]
    pub(crate) const fn buckets(&self) -> &Histogram<u64> {
        &self.buckets
    }
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self::new()
    }
}

/// Figures in JSON: null for no calls, whose zeros would pass for the best of all latencies.
pub(crate) mod null_without_calls {
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    use super::LatencySummary;

    #[allow(
        clippy::trivially_copy_pass_by_ref,
        reason = "serde passes a reference"
    )]
    pub(crate) fn serialize<S: Serializer>(
        summary: &LatencySummary,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        (summary.count > 0).then_some(summary).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<LatencySummary, D::Error> {
        Option::deserialize(deserializer).map(Option::unwrap_or_default)
    }
}

/// The exact contents of a [`LatencyHistogram`], in the compact form of `HdrHistogram`.
#[derive(Clone, Debug)]
pub(crate) struct PackedHistogram {
    buckets: Box<[u8]>,
    sum_ns: u128,
    min_ns: u64,
    max_ns: u64,
}

impl PackedHistogram {
    /// Restores the histogram.
    ///
    /// # Panics
    /// Never: the bytes are those that [`LatencyHistogram::pack`] wrote.
    #[must_use]
    pub(crate) fn unpack(&self) -> LatencyHistogram {
        let buckets = Deserializer::new()
            .deserialize(&mut &*self.buckets)
            .expect("what was packed is whole");
        LatencyHistogram {
            buckets,
            sum_ns: self.sum_ns,
            min_ns: self.min_ns,
            max_ns: self.max_ns,
        }
    }
}

/// The exact figures beside a histogram in a report, from its `latency_ns`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ExactFigures {
    /// Number of latencies.
    pub count: u64,
    /// The smallest.
    pub min: u64,
    /// The arithmetic mean.
    pub mean: f64,
    /// The largest.
    pub max: u64,
}

impl LatencySummary {
    /// Those that restore a histogram.
    pub(crate) const fn exact(&self) -> ExactFigures {
        ExactFigures {
            count: self.count,
            min: self.min,
            mean: self.mean,
            max: self.max,
        }
    }
}

/// Why a histogram of a report cannot be restored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DecodeError {
    #[error("its histogram is no base64: {0}")]
    Base64(#[from] base64::DecodeError),
    #[error("its histogram has none of HdrHistogram's version 2 formats: {0}")]
    Format(String),
    #[error("its histogram has {buckets} latencies, and its latency_ns says {count}")]
    Count { buckets: u64, count: u64 },
    #[error("its histogram has more than {COUNT_MAX} latencies, which no load has")]
    Many,
    #[error("its histogram has latencies of more than an hour")]
    Range,
    #[error("the min, mean and max of its latency_ns contradict each other")]
    Exact,
}

/// The bytes of a histogram, decompressed if they are compressed. The reader of the format allocates the length that they
/// give before it reads so much, so that is checked here.
fn plain(bytes: Vec<u8>) -> Result<Vec<u8>, DecodeError> {
    let wrong = |what: String| DecodeError::Format(what);
    let bytes = match bytes.split_at_checked(8) {
        Some((head, compressed)) if head.starts_with(&COMPRESSED_COOKIE) => {
            let mut plain = Vec::new();
            let decoder = ZlibDecoder::new(compressed).take(PLAIN_BYTES_MAX + 1);
            let read = { decoder }.read_to_end(&mut plain);
            read.map_err(|error| wrong(error.to_string()))?;
            plain
        }
        _ => bytes,
    };
    if bytes.len() as u64 > PLAIN_BYTES_MAX {
        return Err(wrong(format!("it has more than {PLAIN_BYTES_MAX} bytes")));
    }
    let length = bytes.get(4..8).and_then(|it| it.try_into().ok());
    let length = length.map_or(0, u32::from_be_bytes);
    let counts = bytes.len().saturating_sub(PLAIN_HEADER_BYTES);
    if usize::try_from(length).is_ok_and(|length| length <= counts) {
        return Ok(bytes);
    }
    Err(wrong(format!(
        "it says that it has {length} bytes of counts, and has {counts}"
    )))
}

fn round_to_picoseconds(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// `latency_ns` of the JSON report: all values in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub(crate) struct LatencySummary {
    /// Number of latencies.
    pub count: u64,
    /// The smallest, exact.
    pub min: u64,
    /// The arithmetic mean.
    pub mean: f64,
    /// The standard deviation.
    pub stddev: f64,
    /// The median.
    pub p50: u64,
    /// The 90th percentile.
    pub p90: u64,
    /// The 99th percentile.
    pub p99: u64,
    /// The 99.9th percentile.
    pub p99_9: u64,
    /// The 99.99th percentile.
    pub p99_99: u64,
    /// The largest, exact.
    pub max: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_empty_histogram_is_all_zero() {
        let summary = LatencyHistogram::new().summary();
        assert_eq!(
            (summary.count, summary.min, summary.max, summary.p99),
            (0, 0, 0, 0)
        );
        assert!(summary.mean == 0.0 && summary.stddev == 0.0);
    }

    #[test]
    fn extremes_are_exact_even_beyond_the_bounds() {
        let mut histogram = LatencyHistogram::new();
        for value in [0, 123_457, LATENCY_NS_MAX + 12_345] {
            histogram.record(value);
        }
        assert_eq!(histogram.count(), 3);
        assert_eq!(histogram.min_ns(), 0);
        assert_eq!(histogram.max_ns(), LATENCY_NS_MAX + 12_345);
    }

    #[test]
    fn equal_latencies_count_as_if_they_came_one_by_one() {
        let (mut together, mut one_by_one) = (LatencyHistogram::new(), LatencyHistogram::new());
        for (latency_ns, count) in [(200, 3), (0, 1), (70_123, 32), (LATENCY_NS_MAX + 9, 2)] {
            together.record_equal(latency_ns, count);
            (0..count).for_each(|_| one_by_one.record(latency_ns));
        }
        assert_eq!(together.buckets(), one_by_one.buckets());
        assert_eq!(together.summary(), one_by_one.summary());
        assert_eq!(together.count(), 38);
    }

    #[test]
    fn falling_latencies_count_as_if_they_came_one_by_one() {
        for (count, step) in [(0, 1), (1, 5), (1_000, 1_000_000), (70_000, 3), (5, 0)] {
            let latency_ns = |place: u64| (count * step + 7) - place * step;
            let (mut together, mut one_by_one) = (LatencyHistogram::new(), LatencyHistogram::new());
            together.record_falling(count, latency_ns);
            (0..count).for_each(|place| one_by_one.record(latency_ns(place)));
            assert_eq!(together.buckets(), one_by_one.buckets(), "{count}");
            assert_eq!(together.summary(), one_by_one.summary(), "{count}");
        }
        // An hour of a million calls a second takes no longer than its buckets.
        let mut hour = LatencyHistogram::new();
        hour.record_falling(3_600_000_000, |place| (3_600_000_000 - place) * 1_000);
        assert_eq!((hour.count(), hour.min_ns()), (3_600_000_000, 1_000));
        assert!(hour.percentile_ns(50.0).abs_diff(1_800_000_000_000) < 1_800_000_000);
    }

    #[test]
    fn rank_of_a_percentile_is_exact() {
        let mut histogram = LatencyHistogram::new();
        (1..=2_000).for_each(|value| histogram.record(value));
        for (percent, expected) in [(50.0, 1_000), (99.9, 1_998), (99.99, 2_000), (0.0, 1)] {
            assert_eq!(histogram.percentile_ns(percent), expected, "{percent}");
        }
    }

    #[test]
    fn a_stall_counts_for_the_calls_that_it_kept() {
        let mut histogram = LatencyHistogram::new();
        (0..990).for_each(|_| histogram.record(100));
        histogram.record(1_000);
        let corrected = histogram.corrected(100);
        // 900, 800 and so on down to 100 are added.
        assert_eq!(corrected.count(), 991 + 9);
        assert_eq!((corrected.min_ns(), corrected.max_ns()), (100, 1_000));
        assert_eq!(corrected.percentile_ns(99.5), 500);
        assert_eq!(histogram.percentile_ns(99.5), 100);
        assert!(
            (corrected.mean_ns() - 104.5).abs() < 0.1,
            "{}",
            corrected.mean_ns()
        );
        // Without a stall nothing is added.
        assert_eq!(histogram.corrected(1_001).summary().count, 991);
        assert_eq!(LatencyHistogram::new().corrected(100).count(), 0);
    }

    #[test]
    fn the_correction_is_that_of_the_crate() {
        let mut histogram = LatencyHistogram::new();
        for (value, count) in [
            (0, 1),
            (1, 2),
            (99, 3),
            (2_047, 1),
            (70_123, 4),
            (3_000_001, 1),
        ] {
            histogram.record_equal(value, count);
        }
        for interval_ns in [0, 1, 9, 100, 5_000, 70_123, 2_999_999, 4_000_000] {
            let expected = histogram.buckets().clone_correct(interval_ns);
            let corrected = histogram.corrected(interval_ns);
            assert_eq!(corrected.buckets(), &expected, "{interval_ns}");
        }
    }

    #[test]
    fn an_hour_is_corrected_for_calls_each_nanosecond_in_little_time() {
        let mut histogram = LatencyHistogram::new();
        histogram.record(LATENCY_NS_MAX);
        let corrected = histogram.corrected(1);
        // The last bucket ends above the hour.
        let count = corrected.count();
        assert!((LATENCY_NS_MAX..LATENCY_NS_MAX / 1000 * 1001).contains(&count));
        assert_eq!(histogram.corrected(0).count(), 1);
    }

    #[test]
    fn a_histogram_that_says_it_is_longer_than_it_is_is_refused() {
        let mut histogram = LatencyHistogram::new();
        histogram.record(5);
        let exact = exact(&histogram);
        let mut plain = histogram.pack().buckets.to_vec();
        plain[4..8].copy_from_slice(&u32::MAX.to_be_bytes());
        let compress = |plain: &[u8]| {
            let mut bytes = COMPRESSED_COOKIE.to_vec();
            bytes.extend(u32::MAX.to_be_bytes());
            let level = flate2::Compression::default();
            let mut compressed = flate2::read::ZlibEncoder::new(plain, level);
            compressed.read_to_end(&mut bytes).unwrap();
            bytes
        };
        let zeros = vec![0; 8 << 20];
        for (bytes, words) in [
            (compress(&plain), "says that it has 4294967295 bytes"),
            (plain, "says that it has 4294967295 bytes"),
            (compress(&zeros), "more than"),
        ] {
            let error = LatencyHistogram::decode(&BASE64.encode(bytes), &exact).unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
        }
        let mut full = LatencyHistogram::new();
        let values: Vec<u64> = full
            .buckets
            .iter_all()
            .map(|it| it.value_iterated_to())
            .collect();
        values
            .into_iter()
            .filter(|it| *it <= LATENCY_NS_MAX)
            .for_each(|it| full.record_equal(it, u64::MAX >> 24));
        assert!((full.pack().buckets.len() as u64) < PLAIN_BYTES_MAX / 8);
    }

    #[test]
    fn a_cleared_histogram_is_as_new() {
        let mut histogram = LatencyHistogram::new();
        histogram.record(7);
        histogram.clear();
        assert_eq!(histogram.summary(), LatencyHistogram::new().summary());
        histogram.record(12);
        assert_eq!((histogram.min_ns(), histogram.max_ns()), (12, 12));
        let merged = {
            let mut merged = LatencyHistogram::new();
            merged.merge(&histogram.pack().unpack());
            merged
        };
        assert_eq!(merged.summary(), histogram.summary());
    }

    fn exact(histogram: &LatencyHistogram) -> ExactFigures {
        let LatencySummary {
            count,
            min,
            mean,
            max,
            ..
        } = histogram.summary();
        ExactFigures {
            count,
            min,
            mean,
            max,
        }
    }

    #[test]
    fn a_histogram_of_a_report_is_restored_exactly() {
        let mut histogram = LatencyHistogram::new();
        let empty = LatencyHistogram::decode(&histogram.encode(), &exact(&histogram)).unwrap();
        assert_eq!(empty.summary(), histogram.summary());
        for value in [400, 401, 70_123, LATENCY_NS_MAX + 9] {
            histogram.record_equal(value, 3);
        }
        let text = histogram.encode();
        assert!(text.starts_with("HISTFAAA"), "{text}");
        let restored = LatencyHistogram::decode(&text, &exact(&histogram)).unwrap();
        assert_eq!(restored.buckets(), histogram.buckets());
        assert_eq!(restored.summary(), histogram.summary());
        // Other programs write the format without compression too.
        let plain = BASE64.encode(&histogram.pack().buckets);
        assert!(plain.starts_with("HISTEw"), "{plain}");
        let restored = LatencyHistogram::decode(&plain, &exact(&histogram)).unwrap();
        assert_eq!(restored.summary(), histogram.summary());
    }

    #[test]
    fn invalid_or_contradicting_histogram_is_refused() {
        let mut histogram = LatencyHistogram::new();
        (1..=100).for_each(|value| histogram.record(value * 1_000));
        let (text, right) = (histogram.encode(), exact(&histogram));
        let refused = |text: &str, exact: ExactFigures| {
            LatencyHistogram::decode(text, &exact)
                .unwrap_err()
                .to_string()
        };
        assert!(refused("?", right).contains("no base64"));
        assert!(refused(&BASE64.encode("histogram"), right).contains("version 2"));
        for cut in 0..text.len() / 4 {
            // Without the checksum at the end it is still whole.
            if let Ok(restored) = LatencyHistogram::decode(&text[..cut * 4], &right) {
                assert!(cut * 4 + 12 > text.len(), "{cut}");
                assert_eq!(restored.summary(), histogram.summary());
            }
        }
        let fewer = ExactFigures { count: 99, ..right };
        assert!(refused(&text, fewer).contains("has 100 latencies"));
        for wrong in [
            ExactFigures {
                min: 100_001,
                ..right
            },
            ExactFigures { mean: 1.0, ..right },
            ExactFigures {
                mean: f64::NAN,
                ..right
            },
        ] {
            assert!(refused(&text, wrong).contains("contradict"), "{wrong:?}");
        }
        let mut long = Histogram::<u64>::new(3).unwrap();
        long.record(LATENCY_NS_MAX * 4).unwrap();
        let mut bytes = Vec::new();
        V2Serializer::new().serialize(&long, &mut bytes).unwrap();
        let one = ExactFigures {
            count: 1,
            min: 1,
            mean: 1.0,
            max: 1,
        };
        assert!(refused(&BASE64.encode(bytes), one).contains("more than an hour"));
    }

    #[test]
    fn more_latencies_than_any_load_has_are_refused() {
        let mut histogram = LatencyHistogram::new();
        histogram.record_equal(1_000, COUNT_MAX);
        assert!(LatencyHistogram::decode(&histogram.encode(), &exact(&histogram)).is_ok());
        for more in [
            &[(2_000, 1)][..],
            &[(1_000, 1 << 62), (2_000, 1 << 62), (3_000, 1 << 62)],
        ] {
            let mut many = histogram.clone();
            more.iter()
                .for_each(|(ns, calls)| many.record_equal(*ns, *calls));
            let error = LatencyHistogram::decode(&many.encode(), &exact(&many)).unwrap_err();
            assert_eq!(error, DecodeError::Many);
        }
    }

    #[test]
    fn readers_of_the_format_find_every_latency_of_a_report() {
        let mut histogram = LatencyHistogram::new();
        for value in [400, 401, 70_123, LATENCY_NS_MAX + 9] {
            histogram.record_equal(value, 3);
        }
        let text = histogram.encode();
        // The cookie of the compressed version 2 format, in base64.
        assert!(text.starts_with("HISTFAAA"), "{text}");
        let bytes = BASE64.decode(text).unwrap();
        let read: Histogram<u64> = Deserializer::new().deserialize(&mut &*bytes).unwrap();
        assert_eq!(&read, histogram.buckets());
    }

    proptest! {
        /// Percentiles against a sorted list: the oracle, within the promised 0.1 %.
        #[test]
        fn percentiles_agree_with_a_sorted_list(
            mut values in prop::collection::vec(0_u64..10_000_000, 1..400),
            percent in 0.0_f64..=100.0,
            split in 0_usize..400,
        ) {
            let (mut left, mut right) = (LatencyHistogram::new(), LatencyHistogram::new());
            for (index, value) in values.iter().enumerate() {
                if index < split { left.record(*value) } else { right.record(*value) }
            }
            left.merge(&right);
            let unpacked = left.pack().unpack();
            prop_assert_eq!(unpacked.buckets(), left.buckets());
            prop_assert_eq!(unpacked.summary(), left.summary());
            values.sort_unstable();
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
            let rank = ((percent / 100.0 * values.len() as f64).ceil() as usize).clamp(1, values.len());
            let expected = values[rank - 1];
            let got = left.percentile_ns(percent);
            // One neighbour of slack: the crate's own rank arithmetic rounds in floating point.
            let low = values[rank.saturating_sub(2)];
            let high = values[rank.min(values.len() - 1)];
            prop_assert!(got >= low && got <= high + high / 1000 + 1, "p{percent}: {got}, expected {expected}");
            prop_assert_eq!(left.min_ns(), values[0]);
            prop_assert_eq!(left.max_ns(), values[values.len() - 1]);
            prop_assert_eq!(left.count(), values.len() as u64);
            #[allow(clippy::cast_precision_loss)]
            let mean = values.iter().sum::<u64>() as f64 / values.len() as f64;
            prop_assert!((left.mean_ns() - mean).abs() <= mean * 1e-12);
        }
    }
}
