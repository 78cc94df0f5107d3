//! What tools see of calls: spans and events of `tracing`, and static probes, each behind its feature. Without them all of
//! this is nothing.

#[cfg(feature = "usdt")]
use rpcrdma_fabric::probes;

use rpcrdma_engine::{Call, Request};

/// What goes with a call from the thread that sends it to the one that takes its reply.
#[derive(Default)]
pub(crate) struct CallTrace {
    #[cfg(feature = "tracing")]
    span: Option<tracing::Span>,
}

#[cfg_attr(
    not(any(feature = "tracing", feature = "usdt")),
    expect(clippy::unused_self, unused_variables, reason = "nothing is traced")
)]
impl CallTrace {
    /// The call goes to its core. The span is a child of the one that the thread is in.
    #[inline]
    pub(crate) fn begin(&mut self, call: &Call, args_bytes: usize) {
        #[cfg(feature = "usdt")]
        probes::call_begin(call.program, call.version, call.procedure, args_bytes);
        #[cfg(feature = "tracing")]
        {
            self.span = Some(tracing::debug_span!(
                target: "rpcrdma",
                "call",
                program = call.program,
                version = call.version,
                procedure = call.procedure,
                args_bytes,
                results_bytes = tracing::field::Empty,
                error = tracing::field::Empty,
            ));
        }
    }

    /// The reply is there, or `error` says why there is none.
    #[inline]
    pub(crate) fn end(
        &mut self,
        call: &Call,
        results_bytes: usize,
        error: Option<&dyn std::fmt::Debug>,
    ) {
        #[cfg(feature = "usdt")]
        probes::call_end(
            call.program,
            call.version,
            call.procedure,
            error.is_none(),
            results_bytes,
        );
        #[cfg(feature = "tracing")]
        if let Some(span) = self.span.take() {
            match error {
                None => span.record("results_bytes", results_bytes),
                Some(error) => span.record("error", tracing::field::debug(error)),
            };
        }
    }
}

/// Runs a service for a call.
#[inline]
#[cfg_attr(
    not(any(feature = "tracing", feature = "usdt")),
    expect(unused_variables, reason = "nothing is traced")
)]
pub(crate) fn serve<T>(request: &Request<'_>, service: impl FnOnce() -> T) -> T {
    #[cfg(feature = "tracing")]
    let _in_span = tracing::debug_span!(
        target: "rpcrdma",
        "serve",
        program = request.program,
        version = request.version,
        procedure = request.procedure,
        xid = request.xid,
        connection = request.connection.index,
    )
    .entered();
    #[cfg(feature = "usdt")]
    probes::serve_begin(
        request.program,
        request.version,
        request.procedure,
        request.xid,
        request.connection.index,
    );
    let served = service();
    #[cfg(feature = "usdt")]
    probes::serve_end(request.xid, request.connection.index);
    served
}

/// The connection of a client is there, or is lost and why.
#[cfg_attr(
    not(feature = "tracing"),
    expect(unused_variables, reason = "nothing is traced")
)]
pub(crate) fn connection(address: &str, lost: Option<&str>) {
    #[cfg(feature = "tracing")]
    match lost {
        None => tracing::info!(target: "rpcrdma", address, "connected"),
        Some(why) => tracing::warn!(target: "rpcrdma", address, why, "not connected"),
    }
}
