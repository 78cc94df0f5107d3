//! `bench-tool serve --service nfs3`: NFS version 3 over TCP or RPC-over-RDMA.

use rpcrdma::Node;
use rpcrdma_control::{Fabric, NodeConfig};
use rpcrdma_tuning::{Idle, Loaded, Profile};

use super::config::{Nfs3Config, ServeConfig};
use super::listening::{Listener, check_free, end, listen, listen_at_all};
use super::operate::{Operation, Operator};
use super::start_node;
use crate::authentication::Admission;
use crate::exit::Failure;
use crate::profile::warnings_of_node;
use rpcrdma_nfs3::server::application::NfsApplication;
use rpcrdma_nfs3::server::{EXPORT, Service};
use rpcrdma_nfs3::store::{HeapPages, LeasedPages, Limits, Pages};

/// Simultaneous TCP connections, as those of a node.
const CONNECTIONS_DEFAULT: u32 = 256;

/// Size of a page of file memory; a file uses whole pages.
const PAGE_BYTES: usize = 4096;

/// Size of a bulk buffer; file data stays in these buffers. A longer WRITE arrives in several buffers. One shorter
/// than half a buffer is copied, which costs less than replacing the buffer.
const BUFFER_BYTES: u32 = 64 * 1024;

/// The server may keep placement segments for at most one part in this many of its space.
const PLACED_SHARE: u64 = 4;

fn application<P: Pages>(config: &Nfs3Config, pages: P, connections_max: u32) -> NfsApplication<P> {
    let limits = Limits {
        files_max: config.files_max,
    };
    NfsApplication::new(Service::new(pages, limits, connections_max as usize))
}

/// The profile of a node whose only core keeps file data in bulk buffers, and the memory of these files.
fn with_files(profile: &Profile, space_bytes: u64) -> (Profile, LeasedPages) {
    let mut profile = profile.clone();
    // The profile's bytes for running calls stay the same, in more and smaller buffers.
    let pieces = profile.bulk_buffer_bytes.div_ceil(BUFFER_BYTES).max(1);
    profile.bulk_buffers = profile.bulk_buffers.saturating_mul(pieces);
    profile.bulk_buffer_bytes = BUFFER_BYTES;
    let mut placed_max = 0;
    if profile.placement_segments != 0 && profile.placement_segment_bytes > BUFFER_BYTES / 2 {
        // At least a bulk buffer long, so that a WRITE of that length fits into one segment.
        profile.placement_segment_bytes = profile.placement_segment_bytes.max(BUFFER_BYTES);
        let bytes = space_bytes / PLACED_SHARE;
        let kept = bytes / u64::from(profile.placement_segment_bytes);
        placed_max = u32::try_from(kept).unwrap_or(u32::MAX);
        profile.placement_spares = profile.placement_spares.saturating_add(placed_max);
    }
    let pages = LeasedPages::new(space_bytes, PAGE_BYTES, BUFFER_BYTES, placed_max);
    (profile, pages)
}

/// What is served, and how Linux mounts it: behind the addresses of the listeners.
fn served(listeners: &[Listener]) -> String {
    let mount =
        mount_line(listeners).map_or_else(String::new, |line| format!("; on Linux: {line}"));
    format!(" (NFS version 3 and MOUNT, {EXPORT}{mount})")
}

/// The command that mounts the export on Linux, which asks for MOUNT by TCP alone; `None` without a listener there. Nothing is
/// registered with a port mapper, so that it needs the port of MOUNT, and `nolock`.
fn mount_line(listeners: &[Listener]) -> Option<String> {
    let at = |transport: &str| {
        let mut places = listeners.iter().filter_map(|listener| {
            let (scheme, place) = listener.address.split_once(':')?;
            place.rsplit_once(':').filter(|_| scheme == transport)
        });
        places.next()
    };
    let (mount_host, mount_port) = at("tcp")?;
    let (transport, (host, port)) = match at("rdma") {
        Some(place) => ("rdma", place),
        None => ("tcp", (mount_host, mount_port)),
    };
    let host = match host {
        "0.0.0.0" | "[::]" => "SERVER",
        host => host,
    };
    Some(format!(
        "mount -t nfs -o vers=3,proto={transport},port={port},mountport={mount_port},mountproto=tcp,nolock {host}:{EXPORT} FOLDER"
    ))
}

/// The profile of a core that serves TCP alone. One address may have all connections: there, `--max-connections` is what a user
/// sets.
fn profile_on_tcp(connections_max: u32) -> Profile {
    let usual = Profile::default();
    Profile {
        connections_max: 1,
        peers_connections_max: usual.peers_connections_max.max(connections_max),
        idle: Idle::Park,
        ..usual
    }
}

/// Serves NFS and MOUNT on TCP alone: on a core that no peer reaches in another way.
///
/// # Errors
/// If the server cannot listen on the address.
pub(crate) fn serve_on_tcp(
    config: &Nfs3Config,
    operation: &Operation,
    admission: &Admission,
    connections_max: Option<u32>,
) -> Result<(), Failure> {
    check_free([&operation.listen])?;
    let mut operator = Operator::start(operation, &[])?;
    let connections_max = connections_max.unwrap_or(CONNECTIONS_DEFAULT);
    let profile = profile_on_tcp(connections_max);
    let nfs3 = config.clone();
    let service = move |_| {
        let pages = HeapPages::new(nfs3.space_bytes, PAGE_BYTES);
        application(&nfs3, pages, connections_max)
    };
    let node = Node::builder()
        .profile(profile.clone())
        .tcp_connections(connections_max)
        .application(service)
        .start(&operation.listen.to_string())
        .map_err(|error| Failure::failed("the server could not be set up").because(error))?;
    operator.attend(&node)?;
    let listener = listen(&node, &operation.listen, admission)?;
    let listeners = [listener];
    operator.ready(&listeners, &served(&listeners))?;
    // WAIT: for a stop request.
    operator.wait(&node);
    end(node, &profile, &mut operator)
}

/// Serves NFS and MOUNT over RPC-over-RDMA, and on TCP too if that is configured.
///
/// # Errors
/// If the server cannot be set up, or cannot listen.
pub(super) fn serve_on_fabric(
    config: &ServeConfig,
    nfs3: &Nfs3Config,
    loaded: &Loaded,
    fabric: &Fabric,
    mut operator: Operator,
) -> Result<(), Failure> {
    let space_bytes = nfs3.space_bytes;
    // An NFS server has exactly one core, because its files are not shared between cores.
    let (profile, pages) = with_files(&loaded.profile, space_bytes);
    let configure = move |mut config: NodeConfig| {
        config.core.bulk_buffers_kept = LeasedPages::buffers(space_bytes, BUFFER_BYTES);
        config
    };
    let mut pages = Some(pages);
    let of_core = nfs3.clone();
    let connections_max = loaded.profile.connections_max + CONNECTIONS_DEFAULT;
    let service = move |_| {
        let pages = pages
            .take()
            .unwrap_or_else(|| LeasedPages::new(0, PAGE_BYTES, BUFFER_BYTES, 0));
        application(&of_core, pages, connections_max)
    };
    let node = start_node(config, fabric, profile, &operator, configure, service)
        .map_err(|failure| failure.advice("less --space takes less memory at the start"))?;
    warnings_of_node(&node, loaded).for_each(|it| operator.warn(it));
    operator.attend(&node)?;
    let listeners = listen_at_all(&node, config)?;
    operator.ready(&listeners, &served(&listeners))?;
    // WAIT: for a stop request.
    operator.wait(&node);
    end(node, &loaded.profile, &mut operator)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_may_have_all_connections_of_a_server_on_tcp() {
        let of_one = |connections_max| profile_on_tcp(connections_max).peers_connections_max;
        assert_eq!([1, 64, 256].map(of_one), [64, 64, 256]);
    }

    #[test]
    fn mount_line_has_what_no_port_mapper_tells() {
        let line = |addresses: &[&str]| {
            let listener = |address: &&str| Listener {
                address: (*address).to_owned(),
                clients: "",
            };
            mount_line(&addresses.iter().map(listener).collect::<Vec<_>>())
        };
        let tcp = "mount -t nfs -o vers=3,proto=tcp,port=2049,mountport=2049,mountproto=tcp,nolock SERVER:/export FOLDER";
        assert_eq!(line(&["tcp:0.0.0.0:2049"]).as_deref(), Some(tcp));
        assert_eq!(line(&["shm:x", "tcp:[::]:2049"]).as_deref(), Some(tcp));
        let rdma = "mount -t nfs -o vers=3,proto=rdma,port=20049,mountport=20048,mountproto=tcp,nolock [fd00::1]:/export FOLDER";
        let both = ["rdma:[fd00::1]:20049", "tcp:0.0.0.0:20048"];
        assert_eq!(line(&both).as_deref(), Some(rdma));
        assert_eq!(line(&["rdma:0.0.0.0:20049"]), None);
        assert_eq!(line(&["shm:x"]), None);
    }
}
