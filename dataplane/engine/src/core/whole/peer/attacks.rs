//! What is drawn for a hostile peer.

use rpcrdma_fabric::interface::{Access, Gather, Port, RemoteAddress, RemoteKey, Window, WorkId};

use super::super::messages::{self, MORE, MSG, PROPERTIES};
use super::super::step::{Action, Asked, Chunks, Grants, Group, Receives, Told};
use super::{BUFFER_BYTES, Peer, UNSURE_MESSAGES, WINDOWS};
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
                    2 => messages::group_with_page(xid),
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
            let mut payload = messages::rpc_call(xid, Asked::Echo { words: 0 });
            payload.resize(payload.len() + words as usize, 5);
            messages::message(xid, MORE, &payload)
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
        let payload = vec![6; words as usize];
        let message = if kind == MSG {
            messages::message(xid, flags, &payload)
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
        let open = self.link.as_ref().and_then(|link| link.group);
        let (message, open) = match (group, open) {
            (Group::Whole, _) => (messages::group_with_page(xid), None),
            (Group::Begin { transmissions }, _) => {
                let stream = messages::rpc_call(xid, Asked::Echo { words: 2 });
                let message = messages::group_request(xid, &[0], transmissions, &stream);
                (message, Some((xid, 1)))
            }
            (Group::Next { skips }, Some((xid, sequence))) => {
                let message = messages::group_next(xid, sequence + u32::from(skips));
                (message, Some((xid, sequence + 1)))
            }
            (Group::Next { .. }, None) => (messages::group_next(xid, 1), None),
            (Group::Report { is_of_answer }, open) => {
                let link = self.link.as_ref();
                let about = link.and_then(|it| {
                    if is_of_answer {
                        it.answer_last
                    } else {
                        it.group_last
                    }
                });
                let report = messages::group_report(about.unwrap_or(xid), is_of_answer);
                (report, open)
            }
        };
        if self.send(message)
            && let Some(link) = &mut self.link
        {
            link.begun = None;
            link.group = open;
            link.unsure = UNSURE_MESSAGES;
        }
    }

    /// Memory of this peer that the core may read and write.
    fn window(&mut self, number: usize) -> Option<RemoteAddress> {
        let queue_pair = self.queue_pair?;
        let link = self.link.as_mut()?;
        let access = Access {
            remote_read: true,
            remote_write: true,
        };
        while link.windows.len() <= number.min(WINDOWS - 1) {
            let buffer = self.pool.take()?;
            match self
                .port
                .bind_window(queue_pair, buffer, BUFFER_BYTES, access)
            {
                Ok(window) => link.windows.push(window),
                Err((_, buffer)) => {
                    self.pool.give(buffer);
                    return None;
                }
            }
        }
        link.windows.get(number).map(Window::remote)
    }

    fn call_with_chunks(&mut self, chunks: Chunks) {
        // Of an RPC call without arguments.
        const BEHIND: u32 = 40;
        const NOWHERE: RemoteAddress = RemoteAddress {
            key: RemoteKey(77),
            offset: 0,
        };
        let Some(at) = self.window(0) else { return };
        let Some(other) = self.window(1) else { return };
        let mut asked = Asked::Null;
        let mut invalidate = 0;
        let mut has_payload = true;
        let lists = match chunks {
            Chunks::Read { bytes } => messages::reads(&[(BEHIND, at, bytes)]),
            Chunks::ReadBadHandle => messages::reads(&[(BEHIND, NOWHERE, 64)]),
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
            return self.write(at);
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
