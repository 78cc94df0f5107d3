//! Servers: nodes that listen.

use std::ffi::{CString, c_char, c_int};

use rpcrdma::Server;

use crate::border::{done, value};
use crate::node::{NodeHandle, drain};
use crate::options::{self, Options};
use crate::pointers;
use crate::service::{self, ServiceTable};

/// A node that listens, until it is freed.
pub struct ServerHandle {
    server: Server,
    address: CString,
}

/// Starts a node that serves the `count` programs of `services`, which are copied, and listens at `address`: "shm:NAME",
/// or "rdma:HOST:PORT" with `0.0.0.0` or `[::]` for all devices and port 0 for any that is free.
///
/// Errors: RPCRDMA_E_ADDRESS; RPCRDMA_E_CONFIGURATION, also when the address is in use, or it is left open who may
/// connect ("authentication").
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_server_start(
    address: *const c_char,
    services: *const ServiceTable,
    count: usize,
    options: *const Options,
    server: *mut *mut ServerHandle,
) -> c_int {
    done(|| {
        // SAFETY: the contract of the header, and of services.
        let (place, address, builder) = unsafe {
            let options = options::of(options);
            (
                pointers::place(server, "server")?,
                pointers::text(address, "address")?,
                service::add(options.node()?, services, count)?,
            )
        };
        let server = builder.listen(address)?;
        let address = CString::new(server.address()).unwrap_or_default();
        place.put(ServerHandle { server, address });
        Ok(())
    })
}

/// Where a server listens, with what the system chose. It is valid until the server is freed. NULL for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_server_address(server: *const ServerHandle) -> *const c_char {
    value(std::ptr::null(), || {
        // SAFETY: the contract of the header.
        let handle = unsafe { pointers::shared(server, "server") }?;
        Ok(handle.address.as_ptr())
    })
}

/// A handle of the server's node, for clients on its cores and for its counters. End it with rpcrdma_node_free().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_server_node(
    server: *const ServerHandle,
    node: *mut *mut NodeHandle,
) -> c_int {
    done(|| {
        // SAFETY: the contract of the header.
        let (handle, place) = unsafe {
            (
                pointers::shared(server, "server")?,
                pointers::place(node, "node")?,
            )
        };
        let node = handle.server.node().clone();
        place.put(NodeHandle { node });
        Ok(())
    })
}

/// As rpcrdma_node_drain(), of the server's node.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_server_drain(
    server: *const ServerHandle,
    timeout_ms: u32,
) -> c_int {
    done(|| {
        // SAFETY: the contract of the header.
        let handle = unsafe { pointers::shared(server, "server") }?;
        drain(handle.server.node(), timeout_ms)
    })
}

/// Ends a server: unless its node has other handles, connections end, and no handler runs any more when this returns. In a
/// handler it does not wait, and handlers may run after it (see rpcrdma_node_free()).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpcrdma_server_free(server: *mut ServerHandle) {
    done(|| {
        // SAFETY: the contract of the header.
        drop(unsafe { pointers::take(server) });
        Ok(())
    });
}
