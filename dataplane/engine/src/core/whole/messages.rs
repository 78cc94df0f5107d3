//! The messages of peers, word by word. Their credit words are written when they are sent.

use rpcrdma_fabric::interface::RemoteAddress;
use rpcrdma_protocol::v2::rtr::{BufferSegment, ReceiveBufferStructure, RtrSupport, SegmentGroup};
use rpcrdma_protocol::v2::{self, CreditWord, Flags, Prefix, Properties, ReverseRequestSupport};

use super::step::{Answer, Asked, Told};
use crate::support::raw::words;
use crate::support::{ECHO, FILL, LATER, NEVER, NULL, PROGRAM, VERSION};

/// Answers with an item of so many bytes, beside the stream where there is a place for it.
pub(super) const GIVE: u32 = 20;
/// The same, with the item that came with the call.
pub(super) const BACK: u32 = 21;
/// Of a call with an RDMA Read that fails: nobody serves it.
pub(super) const FAILING: u32 = 22;

/// What items of peers are made of.
pub(super) const PATTERN: u8 = 0x5a;
pub(super) const PATTERNS: &[u8; PAGE_BYTES as usize] = &[PATTERN; PAGE_BYTES as usize];

/// Types of messages of version 2.
pub(super) const MSG: u32 = 0;
pub(super) const NOMSG: u32 = 1;
pub(super) const ERROR: u32 = 4;
pub(super) const PROPERTIES: u32 = 5;
pub(super) const GROUP_REQUEST: u32 = 0x5254_5201;
pub(super) const GROUP_RESPONSE: u32 = 0x5254_5202;
pub(super) const GROUP_CONTINUE: u32 = 0x5254_5203;
pub(super) const GROUP_REPORT: u32 = 0x5254_5204;
/// A header type of the application.
pub(super) const OWN: u32 = 0xffff_ff01;

/// Flags.
pub(super) const RESPONSE: u32 = 1;
pub(super) const MORE: u32 = 2;

/// The segments of the receive buffers of a peer that takes placed data.
pub(super) const INLINE_BYTES: u32 = 1024;
pub(super) const PAGE_BYTES: u32 = 4096;

/// Where a version 1 message asks for credits.
const CREDITS_1: u32 = 32;

pub(super) fn word(message: &[u8], index: usize) -> Option<u32> {
    let bytes = message.get(4 * index..4 * index + 4)?;
    Some(u32::from_be_bytes(bytes.try_into().expect("four bytes")))
}

/// Prefix, type and flags.
pub(super) fn head(xid: u32, message_type: u32, flags: u32) -> Vec<u32> {
    vec![xid, 2, 0, message_type, flags]
}

/// So many words of the pattern behind a message.
pub(super) fn with_words(mut message: Vec<u8>, words: u32) -> Vec<u8> {
    message.extend_from_slice(&PATTERNS[..4 * words as usize]);
    message
}

/// A message without chunks.
pub(super) fn message(xid: u32, flags: u32, payload: &[u32]) -> Vec<u8> {
    let mut all = head(xid, MSG, flags);
    all.extend([0, 0, 0, 0]);
    all.extend(payload);
    words(&all)
}

/// A message of version 1 with these chunk lists.
pub(super) fn message_1(xid: u32, message_type: u32, lists: &[u32], payload: &[u32]) -> Vec<u8> {
    let mut all = vec![xid, 1, CREDITS_1, message_type];
    all.extend(lists);
    all.extend(payload);
    words(&all)
}

/// The RPC call that asks for this.
pub(super) fn rpc_call(xid: u32, asked: Asked) -> Vec<u32> {
    let (procedure, args) = match asked {
        Asked::Null => (NULL, vec![]),
        Asked::Echo { words } => (ECHO, (0..words).collect()),
        Asked::Fill { bytes } => (FILL, vec![bytes]),
        Asked::Later { polls } => (LATER, vec![polls]),
        Asked::Never => (NEVER, vec![7]),
        Asked::Give { bytes } => (GIVE, vec![bytes]),
        Asked::Back => (BACK, vec![]),
        Asked::Failing => (FAILING, vec![]),
        Asked::NoProgram => (NULL, vec![]),
    };
    let program = PROGRAM + u32::from(asked == Asked::NoProgram);
    let mut all = vec![xid, 0, 2, program, VERSION, procedure, 0, 0, 0, 0];
    all.extend(args);
    all
}

/// The RPC reply with these results.
pub(super) fn rpc_reply(xid: u32, results: &[u32]) -> Vec<u32> {
    let mut all = vec![xid, 1, 0, 0, 0, 0];
    all.extend(results);
    all
}

/// A call with these chunk lists, in either version; the call itself is in them if it has no payload.
pub(super) fn call_with_chunks(
    is_version_1: bool,
    xid: u32,
    invalidate: u32,
    lists: &[u32],
    rpc: &[u32],
) -> Vec<u8> {
    let message_type = if rpc.is_empty() { NOMSG } else { MSG };
    if is_version_1 {
        return message_1(xid, message_type, lists, rpc);
    }
    let mut all = head(xid, message_type, 0);
    all.push(invalidate);
    all.extend(lists);
    all.extend(rpc);
    words(&all)
}

fn offset(at: RemoteAddress) -> [u32; 2] {
    let low = u32::try_from(at.offset & u64::from(u32::MAX)).expect("masked");
    [u32::try_from(at.offset >> 32).expect("shifted"), low]
}

/// Lists with a Read list of these: position, place and bytes.
pub(super) fn reads(segments: &[(u32, RemoteAddress, u32)]) -> Vec<u32> {
    let mut lists = Vec::new();
    for (position, at, bytes) in segments {
        lists.extend([1, *position, at.key.0, *bytes]);
        lists.extend(offset(*at));
    }
    lists.extend([0, 0, 0]);
    lists
}

/// Lists with a Write list of one chunk.
pub(super) fn writes(segments: &[(RemoteAddress, u32)]) -> Vec<u32> {
    let mut lists = vec![0, 1];
    lists.extend(chunk(segments));
    lists.extend([0, 0]);
    lists
}

/// Lists with a Reply chunk.
pub(super) fn reply_chunk(segments: &[(RemoteAddress, u32)]) -> Vec<u32> {
    let mut lists = vec![0, 0, 1];
    lists.extend(chunk(segments));
    lists
}

fn chunk(segments: &[(RemoteAddress, u32)]) -> Vec<u32> {
    let mut all = vec![u32::try_from(segments.len()).expect("few")];
    for (at, bytes) in segments {
        all.extend([at.key.0, *bytes]);
        all.extend(offset(*at));
    }
    all
}

/// A grant, and nothing else.
pub(super) fn grant() -> Vec<u8> {
    let mut all = head(0, NOMSG, 0);
    all.extend([0, 0, 0, 0]);
    words(&all)
}

pub(super) fn error(xid: u32, code: u32) -> Vec<u8> {
    let mut all = head(xid, ERROR, RESPONSE);
    all.push(code);
    // Arguments of codes that have one.
    if (5..=9).contains(&code) {
        all.push(1);
    }
    words(&all)
}

pub(super) fn v1_error(xid: u32) -> Vec<u8> {
    words(&[xid, 1, CREDITS_1, 4, 2])
}

/// A message of a header type of the application, with so many words.
pub(super) fn own(xid: u32, is_answer: bool, words_count: u32) -> Vec<u8> {
    let all = head(xid, OWN, u32::from(is_answer));
    with_words(words(&all), words_count)
}

/// What a peer says of itself.
pub(super) fn properties(xid: u32, told: Told) -> Vec<u8> {
    let receive_buffer = |bytes| {
        let mut all = head(xid, PROPERTIES, 0);
        all.extend([1, 2, 4, bytes]);
        words(&all)
    };
    match told {
        Told::Plain => words(&[head(xid, PROPERTIES, 0), vec![0]].concat()),
        Told::Placing => placing(xid),
        Told::Changed(bytes) => receive_buffer(bytes),
        Told::Small => receive_buffer(1024),
        Told::Broken => words(&[head(xid, PROPERTIES, 0), vec![3, 1, 4]].concat()),
        Told::Unknown => words(&[head(xid, PROPERTIES, 0), vec![1, 0x7777, 4, 9]].concat()),
    }
}

fn placing(xid: u32) -> Vec<u8> {
    let group = |length_bytes, is_targetable| SegmentGroup {
        count: 1,
        segment: BufferSegment {
            length_bytes,
            align_bytes: 0,
            is_targetable,
        },
    };
    let groups = [group(INLINE_BYTES, false), group(PAGE_BYTES, true)];
    let structure = ReceiveBufferStructure::new(&groups).expect("sound");
    let properties = Properties {
        send_bytes_max: structure.length_bytes(),
        receive_buffer_bytes: structure.length_bytes(),
        rtr_support: RtrSupport::ALL,
        receive_buffer_structure: Some(structure),
        request_transmissions_max: 4,
        response_transmissions_max: 4,
        segment_count_max: 64,
        reverse_requests: ReverseRequestSupport::General,
        ..Properties::default()
    };
    let prefix = Prefix {
        xid,
        credit: CreditWord {
            maximum: 1,
            granted: 0,
        },
        flags: Flags::NONE,
    };
    let mut space = [0; 512];
    let bytes = v2::encode_connprop(&mut space, prefix, &properties.to_properties());
    space[..bytes.expect("it fits")].to_vec()
}

/// The answer to a call of the core with these results, as one message or several.
pub(super) fn answer(
    is_version_1: bool,
    xid: u32,
    answer: Answer,
    results: &[u32],
    offered: &[(RemoteAddress, u32)],
) -> Vec<Vec<u8>> {
    let with_chunk = |segments: &[(RemoteAddress, u32)], rpc: &[u32]| {
        let mut lists = writes(segments);
        if is_version_1 {
            return vec![message_1(xid, MSG, &lists, rpc)];
        }
        lists.splice(0..0, [0]);
        let mut all = head(xid, MSG, RESPONSE);
        all.extend(lists);
        all.extend(rpc);
        vec![words(&all)]
    };
    let reply = |flags: u32, rpc: &[u32]| {
        if is_version_1 {
            message_1(xid, MSG, &[0, 0, 0], rpc)
        } else {
            message(xid, RESPONSE | flags, rpc)
        }
    };
    let right = rpc_reply(xid, results);
    match answer {
        // Where a group answers no group, too.
        Answer::Right | Answer::Group { .. } | Answer::GroupBegun { .. } | Answer::GroupWrong => {
            vec![reply(0, &right)]
        }
        Answer::Twice => vec![reply(0, &right), reply(0, &right)],
        Answer::WrongXid => vec![message(
            xid ^ 0x100,
            RESPONSE,
            &rpc_reply(xid ^ 0x100, results),
        )],
        Answer::CutShort => vec![reply(0, &right[..3])],
        Answer::Denied => vec![reply(0, &[xid, 1, 1, 1, 5])],
        Answer::Begun => vec![reply(MORE, &right)],
        Answer::TooLong => {
            vec![with_words(reply(MORE, &right), 900); 7]
        }
        Answer::Refused(_) if is_version_1 => vec![v1_error(xid)],
        Answer::Refused(code) => vec![error(xid, code)],
        Answer::Filled | Answer::Written if offered.is_empty() => vec![reply(0, &right)],
        Answer::Filled => with_chunk(&[(offered[0].0, 4)], &right),
        Answer::Written => with_chunk(offered, &rpc_reply(xid, &results[..results.len().min(1)])),
    }
}

/// Some bytes of a message changed, by the bits of a number.
pub(super) fn changed(mut message: Vec<u8>, mut bits: u64) -> Vec<u8> {
    for _ in 0..1 + bits % 3 {
        bits = bits.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23) | 1;
        let at = usize::try_from(bits % 80).expect("small");
        if let Some(byte) = message.get_mut(at) {
            *byte = (bits >> 32).to_le_bytes()[0] & if bits & 64 == 0 { 7 } else { 0xff };
        }
    }
    if bits & 0x300 == 0 {
        message.truncate(message.len() / 2 + 1);
    }
    message
}
