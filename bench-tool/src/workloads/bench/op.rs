//! The procedures that a run calls, and the placements of their payloads.

use serde::{Deserialize, Serialize};

/// The procedure that `run` calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Op {
    Null,
    Echo,
    Read,
    Write,
    Mix,
}

impl Op {
    /// The name used on the command line and in reports.
    #[must_use]
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Echo => "echo",
            Self::Read => "read",
            Self::Write => "write",
            Self::Mix => "mix",
        }
    }

    /// Whether its payload may travel outside the message.
    #[must_use]
    pub(crate) const fn is_bulk(self) -> bool {
        matches!(self, Self::Read | Self::Write | Self::Mix)
    }
}

/// How the payloads of `read`, `write` and `mix` travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Placement {
    /// The endpoints choose, by size and by what both support.
    #[default]
    Auto,
    /// Inside the messages, with copies.
    Inline,
    /// Placed by Sends: one round trip, no registration, no RDMA Read or Write.
    Send,
    /// By RDMA Read and Write, in memory that is exposed for one call.
    Rdma,
}

impl Placement {
    /// The name used on the command line and in reports.
    #[must_use]
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Inline => "inline",
            Self::Send => "send",
            Self::Rdma => "rdma",
        }
    }
}
