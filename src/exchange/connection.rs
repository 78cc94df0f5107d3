//! A connection of a client.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rpcrdma_control::Connection;
use rpcrdma_engine::ConnectionKey;

use crate::trace;

/// A connection of a client, as its core and its threads see it.
pub(crate) struct PeerConnection {
    /// The addresses of the server, the one that is tried first before the others.
    pub(crate) address: String,
    /// Each of them.
    addresses: Vec<String>,
    /// By what the connection is known to the server: see [`Way`].
    way: AtomicU32,
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
    /// The key on the core: generation and index; [`NO_CONNECTION`] while there is none.
    connection: AtomicU64,
    is_given_up: AtomicBool,
    /// Why there is no connection, for errors.
    why: Mutex<Option<String>>,
    /// The times that a connection was made.
    established: AtomicU64,
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

/// No index of a connection is as high.
const NO_CONNECTION: u64 = u64::MAX;

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
            way: AtomicU32::new(0),
            connection: AtomicU64::new(NO_CONNECTION),
            is_given_up: AtomicBool::new(false),
            why: Mutex::new(None),
            established: AtomicU64::new(0),
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

    #[inline]
    pub(crate) fn connection(&self) -> Option<ConnectionKey> {
        // Acquire, with the Release of `set_connected`: who sees the connection sees that it was counted. A core checks the key
        // against its table.
        let word = self.connection.load(Ordering::Acquire);
        (word != NO_CONNECTION).then_some(ConnectionKey {
            #[expect(
                clippy::cast_possible_truncation,
                reason = "the low half of the word is the index"
            )]
            index: word as u32,
            generation: (word >> 32) as u32,
        })
    }

    pub(crate) fn set_connected(&self, connection: &Connection) {
        let Connection { key, address, .. } = connection;
        trace::connection(address, None);
        let number = self.addresses.iter().position(|it| it == address);
        let number = number.and_then(|it| u32::try_from(it).ok());
        let way = Way::new(number.unwrap_or(0), connection.identity.is_some());
        // Relaxed: who sees the connection sees this.
        self.way.store(way.0, Ordering::Relaxed);
        let word = u64::from(key.generation) << 32 | u64::from(key.index);
        self.established.fetch_add(1, Ordering::Relaxed);
        // Release, with the Acquire of `connection`.
        self.connection.store(word, Ordering::Release);
    }

    /// By what the connection that was made last is known to its server.
    #[inline]
    pub(crate) fn way(&self) -> Way {
        Way(self.way.load(Ordering::Relaxed))
    }

    /// The address at which the connection was made. `None` while there is none.
    pub(crate) fn connected_at(&self) -> Option<&str> {
        self.connection()?;
        let number = usize::try_from(self.way().0 >> 1).ok()?;
        self.addresses.get(number).map(String::as_str)
    }

    pub(crate) fn set_lost(&self, why: String, is_given_up: bool) {
        let at = self.connected_at().unwrap_or(&self.address);
        trace::connection(at, Some(&why));
        self.connection.store(NO_CONNECTION, Ordering::Relaxed);
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
