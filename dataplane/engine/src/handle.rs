//! The interface of the control plane to a core: commands in, notifications out.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};

use crossbeam_queue::ArrayQueue;
use rpcrdma_fabric::clock::Clock;
use rpcrdma_fabric::interface::{Counted, PeerIdentity, Port, PublishedCounters, SetupError};
use rpcrdma_protocol::connection::Terms;
use rpcrdma_protocol::v2::connection::Role;
use rpcrdma_protocol::v2::{ApplicationProperties, Properties};

use crate::authentication::{AuthenticationMessage, HostIdentity};
use crate::close_reason::CloseReason;
use crate::counters::{CounterSnapshot, Counters};
use crate::levels::{LevelSnapshot, Levels, PollTimeSnapshot, PollTimes};
use crate::padded::CachePadded;
use crate::rpc::ConnectionKey;

/// A command for a core.
pub enum Command<P: Port> {
    /// Adopt a queue pair; answered with [`CoreEvent::Adopted`].
    Adopt {
        /// Chosen by the sender; comes back in the answer.
        token: u64,
        /// The queue pair, as the connection manager prepared it.
        prepared: P::PreparedQueuePair,
        /// Which end of the connection this is.
        role: Role,
        /// Who the peer is, for the application.
        peer: PeerIdentity,
        /// Our properties: a receive buffer size of at most the core's, and a send size likewise.
        properties: Properties,
        /// The versions that may be used, and what both ends exchanged when the connection was made. A
        /// guarded connection always uses version 2: version 1 has no host authentication.
        terms: Terms,
        /// The most credits that the peer is granted. The core raises 0 to 1, and lowers what it has no
        /// Receives for.
        credits_max: u16,
        /// Refuse RPC messages of the peer, and close the connection if one comes, until
        /// [`Command::Authenticate`] gives the identity of the peer.
        guarded: bool,
        /// The peer can be reached by another path: a connection whose path is dead ends
        /// ([`CoreConfig::path_suspect_after`](crate::CoreConfig::path_suspect_after)).
        has_other_path: bool,
    },
    /// An event of the connection manager for the port.
    PortEvent(P::PortEvent),
    /// Accept the peer's properties. The connection is ready then, unless it is guarded.
    AnswerProperties {
        /// The connection.
        connection: ConnectionKey,
        /// The peer's properties.
        peer: Properties,
        /// Whether to send ours in answer.
        answer: bool,
    },
    /// A step of host authentication: begins the exchange, or answers a set of the peer.
    Authenticate {
        /// The connection.
        connection: ConnectionKey,
        /// The peer's properties to accept; sent with its first set.
        peer: Option<Properties>,
        /// What to send.
        send: Option<Box<AuthenticationMessage>>,
        /// The identity of the peer, once it has proved it: the connection is ready then.
        identity: Option<HostIdentity>,
    },
    /// Announce these properties of the application, in place of
    /// [`CoreConfig::application_properties`](crate::CoreConfig::application_properties). It comes before the connection's
    /// properties are sent.
    Announce {
        /// The connection.
        connection: ConnectionKey,
        /// What to announce.
        application: Box<ApplicationProperties>,
    },
    /// Send our properties (a client's first message). On a connection of version 1, which has none,
    /// both ends may call from now on.
    SendProperties {
        /// The connection.
        connection: ConnectionKey,
    },
    /// Close a connection; answered with [`CoreEvent::Closed`].
    Close {
        /// The connection.
        connection: ConnectionKey,
        /// The reason to report to the application.
        reason: CloseReason,
    },
    /// Accept no new calls from the application or from peers, finish those that are outstanding, then report
    /// [`CoreEvent::Drained`].
    Drain,
}

impl<P: Port> fmt::Debug for Command<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Adopt { .. } => "Adopt",
            Self::PortEvent(_) => "PortEvent",
            Self::AnswerProperties { .. } => "AnswerProperties",
            Self::Authenticate { .. } => "Authenticate",
            Self::Announce { .. } => "Announce",
            Self::SendProperties { .. } => "SendProperties",
            Self::Close { .. } => "Close",
            Self::Drain => "Drain",
        })
    }
}

/// The longest property set that a core hands to the control plane, in bytes.
pub const PROPERTY_BYTES_MAX: usize = 4096;

/// The number of messages on a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionCounters {
    /// Messages received, credit grants apart; modulo 2^32.
    pub messages_received: u32,
    /// Messages sent, credit grants apart; modulo 2^32.
    pub messages_sent: u32,
}

/// An event of a core for the control plane.
#[derive(Debug)]
pub enum CoreEvent {
    /// The answer to [`Command::Adopt`].
    Adopted {
        /// The token of the command.
        token: u64,
        /// The connection, or why there is none.
        result: Result<ConnectionKey, SetupError>,
    },
    /// The peer's properties came: answer with [`Command::AnswerProperties`],
    /// [`Command::Authenticate`] or [`Command::Close`]. At most one is open per connection.
    Properties {
        /// The connection.
        connection: ConnectionKey,
        /// The encoded property set: the body of a CONNPROP (-00 section 6.4.4), complete
        /// and well formed, at most [`PROPERTY_BYTES_MAX`] bytes.
        bytes: Box<[u8]>,
    },
    /// Both ends may call.
    Ready {
        /// The connection.
        connection: ConnectionKey,
        /// Whether it speaks version 1.
        version_1: bool,
    },
    /// The server refused the version, and there is no other to try. The connection closes.
    VersionMismatch {
        /// The connection.
        connection: ConnectionKey,
        /// The lowest version that it supports.
        low: u32,
        /// The highest version that it supports.
        high: u32,
    },
    /// The connection is closed. Reported once for every adopted connection, as its last event.
    Closed {
        /// The connection.
        connection: ConnectionKey,
        /// Why.
        reason: CloseReason,
        /// Its messages.
        counters: ConnectionCounters,
    },
    /// Nothing is outstanding any more.
    Drained,
}

/// The mailbox was full. Contains the command.
#[derive(thiserror::Error)]
#[error("the core's mailbox is full: {0:?} was not taken")]
pub struct Full<P: Port>(pub Command<P>);

impl<P: Port> fmt::Debug for Full<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Full").field(&self.0).finish()
    }
}

/// The bit of the commands sent that tells the core to stop. It needs no room in the mailbox, and no count of commands reaches
/// it.
const STOP: u64 = 1 << 63;

/// What a core and its handles share.
pub(crate) struct Shared<P: Port> {
    commands: ArrayQueue<Command<P>>,
    /// Commands ever sent, with [`STOP`]: the only word that the core reads in every iteration.
    commands_sent: CachePadded<AtomicU64>,
    /// The core is no more. It takes no command.
    has_ended: AtomicBool,
    pub(crate) notifications: ArrayQueue<CoreEvent>,
    pub(crate) counters: Counters,
    pub(crate) levels: Levels,
    /// The counters of the port.
    pub(crate) fabric: PublishedCounters,
    pub(crate) poll_times: PollTimes,
    waker: OnceLock<Arc<dyn Fn() + Send + Sync>>,
    parked: AtomicBool,
    /// Wakes the core when it is parked.
    pub(crate) wake: OwnedFd,
}

impl<P: Port> Shared<P> {
    pub(crate) fn new(
        mailbox_depth: u32,
        notifications: u32,
        clock: Clock,
        fabric: PublishedCounters,
    ) -> Result<Arc<Self>, SetupError> {
        let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
        let wake = rustix::event::eventfd(0, flags).map_err(|error| SetupError::System {
            doing: "an event to wake the core could not be made".to_owned(),
            source: error.into(),
        })?;
        Ok(Arc::new(Self {
            commands: ArrayQueue::new(mailbox_depth.max(1) as usize),
            commands_sent: CachePadded::new(AtomicU64::new(0)),
            has_ended: AtomicBool::new(false),
            notifications: ArrayQueue::new(notifications.max(1) as usize),
            counters: Counters::default(),
            levels: Levels::default(),
            fabric,
            poll_times: PollTimes::new(clock),
            waker: OnceLock::new(),
            parked: AtomicBool::new(false),
            wake,
        }))
    }

    /// Commands ever sent, as a hint to look into the mailbox. While the core is to stop, it differs from every count.
    #[inline]
    pub(crate) fn commands_sent(&self) -> u64 {
        // Only a hint: the queue's own pop synchronises with the push.
        self.commands_sent.load(Ordering::Relaxed)
    }

    pub(crate) fn pop_command(&self) -> Option<Command<P>> {
        self.commands.pop()
    }

    /// Whether the core is to stop.
    pub(crate) fn is_stop_wanted(&self) -> bool {
        self.commands_sent() & STOP != 0
    }

    /// The core is no more: what waits in its mailbox ends, and so does what comes later. Handles may live for as long as
    /// somebody reads counters, and a command may have a queue pair.
    pub(crate) fn end(&self) {
        // SYNC POINT core-ended: Release, with the Acquire in `CoreHandle::has_ended`: who sees it finds all notifications.
        self.has_ended.store(true, Ordering::Release);
        // SYNC POINT core-end: pairs with the fence in `Shared::wake_if_parked`. Either the sender sees `has_ended`, or the
        // command is found here.
        fence(Ordering::SeqCst);
        self.drop_commands();
        if let Some(waker) = self.waker.get() {
            waker();
        }
    }

    fn drop_commands(&self) {
        while let Some(command) = self.commands.pop() {
            drop(command);
        }
    }

    /// Notifies the control plane. The ring always has room, by its size and by the check in `adopt_queue_pair`.
    pub(crate) fn notify(&self, notification: CoreEvent) {
        let pushed = self.notifications.push(notification);
        debug_assert!(
            pushed.is_ok(),
            "the notification ring is a sum of its writers"
        );
        if let Some(waker) = self.waker.get() {
            waker();
        }
    }

    /// Announces that the core is about to sleep. False when there are commands.
    pub(crate) fn announce_park(&self, commands_taken: u64) -> bool {
        self.parked.store(true, Ordering::Relaxed);
        // SYNC POINT core-park: pairs with the fence in `Shared::wake_if_parked`. Either the sender sees
        // `parked`, or the core sees the command.
        fence(Ordering::SeqCst);
        if self.commands_sent() == commands_taken {
            return true;
        }
        self.end_park();
        false
    }

    /// Wakes the core if it is about to sleep, or sleeps.
    fn wake_if_parked(&self) {
        // SYNC POINT core-park: pairs with the fence in `Shared::announce_park`.
        // SYNC POINT core-end: pairs with the fence in `Shared::end`.
        fence(Ordering::SeqCst);
        if self.parked.load(Ordering::Relaxed) {
            // The write fails only if the counter is full, and then the core wakes up as well.
            let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        }
    }

    /// Announces that the core is awake, and clears the wake-up.
    pub(crate) fn end_park(&self) {
        self.parked.store(false, Ordering::Relaxed);
        let mut count = [0; 8];
        // With nothing to read, nobody woke it.
        let _ = rustix::io::read(&self.wake, &mut count);
    }
}

/// The control plane's end of a core. Any thread may have a clone.
pub struct CoreHandle<P: Port> {
    pub(crate) shared: Arc<Shared<P>>,
}

impl<P: Port> Clone for CoreHandle<P> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<P: Port> fmt::Debug for CoreHandle<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CoreHandle").finish_non_exhaustive()
    }
}

impl<P: Port> CoreHandle<P> {
    /// Sends a command. A core that has ended drops it.
    ///
    /// # Errors
    /// [`Full`] with the command: try again when the core has taken some.
    #[expect(
        clippy::result_large_err,
        reason = "a command that was not taken comes back as it is, and this is no path of a call"
    )]
    pub fn send(&self, command: Command<P>) -> Result<(), Full<P>> {
        self.shared.commands.push(command).map_err(Full)?;
        self.shared.commands_sent.fetch_add(1, Ordering::Relaxed);
        self.shared.wake_if_parked();
        if self.has_ended() {
            self.shared.drop_commands();
        }
        Ok(())
    }

    /// Has the core close all connections and end: after its present iteration, even if commands wait in its mailbox.
    pub fn stop(&self) {
        self.shared.commands_sent.fetch_or(STOP, Ordering::Relaxed);
        self.shared.wake_if_parked();
    }

    /// Whether the core is no more: it was stopped, dropped, or its thread panicked. All its notifications are there.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        // SYNC POINT core-ended: Acquire, with the Release in `Shared::end`.
        self.shared.has_ended.load(Ordering::Acquire)
    }

    /// Wakes the core if it is parked, so that its application is polled.
    pub fn wake(&self) {
        self.shared.wake_if_parked();
    }

    /// Takes the next notification.
    #[must_use]
    pub fn receive(&self) -> Option<CoreEvent> {
        self.shared.notifications.pop()
    }

    /// Sets the function that the core calls after every notification, on its own thread. Only the first call of this
    /// has an effect. The function should do no more than write to an event descriptor.
    pub fn set_waker(&self, waker: Arc<dyn Fn() + Send + Sync>) {
        // The lock ignores a second waker, as documented.
        let _ = self.shared.waker.set(waker);
    }

    /// The present values of the core's counters.
    #[must_use]
    pub fn counters(&self) -> CounterSnapshot {
        self.shared.counters.snapshot()
    }

    /// The levels that the core published last.
    #[must_use]
    pub fn levels(&self) -> LevelSnapshot {
        self.shared.levels.snapshot()
    }

    /// The counters of its port, as it published them last.
    #[must_use]
    pub fn fabric_counters(&self) -> Vec<Counted> {
        self.shared.fabric.snapshot()
    }

    /// How long the core's polls took.
    #[must_use]
    pub fn poll_times(&self) -> PollTimeSnapshot {
        self.shared.poll_times.snapshot()
    }
}
