//! The two ends of a test: each a connection manager and a port.

use std::sync::OnceLock;
use std::time::Duration;

use rpcrdma_fabric::clock::Clock;
use rpcrdma_fabric::interface::prelude::*;
use rpcrdma_fabric::interface::{
    CompletionBatch, CompletionKind, ConnectionId, ListenerId, Manager as _, ManagerEvent,
    QueuePairId, ReceiveQueueAttributes, ReceiveQueueId, SendOptions,
};
use rpcrdma_fabric::memory::{Arena, ArenaOptions, Buffer, HugePages, PoolShape};
use rpcrdma_fabric::verbs::{Manager, ManagerOptions, Port, PortConfig, PortHandle};
use rpcrdma_testkit::Wait;

/// Options with which no slow machine is taken for a dead one.
// TIME: the first two are longer than any test may run, and the third lets a peer be silent for 17 s.
pub(crate) fn patient() -> ManagerOptions {
    ManagerOptions {
        handshake_timeout: Duration::from_secs(24 * 60 * 60),
        resolve_timeout: Duration::from_secs(10 * 60),
        ack_timeout_exponent: 19,
        ..ManagerOptions::default()
    }
}

pub(crate) fn device() -> String {
    std::env::var("LAB_DEV").expect("LAB_DEV: run this in the lab, tests/lab")
}

/// Whether the lab's device is software iWARP.
pub(crate) fn is_iwarp() -> bool {
    device().starts_with("siw")
}

/// This host's address on the device, with the given port.
pub(crate) fn at(port: u16) -> String {
    let ip = std::env::var("LAB_IP").expect("LAB_IP: run this in the lab, tests/lab");
    format!("rdma:{ip}:{port}")
}

pub(crate) fn clock() -> Clock {
    static CLOCK: OnceLock<Clock> = OnceLock::new();
    CLOCK.get_or_init(Clock::new).clone()
}

/// A manager, and a port with posted Receives.
pub(crate) struct End {
    pub(crate) manager: Manager,
    pub(crate) port: Port,
    pub(crate) handle: PortHandle,
    pub(crate) queue: ReceiveQueueId,
    pub(crate) send: Buffer,
    pub(crate) events: Vec<ManagerEvent<Port>>,
    pub(crate) received: Vec<Vec<u8>>,
    pub(crate) gone: Vec<QueuePairId>,
}

impl End {
    pub(crate) fn new() -> Self {
        Self::with(patient(), |_| {})
    }

    pub(crate) fn with(options: ManagerOptions, change: impl FnOnce(&mut PortConfig)) -> Self {
        let arena = Arena::private(&ArenaOptions {
            bytes: 4 << 20,
            huge_pages: HugePages::Never,
        })
        .expect("four megabytes");
        let mut config = PortConfig::new(arena, clock());
        config.device = Some(device());
        config.queue_pairs_max = 8;
        config.work_requests_max = 64;
        change(&mut config);
        let (mut port, handle) = Port::new(config).expect("a port on the device");
        let shape = |buffers| PoolShape {
            buffers,
            buffer_bytes: 1024,
            stride_bytes: 1024,
            align_bytes: 4096,
        };
        let queue = port
            .create_receive_queue(ReceiveQueueAttributes {
                depth: 64,
                segments_max: 1,
            })
            .expect("a receive queue");
        let mut pool = port.carve(shape(64)).expect("room for the Receives");
        while let Some(buffer) = pool.take() {
            let receive = port
                .create_receive(queue, &mut std::iter::once(buffer))
                .expect("a Receive");
            port.post_receive(receive);
        }
        port.flush_receives();
        let send = port.carve(shape(1)).expect("room for a Send").take();
        Self {
            manager: Manager::with_options(options).expect("RDMA-CM is there"),
            port,
            handle,
            queue,
            send: send.expect("a buffer"),
            events: Vec::new(),
            received: Vec::new(),
            gone: Vec::new(),
        }
    }

    pub(crate) fn listen(&mut self) -> (ListenerId, String) {
        let listener = self.manager.listen(&at(0)).expect("any port is free");
        let address = self.manager.listener_address(listener);
        (listener, address.expect("it listens"))
    }

    /// Collects the manager's events, and passes notices to the port.
    pub(crate) fn turn(&mut self) {
        self.manager
            .wait(Duration::ZERO, &mut self.events)
            .expect("the manager works");
        let mut batch = CompletionBatch::new();
        self.port.poll(clock().now(), &mut batch);
        for completion in batch.drain() {
            match completion.kind {
                CompletionKind::Receive { receive, bytes, .. } => {
                    let whole = self.port.received(&receive);
                    self.received.push(whole[..bytes as usize].to_vec());
                    self.port.post_receive(receive);
                }
                CompletionKind::Disconnected => self.gone.push(completion.queue_pair),
                _ => {}
            }
        }
        self.port.flush_receives();
        self.port.flush_sends();
    }

    pub(crate) fn say(&mut self, queue_pair: QueuePairId, words: &[u8]) {
        self.port.memory().bytes_mut(&mut self.send)[..words.len()].copy_from_slice(words);
        let bytes = u32::try_from(words.len()).expect("a short message");
        self.port
            .post_send_copied(queue_pair, &self.send, bytes, SendOptions::default())
            .expect("the queue is empty");
        self.port.flush_sends();
    }

    /// Adopts the queue pair of `connection`.
    pub(crate) fn adopt_queue_pair(&mut self, connection: ConnectionId) -> (QueuePairId, u8) {
        let seed = self
            .manager
            .prepare(connection, &self.handle)
            .expect("a queue pair");
        let depth = seed.initiator_depth;
        (
            self.port
                .adopt_queue_pair(seed, self.queue)
                .expect("it fits"),
            depth,
        )
    }

    pub(crate) fn note(&mut self, event: &ManagerEvent<Port>) {
        if let ManagerEvent::Established {
            port_event: Some(port_event),
            ..
        }
        | ManagerEvent::Disconnected {
            port_event: Some(port_event),
            ..
        } = event
        {
            self.port.handle_event(*port_event);
        }
    }

    pub(crate) fn counter(&self, name: &str) -> u64 {
        let counters = self.manager.counters();
        let found = counters.iter().find(|(found, _)| *found == name);
        found.expect("a counter of that name").1
    }
}

/// Runs both ends until `done` returns a value.
pub(crate) fn until<T>(
    ends: &mut [&mut End],
    what: &str,
    mut done: impl FnMut(&mut [&mut End]) -> Option<T>,
) -> T {
    let wait = Wait::begin(what);
    loop {
        for end in ends.iter_mut() {
            end.turn();
        }
        if let Some(result) = done(ends) {
            return result;
        }
        wait.look(|| {
            let counters = ends.iter().map(|end| end.manager.counters());
            format!("{:?}", counters.collect::<Vec<_>>())
        });
        // TIME: a pause between two looks; a longer one changes nothing.
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// The next event of the end with this index.
pub(crate) fn event(ends: &mut [&mut End], index: usize, what: &str) -> ManagerEvent<Port> {
    let event = until(ends, what, |ends| {
        let events = &mut ends[index].events;
        (!events.is_empty()).then(|| events.remove(0))
    });
    ends[index].note(&event);
    event
}

/// The connection between two ends.
pub(crate) struct Connected {
    pub(crate) client: ConnectionId,
    pub(crate) server: ConnectionId,
    pub(crate) client_queue_pair: QueuePairId,
    pub(crate) server_queue_pair: QueuePairId,
    pub(crate) client_depth: u8,
    pub(crate) server_depth: u8,
}

pub(crate) fn connect(client: &mut End, server: &mut End, address: &str) -> Connected {
    let (connected, peer) = connect_to(client, server, address);
    assert!(address.ends_with(&peer), "{peer} is {address}");
    connected
}

/// Checks that private data arrives as sent. Except on iWARP, it arrives in an area of fixed size, padded with zeros.
pub(crate) fn assert_is(arrived: &[u8], sent: &[u8]) {
    let padding = arrived.strip_prefix(sent).expect("what was sent");
    assert_eq!(padding.is_empty(), is_iwarp(), "{arrived:?}");
    assert!(padding.iter().all(|byte| *byte == 0), "{arrived:?}");
}

/// Connects, and returns the name of the client's peer.
pub(crate) fn connect_to(client: &mut End, server: &mut End, address: &str) -> (Connected, String) {
    let id = client
        .manager
        .connect(address, &client.handle, b"from the client")
        .expect("the address can be used");
    let mut ends = [client, server];
    let ManagerEvent::ConnectRequest {
        connection,
        peer,
        private_data,
        ..
    } = event(&mut ends, 1, "the request")
    else {
        panic!("a request comes first")
    };
    assert_is(&private_data, b"from the client");
    assert!(!peer.name.is_empty());
    let (server_queue_pair, server_depth) = ends[1].adopt_queue_pair(connection);
    ends[1]
        .manager
        .accept(connection, b"from the server")
        .expect("the client waits");
    let ManagerEvent::ConnectReply {
        connection: same,
        peer,
        private_data,
    } = event(&mut ends, 0, "the reply")
    else {
        panic!("a reply comes next")
    };
    assert_eq!(same, id);
    assert_is(&private_data, b"from the server");
    let (client_queue_pair, client_depth) = ends[0].adopt_queue_pair(id);
    ends[0].manager.confirm(id).expect("the server waits");
    for (index, expected) in [(0, id), (1, connection)] {
        match event(&mut ends, index, "the connection") {
            ManagerEvent::Established { connection, .. } => assert_eq!(connection, expected),
            _ => panic!("end {index} is established"),
        }
    }
    let connected = Connected {
        client: id,
        server: connection,
        client_queue_pair,
        server_queue_pair,
        client_depth,
        server_depth,
    };
    (connected, peer.name)
}
