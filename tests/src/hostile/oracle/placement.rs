//! Where items of a group may be: a list of every targetable segment of every transmission, and a walk along it.

use super::wire::{Item, Place};

/// A targetable segment of a transmission, in the order of the numbers.
#[derive(Clone, Copy, Debug)]
struct Target {
    transmission: u32,
    begin: u64,
    end: u64,
}

/// Octets of an item in one transmission.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    transmission: u32,
    begin: u64,
    end: u64,
}

/// What was found of the items of a group.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// Every part of every item that is placed.
    pub parts: Vec<Part>,
    /// Octets that the payload streams must have together.
    pub stream_least: u64,
}

/// Code and arguments of a report.
pub type Problem = Vec<u32>;

fn narrow(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

fn targets(segments: &[(u32, bool)], transmissions: u32) -> Vec<Target> {
    let mut targets = Vec::new();
    for transmission in 0..transmissions {
        let mut begin = 0;
        for (length, is_targetable) in segments {
            let end = begin + u64::from(*length);
            if *is_targetable {
                targets.push(Target {
                    transmission,
                    begin,
                    end,
                });
            }
            begin = end;
        }
    }
    targets
}

/// The number of the first targetable segment that begins at or behind this octet of a transmission, were the group
/// to go on without end.
fn first_free(segments: &[(u32, bool)], transmission: u32, octet: u64) -> u32 {
    let all = targets(segments, transmission + 2);
    let free = all
        .iter()
        .position(|target| (target.transmission, target.begin) >= (transmission, octet));
    u32::try_from(free.unwrap_or(0)).expect("few")
}

/// The sizes of a transmission that came: header, payload stream, all.
pub type Sizes = (u64, u64, u64);

/// Checks the items of a first transmission.
///
/// # Errors
/// What is wrong, as a report says it.
pub fn check_items(
    items: &[Item],
    segments: &[(u32, bool)],
    transmissions: u32,
    (header, stream, message): Sizes,
) -> Result<Found, Problem> {
    let targets = targets(segments, transmissions);
    let number_max = narrow(targets.len() as u64).saturating_sub(1);
    let mut found = Found::default();
    // The first octet that is free, and the first position of the virtual stream that is.
    let mut free = (0, header + stream);
    let mut position = 8_u64;
    let mut items_before = 0_u64;
    for item in items {
        let rounded = u64::from(item.length).div_ceil(4) * 4;
        match &item.place {
            Place::Nowhere => continue,
            Place::Memory(memory) => {
                let memory: u64 = memory.iter().map(|segment| u64::from(segment.1)).sum();
                if u64::from(item.length) > memory {
                    return Err(vec![6, item.length, 0, narrow(memory)]);
                }
            }
            Place::Sent(offset, numbers) => {
                let mut left = u64::from(item.length);
                let mut offset = u64::from(*offset);
                let mut walked = numbers.iter().copied();
                let mut latest = None;
                while left > 0 {
                    let Some(number) = walked.next() else {
                        let least = latest.map_or(0, |latest: u32| latest.saturating_add(1));
                        return Err(vec![7, latest.unwrap_or(0), least, number_max]);
                    };
                    let target = usize::try_from(number).ok().and_then(|at| targets.get(at));
                    let Some(target) = target else {
                        return Err(vec![7, number, 0, number_max]);
                    };
                    let size = target.end - target.begin;
                    if offset >= size {
                        return Err(vec![6, narrow(offset), 0, narrow(size - 1)]);
                    }
                    let begin = target.begin + offset;
                    if (target.transmission, begin) < free {
                        let has_room = target.transmission == free.0 && target.end > free.1;
                        if latest.is_none() && has_room {
                            let least = free.1.saturating_sub(target.begin);
                            return Err(vec![6, narrow(offset), narrow(least), narrow(size - 1)]);
                        }
                        let least = first_free(segments, free.0, free.1);
                        return Err(vec![7, number, least, number_max]);
                    }
                    let end = target.end.min(begin + left);
                    if target.transmission == 0 && end > message {
                        return Err(vec![7, number, 0, number.saturating_sub(1)]);
                    }
                    found.parts.push(Part {
                        transmission: target.transmission,
                        begin,
                        end,
                    });
                    free = (target.transmission, end);
                    left -= end - begin;
                    offset = 0;
                    latest = Some(number);
                }
            }
        }
        // The last position where it can stand: at the end of the stream, if that is known, and so that the item
        // ends within 32 bits.
        let stream_max = if transmissions == 1 {
            stream / 4 * 4
        } else {
            u64::from(u32::MAX)
        };
        let end_max = ((1_u64 << 32) - rounded) / 4 * 4;
        let last = (stream_max + items_before).min(end_max);
        let at = u64::from(item.displacement);
        if at % 4 != 0 || at < position || at > last {
            return Err(vec![6, item.displacement, narrow(position), narrow(last)]);
        }
        found.stream_least = at - items_before;
        items_before += rounded;
        position = at + rounded;
    }
    Ok(found)
}

impl Found {
    /// Checks a later transmission against the items. `so_far` is all that came of the payload stream, this
    /// transmission included.
    ///
    /// # Errors
    /// What is wrong, as a report says it.
    pub fn check_later(
        &self,
        segments: &[(u32, bool)],
        transmission: u32,
        is_last: bool,
        (header, stream, message): Sizes,
        so_far: u64,
    ) -> Result<(), Problem> {
        let here = || {
            self.parts
                .iter()
                .filter(move |part| part.transmission == transmission)
        };
        let holding = |octet: u64| {
            targets(segments, transmission + 1)
                .iter()
                .position(|target| {
                    target.transmission == transmission
                        && (target.begin..target.end).contains(&octet)
                })
                .map(|number| u32::try_from(number).expect("few"))
                .expect("an item is in a segment")
        };
        if let Some(end) = here().map(|part| part.end).max()
            && end > message
        {
            let number = holding(end - 1);
            return Err(vec![7, number, 0, number.saturating_sub(1)]);
        }
        if let Some(begin) = here().map(|part| part.begin).min()
            && begin < header + stream
        {
            let least = first_free(segments, transmission, header + stream);
            return Err(vec![7, holding(begin), least, u32::MAX]);
        }
        if is_last && so_far < self.stream_least {
            let least = narrow(stream + self.stream_least - so_far);
            return Err(vec![8, narrow(stream), least, u32::MAX]);
        }
        Ok(())
    }
}

/// Checks the ranges of directions.
///
/// # Errors
/// What is wrong, as a report says it.
pub fn check_ranges(ranges: &[(u32, u32)]) -> Result<(), Problem> {
    let mut free = 0;
    for (begin, end) in ranges {
        if *begin < free {
            return Err(vec![6, *begin, free, u32::MAX]);
        }
        if end < begin {
            return Err(vec![6, *end, *begin, u32::MAX]);
        }
        free = *end;
    }
    Ok(())
}
