//! What can go wrong, in sentences.

use std::fmt;

use rpcrdma_control::{AddressError, ConnectError, FabricError, NodeError};
use rpcrdma_engine::{CallError, CallRefused};
use rpcrdma_fabric::interface::SetupError;
use rpcrdma_fabric::memory::NotLeased;
use rpcrdma_protocol::v2::{ApplicationNumberRefused, TransportError};

/// Why something failed. It prints as a sentence that says what failed, on what, and what to do; a program decides by
/// [`Error::kind`].
///
/// `{:?}` prints the sentence as well, with its causes, so that a `main` that returns an error shows it readably; `{:#?}`
/// prints the structure.
pub struct Error(Box<Failure>);

/// What kind of failure it is, to decide what to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An address cannot be used: it names no fabric, or another one than the node has.
    Address,
    /// The configuration cannot be used.
    Configuration,
    /// The connection cannot be made, and was not made again: the server is not there, or refuses.
    NotConnected,
    /// No reply came in time. The server may have executed the call, or may do so yet.
    TimedOut,
    /// The connection ended before the reply came. The server may have executed the call.
    Disconnected,
    /// As many calls are under way as the client may have: take replies first. Nothing was sent.
    Busy,
    /// The arguments or the results are longer than a message may be.
    TooLong,
    /// The core has no registered memory to spare.
    NoBuffers,
    /// The other end or the device cannot do what the call needs. Nothing was sent.
    Unsupported,
    /// The server does not have the program.
    ProgramUnavailable,
    /// The server has the program in other versions.
    ProgramMismatch,
    /// The program has no such procedure.
    ProcedureUnavailable,
    /// The server cannot decode the arguments.
    GarbageArgs,
    /// The call failed at the server.
    SystemError,
    /// The server refuses the caller's credential.
    Denied,
    /// The reply cannot be decoded.
    BadReply,
    /// The program uses a request in a way that cannot work. Nothing was sent.
    Usage,
    /// The node is shutting down.
    ShuttingDown,
}

impl Error {
    /// What kind of failure it is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() {
            return f.debug_tuple("Error").field(&self.0).finish();
        }
        f.write_str(&sentence(self))
    }
}

/// An error with its causes.
pub(crate) fn sentence(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let why = error.to_string();
        // Some errors print their cause themselves.
        if !text.ends_with(&why) {
            text = format!("{text}: {why}");
        }
        cause = error.source();
    }
    text
}

fn sentence_with_advice(error: &FabricError) -> String {
    let advice = error.advice().map(|advice| format!("; {advice}"));
    sentence(error) + &advice.unwrap_or_default()
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&*self.0)
    }
}

impl<T: Into<Failure>> From<T> for Error {
    fn from(failure: T) -> Self {
        Self(Box::new(failure.into()))
    }
}

/// The stream is not what the reader expects: it ends early, or a value is out of its range.
///
/// A service that returns it with `?` answers GARBAGE_ARGS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the stream of XDR cannot be decoded at byte {at}")]
pub struct Malformed {
    /// Bytes of the stream before the value.
    pub at: usize,
}

/// Each failure with what is known of it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Address(#[from] AddressError),
    #[error(
        "`{address}` is on another fabric than this node, which serves {fabric}: start one node for each fabric"
    )]
    OtherFabric {
        address: String,
        fabric: &'static str,
    },
    #[error("cannot listen on {address}: {source}")]
    Tcp {
        address: String,
        source: std::io::Error,
    },
    #[error(
        "{address} is not possible with the authentication of hosts: TCP asks for none, so anybody who reaches it would be served"
    )]
    NoAuthentication { address: String },
    #[error("{}", sentence_with_advice(.0))]
    Fabric(#[from] FabricError),
    #[error(
        "the configuration of the node announces properties that leave no room for the name of the node: {0}"
    )]
    Properties(#[from] ApplicationNumberRefused),
    #[error(
        "program {program} is served by a service and taken by the application too: list the programs that the application takes (`Application::programs`), each once"
    )]
    ProgramTwice { program: u32 },
    #[error("the profile cannot be used: {0}")]
    Profile(#[from] rpcrdma_tuning::Error),
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Memory(#[from] SetupError),
    #[error("a part of the program's memory cannot be used: {0}")]
    NotLeased(#[from] NotLeased),
    #[error("the connection to `{address}` is given up: {why}")]
    GivenUp { address: String, why: String },
    #[error("no connection to `{address}` in {after_ms} ms{}", last.as_ref().map(|last| format!(": {last}")).unwrap_or_default())]
    NotConnected {
        address: String,
        after_ms: u64,
        last: Option<String>,
    },
    #[error(
        "no reply came from `{address}` in {after_ms} ms; the server may still execute the call"
    )]
    TimedOut { address: String, after_ms: u64 },
    #[error("the call to `{address}` failed: {error}{}", advice(*error))]
    Call { address: String, error: CallError },
    #[error(
        "the call to `{address}` was not sent, for it is too long: headers and arguments may have {max} bytes (message_bytes_max); bulk data, and by version 1 of RPC-over-RDMA what fits no message, results too, may have {bulk} bytes (bulk_buffers), less a quarter or 32 buffers that are kept for the calls of peers, and 16 pieces by version 1 (bulk_buffer_bytes)"
    )]
    CallTooLong {
        address: String,
        max: u32,
        bulk: u64,
    },
    #[error("the call to `{address}` was not sent: {error}")]
    Refused { address: String, error: CallRefused },
    #[error(
        "{depth} calls are under way, as many as this client may have: take replies first, or raise its depth"
    )]
    Busy { depth: u32 },
    #[error(
        "there are not {wanted} processors that this thread may use and no other node of this process has: make fewer cores, or give the process more (`taskset`, cpusets)"
    )]
    Processors { wanted: usize },
    #[error(
        "{wanted} calls at a time are more than a core takes ({max}): lower the depth of its clients, or raise calls_outstanding_max"
    )]
    Depth { wanted: u32, max: u32 },
    #[error(
        "the reply has {bytes} bytes of results, and the client takes {max}: raise message_bytes_max"
    )]
    ResultsTooLong { bytes: usize, max: usize },
    #[error("no registered memory for {bytes} bytes: wait until calls end, or raise bulk_buffers")]
    NoBuffers { bytes: usize },
    #[error("the call has more items of bulk data than fit: {max} at most")]
    TooManyItems { max: usize },
    #[error("the reply cannot be decoded: {0}")]
    Malformed(#[from] Malformed),
    #[error("no call to `{address}` is under way, so no reply will come")]
    NothingUnderWay { address: String },
    #[error("the request was sent already: begin a new one for each call")]
    AlreadySent,
    #[error(
        "the request was begun by another client or poller: begin it with `Poller::request` of this one"
    )]
    OtherPoller,
    #[error("the node is shutting down")]
    ShuttingDown,
}

impl Failure {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Fabric(FabricError::Profile(_)) => ErrorKind::Configuration,
            Self::Address(_) | Self::OtherFabric { .. } | Self::Fabric(_) | Self::Tcp { .. } => {
                ErrorKind::Address
            }
            Self::Profile(_)
            | Self::Node(_)
            | Self::Memory(_)
            | Self::Processors { .. }
            | Self::Properties(_)
            | Self::ProgramTwice { .. }
            | Self::NoAuthentication { .. }
            | Self::Depth { .. } => ErrorKind::Configuration,
            Self::Connect(ConnectError::ShuttingDown) | Self::ShuttingDown => {
                ErrorKind::ShuttingDown
            }
            Self::Connect(_) | Self::GivenUp { .. } | Self::NotConnected { .. } => {
                ErrorKind::NotConnected
            }
            Self::TimedOut { .. } => ErrorKind::TimedOut,
            Self::Call { error, .. } => of_call(*error),
            Self::Refused { error, .. } => of_refusal(*error),
            Self::Busy { .. } => ErrorKind::Busy,
            Self::ResultsTooLong { .. } | Self::TooManyItems { .. } | Self::CallTooLong { .. } => {
                ErrorKind::TooLong
            }
            Self::NoBuffers { .. } | Self::NotLeased(NotLeased::InUse) => ErrorKind::NoBuffers,
            Self::NotLeased(NotLeased::NoSuchRange) => ErrorKind::Usage,
            Self::Malformed(_) => ErrorKind::BadReply,
            Self::AlreadySent | Self::OtherPoller | Self::NothingUnderWay { .. } => {
                ErrorKind::Usage
            }
        }
    }
}

fn advice(error: CallError) -> &'static str {
    match error {
        // ERR_CHUNK of version 1, which has no other error for that.
        CallError::Transport(TransportError::BadXdr) => {
            "; a server of version 1 of RPC-over-RDMA also says so of results that fit no message: say how long they may be (results_bytes_max)"
        }
        _ => "",
    }
}

fn of_call(error: CallError) -> ErrorKind {
    match error {
        CallError::TimedOut => ErrorKind::TimedOut,
        CallError::Disconnected => ErrorKind::Disconnected,
        CallError::Transport(_) | CallError::BadReply => ErrorKind::BadReply,
        CallError::ReplyTooLong => ErrorKind::TooLong,
        CallError::ProgramUnavailable => ErrorKind::ProgramUnavailable,
        CallError::ProgramMismatch { .. } => ErrorKind::ProgramMismatch,
        CallError::ProcedureUnavailable => ErrorKind::ProcedureUnavailable,
        CallError::GarbageArgs => ErrorKind::GarbageArgs,
        CallError::SystemError => ErrorKind::SystemError,
        CallError::Denied(_) => ErrorKind::Denied,
    }
}

fn of_refusal(error: CallRefused) -> ErrorKind {
    match error {
        CallRefused::UnknownConnection | CallRefused::NotReady => ErrorKind::Disconnected,
        CallRefused::Draining => ErrorKind::ShuttingDown,
        CallRefused::NoCredit | CallRefused::NoSlot => ErrorKind::Busy,
        CallRefused::TooLong => ErrorKind::TooLong,
        CallRefused::NoBulk => ErrorKind::NoBuffers,
        CallRefused::NotTaken
        | CallRefused::NoPlacement
        | CallRefused::ForeignMemory
        | CallRefused::NotRegistered => ErrorKind::Unsupported,
    }
}
