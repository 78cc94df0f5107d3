//! Nodes on the shm fabric.
#![forbid(unsafe_code)]

mod cases;
mod support;
#[path = "node/told.rs"]
mod told;

use std::sync::atomic::{AtomicU64, Ordering};

use rpcrdma_control::ShmProvider;
use rpcrdma_tuning::Profile;

struct Shm;

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
