//! The command line of `nfs`.

use std::time::Duration;

use clap::{Args, ValueEnum};

use super::values;
use super::{LengthArgs, OutputArgs, ProfileChoice, Protocol};
use crate::nfs_client::address::NfsAddress;
use rpcrdma_doctor::{CoreList, core_list};

/// What `nfs` calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum NfsOp {
    /// No arguments, no results: the cost of the call itself
    Null,
    /// Attributes of the files, or of the export
    Getattr,
    /// Reads of files with known contents
    Read,
    /// Writes to files
    Write,
    /// Reads and writes, drawn by --seed and --read-percent
    Mix,
}

impl NfsOp {
    /// The name used on the command line and in reports.
    #[must_use]
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Getattr => "getattr",
            Self::Read => "read",
            Self::Write => "write",
            Self::Mix => "mix",
        }
    }

    /// Whether its calls carry payload.
    #[must_use]
    pub(crate) const fn is_bulk(self) -> bool {
        matches!(self, Self::Read | Self::Write | Self::Mix)
    }
}

/// Where in the files the calls go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Access {
    /// Block after block, file after file; connections start apart from each other
    #[default]
    Sequential,
    /// Blocks drawn by --seed
    Random,
}

impl Access {
    /// The name used on the command line and in reports.
    #[must_use]
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Sequential => "sequential",
            Self::Random => "random",
        }
    }
}

/// What the server is to promise before it answers a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Stable {
    /// None before the COMMIT at the end
    #[default]
    Unstable,
    /// The data is on stable storage
    Data,
    /// The data, and the metadata needed to find it, are on stable storage
    File,
}

impl Stable {
    /// The name used on the command line and in reports.
    #[must_use]
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Unstable => "unstable",
            Self::Data => "data",
            Self::File => "file",
        }
    }
}

/// `bench-tool nfs`.
#[derive(Args, Debug)]
#[command(after_help = "\
Mounts the export itself (MOUNT version 3 over TCP, without a kernel client), makes files in its own folder, calls, \
checks the answers, and removes the files, also after Ctrl-C. Over tcp: the kernel's TCP carries the calls: compare the \
server's RDMA with it; it does not measure this project's data plane.\n\n\
Examples:
  bench-tool nfs --connect rdma:server:20049 --export /srv --op read --size 64KiB --depth 8
      reads by RDMA
  bench-tool nfs --connect tcp:server:2049 --export /srv
      null calls
  bench-tool nfs --connect tcp:server:2049 --export /srv --op read --size 64KiB --depth 8
      reads of 64 KiB, eight at a time
  bench-tool nfs --connect tcp:server:2049 --export /srv --op mix --read-percent 70 --access random --verify
      every byte that is read is checked
  bench-tool nfs --connect tcp:server:2049 --export /srv --op write --stable file --rate 500 --depth 64
      the server's stable storage at 500 writes a second
  bench-tool nfs --connect rdma:server:20049 --export /srv --op read --to-knee --depth 32 --html knee.html
      latency of reads against their rate
  bench-tool nfs --connect tcp:server:2049 --export /srv --op write --verify --retry 2m
      restart the server meanwhile: it may lose nothing that it committed")]
pub(crate) struct NfsArgs {
    /// Server to call: rdma:HOST:PORT (NFS uses port 20049) or shm:NAME, by this project's data plane; or tcp:HOST:PORT (port 2049), by the kernel's TCP
    #[arg(long, value_name = "ADDR")]
    pub connect: NfsAddress,

    /// Path that the server exports, as `showmount -e SERVER` lists it
    #[arg(long, value_name = "PATH")]
    pub export: String,

    /// TCP port of the server's mountd [default: ask the server's port mapper]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub mount_port: Option<u16>,

    /// Procedure to call
    #[arg(long, value_enum, default_value_t = NfsOp::Null)]
    pub op: NfsOp,

    /// Bytes of one read or write, any number [default: 4KiB]
    #[arg(long, value_name = "BYTES", value_parser = values::size_bytes)]
    pub size: Option<u64>,

    /// Bytes of each file [default: 16MiB, or one read or write if that is more]
    #[arg(long, value_name = "BYTES", value_parser = values::size_bytes)]
    pub file_size: Option<u64>,

    /// Number of files [default: 4; with getattr, 0 asks for the export itself]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=10_000))]
    pub files: Option<u32>,

    /// Order of access to the files [default: sequential]
    #[arg(long, value_enum)]
    pub access: Option<Access>,

    /// Percentage of reads in a mix [default: 50]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=100))]
    pub read_percent: Option<u32>,

    /// Durability of writes [default: unstable]
    #[arg(long, value_enum)]
    pub stable: Option<Stable>,

    /// Seed of contents and random choices: the same seed makes the same calls
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// Check every byte that is read, and read back at the end what was written [default: check a word of each page]
    #[arg(long)]
    pub verify: bool,

    /// How long to retry after a lost connection (calls in flight are repeated) and after NFS3ERR_JUKEBOX [default: 0: the first ends the run, the second is an error]
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = values::time)]
    pub retry: Duration,

    /// User of the calls (AUTH_SYS) [default: this process's]
    #[arg(long, value_name = "UID")]
    pub uid: Option<u32>,

    /// Group of the calls [default: this process's]
    #[arg(long, value_name = "GID")]
    pub gid: Option<u32>,

    /// Calls outstanding on each connection
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub depth: u32,

    /// Connections that carry calls
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub connections: u32,

    /// Cores to poll on, such as 0,1 or 2-3 [default: the first that this process may use; over tcp: the kernel's choice]
    #[arg(long, value_name = "LIST", value_parser = core_list)]
    pub cores: Option<CoreList>,

    /// RDMA device, as `rdma link` names it [default: the one on the route to the server]
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,

    /// Version of RPC-over-RDMA [default: auto, which requests version 2 first; NFS servers have version 1]
    #[arg(long, value_enum)]
    pub protocol: Option<Protocol>,

    /// Tuning
    #[command(flatten)]
    pub profile: ProfileChoice,

    /// Open loop: calls per second over all connections, whether or not replies come, such as 200k
    #[arg(long, value_name = "CALLS_PER_S", value_parser = values::rate_per_s)]
    pub rate: Option<u64>,

    /// Measure latency against rate: a closed loop, then open loops at 10 to 100 percent of its rate; each takes --duration [default: 2s]
    #[arg(long, conflicts_with_all = ["rate", "count", "hgrm", "hlog", "interval", "intervals"])]
    pub to_knee: bool,

    /// Length of the run
    #[command(flatten)]
    pub length: LengthArgs,

    /// Where the report goes
    #[command(flatten)]
    pub output: OutputArgs,

    /// Show only errors and warnings, no table and no progress
    #[arg(long, short)]
    pub quiet: bool,
}
