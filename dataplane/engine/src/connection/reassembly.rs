//! A message of a peer that comes in parts.

use rpcrdma_protocol::v2::connection::Direction;

use crate::message::{MessageBuffer, MessagePool, MessagesOf, Use};

/// What is put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Assembled {
    /// An RPC message.
    Message(Direction),
    /// A property set.
    Properties,
}

/// The message of a connection that is being put together. The protocol allows one at a time.
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
    /// No buffer was free when it began: its other parts are passed over.
    GivenUp,
}

/// Numbers the parts of a connection that wait, so that they are taken in the order in which they
/// came.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PartCounts {
    /// The number of the next part that comes to wait.
    pub(crate) next: u32,
    /// The number of the part that has waited longest.
    pub(crate) first: u32,
    /// The message that the parts that come now belong to.
    pub(crate) message: u32,
    /// The message that is being put together, or was last.
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

    /// Whether parts wait.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.next != self.first
    }
}

/// What became of a part.
#[derive(Debug)]
pub(crate) enum Taken {
    /// More parts are to come, or this one was passed over.
    Incomplete,
    /// The message is complete.
    Complete(MessageBuffer),
    /// The message is given up with this part: no buffer is free, or it is too long.
    NoRoom,
}

impl Assembled {
    /// What a buffer for it is taken for.
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
            *self = Self::given_up(last);
            return Taken::Incomplete;
        };
        let in_order = usize::try_from(offset).is_ok_and(|offset| offset == buffer.filled().len());
        debug_assert!(in_order, "the protocol numbers the parts without gaps");
        if !in_order || buffer.append(part).is_err() {
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

    /// Gives up what was put together, and tells what it was.
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
        let mut pool = MessagePool::new(1, 0, 8);
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
        let mut pool = MessagePool::new(1, 0, 8);
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
        let mut pool = MessagePool::new(1, 0, 6);
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
        let mut pool = MessagePool::new(1, 0, 8);
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
