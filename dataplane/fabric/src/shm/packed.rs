//! Packs short messages: it leaves out blocks of zeroes, so that a record takes a single cache line.
//!
//! A line that moves from one processor to another costs as much as a few hundred instructions, and
//! an RPC message is full of zeroes: empty lists, credentials without a body, a status of success. A
//! message of up to 112 bytes is divided into blocks of 16 bytes. The last block ends with the message
//! and may overlap the one before. If at most three blocks are not zero, these three are the payload,
//! and a mask has one bit for each of them.

use super::copy::copy_block;
use super::record::{FIRST_LINE_BYTES, PACKED_BYTES_MAX, SHORT_BYTES_MIN};

/// The unit of packing.
const BLOCK_BYTES: usize = 16;
/// Blocks of a packed payload.
const BLOCKS: usize = 3;
/// The bit of the last block in a mask, for any number of blocks.
const LAST: u32 = 7;

const _: () = {
    assert!(BLOCKS * BLOCK_BYTES == FIRST_LINE_BYTES as usize);
    assert!(SHORT_BYTES_MIN as usize > 2 * BLOCK_BYTES);
    assert!(PACKED_BYTES_MAX as usize <= LAST as usize * BLOCK_BYTES);
};

/// The mask, and the mask without its first one, two and three blocks.
#[inline]
fn without_first_blocks(mask: u8) -> [u32; BLOCKS + 1] {
    let without_first = |mask: u32| mask & mask.wrapping_sub(1);
    let all = u32::from(mask);
    let without_one = without_first(all);
    let without_two = without_first(without_one);
    [all, without_one, without_two, without_first(without_two)]
}

/// The offsets in the message of the three blocks of a packed payload: those in the mask, and the last
/// block in the place of missing ones.
#[inline]
fn blocks(mask: u8, bytes: usize) -> [usize; BLOCKS] {
    let [first, second, third, _] = without_first_blocks(mask);
    [first, second, third].map(|rest| {
        let number = (rest | 1 << LAST).trailing_zeros() as usize;
        (number * BLOCK_BYTES).min(bytes - BLOCK_BYTES)
    })
}

/// The mask of the blocks of a message that are not zero; `None` if there are more than three.
///
/// # Safety
///
/// There are `bytes` bytes at `source`, [`SHORT_BYTES_MIN`] to [`PACKED_BYTES_MAX`], that nobody
/// else writes.
#[inline]
pub(super) unsafe fn mask_of(source: *const u8, bytes: usize) -> Option<u8> {
    let is_used = |at: usize| {
        // SAFETY: as the caller promises; words need no alignment.
        let words = unsafe { source.add(at).cast::<[u64; 2]>().read_unaligned() };
        u8::from(words[0] | words[1] != 0)
    };
    let last = bytes - BLOCK_BYTES;
    let mut mask = is_used(0) | is_used(BLOCK_BYTES) << 1 | is_used(last) << LAST;
    for number in 2..LAST {
        let at = number as usize * BLOCK_BYTES;
        if at >= last {
            break;
        }
        mask |= is_used(at) << number;
    }
    let [.., too_many] = without_first_blocks(mask);
    (too_many == 0).then_some(mask)
}

/// Writes the packed payload of a message with the blocks of `mask`.
///
/// # Safety
///
/// As in [`mask_of`], whose result `mask` is; `payload` lies in the first line of a record that is
/// nobody else's.
#[inline]
pub(super) unsafe fn pack(source: *const u8, mask: u8, bytes: usize, payload: *mut u8) {
    for (number, block) in blocks(mask, bytes).into_iter().enumerate() {
        // SAFETY: every block ends within the message, and its place within the line.
        unsafe { copy_block::<BLOCK_BYTES>(source.add(block), payload.add(number * BLOCK_BYTES)) };
    }
}

/// Unpacks a message of `bytes` bytes from its payload. Any mask and any payload give some message. The
/// bytes after it are zeroed, up to [`PACKED_BYTES_MAX`].
///
/// # Safety
///
/// `bytes` is [`SHORT_BYTES_MIN`] to [`PACKED_BYTES_MAX`], there is room for the latter at `target`,
/// which is nobody else's, and `payload` lies in a mapped record. A peer may change it meanwhile.
#[inline]
pub(super) unsafe fn unpack(payload: *const u8, mask: u8, bytes: usize, target: *mut u8) {
    // SAFETY: as the caller promises; every block ends within the message.
    unsafe {
        target
            .cast::<[u8; PACKED_BYTES_MAX as usize]>()
            .write([0; PACKED_BYTES_MAX as usize]);
        for (number, block) in blocks(mask, bytes).into_iter().enumerate() {
            copy_block::<BLOCK_BYTES>(payload.add(number * BLOCK_BYTES), target.add(block));
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn packed(message: &[u8]) -> Option<(u8, [u8; BLOCKS * BLOCK_BYTES])> {
        let mut payload = [0xa5; BLOCKS * BLOCK_BYTES];
        // SAFETY: the message has its length, the payload its room.
        unsafe {
            let mask = mask_of(message.as_ptr(), message.len())?;
            pack(message.as_ptr(), mask, message.len(), payload.as_mut_ptr());
            Some((mask, payload))
        }
    }

    fn unpacked(mask: u8, payload: &[u8; BLOCKS * BLOCK_BYTES], bytes: usize) -> Vec<u8> {
        let mut message = vec![0xa5; PACKED_BYTES_MAX as usize + 1];
        // SAFETY: the message has the room, the payload its length.
        unsafe { unpack(payload.as_ptr(), mask, bytes, message.as_mut_ptr()) };
        assert_eq!(
            message.pop(),
            Some(0xa5),
            "nothing is written behind the room"
        );
        message.truncate(bytes);
        message
    }

    fn lengths() -> std::ops::RangeInclusive<usize> {
        SHORT_BYTES_MIN as usize..=PACKED_BYTES_MAX as usize
    }

    proptest! {
        #[test]
        fn a_message_comes_back_as_it_was(
            bytes in lengths(),
            changes in proptest::collection::vec((0_usize..112, any::<u8>()), 0..6),
        ) {
            let mut message = vec![0; bytes];
            for (at, byte) in changes {
                message[at % bytes] = byte;
            }
            let last = bytes - BLOCK_BYTES;
            let used = (0..last).step_by(BLOCK_BYTES).chain([last])
                .filter(|at| message[*at..*at + BLOCK_BYTES].iter().any(|byte| *byte != 0))
                .count();
            let packed = packed(&message);
            prop_assert_eq!(packed.is_some(), used <= BLOCKS);
            if let Some((mask, payload)) = packed {
                prop_assert_eq!(unpacked(mask, &payload, bytes), message);
            }
        }

        #[test]
        fn any_mask_leads_to_some_message(bytes in lengths(), mask: u8) {
            let message = unpacked(mask, &[1; BLOCKS * BLOCK_BYTES], bytes);
            prop_assert!(message.iter().all(|byte| *byte <= 1));
        }
    }
}
