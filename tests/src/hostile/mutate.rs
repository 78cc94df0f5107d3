//! What a hostile peer does to messages that are right.

use rpcrdma_testkit::Random;

/// A message, and whether something was done to it or to its place among the others.
pub(super) type Marked = (Vec<u8>, bool);

/// Values at which something changes: small counts, limits of ours and their neighbours, numbers of the wire, ends of
/// ranges.
pub(super) const VALUES: [u32; 38] = [
    0,
    1,
    2,
    3,
    4,
    5,
    6,
    7,
    8,
    9,
    16,
    17,
    31,
    32,
    63,
    64,
    65,
    127,
    128,
    255,
    256,
    257,
    1023,
    1024,
    1025,
    4096,
    0x0001_0000,
    0x0040_0001,
    0x0040_0040,
    0x5254_5201,
    0x5254_5202,
    0x5254_5203,
    0x5254_5204,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_fffc,
    0xffff_fffe,
    0xffff_ffff,
];

/// Replaces the word at `index`.
pub(super) fn set_word(message: &mut [u8], index: usize, value: u32) {
    if let Some(word) = message.get_mut(4 * index..4 * index + 4) {
        word.copy_from_slice(&value.to_be_bytes());
    }
}

fn word_of(message: &[u8], index: usize) -> u32 {
    let word = message.get(4 * index..4 * index + 4);
    word.map_or(0, |word| {
        u32::from_be_bytes(word.try_into().expect("four octets"))
    })
}

/// Changes one field, length or octet.
pub(super) fn mutate(message: &mut Vec<u8>, random: &mut Random) {
    let words = message.len() / 4;
    // Most fields are near the start.
    let near = words.min(if random.once_in(2) { 12 } else { 64 });
    let index = random.below(near);
    let before = word_of(message, index);
    match random.below(18) {
        0..=3 => set_word(message, index, random.pick(&VALUES)),
        4 => set_word(message, index, before.wrapping_add(1)),
        5 => set_word(message, index, before.wrapping_sub(1)),
        6 => set_word(message, index, before.wrapping_add(4)),
        7 => set_word(message, index, before.wrapping_sub(4)),
        8 => set_word(message, index, before ^ (1 << random.below(32))),
        9 => set_word(message, index, random.word()),
        10 => message.truncate(message.len().saturating_sub(1 + random.below(8))),
        11 => message.truncate(random.below(message.len() + 1)),
        12 => message.extend(vec![0; 1 + random.below(8)]),
        13 if words > 0 => {
            let at = 4 * index;
            message.splice(at..at, before.to_be_bytes());
        }
        14 if words > 0 => {
            message.drain(4 * index..4 * index + 4);
        }
        // A whole segment, or an entry of a list, once more or not at all.
        15 if words > 0 => {
            let bytes = random.pick(&[12, 16, 20, 24]);
            let end = (4 * index + bytes).min(message.len());
            let copy = message[4 * index..end].to_vec();
            message.splice(end..end, copy);
        }
        16 if words > 0 => {
            let bytes = random.pick(&[12, 16, 20, 24]);
            message.drain(4 * index..(4 * index + bytes).min(message.len()));
        }
        _ if !message.is_empty() => {
            let at = random.below(message.len());
            message[at] ^= 1 << random.below(8);
        }
        _ => message.push(0),
    }
}

/// Octets of no meaning, now and then behind a prefix.
pub(super) fn noise(random: &mut Random) -> Vec<u8> {
    let mut message: Vec<u8> = (0..random.below(160))
        .map(|_| random.next().to_le_bytes()[0])
        .collect();
    if !random.once_in(4) {
        let header_type = random.pick(&[
            0,
            1,
            4,
            5,
            0x5254_5201,
            0x5254_5202,
            0x5254_5203,
            0x5254_5204,
        ]);
        for (index, word) in [7, 2, 0x0040_0001, header_type, random.between(0, 3)]
            .into_iter()
            .enumerate()
        {
            set_word(&mut message, index, word);
        }
        // Small words make more of it valid.
        for index in 5..message.len() / 4 {
            if !random.once_in(4) {
                set_word(&mut message, index, random.between(0, 6));
            }
        }
    }
    message
}

/// Does something to a run of messages: to fields of one of them, or to their order.
pub(super) fn disturb(
    messages: Vec<Vec<u8>>,
    other: Vec<Vec<u8>>,
    random: &mut Random,
) -> Vec<Marked> {
    let mut marked: Vec<Marked> = messages
        .into_iter()
        .map(|message| (message, false))
        .collect();
    let at = random.below(marked.len());
    let is_run = marked.len() > 1;
    match random.below(10) {
        0 if is_run => {
            let with = random.below(marked.len());
            marked.swap(at, with);
            mark_from(&mut marked, at.min(with));
        }
        1 if is_run => {
            marked.remove(at);
            mark_from(&mut marked, at);
        }
        2 => {
            marked.insert(at, marked[at].clone());
            mark_from(&mut marked, at + 1);
        }
        3 | 4 => {
            let others = other.into_iter().map(|message| (message, true));
            marked.splice(at..at, others);
            mark_from(&mut marked, at);
        }
        // All of them belong to another call, or flow the other way.
        5 => {
            let (index, flip) = random.pick(&[(0, 1), (4, 1), (4, 2)]);
            for (message, is_hostile) in marked.iter_mut().skip(at) {
                let before = word_of(message, index);
                set_word(message, index, before ^ flip);
                *is_hostile = true;
            }
        }
        _ => {
            let most = random.pick(&[1, 1, 2, 4]);
            let mutations = 1 + random.below(most);
            let (message, is_hostile) = &mut marked[at];
            for _ in 0..mutations {
                mutate(message, random);
            }
            *is_hostile = true;
            mark_from(&mut marked, at);
        }
    }
    marked
}

/// What comes behind is hostile too: it meets a state that it was not made for.
fn mark_from(marked: &mut [Marked], at: usize) {
    for (_, is_hostile) in marked.iter_mut().skip(at) {
        *is_hostile = true;
    }
}
