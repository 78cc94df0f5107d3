//! Memory of the program, used as registered memory.

use std::ffi::{c_int, c_void};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rpcrdma::{Buffer, ExternalMemory};

use crate::border::{Failed, done, value};
use crate::buffer::BufferHandle;
use crate::options::Options;
use crate::pointers;

/// Memory that the program owns, in blocks of equal size: buffers of it are sent from and received into where they are.
/// Give it to a node by rpcrdma_options_add_memory(). It is in use until its handle and all its buffers have been freed
/// and its nodes have ended.
pub struct MemoryHandle {
    pub(crate) memory: ExternalMemory,
}

/// Is called when the memory is no longer used.
struct Released {
    released: unsafe extern "C" fn(user: *mut c_void),
    user: *mut c_void,
}

// SAFETY: any thread may call it once, which `rpcrdma_memory_at_address` demands.
unsafe impl Send for Released {}
// SAFETY: a shared reference gives no access.
unsafe impl Sync for Released {}

impl Released {
    fn call(self) {
        // SAFETY: the contract of `rpcrdma_memory_at_address`.
        unsafe { (self.released)(self.user) };
    }
}

/// Uses `bytes` bytes from `start` on, which the program mapped: hugepages of SPDK or DPDK, for example. For rdma: alone; on
/// shm: the peer has to map the memory, so use rpcrdma_memory_of_file(). `start` and `block_bytes` are multiples of 4096, and
/// `bytes` is one of `block_bytes`.
///
/// The range must stay mapped as it is, to be read and written, until `released` is called with `user`, on any thread.
/// `released` may be NULL: then no later than the handle, all buffers and all nodes with it have ended.
///
/// While there is a buffer of a block, nothing else writes to the block. The program may read it as long as the buffer is only
/// sent (rpcrdma_put_bulk()), also by rpcrdma_put_bulk_copy(): not while results are expected into it, nor while another thread
/// is in rpcrdma_buffer_write() or rpcrdma_buffer_pieces() with it. A block without a buffer is the program's: it
/// takes no buffer of it while it writes there.
///
/// Errors: RPCRDMA_E_CONFIGURATION when the range cannot be used; the text says why.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_memory_at_address(
    start: *mut c_void,
    bytes: usize,
    block_bytes: u32,
    released: Option<unsafe extern "C" fn(user: *mut c_void)>,
    user: *mut c_void,
    memory: *mut *mut MemoryHandle,
) -> c_int {
    done(|| {
        // SAFETY: the contract of the header.
        let place = unsafe { pointers::place(memory, "memory") }?;
        let start = NonNull::new(start.cast());
        let start = start.ok_or_else(|| Failed::argument("`start` is NULL"))?;
        let released = released.map(|released| Released { released, user });
        let give_back = move || {
            if let Some(released) = released {
                released.call();
            }
        };
        // SAFETY: the caller's promise is the same.
        let memory = unsafe { ExternalMemory::at_address(start, bytes, block_bytes, give_back) };
        let memory = memory.map_err(rpcrdma::Error::from)?;
        place.put(MemoryHandle { memory });
        Ok(())
    })
}

/// Maps a whole file and uses it: a memfd, with hugepages or without, or a file of hugetlbfs. The descriptor is
/// duplicated. `block_bytes` is a multiple of 4096, and the length of the file is one of `block_bytes`.
///
/// A memfd to which seals can be added (F_GET_SEALS has no F_SEAL_SEAL) is sealed for good: nobody can resize it, write() it or map
/// it to write from here on, and when this use has ended, it cannot be used again. Seals can be added to what was made with
/// MFD_ALLOW_SEALING or MFD_NOEXEC_SEAL, and with neither where the sysctl vm.memfd_noexec says so. A program that wants its own
/// mapping to write to makes it before this call. On shm the file must be such a memfd; peers map all of it, to read.
///
/// Every other file stays as it is and is for rdma: alone: a file of hugetlbfs, or a memfd that other processes must still map to
/// write (add F_SEAL_SEAL to it before). Until the memory is no longer used, no process shortens it or removes
/// pages of it.
///
/// What rpcrdma_memory_at_address() says of other accesses to a block holds for both.
///
/// Errors: RPCRDMA_E_CONFIGURATION when the file cannot be used; the text says why.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_memory_of_file(
    file: c_int,
    block_bytes: u32,
    memory: *mut *mut MemoryHandle,
) -> c_int {
    done(|| {
        // SAFETY: the contract of the header.
        let place = unsafe { pointers::place(memory, "memory") }?;
        let file = duplicate(file)?;
        let memory = if ExternalMemory::can_seal(&file) {
            ExternalMemory::of_file(file, block_bytes)
        } else {
            // SAFETY: the contract of the header.
            unsafe { ExternalMemory::of_unsealed_file(file, block_bytes) }
        };
        let memory = memory.map_err(rpcrdma::Error::from)?;
        place.put(MemoryHandle { memory });
        Ok(())
    })
}

/// Uses the memory of a dma-buf that another device's driver exported, for rdma: alone. The RDMA device and its driver must be
/// able to (ibv_reg_dmabuf_mr, rdma-core 34), which shows when a node starts with it. The descriptor is duplicated.
///
/// The exporter keeps the memory where it is, accessible to the processor and coherent with it, until the memory is no longer
/// used. What rpcrdma_memory_at_address() says of other accesses to a block holds, for other devices too.
///
/// Errors: RPCRDMA_E_CONFIGURATION when it cannot be mapped, or its size does not fit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_memory_of_dma_buf(
    file: c_int,
    block_bytes: u32,
    memory: *mut *mut MemoryHandle,
) -> c_int {
    done(|| {
        // SAFETY: the contract of the header.
        let place = unsafe { pointers::place(memory, "memory") }?;
        let file = duplicate(file)?;
        // SAFETY: the contract of the header.
        let memory = unsafe { ExternalMemory::of_dma_buf(file, block_bytes) };
        let memory = memory.map_err(rpcrdma::Error::from)?;
        place.put(MemoryHandle { memory });
        Ok(())
    })
}

fn duplicate(file: c_int) -> Result<OwnedFd, Failed> {
    if file < 0 {
        return Err(Failed::argument("the descriptor is negative"));
    }
    // SAFETY: it is not -1, and the call fails if it is closed.
    let copied = unsafe { BorrowedFd::borrow_raw(file) }.try_clone_to_owned();
    copied.map_err(|error| Failed::argument(format!("the descriptor {file}: {error}")))
}

/// Where the memory begins: at the address that was given, or where the file was mapped. NULL for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_memory_start(memory: *const MemoryHandle) -> *mut c_void {
    value(std::ptr::null_mut(), || {
        // SAFETY: the contract of the header.
        let handle = unsafe { pointers::shared(memory, "memory") }?;
        Ok(handle.memory.start().cast())
    })
}

/// A buffer of the `bytes` bytes from `offset` on. It has each block that the range touches until it is freed, or what it was
/// given to is done with it; it has a piece for each of them, and at most 32.
///
/// Errors: RPCRDMA_E_NO_BUFFERS while another buffer has one of the blocks (to send it twice at a time, copy it:
/// docs/c.md); RPCRDMA_E_USAGE for a range that the memory does not have.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_memory_buffer(
    memory: *const MemoryHandle,
    offset: u64,
    bytes: usize,
    buffer: *mut *mut BufferHandle,
) -> c_int {
    done(|| {
        // SAFETY: the contract of the header.
        let (handle, place) = unsafe {
            (
                pointers::shared(memory, "memory")?,
                pointers::place(buffer, "buffer")?,
            )
        };
        let buffer = Buffer::of_memory(&handle.memory, offset, bytes)?;
        place.put(BufferHandle::Registered(buffer));
        Ok(())
    })
}

/// Lets every core of the nodes that are made with these options use the memory. At most 16 for one node. A range or a file is
/// used by one handle at a time: add that to the options of several nodes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_options_add_memory(
    options: *mut Options,
    memory: *const MemoryHandle,
) -> c_int {
    done(|| {
        // SAFETY: the contract of the header.
        let (options, handle) = unsafe {
            (
                pointers::exclusive(options, "options")?,
                pointers::shared(memory, "memory")?,
            )
        };
        options.add_memory(&handle.memory);
        Ok(())
    })
}

/// Ends a handle of memory. What uses it goes on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_memory_free(memory: *mut MemoryHandle) {
    done(|| {
        // SAFETY: the contract of the header.
        drop(unsafe { pointers::take(memory) });
        Ok(())
    });
}
