//! The C interface of rdma-core: libibverbs and librdmacm.
//!
//! The types are generated from the headers (`dataplane/fabric/bindings/generate`), except those of `extended`. The
//! functions are loaded from the libraries at the first use of rdma-core, so that a program starts without rdma-core. With
//! the feature `rdma-sys`, the crate of that name replaces both, with the same names; it links the libraries.

// The generated types and enumerations are complete, and this crate does not use all of their members.
#[cfg(not(feature = "rdma-sys"))]
#[allow(dead_code, unreachable_pub)]
mod constants;
pub(crate) mod extended;
mod facilities;
// Two functions are used only by a peer in the tests.
#[cfg(not(feature = "rdma-sys"))]
#[allow(dead_code)]
mod functions;
#[cfg(not(feature = "rdma-sys"))]
mod inline;
mod library;
#[cfg(not(feature = "rdma-sys"))]
#[allow(dead_code, unreachable_pub)]
mod types;

#[cfg(not(feature = "rdma-sys"))]
pub(crate) use self::{constants::*, functions::*, inline::*, types::*};
pub(crate) use extended::{
    ibv_alloc_parent_domain, ibv_alloc_td, ibv_dealloc_td, ibv_parent_domain_init_attr, ibv_td,
    ibv_td_init_attr,
};
pub use facilities::Facilities;
#[cfg(all(test, not(loom), not(feature = "rdma-sys")))]
pub(crate) use facilities::REPLACED_REGISTER;
pub(crate) use facilities::{
    available, facilities, ibv_is_fork_initialized, ibv_reg_dmabuf_mr, ibv_reg_mr_iova2,
};
#[cfg(feature = "rdma-sys")]
pub(crate) use rdma_sys::*;

use std::ffi::c_int;

/// Reads the state of a port of the device. The library writes only the first 48 bytes of the structure, the ones that
/// this crate reads. The rest keeps its contents.
///
/// # Safety
///
/// `context` is an open context, and `attributes` points to a whole structure that may be written.
pub(crate) unsafe fn query_port(
    context: *mut ibv_context,
    port: u8,
    attributes: *mut ibv_port_attr,
) -> c_int {
    let attributes = attributes.cast::<_compat_ibv_port_attr>();
    // SAFETY: as the caller promises; the library writes less than the structure holds.
    unsafe { ibv_query_port(context, port, attributes) }
}

/// Creates a memory window of type 2; null if the device has none left or does not support them.
///
/// # Safety
///
/// `domain` is a protection domain.
pub(crate) unsafe fn alloc_window(domain: *mut ibv_pd) -> *mut ibv_mw {
    // SAFETY: as the caller promises.
    let window = unsafe { ibv_alloc_mw(domain, ibv_mw_type::IBV_MW_TYPE_2) };
    #[cfg(feature = "rdma-sys")]
    let window = window.unwrap_or(std::ptr::null_mut());
    window
}
