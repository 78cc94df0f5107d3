//! Calls of ours that wait for their replies.

use std::hash::{BuildHasher, RandomState};

use rpcrdma_fabric::clock::Ticks;
use rpcrdma_fabric::share::Share;
use rpcrdma_protocol::rpc::{AcceptStatus, ReplyBody, ReplyHeader};

use crate::ledger::OUTSTANDING_CALLS;
use crate::rpc::{CallError, CallTag, ConnectionKey, Reply};
use crate::xids::Xids;

/// The state of a slot of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Unused.
    Free,
    /// Its call waits for a reply.
    Waiting,
    /// Its call timed out; [`Requester::end`] frees the slot immediately. No other call gets the
    /// XID for a long time ([`Xids`]), so a late reply is never taken for that of another call.
    TimedOut,
    /// Its call waits for a reply, and has bulk data in this slot for such calls.
    Bulk(u16),
    /// As `Bulk`, but its call timed out. It may time out once more.
    BulkTimedOut(u16),
}

impl State {
    /// The slot of the bulk data.
    fn bulk(self) -> Option<u32> {
        match self {
            Self::Bulk(bulk) | Self::BulkTimedOut(bulk) => Some(bulk.into()),
            Self::Free | Self::Waiting | Self::TimedOut => None,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    xid: u32,
    state: State,
    connection: ConnectionKey,
    tag: CallTag,
    /// When its call times out, or [`NEVER`].
    deadline: Ticks,
}

/// No deadline.
const NEVER: Ticks = Ticks::MAX;

/// Our calls on one connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CallsOf {
    /// How many have a slot.
    outstanding: u32,
    /// How many timed out and were not answered since.
    unanswered: u32,
}

impl CallsOf {
    /// How many have a slot.
    pub(crate) fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// How many replies may still come, including late ones.
    pub(crate) fn replies_due(&self) -> u32 {
        self.outstanding.saturating_add(self.unanswered)
    }
}

/// The calls of a core that wait for replies. Each connection can always have one; a server that does not answer can
/// only use up the slots that others leave.
///
/// All calls have the same time limit. So a sweep over the slots knows when the next one is due: at the earliest
/// deadline that it saw; calls that begin later have later deadlines. Most calls are answered long before, and cost no
/// sweep.
#[derive(Debug)]
pub(crate) struct Requester {
    slots: Box<[Slot]>,
    share: Share,
    /// The slot that became free last is used first: it is still in the cache.
    free: Vec<u32>,
    xids: Xids,
    timeout: Ticks,
    waiting: u32,
    /// When the next sweep begins, or since when one is under way.
    sweep_due: Ticks,
    /// The slot at which the sweep continues.
    sweep_next: usize,
    /// The earliest future deadline that the sweep has seen.
    deadline_next: Ticks,
}

/// What a reply or an error ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// A call that waits for it.
    Call(CallTag),
    /// A call that timed out.
    TimedOut,
    /// A call with bulk data, in this slot for such calls, whether it timed out or not.
    /// [`Requester::end_bulk`] frees its slot here.
    Bulk(u32),
    /// No call of that connection.
    Unknown,
}

/// A call that timed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimedOut {
    pub(crate) tag: CallTag,
    pub(crate) connection: ConnectionKey,
    pub(crate) xid: u32,
    /// The slot of its bulk data, which another call may have if its connection has ended. A call without bulk data is
    /// ended with [`Requester::end`].
    pub(crate) bulk: Option<u32>,
    /// It timed out for the second time, as only a call with bulk data can.
    pub(crate) is_second: bool,
}

/// The first XID of a core, from the system's randomness. So cores of one host, and a core that was restarted, count in
/// different parts of the 2^32: a server that remembers calls by address and XID does not take a call of one for a call
/// of another.
pub(crate) fn first_xid() -> u32 {
    // The keys of each `RandomState` differ, and those of a thread's first one are random.
    let [a, b, c, d, ..] = RandomState::new().hash_one(0).to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}

impl Requester {
    /// A table of slots: `shared` for any connection, and those reserved for each of `connections`.
    /// The first call has the XID `first_xid`.
    pub(crate) fn new(
        shared: u32,
        connections: u32,
        timeout: Ticks,
        now: Ticks,
        first_xid: u32,
    ) -> Self {
        let guaranteed = connections.saturating_mul(OUTSTANDING_CALLS);
        let calls_max = shared.saturating_add(guaranteed);
        let slot = Slot {
            xid: 0,
            state: State::Free,
            connection: ConnectionKey::default(),
            tag: 0,
            deadline: NEVER,
        };
        let first_deadline = now.saturating_add(timeout);
        Self {
            slots: vec![slot; calls_max as usize].into_boxed_slice(),
            share: Share::new(calls_max, guaranteed),
            free: (0..calls_max).rev().collect(),
            xids: Xids::new(calls_max, first_xid),
            timeout,
            waiting: 0,
            sweep_due: first_deadline,
            sweep_next: 0,
            deadline_next: first_deadline,
        }
    }

    /// The XID that the next call will have, if there is a slot for a connection with these calls.
    #[inline]
    pub(crate) fn next_xid(&self, calls: &CallsOf) -> Option<u32> {
        let has_slot = self.share.may_take(calls.outstanding, OUTSTANDING_CALLS, 1);
        has_slot.then_some(self.xids.next())
    }

    /// The XID for a message that is no call. Call [`Requester::pass_xid`] if it is sent.
    pub(crate) fn unused_xid(&self) -> u32 {
        self.xids.next()
    }

    /// Notes that the XID of [`Requester::unused_xid`] was used: no call gets it for a long time.
    pub(crate) fn pass_xid(&mut self) {
        self.xids.advance();
    }

    /// Lets the next call have the XID of an earlier one ([`Xids::repeat`]).
    pub(crate) fn repeat_xid(&mut self, xid: u32) -> Option<u32> {
        self.xids.repeat(xid)
    }

    /// Goes on with the count after [`Requester::repeat_xid`].
    pub(crate) fn go_on(&mut self, next: u32) {
        self.xids.go_on(next);
    }

    pub(crate) fn slots(&self) -> u32 {
        u32::try_from(self.slots.len()).unwrap_or(u32::MAX)
    }

    /// For the sums: the share, the connections that have slots, once for each slot, and the slots that are free.
    #[cfg(test)]
    pub(crate) fn ledger(&self) -> (&Share, Vec<ConnectionKey>, usize) {
        let mut slots = self.slots.iter();
        assert!(
            slots.all(|slot| slot.state != State::TimedOut),
            "such slots are freed at once"
        );
        let used = self.slots.iter().filter(|slot| slot.state != State::Free);
        let keys = used.map(|slot| slot.connection).collect();
        (&self.share, keys, self.free.len())
    }

    pub(crate) fn waiting(&self) -> u32 {
        self.waiting
    }

    /// Takes a slot for the call with the XID of [`Requester::next_xid`]. `bulk` is the slot of its bulk data, if any.
    #[inline(always)]
    pub(crate) fn begin(
        &mut self,
        connection: ConnectionKey,
        calls: &mut CallsOf,
        tag: CallTag,
        now: Ticks,
        bulk: Option<u32>,
    ) {
        let Some(index) = self.free.pop() else {
            debug_assert!(false, "a slot was free a moment ago");
            return;
        };
        let state = bulk.map_or(State::Waiting, |bulk| {
            State::Bulk(u16::try_from(bulk).unwrap_or(u16::MAX))
        });
        if let Some(slot) = self.slots.get_mut(index as usize) {
            *slot = Slot {
                xid: self.xids.take(index),
                state,
                connection,
                tag,
                deadline: now.saturating_add(self.timeout),
            };
            self.share.take(&mut calls.outstanding, OUTSTANDING_CALLS);
            self.waiting += 1;
        }
    }

    /// The slot of the call with this XID, if it is one of that connection.
    #[inline(always)]
    fn slot_of(&self, xid: u32, connection: ConnectionKey) -> Option<(u32, &Slot)> {
        let index = self.xids.slot_of(xid)?;
        let slot = self.slots.get(index as usize)?;
        (slot.xid == xid && slot.connection == connection).then_some((index, slot))
    }

    #[inline(always)]
    fn free_slot(&mut self, index: u32, calls: &mut CallsOf) {
        if let Some(slot) = self.slots.get_mut(index as usize) {
            slot.state = State::Free;
            slot.deadline = NEVER;
            self.xids.free(slot.xid);
            self.free.push(index);
            self.share.give(&mut calls.outstanding, OUTSTANDING_CALLS);
        }
    }

    /// Ends a call because of its reply, an error or its time limit, and frees its slot. `calls` are those of the
    /// connection.
    // Always: nearly all replies end a call without bulk data that waits.
    #[inline(always)]
    pub(crate) fn end(
        &mut self,
        xid: u32,
        connection: ConnectionKey,
        calls: &mut CallsOf,
    ) -> Ended {
        match self.slot_of(xid, connection) {
            Some((index, slot)) if slot.state == State::Waiting => {
                let tag = slot.tag;
                self.waiting -= 1;
                self.free_slot(index, calls);
                Ended::Call(tag)
            }
            found => {
                let found = found.map(|(index, slot)| (index, slot.state));
                self.end_other(found, calls)
            }
        }
    }

    /// Ends a call that does not wait for a reply without bulk data, in this slot if it has one.
    #[cold]
    fn end_other(&mut self, found: Option<(u32, State)>, calls: &mut CallsOf) -> Ended {
        match found {
            Some((index, State::TimedOut)) => {
                self.free_slot(index, calls);
                calls.unanswered = calls.unanswered.saturating_add(1);
                Ended::TimedOut
            }
            Some((_, State::Bulk(bulk) | State::BulkTimedOut(bulk))) => Ended::Bulk(bulk.into()),
            Some((_, State::Free | State::Waiting)) | None => end_unknown(calls),
        }
    }

    /// The slot of the bulk data of the call with this XID, if it is one of that connection.
    pub(crate) fn bulk_of(&self, xid: u32, connection: ConnectionKey) -> Option<u32> {
        let (_, slot) = self.slot_of(xid, connection)?;
        slot.state.bulk()
    }

    /// Frees the slot of a call with bulk data, once nothing of the call is exposed.
    #[inline(always)]
    pub(crate) fn end_bulk(&mut self, xid: u32, connection: ConnectionKey, calls: &mut CallsOf) {
        let Some((index, slot)) = self.slot_of(xid, connection) else {
            return;
        };
        match slot.state {
            State::Bulk(_) => self.waiting -= 1,
            State::BulkTimedOut(_) => {}
            State::Free | State::Waiting | State::TimedOut => return,
        }
        self.free_slot(index, calls);
    }

    /// When there are slots for [`Requester::next_timed_out`] to look at. Only that changes it.
    pub(crate) fn due(&self) -> Ticks {
        self.sweep_due
    }

    /// Whether there are slots for [`Requester::next_timed_out`] to look at.
    #[inline]
    pub(crate) fn timeouts_due(&self, now: Ticks) -> bool {
        now >= self.sweep_due
    }

    /// The next call that timed out. Checks at most `slots_max` slots, and counts it down.
    pub(crate) fn next_timed_out(&mut self, now: Ticks, slots_max: &mut usize) -> Option<TimedOut> {
        while *slots_max != 0 {
            *slots_max -= 1;
            if self.sweep_next == 0 {
                self.sweep_due = now;
                self.deadline_next = now.saturating_add(self.timeout);
            }
            let Some(slot) = self.slots.get_mut(self.sweep_next) else {
                self.sweep_next = 0;
                // Sweeps are at least 1/128 of the time limit apart: a call times out less than a hundredth
                // too late, and the number of sweeps does not grow with that of the calls.
                let soonest = self.sweep_due.saturating_add(self.timeout / 128);
                self.sweep_due = self.deadline_next.max(soonest);
                break;
            };
            self.sweep_next += 1;
            if slot.deadline > now {
                self.deadline_next = self.deadline_next.min(slot.deadline);
                continue;
            }
            let late = TimedOut {
                tag: slot.tag,
                connection: slot.connection,
                xid: slot.xid,
                bulk: slot.state.bulk(),
                is_second: matches!(slot.state, State::BulkTimedOut(_)),
            };
            self.waiting -= u32::from(!late.is_second);
            (slot.state, slot.deadline) = match slot.state {
                State::Bulk(bulk) => (State::BulkTimedOut(bulk), now.saturating_add(self.timeout)),
                State::Waiting => (State::TimedOut, NEVER),
                other => (other, NEVER),
            };
            return Some(late);
        }
        None
    }

    /// Ends the calls of `connection` in `count` slots from `from`: `ended` gets the tag of each that still waited, and
    /// whether it has bulk data. Returns the slot at which to continue.
    pub(crate) fn end_all_of(
        &mut self,
        connection: ConnectionKey,
        calls: &mut CallsOf,
        from: u32,
        count: u32,
        mut ended: impl FnMut(CallTag, bool),
    ) -> u32 {
        let end = from.saturating_add(count);
        for index in from..end {
            let Some(&slot) = self.slots.get(index as usize) else {
                break;
            };
            if slot.state == State::Free || slot.connection != connection {
                continue;
            }
            let is_bulk = matches!(slot.state, State::Bulk(_));
            if slot.state == State::Waiting || is_bulk {
                self.waiting -= 1;
                ended(slot.tag, is_bulk);
            }
            self.free_slot(index, calls);
        }
        end
    }
}

/// What a reply with an unknown XID ends: a call that timed out, if one was not answered yet.
#[cold]
fn end_unknown(calls: &mut CallsOf) -> Ended {
    match calls.unanswered.checked_sub(1) {
        Some(rest) => {
            calls.unanswered = rest;
            Ended::TimedOut
        }
        None => Ended::Unknown,
    }
}

/// Decodes an RPC reply (RFC 5531 section 9).
#[inline]
pub(crate) fn read_reply(message: &[u8]) -> Result<Reply<'_>, CallError> {
    // Without a `ReplyHeader`: that would be written to memory and read back in larger pieces, which has to wait for
    // the stores.
    match ReplyHeader::success_in(message) {
        Some((_, verifier, results)) => Ok(Reply { results, verifier }),
        None => read_any_reply(message),
    }
}

#[inline(never)]
fn read_any_reply(message: &[u8]) -> Result<Reply<'_>, CallError> {
    let (header, header_bytes) = ReplyHeader::decode(message).map_err(|_| CallError::BadReply)?;
    match header.body {
        ReplyBody::Accepted {
            verifier,
            status: AcceptStatus::Success,
        } => Ok(Reply {
            results: message.get(header_bytes..).unwrap_or(&[]),
            verifier,
        }),
        ReplyBody::Accepted { status, .. } => Err(refused(status)),
        ReplyBody::Denied(status) => Err(CallError::Denied(status)),
    }
}

#[cold]
fn refused(status: AcceptStatus) -> CallError {
    match status {
        // Never here: the caller has handled a success.
        AcceptStatus::Success => CallError::BadReply,
        AcceptStatus::ProgUnavail => CallError::ProgramUnavailable,
        AcceptStatus::ProgMismatch { low, high } => CallError::ProgramMismatch { low, high },
        AcceptStatus::ProcUnavail => CallError::ProcedureUnavailable,
        AcceptStatus::GarbageArgs => CallError::GarbageArgs,
        AcceptStatus::SystemErr => CallError::SystemError,
    }
}

#[cfg(test)]
mod tests;
