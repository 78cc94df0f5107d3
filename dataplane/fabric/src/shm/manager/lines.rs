//! Connects that wait until the backlog of their listener has room.
//!
//! The oldest one of each address tries again by its timer; the others wait until it gets through or ends. If each tried
//! again by itself, a storm of connects would spend its time on attempts that fail: their number grows with the number of
//! connects that wait, and with the time that they wait.

use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

use super::Manager;
use super::connection::{Connection, Side};

/// The connects that wait, by address. Their numbers rise with time.
#[derive(Debug, Default)]
pub(super) struct Lines(HashMap<String, BTreeSet<u64>>);

impl Lines {
    /// Whether `id` is to wait for another connect to this address.
    pub(super) fn is_behind(&self, address: &str, id: u64) -> bool {
        let first = self.0.get(address).and_then(BTreeSet::first);
        first.is_some_and(|first| *first != id)
    }

    /// `id` waits, if it does not yet.
    fn join(&mut self, address: &str, id: u64) {
        if let Some(line) = self.0.get_mut(address) {
            line.insert(id);
        } else {
            self.0.insert(address.to_owned(), BTreeSet::from([id]));
        }
    }

    /// `id` waits no more. The connect that is first now, where it was `id` before.
    fn leave(&mut self, address: &str, id: u64) -> Option<u64> {
        let line = self.0.get_mut(address)?;
        let was_first = line.first() == Some(&id);
        line.remove(&id);
        let next = line.first().copied();
        if next.is_none() {
            self.0.remove(address);
        }
        next.filter(|_| was_first)
    }
}

impl Manager {
    /// A connect waits for room. Whether it is the one that tries again.
    pub(super) fn join_line(&mut self, address: &str, id: u64) -> bool {
        self.lines.join(address, id);
        !self.lines.is_behind(address, id)
    }

    /// A connect waits for room no more, if it did: the next one tries.
    pub(super) fn leave_line(&mut self, address: &str, id: u64) {
        if let Some(next) = self.lines.leave(address, id) {
            self.set_timer(next, Some(Instant::now()));
        }
    }

    /// The line that a connection which was forgotten may have been in.
    pub(super) fn leave_line_of(&mut self, id: u64, connection: &Connection) {
        if let Side::Client(client) = &connection.side {
            self.leave_line(&client.address, id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against a list: the first is the oldest that waits, and each that becomes first is reported once.
        #[test]
        fn the_oldest_is_first(operations in proptest::collection::vec((0_u64..12, any::<bool>()), 0..80)) {
            let mut lines = Lines::default();
            let mut oracle: Vec<u64> = Vec::new();
            for (id, joins) in operations {
                let first = oracle.iter().min().copied();
                if joins {
                    lines.join("here", id);
                    oracle.push(id);
                } else {
                    oracle.retain(|waits| *waits != id);
                    let next = oracle.iter().min().copied();
                    let expected = if first == Some(id) { next } else { None };
                    prop_assert_eq!(lines.leave("here", id), expected);
                }
                for id in 0..12 {
                    let first = oracle.iter().min();
                    prop_assert_eq!(lines.is_behind("here", id), first.is_some_and(|first| *first != id));
                    prop_assert!(!lines.is_behind("there", id));
                }
                prop_assert_eq!(lines.0.is_empty(), oracle.is_empty());
            }
        }
    }
}
