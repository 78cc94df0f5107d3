//! Calls that are made one at a time: they prepare a load, and clean up after it.

use std::io;
use std::time::Instant;

use rpcrdma::record::RecordError;
use rpcrdma_protocol::rpc::{AcceptStatus, RejectStatus};
use rpcrdma_protocol::{DecodeError, EncodeError};

use super::mount::MountCaller;
use super::request::Request;
use super::{CALL_TIMEOUT, PUT_OFF_PAUSE};
use crate::wire::Status;
use crate::wire::mount::MountProcedure;

/// How often a call is repeated after its connection was lost. A server that always closes it would never be left.
const LOSSES_MAX: u32 = 100;

/// The results of a call, with their data.
#[derive(Debug, Default)]
pub struct Results {
    /// The result stream. On TCP it ends with the data.
    pub stream: Vec<u8>,
    /// The data that RDMA moved outside the stream, with or without its padding.
    pub bulk: Vec<u8>,
    /// Whether the call was sent before on a connection that was lost: the server may have executed it twice.
    pub is_repeated: bool,
}

impl Results {
    fn are_put_off(&self) -> bool {
        // The results of every procedure except NULL begin with their status.
        let status = self.stream.first_chunk();
        status.is_some_and(|it| u32::from_be_bytes(*it) == Status::Jukebox.number())
    }
}

/// Makes NFS calls, one at a time, on any transport.
pub trait NfsCaller {
    /// Makes a call without payload once, and waits for its results, which end with at most `data_bytes_max` bytes of
    /// data.
    fn call_once(
        &mut self,
        request: &Request<'_>,
        data_bytes_max: u32,
    ) -> Result<Results, CallFailed>;

    /// Connects again after a call has lost its connection, for as long as the run allows. Returns whether it succeeded.
    fn restore(&mut self) -> bool;

    /// As [`Self::call_once`], but repeats the call after its connection was lost and restored, and, up to [`CALL_TIMEOUT`],
    /// while the server answers that it should be tried later (NFS3ERR_JUKEBOX).
    fn call_for(
        &mut self,
        request: &Request<'_>,
        data_bytes_max: u32,
    ) -> Result<Results, CallFailed> {
        let deadline = Instant::now() + CALL_TIMEOUT;
        let (mut losses, mut is_repeated) = (0, false);
        loop {
            match self.call_once(request, data_bytes_max) {
                Err(error) if error.is_of_connection() && losses < LOSSES_MAX && self.restore() => {
                    losses += 1;
                    is_repeated = true;
                }
                Ok(results)
                    if results.are_put_off() && Instant::now() + PUT_OFF_PAUSE < deadline =>
                {
                    // WAIT: `PUT_OFF_PAUSE`; the whole until `deadline`.
                    std::thread::sleep(PUT_OFF_PAUSE);
                }
                outcome => {
                    return outcome.map(|results| Results {
                        is_repeated,
                        ..results
                    });
                }
            }
        }
    }

    /// Makes a call without payload in either direction.
    fn call(&mut self, request: &Request<'_>) -> Result<Vec<u8>, CallFailed> {
        self.call_for(request, 0).map(|results| results.stream)
    }

    /// Makes a call of MOUNT once, on the same connection, and waits for its results.
    fn call_mount_once(
        &mut self,
        procedure: MountProcedure,
        args: &[u8],
    ) -> Result<Vec<u8>, CallFailed>;

    /// The longest READ in bytes.
    fn read_bytes_max(&self) -> u32;
}

/// MOUNT on the connection of NFS. A call is repeated after its connection was lost and restored.
impl MountCaller for dyn NfsCaller + '_ {
    fn call_mount(
        &mut self,
        procedure: MountProcedure,
        args: &[u8],
    ) -> Result<Vec<u8>, CallFailed> {
        let mut losses = 0;
        loop {
            match self.call_mount_once(procedure, args) {
                Err(error) if error.is_of_connection() && losses < LOSSES_MAX && self.restore() => {
                    losses += 1;
                }
                outcome => return outcome,
            }
        }
    }
}

/// Why a call gave no results.
#[derive(Debug, thiserror::Error)]
pub enum CallFailed {
    /// The connection failed.
    #[error("the connection failed")]
    Connection(#[from] io::Error),
    /// The server closed the connection.
    #[error("the server closed the connection")]
    Closed,
    /// The stream of the server has no valid record.
    #[error("the server's answer cannot be read")]
    Record(#[from] RecordError),
    /// The message is not an RPC reply.
    #[error("the server's answer is not an RPC reply: {0}")]
    Reply(DecodeError),
    /// The server accepted the call but did not execute it.
    #[error("{}", accept_words(*.0))]
    Refused(AcceptStatus),
    /// The server rejected the call.
    #[error("{}", reject_words(*.0))]
    Denied(RejectStatus),
    /// The call failed over a fabric.
    #[error("{0}")]
    Fabric(String),
    /// The connection over a fabric was lost, and the call with it.
    #[error("{0}")]
    Lost(String),
    /// The arguments exceed their limits.
    #[error("the arguments cannot be encoded: {0}")]
    Arguments(#[from] EncodeError),
}

impl CallFailed {
    /// Whether the server does not have the program, or not in this version.
    pub(crate) const fn is_without_program(&self) -> bool {
        use AcceptStatus::{ProgMismatch, ProgUnavail};
        matches!(self, Self::Refused(ProgUnavail | ProgMismatch { .. }))
    }

    /// Whether the call may succeed on another connection.
    fn is_of_connection(&self) -> bool {
        matches!(self, Self::Connection(_) | Self::Closed | Self::Lost(_))
    }
}

/// The text for the status of an accepted call.
#[must_use]
pub fn accept_words(status: AcceptStatus) -> String {
    match status {
        AcceptStatus::Success => "done".to_owned(),
        AcceptStatus::ProgUnavail => {
            "the server does not have the program (PROG_UNAVAIL)".to_owned()
        }
        AcceptStatus::ProgMismatch { low, high } => {
            format!("the server has versions {low} to {high} of the program (PROG_MISMATCH)")
        }
        AcceptStatus::ProcUnavail => {
            "the server does not have the procedure (PROC_UNAVAIL)".to_owned()
        }
        AcceptStatus::GarbageArgs => {
            "the server cannot decode the arguments (GARBAGE_ARGS)".to_owned()
        }
        AcceptStatus::SystemErr => "the server failed (SYSTEM_ERR)".to_owned(),
    }
}

/// The text for the status of a rejected call.
#[must_use]
pub fn reject_words(status: RejectStatus) -> String {
    match status {
        RejectStatus::RpcMismatch { low, high } => {
            format!("the server has versions {low} to {high} of RPC")
        }
        RejectStatus::AuthError(status) => {
            format!(
                "the server does not accept the credential (auth_stat {})",
                status.0
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that closes the connection at each call, and always takes another one.
    struct Closing(u32);

    impl NfsCaller for Closing {
        fn call_once(&mut self, _: &Request<'_>, _: u32) -> Result<Results, CallFailed> {
            self.0 += 1;
            Err(CallFailed::Closed)
        }

        fn restore(&mut self) -> bool {
            true
        }

        fn call_mount_once(&mut self, _: MountProcedure, _: &[u8]) -> Result<Vec<u8>, CallFailed> {
            self.0 += 1;
            Err(CallFailed::Closed)
        }

        fn read_bytes_max(&self) -> u32 {
            0
        }
    }

    #[test]
    fn server_that_always_closes_the_connection_is_left() {
        let mut caller = Closing(0);
        let failed = caller.call(&Request::Null);
        assert!(matches!(failed, Err(CallFailed::Closed)) && caller.0 == LOSSES_MAX + 1);
        let caller: &mut dyn NfsCaller = &mut caller;
        let failed = caller.call_mount(MountProcedure::Null, &[]);
        assert!(matches!(failed, Err(CallFailed::Closed)));
    }
}
