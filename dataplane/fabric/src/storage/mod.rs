//! Files and block devices, written straight from registered memory and read into it, by io_uring
//! (feature `storage`).
//!
//! A [`StorageRing`] takes the leases of the bytes that it moves, and gives them back when the kernel is
//! done with them. So nobody reads, writes or reuses memory that a disk is still reading or writing,
//! whatever becomes of the call that the bytes came with, and of its connection.
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

/// Pieces of memory that one order moves at most.
pub const STORAGE_PARTS_MAX: usize = 32;

/// What address, length and offset of direct I/O are multiples of, in bytes. Devices ask for their logical
/// block, which is 512 or 4096 bytes long where nobody has formatted them otherwise.
pub const DIRECT_ALIGN_BYTES: usize = 4096;

/// Orders that a ring holds at most.
const ORDERS_MAX: u32 = 4096;

/// What is to be done with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Write the bytes of the leases, one behind the other. A write that the kernel does in part goes on
    /// with the rest, so that the result is all of it, or what kept the rest from being written.
    Write {
        /// Complete it when the bytes and what it takes to find them survive a loss of power
        /// (`RWF_DSYNC`), not when the device has taken them.
        is_durable: bool,
    },
    /// Read into the leases, as many bytes as they are long.
    Read,
    /// Make durable what was written and complete before this (`fdatasync`). Takes no leases.
    Sync,
}

/// One thing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// What.
    pub operation: Operation,
    /// The number of the file, in the order in which the ring got them.
    pub file: usize,
    /// Where in the file, in bytes, at most [`i64::MAX`]. Has no meaning for [`Operation::Sync`].
    pub offset_bytes: u64,
    /// The owner's name for it, which comes back with its completion.
    pub tag: u64,
}

/// An order that the kernel is done with.
#[derive(Debug)]
pub struct Done<'a> {
    /// Which it was.
    pub order: Order,
    /// Bytes written or read: of a READ fewer than were asked for where the file ends. Or what the kernel
    /// says is wrong, in which case some of the bytes may have been written.
    pub result: io::Result<usize>,
    /// The leases of the order. Those that are not taken end.
    pub parts: std::vec::Drain<'a, Lease>,
}

/// Why an order was not taken. Its leases have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderRefused {
    /// As many orders are under way as the ring holds.
    Full,
    /// The ring has no file of that number.
    UnknownFile,
    /// More than [`STORAGE_PARTS_MAX`] leases.
    TooManyParts,
    /// No file is as long as its offset.
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

/// Whether direct I/O (`O_DIRECT`) takes these pieces at this offset: all of it is in whole blocks of
/// [`DIRECT_ALIGN_BYTES`].
pub fn fits_direct<'a>(offset_bytes: u64, parts: impl IntoIterator<Item = &'a [u8]>) -> bool {
    let is_aligned =
        |part: &[u8]| (part.as_ptr().addr() | part.len()).is_multiple_of(DIRECT_ALIGN_BYTES);
    offset_bytes.is_multiple_of(DIRECT_ALIGN_BYTES as u64) && parts.into_iter().all(is_aligned)
}

/// Where the pieces of an order lie, as the kernel reads it.
struct Vectors(Box<[libc::iovec]>);

// SAFETY: they point into the leases of the same slot, which may go to any thread, and are followed by
// the kernel alone.
unsafe impl Send for Vectors {}

/// An order under way, or room for one.
struct Slot {
    order: Option<Order>,
    parts: Vec<Lease>,
    vectors: Vectors,
    /// Vectors that are done with.
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

    /// Takes `parts`.
    fn fill(&mut self, parts: impl IntoIterator<Item = Lease>) -> Result<(), OrderRefused> {
        // There are some left when the iterator of an order panicked that was never given.
        self.clear();
        for mut part in parts {
            let Some(vector) = self.vectors.0.get_mut(self.parts.len()) else {
                self.clear();
                return Err(OrderRefused::TooManyParts);
            };
            // The lease can move: its bytes stay where they are.
            vector.iov_base = part.as_mut_ptr().cast();
            vector.iov_len = part.len();
            self.parts.push(part);
        }
        Ok(())
    }

    /// Ends the leases of an order that never began.
    fn clear(&mut self) {
        self.order = None;
        self.parts.clear();
        (self.vectors_done, self.bytes_done) = (0, 0);
    }

    /// What the kernel is to do for `order` now.
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

    /// Counts `bytes` bytes as done with; whether there are more.
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

/// Files, and what is being done with them. All memory of its own is reserved at the start.
///
/// Dropping it waits for what is under way.
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
    /// A ring for `orders` orders at a time, from 1 to 4096 and rounded up to a power of two, on these
    /// files.
    ///
    /// # Errors
    /// When the kernel makes no ring: there is none (`ENOSYS`), or it is not permitted (`EPERM`), as in
    /// many containers and where `kernel.io_uring_disabled` is set; and before Linux 5.11.
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

    /// Orders that are not done.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether one more order can be taken.
    #[must_use]
    pub fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Takes an order, and the leases of its bytes until it is done. The kernel is told of it by
    /// [`StorageRing::submit`].
    ///
    /// # Errors
    /// [`OrderRefused`].
    pub fn push(
        &mut self,
        order: Order,
        parts: impl IntoIterator<Item = Lease>,
    ) -> Result<(), OrderRefused> {
        let file = self.files.get(order.file);
        let file = Fd(file.ok_or(OrderRefused::UnknownFile)?.as_raw_fd());
        // To the kernel the last offset of all means the place where the descriptor stands.
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

    /// Tells the kernel of all orders since the last time and, if `patience` is not zero, waits for that
    /// long until one is done, if any is under way.
    ///
    /// # Errors
    /// What the kernel says. That it lacks memory or room at the moment is none: it is told again by the next
    /// call.
    pub fn submit(&mut self, patience: Duration) -> io::Result<()> {
        match self.enter(patience) {
            Ok(_) => Ok(()),
            Err(error) if is_passing(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// [`StorageRing::submit`] with all that the kernel says.
    fn enter(&mut self, patience: Duration) -> io::Result<usize> {
        if patience.is_zero() || self.under_way() == 0 {
            return self.ring.submit();
        }
        let patience = Timespec::from(patience);
        let arguments = SubmitArgs::new().timespec(&patience);
        self.ring.submitter().submit_with_args(1, &arguments)
    }

    /// Hands over each order that is done, and says how many there were.
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
            // Before the owner sees it: whatever becomes of that, the slot is free.
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

/// Puts an entry into the kernel's queue, for a slot that holds all that it names. There is room: the queue is
/// as long as there are slots, and each has one entry at a time. So has the queue of completions, which
/// is twice as long.
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

/// Whether the same can be tried again.
fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EINTR | libc::ETIME | libc::EAGAIN | libc::EBUSY)
    )
}

impl Drop for StorageRing {
    fn drop(&mut self) {
        /// How long one wait is at most; then there is another.
        const WAIT: Duration = Duration::from_millis(100);
        /// How long the kernel gets that lacks memory or room, and says so without a wait.
        const PAUSE: Duration = Duration::from_millis(1);
        while self.under_way() != 0 {
            let entered = self.enter(WAIT);
            if entered.as_ref().is_err_and(|error| !is_passing(error)) {
                // The kernel may still be at work: what it was given is never used again.
                let _ = Box::leak(std::mem::take(&mut self.slots));
                let _ = Box::leak(std::mem::take(&mut self.files));
                break;
            }
            if self.reap(|done| drop(done)) == 0 && entered.is_err() {
                std::thread::sleep(PAUSE);
            }
        }
    }
}
