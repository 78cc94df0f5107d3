//! Runs each measured function a set number of times, for a profiler that counts instructions.
//!
//! `tests/instruction_counts.sh` runs it under callgrind and compares the counts with their budget. The functions are
//! not inlined, so that each has a line of its own in the profile; what they call is.

use std::hint::black_box;

use rpcrdma_protocol::rpc::{CallHeader, OpaqueAuth, ReplyHeader};
use rpcrdma_protocol::v2::{self, Body, CreditWord, Flags, Prefix};

/// How often each function runs. The script divides by it.
const ITERATIONS: u32 = 1000;

/// Decodes the transport header of a call without chunks, and looks at all that a responder needs of it.
#[inline(never)]
fn measured_v2_decode_call(message: &[u8]) -> Option<(Prefix, usize)> {
    let header = v2::decode(message).ok()?;
    match header.body {
        Body::Msg(chunks) if chunks.lists.are_empty() => Some((header.prefix, header.header_bytes)),
        _ => None,
    }
}

/// Encodes the transport header of a call without chunks.
#[inline(never)]
fn measured_v2_encode_call(space: &mut [u8], prefix: Prefix) -> usize {
    v2::encode_msg_header_without_chunks(space, prefix).unwrap_or(0)
}

/// Decodes the transport header without knowing that it has no chunks: the whole value is built.
#[inline(never)]
fn measured_v2_decode_call_whole(message: &[u8]) -> v2::Header<'_> {
    v2::decode(message).unwrap_or(v2::Header {
        prefix: Prefix::default(),
        body: Body::Connprop(&[]),
        header_bytes: 0,
    })
}

#[inline(never)]
fn measured_rpc_decode_call(message: &[u8]) -> Option<(CallHeader<'_>, usize)> {
    CallHeader::decode(message).ok()
}

#[inline(never)]
fn measured_rpc_encode_call(space: &mut [u8], header: &CallHeader<'_>) -> usize {
    header.encode(space).unwrap_or(0)
}

#[inline(never)]
fn measured_rpc_decode_reply(message: &[u8]) -> Option<(ReplyHeader<'_>, usize)> {
    ReplyHeader::decode(message).ok()
}

#[inline(never)]
fn measured_rpc_encode_reply(space: &mut [u8], header: &ReplyHeader<'_>) -> usize {
    header.encode(space).unwrap_or(0)
}

fn main() {
    let prefix = Prefix {
        xid: 0xd781_1d8b,
        credit: CreditWord {
            granted: 1,
            maximum: 64,
        },
        flags: Flags::NONE,
    };
    let call = CallHeader {
        xid: prefix.xid,
        program: 0x2000_0001,
        version: 1,
        procedure: 0,
        credential: OpaqueAuth::NONE,
        verifier: OpaqueAuth::NONE,
    };
    let reply = ReplyHeader::success(prefix.xid);
    let mut message = [0; 128];
    let mut call_space = [0; 64];
    let mut reply_space = [0; 64];
    for _ in 0..ITERATIONS {
        let header_bytes = measured_v2_encode_call(black_box(&mut message), black_box(prefix));
        assert_eq!(header_bytes, 36);
        let decoded = measured_v2_decode_call(black_box(&message));
        assert_eq!(decoded, Some((prefix, 36)));
        assert_eq!(
            measured_v2_decode_call_whole(black_box(&message)).prefix,
            prefix
        );
        assert_eq!(
            measured_rpc_encode_call(black_box(&mut call_space), black_box(&call)),
            40
        );
        assert_eq!(
            measured_rpc_decode_call(black_box(&call_space)),
            Some((call, 40))
        );
        assert_eq!(
            measured_rpc_encode_reply(black_box(&mut reply_space), black_box(&reply)),
            24
        );
        assert_eq!(
            measured_rpc_decode_reply(black_box(&reply_space)),
            Some((reply, 24))
        );
    }
}
