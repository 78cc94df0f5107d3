//! What applications do: the trait that a core calls.

use rpcrdma_fabric::clock::Ticks;
use rpcrdma_fabric::interface::{PeerIdentity, Port};

use rpcrdma_protocol::v2::TransportError;

use super::Context;
use crate::application_messages::{ApplicationMessage, MessageOutcome, PeerProperties};
use crate::authentication::HostIdentity;
use crate::bulk::{BulkArguments, BulkReply};
use crate::close_reason::CloseReason;
use crate::responder::ReplyWriter;
use crate::rpc::{Activity, CallError, CallTag, ConnectionKey, Outcome, Reply, Request};

/// The code that runs on a core: it answers the calls of peers, makes calls, or both.
///
/// Its methods run on the core's thread and to completion: while one runs, the core does nothing
/// else. What takes longer is deferred and answered later, from [`Application::poll`]: a core that
/// is busy for [`CoreConfig::keep_alive_interval`] sends no keep-alives, and is left by its peers in
/// the end.
///
/// [`CoreConfig::keep_alive_interval`]: crate::CoreConfig::keep_alive_interval
///
/// # Example
/// ```
/// use rpcrdma_engine::{Application, Outcome, ReplyWriter, Request};
///
/// /// Answers with the sum of the words of its arguments.
/// struct Adder;
///
/// impl Application for Adder {
///     fn call(&mut self, request: &Request<'_>, reply: &mut ReplyWriter<'_>) -> Outcome {
///         if (request.program, request.version) != (0x2000_0001, 1) {
///             return Outcome::ProgramUnavailable;
///         }
///         let (words, []) = request.args.as_chunks::<4>() else {
///             return Outcome::GarbageArgs;
///         };
///         let sum = words.iter().map(|word| u32::from_be_bytes(*word)).sum();
///         reply.write_u32(sum).map_or(Outcome::SystemError, |()| Outcome::Success)
///     }
/// }
/// ```
pub trait Application: Send + 'static {
    /// Iterations between two readings of the clock: the readings that [`Application::poll`] gets are
    /// at most so many idle iterations old. A reading takes as long as the rest of an idle iteration,
    /// so that an application whose calls do not start at set times wants a larger number. The clock
    /// is also read in each iteration that received something while calls of ours wait for their
    /// replies, and in the one after each that did something.
    const CLOCK_INTERVAL_POLLS: u32 = 1;

    /// A peer calls. Results are written to `reply`, and count with [`Outcome::Success`] alone.
    fn call(&mut self, request: &Request<'_>, reply: &mut ReplyWriter<'_>) -> Outcome {
        let _ = (request, reply);
        Outcome::ProgramUnavailable
    }

    /// A peer calls, with items beside its stream, or with room for results beside that of the
    /// reply. An application that does not know of bulk data serves the latter as any other call,
    /// and cannot decode the former.
    fn call_bulk(
        &mut self,
        request: &Request<'_>,
        items: &mut BulkArguments<'_>,
        reply: &mut ReplyWriter<'_>,
    ) -> Outcome {
        if items.is_empty() {
            self.call(request, reply)
        } else {
            Outcome::GarbageArgs
        }
    }

    /// A call of ours ended. Every call that was accepted ends exactly once. `now` is the
    /// iteration's reading of the clock.
    fn completed(
        &mut self,
        tag: CallTag,
        connection: ConnectionKey,
        result: Result<Reply<'_>, CallError>,
        now: Ticks,
    ) {
        let _ = (tag, connection, result, now);
    }

    /// A call of ours ended that was made with [`Context::call_bulk`]. Nothing that it exposed can
    /// be reached by the peer any more, unless it timed out.
    fn completed_bulk(
        &mut self,
        tag: CallTag,
        connection: ConnectionKey,
        result: Result<BulkReply<'_>, CallError>,
        now: Ticks,
    ) {
        self.completed(tag, connection, result.map(|bulk| bulk.reply), now);
    }

    /// A peer sends a message of a header type that is among [`CoreConfig::header_types`]. It may come before
    /// [`Application::connected`], as a call may. Nothing but credits bounds how many a peer sends: what the application
    /// keeps of them, it bounds itself.
    ///
    /// [`CoreConfig::header_types`]: crate::CoreConfig::header_types
    fn message(&mut self, message: &ApplicationMessage<'_>) -> MessageOutcome {
        let _ = message;
        MessageOutcome::Unsupported
    }

    /// A peer answers with a transport error a message that was sent with [`Context::send_message`], and has this XID; it
    /// may also be an XID of no message at all. With [`TransportError::InvalHtype`] the peer does not know the header
    /// type.
    fn message_refused(&mut self, connection: ConnectionKey, xid: u32, error: TransportError) {
        let _ = (connection, xid, error);
    }

    /// Once per poll iteration: make calls, answer deferred ones. `now` is the iteration's reading
    /// of the clock. After a poll that returns [`Activity::Idle`] the core may start what it was asked for only at the
    /// next reading of the clock ([`Application::CLOCK_INTERVAL_POLLS`]).
    fn poll<P: Port>(&mut self, core: &mut Context<'_, P>, now: Ticks) -> Activity {
        let _ = (core, now);
        Activity::Idle
    }

    /// When [`Application::poll`] must be called again at the latest, if the application has a time to keep. It is
    /// asked before the core parks ([`IdlePolicy::Park`](crate::IdlePolicy::Park)), and the core wakes up by then. With
    /// `None` the core may sleep for 100 ms.
    fn next_due(&self) -> Option<Ticks> {
        None
    }

    /// A connection begins: before any call of its peer, and before [`Application::connected`], which may never
    /// come. `peer` is who the fabric says that it is; nothing of that is proved.
    fn opened(&mut self, connection: ConnectionKey, peer: &PeerIdentity) {
        let _ = (connection, peer);
    }

    /// The peer has announced properties that neither -00 nor the extension defines: told just before
    /// [`Application::connected`], unless there are none. They stand for the life of the connection (-00 section 6.4.4):
    /// what a later set of the peer says is left out.
    fn peer_properties(&mut self, connection: ConnectionKey, properties: &PeerProperties) {
        let _ = (connection, properties);
    }

    /// The connection is ready: properties were exchanged, and calls may be made on it. `peer` is the identity that
    /// the peer proved, if host authentication took place (-00 section 5.2.6). A peer that need not prove any may call
    /// before this.
    fn connected(&mut self, connection: ConnectionKey, peer: Option<&HostIdentity>) {
        let _ = (connection, peer);
    }

    /// A connection has ended, of which [`Application::connected`] told. Its calls have ended before, with
    /// [`CallError::Disconnected`].
    fn disconnected(&mut self, connection: ConnectionKey, reason: CloseReason) {
        let _ = (connection, reason);
    }
}
