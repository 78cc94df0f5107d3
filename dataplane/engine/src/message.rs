//! Message buffers: ordinary memory for messages that arrive or are sent in parts, and for replies that wait.

use rpcrdma_fabric::interface::{Receive, SetupError};
use rpcrdma_fabric::memory::{Arena, Buffer, Memory, PoolShape};
use rpcrdma_fabric::share::Share;

use crate::bulk::ReplyItems;
use crate::ledger::{MESSAGE_BUFFERS, MESSAGE_BUFFERS_OF_A_USE};

/// A message that stays in its Receive, and the range of its payload.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) receive: Receive,
    pub(crate) start: usize,
    pub(crate) end: usize,
}

impl Received {
    /// Whether it has some of the payload stream.
    #[inline(always)]
    pub(crate) fn has_stream(&self) -> bool {
        self.end > self.start
    }
}

/// A buffer of the message pool, and how much of it is filled.
#[derive(Debug)]
pub(crate) struct MessageBuffer {
    memory: Memory,
    buffer: Buffer,
    len: usize,
    /// Something that was appended did not fit.
    is_short: bool,
    purpose: Use,
    /// The place of the connection that took it.
    place: u32,
}

impl MessageBuffer {
    /// The bytes that were put in.
    #[inline]
    pub(crate) fn filled(&self) -> &[u8] {
        let bytes = self.memory.bytes(&self.buffer);
        bytes.get(..self.len).unwrap_or(&[])
    }

    /// All of its space, filled or not.
    #[inline]
    pub(crate) fn space(&mut self) -> &mut [u8] {
        self.memory.bytes_mut(&mut self.buffer)
    }

    fn capacity(&self) -> usize {
        usize::try_from(self.buffer.capacity()).unwrap_or(usize::MAX)
    }

    /// Sets how much of [`MessageBuffer::space`] is filled.
    pub(crate) fn set_len(&mut self, len: usize) {
        self.len = len.min(self.capacity());
    }

    /// Appends a part. A part that does not fit is left out, and the message is not whole.
    pub(crate) fn append(&mut self, part: &[u8]) {
        let end = self.len.saturating_add(part.len());
        let begin = self.len;
        match self.space().get_mut(begin..end) {
            Some(space) => {
                space.copy_from_slice(part);
                self.len = end;
            }
            None => self.is_short = true,
        }
    }

    /// Whether everything that was appended fitted.
    pub(crate) fn is_whole(&self) -> bool {
        !self.is_short
    }

    /// Appends an XDR stream with items in their places. Each item is the number of stream bytes before it, and its
    /// pieces; it is padded to whole words. Returns the bytes of the items.
    pub(crate) fn weave<'a, I>(
        &mut self,
        stream: &[u8],
        items: impl Iterator<Item = (usize, I)>,
    ) -> u64
    where
        I: Iterator<Item = &'a [u8]>,
    {
        let (mut at, mut all_bytes) = (0, 0);
        for (offset, pieces) in items {
            self.append(stream.get(at..offset).unwrap_or(&[]));
            at = offset;
            let mut bytes = 0;
            for piece in pieces {
                self.append(piece);
                bytes += piece.len();
            }
            let padding = bytes.next_multiple_of(4) - bytes;
            self.append([0; 3].get(..padding).unwrap_or(&[]));
            all_bytes += bytes as u64;
        }
        self.append(stream.get(at..).unwrap_or(&[]));
        all_bytes
    }
}

/// The use of a message buffer. Each connection always has one buffer for each use: so two cores that are short of
/// buffers do not wait for each other for ever, and no peer can keep another one waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// To assemble a reply.
    ReplyIn,
    /// To answer a call.
    Answer,
    /// To assemble a call or properties.
    CallIn,
    /// To send a call in parts.
    CallOut,
}

const USES: usize = 4;

/// Buffers start on cache lines.
const STRIDE_BYTES: u32 = 64;

/// The message buffers of a core, all made at start-up.
#[derive(Debug)]
pub(crate) struct MessagePool {
    /// Buffers whose pages are allocated come last, and are taken first.
    free: Vec<MessageBuffer>,
    share: Share,
    /// How many each connection has, by its place and the use.
    held: Box<[[u32; USES]]>,
    /// Buffers that came back, modulo 2^64.
    given: u64,
}

impl MessagePool {
    /// As many buffers as `connections` are guaranteed, and `shared` that any of them may have in addition.
    ///
    /// # Errors
    /// When the kernel does not map memory for all of them.
    pub(crate) fn new(
        connections: u32,
        shared: u32,
        buffer_bytes: u32,
    ) -> Result<Self, SetupError> {
        let guaranteed = connections.saturating_mul(MESSAGE_BUFFERS);
        let buffers = guaranteed.saturating_add(shared);
        let stride_bytes = buffer_bytes.checked_next_multiple_of(STRIDE_BYTES);
        let shape = PoolShape {
            buffers,
            buffer_bytes,
            stride_bytes: stride_bytes.unwrap_or(u32::MAX),
            align_bytes: STRIDE_BYTES,
        };
        // Most guaranteed buffers are never used, and take no physical memory until then. The shared ones are
        // touched below, so that the first messages cause no page faults.
        let bytes = u64::from(buffers) * u64::from(shape.stride_bytes);
        let mut arena = Arena::untouched(bytes)?;
        let mut pool = arena.pool(shape)?;
        let mut free: Vec<_> = std::iter::from_fn(|| pool.take())
            .map(|buffer| MessageBuffer {
                memory: arena.memory(),
                buffer,
                len: 0,
                is_short: false,
                purpose: Use::CallOut,
                place: 0,
            })
            .collect();
        let present = free.len().saturating_sub(shared as usize);
        for buffer in free.iter_mut().skip(present) {
            buffer.space().fill(0xa5);
        }
        Ok(Self {
            free,
            share: Share::new(buffers, guaranteed),
            held: vec![[0; USES]; connections as usize].into_boxed_slice(),
            given: 0,
        })
    }

    /// The pool for the connection at `place`.
    #[inline]
    pub(crate) fn of(&mut self, place: u32) -> MessagesOf<'_> {
        MessagesOf { pool: self, place }
    }

    /// Whether there is a buffer for the connection at `place`, for `purpose`.
    #[inline]
    pub(crate) fn has_room(&self, place: u32, purpose: Use) -> bool {
        let held = self.held.get(place as usize);
        let held = held.map_or(u32::MAX, |held| held[purpose as usize]);
        self.share.may_take(held, MESSAGE_BUFFERS_OF_A_USE, 1)
    }

    /// Takes an empty buffer for the connection at `place`.
    pub(crate) fn take(&mut self, place: u32, purpose: Use) -> Option<MessageBuffer> {
        if !self.has_room(place, purpose) {
            return None;
        }
        let held = self.held.get_mut(place as usize)?;
        let mut buffer = self.free.pop()?;
        self.share
            .take(&mut held[purpose as usize], MESSAGE_BUFFERS_OF_A_USE);
        (buffer.len, buffer.is_short) = (0, false);
        (buffer.purpose, buffer.place) = (purpose, place);
        Some(buffer)
    }

    pub(crate) fn give(&mut self, buffer: MessageBuffer) {
        if let Some(held) = self.held.get_mut(buffer.place as usize) {
            self.share
                .give(&mut held[buffer.purpose as usize], MESSAGE_BUFFERS_OF_A_USE);
        }
        self.free.push(buffer);
        self.given = self.given.wrapping_add(1);
    }

    /// Buffers that came back so far.
    pub(crate) fn given(&self) -> u64 {
        self.given
    }

    pub(crate) fn available(&self) -> usize {
        self.free.len()
    }

    /// For the sums: the share, what each connection has by its place and the use, and the buffers that are free.
    #[cfg(test)]
    pub(crate) fn ledger(&self) -> (&Share, &[[u32; USES]], usize) {
        (&self.share, &self.held, self.free.len())
    }
}

/// The message buffers that one connection can have.
#[derive(Debug)]
pub(crate) struct MessagesOf<'a> {
    pub(crate) pool: &'a mut MessagePool,
    place: u32,
}

impl MessagesOf<'_> {
    /// The same, for a shorter time.
    #[inline]
    pub(crate) fn again(&mut self) -> MessagesOf<'_> {
        MessagesOf {
            pool: self.pool,
            place: self.place,
        }
    }

    /// Gives back what a service wrote that panicked: it is no part of the next reply.
    #[cold]
    pub(crate) fn drop_spilled(&mut self, items: &mut ReplyItems) {
        let spilled = items.spilled.take();
        spilled.into_iter().for_each(|it| self.pool.give(it));
    }

    /// Whether there is a buffer for `purpose`.
    pub(crate) fn has_room(&self, purpose: Use) -> bool {
        self.pool.has_room(self.place, purpose)
    }

    pub(crate) fn take(&mut self, purpose: Use) -> Option<MessageBuffer> {
        self.pool.take(self.place, purpose)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USED: [Use; USES] = [Use::ReplyIn, Use::Answer, Use::CallIn, Use::CallOut];

    #[test]
    fn a_buffer_holds_as_much_as_it_says_and_comes_back_empty() {
        let mut pool = MessagePool::new(1, 0, 10).expect("memory");
        let mut buffer = pool.take(0, Use::CallOut).expect("one buffer");
        assert!(pool.take(0, Use::CallOut).is_none());
        buffer.append(&[1; 6]);
        buffer.append(&[3; 4]);
        assert!(buffer.is_whole());
        buffer.append(&[2; 1]);
        assert!(!buffer.is_whole());
        assert_eq!(buffer.filled(), [1, 1, 1, 1, 1, 1, 3, 3, 3, 3]);
        pool.give(buffer);
        let again = pool.take(0, Use::CallOut).expect("given back");
        assert!(again.filled().is_empty() && again.is_whole());
    }

    #[test]
    fn items_are_woven_into_a_stream_with_their_padding() {
        let mut pool = MessagePool::new(1, 0, 16).expect("memory");
        let mut buffer = pool.take(0, Use::CallOut).expect("one buffer");
        let items: [(usize, &[&[u8]]); 3] = [(2, &[&[7; 3], &[8; 2]]), (2, &[]), (3, &[&[9]])];
        let items = items.map(|(offset, pieces)| (offset, pieces.iter().copied()));
        assert_eq!(buffer.weave(&[1, 2, 3, 4], items.into_iter()), 6);
        let woven = [1, 2, 7, 7, 7, 8, 8, 0, 0, 0, 3, 9, 0, 0, 0, 4];
        assert_eq!(buffer.filled(), woven);
        assert!(buffer.is_whole());
        pool.give(buffer);
    }

    #[test]
    fn each_connection_has_its_turn_with_each_use_whatever_others_took_first() {
        for first in USED {
            let mut pool = MessagePool::new(2, 3, 10).expect("memory");
            let mut taken: Vec<_> = std::iter::from_fn(|| pool.take(0, first)).collect();
            assert_eq!(taken.len(), 1 + 3, "its own, and what is shared");
            for (place, purpose) in [0, 1].into_iter().flat_map(|it| USED.map(|of| (it, of))) {
                if (place, purpose) != (0, first) {
                    taken.extend(pool.take(place, purpose));
                    assert!(pool.take(place, purpose).is_none());
                }
            }
            assert_eq!(pool.available(), 0, "and each of them gets it");
            taken.into_iter().for_each(|buffer| pool.give(buffer));
            assert_eq!(pool.available(), 11);
        }
    }
}
