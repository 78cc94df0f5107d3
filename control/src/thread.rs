//! The control thread: one loop that sleeps until the fabric, a core or the application has
//! something for it.

mod connection;
mod deadlines;
mod drain;
mod exchange;
mod negotiate;
mod places;
mod requests;
mod targets;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use rpcrdma_engine::{CloseReason, Command, ConnectionCounters, ConnectionKey, CoreEvent};
use rpcrdma_fabric::interface::{
    ConnectionId, ListenerId, Manager, ManagerEvent, PeerIdentity, PortSetup, PublishedCounters,
    RejectReason, SetupError,
};
use rpcrdma_protocol::cm_private_data::PrivateData;
use rpcrdma_protocol::connection::Versions;
use rpcrdma_protocol::constants::{RPCRDMA_VERSION_1, RPCRDMA_VERSION_2};
use rpcrdma_protocol::v2::connection::Role;
use rpcrdma_protocol::v2::{ApplicationProperties, Properties};

use self::connection::{Attempt, End, Tracked};
use self::deadlines::Deadlines;
use self::drain::Drain;
use self::places::Names;
use self::targets::Keeper;
use crate::authentication::Session;
use crate::connection::NameOf;
use crate::connection::{Connection, ListenOptions};
use crate::core_choice::{CoreChoice, Occupancy, PeerLimits};
use crate::counters::ControlCounters;
use crate::error::{ConnectError, Stage};
use crate::events::{EventSink, NodeEvent};
use crate::limits::NodeLimits;
use crate::link::CoreLink;
use crate::provider::Provider;
use crate::request::{Owner, Request};
use crate::versions::{Source, VersionMemory};
use crate::watch::PublishedDevices;

/// The settings of the control thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) limits: NodeLimits,
    pub(crate) properties: Properties,
    /// The properties that the cores announce for the application.
    pub(crate) application_properties: ApplicationProperties,
    /// [`NodeConfig::connection_name`](crate::NodeConfig::connection_name).
    pub(crate) connection_name: Option<NameOf>,
    /// Whether this end announces remote invalidation (RFC 8797, version 1): peers may invalidate the memory that its
    /// calls expose, because all of it is memory windows, each bound for one call. This end invalidates the memory of a
    /// peer only if both announce it.
    pub(crate) remote_invalidation: bool,
    /// The longest message of version 1 that a core can send: what one of its buffers holds.
    pub(crate) send_buffer_bytes: u32,
    pub(crate) target_attempts_per_second_max: u32,
    /// Decides by how much the waits of targets vary.
    pub(crate) seed: u64,
}

/// How long the thread sleeps when nothing is due: a bound on the cost of a lost wake.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// The devices are looked at no more often: each look may ask their firmware.
const DEVICES_AGAIN: Duration = Duration::from_secs(5);

/// The wait before a retry when a core's mailbox was full.
const MAILBOX_RETRY: Duration = Duration::from_millis(10);

/// The requests of peers so far, over all nodes of the process: two nodes may keep the calls of one client together. A client asks for
/// a connection after it has lost the one before, and that one was made after its request was handled here.
static ARRIVALS: AtomicU64 = AtomicU64::new(1);

pub(crate) struct ControlThread<V: Provider> {
    manager: V::Manager,
    cores: Vec<CoreLink<V::Port, <V::Manager as Manager>::PortHandle>>,
    inbox: Receiver<Request>,
    settings: Settings,
    counters: Arc<ControlCounters>,
    /// The manager's counters.
    fabric: Arc<PublishedCounters>,
    devices: PublishedDevices,
    /// When the devices are looked at.
    devices_due: Instant,
    events: Option<EventSink>,
    /// The address and the options of each.
    listeners: HashMap<ListenerId, (String, ListenOptions)>,
    connections: HashMap<ConnectionId, Tracked>,
    keys: HashMap<(usize, ConnectionKey), ConnectionId>,
    /// The connection of each owner, from its request to its end. Of one that is made again, the last.
    owned: HashMap<Owner, ConnectionId>,
    occupancy: Occupancy,
    peers: PeerLimits,
    names: Names,
    keeper: Keeper,
    deadlines: Deadlines,
    versions: VersionMemory,
    drain: Option<Drain>,
    draining: bool,
    mailboxes_full: bool,
}

impl<V: Provider> ControlThread<V> {
    pub(crate) fn new(
        manager: V::Manager,
        cores: Vec<CoreLink<V::Port, <V::Manager as Manager>::PortHandle>>,
        inbox: Receiver<Request>,
        settings: Settings,
        counters: Arc<ControlCounters>,
        fabric: Arc<PublishedCounters>,
    ) -> Self {
        let limits = settings.limits;
        let occupancy = Occupancy::new(cores.len(), limits.connections_per_core);
        Self {
            manager,
            cores,
            inbox,
            settings,
            counters,
            fabric,
            devices: PublishedDevices::default(),
            devices_due: Instant::now(),
            events: None,
            listeners: HashMap::new(),
            connections: HashMap::new(),
            keys: HashMap::new(),
            owned: HashMap::new(),
            occupancy,
            peers: PeerLimits::new(limits.peer_connections_max),
            names: Names::default(),
            keeper: Keeper::new(settings.target_attempts_per_second_max, settings.seed),
            deadlines: Deadlines::default(),
            versions: VersionMemory::default(),
            drain: None,
            draining: false,
            mailboxes_full: false,
        }
    }

    /// Events of connections go to `events`.
    pub(crate) fn with_events(mut self, events: Option<EventSink>) -> Self {
        self.events = events;
        self
    }

    /// The levels of its devices go to `devices`.
    pub(crate) fn with_devices(mut self, devices: PublishedDevices) -> Self {
        self.devices = devices;
        self
    }

    fn tell(&self, event: impl FnOnce() -> NodeEvent) {
        if let Some(events) = &self.events {
            events.tell(event());
        }
    }

    pub(crate) fn run(mut self) {
        let mut events = Vec::new();
        loop {
            if self.manager.wait(self.sleep(), &mut events).is_err() {
                // The fabric's descriptor failed: waiting is impossible.
                break;
            }
            ControlCounters::add(&self.counters.wakes);
            for event in events.drain(..) {
                self.fabric_event(event);
            }
            if !self.take_requests() {
                break;
            }
            self.take_notifications();
            self.mailboxes_full = self.push_waiting();
            let now = Instant::now();
            let late = self.deadlines.take_late(self.connections.values(), now);
            self.expire_connects(late.connects);
            self.expire_unauthenticated(late.unauthenticated);
            self.serve_targets(now);
            self.go_on_draining(now);
            let manager = &self.manager;
            self.fabric.publish(|each| manager.each_counter(each));
            if now >= self.devices_due {
                self.devices.publish(manager.devices());
                self.devices_due = now + DEVICES_AGAIN;
            }
        }
        self.stop();
    }

    /// The time until something is due.
    fn sleep(&self) -> Duration {
        if self.mailboxes_full {
            return MAILBOX_RETRY;
        }
        let now = Instant::now();
        let drain = self.drain.as_ref().and_then(|drain| drain.deadline);
        let target = self.keeper.next_due();
        [drain, target, self.deadlines.next_walk()]
            .into_iter()
            .flatten()
            .min()
            .map_or(SLEEP_MAX, |due| {
                due.saturating_duration_since(now).min(SLEEP_MAX)
            })
    }

    fn push_waiting(&mut self) -> bool {
        let mut full = false;
        for core in &mut self.cores {
            full |= core.push_waiting();
        }
        full
    }

    // ---- the fabric

    fn fabric_event(&mut self, event: ManagerEvent<V::Port>) {
        match event {
            ManagerEvent::ConnectRequest {
                connection,
                listener,
                peer,
                private_data,
            } => {
                ControlCounters::add(&self.counters.connects_received);
                let peer_data = PrivateData::find(&private_data).unwrap_or_default();
                let name = peer.name.clone();
                let peer = PeerIdentity {
                    arrival: ARRIVALS.fetch_add(1, Ordering::Relaxed),
                    ..peer
                };
                if let Err(reason) = self.admit(connection, listener, peer, peer_data) {
                    self.tell(|| NodeEvent::Rejected { peer: name, reason });
                    self.count_rejection(reason);
                    let private_data = self.private_data();
                    self.manager.reject(connection, reason, &private_data);
                }
            }
            ManagerEvent::ConnectReply {
                connection,
                peer,
                private_data,
            } => {
                let peer_data = PrivateData::find(&private_data).unwrap_or_default();
                self.adopt_client(connection, peer, peer_data);
            }
            ManagerEvent::Established {
                connection,
                port_event,
            } => {
                let _ = self.tell_core(connection, port_event);
            }
            ManagerEvent::Rejected {
                connection, reason, ..
            } => {
                ControlCounters::add(&self.counters.rejected_by_peer);
                self.fail_attempt(connection, |attempt, _| ConnectError::Rejected {
                    address: attempt.address.clone(),
                    reason,
                });
                self.forget(connection);
            }
            ManagerEvent::Failed { connection, error } => {
                ControlCounters::add(&self.counters.connects_failed);
                self.fail_attempt(connection, |_, _| error.into());
                self.end(connection, CloseReason::Peer);
            }
            ManagerEvent::ListenerLost { address, .. } => {
                self.tell(|| NodeEvent::ListenerLost { address });
            }
            ManagerEvent::ListenerRestored { address, .. } => {
                self.tell(|| NodeEvent::ListenerRestored { address });
            }
            ManagerEvent::LinkDown { connection } => self.link_down(connection),
            ManagerEvent::Disconnected {
                connection,
                port_event,
            } => {
                // A core that has adopted the queue pair ends the connection itself: it first reads the peer's last
                // messages, and may know a reason that the fabric does not report.
                if !self.tell_core(connection, port_event) {
                    self.fail_attempt(connection, |attempt, stage| ConnectError::PeerGone {
                        address: attempt.address.clone(),
                        stage,
                    });
                    self.end(connection, CloseReason::Peer);
                }
            }
        }
    }

    /// The link of a connection is down. It goes on at an address of its server that another device leads to. If there is none,
    /// the retries of the device may still help.
    fn link_down(&mut self, id: ConnectionId) {
        let Some(tracked) = self.connections.get_mut(&id) else {
            return;
        };
        let is_ready = tracked.stage == Stage::Ready;
        let owner = tracked.owner();
        let Some(own) = tracked.attempt().map(|attempt| attempt.address.clone()) else {
            return;
        };
        let has_way = self
            .keeper
            .other_addresses(owner, &own)
            .any(|it| self.manager.leads_elsewhere(id, it));
        if !has_way {
            return;
        }
        if !is_ready {
            // Before the end, which would look like that of a server which does not speak version 2.
            self.fail_attempt(id, |attempt, stage| ConnectError::PeerGone {
                address: attempt.address.clone(),
                stage,
            });
        }
        self.manager.abandon(id);
    }

    /// Finds a place for a connection and has its core adopt the queue pair.
    fn admit(
        &mut self,
        id: ConnectionId,
        listener: ListenerId,
        peer: PeerIdentity,
        peer_data: PrivateData,
    ) -> Result<(), RejectReason> {
        if self.draining {
            return Err(RejectReason::Draining);
        }
        // The fabric may have queued a request before its listener was closed: whom it would admit is not known any more.
        let Some((_, options)) = self.listeners.get(&listener).cloned() else {
            return Err(RejectReason::Draining);
        };
        // The peer's limit comes first, so that a peer over it does not occupy a place in a core.
        if !self.peers.take(peer.key) {
            self.leave_cut(|it| it.peer.as_ref().is_some_and(|it| it.key == peer.key));
            return Err(RejectReason::PeerLimit);
        }
        let Some(core) = self.occupancy.take(options.core) else {
            self.peers.release(peer.key);
            self.leave_cut(|it| match options.core {
                CoreChoice::Core(core) => it.core == core,
                CoreChoice::FewestConnections => true,
            });
            return Err(RejectReason::ConnectionsExhausted);
        };
        let prepared = match self.manager.prepare(id, &self.cores[core].port) {
            Ok(prepared) => prepared,
            Err(error) => {
                self.occupancy.release(core);
                self.peers.release(peer.key);
                return Err(match error {
                    SetupError::Limit { .. } => RejectReason::ConnectionsExhausted,
                    _ => RejectReason::Other(0),
                });
            }
        };
        let tracked = Tracked {
            id,
            end: End::Server,
            core,
            key: None,
            stage: Stage::Adopting,
            peer: Some(peer),
            versions: options.versions,
            peer_data,
            session: Session::server(options.authentication, options.authentication_timeout),
            announces: None,
            name: None,
            ending: None,
        };
        self.connections.insert(id, tracked);
        self.adopt_queue_pair(id, core, prepared, Role::Server);
        Ok(())
    }

    fn adopt_queue_pair(
        &mut self,
        id: ConnectionId,
        core: usize,
        prepared: <V::Port as PortSetup>::PreparedQueuePair,
        role: Role,
    ) {
        let Some(tracked) = self.connections.get(&id) else {
            return;
        };
        let terms = self.terms(tracked);
        let has_other_path = self.has_other_address(tracked);
        self.cores[core].send(Command::Adopt {
            token: id.0,
            prepared,
            role,
            peer: tracked.peer.clone().unwrap_or_default(),
            properties: self.settings.properties,
            terms,
            credits_max: self.settings.limits.credits_per_connection,
            guarded: tracked.session.is_guarded(),
            has_other_path,
        });
    }

    /// Whether a client whose connection is lost goes on at another address.
    fn has_other_address(&self, tracked: &Tracked) -> bool {
        let End::Client(attempt) = &tracked.end else {
            return false;
        };
        let mut others = self
            .keeper
            .other_addresses(tracked.owner(), &attempt.address);
        others.next().is_some()
    }

    fn count_rejection(&self, reason: RejectReason) {
        ControlCounters::add(match reason {
            RejectReason::PeerLimit => &self.counters.rejected_peer_limit,
            RejectReason::Draining => &self.counters.rejected_draining,
            _ => &self.counters.rejected_exhausted,
        });
    }

    fn adopt_client(&mut self, id: ConnectionId, peer: PeerIdentity, peer_data: PrivateData) {
        let Some(tracked) = self.connections.get_mut(&id) else {
            // The attempt timed out while the reply was on its way.
            self.manager.disconnect(id);
            return;
        };
        tracked.stage = Stage::Adopting;
        tracked.peer = Some(peer);
        tracked.peer_data = peer_data;
        let core = tracked.core;
        match self.manager.prepare(id, &self.cores[core].port) {
            Ok(prepared) => self.adopt_queue_pair(id, core, prepared, Role::Client),
            Err(error) => {
                ControlCounters::add(&self.counters.connects_failed);
                self.fail_attempt(id, |_, _| error.into());
                self.forget(id);
            }
        }
    }

    /// Passes a port event to the core that adopted the queue pair. Returns whether there is one; otherwise nobody
    /// needs the event.
    fn tell_core(
        &mut self,
        id: ConnectionId,
        port_event: Option<<V::Port as PortSetup>::PortEvent>,
    ) -> bool {
        if let (Some(tracked), Some(port_event)) = (self.connections.get(&id), port_event)
            && tracked.key.is_some()
        {
            self.cores[tracked.core].send(Command::PortEvent(port_event));
            return true;
        }
        false
    }

    // ---- the cores

    fn take_notifications(&mut self) {
        for core in 0..self.cores.len() {
            // Before its last notifications are taken.
            let has_ended = self.cores[core].handle.has_ended();
            while let Some(notification) = self.cores[core].handle.receive() {
                self.notification(core, notification);
            }
            if has_ended && self.cores[core].note_end() {
                self.core_ended(core);
            }
        }
    }

    /// A core has ended: the program dropped it, or its application panicked. Its connections end too, because no core would
    /// answer for them.
    fn core_ended(&mut self, core: usize) {
        if let Some(drain) = &mut self.drain
            && !self.cores[core].is_drained
        {
            drain.cores_left = drain.cores_left.saturating_sub(1);
        }
        let of_core = self.connections.values().filter(|it| it.core == core);
        let ids: Vec<_> = of_core.map(|tracked| tracked.id).collect();
        for id in ids {
            // What it counted is lost with it.
            self.closed(id, CloseReason::Stopped, ConnectionCounters::default());
        }
        self.occupancy.retire(core);
    }

    fn notification(&mut self, core: usize, notification: CoreEvent) {
        match notification {
            CoreEvent::Adopted { token, result } => {
                self.adopted(ConnectionId(token), result);
            }
            CoreEvent::Properties { connection, bytes } => {
                self.decide_properties(core, connection, &bytes);
            }
            CoreEvent::Ready {
                connection,
                version_1,
            } => self.ready(core, connection, version_1),
            CoreEvent::VersionMismatch {
                connection,
                low,
                high,
            } => {
                if let Some(id) = self.keys.get(&(core, connection)).copied() {
                    ControlCounters::add(&self.counters.connects_failed);
                    if let Some(attempt) = self.connections.get_mut(&id).and_then(Tracked::attempt)
                    {
                        self.versions.forget(&attempt.address);
                    }
                    self.fail_attempt(id, |attempt, _| ConnectError::VersionMismatch {
                        address: attempt.address.clone(),
                        low,
                        high,
                    });
                    self.end(id, CloseReason::VersionMismatch { low, high });
                }
            }
            CoreEvent::Closed {
                connection,
                reason,
                counters,
            } => {
                if let Some(id) = self.keys.get(&(core, connection)).copied() {
                    self.closed(id, reason, counters);
                }
            }
            CoreEvent::Drained => {
                self.cores[core].is_drained = true;
                if let Some(drain) = &mut self.drain {
                    drain.cores_left = drain.cores_left.saturating_sub(1);
                }
            }
        }
    }

    /// A connection has closed at its core, or has ended with it.
    fn closed(&mut self, id: ConnectionId, reason: CloseReason, counters: ConnectionCounters) {
        let Some(tracked) = self.connections.get(&id) else {
            return;
        };
        if let Some(key) = tracked.key {
            self.tell(|| NodeEvent::Closed {
                core: tracked.core,
                key,
                peer: tracked.peer_name(),
                reason,
                counters,
            });
        }
        // Before `fail_attempt`, which takes the waiter: an attempt that still waits may go on.
        let again = self.note_closed(id, reason, counters);
        self.fail_attempt(id, |attempt, stage| ended(attempt, stage, reason));
        let tracked = self.connections.get(&id);
        if let Some(target) = tracked.and_then(Tracked::target) {
            self.keeper.lost(target, reason);
        }
        self.forget(id);
        if let Some((attempt, core)) = again {
            self.connect_version_1(attempt, core);
        }
    }

    /// The core has adopted the queue pair, with Receives posted: now the peer may be answered, and may send.
    fn adopted(&mut self, id: ConnectionId, result: Result<ConnectionKey, SetupError>) {
        let Some(tracked) = self.connections.get_mut(&id) else {
            return;
        };
        let key = match result {
            Ok(key) => key,
            Err(error) => {
                ControlCounters::add(&self.counters.connects_failed);
                if matches!(tracked.end, End::Server) {
                    let private_data = self.private_data();
                    self.manager
                        .reject(id, RejectReason::Other(1), &private_data);
                }
                self.fail_attempt(id, |_, _| error.into());
                self.forget(id);
                return;
            }
        };
        tracked.key = Some(key);
        tracked.stage = Stage::ExchangingProperties;
        let (core, ending) = (tracked.core, tracked.ending);
        let is_client = matches!(tracked.end, End::Client(_));
        self.keys.insert((core, key), id);
        if let Some(reason) = ending {
            self.close(core, key, reason);
            return;
        }
        let answered = if is_client {
            self.manager.confirm(id)
        } else {
            let private_data = self.private_data();
            self.manager.accept(id, &private_data)
        };
        if let Err(error) = answered {
            ControlCounters::add(&self.counters.connects_failed);
            self.fail_attempt(id, |_, _| error.into());
            self.close(core, key, CloseReason::Peer);
        } else {
            self.begin_exchange(id, core, key);
        }
    }

    fn ready(&mut self, core: usize, key: ConnectionKey, version_1: bool) {
        let Some(id) = self.keys.get(&(core, key)).copied() else {
            return;
        };
        let Some(tracked) = self.connections.get_mut(&id) else {
            return;
        };
        // It is being closed already: nobody waits for it, and its target may have another one.
        if tracked.ending.is_some() {
            return;
        }
        tracked.stage = Stage::Ready;
        ControlCounters::add(&self.counters.connections_ready);
        let peer = tracked.peer_name();
        let identity = tracked.session.identity().cloned();
        let version = if version_1 {
            RPCRDMA_VERSION_1
        } else {
            RPCRDMA_VERSION_2
        };
        if let Some(events) = &self.events {
            events.tell(NodeEvent::Ready {
                core,
                key,
                peer: peer.clone(),
                identity: identity.clone(),
                version,
            });
        }
        let fell_back = version_1 && tracked.versions == Versions::Both;
        if let Some(attempt) = tracked.attempt() {
            if fell_back {
                self.versions
                    .remember(&attempt.address, Source::Server, Instant::now());
            }
            let address = attempt.address.clone();
            attempt.answer(Ok(Connection {
                core,
                key,
                address,
                peer,
                identity,
                version,
            }));
        }
        self.replace_earlier(id);
    }

    // ---- the end of connections

    fn close(&mut self, core: usize, key: ConnectionKey, reason: CloseReason) {
        if self.keys.contains_key(&(core, key)) {
            self.cores[core].send(Command::Close {
                connection: key,
                reason,
            });
        }
    }

    fn fail_attempt(
        &mut self,
        id: ConnectionId,
        why: impl FnOnce(&Attempt, Stage) -> ConnectError,
    ) {
        if let Some(tracked) = self.connections.get_mut(&id) {
            tracked.fail(why);
        }
    }

    /// Ends a connection: through its core if that has adopted the queue pair, when the core answers if it is adopting
    /// it, and immediately otherwise.
    fn end(&mut self, id: ConnectionId, reason: CloseReason) {
        let Some(tracked) = self.connections.get_mut(&id) else {
            return;
        };
        tracked.ending = Some(reason);
        match (tracked.key, tracked.stage) {
            (Some(key), _) => {
                let core = tracked.core;
                self.close(core, key, reason);
            }
            (None, Stage::Adopting) => {}
            (None, _) => self.forget(id),
        }
    }

    /// Releases what the connection holds here and on the fabric. Its core no longer has it.
    fn forget(&mut self, id: ConnectionId) {
        let Some(mut tracked) = self.connections.remove(&id) else {
            return;
        };
        tracked.fail(|attempt, stage| ConnectError::PeerGone {
            address: attempt.address.clone(),
            stage,
        });
        self.manager.disconnect(tracked.id);
        self.names.forget(&tracked);
        if let Some(owner) = tracked.owner()
            && self.owned.get(&owner) == Some(&id)
        {
            self.owned.remove(&owner);
        }
        if let Some(key) = tracked.key {
            self.keys.remove(&(tracked.core, key));
        }
        if tracked.stage == Stage::Ready {
            ControlCounters::add(&self.counters.connections_closed);
        } else if let End::Client(attempt) = &tracked.end
            && tracked.versions == Versions::One
        {
            self.versions.doubt(&attempt.address);
        }
        self.occupancy.release(tracked.core);
        if let (End::Server, Some(peer)) = (&tracked.end, &tracked.peer) {
            self.peers.release(peer.key);
        }
    }

    /// Gives up on connects that took too long.
    fn expire_connects(&mut self, late: Vec<ConnectionId>) {
        for id in late {
            ControlCounters::add(&self.counters.connect_timeouts);
            self.note_unanswered(id);
            self.fail_attempt(id, |attempt, stage| ConnectError::Timeout {
                address: attempt.address.clone(),
                after: attempt.timeout,
                stage,
            });
            self.end(id, CloseReason::Local);
        }
    }

    // ---- stop

    /// Stops the cores. Connections end with the fabric's sockets, which peers see.
    fn stop(mut self) {
        let ids: Vec<ConnectionId> = self.connections.keys().copied().collect();
        for id in ids {
            self.fail_attempt(id, |_, _| ConnectError::ShuttingDown);
        }
        // The drop of a link stops its core, also after a panic of this thread.
        self.cores.clear();
    }
}

/// The error of an attempt whose connection was closed by its core.
fn ended(attempt: &Attempt, stage: Stage, reason: CloseReason) -> ConnectError {
    let address = attempt.address.clone();
    match reason {
        CloseReason::Local | CloseReason::Stopped | CloseReason::Peer => {
            ConnectError::PeerGone { address, stage }
        }
        CloseReason::VersionMismatch { low, high } => {
            ConnectError::VersionMismatch { address, low, high }
        }
        CloseReason::Unauthenticated(failure) => ConnectError::Unauthenticated { address, failure },
        CloseReason::PeerSilent { .. }
        | CloseReason::PathDead { .. }
        | CloseReason::Replaced
        | CloseReason::PeerStalled { .. }
        | CloseReason::Protocol(_)
        | CloseReason::ErrorsUnread
        | CloseReason::CallUnanswered
        | CloseReason::PropertiesRefused(_)
        | CloseReason::PropertiesUnawaited
        | CloseReason::PropertiesChanged => ConnectError::Ended {
            address,
            stage,
            reason,
        },
    }
}
