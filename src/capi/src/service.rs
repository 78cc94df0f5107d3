//! Services: the handlers of C that answer calls.

use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr::NonNull;

use rpcrdma::{
    Auth, AuthStatus, CloseReason, ConnectionKey, HostIdentity, Incoming, NodeBuilder, Procedure,
    Refusal, Reply, Service, Unauthenticated,
};

use crate::border::Failed;
use crate::call::{Call, ProcedureName, number_of, refusal_of};
use crate::codes::{RPCRDMA_E_TIMED_OUT, closed_code};
use crate::pointers;

/// A program that a node serves. Set what is not used to zero.
///
/// The handlers run on the threads of the node's cores: with several cores, on several threads at a time. `user` goes to
/// each of them as it is, and must be valid until the node has ended.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ServiceTable {
    /// The number of the program. Those from 0x20000000 to 0x3fffffff are for anybody's use (RFC 5531 section 8.2).
    pub program: u32,
    /// The lowest version of it.
    pub version_low: u32,
    /// The highest version of it.
    pub version_high: u32,
    /// Answers a call: reads its arguments (`rpcrdma_get_...`), writes its results (`rpcrdma_put_...`), and returns RPCRDMA_OK.
    /// The results are sent then. Or it returns RPCRDMA_E_PROCEDURE_UNAVAILABLE, RPCRDMA_E_GARBAGE_ARGS or
    /// RPCRDMA_E_DENIED, which the caller gets; for every other negative number, it gets RPCRDMA_E_SYSTEM_ERROR.
    ///
    /// `call` and what was read from it are valid until this returns. For an answer later: rpcrdma_call_later(). Procedure 0
    /// is answered without it.
    pub call: Option<unsafe extern "C" fn(user: *mut c_void, call: *mut Call) -> c_int>,
    /// A peer has connected, and may call. `connection` is a number that no other connection of the node has, for
    /// rpcrdma_node_close(). `identity` is what it proved to be, or NULL. May be NULL.
    pub connected:
        Option<unsafe extern "C" fn(user: *mut c_void, connection: u64, identity: *const c_char)>,
    /// A connection has ended. `reason` is one of RPCRDMA_CLOSED_..., and `text` says it in words, until this returns. May
    /// be NULL.
    pub disconnected: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            connection: u64,
            reason: c_int,
            text: *const c_char,
        ),
    >,
    /// Goes to each handler.
    pub user: *mut c_void,
    /// The procedures that must not run twice, `once_count` of them, which are copied: when a client that lost its
    /// connection sends a call of one of them again (the option "repeat"), it gets the first reply again. Each is of this
    /// program, and of a version that this serves. NULL for none.
    pub once: *const ProcedureName,
    /// Their number.
    pub once_count: usize,
    /// The flavors of credentials that it takes (RFC 5531 section 8.2), `flavors_count` of them, which are copied; a call with
    /// another one is denied without it. NULL for all: `call` looks at them itself then.
    pub flavors: *const u32,
    /// Their number.
    pub flavors_count: usize,
    /// Judges the caller of a call whose credential is neither AUTH_NONE (0) nor AUTH_SYS (1), before `call` runs and before its
    /// reply is looked for among those that are kept: with rpcrdma_call_credential(), rpcrdma_call_verifier() and
    /// rpcrdma_call_signed(). rpcrdma_call_set_verifier() sets the verifier of the reply. With RPCSEC_GSS (6) `call` also answers
    /// the calls of procedure 0 that create a context, and sets the verifier of that reply.
    ///
    /// Returns RPCRDMA_OK; or a status of RFC 5531 section 9 with which the call is denied, such as 13 for
    /// RPCSEC_GSS_CREDPROBLEM; or RPCRDMA_E_TIMED_OUT, and the call gets no answer, as RPCSEC_GSS wants for a number that came before
    /// (RFC 2203 section 5.3.3.1). For every other negative number it is denied with AUTH_BADCRED. NULL takes all callers.
    pub authenticate: Option<unsafe extern "C" fn(user: *mut c_void, call: *mut Call) -> c_int>,
}

/// Adds the programs to what a node is made of.
///
/// # Safety
/// `services` is NULL, or points to `count` tables, whose `once` is NULL or points to `once_count` names, and `flavors` likewise; their handlers may be called from any thread with their `user` until the
/// node has ended.
pub(crate) unsafe fn add(
    mut builder: NodeBuilder,
    services: *const ServiceTable,
    count: usize,
) -> Result<NodeBuilder, Failed> {
    // SAFETY: the caller's promise.
    for table in unsafe { pointers::values(services, count, "services") }? {
        let table = *table;
        if table.call.is_none() {
            return Err(Failed::argument("`call` of a service is NULL"));
        }
        let versions = table.version_low..=table.version_high;
        if versions.is_empty() {
            return Err(Failed::argument("the versions of a service are none"));
        }
        // SAFETY: the caller's promise.
        let once = unsafe { pointers::values(table.once, table.once_count, "once") }?;
        let is_served = |named: &ProcedureName| {
            named.program == table.program && versions.contains(&named.version)
        };
        if let Some(other) = once.iter().find(|named| !is_served(named)) {
            let text = format!("`once` of a service has {other:?}, which it does not serve");
            return Err(Failed::argument(text));
        }
        let once: Vec<Procedure> = once.iter().map(|&named| named.into()).collect();
        // SAFETY: the caller's promise.
        let flavors = unsafe { pointers::values(table.flavors, table.flavors_count, "flavors") }?;
        let flavors = (!table.flavors.is_null()).then(|| flavors.to_vec());
        builder = builder.program(table.program, versions, move |core| {
            let core = u16::try_from(core).unwrap_or(u16::MAX);
            Handlers {
                table,
                once: once.clone(),
                flavors: flavors.clone(),
                call: NonNull::from(Box::leak(Box::new(Call::of_handler(core)))),
                core,
            }
        });
    }
    Ok(builder)
}

/// The handlers on one core.
struct Handlers {
    table: ServiceTable,
    /// The procedures that must not run twice.
    once: Vec<Procedure>,
    /// `None` for all.
    flavors: Option<Vec<u32>>,
    /// What the handler gets, used again for each call. A pointer, because C has it too.
    call: NonNull<Call>,
    core: u16,
}

// SAFETY: `call` has no other owner, and `once` and `flavors` of the table are read no more. `user` and the handlers may be used by any thread, which `add` demands.
unsafe impl Send for Handlers {}

impl Drop for Handlers {
    fn drop(&mut self) {
        // SAFETY: `add` made it of a box, and no handler runs any more.
        drop(unsafe { Box::from_raw(self.call.as_ptr()) });
    }
}

impl Service for Handlers {
    fn call(&mut self, call: &mut Incoming<'_>, reply: &mut Reply<'_, '_>) -> Result<(), Refusal> {
        let handler = self.table.call.ok_or(Refusal::SystemError)?;
        let handle = self.call.as_ptr();
        // SAFETY: nobody else uses the handle before the handler runs, nor after it; `end_serving` is before the end of
        // what is borrowed. The handler may be called: `add` demands it.
        let code = unsafe {
            (*handle).begin_serving(call, reply);
            let code = handler(self.table.user, handle);
            (*handle).end_serving();
            code
        };
        refusal_of(code).map_or(Ok(()), Err)
    }

    fn authenticate(&mut self, call: &Incoming<'_>) -> Result<Auth, Unauthenticated> {
        let Some(handler) = self.table.authenticate else {
            return Ok(Auth::NONE);
        };
        let handle = self.call.as_ptr();
        // SAFETY: as in `call`.
        let (code, verifier) = unsafe {
            (*handle).begin_judging(call);
            let code = handler(self.table.user, handle);
            (code, (*handle).end_judging())
        };
        match u32::try_from(code) {
            Ok(0) => Ok(verifier),
            Ok(status) => Err(Unauthenticated::Denied(AuthStatus(status))),
            Err(_) if code == RPCRDMA_E_TIMED_OUT => Err(Unauthenticated::Discarded),
            Err(_) => Err(Unauthenticated::Denied(AuthStatus::BAD_CREDENTIAL)),
        }
    }

    fn flavors(&self) -> Option<Vec<u32>> {
        self.flavors.clone()
    }

    fn non_idempotent(&self) -> Vec<Procedure> {
        self.once.clone()
    }

    fn connected(&mut self, connection: ConnectionKey, identity: Option<&HostIdentity>) {
        let Some(handler) = self.table.connected else {
            return;
        };
        let identity = identity.and_then(|name| CString::new(name.as_str()).ok());
        let name = identity.as_ref().map_or(std::ptr::null(), |it| it.as_ptr());
        // SAFETY: it may be called: `add` demands it. The name outlives the call.
        unsafe { handler(self.table.user, number_of(self.core, connection), name) };
    }

    fn disconnected(&mut self, connection: ConnectionKey, reason: CloseReason) {
        if let Some(handler) = self.table.disconnected {
            let (code, connection) = (closed_code(reason), number_of(self.core, connection));
            let text = CString::new(reason.to_string()).unwrap_or_default();
            // SAFETY: it may be called: `add` demands it. The text outlives the call.
            unsafe { handler(self.table.user, connection, code, text.as_ptr()) };
        }
    }
}
