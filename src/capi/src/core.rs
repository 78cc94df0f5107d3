//! Cores that threads of the program poll.

use std::ffi::c_int;

use rpcrdma::PolledCore;

use crate::border::{Failed, done, guarded};
use crate::codes::RPCRDMA_E_SHUTTING_DOWN;
use crate::node::NodeHandle;
use crate::pointers;

/// A core without a thread: it serves and calls in rpcrdma_core_poll(), on whichever thread calls that. For programs whose
/// threads poll several things in turn, such as reactors of SPDK.
pub struct CoreHandle {
    core: PolledCore,
}

/// Hands out a core of a node that was started with the option "polled", for one thread to poll. What waits for a core waits
/// for ever on the thread that polls it, so there: connect with the option "wait" set to "no", call by a poller, take memory by
/// rpcrdma_call_buffer(), and leave rpcrdma_node_drain() to another thread.
///
/// Errors: RPCRDMA_E_USAGE when it was handed out already, or the node has no such core or polls it itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_node_take_core(
    node: *const NodeHandle,
    index: usize,
    core: *mut *mut CoreHandle,
) -> c_int {
    done(|| {
        // SAFETY: the contract of the header.
        let (handle, place) = unsafe {
            (
                pointers::shared(node, "node")?,
                pointers::place(core, "core")?,
            )
        };
        let none = || Failed::usage(format!("the node has no core {index} to hand out"));
        let core = handle.node.take_core(index).ok_or_else(none)?;
        place.put(CoreHandle { core });
        Ok(())
    })
}

/// Does what there is to do, within bounds, and returns 1 when there was something, else 0. It never waits. Handlers run in it,
/// on the calling thread. Call it again and again: while nobody does, no call goes on, and peers that hear nothing for long
/// end their connections.
///
/// Errors: RPCRDMA_E_SHUTTING_DOWN when the node has ended: free the core then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_core_poll(core: *mut CoreHandle) -> c_int {
    guarded(|| {
        // SAFETY: the contract of the header.
        let handle = unsafe { pointers::exclusive(core, "core") }?;
        let is_busy = handle.core.poll();
        if !is_busy && handle.core.is_stopped() {
            return Err(Failed::new(RPCRDMA_E_SHUTTING_DOWN, "the node has ended"));
        }
        Ok(is_busy.into())
    })
}

/// Ends a core: its connections close, and calls under way fail, as do those that clients of its node make by it later. The
/// other handles of its node may end before or after it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_core_free(core: *mut CoreHandle) {
    done(|| {
        // SAFETY: the contract of the header.
        drop(unsafe { pointers::take(core) });
        Ok(())
    });
}
