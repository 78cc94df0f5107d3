//! Times of the codec: the headers of a call without chunks, and the RPC headers inside.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use rpcrdma_protocol::chunks::{ChunkListsRepr, ReadSegment, Segment};
use rpcrdma_protocol::constants::V2_HEADER_BYTES_WITHOUT_CHUNKS;
use rpcrdma_protocol::rpc::{CallHeader, OpaqueAuth, ReplyHeader};
use rpcrdma_protocol::v2::{self, CreditWord, Flags, Prefix};

const PREFIX: Prefix = Prefix {
    xid: 0xd781_1d8b,
    credit: CreditWord {
        granted: 1,
        maximum: 64,
    },
    flags: Flags::NONE,
};

const CALL: CallHeader<'static> = CallHeader {
    xid: PREFIX.xid,
    program: 0x2000_0001,
    version: 1,
    procedure: 0,
    credential: OpaqueAuth::NONE,
    verifier: OpaqueAuth::NONE,
};

fn transport_header(criterion: &mut Criterion) {
    let mut message = [0; 128];
    let header_bytes = v2::encode_msg_header_without_chunks(&mut message, PREFIX).unwrap();
    CALL.encode(&mut message[header_bytes..]).unwrap();
    let mut group = criterion.benchmark_group("v2_header");
    group.bench_function("decode_call_without_chunks", |bencher| {
        bencher.iter(|| v2::decode(black_box(&message)).map(|header| header.header_bytes));
    });
    group.bench_function("encode_call_without_chunks", |bencher| {
        let mut space = [0; V2_HEADER_BYTES_WITHOUT_CHUNKS];
        bencher.iter(|| {
            v2::encode_msg_header_without_chunks(black_box(&mut space), black_box(PREFIX))
        });
    });

    let segments = [Segment {
        handle: 1,
        length_bytes: 4096,
        offset: 0,
    }; 4];
    let reads = segments.map(|target| ReadSegment {
        position: 120,
        target,
    });
    let lists = ChunkListsRepr {
        reads: &reads,
        writes: &[&segments],
        reply: None,
    };
    let mut with_chunks = [0; 1024];
    let header_bytes = v2::encode_msg_header(&mut with_chunks, PREFIX, 0, &lists).unwrap();
    let with_chunks = &with_chunks[..header_bytes + 40];
    group.bench_function("decode_call_with_8_segments", |bencher| {
        bencher.iter(|| v2::decode(black_box(with_chunks)).map(|header| header.header_bytes));
    });
    group.bench_function("encode_call_with_8_segments", |bencher| {
        let mut space = [0; 1024];
        bencher.iter(|| v2::encode_msg_header(&mut space, PREFIX, 0, black_box(&lists)));
    });
    group.finish();
}

fn rpc_headers(criterion: &mut Criterion) {
    let mut call = [0; 64];
    CALL.encode(&mut call).unwrap();
    let mut reply = [0; 64];
    ReplyHeader::success(PREFIX.xid).encode(&mut reply).unwrap();
    let mut group = criterion.benchmark_group("rpc_header");
    group.bench_function("decode_call", |bencher| {
        bencher.iter(|| CallHeader::decode(black_box(&call)).map(|(header, _)| header.procedure));
    });
    group.bench_function("decode_reply", |bencher| {
        bencher.iter(|| ReplyHeader::decode(black_box(&reply)).map(|(header, _)| header.xid));
    });
    group.bench_function("encode_call", |bencher| {
        let mut space = [0; 64];
        bencher.iter(|| black_box(CALL).encode(black_box(&mut space)));
    });
    group.bench_function("encode_reply", |bencher| {
        let mut space = [0; 64];
        bencher.iter(|| ReplyHeader::success(black_box(7)).encode(black_box(&mut space)));
    });
    group.finish();
}

criterion_group!(codec, transport_header, rpc_headers);
criterion_main!(codec);
