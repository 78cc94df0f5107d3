//! Version 2 messages computed by hand from the XDR of -00 section 7 and of RTR section 10, word by word, by header type.
//!
//! Each vector is decoded to the expected value, and the expected value encoded to the same octets.

mod error;
mod message;
mod no_message;
mod properties;
mod refusals;
mod rtr_messages;
mod rtr_properties;
#[path = "../support/mod.rs"]
mod support;

use rpcrdma_protocol::DecodeError;
use rpcrdma_protocol::v2::{self, CreditWord, Flags, Header, Prefix, Refusal};

fn prefix(xid: u32, maximum: u16, granted: u16, flags: Flags) -> Prefix {
    Prefix {
        xid,
        credit: CreditWord { granted, maximum },
        flags,
    }
}

fn decoded(message: &[u8]) -> Header<'_> {
    v2::decode(message).expect("a valid message")
}

fn refused(message: &[u8]) -> (DecodeError, Refusal) {
    let error = v2::decode(message).expect_err("an invalid message");
    (error, v2::refusal(error))
}
