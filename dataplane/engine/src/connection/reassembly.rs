//! Messages of a peer that arrive in parts, and transmission groups: what has arrived so far.

use rpcrdma_protocol::v2::connection::Direction;

use crate::message::{MessageBuffer, MessagePool, MessagesOf, Use};

/// What is assembled from parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Assembled {
    /// An RPC message.
    Message(Direction),
    /// A property set.
    Properties,
}

/// What arrives in one direction. Calls and replies have separate lanes: if waiting calls could hold back replies, two
/// ends that call each other could wait for each other.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    pub(crate) reassembly: Reassembly,
    pub(crate) parts: PartCounts,
    /// The transmission group that is being received.
    pub(crate) group: Option<GroupIn>,
    /// The number of the latest transmission group.
    pub(crate) groups_come: u32,
}

impl Lane {
    /// The number of the group of a transmission that arrived.
    pub(crate) fn number_group(&mut self, is_first: bool) -> u32 {
        if is_first {
            self.groups_come = self.groups_come.wrapping_add(1);
        }
        self.groups_come
    }

    /// The slot of the group of this number, if it is the one that is being received.
    pub(crate) fn slot_of_group(&self, number: u32) -> Option<u32> {
        let group = self.group.filter(|it| it.number == number);
        group.map(|it| it.slot)
    }

    /// Stops receiving transmissions for the call in a slot, which is giving back its Receives.
    #[inline]
    pub(crate) fn leave_group(&mut self, slot: u32) {
        self.group.take_if(|it| it.slot == slot);
    }

    /// Gives up incomplete messages, at the end of the connection.
    pub(crate) fn close(&mut self, pool: &mut MessagePool) {
        self.reassembly.reset(pool);
        self.group = None;
    }
}

/// A transmission group that is being received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupIn {
    /// The slot of the incoming call, or of the call that the incoming reply answers.
    pub(crate) slot: u32,
    /// Its number among the groups of its lane.
    pub(crate) number: u32,
}

/// The message of a lane that is being assembled. The protocol allows one at a time; parts of calls that wait are
/// assembled later than they arrived.
#[derive(Debug, Default)]
pub(crate) enum Reassembly {
    /// None.
    #[default]
    Idle,
    /// Parts were copied to a message buffer.
    Open {
        what: Assembled,
        xid: u32,
        buffer: MessageBuffer,
    },
    /// No buffer was free when it began: its other parts are ignored.
    GivenUp,
}

/// Numbers the waiting parts of a lane, so that they are taken in the order of their arrival.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PartCounts {
    /// The number that the next waiting part gets.
    pub(crate) next: u32,
    /// The number of the part that has waited longest.
    pub(crate) first: u32,
    /// The number of the message of the parts that arrive now.
    pub(crate) message: u32,
    /// The number of the message that is being assembled, or was last.
    pub(crate) assembling: u32,
}

impl PartCounts {
    /// The number of the message that a part at `offset` belongs to; 0 begins a new one.
    pub(crate) fn number_message(&mut self, offset: u32) -> u32 {
        if offset == 0 {
            self.message = self.message.wrapping_add(1);
        }
        self.message
    }

    /// The number of a part that has to wait.
    pub(crate) fn number(&mut self) -> u32 {
        let number = self.next;
        self.next = number.wrapping_add(1);
        number
    }

    /// Notes that the part that has waited longest was taken.
    pub(crate) fn take_first(&mut self) {
        self.first = self.first.wrapping_add(1);
    }

    /// Notes that the latest waiting part was given up.
    pub(crate) fn forget_last(&mut self) {
        self.next = self.next.wrapping_sub(1);
    }

    /// Whether parts wait.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.next != self.first
    }
}

/// The result of taking a part.
#[derive(Debug)]
pub(crate) enum Taken {
    /// More parts are to come, or this one was ignored.
    Incomplete,
    /// The message is complete.
    Complete(MessageBuffer),
    /// The message is given up with this part: no buffer is free, or it is too long.
    NoRoom,
}

impl Assembled {
    /// The lane of its parts: property sets use that of calls.
    #[inline]
    pub(crate) fn lane(self) -> Direction {
        match self {
            Self::Message(direction) => direction,
            Self::Properties => Direction::Call,
        }
    }

    /// The use for which it takes a message buffer.
    #[inline]
    pub(crate) fn purpose(self) -> Use {
        match self {
            Self::Message(Direction::Reply) => Use::ReplyIn,
            Self::Message(Direction::Call) | Self::Properties => Use::CallIn,
        }
    }
}

impl Reassembly {
    /// Takes a part at `offset`, where 0 begins a new message.
    pub(crate) fn take_part(
        &mut self,
        messages: &mut MessagesOf<'_>,
        what: Assembled,
        xid: u32,
        offset: u32,
        part: &[u8],
        last: bool,
    ) -> Taken {
        // Also gives back the buffer of a message that never ended.
        if offset == 0 {
            self.reset(messages.pool);
            *self = match messages.take(what.purpose()) {
                Some(buffer) => Self::Open { what, xid, buffer },
                None => Self::given_up(last),
            };
            if !matches!(self, Self::Open { .. }) {
                return Taken::NoRoom;
            }
        }
        let Self::Open { buffer, .. } = self else {
            // The rest of a message that was given up.
            *self = Self::given_up(last);
            return Taken::Incomplete;
        };
        let in_order = usize::try_from(offset).is_ok_and(|offset| offset == buffer.filled().len());
        debug_assert!(in_order, "the protocol numbers the parts without gaps");
        buffer.append(part);
        if !in_order || !buffer.is_whole() {
            self.reset(messages.pool);
            *self = Self::given_up(last);
            return Taken::NoRoom;
        }
        if !last {
            return Taken::Incomplete;
        }
        match std::mem::take(self) {
            Self::Open { buffer, .. } => Taken::Complete(buffer),
            Self::Idle | Self::GivenUp => Taken::Incomplete,
        }
    }

    fn given_up(last: bool) -> Self {
        if last { Self::Idle } else { Self::GivenUp }
    }

    /// Gives up an incomplete message, and returns its kind and XID.
    pub(crate) fn reset(&mut self, pool: &mut MessagePool) -> Option<(Assembled, u32)> {
        match std::mem::take(self) {
            Self::Open { what, xid, buffer } => {
                pool.give(buffer);
                Some((what, xid))
            }
            Self::Idle | Self::GivenUp => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: Assembled = Assembled::Message(Direction::Call);

    #[test]
    fn parts_become_a_message() {
        let mut pool = MessagePool::new(1, 0, 8).expect("memory");
        let mut reassembly = Reassembly::Idle;
        let first = reassembly.take_part(&mut pool.of(0), CALL, 7, 0, &[1, 2, 3, 4], false);
        assert!(matches!(first, Taken::Incomplete));
        let Taken::Complete(buffer) =
            reassembly.take_part(&mut pool.of(0), CALL, 7, 4, &[5, 6], true)
        else {
            panic!("complete with the last part");
        };
        assert_eq!(buffer.filled(), [1, 2, 3, 4, 5, 6]);
        pool.give(buffer);
        assert_eq!(pool.available(), 4);
    }

    #[test]
    fn without_a_buffer_the_message_is_passed_over() {
        let mut pool = MessagePool::new(1, 0, 8).expect("memory");
        let other = pool.take(0, Use::CallIn).expect("its own");
        let mut reassembly = Reassembly::Idle;
        let first = reassembly.take_part(&mut pool.of(0), CALL, 7, 0, &[0; 4], false);
        assert!(matches!(first, Taken::NoRoom));
        let second = reassembly.take_part(&mut pool.of(0), CALL, 7, 4, &[0; 4], true);
        assert!(matches!(second, Taken::Incomplete));
        assert!(matches!(reassembly, Reassembly::Idle));
        pool.give(other);
        assert_eq!(pool.available(), 4);
    }

    #[test]
    fn a_message_that_is_too_long_gives_its_buffer_back() {
        let mut pool = MessagePool::new(1, 0, 6).expect("memory");
        let mut reassembly = Reassembly::Idle;
        let _ = reassembly.take_part(&mut pool.of(0), CALL, 7, 0, &[0; 4], false);
        let second = reassembly.take_part(&mut pool.of(0), CALL, 7, 4, &[0; 4], false);
        assert!(matches!(second, Taken::NoRoom));
        assert!(matches!(reassembly, Reassembly::GivenUp));
        assert_eq!(pool.available(), 4);
        // A new message begins although the old one never ended.
        let anew = reassembly.take_part(&mut pool.of(0), CALL, 8, 0, &[0; 4], true);
        assert!(matches!(anew, Taken::Complete(_)));
    }

    /// The protocol tells of a message that was broken before the next one begins. Were it not so, no buffer would be
    /// lost.
    #[test]
    fn a_message_that_begins_anew_gives_the_buffer_of_the_one_before_back() {
        let mut pool = MessagePool::new(1, 0, 8).expect("memory");
        let mut reassembly = Reassembly::Idle;
        for xid in [7, 8] {
            let first = reassembly.take_part(&mut pool.of(0), CALL, xid, 0, &[0; 4], false);
            assert!(matches!(first, Taken::Incomplete), "call {xid}");
        }
        let last = reassembly.take_part(&mut pool.of(0), CALL, 8, 4, &[1], true);
        let Taken::Complete(buffer) = last else {
            panic!("complete with the last part");
        };
        assert_eq!(buffer.filled(), [0, 0, 0, 0, 1]);
        pool.give(buffer);
        assert_eq!(pool.available(), 4);
    }
}
