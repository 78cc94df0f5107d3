//! An application with faults.

use rpcrdma_engine::{
    Activity, Application, ApplicationMessage, BulkArguments, BulkReply, CallError, CallTag,
    CloseReason, ConnectionKey, Context, DeferToken, HostIdentity, MessageOutcome, Outcome,
    PeerProperties, Reply, ReplyRefused, ReplyWriter, Request,
};
use rpcrdma_fabric::clock::Ticks;
use rpcrdma_fabric::interface::{PeerIdentity, Port};
use rpcrdma_protocol::rpc::{Programs, is_null_call};
use rpcrdma_protocol::v2::TransportError;

use super::draws::Draws;
use super::fault::FaultKind;
use super::plan::FaultPlan;

/// Polls between two checks of whether the connections of unanswered calls are still open.
const LOOK_POLLS: u32 = 64;

/// An application with faults: some calls are answered with an error, or never, before it sees them.
#[derive(Debug)]
pub struct FaultyApplication<A> {
    inner: A,
    /// Those of the application.
    programs: Programs,
    error: Draws,
    drop: Draws,
    /// Calls that are never answered. Their places are released when their connections have closed.
    unanswered: Vec<(DeferToken, ConnectionKey)>,
    polls: u32,
}

impl<A: Application> FaultyApplication<A> {
    pub(crate) fn new(inner: A, plan: &FaultPlan, core: usize) -> Self {
        Self {
            programs: inner.programs(),
            inner,
            error: Draws::new(plan, FaultKind::ErrorReply, core),
            drop: Draws::new(plan, FaultKind::DropReply, core),
            unanswered: Vec::new(),
            polls: 0,
        }
    }

    /// The application.
    #[must_use]
    pub fn into_inner(self) -> A {
        self.inner
    }

    /// Whether it is a call that the application does not want to see. It always sees one that creates a context.
    fn is_hidden(&self, request: &Request<'_>) -> bool {
        is_null_call(request.procedure, request.credential.flavor)
            && !self.programs.sees_null(request.program_index)
    }

    /// The outcome of a call that a fault strikes.
    fn struck(&mut self, request: &Request<'_>) -> Option<Outcome> {
        if self.error.strike().is_some() {
            return Some(Outcome::SystemError);
        }
        if self.drop.is_empty() {
            return None;
        }
        // Before the draw: a call that cannot be deferred is no occasion.
        let token = request.defer()?;
        self.drop.strike()?;
        self.unanswered.push((token, request.connection));
        Some(Outcome::Deferred)
    }

    /// Releases the places of calls whose connections have closed. When the core drains, the other connections are
    /// closed as well, because their unanswered calls would block the drain.
    fn forget_unanswered<P: Port>(&mut self, core: &mut Context<'_, P>) {
        for (token, connection) in std::mem::take(&mut self.unanswered) {
            let is_open = core.connections().any(|it| it == connection);
            if !is_open {
                // Nothing is sent: the connection has closed.
                let forgotten = core.reply(token, Outcome::SystemError, &[]);
                if let Err((ReplyRefused::Busy, token)) = forgotten {
                    self.unanswered.push((token, connection));
                }
                continue;
            }
            if core.is_draining() {
                core.disconnect(connection);
            }
            self.unanswered.push((token, connection));
        }
    }
}

impl<A: Application> Application for FaultyApplication<A> {
    const CLOCK_INTERVAL_POLLS: u32 = A::CLOCK_INTERVAL_POLLS;

    /// A null call is struck as any other.
    fn programs(&self) -> Programs {
        self.programs.clone().with_null()
    }

    fn call(&mut self, request: &Request<'_>, reply: &mut ReplyWriter<'_>) -> Outcome {
        match self.struck(request) {
            Some(outcome) => outcome,
            None if self.is_hidden(request) => Outcome::Success,
            None => self.inner.call(request, reply),
        }
    }

    fn call_bulk(
        &mut self,
        request: &Request<'_>,
        items: &mut BulkArguments<'_>,
        reply: &mut ReplyWriter<'_>,
    ) -> Outcome {
        match self.struck(request) {
            Some(outcome) => outcome,
            // It has no items: the core refuses a null call that has.
            None if self.is_hidden(request) => Outcome::Success,
            None => self.inner.call_bulk(request, items, reply),
        }
    }

    fn completed(
        &mut self,
        tag: CallTag,
        connection: ConnectionKey,
        result: Result<Reply<'_>, CallError>,
        now: Ticks,
    ) {
        self.inner.completed(tag, connection, result, now);
    }

    fn completed_bulk(
        &mut self,
        tag: CallTag,
        connection: ConnectionKey,
        result: Result<BulkReply<'_>, CallError>,
        now: Ticks,
    ) {
        self.inner.completed_bulk(tag, connection, result, now);
    }

    fn poll<P: Port>(&mut self, core: &mut Context<'_, P>, now: Ticks) -> Activity {
        self.polls = self.polls.wrapping_add(1);
        if !self.unanswered.is_empty()
            && (self.polls.is_multiple_of(LOOK_POLLS) || core.is_draining())
        {
            self.forget_unanswered(core);
        }
        self.inner.poll(core, now)
    }

    fn next_due(&self) -> Option<Ticks> {
        self.inner.next_due()
    }

    fn opened(&mut self, connection: ConnectionKey, peer: &PeerIdentity) {
        self.inner.opened(connection, peer);
    }

    fn message(&mut self, message: &ApplicationMessage<'_>) -> MessageOutcome {
        self.inner.message(message)
    }

    fn message_refused(&mut self, connection: ConnectionKey, xid: u32, error: TransportError) {
        self.inner.message_refused(connection, xid, error);
    }

    fn peer_properties(&mut self, connection: ConnectionKey, properties: &PeerProperties) {
        self.inner.peer_properties(connection, properties);
    }

    fn connected(&mut self, connection: ConnectionKey, peer: Option<&HostIdentity>) {
        self.inner.connected(connection, peer);
    }

    fn disconnected(&mut self, connection: ConnectionKey, reason: CloseReason) {
        self.inner.disconnected(connection, reason);
    }
}
