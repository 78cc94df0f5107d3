//! The storage thread: orders of jobs to the kernel, straight from and into the leases of their calls.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rpcrdma::{Buffer, Later};
use rpcrdma_engine::BulkItem;
use rpcrdma_examples::Status;
use rpcrdma_fabric::storage::{
    DIRECT_ALIGN_BYTES, Done, Operation, Order, OrderRefused, StorageRing, fits_direct,
};
use rtrb::Consumer;
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::service::{Figures, Job};

/// The file of a ring that goes through the page cache, and the one that does not.
const BUFFERED: usize = 0;
const DIRECT: usize = 1;

/// How long the thread waits for the disk before it looks for new jobs.
const DISK_PATIENCE: Duration = Duration::from_micros(100);

/// A file or block device, opened twice: what direct I/O does not take goes through the page cache. The
/// kernel keeps the two views of a file alike for requests that follow one another, and so do its clients
/// who wait for an answer before they ask for the same bytes again. It does so by pages: where these are longer than
/// [`DIRECT_ALIGN_BYTES`], as the 64 KiB of some arm64 kernels, the same bytes means the same page.
pub(crate) struct Disk {
    buffered: File,
    direct: Option<File>,
}

impl Disk {
    /// Opens `path`, and makes a file that is shorter that long. A file that is made for it is durable under its
    /// name before anything is written to it, and does not stay when it cannot be used.
    ///
    /// # Errors
    /// What is wrong with it, and what to do.
    pub(crate) fn open(path: &Path, size_bytes: u64, is_buffered: bool) -> io::Result<Self> {
        let mut opened = options().open(path);
        let is_made = matches!(&opened, Err(error) if error.kind() == io::ErrorKind::NotFound);
        if is_made {
            opened = options().create_new(true).open(path);
        }
        let buffered = opened.map_err(|error| of_file(path, "cannot be opened", &error))?;
        let disk = Self::prepare(buffered, path, size_bytes, is_buffered).and_then(|disk| {
            if is_made {
                let synced = sync_with_folder(&disk.buffered, path);
                synced.map_err(|error| of_file(path, "cannot be made durable", &error))?;
            }
            Ok(disk)
        });
        if is_made && disk.is_err() {
            // The error says more than one of this would.
            let _ = std::fs::remove_file(path);
        }
        disk
    }

    /// Makes what was opened as long as the disk, and opens it for direct I/O.
    fn prepare(
        mut buffered: File,
        path: &Path,
        size_bytes: u64,
        is_buffered: bool,
    ) -> io::Result<Self> {
        let kind = buffered.metadata()?.file_type();
        if !kind.is_char_device() {
            let bytes = buffered
                .seek(SeekFrom::End(0))
                .map_err(|error| of_file(path, "is of no length", &error))?;
            if bytes < size_bytes && kind.is_block_device() {
                let advice = format!("ask for that with --size-bytes {bytes}");
                return Err(of_file(path, "is shorter", &io::Error::other(advice)));
            }
            if bytes < size_bytes {
                let made = buffered.set_len(size_bytes);
                made.map_err(|error| of_file(path, "cannot be made so long", &error))?;
            }
        }
        let mut direct = None;
        if !is_buffered {
            let flags = OFlags::DIRECT.bits().cast_signed();
            let opened = options().custom_flags(flags).open(path);
            direct = Some(opened.map_err(|error| {
                let advice = "takes no direct I/O; use a file elsewhere, or --buffered";
                of_file(path, advice, &error)
            })?);
        }
        Ok(Self { buffered, direct })
    }

    /// A ring on it for so many orders.
    fn ring(self, orders: u32) -> io::Result<StorageRing> {
        let files = [Some(self.buffered), self.direct];
        StorageRing::new(files.into_iter().flatten(), orders).map_err(|error| {
            let advice = "io_uring is not to be had here (sysctl kernel.io_uring_disabled, the \
                          filter of a container, or Linux before 5.11)";
            io::Error::new(error.kind(), format!("{advice}: {error}"))
        })
    }
}

/// To read and to write.
fn options() -> OpenOptions {
    File::options().read(true).write(true).clone()
}

/// Makes a new file durable, and its name with it: what is written to it durably is to be found again.
fn sync_with_folder(file: &File, path: &Path) -> io::Result<()> {
    file.sync_all()?;
    let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

fn of_file(path: &Path, what: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{} {what}: {error}", path.display()))
}

/// A job that is with the kernel.
struct UnderWay {
    later: Later,
    bytes: usize,
}

/// Carries out jobs until the core is gone.
pub(crate) struct StorageThread {
    ring: StorageRing,
    is_direct: bool,
    jobs: Consumer<Job>,
    /// By the tags of their orders.
    under_way: Box<[Option<UnderWay>]>,
    free: Vec<usize>,
    figures: Arc<Figures>,
    /// Whether the first error was told.
    is_error_told: bool,
}

impl StorageThread {
    /// Works on `disk`, for as many jobs at a time as the ring from the core holds.
    ///
    /// # Errors
    /// When the kernel makes no ring.
    pub(crate) fn new(disk: Disk, jobs: Consumer<Job>, figures: Arc<Figures>) -> io::Result<Self> {
        let room = jobs.buffer().capacity();
        let is_direct = disk.direct.is_some();
        let ring = disk.ring(u32::try_from(room).unwrap_or(u32::MAX))?;
        Ok(Self {
            ring,
            is_direct,
            jobs,
            under_way: (0..room).map(|_| None).collect(),
            free: (0..room).rev().collect(),
            figures,
            is_error_told: false,
        })
    }

    /// Works, sleeps when there is nothing to do, and returns when the core is gone and all is done.
    ///
    /// # Errors
    /// When the kernel takes no orders any more.
    pub(crate) fn run(mut self) -> io::Result<()> {
        loop {
            // In this order: what was pushed before the core went is still taken.
            let is_over = self.jobs.is_abandoned();
            let mut is_busy = false;
            while self.ring.has_room()
                && let Ok(job) = self.jobs.pop()
            {
                self.begin(job);
                is_busy = true;
            }
            if self.ring.under_way() != 0 {
                let patience = if is_busy {
                    Duration::ZERO
                } else {
                    DISK_PATIENCE
                };
                self.ring.submit(patience)?;
            }
            if self.reap() != 0 {
                is_busy = true;
            }
            if !is_busy && self.ring.under_way() == 0 {
                if is_over {
                    return Ok(());
                }
                // A wake since the rings were looked into ends this at once.
                std::thread::park();
            }
        }
    }

    /// Has the kernel carry out a job.
    fn begin(&mut self, job: Job) {
        let Job {
            later,
            operation,
            offset_bytes,
            data,
        } = job;
        let mut item: BulkItem = data.into();
        let bytes = item.len();
        let is_read = operation == Operation::Read;
        if is_read
            && self.is_direct
            && let Some(last) = item.last_mut()
        {
            // Whole blocks are read; what is beyond the request is not sent.
            last.set_len(last.len().next_multiple_of(DIRECT_ALIGN_BYTES));
        }
        let is_direct = self.is_direct && fits_direct(offset_bytes, item.parts().map(|it| &**it));
        if is_read && !is_direct {
            let beyond = item.len() - bytes;
            if let Some(last) = item.last_mut() {
                last.set_len(last.len() - beyond);
            }
        }
        let Some(tag) = self.free.pop() else {
            return Job::answer(later, operation, Status::Busy, Buffer::default());
        };
        let order = Order {
            operation,
            file: if is_direct { DIRECT } else { BUFFERED },
            offset_bytes,
            tag: tag as u64,
        };
        match self.ring.push(order, item) {
            Ok(()) => {
                if let Some(place) = self.under_way.get_mut(tag) {
                    *place = Some(UnderWay { later, bytes });
                }
            }
            Err(refused) => {
                self.free.push(tag);
                let status = match refused {
                    OrderRefused::Full => Status::Busy,
                    OrderRefused::UnknownFile
                    | OrderRefused::TooManyParts
                    | OrderRefused::BeyondFiles => Status::Invalid,
                };
                Job::answer(later, operation, status, Buffer::default());
            }
        }
    }

    /// Answers the calls that the kernel is done with; how many they were.
    fn reap(&mut self) -> usize {
        let Self {
            ring,
            under_way,
            free,
            figures,
            is_error_told,
            ..
        } = self;
        ring.reap(|done| {
            let tag = usize::try_from(done.order.tag).unwrap_or(usize::MAX);
            let Some(job) = under_way.get_mut(tag).and_then(Option::take) else {
                return;
            };
            free.push(tag);
            let operation = done.order.operation;
            match &done.result {
                Ok(moved) => {
                    let figure = match done.order.file {
                        DIRECT => &figures.direct_bytes,
                        _ => &figures.buffered_bytes,
                    };
                    // Direct READs go to the end of the block.
                    figure.fetch_add((*moved).min(job.bytes) as u64, Ordering::Relaxed);
                }
                Err(error) => {
                    figures.errors.fetch_add(1, Ordering::Relaxed);
                    if !std::mem::replace(is_error_told, true) {
                        eprintln!("appliance: {operation:?}: {error}; further errors are counted");
                    }
                }
            }
            let (status, item) = outcome(done, job.bytes);
            Job::answer(job.later, operation, status, item.into());
        })
    }
}

/// What the caller is told of an order for `bytes` bytes, and what it gets.
fn outcome(done: Done<'_>, bytes: usize) -> (Status, BulkItem) {
    let moved = match done.result {
        Ok(moved) => moved.min(bytes),
        Err(error) => return (status_of(&error), BulkItem::new()),
    };
    let mut item = BulkItem::new();
    match done.order.operation {
        Operation::Sync => (Status::Done, item),
        // The disk takes no more and does not say why.
        Operation::Write { .. } if moved < bytes => (Status::NoSpace, item),
        Operation::Write { .. } => (Status::Done, item),
        Operation::Read => {
            let mut left = moved;
            for mut part in done.parts {
                part.set_len(left.min(part.len()));
                left -= part.len();
                // There are no more of them than in the item that they are from.
                if !part.is_empty() {
                    let _ = item.push(part);
                }
            }
            (Status::Done, item)
        }
    }
}

fn status_of(error: &io::Error) -> Status {
    match Errno::from_io_error(error) {
        Some(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => Status::NoSpace,
        Some(Errno::INVAL) => Status::Invalid,
        Some(Errno::AGAIN | Errno::INTR | Errno::NOMEM) => Status::Busy,
        _ => Status::Failed,
    }
}
