//! Reading a message of version 2 word by word, into vectors, with the first thing that is wrong with it.

use rpcrdma_protocol::v2::Refusal;

use super::{Lists, Segment, take, word};

/// Header types, as the wire has them.
pub const MSG: u32 = 0;
/// RDMA2_NOMSG.
pub const NOMSG: u32 = 1;
/// RDMA2_ERROR.
pub const ERROR: u32 = 4;
/// RDMA2_CONNPROP.
pub const CONNPROP: u32 = 5;
/// Transmit Request.
pub const REQUEST: u32 = 0x5254_5201;
/// Transmit Response.
pub const RESPONSE: u32 = 0x5254_5202;
/// Transmit Continue.
pub const CONTINUE: u32 = 0x5254_5203;
/// Report Error.
pub const REPORT: u32 = 0x5254_5204;

/// Why a header is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// Below the least size of its type.
    Short,
    /// The type is not known, or was not announced.
    Type,
    /// A reserved flag.
    Flags,
    /// More than 1024 segments in one list or chunk.
    Segments,
    /// More than 256 Write chunks.
    WriteChunks,
    /// All else.
    Xdr,
}

/// Where an item is said to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In memory.
    Memory(Vec<Segment>),
    /// In the transmissions: offset in the first segment, and numbers of segments.
    Sent(u32, Vec<u32>),
    /// Nowhere.
    Nowhere,
}

/// An item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Displacement in the virtual stream.
    pub displacement: u32,
    /// Octets.
    pub length: u32,
    /// Where it is.
    pub place: Place,
}

/// What follows the prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// RDMA2_MSG and RDMA2_NOMSG: handle and lists.
    Chunks(u32, Lists),
    /// RDMA2_ERROR: code and arguments.
    Error(Vec<u32>),
    /// RDMA2_CONNPROP.
    Properties,
    /// A first transmission.
    First {
        /// Its items.
        items: Vec<Item>,
        /// The ranges of the directions, of a request.
        ranges: Vec<(u32, u32)>,
        /// Transmissions of the group.
        count: u32,
        /// Transmissions that the reply may take, of a request.
        reply_count: u32,
        /// Octets of payload stream.
        stream: u32,
    },
    /// A later one: its number and its octets of payload stream.
    Continue(u32, u32),
    /// Report Error.
    Report(Vec<u32>),
}

/// Reads words in order.
struct Cursor<'m> {
    message: &'m [u8],
    at: usize,
}

impl Cursor<'_> {
    fn word(&mut self) -> Result<u32, Wrong> {
        take(self.message, &mut self.at).ok_or(Wrong::Xdr)
    }

    fn words(&mut self, count: usize) -> Result<Vec<u32>, Wrong> {
        (0..count).map(|_| self.word()).collect()
    }

    fn mark(&mut self) -> Result<bool, Wrong> {
        match self.word()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Wrong::Xdr),
        }
    }

    fn count(&mut self, most: u32, beyond: Wrong) -> Result<u32, Wrong> {
        let count = self.word()?;
        if count > most { Err(beyond) } else { Ok(count) }
    }

    fn segment(&mut self) -> Result<Segment, Wrong> {
        let words = self.words(4)?;
        let offset = (u64::from(words[2]) << 32) | u64::from(words[3]);
        Ok((words[0], words[1], offset))
    }

    fn segments(&mut self) -> Result<Vec<Segment>, Wrong> {
        let count = self.count(1024, Wrong::Segments)?;
        (0..count).map(|_| self.segment()).collect()
    }

    fn lists(&mut self) -> Result<Lists, Wrong> {
        let mut lists = Lists::default();
        while self.mark()? {
            if lists.reads.len() == 1024 {
                return Err(Wrong::Segments);
            }
            lists.reads.push((self.word()?, self.segment()?));
        }
        while self.mark()? {
            if lists.writes.len() == 256 {
                return Err(Wrong::WriteChunks);
            }
            lists.writes.push(self.segments()?);
        }
        if self.mark()? {
            lists.reply = Some(self.segments()?);
        }
        Ok(lists)
    }

    fn items(&mut self, is_response: bool) -> Result<Vec<Item>, Wrong> {
        let count = self.count(256, Wrong::Xdr)?;
        let mut items = Vec::new();
        for _ in 0..count {
            let (displacement, length) = (self.word()?, self.word()?);
            let place = match self.word()? {
                1 => Place::Memory(self.segments()?),
                2 => {
                    let offset = self.word()?;
                    let count = self.count(1024, Wrong::Xdr)?;
                    Place::Sent(offset, self.words(usize::try_from(count).expect("small"))?)
                }
                5 | 6 if is_response => Place::Nowhere,
                _ => return Err(Wrong::Xdr),
            };
            items.push(Item {
                displacement,
                length,
                place,
            });
        }
        Ok(items)
    }

    fn ranges(&mut self) -> Result<Vec<(u32, u32)>, Wrong> {
        let mut ranges = Vec::new();
        for _ in 0..self.count(256, Wrong::Xdr)? {
            ranges.push((self.word()?, self.word()?));
            for _ in 0..self.count(256, Wrong::Xdr)? {
                let _minimum = self.word()?;
                match self.word()? {
                    1 | 3 => drop(self.segments()?),
                    2 => {}
                    4 => {
                        self.word()?;
                        self.segments()?;
                    }
                    _ => return Err(Wrong::Xdr),
                }
            }
        }
        Ok(ranges)
    }

    fn group_count(&mut self) -> Result<u32, Wrong> {
        let count = self.word()?;
        if count == 0 {
            Err(Wrong::Xdr)
        } else {
            Ok(count)
        }
    }

    fn error(&mut self) -> Result<Vec<u32>, Wrong> {
        let code = self.word()?;
        let arguments = match code {
            1 | 8 => 2,
            5 | 6 | 7 | 9 => 1,
            2 | 3 | 4 | 10 => 0,
            _ => {
                self.at = self.message.len();
                0
            }
        };
        let mut words = vec![code];
        words.extend(self.words(arguments)?);
        Ok(words)
    }

    fn transmission(&mut self, words: &mut Vec<u32>) -> Result<(), Wrong> {
        let id = self.words(2)?;
        if id[1] > 1 {
            return Err(Wrong::Xdr);
        }
        words.extend(id);
        words.push(self.word()?);
        Ok(())
    }

    fn report(&mut self) -> Result<Vec<u32>, Wrong> {
        let mut words = Vec::new();
        self.transmission(&mut words)?;
        let has_lead = self.mark()?;
        words.push(u32::from(has_lead));
        if has_lead {
            self.transmission(&mut words)?;
        }
        let code = self.word()?;
        words.push(code);
        let arguments = match code {
            1 | 2 | 4 | 5 => 2,
            3 => 0,
            6..=8 => 3,
            _ => return Err(Wrong::Xdr),
        };
        words.extend(self.words(arguments)?);
        Ok(words)
    }

    fn end(&self) -> Result<(), Wrong> {
        if self.at == self.message.len() {
            Ok(())
        } else {
            Err(Wrong::Xdr)
        }
    }
}

/// Reads the three chunk lists at `at`, which both versions have alike, and moves on.
pub fn take_lists(message: &[u8], at: &mut usize) -> Option<Lists> {
    let mut cursor = Cursor { message, at: *at };
    let lists = cursor.lists().ok()?;
    *at = cursor.at;
    Some(lists)
}

/// Reads a message that should be of version 2 as [`read`] does: its body and where that ends, or how it is refused.
///
/// # Errors
/// The answer to the first thing that is wrong.
pub fn read_or_refuse(message: &[u8], announced: u32) -> Result<(Body, usize), Refusal> {
    match word(message, 4) {
        Some(2) => read(message, announced).map_err(|wrong| match wrong {
            Wrong::Short => Refusal::Discard,
            Wrong::Type => Refusal::InvalHtype,
            Wrong::Flags => Refusal::InvalFlag,
            Wrong::Segments => Refusal::Segments,
            Wrong::WriteChunks => Refusal::WriteChunks,
            Wrong::Xdr => Refusal::BadXdr,
        }),
        Some(_) if message.len() >= 28 => Err(Refusal::Vers),
        _ => Err(Refusal::Discard),
    }
}

/// Whether an endpoint that has announced these bits of RTR Support knows a header type.
#[must_use]
pub fn knows(announced: u32, header_type: u32) -> bool {
    match header_type {
        MSG | NOMSG | ERROR | CONNPROP => true,
        REQUEST => announced & 1 != 0,
        RESPONSE => announced & 3 != 0,
        CONTINUE => announced & 4 != 0,
        REPORT => announced & 7 != 0,
        _ => false,
    }
}

/// Reads a version 2 message: its body, and where the header ends.
///
/// # Errors
/// The first thing that is wrong.
pub fn read(message: &[u8], announced: u32) -> Result<(Body, usize), Wrong> {
    let mut cursor = Cursor { message, at: 12 };
    let header_type = cursor.word().map_err(|_| Wrong::Short)?;
    let is_known = knows(announced, header_type);
    let least = match header_type {
        MSG | REQUEST | REPORT if is_known => 40,
        NOMSG if is_known => 36,
        RESPONSE | CONTINUE if is_known => 32,
        ERROR | CONNPROP => 24,
        _ => 20,
    };
    if message.len() < least {
        return Err(Wrong::Short);
    }
    let flags = cursor.word()?;
    if !is_known {
        return Err(Wrong::Type);
    }
    if flags > 3 {
        return Err(Wrong::Flags);
    }
    let body = match header_type {
        MSG | NOMSG => {
            let (handle, lists) = (cursor.word()?, cursor.lists()?);
            if header_type == NOMSG {
                cursor.end()?;
            } else {
                let mut payload = Cursor { ..cursor };
                payload.word()?;
            }
            Body::Chunks(handle, lists)
        }
        ERROR => {
            let words = cursor.error()?;
            cursor.end()?;
            Body::Error(words)
        }
        CONNPROP => {
            cursor.at = message.len();
            Body::Properties
        }
        REQUEST => Body::First {
            items: cursor.items(false)?,
            ranges: cursor.ranges()?,
            count: cursor.group_count()?,
            reply_count: cursor.word()?.max(1),
            stream: cursor.word()?,
        },
        RESPONSE => Body::First {
            items: cursor.items(true)?,
            ranges: Vec::new(),
            count: cursor.group_count()?,
            reply_count: 0,
            stream: cursor.word()?,
        },
        CONTINUE => {
            let words = cursor.words(3)?;
            Body::Continue(words[0], words[2])
        }
        _ => {
            let words = cursor.report()?;
            cursor.end()?;
            Body::Report(words)
        }
    };
    Ok((body, cursor.at))
}
