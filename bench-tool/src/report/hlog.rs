//! The histograms of all intervals as an HdrHistogram interval log, version 1.3, which
//! `HistogramLogProcessor`, `HistogramLogAnalyzer` and the libraries of many languages read.
//!
//! Lines without a tag are for all cores together. With several cores, each core also has lines with the tag `coreN`.

use std::time::Duration;

use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriter, IntervalLogWriterBuilder, Tag};

use crate::histogram::{LatencyHistogram, PackedHistogram};
use crate::load::timeline::{CoreTimeline, Timeline};

/// Shows the maximum of an interval in milliseconds, as the format's own tools do.
const MAX_VALUE_DIVISOR: f64 = 1e6;

/// The column names, which the format requires; readers skip them.
const LEGEND: &str =
    "\"StartTimestamp\",\"Interval_Length\",\"Interval_Max\",\"Interval_Compressed_Histogram\"\n";

type Writer<'a, 'b> = IntervalLogWriter<'a, 'b, Vec<u8>, V2DeflateSerializer>;

/// The log of a run; `command` is its command line. Values are in nanoseconds.
///
/// # Panics
/// Never: writing to memory cannot fail, and the log is UTF-8 text.
#[must_use]
pub(crate) fn text(timeline: &Timeline, command: &str) -> String {
    let mut log = Vec::new();
    let mut serializer = V2DeflateSerializer::new();
    {
        let mut writer = IntervalLogWriterBuilder::new()
            .add_comment("[Histogram log format version 1.3]")
            .add_comment(&format!("[Logged with bench-tool {}]", crate::VERSION))
            .add_comment(&format!("[Command: {command}]"))
            .add_comment(
                "[Values are round-trip times in nanoseconds; Interval_Max is in milliseconds]",
            )
            .with_start_time(timeline.began)
            .with_base_time(timeline.began)
            .with_max_value_divisor(MAX_VALUE_DIVISOR)
            .begin_log_with(&mut log, &mut serializer)
            .expect("memory takes a heading");
        write_intervals(&mut writer, timeline);
    }
    // The writer has no function for the line of column names, so insert it after the comments.
    let mut text = String::from_utf8(log).expect("a log is text");
    let lines = text.split_inclusive('\n');
    let heading = lines.take_while(|line| line.starts_with('#'));
    let heading_bytes = heading.map(str::len).sum();
    text.insert_str(heading_bytes, LEGEND);
    text
}

fn write_intervals(writer: &mut Writer<'_, '_>, timeline: &Timeline) {
    let mut write =
        |(start, length): (Duration, Duration), latency: &LatencyHistogram, tag: &str| {
            let tag = Tag::new(tag).filter(|tag| !tag.is_empty());
            writer
                .write_histogram(latency.buckets(), start, length, tag)
                .expect("memory takes all buckets");
        };
    let several = timeline.cores.len() > 1;
    let mut intervals = timeline.merged().peekable();
    while let Some((span, number, mut latency)) = intervals.next() {
        // The waits in vain ended in no interval. Without them the sum of the log would have too few slow calls.
        let is_last = intervals.peek().is_none();
        let unanswered = |core: &CoreTimeline| {
            let waits = core.unanswered.as_ref().filter(|_| is_last);
            waits.map(PackedHistogram::unpack)
        };
        let waits = timeline.cores.iter().filter_map(unanswered);
        waits.for_each(|waits| latency.merge(&waits));
        write(span, &latency, "");
        for core in timeline.cores.iter().filter(|_| several) {
            let mut latency = core.interval(number);
            if let Some(waits) = unanswered(core) {
                latency.merge(&waits);
            }
            write(span, &latency, &format!("core{}", core.core));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::timeline::tests::timeline;
    use hdrhistogram::Histogram;
    use hdrhistogram::serialization::Deserializer;
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

    /// One line: start in ms, length in ms, maximum as logged, tag, and histogram.
    type Line = (u128, u128, f64, Option<String>, Histogram<u64>);

    fn decode_base64(text: &str) -> Vec<u8> {
        let sextet = |c: u8| match c {
            b'A'..=b'Z' => c - b'A',
            b'a'..=b'z' => c - b'a' + 26,
            b'0'..=b'9' => c - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            other => panic!("{other} is no base64"),
        };
        let mut bytes = Vec::new();
        for group in text.trim_end_matches('=').as_bytes().chunks(4) {
            let bits = group
                .iter()
                .fold(0_u32, |bits, c| bits << 6 | u32::from(sextet(*c)));
            let bits = bits << (6 * (4 - group.len()));
            bytes.extend_from_slice(&bits.to_be_bytes()[1..group.len()]);
        }
        bytes
    }

    fn read(text: &str) -> (Vec<Line>, Vec<Duration>) {
        let (mut lines, mut times) = (Vec::new(), Vec::new());
        for entry in IntervalLogIterator::new(text.as_bytes()) {
            match entry.expect("a line of the format") {
                LogEntry::StartTime(time) | LogEntry::BaseTime(time) => times.push(time),
                LogEntry::Interval(line) => {
                    let bytes = decode_base64(line.encoded_histogram());
                    lines.push((
                        line.start_timestamp().as_millis(),
                        line.duration().as_millis(),
                        line.max(),
                        line.tag().map(|tag| tag.as_str().to_owned()),
                        Deserializer::new().deserialize(&mut &bytes[..]).unwrap(),
                    ));
                }
            }
        }
        (lines, times)
    }

    #[test]
    fn readers_of_the_format_find_every_interval_and_every_call() {
        let (lines, times) = read(&text(&timeline(), "bench-tool run"));
        assert_eq!(times, [Duration::from_secs(1_700_000_000); 2]);
        let places: Vec<_> = lines
            .iter()
            .map(|(start, length, _, tag, latency)| {
                (
                    *start,
                    *length,
                    tag.as_deref().unwrap_or("all"),
                    latency.len(),
                )
            })
            .collect();
        let expected = [
            (0, 1_000, "all", 200),
            (0, 1_000, "core2", 100),
            (0, 1_000, "core3", 100),
            (1_000, 1_000, "all", 200),
            (1_000, 1_000, "core2", 200),
            (1_000, 1_000, "core3", 0),
            (2_000, 500, "all", 100),
            (2_000, 500, "core2", 50),
            (2_000, 500, "core3", 50),
        ];
        assert_eq!(places, expected);
        let (_, _, max, _, latency) = &lines[6];
        assert_eq!(latency.max(), 2_000);
        assert!((max - 0.002).abs() < 1e-9, "{max} ms");
        let mut total = lines[0].4.clone();
        for line in lines.iter().filter(|line| line.3.is_none()).skip(1) {
            total.add(&line.4).unwrap();
        }
        assert_eq!((total.len(), total.value_at_quantile(0.5)), (500, 600));
    }

    #[test]
    fn one_core_needs_no_tags() {
        let mut alone = timeline();
        alone.cores.truncate(1);
        let (lines, _) = read(&text(&alone, "bench-tool run"));
        assert_eq!(lines.len(), 3);
        assert!(lines.iter().all(|line| line.3.is_none()));
    }

    #[test]
    fn it_has_the_heading_of_the_format() {
        let text = text(&timeline(), "bench-tool run\n'Tag=x,1,2,3,4'");
        let (heading, rows) = text.split_once(LEGEND).unwrap();
        assert!(
            heading.lines().all(|line| line.starts_with('#')),
            "{heading}"
        );
        for line in [
            "#[Histogram log format version 1.3]",
            "#[StartTime: 1700000000.000 (seconds since epoch)]",
            "#[BaseTime: 1700000000.000 (seconds since epoch)]",
            "#[MaxValueDivisor: 1000000.000]",
        ] {
            assert!(heading.lines().any(|it| it == line), "{line}\n{heading}");
        }
        // The cookie of the compressed version 2 format, in base64.
        for row in rows.lines() {
            let encoded = row.rsplit(',').next().unwrap();
            assert!(encoded.starts_with("HISTFAAA"), "{row}");
        }
    }
}
