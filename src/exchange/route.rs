//! By which connection the calls of a client go, and how they move to another.
//!
//! Both connections are there while they move: the control thread offers the new one ([`Route::offer`]), and the core takes it when
//! no call is under way ([`Route::look`]). Meanwhile it starts none. A call that was sent by the old connection could not be
//! repeated by the new one: the server knows them by different names, and would run it twice.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use rpcrdma_fabric::clock::Ticks;

/// A connection and by what its server knows it, as words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Generation and index of its key on the core.
    pub(super) connection: u64,
    /// See [`Way`](super::Way).
    pub(super) way: u32,
}

/// No index of a connection is as high.
const NO_CONNECTION: u64 = u64::MAX;

#[derive(Clone, Copy, Debug, Default)]
enum State {
    /// Calls go by the connection, if there is one.
    #[default]
    Settled,
    /// The core is to look at this one.
    Offered(Place),
    /// The core starts no call until none is under way, or it takes too long.
    Held {
        old: Place,
        new: Place,
        until: Ticks,
    },
    /// Calls go by the new connection. The control thread has not seen it yet.
    Moved,
}

/// What the core does after a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// Nothing is to be moved.
    Nothing,
    /// It looks again at its next poll.
    Again,
    /// It closes this connection: the old one, whose calls have moved, or the new one, to which they did not move in time.
    Close(u64),
}

/// What a core knows of its connections.
pub(super) trait Connections {
    /// Whether no call was sent by a connection that has not ended.
    fn is_quiet(&self, connection: u64) -> bool;
    /// Whether calls can be sent by a connection.
    fn is_ready(&self, connection: u64) -> bool;
}

/// By which connection calls go. A thread that changes it holds the lock; a core that makes a call takes none.
#[derive(Debug)]
pub(super) struct Route {
    connection: AtomicU64,
    way: AtomicU32,
    state: Mutex<State>,
    /// There is something for the core to look at.
    is_offered: AtomicBool,
}

impl Default for Route {
    fn default() -> Self {
        Self {
            connection: AtomicU64::new(NO_CONNECTION),
            way: AtomicU32::new(0),
            state: Mutex::default(),
            is_offered: AtomicBool::new(false),
        }
    }
}

impl Route {
    /// The connection by which calls go now. There is none while it is made, and while calls are held.
    #[inline]
    pub(super) fn connection(&self) -> Option<u64> {
        // Acquire, with the Release of `set`: who sees the connection sees that it was counted. A core checks the key against its
        // table.
        let word = self.connection.load(Ordering::Acquire);
        (word != NO_CONNECTION).then_some(word)
    }

    /// By what the last connection is known to its server.
    #[inline]
    pub(super) fn way(&self) -> u32 {
        self.way.load(Ordering::Relaxed)
    }

    /// The connection that there is, also while calls are held.
    pub(super) fn place(&self) -> Option<Place> {
        let state = self.state();
        match *state {
            State::Held { old, .. } => Some(old),
            _ => self.current(),
        }
    }

    /// Calls go by this one.
    pub(super) fn set(&self, place: Place) {
        let _state = self.state();
        self.store(place);
    }

    /// There is no connection.
    pub(super) fn clear(&self) {
        let _state = self.state();
        self.connection.store(NO_CONNECTION, Ordering::Relaxed);
    }

    /// Offers a connection, to take the place of the one that there is. The core has to be asked to look.
    pub(super) fn offer(&self, new: Place) {
        *self.state() = State::Offered(new);
        self.is_offered.store(true, Ordering::Relaxed);
    }

    /// Whether the core has to look, or calls are held.
    #[inline]
    pub(super) fn is_offered(&self) -> bool {
        // Acquire, with the Release of `go_by`: who sees no offer any more sees the connection that calls go by instead.
        self.is_offered.load(Ordering::Acquire)
    }

    /// Something has happened to one of the two connections. Returns whether calls had moved by then. If not, they do not move any
    /// more.
    pub(super) fn settle(&self) -> bool {
        let mut state = self.state();
        let before = std::mem::take(&mut *state);
        let old = match before {
            State::Held { old, .. } => Some(old),
            State::Settled | State::Offered(_) | State::Moved => None,
        };
        self.go_by(old);
        matches!(before, State::Moved)
    }

    /// The core looks. It holds calls for at most `hold`.
    pub(super) fn look(&self, core: &impl Connections, now: Ticks, hold: Ticks) -> Look {
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Another thread has it for an instant, and a core waits for nobody.
            Err(TryLockError::WouldBlock) => return Look::Again,
        };
        let (old, new, until) = match *state {
            State::Settled | State::Moved => return Look::Nothing,
            State::Offered(new) => match self.current() {
                Some(old) => (old, new, now.saturating_add(hold)),
                // The old one has ended. The control thread withdraws the offer.
                None => return Look::Again,
            },
            State::Held { old, new, until } => (old, new, until),
        };
        if !core.is_ready(new.connection) {
            // It was lost already, of which the control thread will learn.
            *state = State::Settled;
            self.go_by(Some(old));
            return Look::Nothing;
        }
        if core.is_quiet(old.connection) {
            *state = State::Moved;
            self.go_by(Some(new));
            return Look::Close(old.connection);
        }
        if now >= until {
            *state = State::Settled;
            self.go_by(Some(old));
            return Look::Close(new.connection);
        }
        *state = State::Held { old, new, until };
        self.connection.store(NO_CONNECTION, Ordering::Relaxed);
        Look::Again
    }

    /// There is no offer any more, and calls go by this connection, or as before.
    fn go_by(&self, place: Option<Place>) {
        if let Some(place) = place {
            self.store(place);
        }
        // Release, with the Acquire of `is_offered`.
        self.is_offered.store(false, Ordering::Release);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn current(&self) -> Option<Place> {
        let way = self.way();
        self.connection()
            .map(|connection| Place { connection, way })
    }

    fn store(&self, place: Place) {
        // Relaxed: who sees the connection sees this.
        self.way.store(place.way, Ordering::Relaxed);
        // Release, with the Acquire of `connection`.
        self.connection.store(place.connection, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: Place = Place {
        connection: 1,
        way: 2,
    };
    const NEW: Place = Place {
        connection: 3,
        way: 4,
    };
    const HOLD: Ticks = 10;

    /// Whether the old connection is quiet, and the new one ready.
    struct Core(bool, bool);
    const BUSY: Core = Core(false, true);
    const QUIET: Core = Core(true, true);

    impl Connections for Core {
        fn is_quiet(&self, connection: u64) -> bool {
            assert_eq!(connection, OLD.connection);
            self.0
        }

        fn is_ready(&self, connection: u64) -> bool {
            assert_eq!(connection, NEW.connection);
            self.1
        }
    }

    fn offered() -> Route {
        let route = Route::default();
        route.set(OLD);
        route.offer(NEW);
        assert!(route.is_offered());
        assert_eq!(route.connection(), Some(OLD.connection));
        route
    }

    fn goes_by(route: &Route, place: Place) {
        assert_eq!(route.place(), Some(place));
        assert_eq!(route.connection(), Some(place.connection));
        assert_eq!(route.way(), place.way);
        assert!(!route.is_offered());
    }

    #[test]
    fn calls_are_held_until_none_is_under_way_and_then_move() {
        let route = offered();
        assert_eq!(route.look(&BUSY, 5, HOLD), Look::Again);
        assert_eq!(route.connection(), None, "no call starts");
        assert_eq!(route.place(), Some(OLD), "it is connected all the same");
        assert_eq!(route.look(&BUSY, 14, HOLD), Look::Again);
        assert_eq!(route.look(&QUIET, 14, HOLD), Look::Close(OLD.connection));
        goes_by(&route, NEW);
        assert_eq!(route.look(&QUIET, 14, HOLD), Look::Nothing);
        assert!(route.settle() && !route.settle());
    }

    #[test]
    fn calls_that_take_too_long_stay() {
        let route = offered();
        assert_eq!(route.look(&BUSY, 5, HOLD), Look::Again);
        assert_eq!(route.look(&BUSY, 15, HOLD), Look::Close(NEW.connection));
        goes_by(&route, OLD);
        assert!(!route.settle());
    }

    #[test]
    fn calls_do_not_move_to_a_connection_that_was_lost() {
        for was_held in [false, true] {
            let route = offered();
            if was_held {
                assert_eq!(route.look(&BUSY, 5, HOLD), Look::Again);
            }
            assert_eq!(route.look(&Core(true, false), 6, HOLD), Look::Nothing);
            goes_by(&route, OLD);
            assert!(!route.settle());
        }
    }

    #[test]
    fn end_of_either_connection_takes_the_offer_back() {
        for was_held in [false, true] {
            let route = offered();
            if was_held {
                assert_eq!(route.look(&BUSY, 5, HOLD), Look::Again);
            }
            assert!(!route.settle());
            goes_by(&route, OLD);
            assert_eq!(route.look(&QUIET, 6, HOLD), Look::Nothing);
        }
    }

    #[test]
    fn connection_that_has_ended_is_not_held() {
        let route = offered();
        route.clear();
        assert_eq!(route.look(&QUIET, 5, HOLD), Look::Again);
        assert_eq!(route.connection(), None);
        assert!(!route.settle());
        assert_eq!(route.place(), None);
    }
}
