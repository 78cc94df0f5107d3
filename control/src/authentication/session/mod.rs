//! The property sets of one connection, and the exchange of host authentication in them, without I/O: the decision on
//! each received set.

use std::time::{Duration, Instant};

use rpcrdma_engine::{AuthenticationFailure, AuthenticationMessage, HostIdentity};
use rpcrdma_protocol::EncodeError;
use rpcrdma_protocol::constants::HOST_AUTHENTICATION_BYTES_MAX;
use rpcrdma_protocol::v2::connection::Role;
use rpcrdma_protocol::v2::{
    ApplicationProperties, Properties, PropertySet, write_property_set_with,
};
use rpcrdma_protocol::xdr::Writer;

use super::{Authentication, BoundProperties, Exchange, Step};
use crate::properties::{self, Decision};

/// The time for a refused peer to read the refusal, before its connection is closed.
const REFUSAL_GRACE: Duration = Duration::from_secs(1);

/// The property sets of one connection.
#[derive(Debug)]
pub(crate) struct Session {
    role: Role,
    policy: Authentication,
    /// The time for a peer to authenticate itself.
    timeout: Duration,
    stage: Stage,
    deadline: Option<Instant>,
}

#[derive(Debug)]
enum Stage {
    /// The peer's first set is awaited. A client that authenticates has begun its exchange.
    First(Option<Box<dyn Exchange>>),
    /// The peer's next message is awaited.
    Exchanging {
        exchange: Box<dyn Exchange>,
        properties: BoundProperties,
    },
    /// Properties are exchanged, without authentication: these are the peer's.
    Exchanged(Properties),
    /// The peer has proved what it is.
    Authenticated(HostIdentity),
    /// The refusal was sent to the peer, which has to close.
    Refused(AuthenticationFailure),
    /// The connection is to be closed.
    Over,
}

/// The properties in this end's first set, without HOSTAUTH, in this order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Announced<'a> {
    pub(crate) properties: &'a Properties,
    pub(crate) application: &'a ApplicationProperties,
}

/// The decision on a set of the peer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Use these properties: the connection is ready.
    Accept(Properties),
    /// The receive buffers that the peer announced, in octets, hold no message.
    ReceiveBufferTooSmall(u32),
    /// A step of the exchange. With an identity the connection is ready.
    Authenticate {
        peer: Option<Properties>,
        send: Option<AuthenticationMessage>,
        identity: Option<HostIdentity>,
    },
    /// Send the message, which refuses the peer. The peer has to close before the deadline.
    Refuse {
        send: AuthenticationMessage,
        failure: AuthenticationFailure,
    },
    /// Close immediately.
    Close(AuthenticationFailure),
    /// Close immediately: the peer announced other properties than before.
    PropertiesChanged,
    /// Nothing: the peer was refused, or the connection is to be closed.
    Ignore,
}

impl Session {
    pub(crate) fn client(policy: Authentication) -> Self {
        Self::new(Role::Client, policy, Duration::MAX)
    }

    /// The time starts with the connection if authentication is required, and with the peer's first message if it is
    /// optional.
    pub(crate) fn server(policy: Authentication, timeout: Duration) -> Self {
        Self::new(Role::Server, policy, timeout)
    }

    fn new(role: Role, policy: Authentication, timeout: Duration) -> Self {
        Self {
            role,
            policy,
            timeout,
            stage: Stage::First(None),
            deadline: None,
        }
    }

    /// Whether no RPC message may pass before the peer has proved what it is.
    pub(crate) const fn is_guarded(&self) -> bool {
        self.policy.is_required()
    }

    /// What the peer has proved to be.
    pub(crate) const fn identity(&self) -> Option<&HostIdentity> {
        match &self.stage {
            Stage::Authenticated(peer) => Some(peer),
            _ => None,
        }
    }

    /// When to close the connection, unless the peer has done its part by then.
    pub(crate) const fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Whether this end has a mechanism to authenticate hosts, required or not.
    pub(crate) fn has_mechanism(&self) -> bool {
        self.policy.mechanism().is_some()
    }

    /// The deadline has passed: returns why the connection is closed.
    pub(crate) fn expire(&mut self) -> AuthenticationFailure {
        self.deadline = None;
        match self.stage {
            Stage::Refused(failure) => failure,
            _ => AuthenticationFailure::TimedOut,
        }
    }

    /// The queue pair is adopted: returns the message that a client sends with its properties.
    pub(crate) fn begin(
        &mut self,
        now: Instant,
    ) -> Result<Option<AuthenticationMessage>, AuthenticationFailure> {
        if self.role == Role::Server {
            if self.policy.is_required() {
                self.start_clock(now);
            }
            return Ok(None);
        }
        let Some(mechanism) = self.policy.mechanism() else {
            return Ok(None);
        };
        let (exchange, message) = mechanism.initiate()?;
        self.stage = Stage::First(Some(exchange));
        to_send(message, true).map(Some)
    }

    /// Handles a set of the peer; `own` is what this end announces.
    pub(crate) fn handle(
        &mut self,
        set: &PropertySet<'_>,
        own: Announced<'_>,
        now: Instant,
    ) -> Verdict {
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::First(exchange) => self.handle_first(set, own, exchange, now),
            Stage::Exchanging {
                exchange,
                properties,
            } => {
                if !set.is_host_authentication_alone() {
                    return self.fail(AuthenticationFailure::PropertiesChanged, false, now);
                }
                let message = set.host_authentication().unwrap_or(&[]);
                self.step(exchange, properties, message, None, now)
            }
            Stage::Exchanged(peer) => {
                if properties::changes(&peer, set) {
                    return Verdict::PropertiesChanged;
                }
                self.accept(peer)
            }
            // The proofs cover the properties of the first sets only.
            Stage::Authenticated(_) => Verdict::Close(AuthenticationFailure::PropertiesChanged),
            Stage::Refused(failure) => {
                self.stage = Stage::Refused(failure);
                Verdict::Ignore
            }
            Stage::Over => Verdict::Ignore,
        }
    }

    fn accept(&mut self, peer: Properties) -> Verdict {
        self.stage = Stage::Exchanged(peer);
        Verdict::Accept(peer)
    }

    fn handle_first(
        &mut self,
        set: &PropertySet<'_>,
        own: Announced<'_>,
        exchange: Option<Box<dyn Exchange>>,
        now: Instant,
    ) -> Verdict {
        let peer = match properties::decide(&set.properties()) {
            Decision::Accept(peer) => peer,
            Decision::ReceiveBufferTooSmall(bytes) => {
                return Verdict::ReceiveBufferTooSmall(bytes);
            }
        };
        let message = set.host_authentication();
        let Some(mechanism) = self.policy.mechanism() else {
            // A server sends HOSTAUTH unasked only to refuse the client.
            if self.role == Role::Client && message == Some(&[]) {
                return Verdict::Close(AuthenticationFailure::RequiredByPeer);
            }
            return self.accept(peer);
        };
        let Some(message) = message else {
            if self.policy.is_required() {
                return self.fail(AuthenticationFailure::NotOffered, true, now);
            }
            return self.accept(peer);
        };
        let exchange = match exchange {
            Some(exchange) => Ok(exchange),
            None => mechanism.respond(),
        };
        let bound = bound(self.role, set, own).map_err(|_| AuthenticationFailure::Malformed);
        match (exchange, bound) {
            (Ok(exchange), Ok(properties)) => {
                if self.deadline.is_none() {
                    self.start_clock(now);
                }
                self.step(exchange, properties, message, Some(peer), now)
            }
            (Err(failure), _) | (_, Err(failure)) => self.fail(failure, true, now),
        }
    }

    /// `peer` are the properties of a first set.
    fn step(
        &mut self,
        mut exchange: Box<dyn Exchange>,
        properties: BoundProperties,
        message: &[u8],
        peer: Option<Properties>,
        now: Instant,
    ) -> Verdict {
        let is_first = peer.is_some();
        if message.is_empty() {
            return Verdict::Close(AuthenticationFailure::RefusedByPeer);
        }
        if message.len() > HOST_AUTHENTICATION_BYTES_MAX {
            return self.fail(AuthenticationFailure::Malformed, is_first, now);
        }
        // A client has sent its properties with its first message.
        let with_properties = is_first && self.role == Role::Server;
        let (send, identity) = match exchange.step(message, &properties) {
            Ok(Step::Continue(answer)) => (Some(answer), None),
            Ok(Step::Done { answer, peer }) => (answer, Some(peer)),
            Err(failure) => return self.fail(failure, is_first, now),
        };
        let send = match send
            .map(|answer| to_send(answer, with_properties))
            .transpose()
        {
            Ok(send) => send,
            Err(failure) => return self.fail(failure, is_first, now),
        };
        self.stage = if let Some(identity) = &identity {
            self.deadline = None;
            Stage::Authenticated(identity.clone())
        } else {
            Stage::Exchanging {
                exchange,
                properties,
            }
        };
        Verdict::Authenticate {
            peer,
            send,
            identity,
        }
    }

    /// A server sends a refusal and gives the peer time to read it; a client closes.
    fn fail(&mut self, failure: AuthenticationFailure, is_first: bool, now: Instant) -> Verdict {
        self.stage = Stage::Refused(failure);
        if self.role == Role::Client {
            return Verdict::Close(failure);
        }
        self.deadline = now.checked_add(REFUSAL_GRACE);
        let send = AuthenticationMessage {
            bytes: Box::default(),
            with_properties: is_first,
        };
        Verdict::Refuse { send, failure }
    }

    fn start_clock(&mut self, now: Instant) {
        self.deadline = now.checked_add(self.timeout);
    }
}

/// A message of a mechanism, if it may be sent.
fn to_send(
    message: Vec<u8>,
    with_properties: bool,
) -> Result<AuthenticationMessage, AuthenticationFailure> {
    if message.is_empty() || message.len() > HOST_AUTHENTICATION_BYTES_MAX {
        return Err(AuthenticationFailure::Local);
    }
    Ok(AuthenticationMessage {
        bytes: message.into(),
        with_properties,
    })
}

/// The properties of both ends as octets. Those of the peer are not longer than the received set.
fn bound(
    role: Role,
    set: &PropertySet<'_>,
    own: Announced<'_>,
) -> Result<BoundProperties, EncodeError> {
    let own = encoded(|writer| {
        write_property_set_with(writer, &own.properties.to_properties(), own.application)
    })?;
    let peer = encoded(|writer| set.write_without_host_authentication(writer))?;
    Ok(match role {
        Role::Client => BoundProperties {
            initiator: own,
            responder: peer,
        },
        Role::Server => BoundProperties {
            initiator: peer,
            responder: own,
        },
    })
}

fn encoded(
    write: impl FnOnce(&mut Writer<'_>) -> Result<(), EncodeError>,
) -> Result<Vec<u8>, EncodeError> {
    let mut space = [0; rpcrdma_engine::PROPERTY_BYTES_MAX];
    let mut writer = Writer::new(&mut space);
    write(&mut writer)?;
    let bytes = writer.position();
    Ok(space.get(..bytes).unwrap_or(&[]).to_vec())
}

#[cfg(test)]
mod tests;
