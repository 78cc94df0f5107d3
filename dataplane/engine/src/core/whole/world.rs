//! One core, its control plane, and all its peers, in virtual time.

mod checks;
mod sleep;

use std::time::Duration;

use rpcrdma_fabric::clock::{Clock, Ticks};
use rpcrdma_fabric::interface::{CompletionBatch, PeerIdentity};
use rpcrdma_fabric::shm::PortEvent;
use rpcrdma_protocol::cm_private_data::PrivateData;
use rpcrdma_protocol::connection::{Terms, Versions};
use rpcrdma_protocol::v2::connection::Role;
use rpcrdma_protocol::v2::{Properties, PropertySet, ReverseRequestSupport};

use checks::Watch;

use super::device::Device;
use super::ledger;
use super::peer::{Kind, OF_CORE, Peer};
use super::service::{Callee, Service, Wanted};
use super::step::{Action, Ours, Step};
use super::{CALL_TIMEOUT_MS, Form, HOSTILE, Passed, config, port};
use crate::TestFabric;
use crate::bulk::Placement;
use crate::close_reason::CloseReason;
use crate::core::Core;
use crate::counters::CounterSnapshot;
use crate::handle::{Command, CoreEvent, CoreHandle};
use crate::requester::Requester;
use crate::rpc::ConnectionKey;
use crate::support::fabric::Fabric;
use crate::support::{TestPortHandle, properties};

/// The partner sends a message, and neighbours call, once in so many turns: the others take most of the time of a case.
const TURNS_OF_A_MESSAGE: u64 = 2;
/// The same where the core sleeps, which it does when nobody has anything of it.
const TURNS_OF_A_MESSAGE_ASLEEP: u64 = 16;
/// Spare segments for the longest call or answer of the partner.
const PAGES_OF_PARTNER: usize = 3;
/// Calls of the core to the partner at a time.
const CALLS_OF_PARTNER: u64 = 2;
/// Polls in which a connection that is closed is gone.
const POLLS_CLOSED_MAX: u64 = 200;
/// Polls in which all is answered that is owed, once all peers do what they should.
const POLLS_BEHAVED_MAX: u64 = 2000;
/// Polls after a connection was gone, in which its buffers may be on their way.
const POLLS_RETURNED: u64 = 12;
/// Polls in which a core drains of calls that are answered.
const POLLS_DRAINING: u64 = 150;
/// Polls in which a core that has drained is looked at.
const POLLS_DRAINED: u64 = 8;
/// Steps between two looks at all tables.
const STEPS_PER_AUDIT: u64 = 8;
/// Works of the core that are outstanding on a connection.
const SEND_QUEUE_DEPTH: u32 = 4;
/// Time that passes at once.
const SLICE_MS: u32 = 1000;

/// The peers, in order: first those that what is drawn does nothing to.
const KINDS: [Kind; 10] = [
    Kind::Neighbour,
    Kind::Neighbour,
    Kind::Server,
    Kind::Partner,
    Kind::Hostile(Role::Server),
    Kind::Hostile(Role::Server),
    Kind::Hostile(Role::Server),
    Kind::Hostile(Role::Server),
    Kind::Hostile(Role::Client),
    Kind::Hostile(Role::Client),
];
const HONEST: usize = 4;
const _: () = assert!(KINDS.len() == HONEST + HOSTILE as usize);
/// The neighbour that speaks version 1.
const NEIGHBOUR_1: usize = 1;
const SERVER: usize = 2;
const PARTNER: usize = 3;

pub(super) struct World {
    core: Core<Device, Service>,
    handle: CoreHandle<Device>,
    port: TestPortHandle,
    properties: Properties,
    peers: Vec<Peer>,
    watches: Vec<Watch>,
    /// For each honest peer but the partner what it had come to, and in which turn.
    progress: [(u64, u64); PARTNER],
    clock: Clock,
    now: Ticks,
    form: Form,
    /// The core sleeps, until then at the latest.
    asleep_until: Option<Ticks>,
    turns: u64,
    steps: u64,
    last_closed: u64,
    next_port: u32,
    gathers: usize,
    batch: CompletionBatch,
    /// The core drains, or has drained: nobody is served.
    is_draining: bool,
    is_drained: bool,
    /// Honest peers may lose their connections.
    is_over: bool,
    longest_wait: u64,
    /// Turns in which others left spare segments for all that the partner may send, or be sent: it waits for them.
    turns_of_partner: u64,
    /// Calls that were asked for of the partner, and the most of these turns that either of the two waited for the other.
    calls_of_partner: u64,
    longest_of_partner: u64,
}

impl World {
    pub(super) fn new(clock: &Clock, form: Form) -> Self {
        let config = config(u32::try_from(KINDS.len()).expect("few"), form);
        let (core_port, port_handle) = port(
            0,
            config.arena_bytes() + (1 << 16),
            SEND_QUEUE_DEPTH,
            form.own_queues,
            clock,
        );
        let own = properties(&config);
        let (mut core, handle) = Core::new(
            Device::new(core_port),
            &config,
            clock.clone(),
            Service::default(),
        )
        .expect("a core");
        // The time that the core has read: with a later one, it would depend on the machine what is due in which turn.
        let now = core.state.resources.now;
        // XIDs that do not depend on chance.
        core.state.outgoing.requester = Requester::new(
            config.calls_outstanding_max,
            config.connections_max,
            clock.ticks(config.call_timeout),
            now,
            OF_CORE,
        );
        let gathers = core.state.incoming.gathers.len();
        let mut world = Self {
            core,
            handle,
            port: port_handle,
            properties: Properties {
                segment_count_max: 64,
                reverse_requests: ReverseRequestSupport::General,
                ..config.announced(own)
            },
            peers: (1..)
                .zip(KINDS)
                .map(|(number, kind)| Peer::new(kind, number, clock))
                .collect(),
            watches: vec![Watch::default(); KINDS.len()],
            progress: [(0, 0); PARTNER],
            clock: clock.clone(),
            now,
            form,
            asleep_until: None,
            turns: 0,
            steps: 0,
            last_closed: 0,
            next_port: 100,
            gathers,
            batch: CompletionBatch::with_limit(64),
            is_draining: false,
            is_drained: false,
            is_over: false,
            longest_wait: 0,
            turns_of_partner: 0,
            calls_of_partner: 0,
            longest_of_partner: 0,
        };
        for peer in 0..HONEST {
            world.connect(peer, peer == NEIGHBOUR_1, false);
        }
        for peer in HONEST..KINDS.len() {
            world.connect(peer, false, false);
        }
        world
    }

    fn command(&self, command: Command<Device>) {
        self.handle.send(command).expect("the mailbox has room");
    }

    // ---- Steps ----

    pub(super) fn step(&mut self, step: Step) {
        let (peer, action) = step.decode(HOSTILE);
        self.act(HONEST + peer, action);
        self.turn();
        self.steps += 1;
        self.check_debts();
        self.check_calls();
        self.check_partner();
        // While others have the spares that an answer of it needs, the time of its call may be up, and it is left.
        self.connect(PARTNER, false, false);
        if self.steps.is_multiple_of(STEPS_PER_AUDIT) {
            ledger::assert_sums(&mut self.core.state);
            ledger::assert_groups_have_their_calls(&mut self.core.state);
            if self.turns - self.last_closed > POLLS_RETURNED {
                ledger::assert_the_dead_hold_nothing(&mut self.core.state);
            }
        }
    }

    fn act(&mut self, index: usize, action: Action) {
        let Some(peer) = self.peers.get_mut(index) else {
            return;
        };
        let open = peer.link.as_ref().filter(|link| link.is_open);
        let key = open.and_then(|link| link.key);
        let begins = matches!(action, Action::Call { .. } | Action::Chunks(_));
        if begins && peer.may_connect() {
            let is_version_1 = self.steps.is_multiple_of(3);
            return self.connect(index, is_version_1, false);
        }
        match action {
            Action::Turns(count) => (1..count).for_each(|_| self.turn()),
            Action::Silence { ms } => self.pass(ms),
            Action::Connect {
                version_1,
                is_quiet,
            } => {
                peer.is_stopped = false;
                self.connect(index, version_1, is_quiet);
            }
            Action::Stop => peer.is_stopped = !peer.is_stopped,
            Action::Kill => self.kill(index),
            Action::Close => {
                if let Some(connection) = key {
                    self.command(Command::Close {
                        connection,
                        reason: CloseReason::Local,
                    });
                }
            }
            Action::Ours(ours) => {
                if let Some(connection) = key {
                    self.want(Wanted::new(connection, ours, Callee::Hostile));
                }
            }
            Action::Late(late) => self.core.state.resources.port.set(late),
            _ if peer.is_stopped => {}
            Action::Disconnect => peer.disconnect(),
            action => peer.act(action),
        }
    }

    /// Time passes, in which peers do nothing of themselves.
    fn pass(&mut self, ms: u32) {
        let slices = ms.div_ceil(SLICE_MS).max(1);
        let slice = Duration::from_millis(ms.into()) / slices;
        for _ in 0..slices {
            self.now += self.clock.ticks(slice);
            for peer in &mut self.peers {
                // Neighbours say something all the time.
                let is_idle = self.is_draining || peer.kind != Kind::Neighbour;
                if !peer.is_stopped && is_idle {
                    peer.show_life();
                }
            }
            for _ in 0..3 {
                self.turn();
            }
            self.check_debts();
            self.check_calls();
        }
    }

    /// Connects a peer that is not connected.
    fn connect(&mut self, index: usize, is_version_1: bool, is_quiet: bool) {
        let peer = &mut self.peers[index];
        if !peer.may_connect() {
            return;
        }
        let port = &self.core.state.resources.port.port;
        let joint = peer.joint.get_or_insert_with(|| {
            TestFabric::join((port, &self.port), (&peer.port, &peer.handle))
        });
        let [seed, of_peer] = TestFabric::prepared_pair(joint, &self.port, &peer.handle);
        peer.adopt_queue_pair(of_peer, seed.local(), is_version_1, is_quiet);
        let role = peer.kind.role_of_core();
        let sizes = PrivateData {
            remote_invalidation: true,
            send_bytes: 4096,
            receive_bytes: 4096,
        };
        let versions = match role {
            Role::Client if is_version_1 => Versions::One,
            Role::Client | Role::Server => Versions::Both,
        };
        self.command(Command::Adopt {
            token: u64::try_from(index).expect("small"),
            prepared: seed,
            role,
            peer: PeerIdentity::default(),
            properties: self.properties,
            terms: Terms {
                versions,
                own: sizes,
                peer: sizes,
            },
            credits_max: u16::MAX,
            guarded: false,
            has_other_path: true,
        });
        // The next channel is numbered when this one is known.
        self.turn();
        self.peers[index].introduce();
    }

    /// The process of a peer ends, and another takes its place.
    fn kill(&mut self, index: usize) {
        self.next_port += 1;
        let kind = self.peers[index].kind;
        let fresh = Peer::new(kind, self.next_port, &self.clock);
        let dead = std::mem::replace(&mut self.peers[index], fresh);
        let open = dead.link.filter(|link| link.is_open);
        if let Some(link) = open {
            let local = link.of_core;
            self.command(Command::PortEvent(PortEvent::PeerGone { local }));
            self.peers[index].link = Some(link);
        }
    }

    // ---- Turns ----

    fn turn(&mut self) {
        self.now += self.clock.ticks(TestFabric::TURN);
        self.turns += 1;
        let is_its_turn = self.is_turn_of_a_message();
        let has_spares = self.core.state.resources.placement.spares() >= PAGES_OF_PARTNER;
        self.turns_of_partner += u64::from(has_spares);
        for peer in &mut self.peers {
            if !peer.is_stopped {
                peer.poll(self.now, &mut self.batch);
                match peer.kind {
                    Kind::Server => peer.act_as_server(),
                    Kind::Neighbour if is_its_turn => peer.act_as_neighbour(self.turns),
                    Kind::Partner if is_its_turn => peer.act_as_partner(self.turns_of_partner),
                    Kind::Neighbour | Kind::Partner | Kind::Hostile(_) => {}
                }
                peer.flush();
            }
        }
        self.call_the_server_by_rdma();
        self.call_the_server();
        self.call_the_partner();
        self.poll_core();
        while let Some(notification) = self.handle.receive() {
            self.note(notification);
        }
        if !self.is_over && !self.is_draining {
            self.check_honest();
        }
    }

    /// The honest server always has one call.
    fn call_the_server(&mut self) {
        let Some(link) = &self.peers[SERVER].link else {
            return;
        };
        let ready = link.key.filter(|_| link.is_ready && link.is_open);
        let is_its_turn = !self.form.sleeps || self.is_turn_of_a_message();
        let makes_calls = is_its_turn && !self.is_over && !self.is_draining;
        let application = self.core.application_mut();
        let makes_calls = makes_calls && !application.calls_by_rdma();
        let (asked, ended) = (application.asked_of_server, application.ended_well);
        if let Some(connection) = ready.filter(|_| asked == ended && makes_calls) {
            application.asked_of_server += 1;
            let ours = if asked % 2 == 0 {
                Ours::Null
            } else {
                Ours::Echo { bytes: 300 }
            };
            self.want(Wanted::new(connection, ours, Callee::Server));
        }
    }

    /// The honest server has a call with bulk data now and then: one that it reads, or writes to. It has no other call
    /// meanwhile, since one call of a connection is all that is guaranteed, and hostile servers may have the rest.
    fn call_the_server_by_rdma(&mut self) {
        let Some(link) = &self.peers[SERVER].link else {
            return;
        };
        let ready = link.key.filter(|_| link.is_ready && link.is_open);
        let is_its_turn = self.turns.is_multiple_of(TURNS_OF_A_MESSAGE_ASLEEP);
        let makes_calls = is_its_turn && !self.is_over && !self.is_draining;
        let application = self.core.application_mut();
        let asked = application.asked_by_rdma;
        let is_idle =
            !application.calls_by_rdma() && application.asked_of_server == application.ended_well;
        if let Some(connection) = ready.filter(|_| is_idle && makes_calls) {
            application.asked_by_rdma += 1;
            let bytes = if asked.is_multiple_of(4) { 6000 } else { 1000 };
            let placement = Placement::Rdma;
            let ours = match asked % 2 {
                0 => Ours::Expect { bytes, placement },
                _ => Ours::Item { bytes, placement },
            };
            self.want(Wanted::new(connection, ours, Callee::ServerByRdma));
        }
    }

    /// The partner has some calls, in groups and not.
    fn call_the_partner(&mut self) {
        let Some(link) = &self.peers[PARTNER].link else {
            return;
        };
        let ready = link.key.filter(|_| link.is_ready && link.is_open);
        let makes_calls = !self.is_over && !self.is_draining;
        let Some(connection) = ready.filter(|_| makes_calls) else {
            return;
        };
        while self.core.application().asked_of_partner < CALLS_OF_PARTNER {
            self.core.application_mut().asked_of_partner += 1;
            self.calls_of_partner += 1;
            let ours = match self.calls_of_partner % 5 {
                0 | 3 => Ours::Echo { bytes: 300 },
                1 => Ours::Expect {
                    bytes: 8192,
                    placement: Placement::Send,
                },
                2 => Ours::Item {
                    bytes: 8000,
                    placement: Placement::Send,
                },
                _ => Ours::Expect {
                    bytes: 9000,
                    placement: Placement::Send,
                },
            };
            self.want(Wanted::new(connection, ours, Callee::Partner));
        }
    }

    /// Whether honest peers begin something in this turn.
    fn is_turn_of_a_message(&self) -> bool {
        self.turns.is_multiple_of(match self.form.sleeps {
            true => TURNS_OF_A_MESSAGE_ASLEEP,
            false => TURNS_OF_A_MESSAGE,
        })
    }

    /// Asks the application of the core to make a call, and wakes the core.
    fn want(&mut self, wanted: Wanted) {
        self.core.application_mut().wanted.push_back(wanted);
        self.handle.wake();
    }

    fn peer_of(&mut self, key: ConnectionKey) -> Option<(usize, &mut Peer)> {
        let is_it = |peer: &Peer| {
            let link = peer.link.as_ref();
            link.is_some_and(|link| link.is_open && link.key == Some(key))
        };
        self.peers.iter_mut().enumerate().find(|(_, it)| is_it(it))
    }

    /// The control plane of the core.
    fn note(&mut self, notification: CoreEvent) {
        match notification {
            CoreEvent::Adopted { token, result } => {
                let connection = result.unwrap_or_else(|error| panic!("not adopted: {error}"));
                ledger::assert_receives_planted(&self.core.state, connection);
                let index = usize::try_from(token).expect("small");
                let peer = &mut self.peers[index];
                let role = peer.kind.role_of_core();
                if let Some(link) = &mut peer.link {
                    link.key = Some(connection);
                }
                if role == Role::Client {
                    self.command(Command::SendProperties { connection });
                }
            }
            CoreEvent::Properties { connection, bytes } => {
                let set = PropertySet::decode(&bytes).expect("checked by the core");
                self.take_properties(connection, set.properties());
            }
            CoreEvent::Ready { connection, .. } => {
                if let Some((_, peer)) = self.peer_of(connection)
                    && let Some(link) = &mut peer.link
                {
                    link.is_ready = true;
                }
            }
            CoreEvent::VersionMismatch { .. } => {}
            CoreEvent::Closed {
                connection, reason, ..
            } => {
                self.last_closed = self.turns;
                let is_over = self.is_over;
                let Some((index, peer)) = self.peer_of(connection) else {
                    panic!("{connection:?} was closed twice: {reason}");
                };
                let is_late = peer.kind == Kind::Partner && reason == CloseReason::CallUnanswered;
                assert!(
                    is_over || !peer.kind.is_honest() || is_late,
                    "honest peer {index} lost its connection: {reason}"
                );
                if let Some(link) = &mut peer.link {
                    link.is_open = false;
                }
            }
            CoreEvent::Drained => {
                assert!(self.is_draining && !self.is_drained, "it drains once");
                self.is_drained = true;
            }
        }
    }

    fn take_properties(&mut self, connection: ConnectionKey, told: Properties) {
        let Some((_, peer)) = self.peer_of(connection) else {
            return;
        };
        let answer = peer.kind.role_of_core() == Role::Server;
        let Some(link) = &mut peer.link else { return };
        let before = link.told.get_or_insert(told);
        let reason = if *before != told {
            Some(CloseReason::PropertiesChanged)
        } else if told.receive_buffer_bytes < 4096 {
            Some(CloseReason::Local)
        } else {
            None
        };
        self.command(match reason {
            Some(reason) => Command::Close { connection, reason },
            None => Command::AnswerProperties {
                connection,
                peer: told,
                answer,
            },
        });
    }

    // ---- The end ----

    /// Whether all is answered that is owed.
    fn is_settled(&self) -> bool {
        let is_answered = self.peers.iter().all(|it| it.unanswered().is_none());
        is_answered && self.core.application().deferred() == 0
    }

    /// All peers behave for so many polls; whether this holds then.
    fn settles(&mut self, polls: u64, holds: fn(&Self) -> bool) -> bool {
        for turn in 0..polls {
            if holds(self) {
                return true;
            }
            if turn % 4 == 0 {
                for peer in &mut self.peers {
                    if !peer.kind.is_honest() {
                        peer.behave();
                    }
                }
            }
            self.turn();
            self.check_partner();
        }
        false
    }

    /// Everything that is owed is answered.
    fn settle(&mut self) {
        if !self.settles(POLLS_BEHAVED_MAX, Self::is_settled) {
            // Calls of the core to peers that grant it nothing have buffers until their time is up.
            self.pass(2 * CALL_TIMEOUT_MS);
            self.settles(POLLS_BEHAVED_MAX, Self::is_settled);
        }
        for (index, peer) in self.peers.iter().enumerate() {
            let unanswered = peer.unanswered();
            assert_eq!(unanswered, None, "a call of peer {index} is lost");
        }
        assert_eq!(self.core.application().deferred(), 0, "answers are taken");
    }

    /// The core takes no calls any more, and has drained when those that it has taken are answered, and its own have ended.
    fn drain(&mut self) {
        self.is_draining = true;
        self.command(Command::Drain);
        if !self.settles(POLLS_DRAINING, |world| world.is_drained) {
            // A call that is not answered ends its connection when its time has passed twice.
            self.pass(3 * CALL_TIMEOUT_MS);
            let is_drained = self.settles(POLLS_BEHAVED_MAX, |world| world.is_drained);
            assert!(is_drained, "the core drains");
        }
        assert_eq!(self.core.application().deferred(), 0, "answers are taken");
        let before = self.handle.counters();
        for _ in 0..POLLS_DRAINED {
            self.turn();
        }
        let after = self.handle.counters();
        let done = |it: &CounterSnapshot| (it.calls_received, it.replies_sent, it.calls_sent);
        assert_eq!(done(&before), done(&after), "a core that has drained");
    }

    /// All peers do what they should, until all is answered or the core has drained; then all connections end.
    pub(super) fn finish(mut self, drains: bool) -> Passed {
        let begin = self.turns;
        for peer in &mut self.peers {
            peer.is_stopped = false;
        }
        self.core.application_mut().is_over = true;
        self.handle.wake();
        if drains {
            self.drain();
        } else {
            self.settle();
        }
        let longest_end = self.turns - begin;
        self.is_over = true;
        let keys: Vec<_> = self.core.state.resources.connections.keys().collect();
        for connection in keys {
            self.command(Command::Close {
                connection,
                reason: CloseReason::Local,
            });
        }
        for _ in 0..POLLS_CLOSED_MAX {
            self.turn();
            if self.core.state.resources.connections.in_use() == 0 {
                break;
            }
        }
        for _ in 0..POLLS_RETURNED {
            self.turn();
        }
        ledger::assert_nothing_held(&mut self.core.state, self.gathers);
        let open = &self.core.application().open;
        assert!(open.is_empty(), "calls that never ended: {open:?}");
        self.check_counters();
        Passed {
            steps: self.steps,
            polls: self.turns,
            longest_wait: self.longest_wait,
            longest_of_partner: self.longest_of_partner,
            longest_end,
            counters: self.handle.counters(),
        }
    }
}
