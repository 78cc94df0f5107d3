//! Replies that were sent as transmission groups. They are kept in case the requester reports an error in one (RTR
//! section 5.4): then the reply is sent once more, as plain version 2.
//!
//! Nothing acknowledges a reply. It is kept until the requester has granted credits for all messages up to it again, or
//! until a later reply takes its place. Its buffers stay in the pool and are given up when other work needs them. So
//! keeping replies costs no memory; a late report may find its reply dropped.

use crate::bulk::directed::ReplyResult;
use crate::bulk::{BULK_PARTS_MAX, BulkPool};
use crate::rpc::ConnectionKey;
use rpcrdma_protocol::constants::PLAN_ITEMS_MAX;

/// Kept replies that are checked when a call arrives.
const LOOKED_AT_MAX: usize = 4;

/// A piece of a result.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeptPart {
    /// Its buffer in the pool.
    pub(crate) index: u32,
    pub(crate) offset: u32,
    pub(crate) bytes: u32,
}

/// A reply that was sent.
#[derive(Debug, Default)]
pub(crate) struct KeptReply {
    /// Its number among all replies that were ever kept: its buffers are kept under this number.
    pub(crate) number: u32,
    pub(crate) connection: ConnectionKey,
    pub(crate) xid: u32,
    /// Messages sent on its connection, including it.
    pub(crate) sent_total: u32,
    /// The RPC reply without the results outside the stream.
    pub(crate) stream: Box<[u8]>,
    pub(crate) stream_bytes: usize,
    pub(crate) results: Vec<ReplyResult>,
    /// The pieces of the results outside the stream, in order.
    pub(crate) parts: Vec<KeptPart>,
    is_kept: bool,
    /// It is to be sent again.
    pub(crate) is_asked_for: bool,
}

/// The ring of kept replies of a core.
#[derive(Debug)]
pub(crate) struct KeptReplies {
    ring: Box<[KeptReply]>,
    /// The number of the next one.
    next: u32,
    /// The number of the oldest one that is kept; that of the next when none is.
    oldest: u32,
    /// How many are to be sent again.
    asked_for: usize,
}

impl KeptReplies {
    pub(crate) fn new(replies: u32, stream_bytes: u32) -> Self {
        let empty = |_| KeptReply {
            stream: vec![0; stream_bytes as usize].into_boxed_slice(),
            results: Vec::with_capacity(PLAN_ITEMS_MAX),
            parts: Vec::with_capacity(BULK_PARTS_MAX),
            ..KeptReply::default()
        };
        Self {
            ring: (0..replies).map(empty).collect(),
            next: 0,
            oldest: 0,
            asked_for: 0,
        }
    }

    fn place_of(&self, number: u32) -> usize {
        number as usize % self.ring.len().max(1)
    }

    /// A place for one more reply, with its number. It replaces the oldest that is not to be sent again. `None` when
    /// all are to be sent again.
    #[inline(always)]
    pub(crate) fn begin(&mut self, pool: &mut BulkPool) -> Option<&mut KeptReply> {
        if self.asked_for >= self.ring.len() {
            return None;
        }
        let mut number = self.next;
        // A reply that is to be sent again keeps its place: the ring skips it.
        while self.ring.get(self.place_of(number))?.is_asked_for {
            number = number.wrapping_add(1);
        }
        self.next = number.wrapping_add(1);
        let kept_max = u32::try_from(self.ring.len()).unwrap_or(u32::MAX);
        if self.next.wrapping_sub(self.oldest) > kept_max {
            self.oldest = self.next.wrapping_sub(kept_max);
        }
        let place = self.place_of(number);
        let reply = self.ring.get_mut(place)?;
        reply.forget(pool);
        (reply.number, reply.is_kept) = (number, true);
        Some(reply)
    }

    /// Checks some of the oldest replies, and forgets those that their requesters have received.
    #[inline(always)]
    pub(crate) fn forget_taken(
        &mut self,
        pool: &mut BulkPool,
        is_taken: impl Fn(&KeptReply) -> bool,
    ) {
        let mut number = self.oldest;
        for _ in 0..LOOKED_AT_MAX {
            if number == self.next {
                break;
            }
            let place = self.place_of(number);
            let Some(reply) = self.ring.get_mut(place) else {
                break;
            };
            if reply.is_kept && !reply.is_asked_for && is_taken(reply) {
                reply.forget(pool);
            }
            if !reply.is_kept && number == self.oldest {
                self.oldest = self.oldest.wrapping_add(1);
            }
            number = number.wrapping_add(1);
        }
    }

    /// Whether any is kept.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.oldest == self.next
    }

    /// How many are to be sent again.
    #[inline]
    pub(crate) fn asked_for(&self) -> usize {
        self.asked_for
    }

    /// Whether any is to be sent again.
    #[inline]
    pub(crate) fn any_asked_for(&self) -> bool {
        self.asked_for != 0
    }

    /// Marks the reply to a call to be sent again. False when it is not kept.
    pub(crate) fn ask_for(&mut self, connection: ConnectionKey, xid: u32) -> bool {
        let mut kept = self.ring.iter_mut();
        let reply = kept.find(|it| it.is_kept && (it.connection, it.xid) == (connection, xid));
        let Some(reply) = reply else {
            return false;
        };
        if !std::mem::replace(&mut reply.is_asked_for, true) {
            self.asked_for += 1;
        }
        true
    }

    /// The first reply that is to be sent again, from place `from` on: its place, and it.
    pub(crate) fn first_asked_for(&self, from: usize) -> Option<(usize, &KeptReply)> {
        let mut replies = self.ring.iter().enumerate().skip(from);
        replies.find(|(_, reply)| reply.is_asked_for)
    }

    /// Forgets the reply at a place, which may be one to be sent again.
    pub(crate) fn done(&mut self, place: usize, pool: &mut BulkPool) {
        if let Some(reply) = self.ring.get_mut(place) {
            if std::mem::take(&mut reply.is_asked_for) {
                self.asked_for -= 1;
            }
            reply.forget(pool);
        }
    }

    /// Forgets the replies of a connection that closes.
    pub(crate) fn forget_connection(&mut self, connection: ConnectionKey, pool: &mut BulkPool) {
        for place in 0..self.ring.len() {
            let is_of = self.ring.get(place);
            if is_of.is_some_and(|it| it.is_kept && it.connection == connection) {
                self.done(place, pool);
            }
        }
    }
}

impl KeptReply {
    #[inline(always)]
    fn forget(&mut self, pool: &mut BulkPool) {
        for part in &self.parts {
            pool.release(part.index, self.number);
        }
        self.parts.clear();
        self.results.clear();
        self.is_kept = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bulk::Home;
    use crate::bulk::pool_for_tests as pool;

    /// Keeps a reply with one buffer; its number and the index of that.
    fn keep(replies: &mut KeptReplies, pool: &mut BulkPool, xid: u32) -> Option<(u32, u32)> {
        let reply = replies.begin(pool)?;
        let buffer = pool.take()?;
        let (number, index) = (reply.number, buffer.index());
        (reply.xid, reply.sent_total) = (xid, xid);
        reply.parts.push(KeptPart {
            index,
            offset: 0,
            bytes: 4096,
        });
        pool.set_home(index, Home::Kept { reply: number });
        pool.keep(buffer);
        Some((number, index))
    }

    #[test]
    fn kept_replies_yield_their_buffers_oldest_first() {
        let mut pool = pool(4, 4);
        let mut replies = KeptReplies::new(8, 64);
        let kept: Vec<_> = (0..3)
            .map(|xid| keep(&mut replies, &mut pool, xid).expect("room"))
            .collect();
        assert_eq!(pool.available(), 4, "as if nothing was kept");
        let taken: Vec<_> = std::iter::from_fn(|| pool.take()).take(3).collect();
        assert_eq!(taken.len(), 3);
        let is_kept = |&(number, index): &(u32, u32)| pool.kept_for(index, number).is_ok();
        let left: Vec<_> = kept.iter().map(is_kept).collect();
        assert_eq!(left, [false, false, true], "the oldest went first");
        for buffer in taken {
            pool.give(buffer);
        }
        replies.forget_taken(&mut pool, |_| true);
        assert!(replies.is_empty());
        assert_eq!(pool.available(), 4);
    }

    #[test]
    fn a_reply_is_kept_until_it_is_taken_or_the_ring_comes_round() {
        let mut pool = pool(8, 8);
        let mut replies = KeptReplies::new(3, 64);
        let connection = ConnectionKey::default();
        for xid in 0..3 {
            keep(&mut replies, &mut pool, xid).expect("room");
        }
        replies.forget_taken(&mut pool, |reply| reply.sent_total < 1);
        assert!(!replies.ask_for(connection, 0), "it was taken");
        assert!(replies.ask_for(connection, 1) && replies.ask_for(connection, 1));
        assert!(replies.any_asked_for());
        keep(&mut replies, &mut pool, 3).expect("in the place of the first");
        // The second is asked for and stays, and others come and go beside it.
        for xid in [4, 5, 6, 7] {
            keep(&mut replies, &mut pool, xid).expect("passing over what is asked for");
            assert!(!replies.ask_for(connection, xid - 2), "two are kept beside");
        }
        let (place, reply) = replies.first_asked_for(0).expect("there is one");
        assert_eq!(reply.xid, 1);
        assert!(replies.first_asked_for(place + 1).is_none());
        assert!(replies.ask_for(connection, 6) && replies.ask_for(connection, 7));
        assert!(
            keep(&mut replies, &mut pool, 8).is_none(),
            "all are asked for"
        );
        while let Some((place, _)) = replies.first_asked_for(0) {
            replies.done(place, &mut pool);
        }
        assert!(!replies.any_asked_for());
        for xid in 4..100 {
            keep(&mut replies, &mut pool, xid).expect("the oldest goes");
            assert!(!replies.ask_for(connection, xid - 3));
        }
        assert!(
            replies.ask_for(connection, 98),
            "it is among the last three"
        );
        replies.forget_connection(connection, &mut pool);
        assert!(!replies.any_asked_for() && !replies.ask_for(connection, 99));
        assert_eq!(pool.available(), 8);
        let taken = std::iter::from_fn(|| pool.take()).take(8).count();
        assert_eq!(taken, 8, "every buffer is there once");
    }
}
