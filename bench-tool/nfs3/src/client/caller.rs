//! Calls that are made one at a time: what prepares a load, and what cleans up after it.

use std::io;
use std::time::Instant;

use rpcrdma_protocol::rpc::{AcceptStatus, RejectStatus};
use rpcrdma_protocol::{DecodeError, EncodeError};

use super::request::Request;
use super::{CALL_TIMEOUT, PUT_OFF_PAUSE};
use crate::wire::Status;
use crate::wire::record::RecordError;

/// Results, with the bulk data that they refer to.
#[derive(Debug, Default)]
pub struct Results {
    /// The result stream.
    pub stream: Vec<u8>,
    /// Bulk data, which came outside it, with its padding or without.
    pub bulk: Vec<u8>,
    /// Whether the call was made before, on a connection that was lost: the server may have done it twice.
    pub is_repeated: bool,
}

impl Results {
    fn are_put_off(&self) -> bool {
        // The results of all procedures but NULL begin with their status.
        let status = self.stream.first_chunk();
        status.is_some_and(|it| u32::from_be_bytes(*it) == Status::Jukebox.number())
    }
}

/// Makes NFS calls, one at a time, on whatever transport.
pub trait NfsCaller {
    /// Makes a call that has no payload, once, and waits for its results. With `data_bytes_max` they end with that many
    /// bytes of data at most.
    fn call_once(
        &mut self,
        request: &Request<'_>,
        data_bytes_max: u32,
    ) -> Result<Results, CallFailed>;

    /// Makes the connection again that a call was lost with, for as long as the run allows; whether there is one.
    fn restore(&mut self) -> bool;

    /// Makes a call like [`Self::call_once`]. It is made again when the connection was lost and could be made again, and
    /// for as long as the server puts it off, up to [`CALL_TIMEOUT`].
    fn call_for(
        &mut self,
        request: &Request<'_>,
        data_bytes_max: u32,
    ) -> Result<Results, CallFailed> {
        let deadline = Instant::now() + CALL_TIMEOUT;
        let mut is_repeated = false;
        loop {
            match self.call_once(request, data_bytes_max) {
                Err(error) if error.is_of_connection() && self.restore() => is_repeated = true,
                Ok(results)
                    if results.are_put_off() && Instant::now() + PUT_OFF_PAUSE < deadline =>
                {
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

    /// Makes a call with no payload either way.
    fn call(&mut self, request: &Request<'_>) -> Result<Vec<u8>, CallFailed> {
        self.call_for(request, 0).map(|results| results.stream)
    }

    /// The most bytes of a READ.
    fn read_bytes_max(&self) -> u32;
}

/// Why a call gave no results.
#[derive(Debug, thiserror::Error)]
pub enum CallFailed {
    /// The connection failed.
    #[error("the connection failed")]
    Connection(#[from] io::Error),
    /// The peer closed it.
    #[error("the server closed the connection")]
    Closed,
    /// The peer sends what is no record.
    #[error("the server's answer cannot be read")]
    Record(#[from] RecordError),
    /// The answer is no RPC reply.
    #[error("the server's answer is no RPC reply: {0}")]
    Reply(DecodeError),
    /// The call was accepted, and not executed.
    #[error("{}", accept_words(*.0))]
    Refused(AcceptStatus),
    /// The call was not accepted.
    #[error("{}", reject_words(*.0))]
    Denied(RejectStatus),
    /// The call failed on a fabric.
    #[error("{0}")]
    Fabric(String),
    /// The call was lost with its connection over a fabric.
    #[error("{0}")]
    Lost(String),
    /// The arguments are longer than they may be.
    #[error("the arguments cannot be encoded: {0}")]
    Arguments(#[from] EncodeError),
}

impl CallFailed {
    /// Whether the call could go on another connection.
    fn is_of_connection(&self) -> bool {
        matches!(self, Self::Connection(_) | Self::Closed | Self::Lost(_))
    }
}

/// Why a call was accepted and not executed.
#[must_use]
pub fn accept_words(status: AcceptStatus) -> String {
    match status {
        AcceptStatus::Success => "done".to_owned(),
        AcceptStatus::ProgUnavail => "the program is not there (PROG_UNAVAIL)".to_owned(),
        AcceptStatus::ProgMismatch { low, high } => {
            format!("the server has versions {low} to {high} of the program (PROG_MISMATCH)")
        }
        AcceptStatus::ProcUnavail => "the procedure is not there (PROC_UNAVAIL)".to_owned(),
        AcceptStatus::GarbageArgs => {
            "the server cannot decode the arguments (GARBAGE_ARGS)".to_owned()
        }
        AcceptStatus::SystemErr => "the server failed (SYSTEM_ERR)".to_owned(),
    }
}

/// Why a call was not accepted.
#[must_use]
pub fn reject_words(status: RejectStatus) -> String {
    match status {
        RejectStatus::RpcMismatch { low, high } => {
            format!("the server has versions {low} to {high} of RPC")
        }
        RejectStatus::AuthError(status) => {
            format!(
                "the server does not take the credential (auth_stat {})",
                status.0
            )
        }
    }
}
