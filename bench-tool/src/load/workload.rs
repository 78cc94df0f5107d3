//! What an RPC program adds to the load generator.

use rpcrdma_engine::{
    BulkReply, CallError, CallRefused, CallTag, ConnectionKey, Context, Outcome, Reply,
    ReplyWriter, Request,
};
use rpcrdma_fabric::interface::Port;

use super::measured::Errors;

/// The result of checking a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is right; so many bytes of bulk data were moved.
    Right { bytes: u64 },
    /// It is wrong, and the workload noted an error.
    Wrong,
    /// The server asks to repeat the call later.
    Later,
    /// The call counts as several, whose times are [`Workload::latencies_ns`]. With `refused` the connection takes no
    /// more of them, for that reason.
    Several { refused: Option<CallRefused> },
}

/// The calls of an RPC program on one core. The generator decides when a call is made, on which connection, and whether
/// it counts; a workload, what it is.
///
/// Generic, not a trait object: what is called for every reply is inlined into the generator.
pub(crate) trait Workload: Send + 'static {
    /// What one call does: all that is needed to make it, to repeat it, and to check its reply. Each outstanding call
    /// keeps one.
    type Step: Copy + Default + Send;

    /// The next call. The same until [`Workload::advance`], so that a call that is refused now is the next one still.
    fn step(&self) -> Self::Step;

    /// The next call has been made.
    fn advance(&mut self);

    /// How many calls the next step counts as, at most `left`.
    #[inline]
    fn calls(&mut self, left: u64) -> u64 {
        let _ = left;
        1
    }

    /// Makes the call of a step: the next one, or one that was made before and is repeated.
    ///
    /// # Errors
    /// Those of the core; nothing was sent then.
    fn issue<P: Port>(
        &mut self,
        core: &mut Context<'_, P>,
        connection: ConnectionKey,
        tag: CallTag,
        step: Self::Step,
    ) -> Result<(), CallRefused>;

    /// Whether the reply to a step is right.
    fn check(&mut self, step: Self::Step, reply: &Reply<'_>, errors: &mut Errors) -> Verdict;

    /// The same of a reply to a call with bulk data.
    fn check_bulk(
        &mut self,
        step: Self::Step,
        reply: &BulkReply<'_>,
        errors: &mut Errors,
    ) -> Verdict;

    /// A call ended with `error` and without a reply to check: why its connection takes no more calls, or `None` if it
    /// does.
    fn refusal(&self, error: CallError) -> Option<CallRefused> {
        let _ = error;
        None
    }

    /// A reply that was right counts, with its latency in nanoseconds: for figures of the workload's own.
    #[inline]
    fn counted(&mut self, step: Self::Step, bytes: u64, latency_ns: impl FnOnce() -> u64) {
        let _ = (step, bytes, latency_ns);
    }

    /// The times of [`Verdict::Several`].
    fn latencies_ns(&self) -> &[u64] {
        &[]
    }

    /// Notes that a call is not repeated although the server asked to repeat it later.
    #[cold]
    fn given_up(errors: &mut Errors) {
        errors.note("calls_given_up", || {
            "the server asked to repeat the call later, and its time was over".to_owned()
        });
    }

    /// The server calls.
    #[inline]
    fn call(request: &Request<'_>, reply: &mut ReplyWriter<'_>) -> Outcome {
        let _ = (request, reply);
        Outcome::ProgramUnavailable
    }
}
