//! The values of options that are a choice between words, with their help.

use clap::ValueEnum;
use clap::builder::PossibleValue;

use crate::nfs_client::config::Stable;
use crate::protocol::Protocol;
use crate::run::config::OwnFabric;
use crate::run::through::Through;
use crate::serve::log::{LogFormat, LogLevel};
use crate::workloads::bench::op::{Op, Placement};
use crate::workloads::nfs::steps::{Access, NfsOp};

/// Makes clap parse enums by their names. A value without help does not compile.
macro_rules! choices {
    ($($choice:ident { $($value:ident: $help:literal,)+ })+) => {$(
        impl ValueEnum for $choice {
            fn value_variants<'a>() -> &'a [Self] {
                &[$(Self::$value),+]
            }

            fn to_possible_value(&self) -> Option<PossibleValue> {
                let help = match self {
                    $(Self::$value => $help,)+
                };
                Some(PossibleValue::new(self.name()).help(help))
            }
        }
    )+};
}

choices! {
    Op {
        Null: "No arguments, no results: the cost of the call itself",
        Echo: "The server returns the payload",
        Read: "Payloads come from the server",
        Write: "Payloads go to the server",
        Mix: "Reads and writes, drawn by --seed and --read-percent",
    }
    Placement {
        Auto: "Client and server choose, by size and by what both support",
        Inline: "In the messages, copied",
        Send: "Placed by the Sends: one round trip, no registration, no RDMA",
        Rdma: "By RDMA Read and Write, through memory that is exposed for one call",
    }
    Through {
        Core: "An application on the polling core, without a hop",
        Poller: "A thread for each connection, which sends and takes replies without waiting",
        Call: "Blocking calls, in --depth threads for each connection",
        Async: "Futures, in one thread for each connection",
    }
    Protocol {
        Auto: "Version 2, or version 1 if the server does not support version 2",
        V1: "Only version 1 (RFC 8166)",
        V2: "Only version 2",
    }
    OwnFabric {
        Shm: "Shared memory: no device is needed",
        Rdma: "An RDMA device of this machine, in loopback",
    }
    NfsOp {
        Null: "No arguments, no results: the cost of the call itself",
        Getattr: "Attributes of the files, or of the export",
        Read: "Reads of files with known contents",
        Write: "Writes to files",
        Mix: "Reads and writes, drawn by --seed and --read-percent",
    }
    Access {
        Sequential: "Block after block, file after file; connections start apart from each other",
        Random: "Blocks drawn by --seed",
    }
    Stable {
        Unstable: "No guarantee before the COMMIT at the end",
        Data: "The data is on stable storage",
        File: "The data, and the metadata needed to find it, are on stable storage",
    }
    LogFormat {
        Text: "Time, level, event, and name=value",
        Json: "One object per line",
    }
    LogLevel {
        Error: "The server could not do what was requested",
        Warn: "Something is wrong, but the server continues",
        Info: "Connections, limits, start and end",
    }
}
