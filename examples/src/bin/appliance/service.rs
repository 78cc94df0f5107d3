//! The service on its core: takes calls, keeps the leases of their data, and has the storage thread do the
//! rest. It answers when that is done.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rpcrdma_engine::{
    Activity, Application, BulkArguments, BulkItem, Context, DeferToken, Outcome, ReplyRefused,
    ReplyWriter, Request,
};
use rpcrdma_examples::{
    DATA_BYTES_MAX, NULL, PROGRAM, READ, ReadArguments, SYNC, Sleeper, Status, VERSION, WRITE,
    WriteArguments, read_results,
};
use rpcrdma_fabric::clock::Ticks;
use rpcrdma_fabric::interface::Port;
use rpcrdma_fabric::storage::Operation;
use rtrb::{Consumer, Producer};

/// What the storage thread is to do, and the right to answer the call that asked for it.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) token: DeferToken,
    pub(crate) operation: Operation,
    pub(crate) offset_bytes: u64,
    /// What is to be written, or the room to read into.
    pub(crate) item: BulkItem,
}

/// A job that is done.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) token: DeferToken,
    pub(crate) status: Status,
    pub(crate) is_read: bool,
    /// What was read.
    pub(crate) item: BulkItem,
}

/// The core's ends of the rings to the storage thread and back.
pub(crate) type CoreEnds = (Producer<Job>, Consumer<Finished>);

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
        // Relaxed, here and where they are raised: each is a number of its own.
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
    finished: Consumer<Finished>,
    /// An answer that the core had no room for.
    waiting: Option<Finished>,
    storage: Arc<Sleeper>,
    figures: Arc<Figures>,
}

/// Answers in one poll.
const ANSWERS_MAX: usize = 8;

/// Why a call goes no further.
enum Ended {
    /// It is answered with this.
    Told(Status),
    /// There is no call in this.
    Garbage,
}

impl DiskService {
    /// A disk of `size_bytes`, which another thread works for, who sleeps as `storage` says.
    pub(crate) fn new(
        size_bytes: u64,
        (jobs, finished): CoreEnds,
        storage: Arc<Sleeper>,
        figures: Arc<Figures>,
    ) -> Self {
        Self {
            size_bytes,
            jobs,
            finished,
            waiting: None,
            storage,
            figures,
        }
    }

    fn serve(
        &mut self,
        request: &Request<'_>,
        placed: Option<BulkItem>,
        reply: &mut ReplyWriter<'_>,
    ) -> Outcome {
        if request.program != PROGRAM {
            return Outcome::ProgramUnavailable;
        }
        if request.version != VERSION {
            return Outcome::ProgramMismatch {
                low: VERSION,
                high: VERSION,
            };
        }
        let asked = match request.procedure {
            NULL => return Outcome::Success,
            WRITE => self.write(request.args, placed, reply),
            READ => self.read(request.args, reply),
            SYNC => Ok((Operation::Sync, 0, BulkItem::new())),
            _ => return Outcome::ProcedureUnavailable,
        };
        match asked {
            Ok((operation, offset_bytes, item)) => {
                let Some(token) = request.defer() else {
                    return Outcome::SystemError;
                };
                let job = Job {
                    token,
                    operation,
                    offset_bytes,
                    item,
                };
                if self.jobs.push(job).is_err() {
                    return Outcome::SystemError;
                }
                self.storage.wake();
                Outcome::Deferred
            }
            Err(Ended::Told(status)) => {
                let results = read_results(status, 0);
                // Of these, WRITE has the status alone.
                let bytes = if request.procedure == READ { 8 } else { 4 };
                match reply.write(results.get(..bytes).unwrap_or_default()) {
                    Ok(()) => Outcome::Success,
                    Err(_) => Outcome::SystemError,
                }
            }
            Err(Ended::Garbage) => Outcome::GarbageArgs,
        }
    }

    /// The data of a WRITE: the leases that they came in, or, of those that came in the stream, a copy in a
    /// buffer of the core, whose memory the disk can read just as well.
    fn write(
        &self,
        args: &[u8],
        placed: Option<BulkItem>,
        reply: &mut ReplyWriter<'_>,
    ) -> Result<(Operation, u64, BulkItem), Ended> {
        let (arguments, stream) = WriteArguments::decode(args).ok_or(Ended::Garbage)?;
        let WriteArguments {
            offset_bytes,
            is_durable,
            bytes,
        } = arguments;
        self.check(offset_bytes, bytes)?;
        if self.size_bytes - offset_bytes < bytes.into() {
            return Err(Ended::Told(Status::NoSpace));
        }
        let item = if let Some(placed) = placed {
            placed
        } else {
            let mut data = stream.get(..bytes as usize).ok_or(Ended::Garbage)?;
            let mut item = room(bytes, reply)?;
            for part in item.parts_mut() {
                let (now, later) = data.split_at_checked(part.len()).ok_or(Ended::Garbage)?;
                part.copy_from_slice(now);
                data = later;
            }
            let copied = &self.figures.copied_bytes;
            copied.fetch_add(bytes.into(), Ordering::Relaxed);
            item
        };
        if item.len() != bytes as usize {
            return Err(Ended::Garbage);
        }
        Ok((Operation::Write { is_durable }, offset_bytes, item))
    }

    /// Room for what a READ asks for, as far as the disk goes.
    fn read(
        &self,
        args: &[u8],
        reply: &mut ReplyWriter<'_>,
    ) -> Result<(Operation, u64, BulkItem), Ended> {
        let arguments = ReadArguments::decode(args).ok_or(Ended::Garbage)?;
        let ReadArguments {
            offset_bytes,
            bytes,
        } = arguments;
        self.check(offset_bytes, bytes)?;
        let left = self.size_bytes - offset_bytes;
        let bytes = u32::try_from(left).map_or(bytes, |left| left.min(bytes));
        Ok((Operation::Read, offset_bytes, room(bytes, reply)?))
    }

    fn check(&self, offset_bytes: u64, bytes: u32) -> Result<(), Ended> {
        if bytes > DATA_BYTES_MAX {
            return Err(Ended::Told(Status::Invalid));
        }
        if offset_bytes > self.size_bytes {
            return Err(Ended::Told(Status::NoSpace));
        }
        Ok(())
    }
}

/// So many bytes in bulk buffers of the core.
fn room(bytes: u32, reply: &mut ReplyWriter<'_>) -> Result<BulkItem, Ended> {
    let mut left = bytes as usize;
    let mut item = BulkItem::new();
    while left != 0 {
        let mut part = reply.take_bulk().ok_or(Ended::Told(Status::Busy))?;
        part.set_len(left);
        left -= part.len();
        item.push(part).map_err(|_| Ended::Told(Status::Invalid))?;
    }
    Ok(item)
}

/// Answers the call of a job. It comes back when the core has no room for the answer.
fn answer<P: Port>(core: &mut Context<'_, P>, mut finished: Finished) -> Option<Finished> {
    let Finished {
        token,
        status,
        is_read,
        item,
    } = finished;
    let bytes = u32::try_from(item.len()).unwrap_or_default();
    let results = read_results(status, bytes);
    let mut items = [(results.len(), item)];
    let answered = if is_read {
        core.reply_bulk(token, Outcome::Success, &results, &mut items)
    } else {
        core.reply(
            token,
            Outcome::Success,
            results.get(..4).unwrap_or_default(),
        )
    };
    match answered {
        Ok(()) | Err((ReplyRefused::UnknownToken, _)) => None,
        Err((ReplyRefused::Busy, token)) => {
            let [(_, item)] = items;
            (finished.token, finished.item) = (token, item);
            Some(finished)
        }
        // A caller that left no room for what it asked for.
        Err((ReplyRefused::TooLong | ReplyRefused::NoAnswer, token)) => {
            match core.reply(token, Outcome::SystemError, &[]) {
                Err((ReplyRefused::Busy, token)) => {
                    (finished.token, finished.item) = (token, BulkItem::new());
                    finished.status = Status::Failed;
                    Some(finished)
                }
                _ => None,
            }
        }
    }
}

impl Application for DiskService {
    const CLOCK_INTERVAL_POLLS: u32 = 16;

    fn call(&mut self, request: &Request<'_>, reply: &mut ReplyWriter<'_>) -> Outcome {
        self.serve(request, None, reply)
    }

    fn call_bulk(
        &mut self,
        request: &Request<'_>,
        items: &mut BulkArguments<'_>,
        reply: &mut ReplyWriter<'_>,
    ) -> Outcome {
        let is_data = items.args_offset(0) == Some(WriteArguments::STREAM_BYTES);
        match items.len() {
            0 => self.serve(request, None, reply),
            // Taking the item keeps it: the Receives that its bytes came in are posted again at once, with
            // other memory.
            1 if request.procedure == WRITE && is_data => self.serve(request, items.take(0), reply),
            _ => Outcome::GarbageArgs,
        }
    }

    fn poll<P: Port>(&mut self, core: &mut Context<'_, P>, _now: Ticks) -> Activity {
        let mut is_busy = false;
        for _ in 0..ANSWERS_MAX {
            let Some(finished) = self.waiting.take().or_else(|| self.finished.pop().ok()) else {
                break;
            };
            self.waiting = answer(core, finished);
            if self.waiting.is_some() {
                break;
            }
            is_busy = true;
        }
        Activity::from_busy(is_busy)
    }
}
