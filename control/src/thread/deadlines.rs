//! Deadlines of connects and of host authentication.
//!
//! A walk over all connections finds those that are late. It is made only when the first deadline may have passed, and
//! not at each wake: N connects that start together wake the thread a few times each, and a walk each time would cost
//! O(N²).

use std::time::{Duration, Instant};

use rpcrdma_fabric::interface::ConnectionId;

use super::ControlThread;
use crate::connection::{End, Tracked};
use crate::provider::Provider;

/// The least time between two walks, so that one walk finds all deadlines that are close together.
const WALK_INTERVAL: Duration = Duration::from_millis(10);

/// When the next walk is due.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    /// The first deadline, or the end of the rest after the last walk if that is later; `None` without deadlines.
    next_walk: Option<Instant>,
    walked_at: Option<Instant>,
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

impl<V: Provider> ControlThread<V> {
    /// Gives up on connects that took too long, and on peers that did not authenticate themselves in time.
    pub(super) fn expire(&mut self, now: Instant) {
        if !self.deadlines.begin_walk(now) {
            return;
        }
        let (mut connects, mut unauthenticated) = (Vec::new(), Vec::new());
        for tracked in self.connections.values() {
            let deadlines = [
                (connect_deadline(tracked), &mut connects),
                (tracked.session.deadline(), &mut unauthenticated),
            ];
            for (deadline, late) in deadlines {
                match deadline {
                    Some(deadline) if deadline <= now => late.push(tracked.id),
                    Some(deadline) => self.deadlines.add(deadline),
                    None => {}
                }
            }
        }
        self.expire_connects(connects);
        self.expire_unauthenticated(unauthenticated);
    }

    /// Adds the deadline of a connection's session, which may be new.
    pub(super) fn note_session_deadline(&mut self, id: ConnectionId) {
        let tracked = self.connections.get(&id);
        if let Some(deadline) = tracked.and_then(|tracked| tracked.session.deadline()) {
            self.deadlines.add(deadline);
        }
    }
}

/// The deadline of an attempt to connect.
fn connect_deadline(tracked: &Tracked) -> Option<Instant> {
    match &tracked.end {
        End::Client(attempt) if attempt.waiter.is_some() => Some(attempt.deadline),
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
        let now = Instant::now();
        let mut deadlines = Deadlines::default();
        deadlines.add(now);
        assert!(deadlines.begin_walk(now));
        deadlines.add(now + ms(1));
        assert!(!deadlines.begin_walk(now + ms(9)));
        assert!(deadlines.begin_walk(now + ms(10)));
    }
}
