//! The manager's event loop: listeners, readable sockets and timers.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::EventfdFlags;
use rustix::io::Errno;

use super::connection::Stage;
use super::handshake::send_rejection;
use super::socket::{self, Received};
use super::wire::MESSAGE_BYTES_MAX;
use super::{ACCEPTING, Listener, Manager};
use crate::interface::{ListenerId, ManagerError, ManagerEvent, RejectReason, SetupError};
use crate::shm::Port;
use crate::waiting::turn_until;

/// Clients that one turn accepts from one listener, so that a burst of connects does not starve the
/// other sockets. The next turn accepts more: epoll is level-triggered.
const TURN_ACCEPTS: usize = 64;
/// Messages that one turn reads from one socket. A peer that keeps to the protocol has one message
/// in flight; the bound stops a flooding peer from holding the loop.
const TURN_MESSAGES: usize = 4;
/// How long accepting pauses after `accept` failed for lack of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// A descriptor in reserve: closing it makes room for one `accept`.
pub(super) fn spare_file() -> io::Result<OwnedFd> {
    Ok(rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?)
}

impl Manager {
    pub(super) fn start_listening(&mut self, address: &str) -> Result<ListenerId, ManagerError> {
        let name = socket::parse_address(address)?;
        let doing = format!("listening on `{address}`");
        let socket = match socket::listen(&name) {
            Ok(socket) => socket,
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                return Err(ManagerError::InUse {
                    address: address.to_owned(),
                });
            }
            Err(error) => return Err(self.system(&doing, error)),
        };
        let id = self.new_id();
        if self.accepting {
            self.waiting
                .watch(&socket, id)
                .map_err(|error| self.system(&doing, error))?;
        }
        self.listeners.insert(id, Listener { name, socket });
        Ok(ListenerId(id))
    }

    /// Sets, moves or clears the one timer of a connection.
    pub(super) fn set_timer(&mut self, id: u64, at: Option<Instant>) {
        if let Some(connection) = self.connections.get_mut(&id) {
            self.waiting.set_timer(id, &mut connection.timer, at);
        }
    }

    /// Runs turns until there is an event, the waker is used, or `timeout` expires.
    pub(super) fn run(
        &mut self,
        timeout: Duration,
        events: &mut Vec<ManagerEvent<Port>>,
    ) -> Result<(), ManagerError> {
        let has_events = !self.ready.is_empty();
        turn_until(timeout, has_events, |until| self.turn(until))?;
        events.append(&mut self.ready);
        Ok(())
    }

    /// Sleeps until something happens, at most until `until`, and handles what happened. Returns
    /// whether there is an event to deliver, or the waker was used.
    fn turn(&mut self, until: Option<Instant>) -> Result<bool, ManagerError> {
        let happened = self
            .waiting
            .sleep(until)
            .map_err(|error| self.system("waiting for connections", error))?;
        for id in happened.readable {
            if self.listeners.contains_key(&id) {
                self.accept_some(id);
            } else {
                self.on_readable(id);
            }
        }
        self.fire_timers(Instant::now());
        Ok(happened.woken || !self.ready.is_empty())
    }

    fn fire_timers(&mut self, now: Instant) {
        while let Some(id) = self.waiting.take_due(now) {
            if id == ACCEPTING {
                self.paused_until = None;
                self.update_accepting();
                continue;
            }
            let Some(connection) = self.connections.get_mut(&id) else {
                continue;
            };
            connection.timer = None;
            if matches!(connection.stage, Stage::Connecting { .. }) {
                self.try_connect(id);
                continue;
            }
            let waited_in = std::mem::discriminant(&connection.stage);
            // Read first: the message may have arrived while this process was stopped, or may wait
            // behind the limits of one turn. Such a peer has not timed out.
            self.on_readable(id);
            let stage = self.connections.get(&id).map(|found| &found.stage);
            if stage.is_some_and(|stage| std::mem::discriminant(stage) == waited_in) {
                self.counters.handshakes_timed_out += 1;
                let error = self.timed_out(id);
                self.gone(id, error);
            }
        }
    }

    /// Reads the messages that wait on a socket, at most [`TURN_MESSAGES`].
    pub(super) fn on_readable(&mut self, id: u64) {
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        for _ in 0..TURN_MESSAGES {
            let Some(socket) = self.connections.get(&id).and_then(|c| c.socket.as_ref()) else {
                return;
            };
            let peer = |what: &str| ManagerError::Setup(SetupError::Peer { what: what.into() });
            match socket::receive(socket, &mut bytes) {
                Ok(Received::Nothing) => return,
                Ok(Received::Message(length, files)) => {
                    let message = bytes.get(..length).unwrap_or_default();
                    if !self.on_message(id, message, files) {
                        return;
                    }
                }
                Ok(Received::Closed) => {
                    return self.gone(id, peer("process closed the connection or died"));
                }
                Ok(Received::Oversized) => {
                    self.counters.handshakes_malformed += 1;
                    return self.gone(id, peer("message is too long or brings too many files"));
                }
                Ok(Received::NoRoomForFiles) => {
                    self.counters.accepts_out_of_files += 1;
                    let error = io::Error::from(Errno::MFILE);
                    return self.gone(id, self.system("receiving the peer's files", error));
                }
                Err(error) => {
                    return self.gone(id, self.system("receiving from the peer", error));
                }
            }
        }
    }

    fn accept_some(&mut self, id: u64) {
        for _ in 0..TURN_ACCEPTS {
            if self.half_open >= self.options.half_open_max {
                return self.update_accepting();
            }
            let Some(listener) = self.listeners.get(&id) else {
                return;
            };
            match socket::accept(&listener.socket) {
                Ok(None) => return,
                Ok(Some(socket)) => self.admit(id, socket),
                Err(error) => return self.on_accept_error(id, &error),
            }
        }
    }

    fn admit(&mut self, listener: u64, socket: OwnedFd) {
        match socket::peer(socket.as_fd()) {
            Ok(peer) if peer.is_permitted() => {
                self.begin_server(ListenerId(listener), socket, peer);
            }
            // A peer whose credentials cannot be read is refused like one of another user.
            _ => {
                self.counters.peers_not_permitted += 1;
                send_rejection(&socket, RejectReason::NotPermitted, &[]);
            }
        }
    }

    /// `accept` failed: no descriptors or no memory are left. Closing the spare descriptor lets one
    /// client in, which is rejected with a reason. Then accepting pauses, because the listener stays
    /// readable and `accept` would fail again in every turn.
    fn on_accept_error(&mut self, id: u64, error: &io::Error) {
        self.counters.accepts_out_of_files += 1;
        let no_files = matches!(
            Errno::from_io_error(error),
            Some(Errno::MFILE | Errno::NFILE)
        );
        if no_files
            && self.spare.take().is_some()
            && let Some(listener) = self.listeners.get(&id)
            && let Ok(Some(socket)) = socket::accept(&listener.socket)
        {
            send_rejection(&socket, RejectReason::ConnectionsExhausted, &[]);
        }
        self.spare = self.spare.take().or_else(|| spare_file().ok());
        let at = Instant::now() + ACCEPT_PAUSE;
        self.waiting
            .set_timer(ACCEPTING, &mut self.paused_until, Some(at));
        self.update_accepting();
    }

    /// A server handshake has ended: its place is free.
    pub(super) fn half_open_ended(&mut self) {
        self.half_open = self.half_open.saturating_sub(1);
        self.update_accepting();
    }

    /// Watches the listeners while there is room for a handshake, and stops watching them otherwise.
    /// Clients that are not accepted wait in the kernel's backlog.
    fn update_accepting(&mut self) {
        let want = self.half_open < self.options.half_open_max && self.paused_until.is_none();
        if want == self.accepting {
            return;
        }
        self.accepting = want;
        for (id, listener) in &self.listeners {
            let changed = if want {
                self.waiting.watch(&listener.socket, *id)
            } else {
                self.waiting.forget(&listener.socket)
            };
            // `watch` fails only for lack of memory. The next change of `accepting` tries it again.
            debug_assert!(changed.is_ok(), "epoll: {changed:?}");
        }
    }
}
