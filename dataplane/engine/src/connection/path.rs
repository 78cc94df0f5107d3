//! What is known of the path of a connection whose peer can be reached by another one.

/// What shows that a path works: each of these changes when something came by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Passed {
    /// Messages received, grants apart.
    pub(crate) received: u32,
    /// Probes that have ended.
    pub(crate) probes: u32,
    /// The oldest work request that is not known to be done.
    pub(crate) oldest_work: Option<u64>,
}

impl Passed {
    /// Whether something has come since `before`. Work that was posted meanwhile says nothing, and work that is done does.
    fn is_beyond(self, before: Self) -> bool {
        let is_done = before.oldest_work.is_some() && before.oldest_work != self.oldest_work;
        self.received != before.received || self.probes != before.probes || is_done
    }
}

/// What to do about a path after a visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing.
    Wait,
    /// Send a probe.
    Probe,
    /// End the connection: nothing came, not even the acknowledgement of the probe.
    Dead,
}

/// The silent visits after which a path is judged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// Before a probe.
    pub(crate) suspect_visits: u32,
    /// From the probe to the end.
    pub(crate) probe_visits: u32,
}

/// The path of a connection, as its visits found it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Path {
    /// Its place on the core's list of watched paths; `None` if it is not judged.
    pub(crate) watched_at: Option<u32>,
    /// What had come at the last visit; `None` if nothing was awaited then.
    before: Option<Passed>,
    /// Visits in a row, up to the last one, at which nothing had come that was awaited.
    silent_visits: u32,
}

impl Path {
    /// Takes note of a visit: `passed` is `None` if nothing is awaited. Visits are counted, and not time, so that a core
    /// that did not run for a while blames no path: it handles what came before it visits.
    pub(crate) fn visit(&mut self, passed: Option<Passed>, patience: Patience) -> Verdict {
        let before = std::mem::replace(&mut self.before, passed);
        let is_silent = match (before, passed) {
            (Some(before), Some(now)) => !now.is_beyond(before),
            _ => false,
        };
        if !is_silent {
            self.silent_visits = 0;
            return Verdict::Wait;
        }
        self.silent_visits = self.silent_visits.saturating_add(1);
        let Patience {
            suspect_visits,
            probe_visits,
        } = patience;
        // A second one, because one packet may be lost: the device repeats it only after longer than a path has, and a later
        // packet makes the peer ask for it.
        let second = suspect_visits.saturating_add(probe_visits / 2);
        if self.silent_visits == suspect_visits || self.silent_visits == second {
            Verdict::Probe
        } else if self.silent_visits >= suspect_visits.saturating_add(probe_visits) {
            Verdict::Dead
        } else {
            Verdict::Wait
        }
    }

    /// The port cannot probe: the path is judged anew, and never dead.
    pub(crate) fn forget(&mut self) {
        self.silent_visits = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Patience = Patience {
        suspect_visits: 4,
        probe_visits: 4,
    };

    const NOTHING: Passed = Passed {
        received: 0,
        probes: 0,
        oldest_work: None,
    };

    fn visits(path: &mut Path, passed: Passed, count: usize) -> Vec<Verdict> {
        (0..count)
            .map(|_| path.visit(Some(passed), PATIENCE))
            .collect()
    }

    #[test]
    fn silent_path_is_probed_twice_and_then_dead() {
        use Verdict::{Dead, Probe, Wait};
        let mut path = Path::default();
        // The first visit only notes where it begins.
        assert_eq!(visits(&mut path, NOTHING, 4), [Wait; 4]);
        let verdicts = visits(&mut path, NOTHING, 5);
        assert_eq!(verdicts, [Probe, Wait, Probe, Wait, Dead]);
    }

    #[test]
    fn anything_that_comes_begins_the_silence_anew() {
        let work = |name| Passed {
            oldest_work: Some(name),
            ..NOTHING
        };
        let message = Passed {
            received: 1,
            ..work(1)
        };
        let probe = Passed {
            probes: 1,
            ..work(1)
        };
        for (before, after) in [
            (work(1), message),
            (work(1), probe),
            (work(1), work(2)),
            (work(1), NOTHING),
        ] {
            let mut path = Path::default();
            visits(&mut path, before, 8);
            assert_eq!(visits(&mut path, after, 1), [Verdict::Wait], "{after:?}");
            assert_eq!(visits(&mut path, after, 4)[3], Verdict::Probe, "{after:?}");
        }
    }

    #[test]
    fn work_that_is_posted_is_no_sign_of_life() {
        let mut path = Path::default();
        visits(&mut path, NOTHING, 5);
        let probed = Passed {
            oldest_work: Some(1),
            ..NOTHING
        };
        let verdicts = visits(&mut path, probed, 4);
        assert_eq!(verdicts[3], Verdict::Dead);
    }

    #[test]
    fn path_by_which_nothing_is_awaited_is_not_judged() {
        let mut path = Path::default();
        for _ in 0..20 {
            visits(&mut path, NOTHING, 4);
            assert_eq!(path.visit(None, PATIENCE), Verdict::Wait);
        }
    }
}
