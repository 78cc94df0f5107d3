//! A hostile peer against a port. The peer uses plain libibverbs and follows no protocol. Runs in the lab
//! (tests/lab), on the device in `LAB_DEV` and the address in `LAB_IP`.
//!
//! The peer knows as much as any peer could: the key and the addresses of the whole arena. On iWARP every RDMA Read
//! of ours would reveal that key (RFC 5040 section 4.4); here the test reads it from the kernel.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::net::Ipv4Addr;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

// The bindings are private to the fabric, so include their source.
#[path = "../src/verbs/bindings/mod.rs"]
#[allow(dead_code, unused_imports, unreachable_pub)]
mod c;

use rpcrdma_fabric::clock::Clock;
use rpcrdma_fabric::interface::prelude::*;
use rpcrdma_fabric::interface::{
    Access, CompletionBatch, CompletionKind, Manager as _, ManagerEvent, QueuePairId,
    ReceiveQueueAttributes, ReceiveQueueId, RemoteAddress, RemoteKey, Status, WorkId,
};
use rpcrdma_fabric::memory::{Arena, ArenaOptions, Buffer, HugePages, PoolShape};
use rpcrdma_fabric::verbs::{
    Manager, ManagerOptions, Port, PortConfig, PortHandle, WithoutWindows,
};
use rpcrdma_testkit::Wait;

/// The time that a peer has to answer, and the device to flush.
// TIME: a day is longer than any test may run, so no slow machine ends a connection.
const NEVER: Duration = Duration::from_secs(24 * 60 * 60);
/// The time in which the peer's RDMA-CM has to find an address and the path to it, in milliseconds.
// TIME: longer than any test may run.
const RESOLVE_MS: c_int = 600_000;
/// Size of the victim's buffer, and of each access of the peer.
const BYTES: u32 = 4096;
/// The content of the buffer, and the content that the peer tries to write.
const KEPT: u8 = 0x5a;
const FORGED: u8 = 0xee;

fn lab(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name}: run this in the lab, tests/lab"))
}

fn clock() -> Clock {
    static CLOCK: OnceLock<Clock> = OnceLock::new();
    CLOCK.get_or_init(Clock::new).clone()
}

/// A server, with the memory that the peer attacks.
struct Victim {
    manager: Manager,
    port: Port,
    handle: PortHandle,
    /// The receive queues of the next connections, in order; all later ones use the last.
    queues: Vec<ReceiveQueueId>,
    address: (Ipv4Addr, u16),
    arena_bytes: u64,
    buffer: Option<Buffer>,
    planted: Option<QueuePairId>,
    probes_done: u64,
    is_over: bool,
}

impl Victim {
    /// The length of the arena identifies its region; see [`key_of_arena`].
    fn new(arena_bytes: u64) -> Self {
        Self::with(arena_bytes, |_| {})
    }

    fn with(arena_bytes: u64, adjust: impl FnOnce(&mut PortConfig)) -> Self {
        let arena = Arena::private(&ArenaOptions {
            bytes: arena_bytes,
            huge_pages: HugePages::Never,
        })
        .expect("memory");
        let mut config = PortConfig::new(arena, clock());
        config.device = Some(lab("LAB_DEV"));
        config.queue_pairs_max = 2;
        config.flush_timeout = NEVER;
        config.without_windows = WithoutWindows::Register;
        adjust(&mut config);
        let queues_count = if config.own_receive_queues { 2 } else { 1 };
        let (mut port, handle) = Port::new(config).expect("a port on the device");
        let mut pool = port
            .carve(PoolShape {
                buffers: 5,
                buffer_bytes: BYTES,
                stride_bytes: BYTES,
                align_bytes: BYTES,
            })
            .expect("room");
        let mut queues = Vec::new();
        for _ in 0..queues_count {
            let queue = port
                .create_receive_queue(ReceiveQueueAttributes {
                    depth: 4,
                    segments_max: 1,
                })
                .expect("a receive queue");
            queues.push(queue);
            for _ in 0..4 / queues_count {
                let mut buffers = pool.take().into_iter();
                let receive = port.create_receive(queue, &mut buffers);
                port.post_receive(receive.expect("a Receive"));
            }
        }
        port.flush_receives();
        let mut buffer = pool.take().expect("a buffer");
        port.memory().bytes_mut(&mut buffer).fill(KEPT);
        let options = ManagerOptions {
            handshake_timeout: NEVER,
            ..ManagerOptions::default()
        };
        let mut manager = Manager::with_options(options).expect("RDMA-CM is there");
        let ip: Ipv4Addr = lab("LAB_IP").parse().expect("an IPv4 address");
        let listener = manager
            .listen(&format!("rdma:{ip}:0"))
            .expect("a free port");
        let told = manager.listener_address(listener).expect("it listens");
        let number = told.rsplit(':').next().and_then(|it| it.parse().ok());
        Self {
            manager,
            port,
            handle,
            queues,
            address: (ip, number.expect("a port")),
            arena_bytes,
            buffer: Some(buffer),
            planted: None,
            probes_done: 0,
            is_over: false,
        }
    }

    /// Handles events and accepts connections.
    fn turn(&mut self) {
        let mut events = Vec::new();
        self.manager
            .wait(Duration::from_millis(1), &mut events)
            .expect("the manager works");
        for event in events {
            match event {
                ManagerEvent::ConnectRequest { connection, .. } => {
                    let seed = self.manager.prepare(connection, &self.handle);
                    let queue = if self.queues.len() > 1 {
                        self.queues.remove(0)
                    } else {
                        self.queues[0]
                    };
                    let planted = self
                        .port
                        .adopt_queue_pair(seed.expect("a queue pair"), queue);
                    self.planted = Some(planted.expect("it fits"));
                    self.manager
                        .accept(connection, &[])
                        .expect("the peer waits");
                }
                ManagerEvent::Established {
                    port_event: Some(port_event),
                    ..
                }
                | ManagerEvent::Disconnected {
                    port_event: Some(port_event),
                    ..
                } => self.port.handle_event(port_event),
                _ => {}
            }
        }
        self.port.flush_receives();
        self.port.flush_sends();
        let mut batch = CompletionBatch::new();
        self.port.poll(clock().now(), &mut batch);
        for completion in batch.drain() {
            match completion.kind {
                CompletionKind::Disconnected => self.is_over = true,
                CompletionKind::Write(_) if completion.status == Status::Success => {
                    self.probes_done += 1;
                }
                CompletionKind::Receive { receive, .. } => {
                    self.port.post_receive(receive);
                }
                _ => {}
            }
        }
    }

    fn until<T>(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> Option<T>) -> T {
        let wait = Wait::begin(what);
        loop {
            if let Some(result) = done(self) {
                return result;
            }
            wait.look(|| format!("{:?}", self.port.counters()));
            self.turn();
        }
    }

    /// Connects a new peer.
    fn attacked(&mut self) -> Attacker {
        let attacker = Attacker::towards(self.address);
        self.until("a connection", |_| attacker.answer());
        attacker
    }

    /// Exposes the buffer to the last connected peer.
    fn exposed(&mut self) -> RemoteAddress {
        let both = Access {
            remote_read: true,
            remote_write: true,
        };
        let queue_pair = self.planted.expect("it is connected");
        // Retried: on rxe the peer may be connected before the server is, and the server cannot bind a window yet.
        let window = self.until("a window", |victim| {
            let taken = victim.buffer.take()?;
            match victim.port.bind_window(queue_pair, taken, BYTES, both) {
                Ok(window) => Some(window),
                Err((_, back)) => {
                    victim.buffer = Some(back);
                    None
                }
            }
        });
        // The device executes the work of a queue pair in order, so behind the probe the window is bound.
        let done_before = self.probes_done;
        let probe = self.port.probe(queue_pair, WorkId(0));
        probe.expect("there is room for a probe");
        self.port.flush_sends();
        self.until("the probe behind the binding", |victim| {
            assert!(!victim.is_over, "the connection is over");
            (victim.probes_done > done_before).then_some(())
        });
        window.remote()
    }

    /// The content of the buffer.
    fn holds(&self) -> &[u8] {
        let buffer = self.buffer.as_ref().expect("it is not exposed");
        self.port.memory().bytes(buffer)
    }

    /// The address of the buffer, with the key of the whole arena.
    fn buffer_in_the_arena(&self) -> RemoteAddress {
        let buffer = self.buffer.as_ref().expect("it is not exposed");
        RemoteAddress {
            key: key_of_arena(self.arena_bytes),
            offset: self.port.memory().bytes(buffer).as_ptr().addr() as u64,
        }
    }
}

/// The key of the only region with this length, as the kernel shows it to root.
fn key_of_arena(bytes: u64) -> RemoteKey {
    let output = std::process::Command::new("rdma")
        .args(["-dd", "resource", "show", "mr"])
        .output()
        .expect("the program `rdma`");
    let text = String::from_utf8(output.stdout).expect("text");
    let keys = text.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let value = |name: &str| {
            let place = words.iter().position(|word| *word == name)?;
            words.get(place + 1).copied()
        };
        let key = value("rkey").or(value("lkey"))?.trim_start_matches("0x");
        let key = u32::from_str_radix(key, 16).ok()?;
        (value("mrlen")? == bytes.to_string()).then_some(key)
    });
    let keys: Vec<u32> = keys.collect();
    match keys[..] {
        [key] => RemoteKey(key),
        _ => panic!("{} regions of {bytes} bytes in\n{text}", keys.len()),
    }
}

/// An order to the peer.
#[derive(Clone, Copy, Debug)]
enum Order {
    Write(RemoteAddress),
    Read(RemoteAddress),
}

/// The result of an order: whether the work succeeded, and the content of the peer's memory after it.
#[derive(Debug)]
struct Outcome {
    is_done: bool,
    read: Vec<u8>,
}

/// A peer in its own thread, because its calls block.
struct Attacker {
    orders: Sender<Order>,
    answers: Receiver<Option<Outcome>>,
    thread: JoinHandle<()>,
}

impl Attacker {
    fn towards(address: (Ipv4Addr, u16)) -> Self {
        let (orders, taken) = channel();
        let (answer, answers) = channel();
        let thread = std::thread::spawn(move || {
            let mut raw = Raw::connect(address);
            let _ = answer.send(None);
            while let Ok(order) = taken.recv() {
                let _ = answer.send(Some(raw.carry_out(order)));
            }
        });
        Self {
            orders,
            answers,
            thread,
        }
    }

    /// The next answer, if it has come.
    fn answer(&self) -> Option<Option<Outcome>> {
        match self.answers.try_recv() {
            Ok(answer) => Some(answer),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => panic!("the peer has failed"),
        }
    }

    fn order(&self, order: Order) {
        self.orders.send(order).expect("the peer is there");
    }

    /// Disconnects the peer. The victim must keep working, because it answers the disconnect.
    fn leaves(self, victim: &mut Victim) {
        drop(self.orders);
        victim.until("the end of the connection", |victim| {
            (victim.is_over && self.thread.is_finished()).then_some(())
        });
        self.thread.join().expect("the peer did not fail");
    }
}

/// The peer's objects, created by librdmacm.
struct Raw {
    id: *mut c::rdma_cm_id,
    region: *mut c::ibv_mr,
    memory: Vec<u8>,
}

/// Checks that a call has succeeded.
fn done(what: &str, returned: c_int) {
    let error = std::io::Error::last_os_error();
    assert_eq!(returned, 0, "{what}: {error}");
}

impl Raw {
    fn connect((ip, port): (Ipv4Addr, u16)) -> Self {
        let mut address = libc::sockaddr_in {
            sin_family: u16::try_from(libc::AF_INET).expect("small"),
            sin_port: port.to_be(),
            sin_addr: libc::in_addr {
                s_addr: u32::from_ne_bytes(ip.octets()),
            },
            sin_zero: [0; 8],
        };
        let mut memory = vec![FORGED; BYTES as usize];
        let mut id = std::ptr::null_mut();
        // SAFETY: the calls of librdmacm in their order, on an identifier without a channel, which
        // makes them wait; what they are given lives through them. All zeros is a value of the two
        // structures of numbers and nullable pointers.
        unsafe {
            let null = std::ptr::null_mut();
            let space = c::rdma_port_space::RDMA_PS_TCP;
            let no_context = std::ptr::null_mut();
            done(
                "an identifier",
                c::rdma_create_id(null, &raw mut id, no_context, space),
            );
            let none = std::ptr::null_mut();
            let to = (&raw mut address).cast();
            done(
                "the address",
                c::rdma_resolve_addr(id, none, to, RESOLVE_MS),
            );
            done("the route", c::rdma_resolve_route(id, RESOLVE_MS));
            let mut wanted: c::ibv_qp_init_attr = std::mem::zeroed();
            wanted.qp_type = c::ibv_qp_type::IBV_QPT_RC;
            wanted.cap.max_send_wr = 8;
            wanted.cap.max_recv_wr = 8;
            wanted.cap.max_send_sge = 1;
            wanted.cap.max_recv_sge = 1;
            let default = std::ptr::null_mut();
            done(
                "a queue pair",
                c::rdma_create_qp(id, default, &raw mut wanted),
            );
            let access = c::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE
                | c::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
            let access = c_int::try_from(access.0).expect("small");
            let start = memory.as_mut_ptr().cast();
            let region = c::ibv_reg_mr((*id).pd, start, memory.len(), access);
            assert!(!region.is_null(), "a memory region");
            let mut parameters: c::rdma_conn_param = std::mem::zeroed();
            parameters.responder_resources = 1;
            parameters.initiator_depth = 1;
            parameters.retry_count = 7;
            parameters.rnr_retry_count = 7;
            done("a connection", c::rdma_connect(id, &raw mut parameters));
            Self { id, region, memory }
        }
    }

    /// Posts the work, and then an empty RDMA Write, which succeeds only while the connection exists. On iWARP the
    /// first work may succeed although the peer refuses it.
    fn carry_out(&mut self, order: Order) -> Outcome {
        let (opcode, to) = match order {
            Order::Write(to) => (c::ibv_wr_opcode::IBV_WR_RDMA_WRITE, to),
            Order::Read(from) => (c::ibv_wr_opcode::IBV_WR_RDMA_READ, from),
        };
        self.memory.fill(FORGED);
        let mut segment = c::ibv_sge {
            addr: self.memory.as_ptr().addr() as u64,
            length: BYTES,
            // SAFETY: the region lives as long as `self`.
            lkey: unsafe { (*self.region).lkey },
        };
        // SAFETY: numbers and nullable pointers, for which zero is a value.
        let mut request: c::ibv_send_wr = unsafe { std::mem::zeroed() };
        request.sg_list = &raw mut segment;
        request.num_sge = 1;
        request.opcode = opcode;
        request.send_flags = c::ibv_send_flags::IBV_SEND_SIGNALED.0;
        request.wr.rdma = c::rdma_t {
            remote_addr: to.offset,
            rkey: to.key.0,
        };
        let mut bad = std::ptr::null_mut();
        // SAFETY: a queue pair that lives, and a chain of one work whose segment is registered.
        let posted = unsafe { c::ibv_post_send((*self.id).qp, &raw mut request, &raw mut bad) };
        let is_done = posted == 0 && self.completes();
        Outcome {
            is_done,
            read: self.memory.clone(),
        }
    }

    /// Whether the next work succeeds. A device completes every work, one of a connection that ends with an error.
    fn completes(&mut self) -> bool {
        let wait = Wait::begin("a completion of the peer");
        // SAFETY: numbers, for which zero is a value.
        let mut completion: c::ibv_wc = unsafe { std::mem::zeroed() };
        loop {
            // SAFETY: a completion queue that lives, and room for one completion.
            let count = unsafe { c::ibv_poll_cq((*self.id).send_cq, 1, &raw mut completion) };
            if count != 0 {
                return count == 1 && completion.status == c::ibv_wc_status::IBV_WC_SUCCESS;
            }
            wait.look(String::new);
            // TIME: a pause between two looks; a longer one changes nothing.
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // SAFETY: the objects that `connect` made, released once, in the order that librdmacm requires.
        unsafe {
            c::rdma_disconnect(self.id);
            c::rdma_destroy_qp(self.id);
            c::ibv_dereg_mr(self.region);
            c::rdma_destroy_id(self.id);
        }
    }
}

/// Gives an order and returns its result.
fn outcome(victim: &mut Victim, attacker: &Attacker, order: Order) -> Outcome {
    attacker.order(order);
    let answer = victim.until("an answer", |_| attacker.answer());
    answer.expect("the outcome")
}

/// The peer can access memory that is exposed to it. So a successful attack would be visible, and the next tests can
/// fail.
#[test]
fn a_peer_reaches_what_is_exposed_to_it() {
    let mut victim = Victim::new(3 << 20);
    let attacker = victim.attacked();
    let to = victim.exposed();
    let read = outcome(&mut victim, &attacker, Order::Read(to));
    assert!(read.is_done);
    assert_eq!(read.read, [KEPT; BYTES as usize]);
    assert!(outcome(&mut victim, &attacker, Order::Write(to)).is_done);
    let read = outcome(&mut victim, &attacker, Order::Read(to));
    assert!(read.is_done);
    assert_eq!(read.read, [FORGED; BYTES as usize]);
    assert!(!victim.is_over);
    attacker.leaves(&mut victim);
}

/// Two peers of one port. If their queue pairs share a protection domain, each can use the key of the other's memory:
/// this shows that the other half of the test can fail. If each queue pair has its own domain, the key opens nothing
/// and costs the thief its connection, while the victim's connection continues.
#[test]
fn the_key_of_one_peer_opens_nothing_to_another() {
    let is_siw = lab("LAB_DEV").starts_with("siw");
    for (arena_bytes, is_apart, writes) in [
        (10 << 20, false, false),
        (11 << 20, false, true),
        (12 << 20, true, false),
        (13 << 20, true, true),
    ] {
        if is_siw && !writes {
            println!("skipped: software iWARP lets a peer read whatever is registered");
            continue;
        }
        let mut victim = Victim::with(arena_bytes, |config| {
            config.without_windows = WithoutWindows::RegisterAnyway;
            config.own_receive_queues = is_apart;
        });
        let owner = victim.attacked();
        let at = victim.exposed();
        let thief = victim.attacked();
        let order = if writes {
            Order::Write(at)
        } else {
            Order::Read(at)
        };
        let stolen = outcome(&mut victim, &thief, order);
        let read = outcome(&mut victim, &owner, Order::Read(at));
        assert!(read.is_done, "the owner goes on: {order:?}");
        let (kept, forged) = ([KEPT; BYTES as usize], [FORGED; BYTES as usize]);
        let (seen, held) = match (is_apart, writes) {
            (false, false) => (kept, kept),
            (false, true) => (forged, forged),
            (true, _) => (forged, kept),
        };
        // On iWARP a work is done when it has left.
        assert!(stolen.is_done != is_apart || is_siw, "{order:?}");
        assert!(
            stolen.read == seen,
            "what the thief's memory holds: {order:?}"
        );
        assert!(read.read == held, "what the buffer holds: {order:?}");
        thief.leaves(&mut victim);
        owner.leaves(&mut victim);
    }
}

/// A peer cannot write with the key of the arena.
#[test]
fn no_peer_writes_to_the_arena() {
    let mut victim = Victim::new(4 << 20);
    let to = victim.buffer_in_the_arena();
    let attacker = victim.attacked();
    let write = outcome(&mut victim, &attacker, Order::Write(to));
    // On iWARP a work is done when it has left.
    println!("{write:?}");
    attacker.leaves(&mut victim);
    assert!(victim.holds().iter().all(|byte| *byte == KEPT));
}

/// A peer cannot read with it either.
#[test]
fn no_peer_reads_from_the_arena() {
    if lab("LAB_DEV").starts_with("siw") {
        println!(
            "skipped no_peer_reads_from_the_arena: software iWARP lets a peer read whatever is \
             registered, if it has the key"
        );
        return;
    }
    let mut victim = Victim::new(5 << 20);
    let from = victim.buffer_in_the_arena();
    nothing_is_read(&mut victim, from);
}

/// A peer without the key must guess it, and each guess costs a connection.
#[test]
fn a_peer_that_guesses_keys_reads_nothing() {
    for (arena_bytes, flip) in [
        (6 << 20, 1),
        (7 << 20, 1 << 8),
        (8 << 20, 1 << 20),
        (9 << 20, 1 << 31),
    ] {
        let mut victim = Victim::new(arena_bytes);
        let right = victim.buffer_in_the_arena();
        let guessed = RemoteAddress {
            key: RemoteKey(right.key.0 ^ flip),
            ..right
        };
        nothing_is_read(&mut victim, guessed);
    }
}

/// Checks that a read from this address returns nothing and costs the peer its connection.
fn nothing_is_read(victim: &mut Victim, from: RemoteAddress) {
    let attacker = victim.attacked();
    let read = outcome(victim, &attacker, Order::Read(from));
    attacker.leaves(victim);
    assert!(!read.is_done);
    assert!(read.read.iter().all(|byte| *byte == FORGED), "{from:?}");
}
