//! Nodes with two rails, on the shm fabric: names take the rails in turn.
#![forbid(unsafe_code)]

mod cases;
mod support;

use std::sync::atomic::{AtomicU64, Ordering};

use rpcrdma_control::{RailsProvider, ShmProvider};
use rpcrdma_tuning::Profile;

struct Shm;

impl support::Fabric for Shm {
    type Provider = RailsProvider<ShmProvider>;

    const BAD_ADDRESSES: &[&str] = &["nonsense", "shm:", "shm:a b", "rdma:host:1"];

    fn provider(profile: &Profile) -> Self::Provider {
        let rail = || ShmProvider::from_profile(profile);
        RailsProvider::new(vec![rail(), rail()]).expect("two rails")
    }

    fn address() -> String {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        format!("shm:control-rails-{}-{number}", std::process::id())
    }

    fn this_peer() -> String {
        std::process::id().to_string()
    }
}

cases::cases!(Shm);
