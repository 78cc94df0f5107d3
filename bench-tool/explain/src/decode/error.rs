//! Why an input was not explained, and what to do.

use std::io;

use crate::capture::{CaptureError, Fault};

/// Why an input was not explained. That a message in it is wrong is no such reason.
#[derive(Debug, thiserror::Error)]
pub enum ExplainError {
    /// The input cannot be read.
    #[error("cannot read {name}")]
    Unreadable {
        /// The name of the input.
        name: String,
        /// What reading it failed with.
        source: io::Error,
    },
    /// The capture cannot be read to its end.
    #[error("{name} is no good capture")]
    BadCapture {
        /// The name of the input.
        name: String,
        /// Where it is wrong.
        source: CaptureError,
    },
    /// The capture holds no message.
    #[error("there was no message in {name}")]
    NothingCaptured {
        /// The name of the input.
        name: String,
    },
    /// The lines of hex hold no message.
    #[error("there was no message in {name}")]
    NoMessage {
        /// The name of the input.
        name: String,
    },
    /// The output takes no more. A reader that went away is no such error.
    #[error("cannot write what was decoded")]
    Unwritable(#[source] io::Error),
}

impl ExplainError {
    /// What the user can do about it: one sentence, no full stop.
    #[must_use]
    pub const fn advice(&self) -> &'static str {
        match self {
            Self::Unreadable { .. } => "give a capture, or hex, one message a line",
            Self::BadCapture { .. } => {
                "take the capture again, or give what Wireshark makes of it when it saves it"
            }
            Self::NothingCaptured { .. } => {
                "capture UDP port 4791 on the network device below the RDMA device, or on a mirror port where the \
                 device does not show its own traffic"
            }
            Self::NoMessage { .. } => {
                "give hex, one message a line, or JSON lines with a field `hex`; `bench-tool decode --help` has examples"
            }
            Self::Unwritable(_) => "free space where the output goes, or send it elsewhere",
        }
    }

    pub(crate) fn unreadable(name: &str, source: io::Error) -> Self {
        Self::Unreadable {
            name: name.to_owned(),
            source,
        }
    }

    pub(crate) fn of_capture(name: &str, error: CaptureError) -> Self {
        match error.fault {
            Fault::Read(source) => Self::unreadable(name, source),
            _ => Self::BadCapture {
                name: name.to_owned(),
                source: error,
            },
        }
    }
}
