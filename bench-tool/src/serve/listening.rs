//! How serving begins and ends, whatever is served.

use std::time::Duration;

use rpcrdma_control::{ListenOptions, Node, Provider};
use rpcrdma_engine::Application;
use rpcrdma_tuning::Profile;

use super::operate::Operator;
use crate::address::Address;
use crate::authentication::{Host, of_clients};
use crate::exit::Failure;

/// Makes `node` listen on `address`. Returns the lines that say where, and which clients it accepts.
///
/// # Errors
/// When the address cannot be listened on.
pub(crate) fn listen<V: Provider, A: Application>(
    node: &Node<V, A>,
    address: &Address,
    host: Option<&Host>,
) -> Result<String, Failure> {
    let (authentication, for_whom) = of_clients(host, address);
    let options = ListenOptions {
        authentication,
        ..ListenOptions::default()
    };
    let address = address.to_string();
    let listening = node
        .listen(&address, options)
        .map_err(|error| Failure::failed(format!("cannot listen on {address}")).because(error))?;
    Ok(format!("{}{for_whom}", listening.address))
}

/// Lets the calls in hand finish, and closes the connections.
///
/// # Errors
/// A failure when the node ended before it was asked to.
pub(crate) fn end<V: Provider, A: Application>(
    node: Node<V, A>,
    profile: &Profile,
    operator: &mut Operator,
) -> Result<(), Failure> {
    let timeout = Duration::from_millis(u64::from(profile.drain_timeout_ms));
    operator.draining(timeout);
    let report = node
        .drain(timeout)
        .map_err(|error| Failure::failed("the server did not end in good order").because(error))?;
    drop(node.shutdown());
    operator.ended(&report, timeout);
    Ok(())
}
