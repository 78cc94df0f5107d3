//! Metrics for Prometheus, by HTTP: what `serve` and the commands that make calls have in common.
//!
//! | module | contents |
//! |---|---|
//! | [`http`] | the HTTP server |
//! | [`exposition`] | the text format of Prometheus |
//! | [`load`] | the metrics of a load while it goes on: of a run, or of the clients of a fleet |
//!
//! Those of a server are in [`crate::serve::metrics`].

pub(crate) mod exposition;
pub(crate) mod http;
pub(crate) mod load;

use std::net::TcpListener;

use self::exposition::{Page, one};
use self::http::{HttpServer, Pages};
use crate::exit::Failure;
use crate::machine;
use crate::{REVISION, VERSION};

/// Media type of the text format 0.0.4.
pub(crate) const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Host and port of `--metrics`.
pub(crate) type MetricsAddress = (String, u16);

/// Serves pages at an address of `--metrics`, on a thread that keeps off these processors.
///
/// # Errors
/// If the address is not free, or not one of this machine.
pub(crate) fn serve(
    (host, port): &MetricsAddress,
    pages: Box<Pages>,
    processors: &[usize],
) -> Result<HttpServer, Failure> {
    let cannot = |error| {
        Failure::failed(format!("cannot serve metrics at {host}:{port}"))
            .because(error)
            .advice("give --metrics an address of this machine and a port that is free")
    };
    let listener = TcpListener::bind((host.as_str(), *port)).map_err(cannot)?;
    let processors = processors.to_vec();
    let prepare = move || machine::keep_off(&processors);
    HttpServer::start(listener, pages, prepare).map_err(cannot)
}

/// Adds the family that names the program.
pub(crate) fn build_info(page: &mut Page) {
    one(
        page,
        "rpcrdma_build_info",
        "What runs; always 1.",
        &[("version", VERSION), ("revision", REVISION)],
        1.0,
    );
}
