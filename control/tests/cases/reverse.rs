//! Calls in the reverse direction (RFC 8167): from a server to its client, by the client's connection.

use rpcrdma_control::{Authentication, ListenOptions, NodeConfig};
use rpcrdma_engine::CallRefused;
use rpcrdma_engine::ring_client::CallStatus;
use rpcrdma_protocol::v2::ReverseRequestSupport;

use super::authentication::{client_host, connecting, server_host};
use crate::support::{ECHO, Fabric, PATIENCE, TestNode, profile, start_with};

const NONE: ReverseRequestSupport = ReverseRequestSupport::None;
const INLINE: ReverseRequestSupport = ReverseRequestSupport::Inline;

fn node<F: Fabric>(level: ReverseRequestSupport) -> TestNode {
    let config = NodeConfig::from_profile(&profile(), vec![None]);
    start_with::<F>(&profile(), &config.with_reverse_calls(level))
}

/// With host authentication, in whose messages properties are exchanged too, and without.
pub(crate) fn a_server_calls_its_client_as_far_as_both_enabled_it<F: Fabric>() {
    for (client_level, server_level) in [(INLINE, INLINE), (NONE, INLINE), (INLINE, NONE)] {
        for authenticated in [false, true] {
            let policies = if authenticated {
                [client_host(), server_host()].map(Authentication::Required)
            } else {
                [Authentication::None, Authentication::None]
            };
            let [client_policy, server_policy] = policies;
            let mut server = node::<F>(server_level);
            let mut client = node::<F>(client_level);
            let address = F::address();
            let options = ListenOptions {
                authentication: server_policy,
                authentication_timeout: PATIENCE,
                ..ListenOptions::default()
            };
            let listening = server.node.listen(&address, options);
            listening.expect("the name is free");
            let forward = client.node.connect(&address, connecting(client_policy));
            let forward = forward.expect("a server listens, and has room");
            server.wait_until("the server's end", |server| !server.peers().is_empty());
            let reverse = server.last_connection();
            for size in [0, 64, 5000, 100_000] {
                let args = vec![7; size];
                // Both at once, by one connection.
                client.submit(&forward, ECHO, &args);
                let status = server.call(&reverse, ECHO, &args);
                if client_level == NONE || server_level == NONE {
                    assert_eq!(status, Err(CallStatus::Refused(CallRefused::NotTaken)));
                } else {
                    assert_eq!(status, Ok(args.clone()));
                }
                let answered = client.complete(forward.core);
                assert_eq!(answered.status, CallStatus::Success);
                assert_eq!(answered.results, args);
            }
        }
    }
}
