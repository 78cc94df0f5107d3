//! The content of the test files. Every byte follows from seed, file and offset, so any part of a file can be
//! checked.
//!
//! Each 4 KiB page starts with a word computed from the file's key and the page number; all other bytes are the
//! word's lowest byte. So a look at each page's word and at the last byte finds data of another file or page, old
//! data, a hole, and a missing end. `--verify` checks every byte.

/// Each page of this size starts with a word.
const PAGE_BYTES: u64 = 4096;

/// Size of the word.
const WORD_BYTES: usize = 8;

/// The key of file `file` in a load with this seed.
pub(crate) fn key(seed: u64, file: u32) -> u64 {
    mixed(seed ^ mixed(u64::from(file) + 1))
}

/// Mixes all bits, so that neighbouring numbers give unrelated results (the output function of SplitMix64).
pub(crate) fn mixed(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

/// The word of a page. Its lowest byte is never 0, because a hole reads as 0.
fn word(key: u64, page: u64) -> [u8; WORD_BYTES] {
    (mixed(key ^ page) | 1).to_le_bytes()
}

/// Divides a piece of `bytes` bytes at `offset` into its pages and calls `each` for every part with: the part's
/// position in the piece, the bytes of the page's word at its start, the number of bytes after these, and their
/// value. Stops when `each` returns false.
fn parts(
    key: u64,
    offset: u64,
    bytes: usize,
    mut each: impl FnMut(usize, &[u8], usize, u8) -> bool,
) -> bool {
    let mut at = 0;
    while at < bytes {
        let place = offset.wrapping_add(at as u64);
        let word = word(key, place / PAGE_BYTES);
        // A page has 4096 bytes on every machine.
        #[allow(clippy::cast_possible_truncation, reason = "below the bytes of a page")]
        let (within, page) = ((place % PAGE_BYTES) as usize, PAGE_BYTES as usize);
        let length = (page - within).min(bytes - at);
        // A piece may begin inside a page, or even inside its word: then only the rest of the word is in the part.
        let start = word.get(within..).unwrap_or(&[]);
        let start = start.get(..length).unwrap_or(start);
        if !each(at, start, length - start.len(), word[0]) {
            return false;
        }
        at += length;
    }
    true
}

/// Fills a piece of a file that starts at `offset`.
#[inline]
pub(crate) fn fill(piece: &mut [u8], offset: u64, key: u64) {
    parts(key, offset, piece.len(), |at, start, rest, byte| {
        let Some((head, tail)) = piece
            .get_mut(at..at + start.len() + rest)
            .and_then(|part| part.split_at_mut_checked(start.len()))
        else {
            return false;
        };
        head.copy_from_slice(start);
        tail.fill(byte);
        true
    });
}

/// Whether a piece has the file's content at `offset`. Checks the word of each page and the last byte of each part,
/// or `every` byte.
#[inline]
#[must_use]
pub(crate) fn matches(piece: &[u8], offset: u64, key: u64, every: bool) -> bool {
    parts(key, offset, piece.len(), |at, start, rest, byte| {
        let Some((head, tail)) = piece
            .get(at..at + start.len() + rest)
            .and_then(|part| part.split_at_checked(start.len()))
        else {
            return false;
        };
        let tail_matches = if every {
            tail.iter().all(|it| *it == byte)
        } else {
            tail.last().is_none_or(|last| *last == byte)
        };
        head == start && tail_matches
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn piece(bytes: usize, offset: u64, key: u64) -> Vec<u8> {
        let mut piece = vec![0; bytes];
        fill(&mut piece, offset, key);
        piece
    }

    #[test]
    fn no_byte_of_a_file_can_change_without_being_seen() {
        let key = key(1, 0);
        let whole = piece(3 * 4096 + 5, 0, key);
        assert!(matches(&whole, 0, key, true) && matches(&whole, 0, key, false));
        for at in 0..whole.len() {
            let mut wrong = whole.clone();
            wrong[at] ^= 0x40;
            assert!(!matches(&wrong, 0, key, true), "{at}");
        }
    }

    #[test]
    fn another_page_another_file_and_a_hole_are_seen_at_a_glance() {
        let one = key(1, 0);
        let page = piece(4096, 8192, one);
        assert!(!matches(&page, 4096, one, false), "another place");
        assert!(!matches(&page, 8192, key(1, 1), false), "another file");
        assert!(!matches(&page, 8192, key(2, 0), false), "another load");
        assert!(!matches(&[0; 4096], 8192, one, false), "a hole");
        for bytes in 1..20 {
            assert!(
                !matches(&vec![0; bytes], 4096 * 7 + 3, one, false),
                "{bytes}"
            );
        }
        let mut cut = page;
        cut.truncate(4000);
        cut.resize(4096, 0);
        assert!(!matches(&cut, 8192, one, false), "an end that is missing");
    }

    proptest! {
        #[test]
        fn pieces_of_any_length_make_the_same_file(
            start in prop_oneof![0_u64..20_000, (u64::MAX / 2)..(u64::MAX / 2 + 9_000)],
            bytes in 0_usize..20_000,
            cut in 1_usize..9_000,
        ) {
            let key = key(7, 3);
            let whole = piece(bytes, start, key);
            let mut pieces = vec![0; bytes];
            for (index, part) in pieces.chunks_mut(cut).enumerate() {
                let offset = start + (index * cut) as u64;
                fill(part, offset, key);
                prop_assert!(matches(part, offset, key, true));
            }
            prop_assert_eq!(pieces, whole);
        }
    }
}
