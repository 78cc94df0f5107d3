//! The start and the end of serving, for all RPC programs.

use std::time::Duration;

use rpcrdma::Node;
use rpcrdma_tuning::Profile;

use super::ServeConfig;
use super::operate::Operator;
use crate::address::ListenAddress;
use crate::authentication::Admission;
use crate::exit::Failure;

/// A listener of the server.
#[derive(Debug)]
pub(crate) struct Listener {
    /// Its address, with the port that the system chose if port 0 was requested.
    pub address: String,
    /// Who may connect, in words.
    pub clients: &'static str,
}

/// Checks that nobody listens on these addresses, before the server takes memory.
///
/// # Errors
/// If the server cannot listen on one.
pub(crate) fn check_free<'a>(
    addresses: impl IntoIterator<Item = &'a ListenAddress>,
) -> Result<(), Failure> {
    addresses.into_iter().try_for_each(|address| {
        let address = address.to_string();
        Node::check_free(&address).map_err(|error| cannot_listen(&address, error))
    })
}

fn cannot_listen(address: &str, error: rpcrdma::Error) -> Failure {
    Failure::failed(format!("cannot listen on {address}")).because(error)
}

/// Makes `node` listen on `address` for the clients that `admission` lets connect.
///
/// # Errors
/// If the node cannot listen on the address.
pub(crate) fn listen(
    node: &Node,
    address: &ListenAddress,
    admission: &Admission,
) -> Result<Listener, Failure> {
    let (authentication, clients) = admission.to(address)?;
    let address = address.to_string();
    let listening = node
        .listen(&address, authentication)
        .map_err(|error| cannot_listen(&address, error))?;
    Ok(Listener {
        address: listening,
        clients,
    })
}

/// Makes `node` listen on all addresses of a configuration.
///
/// # Errors
/// Those of [`listen`].
pub(super) fn listen_at_all(node: &Node, config: &ServeConfig) -> Result<Vec<Listener>, Failure> {
    let addresses = config.addresses();
    let listeners = addresses.iter();
    listeners
        .map(|address| listen(node, address, &config.admission))
        .collect()
}

/// Lets running calls finish, then closes the connections.
///
/// # Errors
/// If the node ended before.
pub(crate) fn end(node: Node, profile: &Profile, operator: &mut Operator) -> Result<(), Failure> {
    let timeout = Duration::from_millis(u64::from(profile.drain_timeout_ms));
    operator.draining(timeout);
    let report = node
        .drain(timeout)
        .map_err(|error| Failure::failed("the server did not end cleanly").because(error))?;
    // The threads end here, before the log says that the server has.
    drop(node);
    operator.ended(&report, timeout);
    Ok(())
}
