//! What the manager knows of a connection, and the stages that it goes through.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::channels::{Half, View};
use super::socket::{FILES, Peer};
use super::wire::{Confirm, Reply, Request};
use crate::interface::ListenerId;
use crate::shm::link::PeerFiles;
use crate::shm::{CheckedPeer, NumberHold, PortHandle, QueuePairNumber};

/// A connection, from the first system call to the end.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) side: Side,
    pub(super) stage: Stage,
    /// `None` until a client is connected.
    pub(super) socket: Option<OwnedFd>,
    /// When [`super::Manager`] looks at it again by itself.
    pub(super) timer: Option<Instant>,
    /// Our queue pair, once a prepared queue pair of it was handed out.
    pub(super) local: Option<QueuePairNumber>,
}

/// Which end we are.
#[derive(Debug)]
pub(super) enum Side {
    /// We asked for it.
    Client(Client),
    /// It came by a listener.
    Server {
        /// The listener, which may be closed by now.
        listener: ListenerId,
        /// The client.
        peer: Peer,
    },
}

/// What a client remembers of its request.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) address: String,
    pub(super) port: PortHandle,
    pub(super) private_data: Vec<u8>,
    /// The number for our queue pair, as the request says it.
    pub(super) number: QueuePairNumber,
    /// The hold on it, until the prepared queue pair takes it along.
    pub(super) hold: Option<NumberHold>,
    /// When the handshake is given up.
    pub(super) give_up: Instant,
    /// The server, once connected.
    pub(super) peer: Option<Peer>,
    /// What the request said of channels; they are pinned while it stands here.
    pub(super) view: Option<View>,
}

/// How far a connection has come. Where a peer is waited for, a timer runs.
#[derive(Debug)]
pub(super) enum Stage {
    /// Client: the listener's backlog was full; the next attempt comes after `delay`, or after those of others
    /// that wait for longer.
    Connecting { delay: Duration },
    /// Client: the request is out.
    AwaitingReply,
    /// Client: the application was told of the reply.
    Replied(Box<Replied>),
    /// Client: the core adopts the queue pair.
    ClientPrepared(Confirm, Offer),
    /// Server: accepted by the kernel, and nothing heard.
    AwaitingRequest,
    /// Server: the application was told of the request.
    Requested(Box<Request>),
    /// Server: the core adopts the queue pair; private data comes later.
    ServerPrepared(Box<Reply>, Offer),
    /// Server: the reply is out.
    AwaitingConfirm,
    /// Both: the socket only tells that the peer lives.
    Established,
}

/// What a reply brought.
#[derive(Debug)]
pub(super) struct Replied {
    pub(super) reply: Reply,
    pub(super) memory: CheckedPeer,
    pub(super) half: Half,
}

/// The files that the peer is to get.
#[derive(Debug)]
pub(super) struct Offer {
    pub(super) channel: Arc<OwnedFd>,
    pub(super) port: PortHandle,
}

impl Offer {
    /// In the order of the wire; [`peer_files`] is the other end.
    pub(super) fn files(&self) -> [BorrowedFd<'_>; FILES] {
        let files = &self.port.files;
        [
            self.channel.as_fd(),
            files.arena.as_fd(),
            files.keys.as_fd(),
            files.doorbell.as_fd(),
            files.event.as_fd(),
        ]
    }
}

/// The files of a message, in the order of the wire; `None`, and all are closed, when there are
/// more or fewer.
pub(super) fn peer_files(files: Vec<OwnedFd>, doorbell_number: u32) -> Option<PeerFiles> {
    let files: [OwnedFd; FILES] = files.try_into().ok()?;
    let [channel, arena, keys, doorbell, event] = files;
    Some(PeerFiles {
        channel,
        arena,
        keys,
        doorbell,
        event,
        doorbell_number,
    })
}

impl Connection {
    /// Whether it takes one of the places for handshakes of servers.
    pub(super) fn is_half_open_server(&self) -> bool {
        matches!(self.side, Side::Server { .. }) && !matches!(self.stage, Stage::Established)
    }
}
