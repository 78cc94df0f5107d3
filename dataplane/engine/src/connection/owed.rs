//! What the peer of a connection owes, and how long it has been silent.

use rpcrdma_protocol::v2::connection::Unfinished;

use crate::close_reason::Owed;

/// Visits within the time limit. A debt is noticed at most `1 / VISITS` of the limit too late.
pub(crate) const VISITS: u8 = 4;

/// What the peer of one connection owes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Debts {
    /// What it owed at the last visit.
    before: Owing,
    /// For each kind: at how many visits in a row it was owed without progress.
    visits: [u8; 5],
    /// A reply with chunks, or of a transmission group, was waiting for the connection when its slot was last visited.
    pub(crate) is_answering: bool,
    /// One of its calls with chunks, or of a transmission group, was being served when its slot was last visited.
    pub(crate) has_call: bool,
}

/// What a peer owes at one moment, and its progress; `None` (or false) is not owed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Owing {
    pub(crate) first_message: bool,
    pub(crate) rest_of_message: Option<Unfinished>,
    /// The value changes when a message is sent.
    pub(crate) credits: Option<u32>,
    /// The value changes when a send buffer comes back.
    pub(crate) receives: Option<u32>,
    /// The value changes when a probe is acknowledged.
    pub(crate) acknowledgement: Option<u32>,
}

impl Debts {
    /// Notes what is owed now. Returns a debt that has been owed for the whole time limit.
    pub(crate) fn visit(&mut self, now: Owing) -> Option<Owed> {
        let before = std::mem::replace(&mut self.before, now);
        let both = |before: Option<u32>, now| before.is_some() && before == now;
        // Further parts of a message are no progress: otherwise a peer could hold its buffer for ever
        // with one octet at a time.
        let rest = before.rest_of_message.zip(now.rest_of_message);
        let stand = [
            (
                Owed::FirstMessage,
                before.first_message && now.first_message,
            ),
            (
                Owed::RestOfMessage,
                rest.is_some_and(|(before, now)| now.continues(before)),
            ),
            (Owed::Receives, both(before.receives, now.receives)),
            (Owed::Credits, both(before.credits, now.credits)),
            (
                Owed::Acknowledgement,
                both(before.acknowledgement, now.acknowledgement),
            ),
        ];
        let mut late = None;
        for ((owed, stands), visits) in stand.into_iter().zip(&mut self.visits) {
            *visits = if stands { visits.saturating_add(1) } else { 0 };
            late = late.or((*visits >= VISITS).then_some(owed));
        }
        late
    }
}

/// How long the peer of a version 1 connection has been silent, and whether a peer of either version was sent a probe.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Silence {
    /// Messages received by the latest tick.
    received: u32,
    /// Ticks up to the latest one without a message.
    pub(crate) ticks: u8,
    /// A probe that was sent is not acknowledged.
    pub(crate) is_probed: bool,
    /// Probes that have ended. Wraps around.
    acknowledged: u32,
}

impl Silence {
    /// Takes note of a tick of a version 1 connection. Returns whether it is at least the `ticks_max`th silent one since
    /// the latest message or probe.
    pub(crate) fn tick(&mut self, received: u32, ticks_max: u8) -> bool {
        if std::mem::replace(&mut self.received, received) != received {
            self.ticks = 0;
            return false;
        }
        self.ticks = self.ticks.saturating_add(1);
        self.ticks >= ticks_max
    }

    /// Takes note of a probe that was acknowledged, or flushed at the end of its connection.
    pub(crate) fn end_probe(&mut self) {
        self.is_probed = false;
        self.acknowledged = self.acknowledged.wrapping_add(1);
    }

    /// How many probes have ended, modulo 2^32.
    pub(crate) fn probes_ended(&self) -> u32 {
        self.acknowledged
    }

    /// The value of [`Owing::acknowledgement`].
    pub(crate) fn acknowledgement_owed(&self) -> Option<u32> {
        self.is_probed.then_some(self.acknowledged)
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
    fn unfinished_message_expires() {
        let mut debts = Debts::default();
        for taken in [1, 1, 1, 2] {
            assert_eq!(debts.visit(part(7, taken)), None);
        }
        assert_eq!(debts.visit(part(7, 3)), Some(Owed::RestOfMessage));
    }

    #[test]
    fn new_message_after_a_finished_one_does_not_expire() {
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
        let debts: [(Made, Owed); 3] = [
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
            (
                |it| Owing {
                    acknowledgement: Some(it),
                    ..Owing::default()
                },
                Owed::Acknowledgement,
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

    /// As `docs/security.md` says: credits, Receives and acknowledgements have no limit over all steps, and a
    /// message has.
    #[test]
    fn one_step_in_each_limit_is_enough_but_not_of_a_message() {
        let mut debts = Debts::default();
        for visit in 0..1000 {
            let step = visit / u32::from(VISITS);
            let owing = Owing {
                credits: Some(step),
                receives: Some(step),
                acknowledgement: Some(step),
                ..Owing::default()
            };
            assert_eq!(debts.visit(owing), None, "{visit}");
        }
        let mut debts = Debts::default();
        let ended = (1..1000).find_map(|taken| Some((taken, debts.visit(part(7, taken))?)));
        assert_eq!(ended, Some((u32::from(VISITS) + 1, Owed::RestOfMessage)));
    }

    #[test]
    fn a_peer_that_never_speaks_has_its_time() {
        let silent = Owing {
            first_message: true,
            ..Owing::default()
        };
        let mut debts = Debts::default();
        assert!((0..4).all(|_| debts.visit(silent).is_none()));
        assert_eq!(debts.visit(silent), Some(Owed::FirstMessage));
    }
}
