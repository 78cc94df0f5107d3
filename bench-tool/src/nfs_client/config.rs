//! What a run is to do: the arguments, checked against each other, with what they left open chosen.

use std::time::Duration;

use rustix::process::{getgid, getuid};

use super::address::NfsAddress;
use crate::commands::nfs::{Access, NfsArgs, NfsOp, Stable};
use crate::commands::{ProfileChoice, Protocol};
use crate::exit::Failure;
use crate::load::Limit;
use crate::machine::Machine;
use crate::run::config::{DURATION_DEFAULT, DURATION_TO_KNEE_DEFAULT, interval};
use crate::workloads::nfs::steps::StepPlan;
use rpcrdma_nfs3::wire::mount::PATH_BYTES_MAX;
use rpcrdma_nfs3::wire::results::Fsinfo;
use rpcrdma_units as units;

/// Bytes of one READ or WRITE when `--size` is not given.
const SIZE_BYTES_DEFAULT: u64 = 4096;

/// Bytes of a file when `--file-size` is not given.
const FILE_BYTES_DEFAULT: u64 = 16 << 20;

/// Files when `--files` is not given.
const FILES_DEFAULT: u32 = 4;

/// The largest READ or WRITE that is tried: servers tell of less.
const SIZE_BYTES_MAX: u64 = 64 << 20;

/// A run that can be made.
#[derive(Clone, Debug)]
pub(crate) struct NfsConfig {
    /// The command line, for the report.
    pub(crate) command: String,
    pub(crate) server: NfsAddress,
    pub(crate) export: String,
    pub(crate) mount_port: Option<u16>,
    pub(crate) op: NfsOp,
    /// Bytes of one READ or WRITE; 0 for what has none.
    pub(crate) size_bytes: u32,
    pub(crate) file_bytes: u64,
    pub(crate) files: u32,
    pub(crate) access: Access,
    pub(crate) read_percent: u32,
    pub(crate) stable: Stable,
    pub(crate) seed: u64,
    pub(crate) verify: bool,
    pub(crate) retry: Duration,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) depth: u32,
    pub(crate) connections: u32,
    pub(crate) device: Option<String>,
    pub(crate) protocol: Protocol,
    pub(crate) profile: ProfileChoice,
    /// The polling cores of a fabric. Of TCP where the threads run: empty leaves it to the kernel.
    pub(crate) cores: Vec<usize>,
    pub(crate) rate_per_s: Option<u64>,
    pub(crate) limit: Limit,
    pub(crate) warmup: Duration,
    /// The measured time is reported in intervals of this length too.
    pub(crate) interval: Duration,
}

impl NfsConfig {
    /// # Errors
    /// A usage failure that names the argument and what to give instead.
    pub(crate) fn new(args: &NfsArgs, machine: &Machine, command: String) -> Result<Self, Failure> {
        refuse_what_means_nothing(args)?;
        refuse_what_another_transport_has(args)?;
        if !args.export.starts_with('/') {
            let what = format!("`{}` is no path that a server exports", args.export);
            return Err(Failure::usage(what).advice("begin --export with a slash, as in /srv"));
        }
        if args.export.len() > PATH_BYTES_MAX {
            return Err(
                Failure::usage("the path of --export is too long").advice(format!(
                    "{PATH_BYTES_MAX} bytes are the most that MOUNT takes"
                )),
            );
        }
        if let Some(cores) = &args.cores {
            machine.check_cores(cores)?;
        }
        let limit = args.length.limit(if args.to_knee {
            DURATION_TO_KNEE_DEFAULT
        } else {
            DURATION_DEFAULT
        });
        let size_bytes = size_bytes(args)?;
        let (files, file_bytes) = files(args, size_bytes)?;
        Ok(Self {
            command,
            server: args.connect.clone(),
            export: args.export.clone(),
            mount_port: args.mount_port,
            op: args.op,
            size_bytes,
            file_bytes,
            files,
            access: args.access.unwrap_or_default(),
            read_percent: match args.op {
                NfsOp::Read => 100,
                NfsOp::Mix => args.read_percent.unwrap_or(50),
                _ => 0,
            },
            stable: args.stable.unwrap_or_default(),
            seed: args.seed,
            verify: args.verify,
            retry: args.retry,
            uid: args.uid.unwrap_or_else(|| getuid().as_raw()),
            gid: args.gid.unwrap_or_else(|| getgid().as_raw()),
            depth: args.depth,
            connections: args.connections,
            device: args.device.clone(),
            protocol: args.protocol.unwrap_or_default(),
            profile: args.profile.clone(),
            cores: cores(args, machine)?,
            rate_per_s: args.rate,
            interval: interval(args.output.interval, limit)?,
            limit,
            warmup: args.length.warmup,
        })
    }

    /// Which calls are made.
    pub(crate) fn steps(&self) -> StepPlan {
        StepPlan {
            op: self.op,
            read_percent: self.read_percent,
            access: self.access,
            bytes: self.size_bytes,
            file_bytes: self.file_bytes,
            files: self.files.max(1),
            seed: self.seed,
        }
    }

    /// Whether the files must hold something before the calls.
    pub(crate) fn is_read(&self) -> bool {
        matches!(self.op, NfsOp::Read | NfsOp::Mix)
    }

    /// Whether the calls write.
    pub(crate) fn is_written(&self) -> bool {
        matches!(self.op, NfsOp::Write | NfsOp::Mix)
    }

    /// How long it should take, warm-up included; `None` where that is up to the calls.
    pub(crate) fn expected(&self) -> Option<Duration> {
        match self.limit {
            Limit::Duration(duration) => Some(self.warmup + duration),
            Limit::Count(_) => None,
        }
    }

    /// Whether the server takes such calls.
    ///
    /// # Errors
    /// A usage failure with what the server takes.
    pub(crate) fn check_against(&self, info: &Fsinfo) -> Result<(), Failure> {
        let limits = [
            (self.is_read(), info.read_bytes_max, "READ"),
            (self.is_written(), info.write_bytes_max, "WRITE"),
        ];
        for (is_used, bytes_max, procedure) in limits {
            if is_used && self.size_bytes > bytes_max {
                let bytes_max = units::size(bytes_max.into());
                return Err(Failure::usage(format!(
                    "a {procedure} of {} is more than the server takes, which is {bytes_max}",
                    units::size(self.size_bytes.into())
                ))
                .advice(format!(
                    "give --size {} at most; for a Linux server see /proc/fs/nfsd/max_block_size",
                    bytes_max.replace(' ', "")
                )));
            }
        }
        if self.file_bytes > info.file_bytes_max {
            return Err(
                Failure::usage("the files are larger than the server's may be")
                    .advice("lower --file-size"),
            );
        }
        Ok(())
    }
}

/// Where the client runs.
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

/// Flags that are for other transports.
fn refuse_what_another_transport_has(args: &NfsArgs) -> Result<(), Failure> {
    let refuse = |flag: &str, scheme: &str| {
        Err(
            Failure::usage(format!("{flag} means nothing for {}", args.connect))
                .advice(format!("it is for addresses {scheme}, or leave it out")),
        )
    };
    match &args.connect {
        NfsAddress::Tcp { .. } if args.device.is_some() => refuse("--device", "rdma:HOST:PORT"),
        NfsAddress::Tcp { .. } if args.protocol.is_some() => refuse("--protocol", "rdma:HOST:PORT"),
        NfsAddress::Tcp { .. } => match args.profile.given() {
            Some(flag) => refuse(flag, "rdma:HOST:PORT"),
            None => Ok(()),
        },
        NfsAddress::Fabric(_) => Ok(()),
    }
}

/// Flags that are for other procedures.
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
            "{flag} means nothing with --op {}",
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
            "{} are more than one call carries",
            units::size(size)
        ))
        .advice("servers take 1MiB in most cases, some 4MiB")),
    }
}

/// How many files of how many bytes.
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
            "a file of {} holds no block of {}",
            units::size(wanted),
            units::size(size)
        ))
        .advice("raise --file-size, or lower --size"));
    }
    // Whole blocks: what is behind the last one is never called for.
    Ok((files, wanted / size * size))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::commands::{Cli, Command};
    use crate::exit::Status;
    use clap::Parser;

    pub(crate) fn config(line: &str) -> Result<NfsConfig, Failure> {
        config_at("tcp:server:2049", line)
    }

    fn config_at(address: &str, line: &str) -> Result<NfsConfig, Failure> {
        let line = format!("bench-tool nfs --connect {address} --export /srv {line}");
        let Command::Nfs(args) = Cli::parse_from(line.split_whitespace()).command else {
            panic!("not nfs")
        };
        let machine = Machine {
            cores_usable: vec![0, 1],
            ..Machine::detect()
        };
        NfsConfig::new(&args, &machine, line)
    }

    #[test]
    fn what_is_left_open_is_chosen() {
        let null = config("").unwrap();
        assert_eq!((null.size_bytes, null.files, null.file_bytes), (0, 0, 0));
        assert_eq!(null.expected(), Some(Duration::from_millis(5500)));
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
        assert_eq!((large.file_bytes, large.expected()), (32 << 20, None));
        let getattr = config("--op getattr --files 0").unwrap();
        assert_eq!((getattr.files, getattr.steps().files), (0, 1));
    }

    #[test]
    fn what_cannot_be_is_a_usage_failure_with_advice() {
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
        let cores = |address| config_at(address, "").unwrap().cores;
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
