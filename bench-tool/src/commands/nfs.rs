//! The command line of `bench-tool nfs`.

use std::time::Duration;

use clap::Args;
use rpcrdma_doctor::{CoreList, core_list};
use rpcrdma_nfs3::wire::mount::PATH_BYTES_MAX;
use rpcrdma_units as units;
use rustix::process::{getgid, getuid};

use super::authentication::AuthenticationArgs;
use super::common::{LengthArgs, OutputArgs, PaceArgs};
use super::profile::ProfileChoiceArgs;
use super::values;
use crate::exit::Failure;
use crate::machine::Machine;
use crate::metrics::load::LoadMetrics;
use crate::nfs_client;
use crate::nfs_client::address::NfsAddress;
use crate::nfs_client::config::{NfsConfig, Stable};
use crate::protocol::Protocol;
use crate::workloads::nfs::steps::{Access, NfsOp};

/// Default of `--size`: bytes of one READ or WRITE.
const SIZE_BYTES_DEFAULT: u64 = 4096;

/// Default of `--file-size`.
const FILE_BYTES_DEFAULT: u64 = 16 << 20;

/// Default of `--files`.
const FILES_DEFAULT: u32 = 4;

/// Upper bound of `--size`; servers' limits are lower.
const SIZE_BYTES_MAX: u64 = 64 << 20;

/// `bench-tool nfs`.
#[derive(Args, Debug)]
#[command(after_help = "\
Mounts the export itself (MOUNT version 3, without a kernel client), makes files in its own folder, calls, checks the \
answers, and removes the files, also after Ctrl-C. It mounts by the connection that NFS uses, if the server has MOUNT \
there, as `bench-tool serve --service nfs3` has. Linux servers do not: then it asks the TCP port of mountd, which the \
port mapper knows, or --mount-port.\n\nOver tcp: the kernel's TCP carries the calls: compare the \
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
    /// Server to call: rdma:HOST:PORT (NFS uses port 20049) or shm:NAME, by this project's data plane; or tcp:HOST:PORT (port 2049), by the kernel's TCP; several addresses of one server with commas, as in rdma:server-a:20049,server-b:20049
    ///
    /// Connections begin at the addresses in turn. With --retry one that is lost goes on at the next address.
    #[arg(long, value_name = "ADDR[,...]")]
    pub connect: NfsAddress,

    /// Path that the server exports, as `showmount -e SERVER` lists it
    #[arg(long, value_name = "PATH")]
    pub export: String,

    /// Mount at this TCP port, that of the server's mountd [default: where NFS is served; if MOUNT is not there, the port that the server's port mapper returns]
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

    /// RDMA devices, separated by commas, without their ports (mlx5_0, not mlx5_0/1); or all [default: those on the routes to the server]
    #[arg(long, value_name = "NAME[,...]")]
    pub device: Option<String>,

    /// Version of RPC-over-RDMA [default: auto, which requests version 2 first; NFS servers have version 1]
    #[arg(long, value_enum)]
    pub protocol: Option<Protocol>,

    /// Host authentication of this end and the server
    #[command(flatten)]
    pub authentication: AuthenticationArgs,

    /// Tuning
    #[command(flatten)]
    pub profile: ProfileChoiceArgs,

    /// Rate of the calls
    #[command(flatten)]
    pub pace: PaceArgs,

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

/// Runs the command.
///
/// # Errors
/// Contradictory arguments, and those of [`nfs_client::execute`].
pub(super) fn execute(args: &NfsArgs, command: String) -> Result<(), Failure> {
    let machine = Machine::detect();
    let config = args.config(&machine, command)?;
    let outputs = args.output.check(args.quiet)?;
    let cores = &config.load.cores;
    let metrics = args.output.metrics("nfs", cores, args.quiet)?;
    let gate = metrics.as_ref().map(LoadMetrics::gate).unwrap_or_default();
    if args.pace.to_knee {
        nfs_client::to_knee(&config, &machine, &outputs, gate)
    } else {
        nfs_client::execute(&config, &machine, &outputs, gate)
    }
}

impl NfsArgs {
    /// # Errors
    /// A usage failure with the argument and what to give instead.
    pub(crate) fn config(&self, machine: &Machine, command: String) -> Result<NfsConfig, Failure> {
        refuse_what_means_nothing(self)?;
        refuse_what_another_transport_has(self)?;
        if !self.export.starts_with('/') {
            let what = format!("`{}` is not the path of an export", self.export);
            return Err(Failure::usage(what).advice("begin --export with a slash, as in /srv"));
        }
        if self.export.len() > PATH_BYTES_MAX {
            return Err(
                Failure::usage("the path of --export is too long").advice(format!(
                    "{PATH_BYTES_MAX} bytes are the most that MOUNT takes"
                )),
            );
        }
        if let Some(cores) = &self.cores {
            machine.check_cores(cores)?;
        }
        let load = self.pace.load(
            &self.length,
            &self.output,
            self.retry,
            (self.depth, self.connections),
            cores(self, machine)?,
        )?;
        let size_bytes = size_bytes(self)?;
        let (files, file_bytes) = files(self, size_bytes)?;
        Ok(NfsConfig {
            command,
            server: self.connect.clone(),
            export: self.export.clone(),
            mount_port: self.mount_port,
            op: self.op,
            size_bytes,
            file_bytes,
            files,
            access: self.access.unwrap_or_default(),
            read_percent: match self.op {
                NfsOp::Read => 100,
                NfsOp::Mix => self.read_percent.unwrap_or(50),
                _ => 0,
            },
            stable: self.stable.unwrap_or_default(),
            seed: self.seed,
            verify: self.verify,
            uid: self.uid.unwrap_or_else(|| getuid().as_raw()),
            gid: self.gid.unwrap_or_else(|| getgid().as_raw()),
            device: self.device.clone(),
            protocol: self.protocol.unwrap_or_default(),
            host: self.authentication.host()?,
            profile: self.profile.choice(),
            load,
        })
    }
}

/// The cores of the client.
fn cores(args: &NfsArgs, machine: &Machine) -> Result<Vec<usize>, Failure> {
    match (&args.cores, &args.connect) {
        (Some(list), _) => Ok(list.0.clone()),
        (None, NfsAddress::Tcp { .. }) => Ok(Vec::new()),
        (None, NfsAddress::Fabric(_)) => machine
            .cores_usable
            .first()
            .map(|&core| vec![core])
            .ok_or_else(|| Failure::failed("this process may use no core")),
    }
}

/// Refuses options of other transports, instead of ignoring them.
fn refuse_what_another_transport_has(args: &NfsArgs) -> Result<(), Failure> {
    let refuse = |flag: &str, scheme: &str| {
        Err(
            Failure::usage(format!("{flag} has no effect on {}", args.connect))
                .advice(format!("it is for addresses {scheme}, or leave it out")),
        )
    };
    match &args.connect {
        NfsAddress::Tcp { .. } if args.device.is_some() => refuse("--device", "rdma:HOST:PORT"),
        NfsAddress::Tcp { .. } if args.protocol.is_some() => refuse("--protocol", "rdma:HOST:PORT"),
        NfsAddress::Tcp { .. } if args.authentication.psk_file.is_some() => {
            refuse("--psk-file", "rdma:HOST:PORT and shm:NAME")
        }
        NfsAddress::Tcp { .. } => match args.profile.choice().given() {
            Some(flag) => refuse(flag, "rdma:HOST:PORT"),
            None => Ok(()),
        },
        NfsAddress::Fabric(_)
            if args.authentication.psk_file.is_some() && args.mount_port.is_some() =>
        {
            Err(Failure::usage(
                "--mount-port is not possible with --psk-file: nobody proves a key on TCP",
            )
            .advice("leave out --mount-port: a server with keys has MOUNT where it has NFS"))
        }
        NfsAddress::Fabric(_) => Ok(()),
    }
}

/// Refuses options of other procedures, instead of ignoring them.
fn refuse_what_means_nothing(args: &NfsArgs) -> Result<(), Failure> {
    let bulk = args.op.is_bulk();
    let writes = matches!(args.op, NfsOp::Write | NfsOp::Mix);
    let flags = [
        ("--size", args.size.is_some(), bulk, "read, write or mix"),
        (
            "--file-size",
            args.file_size.is_some(),
            bulk,
            "read, write or mix",
        ),
        (
            "--access",
            args.access.is_some(),
            bulk,
            "read, write or mix",
        ),
        ("--verify", args.verify, bulk, "read, write or mix"),
        ("--stable", args.stable.is_some(), writes, "write or mix"),
        (
            "--read-percent",
            args.read_percent.is_some(),
            args.op == NfsOp::Mix,
            "mix",
        ),
        (
            "--files",
            args.files.is_some(),
            args.op != NfsOp::Null,
            "getattr, read, write or mix",
        ),
    ];
    match flags.iter().find(|(_, given, fits, _)| *given && !fits) {
        None => Ok(()),
        Some((flag, _, _, ops)) => Err(Failure::usage(format!(
            "{flag} has no effect with --op {}",
            args.op.name()
        ))
        .advice(format!("it goes with --op {ops}"))),
    }
}

fn size_bytes(args: &NfsArgs) -> Result<u32, Failure> {
    if !args.op.is_bulk() {
        return Ok(0);
    }
    match args.size.unwrap_or(SIZE_BYTES_DEFAULT) {
        0 => Err(Failure::usage("a read or write of nothing moves nothing")
            .advice("give --size at least one byte, or --op null")),
        size @ 1..=SIZE_BYTES_MAX => Ok(u32::try_from(size).unwrap_or(u32::MAX)),
        size => Err(Failure::usage(format!(
            "{} is more than one call can carry",
            units::size(size)
        ))
        .advice("servers take 1MiB in most cases, some 4MiB")),
    }
}

/// The number of files, and the bytes of each.
fn files(args: &NfsArgs, size_bytes: u32) -> Result<(u32, u64), Failure> {
    match args.op {
        NfsOp::Null => return Ok((0, 0)),
        NfsOp::Getattr => return Ok((args.files.unwrap_or(FILES_DEFAULT), 0)),
        NfsOp::Read | NfsOp::Write | NfsOp::Mix => {}
    }
    let files = args.files.unwrap_or(FILES_DEFAULT);
    if files == 0 {
        return Err(
            Failure::usage("reads and writes need a file").advice("give --files at least 1")
        );
    }
    let size = u64::from(size_bytes);
    let wanted = args.file_size.unwrap_or(FILE_BYTES_DEFAULT.max(size));
    if wanted < size {
        return Err(Failure::usage(format!(
            "a file of {} cannot hold a block of {}",
            units::size(wanted),
            units::size(size)
        ))
        .advice("raise --file-size, or lower --size"));
    }
    // Whole blocks only: calls never read or write the rest after the last whole block.
    Ok((files, wanted / size * size))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::{Cli, Command};
    use super::*;
    use crate::exit::Status;
    use clap::Parser;
    use rpcrdma_nfs3::wire::results::Fsinfo;

    pub(crate) fn config(line: &str) -> Result<NfsConfig, Failure> {
        config_at("tcp:server:2049", line)
    }

    pub(crate) fn config_at(address: &str, line: &str) -> Result<NfsConfig, Failure> {
        let line = format!("bench-tool nfs --connect {address} --export /srv {line}");
        let Command::Nfs(args) = Cli::parse_from(line.split_whitespace()).command else {
            panic!("not nfs")
        };
        let machine = Machine {
            cores_usable: vec![0, 1],
            ..Machine::detect()
        };
        args.config(&machine, line)
    }

    #[test]
    fn unset_nfs_options_default_by_operation() {
        let null = config("").unwrap();
        assert_eq!((null.size_bytes, null.files, null.file_bytes), (0, 0, 0));
        assert_eq!(
            null.load.limit.expected(null.load.warmup),
            Some(Duration::from_millis(5500))
        );
        let read = config("--op read").unwrap();
        assert_eq!(
            (read.size_bytes, read.files, read.file_bytes),
            (4096, 4, 16 << 20)
        );
        assert_eq!(read.steps().blocks_per_file(), 4096);
        let odd = config("--op write --size 4097 --file-size 1MiB").unwrap();
        assert_eq!(odd.steps().blocks_per_file(), 255);
        assert_eq!(odd.file_bytes, 255 * 4097);
        let large = config("--op read --size 32MiB --count 3").unwrap();
        assert_eq!(
            (
                large.file_bytes,
                large.load.limit.expected(large.load.warmup)
            ),
            (32 << 20, None)
        );
        let getattr = config("--op getattr --files 0").unwrap();
        assert_eq!((getattr.files, getattr.steps().files), (0, 1));
    }

    #[test]
    fn invalid_nfs_options_are_usage_failures_with_advice() {
        for (line, words) in [
            ("--size 4KiB", "--op read"),
            ("--op read --stable file", "--op write or mix"),
            ("--op write --read-percent 3", "--op mix"),
            ("--op getattr --verify", "--op read"),
            ("--files 3", "--op getattr"),
            ("--op read --size 0", "at least one byte"),
            ("--op read --size 1GiB", "1MiB"),
            ("--op read --files 0", "at least 1"),
            ("--op read --file-size 1KiB", "--file-size"),
            ("--cores 7", "numbers from"),
        ] {
            let failure = config(line).unwrap_err();
            assert_eq!(failure.status(), Status::Usage, "{line}");
            assert!(failure.to_string().contains(words), "{line}: {failure}");
        }
    }

    #[test]
    fn each_transport_has_its_own_flags() {
        for (address, line, words) in [
            ("tcp:server:2049", "--device mlx5_0", "rdma:HOST:PORT"),
            ("tcp:server:2049", "--profile shm", "rdma:HOST:PORT"),
            ("tcp:server:2049", "--protocol v1", "rdma:HOST:PORT"),
        ] {
            let failure = config_at(address, line).unwrap_err();
            assert_eq!(failure.status(), Status::Usage, "{line}");
            assert!(failure.to_string().contains(words), "{line}: {failure}");
        }
        let cores = |address| config_at(address, "").unwrap().load.cores;
        assert_eq!(
            (cores("rdma:server:20049"), cores("tcp:server:2049")),
            (vec![0], vec![])
        );
        assert_eq!(
            config_at("rdma:server:20049", "").unwrap().server.host(),
            "server"
        );
        assert_eq!(config_at("shm:nfs", "").unwrap().server.host(), "localhost");
    }

    #[test]
    fn the_server_has_the_last_word_on_sizes() {
        let mut info = Fsinfo {
            attributes: None,
            read_bytes_max: 1 << 20,
            read_bytes_preferred: 1 << 20,
            read_bytes_multiple: 4096,
            write_bytes_max: 65_536,
            write_bytes_preferred: 65_536,
            write_bytes_multiple: 4096,
            readdir_bytes_preferred: 4096,
            file_bytes_max: 1 << 40,
            time_delta: rpcrdma_nfs3::wire::types::Time::default(),
            properties: 0,
        };
        assert!(
            config("--op read --size 1MiB")
                .unwrap()
                .check_against(&info)
                .is_ok()
        );
        let failure = config("--op write --size 64KiB");
        assert!(failure.unwrap().check_against(&info).is_ok());
        let failure = config("--op mix --size 65537")
            .unwrap()
            .check_against(&info);
        let text = failure.unwrap_err().to_string();
        assert!(
            text.contains("WRITE") && text.contains("--size 64KiB"),
            "{text}"
        );
        info.file_bytes_max = 1 << 20;
        assert!(config("--op read").unwrap().check_against(&info).is_err());
    }
}
