//! Pollers: calls of one thread in batches, sent and taken back without waiting.

use std::ffi::c_int;
use std::ptr::NonNull;
use std::time::Duration;

use rpcrdma::{Ended, Poller};

use crate::border::{Failed, done, guarded, value};
use crate::call::{Call, ProcedureName, State};
use crate::client::ClientHandle;
use crate::pointers::{self, Place};

/// A queue of calls of one thread, which come back in the order of their replies.
pub struct PollerHandle {
    poller: Poller,
    /// The calls under way, by the tag that the facade has of each. No boxes: the program has the pointers too, and what it
    /// does with one is refused by the state of the call.
    calls: Vec<Option<NonNull<Call>>>,
    free: Vec<u32>,
}

/// A call that has ended.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Completion {
    /// The call, which is yours again: read its results, then free it or begin another with it.
    pub call: *mut Call,
    /// The name that it was submitted with.
    pub tag: u64,
    /// RPCRDMA_OK, or why there are no results, with the text in rpcrdma_call_error().
    pub error: c_int,
}

impl PollerHandle {
    /// Takes an ended call out of those under way.
    #[inline]
    fn give_back(&mut self, ended: Ended) -> Option<Completion> {
        let index = usize::try_from(ended.tag).ok()?;
        let mut handle = self.calls.get_mut(index)?.take()?;
        self.free.push(u32::try_from(index).ok()?);
        // SAFETY: it is under way, so that no function has ended it, and one thread at a time uses it.
        let call = unsafe { handle.as_mut() };
        Some(Completion {
            error: call.finish(ended.result),
            tag: call.tag,
            call: handle.as_ptr(),
        })
    }

    /// Puts the calls that have ended where there is room. Returns the number of all that are there then.
    #[inline]
    fn complete(
        &mut self,
        room: &mut [std::mem::MaybeUninit<Completion>],
        mut count: usize,
    ) -> usize {
        while let Some(place) = room.get_mut(count) {
            let Some(ended) = self.poller.complete() else {
                break;
            };
            if let Some(completion) = self.give_back(ended) {
                place.write(completion);
                count += 1;
            }
        }
        count
    }
}

impl Drop for PollerHandle {
    fn drop(&mut self) {
        for call in self.calls.drain(..).flatten() {
            // SAFETY: a function of this library made it, and it is under way, so that no function has ended it.
            drop(unsafe { pointers::take(call.as_ptr()) });
        }
    }
}

/// A number of completions, of which there are at most `depth`.
fn number(count: usize) -> Result<c_int, Failed> {
    c_int::try_from(count).map_err(|_| Failed::argument("more than any number holds"))
}

/// Makes a queue of up to `depth` calls for one thread. The client may be freed before it.
///
/// Errors: RPCRDMA_E_CONFIGURATION when the core has no room for so many calls (calls_outstanding_max of the profile).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_poller_new(
    client: *const ClientHandle,
    depth: u32,
    poller: *mut *mut PollerHandle,
) -> c_int {
    done(|| {
        // SAFETY: the contract of the header.
        let (handle, place) = unsafe {
            (
                pointers::shared(client, "client")?,
                pointers::place(poller, "poller")?,
            )
        };
        let depth = depth.max(1);
        let poller = handle.client.poller(depth)?;
        place.put(PollerHandle {
            poller,
            calls: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
        });
        Ok(())
    })
}

/// Begins a call on the connection of a poller: write its arguments with `rpcrdma_put_...`, then submit it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_poller_call(
    poller: *const PollerHandle,
    procedure: ProcedureName,
    call: *mut *mut Call,
) -> c_int {
    done(|| {
        // SAFETY: the contract of the header.
        let (handle, place): (_, Place<'_, *mut Call>) = unsafe {
            (
                pointers::shared(poller, "poller")?,
                pointers::place(call, "call")?,
            )
        };
        place.put(Call::new(handle.poller.request(procedure.into())));
        Ok(())
    })
}

/// Begins another call with a handle that is there, which takes no memory. What was read from it is valid no more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_poller_again(
    poller: *const PollerHandle,
    call: *mut Call,
    procedure: ProcedureName,
) -> c_int {
    done(|| {
        // SAFETY: the contract of the header.
        let (handle, call) = unsafe {
            (
                pointers::shared(poller, "poller")?,
                pointers::exclusive(call, "call")?,
            )
        };
        call.renew(|last| match last {
            Some(last) => handle.poller.again(procedure.into(), last),
            None => handle.poller.request(procedure.into()),
        })
    })
}

/// Sends a call of rpcrdma_poller_call() or rpcrdma_poller_again(), and takes it: rpcrdma_poller_complete() gives it back
/// with `tag`. Does not wait.
///
/// Errors: RPCRDMA_E_BUSY when `depth` calls are under way: submit it again later. RPCRDMA_E_TOO_LONG for too many items of
/// bulk data, RPCRDMA_E_USAGE for a call that was sent already or that another client or poller began. The call was not sent, and
/// stays yours. One that is under way stays with its poller, and no function reads, writes, sends or ends it until it comes back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_poller_submit(
    poller: *mut PollerHandle,
    call: *mut Call,
    tag: u64,
) -> c_int {
    done(|| {
        // SAFETY: the contract of the header.
        let (handle, submitted) = unsafe {
            (
                pointers::exclusive(poller, "poller")?,
                pointers::exclusive(call, "call")?,
            )
        };
        let State::Request(request) = &mut submitted.state else {
            return Err(Failed::usage("the call was sent already, or is a peer's"));
        };
        // When none is free, the poller is full and refuses it.
        let index = handle.free.last().copied().unwrap_or(u32::MAX);
        handle.poller.submit(request, index.into())?;
        handle.free.pop();
        submitted.tag = tag;
        submitted.state = State::UnderWay;
        if let Some(place) = handle.calls.get_mut(index as usize) {
            *place = NonNull::new(call);
        }
        Ok(())
    })
}

/// Takes calls that have ended: up to `room` go to `completions`. Returns their number, 0 when none has ended. Does not
/// wait, and makes no system call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_poller_complete(
    poller: *mut PollerHandle,
    completions: *mut Completion,
    room: usize,
) -> c_int {
    guarded(|| {
        // SAFETY: the contract of the header.
        let (handle, room) = unsafe {
            (
                pointers::exclusive(poller, "poller")?,
                pointers::room(completions, room, "completions")?,
            )
        };
        number(handle.complete(room, 0))
    })
}

/// As rpcrdma_poller_complete(), but waits until a call has ended, for at most `timeout_ms`. Returns their number, 0 when none
/// has ended by then. A signal does not end the wait. Every call ends in time (call_timeout_ms of the profile).
///
/// Errors: RPCRDMA_E_USAGE when no call is under way, or there is room for none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_poller_wait(
    poller: *mut PollerHandle,
    completions: *mut Completion,
    room: usize,
    timeout_ms: u32,
) -> c_int {
    guarded(|| {
        // SAFETY: the contract of the header.
        let (handle, room) = unsafe {
            (
                pointers::exclusive(poller, "poller")?,
                pointers::room(completions, room, "completions")?,
            )
        };
        let first = room.first_mut();
        let first = first.ok_or_else(|| Failed::usage("there is room for no completion"))?;
        let timeout = Duration::from_millis(timeout_ms.into());
        let Some(ended) = handle.poller.wait_for(timeout)? else {
            return Ok(0);
        };
        let count = handle
            .give_back(ended)
            .map(|it| first.write(it))
            .iter()
            .count();
        number(handle.complete(room, count))
    })
}

/// The number of calls under way. 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_poller_outstanding(poller: *const PollerHandle) -> u32 {
    value(0, || {
        // SAFETY: the contract of the header.
        let handle = unsafe { pointers::shared(poller, "poller") }?;
        Ok(handle.poller.outstanding())
    })
}

/// Ends a poller, with the calls that are under way and their handles: nobody gets their results.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_poller_free(poller: *mut PollerHandle) {
    done(|| {
        // SAFETY: the contract of the header.
        drop(unsafe { pointers::take(poller) });
        Ok(())
    });
}
