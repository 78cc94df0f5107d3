//! A connection of a client.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rpcrdma_engine::ConnectionKey;

use crate::trace;

/// A connection of a client, as its core and its threads see it.
pub(crate) struct Line {
    pub(crate) address: String,
    /// How long a call that was not sent waits for the connection.
    pub(crate) patience: Duration,
    /// Calls that are lost with the connection are made again.
    pub(crate) repeats: bool,
    /// If it repeats calls: those that were sent, and have not ended. Its core alone changes this and the next.
    pub(crate) outstanding: AtomicU32,
    /// Those of them that wait for the connection, to be made again before any new one.
    pub(crate) lost: AtomicU32,
    /// The key on the core: generation and index; [`NO_CONNECTION`] while there is none.
    connection: AtomicU64,
    is_given_up: AtomicBool,
    /// Why there is no connection, for errors.
    why: Mutex<Option<String>>,
    /// The times that a connection was made.
    established: AtomicU64,
}

/// No index of a connection is as high.
const NO_CONNECTION: u64 = u64::MAX;

impl Line {
    /// A line that is not connected.
    pub(crate) fn new(address: &str, patience: Duration, repeats: bool) -> Self {
        Self {
            patience,
            repeats,
            outstanding: AtomicU32::new(0),
            lost: AtomicU32::new(0),
            address: address.to_owned(),
            connection: AtomicU64::new(NO_CONNECTION),
            is_given_up: AtomicBool::new(false),
            why: Mutex::new(None),
            established: AtomicU64::new(0),
        }
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

    pub(crate) fn set_connected(&self, key: ConnectionKey) {
        let word = u64::from(key.generation) << 32 | u64::from(key.index);
        self.established.fetch_add(1, Ordering::Relaxed);
        // Release, with the Acquire of `connection`.
        self.connection.store(word, Ordering::Release);
        trace::connection(&self.address, None);
    }

    pub(crate) fn set_lost(&self, why: String, is_given_up: bool) {
        self.connection.store(NO_CONNECTION, Ordering::Relaxed);
        trace::connection(&self.address, Some(&why));
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
