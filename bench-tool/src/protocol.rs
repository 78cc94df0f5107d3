//! The versions of RPC-over-RDMA that the two ends may agree on.

use rpcrdma_control::Versions;

/// The version of RPC-over-RDMA that calls are made with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// Version 2, or version 1 if the server has no other.
    #[default]
    Auto,
    /// Version 1 (RFC 8166).
    V1,
    /// Version 2, and no other.
    V2,
}

impl Protocol {
    /// What a connect is told.
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
