//! The errors of the explainer, with advice for the user.

use std::io;

use crate::capture::{CaptureError, Fault};

/// Why the explainer could not read an input to its end. A wrong message in the input is no such error.
#[derive(Debug, thiserror::Error)]
pub enum ExplainError {
    /// The input cannot be read.
    #[error("cannot read {name}")]
    Unreadable {
        /// The name of the input.
        name: String,
        /// The error of the read.
        source: io::Error,
    },
    /// The capture cannot be read to its end.
    #[error("the capture {name} is not valid")]
    BadCapture {
        /// The name of the input.
        name: String,
        /// The fault and its offset.
        source: CaptureError,
    },
    /// The input is compressed.
    #[error("{name} is compressed by {program}")]
    Compressed {
        /// The name of the input.
        name: String,
        /// The program that compressed it.
        program: &'static str,
    },
    /// The capture holds no message.
    #[error("there is no message in {name}")]
    NothingCaptured {
        /// The name of the input.
        name: String,
    },
    /// The lines of hex hold no message.
    #[error("there is no message in {name}")]
    NoMessage {
        /// The name of the input.
        name: String,
    },
    /// Writing the output failed. A reader that closed the pipe is no such error.
    #[error("cannot write the output")]
    Unwritable(#[source] io::Error),
}

impl ExplainError {
    /// Advice for the user: one sentence, no full stop.
    #[must_use]
    pub const fn advice(&self) -> &'static str {
        match self {
            Self::Unreadable { .. } => "give a capture, or hex, one message a line",
            Self::BadCapture { .. } => {
                "take the capture again, or open it in Wireshark, save it there and give the saved file"
            }
            Self::Compressed { .. } => {
                "decompress it on the way: `gzip -dc FILE | bench-tool decode`, or with `zstd`, `xz` or `bzip2` in its place"
            }
            Self::NothingCaptured { .. } => {
                "capture UDP port 4791 on the network device below the RDMA device, or on a mirror port where the \
                 device does not show its own traffic"
            }
            Self::NoMessage { .. } => {
                "give hex, one message a line, or JSON lines with a field `hex`; `bench-tool decode --help` has examples"
            }
            Self::Unwritable(_) => {
                "free space on the file system of the output, or write to another one"
            }
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
