//! The versions of RPC-over-RDMA that a client accepts.

use rpcrdma_control::Versions;

/// The value of `--protocol`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// Version 2, or version 1 if the server does not support version 2.
    #[default]
    Auto,
    /// Only version 1 (RFC 8166).
    V1,
    /// Only version 2.
    V2,
}

impl Protocol {
    /// The value for connecting.
    pub(crate) fn versions(self) -> Versions {
        match self {
            Self::Auto => Versions::Both,
            Self::V1 => Versions::One,
            Self::V2 => Versions::Two,
        }
    }

    /// The name used on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::V1 => "v1",
            Self::V2 => "v2",
        }
    }
}
