//! Connects that wait until the backlog of their listener has room.
//!
//! For each address, only the oldest connect tries again, by its timer; the others wait until it connects or ends. If each
//! of them tried by itself, most attempts of many connects would fail: the number of failed attempts would grow with the
//! number of waiting connects times the time that they wait.

use std::collections::{BTreeSet, HashMap};

/// The waiting connects, by address. Numbers rise with time, so the smallest is the oldest.
#[derive(Debug, Default)]
pub(super) struct Lines(HashMap<String, BTreeSet<u64>>);

impl Lines {
    /// Whether another connect to this address goes before `id`.
    pub(super) fn is_behind(&self, address: &str, id: u64) -> bool {
        let first = self.0.get(address).and_then(BTreeSet::first);
        first.is_some_and(|first| *first != id)
    }

    /// Adds `id` to the line of its address; no effect if it is in it.
    pub(super) fn join(&mut self, address: &str, id: u64) {
        if let Some(line) = self.0.get_mut(address) {
            line.insert(id);
        } else {
            self.0.insert(address.to_owned(), BTreeSet::from([id]));
        }
    }

    /// Removes `id` from its line. If it was first, returns the connect that is first now.
    pub(super) fn leave(&mut self, address: &str, id: u64) -> Option<u64> {
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
