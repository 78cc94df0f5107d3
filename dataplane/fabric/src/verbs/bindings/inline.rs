//! The inline functions of `infiniband/verbs.h`: each calls an operation that the device's library has put into the
//! context of the object. Nothing is looked up, so that they cost what they cost in C.

use std::ffi::c_int;

use super::constants::*;
use super::types::*;

/// `fn NAME(OBJECT, ARGUMENTS) or RESULT;`: the operation of the same name without `ibv_`, or the result where the
/// device's library has left it out.
macro_rules! operations {
    ($($(#[$attribute:meta])* fn $name:ident = $operation:ident(
        $object:ident: $type:ty $(, $argument:ident: $argument_type:ty)*
    ) -> $result:ty, or $missing:expr;)*) => {$(
        $(#[$attribute])*
        ///
        /// # Safety
        ///
        /// As the function of C.
        #[inline]
        pub(crate) unsafe fn $name(
            $object: *mut $type $(, $argument: $argument_type)*
        ) -> $result {
            // SAFETY: the caller's object lives, and so does its context.
            match unsafe { (*(*$object).context).ops.$operation } {
                // SAFETY: as the caller promises; the operation takes what the inline function takes.
                Some(operation) => unsafe { operation($object $(, $argument)*) },
                None => $missing,
            }
        }
    )*};
}

operations! {
    /// Takes at most `num_entries` completions.
    fn ibv_poll_cq = poll_cq(
        queue: ibv_cq, num_entries: c_int, completions: *mut ibv_wc
    ) -> c_int, or -libc::EOPNOTSUPP;
    /// The next completion raises an event.
    fn ibv_req_notify_cq = req_notify_cq(
        queue: ibv_cq, solicited_only: c_int
    ) -> c_int, or libc::EOPNOTSUPP;
    /// Posts a chain of work requests.
    fn ibv_post_send = post_send(
        pair: ibv_qp, first: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr
    ) -> c_int, or refused(first, bad);
    /// Posts a chain of Receives.
    fn ibv_post_recv = post_recv(
        pair: ibv_qp, first: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr
    ) -> c_int, or refused(first, bad);
    /// Posts a chain of Receives to a shared receive queue.
    fn ibv_post_srq_recv = post_srq_recv(
        queue: ibv_srq, first: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr
    ) -> c_int, or refused(first, bad);
    /// Makes a memory window; null where there are none.
    fn ibv_alloc_mw = alloc_mw(
        domain: ibv_pd, kind: ibv_mw_type::Type
    ) -> *mut ibv_mw, or {
        // SAFETY: the address of this thread's own errno is valid always.
        unsafe { *libc::__errno_location() = libc::EOPNOTSUPP };
        std::ptr::null_mut()
    };
    /// Gives a memory window back.
    fn ibv_dealloc_mw = dealloc_mw(window: ibv_mw) -> c_int, or libc::EOPNOTSUPP;
}

/// Nothing of the chain was posted.
#[cold]
fn refused<T>(first: *mut T, bad: *mut *mut T) -> c_int {
    // SAFETY: the caller of the inline function has room there for the request that was not posted.
    unsafe { *bad = first };
    libc::EOPNOTSUPP
}
