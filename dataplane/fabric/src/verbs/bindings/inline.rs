//! The inline functions of `infiniband/verbs.h`. Each calls an operation in the context of the object, where the library
//! of the device has stored it. There is no lookup and no check, so a call costs the same as in C.

use std::ffi::c_int;

use super::constants::*;
use super::types::*;

/// `fn NAME = OPERATION(OBJECT, ARGUMENTS) -> RESULT;`: declares a function that calls OPERATION of the context of OBJECT.
macro_rules! operations {
    ($($(#[$attribute:meta])* fn $name:ident = $operation:ident(
        $object:ident: $type:ty $(, $argument:ident: $argument_type:ty)*
    ) -> $result:ty;)*) => {$(
        $(#[$attribute])*
        ///
        /// # Safety
        ///
        /// As the C function.
        #[inline]
        pub(crate) unsafe fn $name(
            $object: *mut $type $(, $argument: $argument_type)*
        ) -> $result {
            // SAFETY: the object of the caller lives, and so does its context. No operation is null: libibverbs fills
            // the table of every context with operations that report EOPNOTSUPP, before the library of the device
            // stores its own (`verbs_init_context`, since rdma-core 17; the symbols of librdmacm require 23).
            let operation = unsafe { (*(*$object).context).ops.$operation.unwrap_unchecked() };
            // SAFETY: as the caller promises; the operation takes the same arguments as the inline function.
            unsafe { operation($object $(, $argument)*) }
        }
    )*};
}

operations! {
    /// Takes at most `num_entries` completions from the queue.
    fn ibv_poll_cq = poll_cq(
        queue: ibv_cq, num_entries: c_int, completions: *mut ibv_wc
    ) -> c_int;
    /// Requests an event for the next completion.
    fn ibv_req_notify_cq = req_notify_cq(
        queue: ibv_cq, solicited_only: c_int
    ) -> c_int;
    /// Posts a chain of work requests.
    fn ibv_post_send = post_send(
        pair: ibv_qp, first: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr
    ) -> c_int;
    /// Posts a chain of Receives.
    fn ibv_post_recv = post_recv(
        pair: ibv_qp, first: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr
    ) -> c_int;
    /// Posts a chain of Receives to a shared receive queue.
    fn ibv_post_srq_recv = post_srq_recv(
        queue: ibv_srq, first: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr
    ) -> c_int;
    /// Creates a memory window; null if the device has none left or does not support them.
    fn ibv_alloc_mw = alloc_mw(
        domain: ibv_pd, kind: ibv_mw_type::Type
    ) -> *mut ibv_mw;
    /// Frees a memory window.
    fn ibv_dealloc_mw = dealloc_mw(window: ibv_mw) -> c_int;
}
