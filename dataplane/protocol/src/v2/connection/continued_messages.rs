//! Continued messages (-00 section 6.3.2.2): one sequence at a time each way.
//!
//! A sequence is a run of messages with F_MORE set, and the first one with it clear. All of them have one XID and one
//! header type. Asynchronous grants and RDMA2_ERROR may come between them and do not belong to the sequence.

use super::event::SendRefused;
use crate::rpc::Direction;

/// What can be continued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    /// RDMA2_MSG.
    Message(Direction),
    /// RDMA2_CONNPROP.
    Properties,
    /// Outgoing only: a transmission group of the extension RTR, which excludes sequences while it is open.
    Group(Direction),
}

/// The state of the incoming sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum State {
    /// No sequence is open.
    Idle,
    /// An RPC message is being assembled.
    Message,
    /// A property set is being assembled.
    Properties,
    /// The sequence was given up; its rest is discarded.
    Discarding,
}

/// A message as an event for the incoming sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Part {
    /// An RDMA2_MSG that fits.
    Message,
    /// An RDMA2_CONNPROP that fits.
    Properties,
    /// A message that does not fit, or is refused.
    Broken,
}

/// A part that cannot come in this state: one that does not fit is [`Part::Broken`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct IllegalPart;

impl State {
    /// The state after `part`; `more` is its F_MORE flag.
    pub(super) const fn next(self, part: Part, more: bool) -> Result<Self, IllegalPart> {
        Ok(match (self, part, more) {
            (Self::Idle | Self::Message, Part::Message, true) => Self::Message,
            (Self::Idle | Self::Properties, Part::Properties, true) => Self::Properties,
            (Self::Idle | Self::Message | Self::Discarding, Part::Message, false)
            | (Self::Idle | Self::Properties | Self::Discarding, Part::Properties, false)
            | (_, Part::Broken, false) => Self::Idle,
            (Self::Discarding, Part::Message | Part::Properties, true)
            | (_, Part::Broken, true) => Self::Discarding,
            (Self::Message, Part::Properties, _) | (Self::Properties, Part::Message, _) => {
                return Err(IllegalPart);
            }
        })
    }
}

/// The incoming sequence of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inbound {
    state: State,
    kind: Kind,
    xid: u32,
    received_bytes: u32,
}

impl Inbound {
    pub(super) const IDLE: Self = Self {
        state: State::Idle,
        kind: Kind::Properties,
        xid: 0,
        received_bytes: 0,
    };

    #[inline]
    pub(super) const fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle)
    }

    pub(super) const fn is_discarding(&self) -> bool {
        matches!(self.state, State::Discarding)
    }

    /// Octets that the open sequence has brought so far.
    pub(super) const fn received_bytes(&self) -> u32 {
        self.received_bytes
    }

    /// XID and kind of the sequence that is being assembled.
    pub(super) const fn in_progress(&self) -> Option<(u32, Kind)> {
        match self.state {
            State::Message | State::Properties => Some((self.xid, self.kind)),
            State::Idle | State::Discarding => None,
        }
    }

    /// Whether a message is the continuation of the open sequence, or none is open.
    pub(super) fn fits(&self, kind: Kind, xid: u32) -> bool {
        self.is_idle() || (self.kind == kind && self.xid == xid)
    }

    /// Takes a message that [`fits`](Self::fits); `received_bytes` is the sum with it.
    pub(super) fn accept(&mut self, kind: Kind, xid: u32, received_bytes: u32, more: bool) {
        let part = match kind {
            Kind::Message(_) => Part::Message,
            Kind::Properties => Part::Properties,
            Kind::Group(_) => Part::Broken,
        };
        // A message that fits is legal. Otherwise the sequence would be discarded, the safe choice.
        self.state = self.state.next(part, more).unwrap_or(State::Discarding);
        self.kind = kind;
        self.xid = xid;
        self.received_bytes = if more { received_bytes } else { 0 };
    }

    /// Gives up the open sequence because of a message with this XID, and returns what was given up. With `continues`
    /// (that message is of this kind and has F_MORE) the rest of the sequence is discarded.
    pub(super) fn give_up(&mut self, xid: u32, continues: Option<Kind>) -> Option<(u32, Kind)> {
        let given_up = self.in_progress();
        self.state = self
            .state
            .next(Part::Broken, continues.is_some())
            .unwrap_or(State::Idle);
        self.kind = continues.unwrap_or(self.kind);
        self.xid = xid;
        self.received_bytes = 0;
        given_up
    }
}

/// The outgoing sequence of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outbound {
    open: Option<(u32, Kind)>,
}

impl Outbound {
    pub(super) const fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// XID and direction of the open transmission group.
    pub(super) const fn group(&self) -> Option<(u32, Direction)> {
        match self.open {
            Some((xid, Kind::Group(direction))) => Some((xid, direction)),
            _ => None,
        }
    }

    /// Whether a message of this kind may be sent now.
    #[inline]
    pub(super) fn check(&self, kind: Kind, xid: u32) -> Result<(), SendRefused> {
        match self.open {
            Some(open) if open != (xid, kind) => Err(SendRefused::SequenceOpen),
            _ => Ok(()),
        }
    }

    #[inline]
    pub(super) fn commit(&mut self, kind: Kind, xid: u32, more: bool) {
        self.open = more.then_some((xid, kind));
    }
}

#[cfg(test)]
mod tests {
    use super::{Part, State};
    use core::fmt::Write;

    /// Every state, every event. A new edge is a reviewed difference of the snapshot.
    #[test]
    fn table_is_as_reviewed() {
        let mut table = String::new();
        for state in [
            State::Idle,
            State::Message,
            State::Properties,
            State::Discarding,
        ] {
            for part in [Part::Message, Part::Properties, Part::Broken] {
                for (more, name) in [(true, "more"), (false, "last")] {
                    let next = state
                        .next(part, more)
                        .map_or_else(|_| "-".to_owned(), |next| format!("{next:?}"));
                    writeln!(table, "{state:?} + {part:?} {name} = {next}")
                        .expect("a String takes all");
                }
            }
        }
        assert_eq!(table, include_str!("continued_messages.table"));
    }
}
