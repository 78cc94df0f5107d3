//! A connection of a client.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rpcrdma_control::Connection;
use rpcrdma_engine::{ConnectionKey, Context};
use rpcrdma_fabric::clock::Ticks;
use rpcrdma_fabric::interface::Port;

use super::route::{Connections, Look, Place, Route};

/// A connection of a client, as its core and its threads see it.
pub(crate) struct PeerConnection {
    /// The addresses of the server, the one that is tried first before the others.
    pub(crate) address: String,
    /// Each of them.
    addresses: Vec<String>,
    /// How long a call that was not sent waits for the connection.
    pub(crate) patience: Duration,
    /// Calls that are lost with the connection are made again.
    pub(crate) repeats: bool,
    /// If it repeats calls: which have not ended of the 64 that begin with the oldest such, as bits. Its core alone changes
    /// this and the next three.
    under_way: AtomicU64,
    /// The number of the oldest of them.
    oldest: AtomicU32,
    /// The number that the next call gets.
    next: AtomicU32,
    /// Calls that wait for the connection, to be made again before any new one.
    pub(crate) lost: AtomicU32,
    /// The connection by which its calls go.
    route: Route,
    is_given_up: AtomicBool,
    /// Why there is no connection, for errors.
    why: Mutex<Option<String>>,
    /// The times that a connection was made.
    established: AtomicU64,
    /// The times that calls moved to another connection, made before the old one was closed.
    moves: AtomicU64,
}

/// By what a server knows the client at the other end of a connection: a server that keeps replies finds those of a client only where
/// this is the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Way(u32);

impl Way {
    const fn new(address: u32, is_proved: bool) -> Self {
        Self(address << 1 | is_proved as u32)
    }

    /// Whether a client is the same by both. One that has announced its name is so at all addresses, as the host that it has proved to
    /// be, or as none; another one is known by the address that it comes from, which may differ with that of the server.
    pub(crate) const fn is_same(self, other: Self, has_name: bool) -> bool {
        match has_name {
            true => self.0 & 1 == other.0 & 1,
            false => self.0 == other.0,
        }
    }
}

fn bit(place: u32) -> u64 {
    debug_assert!(place < u64::BITS, "a span is 64 at most");
    1_u64.checked_shl(place).unwrap_or(0)
}

impl PeerConnection {
    /// One that is not connected.
    pub(crate) fn new(addresses: &[String], patience: Duration, repeats: bool) -> Self {
        Self {
            patience,
            repeats,
            under_way: AtomicU64::new(0),
            oldest: AtomicU32::new(0),
            next: AtomicU32::new(0),
            lost: AtomicU32::new(0),
            address: addresses.join(","),
            addresses: addresses.to_vec(),
            route: Route::default(),
            is_given_up: AtomicBool::new(false),
            why: Mutex::new(None),
            established: AtomicU64::new(0),
            moves: AtomicU64::new(0),
        }
    }

    /// How many calls were sent since the oldest one that has not ended, with that one. They are at most 64.
    pub(crate) fn span(&self) -> u32 {
        match self.under_way.load(Ordering::Relaxed) {
            0 => 0,
            _ => {
                let oldest = self.oldest.load(Ordering::Relaxed);
                self.next.load(Ordering::Relaxed).wrapping_sub(oldest)
            }
        }
    }

    /// A call is sent, where [`PeerConnection::span`] is below 64. Returns its number.
    pub(crate) fn begin(&self) -> u32 {
        let number = self.next.load(Ordering::Relaxed);
        self.next.store(number.wrapping_add(1), Ordering::Relaxed);
        let under_way = self.under_way.load(Ordering::Relaxed);
        if under_way == 0 {
            self.oldest.store(number, Ordering::Relaxed);
        }
        let place = number.wrapping_sub(self.oldest.load(Ordering::Relaxed));
        self.under_way
            .store(under_way | bit(place), Ordering::Relaxed);
        number
    }

    /// The call of this number has ended.
    pub(crate) fn end(&self, number: u32) {
        let oldest = self.oldest.load(Ordering::Relaxed);
        let left = self.under_way.load(Ordering::Relaxed) & !bit(number.wrapping_sub(oldest));
        let ended = if left == 0 { 0 } else { left.trailing_zeros() };
        self.oldest
            .store(oldest.wrapping_add(ended), Ordering::Relaxed);
        self.under_way.store(left >> ended, Ordering::Relaxed);
    }

    /// The connection by which calls go now: none while it is made, and while calls are held because they move to another.
    #[inline]
    pub(crate) fn connection(&self) -> Option<ConnectionKey> {
        self.route.connection().map(key_of)
    }

    pub(crate) fn set_connected(&self, connection: &Connection) {
        self.established.fetch_add(1, Ordering::Relaxed);
        self.route.set(self.place_of(connection));
    }

    /// Offers the core a connection to take the place of the one that there is: see [`Route`].
    pub(crate) fn offer(&self, connection: &Connection) {
        self.route.offer(self.place_of(connection));
    }

    /// Something has happened to one of two connections. Returns whether calls have moved to the one that was offered. If not, they do
    /// not move any more.
    pub(crate) fn settle(&self) -> bool {
        let has_moved = self.route.settle();
        if has_moved {
            self.moves.fetch_add(1, Ordering::Relaxed);
        }
        has_moved
    }

    #[inline]
    pub(crate) fn is_offered(&self) -> bool {
        self.route.is_offered()
    }

    /// Whether a call that has found no connection is to look again: calls are held, or were a moment ago.
    pub(crate) fn is_held(&self) -> bool {
        self.is_offered() || self.connection().is_some()
    }

    /// The core looks at what was offered, and holds calls for at most `hold`. Returns whether it has to look again, and the connection
    /// that it has to close.
    pub(crate) fn look<P: Port>(
        &self,
        core: &Context<'_, P>,
        hold: Ticks,
    ) -> (bool, Option<ConnectionKey>) {
        let of_core = OfCore(self, core);
        match self.route.look(&of_core, core.now(), hold) {
            Look::Nothing => (false, None),
            Look::Again => (true, None),
            Look::Close(word) => (false, Some(key_of(word))),
        }
    }

    fn place_of(&self, connection: &Connection) -> Place {
        let Connection { key, address, .. } = connection;
        let number = self.addresses.iter().position(|it| it == address);
        let number = number.and_then(|it| u32::try_from(it).ok());
        Place {
            connection: u64::from(key.generation) << 32 | u64::from(key.index),
            way: Way::new(number.unwrap_or(0), connection.identity.is_some()).0,
        }
    }

    /// By what the connection that was made last is known to its server.
    #[inline]
    pub(crate) fn way(&self) -> Way {
        Way(self.route.way())
    }

    /// Whether there is a connection, also while calls are held.
    pub(crate) fn is_connected(&self) -> bool {
        self.route.place().is_some()
    }

    /// The address at which the connection was made. `None` while there is none.
    pub(crate) fn connected_at(&self) -> Option<&str> {
        let way = self.route.place()?.way;
        let number = usize::try_from(way >> 1).ok()?;
        self.addresses.get(number).map(String::as_str)
    }

    /// Whether a connection is at the first of the addresses.
    pub(crate) fn is_first(&self, connection: &Connection) -> bool {
        self.addresses.first() == Some(&connection.address)
    }

    pub(crate) fn set_lost(&self, why: String, is_given_up: bool) {
        self.route.clear();
        *self.why.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
        // For ever: what comes late does not take it back.
        if is_given_up {
            // Release, with the Acquire of `is_given_up`: who sees this finds the reason.
            self.is_given_up.store(true, Ordering::Release);
        }
    }

    /// Nobody calls any more: calls that wait for the connection end.
    pub(crate) fn give_up(&self) {
        // Relaxed: nobody is left to ask for the reason.
        self.is_given_up.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_given_up(&self) -> bool {
        // Acquire, with the Release of `set_lost`.
        self.is_given_up.load(Ordering::Acquire)
    }

    pub(crate) fn why(&self) -> Option<String> {
        self.why
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(crate) fn established(&self) -> u64 {
        self.established.load(Ordering::Relaxed)
    }

    pub(crate) fn moves(&self) -> u64 {
        self.moves.load(Ordering::Relaxed)
    }
}

/// A client's connection and the core that it is on.
struct OfCore<'a, 'b, P: Port>(&'a PeerConnection, &'a Context<'b, P>);

impl<P: Port> Connections for OfCore<'_, '_, P> {
    fn is_quiet(&self, connection: u64) -> bool {
        // A call that was lost is sent again under the name that its server knows it by.
        self.0.lost.load(Ordering::Relaxed) == 0
            && self.1.calls_outstanding(key_of(connection)) == 0
    }

    fn is_ready(&self, connection: u64) -> bool {
        self.1.is_ready(key_of(connection))
    }
}

/// The key of the word that [`PeerConnection::place_of`] makes of it.
#[inline]
fn key_of(word: u64) -> ConnectionKey {
    ConnectionKey {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the low half of the word is the index"
        )]
        index: word as u32,
        generation: (word >> 32) as u32,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn client_without_a_name_is_known_by_the_address_and_one_with_a_name_by_what_it_proved() {
        let way = |address, is_proved| Way::new(address, is_proved);
        for has_name in [false, true] {
            assert!(way(1, true).is_same(way(1, true), has_name));
            assert!(!way(1, true).is_same(way(1, false), has_name));
            assert_eq!(way(0, false).is_same(way(1, false), has_name), has_name);
        }
    }

    proptest! {
        /// Calls begin, and one of those under way ends.
        #[test]
        fn span_is_from_the_oldest_call_under_way(
            first in any::<u32>(),
            ends in prop::collection::vec((0_u32..4, any::<prop::sample::Index>()), 0..300),
        ) {
            let peer = PeerConnection::new(&[], Duration::ZERO, true);
            peer.next.store(first, Ordering::Relaxed);
            let mut under_way = VecDeque::new();
            let mut next = first;
            for (begins, ends) in ends {
                for _ in 0..begins {
                    let span = under_way.front().map_or(0, |oldest| next.wrapping_sub(*oldest));
                    prop_assert_eq!(peer.span(), span);
                    if span < 64 {
                        prop_assert_eq!(peer.begin(), next);
                        under_way.push_back(next);
                        next = next.wrapping_add(1);
                    }
                }
                if !under_way.is_empty() {
                    let ended = under_way.remove(ends.index(under_way.len()));
                    peer.end(ended.expect("it is under way"));
                }
            }
        }
    }
}
