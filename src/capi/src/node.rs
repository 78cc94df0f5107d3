//! Nodes: polling cores that servers and clients share.

use std::collections::BTreeSet;
use std::ffi::{c_char, c_int};
use std::time::Duration;

use rpcrdma::{Metrics, Node};

use crate::border::{Failed, done};
use crate::call::core_and_key_of;
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

/// Accepts no more connections, lets the calls under way finish within `timeout_ms`, and closes all connections. It is the last
/// that a node does: it accepts nothing afterwards.
///
/// Calls that arrive meanwhile are not executed. Their callers get RPCRDMA_E_DISCONNECTED when the connections close, as
/// callers do whose call was executed; those with the option "repeat" send the call again when they are connected again. Calls
/// that begin on this node fail with RPCRDMA_E_SHUTTING_DOWN.
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

/// Closes a connection; `connection` is its number, as `connected` of a service had it. Calls under way by it fail, and a client
/// that has made it connects again. One that has ended is ignored.
///
/// Errors: RPCRDMA_E_ARGUMENT when the node cannot have had such a connection.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_node_close(node: *const NodeHandle, connection: u64) -> c_int {
    done(|| {
        // SAFETY: the contract of the header.
        let handle = unsafe { pointers::shared(node, "node") }?;
        let (core, key) = core_and_key_of(connection);
        if core >= handle.node.cores() {
            let text = format!("{connection:#x} is no number of a connection of this node");
            return Err(Failed::argument(text));
        }
        handle.node.close(core, key);
        Ok(())
    })
}

/// The sum over all cores of a counter, by its name in docs/tuning.md or `bench-tool`, such as "calls_sent", or of a level whose
/// name no counter has. Those that say how bulk data went are in docs/c.md.
///
/// Errors: RPCRDMA_E_ARGUMENT when there is none of that name; the text has the most similar name.
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
        let metrics = handle.node.metrics();
        let none = || Failed::argument(no_metric(name, &metrics));
        place.set(metrics.total(name).ok_or_else(none)?);
        Ok(())
    })
}

/// Why there is no counter of that name, with those that it may be a mistake for.
#[cold]
fn no_metric(name: &str, metrics: &Metrics) -> String {
    let values = metrics.values();
    // By the part of the name that both begin with, since that is what a writer remembers.
    let alike = |other: &str| {
        name.bytes()
            .zip(other.bytes())
            .take_while(|(a, b)| a == b)
            .count()
    };
    let most = values.iter().map(|it| alike(it.name)).max().unwrap_or(0);
    let likely: BTreeSet<_> = values
        .iter()
        .filter(|it| most > 2 && alike(it.name) == most)
        .map(|it| it.name)
        .collect();
    let likely: Vec<_> = likely.into_iter().collect();
    match likely.is_empty() {
        true => {
            format!("`{name}` is no counter and no level: `bench-tool run` reports their names")
        }
        false => format!(
            "`{name}` is no counter and no level; did you mean {}?",
            likely.join(", ")
        ),
    }
}

/// Ends a handle of a node. The last of a node's handles, servers and clients stops its cores: calls under way fail. It returns
/// within two seconds after the handlers return from the calls that the cores have already taken. In a handler it does not wait:
/// it returns, the handler goes on, its call may lose its answer, and the node ends behind it. It does not wait for a core that
/// the program polls, which ends by rpcrdma_core_poll() or rpcrdma_core_free().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_node_free(node: *mut NodeHandle) {
    done(|| {
        // SAFETY: the contract of the header.
        drop(unsafe { pointers::take(node) });
        Ok(())
    });
}
