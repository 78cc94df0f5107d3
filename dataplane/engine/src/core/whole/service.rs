//! What runs on the core: it serves calls in every way that there is, and makes those that it is told to.

use std::collections::{BTreeMap, VecDeque};

use rpcrdma_fabric::clock::Ticks;
use rpcrdma_fabric::interface::Port;

use super::messages::{GIVE, OWN};
use super::step::Ours;
use crate::application_messages::{ApplicationMessage, MessageOutcome};
use crate::bulk::{BulkArguments, BulkCall, BulkItem, ExpectedResult};
use crate::core::Application;
use crate::core::Context;
use crate::responder::ReplyWriter;
use crate::rpc::{
    Activity, CallError, CallTag, ConnectionKey, DeferToken, Outcome, Reply, ReplyRefused, Request,
};
use crate::support::{ECHO, FILL, LATER, NEVER, NULL, PROGRAM, VERSION, call};

/// A call that was accepted, and has not ended.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) connection: ConnectionKey,
    pub(super) since: Ticks,
    /// What it is to end with, where the server is honest.
    pub(super) expected: Option<Vec<u8>>,
}

/// A call that is to be made.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) connection: ConnectionKey,
    pub(super) ours: Ours,
    /// Of an honest server: it is tried until it is taken, and ends well.
    pub(super) is_honest: bool,
}

#[derive(Debug, Default)]
pub(super) struct Service {
    pub(super) wanted: VecDeque<Wanted>,
    pub(super) open: BTreeMap<CallTag, Open>,
    /// Calls to honest servers: those that were asked for, and those that ended.
    pub(super) asked_of_server: u64,
    pub(super) ended_well: u64,
    later: VecDeque<(DeferToken, u32, Vec<u8>)>,
    never: Vec<DeferToken>,
    /// What is never answered is answered now.
    pub(super) is_over: bool,
    next_tag: CallTag,
    /// Items of calls, and the polls that they are still kept for.
    kept: VecDeque<(BulkItem, u32)>,
    /// Messages of peers that are to be answered.
    messages: VecDeque<(ConnectionKey, u32)>,
}

/// Messages of peers that are answered later, at most.
const MESSAGES_MAX: usize = 4;

/// For how many polls items of calls are kept.
const KEPT_POLLS: u32 = 20;

impl Service {
    /// Calls that wait for their answers in this service.
    pub(super) fn deferred(&self) -> usize {
        self.later.len() + self.never.len()
    }

    fn defer(&mut self, request: &Request<'_>) -> Outcome {
        let Some(token) = request.defer() else {
            return Outcome::SystemError;
        };
        if request.procedure == NEVER {
            self.never.push(token);
        } else {
            let polls = first_word(request.args).unwrap_or(0).min(1000);
            self.later.push_back((token, polls, request.args.to_vec()));
        }
        Outcome::Deferred
    }

    fn answer_later<P: Port>(&mut self, core: &mut Context<'_, P>) -> bool {
        if self.is_over {
            let never = self.never.drain(..);
            self.later.extend(never.map(|token| (token, 0, Vec::new())));
        }
        let mut busy = false;
        for _ in 0..self.later.len() {
            let Some((token, polls, args)) = self.later.pop_front() else {
                break;
            };
            if polls != 0 && !self.is_over {
                self.later.push_back((token, polls - 1, args));
                continue;
            }
            match core.reply(token, Outcome::Success, &args) {
                Ok(()) => busy = true,
                Err((ReplyRefused::Busy, token)) => self.later.push_back((token, 1, args)),
                Err((refused, _)) => panic!("a good answer was refused: {refused:?}"),
            }
        }
        busy
    }

    /// Answers messages of peers, and sends each one more that nobody asked for.
    fn answer_messages<P: Port>(&mut self, core: &mut Context<'_, P>) -> bool {
        let before = self.messages.len();
        self.messages.retain(|&(connection, xid)| {
            let answered = core.send_message(connection, OWN, Some(xid), &[7; 40]);
            if answered.is_ok() {
                let _ = core.send_message(connection, OWN, None, &[8; 20]);
            }
            answered.is_err_and(|refused| refused.is_transient())
        });
        self.messages.len() < before
    }

    fn make_call<P: Port>(&mut self, core: &mut Context<'_, P>, wanted: Wanted) -> bool {
        let connection = wanted.connection;
        let tag = self.next_tag;
        let mut expected = None;
        let made = match wanted.ours {
            Ours::Null => {
                expected = Some(Vec::new());
                core.call(connection, call(NULL), &[], tag)
            }
            Ours::Echo { bytes } => {
                let args = vec![0x33; bytes as usize];
                let made = core.call(connection, call(ECHO), &args, tag);
                expected = Some(args);
                made
            }
            Ours::Expect { bytes } => {
                let args = bytes.to_be_bytes();
                let mut call = BulkCall::new(call(GIVE), &args);
                call.results_bytes_max = 100;
                let result = ExpectedResult {
                    bytes_max: bytes,
                    ..ExpectedResult::default()
                };
                call.expect(result).expect("one result");
                core.call_bulk(connection, &mut call, tag)
            }
            Ours::Item { bytes } => {
                let mut call = BulkCall::new(call(ECHO), &[0; 8]);
                call.results_bytes_max = 100;
                let Some(mut item) = item(bytes, || core.take_bulk()) else {
                    return false;
                };
                call.add(8, &mut item).expect("one item");
                core.call_bulk(connection, &mut call, tag)
            }
        };
        match made {
            Ok(()) => {
                self.next_tag += 1;
                let expected = expected.filter(|_| wanted.is_honest);
                let since = core.now();
                self.open.insert(
                    tag,
                    Open {
                        connection,
                        since,
                        expected,
                    },
                );
                true
            }
            Err(refused) => {
                if wanted.is_honest {
                    assert!(refused.is_transient(), "an honest server: {refused}");
                    self.wanted.push_back(wanted);
                }
                false
            }
        }
    }
}

fn first_word(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|word| u32::from_be_bytes(*word))
}

/// An item of so many bytes; `None` while there are no buffers.
fn item(
    bytes: u32,
    mut take: impl FnMut() -> Option<rpcrdma_fabric::memory::Lease>,
) -> Option<BulkItem> {
    let mut item = BulkItem::new();
    let mut rest = bytes as usize;
    while rest != 0 {
        let mut part = take()?;
        let count = rest.min(part.len());
        part.set_len(count);
        part.fill(0x44);
        rest -= count;
        item.push(part).ok()?;
    }
    Some(item)
}

impl Application for Service {
    fn call(&mut self, request: &Request<'_>, reply: &mut ReplyWriter<'_>) -> Outcome {
        if request.program != PROGRAM {
            return Outcome::ProgramUnavailable;
        }
        if request.version != VERSION {
            return Outcome::ProgramMismatch { low: 1, high: 1 };
        }
        match request.procedure {
            NULL => Outcome::Success,
            ECHO => match reply.write(request.args) {
                Ok(()) => Outcome::Success,
                Err(_) => Outcome::SystemError,
            },
            FILL => {
                let Some(bytes) = first_word(request.args) else {
                    return Outcome::GarbageArgs;
                };
                if let Ok(space) = reply.reserve(bytes.min(1 << 20) as usize) {
                    space.fill(0x22);
                }
                // Of results that are too long the core makes an error.
                Outcome::Success
            }
            LATER | NEVER => self.defer(request),
            GIVE => {
                let Some(bytes) = first_word(request.args) else {
                    return Outcome::GarbageArgs;
                };
                let bytes = bytes.min(1 << 15);
                let Some(mut item) = item(bytes, || reply.take_bulk()) else {
                    return Outcome::SystemError;
                };
                if reply.write_u32(bytes).is_err() || reply.attach(0, &mut item).is_err() {
                    return Outcome::SystemError;
                }
                Outcome::Success
            }
            _ => Outcome::ProcedureUnavailable,
        }
    }

    fn call_bulk(
        &mut self,
        request: &Request<'_>,
        items: &mut BulkArguments<'_>,
        reply: &mut ReplyWriter<'_>,
    ) -> Outcome {
        // What others keep is what the next call waits for.
        for index in 0..items.len() {
            self.kept
                .extend(items.take(index).map(|item| (item, KEPT_POLLS)));
        }
        self.call(request, reply)
    }

    fn completed(
        &mut self,
        tag: CallTag,
        connection: ConnectionKey,
        result: Result<Reply<'_>, CallError>,
        _now: Ticks,
    ) {
        let open = self.open.remove(&tag);
        let open = open.unwrap_or_else(|| panic!("call {tag} ended twice, or was never made"));
        assert_eq!(open.connection, connection, "call {tag}");
        if let Some(expected) = open.expected {
            let results = result.map(|reply| reply.results.to_vec());
            assert!(
                results.as_ref() == Ok(&expected),
                "an honest server: {results:?}"
            );
            self.ended_well += 1;
        }
    }

    fn message(&mut self, message: &ApplicationMessage<'_>) -> MessageOutcome {
        match message.body.len() {
            _ if message.is_answer => MessageOutcome::Taken,
            4 => MessageOutcome::Malformed,
            _ if self.messages.len() == MESSAGES_MAX => MessageOutcome::Failed,
            _ => {
                self.messages.push_back((message.connection, message.xid));
                MessageOutcome::Taken
            }
        }
    }

    fn poll<P: Port>(&mut self, core: &mut Context<'_, P>, _now: Ticks) -> Activity {
        let mut busy = self.answer_later(core) | self.answer_messages(core);
        for (_, polls) in &mut self.kept {
            *polls = polls.saturating_sub(1);
        }
        while self.is_over || self.kept.front().is_some_and(|(_, polls)| *polls == 0) {
            if self.kept.pop_front().is_none() {
                break;
            }
        }
        for _ in 0..self.wanted.len() {
            let Some(wanted) = self.wanted.pop_front() else {
                break;
            };
            busy |= self.make_call(core, wanted);
        }
        Activity::from_busy(busy)
    }
}
