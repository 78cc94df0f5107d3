//! Work requests, the handles that name things, and the tokens that own them.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};

use super::SetupError;
use crate::memory::Buffer;

/// The number of a port, unique in this process for all time. A token holds it, so that a port recognises the tokens of
/// other ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PortNumber(NonZeroU32);

impl PortNumber {
    /// The number of a new port.
    ///
    /// # Errors
    ///
    /// [`SetupError::Limit`] after 4,294,967,294 ports: with a repeated number, a new port would accept the tokens of
    /// an old port.
    pub(crate) fn new() -> Result<Self, SetupError> {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let next = |last: u32| last.checked_add(1);
        let last = LAST.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        last.ok()
            .and_then(next)
            .and_then(NonZeroU32::new)
            .map(Self)
            .ok_or(SetupError::Limit {
                what: "ports that a process makes",
                asked: 1 << 32,
                limit: u32::MAX.into(),
            })
    }

    /// The number itself.
    pub(crate) fn get(self) -> u32 {
        self.0.get()
    }
}

/// The most segments in a scatter or gather list, over all providers.
pub const SEGMENTS_MAX: usize = 32;

/// Names a queue pair of a port: a dense index, and a generation that distinguishes the queue pairs of one index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueuePairId {
    /// Index into the port's table, smaller than [`super::Attributes::queue_pairs_max`].
    pub index: u32,
    /// Raised whenever the index is used again.
    pub generation: u32,
}

/// Names a receive queue of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReceiveQueueId(pub u16);

/// A Receive that is not posted. Its scatter list is in a table of the port, and this is the only handle to it. A post
/// consumes the handle; the completion returns it. It belongs to the port that made it: other ports refuse it.
#[derive(Debug)]
#[must_use = "a Receive that is dropped is never posted again, and a credit is lost"]
pub struct Receive {
    pub(crate) port: PortNumber,
    pub(crate) slot: u32,
    pub(crate) queue: ReceiveQueueId,
}

impl Receive {
    /// The same token, for one who gives this one up.
    #[inline]
    pub(crate) const fn again(&self) -> Self {
        Self {
            port: self.port,
            slot: self.slot,
            queue: self.queue,
        }
    }

    /// The receive queue that it belongs to.
    #[must_use]
    pub fn queue(&self) -> ReceiveQueueId {
        self.queue
    }
}

/// A message that arrived and has not taken a Receive: see [`PortPoll::next_arrival`](super::PortPoll::next_arrival).
#[derive(Debug)]
pub struct Arrival {
    /// The queue pair that it came on.
    pub queue_pair: QueuePairId,
    /// Its bytes.
    pub bytes: u32,
    /// How many bytes of it are in the memory of the port: fewer than all if it came by its form.
    pub(crate) held_bytes: u32,
    /// How many records the port had taken with it.
    pub(crate) number: u64,
    /// Its headers, if it came by its form.
    pub(crate) formed: Formed,
}

impl Arrival {
    /// The headers of a message that came by its form.
    #[inline]
    #[must_use]
    pub const fn formed(&self) -> Option<&Formed> {
        if self.held_bytes == self.bytes {
            None
        } else {
            Some(&self.formed)
        }
    }
}

/// The most words of a form.
pub const FORM_WORDS_MAX: usize = 4;

/// The headers of a message that has a form: the words that vary. All other words follow from the form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Formed {
    /// The number of the form.
    pub form: u8,
    /// How many words it has: one, or [`FORM_WORDS_MAX`].
    pub count: u8,
    /// The words; those behind `count` mean nothing.
    pub words: [u64; FORM_WORDS_MAX],
}

impl Formed {
    /// No headers.
    pub(crate) const NONE: Self = Self {
        form: 0,
        count: 0,
        words: [0; FORM_WORDS_MAX],
    };
}

/// The forms of messages that a port may carry without their headers: see [`PortSetup::set_forms`](super::PortSetup::set_forms).
#[derive(Clone, Copy, Debug)]
pub struct Forms {
    /// The number of this set, not zero. Two ends carry messages so only if theirs are equal.
    pub number: u32,
    /// What is known of each form, by its number: at most eight.
    pub shapes: &'static [FormShape],
    /// Writes the message of these headers, with what is behind them, into a buffer. Returns its bytes: those of
    /// [`FormShape::header_bytes`], and of what is behind. `None` if they do not fit. Any words give some message.
    pub unfold: fn(&Formed, &[u8], &mut [u8]) -> Option<usize>,
}

impl Forms {
    /// No forms.
    pub(crate) const NONE: Self = Self {
        number: 0,
        shapes: &[],
        unfold: |_, _, _| None,
    };
}

/// The size of a form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FormShape {
    /// How many words vary: one, or [`FORM_WORDS_MAX`].
    pub words: u8,
    /// Bytes of a message besides those that are behind its headers: 1 to 128.
    pub header_bytes: u16,
}

/// The requester's own name for a work request; comes back in its completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct WorkId(pub u64);

/// The key by which a peer names registered memory (`rdma_handle`, RFC 8166 section 3.4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteKey(pub u32);

/// A place in a peer's registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteAddress {
    /// The key that the peer handed out.
    pub key: RemoteKey,
    /// The offset that the peer handed out, in bytes; its meaning is the peer's.
    pub offset: u64,
}

/// A memory window that is bound: the buffer that it exposes has been moved into the port. It
/// belongs to that port: others neither invalidate nor close it.
#[derive(Debug)]
#[must_use = "a window that is dropped stays exposed until its port closes"]
pub struct Window {
    pub(crate) port: PortNumber,
    pub(crate) slot: u32,
    /// The key and offset to hand to the peer. They stand apart, since a [`RemoteAddress`] has four
    /// bytes of padding.
    pub(crate) key: RemoteKey,
    pub(crate) bytes: u32,
    pub(crate) offset: u64,
}

impl Window {
    /// What the peer needs to reach it.
    #[must_use]
    pub fn remote(&self) -> RemoteAddress {
        RemoteAddress {
            key: self.key,
            offset: self.offset,
        }
    }

    /// The bytes that are exposed.
    #[must_use]
    pub fn bytes(&self) -> u32 {
        self.bytes
    }
}

/// How a Send is to be done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendOptions {
    /// Ask for a completion that carries this name. Without it the Send completes in silence,
    /// and its buffers come back by [`super::PortSends::next_returned`] all the same.
    pub signalled: Option<WorkId>,
    /// Invalidate this key at the peer when the Send arrives (Send With Invalidate).
    pub invalidate: Option<RemoteKey>,
}

/// A gather or scatter list under construction: buffers, each with the range that counts.
///
/// The list owns its buffers. Posting drains it; when posting fails it is left as it was.
#[derive(Debug, Default)]
pub struct Gather {
    segments: Vec<(Buffer, u32, u32)>,
}

impl Gather {
    /// An empty list with room for [`SEGMENTS_MAX`] segments, so that filling it never allocates.
    #[must_use]
    pub fn new() -> Self {
        Self {
            segments: Vec::with_capacity(SEGMENTS_MAX),
        }
    }

    /// Appends `bytes` bytes of `buffer` from `offset`. Gives the buffer back when the list is
    /// full or the range does not lie within the buffer.
    pub fn push(&mut self, buffer: Buffer, offset: u32, bytes: u32) -> Result<(), Buffer> {
        let fits = offset
            .checked_add(bytes)
            .is_some_and(|end| end <= buffer.capacity());
        if self.segments.len() == SEGMENTS_MAX || !fits {
            return Err(buffer);
        }
        self.segments.push((buffer, offset, bytes));
        Ok(())
    }

    /// Takes the last segment off: buffer, offset, bytes.
    pub fn pop(&mut self) -> Option<(Buffer, u32, u32)> {
        self.segments.pop()
    }

    /// Removes the buffer of the first segment; the last one takes its place. A provider that has copied the segment
    /// returns its buffer so, when the order does not count any more.
    pub(crate) fn take_first(&mut self) -> Option<Buffer> {
        (!self.segments.is_empty()).then(|| self.segments.swap_remove(0).0)
    }

    /// Exchanges the segments with those of `other`, so that a provider takes over a list without an allocation.
    pub(crate) fn swap(&mut self, other: &mut Self) {
        std::mem::swap(&mut self.segments, &mut other.segments);
    }

    /// Whether a segment is not to be written ([`Buffer::is_view`]).
    pub(crate) fn has_view(&self) -> bool {
        self.segments.iter().any(|(buffer, ..)| buffer.is_view())
    }

    /// The segments in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &(Buffer, u32, u32)> {
        self.segments.iter()
    }

    /// The number of segments.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.segments.len()
    }

    /// Whether the list is empty.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// The bytes of all segments together.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.segments
            .iter()
            .map(|(_, _, bytes)| u64::from(*bytes))
            .sum()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::interface::Completion;

    #[test]
    fn no_two_ports_have_the_same_number() {
        let numbers = [(); 3].map(|()| PortNumber::new().expect("few ports were made"));
        assert_ne!(numbers[0], numbers[1]);
        assert_ne!(numbers[1], numbers[2]);
        assert_ne!(numbers[0], numbers[2]);
    }

    /// They are moved several times for each message.
    #[test]
    fn tokens_are_small() {
        assert_eq!(size_of::<Receive>(), 12);
        assert_eq!(size_of::<Option<Receive>>(), 12);
        assert_eq!(size_of::<Window>(), 24);
        assert_eq!(size_of::<Option<Window>>(), 24);
        assert_eq!(size_of::<Completion>(), 56);
    }
}
