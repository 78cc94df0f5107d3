//! Waits in real time. Every wait of a test is one of these, so that there is one limit, and a wait that can no longer end
//! fails immediately.

use std::time::{Duration, Instant};

/// The time limit for every wait of a test. It is far longer than a wait takes on a machine with other work.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The pause between two looks of [`until`] and [`reach`].
pub(crate) const PAUSE: Duration = Duration::from_millis(2);

/// How far something is that a test waits for.
#[derive(Clone, Copy, Debug)]
pub enum Seen<T> {
    /// It can still happen.
    NotYet,
    /// It has happened, with this result.
    Reached(T),
    /// It can no longer happen. This is what is there in its place, for example a later state.
    Passed(&'static str),
}

/// A wait that has begun: for loops that do something between their looks, such as polling a port.
#[derive(Clone, Copy, Debug)]
pub struct Wait<'a> {
    what: &'a str,
    deadline: Instant,
}

impl<'a> Wait<'a> {
    /// Begins to wait for `what`.
    #[must_use]
    pub fn begin(what: &'a str) -> Self {
        Self {
            what,
            deadline: Instant::now() + PATIENCE,
        }
    }

    /// Whether it is longer than [`PATIENCE`].
    #[must_use]
    pub fn is_over(&self) -> bool {
        Instant::now() >= self.deadline
    }

    /// Counts one more look without success.
    ///
    /// # Panics
    ///
    /// The wait is longer than [`PATIENCE`]; the message names what was waited for and shows `state`.
    #[track_caller]
    pub fn look(&self, state: impl FnOnce() -> String) {
        assert!(
            !self.is_over(),
            "{}: not in {PATIENCE:?}: {}",
            self.what,
            state()
        );
    }
}

/// Calls `done` every few milliseconds until it returns a result.
///
/// # Panics
///
/// `done` returns no result within [`PATIENCE`]; the message names `what`.
#[track_caller]
pub fn until<T>(what: &str, mut done: impl FnMut() -> Option<T>) -> T {
    reach(what, || done().map_or(Seen::NotYet, Seen::Reached))
}

/// Calls `state` every few milliseconds until what the test waits for has happened. For what may also be missed: a state
/// that another one follows, or an answer of a process that may have ended.
///
/// # Panics
///
/// `state` returns [`Seen::Passed`], or never [`Seen::Reached`] within [`PATIENCE`]; the message names `what`.
#[track_caller]
pub fn reach<T>(what: &str, mut state: impl FnMut() -> Seen<T>) -> T {
    let wait = Wait::begin(what);
    loop {
        match state() {
            Seen::NotYet => wait.look(String::new),
            Seen::Reached(result) => return result,
            Seen::Passed(instead) => panic!("{what}: it cannot come any more: {instead}"),
        }
        std::thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_with_the_result() {
        let mut looks = 0;
        let result = until("the third look", || {
            looks += 1;
            (looks == 3).then_some("there")
        });
        assert_eq!((result, looks), ("there", 3));
    }

    #[test]
    #[should_panic(expected = "idle: it cannot come any more: lost")]
    fn a_wait_for_a_state_that_was_passed_fails_at_the_next_look() {
        let mut states = ["starting", "lost"].into_iter();
        reach("idle", || match states.next() {
            Some("idle") => Seen::Reached(()),
            Some("lost") => Seen::Passed("lost"),
            Some(_) => Seen::NotYet,
            None => unreachable!("nobody looks again"),
        });
    }

    #[test]
    #[should_panic(expected = "a reply: not in 120s: 3 calls")]
    fn a_wait_that_is_too_long_shows_what_there_is() {
        let wait = Wait {
            what: "a reply",
            deadline: Instant::now(),
        };
        wait.look(|| "3 calls".to_owned());
    }
}
