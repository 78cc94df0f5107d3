// What examples in the documentation share: each that needs it includes it, in a module of its own.

use rpcrdma_protocol::chunks::{
    CallStream, ChunkLimits, ChunkLists, ChunkListsRepr, EncodeChunkLists, PayloadPlace,
    ReadSegment, check_call,
};
use rpcrdma_protocol::cm_private_data::PrivateData;
use rpcrdma_protocol::v1;
use rpcrdma_protocol::v2::connection::{Config, Connection, Direction, Role};
use rpcrdma_protocol::v2::rtr::{MessageItems, ResponseSets, RtrSupport, TransmitRequest};
use rpcrdma_protocol::v2::{Properties, ReverseRequestSupport};
use rpcrdma_protocol::xdr::{Reader, Writer};

/// What a responder serves: four Read chunks and four Write chunks, 16 segments in all, and calls of 1 MiB.
pub const LIMITS: ChunkLimits = ChunkLimits {
    read_chunks_max: 4,
    reads_position_zero: true,
    write_chunks_max: 4,
    segments_max: 16,
    segment_bytes_max: 1 << 20,
    call_bytes_max: 1 << 20,
};

/// The lists as the peer decodes them.
pub fn received<'a>(lists: &impl EncodeChunkLists, space: &'a mut [u8]) -> ChunkLists<'a> {
    let mut writer = Writer::new(space);
    lists.encode(&mut writer).expect("the space is ample");
    ChunkLists::decode(&mut Reader::new(space)).expect("what was encoded can be decoded")
}

/// A call with these Read chunks, of which `length_bytes` octets are inline, as the responder has checked it.
pub fn checked<'a>(
    reads: &[ReadSegment],
    length_bytes: u32,
    space: &'a mut [u8],
) -> CallStream<'a> {
    let lists = ChunkListsRepr {
        reads,
        ..Default::default()
    };
    let place = PayloadPlace::Inline { length_bytes };
    check_call(&received(&lists, space), place, &LIMITS).expect("it is within the limits")
}

/// An end of version 1 with nine Receives, and without calls in the reverse direction.
pub fn config_1(role: Role) -> v1::connection::Config {
    v1::connection::Config {
        role,
        receive_reserve: 9,
        receives_taken: 0,
        own: PrivateData::default(),
        peer: PrivateData::default(),
        reverse_requests: ReverseRequestSupport::None,
    }
}

/// An end of version 2 with ten Receives, which knows the extension RTR and takes calls of four transmissions.
pub fn config(role: Role) -> Config {
    let properties = Properties {
        rtr_support: RtrSupport::ALL,
        request_transmissions_max: 4,
        ..Properties::default()
    };
    Config {
        role,
        receive_reserve: 10,
        properties,
        message_bytes_max: 1 << 20,
    }
}

/// The next message of this end: an RPC message of eight octets, XID and message type alone.
pub fn message(end: &mut Connection, xid: u32, direction: Direction) -> [u8; 44] {
    let mut message = [0; 44];
    let written = end.encode_message(&mut message, xid, direction, false, 8);
    let header_bytes = written.expect("a credit is there");
    message[header_bytes..].copy_from_slice(&start(xid, direction));
    message
}

/// XID and message type, with which every RPC message begins.
pub fn start(xid: u32, direction: Direction) -> [u8; 8] {
    let message_type = u32::from(direction == Direction::Reply);
    (u64::from(xid) << 32 | u64::from(message_type)).to_be_bytes()
}

/// Client and server after their first call and its reply, XID 1. Each knows the properties of the other.
pub fn ends() -> (Connection, Connection) {
    let mut client = Connection::new(&config(Role::Client));
    let mut server = Connection::new(&config(Role::Server));
    let call = message(&mut client, 1, Direction::Call);
    server.handle_message(&call);
    server.handle_receives_posted(1);
    let reply = message(&mut server, 1, Direction::Reply);
    client.handle_message(&reply);
    client.handle_receives_posted(1);
    client.handle_peer_properties(server.properties());
    server.handle_peer_properties(client.properties());
    (client, server)
}

/// A call of the extension RTR in two transmissions, whose payload streams have eight octets and four.
pub fn transmissions(end: &mut Connection, xid: u32) -> ([u8; 48], [u8; 36]) {
    let request = TransmitRequest {
        items: MessageItems::default(),
        directions: ResponseSets::default(),
        transmissions: 2,
        response_transmissions_max: 1,
        stream_bytes: 8,
    };
    let (mut first, mut second) = ([0; 48], [0; 36]);
    let written = end.encode_transmit_request(&mut first, xid, &request, 8);
    first[written.expect("both ends know it")..].copy_from_slice(&start(xid, Direction::Call));
    let written = end.encode_transmit_continue(&mut second, 4, 4);
    second[written.expect("the group has its credits")..].copy_from_slice(b"rest");
    (first, second)
}
