//! The service on its core: takes calls, keeps the memory that their data is in, and has the storage thread do the rest.
//! That thread answers them.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::Thread;

use rpcrdma::Later;
use rpcrdma::prelude::*;
use rpcrdma_examples::{DATA_BYTES_MAX, READ, SYNC, Status, WRITE};
use rpcrdma_fabric::storage::Operation;
use rtrb::Producer;

/// What the storage thread is to do, and the right to answer the call that asked for it.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) later: Later,
    pub(crate) operation: Operation,
    pub(crate) offset_bytes: u64,
    /// What to write, or the memory to read into.
    pub(crate) data: Buffer,
}

impl Job {
    /// Answers the call.
    pub(crate) fn answer(later: Later, operation: Operation, status: Status, data: Buffer) {
        later.reply(|results| {
            results.u32(status.word());
            if operation == Operation::Read {
                results.bulk(data);
            }
        });
    }
}

/// What became of the data.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    /// Written or read by direct I/O, in bytes.
    pub(crate) direct_bytes: AtomicU64,
    /// Written or read through the page cache, in bytes.
    pub(crate) buffered_bytes: AtomicU64,
    /// Copied out of the streams of calls, in bytes: what was too short to go beside them.
    pub(crate) copied_bytes: AtomicU64,
    /// Orders that the disk did not carry out.
    pub(crate) errors: AtomicU64,
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Relaxed, here and where they are raised: each is a number by itself.
        let value = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        write!(
            f,
            "direct_bytes={} buffered_bytes={} copied_bytes={} errors={}",
            value(&self.direct_bytes),
            value(&self.buffered_bytes),
            value(&self.copied_bytes),
            value(&self.errors),
        )
    }
}

/// The program of this crate, on its core.
pub(crate) struct DiskService {
    size_bytes: u64,
    jobs: Producer<Job>,
    storage: Thread,
    figures: Arc<Figures>,
}

/// Why a call goes no further.
enum Ended {
    /// It is answered with this status.
    With(Status),
    Refused(Refusal),
}

impl<T: Into<Refusal>> From<T> for Ended {
    fn from(refusal: T) -> Self {
        Self::Refused(refusal.into())
    }
}

impl DiskService {
    /// A disk of `size_bytes`, which the thread `storage` reads and writes.
    pub(crate) fn new(
        size_bytes: u64,
        jobs: Producer<Job>,
        storage: Thread,
        figures: Arc<Figures>,
    ) -> Self {
        Self {
            size_bytes,
            jobs,
            storage,
            figures,
        }
    }

    /// What the storage thread is to do for a call: operation, offset, and memory.
    fn order(
        &self,
        call: &mut Incoming<'_>,
        reply: &mut Reply<'_, '_>,
    ) -> Result<(Operation, u64, Buffer), Ended> {
        match call.named() {
            WRITE => self.write(call, reply),
            READ => self.read(call, reply),
            SYNC => Ok((Operation::Sync, 0, Buffer::default())),
            _ => Err(Refusal::ProcedureUnavailable.into()),
        }
    }

    /// The data of a WRITE: the memory that it came in, or, for data that came in the stream, a copy in registered memory,
    /// which the disk can read just as well.
    fn write(
        &self,
        call: &mut Incoming<'_>,
        reply: &mut Reply<'_, '_>,
    ) -> Result<(Operation, u64, Buffer), Ended> {
        let offset_bytes = call.args().u64()?;
        let is_durable = call.args().bool()?;
        let data = call.args().bulk()?;
        let bytes = data.len();
        self.check(offset_bytes, bytes)?;
        if self.size_bytes - offset_bytes < bytes as u64 {
            return Err(Ended::With(Status::NoSpace));
        }
        let data = match data.take() {
            Ok(memory) => memory,
            Err(data) => {
                let mut copy = reply.buffer_for(bytes).ok_or(Ended::With(Status::Busy))?;
                copy.copy_from(&data.to_bytes());
                let copied = &self.figures.copied_bytes;
                copied.fetch_add(bytes as u64, Ordering::Relaxed);
                copy
            }
        };
        Ok((Operation::Write { is_durable }, offset_bytes, data))
    }

    /// Memory for what a READ asks for, as far as the disk goes.
    fn read(
        &self,
        call: &mut Incoming<'_>,
        reply: &mut Reply<'_, '_>,
    ) -> Result<(Operation, u64, Buffer), Ended> {
        let offset_bytes = call.args().u64()?;
        let bytes = call.args().u32()? as usize;
        self.check(offset_bytes, bytes)?;
        let left = self.size_bytes - offset_bytes;
        let bytes = usize::try_from(left).map_or(bytes, |left| left.min(bytes));
        let room = reply.buffer_for(bytes).ok_or(Ended::With(Status::Busy))?;
        Ok((Operation::Read, offset_bytes, room))
    }

    fn check(&self, offset_bytes: u64, bytes: usize) -> Result<(), Ended> {
        if bytes > DATA_BYTES_MAX as usize {
            return Err(Ended::With(Status::Invalid));
        }
        if offset_bytes > self.size_bytes {
            return Err(Ended::With(Status::NoSpace));
        }
        Ok(())
    }
}

impl Service for DiskService {
    fn call(&mut self, call: &mut Incoming<'_>, reply: &mut Reply<'_, '_>) -> Result<(), Refusal> {
        match self.order(call, reply) {
            Ok((operation, offset_bytes, data)) => {
                let job = Job {
                    later: call.later()?,
                    operation,
                    offset_bytes,
                    data,
                };
                // A job that finds no room is dropped, and the caller learns that its call failed.
                let _ = self.jobs.push(job);
                self.storage.unpark();
                Ok(())
            }
            Err(Ended::With(status)) => {
                reply.u32(status.word());
                if call.named() == READ {
                    reply.opaque(&[]);
                }
                Ok(())
            }
            Err(Ended::Refused(refusal)) => Err(refusal),
        }
    }
}
