// What examples in the documentation of the control plane share, taken by `include!`: small nodes on
// shm, and keys.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rpcrdma_control::{
    ConnectOptions, ListenOptions, Node, NodeConfig, PortNeed, PresharedKey, PresharedKeys,
    ShmProvider,
};
use rpcrdma_engine::{Application, HostIdentity, Outcome, ReplyWriter, Request};
use rpcrdma_fabric::memory::{HugePageSize, HugePages};
use rpcrdma_tuning::{Idle, Profile};

/// How long anything here may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Sends the arguments of calls back.
pub(crate) struct Echo;

impl Application for Echo {
    fn call(&mut self, request: &Request<'_>, reply: &mut ReplyWriter<'_>) -> Outcome {
        let written = reply.write(request.args);
        written.map_or(Outcome::SystemError, |()| Outcome::Success)
    }
}

/// Small sizes, and cores that sleep.
pub(crate) fn profile() -> Profile {
    Profile {
        idle: Idle::Park,
        idle_park_after_us: 20,
        connections_max: 4,
        credits_per_connection: 8,
        ..Profile::default()
    }
}

/// A node of one core, of that size.
pub(crate) fn config() -> NodeConfig {
    NodeConfig::from_profile(&profile(), vec![None])
}

/// Starts a node.
pub(crate) fn start(config: &NodeConfig) -> Node<ShmProvider, Echo> {
    let provider = ShmProvider::from_profile(&profile());
    Node::start(provider, config, |_core| Echo).expect("a small node fits on any machine")
}

/// A number that no other example uses.
fn number() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{}-{number}", std::process::id())
}

/// An address that nobody listens on.
pub(crate) fn address() -> String {
    format!("shm:example-{}", number())
}

/// A node that listens, and its address.
pub(crate) fn listening(options: ListenOptions) -> (Node<ShmProvider, Echo>, String) {
    let node = start(&config());
    let listening = node.listen(&address(), options);
    (node, listening.expect("the name is free").address)
}

/// More patient than the default, for machines with much to do.
pub(crate) fn patient() -> ConnectOptions {
    ConnectOptions {
        timeout: PATIENCE,
        ..ConnectOptions::default()
    }
}

/// Waits until `done`.
pub(crate) fn wait_until(mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "it takes too long");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// What a small core needs.
pub(crate) fn need() -> PortNeed {
    PortNeed {
        arena_bytes: 1 << 20,
        huge_pages: HugePages::Never,
        huge_page_size: HugePageSize::Mib2,
        queue_pairs_max: 4,
        receives_max: 64,
        sends_max: 64,
        windows_max: 0,
    }
}

/// A file with keys in it, which goes when this is dropped.
pub(crate) struct KeyFile(pub(crate) PathBuf);

impl KeyFile {
    /// A file of this text, with permissions `mode`.
    pub(crate) fn new(text: &str, mode: u32) -> Self {
        let path = std::env::temp_dir().join(format!("rpcrdma-example-keys-{}", number()));
        std::fs::write(&path, text).expect("a file");
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&path, permissions).expect("its mode");
        Self(path)
    }
}

impl Drop for KeyFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A host with the key that all hosts here have.
pub(crate) fn host(identity: &str) -> PresharedKey {
    let file = KeyFile::new(&format!("2026-11 {}\n", "5a".repeat(32)), 0o600);
    let keys = PresharedKeys::read(&file.0).expect("one key");
    PresharedKey::new(HostIdentity::new(identity).expect("a good name"), keys)
}
