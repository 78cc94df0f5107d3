//! The configuration of `bench-tool nfs`.

use super::address::NfsAddress;
use crate::authentication::Host;
use crate::exit::Failure;
use crate::load::LoadConfig;
use crate::protocol::Protocol;
use crate::sizing::ProfileChoice;
use crate::workloads::nfs::steps::{Access, NfsOp, StepPlan};
use rpcrdma_nfs3::wire::results::Fsinfo;
use rpcrdma_nfs3::wire::types::Stability;
use rpcrdma_units as units;

/// Calls outstanding on each connection while the files are filled.
pub(crate) const FILL_DEPTH: u32 = 8;

/// Upper bound of the WRITEs that fill the files, in bytes.
pub(crate) const FILL_BYTES_MAX: u32 = 64 << 10;

/// What the server must guarantee before it answers a WRITE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stable {
    /// Nothing; a COMMIT at the end makes the data stable.
    #[default]
    Unstable,
    /// The data is on stable storage.
    Data,
    /// The data, and the metadata needed to find it, are on stable storage.
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

    /// The NFS value (`stable_how`).
    pub(crate) const fn stability(self) -> Stability {
        match self {
            Self::Unstable => Stability::Unstable,
            Self::Data => Stability::DataSync,
            Self::File => Stability::FileSync,
        }
    }
}

/// A checked configuration.
#[derive(Clone, Debug)]
pub(crate) struct NfsConfig {
    /// The command line, for the report.
    pub(crate) command: String,
    pub(crate) server: NfsAddress,
    pub(crate) export: String,
    /// TCP port that answers MOUNT calls; `None` asks for MOUNT at `server`, and then its port mapper.
    pub(crate) mount_port: Option<u16>,
    pub(crate) op: NfsOp,
    /// Bytes of one READ or WRITE; 0 for operations without data.
    pub(crate) size_bytes: u32,
    pub(crate) file_bytes: u64,
    pub(crate) files: u32,
    pub(crate) access: Access,
    pub(crate) read_percent: u32,
    pub(crate) stable: Stable,
    pub(crate) seed: u64,
    pub(crate) verify: bool,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) device: Option<String>,
    pub(crate) protocol: Protocol,
    /// This endpoint's identity; with it, the server must authenticate.
    pub(crate) host: Option<Host>,
    pub(crate) profile: ProfileChoice,
    /// The options of the load.
    pub(crate) load: LoadConfig,
}

impl NfsConfig {
    /// The parameters of the calls.
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

    /// Bytes that each call reads or writes; `None` if the last block of a file is shorter.
    pub(crate) fn call_bytes(&self) -> Option<u64> {
        let bytes = u64::from(self.size_bytes);
        (bytes == 0 || self.file_bytes.is_multiple_of(bytes)).then_some(bytes)
    }

    /// Whether the calls read, so that the files must have content before.
    pub(crate) fn is_read(&self) -> bool {
        matches!(self.op, NfsOp::Read | NfsOp::Mix)
    }

    /// Whether the calls write.
    pub(crate) fn is_written(&self) -> bool {
        matches!(self.op, NfsOp::Write | NfsOp::Mix)
    }

    /// Checks the configuration against the server's limits.
    ///
    /// # Errors
    /// A usage failure that names the server's limit.
    pub(crate) fn check_against(&self, info: &Fsinfo) -> Result<(), Failure> {
        let limits = [
            (self.is_read(), info.read_bytes_max, "READ"),
            (self.is_written(), info.write_bytes_max, "WRITE"),
        ];
        for (is_used, bytes_max, procedure) in limits {
            if is_used && self.size_bytes > bytes_max {
                let bytes_max = units::size(bytes_max.into());
                return Err(Failure::usage(format!(
                    "a {procedure} of {} is more than the server accepts, which is {bytes_max}",
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
                Failure::usage("the files are larger than the server allows")
                    .advice("lower --file-size"),
            );
        }
        Ok(())
    }
}
