//! The inline functions of `infiniband/verbs.h`: each calls an operation that the device's library has put into the
//! context of the object. Nothing is looked up and nothing checked, so that they cost what they cost in C.

use std::ffi::c_int;

use super::constants::*;
use super::types::*;

/// `fn NAME = OPERATION(OBJECT, ARGUMENTS) -> RESULT;`: calls that operation of the object's context.
macro_rules! operations {
    ($($(#[$attribute:meta])* fn $name:ident = $operation:ident(
        $object:ident: $type:ty $(, $argument:ident: $argument_type:ty)*
    ) -> $result:ty;)*) => {$(
        $(#[$attribute])*
        ///
        /// # Safety
        ///
        /// As the function of C.
        #[inline]
        pub(crate) unsafe fn $name(
            $object: *mut $type $(, $argument: $argument_type)*
        ) -> $result {
            // SAFETY: the caller's object lives, and so does its context. libibverbs fills the table of every context
            // with operations that report EOPNOTSUPP before the device's library puts in those that it has
            // (`verbs_init_context`, since rdma-core 17; librdmacm's symbols need 23), so that none is null.
            let operation = unsafe { (*(*$object).context).ops.$operation.unwrap_unchecked() };
            // SAFETY: as the caller promises; the operation takes what the inline function takes.
            unsafe { operation($object $(, $argument)*) }
        }
    )*};
}

operations! {
    /// Takes at most `num_entries` completions.
    fn ibv_poll_cq = poll_cq(
        queue: ibv_cq, num_entries: c_int, completions: *mut ibv_wc
    ) -> c_int;
    /// The next completion raises an event.
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
    /// Makes a memory window; null where there are none.
    fn ibv_alloc_mw = alloc_mw(
        domain: ibv_pd, kind: ibv_mw_type::Type
    ) -> *mut ibv_mw;
    /// Frees a memory window.
    fn ibv_dealloc_mw = dealloc_mw(window: ibv_mw) -> c_int;
}
