//! Deadlines of connects and of host authentication.
//!
//! A walk over all connections finds those that are late. It is made only when the first deadline may have passed, and
//! not at each wake: N connects that start together wake the thread a few times each, and a walk each time would cost
//! O(N²).

use std::time::{Duration, Instant};

use rpcrdma_fabric::interface::ConnectionId;

use super::connection::{End, Tracked};

/// The least time between two walks, so that one walk finds all deadlines that are close together.
const WALK_INTERVAL: Duration = Duration::from_millis(10);

/// When the next walk is due.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    /// The first deadline, or the end of the rest after the last walk if that is later; `None` without deadlines.
    next_walk: Option<Instant>,
    walked_at: Option<Instant>,
}

/// Connections whose deadline has passed.
#[derive(Debug, Default)]
pub(super) struct Late {
    /// Connects that took too long.
    pub(super) connects: Vec<ConnectionId>,
    /// Peers that did not authenticate themselves in time.
    pub(super) unauthenticated: Vec<ConnectionId>,
}

impl Deadlines {
    /// Adds a deadline.
    pub(super) fn add(&mut self, deadline: Instant) {
        let resting_until = self.walked_at.map_or(deadline, |at| at + WALK_INTERVAL);
        let due = deadline.max(resting_until);
        self.next_walk = Some(self.next_walk.map_or(due, |next| next.min(due)));
    }

    /// The time of the next walk.
    pub(super) fn next_walk(&self) -> Option<Instant> {
        self.next_walk
    }

    /// Finds the connections whose deadline has passed, if a walk is due.
    pub(super) fn take_late<'a>(
        &mut self,
        connections: impl Iterator<Item = &'a Tracked>,
        now: Instant,
    ) -> Late {
        let mut late = Late::default();
        if !self.begin_walk(now) {
            return late;
        }
        for tracked in connections {
            let deadlines = [
                (connect_deadline(tracked), &mut late.connects),
                (tracked.session.deadline(), &mut late.unauthenticated),
            ];
            for (deadline, late) in deadlines {
                match deadline {
                    Some(deadline) if deadline <= now => late.push(tracked.id),
                    Some(deadline) => self.add(deadline),
                    None => {}
                }
            }
        }
        late
    }

    /// Whether a walk is due. The caller makes it, and adds the deadlines that are left.
    fn begin_walk(&mut self, now: Instant) -> bool {
        let is_due = self.next_walk.is_some_and(|due| due <= now);
        if is_due {
            self.next_walk = None;
            self.walked_at = Some(now);
        }
        is_due
    }
}

/// The deadline of an attempt to connect.
fn connect_deadline(tracked: &Tracked) -> Option<Instant> {
    match &tracked.end {
        End::Client(attempt) if attempt.waiter.is_some() => attempt.deadline,
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn a_walk_is_due_at_the_first_deadline_and_not_before() {
        // TIME: a beginning, to which the test itself adds what passes.
        let now = Instant::now();
        let mut deadlines = Deadlines::default();
        assert!(!deadlines.begin_walk(now));
        deadlines.add(now + ms(50));
        deadlines.add(now + ms(30));
        deadlines.add(now + ms(70));
        assert_eq!(deadlines.next_walk(), Some(now + ms(30)));
        assert!(!deadlines.begin_walk(now + ms(29)));
        assert!(deadlines.begin_walk(now + ms(30)));
        // The walk adds those that are left.
        assert_eq!(deadlines.next_walk(), None);
        deadlines.add(now + ms(50));
        assert_eq!(deadlines.next_walk(), Some(now + ms(50)));
    }

    #[test]
    fn deadlines_close_to_each_other_take_one_walk() {
        // TIME: a beginning, to which the test itself adds what passes.
        let now = Instant::now();
        let mut deadlines = Deadlines::default();
        deadlines.add(now);
        assert!(deadlines.begin_walk(now));
        deadlines.add(now + ms(1));
        assert!(!deadlines.begin_walk(now + ms(9)));
        assert!(deadlines.begin_walk(now + ms(10)));
    }
}
