//! The content of payloads, and its check.
//!
//! Each payload has a number, which the caller chooses. Each 4 KiB page of the payload starts with eight bytes: the
//! number with the page's own number in its upper 16 bits (by XOR), in little-endian order. Every other byte is the
//! number's lowest byte. So a look at each page's first word and at the last byte finds a payload of another call, a
//! page in the wrong place, and a missing end.
//!
//! A payload may be in several pieces of any length: each is filled and checked with its offset.

/// Each page of this size starts with a word.
const PAGE_BYTES: usize = 4096;

/// Size of the word.
const WORD_BYTES: usize = 8;

/// Position of the page's number in the word.
const PAGE_SHIFT: u32 = 48;

/// The word of page `page` of payload `number`.
fn word(number: u64, page: usize) -> [u8; WORD_BYTES] {
    (number ^ (page as u64) << PAGE_SHIFT).to_le_bytes()
}

/// The lowest byte of a number.
fn low(number: u64) -> u8 {
    number.to_le_bytes()[0]
}

/// Calls `each` for every word of which a piece of `bytes` bytes at `offset` contains a part, with the part's
/// position in the piece and its bytes. Stops when `each` returns false.
fn words(
    number: u64,
    offset: usize,
    bytes: usize,
    mut each: impl FnMut(usize, &[u8]) -> bool,
) -> bool {
    let mut page = offset / PAGE_BYTES;
    loop {
        let start = page * PAGE_BYTES;
        if start >= offset + bytes {
            return true;
        }
        let from = start.max(offset);
        let to = (start + WORD_BYTES).min(offset + bytes);
        let word = word(number, page);
        if let Some(part) = from
            .checked_sub(start)
            .zip(to.checked_sub(start))
            .and_then(|(from, to)| word.get(from..to))
            && !each(from - offset, part)
        {
            return false;
        }
        page += 1;
    }
}

/// Fills the piece of payload `number` that starts at `offset`.
#[inline]
pub(crate) fn fill(piece: &mut [u8], offset: usize, number: u64) {
    piece.fill(low(number));
    words(number, offset, piece.len(), |at, part| {
        let space = piece.get_mut(at..).unwrap_or(&mut []);
        // Nearly all words are whole. Their length is a constant here, so the copy is one store instead of a call of
        // the C library.
        if let (Ok(word), Some(place)) =
            (<&[u8; WORD_BYTES]>::try_from(part), space.first_chunk_mut())
        {
            *place = *word;
        } else if let Some(space) = space.get_mut(..part.len()) {
            space.copy_from_slice(part);
        }
        true
    });
}

/// Whether the piece that starts at `offset` belongs to payload `number`. Checks the word of each page and the last
/// byte.
#[inline]
#[must_use]
pub(crate) fn matches(piece: &[u8], offset: usize, number: u64) -> bool {
    let end = offset + piece.len();
    let behind_word = (end.wrapping_sub(1)) % PAGE_BYTES >= WORD_BYTES;
    // Inside a page's word the last byte is not the filler; the check of the words covers it.
    let last = piece
        .last()
        .is_none_or(|last| !behind_word || *last == low(number));
    last && words(number, offset, piece.len(), |at, part| {
        let there = piece.get(at..).unwrap_or(&[]);
        match (<&[u8; WORD_BYTES]>::try_from(part), there.first_chunk()) {
            (Ok(word), Some(there)) => there == word,
            _ => there.get(..part.len()) == Some(part),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NUMBER: u64 = 0x0102_0304_0506_0708;

    fn payload(bytes: usize, number: u64) -> Vec<u8> {
        let mut payload = vec![0xee; bytes];
        fill(&mut payload, 0, number);
        payload
    }

    #[test]
    fn filled_pattern_matches_only_its_own_number() {
        for bytes in [1, 7, 8, 9, 64, 4095, 4096, 4097, 65_536, 65_541] {
            let payload = payload(bytes, NUMBER);
            assert!(matches(&payload, 0, NUMBER), "{bytes}");
            assert!(!matches(&payload, 0, NUMBER + 1), "{bytes}");
            for page in 0..bytes.div_ceil(PAGE_BYTES) {
                let mut wrong = payload.clone();
                wrong[page * PAGE_BYTES] ^= 1;
                assert!(!matches(&wrong, 0, NUMBER), "{bytes} at page {page}");
            }
            let mut short = payload;
            *short.last_mut().unwrap() ^= 1;
            assert!(!matches(&short, 0, NUMBER), "the end of {bytes}");
        }
        assert!(matches(&[], 0, NUMBER), "nothing is what it should be");
    }

    #[test]
    fn pages_that_changed_places_are_seen() {
        let mut payload = payload(2 * PAGE_BYTES, NUMBER);
        payload.rotate_left(PAGE_BYTES);
        assert!(!matches(&payload, 0, NUMBER));
    }

    #[test]
    fn pieces_of_any_length_make_the_same_payload() {
        let whole = payload(3 * PAGE_BYTES + 5, NUMBER);
        for cut in [1, 3, 7, 8, 1000, 4095, 4096, 4099, 9000] {
            let mut pieces = vec![0; whole.len()];
            for (index, piece) in pieces.chunks_mut(cut).enumerate() {
                fill(piece, index * cut, NUMBER);
                assert!(matches(piece, index * cut, NUMBER), "{cut} at {index}");
                if piece.len() >= PAGE_BYTES + WORD_BYTES {
                    assert!(
                        !matches(piece, (index + 1) * cut, NUMBER),
                        "{cut}: another place"
                    );
                }
            }
            assert_eq!(pieces, whole, "{cut}");
        }
    }
}
