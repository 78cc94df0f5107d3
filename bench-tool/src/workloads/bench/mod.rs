//! The calls of `bench-tool run`: null calls and echoes in messages, reads and writes of bulk data, and calls in the
//! reverse direction (server to client).

pub(crate) mod bulk;
pub(crate) mod null_calls;
pub(crate) mod op;
pub(crate) mod sizes;

use rpcrdma::Procedure;
use rpcrdma_engine::{
    BulkReply, Call, CallError, CallRefused, CallTag, ConnectionKey, Context, Outcome, Reply,
    ReplyWriter, Request,
};
use rpcrdma_fabric::interface::Port;
use rpcrdma_protocol::rpc::Programs;

pub(crate) use self::bulk::BenchStep;
use self::bulk::{BulkLoad, BulkPlan};
use crate::bench_program::{
    self, BackStatus, CALL_BACK, CALLS_BACK_MAX, CallBack, CalledBack, ECHO, NULL, Payload,
    answer_echo, programs,
};
use crate::load::measured::Errors;
use crate::load::workload::{Verdict, Workload};

/// Error name of replies whose payload differs from what was sent.
pub(crate) const WRONG_REPLIES: &str = "wrong_replies";

/// Error name of failed calls in the reverse direction, as reported by the server.
pub(crate) const BACK_FAILED: &str = "reverse_calls_failed";

/// The calls of a load. Fixed before it starts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BenchPlan {
    /// The whole call is in its message.
    Message {
        /// Program, version and procedure.
        call: Call,
        /// `None` for calls without payload.
        payload_bytes: Option<usize>,
    },
    /// Payloads may travel outside the message.
    Bulk(BulkPlan),
    /// The server makes the calls and reports their round-trip times.
    Back {
        /// Payload of an echo; `None` for null calls.
        payload_bytes: Option<u32>,
    },
}

/// The state behind each kind of plan.
#[derive(Debug)]
enum Maker {
    Message(Call, Payload),
    Bulk(BulkLoad),
    /// Payload in bytes, and the server's last report.
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

    /// The call of a step as a program makes it: its procedure, with its arguments in `args`. Calls with bulk data and in the
    /// reverse direction are not made so, and become null calls.
    pub(crate) fn message(&mut self, step: BenchStep, args: &mut Vec<u8>) -> Procedure {
        let (call, bytes) = match &self.maker {
            Maker::Message(call, payload) => (*call, payload.args_bytes()),
            Maker::Bulk(_) | Maker::Back(..) => (bench_program::call(NULL), 0),
        };
        args.resize(bytes, 0);
        if let Maker::Message(_, payload) = &self.maker {
            payload.write(args, step.number);
        }
        Procedure::new(call.program, call.version, call.procedure)
    }

    /// Draws which operations of the next call read.
    #[inline]
    fn draw(&mut self) {
        if let Maker::Bulk(load) = &mut self.maker {
            self.next.reads = load.draw_reads();
        }
    }

    /// Checks a reply in a message to a call that is not a plain message: a reverse-direction report, or a bulk call.
    #[inline(never)]
    fn check_other(&mut self, reply: &Reply<'_>, errors: &mut Errors) -> Verdict {
        let Maker::Back(_, called) = &mut self.maker else {
            // A reply to a bulk call goes to `check_bulk`. A plain reply to one is wrong.
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

/// Asks the server to make calls. Out of line, so that only plain message calls are inlined.
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

    /// In the reverse direction one call asks the server for as many calls as possible, but no more than still count.
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
        // An older server that does not know CALL_BACK.
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

    fn programs() -> Programs {
        programs()
    }

    /// Answers the calls that the server was asked to make.
    #[inline]
    fn call(request: &Request<'_>, reply: &mut ReplyWriter<'_>) -> Outcome {
        match request.procedure {
            ECHO => answer_echo(request, reply),
            _ => Outcome::ProcedureUnavailable,
        }
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
