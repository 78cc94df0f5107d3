//! An honest peer that calls and answers at the same time, by transmission groups and in parts. It sends one message in a
//! turn, so that what it sends in one direction meets what has come in the other.

use std::collections::{BTreeMap, VecDeque};

use super::super::groups;
use super::super::messages::{self, ERROR, GROUP_CONTINUE, GROUP_REPORT, GROUP_RESPONSE, MORE};
use super::super::step::Asked;
use super::{CallOfCore, OF_CORE, Peer};

/// Calls that wait for their answers at a time.
const CALLS_MAX: usize = 4;
/// Credits that are left to answers when a call is sent.
const CREDITS_FOR_ANSWERS: usize = 2;

/// What a partner has to send, and what it waits for.
#[derive(Debug, Default)]
pub(in super::super) struct Partner {
    /// The rest of the call or the answer that is being sent.
    sending: VecDeque<Vec<u8>>,
    /// The tag of the call of the core that this answers.
    answering: Option<u32>,
    /// Calls that wait for their answers.
    waiting: BTreeMap<u32, Waiting>,
    /// In which turn a call of the core was answered, by its tag.
    pub(in super::super) answered: BTreeMap<u32, u64>,
    /// Calls that were made, and answers.
    calls: u32,
    answers: u32,
}

/// A call that was sent.
#[derive(Debug)]
struct Waiting {
    /// Since which turn.
    since: u64,
    /// Transmissions that are to come of an answer of which the first has come.
    transmissions: Option<u32>,
}

impl Partner {
    /// The turn since which a call has waited longest.
    pub(in super::super) fn waiting_since(&self) -> Option<u64> {
        self.waiting.values().map(|it| it.since).min()
    }
}

impl Peer {
    /// What a partner does in its turn.
    pub(in super::super) fn act_as_partner(&mut self, turn: u64) {
        if self.link.as_ref().is_none_or(|link| link.key.is_none()) {
            return;
        }
        if self.partner.sending.is_empty() {
            self.begin_as_partner(turn);
        }
        let Some(message) = self.partner.sending.front().cloned() else {
            if self.link.as_ref().is_some_and(|link| link.owed != 0) {
                self.send(messages::grant());
            }
            return;
        };
        if self.send(message) {
            self.partner.sending.pop_front();
            if self.partner.sending.is_empty()
                && let Some(tag) = self.partner.answering.take()
            {
                self.partner.answered.insert(tag, turn);
            }
        }
    }

    /// Begins an answer, or, if none is due, a call, once there are credits for all of it.
    fn begin_as_partner(&mut self, turn: u64) {
        let credits = self.credits() as usize;
        let first = self.link.as_ref().and_then(|link| link.calls.front());
        if let Some(call) = first {
            let (tag, messages) = answer(call, self.partner.answers);
            if messages.len() <= credits {
                self.partner.answers += 1;
                self.partner.answering = Some(tag);
                self.partner.sending = messages.into();
                if let Some(link) = &mut self.link {
                    link.calls.pop_front();
                }
            }
            return;
        }
        if self.partner.waiting.len() == CALLS_MAX {
            return;
        }
        let xid = self.xid + 1;
        let messages = call(xid, self.partner.calls);
        if messages.len() + CREDITS_FOR_ANSWERS <= credits {
            self.xid = xid;
            self.partner.calls += 1;
            self.partner.sending = messages.into();
            let waiting = Waiting {
                since: turn,
                transmissions: None,
            };
            self.partner.waiting.insert(xid, waiting);
        }
    }

    /// Takes note of what the core says to its calls.
    pub(super) fn take_as_partner(&mut self, xid: u32, kind: u32, flags: u32, message: &[u8]) {
        if matches!(kind, ERROR | GROUP_REPORT) {
            panic!("the partner is told {:?}", groups::read(message));
        }
        let Some(waiting) = self.partner.waiting.get_mut(&xid) else {
            return;
        };
        if xid & OF_CORE != 0 {
            return;
        }
        let is_over = match kind {
            GROUP_RESPONSE => {
                let transmissions = groups::transmissions_of_answer(message);
                waiting.transmissions = Some(transmissions - 1);
                transmissions == 1
            }
            GROUP_CONTINUE => {
                let left = waiting.transmissions.and_then(|left| left.checked_sub(1));
                let left = left.expect("no more transmissions than were announced");
                waiting.transmissions = Some(left);
                left == 0
            }
            _ => flags & MORE == 0,
        };
        if is_over {
            self.partner.waiting.remove(&xid);
            self.served += 1;
        }
    }
}

/// A call of each kind in turn.
fn call(xid: u32, number: u32) -> Vec<Vec<u8>> {
    let group = |asked, transmissions| groups::call(xid, asked, transmissions);
    let bare = |asked| vec![groups::request(xid, asked, 1, 0)];
    let echo = Asked::Echo { words: 2 };
    match number % 8 {
        0 => group(Asked::Later { polls: 24 }, 2),
        1 => bare(Asked::Later { polls: 16 }),
        2 => group(echo, 3),
        3 => in_parts(xid, 0, &messages::rpc_call(xid, Asked::Echo { words: 300 })),
        4 => bare(Asked::Give { bytes: 9000 }),
        5 => group(Asked::Back, 2),
        6 => bare(Asked::Give { bytes: 4096 }),
        _ => vec![messages::message(
            xid,
            0,
            &messages::rpc_call(xid, Asked::Null),
        )],
    }
}

/// The answer to a call of the core, of each kind in turn, and the tag of the call.
fn answer(call: &CallOfCore, number: u32) -> (u32, Vec<Vec<u8>>) {
    let (xid, args) = (call.xid, &call.results[..]);
    if let Some(group) = call.group {
        let most = group.answer_max.max(1);
        return match (group.directions, args) {
            (1, [bytes, tag]) => {
                let item = Some(*bytes);
                (
                    *tag,
                    groups::answer(xid, &[*bytes], item, 1 + number % most),
                )
            }
            (0, [tag, ..]) => (*tag, groups::answer(xid, args, None, 1 + number % most)),
            _ => panic!("no call that is made to a partner: {call:?}"),
        };
    }
    let [tag, ..] = args else {
        panic!("no call that is made to a partner: {call:?}");
    };
    let reply = messages::rpc_reply(xid, args);
    let messages = match number % 3 {
        0 => vec![messages::message(xid, messages::RESPONSE, &reply)],
        _ => in_parts(xid, messages::RESPONSE, &reply),
    };
    (*tag, messages)
}

/// A message in three parts.
fn in_parts(xid: u32, flags: u32, rpc: &[u32]) -> Vec<Vec<u8>> {
    let (first, rest) = rpc.split_at(rpc.len() / 2);
    let (second, third) = rest.split_at(rest.len() / 2);
    vec![
        messages::message(xid, flags | MORE, first),
        messages::message(xid, flags | MORE, second),
        messages::message(xid, flags, third),
    ]
}
