//! An end on the bare fabric, which says and answers what a test wants.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rpcrdma_control::{PortNeed, Provider};
use rpcrdma_fabric::clock::Clock;
use rpcrdma_fabric::interface::prelude::*;
use rpcrdma_fabric::interface::{
    CompletionBatch, CompletionKind, ListenerId, Manager, ManagerEvent, Port, PostError,
    QueuePairId, ReceiveQueueAttributes, SendOptions, Status,
};
use rpcrdma_fabric::memory::{Buffer, HugePageSize, HugePages, Pool, PoolShape};
use rpcrdma_protocol::v2::{
    CreditWord, Flags, Prefix, Property, TransportError, encode_connprop, encode_error,
};

use super::{Fabric, profile};

/// The thread of a foreign end.
pub(crate) struct Foreign {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Foreign {
    /// Ends it, and fails if it failed.
    pub(crate) fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the foreign end did not fail");
    }
}

/// Makes the answer to a message; an empty one is not sent. Without one the connection is closed.
pub(crate) type Answer = fn(&[u8]) -> Option<Vec<u8>>;

/// Starts it on `address`, and returns when it listens.
pub(crate) fn start<F: Fabric>(address: &str, answer: Answer) -> Foreign {
    start_server::<F>(address, false, answer)
}

/// As [`start`]; it listens until somebody connects.
pub(crate) fn start_for_one<F: Fabric>(address: &str, answer: Answer) -> Foreign {
    start_server::<F>(address, true, answer)
}

fn start_server<F: Fabric>(address: &str, for_one: bool, answer: Answer) -> Foreign {
    let stop = Arc::new(AtomicBool::new(false));
    let provider = F::provider(&profile());
    let mut manager = provider.manager().expect("a manager");
    let listener = manager.listen(address).expect("the name is free");
    let role = Role::Server(for_one.then_some(listener));
    let asked = Arc::clone(&stop);
    let thread = std::thread::spawn(move || serve(&provider, manager, &asked, role, answer));
    Foreign { stop, thread }
}

/// Starts a client that connects to `address` and sends `first`, or nothing, and then answers what comes.
pub(crate) fn connect<F: Fabric>(address: &str, first: Option<Vec<u8>>, answer: Answer) -> Foreign {
    start_client::<F>(address, First(first, 1), answer)
}

/// As [`connect`], with a client that sends `first` again, some times, while it is connected: software iWARP keeps a message that
/// comes while its connection is being accepted until the next one comes.
pub(crate) fn connect_insisting<F: Fabric>(address: &str, first: Vec<u8>) -> Foreign {
    // Fewer than there are Receives for it.
    start_client::<F>(address, First(Some(first), 4), nothing)
}

fn start_client<F: Fabric>(address: &str, first: First, answer: Answer) -> Foreign {
    let stop = Arc::new(AtomicBool::new(false));
    let provider = F::provider(&profile());
    let manager = provider.manager().expect("a manager");
    let asked = Arc::clone(&stop);
    let role = Role::Client(address.to_owned(), first);
    let thread = std::thread::spawn(move || serve(&provider, manager, &asked, role, answer));
    Foreign { stop, thread }
}

pub(crate) const NEED: PortNeed = PortNeed {
    arena_bytes: 1 << 20,
    untouched_bytes: 0,
    huge_pages: HugePages::Never,
    huge_page_size: HugePageSize::Mib2,
    external: Vec::new(),
    queue_pairs_max: 4,
    receives_max: 16,
    sends_max: 4,
    windows_max: 0,
    cores: 1,
};

fn pool(port: &mut impl Port, buffers: u32) -> Pool {
    let shape = PoolShape {
        buffers,
        buffer_bytes: 4096,
        stride_bytes: 4096,
        align_bytes: 4096,
    };
    port.carve(shape).expect("the arena has room")
}

/// The first message of a client, and how often it sends that.
struct First(Option<Vec<u8>>, u32);

/// Turns of a client between two Sends of its first message.
// TIME: a turn takes a millisecond or more. A message that is sent again too soon is one of several in a row, which is no fault.
const TURNS_BEFORE_REPETITION: u32 = 100;

enum Role {
    /// It closes the listener when somebody connects, if there is one here.
    Server(Option<ListenerId>),
    /// An address to connect to, and the first message.
    Client(String, First),
}

fn serve<V: Provider>(
    provider: &V,
    mut manager: V::Manager,
    stop: &AtomicBool,
    role: Role,
    answer: Answer,
) {
    let clock = Clock::new();
    let (mut port, handle) = provider.port(&NEED, &clock).expect("a port");
    let mut receives = pool(&mut port, 16);
    let mut send = pool(&mut port, 1).take().expect("one buffer");
    // Where queue pairs do not share one there is a receive queue for each connection that may come.
    let queues_made = if port.attributes().shared_receive_queue {
        1
    } else {
        4
    };
    let attributes = ReceiveQueueAttributes {
        depth: 16 / queues_made,
        segments_max: 1,
    };
    let mut queues = Vec::new();
    for _ in 0..queues_made {
        let queue = port.create_receive_queue(attributes).expect("a queue");
        for _ in 0..attributes.depth {
            let buffer = receives.take().expect("a buffer for each Receive");
            let receive = port
                .create_receive(queue, &mut std::iter::once(buffer))
                .expect("a Receive");
            port.post_receive(receive);
        }
        queues.push(queue);
    }
    let mut queues = queues.into_iter().cycle();
    port.flush_receives();
    let (mut first, mut listener) = (First(None, 0), None);
    let (mut connected, mut turns) = (None, 0_u32);
    match role {
        Role::Server(closes) => listener = closes,
        Role::Client(address, message) => {
            let asked = manager.connect(&address, &handle, &[]);
            asked.expect("a server listens");
            first = message;
        }
    }
    let mut connections = Vec::new();
    let mut outbound: VecDeque<(QueuePairId, Vec<u8>)> = VecDeque::new();
    let mut events = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        if let (First(Some(message), 1..), Some(queue_pair)) = (&first, connected) {
            if turns.is_multiple_of(TURNS_BEFORE_REPETITION) {
                outbound.push_back((queue_pair, message.clone()));
                first.1 -= 1;
            }
            turns += 1;
        }
        manager
            .wait(Duration::from_millis(1), &mut events)
            .expect("the manager works");
        for event in events.drain(..) {
            match event {
                ManagerEvent::ConnectRequest { connection, .. } => {
                    let seed = manager.prepare(connection, &handle).expect("a queue pair");
                    let queue = queues.next().expect("there is a queue");
                    let queue_pair = port
                        .adopt_queue_pair(seed, queue)
                        .expect("it can be planted");
                    connections.push((queue_pair, connection));
                    manager.accept(connection, &[]).expect("it can be accepted");
                    if let Some(listener) = listener.take() {
                        manager.close_listener(listener);
                    }
                }
                ManagerEvent::ConnectReply { connection, .. } => {
                    let seed = manager.prepare(connection, &handle).expect("a queue pair");
                    let queue = queues.next().expect("there is a queue");
                    let queue_pair = port
                        .adopt_queue_pair(seed, queue)
                        .expect("it can be planted");
                    // A server that gave it little time may have closed before it could confirm.
                    if let Err(error) = manager.confirm(connection) {
                        println!("the foreign end did not confirm: {error}");
                        continue;
                    }
                    connected = Some(queue_pair);
                }
                ManagerEvent::Established {
                    port_event: Some(port_event),
                    ..
                }
                | ManagerEvent::Disconnected {
                    port_event: Some(port_event),
                    ..
                } => port.handle_event(port_event),
                // A test that waits in vain for this end shows why.
                ManagerEvent::Failed { error, .. } => println!("the foreign end: {error}"),
                ManagerEvent::Rejected { reason, .. } => {
                    println!("the foreign end was rejected: {reason:?}");
                }
                _ => {}
            }
        }
        let mut batch = CompletionBatch::new();
        port.poll(clock.now(), &mut batch);
        for completion in batch.drain() {
            if let CompletionKind::Receive { receive, bytes, .. } = completion.kind {
                if completion.status == Status::Success {
                    let of = completion.queue_pair;
                    match answer(&port.received(&receive)[..bytes as usize]) {
                        Some(answer) if answer.is_empty() => {}
                        Some(answer) => outbound.push_back((of, answer)),
                        None => {
                            let closed = connections.iter().find(|(it, _)| *it == of);
                            manager.disconnect(closed.expect("a peer connected").1);
                        }
                    }
                }
                port.post_receive(receive);
            }
        }
        port.flush_receives();
        while let Some((to, message)) = outbound.front()
            && send_copied(&mut port, *to, &mut send, message)
        {
            outbound.pop_front();
        }
        port.flush_sends();
    }
}

/// Sends a message. False if it has to wait: a message can come before the manager says that its connection is established, and
/// until then a port of shm cannot answer.
fn send_copied(port: &mut impl Port, to: QueuePairId, send: &mut Buffer, message: &[u8]) -> bool {
    let bytes = u32::try_from(message.len()).expect("a short message");
    port.memory().bytes_mut(send)[..message.len()].copy_from_slice(message);
    let sent = port.post_send_copied(to, send, bytes, SendOptions::default());
    match sent {
        // Who cuts this end off may do so before it answers.
        Ok(()) | Err(PostError::NotConnected) => true,
        Err(PostError::QueueFull) => false,
        Err(error) => panic!("{error}"),
    }
}

/// No answer.
pub(crate) fn nothing(_: &[u8]) -> Option<Vec<u8>> {
    Some(Vec::new())
}

/// The end of the connection.
pub(crate) fn close(_: &[u8]) -> Option<Vec<u8>> {
    None
}

/// The results of an echo, by version 1. The connection ends at any other version.
pub(crate) fn version_1_or_close(message: &[u8]) -> Option<Vec<u8>> {
    if message.get(4..8) != Some(&[0, 0, 0, 1]) {
        return None;
    }
    // RDMA_MSG without chunks, with a grant of 32; an accepted reply without verifier; and the arguments of the call, which
    // are behind headers of 28 and 40 octets.
    let header = [1_u32, 32, 0, 0, 0, 0].map(u32::to_be_bytes).concat();
    let reply = [1_u32, 0, 0, 0, 0].map(u32::to_be_bytes).concat();
    let xid = message.get(..4)?;
    Some([xid, &header, xid, &reply, message.get(68..)?].concat())
}

/// RDMA_ERROR with ERR_VERS and versions 1 to 1, as a server of RFC 8166 section 4.5.1 sends it.
pub(crate) fn version_1_alone(message: &[u8]) -> Option<Vec<u8>> {
    let mut answer = vec![0; 28];
    // XID and version as they came.
    answer[..8].copy_from_slice(&message[..8]);
    for (word, value) in [(2, 32), (3, 4), (4, 1), (5, 1), (6, 1)] {
        answer[4 * word + 3] = value;
    }
    Some(answer)
}

/// A property set with receive buffers of 512 octets, too small for the first message.
pub(crate) fn small_receive_buffers(message: &[u8]) -> Option<Vec<u8>> {
    announce(message, &[Property::ReceiveBufferSize(Some(512))])
}

/// Properties in answer to properties, and in answer to a call others: segments of one octet.
pub(crate) fn smaller_segments_with_each_message(message: &[u8]) -> Option<Vec<u8>> {
    let is_call = message.get(12..16) == Some(&[0; 4]);
    let segment_bytes = if is_call { 1 } else { 1 << 20 };
    announce(message, &[Property::SegmentSizeMax(Some(segment_bytes))])
}

fn announce(message: &[u8], properties: &[Property<'_>]) -> Option<Vec<u8>> {
    let prefix = Prefix {
        xid: xid(message),
        credit: CreditWord {
            granted: 8,
            maximum: 16,
        },
        flags: Flags::RESPONSE,
    };
    let mut answer = vec![0; 256];
    let bytes = encode_connprop(&mut answer, prefix, properties).expect("it fits");
    answer.truncate(bytes);
    Some(answer)
}

/// RDMA2_ERROR, whatever was asked.
pub(crate) fn nothing_but_errors(message: &[u8]) -> Option<Vec<u8>> {
    let mut answer = vec![0; 64];
    let bytes = encode_error(&mut answer, xid(message), &TransportError::System).expect("it fits");
    answer.truncate(bytes);
    Some(answer)
}

fn xid(message: &[u8]) -> u32 {
    let bytes = message.first_chunk().expect("a header");
    u32::from_be_bytes(*bytes)
}
