//! Processes under load are killed at random, one after the other.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use rpcrdma_fabric::interface::QueuePairId;
use rpcrdma_testkit::{Random, Wait};
use rpcrdma_tests::shm_peer::message;

use crate::children::FabricPeer;
use crate::survivor::{Belongings, Survivor};
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

/// How long the processes live, at most 20 ms: a fixed sequence, because the scheduler adds the chance.
fn lives() -> impl FnMut() -> Duration {
    let mut random = Random(1);
    move || Duration::from_micros(random.between(0, 20_000).into())
}

/// What is the same for every process that is killed.
#[derive(Default)]
struct Record {
    noticed: Vec<Duration>,
    before: Option<Belongings>,
}

impl Record {
    /// Kills the process and serves, by `serve`, until its connection has ended; then looks
    /// whether anything is left of it.
    fn kill(
        &mut self,
        survivor: &mut Survivor,
        child: FabricPeer,
        queue_pair: QueuePairId,
        mut serve: impl FnMut(&mut Survivor),
    ) {
        child.signal(Signal::SIGKILL);
        // TIME: the report tells how long it took; nothing compares it.
        let killed = Instant::now();
        let wait = Wait::begin("the end of the connection of the dead");
        while !survivor.peer.ended.contains_key(&queue_pair) {
            wait.look(|| survivor.peer.describe());
            serve(survivor);
        }
        // TIME: as above.
        self.noticed.push(killed.elapsed());
        child.wait();
        survivor.bury_others();
        survivor.peer.failures.clear();
        survivor.ping();
        let belongings = survivor.belongings();
        let before = self.before.get_or_insert_with(|| belongings.clone());
        assert_eq!(belongings, *before, "something of the dead is left");
    }

    fn report(mut self, what: &str) {
        self.noticed.sort_unstable();
        let (median, longest) = (
            self.noticed[self.noticed.len() / 2],
            self.noticed[self.noticed.len() - 1],
        );
        println!(
            "{} {what}; noticed after {median:.1?} (median), {longest:.1?} (longest)",
            self.noticed.len()
        );
    }
}

#[test]
fn clients_killed_at_random_under_load() {
    let _alone = alone();
    let mut survivor = Survivor::new();
    let mut record = Record::default();
    let mut life_of_next = lives();
    let mut messages = 0;
    for stream in 0..asked("RPCRDMA_KILLS", 20) {
        let address = survivor.address.clone();
        let child = FabricPeer::start(&["load", &address, &stream.to_string()]);
        let (child, _) = survivor.ready(child);
        let [queue_pair] = survivor.others()[..] else {
            panic!("one process beside the friend");
        };
        // TIME: this only chooses the place at which the process dies, and every place is right.
        let (born, life) = (Instant::now(), life_of_next());
        let mut arrived = 0;
        let wait = Wait::begin("the first message");
        while arrived == 0 || born.elapsed() < life {
            wait.look(|| survivor.peer.describe());
            arrived = serve_load(&mut survivor, queue_pair, stream, arrived);
        }
        record.kill(&mut survivor, child, queue_pair, |survivor| {
            arrived = serve_load(survivor, queue_pair, stream, arrived);
        });
        messages += arrived;
    }
    record.report(&format!("clients killed under load, {messages} messages"));
    survivor.finish();
}

/// Keeps messages under way to a server, and holds its echoes against them.
fn load_server(
    survivor: &mut Survivor,
    queue_pair: QueuePairId,
    stream: u64,
    counts: &mut [u64; 2],
) {
    const DEPTH: u64 = 8;
    let bytes = |number: u64| if number.is_multiple_of(2) { 64 } else { 3000 };
    let [sent, echoed] = counts;
    while *sent < *echoed + DEPTH {
        survivor.send(queue_pair, &message(stream, *sent, bytes(*sent)));
        *sent += 1;
    }
    survivor.serve();
    while let Some((from, data)) = survivor.peer.arrivals.pop_front() {
        assert_eq!(from, queue_pair);
        assert!(
            data == message(stream, *echoed, bytes(*echoed)),
            "echo {echoed} is not what was sent"
        );
        *echoed += 1;
    }
}

/// The other end dies: the listener. Its name is free at once for the one that comes after it.
#[test]
fn servers_killed_at_random_under_load() {
    let _alone = alone();
    let mut survivor = Survivor::new();
    let mut record = Record::default();
    let mut life_of_next = lives();
    let mut messages = 0;
    let address = format!("{}-mortal", survivor.address);
    for stream in 0..asked("RPCRDMA_KILLS", 20) {
        let child = FabricPeer::start(&["serve", &address]);
        let (child, _) = survivor.ready(child);
        let queue_pair = survivor.peer.connect(&address);
        // TIME: this only chooses the place at which the process dies, and every place is right.
        let (born, life) = (Instant::now(), life_of_next());
        let mut counts = [0; 2];
        let wait = Wait::begin("the first echo");
        while counts[1] == 0 || born.elapsed() < life {
            wait.look(|| survivor.peer.describe());
            load_server(&mut survivor, queue_pair, stream, &mut counts);
        }
        record.kill(&mut survivor, child, queue_pair, |survivor| {
            load_server(survivor, queue_pair, stream, &mut counts);
        });
        messages += counts[1];
    }
    record.report(&format!("servers killed under load, {messages} messages"));
    survivor.finish();
}
