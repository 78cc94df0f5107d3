//! `bench-tool serve --service nfs3`.

use std::io::Write as _;
use std::net::TcpListener;

use super::store::{HeapPages, Limits};
use super::tcp::TcpServer;
use super::{EXPORT, Service};
use crate::address::ListenAddress;
use crate::cli::Nfs3Args;
use crate::exit::{Failure, written};
use crate::run::own_server::READY_PREFIX;
use crate::signals::Stop;

/// Connections on TCP at a time when nobody says otherwise.
const CONNECTIONS_DEFAULT: u32 = 256;

/// Bytes of a page of memory; a file takes whole ones.
const PAGE_BYTES: usize = 4096;

/// Runs the command.
///
/// # Errors
/// A usage failure for an address that NFS cannot be served at, and a failure when it cannot be
/// listened on.
pub fn execute(
    args: &Nfs3Args,
    listen: &ListenAddress,
    connections_max: Option<u32>,
) -> Result<(), Failure> {
    let ListenAddress::Tcp { host, port } = listen else {
        return Err(Failure::usage(format!(
            "NFS cannot be served at {listen}: its clients speak version 1 of RPC-over-RDMA, which this build serves no \
             NFS by"
        ))
        .advice("serve it over TCP: --listen tcp:0.0.0.0:2049"));
    };
    let stop = Stop::on_signals()?;
    let listener = TcpListener::bind((host.as_str(), *port))
        .map_err(|error| Failure::failed(format!("cannot listen on {listen}")).because(error))?;
    let cannot_serve = |error| Failure::failed(format!("cannot serve at {listen}")).because(error);
    let port = listener.local_addr().map_err(cannot_serve)?.port();
    let limits = Limits {
        files_max: args.max_files,
    };
    let service = Service::new(HeapPages::new(args.space, PAGE_BYTES), limits);
    let connections_max = connections_max.unwrap_or(CONNECTIONS_DEFAULT) as usize;
    let mut server = TcpServer::new(listener, connections_max, service).map_err(cannot_serve)?;
    let address = ListenAddress::Tcp {
        host: host.clone(),
        port,
    };
    written(announce(&address))?;
    server.run(|| stop.is_asked()).map_err(cannot_serve)
}

fn announce(address: &ListenAddress) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{READY_PREFIX}{address} (NFS version 3, {EXPORT}, MOUNT at the same port)"
    )?;
    out.flush()
}
