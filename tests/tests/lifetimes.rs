//! Orders in which a program may drop what it has, drawn over the real facade on shm with mailboxes of one to three commands:
//! nodes, servers, polled cores, clients, futures, pollers and answers, in any order, on any thread, while they connect, call
//! and drain, in handlers and in wakers. Whatever the order, nothing of them stays, and no drop waits for ever.
//!
//! `RPCRDMA_LIFETIMES` is the number of runs (2000), and `RPCRDMA_LIFETIMES_SEED` that of the first.
#![forbid(unsafe_code)]
#![cfg(target_os = "linux")]

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Wake, Waker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rpcrdma::prelude::*;
use rpcrdma::{Authentication, ConnectionKey, HostIdentity, Idle, Later, Metrics};
use rpcrdma::{NodeBuilder, Pending, PolledCore, Poller, Profile, Reconnect};
use rpcrdma_testkit::{PATIENCE, Random, Wait, until};

const PROGRAM: u32 = 0x2000_0f10;
/// Sends its opaque back.
const ECHO: Procedure = Procedure::new(PROGRAM, 1, 1);
/// Is answered when the run says so, or when the answer is dropped.
const HELD: Procedure = Procedure::new(PROGRAM, 1, 2);
/// Drops something of the run on the core that serves it.
const DROP: Procedure = Procedure::new(PROGRAM, 1, 3);

/// What a program has. The order of dropping is drawn.
enum Thing {
    Server(Server),
    Node(Node),
    Core(PolledCore),
    Client(Client),
    Call(Pending),
    Poller(Poller),
    Later(Later),
}

/// What the threads of a run share.
#[derive(Default)]
struct Shared {
    /// For handlers and wakers to drop.
    to_drop: Mutex<Vec<Thing>>,
    answers: Mutex<Vec<Later>>,
    connections: Mutex<Vec<ConnectionKey>>,
}

impl Shared {
    /// Drops something, if there is anything, without a lock: it may call back.
    fn drop_one(&self) {
        let thing = self.to_drop.lock().unwrap().pop();
        drop(thing);
    }
}

struct TestService(Arc<Shared>);

impl Service for TestService {
    fn call(&mut self, call: &mut Incoming<'_>, reply: &mut Reply<'_, '_>) -> Result<(), Refusal> {
        match call.named() {
            HELD => {
                let later = call.later()?;
                self.0.answers.lock().unwrap().push(later);
            }
            DROP => self.0.drop_one(),
            _ => {
                reply.bytes(call.args().rest());
            }
        }
        Ok(())
    }

    fn connected(&mut self, connection: ConnectionKey, _: Option<&HostIdentity>) {
        self.0.connections.lock().unwrap().push(connection);
    }
}

/// A waker that drops something on the thread that wakes it, as a task that ends does.
struct Dropping(Arc<Shared>);

impl Wake for Dropping {
    fn wake(self: Arc<Self>) {
        self.0.drop_one();
    }
}

/// Small, with places for few.
fn profile(mailbox_depth: u32) -> Profile {
    Profile {
        connections_max: 6,
        credits_per_connection: 8,
        calls_outstanding_max: 32,
        reassembly_buffers: 2,
        bulk_buffers: 4,
        mailbox_depth,
        reconnects_per_second_max: 10_000,
        idle: Idle::Park,
        idle_park_after_us: 20,
        // TIME: a call that is held lasts until it is answered or dropped, and no run waits for one.
        call_timeout_ms: 300_000,
        keep_alive_silent_ticks_max: 255,
        stall_timeout_ms: 600_000,
        ..Profile::default()
    }
}

fn serving(builder: NodeBuilder, shared: &Arc<Shared>, mailbox_depth: u32) -> NodeBuilder {
    let shared = Arc::clone(shared);
    let service = move |_| TestService(Arc::clone(&shared));
    let builder = builder.profile(profile(mailbox_depth));
    builder.program(PROGRAM, 1..=1, service)
}

/// What lives through all runs: a server, and a node with clients, which must have lost nothing after each.
struct Hub {
    server: Server,
    node: Node,
    /// Keeps what the two have of each other, such as mapped memory.
    client: Client,
    shared: Arc<Shared>,
}

impl Hub {
    fn start() -> Self {
        let shared = Arc::<Shared>::default();
        let at = address("hub");
        let server = serving(Server::builder(), &shared, 2).listen(&at).unwrap();
        let node = Node::builder().profile(profile(2)).start(&at).unwrap();
        let client = node.client().depth(1).connect_timeout(PATIENCE);
        let client = client.connect(&at).unwrap();
        Self {
            server,
            node,
            client,
            shared,
        }
    }

    /// Waits until it has all places again.
    fn check(&self, seed: u64) {
        self.shared.answers.lock().unwrap().clear();
        self.shared.connections.lock().unwrap().clear();
        self.wait_closed(seed);
        let what = format!("run {seed}: all places for calls");
        let client = until(&what, || {
            let places = profile(2).calls_outstanding_max - 1;
            let client = self.node.client().depth(places);
            let client = client.connect_timeout(PATIENCE);
            client.connect(self.server.address()).ok()
        });
        drop(client);
        // A port of shm forgets a peer that is gone when a connection ends at the latest, as this one does.
        self.wait_closed(seed);
        let mut request = self.client.request(ECHO);
        let answered = request.timeout(PATIENCE).call();
        answered.expect("the connection that stays is there");
    }

    fn wait_closed(&self, seed: u64) {
        for (name, metrics) in [
            ("server", self.server.metrics()),
            ("node", self.node.metrics()),
        ] {
            let what = format!("run {seed}: the end of all connections of the {name}");
            let wait = Wait::begin(&what);
            while connections(&metrics) != 1 {
                wait.look(|| format!("{:?}", told(&metrics)));
                std::thread::yield_now();
            }
        }
    }
}

/// Connections that a core has and has not closed.
fn connections(metrics: &Metrics) -> u64 {
    let closed = metrics.total("connections_closed").unwrap_or_default();
    let planted = metrics.total("connections_planted").unwrap_or_default();
    planted - closed
}

/// What it counts, for people.
fn told(metrics: &Metrics) -> Vec<(&'static str, u64)> {
    let values = metrics.values().into_iter().filter(|it| it.value != 0);
    values.map(|it| (it.name, it.value)).collect()
}

fn address(what: &str) -> String {
    format!("shm:lifetimes-{}-{what}", std::process::id())
}

/// What this process has open, and the names of its threads, each with how many there are.
fn opened() -> BTreeMap<String, u32> {
    let mut all = BTreeMap::new();
    for folder in ["fd", "task"] {
        for entry in std::fs::read_dir(format!("/proc/self/{folder}")).unwrap() {
            let path = entry.unwrap().path();
            // What has ended meanwhile is not there.
            let name = match folder {
                "fd" => std::fs::read_link(path).map(|it| it.to_string_lossy().into_owned()),
                _ => std::fs::read_to_string(path.join("comm")),
            };
            let kind = name.map(|it| it.split([':', '[']).take(2).collect::<Vec<_>>().join(":"));
            let kind = kind.map(|it| {
                if it.starts_with("socket") {
                    "socket".to_owned()
                } else {
                    it
                }
            });
            if let Ok(kind) = kind {
                *all.entry(kind).or_default() += 1;
            }
        }
    }
    all
}

type Step<'a> = (&'static str, fn(&mut Run<'a>));

/// One run: steps, and then the end of everything.
struct Run<'a> {
    hub: &'a Hub,
    random: Random,
    at: String,
    shared: Arc<Shared>,
    things: Vec<Thing>,
    threads: Vec<JoinHandle<()>>,
    waker: Waker,
    steps: VecDeque<&'static str>,
}

impl<'a> Run<'a> {
    fn step(&mut self) {
        let steps: [Step<'a>; 15] = [
            ("server", Self::server),
            ("polled", Self::polled),
            ("client", Self::client),
            ("client", Self::client),
            ("client of the hub", Self::client_of_hub),
            ("call", Self::call),
            ("call", Self::call),
            ("call", Self::call),
            ("poller", Self::poller),
            ("poll", Self::poll),
            ("wait", Self::wait),
            ("close", Self::close),
            ("drain", Self::drain),
            ("drop", Self::drop_one),
            ("give", Self::give),
        ];
        let (name, step) = self.random.pick(&steps);
        self.steps.push_back(name);
        step(self);
    }

    fn depth(&mut self) -> u32 {
        self.random.between(1, 3)
    }

    fn server(&mut self) {
        let depth = self.depth();
        // Nobody else listens there, unless this run does.
        let server = serving(Server::builder(), &self.shared, depth).listen(&self.at);
        self.things.extend(server.ok().map(Thing::Server));
    }

    fn polled(&mut self) {
        let depth = self.depth();
        let node = serving(Node::builder(), &self.shared, depth).polled_by_caller();
        let node = node.start(&self.at).unwrap();
        let core = node.take_core(0).expect("nobody has taken it");
        let _ = node.listen(&self.at, Authentication::Fabric);
        self.things.push(Thing::Core(core));
        self.things.push(Thing::Node(node));
    }

    fn client(&mut self) {
        let depth = self.depth();
        let nodes = self.things.iter().filter_map(|thing| match thing {
            Thing::Node(node) => Some(node.clone()),
            Thing::Server(server) => Some(server.node().clone()),
            _ => None,
        });
        let nodes: Vec<_> = nodes.collect();
        let builder = match nodes.is_empty() || self.random.once_in(2) {
            true => Client::builder().profile(profile(depth)),
            false => self.random.pick(&nodes).client(),
        };
        self.connect(builder);
    }

    fn client_of_hub(&mut self) {
        self.connect(self.hub.node.client());
    }

    fn connect(&mut self, builder: rpcrdma::ClientBuilder) {
        let reconnect = Reconnect {
            first_ms: 1,
            most_ms: 5,
            ..Reconnect::default()
        };
        let mut at = self.at.as_str();
        if self.random.once_in(2) {
            at = self.hub.server.address();
        }
        let limit_us = self.random.between(100, 4000);
        let builder = builder.depth(2).reconnect(reconnect);
        let builder = builder.repeat(self.random.once_in(2));
        // TIME: a limit that is about as long as connecting takes, so that some attempts fail at each stage.
        let builder = builder.connect_timeout(Duration::from_micros(limit_us.into()));
        self.things
            .extend(builder.connect_later(at).ok().map(Thing::Client));
    }

    fn clients(&self) -> Vec<Client> {
        let clients = self.things.iter().filter_map(|thing| match thing {
            Thing::Client(client) => Some(client.clone()),
            _ => None,
        });
        clients.collect()
    }

    /// Begins a call. What it waits in, a slot or the line for one, is left to chance.
    fn call(&mut self) {
        let clients = self.clients();
        if clients.is_empty() {
            return;
        }
        let client = self.random.pick(&clients);
        let procedure = self.random.pick(&[ECHO, HELD, DROP]);
        let mut call = client.call_async(procedure, b"abcd");
        if !self.random.once_in(8) {
            let _ = Pin::new(&mut call).poll(&mut Context::from_waker(&self.waker));
        }
        self.things.push(Thing::Call(call));
    }

    fn poller(&mut self) {
        let clients = self.clients();
        if clients.is_empty() {
            return;
        }
        let client = self.random.pick(&clients);
        // The core may have no place for it.
        let Ok(mut poller) = client.poller(2) else {
            return;
        };
        for tag in 0..self.random.below(3) as u64 {
            let mut request = poller.request(self.random.pick(&[ECHO, HELD, DROP]));
            poller.submit(&mut request, tag).expect("there is room");
        }
        {
            let next = std::pin::pin!(poller.next());
            let _ = next.poll(&mut Context::from_waker(&self.waker));
        }
        self.things.push(Thing::Poller(poller));
    }

    /// Polls cores and calls.
    fn poll(&mut self) {
        for thing in &mut self.things {
            match thing {
                Thing::Core(core) => {
                    for _ in 0..self.random.below(100) {
                        core.poll();
                    }
                }
                Thing::Call(call) if self.random.once_in(2) => {
                    let _ = Pin::new(call).poll(&mut Context::from_waker(&self.waker));
                }
                Thing::Poller(poller) => drop(poller.complete()),
                _ => {}
            }
        }
    }

    /// Lets the other threads come as far as they do.
    fn wait(&mut self) {
        for _ in 0..self.random.below(200) {
            std::thread::yield_now();
        }
    }

    /// Orders for cores, more than their mailboxes hold.
    fn close(&mut self) {
        let keys = self.shared.connections.lock().unwrap().clone();
        if keys.is_empty() {
            return;
        }
        let key = self.random.pick(&keys);
        for thing in &self.things {
            // Not by a client: the key may be one that the hub has.
            let node = match thing {
                Thing::Node(node) => node,
                Thing::Server(server) => server.node(),
                _ => continue,
            };
            for _ in 0..6 {
                node.close(0, key);
            }
        }
    }

    fn drain(&mut self) {
        // On another thread: this one polls.
        let server = self.things.iter().find_map(|thing| match thing {
            Thing::Server(server) => Some(server.clone()),
            _ => None,
        });
        if let Some(server) = server.filter(|_| self.random.once_in(4)) {
            self.threads.push(std::thread::spawn(move || {
                let _ = server.drain(Duration::ZERO);
            }));
        }
    }

    fn take(&mut self) -> Option<Thing> {
        let index = self.random.below(self.things.len());
        (!self.things.is_empty()).then(|| self.things.swap_remove(index))
    }

    /// Drops something here or on another thread, or an answer.
    fn drop_one(&mut self) {
        let answer = self.shared.answers.lock().unwrap().pop();
        if let Some(later) = answer {
            self.things.push(Thing::Later(later));
        }
        match self.take() {
            Some(Thing::Later(later)) if self.random.once_in(2) => later.reply(|_| {}),
            Some(thing) if self.random.once_in(3) => {
                self.threads.push(std::thread::spawn(move || drop(thing)));
            }
            thing => drop(thing),
        }
    }

    /// Gives something to handlers and wakers.
    fn give(&mut self) {
        let thing = self.take();
        self.shared.to_drop.lock().unwrap().extend(thing);
    }

    fn end(mut self) {
        while let Some(thing) = self.take() {
            drop(thing);
            if self.random.once_in(3) {
                self.shared.drop_one();
            }
        }
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
        // What handlers and wakers left. What they add meanwhile they drop.
        loop {
            let things = std::mem::take(&mut *self.shared.to_drop.lock().unwrap());
            let answers = std::mem::take(&mut *self.shared.answers.lock().unwrap());
            if things.is_empty() && answers.is_empty() {
                break;
            }
            drop((things, answers));
        }
    }
}

fn asked(name: &str, default: u64) -> u64 {
    let text = std::env::var(name);
    text.map_or(default, |text| text.parse().expect("a number"))
}

#[test]
fn drops_in_any_order_leave_nothing_behind() {
    // TIME: it bounds the number of runs, and nothing is compared with it. The steps of a run take a few milliseconds, but
    // hundreds on a machine with other work.
    let (begin, time) = (Instant::now(), Duration::from_secs(60));
    static HUB: OnceLock<Hub> = OnceLock::new();
    let hub = HUB.get_or_init(Hub::start);
    let (first, runs) = (
        asked("RPCRDMA_LIFETIMES_SEED", 1),
        asked("RPCRDMA_LIFETIMES", 2000),
    );
    let before = opened();
    let mut done = 0;
    for seed in first..first + runs {
        // TIME: as above.
        if begin.elapsed() > time && std::env::var_os("RPCRDMA_LIFETIMES").is_none() {
            break;
        }
        let shared = Arc::<Shared>::default();
        // Each waker is this one: those that stay are counted.
        let waker = Arc::new(Dropping(Arc::clone(&shared)));
        let steps = Arc::<Mutex<VecDeque<&str>>>::default();
        let thread = {
            let (shared, waker) = (Arc::clone(&shared), Waker::from(Arc::clone(&waker)));
            let told = Arc::clone(&steps);
            std::thread::spawn(move || {
                let mut run = Run {
                    hub,
                    random: Random(seed),
                    at: address(&seed.to_string()),
                    shared,
                    things: Vec::new(),
                    threads: Vec::new(),
                    waker,
                    steps: VecDeque::new(),
                };
                for _ in 0..run.random.between(4, 24) {
                    run.step();
                    told.lock().unwrap().clone_from(&run.steps);
                }
                run.end();
            })
        };
        let what = || format!("run {seed}, of {:?}", steps.lock().unwrap());
        until(&format!("{}: the end of all drops", what()), || {
            thread.is_finished().then_some(())
        });
        thread.join().unwrap();
        hub.check(seed);
        until(&format!("{}: no waker", what()), || {
            (Arc::strong_count(&waker) == 1).then_some(())
        });
        drop(waker);
        // Cores that end behind a drop on their own thread have the service.
        until(&format!("{}: no core", what()), || {
            (Arc::strong_count(&shared) == 1).then_some(())
        });
        let what = format!("{}: no descriptor or thread", what());
        let wait = Wait::begin(&what);
        while opened() != before {
            // A handler that runs until its core ends may leave an answer behind, which holds the core's descriptors.
            drop(std::mem::take(&mut *shared.answers.lock().unwrap()));
            drop(std::mem::take(&mut *shared.to_drop.lock().unwrap()));
            wait.look(|| format!("{:?}, and before {before:?}", opened()));
            std::thread::yield_now();
        }
        done += 1;
    }
    println!("{done} of {runs} runs in {PATIENCE:?} each at most");
    // TIME: a tenth of a run in a second is a hundred times slower than a machine with other work.
    assert!(done > 5, "only {done} runs");
}
