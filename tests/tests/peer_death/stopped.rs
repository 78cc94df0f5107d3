//! A process under load is stopped for a while, and goes on.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use rpcrdma_testkit::Wait;

use crate::children::FabricPeer;
use crate::random_kills::serve_load;
use crate::survivor::Survivor;
use crate::{alone, asked};

#[test]
fn a_stopped_peer_is_waited_for() {
    let _alone = alone();
    let stopped_for = Duration::from_secs(asked("RPCRDMA_STOP_SECONDS", 2));
    let mut survivor = Survivor::new();
    let address = survivor.address.clone();
    let child = FabricPeer::start(&["load", &address, "7"]);
    let (child, _) = survivor.ready(child);
    let [queue_pair] = survivor.others()[..] else {
        panic!("one process beside the friend");
    };
    let mut arrived = 0;
    let wait = Wait::begin("a thousand messages");
    while arrived < 1000 {
        wait.look(|| format!("{arrived}"));
        arrived = serve_load(&mut survivor, queue_pair, 7, arrived);
    }

    child.signal(Signal::SIGSTOP);
    // TIME: how long the stop takes at least. A longer one is as good.
    let stopped = Instant::now();
    let pongs = survivor.pongs();
    while stopped.elapsed() < stopped_for {
        arrived = serve_load(&mut survivor, queue_pair, 7, arrived);
        // Nobody else waits for the one that is stopped.
        survivor.ping();
    }
    let at_the_end = arrived;
    println!(
        "stopped for {stopped_for:?}: {} echoes of another peer meanwhile",
        survivor.pongs() - pongs
    );
    assert!(survivor.peer.ended.is_empty(), "a stop is not a death");
    assert!(survivor.peer.failures.is_empty());

    child.signal(Signal::SIGCONT);
    let wait = Wait::begin("a thousand messages after the stop");
    while arrived < at_the_end + 1000 {
        wait.look(|| format!("{}", arrived - at_the_end));
        arrived = serve_load(&mut survivor, queue_pair, 7, arrived);
        assert!(
            survivor.peer.ended.is_empty(),
            "the connection has not outlived the stop"
        );
    }
    child.signal(Signal::SIGKILL);
    let wait = Wait::begin("the end of the connection of the dead");
    while !survivor.peer.ended.contains_key(&queue_pair) {
        wait.look(|| survivor.peer.describe());
        arrived = serve_load(&mut survivor, queue_pair, 7, arrived);
    }
    child.wait();
    survivor.bury_others();
    survivor.ping();
    survivor.finish();
}
