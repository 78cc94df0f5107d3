//! Record marking: RPC messages on a byte stream such as TCP (RFC 5531 section 11).
//!
//! A message is sent in fragments. Each begins with a word: its length in octets, and in the highest bit
//! whether it is the last one.

/// Octets of a fragment's header.
pub const HEADER_BYTES: usize = 4;

/// The bit that marks the last fragment of a message.
pub const LAST_FRAGMENT: u32 = 1 << 31;

/// The header of a message in one fragment; `None` if the message is too long for one.
#[must_use]
pub fn header(message_bytes: usize) -> Option<[u8; HEADER_BYTES]> {
    let length = u32::try_from(message_bytes).ok()?;
    (length < LAST_FRAGMENT).then(|| (length | LAST_FRAGMENT).to_be_bytes())
}

/// An error after which the rest of the stream cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// A message exceeds the limit.
    #[error("a message of more than {bytes_max} octets")]
    TooLong {
        /// The limit in octets.
        bytes_max: usize,
    },
}

/// Assembles messages from a stream, which may arrive in any pieces.
///
/// Read into [`Records::space`], report the received octets to [`Records::filled`], and take the complete
/// messages from [`Records::next_message`]. The memory grows with the longest message, to at most twice the
/// limit of a message.
#[derive(Debug)]
pub struct Records {
    bytes: Vec<u8>,
    /// The start of the current message. The octets before it were returned.
    taken: usize,
    /// The start of the next fragment's header.
    at: usize,
    /// The end of the received octets.
    end: usize,
    /// The assembled octets of the current message.
    message_bytes: usize,
    message_bytes_max: usize,
}

/// The room for a read when the length of the next fragment is unknown.
const READ_BYTES: usize = 16 * 1024;

impl Records {
    /// For messages of at most `message_bytes_max` octets.
    #[must_use]
    pub fn new(message_bytes_max: usize) -> Self {
        Self {
            bytes: Vec::new(),
            taken: 0,
            at: 0,
            end: 0,
            message_bytes: 0,
            message_bytes_max,
        }
    }

    /// Room for the next octets, never empty.
    pub fn space(&mut self) -> &mut [u8] {
        // Moves the current message and the octets after it to the front, without the headers of its
        // fragments. So a peer that sends empty fragments endlessly does not make the memory grow.
        let message = self.taken..self.taken + self.message_bytes;
        self.bytes.copy_within(message, 0);
        self.bytes
            .copy_within(self.at..self.end, self.message_bytes);
        self.end = self.message_bytes + (self.end - self.at);
        self.at = self.message_bytes;
        self.taken = 0;
        let fragment_bytes = self
            .fragment()
            .map_or(0, |(length, _)| length.min(self.message_bytes_max));
        let wanted = (self.at + HEADER_BYTES + fragment_bytes).max(self.end + 1);
        if self.bytes.len() < wanted {
            self.bytes.resize(wanted.max(READ_BYTES), 0);
        }
        self.bytes.get_mut(self.end..).unwrap_or(&mut [])
    }

    /// Reports that `count` octets of the space were received.
    pub fn filled(&mut self, count: usize) {
        self.end = (self.end + count).min(self.bytes.len());
    }

    /// The next complete message.
    ///
    /// # Errors
    /// [`RecordError`], after which the connection must be closed.
    pub fn next_message(&mut self) -> Result<Option<&[u8]>, RecordError> {
        if self.message_bytes == 0 {
            self.taken = self.at;
        }
        while let Some((length, is_last)) = self.fragment() {
            if self.message_bytes.saturating_add(length) > self.message_bytes_max {
                return Err(RecordError::TooLong {
                    bytes_max: self.message_bytes_max,
                });
            }
            let start = self.at + HEADER_BYTES;
            let end = start + length;
            if end > self.end {
                return Ok(None);
            }
            // Joins the fragment to the assembled octets.
            self.bytes
                .copy_within(start..end, self.taken + self.message_bytes);
            self.message_bytes += length;
            self.at = end;
            if is_last {
                let message = self.taken..self.taken + self.message_bytes;
                self.message_bytes = 0;
                self.taken = self.at;
                return Ok(self.bytes.get(message));
            }
        }
        Ok(None)
    }

    /// The length of the next fragment, and whether it is the last of its message.
    fn fragment(&self) -> Option<(usize, bool)> {
        let header = self.bytes.get(self.at..self.end)?;
        let word = u32::from_be_bytes(*header.first_chunk()?);
        Some(((word & !LAST_FRAGMENT) as usize, word & LAST_FRAGMENT != 0))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn receive(records: &mut Records, bytes: &[u8], pieces: &[usize]) -> Vec<Vec<u8>> {
        let mut messages = Vec::new();
        let mut rest = bytes;
        let mut pieces = pieces.iter().cycle();
        while !rest.is_empty() {
            let space = records.space();
            let count = space.len().min(rest.len()).min(*pieces.next().unwrap());
            space[..count].copy_from_slice(&rest[..count]);
            records.filled(count);
            rest = &rest[count..];
            while let Some(message) = records.next_message().unwrap() {
                messages.push(message.to_vec());
            }
        }
        messages
    }

    proptest! {
        #[test]
        fn messages_come_out_as_they_went_in(
            messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..12),
            fragment in 1_usize..120,
            pieces in prop::collection::vec(1_usize..200, 1..6),
        ) {
            let mut stream = Vec::new();
            for message in &messages {
                let mut rest = &message[..];
                while rest.len() > fragment {
                    stream.extend_from_slice(&u32::try_from(fragment).unwrap().to_be_bytes());
                    stream.extend_from_slice(&rest[..fragment]);
                    rest = &rest[fragment..];
                }
                stream.extend_from_slice(&header(rest.len()).unwrap());
                stream.extend_from_slice(rest);
            }
            let mut records = Records::new(300);
            prop_assert_eq!(receive(&mut records, &stream, &pieces), messages);
            prop_assert_eq!(records.taken, records.end);
        }

        #[test]
        fn any_bytes_are_messages_or_an_error(
            bytes in prop::collection::vec(any::<u8>(), 0..400),
            small in prop::collection::vec(0_u8..9, 0..400),
        ) {
            for bytes in [bytes, small] {
                let mut records = Records::new(64);
                let mut rest = &bytes[..];
                'stream: while !rest.is_empty() {
                    let space = records.space();
                    let count = space.len().min(rest.len()).min(7);
                    space[..count].copy_from_slice(&rest[..count]);
                    records.filled(count);
                    rest = &rest[count..];
                    loop {
                        match records.next_message() {
                            Ok(Some(message)) => prop_assert!(message.len() <= 64),
                            Ok(None) => break,
                            Err(_) => break 'stream,
                        }
                    }
                }
                prop_assert!(records.bytes.len() <= READ_BYTES + 1);
            }
        }
    }

    #[test]
    fn a_message_that_is_too_long_is_refused_before_it_is_received() {
        let mut records = Records::new(8);
        records.space()[..4].copy_from_slice(&header(9).unwrap());
        records.filled(4);
        assert_eq!(
            records.next_message(),
            Err(RecordError::TooLong { bytes_max: 8 })
        );
        assert_eq!(header(1 << 31), None);
    }

    #[test]
    fn empty_fragments_take_no_memory() {
        let mut records = Records::new(64);
        let mut stream = vec![0, 0, 0, 2, 7, 8];
        stream.resize(6 + 4 * 100_000, 0);
        stream.extend_from_slice(&[0x80, 0, 0, 1, 9]);
        assert_eq!(receive(&mut records, &stream, &[5000]), [[7, 8, 9]]);
        assert!(records.bytes.len() <= READ_BYTES + 1);
    }

    #[test]
    fn a_long_message_gets_room_for_all_of_it_at_once() {
        let mut records = Records::new(1 << 20);
        records.space()[..4].copy_from_slice(&header(1 << 20).unwrap());
        records.filled(4);
        assert_eq!(records.next_message(), Ok(None));
        assert_eq!(records.space().len(), 1 << 20);
    }
}
