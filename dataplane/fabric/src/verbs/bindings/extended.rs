//! The operations of a context that `infiniband/verbs.h` calls through the structure around it, `struct verbs_context`.
//!
//! The structure ends with the context and grows at its beginning: its member `sz` says how much of it a library has. So
//! where pointers have 64 bits its end, which is declared here by hand, is the same in every version; the test
//! `verbs_layouts` compares it with the headers. Where they have 32 bits, the end may move by the padding before its member of
//! 64 bits, so that no operation is called there.
#![allow(non_camel_case_types)]

use std::ffi::{c_int, c_void};
use std::mem::offset_of;

use super::{ibv_context, ibv_pd};

/// A thread domain.
#[repr(C)]
pub(crate) struct ibv_td {
    pub(crate) context: *mut ibv_context,
}

/// The attributes of a thread domain.
#[repr(C)]
pub(crate) struct ibv_td_init_attr {
    pub(crate) comp_mask: u32,
}

/// The attributes of a parent domain.
#[repr(C)]
pub(crate) struct ibv_parent_domain_init_attr {
    pub(crate) pd: *mut ibv_pd,
    pub(crate) td: *mut ibv_td,
    pub(crate) comp_mask: u32,
    pub(crate) alloc:
        Option<unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, usize, u64) -> *mut c_void>,
    pub(crate) free: Option<unsafe extern "C" fn(*mut ibv_pd, *mut c_void, *mut c_void, u64)>,
    pub(crate) pd_context: *mut c_void,
}

/// The end of the structure around a context, from the first member that this crate uses.
#[repr(C)]
pub(crate) struct verbs_context {
    pub(crate) alloc_parent_domain: Option<
        unsafe extern "C" fn(*mut ibv_context, *mut ibv_parent_domain_init_attr) -> *mut ibv_pd,
    >,
    pub(crate) dealloc_td: Option<unsafe extern "C" fn(*mut ibv_td) -> c_int>,
    pub(crate) alloc_td:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_td_init_attr) -> *mut ibv_td>,
    /// 20 operations and a pointer of libibverbs.
    others: [*mut c_void; 21],
    placeholder: u64,
    /// Bytes of the structure that the library has, the context included.
    pub(crate) sz: usize,
    pub(crate) context: ibv_context,
}

/// `abi_compat` of a context that has the structure around it.
pub(crate) const VERBS_ABI_IS_EXTENDED: usize = usize::MAX;

/// The structure around the context, if the library has it as far back as the member at `offset`. `None` where pointers have
/// not 64 bits.
///
/// # Safety
///
/// `context` is open.
unsafe fn around(context: *mut ibv_context, offset: usize) -> Option<*const verbs_context> {
    if !cfg!(target_pointer_width = "64") {
        return None;
    }
    // SAFETY: the context of the caller.
    if unsafe { (*context).abi_compat }.addr() != VERBS_ABI_IS_EXTENDED {
        return None;
    }
    let before = offset_of!(verbs_context, context) - offset_of!(verbs_context, sz);
    // SAFETY: each context that is marked so has the size immediately before it.
    let bytes = unsafe { *context.byte_sub(before).cast::<usize>() };
    let is_there = bytes >= size_of::<verbs_context>() - offset;
    is_there.then(|| {
        context
            .wrapping_byte_sub(offset_of!(verbs_context, context))
            .cast_const()
            .cast()
    })
}

/// The operation of the context; `None` if the library is too old for it or has left it out, and where pointers have not 64
/// bits.
///
/// The caller has an open context.
macro_rules! operation {
    ($context:expr, $name:ident) => {{
        // SAFETY: the context of the caller.
        let all = unsafe { around($context, offset_of!(verbs_context, $name)) };
        // SAFETY: the structure reaches back to the member. The reference is to that alone.
        all.and_then(|all| unsafe { *(&raw const (*all).$name) })
    }};
}

fn unsupported<T>() -> *mut T {
    // SAFETY: each thread has its own `errno`, which lives as long as the thread.
    unsafe { *libc::__errno_location() = libc::EOPNOTSUPP };
    std::ptr::null_mut()
}

/// Creates a thread domain; null with `errno` if the device refuses, or its library has none.
///
/// # Safety
///
/// `context` is open, and `attributes` points to a whole structure.
pub(crate) unsafe fn ibv_alloc_td(
    context: *mut ibv_context,
    attributes: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    match operation!(context, alloc_td) {
        // SAFETY: as the caller promises.
        Some(alloc) => unsafe { alloc(context, attributes) },
        None => unsupported(),
    }
}

/// Frees a thread domain.
///
/// # Safety
///
/// `domain` is from [`ibv_alloc_td`], and no parent domain uses it.
pub(crate) unsafe fn ibv_dealloc_td(domain: *mut ibv_td) -> c_int {
    // SAFETY: the domain lives, and so does its context.
    let context = unsafe { (*domain).context };
    match operation!(context, dealloc_td) {
        // SAFETY: as the caller promises.
        Some(dealloc) => unsafe { dealloc(domain) },
        None => libc::EOPNOTSUPP,
    }
}

/// Creates a parent domain, which `ibv_dealloc_pd` frees; null with `errno` if the device refuses, or its library has none.
///
/// # Safety
///
/// `context` is open, and `attributes` points to a whole structure with domains of that context.
pub(crate) unsafe fn ibv_alloc_parent_domain(
    context: *mut ibv_context,
    attributes: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    match operation!(context, alloc_parent_domain) {
        // SAFETY: as the caller promises.
        Some(alloc) => unsafe { alloc(context, attributes) },
        None => unsupported(),
    }
}
