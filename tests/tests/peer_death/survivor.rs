//! The side that survives: it serves a friend all the time, and looks after its own house.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rpcrdma_fabric::interface::{Manager, PostError, QueuePairId};
use rpcrdma_testkit::Wait;
use rpcrdma_tests::shm_peer::{Peer, Sizes, message};

use crate::children::FabricPeer;

const FRIEND_STREAM: u64 = 0xF71E_17D0;

pub(crate) struct Survivor {
    pub(crate) peer: Peer,
    pub(crate) address: String,
    friend: Option<FabricPeer>,
    friend_queue_pair: QueuePairId,
    pings: u64,
    pongs: u64,
}

/// Things that a dead peer may leave in this process: how many of each kind there are.
pub(crate) type Belongings = BTreeMap<String, usize>;

impl Survivor {
    /// Listens, with a friend connected.
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let mut peer = Peer::new(Sizes {
            port: NEXT.fetch_add(1, Ordering::Relaxed),
            sends: 320,
            receives: 320,
            queue_pairs: 128,
            // The friend's; to all others a doorbell is rung.
            hot_channels: 1,
        });
        let address = format!(
            "shm:peer-death-{}-{:p}",
            std::process::id(),
            &raw const NEXT
        );
        peer.manager.listen(&address).expect("the name is free");
        let friend = FabricPeer::start(&["echo", &address]);
        let mut this = Self {
            peer,
            address,
            friend: None,
            friend_queue_pair: QueuePairId {
                index: 0,
                generation: 0,
            },
            pings: 0,
            pongs: 0,
        };
        let friend = this.ready(friend).0;
        this.friend = Some(friend);
        this.friend_queue_pair = this.peer.living().next().expect("the friend is connected");
        this.ping();
        this
    }

    /// Serves until the child says that it is ready, and returns what it says.
    pub(crate) fn ready(&mut self, mut child: FabricPeer) -> (FabricPeer, String) {
        let said = self.until("a process that is ready", |_| child.ready());
        (child, said)
    }

    /// Queue pairs of everybody but the friend, in the order in which they connected.
    pub(crate) fn others(&self) -> Vec<QueuePairId> {
        let mut connections: Vec<_> = self.peer.connections.iter().collect();
        connections.sort_by_key(|(connection, _)| connection.0);
        connections
            .into_iter()
            .map(|(_, queue_pair)| *queue_pair)
            .filter(|queue_pair| *queue_pair != self.friend_queue_pair)
            .collect()
    }

    /// Polls, looks at the manager, and takes what the friend sends.
    pub(crate) fn serve(&mut self) {
        self.peer.turn();
        self.peer.manage(Duration::ZERO);
        let friend = self.friend_queue_pair;
        assert!(
            !self.peer.ended.contains_key(&friend) || self.friend.is_none(),
            "the connection of one that lives has ended"
        );
        let pongs = &mut self.pongs;
        self.peer.arrivals.retain(|(queue_pair, data)| {
            if *queue_pair == friend {
                assert!(*data == ping_of(*pongs), "an echo is not what was sent");
                *pongs += 1;
            }
            *queue_pair != friend
        });
    }

    /// Serves until `done` yields something.
    pub(crate) fn until<R>(
        &mut self,
        what: &str,
        mut done: impl FnMut(&mut Self) -> Option<R>,
    ) -> R {
        let wait = Wait::begin(what);
        loop {
            if let Some(result) = done(self) {
                return result;
            }
            wait.look(|| self.peer.describe());
            self.serve();
        }
    }

    /// A message to the friend and back.
    pub(crate) fn ping(&mut self) {
        let data = ping_of(self.pings);
        let queue_pair = self.friend_queue_pair;
        self.send(queue_pair, &data);
        self.pings += 1;
        self.until("the friend's echo", |this| {
            (this.pongs == this.pings).then_some(())
        });
    }

    pub(crate) fn pongs(&self) -> u64 {
        self.pongs
    }

    /// Sends to a peer that may be dying.
    pub(crate) fn send(&mut self, queue_pair: QueuePairId, data: &[u8]) {
        self.until("room for a Send", |this| {
            let result = if data.len() < 512 {
                this.peer.send_copied(queue_pair, data)
            } else {
                this.peer.send_registered(queue_pair, data)
            };
            match result {
                Ok(()) | Err(PostError::NotConnected) => Some(()),
                Err(PostError::QueueFull) => None,
                Err(error) => panic!("a Send is refused: {error}"),
            }
        });
    }

    /// Serves until all queue pairs of dead peers have ended and both levels know; then forgets
    /// them. Returns when the last queue pair ended.
    pub(crate) fn bury_others(&mut self) -> Instant {
        let others = self.others();
        self.until("the end of the connections of the dead", |this| {
            let known = this.peer.lost.len() == others.len();
            let ended = others
                .iter()
                .all(|other| this.peer.ended.contains_key(other));
            (known && ended).then_some(())
        });
        let ends = others.iter().map(|other| self.peer.ended[other]);
        let last = ends.max().unwrap_or_else(Instant::now);
        self.peer.bury();
        last
    }

    /// What this process holds now.
    pub(crate) fn belongings(&mut self) -> Belongings {
        // Connections that were forgotten are closed when the manager looks next.
        for _ in 0..4 {
            self.serve();
        }
        let mut held = BTreeMap::new();
        let files = fs::read_dir("/proc/self/fd").expect("our own files");
        for file in files.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok()) {
            let kind = file
                .to_string_lossy()
                .replace(|c: char| c.is_ascii_digit(), "");
            // Pipes are the tests' own, and close when a thread has read the last of a child.
            if !kind.starts_with("pipe:") {
                *held.entry(format!("open {kind}")).or_default() += 1;
            }
        }
        let maps = fs::read_to_string("/proc/self/maps").expect("our own mappings");
        for (_, name) in maps.lines().filter_map(|line| line.split_once("memfd:")) {
            *held.entry(format!("mapped {name}")).or_default() += 1;
        }
        held
    }

    /// Ends the friend, and looks whether anything is left on the machine.
    pub(crate) fn finish(mut self) {
        drop(self.friend.take());
        let friend = self.friend_queue_pair;
        self.until("the end of the friend's connection", |this| {
            this.peer.ended.contains_key(&friend).then_some(())
        });
        self.until("the manager's report", |this| {
            (this.peer.lost.len() == this.peer.connections.len()).then_some(())
        });
        self.peer.bury();
        for _ in 0..1000 {
            self.serve();
        }
        self.peer.reckon();
        let name = self.address.trim_start_matches("shm:").to_owned();
        drop(self);
        let sockets = fs::read_to_string("/proc/net/unix").expect("the machine's sockets");
        assert!(!sockets.contains(&name), "a socket is left: {name}");
    }
}

fn ping_of(number: u64) -> Vec<u8> {
    message(
        FRIEND_STREAM,
        number,
        if number.is_multiple_of(2) { 48 } else { 2500 },
    )
}
