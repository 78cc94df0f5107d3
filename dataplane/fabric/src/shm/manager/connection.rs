//! The state of a connection in the manager.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::channels::{Half, View};
use super::socket::{FILES, Peer};
use super::wire::{Confirm, Reply, Request};
use crate::interface::ListenerId;
use crate::shm::files::PeerFiles;
use crate::shm::{CheckedPeer, NumberHold, PortHandle, QueuePairNumber};

/// A connection, from the first system call to the end.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) side: Side,
    pub(super) stage: Stage,
    /// `None` until a client is connected.
    pub(super) socket: Option<OwnedFd>,
    /// When the connection's timer is due: the next connect attempt, or the end of the peer's time.
    pub(super) timer: Option<Instant>,
    /// The number of our queue pair, after `prepare` has returned it.
    pub(super) local: Option<QueuePairNumber>,
}

/// Which end we are.
#[derive(Debug)]
pub(super) enum Side {
    /// We asked for the connection.
    Client(Client),
    /// A listener accepted the connection.
    Server {
        /// The listener, which may have been closed since.
        listener: ListenerId,
        /// The client.
        peer: Peer,
    },
}

/// What a client keeps for its request.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) address: String,
    pub(super) port: PortHandle,
    pub(super) private_data: Vec<u8>,
    /// The number of our queue pair in the request.
    pub(super) number: QueuePairNumber,
    /// Reserves `number` until the prepared queue pair takes the hold over.
    pub(super) hold: Option<NumberHold>,
    /// When the handshake times out.
    pub(super) give_up: Instant,
    /// The server, after the socket is connected.
    pub(super) peer: Option<Peer>,
    /// The channels that the request named. They are pinned while this is `Some`.
    pub(super) view: Option<View>,
}

/// The stage of a connection. A timer runs in the stages that wait for the peer.
#[derive(Debug)]
pub(super) enum Stage {
    /// Client: the socket is not connected yet, because the listener's backlog was full. The oldest
    /// connect to the address tries again after `delay`; the others wait for it.
    Connecting { delay: Duration },
    /// Client: the request was sent.
    AwaitingReply,
    /// Client: the application received the reply.
    Replied(Box<Replied>),
    /// Client: the core adopts the queue pair.
    ClientPrepared(Confirm, Offer),
    /// Server: the socket was accepted; no message has arrived.
    AwaitingRequest,
    /// Server: the application received the request.
    Requested(Box<Request>),
    /// Server: the core adopts the queue pair. `accept` adds the reply's private data.
    ServerPrepared(Box<Reply>, Offer),
    /// Server: the reply was sent.
    AwaitingConfirm,
    /// Both: no more messages. The socket closes when the peer closes it or dies.
    Established,
}

/// The contents of a reply, checked.
#[derive(Debug)]
pub(super) struct Replied {
    pub(super) reply: Reply,
    pub(super) memory: CheckedPeer,
    pub(super) half: Half,
}

/// The files for the peer.
#[derive(Debug)]
pub(super) struct Offer {
    pub(super) channel: Arc<OwnedFd>,
    pub(super) port: PortHandle,
}

impl Offer {
    /// The files in wire order. [`peer_files`] reads them at the other end.
    pub(super) fn files(&self) -> Vec<BorrowedFd<'_>> {
        let files = &self.port.files;
        let own: [_; FILES] = [
            self.channel.as_fd(),
            files.arena.as_fd(),
            files.keys.as_fd(),
            files.doorbell.as_fd(),
            files.event.as_fd(),
        ];
        let external = files.external.iter().map(AsFd::as_fd);
        own.into_iter().chain(external).collect()
    }
}

/// Names the files of a message, which arrive in wire order. Files behind the first [`FILES`] are memory of the
/// application. Fewer give `None`, and all are closed.
pub(super) fn peer_files(mut files: Vec<OwnedFd>, doorbell_number: u32) -> Option<PeerFiles> {
    let external = files.drain(FILES.min(files.len())..).collect();
    let files: [OwnedFd; FILES] = files.try_into().ok()?;
    let [channel, arena, keys, doorbell, event] = files;
    Some(PeerFiles {
        channel,
        arena,
        keys,
        doorbell,
        event,
        external,
        doorbell_number,
    })
}

impl Connection {
    /// Whether the connection counts towards the limit of server handshakes.
    pub(super) fn is_half_open_server(&self) -> bool {
        matches!(self.side, Side::Server { .. }) && !matches!(self.stage, Stage::Established)
    }
}
