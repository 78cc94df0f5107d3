//! A message of a peer that comes in parts.

use rpcrdma_protocol::v2::connection::Direction;

use crate::message::{MessageBuffer, MessagePool};

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

impl Reassembly {
    /// Takes a part at `offset`, where 0 begins a new message.
    pub(crate) fn take_part(
        &mut self,
        pool: &mut MessagePool,
        what: Assembled,
        xid: u32,
        offset: u32,
        part: &[u8],
        last: bool,
    ) -> Taken {
        if offset == 0 {
            self.reset(pool);
            // The last buffer is kept back: a call that is put together must be answered.
            *self = match (pool.available() > 1).then(|| pool.take()).flatten() {
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
            self.reset(pool);
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
        let mut pool = MessagePool::new(2, 8);
        let mut reassembly = Reassembly::Idle;
        let first = reassembly.take_part(&mut pool, CALL, 7, 0, &[1, 2, 3, 4], false);
        assert!(matches!(first, Taken::Incomplete));
        let Taken::Complete(buffer) = reassembly.take_part(&mut pool, CALL, 7, 4, &[5, 6], true)
        else {
            panic!("complete with the last part");
        };
        assert_eq!(buffer.filled(), [1, 2, 3, 4, 5, 6]);
        pool.give(buffer);
        assert_eq!(pool.available(), 2);
    }

    #[test]
    fn the_last_buffer_is_kept_back_and_the_rest_passed_over() {
        let mut pool = MessagePool::new(1, 8);
        let mut reassembly = Reassembly::Idle;
        let first = reassembly.take_part(&mut pool, CALL, 7, 0, &[0; 4], false);
        assert!(matches!(first, Taken::NoRoom));
        let second = reassembly.take_part(&mut pool, CALL, 7, 4, &[0; 4], true);
        assert!(matches!(second, Taken::Incomplete));
        assert!(matches!(reassembly, Reassembly::Idle));
        assert_eq!(pool.available(), 1);
    }

    #[test]
    fn a_message_that_is_too_long_gives_its_buffer_back() {
        let mut pool = MessagePool::new(2, 6);
        let mut reassembly = Reassembly::Idle;
        let _ = reassembly.take_part(&mut pool, CALL, 7, 0, &[0; 4], false);
        let second = reassembly.take_part(&mut pool, CALL, 7, 4, &[0; 4], false);
        assert!(matches!(second, Taken::NoRoom));
        assert!(matches!(reassembly, Reassembly::GivenUp));
        assert_eq!(pool.available(), 2);
        // A new message begins although the old one never ended.
        let anew = reassembly.take_part(&mut pool, CALL, 8, 0, &[0; 4], true);
        assert!(matches!(anew, Taken::Complete(_)));
    }
}
