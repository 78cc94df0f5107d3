//! Messages by hand, word by word, so that the tests do not rest on the encoder that they test.

use rpcrdma_protocol::v2::TransportError;

use super::world::Damage;

pub(crate) const RESPONSE: u32 = 1;
pub(crate) const MORE: u32 = 2;

pub(crate) fn bytes_of(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

pub(crate) fn words_of(message: &[u8]) -> Vec<u32> {
    message
        .chunks_exact(4)
        .map(|word| u32::from_be_bytes(word.try_into().expect("four octets")))
        .collect()
}

/// The credit word.
pub(crate) fn credit(granted: u32, maximum: u32) -> u32 {
    maximum << 16 | granted
}

/// An RDMA2_MSG without chunks, which grants nothing.
pub(crate) fn message(xid: u32, flags: u32, payload: &[u8]) -> Vec<u8> {
    message_with_credit(xid, flags, credit(0, 100), payload)
}

pub(crate) fn message_with_credit(xid: u32, flags: u32, credit: u32, payload: &[u8]) -> Vec<u8> {
    let mut message = bytes_of(&[xid, 2, credit, 0, flags, 0, 0, 0, 0]);
    message.extend_from_slice(payload);
    message
}

/// A whole RPC call, or with `RESPONSE` reply, of twelve octets.
pub(crate) fn rpc(xid: u32, flags: u32) -> Vec<u8> {
    message(xid, flags, &bytes_of(&[xid, flags & RESPONSE, 0x0102_0304]))
}

/// An asynchronous grant.
pub(crate) fn grant(granted: u32, maximum: u32) -> Vec<u8> {
    bytes_of(&[0, 2, credit(granted, maximum), 1, 0, 0, 0, 0, 0])
}

/// An RDMA2_ERROR.
pub(crate) fn error(xid: u32, error: TransportError) -> Vec<u8> {
    bytes_of(&[xid, 2, 0, 4, RESPONSE, error.code()])
}

/// An RDMA2_CONNPROP with this body.
pub(crate) fn properties(xid: u32, flags: u32, body: &[u32]) -> Vec<u8> {
    let mut words = vec![xid, 2, credit(0, 100), 5, flags];
    words.extend_from_slice(body);
    bytes_of(&words)
}

/// Word number `index` of a message.
fn word(message: &[u8], index: usize) -> u32 {
    let at = 4 * index;
    u32::from_be_bytes(message[at..at + 4].try_into().expect("four octets"))
}

/// Whether a message uses a credit: every one but a grant.
pub(crate) fn is_counted(message: &[u8]) -> bool {
    let is_bare = message.len() == 36 && message[20..].iter().all(|&byte| byte == 0);
    !(is_bare && word(message, 3) == 1)
}

/// What a message grants: nothing if it is an error.
pub(crate) fn granted(message: &[u8]) -> u32 {
    if word(message, 3) == 4 {
        0
    } else {
        word(message, 2) & 0xffff
    }
}

/// Damages part number `part` of a message, so that its receiver must notice.
pub(crate) fn damage(message: &mut [u8], damage: Damage, part: usize) {
    let at = match (damage, part) {
        (Damage::RpcXid, 0) => 9,
        (Damage::RpcMessageType, 0) => 10,
        (Damage::ReadListMark, 0) => 6,
        (Damage::ReservedFlag, 0) => 4,
        (Damage::HeaderType, 0) => 3,
        (Damage::SequenceXid, 1) => 0,
        _ => return,
    };
    let byte = match damage {
        // Leave F_RESPONSE and F_MORE as they are.
        Damage::ReservedFlag => 0,
        Damage::RpcMessageType => 3,
        _ => 2,
    };
    message[4 * at + byte] ^= if damage == Damage::RpcMessageType {
        1
    } else {
        0x40
    };
}
