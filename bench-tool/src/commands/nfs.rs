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
    /// Reads of files whose every byte is known
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
    /// Block after block, file after file; connections begin apart from each other
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
    /// Nothing before the COMMIT at the end
    #[default]
    Unstable,
    /// The data is on stable storage
    Data,
    /// The data, and all that the file system needs to find it
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
Mounts the export itself (MOUNT version 3 over TCP, no kernel client), makes files in a folder of its own, calls, \
checks what comes back, and removes the files, also after Ctrl-C. Over tcp: the kernel's TCP carries the calls: a \
figure to set the server's RDMA against, and not one of this project's data plane.\n\n\
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
      while the server is restarted: nothing that it committed may be lost")]
pub(crate) struct NfsArgs {
    /// Server to call: rdma:HOST:PORT (NFS is at port 20049) or shm:NAME, on the data plane of this project; or tcp:HOST:PORT (port 2049), by the kernel's TCP
    #[arg(long, value_name = "ADDR")]
    pub connect: NfsAddress,

    /// Path that the server exports, as `showmount -e SERVER` lists it
    #[arg(long, value_name = "PATH")]
    pub export: String,

    /// TCP port of the server's mountd [default: asked of the server's port mapper]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub mount_port: Option<u16>,

    /// Procedure to call
    #[arg(long, value_enum, default_value_t = NfsOp::Null)]
    pub op: NfsOp,

    /// Bytes of one read or write; any number, odd ones too [default: 4KiB]
    #[arg(long, value_name = "BYTES", value_parser = values::size_bytes)]
    pub size: Option<u64>,

    /// Bytes of each file [default: 16MiB, or one read or write if that is more]
    #[arg(long, value_name = "BYTES", value_parser = values::size_bytes)]
    pub file_size: Option<u64>,

    /// Files [default: 4; for getattr 0 are allowed, which asks for the export itself]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=10_000))]
    pub files: Option<u32>,

    /// Where in the files the calls go [default: sequential]
    #[arg(long, value_enum)]
    pub access: Option<Access>,

    /// Of 100 calls of a mix, how many read [default: 50]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=100))]
    pub read_percent: Option<u32>,

    /// What writes wait for [default: unstable]
    #[arg(long, value_enum)]
    pub stable: Option<Stable>,

    /// Seed of contents and draws: the same one makes the same calls
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// Check every byte of what is read, and read back at the end what was written; else a word of each page is checked
    #[arg(long)]
    pub verify: bool,

    /// How long to try again when a connection is lost (calls in flight are then made again) or the server puts a call off [default: 0: the first ends the run, the second is an error]
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = values::time)]
    pub retry: Duration,

    /// User that the calls say they are from (AUTH_SYS) [default: this process's]
    #[arg(long, value_name = "UID")]
    pub uid: Option<u32>,

    /// Its group [default: this process's]
    #[arg(long, value_name = "GID")]
    pub gid: Option<u32>,

    /// Calls outstanding on each connection
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub depth: u32,

    /// Connections that carry calls
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub connections: u32,

    /// Cores to poll on, as in 0,1 or 2-3 [default: the first that this process may use; over tcp: wherever the kernel puts a connection's thread]
    #[arg(long, value_name = "LIST", value_parser = core_list)]
    pub cores: Option<CoreList>,

    /// RDMA device, as `rdma link` names it [default: the one on the way to the server]
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,

    /// Version of RPC-over-RDMA [default: auto, which asks for version 2 first; NFS servers have version 1]
    #[arg(long, value_enum)]
    pub protocol: Option<Protocol>,

    /// How it is tuned
    #[command(flatten)]
    pub profile: ProfileChoice,

    /// Open loop: send this many calls per second in all, whether replies come or not (k and M are understood)
    #[arg(long, value_name = "CALLS_PER_S", value_parser = values::rate_per_s)]
    pub rate: Option<u64>,

    /// Latency against rate: a closed loop, then open loops at rising shares of what it carried, to the knee and beyond; each takes --duration [default: 2s]
    #[arg(long, conflicts_with_all = ["rate", "count", "hgrm", "hlog", "interval", "intervals"])]
    pub to_knee: bool,

    /// How long it takes
    #[command(flatten)]
    pub length: LengthArgs,

    /// Where the report goes
    #[command(flatten)]
    pub output: OutputArgs,

    /// No table and no progress; errors and warnings only
    #[arg(long, short)]
    pub quiet: bool,
}
