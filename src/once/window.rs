//! The calls of one client that run or have run, with their replies.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rpcrdma_engine::Outcome;

/// Calls of a client that are remembered, which no other client displaces: those that run, and behind them those that finished last.
pub const ENTRIES: usize = 128;

/// As many calls of a client are remembered at most, if the entries are free.
pub const ENTRIES_MAX: usize = 32 * ENTRIES;

/// The longest results that are kept, in bytes. Those of NFS procedures that are not idempotent have 300 at most.
pub const KEPT_BYTES_MAX: usize = 512;

/// How long a client that is known by its address alone may take to repeat a call: longer than clients take to connect
/// again. After that it may be another program that counts from the same XID.
pub const KEPT_FOR: Duration = Duration::from_secs(120);

/// How long a client that was lent no entries does not ask again.
const ASKS_EVERY: Duration = Duration::from_secs(1);

/// The end of a chain.
const NONE: u32 = u32::MAX;

/// What makes two calls of a client the same call ([`Clients::key`](super::Clients::key)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Key {
    pub(super) xid: u32,
    pub(super) program: u32,
    pub(super) version: u32,
    pub(super) procedure: u32,
    /// A keyed hash over the credential and the arguments.
    pub(super) digest: u64,
}

/// The right to finish a call that runs, once.
#[derive(Debug)]
#[must_use = "a call that does not finish keeps its entry"]
pub struct Ticket(Key);

/// What a call turned out to be.
#[derive(Debug)]
pub enum Begun<W> {
    /// It is new: run it.
    Run(Ticket),
    /// It has run. Its results, if the outcome is a success, were copied out.
    Finished(Outcome),
    /// It runs: who sent it again waits for it. Whoever waited before does so no more.
    Waits(Option<W>),
    /// It runs, and nobody can wait for it.
    CannotWait,
    /// As many calls run as there are entries, so it must not run.
    Full,
    /// Its client has lost the connection that it came by, and has another one. It must not run.
    Superseded,
}

#[derive(Debug)]
enum State<W> {
    Free,
    Running {
        waiting: Option<W>,
    },
    Finished {
        outcome: Outcome,
        /// Bytes of the results; `None` when they were too long to keep.
        bytes: Option<usize>,
        at: Option<Instant>,
    },
}

#[derive(Debug)]
struct Entry<W> {
    key: Key,
    state: State<W>,
    /// The next entry of the same chain.
    next: u32,
}

/// The calls of a client. `W` is who waits for one that runs.
///
/// Nothing is allocated but by [`Window::new`] and [`Window::resize`]. An entry of a call that runs is never given up; those
/// of finished calls are, the one that finished first before the others.
#[derive(Debug)]
pub(super) struct Window<W> {
    entries: Vec<Entry<W>>,
    /// [`KEPT_BYTES_MAX`] bytes for each entry.
    results: Vec<u8>,
    /// The first entry of each chain, by the low bits of the digest. Their number is a power of two.
    chains: Vec<u32>,
    free: Vec<u32>,
    /// In the order in which they finished.
    finished: VecDeque<u32>,
    /// When it had no free entry for a new call, the last time that this was noted.
    lacked: Option<Instant>,
}

impl<W> Window<W> {
    /// With so many entries.
    pub(super) fn new(entries: usize) -> Self {
        let free = |_| Entry {
            key: Key::default(),
            state: State::Free,
            next: NONE,
        };
        let numbers = (0..entries).rev();
        Self {
            entries: (0..entries).map(free).collect(),
            // Not written to: it takes memory only as far as it is used.
            results: vec![0; entries * KEPT_BYTES_MAX],
            chains: vec![NONE; entries.next_power_of_two()],
            free: numbers.filter_map(|it| u32::try_from(it).ok()).collect(),
            finished: VecDeque::with_capacity(entries),
            lacked: None,
        }
    }

    /// Makes it so many entries, as far as the calls that run have their places. Those that finished last stay.
    pub(super) fn resize(&mut self, entries: usize) {
        let running = self.entries.len() - self.free.len() - self.finished.len();
        let mut fresh = Self::new(entries.max(running));
        let more = (running + self.finished.len()).saturating_sub(fresh.entries.len());
        let finished: Vec<u32> = self.finished.drain(..).skip(more).collect();
        let runs = |entry: &Entry<W>| matches!(entry.state, State::Running { .. });
        let numbers = (0..self.entries.len()).filter(|it| runs(&self.entries[*it]));
        let running: Vec<usize> = numbers.collect();
        let finished = finished.into_iter().map(|it| it as usize);
        for from in running.into_iter().chain(finished) {
            let Some(to) = fresh.free.pop() else {
                return debug_assert!(false, "there are places for all of them");
            };
            let (at, kept) = (to as usize * KEPT_BYTES_MAX, from * KEPT_BYTES_MAX);
            let kept = &self.results[kept..kept + KEPT_BYTES_MAX];
            if let State::Finished { bytes, .. } = self.entries[from].state {
                let bytes = bytes.unwrap_or(0);
                fresh.results[at..at + bytes].copy_from_slice(&kept[..bytes]);
                fresh.finished.push_back(to);
            }
            let state = std::mem::replace(&mut self.entries[from].state, State::Free);
            let entry = &mut fresh.entries[to as usize];
            (entry.key, entry.state) = (self.entries[from].key, state);
            fresh.link(to as usize);
        }
        *self = fresh;
    }

    /// How many entries it has.
    pub(super) fn entries(&self) -> usize {
        self.entries.len()
    }

    /// How many of its entries have a call that runs, or one that is not forgotten yet.
    pub(super) fn in_use(&mut self, now: Instant) -> usize {
        self.forget_old(now);
        self.entries.len() - self.free.len()
    }

    /// Whether a call is new and another one has to be forgotten for it. At most once in [`ASKS_EVERY`].
    pub(super) fn lacks_entries(&mut self, key: &Key, now: Instant) -> bool {
        if self.in_use(now) < self.entries.len() || self.entries.len() >= ENTRIES_MAX {
            return false;
        }
        let asked_lately = |at| now.saturating_duration_since(at) < ASKS_EVERY;
        if self.lacked.is_some_and(asked_lately) || self.find(key).is_some() {
            return false;
        }
        self.lacked = Some(now);
        true
    }

    /// Whether no call runs.
    pub(super) fn is_idle(&self) -> bool {
        self.free.len() + self.finished.len() == self.entries.len()
    }

    /// Looks for a call, and enters it if it is new. The results of one that has run are put into `results`. `wait` makes
    /// somebody who waits for one that runs. With `now`, a call that finished [`KEPT_FOR`] ago is not known any more.
    pub(super) fn begin(
        &mut self,
        key: &Key,
        now: Option<Instant>,
        results: &mut Vec<u8>,
        wait: impl FnOnce() -> Option<W>,
    ) -> Begun<W> {
        if let Some(now) = now {
            self.forget_old(now);
        }
        if let Some(index) = self.find(key) {
            return match &mut self.entries[index].state {
                State::Running { waiting } => match wait() {
                    Some(waiter) => Begun::Waits(waiting.replace(waiter)),
                    None => Begun::CannotWait,
                },
                State::Finished { outcome, bytes, .. } => {
                    let (outcome, bytes) = (*outcome, *bytes);
                    results.clear();
                    match bytes {
                        Some(bytes) => {
                            let start = index * KEPT_BYTES_MAX;
                            let kept = self.results.get(start..start + bytes);
                            results.extend_from_slice(kept.unwrap_or(&[]));
                            Begun::Finished(outcome)
                        }
                        None => Begun::Finished(Outcome::SystemError),
                    }
                }
                State::Free => Begun::Full,
            };
        }
        let Some(index) = self.free.pop().or_else(|| self.take_oldest()) else {
            return Begun::Full;
        };
        let entry = &mut self.entries[index as usize];
        entry.key = *key;
        entry.state = State::Running { waiting: None };
        self.link(index as usize);
        Begun::Run(Ticket(*key))
    }

    /// Notes how a call ended, with its results if they are short enough to be kept. Returns who waits for it.
    pub(super) fn finish(
        &mut self,
        ticket: Ticket,
        now: Option<Instant>,
        outcome: Outcome,
        results: Option<&[u8]>,
    ) -> Option<W> {
        let index = self.find(&ticket.0)?;
        let entry = self.entries.get_mut(index)?;
        let start = index * KEPT_BYTES_MAX;
        let bytes = results.and_then(|results| {
            let space = self.results.get_mut(start..start + KEPT_BYTES_MAX)?;
            space.get_mut(..results.len())?.copy_from_slice(results);
            Some(results.len())
        });
        let finished = State::Finished {
            outcome,
            bytes,
            at: now,
        };
        let State::Running { waiting } = std::mem::replace(&mut entry.state, finished) else {
            debug_assert!(false, "a ticket is of a call that runs");
            return None;
        };
        self.finished.extend(u32::try_from(index));
        waiting
    }

    fn find(&self, key: &Key) -> Option<usize> {
        let mut index = *self.chains.get(self.chain(key))?;
        while let Some(entry) = self.entries.get(index as usize) {
            if entry.key == *key {
                return Some(index as usize);
            }
            index = entry.next;
        }
        None
    }

    /// The chain of a key. The digest is keyed, so no client can choose its chains.
    fn chain(&self, key: &Key) -> usize {
        let mask = self.chains.len() - 1;
        usize::try_from(key.digest & u64::try_from(mask).unwrap_or(0)).unwrap_or(0)
    }

    fn link(&mut self, index: usize) {
        let chain = self.chain(&self.entries[index].key);
        let first = u32::try_from(index).unwrap_or(NONE);
        self.entries[index].next = std::mem::replace(&mut self.chains[chain], first);
    }

    fn unlink(&mut self, index: u32) {
        let chain = self.chain(&self.entries[index as usize].key);
        let after = self.entries[index as usize].next;
        let mut at = self.chains[chain];
        if at == index {
            self.chains[chain] = after;
            return;
        }
        while let Some(entry) = self.entries.get_mut(at as usize) {
            if entry.next == index {
                entry.next = after;
                return;
            }
            at = entry.next;
        }
    }

    /// Gives up the call that finished first.
    fn take_oldest(&mut self) -> Option<u32> {
        let index = self.finished.pop_front()?;
        self.unlink(index);
        self.entries[index as usize].state = State::Free;
        Some(index)
    }

    fn forget_old(&mut self, now: Instant) {
        while let Some(&index) = self.finished.front() {
            match self.entries[index as usize].state {
                State::Finished { at: Some(at), .. }
                    if now.saturating_duration_since(at) > KEPT_FOR => {}
                _ => return,
            }
            if let Some(index) = self.take_oldest() {
                self.free.push(index);
            }
        }
    }
}

#[cfg(test)]
mod tests;
