//! Turns, by which a test drives its ends, and the time that passes in them.

use std::time::Duration;

use rpcrdma_engine::CoreConfig;
use rpcrdma_fabric::clock::{Clock, Ticks};
use rpcrdma_testkit::Wait;

use super::fabric::{Fabric, Polled};
use crate::TestFabric;

/// When the time of a test begins: after its cores have read the clock, and with nothing due for a while that a core does
/// once in an interval. How long it took to make the cores is the machine's, and so would be what is due in which turn.
#[derive(Default)]
pub struct Beginning {
    /// From when to when something may be due.
    dues: Vec<(Ticks, Ticks)>,
}

impl Beginning {
    /// Longer than any test takes to its first wait.
    const A_WHILE: Duration = Duration::from_millis(20);
    /// How often a core publishes what it is at.
    const PUBLISHES: Duration = Duration::from_millis(100);
    /// Of a deadline for peers, in how many parts it is checked.
    const VISITS: u32 = 4;

    /// Makes a core.
    pub fn of<C>(&mut self, config: &CoreConfig, clock: &Clock, make: impl FnOnce() -> C) -> C {
        let from = clock.now();
        let made = make();
        let to = clock.now();
        let visits = config.stall_timeout / Self::VISITS;
        for interval in [Self::PUBLISHES, config.keep_alive_interval, visits] {
            let interval = clock.ticks(interval);
            self.dues.push((from + interval, to + interval));
        }
        made
    }

    pub fn now(mut self, clock: &Clock) -> Ticks {
        let mut now = clock.now();
        self.dues.sort_unstable();
        for (from, to) in self.dues {
            if from < now + clock.ticks(Self::A_WHILE) {
                now = now.max(to);
            }
        }
        now
    }
}

/// Both ends.
pub(super) const ALL: Polled = [true, true];
/// The first alone.
pub(super) const CLIENT: Polled = [true, false];

/// What goes on by turns. Time passes in turns that begin with nothing under way, so that no deadline passes while a
/// device is at work.
pub trait Turns: Sized {
    /// Whether the device works on something that polls of these ends bring.
    fn is_under_way(&self, polled: Polled) -> bool;

    /// One iteration of each of these ends, so much later. Whether there was anything to do.
    fn iterate(&mut self, polled: Polled, time: Duration) -> bool;

    /// For a test that failed.
    fn state(&self) -> String;

    /// A turn of these ends. Whether there was anything to do.
    fn turn_of(&mut self, polled: Polled) -> bool {
        let time = match self.is_under_way(polled) {
            true => TestFabric::TURN_AT_WORK,
            false => TestFabric::TURN,
        };
        let busy = self.iterate(polled, time);
        if self.is_under_way(polled) {
            TestFabric::work();
        }
        busy
    }

    /// Turns until nothing is under way. Whether there was anything to do.
    fn settle(&mut self, polled: Polled) -> bool {
        let wait = Wait::begin("the device is quiet");
        let mut busy = false;
        while self.is_under_way(polled) {
            busy |= self.turn_of(polled);
            wait.look(|| self.state());
        }
        busy
    }

    /// So many turns of these ends; on a device, each of them with all that was sent before, and as many more as there is
    /// work for.
    fn turns_of(&mut self, polled: Polled, count: usize) {
        for _ in 0..count {
            self.turn_of(polled);
            self.settle(polled);
        }
        // TIME: no turn of these waits for the device. A core that has work for more turns is busy for ever.
        for _ in 0..5000 {
            if !TestFabric::WORKS_BY_ITSELF || !(self.turn_of(polled) | self.settle(polled)) {
                break;
            }
        }
    }

    /// Turns until something is so; fails when it does not come to be.
    fn turn_until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let wait = Wait::begin(what);
        // TIME: counts turns that begin with nothing under way, so that it is the same on every machine.
        let mut turns = 0;
        while !done(self) {
            if !self.is_under_way(ALL) {
                turns += 1;
                assert!(turns <= 200_000, "never came: {what}\n{}", self.state());
            }
            self.turn_of(ALL);
            wait.look(|| self.state());
        }
    }
}
