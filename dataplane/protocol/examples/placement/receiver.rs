// A server with placement, and messages of the extension for it: what the examples of its checks begin with.

use rpcrdma_protocol::v2::connection::{Config, Connection, Event, Role};
use rpcrdma_protocol::v2::rtr::{
    MessageItemRepr, ReportError, ResponseSetRepr, TransmitContinue, TransmitRequest,
};
use rpcrdma_protocol::v2::{
    CreditWord, Flags, Prefix, encode_credit_grant, encode_transmit_continue,
    encode_transmit_request,
};

mod ends {
    include!(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/examples/placement/ends.rs"
    ));
}
pub(crate) use ends::with_placement;

/// XID 7, a call.
const PREFIX: Prefix = Prefix {
    xid: 7,
    credit: CreditWord::from_word(100 << 16),
    flags: Flags::NONE,
};

/// A server whose receive buffers are an inline segment of 1 KiB and a targetable one of 64 KiB.
pub(crate) fn server() -> Connection {
    let mut server = Connection::new(&Config {
        role: Role::Server,
        receive_reserve: 100,
        properties: with_placement(),
        message_bytes_max: 20_000,
    });
    // The client grants credits first; with one of them the server grants its own.
    let mut message = [0; 36];
    let credit = CreditWord {
        granted: 8,
        maximum: 100,
    };
    encode_credit_grant(&mut message, credit).unwrap();
    server.handle_message(&message);
    server.encode_grant(&mut message).unwrap();
    server
}

/// A Transmit Request of 5120 octets: header, 20 octets of payload stream, and zeroes.
pub(crate) fn request(
    transmissions: u32,
    items: &[MessageItemRepr<'_>],
    directions: &[ResponseSetRepr<'_>],
) -> [u8; 5120] {
    let mut message = [0; 5120];
    let body = TransmitRequest {
        items,
        directions,
        transmissions,
        response_transmissions_max: 1,
        stream_bytes: 20,
    };
    let header_bytes = encode_transmit_request(&mut message, PREFIX, &body).unwrap();
    // The stream begins with the XID; the message type of a call is zero.
    message[header_bytes..][..4].copy_from_slice(&PREFIX.xid.to_be_bytes());
    message
}

/// A Transmit Continue that brings four octets of the stream.
pub(crate) fn continuation(sequence: u32) -> [u8; 36] {
    let mut message = [0; 36];
    let body = TransmitContinue {
        sequence,
        stream_bytes: 4,
    };
    encode_transmit_continue(&mut message, PREFIX, body).unwrap();
    message
}

/// What the server says of a message that it refuses.
pub(crate) fn report_on(message: &[u8], server: &mut Connection) -> ReportError {
    match server.handle_message(message) {
        Event::TransmissionRefused(refusal) => refusal.report,
        other => panic!("nothing was wrong: {other:?}"),
    }
}
