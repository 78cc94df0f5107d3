//! A peer on its own port. It counts credits as an honest end does, and sends what it is told to send.

mod attacks;
mod partner;
mod receive;

use std::collections::{BTreeMap, VecDeque};

use rpcrdma_fabric::clock::{Clock, Ticks};
use rpcrdma_fabric::interface::prelude::*;
use rpcrdma_fabric::interface::{
    CompletionBatch, CompletionKind, Gather, PostError, QueuePairId, Receive,
    ReceiveQueueAttributes, ReceiveQueueId, RemoteAddress, RemoteKey, SendOptions, Status, Window,
    WorkId,
};
use rpcrdma_fabric::memory::{Buffer, Pool, PoolShape};
use rpcrdma_fabric::shm::QueuePairNumber;
use rpcrdma_protocol::v2::Properties;
use rpcrdma_protocol::v2::connection::Role;

use super::groups::{self, GroupOfCore};
use super::messages::{self, ERROR, MSG, NOMSG, PATTERN, word};
use super::service::OF_CORE_ITEMS;
use super::step::{Answer, Asked, Grants, Receives, Told};
use crate::TestFabric;
use crate::rpc::ConnectionKey;
use crate::support::fabric::PreparedQueuePair;
use crate::support::{TestJoint, TestPort, TestPortHandle};

use partner::Partner;

/// Receives of a peer.
const RECEIVES: u32 = 16;
/// Receives that a partner posts: few, so that its grants are awaited.
const RECEIVES_OF_PARTNER: usize = 9;
/// Send buffers, of which windows expose some.
const BUFFERS: u32 = 16;
/// Works outstanding.
const SEND_QUEUE_DEPTH: u32 = 32;
/// Holds a message with a page behind its head.
const BUFFER_BYTES: u32 = 6144;
/// XIDs of the core have this bit, and those of peers do not.
pub(super) const OF_CORE: u32 = 1 << 31;
/// Windows that a peer exposes: the first half of them to be read, and the others to be written.
const WINDOWS: usize = 4;
/// Messages after one that was changed for which nothing is known: it may have begun something.
const UNSURE_MESSAGES: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Makes a null call as soon as the last one was answered.
    Neighbour,
    /// Answers all calls.
    Server,
    /// Calls and answers, in groups and in parts.
    Partner,
    /// Does what is drawn; the core is the server, or the client.
    Hostile(Role),
}

impl Kind {
    /// What the core is to it.
    pub(super) fn role_of_core(self) -> Role {
        match self {
            Self::Neighbour | Self::Partner => Role::Server,
            Self::Server => Role::Client,
            Self::Hostile(role) => role,
        }
    }

    pub(super) fn is_honest(self) -> bool {
        !matches!(self, Self::Hostile(_))
    }
}

/// The messages of a peer with one XID, and what was said to them.
#[derive(Clone, Copy, Debug, Default)]
struct Said {
    messages: u32,
    answers: u32,
    /// It is a whole call that nothing is wrong with: as long as the connection lasts, an answer is due.
    is_owed: bool,
}

/// A call of the core.
#[derive(Debug)]
struct CallOfCore {
    xid: u32,
    results: Vec<u32>,
    /// What its first Write chunk offers, and its Read list names.
    offered: Vec<(RemoteAddress, u32)>,
    readable: Vec<(RemoteAddress, u32)>,
    /// What it says if it came as a transmission group.
    group: Option<GroupOfCore>,
}

/// A transmission group that was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Begun {
    xid: u32,
    is_answer: bool,
    /// The number of the next transmission.
    next: u32,
}

/// A connection of a peer, as it sees it.
#[derive(Debug)]
pub(super) struct Link {
    /// The number of the core's end.
    pub(super) of_core: QueuePairNumber,
    pub(super) key: Option<ConnectionKey>,
    /// The core has not told of its end.
    pub(super) is_open: bool,
    pub(super) is_ready: bool,
    pub(super) is_version_1: bool,
    /// The properties that the core's control plane received.
    pub(super) told: Option<Properties>,
    /// What this end has said of itself first.
    introduced: Option<Told>,
    /// Version 2: messages that may be sent.
    credits: u32,
    /// Version 2: Receives posted and not granted.
    owed: u32,
    /// Version 2: the most credits that the core is told it may have.
    window: u32,
    /// Version 1: calls that were granted, and that wait for their replies.
    v1_granted: u32,
    v1_waiting: u32,
    grants: Grants,
    said: BTreeMap<u32, Said>,
    calls: VecDeque<CallOfCore>,
    /// What the calls of the core have exposed.
    exposed: Vec<RemoteAddress>,
    /// The XID of a message that was begun, and its type.
    begun: Option<(u32, u32)>,
    group: Option<Begun>,
    /// A call of the core of which so many transmissions are to come.
    arriving: Option<(CallOfCore, u32)>,
    /// A call of the core of which so many segments are still to be read.
    fetching: Option<(CallOfCore, usize)>,
    /// The XIDs of the last answer, and of the last call that came as a group.
    answer_last: Option<u32>,
    group_last: Option<u32>,
    unsure: u32,
    windows: [Option<Window>; WINDOWS],
    invalidates_next: bool,
    /// Of an honest peer: the call that waits, and since which turn.
    pub(super) waiting: Option<(u32, u64)>,
}

pub(super) struct Peer {
    pub(super) kind: Kind,
    pub(super) port: TestPort,
    pub(super) handle: TestPortHandle,
    /// The channel between the two processes, once there was a connection.
    pub(super) joint: Option<TestJoint>,
    queue: ReceiveQueueId,
    /// Receives that are not posted, and whether their messages took credits.
    withheld: Vec<(Receive, bool)>,
    withholds: bool,
    pool: Pool,
    queue_pair: Option<QueuePairId>,
    is_flushed: bool,
    pub(super) link: Option<Link>,
    pub(super) is_stopped: bool,
    connects: u32,
    xid: u32,
    /// Calls of a neighbour or partner that were answered.
    pub(super) served: u64,
    pub(super) partner: Partner,
}

impl Peer {
    pub(super) fn new(kind: Kind, number: u32, clock: &Clock) -> Self {
        let stride = u64::from(BUFFER_BYTES);
        let arena_bytes = stride * u64::from(RECEIVES + BUFFERS) + 3 * 4096;
        let (mut port, handle) = super::port(number, arena_bytes, SEND_QUEUE_DEPTH, false, clock);
        let queue = port
            .create_receive_queue(ReceiveQueueAttributes {
                depth: RECEIVES,
                segments_max: 1,
            })
            .expect("a receive queue");
        let shape = |buffers| PoolShape {
            buffers,
            buffer_bytes: BUFFER_BYTES,
            stride_bytes: BUFFER_BYTES,
            align_bytes: 4096,
        };
        let mut receives = port.carve(shape(RECEIVES)).expect("receive buffers");
        let pool = port.carve(shape(BUFFERS)).expect("send buffers");
        let withheld = (0..RECEIVES)
            .map(|_| {
                let receive = port.create_receive(queue, &mut receives.take().into_iter());
                (receive.expect("a Receive"), false)
            })
            .collect();
        Self {
            kind,
            port,
            handle,
            joint: None,
            queue,
            withheld,
            withholds: false,
            pool,
            queue_pair: None,
            is_flushed: false,
            link: None,
            is_stopped: false,
            connects: 0,
            xid: 1000,
            served: 0,
            partner: Partner::default(),
        }
    }

    /// Whether a connection can be made: the last one is over at both ends.
    pub(super) fn may_connect(&self) -> bool {
        let is_open = self.link.as_ref().is_some_and(|link| link.is_open);
        !is_open && (self.queue_pair.is_none() || self.is_flushed)
    }

    /// Adopts this end of a connection.
    pub(super) fn adopt_queue_pair(
        &mut self,
        prepared: PreparedQueuePair<TestFabric>,
        of_core: QueuePairNumber,
        is_version_1: bool,
        is_quiet: bool,
    ) {
        self.leave();
        self.withholds = is_quiet;
        if !is_quiet {
            let posted = self.port.receives_posted(self.queue) as usize;
            let more = match self.kind {
                Kind::Partner => RECEIVES_OF_PARTNER.saturating_sub(posted),
                _ => self.withheld.len(),
            };
            for (receive, _) in self.withheld.drain(..more) {
                self.port.post_receive(receive);
            }
            self.port.flush_receives();
        }
        let posted = self.port.receives_posted(self.queue);
        self.queue_pair = Some(
            self.port
                .adopt_queue_pair(prepared, self.queue)
                .expect("planted"),
        );
        self.is_flushed = false;
        self.is_stopped = false;
        self.connects += 1;
        self.partner = Partner::default();
        self.link = Some(Link {
            of_core,
            key: None,
            is_open: true,
            is_ready: false,
            is_version_1,
            told: None,
            introduced: None,
            credits: 1,
            owed: posted.saturating_sub(2),
            window: if is_quiet { RECEIVES } else { posted } - 1,
            v1_granted: 1,
            v1_waiting: 0,
            grants: if is_quiet { Grants::None } else { Grants::Fair },
            said: BTreeMap::new(),
            calls: VecDeque::new(),
            exposed: Vec::new(),
            begun: None,
            group: None,
            arriving: None,
            fetching: None,
            answer_last: None,
            group_last: None,
            unsure: 0,
            windows: [const { None }; WINDOWS],
            invalidates_next: false,
            waiting: None,
        });
    }

    /// A client of version 2 that is not quiet says what it takes, mostly.
    pub(super) fn introduce(&mut self) {
        let is_client = matches!(self.kind, Kind::Hostile(Role::Server) | Kind::Partner);
        let is_version_1 = self.link.as_ref().is_some_and(|link| link.is_version_1);
        if is_client && !is_version_1 && !self.withholds && self.places() {
            self.tell(Told::Placing);
        }
    }

    /// Whether it takes placed data on this connection.
    fn places(&self) -> bool {
        self.kind == Kind::Partner || !self.connects.is_multiple_of(4)
    }

    /// Forgets a queue pair that is flushed.
    fn leave(&mut self) {
        if let Some(queue_pair) = self.queue_pair.take() {
            // Its windows end with it, and their buffers come back.
            self.port.destroy_queue_pair(queue_pair);
        }
    }

    pub(super) fn disconnect(&mut self) {
        if let Some(queue_pair) = self.queue_pair {
            self.port.disconnect(queue_pair);
        }
    }

    fn next_xid(&mut self) -> u32 {
        self.xid += 1;
        self.xid
    }

    // ---- Receiving ----

    pub(super) fn poll(&mut self, now: Ticks, batch: &mut CompletionBatch) {
        self.port.poll(now, batch);
        for completion in batch.drain() {
            match completion.kind {
                CompletionKind::Receive {
                    receive,
                    bytes,
                    invalidated,
                } => {
                    let mut took_credit = false;
                    if completion.status == Status::Success {
                        if let Some(key) = invalidated {
                            self.close_window(key);
                        }
                        let message = self.port.received(&receive)[..bytes as usize].to_vec();
                        took_credit = self.take(&message);
                    }
                    if self.withholds {
                        self.withheld.push((receive, took_credit));
                    } else {
                        self.post(receive, took_credit);
                    }
                }
                CompletionKind::Read(_, mut list) => {
                    while let Some((buffer, _, bytes)) = list.pop() {
                        if completion.status == Status::Success {
                            self.fetched(&buffer, bytes);
                        }
                        self.pool.give(buffer);
                    }
                }
                CompletionKind::Disconnected => self.is_flushed = true,
                _ => {}
            }
        }
        while let Some(buffer) = self.port.next_returned() {
            self.pool.give(buffer);
        }
    }

    pub(super) fn flush(&mut self) {
        self.port.flush_receives();
        self.port.flush_sends();
    }

    fn post(&mut self, receive: Receive, took_credit: bool) {
        self.port.post_receive(receive);
        if let Some(link) = &mut self.link {
            link.owed += u32::from(took_credit);
        }
    }

    // ---- Sending ----

    /// Messages that may be sent; of version 1, calls.
    fn credits(&self) -> u32 {
        let link = self.link.as_ref();
        link.map_or(0, |link| match link.is_version_1 {
            true => link.v1_granted.saturating_sub(link.v1_waiting),
            false => link.credits,
        })
    }

    /// Whether a call may be sent.
    fn may_call(&self) -> bool {
        self.credits() != 0
    }

    fn send(&mut self, mut message: Vec<u8>) -> bool {
        let (Some(queue_pair), Some(link)) = (self.queue_pair, &mut self.link) else {
            return false;
        };
        let at = |index| word(&message, index);
        let kind = at(3).unwrap_or(0);
        let is_version_1 = at(1) == Some(1);
        let is_grant = !is_version_1 && kind == NOMSG && message.len() == 36;
        let Some(mut buffer) = self.pool.take() else {
            return false;
        };
        let mut options = SendOptions::default();
        if std::mem::take(&mut link.invalidates_next) {
            let exposed = link.exposed.pop();
            options.invalidate = Some(exposed.map_or(RemoteKey(77), |at| at.key));
        }
        if !is_version_1 && kind != ERROR && message.len() >= 12 {
            let granted = match link.grants {
                Grants::Fair => link.owed,
                Grants::None => 0,
                Grants::Half => link.owed / 2,
                Grants::Always(count) => count,
            };
            if granted > link.owed {
                link.window = 1000;
            }
            link.owed = link.owed.saturating_sub(granted);
            let credit = link.window << 16 | granted;
            message[8..12].copy_from_slice(&credit.to_be_bytes());
        }
        let bytes = u32::try_from(message.len()).expect("short");
        self.port.memory().clone().bytes_mut(&mut buffer)[..message.len()]
            .copy_from_slice(&message);
        let mut list = Gather::new();
        list.push(buffer, 0, bytes).expect("it lies within");
        let posted = self.port.post_send(queue_pair, &mut list, options);
        if posted.is_err() {
            let (buffer, ..) = list.pop().expect("left as it was");
            self.pool.give(buffer);
            return false;
        }
        let xid = word(&message, 0).unwrap_or(0);
        link.said.entry(xid).or_default().messages += 1;
        if !is_grant {
            link.credits = link.credits.saturating_sub(1);
        }
        link.unsure = link.unsure.saturating_sub(1);
        true
    }

    /// Whether the core knows what to do with the next message: nothing was begun.
    fn is_sure(&self) -> bool {
        self.link
            .as_ref()
            .is_some_and(|link| link.unsure == 0 && link.begun.is_none() && link.group.is_none())
    }

    /// Sends what there is of an answer that is a group.
    fn send_group(&mut self, messages: Vec<Vec<u8>>, begun: Option<Begun>, is_wrong: bool) {
        let is_sure = self.is_sure() && !is_wrong;
        let is_sent = messages.into_iter().all(|message| self.send(message));
        if let Some(link) = &mut self.link {
            (link.begun, link.group) = (None, begun);
            if !(is_sure && is_sent) {
                link.unsure = UNSURE_MESSAGES;
            }
        }
    }

    /// Sends a whole call, to which an answer is due.
    fn send_call(&mut self, xid: u32, message: Vec<u8>) {
        let is_sure = self.is_sure();
        if !self.send(message) {
            return;
        }
        if let Some(link) = &mut self.link {
            // It breaks what was begun.
            (link.begun, link.group) = (None, None);
            if !is_sure {
                link.unsure = UNSURE_MESSAGES;
            }
            if let Some(said) = link.said.get_mut(&xid) {
                said.is_owed = is_sure;
            }
            link.v1_waiting += u32::from(link.is_version_1);
        }
    }

    fn call(&mut self, asked: Asked) -> u32 {
        let xid = self.next_xid();
        let (asked, words) = match asked {
            Asked::Echo { words } => (Asked::Echo { words: 0 }, words),
            _ => (asked, 0),
        };
        let rpc = messages::rpc_call(xid, asked);
        let is_version_1 = self.link.as_ref().is_some_and(|link| link.is_version_1);
        let message = if is_version_1 {
            messages::message_1(xid, MSG, &[0, 0, 0], &rpc)
        } else {
            messages::message(xid, 0, &rpc)
        };
        self.send_call(xid, messages::with_words(message, words));
        xid
    }

    fn tell(&mut self, told: Told) {
        let xid = self.next_xid();
        if self.send(messages::properties(xid, told))
            && let Some(link) = &mut self.link
        {
            link.introduced.get_or_insert(told);
        }
    }

    /// Some peers show in silence, too, that they live, and nothing else; honest ones do.
    pub(super) fn show_life(&mut self) {
        let is_lively = self.connects % 2 == 1 || self.kind.is_honest();
        let Some(link) = self.link.as_mut().filter(|_| is_lively) else {
            return;
        };
        if !link.is_version_1 && (self.kind.is_honest() || !link.said.is_empty()) {
            let grants = std::mem::replace(&mut link.grants, Grants::None);
            self.send(messages::grant());
            if let Some(link) = &mut self.link {
                link.grants = grants;
            }
        }
    }

    /// What a neighbour does in its turn.
    pub(super) fn act_as_neighbour(&mut self, turn: u64) {
        let may_begin = |link: &Link| link.key.is_some() && link.waiting.is_none();
        if self.link.as_ref().is_some_and(may_begin) && self.may_call() {
            let xid = self.call(Asked::Null);
            if let Some(link) = &mut self.link {
                link.waiting = Some((xid, turn));
            }
        }
    }

    /// What an honest server does in its turn.
    pub(super) fn act_as_server(&mut self) {
        while self.may_call() {
            let Some(link) = &mut self.link else { return };
            if link.fetching.as_ref().is_some_and(|(_, left)| *left != 0) {
                return;
            }
            if let Some((call, _)) = link.fetching.take() {
                link.calls.push_front(call);
            }
            let Some(call) = link.calls.front_mut() else {
                return;
            };
            let readable = std::mem::take(&mut call.readable);
            if readable.is_empty() {
                self.answer(Answer::Written);
            } else {
                self.fetch(&readable);
            }
        }
    }

    /// Reads what the first call of the core exposes, which is answered when all of it is there.
    fn fetch(&mut self, segments: &[(RemoteAddress, u32)]) {
        let (Some(queue_pair), Some(link)) = (self.queue_pair, &mut self.link) else {
            return;
        };
        let call = link.calls.pop_front().expect("a call");
        link.fetching = Some((call, segments.len()));
        for (at, bytes) in segments {
            let buffer = self.pool.take().expect("an honest server has buffers");
            let mut list = Gather::new();
            list.push(buffer, 0, *bytes).expect("it lies within");
            let posted = self.port.post_read(queue_pair, list, *at, WorkId(0));
            let Err((error, mut list)) = posted else {
                continue;
            };
            // At the end the core may have left it.
            assert_eq!(error, PostError::NotConnected, "what is exposed is read");
            let (buffer, ..) = list.pop().expect("left as it was");
            self.pool.give(buffer);
        }
    }

    /// Takes note of memory of the core that was read.
    fn fetched(&mut self, buffer: &Buffer, bytes: u32) {
        let Some(link) = &mut self.link else { return };
        if let Some((_, left)) = &mut link.fetching {
            let item = &self.port.memory().bytes(buffer)[..bytes as usize];
            assert!(item.iter().all(|byte| *byte == OF_CORE_ITEMS), "an item");
            *left -= 1;
        }
    }

    /// Writes the pattern into memory of the core.
    fn write(&mut self, to: RemoteAddress, bytes: u32) {
        let (Some(queue_pair), Some(mut buffer)) = (self.queue_pair, self.pool.take()) else {
            return;
        };
        let memory = self.port.memory().clone();
        memory.bytes_mut(&mut buffer)[..bytes as usize].fill(PATTERN);
        let mut list = Gather::new();
        list.push(buffer, 0, bytes).expect("it lies within");
        // What was not posted is left in the list.
        let _ = self.port.post_write(queue_pair, &mut list, to, None);
        while let Some((buffer, ..)) = list.pop() {
            self.pool.give(buffer);
        }
    }

    /// Answers the call of the core that came first.
    fn answer(&mut self, answer: Answer) {
        let Some(link) = &mut self.link else { return };
        let is_version_1 = link.is_version_1;
        let Some(call) = link.calls.pop_front() else {
            return;
        };
        match answer {
            Answer::Filled => {
                if let Some((to, _)) = call.offered.first() {
                    self.write(*to, 4);
                }
            }
            Answer::Written => {
                for (to, bytes) in &call.offered {
                    self.write(*to, (*bytes).min(BUFFER_BYTES));
                }
            }
            _ => {}
        }
        if let Some(group) = call.group
            && let Some((messages, begun)) = answer_as_group(&call, group, answer)
        {
            return self.send_group(messages, begun, answer == Answer::GroupWrong);
        }
        let (results, offered) = (&call.results, &call.offered);
        for message in messages::answer(is_version_1, call.xid, answer, results, offered) {
            self.send(message);
        }
    }

    // ---- The end ----

    /// From now on it does what is due, and finishes what it began.
    pub(super) fn behave(&mut self) {
        self.receives(Receives::Kept);
        let Some(link) = &mut self.link else { return };
        if link.grants != Grants::Fair {
            link.grants = Grants::Fair;
        }
        link.invalidates_next = false;
        let is_begun = link.begun.is_some() || link.group.is_some();
        // Messages use the credits that this end was granted, a grant alone none.
        if is_begun && self.may_call() {
            self.call(Asked::Null);
        } else if self
            .link
            .as_ref()
            .is_some_and(|it| it.owed > 0 && !it.is_version_1)
        {
            self.send(messages::grant());
        }
    }

    /// The call that is owed an answer, if there is one.
    pub(super) fn unanswered(&self) -> Option<u32> {
        let link = self.link.as_ref().filter(|it| it.is_open)?;
        // Honest peers always have a call that waits, and calls in the reverse direction may be refused in silence.
        if self.kind != Kind::Hostile(Role::Server) {
            return None;
        }
        let mut said = link.said.iter();
        said.find(|(_, it)| it.is_owed && it.answers == 0)
            .map(|(xid, _)| *xid)
    }
}

/// The transmissions of an answer to a call that was a group, and what is to follow. `None` where the answer is no group.
fn answer_as_group(
    call: &CallOfCore,
    group: GroupOfCore,
    answer: Answer,
) -> Option<(Vec<Vec<u8>>, Option<Begun>)> {
    let xid = call.xid;
    // It asks for an item of as many bytes as its first word says.
    let bytes = call.results.first().copied().unwrap_or(4).clamp(4, 9004);
    let item = (group.directions != 0).then_some(bytes);
    let results = match item {
        Some(_) => &call.results[..call.results.len().min(1)],
        None => &call.results[..],
    };
    // Mostly as many as it may take.
    let most = group.answer_max.max(1 + u32::from(xid.is_multiple_of(4)));
    Some(match answer {
        Answer::Group { transmissions } => {
            (groups::answer(xid, results, item, transmissions), None)
        }
        Answer::GroupBegun { transmissions } => {
            let mut messages = groups::answer(xid, results, None, transmissions.min(most));
            let begun = Begun {
                xid,
                is_answer: true,
                next: 1,
            };
            let begun = (messages.len() > 1).then_some(begun);
            messages.truncate(1);
            (messages, begun)
        }
        Answer::GroupWrong => (groups::answer(xid, results, Some(bytes + 4), 1), None),
        _ => return None,
    })
}
