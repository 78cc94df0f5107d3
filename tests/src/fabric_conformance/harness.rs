//! What a provider brings to the suite.

use std::time::Duration;

use rpcrdma_fabric::clock::Ticks;
use rpcrdma_fabric::interface::{Attributes, Manager, Port, PortSetup, QueuePairId, Status};

/// How large a port is to be.
#[derive(Clone, Copy, Debug)]
pub struct PortOptions {
    /// Bytes of registered memory.
    pub arena_bytes: u64,
    /// Queue pairs that it holds at a time.
    pub queue_pairs: u32,
    /// Work requests outstanding per queue pair.
    pub send_queue_depth: u32,
    /// Memory windows bound at a time.
    pub windows: u32,
    /// One-way delay of all that it sends; zero unless the provider can set one.
    pub delay: Duration,
}

impl Default for PortOptions {
    fn default() -> Self {
        Self {
            arena_bytes: 8 << 20,
            queue_pairs: 128,
            send_queue_depth: 64,
            windows: 128,
            delay: Duration::ZERO,
        }
    }
}

/// A fault that a provider may be able to inject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The queue pair breaks, as if the link were lost.
    DropConnection,
    /// The next work request of the queue pair ends with this status.
    FailNextWork(Status),
    /// The whole port behaves for so many polls as if no Receive were posted.
    ReceiverNotReady {
        /// How many polls.
        polls: u32,
    },
}

/// What a provider can do beyond the interface.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extras {
    /// [`PortOptions::delay`] is honoured.
    pub set_delay: bool,
    /// [`Harness::fault`] yields notices.
    pub faults: bool,
    /// The provider's poll moves the bytes itself, at most so many at a time.
    pub copied_bytes_per_poll_max: Option<u64>,
    /// The device lets a peer reach beyond a window, to the whole memory that it is bound to.
    pub windows_unbounded: bool,
    /// The device acknowledges a Send before it looks at what the Send is to invalidate: so the
    /// sender of a wrong key learns only by the end of the connection.
    pub invalidates_late: bool,
    /// The device lets a peer invalidate the window of another.
    pub invalidates_foreign: bool,
    /// Windows are registrations, whose keys open them to every peer of the port.
    pub windows_of_all: bool,
    /// A work is done when it has left: what the peer makes of it shows in the end of the connection.
    pub done_when_sent: bool,
    /// A message that meets no Receive ends the connection.
    pub ends_without_receive: bool,
}

/// What a case cannot do without. A case whose needs are not met is skipped by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// RDMA Read.
    Reads,
    /// Memory windows.
    Windows,
    /// Windows that end where they were bound to end.
    BoundedWindows,
    /// Windows that only the peer they are for can invalidate.
    OwnedWindows,
    /// Windows that only the peer they are for can reach.
    PrivateWindows,
    /// A message that meets no Receive waits for one.
    Patience,
    /// A receive queue that serves several queue pairs.
    SharedReceiveQueue,
    /// Send With Invalidate.
    SendWithInvalidate,
    /// A delay that can be set.
    SetDelay,
    /// Faults that can be injected.
    Faults,
    /// A provider whose poll copies, within a bound.
    CopyBound,
}

impl Need {
    /// What is missing, or `None` when the provider has it.
    #[must_use]
    pub fn missing(self, attributes: &Attributes, extras: Extras) -> Option<&'static str> {
        let (has, missing) = match self {
            Self::Reads => (attributes.read_depth_max > 0, "has no RDMA Read"),
            Self::Windows => (attributes.windows_max > 0, "has no memory windows"),
            Self::BoundedWindows => (
                attributes.windows_max > 0 && !extras.windows_unbounded,
                "does not hold a peer to the range of a window",
            ),
            Self::OwnedWindows => (
                attributes.windows_max > 0 && !extras.invalidates_foreign,
                "lets a peer invalidate the window of another",
            ),
            Self::PrivateWindows => (
                attributes.windows_max > 0 && !extras.windows_of_all,
                "opens memory to every peer of the port",
            ),
            Self::Patience => (
                !extras.ends_without_receive,
                "ends the connection where no Receive is posted",
            ),
            Self::SharedReceiveQueue => (
                attributes.shared_receive_queue,
                "has no shared receive queue",
            ),
            Self::SendWithInvalidate => (
                attributes.send_with_invalidate,
                "has no Send With Invalidate",
            ),
            Self::SetDelay => (extras.set_delay, "cannot set a delay"),
            Self::Faults => (extras.faults, "cannot inject faults"),
            Self::CopyBound => (
                extras.copied_bytes_per_poll_max.is_some(),
                "does not move the bytes in its poll",
            ),
        };
        (!has).then_some(missing)
    }
}

/// The name by which a provider's connection manager knows a port.
pub type PortHandleOf<H> = <<H as Harness>::Manager as Manager>::PortHandle;
/// What a provider's connection manager tells a port.
pub type NoticeOf<H> = <<H as Harness>::Port as PortSetup>::PortEvent;

/// A provider, as the suite sees it: it makes ports and managers, names addresses, and keeps time.
pub trait Harness: Sized {
    /// The provider's port.
    type Port: Port;
    /// The provider's connection manager.
    type Manager: Manager<Port = Self::Port>;

    /// The rails of a port. Receives are made on each in turn, and a fresh address is of the last.
    const RAILS: u32 = 1;

    /// Starts with nothing.
    fn new() -> Self;

    /// What the provider can do beyond the interface.
    fn extras() -> Extras;

    /// An address that the provider cannot read.
    fn malformed_address() -> &'static str;

    /// Makes a port.
    fn port(&mut self, options: PortOptions) -> (Self::Port, PortHandleOf<Self>);

    /// Makes a connection manager, as every process has one.
    fn manager(&mut self) -> Self::Manager;

    /// An address on which nobody listens.
    fn fresh_address(&mut self) -> String;

    /// The time to hand to [`PortPoll::poll`](rpcrdma_fabric::interface::PortPoll::poll).
    fn now(&self) -> Ticks;

    /// Stops the clock of [`Harness::now`] until [`Harness::release`], with [`Extras::set_delay`]: however long a case
    /// takes meanwhile, no time passes but that of [`Harness::pass`].
    fn hold(&mut self);

    /// Lets the clock go on, from the present.
    fn release(&mut self);

    /// Sets the clock forward, with [`Extras::set_delay`].
    fn pass(&mut self, time: Duration);

    /// The notice that injects `fault`, with [`Extras::faults`].
    fn fault(&self, queue_pair: QueuePairId, fault: Fault) -> Option<NoticeOf<Self>>;
}
