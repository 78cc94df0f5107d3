//! The bench program: the RPC program that `run` calls and `serve` answers. `docs/bench-program.md` describes it and
//! its binding to RPC-over-RDMA.

mod back;
mod operations;
pub(crate) mod pattern;
mod payload;
mod service;

use rpcrdma_engine::{Call, Outcome, ReplyWriter, Request};
use rpcrdma_protocol::rpc::{Program, Programs};

pub(crate) use self::back::{BackStatus, CALLS_BACK_MAX, CallBack, CalledBack};
pub(crate) use self::operations::{
    Arguments, Kind, Operation, procedure, results_bytes, results_match,
};
pub(crate) use self::payload::Payload;
pub(crate) use self::service::{BenchService, Common};

/// RPC program number, from the user-defined range of RFC 5531 section 13.1: "BEN" in ASCII.
pub(crate) const PROGRAM: u32 = 0x2042_454e;

/// The only version of the program.
pub(crate) const VERSION: u32 = 1;

/// Procedure NULL: no arguments, no results.
pub(crate) const NULL: u32 = 0;

/// Procedure ECHO: returns the payload.
pub(crate) const ECHO: u32 = 1;

/// Procedure READ: the reply carries a payload.
pub(crate) const READ: u32 = 2;

/// Procedure WRITE: the call carries a payload.
pub(crate) const WRITE: u32 = 3;

/// Procedure COMPOUND: several READs and WRITEs.
pub(crate) const COMPOUND: u32 = 4;

/// Procedure COUNTERS: returns the counters of the server's cores.
pub(crate) const COUNTERS: u32 = 5;

/// Procedure CALL_BACK: the server makes calls to the client.
pub(crate) const CALL_BACK: u32 = 6;

/// Procedure FACTS: returns what the server's record has of it.
pub(crate) const FACTS: u32 = 7;

/// Upper bound of the results of FACTS in bytes.
pub(crate) const FACTS_BYTES_MAX: usize = 64 << 10;

/// Upper bound of the operations of one COMPOUND.
pub(crate) const OPERATIONS_MAX: usize = rpcrdma_engine::BULK_ITEMS_MAX;

/// The call of a procedure.
#[must_use]
pub(crate) const fn call(procedure: u32) -> Call {
    Call {
        program: PROGRAM,
        version: VERSION,
        procedure,
    }
}

/// The program, for those that answer it. Its clients have no identity, and its null calls are answered by the core.
pub(crate) fn programs() -> Programs {
    Programs::new([Program::new(PROGRAM, [VERSION..=VERSION])])
}

/// Answers a call of ECHO.
#[inline]
pub(crate) fn answer_echo(request: &Request<'_>, reply: &mut ReplyWriter<'_>) -> Outcome {
    if opaque_payload(request.args).is_none() {
        return Outcome::GarbageArgs;
    }
    match reply.write(request.args) {
        Ok(()) => Outcome::Success,
        Err(_) => Outcome::SystemError,
    }
}

/// Encoded length of an XDR opaque of `payload_bytes` bytes (RFC 4506 section 4.10).
#[must_use]
pub(crate) const fn opaque_bytes(payload_bytes: usize) -> usize {
    4 + payload_bytes.next_multiple_of(4)
}

/// The payload of an XDR opaque that fills `stream`; `None` if its length does not match.
#[must_use]
pub(crate) fn opaque_payload(stream: &[u8]) -> Option<&[u8]> {
    let (length, rest) = stream.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    let whole = rest.len() < length.checked_next_multiple_of(4)?;
    if whole || rest.len() - length > 3 {
        return None;
    }
    rest.get(..length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_opaque_is_the_whole_stream_or_nothing() {
        let good: [(&[u8], &[u8]); 3] = [
            (&[0, 0, 0, 0], &[]),
            (&[0, 0, 0, 4, 1, 2, 3, 4], &[1, 2, 3, 4]),
            (&[0, 0, 0, 5, 1, 2, 3, 4, 5, 0, 0, 0], &[1, 2, 3, 4, 5]),
        ];
        for (stream, payload) in good {
            assert_eq!(opaque_payload(stream), Some(payload));
            assert_eq!(opaque_bytes(payload.len()), stream.len());
        }
        let bad: [&[u8]; 6] = [
            &[],
            &[0, 0, 0],
            &[0, 0, 0, 1],
            &[0, 0, 0, 5, 1, 2, 3, 4, 5, 0, 0],
            &[0, 0, 0, 4, 1, 2, 3, 4, 0, 0, 0, 0],
            &[0xff, 0xff, 0xff, 0xff, 1, 2, 3, 4],
        ];
        for stream in bad {
            assert_eq!(opaque_payload(stream), None, "{stream:?}");
        }
    }
}
