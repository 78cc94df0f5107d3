//! Writes files and block devices from registered memory, and reads them into it, by io_uring (feature
//! `storage`).
//!
//! A [`StorageRing`] takes the leases of the bytes that it moves, and returns them when the kernel is done
//! with them. So nobody reads, writes or reuses memory that a disk still accesses, even if the call of
//! these bytes and its connection have ended.
//!
//! Use it on a separate thread: a polling core makes no system calls.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use io_uring::types::{Fd, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, SubmissionQueue, opcode, squeue};

use crate::memory::Lease;

#[cfg(test)]
mod tests;

/// The most pieces of memory that one order moves.
pub const STORAGE_PARTS_MAX: usize = 32;

/// The alignment in bytes of addresses, lengths and offsets of direct I/O. A device requires its logical
/// block size, which usually is 512 or 4096 bytes.
pub const DIRECT_ALIGN_BYTES: usize = 4096;

/// Orders that a ring holds at most.
const ORDERS_MAX: u32 = 4096;

/// An operation on a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Write the bytes of the leases, one after the other. When the kernel writes only a part, the ring
    /// continues with the rest. The result is the whole length, or the error of the rest.
    Write {
        /// Complete the write when the bytes and the metadata to find them survive a loss of power
        /// (`RWF_DSYNC`). Otherwise it completes when the kernel has taken the bytes.
        is_durable: bool,
    },
    /// Read into the leases, as many bytes as their lengths.
    Read,
    /// Make all writes durable that have completed before (`fdatasync`). Takes no leases.
    Sync,
}

/// An order for the kernel: one operation on one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// The operation.
    pub operation: Operation,
    /// The number of the file: its place in the list that the ring was made with.
    pub file: usize,
    /// The offset in the file in bytes, at most [`i64::MAX`]. Not used by [`Operation::Sync`].
    pub offset_bytes: u64,
    /// A number of the caller, which the completion returns.
    pub tag: u64,
}

/// A completed order.
#[derive(Debug)]
pub struct Done<'a> {
    /// The order.
    pub order: Order,
    /// The bytes written or read; a read at the end of the file has fewer than its leases. Or the kernel's
    /// error, after which some of the bytes may have been written.
    pub result: io::Result<usize>,
    /// The leases of the order. Leases that are not taken from here are dropped.
    pub parts: std::vec::Drain<'a, Lease>,
}

/// Why the ring did not take an order. Its leases were dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderRefused {
    /// The ring has no place left: all its orders are in progress.
    Full,
    /// The ring has no file with this number.
    UnknownFile,
    /// The order has more than [`STORAGE_PARTS_MAX`] leases.
    TooManyParts,
    /// The offset exceeds [`i64::MAX`].
    BeyondFiles,
}

impl fmt::Display for OrderRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "the storage ring is full",
            Self::UnknownFile => "the storage ring has no such file",
            Self::TooManyParts => "more pieces of memory than one order takes",
            Self::BeyondFiles => "no file is as long as that offset",
        })
    }
}

impl std::error::Error for OrderRefused {}

/// Whether direct I/O (`O_DIRECT`) accepts these pieces at this offset: the offset, the addresses and the
/// lengths are multiples of [`DIRECT_ALIGN_BYTES`].
pub fn fits_direct<'a>(offset_bytes: u64, parts: impl IntoIterator<Item = &'a [u8]>) -> bool {
    let is_aligned =
        |part: &[u8]| (part.as_ptr().addr() | part.len()).is_multiple_of(DIRECT_ALIGN_BYTES);
    offset_bytes.is_multiple_of(DIRECT_ALIGN_BYTES as u64) && parts.into_iter().all(is_aligned)
}

/// The addresses and lengths of an order's pieces, in the kernel's format.
struct Vectors(Box<[libc::iovec]>);

// SAFETY: they point into the leases of the same slot, which may go to any thread, and are followed by
// the kernel alone.
unsafe impl Send for Vectors {}

/// A place for an order in progress.
struct Slot {
    order: Option<Order>,
    parts: Vec<Lease>,
    vectors: Vectors,
    /// Vectors whose bytes are done.
    vectors_done: usize,
    bytes_done: usize,
}

impl Slot {
    fn new() -> Self {
        let nothing = libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        };
        Self {
            order: None,
            parts: Vec::with_capacity(STORAGE_PARTS_MAX),
            vectors: Vectors(Box::new([nothing; STORAGE_PARTS_MAX])),
            vectors_done: 0,
            bytes_done: 0,
        }
    }

    /// Takes the leases of an order.
    fn fill(&mut self, parts: impl IntoIterator<Item = Lease>) -> Result<(), OrderRefused> {
        // Leases are left here if the iterator of an earlier order panicked in this function.
        self.clear();
        for mut part in parts {
            let Some(vector) = self.vectors.0.get_mut(self.parts.len()) else {
                self.clear();
                return Err(OrderRefused::TooManyParts);
            };
            // The address stays valid when the lease moves, because the bytes do not.
            vector.iov_base = part.as_mut_ptr().cast();
            vector.iov_len = part.len();
            self.parts.push(part);
        }
        Ok(())
    }

    /// Drops the leases of an order that never began.
    fn clear(&mut self) {
        self.order = None;
        self.parts.clear();
        (self.vectors_done, self.bytes_done) = (0, 0);
    }

    /// The kernel's entry for `order`: the whole of it, or the part that is left.
    fn entry(&self, order: &Order, file: Fd) -> squeue::Entry {
        let left = self.vectors.0.get(self.vectors_done..self.parts.len());
        let vectors = left.unwrap_or_default();
        let count = u32::try_from(vectors.len()).unwrap_or_default();
        let offset_bytes = order.offset_bytes.saturating_add(self.bytes_done as u64);
        match order.operation {
            Operation::Write { is_durable } => opcode::Writev::new(file, vectors.as_ptr(), count)
                .offset(offset_bytes)
                .rw_flags(if is_durable { libc::RWF_DSYNC } else { 0 })
                .build(),
            Operation::Read => opcode::Readv::new(file, vectors.as_ptr(), count)
                .offset(offset_bytes)
                .build(),
            Operation::Sync => opcode::Fsync::new(file).flags(FsyncFlags::DATASYNC).build(),
        }
    }

    /// Counts `bytes` more bytes as done. Returns whether bytes are left.
    fn advance(&mut self, bytes: usize) -> bool {
        self.bytes_done += bytes;
        let mut left = bytes;
        while self.vectors_done < self.parts.len()
            && let Some(vector) = self.vectors.0.get_mut(self.vectors_done)
        {
            if left < vector.iov_len {
                vector.iov_base = vector.iov_base.wrapping_byte_add(left);
                vector.iov_len -= left;
                return true;
            }
            left -= vector.iov_len;
            self.vectors_done += 1;
        }
        false
    }
}

/// A set of files and the orders in progress on them. It allocates all its memory when it is made.
///
/// Dropping it waits for the orders in progress.
pub struct StorageRing {
    ring: IoUring,
    files: Box<[File]>,
    slots: Box<[Slot]>,
    free: Vec<usize>,
}

impl fmt::Debug for StorageRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StorageRing")
            .field("files", &self.files)
            .field("under_way", &self.under_way())
            .finish_non_exhaustive()
    }
}

impl StorageRing {
    /// Makes a ring on these files, for `orders` orders at a time: 1 to 4096, rounded up to a power of two.
    ///
    /// # Errors
    /// When the kernel has no io_uring (`ENOSYS`) or does not permit it (`EPERM`), as in many containers and
    /// where `kernel.io_uring_disabled` is set; and before Linux 5.11.
    pub fn new(files: impl IntoIterator<Item = File>, orders: u32) -> io::Result<Self> {
        let orders = orders.clamp(1, ORDERS_MAX).next_power_of_two();
        let ring = IoUring::new(orders)?;
        if !ring.params().is_feature_ext_arg() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let slots: Box<[Slot]> = (0..orders).map(|_| Slot::new()).collect();
        Ok(Self {
            ring,
            files: files.into_iter().collect(),
            free: (0..slots.len()).rev().collect(),
            slots,
        })
    }

    /// The number of orders in progress.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether the ring has a place for another order.
    #[must_use]
    pub fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Queues an order, and keeps the leases of its bytes until it is done. [`StorageRing::submit`] passes it
    /// to the kernel.
    ///
    /// # Errors
    /// [`OrderRefused`]; the leases are dropped then.
    pub fn push(
        &mut self,
        order: Order,
        parts: impl IntoIterator<Item = Lease>,
    ) -> Result<(), OrderRefused> {
        let file = self.files.get(order.file);
        let file = Fd(file.ok_or(OrderRefused::UnknownFile)?.as_raw_fd());
        // An offset of -1 would mean the current position of the descriptor.
        if order.operation != Operation::Sync && i64::try_from(order.offset_bytes).is_err() {
            return Err(OrderRefused::BeyondFiles);
        }
        let index = *self.free.last().ok_or(OrderRefused::Full)?;
        let slot = self.slots.get_mut(index).ok_or(OrderRefused::Full)?;
        slot.fill(parts)?;
        let entry = slot.entry(&order, file).user_data(index as u64);
        if !enqueue(&mut self.ring.submission(), &entry) {
            slot.clear();
            return Err(OrderRefused::Full);
        }
        slot.order = Some(order);
        self.free.pop();
        Ok(())
    }

    /// Passes all queued orders to the kernel. If orders are in progress, then waits until one is done, at
    /// most for `patience`.
    ///
    /// # Errors
    /// The kernel's error. A temporary lack of memory or room is no error: the next call passes the orders
    /// again.
    pub fn submit(&mut self, patience: Duration) -> io::Result<()> {
        match self.enter(patience) {
            Ok(_) => Ok(()),
            Err(error) if is_passing(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// As [`StorageRing::submit`], but also returns temporary errors.
    fn enter(&mut self, patience: Duration) -> io::Result<usize> {
        if patience.is_zero() || self.under_way() == 0 {
            return self.ring.submit();
        }
        let patience = Timespec::from(patience);
        let arguments = SubmitArgs::new().timespec(&patience);
        self.ring.submitter().submit_with_args(1, &arguments)
    }

    /// Passes each completed order to `take`; returns how many there were.
    pub fn reap(&mut self, mut take: impl FnMut(Done<'_>)) -> usize {
        let mut reaped = 0;
        let (_, mut queue, completions) = self.ring.split();
        for completion in completions {
            let index = usize::try_from(completion.user_data()).unwrap_or(usize::MAX);
            let Some(slot) = self.slots.get_mut(index) else {
                continue;
            };
            let Some(order) = slot.order.take() else {
                continue;
            };
            let result = usize::try_from(completion.result())
                .map_err(|_| io::Error::from_raw_os_error(completion.result().saturating_neg()));
            let is_left = result
                .as_ref()
                .is_ok_and(|&bytes| slot.advance(bytes) && bytes != 0);
            if is_left
                && matches!(order.operation, Operation::Write { .. })
                && let Some(file) = self.files.get(order.file)
            {
                let entry = slot.entry(&order, Fd(file.as_raw_fd()));
                if enqueue(&mut queue, &entry.user_data(index as u64)) {
                    slot.order = Some(order);
                    continue;
                }
            }
            let bytes_done = slot.bytes_done;
            // Before `take` is called, so that the slot is free even if `take` panics.
            self.free.push(index);
            reaped += 1;
            take(Done {
                order,
                result: result.map(|_| bytes_done),
                parts: slot.parts.drain(..),
            });
        }
        reaped
    }
}

/// Puts an entry into the kernel's queue, for a slot that holds everything that the entry refers to. The queue
/// always has room, because it has as many places as there are slots, and each slot has one entry at a time.
/// The queue of completions is twice as long.
fn enqueue(queue: &mut SubmissionQueue<'_>, entry: &squeue::Entry) -> bool {
    // SAFETY: the entry names a file of this ring, and vectors and leases in a slot of this ring. They stay
    // there, and the vectors as they are, until `reap` sees the completion that the kernel posts when it
    // is done with them: nobody else gets at a slot under way, and `drop` waits for it, or lets the slots
    // and files go for good; a ring that is forgotten keeps them for good as well. Vectors never reach
    // beyond their leases (`fill`, `advance`). The leases are the only access to their bytes, to
    // which the kernel may therefore write; their memory stays where it is while leases move, and as
    // long as there are any.
    unsafe { queue.push(entry).is_ok() }
}

/// Whether an error is temporary, so that the same call can be made again.
fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EINTR | libc::ETIME | libc::EAGAIN | libc::EBUSY)
    )
}

impl Drop for StorageRing {
    fn drop(&mut self) {
        /// The longest single wait; the loop repeats it.
        const WAIT: Duration = Duration::from_millis(100);
        /// The pause after the kernel returned without waiting, for lack of memory or room.
        const PAUSE: Duration = Duration::from_millis(1);
        while self.under_way() != 0 {
            let entered = self.enter(WAIT);
            if entered.as_ref().is_err_and(|error| !is_passing(error)) {
                // The kernel may still access the memory of these orders, so that memory is leaked instead of
                // being used again.
                let _ = Box::leak(std::mem::take(&mut self.slots));
                let _ = Box::leak(std::mem::take(&mut self.files));
                break;
            }
            if self.reap(|done| drop(done)) == 0 && entered.is_err() {
                // TIME: a pause between two attempts; the kernel has nothing that this could wait for.
                std::thread::sleep(PAUSE);
            }
        }
    }
}
