//! Reading XDR (RFC 4506), with data that came beside the stream.

use std::borrow::Cow;

use rpcrdma_engine::{ArgumentView, ArgumentViews, BULK_ITEMS_MAX, BulkItem};

use crate::buffers::Buffer;
use crate::error::Malformed;

/// Reads arguments or results: a stream of XDR, and the items that came beside it.
#[derive(Debug)]
pub struct Decoder<'a> {
    stream: &'a [u8],
    /// Outside of it, so that the next reader goes on from here.
    position: &'a mut Position,
    items: Items<'a>,
}

/// How far the readers of arguments or results came.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Position {
    at: usize,
    /// Expected results that were read.
    items: usize,
    /// A bit for each of them that came outside the stream. One that is empty when it is read again was taken.
    outside: u64,
}

impl Position {
    /// The start again, for results that were read.
    pub(crate) fn rewind(&mut self) {
        (self.at, self.items) = (0, 0);
    }
}

// The bits are enough.
const _: () = assert!(BULK_ITEMS_MAX <= 64);

#[derive(Debug)]
enum Items<'a> {
    /// Those of a call say where they belong.
    Arguments(ArgumentViews<'a>),
    /// Those of a reply that are left, in the order in which they were expected.
    Results(std::slice::IterMut<'a, BulkItem>),
}

impl<'a> Decoder<'a> {
    pub(crate) fn of_call(
        stream: &'a [u8],
        items: ArgumentViews<'a>,
        position: &'a mut Position,
    ) -> Self {
        Self {
            stream,
            position,
            items: Items::Arguments(items),
        }
    }

    /// Goes on from where the last reader of the reply came to.
    pub(crate) fn of_reply(
        stream: &'a [u8],
        items: &'a mut [BulkItem],
        position: &'a mut Position,
    ) -> Self {
        let left = items.get_mut(position.items..).unwrap_or_default();
        Self {
            stream,
            position,
            items: Items::Results(left.iter_mut()),
        }
    }

    /// Checks that nothing is left. Call it before a handler has effects: a call with more arguments than its procedure takes
    /// is not the call that the caller meant.
    ///
    /// # Errors
    /// [`Malformed`] when octets of the stream, or data beside it, are left.
    pub fn end(&self) -> Result<(), Malformed> {
        let has_items = match &self.items {
            Items::Arguments(items) => items.next_args_offset().is_some(),
            Items::Results(items) => items.as_slice().iter().any(|item| !item.is_empty()),
        };
        if self.rest().is_empty() && !has_items {
            Ok(())
        } else {
            Err(Malformed {
                at: self.position.at,
            })
        }
    }

    /// What is left of the stream, without what came beside it.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.stream.get(self.position.at..).unwrap_or(&[])
    }

    /// Takes `count` bytes as they are.
    ///
    /// # Errors
    /// [`Malformed`] when so many are not left; this is so for all methods here.
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let at = self.position.at;
        let bytes = self.rest().get(..count).ok_or(Malformed { at })?;
        self.position.at = at + count;
        Ok(bytes)
    }

    /// Takes a word.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        let at = self.position.at;
        let word = self.rest().first_chunk().ok_or(Malformed { at })?;
        self.position.at = at + 4;
        Ok(u32::from_be_bytes(*word))
    }

    /// Takes a hyper.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        let at = self.position.at;
        let hyper = self.rest().first_chunk().ok_or(Malformed { at })?;
        self.position.at = at + 8;
        Ok(u64::from_be_bytes(*hyper))
    }

    /// Takes a boolean.
    ///
    /// # Errors
    /// [`Malformed`], also when it is neither 0 nor 1.
    pub fn bool(&mut self) -> Result<bool, Malformed> {
        let at = self.position.at;
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed { at }),
        }
    }

    /// Takes an opaque of variable length from the stream. For one that may have come beside it, there is
    /// [`Decoder::bulk`].
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn opaque(&mut self) -> Result<&'a [u8], Malformed> {
        let bytes = self.u32()? as usize;
        self.padded(bytes)
    }

    /// Takes a string from the stream.
    ///
    /// # Errors
    /// [`Malformed`], also when it is not UTF-8.
    pub fn string(&mut self) -> Result<&'a str, Malformed> {
        let at = self.position.at;
        std::str::from_utf8(self.opaque()?).map_err(|_| Malformed { at })
    }

    /// Takes an opaque of variable length whose data may have come beside the stream. In a reply it is the next of the
    /// results that the request expected ([`Request::expect_bulk`](crate::Request::expect_bulk)), whichever way it came.
    ///
    /// # Errors
    /// [`Malformed`], also when the data has another length than the stream says.
    pub fn bulk(&mut self) -> Result<Bulk<'a>, Malformed> {
        let at = self.position.at;
        let bytes = self.u32()? as usize;
        let begin = self.position.at;
        let data = match &mut self.items {
            Items::Arguments(items) if items.next_args_offset() == Some(begin) && bytes > 0 => {
                items
                    .next()
                    .map(|item| (item.is_of(bytes), Data::Argument(item)))
            }
            Items::Arguments(_) => None,
            Items::Results(items) => {
                let bit = 1_u64 << self.position.items.min(63);
                self.position.items += 1;
                match items.next() {
                    Some(item) if !item.is_empty() => {
                        self.position.outside |= bit;
                        Some((is_length_of(item.len(), bytes), Data::Result(item)))
                    }
                    Some(_) if self.position.outside & bit != 0 => return Err(Malformed { at }),
                    _ => None,
                }
            }
        };
        match data {
            Some((true, data)) => Ok(Bulk { data, bytes }),
            Some((false, _)) => Err(Malformed { at }),
            None => Ok(Bulk {
                data: Data::Stream(self.padded(bytes)?),
                bytes,
            }),
        }
    }

    fn padded(&mut self, bytes: usize) -> Result<&'a [u8], Malformed> {
        let at = self.position.at;
        let padded = bytes.checked_next_multiple_of(4).ok_or(Malformed { at })?;
        self.bytes(padded).map(|data| &data[..bytes])
    }
}

/// Whether an item can be an opaque of `bytes` bytes: version 1 of RPC-over-RDMA lets a responder send its padding as well
/// (RFC 8166 section 3.4.5.2).
fn is_length_of(item_bytes: usize, bytes: usize) -> bool {
    item_bytes == bytes || item_bytes == bytes.next_multiple_of(4)
}

/// The data of an opaque, wherever it is: in the stream, or in registered memory beside it.
pub struct Bulk<'a> {
    data: Data<'a>,
    bytes: usize,
}

impl std::fmt::Debug for Bulk<'_> {
    /// Length and place: the data itself would fill a log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let is_in_stream = matches!(self.data, Data::Stream(_));
        f.debug_struct("Bulk")
            .field("bytes", &self.bytes)
            .field("is_in_stream", &is_in_stream)
            .finish()
    }
}

enum Data<'a> {
    Stream(&'a [u8]),
    Argument(ArgumentView<'a>),
    Result(&'a mut BulkItem),
}

impl Bulk<'_> {
    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Its pieces, in order.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let mut left = self.bytes;
        let stream = match &self.data {
            Data::Stream(bytes) => Some(*bytes),
            _ => None,
        };
        let argument = match &self.data {
            Data::Argument(item) => Some(item.parts()),
            _ => None,
        };
        let result = match &self.data {
            Data::Result(item) => Some(item.parts().map(|piece| &**piece)),
            _ => None,
        };
        let all = stream.into_iter().chain(argument.into_iter().flatten());
        // The last piece may end with padding.
        all.chain(result.into_iter().flatten()).map(move |piece| {
            let piece = &piece[..piece.len().min(left)];
            left -= piece.len();
            piece
        })
    }

    /// Copies its bytes to the start of `out`, as far as there is room. Returns how many bytes were copied.
    pub fn copy_to(&self, out: &mut [u8]) -> usize {
        let mut copied = 0;
        for piece in self.pieces() {
            let room = out.get_mut(copied..).unwrap_or(&mut []);
            let count = piece.len().min(room.len());
            room[..count].copy_from_slice(&piece[..count]);
            copied += count;
        }
        copied
    }

    /// Its bytes in one piece, copied only where they are in several.
    #[must_use]
    pub fn to_bytes(&self) -> Cow<'_, [u8]> {
        let mut pieces = self.pieces();
        match (pieces.next(), pieces.next()) {
            (None, _) => Cow::Borrowed(&[]),
            (Some(piece), None) => Cow::Borrowed(piece),
            _ => Cow::Owned(self.to_vec()),
        }
    }

    /// A copy of its bytes in ordinary memory.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        self.pieces().collect::<Vec<_>>().concat()
    }

    /// Takes the registered memory that it came in, without a copy. The buffer can be kept, and sent once: sending gives it
    /// away. To send the same data to many, copy it into [`Encode::buffer_for`](crate::Encode::buffer_for) of each reply, or
    /// keep it in memory of the program ([`NodeBuilder::memory`](crate::NodeBuilder::memory)).
    ///
    /// # Errors
    /// Gives it back when it came in the stream: copy it then, if it must outlive the call.
    pub fn take(self) -> Result<Buffer, Self> {
        let Self { data, bytes } = self;
        let mut item = match data {
            Data::Argument(item) => match item.take() {
                Ok(item) => item,
                Err(item) => {
                    return Err(Self {
                        data: Data::Argument(item),
                        bytes,
                    });
                }
            },
            Data::Result(item) => std::mem::take(item),
            Data::Stream(_) => return Err(Self { data, bytes }),
        };
        // Padding that came along.
        let beyond = item.len().saturating_sub(bytes);
        if let Some(last) = item.last_mut().filter(|_| beyond > 0) {
            last.set_len(last.len().saturating_sub(beyond));
        }
        Ok(item.into())
    }
}
