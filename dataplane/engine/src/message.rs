//! Buffers for whole RPC messages, in ordinary memory.

/// A buffer of the message pool, and how much of it is filled.
#[derive(Debug)]
pub(crate) struct MessageBuffer {
    bytes: Box<[u8]>,
    len: usize,
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

/// The message buffers of a core, all made at start-up.
#[derive(Debug)]
pub(crate) struct MessagePool {
    free: Vec<MessageBuffer>,
}

impl MessagePool {
    pub(crate) fn new(buffers: u32, buffer_bytes: u32) -> Self {
        // Not zeroes: the pages are to be there before the first message is.
        let make = || MessageBuffer {
            bytes: vec![0xa5; buffer_bytes as usize].into_boxed_slice(),
            len: 0,
        };
        Self {
            free: (0..buffers).map(|_| make()).collect(),
        }
    }

    /// Takes an empty buffer.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<MessageBuffer> {
        let mut buffer = self.free.pop()?;
        buffer.len = 0;
        Some(buffer)
    }

    /// Gives a buffer back.
    #[inline]
    pub(crate) fn give(&mut self, buffer: MessageBuffer) {
        self.free.push(buffer);
    }

    /// Whether none is left.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.free.is_empty()
    }

    /// Buffers that can be taken.
    pub(crate) fn available(&self) -> usize {
        self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_holds_as_much_as_it_says_and_comes_back_empty() {
        let mut pool = MessagePool::new(1, 10);
        let mut buffer = pool.take().expect("one buffer");
        assert!(pool.take().is_none() && pool.is_empty());
        assert_eq!(buffer.append(&[1; 6]), Ok(()));
        assert_eq!(buffer.append(&[2; 5]), Err(TooLong));
        assert_eq!(buffer.append(&[3; 4]), Ok(()));
        assert_eq!(buffer.filled(), [1, 1, 1, 1, 1, 1, 3, 3, 3, 3]);
        pool.give(buffer);
        assert_eq!(pool.available(), 1);
        assert!(pool.take().expect("given back").filled().is_empty());
    }
}
