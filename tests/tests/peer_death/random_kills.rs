//! Processes under load are killed at random, one after the other.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use rpcrdma_fabric::interface::QueuePairId;
use rpcrdma_tests::shm_peer::message;

use crate::children::FabricPeer;
use crate::survivor::Survivor;
use crate::{alone, asked};

/// Serves a `load` process: holds its messages against what they must be and sends them back.
/// Returns how many there are by now.
pub(crate) fn serve_load(
    survivor: &mut Survivor,
    queue_pair: QueuePairId,
    stream: u64,
    mut arrived: u64,
) -> u64 {
    survivor.serve();
    while let Some((from, data)) = survivor.peer.arrivals.pop_front() {
        assert_eq!(from, queue_pair);
        let bytes = if arrived.is_multiple_of(2) { 64 } else { 3000 };
        assert!(
            data == message(stream, arrived, bytes),
            "message {arrived} is not what was sent"
        );
        arrived += 1;
        survivor.send(queue_pair, &data);
    }
    arrived
}

#[test]
fn killed_at_random_under_load() {
    let _alone = alone();
    let kills = asked("RPCRDMA_KILLS", 20);
    let mut survivor = Survivor::new();
    let mut before = None;
    let mut noticed = Vec::new();
    let mut messages = 0;
    // A fixed sequence: what is random is when the scheduler runs whom.
    let mut random = 0x2545_F491_4F6C_DD1D_u64;
    for stream in 0..kills {
        let address = survivor.address.clone();
        let child = FabricPeer::start(&["load", &address, &stream.to_string()]);
        let (child, _) = survivor.ready(child);
        let [queue_pair] = survivor.others()[..] else {
            panic!("one process beside the friend");
        };
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let life = Duration::from_micros(random % 20_000);
        let born = Instant::now();
        let mut arrived = 0;
        while arrived == 0 || born.elapsed() < life {
            arrived = serve_load(&mut survivor, queue_pair, stream, arrived);
        }
        child.signal(Signal::SIGKILL);
        let killed = Instant::now();
        while !survivor.peer.ended.contains_key(&queue_pair) {
            arrived = serve_load(&mut survivor, queue_pair, stream, arrived);
            assert!(killed.elapsed() < Duration::from_secs(60), "it hangs");
        }
        noticed.push(killed.elapsed());
        child.wait();
        survivor.bury_others();
        survivor.peer.failures.clear();
        survivor.ping();
        messages += arrived;
        let belongings = survivor.belongings();
        assert_eq!(
            *before.get_or_insert(belongings),
            survivor.belongings(),
            "something of the dead is left"
        );
    }
    noticed.sort_unstable();
    println!(
        "{kills} processes killed under load, {messages} messages; noticed after {:.1?} (median), \
         {:.1?} (longest)",
        noticed[noticed.len() / 2],
        noticed[noticed.len() - 1]
    );
    assert!(noticed[noticed.len() / 2] < Duration::from_secs(1));
    survivor.finish();
}
