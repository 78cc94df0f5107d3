//! Connections as most tests begin with them, and RPC messages.

use rpcrdma_protocol::v2::Properties;
use rpcrdma_protocol::v2::connection::{Config, Connection, Direction, Phase, Role};

use super::wire;

/// A connection with default properties.
pub(crate) fn config(role: Role, receive_reserve: u16) -> Config {
    Config {
        role,
        receive_reserve,
        properties: Properties::default(),
        message_bytes_max: 20_000,
    }
}

/// A connection whose peer has spoken and left us fifty credits; all Receives are posted, and all that may be granted
/// is granted.
pub(crate) fn established(role: Role, receive_reserve: u16) -> Connection {
    let mut connection = Connection::new(&config(role, receive_reserve));
    let first = match role {
        Role::Client => {
            let mut space = [0; 1024];
            connection
                .encode_properties(&mut space, 0)
                .expect("one credit is implicit");
            wire::grant(50, 100)
        }
        Role::Server => {
            let call = wire::bytes_of(&[1, 0, 0]);
            wire::message_with_credit(1, 0, wire::credit(50, 100), &call)
        }
    };
    connection.handle_message(&first);
    connection.handle_receives_posted(1);
    if role == Role::Server {
        let mut space = [0; 100];
        connection
            .encode_properties(&mut space, 0)
            .expect("a credit is there");
    }
    assert_eq!(connection.credits().owed, 0);
    assert_eq!(connection.phase(), Phase::Established);
    assert_eq!(connection.credits_available(), 50);
    connection
}

/// An RPC message of this XID and type, then octets that depend on everything.
pub(crate) fn rpc_message(xid: u32, direction: Direction, bytes: usize, salt: usize) -> Vec<u8> {
    let message_type: u32 = match direction {
        Direction::Call => 0,
        Direction::Reply => 1,
    };
    let mut message = Vec::with_capacity(bytes);
    message.extend_from_slice(&xid.to_be_bytes());
    message.extend_from_slice(&message_type.to_be_bytes());
    let mut state = xid
        .wrapping_mul(31)
        .wrapping_add(u32::try_from(salt).expect("small"))
        ^ message_type;
    while message.len() < bytes {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        message.push((state >> 24) as u8);
    }
    message
}
