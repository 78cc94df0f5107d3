//! Messages of version 1, word by word.

use rpcrdma_protocol::cm_private_data::PrivateData;
use rpcrdma_protocol::v1::connection::{Config, Connection};
use rpcrdma_protocol::v2::ReverseRequestSupport;
use rpcrdma_protocol::v2::connection::{Event, Role};

pub(crate) const CALL: u32 = 0;
pub(crate) const REPLY: u32 = 1;
pub(crate) const MSG: u32 = 0;
pub(crate) const NOMSG: u32 = 1;
pub(crate) const MSGP: u32 = 2;
pub(crate) const DONE: u32 = 3;
pub(crate) const ERROR: u32 = 4;

pub(crate) fn bytes_of(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

pub(crate) fn words_of(bytes: &[u8]) -> Vec<u32> {
    let words = bytes.chunks_exact(4);
    words
        .map(|word| u32::from_be_bytes(word.try_into().expect("four octets")))
        .collect()
}

/// An RDMA_MSG without chunks: XID, credit word, and an RPC message of `message_type` with no more than that.
pub(crate) fn msg(xid: u32, credit: u32, message_type: u32) -> Vec<u8> {
    bytes_of(&[xid, 1, credit, MSG, 0, 0, 0, xid, message_type, 2])
}

/// A message of `header_type` with these lists, and these words behind them.
pub(crate) fn with_lists(xid: u32, header_type: u32, lists: &[u32], rpc: &[u32]) -> Vec<u8> {
    let mut words = vec![xid, 1, 8, header_type];
    words.extend(lists);
    words.extend(rpc);
    bytes_of(&words)
}

/// A Read segment of `length_bytes` at `position`.
pub(crate) fn read(position: u32, handle: u32, length_bytes: u32) -> [u32; 6] {
    [1, position, handle, length_bytes, 0, 0x1000]
}

pub(crate) fn sizes(kib: u32) -> PrivateData {
    PrivateData {
        remote_invalidation: false,
        send_bytes: kib * 1024,
        receive_bytes: kib * 1024,
    }
}

pub(crate) fn config(role: Role, receive_reserve: u16) -> Config {
    Config {
        role,
        receive_reserve,
        receives_taken: 0,
        own: sizes(4),
        peer: sizes(4),
        reverse_requests: ReverseRequestSupport::None,
    }
}

pub(crate) fn server() -> Connection {
    Connection::new(&config(Role::Server, 9))
}

/// A client that has sent a call with XID 1.
pub(crate) fn client() -> Connection {
    let mut client = Connection::new(&config(Role::Client, 9));
    send_call(&mut client, 1).expect("one credit is implicit");
    client
}

pub(crate) fn send_call(
    connection: &mut Connection,
    xid: u32,
) -> Result<Vec<u8>, rpcrdma_protocol::v2::connection::SendRefused> {
    send(connection, xid, CALL)
}

pub(crate) fn send(
    connection: &mut Connection,
    xid: u32,
    message_type: u32,
) -> Result<Vec<u8>, rpcrdma_protocol::v2::connection::SendRefused> {
    use rpcrdma_protocol::v2::connection::Direction;
    let mut space = [0; 1024];
    let direction = if message_type == CALL {
        Direction::Call
    } else {
        Direction::Reply
    };
    let header_bytes = connection.encode_message(&mut space, xid, direction, 12)?;
    let mut message = space[..header_bytes].to_vec();
    message.extend(bytes_of(&[xid, message_type, 2]));
    Ok(message)
}

/// Handles a message whose Receive is posted again at once.
pub(crate) fn handle<'m>(connection: &mut Connection, message: &'m [u8]) -> Event<'m> {
    let event = connection.handle_message(message);
    connection.handle_receives_posted(1);
    event
}
