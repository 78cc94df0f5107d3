//! The interface of every provider, modelled on verbs.
//!
//! A [`Port`] is owned by one core and never shared: it bundles what that core owns of a device
//! (one protection domain, one completion queue, receive queues, queue pairs, registered
//! memory). Handles are indices with a generation, never pointers, because a completion may
//! outlive its queue pair. A [`Manager`] lives in the control thread: it listens, connects and
//! accepts, and produces the [`PortSetup::PreparedQueuePair`] of a queue pair, which the core adopts.
//!
//! A [`Receive`] and a [`Window`] are tokens: there is one for each Receive and each window, and it carries the port
//! that made it. Another port refuses it, changes nothing, and returns it if it was passed by value. A
//! [`PortSetup::PreparedQueuePair`] is adopted in its own port alone. A [`QueuePairId`] and a [`ReceiveQueueId`] are
//! plain numbers: a port cannot recognise those of another port.
//!
//! Ownership of memory is by move: a buffer that is posted, exposed or in flight has been moved
//! into the port, so no slice of it can exist; its completion gives it back.
//!
//! # Order of the calls on a port
//!
//! Setup: [`PortSetup::create_receive_queue`], [`PortSetup::create_receive`], [`PortReceives::post_receive`].
//! Then, in a loop: call [`PortPoll::poll`], handle the completions, give the buffers of [`PortSends::next_returned`] to
//! their pools, post work, call [`PortReceives::flush_receives`], and then [`PortSends::flush_sends`]. Receives are
//! flushed before Sends, so that a Receive is posted before a Send grants a credit for it.
//!
//! [`PortPoll::begin_poll`] can take the place of [`PortPoll::poll`]. It leaves messages that can be read in the port's own
//! memory, so that most messages take no Receive. Handle the completions first, then each [`PortPoll::next_arrival`]:
//! this keeps the order of each queue pair.

mod attributes;
mod completion;
mod counted;
mod error;
mod manager;
mod port;
mod work;

pub use attributes::Attributes;
pub use completion::{Completion, CompletionBatch, CompletionKind, REAP_MAX, REAP_USUAL, Status};
pub(crate) use counted::counters;
pub use counted::{Counted, PublishedCounters};
pub use error::{ManagerError, PostError, SetupError};
pub use manager::{
    ChoosePort, ConnectionId, DeviceLevel, DeviceLevels, ListenerId, Manager, ManagerEvent,
    PeerIdentity, PreparedFor, RejectReason,
};
pub use port::{
    Access, Port, PortPoll, PortReceives, PortSends, PortSetup, PortWindows, ReceiveQueueAttributes,
};
pub(crate) use work::PortNumber;
pub use work::{
    Arrival, FORM_WORDS_MAX, FormShape, Formed, Forms, Gather, QueuePairId, Receive,
    ReceiveQueueId, RemoteAddress, RemoteKey, SEGMENTS_MAX, SendOptions, Window, WorkId,
};

/// The traits by which a [`Port`] of a known type is called. Code that is generic over `P: Port` needs none of them.
pub mod prelude {
    pub use super::{
        PortPoll as _, PortReceives as _, PortSends as _, PortSetup as _, PortWindows as _,
    };
}
