//! Takes the commands of the control plane.

use rpcrdma_fabric::interface::{Port, SetupError};
use rpcrdma_protocol::connection::{Terms, Versions};
use rpcrdma_protocol::v2::Properties;
use rpcrdma_protocol::v2::connection::{Config, Role};

use super::resources::{Drain, Resources};
use super::state::State;
use crate::authentication::{AuthenticationMessage, HostIdentity};
use crate::config::NOTIFICATIONS_PER_CONNECTION;
use crate::connection::Stage;
use crate::core::application::Application;
use crate::handle::{Command, CoreEvent};
use crate::rpc::ConnectionKey;

/// Commands taken in one iteration.
const COMMANDS_MAX: usize = 4;

impl<P: Port> State<P> {
    #[inline]
    pub(super) fn take_commands<A: Application>(&mut self, application: &mut A) -> bool {
        self.has_commands() && self.obey_some(application)
    }

    /// Whether commands wait in the mailbox.
    #[inline]
    pub(super) fn has_commands(&self) -> bool {
        self.resources.shared.commands_sent() != self.commands_taken
    }

    #[cold]
    fn obey_some<A: Application>(&mut self, application: &mut A) -> bool {
        // Before the commands, so that it waits for none of them. A core that stops takes no more: it would adopt connections
        // that nobody closes.
        self.stop |= self.resources.shared.is_stop_wanted();
        if self.stop {
            return true;
        }
        let mut busy = false;
        for _ in 0..COMMANDS_MAX {
            let Some(command) = self.resources.shared.pop_command() else {
                break;
            };
            self.commands_taken = self.commands_taken.wrapping_add(1);
            self.resources.shared.counters.commands.increment();
            busy = true;
            self.obey(application, command);
        }
        busy
    }

    fn obey<A: Application>(&mut self, application: &mut A, command: Command<P>) {
        match command {
            Command::Adopt {
                token,
                prepared,
                role,
                peer,
                properties,
                terms,
                credits_max,
                guarded,
                has_other_path,
            } => {
                let stage = if guarded { Stage::Guarded } else { Stage::Open };
                let result = self.resources.adopt_queue_pair(
                    prepared,
                    role,
                    properties,
                    terms,
                    credits_max,
                    stage,
                );
                if let Ok(connection) = &result {
                    if has_other_path {
                        self.resources.watch_path(*connection);
                    }
                    application.opened(*connection, &peer);
                }
                self.resources
                    .shared
                    .notify(CoreEvent::Adopted { token, result });
            }
            Command::PortEvent(port_event) => self.resources.port.handle_event(port_event),
            Command::AnswerProperties {
                connection,
                peer,
                answer,
            } => self
                .resources
                .answer_properties(application, connection, &peer, answer),
            Command::Authenticate {
                connection,
                peer,
                send,
                identity,
            } => self
                .resources
                .authenticate(application, connection, peer, send, identity),
            Command::Announce {
                connection,
                application,
            } => match self.resources.connections.get_mut(connection) {
                Some(connection) => connection.application_properties = Some(application),
                None => self.resources.shared.counters.commands_late.increment(),
            },
            Command::SendProperties { connection } => {
                self.resources.send_properties(application, connection);
            }
            Command::Close { connection, reason } => {
                if self.resources.connections.get(connection).is_some() {
                    self.resources.begin_close(connection.index, reason);
                } else {
                    self.resources.shared.counters.commands_late.increment();
                }
            }
            Command::Drain => {
                if self.resources.drain == Drain::No {
                    self.resources.drain = Drain::Underway;
                }
            }
        }
    }
}

impl<P: Port> Resources<P> {
    fn adopt_queue_pair(
        &mut self,
        prepared: P::PreparedQueuePair,
        role: Role,
        properties: Properties,
        mut terms: Terms,
        credits_max: u16,
        stage: Stage,
    ) -> Result<ConnectionKey, SetupError> {
        let limit = |what, asked: u32, limit: u32| SetupError::Limit {
            what,
            asked: asked.into(),
            limit: limit.into(),
        };
        let config = &self.config;
        if properties.receive_buffer_bytes > config.receive_bytes() {
            return Err(limit(
                "receive buffer bytes announced",
                properties.receive_buffer_bytes,
                config.receive_bytes(),
            ));
        }
        if properties.send_bytes_max > config.send_bytes_max() {
            return Err(limit(
                "send bytes announced",
                properties.send_bytes_max,
                config.send_bytes_max(),
            ));
        }
        let place = self.connections.next_place();
        let Some((place, queue)) = place.and_then(|place| Some((place, self.queues.of(place)?)))
        else {
            let connections_max = config.connections_max;
            return Err(limit(
                "connections",
                connections_max.saturating_add(1),
                connections_max,
            ));
        };
        self.check_notifications()?;
        let credits = config.credits_per_connection.min(credits_max).max(1);
        let reserve = self
            .queues
            .window_reserve(credits.saturating_add(1), config);
        let protocol = Config {
            role,
            receive_reserve: reserve,
            properties,
            message_bytes_max: config.message_bytes_max,
        };
        terms.own.send_bytes = terms.own.send_bytes.min(config.send_buffer_bytes);
        if stage == Stage::Guarded {
            // Version 1 has no host authentication.
            terms.versions = Versions::Two;
        }
        let queue_pair = self.port.adopt_queue_pair(prepared, queue)?;
        // On a device without shared receive queues, earlier connections at this place must have given
        // back their Receives: a grant needs a posted Receive.
        let posted = self.queues.posted(&self.port, place, reserve.into());
        if posted < reserve.into() {
            self.port.destroy_queue_pair(queue_pair);
            return Err(limit(
                "receives that are posted for the connection",
                reserve.into(),
                posted,
            ));
        }
        let Some(key) = self
            .connections
            .insert(queue_pair, &protocol, &terms, stage)
        else {
            self.port.destroy_queue_pair(queue_pair);
            return Err(limit("queue pair index", queue_pair.index, 0));
        };
        if let Some(connection) = self.connections.get_mut(key) {
            connection
                .protocol
                .version_2_mut()
                .set_header_types(self.config.header_types);
            self.lending.begin(connection);
        }
        self.shared.counters.connections_planted.increment();
        Ok(key)
    }

    /// Checks that the ring has room for all events that this connection and the open ones can still cause, so that no
    /// event is ever lost. The ring is large enough ([`CoreConfig::notifications`]) unless the control thread adopts
    /// connections without reading the events of earlier ones.
    ///
    /// [`CoreConfig::notifications`]: crate::CoreConfig::notifications
    fn check_notifications(&self) -> Result<(), SetupError> {
        let ring = &self.shared.notifications;
        let room = ring.capacity() - ring.len();
        let open = self.connections.in_use().saturating_add(1);
        let needed = open.saturating_mul(NOTIFICATIONS_PER_CONNECTION as usize);
        if needed <= room {
            return Ok(());
        }
        Err(SetupError::Limit {
            what: "notifications that nobody took",
            asked: u64::try_from(needed).unwrap_or(u64::MAX),
            limit: u64::try_from(room).unwrap_or(u64::MAX),
        })
    }

    /// Sends the properties of a client whose connection is established. Version 1 has none: it is ready.
    fn send_properties<A: Application>(&mut self, application: &mut A, key: ConnectionKey) {
        let live = self.connections.get_mut(key).filter(|it| it.is_live());
        let Some(connection) = live else {
            return self.shared.counters.commands_late.increment();
        };
        if connection.protocol.is_version_1() {
            return self.make_ready(application, key, None);
        }
        connection.properties_due = true;
        self.note_pending(key.index);
    }

    fn answer_properties<A: Application>(
        &mut self,
        application: &mut A,
        key: ConnectionKey,
        peer: &Properties,
        answer: bool,
    ) {
        let live = self.connections.get_mut(key).filter(|it| it.is_live());
        let Some(connection) = live else {
            return self.shared.counters.commands_late.increment();
        };
        connection.protocol.handle_peer_properties(peer);
        connection.peer = *peer;
        connection.properties_due |= answer;
        connection.awaits_control = false;
        let first = connection.stage == Stage::Open;
        if answer {
            self.note_pending(key.index);
        }
        // Plans depend on the properties of peers.
        self.forget_plans();
        if first {
            self.make_ready(application, key, None);
        }
    }

    fn authenticate<A: Application>(
        &mut self,
        application: &mut A,
        key: ConnectionKey,
        peer: Option<Properties>,
        send: Option<Box<AuthenticationMessage>>,
        identity: Option<HostIdentity>,
    ) {
        let live = self.connections.get_mut(key).filter(|it| it.is_live());
        let Some(connection) = live else {
            return self.shared.counters.commands_late.increment();
        };
        if let Some(peer) = peer {
            connection.protocol.handle_peer_properties(&peer);
            connection.peer = peer;
        }
        connection.awaits_control = false;
        self.forget_plans();
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        let first = connection.stage != Stage::Ready;
        if send.is_some() {
            connection.authentication_out = send;
            connection.properties_due = true;
            self.note_pending(key.index);
        }
        if first && let Some(identity) = identity {
            self.make_ready(application, key, Some(&identity));
        }
    }

    /// Makes a connection ready: both ends may call from now on.
    pub(super) fn make_ready<A: Application>(
        &mut self,
        application: &mut A,
        key: ConnectionKey,
        peer: Option<&HostIdentity>,
    ) {
        if let Some(connection) = self.connections.get_mut(key) {
            connection.stage = Stage::Ready;
            connection.connected_notified = true;
            let version_1 = connection.protocol.is_version_1();
            self.shared.counters.connections_ready.increment();
            let of_version_1 = &self.shared.counters.connections_version_1;
            of_version_1.add(version_1.into());
            let properties = connection.peer_properties.as_mut();
            let properties = properties.map(std::mem::take).unwrap_or_default();
            if !properties.is_empty() {
                application.peer_properties(key, &properties);
            }
            application.connected(key, peer);
            self.shared.notify(CoreEvent::Ready {
                connection: key,
                version_1,
            });
        }
    }
}
