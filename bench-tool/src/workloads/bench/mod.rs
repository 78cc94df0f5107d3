//! The calls of `bench-tool run`: null calls and echoes in messages, reads and writes of bulk data, and calls of the
//! server in the reverse direction.

pub(crate) mod bulk;
pub(crate) mod null_calls;
pub(crate) mod op;
pub(crate) mod sizes;

use rpcrdma_engine::{
    BulkReply, Call, CallError, CallRefused, CallTag, ConnectionKey, Context, Outcome, Reply,
    ReplyWriter, Request,
};
use rpcrdma_fabric::interface::Port;

use self::bulk::{BenchStep, BulkLoad, BulkPlan};
use crate::bench_program::{
    self, BackStatus, CALL_BACK, CALLS_BACK_MAX, CallBack, CalledBack, Payload, answer_plain,
};
use crate::load::measured::Errors;
use crate::load::workload::{Verdict, Workload};

/// The name of the error of a reply that does not carry what was sent.
pub(crate) const WRONG_REPLIES: &str = "wrong_replies";

/// The name of the errors of calls in the reverse direction, which the server reports.
pub(crate) const BACK_FAILED: &str = "reverse_calls_failed";

/// What the calls do. Fixed before they start.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BenchPlan {
    /// All of a call is in its message.
    Message {
        /// What to call.
        call: Call,
        /// `None` for calls without payload.
        payload_bytes: Option<usize>,
    },
    /// Payloads may travel outside it.
    Bulk(BulkPlan),
    /// The server calls, and says how long that took.
    Back {
        /// Payload of an echo; `None` for null calls.
        payload_bytes: Option<u32>,
    },
}

/// What makes the calls of a plan.
#[derive(Debug)]
enum Maker {
    Message(Call, Payload),
    Bulk(BulkLoad),
    /// With the last reply of the server.
    Back(Option<u32>, Box<CalledBack>),
}

/// The calls of one core.
#[derive(Debug)]
pub(crate) struct BenchWorkload {
    maker: Maker,
    next: BenchStep,
}

impl BenchWorkload {
    pub(crate) fn new(plan: BenchPlan) -> Self {
        let maker = match plan {
            BenchPlan::Message {
                call,
                payload_bytes,
            } => Maker::Message(call, Payload::new(payload_bytes)),
            BenchPlan::Bulk(plan) => Maker::Bulk(BulkLoad::new(plan)),
            BenchPlan::Back { payload_bytes } => Maker::Back(payload_bytes, Box::default()),
        };
        let mut workload = Self {
            maker,
            next: BenchStep::default(),
        };
        workload.draw();
        workload
    }

    /// Draws what the operations of the next call do.
    #[inline]
    fn draw(&mut self) {
        if let Maker::Bulk(load) = &mut self.maker {
            self.next.reads = load.draw_reads();
        }
    }

    /// A reply in a message, to a call in the reverse direction or one with bulk data.
    #[inline(never)]
    fn check_other(&mut self, reply: &Reply<'_>, errors: &mut Errors) -> Verdict {
        let Maker::Back(_, called) = &mut self.maker else {
            // A reply in messages to a call with bulk data is not the one to it.
            return wrong(errors);
        };
        let Some(decoded) = CalledBack::decode(reply.results) else {
            return wrong(errors);
        };
        **called = decoded;
        if called.failed > 0 {
            errors.add(BACK_FAILED, called.failed.into());
        }
        Verdict::Several {
            refused: match called.status {
                BackStatus::Done => None,
                BackStatus::NotTaken => Some(CallRefused::NotTaken),
                BackStatus::TooLong => Some(CallRefused::TooLong),
            },
        }
    }
}

#[cold]
fn wrong(errors: &mut Errors) -> Verdict {
    errors.add(WRONG_REPLIES, 1);
    Verdict::Wrong
}

/// Asks the server to call. Out of line, as all calls but those that have everything in their messages.
#[inline(never)]
fn ask_for_calls<P: Port>(
    core: &mut Context<'_, P>,
    asked: &CallBack,
    connection: ConnectionKey,
    tag: CallTag,
) -> Result<(), CallRefused> {
    let call = bench_program::call(CALL_BACK);
    core.call(connection, call, &asked.encode(), tag)
}

impl Workload for BenchWorkload {
    type Step = BenchStep;

    #[inline]
    fn step(&self) -> BenchStep {
        self.next
    }

    #[inline]
    fn advance(&mut self) {
        self.next.number = self.next.number.wrapping_add(1);
        self.draw();
    }

    /// The server is asked for as many calls as may be, but no more than are to be counted.
    #[inline]
    fn calls(&mut self, left: u64) -> u64 {
        if !matches!(self.maker, Maker::Back(..)) {
            return 1;
        }
        self.next.number = left.min(CALLS_BACK_MAX as u64);
        self.next.number
    }

    #[inline]
    fn issue<P: Port>(
        &mut self,
        core: &mut Context<'_, P>,
        connection: ConnectionKey,
        tag: CallTag,
        step: BenchStep,
    ) -> Result<(), CallRefused> {
        match &mut self.maker {
            Maker::Message(call, payload) => {
                let bytes = payload.args_bytes();
                core.call_in_place(connection, *call, bytes, tag, |space| {
                    payload.write(space, step.number)
                })
            }
            Maker::Bulk(load) => load.call(core, connection, tag, step),
            Maker::Back(payload_bytes, _) => {
                let asked = CallBack {
                    count: u32::try_from(step.number).unwrap_or(1),
                    payload_bytes: *payload_bytes,
                };
                ask_for_calls(core, &asked, connection, tag)
            }
        }
    }

    #[inline]
    fn check(&mut self, step: BenchStep, reply: &Reply<'_>, errors: &mut Errors) -> Verdict {
        let Maker::Message(_, payload) = &self.maker else {
            return self.check_other(reply, errors);
        };
        if payload.matches(reply.results, step.number) {
            Verdict::Right { bytes: 0 }
        } else {
            wrong(errors)
        }
    }

    #[inline]
    fn check_bulk(
        &mut self,
        step: BenchStep,
        reply: &BulkReply<'_>,
        errors: &mut Errors,
    ) -> Verdict {
        let Maker::Bulk(load) = &self.maker else {
            return self.check(step, &reply.reply, errors);
        };
        if load.matches(reply, step.number, step.reads) {
            Verdict::Right {
                bytes: load.call_bytes(step.number),
            }
        } else {
            wrong(errors)
        }
    }

    fn refusal(&self, error: CallError) -> Option<CallRefused> {
        // A server that was made before CALL_BACK was.
        let is_old =
            matches!(self.maker, Maker::Back(..)) && error == CallError::ProcedureUnavailable;
        is_old.then_some(CallRefused::NotTaken)
    }

    fn latencies_ns(&self) -> &[u64] {
        match &self.maker {
            Maker::Back(_, called) => called.round_trips_ns(),
            Maker::Message(..) | Maker::Bulk(_) => &[],
        }
    }

    /// The server calls: what it was asked for.
    #[inline]
    fn call(request: &Request<'_>, reply: &mut ReplyWriter<'_>) -> Outcome {
        answer_plain(request, reply).unwrap_or(Outcome::ProcedureUnavailable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rpcrdma_protocol::rpc::OpaqueAuth;

    fn reply(results: &[u8]) -> Reply<'_> {
        Reply {
            results,
            verifier: OpaqueAuth::NONE,
        }
    }

    #[test]
    fn a_wrong_reply_is_an_error_and_not_the_first_call_that_failed() {
        let mut errors = Errors::default();
        let mut workload = BenchWorkload::new(BenchPlan::Message {
            call: bench_program::call(bench_program::NULL),
            payload_bytes: None,
        });
        let step = workload.step();
        let mut check = |results: &[u8]| workload.check(step, &reply(results), &mut errors);
        assert_eq!(check(&[]), Verdict::Right { bytes: 0 });
        assert_eq!(check(&[0; 4]), Verdict::Wrong);
        assert_eq!(check(&[0; 8]), Verdict::Wrong);
        assert_eq!((errors.total(), errors.of(WRONG_REPLIES)), (2, 2));
        assert_eq!(errors.first, None);
    }

    #[test]
    fn a_server_without_calls_in_the_reverse_direction_refuses_them_alone() {
        let back = BenchWorkload::new(BenchPlan::Back {
            payload_bytes: None,
        });
        let missing = CallError::ProcedureUnavailable;
        assert_eq!(back.refusal(missing), Some(CallRefused::NotTaken));
        assert_eq!(back.refusal(CallError::TimedOut), None);
        let null = BenchWorkload::new(BenchPlan::Message {
            call: bench_program::call(bench_program::NULL),
            payload_bytes: None,
        });
        assert_eq!(null.refusal(missing), None);
    }
}
