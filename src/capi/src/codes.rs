//! The numbers of errors, and of reasons why connections end. They never change; further ones may be added.

use std::ffi::{CStr, c_int};

use rpcrdma::{CloseReason, ErrorKind};

/// It succeeded.
pub const RPCRDMA_OK: c_int = 0;
/// An address cannot be used: it names no fabric, or another one than the node has.
pub const RPCRDMA_E_ADDRESS: c_int = -1;
/// An option, a profile or a size cannot be used, or the node cannot be started with it.
pub const RPCRDMA_E_CONFIGURATION: c_int = -2;
/// The connection cannot be made, and was not made again. The call was not executed.
pub const RPCRDMA_E_NOT_CONNECTED: c_int = -3;
/// No reply came in time. The server may have executed the call, or may do so yet.
pub const RPCRDMA_E_TIMED_OUT: c_int = -4;
/// The connection ended before the reply came. The server may have executed the call.
pub const RPCRDMA_E_DISCONNECTED: c_int = -5;
/// As many calls are under way as there may be: take replies first. The call was not executed.
pub const RPCRDMA_E_BUSY: c_int = -6;
/// The arguments or the results are longer than a message may be.
pub const RPCRDMA_E_TOO_LONG: c_int = -7;
/// There is no registered memory to spare now.
pub const RPCRDMA_E_NO_BUFFERS: c_int = -8;
/// The other end or the device cannot do what the call needs. The call was not executed.
pub const RPCRDMA_E_UNSUPPORTED: c_int = -9;
/// The server does not have the program.
pub const RPCRDMA_E_PROGRAM_UNAVAILABLE: c_int = -10;
/// The server has the program in other versions.
pub const RPCRDMA_E_PROGRAM_MISMATCH: c_int = -11;
/// The program has no such procedure. A handler may return it.
pub const RPCRDMA_E_PROCEDURE_UNAVAILABLE: c_int = -12;
/// The arguments cannot be decoded. A handler may return it.
pub const RPCRDMA_E_GARBAGE_ARGS: c_int = -13;
/// The call failed at the server. A handler may return it.
pub const RPCRDMA_E_SYSTEM_ERROR: c_int = -14;
/// The server refuses the caller's credential. A handler may return it.
pub const RPCRDMA_E_DENIED: c_int = -15;
/// The reply cannot be decoded.
pub const RPCRDMA_E_BAD_REPLY: c_int = -16;
/// The program uses a handle in a way that cannot work, such as to read results before there are any.
pub const RPCRDMA_E_USAGE: c_int = -17;
/// The node is shutting down.
pub const RPCRDMA_E_SHUTTING_DOWN: c_int = -18;
/// A failure that this list has no number for.
pub const RPCRDMA_E_OTHER: c_int = -19;
/// A pointer is NULL that may not be, a text is no UTF-8, or a number is out of its range.
pub const RPCRDMA_E_ARGUMENT: c_int = -20;
/// The library panicked: a fault in it. The handle should not be used any more.
pub const RPCRDMA_E_PANIC: c_int = -21;

/// A connection was closed from this side.
pub const RPCRDMA_CLOSED_LOCAL: c_int = 0;
/// The core of a connection stopped.
pub const RPCRDMA_CLOSED_STOPPED: c_int = 1;
/// The peer closed the connection, or is gone.
pub const RPCRDMA_CLOSED_PEER: c_int = 2;
/// Nothing came from the peer, not even a keep-alive.
pub const RPCRDMA_CLOSED_SILENT: c_int = 3;
/// The peer did not do its part in time: it holds what others could use.
pub const RPCRDMA_CLOSED_STALLED: c_int = 4;
/// The peer supports other versions of RPC-over-RDMA alone.
pub const RPCRDMA_CLOSED_VERSION: c_int = 5;
/// The peer broke the protocol.
pub const RPCRDMA_CLOSED_PROTOCOL: c_int = 6;
/// The peer did not prove who it is.
pub const RPCRDMA_CLOSED_UNAUTHENTICATED: c_int = 7;
/// The peer did not answer a call, and may still reach the memory of it.
pub const RPCRDMA_CLOSED_UNANSWERED: c_int = 8;
/// Nothing came by the path to the peer, and another path leads there.
pub const RPCRDMA_CLOSED_PATH: c_int = 9;
/// The client has lost the connection and made it again.
pub const RPCRDMA_CLOSED_REPLACED: c_int = 10;

/// The number of the reason why a connection ended.
pub(crate) fn closed_code(reason: CloseReason) -> c_int {
    match reason {
        CloseReason::Local => RPCRDMA_CLOSED_LOCAL,
        CloseReason::Stopped => RPCRDMA_CLOSED_STOPPED,
        CloseReason::Peer => RPCRDMA_CLOSED_PEER,
        CloseReason::PeerSilent { .. } => RPCRDMA_CLOSED_SILENT,
        CloseReason::PathDead { .. } => RPCRDMA_CLOSED_PATH,
        CloseReason::Replaced => RPCRDMA_CLOSED_REPLACED,
        CloseReason::PeerStalled { .. } => RPCRDMA_CLOSED_STALLED,
        CloseReason::VersionMismatch { .. } => RPCRDMA_CLOSED_VERSION,
        CloseReason::Protocol(_)
        | CloseReason::ErrorsUnread
        | CloseReason::PropertiesRefused(_)
        | CloseReason::PropertiesUnawaited
        | CloseReason::PropertiesChanged => RPCRDMA_CLOSED_PROTOCOL,
        CloseReason::Unauthenticated(_) => RPCRDMA_CLOSED_UNAUTHENTICATED,
        CloseReason::CallUnanswered => RPCRDMA_CLOSED_UNANSWERED,
    }
}

/// The number of a kind.
pub(crate) fn code_of(kind: ErrorKind) -> c_int {
    match kind {
        ErrorKind::Address => RPCRDMA_E_ADDRESS,
        ErrorKind::Configuration => RPCRDMA_E_CONFIGURATION,
        ErrorKind::NotConnected => RPCRDMA_E_NOT_CONNECTED,
        ErrorKind::TimedOut => RPCRDMA_E_TIMED_OUT,
        ErrorKind::Disconnected => RPCRDMA_E_DISCONNECTED,
        ErrorKind::Busy => RPCRDMA_E_BUSY,
        ErrorKind::TooLong => RPCRDMA_E_TOO_LONG,
        ErrorKind::NoBuffers => RPCRDMA_E_NO_BUFFERS,
        ErrorKind::Unsupported => RPCRDMA_E_UNSUPPORTED,
        ErrorKind::ProgramUnavailable => RPCRDMA_E_PROGRAM_UNAVAILABLE,
        ErrorKind::ProgramMismatch => RPCRDMA_E_PROGRAM_MISMATCH,
        ErrorKind::ProcedureUnavailable => RPCRDMA_E_PROCEDURE_UNAVAILABLE,
        ErrorKind::GarbageArgs => RPCRDMA_E_GARBAGE_ARGS,
        ErrorKind::SystemError => RPCRDMA_E_SYSTEM_ERROR,
        ErrorKind::Denied => RPCRDMA_E_DENIED,
        ErrorKind::BadReply => RPCRDMA_E_BAD_REPLY,
        ErrorKind::Usage => RPCRDMA_E_USAGE,
        ErrorKind::ShuttingDown => RPCRDMA_E_SHUTTING_DOWN,
        _ => RPCRDMA_E_OTHER,
    }
}

/// The name of a number.
pub(crate) fn name_of(code: c_int) -> &'static CStr {
    match code {
        RPCRDMA_E_ADDRESS => c"RPCRDMA_E_ADDRESS",
        RPCRDMA_E_CONFIGURATION => c"RPCRDMA_E_CONFIGURATION",
        RPCRDMA_E_NOT_CONNECTED => c"RPCRDMA_E_NOT_CONNECTED",
        RPCRDMA_E_TIMED_OUT => c"RPCRDMA_E_TIMED_OUT",
        RPCRDMA_E_DISCONNECTED => c"RPCRDMA_E_DISCONNECTED",
        RPCRDMA_E_BUSY => c"RPCRDMA_E_BUSY",
        RPCRDMA_E_TOO_LONG => c"RPCRDMA_E_TOO_LONG",
        RPCRDMA_E_NO_BUFFERS => c"RPCRDMA_E_NO_BUFFERS",
        RPCRDMA_E_UNSUPPORTED => c"RPCRDMA_E_UNSUPPORTED",
        RPCRDMA_E_PROGRAM_UNAVAILABLE => c"RPCRDMA_E_PROGRAM_UNAVAILABLE",
        RPCRDMA_E_PROGRAM_MISMATCH => c"RPCRDMA_E_PROGRAM_MISMATCH",
        RPCRDMA_E_PROCEDURE_UNAVAILABLE => c"RPCRDMA_E_PROCEDURE_UNAVAILABLE",
        RPCRDMA_E_GARBAGE_ARGS => c"RPCRDMA_E_GARBAGE_ARGS",
        RPCRDMA_E_SYSTEM_ERROR => c"RPCRDMA_E_SYSTEM_ERROR",
        RPCRDMA_E_DENIED => c"RPCRDMA_E_DENIED",
        RPCRDMA_E_BAD_REPLY => c"RPCRDMA_E_BAD_REPLY",
        RPCRDMA_E_USAGE => c"RPCRDMA_E_USAGE",
        RPCRDMA_E_SHUTTING_DOWN => c"RPCRDMA_E_SHUTTING_DOWN",
        RPCRDMA_E_ARGUMENT => c"RPCRDMA_E_ARGUMENT",
        RPCRDMA_E_PANIC => c"RPCRDMA_E_PANIC",
        0.. => c"RPCRDMA_OK",
        _ => c"RPCRDMA_E_OTHER",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_number_and_every_number_a_name() {
        let source = include_str!("../../error.rs");
        let (_, kinds) = source
            .split_once("pub enum ErrorKind {")
            .expect("the kinds");
        let (kinds, _) = kinds.split_once('}').expect("their end");
        let kinds = kinds.lines().filter(|line| line.trim_end().ends_with(','));
        let here = include_str!("codes.rs");
        let mut numbers = 0;
        for kind in kinds {
            numbers += 1;
            let arm = format!("ErrorKind::{} =>", kind.trim().trim_end_matches(','));
            assert!(here.contains(&arm), "no arm `{arm}`");
        }
        assert_eq!(numbers, 18, "those of the list, in its order");
        let names: std::collections::BTreeSet<_> = (RPCRDMA_E_PANIC..=0).map(name_of).collect();
        assert_eq!(names.len(), 22);
        assert_eq!(name_of(-1000), c"RPCRDMA_E_OTHER");
    }
}
