//! The other process of the tests that kill, stop and trace it. Ends when its standard input does,
//! so that nothing outlives a test.
#![forbid(unsafe_code)]

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::sync::Mutex;
use std::time::Duration;

use rpcrdma_fabric::interface::prelude::*;
use rpcrdma_fabric::interface::{
    CompletionBatch, CompletionKind, Manager, PostError, QueuePairId, SendOptions,
};
use rpcrdma_tests::shm_peer::{Peer, Sizes, message};

const USAGE: &str = "usage: fabric-peer echo ADDRESS | serve ADDRESS | load ADDRESS STREAM | \
    victims ADDRESS COUNT post-small|post-registered|reap";

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match *arguments.as_slice() {
        ["echo", address] => echo(address),
        ["serve", address] => serve(address),
        ["load", address, stream] => load(address, stream.parse().expect(USAGE)),
        ["victims", address, count, action] => {
            victims(address, count.parse().expect(USAGE), action);
        }
        _ => panic!("{USAGE}"),
    }
}

fn ready(what: &str) {
    println!("ready {what}");
    std::io::stdout().flush().expect("the test reads");
}

/// Ends this process when the test closes its standard input.
fn end_with_input() {
    std::thread::spawn(|| {
        let _end = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
}

const ONE: Sizes = Sizes {
    port: 1,
    sends: 32,
    receives: 32,
    queue_pairs: 4,
    hot_channels: 8,
};

/// Connects, and sends everything back.
fn echo(address: &str) {
    let mut peer = Peer::new(ONE);
    peer.connect(address);
    end_with_input();
    ready("echo");
    send_back(&mut peer);
}

/// Listens, and sends everything back.
fn serve(address: &str) {
    let mut peer = Peer::new(ONE);
    peer.manager.listen(address).expect("the name is free");
    end_with_input();
    ready("serve");
    send_back(&mut peer);
}

/// Sends everything back, until a connection ends.
fn send_back(peer: &mut Peer) {
    while peer.ended.is_empty() {
        peer.turn();
        while let Some((queue_pair, data)) = peer.arrivals.pop_front() {
            send(peer, queue_pair, &data);
        }
        peer.manage(Duration::ZERO);
    }
}

/// Short messages are copied, long ones are sent from registered memory.
fn send(peer: &mut Peer, queue_pair: QueuePairId, data: &[u8]) {
    loop {
        let result = if data.len() < 512 {
            peer.send_copied(queue_pair, data)
        } else {
            peer.send_registered(queue_pair, data)
        };
        match result {
            Ok(()) | Err(PostError::NotConnected) => return,
            Err(PostError::QueueFull) => {
                peer.turn();
            }
            Err(error) => panic!("a Send is refused: {error}"),
        }
    }
}

/// Keeps messages under way, and holds the echoes against what was sent.
fn load(address: &str, stream: u64) {
    const DEPTH: u64 = 8;
    let mut peer = Peer::new(ONE);
    let queue_pair = peer.connect(address);
    end_with_input();
    ready("load");
    let bytes = |number: u64| if number.is_multiple_of(2) { 64 } else { 3000 };
    let (mut sent, mut echoed) = (0, 0);
    while peer.ended.is_empty() {
        while sent < echoed + DEPTH {
            let data = message(stream, sent, bytes(sent));
            send(&mut peer, queue_pair, &data);
            sent += 1;
        }
        peer.turn();
        while let Some((_, data)) = peer.arrivals.pop_front() {
            assert!(
                data == message(stream, echoed, bytes(echoed)),
                "echo {echoed} is not what was sent"
            );
            echoed += 1;
        }
        if sent.is_multiple_of(64) {
            peer.manage(Duration::ZERO);
        }
    }
}

/// Waits, with a system call that the test sees when it traces this thread.
fn mark() {
    let _ = rustix::process::getppid();
}

/// Many ports, each with a connection and a thread of its own, so that one process dies in many
/// places at once: every thread is stopped after another instruction, then the process is killed.
fn victims(address: &str, count: u32, action: &str) {
    let mut peers: Vec<(Peer, QueuePairId)> = (0..count)
        .map(|port| {
            let mut peer = Peer::new(Sizes {
                port,
                sends: 2,
                receives: 6,
                queue_pairs: 1,
                hot_channels: 8,
            });
            let queue_pair = peer.connect(address);
            (peer, queue_pair)
        })
        .collect();
    // What is to be reaped is on its way when the test says so.
    ready("connected");
    wait_for_a_byte();
    let tids = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for (index, (peer, queue_pair)) in peers.iter_mut().enumerate() {
            let tids = &tids;
            scope.spawn(move || {
                let tid = rustix::thread::gettid().as_raw_nonzero().get();
                tids.lock().expect("no thread panics").push((index, tid));
                wait_for_a_byte();
                match action {
                    "post-small" => post_small(peer, *queue_pair, index),
                    "post-registered" => post_registered(peer, *queue_pair, index),
                    "reap" => reap(peer),
                    _ => panic!("{USAGE}"),
                }
                // Whoever steps too far goes round in circles.
                loop {
                    std::hint::spin_loop();
                }
            });
        }
        while tids.lock().expect("no thread panics").len() < count as usize {
            std::thread::yield_now();
        }
        let mut tids = tids.lock().expect("no thread panics").clone();
        tids.sort_unstable();
        let list: Vec<String> = tids.iter().map(|(_, tid)| tid.to_string()).collect();
        ready(&list.join(" "));
    });
}

fn wait_for_a_byte() {
    let mut byte = [0];
    match rustix::io::read(std::io::stdin().as_fd(), &mut byte) {
        Ok(1) => {}
        _ => std::process::exit(1),
    }
}

/// One copied Send, and its doorbell.
fn post_small(peer: &mut Peer, queue_pair: QueuePairId, index: usize) {
    let data = message(index as u64, 0, 64);
    let buffer = peer.buffer_with(&data).expect("a buffer is free");
    mark();
    let posted = peer
        .port
        .post_send_copied(queue_pair, &buffer, 64, SendOptions::default());
    peer.port.flush_sends();
    mark();
    posted.expect("the Send is posted");
}

/// One Send that the other side pulls, and its doorbell.
fn post_registered(peer: &mut Peer, queue_pair: QueuePairId, index: usize) {
    let data = message(index as u64, 0, 3000);
    let mut list = peer.gathered(&data).expect("a buffer is free");
    mark();
    let posted = peer
        .port
        .post_send(queue_pair, &mut list, SendOptions::default());
    peer.port.flush_sends();
    mark();
    posted.expect("the Send is posted");
}

/// Reaps the messages that wait, posts their Receives again, and acknowledges.
fn reap(peer: &mut Peer) {
    let now = peer.clock.now();
    let mut batch = CompletionBatch::new();
    mark();
    peer.port.poll(now, &mut batch);
    for completion in batch.drain() {
        if let CompletionKind::Receive { receive, .. } = completion.kind {
            peer.port.post_receive(receive);
        }
    }
    peer.port.flush_receives();
    peer.port.flush_sends();
    peer.port.poll(now, &mut batch);
    mark();
}
