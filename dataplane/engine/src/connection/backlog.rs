//! Messages that could not be sent immediately: too long for one Send, or without a credit.

use rpcrdma_protocol::v2::connection::Direction;

use crate::message::MessageBuffer;

/// Marks the end of a list.
const NONE: u32 = u32::MAX;

/// The messages that wait on one connection, first in, first out, linked through [`Backlog`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outbound {
    head: u32,
    tail: u32,
    len: u32,
    /// How many of them are replies.
    replies: u32,
}

impl Outbound {
    pub(crate) const EMPTY: Self = Self {
        head: NONE,
        tail: NONE,
        len: 0,
        replies: 0,
    };

    #[inline]
    pub(crate) fn replies(&self) -> u32 {
        self.replies
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.head == NONE
    }
}

/// An RPC message on its way out.
#[derive(Debug)]
pub(crate) struct OutgoingMessage {
    pub(crate) xid: u32,
    pub(crate) direction: Direction,
    pub(crate) buffer: MessageBuffer,
    pub(crate) sent_bytes: usize,
    /// The call of a peer whose chunk lists its last part returns.
    pub(crate) chunks: Option<u32>,
}

impl OutgoingMessage {
    /// A message without chunks, of which nothing was sent.
    pub(crate) fn new(xid: u32, direction: Direction, buffer: MessageBuffer) -> Self {
        Self {
            xid,
            direction,
            buffer,
            sent_bytes: 0,
            chunks: None,
        }
    }
}

#[derive(Debug)]
struct Entry {
    message: Option<OutgoingMessage>,
    next: u32,
}

/// The messages that wait on all connections of a core. There is an entry for each message buffer, and every message
/// holds one, so that entries never run out.
#[derive(Debug)]
pub(crate) struct Backlog {
    entries: Box<[Entry]>,
    free: Vec<u32>,
    /// Messages that were taken off, modulo 2^64.
    popped: u64,
}

impl Backlog {
    pub(crate) fn new(message_buffers: u32) -> Self {
        Self {
            entries: (0..message_buffers)
                .map(|_| Entry {
                    message: None,
                    next: NONE,
                })
                .collect(),
            free: (0..message_buffers).rev().collect(),
            popped: 0,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.free.len() == self.entries.len()
    }

    /// Messages that were taken off the lists so far.
    pub(crate) fn popped(&self) -> u64 {
        self.popped
    }

    /// Appends a message to a connection's list. Gives it back when there is no entry, which
    /// cannot be while there is one for each message buffer.
    pub(crate) fn push(
        &mut self,
        list: &mut Outbound,
        message: OutgoingMessage,
    ) -> Result<(), OutgoingMessage> {
        let Some(id) = self.free.pop() else {
            return Err(message);
        };
        list.replies += u32::from(message.direction == Direction::Reply);
        if let Some(entry) = self.entries.get_mut(id as usize) {
            entry.message = Some(message);
            entry.next = NONE;
        }
        match self.entries.get_mut(list.tail as usize) {
            Some(tail) => tail.next = id,
            None => list.head = id,
        }
        list.tail = id;
        list.len += 1;
        Ok(())
    }

    /// The message of a connection's list that is next to be sent.
    pub(crate) fn first_mut(&mut self, list: &Outbound) -> Option<&mut OutgoingMessage> {
        self.entries.get_mut(list.head as usize)?.message.as_mut()
    }

    /// Moves a call of which nothing was sent from the front to the end of the list: replies, which end calls and free
    /// their resources, are sent before new calls.
    pub(crate) fn prefer_replies(&mut self, list: &mut Outbound) {
        // The parts of a message must not be separated: one that has begun stays first.
        let may_wait = |message: &mut OutgoingMessage| {
            message.direction == Direction::Call && message.sent_bytes == 0
        };
        if list.len >= 2
            && self.first_mut(list).is_some_and(may_wait)
            && let Some(call) = self.pop(list)
        {
            let pushed = self.push(list, call);
            debug_assert!(pushed.is_ok(), "an entry was freed just now");
        }
    }

    /// Takes the first message off a connection's list.
    pub(crate) fn pop(&mut self, list: &mut Outbound) -> Option<OutgoingMessage> {
        let id = list.head;
        let entry = self.entries.get_mut(id as usize)?;
        list.head = entry.next;
        if list.head == NONE {
            list.tail = NONE;
        }
        list.len -= 1;
        let message = entry.message.take();
        let is_reply = |message: &OutgoingMessage| message.direction == Direction::Reply;
        list.replies -= u32::from(message.as_ref().is_some_and(is_reply));
        self.free.push(id);
        self.popped = self.popped.wrapping_add(1);
        message
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{MessagePool, Use};
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        /// Against one queue per connection: order holds, entries are neither lost nor doubled.
        #[test]
        fn lists_are_queues(operations in proptest::collection::vec((0_usize..3, any::<bool>()), 0..100)) {
            const BUFFERS: u32 = 11;
            let mut pool = MessagePool::new(1, BUFFERS - 4, 16).expect("memory");
            let mut outgoing = Backlog::new(BUFFERS);
            let mut lists = [Outbound::EMPTY; 3];
            let mut oracle = [const { VecDeque::new() }; 3];
            let mut xid = 0;
            for (list, push) in operations {
                if push {
                    let Some(buffer) = pool.take(0, Use::CallOut) else { continue };
                    xid += 1;
                    let direction = Direction::Call;
                    let message = OutgoingMessage { xid, direction, buffer, sent_bytes: 0, chunks: None };
                    prop_assert!(outgoing.push(&mut lists[list], message).is_ok());
                    oracle[list].push_back(xid);
                } else {
                    let popped = outgoing.pop(&mut lists[list]);
                    prop_assert_eq!(popped.as_ref().map(|message| message.xid), oracle[list].pop_front());
                    if let Some(message) = popped {
                        pool.give(message.buffer);
                    }
                }
                prop_assert_eq!(lists[list].is_empty(), oracle[list].is_empty());
                prop_assert_eq!(lists[list].len as usize, oracle[list].len());
                prop_assert_eq!(outgoing.is_empty(), oracle.iter().all(VecDeque::is_empty));
            }
        }
    }
}
