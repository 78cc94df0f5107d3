//! What is drawn: a step is a word, and says which peer does what.

use std::fmt;

use crate::bulk::Placement;

/// One step of a case. Any word is one.
#[derive(Clone, Copy)]
pub(super) struct Step(pub(super) u64);

/// What is done in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Nothing but so many turns.
    Turns(u32),
    /// Nothing for this time.
    Silence {
        ms: u32,
    },
    /// Calls, as many as there are credits for.
    Call {
        asked: Asked,
        count: u32,
    },
    /// As many null calls, whatever the credits are.
    CallBeyondCredits {
        count: u32,
    },
    /// A call with chunks.
    Chunks(Chunks),
    /// The first part of a message in several Sends: a call, or properties.
    Begin {
        words: u32,
        is_call: bool,
    },
    /// Another part of the message that was begun, or of none.
    Part {
        words: u32,
    },
    /// Its last part.
    Finish,
    /// Transmissions of the extension.
    Group(Group),
    /// A message that grants so many credits, and nothing else.
    Grant(u32),
    /// How messages grant from now on.
    Grants(Grants),
    /// How Receives are posted from now on.
    Receives(Receives),
    /// A message with some bytes changed.
    Garbage(u64),
    Properties(Told),
    /// A message of a header type of the application, with so many words.
    Message {
        is_answer: bool,
        words: u32,
    },
    /// A transport error about a call, or about nothing.
    Error {
        code: u32,
        is_of_call: bool,
    },
    /// An answer to a call of the core.
    Answer(Answer),
    /// RDMA at what a call of the core exposed, or at nothing.
    Rdma {
        writes: bool,
    },
    /// The next call of the core is to be invalidated with this peer's next message.
    Invalidate,
    /// The peer connects, if it is not connected.
    Connect {
        version_1: bool,
        is_quiet: bool,
    },
    Disconnect,
    /// The process of the peer ends.
    Kill,
    /// The process of the peer is stopped, or goes on.
    Stop,
    /// The control plane of the core closes the connection.
    Close,
    /// The core calls this peer.
    Ours(Ours),
    /// How the device of the core reports from now on.
    Late(Late),
}

/// What a call asks the service for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Null,
    Echo {
        words: u32,
    },
    /// So many bytes of results.
    Fill {
        bytes: u32,
    },
    /// A reply after so many polls.
    Later {
        polls: u32,
    },
    /// A reply when the case ends.
    Never,
    /// An item of so many bytes.
    Give {
        bytes: u32,
    },
    /// The item that came with the call.
    Back,
    /// What nobody serves, since an RDMA Read of the call fails.
    Failing,
    NoProgram,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chunks {
    Read {
        bytes: u32,
    },
    ReadBadHandle,
    ReadNothing,
    ReadOverlapping,
    ReadUnaligned,
    /// Of two segments the second has a key that names nothing.
    ReadHalf,
    ReadManySegments,
    ReadTooMuch,
    ReadLater {
        bytes: u32,
    },
    PositionZero {
        bytes: u32,
    },
    Write {
        bytes: u32,
    },
    WriteTooSmall,
    WriteBadHandle,
    WriteNothing,
    Reply {
        bytes: u32,
    },
    ReplyBadHandle,
    /// A Read chunk whose handle the core is to invalidate.
    Invalidated {
        bytes: u32,
    },
}

/// Transmission groups of the extension, as calls. As answers see [`Answer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Group {
    /// A call in so many transmissions, all of which are sent, with a page in each that Sends place.
    Whole { asked: Asked, transmissions: u32 },
    /// The first of so many transmissions.
    Begin { asked: Asked, transmissions: u32 },
    /// The next one of what was begun, a call or an answer, or the one behind that.
    Next { skips: bool },
    /// A Report Error about the last answer of the core, or about its last call that was a group.
    Report { is_of_answer: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grants {
    /// For every Receive that is posted.
    Fair,
    None,
    /// One is left ungranted for every one that is granted.
    Half,
    /// So many in each message, whatever is posted.
    Always(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Receives {
    /// None are posted again.
    Withheld,
    /// So many are posted of those that were not.
    Posted(u32),
    /// All are posted, and again whenever a message took one.
    Kept,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// Plain version 2.
    Plain,
    /// With the extension, chunks, and calls in the reverse direction.
    Placing,
    /// Receive buffers of another size.
    Changed(u32),
    /// Receive buffers that are too small.
    Small,
    Broken,
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Right,
    Twice,
    WrongXid,
    CutShort,
    Denied,
    /// A part, and more to come.
    Begun,
    TooLong,
    Refused(u32),
    /// The chunks come back as if they had been filled.
    Filled,
    /// What the call asked for is written to its chunk, and comes back in it.
    Written,
    /// A transmission group of so many, if the call was one.
    Group {
        transmissions: u32,
    },
    /// The first of so many transmissions.
    GroupBegun {
        transmissions: u32,
    },
    /// A group with an item that the call did not ask for.
    GroupWrong,
}

/// What the core asks a peer for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ours {
    Null,
    Echo {
        bytes: u32,
    },
    /// A result that is expected beside the stream.
    Expect {
        bytes: u32,
        placement: Placement,
    },
    /// An item beside the arguments.
    Item {
        bytes: u32,
        placement: Placement,
    },
    /// The item that came with a call and was kept longest, if there is one.
    Forward,
}

/// What the device of the core reports late, or has no room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Late {
    Nothing,
    /// The ends of works, at each of so many polls.
    Works {
        every: u32,
    },
    /// Messages.
    Receives {
        every: u32,
    },
    /// Buffers of Sends and RDMA Writes.
    Buffers {
        every: u32,
    },
    /// The ends of connections, so many polls behind all else of them.
    Ends {
        polls: u32,
    },
    /// Queue pairs, in this order.
    Order(u32),
    /// So many works find no room.
    Full {
        posts: u32,
    },
}

/// Numbers out of a word.
struct Draw(u64);

impl Draw {
    /// A number below `end`.
    fn below(&mut self, end: u32) -> u32 {
        let end = u64::from(end);
        let number = self.0 % end;
        self.0 /= end;
        u32::try_from(number).expect("below 2^32")
    }

    fn one_in(&mut self, count: u32) -> bool {
        self.below(count) == count - 1
    }

    /// One of these.
    fn of<T: Copy>(&mut self, some: &[T]) -> T {
        let count = u32::try_from(some.len()).expect("few");
        some[self.below(count) as usize]
    }

    /// Of these, each as often as its weight says.
    fn weighted(&mut self, made: &[(u32, Make)]) -> Action {
        let all = made.iter().map(|(weight, _)| weight).sum();
        let mut at = self.below(all);
        for (weight, make) in made {
            match at.checked_sub(*weight) {
                Some(rest) => at = rest,
                None => return make(self),
            }
        }
        Action::Turns(1)
    }
}

type Make = fn(&mut Draw) -> Action;

/// What there is, and how often it is drawn. A word of zeroes is the first of the first.
#[rustfmt::skip]
const ACTIONS: &[(u32, Make)] = &[
    (8, |it| Action::Turns(it.of(&[1, 2, 4, 16]))),
    (4, |it| Action::Message { is_answer: it.one_in(4), words: it.of(&[0, 1, 2, 2, 900]) }),
    (3, |it| Action::Silence { ms: it.of(&[1, 50, 1000, 6000, 6000, 25_000]) }),
    (24, |it| Action::Call { asked: asked(it), count: it.of(&[1, 1, 1, 2, 4, 8]) }),
    (1, |it| Action::CallBeyondCredits { count: 1 + it.below(16) }),
    (10, |it| Action::Chunks(chunks(it))),
    (4, |it| Action::Begin { words: it.of(&[0, 1, 10, 900]), is_call: !it.one_in(8) }),
    (6, |it| Action::Part { words: it.of(&[0, 1, 10, 900]) }),
    (4, |_| Action::Finish),
    (16, |it| Action::Group(group(it))),
    (6, |it| Action::Grant(it.of(&[0, 1, 2, 8, 900]))),
    (5, |it| {
        Action::Grants(it.of(&[
            Grants::Fair,
            Grants::None,
            Grants::None,
            Grants::Half,
            Grants::Always(1),
            Grants::Always(40),
        ]))
    }),
    (6, |it| {
        Action::Receives(it.of(&[
            Receives::Kept,
            Receives::Withheld,
            Receives::Withheld,
            Receives::Posted(1),
            Receives::Posted(4),
        ]))
    }),
    (3, |it| Action::Garbage(it.0)),
    (5, |it| {
        Action::Properties(it.of(&[
            Told::Plain,
            Told::Plain,
            Told::Placing,
            Told::Placing,
            Told::Placing,
            Told::Changed(4096),
            Told::Changed(5000),
            Told::Small,
            Told::Broken,
            Told::Unknown,
        ]))
    }),
    (2, |it| Action::Error { code: it.of(&[2, 3, 4, 6, 8, 10, 77]), is_of_call: !it.one_in(3) }),
    (18, |it| {
        Action::Answer(it.of(&[
            Answer::Right,
            Answer::Right,
            Answer::Right,
            Answer::Twice,
            Answer::WrongXid,
            Answer::CutShort,
            Answer::Denied,
            Answer::Begun,
            Answer::TooLong,
            Answer::Refused(9),
            Answer::Refused(10),
            Answer::Refused(4),
            Answer::Filled,
            Answer::Written,
            Answer::Written,
            Answer::Group { transmissions: 1 },
            Answer::Group { transmissions: 2 },
            Answer::Group { transmissions: 3 },
            Answer::GroupBegun { transmissions: 2 },
            Answer::GroupBegun { transmissions: 3 },
            Answer::GroupWrong,
        ]))
    }),
    (1, |it| Action::Rdma { writes: it.one_in(2) }),
    (1, |_| Action::Invalidate),
    (6, |it| Action::Connect { version_1: it.one_in(3), is_quiet: it.one_in(8) }),
    (1, |it| match it.below(6) {
        0 => Action::Kill,
        1 | 2 => Action::Close,
        3 => Action::Stop,
        _ => Action::Disconnect,
    }),
    (14, |it| {
        let bytes = it.of(&[0, 4, 700, 3000, 5000, 9000, 9000]);
        let placement = it.of(&[Placement::Send, Placement::Auto, Placement::Rdma]);
        let longer = bytes + 4;
        Action::Ours(match it.below(7) {
            0 => Ours::Null,
            1 => Ours::Echo { bytes },
            2..=4 => Ours::Expect {
                bytes: longer,
                placement,
            },
            5 => Ours::Item {
                bytes: longer,
                placement,
            },
            _ => Ours::Forward,
        })
    }),
    (8, |it| Action::Late(late(it))),
];

fn asked(it: &mut Draw) -> Asked {
    match it.below(10) {
        0 | 1 => Asked::Null,
        2 => Asked::Echo {
            words: it.of(&[0, 10, 230, 900]),
        },
        3 | 4 => Asked::Fill {
            bytes: it.of(&[4, 900, 3000, 4044, 9000, 19_000, 30_000]),
        },
        5 | 6 => Asked::Later {
            polls: it.of(&[0, 1, 2, 30, 300]),
        },
        7 => Asked::Never,
        8 => Asked::Give {
            bytes: it.of(&[4, 900, 4000, 6000]),
        },
        _ => Asked::NoProgram,
    }
}

fn chunks(it: &mut Draw) -> Chunks {
    let bytes = it.of(&[4, 7, 700, 4000]);
    match it.below(36) {
        // These cost the connection.
        3 => Chunks::ReadBadHandle,
        4 => Chunks::ReadNothing,
        0 | 1 => Chunks::ReadHalf,
        5 => Chunks::ReadOverlapping,
        6 => Chunks::ReadUnaligned,
        7 => Chunks::ReadManySegments,
        8 => Chunks::ReadTooMuch,
        9..=11 => Chunks::ReadLater { bytes },
        12 => Chunks::PositionZero { bytes },
        13 | 14 => Chunks::Write { bytes },
        15 => Chunks::WriteTooSmall,
        16 => Chunks::WriteBadHandle,
        17 => Chunks::WriteNothing,
        18 | 19 => Chunks::Reply { bytes },
        20 => Chunks::ReplyBadHandle,
        21..=24 => Chunks::Invalidated { bytes },
        25..=28 => Chunks::ReadLater { bytes },
        _ => Chunks::Read { bytes },
    }
}

fn group(it: &mut Draw) -> Group {
    let asked = match it.below(8) {
        0 | 1 => Asked::Echo { words: 2 },
        2 => Asked::Later {
            polls: it.of(&[0, 4, 40]),
        },
        3 => Asked::Never,
        4 => Asked::Back,
        _ => Asked::Give {
            bytes: it.of(&[4, 900, 4096, 6000, 9000]),
        },
    };
    match it.below(12) {
        0..=3 => Group::Whole {
            asked,
            transmissions: it.of(&[1, 1, 2, 3]),
        },
        4 | 5 => Group::Begin {
            asked,
            transmissions: it.of(&[2, 3, 40]),
        },
        6..=9 => Group::Next { skips: false },
        10 => Group::Next { skips: true },
        _ => Group::Report {
            is_of_answer: !it.one_in(3),
        },
    }
}

fn late(it: &mut Draw) -> Late {
    match it.below(10) {
        0 => Late::Nothing,
        1 | 2 => Late::Works {
            every: it.of(&[1, 2, 3, 8]),
        },
        3 => Late::Receives {
            every: it.of(&[1, 2, 4]),
        },
        4 => Late::Buffers {
            every: it.of(&[1, 2, 8]),
        },
        5 | 6 => Late::Ends {
            polls: it.of(&[0, 1, 3, 8]),
        },
        7 => Late::Order(it.below(16)),
        _ => Late::Full {
            posts: it.of(&[1, 1, 2, 4]),
        },
    }
}

impl Step {
    /// Which of so many peers does what.
    pub(super) fn decode(self, peers: u32) -> (usize, Action) {
        let mut draw = Draw(self.0);
        let action = draw.weighted(ACTIONS);
        (draw.below(peers) as usize, action)
    }
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (peer, action) = self.decode(super::HOSTILE);
        write!(f, "{peer}: {action:?} ({:#x})", self.0)
    }
}
