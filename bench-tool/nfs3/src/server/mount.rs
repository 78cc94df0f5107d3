//! MOUNT version 3 (RFC 1813 appendix I): returns the handle of the root, or of a directory below it.

use std::collections::VecDeque;

use rpcrdma::once::Peer;
use rpcrdma_engine::Outcome;
use rpcrdma_protocol::EncodeError;
use rpcrdma_protocol::constants::AUTH_SYS;
use rpcrdma_protocol::xdr::{Reader, Writer};

use super::call::{Call, Reply};
use super::{EXPORT, Service};
use crate::store::{Number, Pages, Store};
use crate::wire::auth_sys::Identity;
use crate::wire::mount::{MountProcedure, MountStatus, PATH_BYTES_MAX};
use crate::wire::xdr::Encode;
use crate::wire::{FileHandle, Status};

/// The number of mounts that DUMP can list. The oldest are dropped, because nothing depends on them.
const MOUNTS_MAX: usize = 256;

/// The mounts that clients have reported, for DUMP.
#[derive(Debug, Default)]
pub struct Mounts {
    known: VecDeque<(Peer, Box<[u8]>)>,
}

impl Mounts {
    /// Answers a call of the program and version of MOUNT.
    pub fn call<P: Pages>(
        &mut self,
        call: &Call<'_>,
        service: &Service<P>,
        reply: &mut Reply,
    ) -> Outcome {
        reply.clear();
        let Some(procedure) = MountProcedure::from_number(call.procedure) else {
            return Outcome::ProcedureUnavailable;
        };
        let mut reader = Reader::new(call.args);
        let path = match procedure {
            MountProcedure::Mnt | MountProcedure::Umnt => {
                match reader.read_opaque(PATH_BYTES_MAX) {
                    Ok(path) => path,
                    Err(_) => return Outcome::GarbageArgs,
                }
            }
            _ => &[],
        };
        if !reader.is_at_end() {
            return Outcome::GarbageArgs;
        }
        let written = reply.write(|writer| match procedure {
            MountProcedure::Null => Ok(()),
            MountProcedure::Mnt => self.mount(call.peer, path, service.store(), writer),
            MountProcedure::Dump => self.dump(writer),
            MountProcedure::Umnt => {
                self.known
                    .retain(|(peer, known)| *peer != call.peer || **known != *path);
                Ok(())
            }
            MountProcedure::Umntall => {
                self.known.retain(|(peer, _)| *peer != call.peer);
                Ok(())
            }
            MountProcedure::Export => export(writer),
        });
        match written {
            Ok(()) => Outcome::Success,
            Err(_) => Outcome::SystemError,
        }
    }

    fn mount<P: Pages>(
        &mut self,
        peer: Peer,
        path: &[u8],
        store: &Store<P>,
        writer: &mut Writer<'_>,
    ) -> Result<(), EncodeError> {
        let handle: FileHandle = match walk(path, store) {
            Ok(handle) => handle,
            Err(status) => return status.encode(writer),
        };
        let entry = (peer, Box::from(path));
        if !self.known.contains(&entry) {
            if self.known.len() == MOUNTS_MAX {
                self.known.pop_front();
            }
            self.known.push_back(entry);
        }
        MountStatus::Ok.encode(writer)?;
        handle.encode(writer)?;
        writer.write_u32(1)?;
        writer.write_u32(AUTH_SYS)
    }

    /// Writes the known mounts, as many as fit.
    fn dump(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        for (peer, path) in &self.known {
            if writer.remaining_bytes() < 2 * PATH_BYTES_MAX {
                break;
            }
            writer.write_bool(true)?;
            writer.write_opaque(peer.to_string().as_bytes())?;
            writer.write_opaque(path)?;
        }
        writer.write_bool(false)
    }
}

/// Writes the list of exports: one, without restrictions.
fn export(writer: &mut Writer<'_>) -> Result<(), EncodeError> {
    writer.write_bool(true)?;
    writer.write_opaque(EXPORT.as_bytes())?;
    writer.write_bool(false)?;
    writer.write_bool(false)
}

/// The handle of a directory in the export.
fn walk<P: Pages>(path: &[u8], store: &Store<P>) -> Result<FileHandle, MountStatus> {
    let below = path.strip_prefix(EXPORT.as_bytes());
    let below = below.filter(|below| below.is_empty() || below.starts_with(b"/"));
    let below = below.ok_or(MountStatus::NoEntry)?;
    let mut at: Number = Store::<P>::ROOT;
    for name in below.split(|byte| *byte == b'/') {
        if !name.is_empty() {
            at = store
                .lookup(at, name, &Identity::ROOT)
                .map_err(mount_status)?;
        }
    }
    let is_directory = store.lookup(at, b".", &Identity::ROOT).is_ok();
    if !is_directory {
        return Err(MountStatus::NotDirectory);
    }
    store.handle(at).ok_or(MountStatus::NoEntry)
}

fn mount_status(status: Status) -> MountStatus {
    match status {
        Status::NotDirectory => MountStatus::NotDirectory,
        Status::Access => MountStatus::Access,
        Status::NameTooLong => MountStatus::NameTooLong,
        _ => MountStatus::NoEntry,
    }
}
