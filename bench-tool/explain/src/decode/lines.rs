//! Writes the lines of a paragraph.

use std::fmt::{self, Write as _};

use rpcrdma_units::size;

use super::message::Segment;

/// The number of segments of a chunk that the text shows. It counts the others.
const SEGMENTS_SHOWN: usize = 4;

/// Writes one line of the paragraph: a name, then the rest.
pub(crate) fn row(text: &mut String, name: &str, rest: &str) -> fmt::Result {
    writeln!(text, "  {name:<12}{rest}")
}

/// Describes the segments of a chunk: their length, and the handle and offset of the first ones.
pub(crate) fn describe(segments: &[Segment]) -> String {
    let total = segments
        .iter()
        .map(|segment| u64::from(segment.length))
        .sum();
    let shown: Vec<String> = segments
        .iter()
        .take(SEGMENTS_SHOWN)
        .map(|segment| {
            format!(
                "{} at {:#010x}+{:#x}",
                size(segment.length.into()),
                segment.handle,
                segment.offset
            )
        })
        .collect();
    match segments.len() {
        0 => "no segments".to_owned(),
        1 => shown.concat(),
        number if number > SEGMENTS_SHOWN => format!(
            "{} in {number} segments: {} and {} more",
            size(total),
            shown.join(", "),
            number - SEGMENTS_SHOWN
        ),
        number => format!("{} in {number} segments: {}", size(total), shown.join(", ")),
    }
}
