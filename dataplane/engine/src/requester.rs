//! Calls of ours that wait for their replies.

use rpcrdma_fabric::clock::Ticks;
use rpcrdma_protocol::rpc::{AcceptStatus, ReplyBody, ReplyHeader};

use crate::application::{CallError, CallTag, ConnectionKey, Reply};
use crate::config::CALLS_OUTSTANDING_LIMIT;
use crate::timer::TimerWheel;

/// An XID is the slot of its call in the low half, and the slot's generation in the high half.
const SLOT_MASK: u32 = CALLS_OUTSTANDING_LIMIT - 1;
const GENERATION_ONE: u32 = CALLS_OUTSTANDING_LIMIT;

/// What a slot of the table is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing.
    Free,
    /// It waits for a reply.
    Waiting,
    /// Its call timed out. The slot, and with it the XID, is not used again before the reply comes
    /// or the connection ends, so that a late reply is never taken for another.
    TimedOut,
    /// It waits, and its call has bulk data: that is in this slot of the core's bulk data.
    Bulk(u16),
    /// As `Bulk`, and its call timed out: it may time out once more.
    BulkTimedOut(u16),
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    xid: u32,
    state: State,
    connection: ConnectionKey,
    tag: CallTag,
}

/// The calls of a core that wait for replies, with their timers.
#[derive(Debug)]
pub(crate) struct Requester {
    slots: Box<[Slot]>,
    free: Vec<u32>,
    timers: TimerWheel,
    timeout: Ticks,
    waiting: u32,
    /// Timers that fired and are to fire once more.
    again: Vec<u32>,
}

/// What a reply, or an error, is the end of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// A call that waits for it.
    Call(CallTag),
    /// A call that timed out: its slot is free again.
    TimedOut,
    /// A call with bulk data, in this slot of that, whether it timed out or not. Its own slot is
    /// freed by [`Requester::end_bulk`].
    Bulk(u32),
    /// No call of that connection.
    Unknown,
}

/// A call whose time is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimedOut {
    /// An ordinary one.
    Call(CallTag, ConnectionKey),
    /// One with bulk data, in this slot of that.
    Bulk(u32),
    /// The same, for the second time.
    BulkAgain(u32),
}

impl Requester {
    /// A table of `calls_max` slots. `seed` makes XIDs differ from those of an earlier run, which
    /// a responder may remember.
    pub(crate) fn new(calls_max: u32, timeout: Ticks, now: Ticks, seed: u64) -> Self {
        let calls_max = calls_max.min(CALLS_OUTSTANDING_LIMIT);
        let [a, b, ..] = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
        let generation = u32::from(u16::from_be_bytes([a, b])) * GENERATION_ONE;
        let slot = |index: u32| Slot {
            xid: generation | index,
            state: State::Free,
            connection: ConnectionKey::default(),
            tag: 0,
        };
        Self {
            slots: (0..calls_max).map(slot).collect(),
            free: (0..calls_max).rev().collect(),
            // A call that times out does so at most a hundredth late.
            timers: TimerWheel::new(calls_max, timeout / 128, now),
            timeout,
            waiting: 0,
            again: Vec::with_capacity(calls_max as usize),
        }
    }

    /// The XID that the next call will have, if a slot is free.
    #[inline]
    pub(crate) fn next_xid(&self) -> Option<u32> {
        let index = *self.free.last()?;
        self.slots
            .get(index as usize)
            .map(|slot| slot.xid.wrapping_add(GENERATION_ONE))
    }

    /// Calls that wait for a reply.
    pub(crate) fn waiting(&self) -> u32 {
        self.waiting
    }

    /// Takes the slot whose XID [`Requester::next_xid`] told.
    #[inline]
    pub(crate) fn begin(&mut self, connection: ConnectionKey, tag: CallTag, now: Ticks) {
        self.begin_as(State::Waiting, connection, tag, now);
    }

    /// As [`Requester::begin`], for a call with bulk data in slot `bulk`.
    pub(crate) fn begin_bulk(
        &mut self,
        connection: ConnectionKey,
        tag: CallTag,
        now: Ticks,
        bulk: u32,
    ) {
        let bulk = u16::try_from(bulk).unwrap_or(u16::MAX);
        self.begin_as(State::Bulk(bulk), connection, tag, now);
    }

    #[inline]
    fn begin_as(&mut self, state: State, connection: ConnectionKey, tag: CallTag, now: Ticks) {
        let Some(index) = self.free.pop() else {
            debug_assert!(false, "a slot was free a moment ago");
            return;
        };
        if let Some(slot) = self.slots.get_mut(index as usize) {
            *slot = Slot {
                xid: slot.xid.wrapping_add(GENERATION_ONE),
                state,
                connection,
                tag,
            };
            self.waiting += 1;
            self.timers.set(index, now.saturating_add(self.timeout));
        }
    }

    /// A reply came, or an error took its place. Frees the slot.
    #[inline]
    pub(crate) fn end(&mut self, xid: u32, connection: ConnectionKey) -> Ended {
        let index = xid & SLOT_MASK;
        let Some(slot) = self.slots.get_mut(index as usize) else {
            return Ended::Unknown;
        };
        if slot.xid != xid || slot.connection != connection {
            return Ended::Unknown;
        }
        let tag = slot.tag;
        match slot.state {
            State::Waiting => {
                slot.state = State::Free;
                self.timers.cancel(index);
                self.waiting -= 1;
                self.free.push(index);
                Ended::Call(tag)
            }
            State::TimedOut => {
                slot.state = State::Free;
                self.free.push(index);
                Ended::TimedOut
            }
            State::Bulk(bulk) | State::BulkTimedOut(bulk) => Ended::Bulk(bulk.into()),
            State::Free => Ended::Unknown,
        }
    }

    /// The slot of the bulk data of the call with this XID, if it is one of that connection.
    pub(crate) fn bulk_of(&self, xid: u32, connection: ConnectionKey) -> Option<u32> {
        let slot = self.slots.get((xid & SLOT_MASK) as usize)?;
        match slot.state {
            State::Bulk(bulk) | State::BulkTimedOut(bulk)
                if slot.xid == xid && slot.connection == connection =>
            {
                Some(bulk.into())
            }
            _ => None,
        }
    }

    /// Nothing of a call with bulk data is exposed any more: frees its slot.
    pub(crate) fn end_bulk(&mut self, xid: u32, connection: ConnectionKey) {
        let index = xid & SLOT_MASK;
        let slot = self.slots.get_mut(index as usize);
        let Some(slot) = slot.filter(|it| it.xid == xid && it.connection == connection) else {
            return;
        };
        match std::mem::replace(&mut slot.state, State::Free) {
            State::Bulk(_) => self.waiting -= 1,
            State::BulkTimedOut(_) => {}
            other => {
                slot.state = other;
                return;
            }
        }
        self.timers.cancel(index);
        self.free.push(index);
    }

    /// Whether [`Requester::poll_timeouts`] has anything to look at.
    #[inline]
    pub(crate) fn timeouts_due(&self, now: Ticks) -> bool {
        self.timers.is_due(now)
    }

    /// Ends calls whose time is up. Visits at most `budget` timers.
    pub(crate) fn poll_timeouts(
        &mut self,
        now: Ticks,
        budget: u32,
        mut timed_out: impl FnMut(TimedOut),
    ) -> u32 {
        let (slots, waiting) = (&mut self.slots, &mut self.waiting);
        let again = &mut self.again;
        let fired = self.timers.poll(now, budget, |index| {
            let Some(slot) = slots.get_mut(index as usize) else {
                return;
            };
            match slot.state {
                State::Waiting => {
                    slot.state = State::TimedOut;
                    *waiting -= 1;
                    timed_out(TimedOut::Call(slot.tag, slot.connection));
                }
                State::Bulk(bulk) => {
                    slot.state = State::BulkTimedOut(bulk);
                    *waiting -= 1;
                    again.push(index);
                    timed_out(TimedOut::Bulk(bulk.into()));
                }
                State::BulkTimedOut(bulk) => timed_out(TimedOut::BulkAgain(bulk.into())),
                State::Free | State::TimedOut => {}
            }
        });
        if fired != 0 {
            for index in self.again.drain(..) {
                self.timers.set(index, now.saturating_add(self.timeout));
            }
        }
        fired
    }

    /// Looks at `count` slots from `from` on, and ends the calls of `connection` among them:
    /// `ended` gets the tag of each that still waited, and whether it has bulk data. Returns where to go on, and how many slots
    /// it freed.
    pub(crate) fn end_all_of(
        &mut self,
        connection: ConnectionKey,
        from: u32,
        count: u32,
        mut ended: impl FnMut(CallTag, bool),
    ) -> (u32, u32) {
        let mut freed = 0;
        let slots = self.slots.iter_mut().zip(0_u32..);
        for (slot, index) in slots.skip(from as usize).take(count as usize) {
            if slot.state == State::Free || slot.connection != connection {
                continue;
            }
            let is_bulk = matches!(slot.state, State::Bulk(_));
            if slot.state == State::Waiting || is_bulk {
                self.timers.cancel(index);
                self.waiting -= 1;
                ended(slot.tag, is_bulk);
            } else if matches!(slot.state, State::BulkTimedOut(_)) {
                self.timers.cancel(index);
            }
            slot.state = State::Free;
            self.free.push(index);
            freed += 1;
        }
        (from.saturating_add(count), freed)
    }
}

/// What an RPC reply says (RFC 5531 section 9).
#[inline]
pub(crate) fn read_reply(message: &[u8]) -> Result<Reply<'_>, CallError> {
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
        // Handled by the caller: a success is no error.
        AcceptStatus::Success => CallError::BadReply,
        AcceptStatus::ProgUnavail => CallError::ProgramUnavailable,
        AcceptStatus::ProgMismatch { low, high } => CallError::ProgramMismatch { low, high },
        AcceptStatus::ProcUnavail => CallError::ProcedureUnavailable,
        AcceptStatus::GarbageArgs => CallError::GarbageArgs,
        AcceptStatus::SystemErr => CallError::SystemError,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: ConnectionKey = ConnectionKey {
        index: 3,
        generation: 1,
    };
    const THERE: ConnectionKey = ConnectionKey {
        index: 3,
        generation: 2,
    };

    fn begin(requester: &mut Requester, tag: CallTag, now: Ticks) -> u32 {
        let xid = requester.next_xid().expect("a slot is free");
        requester.begin(HERE, tag, now);
        xid
    }

    #[test]
    fn a_call_ends_once_and_on_its_own_connection() {
        let mut requester = Requester::new(2, 1000, 0, 1);
        let first = begin(&mut requester, 10, 0);
        let second = begin(&mut requester, 20, 0);
        assert!(requester.next_xid().is_none());
        assert_eq!(requester.end(first, THERE), Ended::Unknown);
        assert_eq!(requester.end(second, HERE), Ended::Call(20));
        assert_eq!(requester.end(second, HERE), Ended::Unknown);
        assert_eq!(requester.end(first ^ GENERATION_ONE, HERE), Ended::Unknown);
        assert_eq!(requester.end(first, HERE), Ended::Call(10));
        let third = begin(&mut requester, 30, 0);
        assert_ne!(third, first, "the generation tells them apart");
        assert_eq!(
            third & SLOT_MASK,
            first & SLOT_MASK,
            "warm slots are used again"
        );
        assert_eq!(requester.end(first, HERE), Ended::Unknown);
        assert_eq!(requester.waiting(), 1);
    }

    #[test]
    fn the_slot_of_a_late_reply_is_not_used_again_before_it() {
        let mut requester = Requester::new(1, 1000, 0, 1);
        let xid = begin(&mut requester, 10, 0);
        let mut timed_out = Vec::new();
        requester.poll_timeouts(999, 100, |what| timed_out.push(what));
        assert!(timed_out.is_empty(), "never early");
        requester.poll_timeouts(1016, 1000, |what| timed_out.push(what));
        assert_eq!(timed_out, [TimedOut::Call(10, HERE)]);
        assert_eq!(requester.waiting(), 0);
        assert!(requester.next_xid().is_none());
        assert_eq!(requester.end(xid, HERE), Ended::TimedOut);
        assert!(requester.next_xid().is_some());
    }

    #[test]
    fn a_disconnect_ends_every_call_of_the_connection_in_steps() {
        let mut requester = Requester::new(10, 1000, 0, 1);
        for tag in 0..6 {
            let xid = requester.next_xid().expect("a slot is free");
            let connection = if tag % 2 == 0 { HERE } else { THERE };
            requester.begin(connection, tag, 0);
            if tag == 4 {
                assert_eq!(requester.end(xid, connection), Ended::Call(4));
            }
        }
        let (mut from, mut freed, mut tags) = (0, 0, Vec::new());
        while from < 10 {
            let step = requester.end_all_of(HERE, from, 3, |tag, _| tags.push(tag));
            from = step.0;
            freed += step.1;
        }
        tags.sort_unstable();
        assert_eq!((tags.as_slice(), freed), ([0, 2].as_slice(), 2));
        assert_eq!(requester.waiting(), 3);
    }
}
