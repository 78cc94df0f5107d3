//! A core that sleeps as [`Core::run`](crate::Core::run) lets it, in virtual time.

use std::time::Duration;

use rpcrdma_fabric::interface::prelude::*;

use super::World;
use crate::rpc::Activity;

/// A core that sleeps is polled in one of so many turns, though nothing woke it: it must find nothing. In the others it is
/// not, so that whatever it misses is late.
const TURNS_OF_A_PROBE: u64 = 4;

impl World {
    /// The core polls, unless it sleeps and nothing wakes it.
    pub(super) fn poll_core(&mut self) {
        if let Some(until) = self.asleep_until {
            if !self.is_awakened() && self.now < until {
                if self.turns.is_multiple_of(TURNS_OF_A_PROBE) {
                    self.probe();
                }
                return;
            }
            self.asleep_until = None;
            self.core.state.end_park();
        }
        let activity = self.core.iterate_at(self.now);
        if self.form.sleeps && activity == Activity::Idle && self.core.state.prepare_to_park() {
            self.fall_asleep();
        }
    }

    /// What came before the sleep was announced is found by one more poll.
    fn fall_asleep(&mut self) {
        if self.core.iterate_at(self.now) == Activity::Busy {
            return self.core.state.end_park();
        }
        self.core.state.park(Duration::ZERO);
        let until = self.core.sleeps_until(self.now);
        if self.core.state.waits_unnotified() {
            // A nap, whose end nobody notifies the core of: it passes as if nobody did anything meanwhile.
            self.now = until.max(self.now);
        }
        self.asleep_until = Some(until);
    }

    /// Whether the port or the control plane has woken the core.
    fn is_awakened(&self) -> bool {
        let core = &self.core.state.resources;
        crate::idle::sleep(&core.port.event(), &core.shared.wake, Duration::ZERO)
    }

    /// Polls a core that sleeps, as of the last poll: what is due later is not.
    fn probe(&mut self) {
        let before = self.handle.counters();
        let activity = self.core.iterate_at(self.core.state.resources.now);
        let after = self.handle.counters();
        assert_eq!(
            activity,
            Activity::Idle,
            "a core that sleeps has something to do, and nobody woke it:\n{}",
            after.since(&before)
        );
    }
}
