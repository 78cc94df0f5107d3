//! A node: the application's handle of polling cores and their control thread.

use std::cell::Cell;
use std::fmt;
use std::hash::BuildHasher;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rpcrdma_engine::{Application, ConnectionKey, Core, CoreConfig, CoreHandle};
use rpcrdma_fabric::address::ServerAddresses;
use rpcrdma_fabric::clock::Clock;
use rpcrdma_fabric::interface::prelude::*;
use rpcrdma_fabric::interface::{Attributes, Manager, ManagerError, PublishedCounters};
use rpcrdma_fabric::memory::{ExternalMemory, HugePageSize, HugePages, PageReport};
use rpcrdma_protocol::v2::Properties;

use crate::authentication::Authentication;
pub use crate::connection::{
    ConnectOptions, Connection, DrainReport, ListenOptions, Listening, NameOf,
};
use crate::counters::ControlCounters;
use crate::error::{ConnectError, NodeError};
use crate::events::{EventSink, TargetEvent};
use crate::faults::{FaultPlan, FaultyApplication, FaultyProvider};
use crate::limits::NodeLimits;
use crate::link::CoreLink;
use crate::polled::PolledCore;
use crate::provider::{PortNeed, Provider};
use crate::reconnect::{Reconnect, TargetId};
use crate::request::{ConnectId, Owner, Request, TargetSink, Wanted};
use crate::target::Target;
use crate::thread::{ControlThread, Settings};
use crate::watch::{CoreView, NodeSnapshot, PublishedDevices};

/// The configuration of a node.
///
/// # Example
/// ```
/// use rpcrdma_control::NodeConfig;
/// use rpcrdma_tuning::Profile;
///
/// // Two cores, on processors 2 and 4, with the sizes of a profile.
/// let mut config = NodeConfig::from_profile(&Profile::default(), vec![Some(2), Some(4)]);
/// assert_eq!(config.core.connections_max, 64);
/// // Any one peer has at most 4 of these 128 connections.
/// config.peer_connections_max = 4;
/// ```
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// One entry a core: the processor it is pinned to, or `None` to leave it to the scheduler.
    pub cores: Vec<Option<usize>>,
    /// The configuration of every core. Its `cpu` is taken from `cores`.
    pub core: CoreConfig,
    /// Hugepages or not.
    pub huge_pages: HugePages,
    /// Their size.
    pub huge_page_size: HugePageSize,
    /// Memory of the application that every core uses as its own: leases on it are sent and received without a copy.
    pub external: Vec<ExternalMemory>,
    /// What this end announces to its peers.
    pub properties: Properties,
    /// Connections that one peer may have at a time.
    pub peer_connections_max: u32,
    /// Attempts that begin in a second at most, over all targets that the node stays connected to.
    pub target_attempts_per_second_max: u32,
    /// Reads the name of a connection from what its client announces. A client has one connection of a name at a time, so a server
    /// closes it ([`CloseReason::Replaced`](rpcrdma_engine::CloseReason::Replaced)) when the next one of that name is ready.
    pub connection_name: Option<NameOf>,
    /// Receives the events of connections.
    pub events: Option<EventSink>,
}

impl NodeConfig {
    /// The limits for which the memory of the node is reserved.
    const fn limits(&self) -> NodeLimits {
        NodeLimits {
            connections_per_core: self.core.connections_max,
            peer_connections_max: self.peer_connections_max,
            credits_per_connection: self.core.credits_per_connection,
        }
    }
}

/// A connect that is under way. Dropping it gives the connect up: a connection that is there by then is closed.
pub struct PendingConnect {
    id: ConnectId,
    outcome: Receiver<Result<Connection, ConnectError>>,
    is_taken: bool,
    requests: Sender<Request>,
    wake: Arc<dyn Fn() + Send + Sync>,
}

impl PendingConnect {
    /// Waits for the outcome, which comes within the timeout of the options.
    ///
    /// # Errors
    /// Why the connection could not be made.
    pub fn wait(mut self) -> Result<Connection, ConnectError> {
        let outcome = self.outcome.recv();
        self.is_taken = true;
        outcome.unwrap_or(Err(ConnectError::ShuttingDown))
    }
}

impl Drop for PendingConnect {
    fn drop(&mut self) {
        let cancel = Request::Cancel(Owner::Connect(self.id));
        // Sending fails only after the control thread has ended, and all connections with it.
        if !self.is_taken && self.requests.send(cancel).is_ok() {
            (self.wake)();
        }
    }
}

impl fmt::Debug for PendingConnect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingConnect")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// Polling cores and the control thread that serves them.
///
/// Dropping a node stops it immediately: connections end, and calls in flight fail at their requesters. To let calls
/// finish, call [`NodeHandle::drain`] first. The drop waits for the threads of the node: it ends within two seconds after the
/// application returns from the calls that the cores have already taken, `reap_batch` at most for each. On a thread of a
/// node, that is in an application or a sink of events, it waits for nothing, and the threads end after it. Cores that
/// the caller polls are not waited for; they end when they are polled next, or dropped.
///
/// # Example
///
/// Two nodes of one process that speak over shared memory; in practice each is a process.
///
/// ```
/// use rpcrdma_control::{ConnectOptions, ListenOptions, Node, NodeConfig, ShmProvider};
/// use rpcrdma_engine::{Application, Outcome, ReplyWriter, Request};
/// use rpcrdma_tuning::{Idle, Profile};
///
/// /// Sends the arguments of each call back.
/// struct Echo;
///
/// impl Application for Echo {
///     fn call(&mut self, request: &Request<'_>, reply: &mut ReplyWriter<'_>) -> Outcome {
///         match reply.write(request.args) {
///             Ok(()) => Outcome::Success,
///             Err(_) => Outcome::SystemError,
///         }
///     }
/// }
///
/// // Small, and asleep while nothing comes.
/// let profile = Profile { connections_max: 4, idle: Idle::Park, ..Profile::default() };
/// let config = NodeConfig::from_profile(&profile, vec![None]);
/// let node = || Node::start(ShmProvider::from_profile(&profile), &config, |_core| Echo);
/// let (server, client) = (node()?, node()?);
/// let name = format!("shm:example-{}", std::process::id());
/// let listening = server.listen(&name, ListenOptions::default())?;
/// let connection = client.connect(&listening.address, ConnectOptions::default())?;
/// assert_eq!((connection.core, connection.version), (0, 2));
/// let applications = client.shutdown();
/// assert_eq!(applications.len(), 1);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
pub struct Node<A> {
    handle: Arc<NodeHandle>,
    cores: Vec<CoreThread<A>>,
    control: Option<JoinHandle<()>>,
}

/// What can be done with the cores and connections of a [`Node`], whatever its fabric and its applications are. It may live
/// longer than its node: then connects fail, and counters stay as they are.
pub struct NodeHandle {
    requests: Sender<Request>,
    wake: Arc<dyn Fn() + Send + Sync>,
    views: Vec<CoreView>,
    pages: Vec<PageReport>,
    attributes: Vec<Attributes>,
    counters: Arc<ControlCounters>,
    /// The manager's counters.
    fabric: Arc<PublishedCounters>,
    devices: PublishedDevices,
    reserved: NodeLimits,
    limits: Mutex<NodeLimits>,
    credits_least: u16,
    /// Connects and targets so far: their numbers.
    asked: AtomicU64,
    /// [`Provider::VOUCHES_FOR_PEERS`].
    vouches_for_peers: bool,
}

thread_local! {
    /// This thread is of a node: a core or the control thread.
    static IS_OF_NODE: Cell<bool> = const { Cell::new(false) };
}

/// A node, and its cores for the caller to poll ([`Node::start_polled`]).
pub type PolledNode<A> = (Node<A>, Vec<PolledCore>);

/// A core's thread. It returns the application, or `None` if the core could not be set up.
type CoreThread<A> = JoinHandle<Option<A>>;

/// What a core's thread reports once it is set up.
struct CoreReady<V: Provider> {
    handle: CoreHandle<V::Port>,
    port: <V::Manager as Manager>::PortHandle,
    pages: PageReport,
    attributes: Attributes,
}

impl<A: Application> Node<A> {
    /// Starts the cores, one thread each, and the control thread, on the fabric of `provider`. `application` makes the
    /// application of each core, by the core's number.
    ///
    /// # Errors
    /// When a core cannot be pinned or set up (memory, limits), or a thread cannot be started;
    /// whatever was started is stopped again. [`NodeError::WindowTooSmall`] and [`NodeError::Memory`] before
    /// anything is.
    pub fn start<V: Provider>(
        provider: V,
        config: &NodeConfig,
        application: impl FnMut(usize) -> A,
    ) -> Result<Self, NodeError> {
        Self::start_in(provider, config, application, |it| it, None)
    }

    /// As [`Node::start`], with faults: those of `plan`, which counts them.
    ///
    /// # Errors
    /// As [`Node::start`].
    pub fn start_with_faults<V: Provider>(
        provider: V,
        config: &NodeConfig,
        plan: &FaultPlan,
        mut application: impl FnMut(usize) -> A,
    ) -> Result<Self, NodeError> {
        let faulty = |core| FaultyApplication::new(application(core), plan, core);
        let provider = FaultyProvider::new(provider, plan.clone());
        Self::start_in(
            provider,
            config,
            faulty,
            FaultyApplication::into_inner,
            None,
        )
    }

    /// Starts the control thread, and makes cores that the caller polls from its threads by [`PolledCore::poll`]. There are as many as `config.cores` has entries; the processors in it count nothing, and neither does the
    /// policy of idle cores. The memory of the cores is first touched here: call this where it should be.
    ///
    /// A core that nobody polls does nothing, so on a thread that polls, no function of the node may be called that waits for a
    /// core: [`NodeHandle::connect`], [`NodeHandle::drain`].
    ///
    /// # Errors
    /// As [`Node::start`].
    pub fn start_polled<V: Provider>(
        provider: V,
        config: &NodeConfig,
        application: impl FnMut(usize) -> A,
    ) -> Result<PolledNode<A>, NodeError> {
        let mut polled = Vec::new();
        let node = Self::start_in(provider, config, application, |it| it, Some(&mut polled))?;
        Ok((node, polled))
    }

    /// Starts the cores: in threads, or in `polled`. What runs on a core becomes the application again by `inner`.
    fn start_in<V: Provider, B: Application>(
        provider: V,
        config: &NodeConfig,
        mut application: impl FnMut(usize) -> B,
        inner: fn(B) -> A,
        mut polled: Option<&mut Vec<PolledCore>>,
    ) -> Result<Self, NodeError> {
        let mut config = config.clone();
        config.core.rails = provider.rails();
        let config = &config;
        config.check_window()?;
        let memory = config.core.check_memory(config.cores.len());
        memory.map_err(NodeError::Memory)?;
        let provider = Arc::new(provider);
        let clock = Clock::new();
        let manager = provider.manager()?;
        let wake = manager.waker();
        let (requests, inbox) = mpsc::channel();
        let counters = Arc::new(ControlCounters::default());
        let fabric = Arc::new(PublishedCounters::of(|each| manager.each_counter(each)));
        let mut handle = NodeHandle {
            requests,
            wake: Arc::clone(&wake),
            views: Vec::new(),
            pages: Vec::new(),
            attributes: Vec::new(),
            counters: Arc::clone(&counters),
            fabric: Arc::clone(&fabric),
            devices: PublishedDevices::default(),
            reserved: config.limits(),
            limits: Mutex::new(config.limits()),
            credits_least: config.credits_least(),
            asked: AtomicU64::new(0),
            vouches_for_peers: V::VOUCHES_FOR_PEERS,
        };
        let mut threads = CoreThreads(Vec::new());
        let mut links = Vec::new();
        for (number, cpu) in config.cores.iter().enumerate() {
            let core = CoreConfig {
                cpu: cpu.filter(|_| polled.is_none()),
                ..config.core.clone()
            };
            let application = application(number);
            let started = match &mut polled {
                None => start_core(&provider, number, core, config, &clock, application, inner)
                    .map(|(thread, ready)| {
                        threads.0.push(thread);
                        ready
                    }),
                Some(polled) => {
                    let need = need_of(&core, config);
                    let clock = clock.clone();
                    set_up_core(&*provider, number, &core, &need, clock, application).map(
                        |(core, ready)| {
                            polled.push(PolledCore::new(core));
                            ready
                        },
                    )
                }
            };
            // After an error the links end before the threads, which then are waited for: the links have stopped their cores.
            let ready = started?;
            ready.handle.set_waker(Arc::clone(&wake));
            handle.pages.push(ready.pages);
            handle.attributes.push(ready.attributes);
            handle.views.push(CoreView::new(ready.handle.clone()));
            links.push(CoreLink::new(ready.handle, ready.port));
        }
        let settings = Settings {
            limits: handle.reserved,
            properties: config.properties,
            application_properties: config.core.application_properties,
            connection_name: config.connection_name,
            remote_invalidation: handle.attributes.iter().all(|it| it.send_with_invalidate),
            send_buffer_bytes: config.core.send_buffer_bytes,
            target_attempts_per_second_max: config.target_attempts_per_second_max,
            // `RandomState` is seeded by the system: nodes that start together do not retry in step.
            seed: std::collections::hash_map::RandomState::new().hash_one(std::process::id()),
        };
        let thread = ControlThread::<V>::new(manager, links, inbox, settings, counters, fabric)
            .with_events(config.events.clone())
            .with_devices(handle.devices.clone());
        let spawned = std::thread::Builder::new()
            .name("rpcrdma-control".to_owned())
            .spawn(move || {
                IS_OF_NODE.set(true);
                thread.run();
            });
        Ok(Self {
            handle: Arc::new(handle),
            // If there is no thread, the links have ended with what was to run.
            control: Some(spawned.map_err(NodeError::Thread)?),
            cores: std::mem::take(&mut threads.0),
        })
    }

    /// What can be done with its cores and connections; also [`Node`] itself can.
    #[must_use]
    pub fn handle(&self) -> &Arc<NodeHandle> {
        &self.handle
    }

    /// Stops the node and returns the applications of its cores, in order. On a thread of a node it returns none of them, as it
    /// waits for nothing there.
    ///
    /// # Panics
    /// When an application panicked: the panic goes on here.
    #[must_use]
    pub fn shutdown(mut self) -> Vec<A> {
        self.stop()
            .into_iter()
            .filter_map(|ended| match ended {
                Ok(application) => application,
                Err(panic) => std::panic::resume_unwind(panic),
            })
            .collect()
    }
}

impl NodeHandle {
    fn request(&self, request: Request) -> Result<(), NodeError> {
        self.requests.send(request).map_err(|_| NodeError::Gone)?;
        (self.wake)();
        Ok(())
    }

    /// Listens on `address`: `shm:NAME` on the embedded fabric, `rdma:HOST:PORT` on an RDMA device,
    /// where `0.0.0.0` and `[::]` are all devices and port 0 is any that is free.
    ///
    /// # Errors
    /// When the name cannot be used, is in use, or is not permitted; or when the options do not say who may connect and
    /// the fabric does not check peers itself.
    pub fn listen(&self, address: &str, options: ListenOptions) -> Result<Listening, NodeError> {
        if matches!(options.authentication, Authentication::Fabric) && !self.vouches_for_peers {
            return Err(NodeError::AuthenticationUndecided {
                address: address.to_owned(),
            });
        }
        let (answer, outcome) = mpsc::channel();
        self.request(Request::Listen {
            address: address.to_owned(),
            options,
            answer,
        })?;
        Ok(outcome.recv().map_err(|_| NodeError::Gone)??)
    }

    /// Stops listening on `address`, which [`NodeHandle::listen`] returned. Connections that were made there stay. Returns
    /// whether there was a listener.
    ///
    /// # Errors
    /// When the control thread has ended.
    pub fn stop_listening(&self, address: &str) -> Result<bool, NodeError> {
        let (answer, outcome) = mpsc::channel();
        self.request(Request::StopListening {
            address: address.to_owned(),
            answer,
        })?;
        outcome.recv().map_err(|_| NodeError::Gone)
    }

    /// Connects to `address` and waits until the connection is ready for calls.
    ///
    /// # Errors
    /// When nobody listens there, the peer rejects, does not answer in time, goes away, or speaks
    /// another version; or when there is no room on our side.
    pub fn connect(
        &self,
        address: &str,
        options: ConnectOptions,
    ) -> Result<Connection, ConnectError> {
        self.connect_start(address, options).wait()
    }

    /// Starts to connect; many may be under way at a time.
    #[must_use]
    pub fn connect_start(&self, address: &str, options: ConnectOptions) -> PendingConnect {
        let (answer, outcome) = mpsc::channel();
        let id = ConnectId(self.asked.fetch_add(1, Ordering::Relaxed));
        let request = Request::Connect {
            id,
            address: address.to_owned(),
            options,
            answer,
        };
        // If the control thread has ended, the sender is dropped here, and `wait` returns an error.
        let _ = self.request(request);
        PendingConnect {
            id,
            outcome,
            is_taken: false,
            requests: self.requests.clone(),
            wake: Arc::clone(&self.wake),
        }
    }

    /// Stays connected to the server at `address`: connects now, tries again when that fails or the connection is lost, as
    /// `reconnect` says, and reports events. Calls in flight fail when the connection is lost; the application decides
    /// whether to repeat them.
    ///
    /// `address` may be several of the same server ([`ServerAddresses`]). There is one connection at a time, to the first where one
    /// can be made. When it is lost, the next address is tried immediately, and one that has failed after its wait. It stays
    /// where it is when an earlier address works again.
    ///
    /// It ends when the connection is closed from this side, when trying again cannot help, and when
    /// the target is dropped, which closes the connection. A server that speaks no version of ours is not asked again for a minute,
    /// by any target.
    #[must_use]
    pub fn keep_connected(
        &self,
        address: &str,
        options: ConnectOptions,
        reconnect: Reconnect,
    ) -> Target {
        let (events, told) = mpsc::channel();
        // This fails if the application has dropped the target, which also cancels it.
        let sink = move |event| drop(events.send(event));
        self.start_target(address, options, reconnect, None, Box::new(sink), told)
    }

    /// As [`NodeHandle::keep_connected`], but events go to `sink`; [`Target::wait`] and [`Target::next_event`] return `None`.
    /// `sink` runs on the control thread, which serves all connections of the node. It must not block, and must not
    /// call a function of this node that waits for that thread, which would never return.
    #[must_use]
    pub fn keep_connected_with(
        &self,
        address: &str,
        options: ConnectOptions,
        reconnect: Reconnect,
        sink: impl FnMut(TargetEvent) + Send + 'static,
    ) -> Target {
        // The sender is dropped here, so `Target::wait` returns `None` immediately.
        let (_, none) = mpsc::channel();
        self.start_target(address, options, reconnect, None, Box::new(sink), none)
    }

    /// As [`NodeHandle::keep_connected_with`], but after `after`, and up to `jitter_percent` of it later; and at the first of the
    /// addresses only, until it is connected there: for a connection that goes back to it. `sink` may call this, as it waits for
    /// nothing.
    #[must_use]
    pub fn keep_connected_at_first(
        &self,
        addresses: &str,
        options: ConnectOptions,
        reconnect: Reconnect,
        after: Duration,
        sink: impl FnMut(TargetEvent) + Send + 'static,
    ) -> Target {
        let (_, none) = mpsc::channel();
        let sink = Box::new(sink);
        self.start_target(addresses, options, reconnect, Some(after), sink, none)
    }

    fn start_target(
        &self,
        address: &str,
        options: ConnectOptions,
        reconnect: Reconnect,
        first_after: Option<Duration>,
        events: TargetSink,
        told: Receiver<TargetEvent>,
    ) -> Target {
        let id = TargetId(self.asked.fetch_add(1, Ordering::Relaxed));
        let addresses = match address.parse::<ServerAddresses>() {
            Ok(all) => Ok(all.iter().map(ToString::to_string).collect()),
            Err(error) => Err(ConnectError::Fabric(ManagerError::BadAddress {
                address: error.address,
                why: error.fault.to_string(),
            })),
        };
        let wanted = Wanted {
            id,
            addresses,
            options,
            reconnect,
            first_after,
            events,
        };
        // If the control thread has ended, the sink is dropped and no event comes.
        let _ = self.request(Request::KeepConnected(wanted));
        Target::new(id, told, self.requests.clone(), Arc::clone(&self.wake))
    }

    /// The limits at the start of the node. Its memory is reserved for them.
    #[must_use]
    pub const fn limits_reserved(&self) -> NodeLimits {
        self.reserved
    }

    /// Changes the limits, for connections that begin from now on.
    ///
    /// # Errors
    /// [`NodeError::LimitOutside`], which changes nothing; or when the control thread has ended.
    pub fn set_limits(&self, limits: NodeLimits) -> Result<(), NodeError> {
        limits.check(&self.reserved, self.credits_least)?;
        *self.limits.lock().unwrap_or_else(PoisonError::into_inner) = limits;
        self.request(Request::SetLimits(limits))
    }

    /// The limits for connections that begin now.
    #[must_use]
    pub fn limits(&self) -> NodeLimits {
        *self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes a connection; calls in flight fail with "closed" on both sides. A connection that has ended is ignored.
    pub fn close(&self, connection: &Connection) {
        self.close_connection(connection.core, connection.key);
    }

    /// As [`NodeHandle::close`], for a connection given by the number of its core within the node and its key on that core.
    pub fn close_connection(&self, core: usize, key: ConnectionKey) {
        let request = Request::Close { core, key };
        // If the control thread has ended, the connection is closed already.
        let _ = self.request(request);
    }

    /// Stops accepting connections and calls, lets what is under way finish within `timeout`, then
    /// closes all connections.
    ///
    /// # Errors
    /// When the control thread has ended.
    pub fn drain(&self, timeout: Duration) -> Result<DrainReport, NodeError> {
        let (answer, outcome) = mpsc::channel();
        self.request(Request::Drain { timeout, answer })?;
        // The control thread answers at the latest `CLOSE_GRACE` (1 s) after the timeout. The rest of the margin is for
        // a control thread that runs late.
        match outcome.recv_timeout(timeout.saturating_add(Duration::from_secs(5))) {
            Ok(report) => Ok(report),
            Err(RecvTimeoutError::Timeout) => Ok(DrainReport::default()),
            Err(RecvTimeoutError::Disconnected) => Err(NodeError::Gone),
        }
    }

    /// The cores, for their counters.
    #[must_use]
    pub fn cores(&self) -> &[CoreView] {
        &self.views
    }

    /// Wakes cores that sleep, so that their applications are polled.
    pub fn wake_cores(&self) {
        for core in &self.views {
            core.wake();
        }
    }

    /// The pages that the cores' registered memory lies in.
    #[must_use]
    pub fn pages(&self) -> &[PageReport] {
        &self.pages
    }

    /// What the device can do, as the port of each core sees it.
    #[must_use]
    pub fn attributes(&self) -> &[Attributes] {
        &self.attributes
    }

    /// The control thread's counters.
    #[must_use]
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        self.counters.snapshot()
    }

    /// Returns a function that reads counters and levels. It works on any thread, and after the node has stopped.
    pub fn watch(&self) -> impl Fn() -> NodeSnapshot + Send + Sync + 'static {
        let (counters, fabric) = (Arc::clone(&self.counters), Arc::clone(&self.fabric));
        crate::watch::watch(self.views.clone(), counters, fabric, self.devices.clone())
    }
}

impl<A> Node<A> {
    /// Ends the threads, and returns what those of the cores did; nothing on a thread of a node. It cannot wait for itself, and
    /// not for another that may wait for it: two handlers may each drop the node of the other.
    fn stop(&mut self) -> Vec<std::thread::Result<Option<A>>> {
        // This fails only after the control thread has ended. Its end stops the cores.
        let _ = self.request(Request::Stop);
        let (control, cores) = (self.control.take(), std::mem::take(&mut self.cores));
        if IS_OF_NODE.get() {
            return Vec::new();
        }
        if let Some(control) = control {
            // A panic of it has been printed, and there is nothing to do about it here.
            let _ = control.join();
        }
        cores.into_iter().map(JoinHandle::join).collect()
    }
}

impl<A> Deref for Node<A> {
    type Target = NodeHandle;

    fn deref(&self) -> &NodeHandle {
        &self.handle
    }
}

/// The threads of a node that is being started. If that fails, they are waited for: the node does not exist, and neither does
/// what it used.
struct CoreThreads<A>(Vec<CoreThread<A>>);

impl<A> Drop for CoreThreads<A> {
    fn drop(&mut self) {
        for thread in self.0.drain(..) {
            // A panic of it has been printed.
            let _ = thread.join();
        }
    }
}

impl<A> Drop for Node<A> {
    fn drop(&mut self) {
        // A panic of a core has been printed. `Node::shutdown` passes it on.
        drop(self.stop());
    }
}

/// What a core needs of its port.
fn need_of(core: &CoreConfig, config: &NodeConfig) -> PortNeed {
    PortNeed {
        arena_bytes: core.arena_bytes(),
        untouched_bytes: core.untouched_bytes(),
        huge_pages: config.huge_pages,
        huge_page_size: config.huge_page_size,
        queue_pairs_max: core.connections_max,
        receives_max: core.receives(),
        sends_max: core.send_buffers_total(),
        windows_max: core.windows(),
        cores: u32::try_from(config.cores.len()).unwrap_or(u32::MAX),
        external: config.external.clone(),
    }
}

/// Starts the thread of one core and waits until it is set up.
fn start_core<V: Provider, B: Application, A: Application>(
    provider: &Arc<V>,
    number: usize,
    core: CoreConfig,
    config: &NodeConfig,
    clock: &Clock,
    application: B,
    inner: fn(B) -> A,
) -> Result<(CoreThread<A>, CoreReady<V>), NodeError> {
    let (ready, outcome) = mpsc::channel::<Result<CoreReady<V>, NodeError>>();
    let (provider, clock) = (Arc::clone(provider), clock.clone());
    let need = need_of(&core, config);
    let thread = std::thread::Builder::new()
        .name(format!("rpcrdma-core-{number}"))
        .spawn(move || {
            IS_OF_NODE.set(true);
            let set_up = set_up_core(&*provider, number, &core, &need, clock, application);
            match set_up {
                Ok((core, told)) => {
                    // `start_core` waits for this. If it does not, the node does not exist: end the thread.
                    ready.send(Ok(told)).ok()?;
                    core.run().ok().map(inner)
                }
                Err(error) => {
                    let _ = ready.send(Err(error));
                    None
                }
            }
        })
        .map_err(NodeError::Thread)?;
    let told = outcome.recv().map_err(|_| NodeError::Gone)??;
    Ok((thread, told))
}

type SetUp<V, A> = (Core<<V as Provider>::Port, A>, CoreReady<V>);

/// Pins the calling thread, then makes its port and core: memory is first touched after pinning, so it is on the core's
/// NUMA node.
fn set_up_core<V: Provider, A: Application>(
    provider: &V,
    number: usize,
    config: &CoreConfig,
    need: &PortNeed,
    clock: Clock,
    application: A,
) -> Result<SetUp<V, A>, NodeError> {
    if let Some(cpu) = config.cpu {
        rpcrdma_engine::pin_current_thread(cpu).map_err(|error| NodeError::Pin {
            core: number,
            why: error.to_string(),
        })?;
    }
    let in_core = |source| NodeError::Core {
        core: number,
        source,
    };
    let (port, port_handle) = provider.port(need, &clock).map_err(in_core)?;
    let (pages, attributes) = (port.page_report().clone(), port.attributes().clone());
    let (core, handle) = Core::new(port, config, clock, application).map_err(in_core)?;
    let ready = CoreReady {
        handle,
        port: port_handle,
        pages,
        attributes,
    };
    Ok((core, ready))
}
