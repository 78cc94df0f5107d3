//! Buffers for whole RPC messages, in ordinary memory.

/// A buffer of the message pool, and how much of it is filled.
#[derive(Debug)]
pub(crate) struct MessageBuffer {
    bytes: Box<[u8]>,
    len: usize,
    purpose: Use,
}

/// Appending would exceed the capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooLong;

impl MessageBuffer {
    /// What was put in.
    #[inline]
    pub(crate) fn filled(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }

    /// All of its space, filled or not.
    #[inline]
    pub(crate) fn space(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Says how much of [`MessageBuffer::space`] is filled; at most all of it.
    pub(crate) fn set_len(&mut self, len: usize) {
        self.len = len.min(self.bytes.len());
    }

    /// Appends `part`.
    pub(crate) fn append(&mut self, part: &[u8]) -> Result<(), TooLong> {
        let end = self.len.checked_add(part.len()).ok_or(TooLong)?;
        let space = self.bytes.get_mut(self.len..end).ok_or(TooLong)?;
        space.copy_from_slice(part);
        self.len = end;
        Ok(())
    }
}

/// What a message buffer is taken for. Each use but the last always has its turn: while it has no
/// buffer, one is kept back for it. Two cores that are both short of buffers therefore do not wait
/// for each other for ever: what each of them sends is taken, if only one at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// To put a reply together.
    ReplyIn,
    /// To answer a call.
    Answer,
    /// To put a call, or properties, together.
    CallIn,
    /// To send a call in parts. It has no claim: such calls wait until there is plenty.
    CallOut,
}

const USES: [Use; 4] = [Use::ReplyIn, Use::Answer, Use::CallIn, Use::CallOut];

/// The least number of buffers with which every use gets its turn.
pub(crate) const BUFFERS_MIN: u32 = 4;

/// The message buffers of a core, all made at start-up.
#[derive(Debug)]
pub(crate) struct MessagePool {
    free: Vec<MessageBuffer>,
    in_use: [usize; USES.len()],
    /// Buffers that each use must leave to the others.
    kept_back: [usize; USES.len()],
}

impl MessagePool {
    pub(crate) fn new(buffers: u32, buffer_bytes: u32) -> Self {
        // Not zeroes: the pages are to be there before the first message is.
        let make = || MessageBuffer {
            bytes: vec![0xa5; buffer_bytes as usize].into_boxed_slice(),
            len: 0,
            purpose: Use::CallOut,
        };
        let mut pool = Self {
            free: (0..buffers).map(|_| make()).collect(),
            in_use: [0; USES.len()],
            kept_back: [0; USES.len()],
        };
        pool.count_kept_back();
        pool
    }

    /// Whether there is a buffer for `purpose`.
    #[inline]
    pub(crate) fn has_room(&self, purpose: Use) -> bool {
        self.free.len() > self.kept_back[purpose as usize]
    }

    /// Takes an empty buffer.
    pub(crate) fn take(&mut self, purpose: Use) -> Option<MessageBuffer> {
        if !self.has_room(purpose) {
            return None;
        }
        let mut buffer = self.free.pop()?;
        buffer.len = 0;
        buffer.purpose = purpose;
        self.in_use[purpose as usize] += 1;
        self.count_kept_back();
        Some(buffer)
    }

    /// Gives a buffer back.
    pub(crate) fn give(&mut self, buffer: MessageBuffer) {
        self.in_use[buffer.purpose as usize] -= 1;
        self.free.push(buffer);
        self.count_kept_back();
    }

    /// Buffers that are free.
    pub(crate) fn available(&self) -> usize {
        self.free.len()
    }

    fn count_kept_back(&mut self) {
        let claims = |other: &Use| *other != Use::CallOut && self.in_use[*other as usize] == 0;
        self.kept_back = USES.map(|purpose| {
            let others = USES.iter().filter(|other| **other != purpose);
            others.filter(|other| claims(other)).count()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_holds_as_much_as_it_says_and_comes_back_empty() {
        let mut pool = MessagePool::new(BUFFERS_MIN, 10);
        let mut buffer = pool.take(Use::CallOut).expect("one buffer");
        assert!(pool.take(Use::CallOut).is_none());
        assert_eq!(buffer.append(&[1; 6]), Ok(()));
        assert_eq!(buffer.append(&[2; 5]), Err(TooLong));
        assert_eq!(buffer.append(&[3; 4]), Ok(()));
        assert_eq!(buffer.filled(), [1, 1, 1, 1, 1, 1, 3, 3, 3, 3]);
        pool.give(buffer);
        let again = pool.take(Use::CallOut).expect("given back");
        assert!(again.filled().is_empty());
    }

    #[test]
    fn each_use_has_its_turn_whatever_the_others_took_first() {
        for first in USES {
            let mut pool = MessagePool::new(BUFFERS_MIN, 10);
            let mut taken: Vec<_> = std::iter::from_fn(|| pool.take(first)).collect();
            let claims = if first == Use::CallOut { 3 } else { 2 };
            assert_eq!(
                pool.available(),
                claims,
                "{first:?} leaves one to each of the others"
            );
            for purpose in USES
                .into_iter()
                .filter(|it| ![first, Use::CallOut].contains(it))
            {
                taken.extend(pool.take(purpose));
            }
            assert_eq!(pool.available(), 0, "and each of them gets it");
            taken.into_iter().for_each(|buffer| pool.give(buffer));
            assert_eq!(pool.available(), BUFFERS_MIN as usize);
        }
    }
}
