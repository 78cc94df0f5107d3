//! What is drawn for a hostile peer.

use rpcrdma_fabric::interface::prelude::*;
use rpcrdma_fabric::interface::{Access, Gather, RemoteAddress, RemoteKey, Window, WorkId};

use super::super::groups;
use super::super::messages::{self, MORE, MSG, PATTERN, PROPERTIES};
use super::super::step::{Action, Asked, Chunks, Grants, Group, Receives, Told};
use super::{BUFFER_BYTES, Begun, Peer, UNSURE_MESSAGES, WINDOWS};
use crate::support::raw;

impl Peer {
    pub(in super::super) fn act(&mut self, action: Action) {
        let is_version_1 = self.link.as_ref().is_some_and(|link| link.is_version_1);
        let is_of_version_2 = matches!(
            action,
            Action::Group(_)
                | Action::Begin { .. }
                | Action::Part { .. }
                | Action::Finish
                | Action::Properties(_)
                | Action::Message { .. }
        );
        // A message of the other version ends the connection: what is changed does that often enough.
        if is_version_1 && is_of_version_2 {
            return;
        }
        match action {
            Action::Call { asked, count } => {
                for _ in 0..count {
                    if self.may_call() {
                        self.call(asked);
                    }
                }
            }
            Action::CallBeyondCredits { count } => {
                for _ in 0..count {
                    self.call(Asked::Null);
                }
            }
            Action::Chunks(chunks) if self.may_call() => self.call_with_chunks(chunks),
            Action::Begin { words, is_call } if self.may_call() => self.begin(words, is_call),
            Action::Part { words } if self.may_call() => self.part(words, MORE),
            Action::Finish if self.may_call() => {
                self.part(1, 0);
                if let Some(link) = &mut self.link {
                    link.begun = None;
                }
            }
            Action::Group(group) if self.may_call() => self.group(group),
            Action::Grant(count) => {
                let Some(link) = &mut self.link else { return };
                if !link.is_version_1 {
                    let before = link.grants;
                    link.grants = Grants::Always(count.min(link.owed.max(count / 2)));
                    self.send(messages::grant());
                    if let Some(link) = &mut self.link {
                        link.grants = before;
                    }
                }
            }
            Action::Grants(grants) => {
                if let Some(link) = &mut self.link {
                    link.grants = grants;
                }
            }
            Action::Receives(receives) => self.receives(receives),
            Action::Garbage(bits) => {
                let xid = self.next_xid();
                let seed = match bits % 5 {
                    0 => messages::message(
                        xid,
                        0,
                        &messages::rpc_call(xid, Asked::Later { polls: 1 }),
                    ),
                    1 => messages::properties(xid, Told::Placing),
                    2 => groups::request(xid, Asked::Echo { words: 2 }, 1, 1),
                    3 => messages::message_1(
                        xid,
                        MSG,
                        &[0, 0, 0],
                        &messages::rpc_call(xid, Asked::Null),
                    ),
                    _ => messages::message(xid, 0, &messages::rpc_call(xid, Asked::Null)),
                };
                self.send(messages::changed(seed, bits));
                if let Some(link) = &mut self.link {
                    link.unsure = UNSURE_MESSAGES;
                }
            }
            Action::Properties(told) if self.may_call() => {
                // The same once more is no change.
                let before = self.link.as_ref().and_then(|link| link.introduced);
                let is_good = matches!(told, Told::Plain | Told::Placing);
                self.tell(before.filter(|_| is_good).unwrap_or(told));
            }
            Action::Message { is_answer, words } if self.may_call() => {
                let xid = self.next_xid();
                // It breaks what was begun.
                let link = self.link.as_mut();
                let begun = link.map(|link| (link.begun.take(), link.group.take()));
                if self.send(messages::own(xid, is_answer, words))
                    && let Some(link) = &mut self.link
                    && begun != Some((None, None))
                {
                    link.unsure = UNSURE_MESSAGES;
                }
            }
            Action::Error { code, is_of_call } => {
                let link = self.link.as_mut();
                let call = link
                    .filter(|_| is_of_call)
                    .and_then(|it| it.calls.pop_front());
                let xid = call.map_or(77, |call| call.xid);
                self.send(messages::error(xid, code));
            }
            Action::Answer(answer) => self.answer(answer),
            Action::Rdma { writes } => self.rdma(writes),
            Action::Invalidate => {
                if let Some(link) = &mut self.link {
                    // What is not there costs the connection.
                    link.invalidates_next =
                        !link.exposed.is_empty() || self.connects.is_multiple_of(8);
                }
            }
            // What the world does, or what cannot be done now.
            _ => {}
        }
    }

    pub(super) fn receives(&mut self, receives: Receives) {
        let count = match receives {
            Receives::Withheld => 0,
            Receives::Posted(count) => count as usize,
            Receives::Kept => self.withheld.len(),
        };
        self.withholds = receives != Receives::Kept;
        for _ in 0..count {
            if let Some((receive, took_credit)) = self.withheld.pop() {
                self.post(receive, took_credit);
            }
        }
    }

    fn begin(&mut self, words: u32, is_call: bool) {
        let xid = self.next_xid();
        let message = if is_call {
            let rpc = messages::rpc_call(xid, Asked::Echo { words: 0 });
            messages::with_words(messages::message(xid, MORE, &rpc), words)
        } else {
            let mut all = messages::head(xid, PROPERTIES, MORE);
            all.extend([1, 2]);
            raw::words(&all)
        };
        if self.send(message)
            && let Some(link) = &mut self.link
        {
            link.group = None;
            link.begun = Some((xid, if is_call { MSG } else { PROPERTIES }));
        }
    }

    fn part(&mut self, words: u32, flags: u32) {
        let Some(link) = &self.link else { return };
        let begun = link.begun;
        let (xid, kind) = begun.unwrap_or((self.xid, MSG));
        let message = if kind == MSG {
            messages::with_words(messages::message(xid, flags, &[]), words)
        } else {
            let mut all = messages::head(xid, PROPERTIES, flags);
            all.extend([4, 4096]);
            raw::words(&all)
        };
        self.send(message);
        if let Some(link) = &mut self.link
            && begun.is_none()
        {
            link.unsure = UNSURE_MESSAGES;
        }
    }

    fn group(&mut self, group: Group) {
        let xid = self.next_xid();
        let begun = self.link.as_ref().and_then(|link| link.group);
        match group {
            Group::Whole {
                asked,
                transmissions,
            } => self.whole_group(xid, asked, transmissions),
            Group::Begin {
                asked,
                transmissions,
            } => {
                let message = groups::request(xid, asked, transmissions, 0);
                let begun = Begun {
                    xid,
                    is_answer: false,
                    next: 1,
                };
                self.send_group(vec![message], Some(begun), false);
            }
            Group::Next { skips } => {
                // Of nothing, too.
                let Begun {
                    xid,
                    is_answer,
                    next,
                } = begun.unwrap_or(Begun {
                    xid,
                    is_answer: false,
                    next: 1,
                });
                let message = groups::next(xid, is_answer, next + u32::from(skips), &[5], 0);
                let next = next + 1;
                let begun = begun.map(|begun| Begun { next, ..begun });
                self.send_group(vec![message], begun, true);
            }
            Group::Report { is_of_answer } => {
                let link = self.link.as_ref();
                let about = link.and_then(|it| match is_of_answer {
                    true => it.answer_last,
                    false => it.group_last,
                });
                let report = groups::report(about.unwrap_or(xid), is_of_answer);
                self.send_group(vec![report], begun, true);
            }
        }
    }

    /// A call in so many transmissions, all of which are sent.
    fn whole_group(&mut self, xid: u32, asked: Asked, transmissions: u32) {
        if self.credits() < transmissions {
            return;
        }
        let mut messages = groups::call(xid, asked, transmissions).into_iter();
        if let Some(first) = messages.next() {
            self.send_call(xid, first);
        }
        if messages.all(|message| self.send(message)) {
            return;
        }
        // There are no buffers for the rest of it.
        if let Some(link) = &mut self.link {
            link.unsure = UNSURE_MESSAGES;
            if let Some(said) = link.said.get_mut(&xid) {
                said.is_owed = false;
            }
        }
    }

    /// Memory of this peer that the core may read, full of the pattern, or write.
    fn window(&mut self, number: usize) -> Option<RemoteAddress> {
        let queue_pair = self.queue_pair?;
        let place = self.link.as_mut()?.windows.get_mut(number)?;
        if place.is_none() {
            let is_read = number < WINDOWS / 2;
            let access = Access {
                remote_read: is_read,
                remote_write: !is_read,
            };
            let mut buffer = self.pool.take()?;
            let memory = self.port.memory().clone();
            memory.bytes_mut(&mut buffer).fill(PATTERN);
            match self
                .port
                .bind_window(queue_pair, buffer, BUFFER_BYTES, access)
            {
                Ok(window) => *place = Some(window),
                Err((_, buffer)) => self.pool.give(buffer),
            }
        }
        place.as_ref().map(Window::remote)
    }

    fn call_with_chunks(&mut self, chunks: Chunks) {
        // Of an RPC call without arguments.
        const BEHIND: u32 = 40;
        const NOWHERE: RemoteAddress = RemoteAddress {
            key: RemoteKey(77),
            offset: 0,
        };
        let is_written = matches!(
            chunks,
            Chunks::Write { .. } | Chunks::WriteTooSmall | Chunks::Reply { .. }
        );
        let first = WINDOWS / 2 * usize::from(is_written);
        let Some(at) = self.window(first) else { return };
        let Some(other) = self.window(first + 1) else {
            return;
        };
        let mut asked = Asked::Null;
        let mut invalidate = 0;
        let mut has_payload = true;
        let lists = match chunks {
            Chunks::Read { bytes } => messages::reads(&[(BEHIND, at, bytes)]),
            Chunks::ReadBadHandle => {
                asked = Asked::Failing;
                messages::reads(&[(BEHIND, NOWHERE, 64)])
            }
            Chunks::ReadHalf => {
                asked = Asked::Failing;
                // A segment fills one buffer. So the second Read need not wait for the first.
                messages::reads(&[(BEHIND, at, 4096), (BEHIND, NOWHERE, 4096)])
            }
            Chunks::ReadNothing => messages::reads(&[(BEHIND, at, 0)]),
            Chunks::ReadOverlapping => messages::reads(&[(BEHIND, at, 8), (BEHIND, at, 8)]),
            Chunks::ReadUnaligned => messages::reads(&[(BEHIND + 1, at, 8)]),
            Chunks::ReadManySegments => messages::reads(&[(BEHIND, at, 8); 70]),
            Chunks::ReadTooMuch => {
                messages::reads(&[(BEHIND, at, 1 << 20), (BEHIND, other, 1 << 20)])
            }
            Chunks::ReadLater { bytes } => {
                asked = Asked::Later { polls: 40 };
                // Behind its argument.
                messages::reads(&[(BEHIND + 4, at, bytes)])
            }
            Chunks::PositionZero { bytes } => {
                has_payload = false;
                messages::reads(&[(0, at, bytes.next_multiple_of(4) + 36)])
            }
            Chunks::Write { bytes } => {
                asked = Asked::Give { bytes };
                messages::writes(&[(at, bytes / 2), (other, bytes)])
            }
            Chunks::WriteTooSmall => {
                asked = Asked::Give { bytes: 6000 };
                messages::writes(&[(at, 4)])
            }
            Chunks::WriteBadHandle => {
                asked = Asked::Give { bytes: 3000 };
                messages::writes(&[(NOWHERE, 4000)])
            }
            Chunks::WriteNothing => {
                asked = Asked::Give { bytes: 700 };
                messages::writes(&[])
            }
            Chunks::Reply { bytes } => {
                asked = Asked::Fill {
                    bytes: 4000 + bytes,
                };
                messages::reply_chunk(&[(at, 4096), (other, 4096)])
            }
            Chunks::ReplyBadHandle => {
                asked = Asked::Fill { bytes: 6000 };
                messages::reply_chunk(&[(NOWHERE, 8192)])
            }
            Chunks::Invalidated { bytes } => {
                invalidate = at.key.0;
                messages::reads(&[(BEHIND, at, bytes)])
            }
        };
        let xid = self.next_xid();
        let rpc = if has_payload {
            messages::rpc_call(xid, asked)
        } else {
            Vec::new()
        };
        let is_version_1 = self.link.as_ref().is_some_and(|link| link.is_version_1);
        let message = messages::call_with_chunks(is_version_1, xid, invalidate, &lists, &rpc);
        self.send_call(xid, message);
    }

    fn rdma(&mut self, writes: bool) {
        let (Some(queue_pair), Some(link)) = (self.queue_pair, &mut self.link) else {
            return;
        };
        let nowhere = RemoteAddress {
            key: RemoteKey(77),
            offset: 0,
        };
        let exposed = link.exposed.pop();
        let Some(at) = exposed.or(self.connects.is_multiple_of(8).then_some(nowhere)) else {
            return;
        };
        if writes {
            return self.write(at, 4);
        }
        let Some(buffer) = self.pool.take() else {
            return;
        };
        let mut list = Gather::new();
        list.push(buffer, 0, 4).expect("it lies within");
        if let Err((_, mut list)) = self.port.post_read(queue_pair, list, at, WorkId(0)) {
            while let Some((buffer, ..)) = list.pop() {
                self.pool.give(buffer);
            }
        }
    }
}
