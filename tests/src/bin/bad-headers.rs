//! Broken headers of version 1 for an NFS server, on the bare fabric, and what the Linux server answers to each.
//!
//! ```text
//! bad-headers ADDRESS
//! ```
//!
//! Each case has a connection of its own: a NULL call that must be answered, the broken message, what comes of it, and a
//! NULL call that tells whether the connection still stands. It prints a line for each case, and ends with 1 when one
//! came out otherwise.

#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Duration;

use rpcrdma_control::{PortNeed, Provider};
use rpcrdma_fabric::clock::Clock;
use rpcrdma_fabric::interface::prelude::*;
use rpcrdma_fabric::interface::{
    CompletionBatch, CompletionKind, Manager, ManagerEvent, QueuePairId, ReceiveQueueAttributes,
    SendOptions, Status,
};
use rpcrdma_fabric::memory::{Buffer, HugePageSize, HugePages, PoolShape};
use rpcrdma_testkit::{PATIENCE, Wait};

const RECEIVES: u32 = 8;
const BUFFER_BYTES: u32 = 4096;

/// What comes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// An RDMA_ERROR with ERR_CHUNK.
    ErrChunk,
    /// An RDMA_ERROR with ERR_VERS, and versions 1 to 1.
    ErrVersion,
    /// Any other message.
    Other,
    /// None before the reply to the call that follows.
    Nothing,
    /// The connection ended, with no message before that.
    Closed,
}

/// A broken message, as the words behind its XID, and what is to come of it.
struct Case {
    name: &'static str,
    words: Vec<u32>,
    answer: Answer,
    /// Whether the connection stands afterwards.
    stands: bool,
}

const CREDITS: u32 = 8;
const MSG: u32 = 0;
const NOMSG: u32 = 1;
/// A key that nothing answers to.
const NO_KEY: u32 = 0x7fff_ff01;

/// The RPC message of a NULL call of NFS version 3, as words.
fn null_call(xid: u32) -> Vec<u32> {
    vec![xid, 0, 2, 100_003, 3, 0, 0, 0, 0, 0]
}

/// What the NFS server of Linux 6.1 answers.
fn cases(xid: u32) -> Vec<Case> {
    let case = |name, header: &[u32], answer, stands| Case {
        name,
        words: [header, &null_call(xid)].concat(),
        answer,
        stands,
    };
    // Handle, length and offset of a segment of nothing.
    let segment = |length| [NO_KEY, length, 0, 0x1000];
    let refused = |name, header: &[u32]| case(name, header, Answer::ErrChunk, true);
    let with = |lists: &[&[u32]]| [&[1, CREDITS, MSG][..], &lists.concat()].concat();
    vec![
        case(
            "version 2",
            &[2, CREDITS, MSG, 0, 0, 0],
            Answer::ErrVersion,
            true,
        ),
        refused("RDMA_MSGP", &[1, CREDITS, 2, 0, 0, 0, 0, 0]),
        refused("a header type that is none", &[1, CREDITS, 9, 0, 0, 0]),
        case(
            "RDMA_DONE",
            &[1, CREDITS, 3, 0, 0, 0],
            Answer::Nothing,
            true,
        ),
        case(
            "RDMA_ERROR",
            &[1, CREDITS, 4, 2, 0, 0],
            Answer::Nothing,
            true,
        ),
        Case {
            name: "a header of 12 octets",
            words: vec![1, CREDITS],
            answer: Answer::ErrChunk,
            stands: true,
        },
        refused(
            "a Read chunk at a position that is no multiple of four",
            &with(&[&[1, 42], &segment(4), &[0, 0, 0]]),
        ),
        Case {
            name: "a Read list that is cut off",
            words: with(&[&[1, 40, NO_KEY]]),
            answer: Answer::ErrChunk,
            stands: true,
        },
        refused("a Write chunk without segments", &with(&[&[0, 1, 0, 0, 0]])),
        refused("a Reply chunk without segments", &with(&[&[0, 0, 1, 0]])),
        refused(
            "more segments than the message has",
            &with(&[&[0, 0, 1, 60], &segment(4096)]),
        ),
        refused(
            "a Reply chunk that is too small for the reply",
            &with(&[&[0, 0, 1, 1], &segment(4)]),
        ),
        Case {
            name: "a Position-Zero Read chunk in memory that is not exposed",
            words: [&[1, CREDITS, NOMSG, 1, 0][..], &segment(40), &[0, 0, 0]].concat(),
            answer: Answer::Closed,
            stands: false,
        },
    ]
}

/// A connection on the bare fabric.
struct Peer<V: Provider> {
    manager: V::Manager,
    port: V::Port,
    clock: Clock,
    send: Buffer,
    queue_pair: QueuePairId,
    arrived: Vec<Vec<u8>>,
    is_closed: bool,
}

impl<V: Provider> Peer<V> {
    fn connect(provider: &V, address: &str) -> Self {
        let clock = Clock::new();
        let mut manager = provider.manager().expect("a manager");
        let (mut port, handle) = provider
            .port(
                &PortNeed {
                    arena_bytes: 1 << 20,
                    untouched_bytes: 0,
                    huge_pages: HugePages::Never,
                    huge_page_size: HugePageSize::default(),
                    external: Vec::new(),
                    queue_pairs_max: 1,
                    receives_max: RECEIVES,
                    sends_max: 4,
                    windows_max: 0,
                    cores: 1,
                },
                &clock,
            )
            .expect("a port");
        let mut pool = port
            .carve(PoolShape {
                buffers: RECEIVES + 1,
                buffer_bytes: BUFFER_BYTES,
                stride_bytes: BUFFER_BYTES,
                align_bytes: 4096,
            })
            .expect("the arena has room");
        let queue = port
            .create_receive_queue(ReceiveQueueAttributes {
                depth: RECEIVES,
                segments_max: 1,
            })
            .expect("a receive queue");
        for _ in 0..RECEIVES {
            let receive = port
                .create_receive(queue, &mut pool.take().into_iter())
                .expect("a Receive");
            port.post_receive(receive);
        }
        port.flush_receives();
        let send = pool.take().expect("a buffer to send from");
        let connection = manager
            .connect(address, &handle, &[])
            .expect("an address of this fabric");
        let wait = Wait::begin("a connection");
        let mut events = Vec::new();
        let mut queue_pair = None;
        let queue_pair = loop {
            wait.look(String::new);
            manager
                .wait(Duration::from_millis(10), &mut events)
                .expect("the manager works");
            for event in events.drain(..) {
                match event {
                    ManagerEvent::ConnectReply { .. } => {
                        let seed = manager.prepare(connection, &handle).expect("a queue pair");
                        queue_pair = Some(
                            port.adopt_queue_pair(seed, queue)
                                .expect("it can be planted"),
                        );
                        manager.confirm(connection).expect("it can be confirmed");
                    }
                    ManagerEvent::Rejected { reason, .. } => panic!("rejected: {reason:?}"),
                    ManagerEvent::Failed { error, .. } => panic!("cannot connect: {error}"),
                    _ => {}
                }
            }
            if let Some(queue_pair) = queue_pair {
                break queue_pair;
            }
        };
        Self {
            manager,
            port,
            clock,
            send,
            queue_pair,
            arrived: Vec::new(),
            is_closed: false,
        }
    }

    fn send(&mut self, words: &[u32]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        self.port.memory().bytes_mut(&mut self.send)[..bytes.len()].copy_from_slice(&bytes);
        let length = u32::try_from(bytes.len()).expect("a short message");
        let options = SendOptions::default();
        // A connection that has ended takes nothing, which its end tells.
        let _ = self
            .port
            .post_send_copied(self.queue_pair, &self.send, length, options);
        self.port.flush_sends();
    }

    /// Moves things on, until something arrived or the connection ended.
    fn wait(&mut self) {
        let wait = Wait::begin("an answer, or the end of the connection");
        let mut events = Vec::new();
        while self.arrived.is_empty() && !self.is_closed {
            wait.look(String::new);
            self.manager
                .wait(Duration::from_millis(1), &mut events)
                .expect("the manager works");
            for event in events.drain(..) {
                match event {
                    ManagerEvent::Established { port_event, .. } => {
                        port_event
                            .into_iter()
                            .for_each(|it| self.port.handle_event(it));
                    }
                    ManagerEvent::Disconnected { port_event, .. } => {
                        port_event
                            .into_iter()
                            .for_each(|it| self.port.handle_event(it));
                        self.is_closed = true;
                    }
                    _ => {}
                }
            }
            let mut batch = CompletionBatch::new();
            self.port.poll(self.clock.now(), &mut batch);
            for completion in batch.drain() {
                match completion.kind {
                    CompletionKind::Receive { receive, bytes, .. } => {
                        if completion.status == Status::Success {
                            let message = &self.port.received(&receive)[..bytes as usize];
                            self.arrived.push(message.to_vec());
                        }
                        self.port.post_receive(receive);
                    }
                    CompletionKind::Disconnected => self.is_closed = true,
                    _ => {}
                }
            }
            self.port.flush_receives();
        }
    }

    /// What comes of the message of this XID: the next one that arrives, or the end of the connection.
    fn next(&mut self, xid: u32) -> Answer {
        self.wait();
        if self.arrived.is_empty() {
            return Answer::Closed;
        }
        answer_in(&self.arrived.remove(0), xid)
    }

    /// Whether a NULL call is answered, and what arrived before its reply.
    fn answers(&mut self, xid: u32) -> (bool, Vec<Vec<u8>>) {
        let header = [xid, 1, CREDITS, MSG, 0, 0, 0];
        self.send(&[&header[..], &null_call(xid)].concat());
        let is_reply = |message: &Vec<u8>| {
            // An RDMA_MSG of this XID, without chunks, that carries an accepted reply.
            let start = [&xid.to_be_bytes()[..], &1_u32.to_be_bytes()].concat();
            message.starts_with(&start) && message.len() == 28 + 24 && message[12..28] == [0; 16]
        };
        let mut before = Vec::new();
        loop {
            self.wait();
            if self.arrived.is_empty() {
                return (false, before);
            }
            let message = self.arrived.remove(0);
            if is_reply(&message) {
                return (true, before);
            }
            before.push(message);
        }
    }
}

/// What a message is to the one of this XID.
fn answer_in(message: &[u8], xid: u32) -> Answer {
    let words: Vec<u32> = message
        .chunks_exact(4)
        .map(|word| u32::from_be_bytes(word.try_into().expect("four octets")))
        .collect();
    match words[..] {
        // XID, version, credits, RDMA_ERROR, and the error.
        [of, 1, credits, 4, 2, ..] if of == xid && credits > 0 => Answer::ErrChunk,
        [of, _, credits, 4, 1, 1, 1, ..] if of == xid && credits > 0 => Answer::ErrVersion,
        _ => Answer::Other,
    }
}

/// Whether it came out as it should.
fn try_case<V: Provider>(provider: &V, address: &str, number: usize) -> bool {
    let xid = 0x5eed_0000 + u32::try_from(number).expect("few cases");
    let case = &cases(xid)[number];
    let mut peer = Peer::connect(provider, address);
    let (before, _) = peer.answers(xid + 0x1000);
    peer.send(&[&[xid][..], &case.words].concat());
    // The server's threads may answer in any order, so an answer that is not to come is looked for before the replies to
    // two calls that follow one another.
    let (answer, stands) = if case.answer == Answer::Nothing {
        let (first, mut others) = peer.answers(xid + 0x2000);
        let (second, more) = peer.answers(xid + 0x3000);
        others.extend(more);
        let answer = others
            .first()
            .map_or(Answer::Nothing, |it| answer_in(it, xid));
        (answer, first && second)
    } else {
        (peer.next(xid), peer.answers(xid + 0x2000).0)
    };
    let is_right = before && answer == case.answer && stands == case.stands;
    println!(
        "    {}: {answer:?}, and the connection {}{}",
        case.name,
        if stands { "stands" } else { "is closed" },
        match (before, is_right) {
            (_, true) => "",
            (false, false) => " (WRONG: the call before it was not answered)",
            (true, false) => " (WRONG)",
        }
    );
    is_right
}

fn try_all<V: Provider>(provider: &V, address: &str) -> bool {
    let cases = 0..cases(0).len();
    let right = cases.filter(|number| try_case(provider, address, *number));
    right.count() == self::cases(0).len()
}

fn run(address: &str) -> Result<bool, String> {
    let device = rpcrdma_fabric::verbs::device_towards(address, PATIENCE)
        .map_err(|error| error.to_string())?;
    let provider = rpcrdma_control::VerbsProvider {
        device: Some(device),
        ..rpcrdma_control::VerbsProvider::default()
    };
    Ok(try_all(&provider, address))
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address] = &arguments[..] else {
        eprintln!("usage: bad-headers rdma:HOST:PORT");
        return ExitCode::from(2);
    };
    match run(address) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bad-headers: {error}");
            ExitCode::FAILURE
        }
    }
}
