//! Static probes (USDT) for perf, bpftrace and SystemTap. A probe that nobody watches is one `nop`.
//!
//! ```text
//! bpftrace -e 'usdt:./appliance:rpcrdma:call_end { @[arg2] = count(); }'
//! ```

/// A client hands a call to its core: program, version, procedure, bytes of arguments.
#[inline(always)]
pub fn call_begin(program: u32, version: u32, procedure: u32, args_bytes: usize) {
    probe::probe!(rpcrdma, call_begin, program, version, procedure, args_bytes);
}

/// A client has its reply: program, version, procedure, 1 for results or 0 for an error, bytes of results.
#[inline(always)]
pub fn call_end(program: u32, version: u32, procedure: u32, has_results: bool, bytes: usize) {
    let has_results = usize::from(has_results);
    probe::probe!(
        rpcrdma,
        call_end,
        program,
        version,
        procedure,
        has_results,
        bytes
    );
}

/// A core hands a call to a service: program, version, procedure, XID, index of the connection.
#[inline(always)]
pub fn serve_begin(program: u32, version: u32, procedure: u32, xid: u32, connection: u32) {
    probe::probe!(
        rpcrdma,
        serve_begin,
        program,
        version,
        procedure,
        xid,
        connection
    );
}

/// The service returns: XID, index of the connection.
#[inline(always)]
pub fn serve_end(xid: u32, connection: u32) {
    probe::probe!(rpcrdma, serve_end, xid, connection);
}
