//! The property sets of peers, and host authentication in them.

use std::time::Instant;

use rpcrdma_engine::{AuthenticationFailure, CloseReason, Command, ConnectionKey};
use rpcrdma_fabric::interface::ConnectionId;
use rpcrdma_protocol::connection::Versions;
use rpcrdma_protocol::v2::PropertySet;

use super::ControlThread;
use super::connection::End;
use crate::authentication::{Announced, Verdict};
use crate::counters::ControlCounters;
use crate::error::ConnectError;
use crate::properties;
use crate::provider::Provider;

impl<V: Provider> ControlThread<V> {
    /// The connection is established. The client sends its properties first.
    pub(super) fn begin_exchange(&mut self, id: ConnectionId, core: usize, key: ConnectionKey) {
        let Some(tracked) = self.connections.get_mut(&id) else {
            return;
        };
        let is_client = matches!(tracked.end, End::Client(_));
        if is_client && tracked.versions == Versions::One {
            // Version 1 exchanges no properties: for the core this command only makes the connection ready.
            self.cores[core].send(Command::SendProperties { connection: key });
            return;
        }
        if let Some(announced) = tracked.announces {
            self.cores[core].send(Command::Announce {
                connection: key,
                application: Box::new(announced),
            });
        }
        let begun = tracked.session.begin(Instant::now());
        self.note_session_deadline(id);
        match begun {
            Ok(Some(message)) => self.cores[core].send(Command::Authenticate {
                connection: key,
                peer: None,
                send: Some(Box::new(message)),
                identity: None,
            }),
            Ok(None) if is_client => {
                self.cores[core].send(Command::SendProperties { connection: key });
            }
            Ok(None) => {}
            Err(failure) => self.end_unauthenticated(id, failure),
        }
    }

    /// Handles a property set of the peer.
    pub(super) fn decide_properties(&mut self, core: usize, key: ConnectionKey, body: &[u8]) {
        let Some(id) = self.keys.get(&(core, key)).copied() else {
            return;
        };
        let Some(tracked) = self.connections.get_mut(&id) else {
            return;
        };
        ControlCounters::add(&self.counters.properties_decided);
        let answer = matches!(tracked.end, End::Server);
        if let End::Client(attempt) = &tracked.end {
            self.versions.note_version_2(&attempt.address);
            // The other addresses are of the same server: by closing a connection there, nobody chooses version 1 for it.
            let owner = Some(attempt.owner);
            for other in self.keeper.other_addresses(owner, &attempt.address) {
                self.versions.note_version_2(other);
            }
        }
        let application = tracked.announces;
        let own = Announced {
            properties: &self.settings.properties,
            application: application
                .as_ref()
                .unwrap_or(&self.settings.application_properties),
        };
        let set = PropertySet::decode(body);
        let verdict = set.map(|set| tracked.session.handle(&set, own, Instant::now()));
        if let Ok(set) = &set {
            self.note_name(id, set);
        }
        self.note_session_deadline(id);
        match verdict {
            Ok(Verdict::Accept(peer)) => self.cores[core].send(Command::AnswerProperties {
                connection: key,
                peer,
                answer,
            }),
            Ok(Verdict::Authenticate {
                peer,
                send,
                identity,
            }) => {
                if identity.is_some() {
                    ControlCounters::add(&self.counters.authentications);
                }
                self.cores[core].send(Command::Authenticate {
                    connection: key,
                    peer,
                    send: send.map(Box::new),
                    identity,
                });
            }
            Ok(Verdict::Refuse { send, .. }) => {
                ControlCounters::add(&self.counters.authentications_refused);
                self.cores[core].send(Command::Authenticate {
                    connection: key,
                    peer: None,
                    send: Some(Box::new(send)),
                    identity: None,
                });
            }
            Ok(Verdict::Close(failure)) => {
                ControlCounters::add(&self.counters.authentications_refused);
                self.end_unauthenticated(id, failure);
            }
            Ok(Verdict::PropertiesChanged) => {
                ControlCounters::add(&self.counters.properties_changed);
                self.close(core, key, CloseReason::PropertiesChanged);
            }
            Ok(Verdict::Ignore) => {}
            Ok(Verdict::ReceiveBufferTooSmall(announced_bytes)) => {
                ControlCounters::add(&self.counters.properties_refused);
                self.fail_attempt(id, |attempt, _| ConnectError::ReceiveBufferTooSmall {
                    address: attempt.address.clone(),
                    announced_bytes,
                    least_bytes: properties::RECEIVE_BUFFER_BYTES_LEAST,
                });
                self.close(core, key, CloseReason::Local);
            }
            // The core passes on only sets that it has decoded. One that does not decode here closes the connection.
            Err(_) => self.close(core, key, CloseReason::Local),
        }
    }

    /// Closes connections whose peers did not authenticate themselves in time, or were refused and stayed.
    pub(super) fn expire_unauthenticated(&mut self, late: Vec<ConnectionId>) {
        for id in late {
            if let Some(tracked) = self.connections.get_mut(&id) {
                let failure = tracked.session.expire();
                if failure == AuthenticationFailure::TimedOut {
                    ControlCounters::add(&self.counters.authentication_timeouts);
                }
                self.end_unauthenticated(id, failure);
            }
        }
    }

    /// Adds the deadline of a connection's session, which may be new.
    fn note_session_deadline(&mut self, id: ConnectionId) {
        let tracked = self.connections.get(&id);
        if let Some(deadline) = tracked.and_then(|tracked| tracked.session.deadline()) {
            self.deadlines.add(deadline);
        }
    }

    fn end_unauthenticated(&mut self, id: ConnectionId, failure: AuthenticationFailure) {
        self.fail_attempt(id, |attempt, _| ConnectError::Unauthenticated {
            address: attempt.address.clone(),
            failure,
        });
        let Some(tracked) = self.connections.get(&id) else {
            return;
        };
        if let Some(key) = tracked.key {
            self.cores[tracked.core].send(Command::Close {
                connection: key,
                reason: CloseReason::Unauthenticated(failure),
            });
        }
    }
}
