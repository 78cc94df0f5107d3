//! What a connection has to make of each message: the rules written down once more, as plainly as can be.
//!
//! It shares no code with the connection of `rpcrdma-protocol`. It copies what it reads, lists every segment of every
//! transmission, and knows answers as the words of the wire. Of several things that are wrong the first is answered,
//! in this order: credits, size, header type, flags, the header from left to right, the place in a sequence or group,
//! payload stream, ranges, items, length of the message, XID and message type of the RPC message.

pub mod calls;
pub mod placement;
pub mod verdict;

use std::rc::Rc;

pub use crate::fuzz_targets::reference::v2 as wire;
use crate::fuzz_targets::reference::{self, Lists};
use placement::{Found, Problem, check_items, check_ranges};
pub use verdict::{Closed, Discarded, Verdict, View};
use wire::{Body, CONNPROP, CONTINUE, ERROR, MSG, NOMSG, REPORT, REQUEST, RESPONSE, Wrong};

/// What the receiver is.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The bits of RTR Support that it has announced.
    pub announced: u32,
    /// The segments of its receive buffers: octets, and whether bulk data may be put there.
    pub segments: Vec<(u32, bool)>,
    /// The longest RPC message, or payload stream of a group, that it puts together, in octets.
    pub message_bytes_max: u32,
    /// The most transmissions of a call that it receives.
    pub transmissions_max: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Message { is_reply: bool },
    Properties,
}

#[derive(Clone, Copy, Debug)]
enum Sequence {
    None,
    Open { kind: Kind, xid: u32, bytes: u64 },
    Dropping { kind: Kind, xid: u32 },
}

#[derive(Clone, Debug)]
enum Group {
    None,
    Open {
        xid: u32,
        is_reply: bool,
        count: u32,
        next: u32,
        stream: u64,
        found: Found,
    },
    Dropping {
        xid: u32,
        is_reply: bool,
        count: u32,
    },
}

/// The words of a message that can be read, whatever else is wrong with it.
#[derive(Clone, Copy)]
struct Seen {
    xid: u32,
    header_type: u32,
    is_reply: bool,
    is_more: bool,
    is_grant: bool,
}

impl Seen {
    fn of(message: &[u8], header_type: u32) -> Self {
        // Without its flags a message is taken for one that goes on.
        let flags = reference::word(message, 16).unwrap_or(2);
        Self {
            xid: reference::word(message, 0).unwrap_or(0),
            header_type,
            is_reply: flags & 1 != 0,
            is_more: flags & 2 != 0,
            is_grant: header_type == NOMSG && message.len() == 36 && message[20..] == [0; 16],
        }
    }

    /// Errors, reports and grants belong to no group and break none.
    fn is_apart(self) -> bool {
        self.is_grant || self.header_type == ERROR || self.header_type == REPORT
    }

    /// What goes on behind it.
    fn continues(self) -> Option<Kind> {
        match self.header_type {
            MSG if self.is_more => Some(Kind::Message {
                is_reply: self.is_reply,
            }),
            CONNPROP if self.is_more => Some(Kind::Properties),
            _ => None,
        }
    }
}

const BAD_XDR: u32 = 2;
const INVAL_FLAG: u32 = 4;
const SYSTEM: u32 = 10;

/// The receiver of the messages.
#[derive(Clone, Debug)]
pub struct Model {
    settings: Rc<Settings>,
    /// Whether no message of version 2 has come.
    is_fresh: bool,
    is_over: bool,
    /// Credits that the peer has of us, and that we have of the peer.
    peer_credits: u32,
    own_credits: u32,
    sequence: Sequence,
    group: Group,
}

impl Model {
    /// A connection on which nothing is under way.
    #[must_use]
    pub fn new(
        settings: Rc<Settings>,
        is_fresh: bool,
        peer_credits: u32,
        own_credits: u32,
    ) -> Self {
        Self {
            settings,
            is_fresh,
            is_over: false,
            peer_credits,
            own_credits,
            sequence: Sequence::None,
            group: Group::None,
        }
    }

    /// Credits that the peer has of us, and we of the peer.
    #[must_use]
    pub const fn credits(&self) -> (u32, u32) {
        (self.peer_credits, self.own_credits)
    }

    /// What it has to make of a message.
    pub fn handle(&mut self, message: &[u8]) -> Verdict {
        if self.is_over {
            return Verdict::Discarded(Discarded::Over);
        }
        let verdict = self.open(message).unwrap_or_else(Verdict::Closed);
        self.is_over = matches!(verdict, Verdict::Closed(_));
        verdict
    }

    fn open(&mut self, message: &[u8]) -> Result<Verdict, Closed> {
        let word = |index: usize| reference::word(message, 4 * index);
        let (Some(version), Some(credit), Some(header_type)) = (word(1), word(2), word(3)) else {
            self.use_credit()?;
            return Ok(self.short(None));
        };
        if version != 2 {
            return self.other_version(message, version, header_type);
        }
        let seen = Seen::of(message, header_type);
        if !seen.is_grant {
            self.use_credit()?;
        }
        if header_type != ERROR {
            self.own_credits += credit & 0xffff;
            if self.own_credits > credit >> 16 {
                return Err(Closed::OverGrant);
            }
        }
        let read = wire::read(message, self.settings.announced);
        if matches!(read, Err(Wrong::Short)) {
            return Ok(self.short(Some(seen)));
        }
        if header_type == ERROR {
            return match read {
                Ok((Body::Error(_), _)) if seen.is_more => Err(Closed::BadError),
                Ok((Body::Error(_), _)) if self.is_fresh => {
                    Ok(Verdict::Discarded(Discarded::UnexpectedError))
                }
                Ok((Body::Error(words), _)) => Ok(Verdict::PeerError(seen.xid, words)),
                _ => Err(Closed::BadError),
            };
        }
        self.is_fresh = false;
        match read {
            Ok((body, end)) => self.body(seen, body, end, message),
            Err(wrong) => self.refuse(
                seen,
                match wrong {
                    Wrong::Type => vec![3],
                    Wrong::Flags => vec![INVAL_FLAG],
                    Wrong::Segments => vec![7, 1024],
                    Wrong::WriteChunks => vec![6, 256],
                    Wrong::Xdr | Wrong::Short => vec![BAD_XDR],
                },
            ),
        }
    }

    fn use_credit(&mut self) -> Result<(), Closed> {
        self.peer_credits = self.peer_credits.checked_sub(1).ok_or(Closed::OverSend)?;
        Ok(())
    }

    fn other_version(
        &mut self,
        message: &[u8],
        version: u32,
        header_type: u32,
    ) -> Result<Verdict, Closed> {
        let is_error = header_type == 4;
        if !self.is_fresh {
            self.use_credit()?;
        }
        let least = if version == 1 && is_error { 20 } else { 28 };
        if message.len() < least {
            return Ok(Verdict::Discarded(Discarded::Short));
        }
        if !self.is_fresh {
            return Err(Closed::VersionChanged);
        }
        if is_error {
            return Ok(Verdict::Discarded(Discarded::UnexpectedError));
        }
        let xid = reference::word(message, 0).unwrap_or(0);
        Ok(Verdict::Refused(vec![xid, version, 1, 4, 1, 2, 2], false))
    }

    fn body(
        &mut self,
        seen: Seen,
        body: Body,
        end: usize,
        message: &[u8],
    ) -> Result<Verdict, Closed> {
        let is_continue = matches!(body, Body::Continue(..));
        if !seen.is_apart() && !is_continue {
            match self.group {
                Group::Open { .. } => return Ok(self.intrude(seen, &body)),
                Group::Dropping { .. } => self.group = Group::None,
                Group::None => {}
            }
        }
        match body {
            Body::Chunks(..) if seen.is_grant && seen.is_more => {
                self.refuse(seen, vec![INVAL_FLAG])
            }
            Body::Chunks(..) if seen.is_grant => Ok(Verdict::Credits),
            Body::Chunks(handle, lists) if seen.header_type == NOMSG => {
                self.long_message(seen, handle, lists)
            }
            Body::Chunks(handle, lists) => self.message(seen, handle, lists, end, message),
            Body::Properties => self.properties(seen, message),
            Body::First {
                items,
                ranges,
                count,
                reply_count,
                stream,
            } => {
                let sizes = (end as u64, u64::from(stream), message.len() as u64);
                let refusal = self.check_first(seen, &items, &ranges, count, sizes, message);
                match refusal {
                    Ok(found) => {
                        self.group = match count {
                            1 => Group::None,
                            _ => Group::Open {
                                xid: seen.xid,
                                is_reply: seen.is_reply,
                                count,
                                next: 1,
                                stream: u64::from(stream),
                                found,
                            },
                        };
                        Ok(Verdict::Transmission {
                            header_type: seen.header_type,
                            xid: seen.xid,
                            sequence: 0,
                            count,
                            reply_count,
                            offset: 0,
                            payload: (end, usize::try_from(stream).expect("within the message")),
                        })
                    }
                    Err(Answer::Report(problem)) => {
                        self.drop_group(seen, count);
                        Ok(report((seen.xid, seen.is_reply, 0), None, problem, false))
                    }
                    Err(Answer::Error(words)) => {
                        let refused = self.refuse(seen, words);
                        self.drop_group(seen, count);
                        refused
                    }
                    Err(Answer::Drop(reason)) => {
                        self.drop_group(seen, count);
                        Ok(Verdict::Discarded(reason))
                    }
                }
            }
            Body::Continue(sequence, stream) => self.later(seen, sequence, stream, end, message),
            Body::Report(words) => {
                if seen.is_more || !matches!(self.sequence, Sequence::None) {
                    return self.refuse(seen, vec![INVAL_FLAG]);
                }
                Ok(Verdict::Reported(words))
            }
            Body::Error(_) => Err(Closed::BadError),
        }
    }

    // ---- Plain messages ----

    fn message(
        &mut self,
        seen: Seen,
        handle: u32,
        lists: Lists,
        end: usize,
        message: &[u8],
    ) -> Result<Verdict, Closed> {
        let is_reply = seen.is_reply;
        let this = Kind::Message { is_reply };
        let before = match self.sequence {
            Sequence::None => 0,
            Sequence::Open { kind, xid, bytes } if (kind, xid) == (this, seen.xid) => bytes,
            Sequence::Dropping { kind, xid } if (kind, xid) == (this, seen.xid) => {
                if !seen.is_more {
                    self.sequence = Sequence::None;
                }
                return Ok(Verdict::Discarded(Discarded::Rest));
            }
            _ => return self.refuse(seen, vec![INVAL_FLAG]),
        };
        if seen.is_more && lists != Lists::default() {
            return self.refuse(seen, vec![INVAL_FLAG]);
        }
        let positions_are_right = lists.reads.iter().all(|(at, _)| at % 4 == 0 && *at != 0);
        if !positions_are_right || (is_reply && !lists.reads.is_empty()) {
            return self.refuse(seen, vec![BAD_XDR]);
        }
        let payload = &message[end..];
        let after = before + payload.len() as u64;
        let is_whole = before == 0 && !seen.is_more;
        let fault = if after > u64::from(self.settings.message_bytes_max) && !is_whole {
            Some((SYSTEM, Discarded::TooLong(seen.xid)))
        } else if (!seen.is_more && after < 8) || !starts_right(seen, before, payload) {
            Some((BAD_XDR, Discarded::Mismatch(seen.xid)))
        } else {
            None
        };
        if let Some((code, dropped)) = fault {
            if !is_reply {
                return self.refuse(seen, vec![code]);
            }
            self.give_up_sequence(seen);
            return Ok(Verdict::Discarded(dropped));
        }
        let payload = (end, payload.len());
        if is_whole {
            return Ok(Verdict::Message {
                is_reply,
                xid: seen.xid,
                payload,
                lists,
                handle,
            });
        }
        self.sequence = match seen.is_more {
            true => Sequence::Open {
                kind: this,
                xid: seen.xid,
                bytes: after,
            },
            false => Sequence::None,
        };
        Ok(Verdict::Fragment {
            is_reply,
            xid: seen.xid,
            offset: u32::try_from(before).expect("within the limit"),
            payload,
            is_last: !seen.is_more,
            lists,
            handle: if seen.is_more { 0 } else { handle },
        })
    }

    fn long_message(&mut self, seen: Seen, handle: u32, lists: Lists) -> Result<Verdict, Closed> {
        if seen.is_more || !matches!(self.sequence, Sequence::None) {
            return self.refuse(seen, vec![INVAL_FLAG]);
        }
        let is_right = if seen.is_reply {
            lists.reads.is_empty() && lists.reply.is_some()
        } else {
            let is_aligned = lists.reads.iter().all(|(at, _)| at % 4 == 0);
            is_aligned && lists.reads.iter().any(|(at, _)| *at == 0)
        };
        if !is_right {
            return self.refuse(seen, vec![BAD_XDR]);
        }
        Ok(Verdict::Message {
            is_reply: seen.is_reply,
            xid: seen.xid,
            payload: (0, 0),
            lists,
            handle,
        })
    }

    fn properties(&mut self, seen: Seen, message: &[u8]) -> Result<Verdict, Closed> {
        let bytes = message.len() - 20;
        let before = match self.sequence {
            Sequence::None if !seen.is_more => {
                if !crate::fuzz_targets::is_property_set(&message[20..]) {
                    return self.refuse(seen, vec![BAD_XDR]);
                }
                return Ok(Verdict::Properties { xid: seen.xid });
            }
            Sequence::None => 0,
            Sequence::Open { kind, xid, bytes } if (kind, xid) == (Kind::Properties, seen.xid) => {
                bytes
            }
            Sequence::Dropping { kind, xid } if (kind, xid) == (Kind::Properties, seen.xid) => {
                if !seen.is_more {
                    self.sequence = Sequence::None;
                }
                return Ok(Verdict::Discarded(Discarded::Rest));
            }
            _ => return self.refuse(seen, vec![INVAL_FLAG]),
        };
        let after = before + bytes as u64;
        if after > 65536 {
            return self.refuse(seen, vec![SYSTEM]);
        }
        self.sequence = match seen.is_more {
            true => Sequence::Open {
                kind: Kind::Properties,
                xid: seen.xid,
                bytes: after,
            },
            false => Sequence::None,
        };
        Ok(Verdict::PropertiesPart {
            xid: seen.xid,
            offset: u32::try_from(before).expect("within the limit"),
            bytes: (20, bytes),
            is_last: !seen.is_more,
        })
    }

    // ---- Groups ----

    fn check_first(
        &self,
        seen: Seen,
        items: &[wire::Item],
        ranges: &[(u32, u32)],
        count: u32,
        sizes: placement::Sizes,
        message: &[u8],
    ) -> Result<Found, Answer> {
        let (header, stream, whole) = sizes;
        let in_sequence = !matches!(self.sequence, Sequence::None);
        let is_response = seen.header_type == RESPONSE;
        if seen.is_more || in_sequence || seen.is_reply != is_response {
            return Err(Answer::Error(vec![INVAL_FLAG]));
        }
        let most = match self.settings.announced & 4 {
            0 => 1,
            _ if is_response => 64,
            _ => self.settings.transmissions_max.min(64),
        };
        if count > most {
            return Err(Answer::Report(vec![3]));
        }
        stream_fits(sizes).map_err(Answer::Report)?;
        check_ranges(ranges).map_err(Answer::Report)?;
        let found =
            check_items(items, &self.settings.segments, count, sizes).map_err(Answer::Report)?;
        let begin = usize::try_from(header).expect("small");
        let end = usize::try_from(header + stream).expect("small");
        debug_assert!(end as u64 <= whole);
        self.check_message(seen, 0, stream, count == 1, &message[begin..end])?;
        Ok(found)
    }

    /// Length of the RPC message, and its start.
    fn check_message(
        &self,
        seen: Seen,
        before: u64,
        after: u64,
        is_last: bool,
        payload: &[u8],
    ) -> Result<(), Answer> {
        let (code, dropped) = if after > u64::from(self.settings.message_bytes_max) {
            (SYSTEM, Discarded::TooLong(seen.xid))
        } else if (is_last && after < 8) || !starts_right(seen, before, payload) {
            (BAD_XDR, Discarded::Mismatch(seen.xid))
        } else {
            return Ok(());
        };
        Err(match seen.is_reply {
            true => Answer::Drop(dropped),
            false => Answer::Error(vec![code]),
        })
    }

    fn later(
        &mut self,
        seen: Seen,
        sequence: u32,
        stream: u32,
        end: usize,
        message: &[u8],
    ) -> Result<Verdict, Closed> {
        let this = (seen.xid, seen.is_reply, sequence);
        if seen.is_more || !matches!(self.sequence, Sequence::None) {
            return self.refuse(seen, vec![INVAL_FLAG]);
        }
        let (xid, is_reply, count, next, before, found) = match self.group.clone() {
            Group::Dropping {
                xid,
                is_reply,
                count,
            } if (xid, is_reply) == (seen.xid, seen.is_reply) => {
                if u64::from(sequence) + 1 >= u64::from(count) {
                    self.group = Group::None;
                }
                return Ok(Verdict::Discarded(Discarded::Rest));
            }
            Group::Open {
                xid,
                is_reply,
                count,
                next,
                stream,
                found,
            } => (xid, is_reply, count, next, stream, found),
            _ => return Ok(report(this, None, vec![3], false)),
        };
        let first = (xid, is_reply, 0);
        let latest = (xid, is_reply, next - 1);
        if (xid, is_reply) != (seen.xid, seen.is_reply) {
            self.give_up_group(next - 1);
            return Ok(report(this, Some(latest), vec![5, xid, seen.xid], true));
        }
        if next != sequence {
            self.give_up_group(sequence);
            return Ok(report(this, Some(latest), vec![4, next, sequence], true));
        }
        let sizes = (end as u64, u64::from(stream), message.len() as u64);
        let after = before + u64::from(stream);
        let is_last = next + 1 == count;
        if let Err(problem) = stream_fits(sizes) {
            self.give_up_group(sequence);
            return Ok(report(this, None, problem, true));
        }
        let segments = &self.settings.segments;
        if let Err(problem) = found.check_later(segments, sequence, is_last, sizes, after) {
            self.give_up_group(sequence);
            return Ok(report(this, Some(first), problem, true));
        }
        let bytes = usize::try_from(stream).expect("within the message");
        let payload = &message[end..end + bytes];
        match self.check_message(seen, before, after, is_last, payload) {
            Ok(()) => {}
            Err(Answer::Drop(reason)) => {
                self.give_up_group(sequence);
                return Ok(Verdict::Discarded(reason));
            }
            Err(Answer::Error(words) | Answer::Report(words)) => return self.refuse(seen, words),
        }
        self.group = match is_last {
            true => Group::None,
            false => Group::Open {
                xid,
                is_reply,
                count,
                next: next + 1,
                stream: after,
                found,
            },
        };
        Ok(Verdict::Transmission {
            header_type: CONTINUE,
            xid,
            sequence,
            count,
            reply_count: 0,
            offset: u32::try_from(before).expect("within the limit"),
            payload: (end, bytes),
        })
    }

    /// A message that is right comes in the midst of a group to which it does not belong.
    fn intrude(&mut self, seen: Seen, body: &Body) -> Verdict {
        let Group::Open {
            xid,
            is_reply,
            next,
            ..
        } = self.group
        else {
            unreachable!("a group is open");
        };
        let lead = Some((xid, is_reply, next - 1));
        self.give_up_group(next - 1);
        if let Body::First { count, .. } = body {
            self.drop_group(seen, *count);
        }
        self.give_up_sequence(seen);
        let problem = vec![1, CONTINUE, seen.header_type];
        report((seen.xid, seen.is_reply, 0), lead, problem, true)
    }

    /// What is left of the open group behind a transmission is dropped.
    fn give_up_group(&mut self, passed: u32) -> bool {
        let Group::Open {
            xid,
            is_reply,
            count,
            ..
        } = self.group
        else {
            return false;
        };
        self.group = if u64::from(passed) + 1 < u64::from(count) {
            Group::Dropping {
                xid,
                is_reply,
                count,
            }
        } else {
            Group::None
        };
        true
    }

    /// What follows of the group that begins with this message is dropped.
    fn drop_group(&mut self, seen: Seen, count: u32) {
        self.group = if count > 1 {
            Group::Dropping {
                xid: seen.xid,
                is_reply: seen.is_reply,
                count,
            }
        } else {
            Group::None
        };
    }

    // ---- What is not delivered ----

    fn short(&mut self, seen: Option<Seen>) -> Verdict {
        let is_type = |types: &[u32]| seen.is_some_and(|seen| types.contains(&seen.header_type));
        if let Group::Open { xid, next, .. } = self.group
            && !is_type(&[NOMSG, ERROR, REPORT])
        {
            self.give_up_group(next);
            return Verdict::Discarded(Discarded::Broken(xid));
        }
        match self.sequence {
            Sequence::Open { kind, xid, .. } if !is_type(&[NOMSG, ERROR]) => {
                let ends = seen.is_some_and(|seen| !seen.is_more);
                self.sequence = match ends {
                    true => Sequence::None,
                    false => Sequence::Dropping { kind, xid },
                };
                Verdict::Discarded(Discarded::Broken(xid))
            }
            _ => Verdict::Discarded(Discarded::Short),
        }
    }

    fn give_up_sequence(&mut self, seen: Seen) -> Option<Kind> {
        let given_up = match self.sequence {
            Sequence::Open { kind, .. } => Some(kind),
            _ => None,
        };
        self.sequence = match seen.continues() {
            Some(kind) => Sequence::Dropping {
                kind,
                xid: seen.xid,
            },
            None => Sequence::None,
        };
        given_up
    }

    /// An error answers a call and any property set; a reply that is wrong ends the connection.
    fn refuse(&mut self, seen: Seen, error: Vec<u32>) -> Result<Verdict, Closed> {
        let sequence = match seen.is_grant {
            true => None,
            false => self.give_up_sequence(seen),
        };
        let mut group = None;
        if !seen.is_apart() {
            if let Group::Open { is_reply, next, .. } = self.group {
                group = Some(is_reply);
                let is_continue = seen.header_type == CONTINUE;
                self.give_up_group(if is_continue { next } else { next - 1 });
            }
            let begins = matches!(seen.header_type, REQUEST | RESPONSE);
            if begins && wire::knows(self.settings.announced, seen.header_type) {
                self.drop_group(seen, u32::MAX);
            }
        }
        let is_reply = seen.is_reply && seen.header_type != CONNPROP && !seen.is_grant;
        let ends_reply = sequence == Some(Kind::Message { is_reply: true }) || group == Some(true);
        if is_reply || ends_reply {
            return Err(Closed::BadReply(error));
        }
        let mut answer = vec![seen.xid, 2, 0, ERROR, 1];
        answer.extend(error);
        Ok(Verdict::Refused(
            answer,
            sequence.is_some() || group.is_some(),
        ))
    }
}

/// How a transmission is answered that is not taken.
enum Answer {
    Report(Problem),
    Error(Vec<u32>),
    Drop(Discarded),
}

/// XID, whether it is a reply, and number of a transmission.
type Id = (u32, bool, u32);

fn report(bad: Id, lead: Option<Id>, problem: Problem, gives_up: bool) -> Verdict {
    let words = |(xid, is_reply, sequence): Id| [xid, u32::from(is_reply), sequence];
    let mut message = vec![bad.0, 2, 0, REPORT, u32::from(!bad.1)];
    message.extend(words(bad));
    message.push(u32::from(lead.is_some()));
    message.extend(lead.map(words).into_iter().flatten());
    message.extend(problem);
    Verdict::ReportError(message, gives_up)
}

fn stream_fits((header, stream, message): placement::Sizes) -> Result<(), Problem> {
    let most = message - header;
    if stream <= most {
        return Ok(());
    }
    let narrow = |value: u64| u32::try_from(value).expect("32 bits");
    Err(vec![8, narrow(stream), 0, narrow(most)])
}

/// Whether the octets of an RPC message from `at` on have its XID and message type where those belong.
fn starts_right(seen: Seen, at: u64, payload: &[u8]) -> bool {
    let mut start = seen.xid.to_be_bytes().to_vec();
    start.extend(u32::from(seen.is_reply).to_be_bytes());
    let expected = start.iter().skip(usize::try_from(at).unwrap_or(8));
    expected
        .zip(payload)
        .all(|(expected, came)| expected == came)
}
