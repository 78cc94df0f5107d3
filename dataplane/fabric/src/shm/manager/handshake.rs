//! The steps of the handshake: the application's calls, and the peer's messages.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::Manager;
use super::connection::{Client, Connection, Replied, Side, Stage, peer_files};
use super::socket::{self, Peer};
use super::wire::{
    Confirm, Message, ParseError, REJECT_PRIVATE_BYTES_MAX, REPLY_PRIVATE_BYTES_MAX,
    REQUEST_PRIVATE_BYTES_MAX, Reject, Reply, Request, VERSION,
};
use crate::interface::{
    ConnectionId, ListenerId, ManagerError, ManagerEvent, PeerIdentity, RejectReason, SetupError,
};
use crate::shm::{CheckedPeer, NumberHold, PortEvent, PortHandle};

/// The delay after a connect found the backlog full: it starts here and doubles with each attempt.
const CONNECT_DELAY_MIN: Duration = Duration::from_millis(1);
/// The longest such delay.
const CONNECT_DELAY_MAX: Duration = Duration::from_millis(32);

fn identity(peer: &Peer) -> PeerIdentity {
    PeerIdentity {
        key: u64::from(peer.pid),
        address: None,
        name: peer.describe(),
        arrival: 0,
    }
}

fn wrong_order(doing: &str) -> ManagerError {
    ManagerError::System {
        doing: doing.to_owned(),
        source: io::Error::new(
            io::ErrorKind::InvalidInput,
            "the connection is not at that step",
        ),
    }
}

fn check_private_data(private_data: &[u8], limit: usize) -> Result<(), ManagerError> {
    if private_data.len() <= limit {
        return Ok(());
    }
    Err(ManagerError::Setup(SetupError::Limit {
        what: "bytes of private data",
        asked: private_data.len() as u64,
        limit: limit as u64,
    }))
}

/// Whether an error means only that the peer has closed its end. What it sent before can still be
/// read.
fn is_hang_up(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN)
    )
}

fn peer_error(what: impl Into<String>) -> ManagerError {
    ManagerError::Setup(SetupError::Peer { what: what.into() })
}

/// The outcome of a message for its connection.
enum Verdict {
    /// The connection continues.
    Goes,
    /// The connection was removed, and any event for the application is queued.
    Over,
    /// The peer broke the protocol. The connection is still to be removed.
    Broken(ManagerError),
}

impl Manager {
    pub(super) fn start_connecting(
        &mut self,
        address: &str,
        port: &PortHandle,
        private_data: &[u8],
    ) -> Result<ConnectionId, ManagerError> {
        socket::parse_address(address)?;
        check_private_data(private_data, REQUEST_PRIVATE_BYTES_MAX)?;
        let hold = NumberHold::take(port)?;
        let id = self.new_id();
        let client = Client {
            address: address.to_owned(),
            port: port.clone(),
            private_data: private_data.to_vec(),
            number: hold.number(),
            hold: Some(hold),
            give_up: Instant::now() + self.options.handshake_timeout,
            peer: None,
            view: None,
        };
        let connection = Connection {
            side: Side::Client(client),
            stage: Stage::Connecting {
                delay: CONNECT_DELAY_MIN,
            },
            socket: None,
            timer: None,
            local: None,
        };
        self.connections.insert(id, connection);
        self.try_connect(id);
        Ok(ConnectionId(id))
    }

    /// Tries once to connect and to send the request.
    pub(super) fn try_connect(&mut self, id: u64) {
        if let Err(error) = self.connect_once(id) {
            self.gone(id, error);
        }
    }

    fn connect_once(&mut self, id: u64) -> Result<(), ManagerError> {
        let Some(Connection {
            side: Side::Client(client),
            ..
        }) = self.connections.get(&id)
        else {
            return Ok(());
        };
        let address = client.address.clone();
        if self.lines.is_behind(&address, id) {
            return self.connect_later(id, &address);
        }
        let name = socket::parse_address(&address)?;
        match socket::connect(&name) {
            Ok(Some(socket)) => self.send_request(id, socket, &address),
            Ok(None) => self.connect_later(id, &address),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                Err(ManagerError::Refused { address })
            }
            Err(error) => Err(self.system(&format!("connecting to `{address}`"), error)),
        }
    }

    fn connect_later(&mut self, id: u64, address: &str) -> Result<(), ManagerError> {
        self.counters.connects_backlog_full += 1;
        let now = Instant::now();
        self.lines.join(address, id);
        // The first in line tries again by its timer.
        let tries = !self.lines.is_behind(address, id);
        let Some(connection) = self.connections.get_mut(&id) else {
            return Ok(());
        };
        let (Side::Client(client), Stage::Connecting { delay }) =
            (&connection.side, &mut connection.stage)
        else {
            return Ok(());
        };
        if now >= client.give_up {
            self.counters.handshakes_timed_out += 1;
            return Err(ManagerError::System {
                doing: format!(
                    "connecting to `{address}`: its queue of new connections stayed full; \
                     the process that listens there is stopped or overloaded"
                ),
                source: io::ErrorKind::TimedOut.into(),
            });
        }
        let mut at = client.give_up;
        if tries {
            at = at.min(now + *delay);
            *delay = (*delay * 2).min(CONNECT_DELAY_MAX);
        }
        self.set_timer(id, Some(at));
        Ok(())
    }

    /// Removes a connect from its line. If it was first, the next one tries immediately.
    fn leave_line(&mut self, address: &str, id: u64) {
        if let Some(next) = self.lines.leave(address, id) {
            self.set_timer(next, Some(Instant::now()));
        }
    }

    fn send_request(
        &mut self,
        id: u64,
        socket: OwnedFd,
        address: &str,
    ) -> Result<(), ManagerError> {
        use std::os::fd::AsFd;
        let doing = format!("connecting to `{address}`");
        let peer = socket::peer(socket.as_fd()).map_err(|error| self.system(&doing, error))?;
        if !peer.is_permitted() {
            self.counters.peers_not_permitted += 1;
            return Err(peer_error(format!(
                "process at `{address}`, {}, runs as user {}, but this process runs as user {}; \
                 both ends must run as the same user",
                peer.describe(),
                peer.user,
                rustix::process::geteuid().as_raw(),
            )));
        }
        self.waiting
            .watch(&socket, id)
            .map_err(|error| self.system(&doing, error))?;
        let Some(connection) = self.connections.get_mut(&id) else {
            return Ok(());
        };
        let Side::Client(client) = &mut connection.side else {
            return Ok(());
        };
        let view = self.channels.pin(client.port.identity, peer.pid);
        let request = Message::Request(Request {
            core: client.port.identity,
            queue_pair: client.number,
            seen_up_to: view.seen_up_to,
            alive: view.alive.clone(),
            private_data: client.private_data.clone(),
        });
        client.peer = Some(peer);
        client.view = Some(view);
        let give_up = client.give_up;
        let sent = socket::send(&socket, &request.encode(), &[]);
        connection.socket = Some(socket);
        connection.stage = Stage::AwaitingReply;
        self.set_timer(id, Some(give_up));
        self.leave_line(address, id);
        match sent {
            // A server that has closed already may have sent a rejection first. The socket is
            // readable, so the loop reads it.
            Err(error) if !is_hang_up(&error) => Err(self.system(&doing, error)),
            _ => Ok(()),
        }
    }

    pub(super) fn send_reply(&mut self, id: u64, private_data: &[u8]) -> Result<(), ManagerError> {
        check_private_data(private_data, REPLY_PRIVATE_BYTES_MAX)?;
        let connection = self
            .connections
            .get_mut(&id)
            .ok_or(ManagerError::UnknownConnection)?;
        let (Stage::ServerPrepared(reply, offer), Some(socket)) =
            (&mut connection.stage, &connection.socket)
        else {
            return Err(wrong_order("accepting a connection"));
        };
        reply.private_data = private_data.to_vec();
        let message = Message::Reply(Reply::clone(reply)).encode();
        match socket::send(socket, &message, &offer.files()) {
            // The loop reports a closed socket as `Disconnected`.
            Err(error) if !is_hang_up(&error) => {
                return Err(self.system("accepting a connection", error));
            }
            _ => connection.stage = Stage::AwaitingConfirm,
        }
        let deadline = Instant::now() + self.options.handshake_timeout;
        self.set_timer(id, Some(deadline));
        Ok(())
    }

    pub(super) fn send_confirm(&mut self, id: u64) -> Result<(), ManagerError> {
        let connection = self
            .connections
            .get_mut(&id)
            .ok_or(ManagerError::UnknownConnection)?;
        let (Stage::ClientPrepared(confirm, offer), Some(socket)) =
            (&connection.stage, &connection.socket)
        else {
            return Err(wrong_order("confirming a connection"));
        };
        match socket::send(socket, &Message::Confirm(*confirm).encode(), &offer.files()) {
            Ok(()) => {}
            // The loop reports a closed socket as `Disconnected`.
            Err(error) if is_hang_up(&error) => return Ok(()),
            Err(error) => return Err(self.system("confirming a connection", error)),
        }
        connection.stage = Stage::Established;
        self.counters.connections_established += 1;
        self.unpin(id);
        self.ready.push(ManagerEvent::Established {
            connection: ConnectionId(id),
            port_event: None,
        });
        Ok(())
    }

    pub(super) fn send_reject(&mut self, id: u64, reason: RejectReason, private_data: &[u8]) {
        let Some(connection) = self.connections.get(&id) else {
            return;
        };
        if let (Stage::Requested(_) | Stage::ServerPrepared(..), Some(socket)) =
            (&connection.stage, &connection.socket)
        {
            send_rejection(socket, reason, private_data);
        }
        self.remove(id);
    }

    /// Handles a message. Returns whether the connection still exists.
    pub(super) fn on_message(&mut self, id: u64, bytes: &[u8], files: Vec<OwnedFd>) -> bool {
        let Some(connection) = self.connections.get(&id) else {
            return false;
        };
        let message = Message::parse(bytes);
        let verdict = match (&connection.stage, message) {
            (Stage::AwaitingRequest, Ok(Message::Request(request))) if files.is_empty() => {
                self.on_request(id, request)
            }
            (Stage::AwaitingRequest, Err(ParseError::Version(_))) => {
                if let Some(socket) = &connection.socket {
                    send_rejection(socket, RejectReason::VersionMismatch, &[]);
                }
                Verdict::Broken(peer_error("connection protocol has another version"))
            }
            (Stage::AwaitingReply, Ok(Message::Reply(reply))) => self.on_reply(id, reply, files),
            (Stage::AwaitingReply, Ok(Message::Reject(reject))) if files.is_empty() => {
                self.on_reject(id, reject)
            }
            (Stage::AwaitingConfirm, Ok(Message::Confirm(confirm))) => {
                self.on_confirm(id, confirm, files)
            }
            (_, Ok(_)) => Verdict::Broken(peer_error("message is out of order")),
            (_, Err(error)) => Verdict::Broken(peer_error(error.to_string())),
        };
        match verdict {
            Verdict::Goes => true,
            Verdict::Over => false,
            Verdict::Broken(error) => {
                self.counters.handshakes_malformed += 1;
                self.gone(id, error);
                false
            }
        }
    }

    fn on_request(&mut self, id: u64, mut request: Request) -> Verdict {
        self.set_timer(id, None);
        let Some(connection) = self.connections.get_mut(&id) else {
            return Verdict::Over;
        };
        let Side::Server { listener, peer } = &connection.side else {
            return Verdict::Broken(peer_error("message is out of order"));
        };
        self.ready.push(ManagerEvent::ConnectRequest {
            connection: ConnectionId(id),
            listener: *listener,
            peer: identity(peer),
            private_data: std::mem::take(&mut request.private_data),
        });
        connection.stage = Stage::Requested(Box::new(request));
        Verdict::Goes
    }

    fn on_reply(&mut self, id: u64, mut reply: Reply, files: Vec<OwnedFd>) -> Verdict {
        let Some(files) = peer_files(files, reply.doorbell_number) else {
            return Verdict::Broken(peer_error("reply carries fewer than five files"));
        };
        self.set_timer(id, None);
        let Some(connection) = self.connections.get_mut(&id) else {
            return Verdict::Over;
        };
        let Side::Client(client) = &connection.side else {
            return Verdict::Broken(peer_error("message is out of order"));
        };
        let (Some(peer), Some(view)) = (&client.peer, &client.view) else {
            return Verdict::Broken(peer_error("message is out of order"));
        };
        let half =
            self.channels
                .client_half(&client.port, reply.core, peer.pid, reply.channel, view);
        let half = match half {
            Ok(half) => half,
            Err(error @ SetupError::Peer { .. }) => return Verdict::Broken(error.into()),
            Err(error) => {
                self.gone(id, error.into());
                return Verdict::Over;
            }
        };
        let memory = match CheckedPeer::map(files, peer.pid, &mut self.memory) {
            Ok(memory) => memory,
            Err(error) => return self.refuse_memory(id, error),
        };
        self.ready.push(ManagerEvent::ConnectReply {
            connection: ConnectionId(id),
            peer: identity(peer),
            private_data: std::mem::take(&mut reply.private_data),
        });
        let replied = Replied {
            reply,
            memory,
            half,
        };
        connection.stage = Stage::Replied(Box::new(replied));
        Verdict::Goes
    }

    fn on_reject(&mut self, id: u64, reject: Reject) -> Verdict {
        if reject.version != VERSION {
            let why = ParseError::Version(reject.version).to_string();
            self.gone(id, peer_error(why));
            return Verdict::Over;
        }
        self.remove(id);
        self.ready.push(ManagerEvent::Rejected {
            connection: ConnectionId(id),
            reason: reject.reason,
            private_data: reject.private_data,
        });
        Verdict::Over
    }

    fn on_confirm(&mut self, id: u64, confirm: Confirm, files: Vec<OwnedFd>) -> Verdict {
        let Some(files) = peer_files(files, confirm.doorbell_number) else {
            return Verdict::Broken(peer_error("confirmation carries fewer than five files"));
        };
        self.set_timer(id, None);
        let Some(connection) = self.connections.get_mut(&id) else {
            return Verdict::Over;
        };
        let Side::Server { peer, .. } = &connection.side else {
            return Verdict::Broken(peer_error("message is out of order"));
        };
        let memory = match CheckedPeer::map(files, peer.pid, &mut self.memory) {
            Ok(memory) => memory,
            Err(error) => return self.refuse_memory(id, error),
        };
        connection.stage = Stage::Established;
        let port_event = connection
            .local
            .map(|local| PortEvent::Established { local, memory });
        self.counters.connections_established += 1;
        self.half_open_ended();
        self.ready.push(ManagerEvent::Established {
            connection: ConnectionId(id),
            port_event,
        });
        Verdict::Goes
    }

    /// The peer's memory failed its checks or a limit: ends the connection.
    fn refuse_memory(&mut self, id: u64, error: SetupError) -> Verdict {
        self.counters.peers_memory_refused += 1;
        self.gone(id, error.into());
        Verdict::Over
    }

    /// Removes a connection that the peer ended, or that failed, and queues the event that its stage
    /// calls for: none before a request, `Failed` before a reply, else `Disconnected`.
    pub(super) fn gone(&mut self, id: u64, error: ManagerError) {
        let Some(connection) = self.remove(id) else {
            return;
        };
        let told = ConnectionId(id);
        match connection.stage {
            Stage::AwaitingRequest => {}
            Stage::Connecting { .. } | Stage::AwaitingReply => {
                self.ready.push(ManagerEvent::Failed {
                    connection: told,
                    error,
                });
            }
            _ => self.ready.push(ManagerEvent::Disconnected {
                connection: told,
                port_event: connection.local.map(|local| PortEvent::PeerGone { local }),
            }),
        }
    }

    /// Removes a connection with its timer, its pins, its place in line and its unused channel.
    pub(super) fn remove(&mut self, id: u64) -> Option<Connection> {
        self.set_timer(id, None);
        self.unpin(id);
        let connection = self.connections.remove(&id)?;
        if let Side::Client(client) = &connection.side {
            self.leave_line(&client.address, id);
        }
        if connection.is_half_open_server() {
            self.half_open_ended();
        }
        self.channels.sweep();
        Some(connection)
    }

    /// The handshake of a client is over: its request no longer keeps channels alive.
    fn unpin(&mut self, id: u64) {
        if let Some(Connection {
            side: Side::Client(client),
            ..
        }) = self.connections.get_mut(&id)
            && client.view.take().is_some()
            && let Some(peer) = &client.peer
        {
            self.channels.unpin(client.port.identity, peer.pid);
        }
    }

    /// A connection of `listener` was accepted by the kernel.
    pub(super) fn begin_server(&mut self, listener: ListenerId, socket: OwnedFd, peer: Peer) {
        let id = self.new_id();
        if let Err(_no_room) = self.waiting.watch(&socket, id) {
            self.counters.accepts_out_of_files += 1;
            send_rejection(&socket, RejectReason::ConnectionsExhausted, &[]);
            return;
        }
        let connection = Connection {
            side: Side::Server { listener, peer },
            stage: Stage::AwaitingRequest,
            socket: Some(socket),
            timer: None,
            local: None,
        };
        self.connections.insert(id, connection);
        self.half_open += 1;
        let deadline = Instant::now() + self.options.handshake_timeout;
        self.set_timer(id, Some(deadline));
        // A client sends its request right after it connects, so it has usually arrived: reading now
        // saves a turn.
        self.on_readable(id);
    }

    /// The error for a peer that did not answer in time.
    pub(super) fn timed_out(&self, id: u64) -> ManagerError {
        let doing = match self.connections.get(&id).map(|connection| &connection.side) {
            Some(Side::Client(client)) => {
                let peer = client
                    .peer
                    .as_ref()
                    .map_or_else(String::new, Peer::describe);
                format!(
                    "no answer from `{}` within {:?}: {peer} is stopped or overloaded",
                    client.address, self.options.handshake_timeout
                )
            }
            _ => "a client stopped in the middle of the handshake".to_owned(),
        };
        ManagerError::System {
            doing,
            source: io::ErrorKind::TimedOut.into(),
        }
    }
}

/// Sends a rejection. If that fails, the peer sees the socket close without a reason.
pub(super) fn send_rejection(socket: &OwnedFd, reason: RejectReason, private_data: &[u8]) {
    let private_data = match private_data.len() {
        0..=REJECT_PRIVATE_BYTES_MAX => private_data.to_vec(),
        _ => Vec::new(),
    };
    let reject = Message::Reject(Reject {
        version: VERSION,
        reason,
        private_data,
    });
    let _unsent = socket::send(socket, &reject.encode(), &[]);
}
