//! Outstanding work requests: a pool of them, and the lists that contain them.
//!
//! A work request is in the list of its queue pair, in the order of posting, until it is completed. While it waits for
//! the peer's acknowledgement, it is also in the list of its channel, in the order of records. So the cost of an
//! acknowledgement depends on the works that it completes, and not on the number of queue pairs.

use crate::clock::Ticks;
use crate::interface::{Gather, RemoteAddress, Status, Window, WorkId};
use crate::share::Share;

/// No work request.
pub(super) const NONE: u32 = u32::MAX;

/// The kind of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Send,
    Write,
    Read,
    Invalidate,
}

/// A work request.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) kind: Kind,
    pub(super) signalled: Option<WorkId>,
    /// Its status, after it has ended.
    pub(super) ended: Option<Status>,
    /// Whether it is in the list of its channel.
    pub(super) unacked: bool,
    /// Its record holds a descriptor, so the peer may be reading `list`.
    pub(super) pulled: bool,
    /// The position of its record.
    pub(super) position: u32,
    /// Its queue pair's index.
    pub(super) queue_pair: u32,
    /// The buffers of a Send or Write. Its capacity is never released.
    pub(super) list: Gather,
    pub(super) read: Read,
    pub(super) window: Option<Window>,
    next_of_queue_pair: u32,
    next_of_channel: u32,
    previous_of_channel: u32,
}

/// An RDMA Read in progress.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) list: Gather,
    pub(super) from: RemoteAddress,
    pub(super) bytes: u32,
    pub(super) done: u32,
    /// The earliest time of its completion, with the port's delay in both directions.
    pub(super) not_before: Ticks,
}

impl Read {
    /// The place that begins `done` bytes into the scatter list, and the bytes it reaches.
    pub(super) fn at(&self, mut done: u32) -> Option<(*mut u8, u32)> {
        for (buffer, offset, bytes) in self.list.iter() {
            if done < *bytes {
                let from = (*offset + done) as usize;
                return Some((buffer.start().wrapping_add(from), bytes - done));
            }
            done -= bytes;
        }
        None
    }
}

/// A list of work requests: first and last.
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    first: u32,
    last: u32,
}

impl List {
    pub(super) const EMPTY: Self = Self {
        first: NONE,
        last: NONE,
    };

    #[inline]
    pub(super) fn first(self) -> Option<u32> {
        (self.first != NONE).then_some(self.first)
    }

    #[inline]
    pub(super) fn is_empty(self) -> bool {
        self.first == NONE
    }
}

/// All work requests of a port.
#[derive(Debug)]
pub(super) struct Works {
    entries: Vec<Work>,
    free: Vec<u32>,
    share: Share,
    guaranteed: u32,
}

impl Works {
    /// A pool of works for a number of queue pairs, each of which can always have `guaranteed`.
    pub(super) fn new(count: u32, queue_pairs: u32, guaranteed: u32) -> Self {
        let entry = |_| Work {
            kind: Kind::Send,
            signalled: None,
            ended: None,
            unacked: false,
            pulled: false,
            position: 0,
            queue_pair: 0,
            list: Gather::new(),
            read: Read {
                list: Gather::default(),
                from: RemoteAddress {
                    key: crate::interface::RemoteKey(0),
                    offset: 0,
                },
                bytes: 0,
                done: 0,
                not_before: 0,
            },
            window: None,
            next_of_queue_pair: NONE,
            next_of_channel: NONE,
            previous_of_channel: NONE,
        };
        Self {
            entries: (0..count).map(entry).collect(),
            free: (0..count).rev().collect(),
            share: Share::new(count, guaranteed * queue_pairs),
            guaranteed,
        }
    }

    /// Whether a queue pair with this many works outstanding may have `count` more. Each can always have its guarantee,
    /// whatever others leave unfinished.
    #[inline]
    pub(super) fn may_take(&self, outstanding: u32, count: u32) -> bool {
        self.share.may_take(outstanding, self.guaranteed, count)
    }

    /// Records that a work was taken for a queue pair with this many outstanding.
    #[inline]
    pub(super) fn count(&mut self, outstanding: &mut u32) {
        self.share.take(outstanding, self.guaranteed);
    }

    /// Records that a work was released by a queue pair with this many outstanding.
    #[inline]
    pub(super) fn uncount(&mut self, outstanding: &mut u32) {
        self.share.give(outstanding, self.guaranteed);
    }

    /// Takes a work request and appends it to the list of its queue pair.
    #[inline(always)]
    pub(super) fn take(
        &mut self,
        queue_pair: u32,
        list: &mut List,
        kind: Kind,
        signalled: Option<WorkId>,
    ) -> Option<u32> {
        let index = self.free.pop()?;
        let work = self.entries.get_mut(index as usize)?;
        work.kind = kind;
        work.signalled = signalled;
        work.ended = None;
        work.pulled = false;
        work.queue_pair = queue_pair;
        work.next_of_queue_pair = NONE;
        match self.entries.get_mut(list.last as usize) {
            Some(last) => last.next_of_queue_pair = index,
            None => list.first = index,
        }
        list.last = index;
        Some(index)
    }

    #[inline]
    pub(super) fn get(&self, index: u32) -> &Work {
        &self.entries[index as usize]
    }

    #[inline]
    pub(super) fn get_mut(&mut self, index: u32) -> &mut Work {
        &mut self.entries[index as usize]
    }

    /// Takes the first work request off the list of its queue pair, and frees it. The caller has
    /// emptied it, and taken it off its channel's list.
    #[inline]
    pub(super) fn release_first(&mut self, list: &mut List) {
        let index = list.first;
        debug_assert!(!self.get(index).unacked);
        list.first = self.get(index).next_of_queue_pair;
        if list.first == NONE {
            list.last = NONE;
        }
        self.free.push(index);
    }

    /// Appends a work request to the list of its channel.
    #[inline(always)]
    pub(super) fn await_ack(&mut self, channel: &mut List, index: u32, position: u32) {
        let last = channel.last;
        let work = self.get_mut(index);
        work.position = position;
        work.unacked = true;
        work.next_of_channel = NONE;
        work.previous_of_channel = last;
        match self.entries.get_mut(last as usize) {
            Some(entry) => entry.next_of_channel = index,
            None => channel.first = index,
        }
        channel.last = index;
    }

    /// Takes a work request off the list of its channel.
    #[inline]
    pub(super) fn stop_awaiting(&mut self, channel: &mut List, index: u32) {
        let work = self.get_mut(index);
        work.unacked = false;
        let (next, previous) = (work.next_of_channel, work.previous_of_channel);
        match self.entries.get_mut(previous as usize) {
            Some(entry) => entry.next_of_channel = next,
            None => channel.first = next,
        }
        match self.entries.get_mut(next as usize) {
            Some(entry) => entry.previous_of_channel = previous,
            None => channel.last = previous,
        }
    }
}
