//! Nodes: polling cores that servers and clients share.

use std::ffi::{c_char, c_int};
use std::time::Duration;

use rpcrdma::Node;

use crate::border::{Failed, done};
use crate::call::key_of;
use crate::codes::{RPCRDMA_E_TIMED_OUT, RPCRDMA_E_TOO_LONG};
use crate::options::{self, Options};
use crate::pointers;
use crate::service::{self, ServiceTable};

/// Polling cores with their memory, and the thread that makes their connections. Servers and clients that share one
/// keep it alive: it ends with the last handle.
pub struct NodeHandle {
    pub(crate) node: Node,
}

/// Starts a node without a listener, for the fabric of `address` ("shm:" or "rdma:"; what follows is not looked at). It
/// serves the `count` programs of `services`, which may be NULL for none; they are copied.
///
/// Errors: RPCRDMA_E_ADDRESS, RPCRDMA_E_CONFIGURATION.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_node_start(
    address: *const c_char,
    services: *const ServiceTable,
    count: usize,
    options: *const Options,
    node: *mut *mut NodeHandle,
) -> c_int {
    done(|| {
        // SAFETY: the contract of the header, and of services.
        let (place, address, builder) = unsafe {
            let options = options::of(options);
            (
                pointers::place(node, "node")?,
                pointers::text(address, "address")?,
                service::add(options.node()?, services, count)?,
            )
        };
        let node = builder.start(address)?;
        place.put(NodeHandle { node });
        Ok(())
    })
}

/// Accepts connections at `address`: "shm:NAME", or "rdma:HOST:PORT" with `0.0.0.0` or `[::]` for all devices and port 0 for
/// any that is free. Of the options, "authentication" is looked at. The address with what the system chose goes to
/// `chosen`, which has room for `room` bytes, unless it is NULL.
///
/// Errors: RPCRDMA_E_ADDRESS; RPCRDMA_E_CONFIGURATION when the address is in use, or it is left open who may connect;
/// RPCRDMA_E_TOO_LONG when `chosen` is too short. It listens then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_node_listen(
    node: *const NodeHandle,
    address: *const c_char,
    options: *const Options,
    chosen: *mut c_char,
    room: usize,
) -> c_int {
    done(|| {
        // SAFETY: the contract of the header.
        let (handle, address, options) = unsafe {
            (
                pointers::shared(node, "node")?,
                pointers::text(address, "address")?,
                options::of(options),
            )
        };
        let address = handle.node.listen(address, options.authentication()?)?;
        if chosen.is_null() {
            return Ok(());
        }
        // SAFETY: as above.
        let room = unsafe { pointers::room(chosen.cast::<u8>(), room, "chosen") }?;
        if address.len() >= room.len() {
            let text = format!("`{address}` is longer than the room for it");
            return Err(Failed::new(RPCRDMA_E_TOO_LONG, text));
        }
        let bytes = address.bytes().chain([0]);
        for (place, byte) in room.iter_mut().zip(bytes) {
            place.write(byte);
        }
        Ok(())
    })
}

/// Accepts no more connections and calls, lets those under way finish within `timeout_ms`, and closes all connections.
///
/// Errors: RPCRDMA_E_TIMED_OUT when calls were under way still: their callers see the connection end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_node_drain(node: *const NodeHandle, timeout_ms: u32) -> c_int {
    done(|| {
        // SAFETY: the contract of the header.
        let handle = unsafe { pointers::shared(node, "node") }?;
        drain(&handle.node, timeout_ms)
    })
}

pub(crate) fn drain(node: &Node, timeout_ms: u32) -> Result<(), Failed> {
    let report = node.drain(Duration::from_millis(timeout_ms.into()))?;
    let text = format!("calls were still under way after {timeout_ms} ms");
    match report.complete {
        true => Ok(()),
        false => Err(Failed::new(RPCRDMA_E_TIMED_OUT, text)),
    }
}

/// Closes a connection of core `core`, which is 0 in a node with one core; `connection` is its number, as `connected` of a
/// service had it. Calls under way by it fail, and a client that has made it connects again. One that has ended is ignored.
///
/// Errors: RPCRDMA_E_ARGUMENT when the node has no such core.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_node_close(
    node: *const NodeHandle,
    core: usize,
    connection: u64,
) -> c_int {
    done(|| {
        // SAFETY: the contract of the header.
        let handle = unsafe { pointers::shared(node, "node") }?;
        if core >= handle.node.cores() {
            return Err(Failed::argument(format!("the node has no core {core}")));
        }
        handle.node.close(core, key_of(connection));
        Ok(())
    })
}

/// The sum over all cores of a counter or level, by its name in docs/tuning.md or `bench-tool`, such as "calls_sent".
///
/// Errors: RPCRDMA_E_ARGUMENT when there is none of that name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_node_metric(
    node: *const NodeHandle,
    name: *const c_char,
    value: *mut u64,
) -> c_int {
    done(|| {
        // SAFETY: the contract of the header.
        let (handle, name, place) = unsafe {
            (
                pointers::shared(node, "node")?,
                pointers::text(name, "name")?,
                pointers::place(value, "value")?,
            )
        };
        let total = handle.node.metrics().total(name);
        let none = || Failed::argument(format!("`{name}` is no counter and no level"));
        place.set(total.ok_or_else(none)?);
        Ok(())
    })
}

/// Ends a handle of a node. The last of a node's handles, servers and clients stops its cores: calls under way fail.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_node_free(node: *mut NodeHandle) {
    done(|| {
        // SAFETY: the contract of the header.
        drop(unsafe { pointers::take(node) });
        Ok(())
    });
}
