//! The arguments of null and echo calls, and the check of their results.

use super::{opaque_bytes, opaque_payload, pattern};

/// The arguments of a call: none for a null call, an XDR opaque with the payload for an echo.
#[derive(Debug)]
pub(crate) struct Payload {
    /// Payload length of an echo; `None` for a null call.
    bytes: Option<usize>,
}

impl Payload {
    /// `bytes` is the payload length of an echo, or `None` for a null call.
    pub(crate) fn new(bytes: Option<usize>) -> Self {
        Self { bytes }
    }

    /// Length of the arguments.
    pub(crate) fn args_bytes(&self) -> usize {
        self.bytes.map_or(0, opaque_bytes)
    }

    /// Writes the arguments of call `number` into `space`, which may have old contents. Returns their length.
    #[inline]
    pub(crate) fn write(&self, space: &mut [u8], number: u64) -> usize {
        let Some(bytes) = self.bytes else {
            return 0;
        };
        let args_bytes = opaque_bytes(bytes).min(space.len());
        if let Some((head, body)) = space.split_first_chunk_mut::<4>() {
            *head = u32::try_from(bytes).unwrap_or(u32::MAX).to_be_bytes();
            let (payload, padding) = body.split_at_mut(bytes.min(body.len()));
            pattern::fill(payload, 0, number);
            padding
                .iter_mut()
                .take(args_bytes.saturating_sub(4 + bytes))
                .for_each(|byte| *byte = 0);
        }
        args_bytes
    }

    /// Whether `results` are those of call `number`.
    #[inline]
    pub(crate) fn matches(&self, results: &[u8], number: u64) -> bool {
        let Some(bytes) = self.bytes else {
            return results.is_empty();
        };
        opaque_payload(results)
            .is_some_and(|payload| payload.len() == bytes && pattern::matches(payload, 0, number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_payload_matches_only_its_own_number() {
        for size in [0, 1, 7, 8, 9, 64, 4095, 4096, 4097, 65_536, 65_537] {
            let payload = Payload::new(Some(size));
            let mut space = vec![0xee; payload.args_bytes() + 3];
            let bytes = payload.write(&mut space, 0x0102_0304_0506_0708);
            assert_eq!(bytes, opaque_bytes(size));
            assert!(
                space[4 + size..bytes].iter().all(|byte| *byte == 0),
                "padding of {size}"
            );
            let args = &space[..bytes];
            assert!(payload.matches(args, 0x0102_0304_0506_0708), "{size}");
            assert_eq!(payload.matches(args, 0x0102_0304_0506_0709), size == 0);
            assert!(!payload.matches(&space[..bytes - 1], 0x0102_0304_0506_0708));
        }
    }

    #[test]
    fn a_null_call_has_no_arguments_and_wants_no_results() {
        let payload = Payload::new(None);
        assert_eq!(payload.write(&mut [0; 16], 1), 0);
        assert!(payload.matches(&[], 1) && !payload.matches(&[0; 4], 1));
    }
}
