//! The share of one peer in a poll: the others are served within a few polls, whatever that peer does.

use super::*;
use crate::interface::prelude::*;
use crate::interface::{Access, PostError, RemoteAddress};

/// A peer of the server, and the queue pair of the server for it.
struct Peer {
    end: End,
    id: QueuePairId,
    outstanding: usize,
}

/// A server with `peers` peers, each with its own channel. The first peers are hot, up to
/// `hot_channels_max`.
fn star(peers: u32, change: impl Fn(&mut PortConfig)) -> (End, Vec<Peer>) {
    let with_room = |config: &mut PortConfig| {
        config.channel_ring_bytes = 32_768;
        change(config);
    };
    let mut server = End::new(0, with_room);
    let peers = (1..=peers)
        .map(|number| {
            let mut end = End::new(number, with_room);
            let queues = (end.queue, server.queue);
            let (server_port, server_handle) = (&mut server.port, &server.handle);
            let ids = join(
                &mut end.port,
                &end.handle,
                server_port,
                server_handle,
                queues,
            );
            let (own, id) = ids.unwrap();
            end.id = own;
            Peer {
                end,
                id,
                outstanding: 0,
            }
        })
        .collect();
    (server, peers)
}

impl Peer {
    /// Sends `message` until `count` messages are outstanding.
    fn keep_sending(&mut self, count: usize, message: &[u8]) {
        self.end.poll();
        self.end.reclaim();
        while self.outstanding < count && self.end.large.available() > 2 {
            let options = SendOptions::default();
            let posted = if message.len() > 1024 {
                self.end.send_list(&[message], options)
            } else {
                self.end.send(message, options)
            };
            match posted {
                Ok(()) => self.outstanding += 1,
                Err(PostError::QueueFull) => return,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Exposes a buffer from which the server can read.
    fn expose(&mut self, bytes: u32) -> RemoteAddress {
        let buffer = self.end.large.take().unwrap();
        let access = Access {
            remote_read: true,
            remote_write: false,
        };
        let id = self.end.id;
        let window = self.end.port.bind_window(id, buffer, bytes, access);
        window.unwrap().remote()
    }
}

/// Lets the server read from a peer.
fn read(server: &mut End, id: QueuePairId, from: RemoteAddress, bytes: u32, work: u64) {
    let mut list = Gather::new();
    list.push(server.large.take().unwrap(), 0, bytes).unwrap();
    server.port.post_read(id, list, from, WorkId(work)).unwrap();
}

/// The largest number of polls that a message of the victim waits. The victim sends one message at a time. Before each
/// poll, `others` lets the other peers act.
fn longest_wait(
    server: &mut End,
    peers: &mut [Peer],
    victim: usize,
    message: &[u8],
    mut others: impl FnMut(usize, &mut Peer),
) -> usize {
    let victim_id = peers[victim].id;
    let (mut waited, mut longest, mut arrived) = (0, 0, 0);
    for _ in 0..400 {
        for (number, peer) in peers.iter_mut().enumerate() {
            if number == victim {
                peer.keep_sending(1, message);
            } else {
                others(number, peer);
            }
        }
        waited += 1;
        for event in server.poll() {
            if matches!(event.what, What::Received(..)) {
                let peer = peers.iter_mut().find(|peer| peer.id == event.id);
                peer.unwrap().outstanding -= 1;
            }
            if event.id == victim_id && event.status == Status::Success {
                arrived += 1;
                waited = 0;
            }
        }
        longest = longest.max(waited);
    }
    assert!(arrived > 0, "nothing of the victim arrived");
    longest
}

/// The batch keeps places for the short messages of one peer while the other peer fills it.
#[test]
fn a_peer_with_messages_of_all_kinds_takes_no_place_of_another() {
    let (mut server, mut peers) = star(2, |_| {});
    let [first, second] = &mut peers[..] else {
        unreachable!("there are two");
    };
    let options = SendOptions::default();
    first.end.send(&pattern(0, 64), options).unwrap();
    // Its record takes several units, so the records behind it are not counted.
    let parts: [&[u8]; 2] = [&pattern(1, 200), &pattern(2, 4000)];
    first.end.send_list(&parts, options).unwrap();
    for seed in 0..12 {
        first.end.send(&pattern(seed, 16), options).unwrap();
    }
    for seed in 0..8 {
        second.end.send(&pattern(seed, 64), options).unwrap();
    }
    let (mut batch, mut of_second) = (CompletionBatch::new(), 0);
    for _ in 0..32 {
        server.port.poll(0, &mut batch);
        let completions: Vec<_> = batch.drain().collect();
        for completion in completions {
            of_second += usize::from(completion.queue_pair == second.id);
            server.event(completion);
        }
        server.port.flush_receives();
    }
    assert_eq!(of_second, 8, "none is lost");
    assert_eq!(server.posted(), DEPTH);
}

#[test]
fn a_message_waits_for_no_more_polls_than_there_are_hot_channels() {
    for count in [2, 5] {
        for victim in [0, count - 1] {
            let (mut server, mut peers) = star(u32::try_from(count).unwrap(), |_| {});
            let greedy = |_, peer: &mut Peer| peer.keep_sending(16, &[7; 64]);
            let wait = longest_wait(&mut server, &mut peers, victim, &[9; 64], greedy);
            assert!(wait <= count, "{wait} polls among {count}");
        }
    }
}

#[test]
fn a_long_message_waits_for_few_polls_of_other_long_messages() {
    for victim in [0, 1] {
        let small = |config: &mut PortConfig| config.copy_bytes_per_poll = 4096;
        let (mut server, mut peers) = star(2, small);
        let greedy = |_, peer: &mut Peer| peer.keep_sending(3, &[5; 65_536]);
        let wait = longest_wait(&mut server, &mut peers, victim, &[3; 4096], greedy);
        assert!(wait <= 4, "{wait} polls");
    }
}

/// A peer that leaves a small rest of the copy budget does not stay first in the order.
#[test]
fn a_long_message_gets_more_than_the_crumbs_of_others() {
    for victim in [0, 1] {
        let small = |config: &mut PortConfig| config.copy_bytes_per_poll = 4096;
        let (mut server, mut peers) = star(2, small);
        let greedy = |_, peer: &mut Peer| peer.keep_sending(1, &[5; 4095]);
        let wait = longest_wait(&mut server, &mut peers, victim, &[3; 8192], greedy);
        assert!(wait <= 6, "{wait} polls");
    }
}

#[test]
fn a_long_message_waits_for_few_polls_of_reads() {
    for victim in [0, 1] {
        let (mut server, mut peers) = star(2, |config| config.copy_bytes_per_poll = 4096);
        let reader = 1 - victim;
        let (id, from) = (peers[reader].id, peers[reader].expose(SECOND_BYTES));
        for work in 0..16 {
            read(&mut server, id, from, SECOND_BYTES, work);
        }
        peers[victim].keep_sending(1, &[3; 8192]);
        let polls = (1..=1000).find(|_| {
            let events = server.poll();
            events.iter().any(|event| event.id == peers[victim].id)
        });
        // Reads get half of the budget of each poll until they are done.
        assert!(polls.is_some_and(|polls| polls <= 5), "{polls:?} polls");
    }
}

#[test]
fn a_read_waits_for_few_polls_of_long_messages_and_of_other_reads() {
    // The other Reads leave one byte of the budget, or of its half for Reads.
    for crumbs_of in [4095, 2047] {
        let (mut server, mut peers) = star(3, |config| config.copy_bytes_per_poll = 4096);
        let from: Vec<_> = peers.iter_mut().map(|peer| peer.expose(4096)).collect();
        let ids: Vec<_> = peers.iter().map(|peer| peer.id).collect();
        for work in 0..4 {
            read(&mut server, ids[1], from[1], crumbs_of, work);
        }
        read(&mut server, ids[2], from[2], 4096, 4);
        let polls = (1..=1000).find(|_| {
            peers[0].keep_sending(3, &[5; 65_536]);
            let mut done = false;
            for event in server.poll() {
                match event.what {
                    What::Read(work, _) if event.id == ids[1] => {
                        read(&mut server, ids[1], from[1], crumbs_of, work);
                    }
                    What::Read(..) => done = true,
                    _ => peers[0].outstanding -= 1,
                }
            }
            done
        });
        assert!(polls.is_some_and(|polls| polls <= 8), "{polls:?} polls");
    }
}

#[test]
fn cold_channels_and_hot_ones_leave_each_other_a_share() {
    // Two are hot, the others are not and cannot become so while those have work.
    let two_hot = |config: &mut PortConfig| {
        config.hot_channels_max = 2;
        config.copy_bytes_per_poll = 4096;
    };
    for long in [false, true] {
        for victim in 0..5 {
            let (mut server, mut peers) = star(5, two_hot);
            let (greed, message) = if long { (65_536, 2048) } else { (64, 64) };
            let greedy = |_, peer: &mut Peer| peer.keep_sending(12, &vec![7; greed]);
            let message = vec![9; message];
            let wait = longest_wait(&mut server, &mut peers, victim, &message, greedy);
            assert!(wait <= 7, "{wait} polls: long {long}, victim {victim}");
        }
    }
}

#[test]
fn completions_of_one_queue_pair_delay_neither_another_nor_messages() {
    let (mut server, mut peers) = star(3, |_| {});
    // All these works can complete when the acknowledgement has come.
    for work in 0..30 {
        server.id = peers[0].id;
        server.send(&[1], signalled(work)).unwrap();
    }
    server.id = peers[1].id;
    server.send(&[1], signalled(100)).unwrap();
    for peer in &mut peers {
        peer.end.settle();
    }
    peers[2].keep_sending(16, &[9; 64]);
    let events: Vec<_> = (0..3).flat_map(|_| server.poll()).collect();
    for peer in &peers {
        assert!(events.iter().any(|event| event.id == peer.id), "{events:?}");
    }
}

/// With a batch of one place, classes that always have a completion take turns.
#[test]
fn the_only_place_of_a_batch_goes_round() {
    let (mut server, mut peers) = star(3, |config| config.hot_channels_max = 1);
    server.id = peers[2].id;
    for work in 0..20 {
        server.send(&[1], signalled(work)).unwrap();
    }
    // The disconnect flushes all works.
    server.port.disconnect(server.id);
    let mut batch = CompletionBatch::with_limit(1);
    let mut counts = [0; 3];
    for _ in 0..64 {
        for peer in &mut peers[..2] {
            peer.keep_sending(4, &[7; 64]);
        }
        server.port.poll(server.now, &mut batch);
        let completions: Vec<_> = batch.drain().collect();
        for completion in completions {
            let event = server.event(completion);
            let number = peers.iter().position(|peer| peer.id == event.id).unwrap();
            counts[number] += 1;
            if matches!(event.what, What::Received(..)) {
                peers[number].outstanding -= 1;
            }
        }
        server.port.flush_receives();
    }
    assert!(counts.iter().all(|count| *count >= 16), "{counts:?}");
}
