//! A node: polling cores, and the thread that makes their connections.

mod reserved;
mod warnings;

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rpcrdma_control::{
    Address, Authentication, Devices, DrainReport, Fabric, FaultPlan, ListenOptions, NodeConfig,
    NodeError, NodeHandle, Provider, RailsProvider, ServerAddresses, ShmProvider, Use,
    VerbsProvider,
};
use rpcrdma_engine::{Application, ConnectionKey, CoreConfig, IdlePolicy};
use rpcrdma_fabric::clock::Clock;
use rpcrdma_fabric::memory::ExternalMemory;
use rpcrdma_protocol::v2::ApplicationProperties;
use rpcrdma_tuning::{Idle, Layers, Loaded, Profile, Settings};

use crate::buffers::Buffers;
use crate::core::CoreApplication;
use crate::error::{Error, Failure};
use crate::exchange::CoreShared;
use crate::metrics::Metrics;
use crate::once::{Clients, Names, Waiter, connection_name};
use crate::polled::PolledCore;
use crate::procedure::Procedure;
use crate::service::{Incoming, Procedures, Program, Programs, Refusal, Reply, Service, Versions};
use crate::tcp::{self, Tcp};

use reserved::Reserved;
use warnings::{few_windows, no_thread_domains};

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
    fabric: Fabric,
    pub(crate) handle: Arc<NodeHandle>,
    /// It ends before the cores.
    tcp: Arc<Tcp>,
    /// The threads, which end with the last clone.
    _threads: Arc<dyn Send + Sync>,
    /// Given back after the threads have ended.
    _reserved: Arc<Option<Reserved>>,
    pub(crate) cores: Arc<[Arc<CoreShared>]>,
    /// The cores that the program polls, until it takes them.
    polled: PolledCores,
    profile: Arc<Profile>,
    warnings: Arc<[String]>,
    /// The replies that are kept, if it serves procedures that must not run twice.
    once: Option<Arc<Clients<Waiter>>>,
    names: Arc<Names>,
}

/// The fabric of a node that is reached by TCP alone: cores run on one all the same.
const FABRIC_OF_TCP: Fabric = Fabric::SHM;

type PolledCores = Arc<[Mutex<Option<PolledCore>>]>;

impl Node {
    /// Chooses what a node is made of.
    #[must_use]
    pub fn builder() -> NodeBuilder {
        NodeBuilder::default()
    }

    /// Accepts connections at `address`: `shm:NAME`, or `rdma:HOST:PORT` with `0.0.0.0` or `[::]` for all devices and port
    /// 0 for any that is free; or, for clients without RDMA, `tcp:HOST:PORT`. Returns the address with what the system chose.
    ///
    /// `authentication` says who may connect. [`Authentication::Fabric`] is enough on `shm`, where the kernel vouches for
    /// the peer's user, and nowhere else. TCP authenticates no host.
    ///
    /// Calls by TCP come to the same services, and run once as those by RDMA do. Arguments and results are whole in the stream,
    /// with 1 MiB and 64 KiB at most, or `message_bytes_max` of the profile if that is more. A connection on which nothing moves
    /// for six minutes is closed. One address may have `peers_connections_max` of the profile, and all of them together
    /// [`NodeBuilder::tcp_connections`]. [`ConnectionKey`]s of such connections come behind those of the core's own.
    ///
    /// # Errors
    /// When the address cannot be used, is in use, or is of another device than the node's; or it is left open who may connect, or TCP
    /// is asked to authenticate.
    pub fn listen(&self, address: &str, authentication: Authentication) -> Result<String, Error> {
        if address.starts_with(tcp::SCHEME) {
            return self.tcp.listen(address, &authentication);
        }
        let address = self.address(address)?;
        if let Fabric::Verbs { devices } = &self.fabric {
            // Clients that come by another device are turned away: it has no cores.
            Fabric::check_listen(devices, &address.parse()?)?;
        }
        let options = ListenOptions {
            authentication,
            ..ListenOptions::default()
        };
        Ok(self.handle.listen(&address, options)?.address)
    }

    /// Stops accepting connections at `address`, which [`Node::listen`] returned, as before work on a port or a cable. Connections
    /// that were made there stay, and clients that lose them go on at their other addresses. Returns whether it listened there;
    /// at an address of TCP it goes on.
    ///
    /// # Errors
    /// When the node has failed.
    pub fn stop_listening(&self, address: &str) -> Result<bool, Error> {
        Ok(self.handle.stop_listening(address)?)
    }

    /// Checks that nobody listens at `address`, without listening. A node has its memory before it can listen;
    /// [`NodeBuilder::listen`] checks its addresses before that.
    ///
    /// # Errors
    /// As [`Node::listen`].
    ///
    /// # Example
    /// ```
    /// use rpcrdma::Node;
    ///
    /// Node::check_free("shm:nobody-listens-here")?;
    /// # Ok::<_, rpcrdma::Error>(())
    /// ```
    pub fn check_free(address: &str) -> Result<(), Error> {
        if address.starts_with(tcp::SCHEME) {
            return tcp::bind(address).map(drop);
        }
        Ok(Fabric::check_free(&address.parse()?).map_err(NodeError::from)?)
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
    /// has made it connects again. One that has ended is ignored, and so is one by TCP.
    pub fn close(&self, core: usize, connection: ConnectionKey) {
        self.handle.close_connection(core, connection);
    }

    /// What the node counts and how full it is, for exporters.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        let tcp = Arc::clone(self.tcp.counters());
        Metrics::new(Arc::new(self.handle.watch()), self.once.clone(), tcp)
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
        let of_tcp = self.tcp.drain(timeout);
        let mut report = self.handle.drain(timeout)?;
        if let Some(of_tcp) = of_tcp {
            // A thread that has ended had connections, and has lost their calls.
            let of_tcp = of_tcp.recv().ok();
            report.connections += of_tcp.map_or(0, |it| it.connections);
            report.complete &= of_tcp.is_some_and(|it| it.complete);
        }
        Ok(report)
    }

    /// The address as it is written out, if it is of this node's fabric.
    pub(crate) fn address(&self, address: &str) -> Result<String, Error> {
        let parsed: Address = address.parse()?;
        self.check_fabric(&parsed)?;
        Ok(parsed.to_string())
    }

    /// The addresses of a server, if they are of this node's fabric.
    pub(crate) fn addresses(&self, addresses: &str) -> Result<ServerAddresses, Error> {
        let parsed: ServerAddresses = addresses.parse()?;
        self.check_fabric(parsed.first())?;
        Ok(parsed)
    }

    fn check_fabric(&self, address: &Address) -> Result<(), Error> {
        if self.fabric.is_of(address) {
            return Ok(());
        }
        Err(Failure::OtherFabric {
            address: address.to_string(),
            fabric: self.fabric.name(),
        }
        .into())
    }

    /// The connections and cores as `rpcrdma-control` has them, for what this crate does not offer: single connects, limits
    /// that change, memory pages. Connections that are made by it are of the node's application
    /// ([`NodeBuilder::application`]).
    #[must_use]
    pub fn control(&self) -> &NodeHandle {
        &self.handle
    }

    /// What a new connection of a client announces: the name by which servers that keep replies know it. Clients have one each;
    /// it is for connections that are made by [`Node::control`]. Each has to have its own: a server takes the last one of a name for the
    /// only one.
    #[must_use]
    pub fn new_name(&self) -> ApplicationProperties {
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

/// Makes the service of each core.
type NewService = dyn Fn(usize) -> Box<dyn Service>;

/// Changes the configuration that a profile gives.
type Configure = dyn FnOnce(NodeConfig) -> NodeConfig;

/// Chooses what a node or a server is made of: profile, cores, and the programs that it serves.
pub struct NodeBuilder<A = ()> {
    profile: Option<Profile>,
    profile_error: Option<rpcrdma_tuning::Error>,
    settings: Settings,
    cores: Vec<Option<usize>>,
    is_polled: bool,
    is_low_latency: bool,
    device: Option<String>,
    external: Vec<ExternalMemory>,
    authentication: Authentication,
    more: Vec<String>,
    programs: Vec<(u32, Versions, Box<NewService>)>,
    procedures: Procedures,
    application: Box<dyn FnMut(usize) -> A>,
    configure: Vec<Box<Configure>>,
    faults: FaultPlan,
    tcp_connections: u32,
}

impl Default for NodeBuilder {
    fn default() -> Self {
        Self {
            profile: None,
            profile_error: None,
            settings: Settings::default(),
            cores: Vec::new(),
            is_polled: false,
            is_low_latency: false,
            device: None,
            external: Vec::new(),
            authentication: Authentication::default(),
            more: Vec::new(),
            programs: Vec::new(),
            procedures: Procedures::default(),
            application: Box::new(|_| ()),
            configure: Vec::new(),
            faults: FaultPlan::default(),
            tcp_connections: tcp::CONNECTIONS_MAX,
        }
    }
}

impl NodeBuilder {
    /// Runs an application of `rpcrdma-engine` on each core, with clients and services: it calls and answers on the core
    /// itself, without a hop. `make` makes that of each core, by the core's number. Tags of its calls are below 2^63, and the
    /// connections of clients are reported to it too. Where the builder has services as well, it lists its programs
    /// ([`Application::programs`]), and none of theirs: otherwise the node does not start.
    #[must_use]
    pub fn application<A: Application>(
        self,
        make: impl FnMut(usize) -> A + 'static,
    ) -> NodeBuilder<A> {
        NodeBuilder {
            profile: self.profile,
            profile_error: self.profile_error,
            settings: self.settings,
            cores: self.cores,
            is_polled: self.is_polled,
            is_low_latency: self.is_low_latency,
            device: self.device,
            external: self.external,
            authentication: self.authentication,
            more: self.more,
            programs: self.programs,
            procedures: self.procedures,
            application: Box::new(make),
            configure: self.configure,
            faults: self.faults,
            tcp_connections: self.tcp_connections,
        }
    }
}

impl<A: Application> NodeBuilder<A> {
    /// Changes the configuration of `rpcrdma-control` that the profile gives, before the node starts: events of connections,
    /// calls in the reverse direction, header types.
    #[must_use]
    pub fn configure(mut self, change: impl FnOnce(NodeConfig) -> NodeConfig + 'static) -> Self {
        self.configure.push(Box::new(change));
        self
    }

    /// Injects the faults of `plan`, to see how peers handle them. It has no effect on cores that the program polls.
    #[must_use]
    pub fn faults(mut self, plan: &FaultPlan) -> Self {
        self.faults = plan.clone();
        self
    }

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

    /// Cores that never sleep (`idle = "spin"`), each pinned to a processor that nothing else should run on: those of
    /// [`NodeBuilder::pinned`], or else the last ones that the calling thread may use and no other such node of this process
    /// has. What other processes run there is not known. If there are too few such processors, the node does not start. A profile
    /// does not change this, and the knob `idle` does. It has no effect on cores that the program polls. For a client, start a
    /// node with it and use [`Node::client`].
    ///
    /// Without this, and without a profile that says otherwise, a core sleeps after 100 us without work and runs where the
    /// scheduler puts it. That shares a machine well. A call that finds its core asleep waits for a wake-up, which took about 35 us
    /// on a virtual machine (docs/performance.md), and longer while another thread has the processor.
    #[must_use]
    pub fn low_latency(mut self) -> Self {
        self.is_low_latency = true;
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

    /// The RDMA devices, by name, with commas between them; or `all`, those with an active port. Without this they are those of
    /// the addresses, or by which the addresses are reached. A node on several devices listens and connects by each of them,
    /// and its cores poll all of them.
    #[must_use]
    pub fn device(mut self, names: &str) -> Self {
        self.device = Some(names.to_owned());
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
    /// The server keeps the replies to the last 128 such calls of each client; the module [`once`](crate::once) says what is
    /// promised. It knows a client of version 2 by a name that facade clients announce, one for each connection, and any
    /// other by its address: then XIDs and arguments of its programs must tell their calls apart, for two minutes. A call
    /// that comes again while it runs is answered when it has run.
    ///
    /// Results of more than 512 bytes, bulk data included, and those that do not fit into the reply are not kept: the call
    /// that comes again fails with SYSTEM_ERR, and does not run. So does a new call while 128 calls of its client run, and no
    /// more entries are free.
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

    /// Listens at a further address of the same fabric, or on TCP ([`Node::listen`]).
    ///
    /// # Example
    /// ```
    /// use std::io::{Read, Write};
    ///
    /// use rpcrdma::{Authentication, prelude::*};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let address = format!("shm:and-tcp-{}", std::process::id());
    /// let server = Server::builder()
    ///     .procedure(Procedure::new(0x2000_0001, 1, 1), |call, reply| {
    ///         reply.u32(call.args().u32()?);
    ///         Ok(())
    ///     })
    ///     .authentication(Authentication::None)
    ///     .also_at("tcp:127.0.0.1:0")
    ///     .listen(&address)?;
    /// let mut stream = std::net::TcpStream::connect(&server.addresses()[1]["tcp:".len()..])?;
    /// // A record mark, the header of a call, and its argument.
    /// let call = [0x8000_002c, 7, 0, 2, 0x2000_0001, 1, 1, 0, 0, 0, 0, 42_u32];
    /// stream.write_all(&call.map(u32::to_be_bytes).concat())?;
    /// let mut reply = [0; 32];
    /// stream.read_exact(&mut reply)?;
    /// assert_eq!(reply[28..], 42_u32.to_be_bytes());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn also_at(mut self, address: &str) -> Self {
        self.more.push(address.to_owned());
        self
    }

    /// So many connections by TCP at a time, instead of 256.
    #[must_use]
    pub fn tcp_connections(mut self, connections_max: u32) -> Self {
        self.tcp_connections = connections_max;
        self
    }

    /// Starts the node, without a listener, for the fabric of `address`, and the device that has it or by which it is reached.
    /// Several addresses of a server can have several devices.
    ///
    /// # Errors
    /// When the profile cannot be used, a core cannot be pinned or has too little memory, or the fabric is not there.
    pub fn start(self, address: &str) -> Result<Node, Error> {
        self.start_for(address, Use::Either)
    }

    pub(crate) fn start_for(self, address: &str, purpose: Use) -> Result<Node, Error> {
        if address.starts_with(tcp::SCHEME) {
            return self.start_on(FABRIC_OF_TCP);
        }
        let addresses: ServerAddresses = address.parse()?;
        let fabric = Fabric::of(addresses.iter(), self.device.as_deref(), purpose)?;
        self.start_on(fabric)
    }

    /// The profile, as far as the device goes.
    fn fitted(&mut self, fabric: &Fabric) -> Result<Loaded, Error> {
        if let Some(error) = self.profile_error.take() {
            return Err(error.into());
        }
        let idle = match (&self.profile, self.is_low_latency) {
            (_, true) => Some(Idle::Spin),
            (Some(_), false) => None,
            (None, false) => Some(Idle::Park),
        };
        let chosen = self.profile.take().map(Layers::over);
        let layers = fabric.layers(chosen)?.program(&Settings {
            idle,
            ..Settings::default()
        });
        Ok(layers.program(&self.settings).build()?)
    }

    /// Starts the node, without a listener, on a fabric and device that were chosen before, and not by [`NodeBuilder::device`].
    ///
    /// # Errors
    /// As [`NodeBuilder::start`].
    pub fn start_on(mut self, fabric: Fabric) -> Result<Node, Error> {
        let fitted = self.fitted(&fabric)?;
        let clamps = fitted.clamps.iter().map(ToString::to_string);
        let has_windows = fitted.lacks.is_empty();
        let of_devices = fabric.devices().into_iter().flat_map(Devices::warnings);
        let mut warnings: Vec<_> = of_devices.chain(clamps).chain(fitted.lacks).collect();
        let profile = Arc::new(fitted.profile);
        let mut cores = std::mem::take(&mut self.cores);
        if cores.is_empty() {
            cores.push(None);
        }
        let mut programs = self.programs;
        for (program, versions) in self.procedures.programs() {
            let procedures = self.procedures.clone();
            let new = move |_| -> Box<dyn Service> { Box::new(procedures.clone()) };
            programs.push((program, versions, Box::new(new)));
        }
        let mut config = NodeConfig::from_profile(&profile, cores);
        config.external = self.external;
        for change in self.configure {
            config = change(config);
        }
        let is_reserving = self.is_low_latency && !self.is_polled;
        let reserved = is_reserving.then(|| Reserved::take(&mut config.cores));
        let reserved = reserved.transpose()?;
        let applications: Vec<A> = (0..config.cores.len()).map(self.application).collect();
        let taken = applications.first().map(Application::programs);
        let twice = programs.iter().map(|(number, ..)| *number);
        let mut twice = twice.filter(|it| taken.as_ref().is_some_and(|taken| taken.has(*it)));
        if let Some(program) = twice.next() {
            return Err(Failure::ProgramTwice { program }.into());
        }
        let mut served: Vec<Programs> = (0..config.cores.len())
            .map(|core| {
                let of_core = programs.iter().map(|(number, versions, new)| {
                    Program::new(*number, versions.clone(), new(core))
                });
                Programs::new(of_core.collect())
            })
            .collect();
        let once = served.iter().any(Programs::have_once).then(|| {
            let connections_max = config.core.connections_max as usize * served.len();
            Arc::new(Clients::new(
                connections_max + self.tcp_connections as usize,
            ))
        });
        if let Some(clients) = &once {
            served.iter_mut().for_each(|it| it.keep(clients));
        }
        let names = Arc::new(Names::new(once.is_some()));
        config.core.application_properties = names.as_server(config.core.application_properties)?;
        config.connection_name = Some(connection_name);
        let sizes = Sizes::of(&config.core);
        let of_tcp = tcp::Limits::of(&config, self.tcp_connections);
        let shared: Arc<[_]> = served.iter().map(|_| sizes.shared()).collect();
        let clock = Clock::new();
        let mut of_cores = applications.into_iter().zip(served).zip(&*shared);
        let application = |_| {
            let ((application, programs), shared) = of_cores
                .next()
                .unwrap_or_else(|| unreachable!("there is one for each core"));
            CoreApplication::new(
                application,
                Arc::clone(shared),
                programs,
                (sizes.calls_max, sizes.deferred_max),
                clock.clone(),
            )
        };
        let windows = config.core.windows();
        let starting = Starting {
            config: &config,
            shared: &shared,
            is_polled: self.is_polled,
            faults: &self.faults,
        };
        let (handle, threads, polled) = match &fabric {
            Fabric::Shm { delay } => {
                let provider = ShmProvider {
                    delay: *delay,
                    ..ShmProvider::from_profile(&profile)
                };
                start(provider, starting, application)?
            }
            Fabric::Verbs { devices } => {
                let of = |name: &str| VerbsProvider::from_profile(&profile, Some(name.to_owned()));
                let rails: Vec<_> = devices.iter().map(of).collect();
                // A node on one device pays nothing for those on several.
                match <[_; 1]>::try_from(rails) {
                    Ok([one]) => start(one, starting, application)?,
                    Err(rails) => start(RailsProvider::new(rails)?, starting, application)?,
                }
            }
        };
        if has_windows {
            warnings.extend(few_windows(handle.attributes(), windows));
        }
        warnings.extend(no_thread_domains(handle.attributes()));
        Ok(Node {
            fabric,
            tcp: Arc::new(Tcp::new(&shared, &handle, of_tcp)),
            handle,
            _threads: threads,
            _reserved: Arc::new(reserved),
            cores: shared,
            polled,
            profile,
            warnings: warnings.into(),
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
        let of_fabric = wanted.iter().filter(|it| !it.starts_with(tcp::SCHEME));
        let of_fabric: Vec<Address> = of_fabric.map(|it| it.parse()).collect::<Result<_, _>>()?;
        wanted.iter().try_for_each(|it| Node::check_free(it))?;
        let fabric = match of_fabric.is_empty() {
            true => FABRIC_OF_TCP,
            false => Fabric::of(&of_fabric, self.device.as_deref(), Use::Listen)?,
        };
        let node = self.start_on(fabric)?;
        let addresses = wanted
            .iter()
            .map(|address| node.listen(address, authentication.clone()))
            .collect::<Result<_, _>>()?;
        Ok((node, addresses))
    }
}

impl<A> fmt::Debug for NodeBuilder<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeBuilder")
            .field("cores", &self.cores)
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}

/// The sizes of what a core shares with threads: those of the core itself, so that what the engine gives out has its place here.
struct Sizes {
    calls_max: u32,
    /// The calls of a core that can be deferred: each connection has one beyond those that all of them share.
    deferred_max: u32,
    /// Pieces of registered memory, and the bytes of each.
    bulk: (usize, usize),
}

impl Sizes {
    fn of(core: &CoreConfig) -> Self {
        Self {
            calls_max: core.calls_outstanding_max,
            deferred_max: core.deferred_max.saturating_add(core.connections_max),
            bulk: (core.bulk_buffers as usize, core.bulk_buffer_bytes as usize),
        }
    }

    fn shared(&self) -> Arc<CoreShared> {
        CoreShared::new(
            self.calls_max as usize,
            self.deferred_max as usize,
            self.bulk,
        )
    }
}

/// What a node is started with, on any fabric.
struct Starting<'a> {
    config: &'a NodeConfig,
    shared: &'a [Arc<CoreShared>],
    is_polled: bool,
    faults: &'a FaultPlan,
}

type Started = (Arc<NodeHandle>, Arc<dyn Send + Sync>, PolledCores);

fn start<V: Provider, A: Application>(
    provider: V,
    starting: Starting<'_>,
    application: impl FnMut(usize) -> CoreApplication<A>,
) -> Result<Started, Error> {
    use rpcrdma_control::Node;
    let Starting {
        config,
        shared,
        faults,
        ..
    } = starting;
    if starting.is_polled {
        let (node, cores) = Node::start_polled(provider, config, application)?;
        let cores = cores.into_iter().map(PolledCore::new);
        let cores = cores.map(|core| Mutex::new(Some(core))).collect();
        return Ok((Arc::clone(node.handle()), Arc::new(node), cores));
    }
    let node = if faults.is_empty() {
        Node::start(provider, config, application)?
    } else {
        Node::start_with_faults(provider, config, faults, application)?
    };
    // A core that never sleeps is not woken: the check alone takes a fence for each call.
    if matches!(config.core.idle, IdlePolicy::Park { .. }) {
        for (shared, core) in shared.iter().zip(node.cores()) {
            let core = core.clone();
            shared.set_wake(move || core.wake());
        }
    }
    Ok((Arc::clone(node.handle()), Arc::new(node), Arc::new([])))
}
