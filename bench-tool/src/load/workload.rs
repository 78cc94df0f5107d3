//! What an RPC program adds to the load generator.

use rpcrdma_engine::{
    BulkReply, CallError, CallRefused, CallTag, ConnectionKey, Context, Outcome, Reply,
    ReplyWriter, Request,
};
use rpcrdma_fabric::interface::Port;
use rpcrdma_protocol::rpc::Programs;

use super::measured::Errors;

/// The result of the check of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The reply is correct; the call moved this many bytes of bulk data.
    Right { bytes: u64 },
    /// The reply is wrong; the workload has counted an error.
    Wrong,
    /// The server asks to repeat the call later.
    Later,
    /// The call counts as several calls, whose times are [`Workload::latencies_ns`]. With `refused`, the connection
    /// takes no more of them, for this reason.
    Several { refused: Option<CallRefused> },
}

/// The calls of an RPC program on one core. The generator decides when and on which connection to make a call, and
/// whether it counts; the workload decides what the call is.
///
/// Generic code instead of a trait object: the methods that run for every reply are inlined into the generator.
pub(crate) trait Workload: Send + 'static {
    /// The description of one call: enough to make it, to repeat it and to check its reply. Each slot keeps one.
    type Step: Copy + Default + Send;

    /// The next call. It stays the same until [`Workload::advance`], so a refused call remains the next one.
    fn step(&self) -> Self::Step;

    /// Moves to the next call, after the current one was made.
    fn advance(&mut self);

    /// How many calls the next step counts as, at most `left`.
    #[inline]
    fn calls(&mut self, left: u64) -> u64 {
        let _ = left;
        1
    }

    /// Makes the call of a step: the next one, or a repeated one.
    ///
    /// # Errors
    /// The core's refusal; nothing was sent.
    fn issue<P: Port>(
        &mut self,
        core: &mut Context<'_, P>,
        connection: ConnectionKey,
        tag: CallTag,
        step: Self::Step,
    ) -> Result<(), CallRefused>;

    /// Checks the reply to a step.
    fn check(&mut self, step: Self::Step, reply: &Reply<'_>, errors: &mut Errors) -> Verdict;

    /// Checks the reply to a step with bulk data.
    fn check_bulk(
        &mut self,
        step: Self::Step,
        reply: &BulkReply<'_>,
        errors: &mut Errors,
    ) -> Verdict;

    /// For a call that ended with `error`: why its connection takes no more calls, or `None` if it does.
    fn refusal(&self, error: CallError) -> Option<CallRefused> {
        let _ = error;
        None
    }

    /// Called for each correct reply in the measured time, with its latency in nanoseconds: for the workload's own
    /// figures.
    #[inline]
    fn counted(&mut self, step: Self::Step, bytes: u64, latency_ns: impl FnOnce() -> u64) {
        let _ = (step, bytes, latency_ns);
    }

    /// The times of [`Verdict::Several`].
    fn latencies_ns(&self) -> &[u64] {
        &[]
    }

    /// Counts a call that is not repeated although the server asked for it.
    #[cold]
    fn given_up(errors: &mut Errors) {
        errors.note("calls_given_up", || {
            "the server asked to repeat the call later, and its time was over".to_owned()
        });
    }

    /// The programs that the server may call (reverse direction): none.
    #[must_use]
    fn programs() -> Programs {
        Programs::new([])
    }

    /// Answers a call from the server (reverse direction).
    #[inline]
    fn call(request: &Request<'_>, reply: &mut ReplyWriter<'_>) -> Outcome {
        let _ = (request, reply);
        Outcome::ProgramUnavailable
    }
}
