//! Messages of the handshake of `shm` against a reading by their lengths.

use rpcrdma_fabric::testing::shm_message_again;

pub(super) fn run(data: &[u8]) {
    let again = shm_message_again(data);
    assert_eq!(again, reference(data));
    if let Some(again) = again {
        assert_eq!(shm_message_again(&again), Some(again.clone()));
    }
}

/// The message as it is to be written: the octets themselves, but for what a rejection says more than
/// is kept of it.
fn reference(data: &[u8]) -> Option<Vec<u8>> {
    let octet = |at: usize| data.get(at).copied().map(usize::from);
    let u16_at = |at: usize| Some(octet(at)? + 256 * octet(at + 1)?);
    let (version, kind) = (u16_at(4)?, u16_at(6)?);
    if &data[..4] != b"RSHM" || (version != 1 && kind != 4) {
        return None;
    }
    let (bytes, within) = match kind {
        1 => {
            let (channels, private) = (u16_at(40)?, u16_at(42)?);
            (44 + 8 * channels + private, channels <= 64 && private <= 56)
        }
        2 => (46 + u16_at(44)?, u16_at(44)? <= 196),
        3 => (12, true),
        4 => (18 + u16_at(16)?, u16_at(16)? <= 148),
        _ => return None,
    };
    if data.len() != bytes || !within {
        return None;
    }
    let mut message = data.to_vec();
    if kind == 4 {
        let (reason, code) = (data[8..12].to_vec(), &mut message[12..16]);
        match u32::from_le_bytes([reason[0], reason[1], reason[2], reason[3]]) {
            // These have no code.
            1..=5 => code.fill(0),
            6 => {}
            // What a later version may say is kept as a code of "other".
            _ => {
                code.copy_from_slice(&reason);
                message[8..12].copy_from_slice(&[6, 0, 0, 0]);
            }
        }
    }
    Some(message)
}
