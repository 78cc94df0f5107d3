//! The C interface of rdma-core, by one of two bindings that have the same names.
//!
//! With both features `rdma-mummy-sys` is used: it loads rdma-core at run time, so that a program
//! that was built with all features still starts where there is none. The other crate is then not
//! linked at all, because nothing names it.

#[cfg(all(feature = "verbs", not(feature = "verbs-dlopen")))]
pub(crate) use rdma_sys::*;

#[cfg(feature = "verbs-dlopen")]
pub(crate) use rdma_mummy_sys::*;

use std::ffi::c_int;

/// The state of a port of the device, by the call that both bindings have under different names.
///
/// `rdma-sys` names the symbol of the library, which fills the first 48 bytes of the structure:
/// all that this crate reads. The rest stays as the caller made it.
///
/// # Safety
///
/// `context` is an open context, `attributes` points to a whole structure that may be written.
pub(crate) unsafe fn query_port(
    context: *mut ibv_context,
    port: u8,
    attributes: *mut ibv_port_attr,
) -> c_int {
    let attributes = attributes.cast::<_compat_ibv_port_attr>();
    #[cfg(feature = "verbs-dlopen")]
    // SAFETY: as the caller promises; the library writes less than the structure holds.
    let returned = unsafe { ibv_query_port_compat(context, port, attributes) };
    #[cfg(not(feature = "verbs-dlopen"))]
    // SAFETY: as above.
    let returned = unsafe { ibv_query_port(context, port, attributes) };
    returned
}

/// Makes a memory window of type 2, by the call that both bindings have with different results;
/// null when the device has none.
///
/// # Safety
///
/// `domain` is a protection domain.
pub(crate) unsafe fn alloc_window(domain: *mut ibv_pd) -> *mut ibv_mw {
    // SAFETY: as the caller promises.
    let window = unsafe { ibv_alloc_mw(domain, ibv_mw_type::IBV_MW_TYPE_2) };
    #[cfg(not(feature = "verbs-dlopen"))]
    let window = window.unwrap_or(std::ptr::null_mut());
    window
}
