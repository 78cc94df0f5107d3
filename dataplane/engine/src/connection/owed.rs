//! What the peer of a connection owes, and how long it has been silent.

use rpcrdma_protocol::v2::connection::Unfinished;

use crate::close_reason::Owed;

/// Visits in the time limit: how late its end is noticed at most, as a part of it.
pub(crate) const VISITS: u8 = 4;

/// Something that may be owed: how far the peer had come when it was last looked at, if it owed anything then, and
/// how often in a row it had come no further.
#[derive(Clone, Copy, Debug)]
struct Debt<T> {
    progress: Option<T>,
    visits: u8,
}

impl<T> Default for Debt<T> {
    fn default() -> Self {
        Self {
            progress: None,
            visits: 0,
        }
    }
}

impl<T: Copy> Debt<T> {
    /// Takes note of what is found now; whether it has been so for the whole time limit.
    fn visit(&mut self, now: Option<T>, is_same: impl FnOnce(T, T) -> bool) -> bool {
        let stands =
            matches!((self.progress, now), (Some(before), Some(now)) if is_same(before, now));
        self.visits = if stands {
            self.visits.saturating_add(1)
        } else {
            0
        };
        self.progress = now;
        self.visits >= VISITS
    }
}

/// What the peer of one connection owes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Debts {
    first_message: Debt<()>,
    rest_of_message: Debt<Unfinished>,
    /// Progress is a message sent.
    credits: Debt<u32>,
    /// Progress is a send buffer that came back.
    receives: Debt<u32>,
    acknowledgement: Debt<()>,
    /// A reply with chunks, or of a transmission group, was waiting when its slot was last looked at.
    pub(crate) is_answering: bool,
}

/// What a peer owes at one moment; what it does not owe is `None`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Owing {
    pub(crate) first_message: Option<()>,
    pub(crate) rest_of_message: Option<Unfinished>,
    pub(crate) credits: Option<u32>,
    pub(crate) receives: Option<u32>,
    pub(crate) acknowledgement: Option<()>,
}

impl Debts {
    /// Takes note of what is owed now, and tells what has been owed for the whole time limit.
    pub(crate) fn visit(&mut self, owing: Owing) -> Option<Owed> {
        let is_late = [
            (
                self.first_message.visit(owing.first_message, |(), ()| true),
                Owed::FirstMessage,
            ),
            (
                // However much of it came meanwhile: slow is not finished.
                self.rest_of_message
                    .visit(owing.rest_of_message, |before, now| now.continues(before)),
                Owed::RestOfMessage,
            ),
            (
                self.receives
                    .visit(owing.receives, |before, now| before == now),
                Owed::Receives,
            ),
            (
                self.credits
                    .visit(owing.credits, |before, now| before == now),
                Owed::Credits,
            ),
            (
                self.acknowledgement
                    .visit(owing.acknowledgement, |(), ()| true),
                Owed::Acknowledgement,
            ),
        ];
        is_late
            .into_iter()
            .find_map(|(is_late, owed)| is_late.then_some(owed))
    }
}

/// How long the peer of a version 1 connection has been silent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Silence {
    /// Messages received by the latest tick.
    received: u32,
    /// Ticks up to the latest one without a message.
    pub(crate) ticks: u8,
    /// A probe that was sent is not acknowledged.
    pub(crate) is_probed: bool,
}

impl Silence {
    /// Takes note of a tick. Whether a probe is due: after `ticks_max` silent ticks, unless one is under way.
    pub(crate) fn tick(&mut self, received: u32, ticks_max: u8) -> bool {
        if std::mem::replace(&mut self.received, received) != received {
            self.ticks = 0;
            return false;
        }
        self.ticks = self.ticks.saturating_add(1);
        self.ticks >= ticks_max && !self.is_probed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(xid: u32, taken: u32) -> Owing {
        Owing {
            rest_of_message: Some(Unfinished { xid, taken }),
            ..Owing::default()
        }
    }

    #[test]
    fn what_is_never_finished_has_its_time() {
        let mut debts = Debts::default();
        for taken in [1, 1, 1, 2] {
            assert_eq!(debts.visit(part(7, taken)), None);
        }
        assert_eq!(debts.visit(part(7, 3)), Some(Owed::RestOfMessage));
    }

    #[test]
    fn whoever_finishes_and_begins_again_goes_on() {
        let mut debts = Debts::default();
        for visit in 0..20 {
            // Another message each time, or the same XID once more.
            let owing = Owing {
                credits: Some(visit),
                receives: Some(visit),
                ..part(visit / 4, 5 - visit % 4)
            };
            assert_eq!(debts.visit(owing), None);
        }
        for _ in 0..20 {
            assert_eq!(debts.visit(Owing::default()), None);
        }
    }

    #[test]
    fn each_debt_has_its_time_and_begins_anew_with_progress() {
        type Made = fn(u32) -> Owing;
        let debts: [(Made, Owed); 2] = [
            (
                |it| Owing {
                    credits: Some(it),
                    ..Owing::default()
                },
                Owed::Credits,
            ),
            (
                |it| Owing {
                    receives: Some(it),
                    ..Owing::default()
                },
                Owed::Receives,
            ),
        ];
        for (made, owed) in debts {
            let mut debts = Debts::default();
            assert!((0..4).all(|_| debts.visit(made(9)).is_none()));
            assert_eq!(debts.visit(made(10)), None, "it came further");
            assert!((0..3).all(|_| debts.visit(made(10)).is_none()));
            assert_eq!(debts.visit(made(10)), Some(owed));
        }
    }

    #[test]
    fn a_peer_that_never_speaks_has_its_time() {
        let silent = Owing {
            first_message: Some(()),
            ..Owing::default()
        };
        let mut debts = Debts::default();
        assert!((0..4).all(|_| debts.visit(silent).is_none()));
        assert_eq!(debts.visit(silent), Some(Owed::FirstMessage));
    }
}
