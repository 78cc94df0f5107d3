//! The state of version negotiation: a table of states and events.

use core::fmt;

/// The state of version negotiation (-00 section 4.3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// A client that has sent nothing: its first message shows whether the server supports version 2.
    ClientStart,
    /// A client that has sent its first message: it sends nothing more until the server has answered.
    ClientWaiting,
    /// A server that has received nothing of a version it supports: it may send nothing but ERR_VERS.
    ServerStart,
    /// Both ends use version 2 until the connection ends.
    Established,
    /// The connection is not one of version 2: the server refused that, or another version was chosen. This
    /// state cannot be used any more.
    Mismatched,
    /// The connection is closed or has to be closed.
    Closed,
}

/// What can happen to a [`Phase`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PhaseEvent {
    /// We send a version 2 message.
    Sent,
    /// A version 2 message of full size came that is no error. Its contents need not be valid.
    PeerSpoke,
    /// A version 2 transport error came, which does not prove that the peer supports version 2.
    PeerError,
    /// ERR_VERS came.
    VersionRefused,
    /// The connection uses another version from its first message.
    OtherVersionChosen,
    /// A message of full size came, in a version that we do not support.
    OtherVersion,
    /// The peer broke a rule that costs it the connection.
    Fatal,
}

/// An event that the protocol does not allow in this phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IllegalEvent {
    /// The phase, which stays as it is.
    pub phase: Phase,
    /// The event.
    pub event: PhaseEvent,
}

impl fmt::Display for IllegalEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is not allowed in phase {:?}",
            self.event, self.phase
        )
    }
}

impl core::error::Error for IllegalEvent {}

impl Phase {
    /// The phase after `event`.
    ///
    /// # Errors
    /// [`IllegalEvent`]: the peer, or the caller, may not do that in this phase.
    pub const fn next(self, event: PhaseEvent) -> Result<Self, IllegalEvent> {
        use PhaseEvent as E;
        Ok(match (self, event) {
            (Self::ClientStart, E::Sent) | (Self::ClientWaiting, E::PeerError) => {
                Self::ClientWaiting
            }
            (Self::ServerStart, E::PeerError | E::OtherVersion) => Self::ServerStart,
            (Self::ClientWaiting | Self::ServerStart, E::PeerSpoke)
            | (Self::Established, E::Sent | E::PeerSpoke | E::PeerError) => Self::Established,
            (Self::ClientWaiting, E::VersionRefused)
            | (Self::ClientStart | Self::ServerStart, E::OtherVersionChosen) => Self::Mismatched,
            (_, E::Fatal) => Self::Closed,
            (phase, event) => return Err(IllegalEvent { phase, event }),
        })
    }

    /// Whether this is a client whose version is not known yet.
    #[cold]
    pub(super) const fn is_opening(self) -> bool {
        matches!(self, Self::ClientStart | Self::ClientWaiting)
    }

    /// Whether messages of this connection are ignored.
    pub(super) const fn is_over(self) -> bool {
        matches!(self, Self::Mismatched | Self::Closed)
    }
}

#[cfg(test)]
mod tests {
    use super::{Phase, PhaseEvent};
    use core::fmt::Write;

    const PHASES: [Phase; 6] = [
        Phase::ClientStart,
        Phase::ClientWaiting,
        Phase::ServerStart,
        Phase::Established,
        Phase::Mismatched,
        Phase::Closed,
    ];
    const EVENTS: [PhaseEvent; 7] = [
        PhaseEvent::Sent,
        PhaseEvent::PeerSpoke,
        PhaseEvent::PeerError,
        PhaseEvent::VersionRefused,
        PhaseEvent::OtherVersionChosen,
        PhaseEvent::OtherVersion,
        PhaseEvent::Fatal,
    ];

    /// Every state, every event. A new edge is a reviewed difference of the snapshot.
    #[test]
    fn table_is_as_reviewed() {
        let mut table = String::new();
        for phase in PHASES {
            for event in EVENTS {
                let next = phase
                    .next(event)
                    .map_or_else(|_| "-".to_owned(), |next| format!("{next:?}"));
                writeln!(table, "{phase:?} + {event:?} = {next}").expect("a String takes all");
            }
        }
        assert_eq!(table, include_str!("phase.table"));
    }

    /// -00 section 4.3.3.3: no way leads from an established version to another.
    #[test]
    fn an_established_version_never_changes() {
        for event in EVENTS {
            match Phase::Established.next(event) {
                Ok(next) => assert!(matches!(next, Phase::Established | Phase::Closed)),
                Err(illegal) => assert_eq!(illegal.phase, Phase::Established),
            }
        }
    }
}
