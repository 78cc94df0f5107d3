//! The trait of applications, which a core calls.

use rpcrdma_fabric::clock::Ticks;
use rpcrdma_fabric::interface::{PeerIdentity, Port};

use rpcrdma_protocol::rpc::Programs;
use rpcrdma_protocol::v2::TransportError;

use super::Context;
use crate::application_messages::{ApplicationMessage, MessageOutcome, PeerProperties};
use crate::authentication::HostIdentity;
use crate::bulk::{BulkArguments, BulkReply};
use crate::close_reason::CloseReason;
use crate::request::Request;
use crate::responder::ReplyWriter;
use crate::rpc::{Activity, CallError, CallTag, ConnectionKey, Outcome, Reply};

/// The code that runs on a core: it answers the calls of peers, makes calls, or both.
///
/// Its methods run on the core's thread and to completion: while one runs, the core does nothing
/// else. Defer a call that takes longer, and answer it later from [`Application::poll`]: a core that
/// is busy for longer than [`CoreConfig::keep_alive_interval`] sends no keep-alives, and peers
/// disconnect from it in the end.
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
    /// at most so many idle iterations old. A reading takes as long as the rest of an idle iteration:
    /// an application whose calls do not start at set times should use a larger number. The core also
    /// reads the clock in an iteration that received something while calls of ours wait for their
    /// replies, and after an iteration that did something.
    const CLOCK_INTERVAL_POLLS: u32 = 1;

    /// The programs that it has. Asked once, when the core is made. Calls of others, and those that a program does not
    /// take, are answered without it; so is procedure 0. The default takes every call whose header and
    /// AUTH_SYS credential can be decoded.
    fn programs(&self) -> Programs {
        Programs::default()
    }

    /// A peer calls. Write the results to `reply`; they are sent only with [`Outcome::Success`].
    fn call(&mut self, request: &Request<'_>, reply: &mut ReplyWriter<'_>) -> Outcome {
        let _ = (request, reply);
        Outcome::ProgramUnavailable
    }

    /// A peer calls, with items outside the argument stream, or with room for results outside the stream
    /// of the reply. An application without bulk data serves a call of the second kind as any other,
    /// and cannot decode one of the first kind.
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

    /// A call of ours made with [`Context::call_bulk`] ended. The peer cannot reach the memory that it
    /// exposed any more, unless the call timed out.
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
    /// [`Application::connected`], as a call may. Only credits limit how many a peer sends: an application that keeps
    /// them has to set its own limit.
    ///
    /// [`CoreConfig::header_types`]: crate::CoreConfig::header_types
    fn message(&mut self, message: &ApplicationMessage<'_>) -> MessageOutcome {
        let _ = message;
        MessageOutcome::Unsupported
    }

    /// A peer answered a message with a transport error. `xid` is that of a message sent with
    /// [`Context::send_message`], or, from a faulty peer, of none at all. [`TransportError::InvalHtype`] means that the
    /// peer does not know the header type.
    fn message_refused(&mut self, connection: ConnectionKey, xid: u32, error: TransportError) {
        let _ = (connection, xid, error);
    }

    /// Called once per poll iteration: make calls, answer deferred ones. `now` is the iteration's reading
    /// of the clock. After [`Activity::Idle`] the core may delay what this poll asked for until the next reading of the
    /// clock ([`Application::CLOCK_INTERVAL_POLLS`]).
    fn poll<P: Port>(&mut self, core: &mut Context<'_, P>, now: Ticks) -> Activity {
        let _ = (core, now);
        Activity::Idle
    }

    /// The latest time of the next [`Application::poll`], if the application needs one. The core asks before it parks
    /// ([`IdlePolicy::Park`](crate::IdlePolicy::Park)), and wakes up by then. With `None` it may sleep for 100 ms.
    fn next_due(&self) -> Option<Ticks> {
        None
    }

    /// A connection begins: before any call of its peer, and before [`Application::connected`], which may never
    /// come. `peer` is what the fabric reports about the peer; none of that is proved.
    fn opened(&mut self, connection: ConnectionKey, peer: &PeerIdentity) {
        let _ = (connection, peer);
    }

    /// The peer announced properties that neither -00 nor the extension defines. Called just before
    /// [`Application::connected`], unless there are none. Properties are fixed for the life of the connection (-00
    /// section 6.4.4): later sets of the peer are not reported.
    fn peer_properties(&mut self, connection: ConnectionKey, properties: &PeerProperties) {
        let _ = (connection, properties);
    }

    /// The connection is ready: properties were exchanged, and calls may be made on it. `peer` is the identity that
    /// the peer proved, if host authentication took place (-00 section 5.2.6). A peer that does not have to prove an
    /// identity may call before this.
    fn connected(&mut self, connection: ConnectionKey, peer: Option<&HostIdentity>) {
        let _ = (connection, peer);
    }

    /// A connection that was reported by [`Application::connected`] ended. Its calls ended before, with
    /// [`CallError::Disconnected`].
    fn disconnected(&mut self, connection: ConnectionKey, reason: CloseReason) {
        let _ = (connection, reason);
    }
}

/// Serves no program, makes no call, and has nothing to do at set times.
impl Application for () {
    const CLOCK_INTERVAL_POLLS: u32 = 16;

    fn programs(&self) -> Programs {
        Programs::new([])
    }
}
