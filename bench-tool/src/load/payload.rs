//! What is sent, and the check of what comes back.

use crate::bench_program::{opaque_bytes, opaque_payload};

/// A word of the payload is rewritten and checked in every stretch of this many bytes.
const STRETCH_BYTES: usize = 4096;

/// The arguments of an echo: an XDR opaque whose payload is marked with the call's number in its
/// first eight bytes and in those of every further 4 KiB, and in its last.
#[derive(Debug)]
pub(crate) struct Payload {
    template: Vec<u8>,
    payload_bytes: usize,
}

impl Payload {
    /// `None` payload at all for a null call.
    pub(crate) fn new(payload_bytes: Option<usize>) -> Self {
        let Some(payload_bytes) = payload_bytes else {
            return Self {
                template: Vec::new(),
                payload_bytes: 0,
            };
        };
        let mut template = vec![0; opaque_bytes(payload_bytes)];
        let length = u32::try_from(payload_bytes).unwrap_or(u32::MAX);
        if let Some((head, body)) = template.split_first_chunk_mut::<4>() {
            *head = length.to_be_bytes();
            for (index, byte) in body.iter_mut().take(payload_bytes).enumerate() {
                // A pattern that no shift by a page or a word maps onto itself.
                *byte = u8::try_from((index ^ (index >> 8) ^ (index >> 16)) & 0xff).unwrap_or(0);
            }
        }
        Self {
            template,
            payload_bytes,
        }
    }

    /// Bytes of the arguments.
    pub(crate) fn args_bytes(&self) -> usize {
        self.template.len()
    }

    /// Writes the arguments of call number `number` into `space`, all of it rewritten; returns
    /// their length.
    #[inline]
    pub(crate) fn write(&self, space: &mut [u8], number: u64) -> usize {
        let bytes = self.template.len().min(space.len());
        let Some(space) = space.get_mut(..bytes) else {
            return 0;
        };
        space.copy_from_slice(&self.template[..bytes]);
        if let Some(payload) = space.get_mut(4..4 + self.payload_bytes) {
            for stretch in payload.chunks_mut(STRETCH_BYTES) {
                mark(stretch, number);
            }
        }
        bytes
    }

    /// Whether `results` are what call number `number` sent.
    #[inline]
    pub(crate) fn matches(&self, results: &[u8], number: u64) -> bool {
        if self.template.is_empty() {
            return results.is_empty();
        }
        let Some(payload) = opaque_payload(results) else {
            return false;
        };
        payload.len() == self.payload_bytes
            && payload
                .chunks(STRETCH_BYTES)
                .all(|stretch| is_marked(stretch, number))
    }
}

fn mark(stretch: &mut [u8], number: u64) {
    let word = number.to_le_bytes();
    let bytes = word.len().min(stretch.len());
    if let Some(start) = stretch.get_mut(..bytes) {
        start.copy_from_slice(&word[..bytes]);
    }
    if let Some(last) = stretch.get_mut(bytes..).and_then(<[u8]>::last_mut) {
        *last = word[0];
    }
}

fn is_marked(stretch: &[u8], number: u64) -> bool {
    let word = number.to_le_bytes();
    let bytes = word.len().min(stretch.len());
    stretch.get(..bytes) == Some(&word[..bytes])
        && stretch
            .get(bytes..)
            .and_then(<[u8]>::last)
            .is_none_or(|last| *last == word[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_matches_its_number_alone() {
        for size in [0, 1, 7, 8, 9, 64, 4095, 4096, 4097, 65_536, 65_537] {
            let payload = Payload::new(Some(size));
            let mut space = vec![0xee; payload.args_bytes() + 3];
            let bytes = payload.write(&mut space, 0x0102_0304_0506_0708);
            assert_eq!(bytes, opaque_bytes(size));
            assert!(
                payload.matches(&space[..bytes], 0x0102_0304_0506_0708),
                "{size}"
            );
            assert_eq!(
                payload.matches(&space[..bytes], 0x0102_0304_0506_0709),
                size == 0
            );
            assert!(!payload.matches(&space[..bytes - 1], 0x0102_0304_0506_0708));
            for stretch in 0..size.div_ceil(STRETCH_BYTES) {
                let mut wrong = space[..bytes].to_vec();
                wrong[4 + stretch * STRETCH_BYTES] ^= 1;
                assert!(
                    !payload.matches(&wrong, 0x0102_0304_0506_0708),
                    "{size} at {stretch}"
                );
            }
        }
    }

    #[test]
    fn a_null_call_has_no_arguments_and_wants_no_results() {
        let payload = Payload::new(None);
        assert_eq!(payload.write(&mut [0; 16], 1), 0);
        assert!(payload.matches(&[], 1) && !payload.matches(&[0; 4], 1));
    }
}
