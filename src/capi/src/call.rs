//! Calls: the one handle by which both ends write what goes out and read what came in.

use std::ffi::{CString, c_char, c_int};
use std::ptr::NonNull;
use std::time::Duration;

use rpcrdma::{
    Auth, Buffer, ConnectionKey, Decoder, Encode, Incoming, Later, Malformed, Procedure, Refusal,
    Reply, Request, Response,
};

use crate::border::{Failed, done, value};
use crate::buffer::BufferHandle;
use crate::codes::{
    RPCRDMA_E_BAD_REPLY, RPCRDMA_E_BUSY, RPCRDMA_E_DENIED, RPCRDMA_E_GARBAGE_ARGS,
    RPCRDMA_E_NO_BUFFERS, RPCRDMA_E_PROCEDURE_UNAVAILABLE, RPCRDMA_OK,
};
use crate::pointers;

/// What is called: a procedure of a version of a program (RFC 5531 section 8.1).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ProcedureName {
    /// The program.
    pub program: u32,
    /// Its version.
    pub version: u32,
    /// The number of the procedure.
    pub number: u32,
}

impl From<ProcedureName> for Procedure {
    fn from(named: ProcedureName) -> Self {
        Self::new(named.program, named.version, named.number)
    }
}

/// One call, as either end sees it. `rpcrdma_put_...` writes what goes out, `rpcrdma_get_...` reads what came in, each from where
/// the last one ended.
///
/// At the client what goes out are the arguments, and what comes in are the results, once rpcrdma_call_run() or a poller
/// has brought them. In a handler it is the other way round.
pub struct Call {
    pub(crate) state: State,
    /// An item that came in several pieces, copied together.
    pub(crate) joined: Vec<u8>,
    error: Option<CString>,
    /// The name that the poller's user gave it.
    pub(crate) tag: u64,
    /// Its service ends it.
    is_of_handler: bool,
    /// The core of its handler.
    core: u16,
    /// Its results may have data beside their stream.
    expects_bulk: bool,
    /// What the reply to a caller that is judged gets; at a client, what was read last of who answered.
    pub(crate) verifier: Auth,
}

/// What can be done with a call now.
pub(crate) enum State {
    /// Nothing: it failed, was sent or answered, or its handler has returned.
    Ended,
    /// Its arguments are written.
    Request(Request),
    /// A poller has it, and gives it back or ends it.
    UnderWay,
    /// Its results are read.
    Response(Response),
    /// A handler has it.
    Served(Served),
    /// It is answered later.
    Deferred(Deferred),
    /// Its caller is judged.
    Judged(NonNull<Incoming<'static>>),
}

/// What a handler borrows. The lifetimes are those of [`Call::begin_serving`] to [`Call::end_serving`], which the compiler
/// cannot see.
pub(crate) struct Served {
    incoming: NonNull<Incoming<'static>>,
    reply: NonNull<Reply<'static, 'static>>,
}

impl Served {
    fn incoming(&mut self) -> &mut Incoming<'static> {
        // SAFETY: it is borrowed until `end_serving`, which ends this value, by nobody else. What is read through it
        // leaves as pointers, whose end the header names.
        unsafe { self.incoming.as_mut() }
    }

    pub(crate) fn reply(&mut self) -> &mut Reply<'static, 'static> {
        // SAFETY: as above.
        unsafe { self.reply.as_mut() }
    }
}

/// The answer to a call that is answered later, as far as it is written.
pub(crate) struct Deferred {
    later: Later,
    stream: Vec<u8>,
    /// Each behind so many bytes of the stream.
    items: Vec<(usize, Buffer)>,
}

impl Encode for Deferred {
    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.stream.extend_from_slice(bytes);
        self
    }

    fn bulk(&mut self, buffer: Buffer) -> &mut Self {
        // Its length goes into the stream when it is answered.
        self.items.push((self.stream.len(), buffer));
        self
    }

    fn buffer_for(&mut self, bytes: usize) -> Option<Buffer> {
        self.later.buffers().take(bytes)
    }
}

impl Deferred {
    fn answer(self) {
        let Self {
            later,
            stream,
            items,
        } = self;
        later.reply(|results| {
            let mut rest = stream.as_slice();
            let mut before = 0;
            for (at, buffer) in items {
                let (bytes, later) = rest.split_at(at - before);
                results.bytes(bytes).bulk(buffer);
                (rest, before) = (later, at);
            }
            results.bytes(rest);
        });
    }
}

/// Writes to a call, whichever end it is of.
macro_rules! written {
    ($call:expr, |$to:ident| $write:expr) => {
        match &mut $call.state {
            $crate::call::State::Request($to) => Ok($write),
            $crate::call::State::Served(served) => {
                let $to = served.reply();
                Ok($write)
            }
            $crate::call::State::Deferred($to) => Ok($write),
            _ => Err($crate::border::Failed::usage(
                "the call takes nothing any more: it was sent, answered or failed",
            )),
        }
    };
}
pub(crate) use written;

impl Call {
    pub(crate) fn new(request: Request) -> Self {
        Self::of_state(State::Request(request))
    }

    /// One that handlers get.
    pub(crate) fn of_handler(core: u16) -> Self {
        let mut call = Self::of_state(State::Ended);
        call.is_of_handler = true;
        call.core = core;
        call
    }

    fn of_state(state: State) -> Self {
        Self {
            state,
            joined: Vec::new(),
            error: None,
            tag: 0,
            is_of_handler: false,
            core: 0,
            expects_bulk: false,
            verifier: Auth::NONE,
        }
    }

    /// Begins another call with the same handle, and with the reply of the last one, if it has that.
    #[inline]
    pub(crate) fn renew(
        &mut self,
        begin: impl FnOnce(Option<Response>) -> Request,
    ) -> Result<(), Failed> {
        if self.is_of_handler || matches!(self.state, State::Deferred(_)) {
            return Err(Failed::usage(
                "the call is a peer's: make one for calls of your own",
            ));
        }
        if matches!(self.state, State::UnderWay) {
            return Err(Failed::usage(
                "the call is under way: its poller gives it back when it has ended",
            ));
        }
        let last = match std::mem::replace(&mut self.state, State::Ended) {
            State::Response(response) => Some(response),
            _ => None,
        };
        self.state = State::Request(begin(last));
        self.error = None;
        self.expects_bulk = false;
        Ok(())
    }

    /// Whether something else ends it: its service, or the poller that has it.
    fn is_kept(&self) -> bool {
        self.is_of_handler || matches!(self.state, State::UnderWay)
    }

    /// Lends a handler what it reads and writes.
    ///
    /// # Safety
    /// `end_serving` comes before the end of either.
    pub(crate) unsafe fn begin_serving(
        &mut self,
        call: &mut Incoming<'_>,
        reply: &mut Reply<'_, '_>,
    ) {
        self.state = State::Served(Served {
            incoming: NonNull::from(call).cast(),
            reply: NonNull::from(reply).cast(),
        });
    }

    pub(crate) fn end_serving(&mut self) {
        self.state = State::Ended;
    }

    /// Lends the judge of callers what it reads.
    ///
    /// # Safety
    /// `end_judging` comes before its end.
    pub(crate) unsafe fn begin_judging(&mut self, call: &Incoming<'_>) {
        self.state = State::Judged(NonNull::from(call).cast());
    }

    /// The verifier that the reply is to have.
    pub(crate) fn end_judging(&mut self) -> Auth {
        self.state = State::Ended;
        std::mem::replace(&mut self.verifier, Auth::NONE)
    }

    /// The call as its service got it, to be read.
    fn incoming(&mut self) -> Option<&Incoming<'static>> {
        match &mut self.state {
            State::Served(served) => Some(served.incoming()),
            // SAFETY: it is borrowed until `end_judging`, and only read.
            State::Judged(incoming) => Some(unsafe { incoming.as_ref() }),
            _ => None,
        }
    }

    /// A credential or verifier: of a call, in what runs at its service; of a reply, at its client. That is valid until the call
    /// ends or begins again.
    pub(crate) fn auth(
        &mut self,
        of_call: impl FnOnce(&Incoming<'static>) -> (u32, &'static [u8]),
        of_reply: impl FnOnce(&Response) -> Auth,
    ) -> Result<(u32, &[u8]), Failed> {
        if let State::Response(response) = &self.state {
            self.verifier = of_reply(response);
            let auth = self.verifier.get();
            return Ok((auth.flavor, auth.body));
        }
        let none = || Failed::usage("no handler has this call now, and it has no reply");
        self.incoming().map(of_call).ok_or_else(none)
    }

    /// Why it failed, with the advice that a program needs.
    #[cold]
    fn failed(&self, error: rpcrdma::Error) -> Failed {
        let mut failed = Failed::from(error);
        if failed.code == RPCRDMA_E_BAD_REPLY && self.expects_bulk {
            failed.text += "; a server that sends more than rpcrdma_call_expect_bulk() said makes it so: expect more";
        }
        failed
    }

    /// Takes what came of it. Returns the number of the outcome.
    #[inline]
    pub(crate) fn finish(&mut self, result: Result<Response, rpcrdma::Error>) -> c_int {
        match result {
            Ok(response) => {
                self.state = State::Response(response);
                RPCRDMA_OK
            }
            Err(error) => {
                let failed = self.failed(error);
                self.state = State::Ended;
                self.error = Some(failed.c_text());
                failed.code
            }
        }
    }

    /// Reads what came in.
    #[inline]
    pub(crate) fn read<T>(
        &mut self,
        read: impl FnOnce(&mut Decoder<'_>, &mut Vec<u8>) -> Result<T, Malformed>,
    ) -> Result<T, Failed> {
        match &mut self.state {
            State::Response(response) => {
                let value = read(&mut response.results(), &mut self.joined);
                value.map_err(|error| Failed::new(RPCRDMA_E_BAD_REPLY, error.to_string()))
            }
            State::Served(served) => {
                let value = read(served.incoming().args(), &mut self.joined);
                value.map_err(|error| Failed::new(RPCRDMA_E_GARBAGE_ARGS, error.to_string()))
            }
            _ => Err(Failed::usage("nothing came in by this call")),
        }
    }

    pub(crate) fn request(&mut self) -> Result<&mut Request, Failed> {
        match &mut self.state {
            State::Request(request) => Ok(request),
            _ => Err(Failed::usage("the call was sent already, or is a peer's")),
        }
    }

    pub(crate) fn judged(&mut self) -> Result<&Incoming<'static>, Failed> {
        let none = || Failed::usage("no handler has this call now");
        self.incoming().ok_or_else(none)
    }

    fn served(&mut self) -> Result<&mut Incoming<'static>, Failed> {
        match &mut self.state {
            State::Served(served) => Ok(served.incoming()),
            _ => Err(Failed::usage("no handler has this call now")),
        }
    }
}

/// Bits of the index in the number of a connection: 65,536 connections of a core, and those by TCP behind them. The core has the
/// 12 above.
const INDEX_BITS: u32 = 20;

/// A connection of a core as one number, which no other connection of the node has.
pub(crate) fn number_of(core: u16, connection: ConnectionKey) -> u64 {
    let (core, index) = (u32::from(core), connection.index);
    debug_assert!(core >> (32 - INDEX_BITS) == 0 && index >> INDEX_BITS == 0);
    u64::from(connection.generation) << 32 | u64::from(core << INDEX_BITS | index)
}

/// The core and the connection that [`number_of`] made this number of.
pub(crate) fn core_and_key_of(connection: u64) -> (usize, ConnectionKey) {
    let [i0, i1, i2, i3, g0, g1, g2, g3] = connection.to_le_bytes();
    let place = u32::from_le_bytes([i0, i1, i2, i3]);
    let key = ConnectionKey {
        index: place & ((1 << INDEX_BITS) - 1),
        generation: u32::from_le_bytes([g0, g1, g2, g3]),
    };
    ((place >> INDEX_BITS) as usize, key)
}

/// Expects an opaque of at most `bytes_max` bytes in the results, whose data may come beside their stream: rpcrdma_get_bulk()
/// and its relatives read it. Several come in the order of these calls. The program must permit this for the item (it is
/// DDP-eligible, RFC 8166 section 6).
///
/// The results need not have such an item, and it may be shorter. What is not expected comes in the stream, copied. Data that is
/// longer than was expected is copied too, or the call fails with RPCRDMA_E_BAD_REPLY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_call_expect_bulk(call: *mut Call, bytes_max: u32) -> c_int {
    done(|| {
        // SAFETY: the contract of the header.
        let call = unsafe { pointers::exclusive(call, "call") }?;
        call.request()?.expect_bulk(bytes_max);
        call.expects_bulk = true;
        Ok(())
    })
}

/// As rpcrdma_call_expect_bulk(), for data that is to be written into `buffer`, whose length is the most that it can have. Takes
/// the buffer, unless it fails: rpcrdma_take_bulk() brings it back with the data. What a server sends in the
/// stream of its results is not there, and the buffer is freed then; likewise the results of a call that was lost with its connection and
/// repeated. At most 8 pieces, with those of other results.
///
/// Errors: RPCRDMA_E_ARGUMENT for a buffer that is not in registered memory, or is empty.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_call_expect_bulk_into(
    call: *mut Call,
    buffer: *mut BufferHandle,
) -> c_int {
    done(|| {
        // SAFETY: the contract of the header.
        let (call, handle) = unsafe {
            (
                pointers::exclusive(call, "call")?,
                pointers::exclusive(buffer, "buffer")?,
            )
        };
        let request = call.request()?;
        match std::mem::replace(handle, BufferHandle::Plain(Vec::new())) {
            BufferHandle::Registered(target) if !target.is_empty() => {
                request.expect_bulk_into(target);
            }
            other => {
                *handle = other;
                let text = "the buffer is not in registered memory, or is empty";
                return Err(Failed::argument(text));
            }
        }
        call.expects_bulk = true;
        // SAFETY: a function of this library made it, and the caller gives it up.
        drop(unsafe { pointers::take(buffer) });
        Ok(())
    })
}

/// The most bytes that the results have without such data, if they are more than 512. It matters for calls with bulk data, and
/// for all calls of a server that has version 1 of RPC-over-RDMA alone: there a reply is one message, of 4 KiB or less, unless
/// the call offers room for a longer one, in registered memory (`bulk_buffers`). Without it the call fails with
/// RPCRDMA_E_BAD_REPLY there, and was executed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_call_results_max(call: *mut Call, bytes_max: usize) -> c_int {
    done(|| {
        // SAFETY: the contract of the header.
        let call = unsafe { pointers::exclusive(call, "call") }?;
        call.request()?.results_bytes_max(bytes_max);
        Ok(())
    })
}

/// How long rpcrdma_call_run() waits for the reply, in place of the client's own limit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_call_timeout(call: *mut Call, timeout_ms: u32) -> c_int {
    done(|| {
        // SAFETY: the contract of the header.
        let call = unsafe { pointers::exclusive(call, "call") }?;
        call.request()?
            .timeout(Duration::from_millis(timeout_ms.into()));
        Ok(())
    })
}

/// Sends a call and waits for its results. On success they can be read. Otherwise there are none, and the handle can begin
/// another call.
///
/// Errors: with RPCRDMA_E_TIMED_OUT and RPCRDMA_E_DISCONNECTED the server may have executed the call. With
/// RPCRDMA_E_NOT_CONNECTED, RPCRDMA_E_BUSY, RPCRDMA_E_UNSUPPORTED and RPCRDMA_E_USAGE it did not. The rest is what the server
/// answered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_call_run(call: *mut Call) -> c_int {
    done(|| {
        // SAFETY: the contract of the header.
        let call = unsafe { pointers::exclusive(call, "call") }?;
        match call.request()?.call() {
            Ok(response) => {
                call.state = State::Response(response);
                Ok(())
            }
            Err(error) => {
                call.state = State::Ended;
                Err(call.failed(error))
            }
        }
    })
}

/// Why a call that a poller gave back failed: a sentence in UTF-8; "" when it did not. It is valid until the handle begins
/// another call or is freed. NULL for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_call_error(call: *const Call) -> *const c_char {
    value(std::ptr::null(), || {
        // SAFETY: the contract of the header.
        let call = unsafe { pointers::shared(call, "call") }?;
        Ok(call.error.as_deref().unwrap_or(c"").as_ptr())
    })
}

/// Registered memory for `bytes` bytes of what goes out, which hold remains of earlier data: write to it, then add it with
/// rpcrdma_put_bulk(), and it is sent from where it is.
///
/// Never waits. The core keeps some memory ready for the threads of the program, and makes more ready after some was taken: so
/// there can be none at the first call of a program, and right after others have taken much.
///
/// Errors: RPCRDMA_E_NO_BUFFERS while there is none ready. At a client, rpcrdma_client_buffer() waits for it, or try again
/// later. In a handler, rpcrdma_put_bulk_copy() copies into the stream then; or take the call with rpcrdma_call_later() and
/// try again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_call_buffer(
    call: *mut Call,
    bytes: usize,
    buffer: *mut *mut BufferHandle,
) -> c_int {
    done(|| {
        // SAFETY: the contract of the header.
        let (call, place) = unsafe {
            (
                pointers::exclusive(call, "call")?,
                pointers::place(buffer, "buffer")?,
            )
        };
        let taken = written!(call, |to| to.buffer_for(bytes))?;
        let none = || {
            let text = format!(
                "no registered memory for {bytes} bytes now: rpcrdma_client_buffer() waits for it; a handler can use \
                 rpcrdma_put_bulk_copy(), or raise bulk_buffers"
            );
            Failed::new(RPCRDMA_E_NO_BUFFERS, text)
        };
        place.put(BufferHandle::Registered(taken.ok_or_else(none)?));
        Ok(())
    })
}

/// The number of the procedure that a handler is called for. 0 when no handler has the call now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_call_number(call: *mut Call) -> u32 {
    value(0, || {
        // SAFETY: the contract of the header.
        let call = unsafe { pointers::exclusive(call, "call") }?;
        Ok(call.judged()?.procedure())
    })
}

/// The version of the program that a handler is called for. 0 when no handler has the call now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_call_version(call: *mut Call) -> u32 {
    value(0, || {
        // SAFETY: the contract of the header.
        let call = unsafe { pointers::exclusive(call, "call") }?;
        Ok(call.judged()?.version())
    })
}

/// The connection that a handler's call came by, as `connected` of the service named it. UINT64_MAX when no handler has
/// the call now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_call_connection(call: *mut Call) -> u64 {
    value(u64::MAX, || {
        // SAFETY: the contract of the header.
        let call = unsafe { pointers::exclusive(call, "call") }?;
        let core = call.core;
        Ok(number_of(core, call.judged()?.connection()))
    })
}

/// In a handler: the right to answer its call later, from any thread. What the handler writes and returns counts no more then.
/// Write the results to `later` and end it with rpcrdma_call_answer(). rpcrdma_call_free() answers RPCRDMA_E_SYSTEM_ERROR.
///
/// Errors: RPCRDMA_E_BUSY when as many calls wait for their answers as the core has room for (deferred_replies_max of the
/// profile), or this one does already.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_call_later(call: *mut Call, later: *mut *mut Call) -> c_int {
    done(|| {
        // SAFETY: the contract of the header.
        let (call, place) = unsafe {
            (
                pointers::exclusive(call, "call")?,
                pointers::place(later, "later")?,
            )
        };
        let later = call.served()?.later().map_err(|_| {
            let text = "as many calls wait for their answers as may, or this one does already";
            Failed::new(RPCRDMA_E_BUSY, text)
        })?;
        place.put(Call::of_state(State::Deferred(Deferred {
            later,
            stream: Vec::new(),
            items: Vec::new(),
        })));
        Ok(())
    })
}

/// Answers a call that was put off, and takes the handle: with the results that were written to it when `code` is
/// RPCRDMA_OK, else as if the handler had returned `code`.
///
/// Errors: RPCRDMA_E_USAGE for another handle, which stays yours.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_call_answer(later: *mut Call, code: c_int) -> c_int {
    done(|| {
        // SAFETY: the contract of the header.
        let call = unsafe { pointers::exclusive(later, "later") }?;
        if !matches!(call.state, State::Deferred(_)) {
            return Err(Failed::usage(
                "the call was not put off with rpcrdma_call_later()",
            ));
        }
        // SAFETY: `rpcrdma_call_later` made it, and the caller gives it up.
        let call = unsafe { pointers::take(later) };
        if let Some(State::Deferred(deferred)) = call.map(|call| call.state) {
            match refusal_of(code) {
                None => deferred.answer(),
                Some(refusal) => deferred.later.refuse(refusal),
            }
        }
        Ok(())
    })
}

/// What the caller gets for a handler's number; the results for none.
pub(crate) fn refusal_of(code: c_int) -> Option<Refusal> {
    match code {
        RPCRDMA_OK.. => None,
        RPCRDMA_E_PROCEDURE_UNAVAILABLE => Some(Refusal::ProcedureUnavailable),
        RPCRDMA_E_GARBAGE_ARGS => Some(Refusal::GarbageArgs),
        RPCRDMA_E_DENIED => Some(Refusal::Denied(rpcrdma::AuthStatus::BAD_CREDENTIAL)),
        _ => Some(Refusal::SystemError),
    }
}

/// Ends a call, with all that was read from it. One that was not sent is not sent any more. Does nothing to a handler's own call,
/// nor to one that a poller has: rpcrdma_poller_complete() gives that back, or rpcrdma_poller_free() ends it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_call_free(call: *mut Call) {
    done(|| {
        // SAFETY: the contract of the header.
        let is_kept = unsafe { call.as_ref() }.is_some_and(Call::is_kept);
        if !is_kept {
            // SAFETY: as above.
            drop(unsafe { pointers::take(call) });
        }
        Ok(())
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_a_connection_names_it_and_no_other() {
        // The last of a core with as many as may be, and those by TCP behind them.
        let indices = [0, 1, 65_279, 65_535, 65_536, 65_791];
        let mut numbers = Vec::new();
        for (core, index) in [0, 1, 2, 4095]
            .into_iter()
            .flat_map(|core| indices.map(|it| (core, it)))
        {
            let key = ConnectionKey {
                index,
                generation: u32::MAX - 1,
            };
            let number = number_of(core, key);
            assert_eq!(core_and_key_of(number), (core.into(), key));
            numbers.push(number);
        }
        let count = numbers.len();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), count);
    }
}
