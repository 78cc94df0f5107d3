//! TCP as a transport of a node's programs (RFC 5531 section 11): for clients without RDMA, such as those that mount NFS.
//!
//! One thread has all sockets. It hands whole messages to cores, as [`Parcel`]s, and sends the
//! replies that come back; so a core makes no system call, and what serves a call does not see how it came. A connection stays
//! with one core. Replies go in the order in which calls end.
//!
//! Everything that a peer can make the node keep is bounded: [`Limits`]. A connection whose replies nobody reads is not read
//! either.

mod connection;
#[cfg(test)]
mod tests;
mod thread;

use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_queue::ArrayQueue;
use rpcrdma_control::{
    Authentication, DrainReport, NodeConfig, NodeError, NodeHandle, host_and_port,
};
use rpcrdma_fabric::interface::ManagerError;
use rustix::event::{EventfdFlags, eventfd};

use self::thread::Thread;
use crate::error::{Error, Failure};
use crate::exchange::{CoreShared, Parcel};

/// What addresses on TCP begin with.
pub(crate) const SCHEME: &str = "tcp:";

/// Longest messages, in octets: 1 MiB of data, with room for headers and other arguments.
const MESSAGE_BYTES_MAX: usize = (1 << 20) + (64 << 10);

/// Connections at a time, if the program says nothing else.
pub(crate) const CONNECTIONS_MAX: u32 = 256;

/// A connection on which nothing moves for so long is closed, unless one of its calls runs; the Linux NFS server does so, too.
const IDLE_LIMIT: Duration = Duration::from_secs(360);

/// What peers may use, in addition to the limit of connections of one address that all listeners of a node have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Connections at a time. Those beyond it are closed immediately.
    pub(crate) connections_max: u32,
    /// Octets of a message. A longer call ends its connection, and a longer reply becomes SYSTEM_ERR.
    pub(crate) message_bytes_max: usize,
    /// The index of the first connection: those of the cores themselves come before it.
    pub(crate) first_index: u32,
    /// As [`IDLE_LIMIT`].
    pub(crate) idle: Duration,
}

impl Limits {
    /// Those of a node, with so many connections.
    pub(crate) fn of(config: &NodeConfig, connections_max: u32) -> Self {
        Self {
            connections_max,
            message_bytes_max: MESSAGE_BYTES_MAX.max(config.core.message_bytes_max as usize),
            first_index: config.core.connections_max,
            idle: IDLE_LIMIT,
        }
    }
}

/// What the thread counts.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    accepted: AtomicU64,
    refused: AtomicU64,
    calls: AtomicU64,
    ignored: AtomicU64,
}

impl Counters {
    /// What [`Counters::values`] mean, in their order.
    pub(crate) const MEANINGS: [&str; 4] = [
        "Connections by TCP that were accepted.",
        "Connections by TCP beyond the limits, of one address or of all.",
        "Calls by TCP that were answered, with an error or not.",
        "Messages by TCP that were no calls, and had no answer.",
    ];

    /// Each with its name.
    pub(crate) fn values(&self) -> [(&'static str, u64); 4] {
        // Relaxed: they publish nothing else.
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [
            ("tcp_connections_accepted", of(&self.accepted)),
            ("tcp_connections_refused", of(&self.refused)),
            ("tcp_calls", of(&self.calls)),
            ("tcp_messages_ignored", of(&self.ignored)),
        ]
    }
}

/// A listener at `tcp:HOST:PORT`.
pub(crate) fn bind(address: &str) -> Result<TcpListener, Error> {
    let place = address.strip_prefix(SCHEME).unwrap_or(address);
    let (host, port) = host_and_port(place).map_err(|fault| fault.of(address))?;
    TcpListener::bind((&*host, port)).map_err(|source| {
        let address = address.to_owned();
        match source.kind() {
            io::ErrorKind::AddrInUse => NodeError::from(ManagerError::InUse { address }).into(),
            _ => Failure::Tcp { address, source }.into(),
        }
    })
}

/// The TCP of a node. Its thread begins with the first listener.
pub(crate) struct Tcp {
    cores: Arc<[Arc<CoreShared>]>,
    node: Arc<NodeHandle>,
    limits: Limits,
    counters: Arc<Counters>,
    /// The way back from the cores, once there is one.
    back: OnceLock<Arc<ArrayQueue<Box<Parcel>>>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    running: Option<Running>,
    /// No more listeners are taken.
    is_draining: bool,
}

struct Running {
    /// `None` at the end.
    requests: Option<Sender<Request>>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

/// What is asked of the thread. It ends when nobody can ask any more.
enum Request {
    Listen(TcpListener),
    /// Take no more connections and calls, and close each connection when its calls have ended, all of them after this time.
    Drain(Duration, Sender<DrainReport>),
}

impl Tcp {
    pub(crate) fn new(
        cores: &Arc<[Arc<CoreShared>]>,
        node: &Arc<NodeHandle>,
        limits: Limits,
    ) -> Self {
        Self {
            cores: Arc::clone(cores),
            node: Arc::clone(node),
            limits,
            counters: Arc::default(),
            back: OnceLock::new(),
            state: Mutex::default(),
        }
    }

    pub(crate) fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Listens at `tcp:HOST:PORT`, and returns the address with what the system chose.
    pub(crate) fn listen(&self, address: &str, who: &Authentication) -> Result<String, Error> {
        let named = || address.to_owned();
        match who {
            Authentication::None | Authentication::Optional(_) => {}
            Authentication::Required(_) => {
                return Err(Failure::NoAuthentication { address: named() }.into());
            }
            Authentication::Fabric => {
                return Err(NodeError::AuthenticationUndecided { address: named() }.into());
            }
        }
        let listener = bind(address)?;
        let begin = || {
            listener.set_nonblocking(true)?;
            let port = listener.local_addr()?.port();
            let mut state = self.state();
            if state.is_draining {
                return Err(io::Error::other("the node drains, and takes no more calls"));
            }
            let running = match &mut state.running {
                Some(running) => running,
                none => none.insert(self.start()?),
            };
            match running.ask(Request::Listen(listener)) {
                true => Ok(port),
                false => Err(io::Error::other("the thread of TCP has ended")),
            }
        };
        let port = begin().map_err(|source| Failure::Tcp {
            address: named(),
            source,
        })?;
        // An IPv6 address keeps its brackets.
        let place = address.strip_prefix(SCHEME).unwrap_or(address);
        let host = place.rsplit_once(':').map_or("", |(host, _)| host);
        Ok(format!("{SCHEME}{host}:{port}"))
    }

    fn start(&self) -> io::Result<Running> {
        let wake = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
        let (requests, inbox) = mpsc::channel();
        let served = Thread::new(self, inbox, &wake);
        let thread = std::thread::Builder::new().name("rpcrdma-tcp".to_owned());
        Ok(Running {
            requests: Some(requests),
            wake,
            thread: Some(thread.spawn(move || served.run())?),
        })
    }

    /// Begins a drain. Its report comes in time; `None` if nothing was ever asked of the thread.
    pub(crate) fn drain(&self, timeout: Duration) -> Option<Receiver<DrainReport>> {
        let (answer, report) = mpsc::channel();
        let mut state = self.state();
        state.is_draining = true;
        // What has ended sends no report, and the wait for it ends too.
        let _ = state.running.as_ref()?.ask(Request::Drain(timeout, answer));
        Some(report)
    }
}

impl Running {
    /// False if the thread has ended by a panic, which was printed.
    fn ask(&self, request: Request) -> bool {
        let is_sent = self.requests.as_ref().map(|it| it.send(request).is_ok());
        self.wake();
        is_sent == Some(true)
    }

    fn wake(&self) {
        // It fails only when it is woken 2^64 times before it looks.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

impl Drop for Running {
    /// Ends the thread, which never waits for a core.
    fn drop(&mut self) {
        self.requests = None;
        self.wake();
        // A panic of it was printed.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
