//! Clients: threads that call a server and wait.

use std::ffi::{c_char, c_int};
use std::time::Duration;

use rpcrdma::Client;

use crate::border::{done, guarded};
use crate::buffer::BufferHandle;
use crate::call::{Call, ProcedureName};
use crate::node::NodeHandle;
use crate::options::{self, Options};
use crate::pointers;

/// Calls the server at one address, from any number of threads. It connects again when a connection is lost: calls that were
/// sent fail with RPCRDMA_E_DISCONNECTED then, and calls that were not sent wait.
pub struct ClientHandle {
    pub(crate) client: Client,
}

/// Connects to the server at `address`, "shm:NAME" or "rdma:HOST:PORT", on a new node. Several addresses of one server, with
/// commas, as in "shm:a,b": a connection that is lost goes on at the next one (docs/rails.md).
///
/// Errors: RPCRDMA_E_NOT_CONNECTED when the connection is not there in time; RPCRDMA_E_ADDRESS, RPCRDMA_E_CONFIGURATION.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_client_connect(
    address: *const c_char,
    options: *const Options,
    client: *mut *mut ClientHandle,
) -> c_int {
    done(|| {
        // SAFETY: the contract of the header.
        let (place, address, options) = unsafe {
            (
                pointers::place(client, "client")?,
                pointers::text(address, "address")?,
                options::of(options),
            )
        };
        let node = options.own_node()?.start(address)?;
        let client = options.connect(&node, address)?;
        place.put(ClientHandle { client });
        Ok(())
    })
}

/// As rpcrdma_client_connect(), on a node that is there: its options are those that it was started with.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_client_connect_on(
    node: *const NodeHandle,
    address: *const c_char,
    options: *const Options,
    client: *mut *mut ClientHandle,
) -> c_int {
    done(|| {
        // SAFETY: the contract of the header.
        let (place, node, address, options) = unsafe {
            (
                pointers::place(client, "client")?,
                pointers::shared(node, "node")?,
                pointers::text(address, "address")?,
                options::of(options),
            )
        };
        let client = options.connect(&node.node, address)?;
        place.put(ClientHandle { client });
        Ok(())
    })
}

/// Begins a call of `procedure`: write its arguments with `rpcrdma_put_...`, then send it with rpcrdma_call_run(). End it with
/// rpcrdma_call_free(), or begin another with rpcrdma_client_again().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_client_call(
    client: *const ClientHandle,
    procedure: ProcedureName,
    call: *mut *mut Call,
) -> c_int {
    done(|| {
        // SAFETY: the contract of the header.
        let (handle, place) = unsafe {
            (
                pointers::shared(client, "client")?,
                pointers::place(call, "call")?,
            )
        };
        place.put(Call::new(handle.client.request(procedure.into())));
        Ok(())
    })
}

/// Begins another call with a handle that is there, which takes no memory. What was read from it is valid no more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_client_again(
    client: *const ClientHandle,
    call: *mut Call,
    procedure: ProcedureName,
) -> c_int {
    done(|| {
        // SAFETY: the contract of the header.
        let (handle, call) = unsafe {
            (
                pointers::shared(client, "client")?,
                pointers::exclusive(call, "call")?,
            )
        };
        call.renew(|last| match last {
            Some(last) => handle.client.again(procedure.into(), last),
            None => handle.client.request(procedure.into()),
        })
    })
}

/// Registered memory of the client's core for `bytes` bytes, which hold remains of earlier data. Waits for it up to
/// `timeout_ms`. With several connections it may be of another core than a call: rpcrdma_call_buffer() always fits.
///
/// The calls and buffers of a program can have three quarters of a core's bulk_buffers at a time, and one client can have all
/// of these.
///
/// Errors: RPCRDMA_E_NO_BUFFERS after that time, or immediately for more than 32 pieces of bulk_buffer_bytes, or than half of
/// the core's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_client_buffer(
    client: *const ClientHandle,
    bytes: usize,
    timeout_ms: u32,
    buffer: *mut *mut BufferHandle,
) -> c_int {
    done(|| {
        // SAFETY: the contract of the header.
        let (handle, place) = unsafe {
            (
                pointers::shared(client, "client")?,
                pointers::place(buffer, "buffer")?,
            )
        };
        let timeout = Duration::from_millis(timeout_ms.into());
        let buffer = handle.client.buffers().wait(bytes, timeout)?;
        place.put(BufferHandle::Registered(buffer));
        Ok(())
    })
}

/// A handle of the client's node, for its counters, and for other clients on its cores. End it with rpcrdma_node_free().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_client_node(
    client: *const ClientHandle,
    node: *mut *mut NodeHandle,
) -> c_int {
    done(|| {
        // SAFETY: the contract of the header.
        let (handle, place) = unsafe {
            (
                pointers::shared(client, "client")?,
                pointers::place(node, "node")?,
            )
        };
        let node = handle.client.node().clone();
        place.put(NodeHandle { node });
        Ok(())
    })
}

/// 1 when all connections of a client are there, 0 when one is not.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_client_is_connected(client: *const ClientHandle) -> c_int {
    guarded(|| {
        // SAFETY: the contract of the header.
        let handle = unsafe { pointers::shared(client, "client") }?;
        Ok(handle.client.is_connected().into())
    })
}

/// How often a lost connection was made again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_client_reconnects(
    client: *const ClientHandle,
    count: *mut u64,
) -> c_int {
    done(|| {
        // SAFETY: the contract of the header.
        let (handle, place) = unsafe {
            (
                pointers::shared(client, "client")?,
                pointers::place(count, "count")?,
            )
        };
        place.set(handle.client.reconnects());
        Ok(())
    })
}

/// Ends a client. Its calls and pollers keep its connections until they end too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_client_free(client: *mut ClientHandle) {
    done(|| {
        // SAFETY: the contract of the header.
        drop(unsafe { pointers::take(client) });
        Ok(())
    });
}
