//! Transmission groups of the extension RTR (RTR sections 4.2 and 9.2 to 9.4): one at a time each way.
//!
//! A group is a Transmit Request or Response and as many Transmit Continue as it announces, in order. Asynchronous
//! grants, RDMA2_ERROR and Report Error may come between them and do not belong to it; nothing else may. A group
//! and a continued sequence (F_MORE) are never open at the same time.

use super::event::SendRefused;
use crate::rpc::Direction;
use crate::v2::rtr::TransmissionId;

/// The state of the incoming group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum State {
    /// No group is open.
    Idle,
    /// A group is being received.
    Open,
    /// A group was given up; its rest is discarded, to its end or to the next message that is no
    /// continuation.
    Discarding,
}

/// A message as an event for the incoming group. Messages that may come between transmissions are none of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Step {
    /// A valid first transmission.
    First,
    /// A continuation that belongs to the group.
    Continue,
    /// A message that breaks the group, or begins one that is refused.
    Broken,
    /// Any other message.
    Other,
}

/// A step that cannot come in this state: it is [`Step::Broken`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct IllegalStep;

impl State {
    /// The state after `step`; `more` says whether transmissions of that group are left.
    pub(super) const fn next(self, step: Step, more: bool) -> Result<Self, IllegalStep> {
        Ok(match (self, step, more) {
            (Self::Idle | Self::Discarding, Step::First, true)
            | (Self::Open, Step::Continue, true) => Self::Open,
            (Self::Discarding, Step::Continue, true) | (_, Step::Broken, true) => Self::Discarding,
            (Self::Idle | Self::Discarding, Step::First | Step::Other, _)
            | (Self::Open | Self::Discarding, Step::Continue, false)
            | (_, Step::Broken, false) => Self::Idle,
            (Self::Open, Step::First | Step::Other, _) | (Self::Idle, Step::Continue, _) => {
                return Err(IllegalStep);
            }
        })
    }
}

/// The incoming group of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inbound {
    state: State,
    direction: Direction,
    xid: u32,
    /// How many transmissions it has.
    transmissions: u32,
    /// The sequence number of the next one.
    next: u32,
    /// Octets of the payload streams that have arrived.
    stream_bytes: u32,
}

impl Inbound {
    pub(super) const IDLE: Self = Self {
        state: State::Idle,
        direction: Direction::Call,
        xid: 0,
        transmissions: 0,
        next: 0,
        stream_bytes: 0,
    };

    #[inline]
    pub(super) const fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle)
    }

    #[inline]
    pub(super) const fn is_open(&self) -> bool {
        matches!(self.state, State::Open)
    }

    pub(super) const fn is_discarding(&self) -> bool {
        matches!(self.state, State::Discarding)
    }

    /// Octets of the payload streams that the open group has brought.
    pub(super) const fn stream_bytes(&self) -> u32 {
        self.stream_bytes
    }

    /// The transmission that has to come next.
    pub(super) const fn expected(&self) -> TransmissionId {
        self.id(self.next)
    }

    /// The latest transmission.
    pub(super) const fn latest(&self) -> TransmissionId {
        self.id(self.next.saturating_sub(1))
    }

    /// The transmission that began the group.
    pub(super) const fn first(&self) -> TransmissionId {
        self.id(0)
    }

    const fn id(&self, sequence: u32) -> TransmissionId {
        TransmissionId {
            xid: self.xid,
            direction: self.direction,
            sequence,
        }
    }

    /// How many transmissions the group has.
    pub(super) const fn transmissions(&self) -> u32 {
        self.transmissions
    }

    /// Whether the transmission that is to come next is the last one.
    pub(super) const fn ends_next(&self) -> bool {
        self.next + 1 == self.transmissions
    }

    /// Whether this continuation is of the group that is discarded.
    pub(super) fn is_rest(&self, id: TransmissionId) -> bool {
        self.is_discarding() && self.xid == id.xid && self.direction == id.direction
    }

    /// Takes the first of so many transmissions.
    pub(super) fn begin(&mut self, first: TransmissionId, transmissions: u32, stream_bytes: u32) {
        self.step(Step::First, transmissions > 1);
        self.xid = first.xid;
        self.direction = first.direction;
        self.transmissions = transmissions;
        self.next = 1;
        self.stream_bytes = stream_bytes;
    }

    /// Takes the continuation that was expected, or one more of a group that is discarded.
    pub(super) fn proceed(&mut self, sequence: u32, stream_bytes: u32) {
        self.next = sequence.saturating_add(1);
        self.stream_bytes = stream_bytes;
        self.step(Step::Continue, self.next < self.transmissions);
    }

    /// Notes a message that does not belong to a group, and may not come inside one.
    pub(super) fn pass_other(&mut self) {
        self.step(Step::Other, false);
    }

    /// Gives up the open group, and returns whether one was open. Its rest is discarded, from the
    /// transmission behind `sequence`.
    pub(super) fn give_up(&mut self, sequence: u32) -> bool {
        if !self.is_open() {
            return false;
        }
        self.next = sequence.saturating_add(1);
        self.step(Step::Broken, self.next < self.transmissions);
        true
    }

    /// Refuses a group that begins: what follows its first transmission is discarded. `None` is an unknown count.
    pub(super) fn refuse(&mut self, first: TransmissionId, transmissions: Option<u32>) {
        self.xid = first.xid;
        self.direction = first.direction;
        self.transmissions = transmissions.unwrap_or(u32::MAX);
        self.next = 1;
        self.step(Step::Broken, self.transmissions > 1);
    }

    fn step(&mut self, step: Step, more: bool) {
        // Callers check the state first. For an illegal step, discarding the rest is the safe choice.
        self.state = self.state.next(step, more).unwrap_or(State::Discarding);
    }
}

/// The outgoing group of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outbound {
    /// The sequence number of the next transmission.
    next: u32,
    transmissions: u32,
}

impl Outbound {
    /// Transmissions that are still to be sent. A credit is reserved for each of them.
    #[inline]
    pub(super) const fn remaining(&self) -> u32 {
        self.transmissions - self.next
    }

    /// The sequence number of the transmission that is to be sent.
    pub(super) fn next(&self) -> Result<u32, SendRefused> {
        if self.remaining() == 0 {
            return Err(SendRefused::NoGroup);
        }
        Ok(self.next)
    }

    /// Notes that the first of `transmissions` transmissions was sent.
    pub(super) fn begin(&mut self, transmissions: u32) {
        self.next = 1;
        self.transmissions = transmissions;
    }

    /// Notes that one more was sent. Returns whether others are left.
    pub(super) fn proceed(&mut self) -> bool {
        self.next += 1;
        self.remaining() > 0
    }
}

#[cfg(test)]
mod tests {
    use super::{State, Step};
    use core::fmt::Write;

    /// Every state, every step. A new edge is a reviewed difference of the snapshot.
    #[test]
    fn table_is_as_reviewed() {
        let mut table = String::new();
        for state in [State::Idle, State::Open, State::Discarding] {
            for step in [Step::First, Step::Continue, Step::Broken, Step::Other] {
                for (more, name) in [(true, "more"), (false, "last")] {
                    let next = state
                        .next(step, more)
                        .map_or_else(|_| "-".to_owned(), |next| format!("{next:?}"));
                    writeln!(table, "{state:?} + {step:?} {name} = {next}")
                        .expect("a String takes all");
                }
            }
        }
        assert_eq!(table, include_str!("group.table"));
    }
}
