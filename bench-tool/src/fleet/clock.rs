//! The clocks of coordinator and agents, and the offset between two of them, from exchanged timestamps.

use std::time::Instant;

use rpcrdma_units::nanoseconds;

/// Round trips for an offset. The shortest one counts, so a few that are disturbed do no harm.
pub(crate) const ROUND_TRIPS: u32 = 16;

/// Nanoseconds since a moment of this process; never stepped, unlike the time of day.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FleetClock {
    begin: Instant,
}

impl FleetClock {
    /// A clock that says 0 now.
    pub(crate) fn start() -> Self {
        Self {
            begin: Instant::now(),
        }
    }

    /// What the clock says at a moment; 0 before its start.
    pub(crate) fn at(&self, moment: Instant) -> u64 {
        let since = moment.saturating_duration_since(self.begin);
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    }

    /// What the clock says now.
    pub(crate) fn now(&self) -> u64 {
        self.at(Instant::now())
    }
}

/// One round trip: when the question was sent and its answer received, by the coordinator's clock, and what the
/// agent's clock said between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RoundTrip {
    pub(crate) sent_ns: u64,
    pub(crate) agent_ns: u64,
    pub(crate) received_ns: u64,
}

/// How far the clock of an agent is ahead of the coordinator's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offset {
    /// Negative if it is behind.
    pub(crate) ahead_ns: i64,
    /// The true offset differs by this at most, however asymmetric the way is: half of the shortest round trip.
    pub(crate) uncertainty_ns: u64,
}

impl Offset {
    /// From the shortest of several round trips; `None` if there is none.
    pub(crate) fn of(round_trips: &[RoundTrip]) -> Option<Self> {
        let length = |it: &&RoundTrip| it.received_ns.saturating_sub(it.sent_ns);
        let shortest = round_trips.iter().min_by_key(length)?;
        let half = length(&shortest) / 2;
        let middle = i128::from(shortest.sent_ns) + i128::from(half);
        let ahead = i128::from(shortest.agent_ns) - middle;
        Some(Self {
            ahead_ns: i64::try_from(ahead).ok()?,
            uncertainty_ns: length(&shortest).div_ceil(2),
        })
    }

    /// What the agent's clock says when the coordinator's says `own_ns`.
    pub(crate) fn to_agent(self, own_ns: u64) -> u64 {
        own_ns.saturating_add_signed(self.ahead_ns)
    }

    /// What the coordinator's clock says when the agent's says `agent_ns`; below 0 before the coordinator's start.
    pub(crate) fn to_own(self, agent_ns: u64) -> i64 {
        i64::try_from(agent_ns)
            .unwrap_or(i64::MAX)
            .saturating_sub(self.ahead_ns)
    }
}

/// A time that may be negative, for people: `-12.30 us`.
pub(crate) fn signed_nanoseconds(ns: i64) -> String {
    let sign = if ns < 0 { "-" } else { "" };
    format!("{sign}{}", nanoseconds(ns.unsigned_abs()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    #[test]
    fn the_shortest_round_trip_counts() {
        let trip = |sent_ns, agent_ns, received_ns| RoundTrip {
            sent_ns,
            agent_ns,
            received_ns,
        };
        assert_eq!(Offset::of(&[]), None);
        let trips = [
            trip(1_000, 9_000, 9_000),
            trip(10_000, 15_060, 10_100),
            trip(20_000, 24_000, 22_000),
        ];
        let offset = Offset::of(&trips).unwrap();
        let expected = Offset {
            ahead_ns: 5_010,
            uncertainty_ns: 50,
        };
        assert_eq!(offset, expected);
        assert_eq!(offset.to_agent(50_000), 55_010);
        assert_eq!(offset.to_own(55_010), 50_000);
        assert_eq!(offset.to_own(10), -5_000);
    }

    #[test]
    fn a_clock_never_goes_back() {
        // TIME: the reading is before that of the clock's start, on any machine.
        let begin = Instant::now();
        let clock = FleetClock::start();
        assert_eq!(clock.at(begin), 0);
        assert_eq!(clock.at(clock.begin + Duration::from_micros(3)), 3_000);
        assert!(clock.now() <= clock.now());
    }

    #[test]
    fn a_time_before_another_has_a_sign() {
        assert_eq!(signed_nanoseconds(-12_300), "-12.30 us");
        assert_eq!(signed_nanoseconds(450), "450 ns");
    }

    proptest! {
        /// The true offset is within the uncertainty, wherever in the round trip the agent read its clock.
        #[test]
        fn the_true_offset_is_within_the_uncertainty(
            ahead_ns in -1_000_000_000_i64..1_000_000_000,
            trips in prop::collection::vec((0_u64..1 << 40, 0_u64..1 << 20, 0_u64..1 << 20), 1..20),
        ) {
            let trips: Vec<RoundTrip> = trips.into_iter().map(|(sent_ns, there, back)| {
                let sent_ns = sent_ns + 2_000_000_000;
                RoundTrip {
                    sent_ns,
                    agent_ns: (sent_ns + there).saturating_add_signed(ahead_ns),
                    received_ns: sent_ns + there + back,
                }
            }).collect();
            let offset = Offset::of(&trips).unwrap();
            prop_assert!(offset.ahead_ns.abs_diff(ahead_ns) <= offset.uncertainty_ns);
            prop_assert_eq!(offset.to_own(offset.to_agent(5_000_000_000)), 5_000_000_000);
        }
    }
}
