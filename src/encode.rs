//! Writing XDR (RFC 4506), with data that goes beside the stream.

use crate::buffers::Buffer;

/// Writes arguments or results: [`Request`](crate::Request) of a client, [`Reply`](crate::Reply) and
/// [`Results`](crate::Results) of a server.
///
/// Nothing here fails. What does not fit makes the whole message fail: a request with
/// [`ErrorKind::TooLong`](crate::ErrorKind::TooLong), a reply with SYSTEM_ERR (RFC 5531 section 9).
pub trait Encode {
    /// Appends bytes as they are. A stream of XDR is a multiple of four bytes long.
    fn bytes(&mut self, bytes: &[u8]) -> &mut Self;

    /// Appends an opaque of variable length: the length in the stream, and the data beside it, sent from where it is. The
    /// data goes into the stream where the other end cannot take it otherwise, or where it is so short that a copy is
    /// faster. The program must permit this for the item (it is *DDP-eligible*, RFC 8166 section 6).
    fn bulk(&mut self, buffer: Buffer) -> &mut Self;

    /// As [`Encode::bulk`], with data in ordinary memory, which is copied: into registered memory, or into the stream where
    /// there is none to spare.
    fn bulk_copy(&mut self, data: &[u8]) -> &mut Self {
        match self.buffer_for(data.len()) {
            Some(mut buffer) => {
                buffer.copy_from(data);
                self.bulk(buffer)
            }
            None => self.opaque(data),
        }
    }

    /// Registered memory for `bytes` bytes of this message, which hold remains of earlier data. `None` while there is none
    /// to spare. For the first requests of a client, whose core brings the memory when it next polls, use
    /// [`Buffers::wait`](crate::Buffers::wait).
    fn buffer_for(&mut self, bytes: usize) -> Option<Buffer>;

    /// Appends a word.
    fn u32(&mut self, word: u32) -> &mut Self {
        self.bytes(&word.to_be_bytes())
    }

    /// Appends a hyper.
    fn u64(&mut self, hyper: u64) -> &mut Self {
        self.bytes(&hyper.to_be_bytes())
    }

    /// Appends a boolean.
    fn bool(&mut self, value: bool) -> &mut Self {
        self.u32(value.into())
    }

    /// Appends an opaque of variable length, copied into the stream: length, data, and padding to a multiple of four. An
    /// XDR string is the same.
    fn opaque(&mut self, data: &[u8]) -> &mut Self {
        // What has no length in 32 bits does not fit in any message.
        self.u32(u32::try_from(data.len()).unwrap_or(u32::MAX));
        let padding_bytes = data.len().next_multiple_of(4) - data.len();
        self.bytes(data).bytes(&[0; 3][..padding_bytes])
    }
}

/// The length of a buffer as its opaque counts it.
pub(crate) fn length_word(buffer: &Buffer) -> u32 {
    u32::try_from(buffer.len()).unwrap_or(u32::MAX)
}
