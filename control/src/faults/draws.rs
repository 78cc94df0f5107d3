//! When faults strike.

use super::fault::{Fault, FaultKind, Often};
use super::plan::FaultPlan;
use crate::reconnect::Chance;

/// The faults of one kind, at one place where they strike: a core, or the connection manager.
#[derive(Debug)]
pub(super) struct Draws {
    plan: FaultPlan,
    draws: Vec<Draw>,
}

/// One fault at one place.
#[derive(Debug)]
struct Draw {
    /// Its place in the plan.
    index: usize,
    fault: Fault,
    chance: Chance,
    occasions: u64,
    strikes: u64,
}

impl Draws {
    /// The faults of `kind` in `plan`, on core `core`.
    pub(super) fn new(plan: &FaultPlan, kind: FaultKind, core: usize) -> Self {
        let faults = plan.faults().enumerate();
        let draws = faults.filter(|(_, fault)| fault.kind == kind);
        Self {
            draws: draws
                .map(|(index, fault)| Draw::new(index, fault, core))
                .collect(),
            plan: plan.clone(),
        }
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.draws.is_empty()
    }

    /// Counts an occasion; returns the fault that strikes, the first of the plan if there are several.
    pub(super) fn strike(&mut self) -> Option<Fault> {
        let mut struck = None;
        for draw in &mut self.draws {
            if draw.is_due() && struck.is_none() {
                draw.strikes += 1;
                self.plan.count(draw.index);
                struck = Some(draw.fault);
            }
        }
        struck
    }
}

impl Draw {
    fn new(index: usize, fault: Fault, core: usize) -> Self {
        // Otherwise faults of one seed, and one fault on several cores, would strike at the same occasions.
        let place = u64::try_from(index << 16 | core).unwrap_or(u64::MAX);
        let mut chance = Chance(fault.seed);
        Self {
            index,
            fault,
            chance: Chance(chance.next() ^ Chance(place).next()),
            occasions: 0,
            strikes: 0,
        }
    }

    /// Counts an occasion; returns whether the fault may strike.
    fn is_due(&mut self) -> bool {
        self.occasions += 1;
        let Some(count) = self
            .occasions
            .checked_sub(self.fault.after)
            .filter(|it| *it > 0)
        else {
            return false;
        };
        let is_drawn = match self.fault.often {
            Often::Every(every) => count % every == 0,
            Often::OneIn(one_in) => self.chance.next() % one_in == 0,
        };
        is_drawn && self.fault.times.is_none_or(|times| self.strikes < times)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which of the first occasions are struck on a core, from 1 on, and by which fault of the plan.
    fn struck(texts: &[&str], core: usize, occasions: u64) -> Vec<(u64, String)> {
        let faults = texts.iter().map(|text| text.parse().expect(text));
        let plan = FaultPlan::new(faults);
        let mut draws = Draws::new(&plan, FaultKind::DropReply, core);
        let struck: Vec<_> = (1..=occasions)
            .filter_map(|occasion| Some((occasion, draws.strike()?.to_string())))
            .collect();
        let injected: u64 = plan.injected().map(|(_, count)| count).sum();
        assert_eq!(injected, struck.len() as u64);
        struck
    }

    fn occasions(text: &str, core: usize) -> Vec<u64> {
        let struck = struck(&[text], core, 1000);
        struck.into_iter().map(|(occasion, _)| occasion).collect()
    }

    #[test]
    fn every_after_and_times_count_occasions() {
        assert_eq!(occasions("drop-reply:times=3", 0), [1, 2, 3]);
        assert_eq!(occasions("drop-reply:every=400", 0), [400, 800]);
        assert_eq!(occasions("drop-reply:every=400,after=150", 0), [550, 950]);
        assert_eq!(occasions("drop-reply:after=998", 0), [999, 1000]);
        assert_eq!(occasions("drop-reply:every=100,times=2", 0), [100, 200]);
        assert_eq!(occasions("disconnect", 0), [] as [u64; 0], "another kind");
    }

    #[test]
    fn chance_is_by_the_seed_the_core_and_the_place_alone() {
        let first = occasions("drop-reply:one-in=10", 0);
        assert!((50..=150).contains(&first.len()), "{}", first.len());
        assert_eq!(first, occasions("drop-reply:one-in=10", 0));
        assert_ne!(first, occasions("drop-reply:one-in=10,seed=2", 0));
        assert_ne!(first, occasions("drop-reply:one-in=10", 1));
        let second = struck(&["disconnect", "drop-reply:one-in=10"], 0, 1000);
        let second: Vec<_> = second.into_iter().map(|(occasion, _)| occasion).collect();
        assert_ne!(first, second);
        // What passes first does not take part in the draw.
        let later = occasions("drop-reply:one-in=10,after=100", 0);
        let moved: Vec<_> = first
            .iter()
            .map(|at| at + 100)
            .filter(|at| *at <= 1000)
            .collect();
        assert_eq!(later, moved);
    }

    #[test]
    fn one_fault_strikes_at_an_occasion() {
        let both = ["drop-reply:every=2", "drop-reply:every=3"];
        let struck = struck(&both, 0, 6);
        let by = |occasion, fault: &str| (occasion, fault.to_owned());
        let wanted = [
            by(2, both[0]),
            by(3, both[1]),
            by(4, both[0]),
            by(6, both[0]),
        ];
        assert_eq!(struck, wanted);
    }
}
