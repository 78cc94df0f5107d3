//! Nodes on the shm fabric.
#![forbid(unsafe_code)]

mod cases;
#[path = "node/link_down.rs"]
mod link_down;
#[path = "node/panicked.rs"]
mod panicked;
mod support;
#[path = "node/told.rs"]
mod told;

use std::sync::atomic::{AtomicU64, Ordering};

use rpcrdma_control::{Node, NodeConfig, NodeError, ShmProvider};
use rpcrdma_engine::Application;
use rpcrdma_fabric::interface::SetupError;
use rpcrdma_fabric::memory::MemoryLimit;
use rpcrdma_tuning::Profile;

struct Shm;

/// Serves nothing, and is never made.
struct Nothing;

impl Application for Nothing {}

impl support::Fabric for Shm {
    type Provider = ShmProvider;

    const BAD_ADDRESSES: &[&str] = &["nonsense", "shm:", "shm:a b", "rdma:host:1"];

    fn provider(profile: &Profile) -> ShmProvider {
        ShmProvider::from_profile(profile)
    }

    fn address() -> String {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        format!("shm:control-test-{}-{number}", std::process::id())
    }

    fn this_peer() -> String {
        std::process::id().to_string()
    }
}

cases::cases!(Shm);

/// The check is of all cores together, before any of them is made.
#[test]
fn a_node_that_guarantees_more_memory_than_there_is_does_not_start() {
    let mut config = NodeConfig::from_profile(&support::profile(), vec![None; 2]);
    let limit = MemoryLimit::find()
        .expect("Linux tells of its memory")
        .bytes;
    // One core would fit, with nearly a quarter to spare.
    config.core.message_bytes_max = 1 << 20;
    let connections = limit * 3 / 4 / (4 << 20);
    config.core.connections_max = u32::try_from(connections).expect("below 2 PiB");
    assert!(config.core.check_memory(1).is_ok());
    let provider = ShmProvider::default();
    let refused = Node::start(provider, &config, |_core| -> Nothing { unreachable!() });
    let Err(NodeError::Memory(SetupError::Guarantees { sum, .. })) = refused else {
        panic!("{:?}", refused.err());
    };
    assert!(sum.starts_with("2 cores × ("), "{sum}");
}
