//! What the rdma-core of this machine can do.

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::io;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::OnceLock;

use super::library::{Library, path};

/// The library of verbs.
const VERBS: &CStr = c"libibverbs.so.1";

/// Checks that rdma-core can be used on this machine. The functions of the bindings may be called only after a success.
///
/// # Errors
///
/// [`Missing`](super::library::Missing), of the kind `NotFound`.
pub(crate) fn available() -> io::Result<()> {
    #[cfg(not(feature = "rdma-sys"))]
    super::functions::loaded()?;
    Ok(())
}

/// Functions of newer versions of rdma-core, which this crate does not need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facilities {
    /// Whether the memory of another device can be registered with the descriptor of its dma-buf (`ibv_reg_dmabuf_mr`).
    pub registers_dmabuf: bool,
    /// Whether a registration takes a structure of attributes (`ibv_reg_mr_ex`).
    pub registers_by_attributes: bool,
    /// Whether completions can be counted without a completion queue (`ibv_create_comp_cntr`).
    pub counts_completions: bool,
}

/// Looks up the facilities of libibverbs, in `folder` or in the folders of the system. The symbols do not show whether a
/// device supports the facilities.
///
/// # Errors
///
/// As [`available`].
pub(crate) fn facilities(folder: Option<&Path>) -> io::Result<Facilities> {
    available()?;
    let path = path(folder, VERBS);
    let library = Library::open(&path)?;
    let has = |symbol, version| library.symbol(symbol, version).is_ok();
    Ok(Facilities {
        registers_dmabuf: has("ibv_reg_dmabuf_mr", c"IBVERBS_1.12"),
        registers_by_attributes: has("ibv_reg_mr_ex", c"IBVERBS_1.15"),
        counts_completions: has("ibv_create_comp_cntr", c"IBVERBS_1.18"),
    })
}

/// How a fork of this process affects registered memory; `IBV_FORK_DISABLED` if the library is missing or has no such
/// function.
pub(crate) fn ibv_is_fork_initialized() -> super::ibv_fork_status {
    let library = Library::open(VERBS);
    let symbol = library.and_then(|it| it.symbol("ibv_is_fork_initialized", c"IBVERBS_1.13"));
    let Ok(symbol) = symbol else {
        return super::IBV_FORK_DISABLED;
    };
    // SAFETY: the header of this version declares the function so, and it has no preconditions.
    unsafe {
        std::mem::transmute::<NonNull<c_void>, unsafe extern "C" fn() -> super::ibv_fork_status>(
            symbol,
        )()
    }
}

/// Registers memory: start, length, address for work requests, access. Unlike `ibv_reg_mr` it takes optional access, and
/// leaves it out where the kernel does not know it.
pub(crate) type RegisterOptional =
    unsafe extern "C" fn(*mut super::ibv_pd, *mut c_void, usize, u64, c_uint) -> *mut super::ibv_mr;

#[cfg(test)]
thread_local! {
    /// What replaces `ibv_reg_mr_iova2` for this thread.
    pub(crate) static REPLACED_REGISTER: std::cell::Cell<Option<RegisterOptional>> =
        const { std::cell::Cell::new(None) };
}

/// The function that registers memory with optional access, looked up once.
///
/// # Errors
///
/// [`Missing`](super::library::Missing) if the library is older than rdma-core 28.
pub(crate) fn ibv_reg_mr_iova2() -> io::Result<RegisterOptional> {
    static FOUND: OnceLock<RegisterOptional> = OnceLock::new();
    #[cfg(test)]
    if let Some(register) = REPLACED_REGISTER.get() {
        return Ok(register);
    }
    if let Some(register) = FOUND.get() {
        return Ok(*register);
    }
    let symbol = Library::open(VERBS)?.symbol("ibv_reg_mr_iova2", c"IBVERBS_1.8")?;
    // SAFETY: the header of this version declares the function so.
    let register = unsafe { std::mem::transmute::<NonNull<c_void>, RegisterOptional>(symbol) };
    Ok(*FOUND.get_or_init(|| register))
}

/// Registers a dma-buf: offset, length, address for work requests, descriptor, access.
pub(crate) type RegisterDmaBuf =
    unsafe extern "C" fn(*mut super::ibv_pd, u64, usize, u64, c_int, c_int) -> *mut super::ibv_mr;

/// The function that registers a dma-buf.
///
/// # Errors
///
/// [`Missing`](super::library::Missing) if the library is older than rdma-core 34.
pub(crate) fn ibv_reg_dmabuf_mr() -> io::Result<RegisterDmaBuf> {
    let symbol = Library::open(VERBS)?.symbol("ibv_reg_dmabuf_mr", c"IBVERBS_1.12")?;
    // SAFETY: the header of this version declares the function so.
    Ok(unsafe { std::mem::transmute::<NonNull<c_void>, RegisterDmaBuf>(symbol) })
}
