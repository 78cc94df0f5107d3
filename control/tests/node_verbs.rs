//! Nodes on an RDMA device: runs in the lab (tests/lab), on the device that `LAB_DEV` names and the
//! address that `LAB_IP` gives.
#![forbid(unsafe_code)]

mod cases;
mod support;

use std::sync::atomic::{AtomicU16, Ordering};

use rpcrdma_control::VerbsProvider;
use rpcrdma_tuning::Profile;

struct Verbs;

fn lab(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name}: run this in the lab, tests/lab"))
}

impl support::Fabric for Verbs {
    type Provider = VerbsProvider;

    const BAD_ADDRESSES: &[&str] = &["nonsense", "rdma:", "rdma:a b:1", "rdma:host", "shm:name"];

    fn provider(profile: &Profile) -> VerbsProvider {
        VerbsProvider::from_profile(profile, Some(lab("LAB_DEV")))
    }

    fn address() -> String {
        // Below those that the system gives out by itself.
        static NEXT: AtomicU16 = AtomicU16::new(20_100);
        let port = NEXT.fetch_add(1, Ordering::Relaxed);
        format!("rdma:{}:{port}", lab("LAB_IP"))
    }

    fn this_peer() -> String {
        lab("LAB_IP")
    }
}

cases::cases!(Verbs);
