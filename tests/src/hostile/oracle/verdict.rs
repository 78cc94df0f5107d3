//! What a message means, and what becomes of one that is wrong.

use crate::fuzz_targets::reference::Lists;

/// Octets of a message: where they begin, and how many.
pub type View = (usize, usize);

/// What a message means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A whole call or reply.
    Message {
        /// Whether it is a reply.
        is_reply: bool,
        /// Its XID.
        xid: u32,
        /// Its payload.
        payload: View,
        /// Its lists.
        lists: Lists,
        /// The handle to invalidate.
        handle: u32,
    },
    /// A part of one.
    Fragment {
        /// Whether it is of a reply.
        is_reply: bool,
        /// Its XID.
        xid: u32,
        /// Where it belongs.
        offset: u32,
        /// The part.
        payload: View,
        /// Whether it is the last.
        is_last: bool,
        /// Its lists.
        lists: Lists,
        /// The handle to invalidate.
        handle: u32,
    },
    /// A property set.
    Properties {
        /// Its XID.
        xid: u32,
    },
    /// A part of one.
    PropertiesPart {
        /// Its XID.
        xid: u32,
        /// Where it belongs.
        offset: u32,
        /// The part.
        bytes: View,
        /// Whether it is the last.
        is_last: bool,
    },
    /// A grant.
    Credits,
    /// An error of the peer: XID, then code and arguments.
    PeerError(u32, Vec<u32>),
    /// A transmission.
    Transmission {
        /// Its header type.
        header_type: u32,
        /// Its XID.
        xid: u32,
        /// Its number.
        sequence: u32,
        /// How many the group has.
        count: u32,
        /// How many the reply may have, of a request.
        reply_count: u32,
        /// Where its payload stream belongs.
        offset: u32,
        /// Its payload stream.
        payload: View,
    },
    /// A report of the peer.
    Reported(Vec<u32>),
    /// Answered with a Report Error: the whole message, credit word 0, and whether a group is given up.
    ReportError(Vec<u32>, bool),
    /// Dropped.
    Discarded(Discarded),
    /// Answered with an error: the whole message, and whether a sequence or group is given up.
    Refused(Vec<u32>, bool),
    /// The end of the connection.
    Closed(Closed),
}

/// Why a message is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discarded {
    /// Below its least size.
    Short,
    /// The same, and what was put together has a gap.
    Broken(u32),
    /// Of a sequence or group that was given up.
    Rest,
    /// A reply that contradicts its header.
    Mismatch(u32),
    /// A reply that is too long.
    TooLong(u32),
    /// An error, though nothing was sent.
    UnexpectedError,
    /// The connection is over.
    Over,
}

/// Why the connection ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Closed {
    /// No credit.
    OverSend,
    /// More credits than announced.
    OverGrant,
    /// Another version.
    VersionChanged,
    /// A reply is wrong: code and arguments of the error that would answer a call.
    BadReply(Vec<u32>),
    /// An error is wrong.
    BadError,
}
