//! What a node tells of its buffers when a connection is asked for, read off the connection manager.

use std::time::Duration;

use rpcrdma_control::{
    ConnectOptions, ListenOptions, NodeConfig, PendingConnect, Provider, Versions,
};
use rpcrdma_fabric::clock::Clock;
use rpcrdma_fabric::interface::{Manager, ManagerEvent};
use rpcrdma_protocol::cm_private_data::PrivateData;
use rpcrdma_testkit::Wait;
use rpcrdma_tuning::Profile;

use super::Shm;
use crate::cases::{listening as listen_options, options};
use crate::support::foreign::NEED;
use crate::support::{Fabric, profile, start};

/// A message of version 1 is sent from one buffer and received into one: what placed data add is version 2's alone. A
/// peer that is told more takes long replies for short ones, and offers no memory for them.
#[test]
fn version_1_learns_what_one_buffer_holds() {
    let profile = Profile {
        send_buffer_bytes: 2048,
        placement_segments: 1,
        placement_segment_bytes: 8192,
        placement_spares: 8,
        bulk_buffers: 8,
        ..profile()
    };
    let properties = NodeConfig::from_profile(&profile, vec![None]).properties;
    assert!(properties.send_bytes_max >= 2048 + 8192, "of version 2");
    let told = PrivateData {
        remote_invalidation: true,
        send_bytes: 2048,
        receive_bytes: properties.receive_buffer_bytes,
    };
    // Sizes are told in kilo-octets.
    let told = PrivateData::find(&told.to_bytes());
    let node = start::<Shm>(&profile, 1);
    let asking = ConnectOptions {
        versions: Versions::One,
        ..options()
    };
    let listening = ListenOptions {
        versions: Versions::One,
        ..listen_options()
    };
    let address = Shm::address();
    let server = told_by_client(&address, || node.node.connect_start(&address, asking));
    assert_eq!(PrivateData::find(&server), told, "by a client");
    let address = Shm::address();
    let listening = node.node.listen(&address, listening);
    let address = listening.expect("the name is free").address;
    let client = told_by_server(&address);
    assert_eq!(PrivateData::find(&client), told, "by a server");
}

/// The private data with which a client asks for a connection to `address` once `connect` has told it to.
fn told_by_client(address: &str, connect: impl FnOnce() -> PendingConnect) -> Vec<u8> {
    let mut manager = Shm::provider(&profile()).manager().expect("a manager");
    manager.listen(address).expect("the name is free");
    let _pending = connect();
    told(&mut manager)
}

/// The private data with which the server at `address` accepts a connection.
fn told_by_server(address: &str) -> Vec<u8> {
    let provider = Shm::provider(&profile());
    let mut manager = provider.manager().expect("a manager");
    let (_port, handle) = provider.port(&NEED, &Clock::new()).expect("a port");
    let asked = manager.connect(address, &handle, &[]);
    asked.expect("a server listens");
    told(&mut manager)
}

/// The private data of the first event that has some.
fn told(manager: &mut impl Manager) -> Vec<u8> {
    let wait = Wait::begin("private data");
    let mut events = Vec::new();
    loop {
        let waited = manager.wait(Duration::from_millis(10), &mut events);
        waited.expect("the manager works");
        for event in events.drain(..) {
            if let ManagerEvent::ConnectRequest { private_data, .. }
            | ManagerEvent::ConnectReply { private_data, .. } = event
            {
                return private_data;
            }
        }
        wait.look(String::new);
    }
}
