//! A node: polling cores, and the thread that makes their connections.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rpcrdma_control::{
    Authentication, ConnectOptions, DrainReport, ListenOptions, NodeConfig, NodeError,
    NodeSnapshot, Provider, Reconnect, ShmProvider, Target, TargetEvent,
};
use rpcrdma_engine::{ConnectionKey, IdlePolicy};
use rpcrdma_fabric::clock::Clock;
use rpcrdma_fabric::memory::ExternalMemory;
use rpcrdma_protocol::v2::ApplicationProperties;
use rpcrdma_tuning::{Idle, Layers, Profile, Settings};

use crate::buffers::Buffers;
use crate::core::CoreApplication;
use crate::device::{self, Fitted};
use crate::error::{Error, Failure};
use crate::exchange::CoreShared;
use crate::metrics::Metrics;
use crate::once::{Clients, Names};
use crate::polled::PolledCore;
use crate::procedure::Procedure;
use crate::service::{Incoming, Procedures, Program, Programs, Refusal, Reply, Service, Versions};

/// Pieces of registered memory of a node whose profile is not given.
const BULK_BUFFERS: u32 = 64;

/// Polling cores with their memory, and the thread that makes, accepts and closes their connections.
///
/// Most programs start one by [`Server`](crate::Server) or [`Client`](crate::Client). One that serves and calls, or has
/// several clients, shares a node among them. Dropping the last of them stops the node: calls in flight fail. To let them
/// finish, use [`Node::drain`].
///
/// The drop of the last waits for the threads of the node. It ends within two seconds after the services return from the calls
/// that the cores have already taken, `reap_batch` of the profile at most for each. On a core of any node, that is in a service
/// or in a waker, it does not wait: the node ends behind it, and the call that is being served may lose its reply. It does not
/// wait for cores that the program polls either ([`PolledCore`]).
#[derive(Clone)]
pub struct Node {
    /// `shm:` or `rdma:`.
    fabric: &'static str,
    inner: Arc<dyn AnyNode>,
    cores: Arc<[Arc<CoreShared>]>,
    /// The cores that the program polls, until it takes them.
    polled: PolledCores,
    profile: Arc<Profile>,
    warnings: Arc<[String]>,
    /// The replies that are kept, if it serves procedures that must not run twice.
    once: Option<Arc<Clients>>,
    names: Arc<Names>,
}

type PolledCores = Arc<[Mutex<Option<PolledCore>>]>;

/// What a node does, whatever its fabric is.
pub(crate) trait AnyNode: Send + Sync {
    fn listen(&self, address: &str, options: ListenOptions) -> Result<String, NodeError>;
    fn keep_connected(
        &self,
        address: &str,
        options: ConnectOptions,
        reconnect: Reconnect,
        sink: Box<dyn FnMut(TargetEvent) + Send>,
    ) -> Target;
    fn close(&self, core: usize, key: ConnectionKey);
    fn drain(&self, timeout: Duration) -> Result<DrainReport, NodeError>;
    fn watch(&self) -> Arc<dyn Fn() -> NodeSnapshot + Send + Sync>;
}

impl<V: Provider> AnyNode for rpcrdma_control::Node<V, CoreApplication> {
    fn listen(&self, address: &str, options: ListenOptions) -> Result<String, NodeError> {
        Self::listen(self, address, options).map(|listening| listening.address)
    }

    fn keep_connected(
        &self,
        address: &str,
        options: ConnectOptions,
        reconnect: Reconnect,
        sink: Box<dyn FnMut(TargetEvent) + Send>,
    ) -> Target {
        self.keep_connected_with(address, options, reconnect, sink)
    }

    fn close(&self, core: usize, key: ConnectionKey) {
        self.close_connection(core, key);
    }

    fn drain(&self, timeout: Duration) -> Result<DrainReport, NodeError> {
        Self::drain(self, timeout)
    }

    fn watch(&self) -> Arc<dyn Fn() -> NodeSnapshot + Send + Sync> {
        Arc::new(Self::watch(self))
    }
}

impl Node {
    /// Chooses what a node is made of.
    #[must_use]
    pub fn builder() -> NodeBuilder {
        NodeBuilder::default()
    }

    /// Accepts connections at `address`: `shm:NAME`, or `rdma:HOST:PORT` with `0.0.0.0` or `[::]` for all devices and port
    /// 0 for any that is free. Returns the address with what the system chose.
    ///
    /// `authentication` says who may connect. [`Authentication::Fabric`] is enough on `shm`, where the kernel vouches for
    /// the peer's user, and nowhere else.
    ///
    /// # Errors
    /// When the address cannot be used or is in use, or it is left open who may connect.
    pub fn listen(&self, address: &str, authentication: Authentication) -> Result<String, Error> {
        self.check_fabric(address)?;
        let options = ListenOptions {
            authentication,
            ..ListenOptions::default()
        };
        Ok(self.inner.listen(address, options)?)
    }

    /// The registered memory of core `core`.
    #[must_use]
    pub fn buffers(&self, core: usize) -> Option<Buffers> {
        self.cores.get(core).map(Buffers::new)
    }

    /// The number of cores.
    #[must_use]
    pub fn cores(&self) -> usize {
        self.cores.len()
    }

    /// Core `core`, for the program to poll ([`NodeBuilder::polled_by_caller`]). `None` when it was taken already, or the
    /// node has no such core or polls it itself.
    #[must_use]
    pub fn take_core(&self, core: usize) -> Option<PolledCore> {
        let core = self.polled.get(core)?.lock();
        core.unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Closes a connection of core `core`, as [`Service::connected`] named it. Calls under way by it fail, and a client that
    /// has made it connects again. One that has ended is ignored.
    pub fn close(&self, core: usize, connection: ConnectionKey) {
        self.inner.close(core, connection);
    }

    /// What the node counts and how full it is, for exporters.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        Metrics::new(self.inner.watch(), self.once.clone())
    }

    /// The profile that the node was made by.
    #[must_use]
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// What the device cannot do of what the profile asks for: a sentence for each knob that was cut down.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Accepts no more connections and calls, lets those under way finish within `timeout`, and closes all connections.
    ///
    /// # Errors
    /// When the node has failed.
    pub fn drain(&self, timeout: Duration) -> Result<DrainReport, Error> {
        Ok(self.inner.drain(timeout)?)
    }

    pub(crate) fn check_fabric(&self, address: &str) -> Result<(), Error> {
        let fabric = self.fabric;
        if fabric_of(address)? != fabric {
            return Err(Failure::OtherFabric {
                address: address.to_owned(),
                fabric,
            }
            .into());
        }
        Ok(())
    }

    pub(crate) fn inner(&self) -> &dyn AnyNode {
        &*self.inner
    }

    /// What a new connection of a client announces.
    pub(crate) fn new_name(&self) -> ApplicationProperties {
        self.names.as_client()
    }

    pub(crate) fn core(&self, index: usize) -> &Arc<CoreShared> {
        &self.cores[index % self.cores.len()]
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node")
            .field("fabric", &self.fabric)
            .field("cores", &self.cores.len())
            .finish_non_exhaustive()
    }
}

/// The fabric of an address, by its scheme.
pub(crate) fn fabric_of(address: &str) -> Result<&'static str, Error> {
    let fabric = ["shm:", "rdma:"];
    let fabric = fabric
        .into_iter()
        .find(|scheme| address.starts_with(scheme));
    fabric.ok_or_else(|| Failure::NoAddress(address.to_owned()).into())
}

/// Makes the service of each core.
type NewService = dyn Fn(usize) -> Box<dyn Service>;

/// Chooses what a node or a server is made of: profile, cores, and the programs that it serves.
#[derive(Default)]
pub struct NodeBuilder {
    profile: Option<Profile>,
    profile_error: Option<rpcrdma_tuning::Error>,
    settings: Settings,
    cores: Vec<Option<usize>>,
    is_polled: bool,
    device: Option<String>,
    external: Vec<ExternalMemory>,
    authentication: Authentication,
    more: Vec<String>,
    programs: Vec<(u32, Versions, Box<NewService>)>,
    procedures: Procedures,
}

impl NodeBuilder {
    /// Takes the sizes of `profile`, as far as the device goes. Without it they are those of the device's family, or the
    /// defaults with memory for bulk data; the cores sleep while they have nothing to do (`idle = "park"`).
    ///
    /// [`Profile::default`] has no memory for bulk data (`bulk_buffers` is 0), places no data by Sends, and its cores spin. With
    /// it data that others send comes in the stream, copied, and calls with bulk data fail with
    /// [`ErrorKind::NoBuffers`](crate::ErrorKind::NoBuffers). To change a few sizes use [`NodeBuilder::knob`] instead.
    #[must_use]
    pub fn profile(mut self, profile: Profile) -> Self {
        self.profile = Some(profile);
        self
    }

    /// Takes the sizes of a profile of that name, or of a file whose path ends in `.toml`
    /// (docs/tuning.md).
    #[must_use]
    pub fn profile_named(mut self, name_or_path: &str) -> Self {
        match Layers::choose(name_or_path).and_then(Layers::build) {
            Ok(loaded) => self.profile = Some(loaded.profile),
            Err(error) => self.profile_error = Some(error),
        }
        self
    }

    /// Sets one knob on top of the profile: `NAME=VALUE`, such as `idle=spin` (docs/tuning.md). A mistake is reported when
    /// the node starts.
    #[must_use]
    pub fn knob(mut self, assignment: &str) -> Self {
        let assigned = self.settings.assign(assignment);
        self.profile_error = self.profile_error.or(assigned.err());
        self
    }

    /// One core for each processor of `cpus`, pinned to it. Without this there is one core, which the scheduler places.
    #[must_use]
    pub fn pinned(mut self, cpus: impl IntoIterator<Item = usize>) -> Self {
        self.cores = cpus.into_iter().map(Some).collect();
        self
    }

    /// So many cores, which the scheduler places.
    #[must_use]
    pub fn cores(mut self, cores: usize) -> Self {
        self.cores = vec![None; cores];
        self
    }

    /// The program polls the cores itself: [`Node::take_core`] gives each out, to one thread. The node starts no threads for
    /// them, and the processors of [`NodeBuilder::pinned`] and the knob `idle` count nothing. The memory of the cores is first
    /// touched by the thread that starts the node, and so belongs to its NUMA node.
    #[must_use]
    pub fn polled_by_caller(mut self) -> Self {
        self.is_polled = true;
        self
    }

    /// Registers memory of the program on every core: [`Buffer::of_memory`](crate::Buffer::of_memory)
    /// leases parts of it for bulk data. At most 16 pieces.
    #[must_use]
    pub fn memory(mut self, memory: &ExternalMemory) -> Self {
        self.external.push(memory.clone());
        self
    }

    /// The RDMA device, by name. Without it, it is that of the address, or by which the address is reached.
    #[must_use]
    pub fn device(mut self, name: &str) -> Self {
        self.device = Some(name.to_owned());
        self
    }

    /// Serves `program` in `versions`; `service` makes the service of each core, by the core's number.
    #[must_use]
    pub fn program<S: Service>(
        mut self,
        program: u32,
        versions: RangeInclusive<u32>,
        service: impl Fn(usize) -> S + 'static,
    ) -> Self {
        let new = move |core| -> Box<dyn Service> { Box::new(service(core)) };
        self.programs.push((program, vec![versions], Box::new(new)));
        self
    }

    /// Answers `procedure` with a closure. All cores share it.
    #[must_use]
    pub fn procedure(
        mut self,
        procedure: Procedure,
        handler: impl Fn(&mut Incoming<'_>, &mut Reply<'_, '_>) -> Result<(), Refusal>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.procedures.add(procedure, Arc::new(handler));
        self
    }

    /// As [`NodeBuilder::procedure`], for a procedure that must not run twice. A client that lost its connection does not
    /// know which of its calls ran; one that repeats them ([`ClientBuilder::repeat`](crate::ClientBuilder::repeat)) gets
    /// the first reply again then.
    ///
    /// The server keeps the replies to the last 64 calls or more of each connection of a client. It knows a client of
    /// version 2 by a name that facade clients announce, and any other by its address: then XIDs and arguments of its
    /// programs must tell their calls apart, for two minutes. A call that comes again while it runs is answered when it
    /// has run.
    ///
    /// Results of more than 512 bytes, bulk data included, are not kept: the call that comes again fails with SYSTEM_ERR,
    /// and does not run. So does a new call while 128 calls of its client run.
    #[must_use]
    pub fn procedure_once(
        mut self,
        procedure: Procedure,
        handler: impl Fn(&mut Incoming<'_>, &mut Reply<'_, '_>) -> Result<(), Refusal>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.procedures.add_once(procedure, Arc::new(handler));
        self
    }

    /// Who may connect. It must be chosen for `rdma:` addresses; on `shm` the kernel vouches for the peer's user.
    #[must_use]
    pub fn authentication(mut self, authentication: Authentication) -> Self {
        self.authentication = authentication;
        self
    }

    /// Listens at a further address of the same fabric.
    #[must_use]
    pub fn also_at(mut self, address: &str) -> Self {
        self.more.push(address.to_owned());
        self
    }

    /// Starts the node, without a listener, for the fabric of `address`.
    ///
    /// # Errors
    /// When the profile cannot be used, a core cannot be pinned or has too little memory, or the fabric is not there.
    pub fn start(self, address: &str) -> Result<Node, Error> {
        let fabric = fabric_of(address)?;
        if let Some(error) = self.profile_error {
            return Err(error.into());
        }
        let (fitted, device) = if fabric == "shm:" {
            let profile = self.profile.unwrap_or_else(default_profile);
            let layers = Layers::over(profile).program(&self.settings);
            let (profile, warnings) = (layers.build()?.profile, Vec::new());
            (Fitted { profile, warnings }, None)
        } else {
            let device = device::of_address(address, self.device.as_deref())?;
            let fitted = device::fit(&device, self.profile, &self.settings, default_profile)?;
            (fitted, Some(device))
        };
        let profile = Arc::new(fitted.profile);
        let cores = if self.cores.is_empty() {
            vec![None]
        } else {
            self.cores
        };
        let mut programs = self.programs;
        for (program, versions) in self.procedures.programs() {
            let procedures = self.procedures.clone();
            let new = move |_| -> Box<dyn Service> { Box::new(procedures.clone()) };
            programs.push((program, versions, Box::new(new)));
        }
        let mut config = NodeConfig::from_profile(&profile, cores);
        let mut served: Vec<Programs> = (0..config.cores.len())
            .map(|core| {
                let of_core = programs.iter().map(|(number, versions, new)| {
                    Program::new(*number, versions.clone(), new(core))
                });
                Programs::new(of_core.collect())
            })
            .collect();
        let once = served.iter().any(Programs::have_once).then(|| {
            let connections_max = profile.connections_max as usize * served.len();
            Arc::new(Clients::new(connections_max))
        });
        if let Some(clients) = &once {
            served.iter_mut().for_each(|it| it.keep(clients));
        }
        let names = Arc::new(Names::new(once.is_some()));
        config.core.application_properties = names.as_server();
        config.external = self.external;
        let shared: Arc<[_]> = config.cores.iter().map(|_| shared_of(&profile)).collect();
        let clock = Clock::new();
        let application = |core: usize| {
            CoreApplication::new(
                Arc::clone(&shared[core]),
                std::mem::take(&mut served[core]),
                (profile.calls_outstanding_max, deferred_max(&profile)),
                clock.clone(),
            )
        };
        let starting = Starting {
            config: &config,
            shared: &shared,
            is_polled: self.is_polled,
        };
        let (inner, polled) = if fabric == "shm:" {
            start(ShmProvider::from_profile(&profile), starting, application)?
        } else {
            let provider = rpcrdma_control::VerbsProvider::from_profile(&profile, device);
            start(provider, starting, application)?
        };
        Ok(Node {
            fabric,
            inner,
            cores: shared,
            polled,
            profile,
            warnings: fitted.warnings.into(),
            once,
            names,
        })
    }

    /// Starts the node, and listens at `address` and at those of [`NodeBuilder::also_at`]. Returns the addresses with what
    /// the system chose.
    pub(crate) fn start_listening(mut self, address: &str) -> Result<(Node, Vec<String>), Error> {
        let mut wanted = vec![address.to_owned()];
        wanted.append(&mut self.more);
        let authentication = std::mem::take(&mut self.authentication);
        let node = self.start(address)?;
        let addresses = wanted
            .iter()
            .map(|address| node.listen(address, authentication.clone()))
            .collect::<Result<_, _>>()?;
        Ok((node, addresses))
    }
}

impl fmt::Debug for NodeBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeBuilder")
            .field("cores", &self.cores)
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}

/// The built-in profile for programs that do not choose one: with memory for bulk data, blocks of 4 KiB placed by Sends, and
/// cores that sleep after 100 us without work.
fn default_profile() -> Profile {
    Profile {
        bulk_buffers: BULK_BUFFERS,
        placement_segments: 1,
        placement_segment_bytes: 4096,
        idle: Idle::Park,
        ..Profile::default()
    }
}

/// The calls of a core that can be deferred: each connection has one beyond those that all of them share.
fn deferred_max(profile: &Profile) -> u32 {
    let shared = profile.deferred_replies_max;
    shared.saturating_add(profile.connections_max)
}

fn shared_of(profile: &Profile) -> Arc<CoreShared> {
    let bulk = (
        profile.bulk_buffers as usize,
        profile.bulk_buffer_bytes as usize,
    );
    CoreShared::new(
        profile.calls_outstanding_max as usize,
        deferred_max(profile) as usize,
        bulk,
    )
}

/// What a node is started with, on any fabric.
struct Starting<'a> {
    config: &'a NodeConfig,
    shared: &'a [Arc<CoreShared>],
    is_polled: bool,
}

type Started = (Arc<dyn AnyNode>, PolledCores);

fn start<V: Provider>(
    provider: V,
    starting: Starting<'_>,
    application: impl FnMut(usize) -> CoreApplication,
) -> Result<Started, Error> {
    use rpcrdma_control::Node;
    let Starting { config, shared, .. } = starting;
    if starting.is_polled {
        let (node, cores) = Node::start_polled(provider, config, application)?;
        let cores = cores.into_iter().map(PolledCore::new);
        let cores = cores.map(|core| Mutex::new(Some(core))).collect();
        return Ok((Arc::new(node), cores));
    }
    let node = Node::start(provider, config, application)?;
    // A core that never sleeps is not woken: the check alone takes a fence for each call.
    if matches!(config.core.idle, IdlePolicy::Park { .. }) {
        for (shared, core) in shared.iter().zip(node.cores()) {
            let core = core.clone();
            shared.set_wake(move || core.wake());
        }
    }
    Ok((Arc::new(node), Arc::new([])))
}
