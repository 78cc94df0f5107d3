//! Maps of limited size, for state that traffic could let grow without end.

use std::collections::HashMap;
use std::hash::Hash;

/// A map of at most `MAX` entries. To make room it forgets half of them: those that were used the longest time ago. So each
/// entry costs little, and what is under way stays.
#[derive(Debug)]
pub(crate) struct Recent<K, V, const MAX: usize> {
    /// Each with when it was used.
    entries: HashMap<K, (u64, V)>,
    uses: u64,
    forgotten: u64,
}

impl<K, V, const MAX: usize> Default for Recent<K, V, MAX> {
    fn default() -> Self {
        Self {
            entries: HashMap::new(),
            uses: 0,
            forgotten: 0,
        }
    }
}

impl<K: Copy + Eq + Hash + Ord, V, const MAX: usize> Recent<K, V, MAX> {
    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.entries.get(key).map(|(_, value)| value)
    }

    /// The entry, which is used now.
    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.uses += 1;
        let (used, value) = self.entries.get_mut(key)?;
        *used = self.uses;
        Some(value)
    }

    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        if !self.entries.contains_key(&key) {
            self.make_room(1);
        }
        self.uses += 1;
        let before = self.entries.insert(key, (self.uses, value));
        before.map(|(_, value)| value)
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        self.entries.remove(key).map(|(_, value)| value)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.entries.iter().map(|(key, (_, value))| (key, value))
    }

    /// Makes room for so many more entries, and returns those that are forgotten for them, in the order of their keys.
    pub(crate) fn make_room(&mut self, more: usize) -> Vec<(K, V)> {
        if self.entries.len() + more <= MAX {
            return Vec::new();
        }
        self.forget_older()
    }

    /// Forgets the half of the entries whose last use is older, and returns them, in the order of their keys.
    pub(crate) fn forget_older(&mut self) -> Vec<(K, V)> {
        let mut uses: Vec<u64> = self.entries.values().map(|(used, _)| *used).collect();
        uses.sort_unstable();
        let kept_from = uses.get(uses.len() / 2).copied().unwrap_or_default();
        let old = self.entries.extract_if(|_, (used, _)| *used < kept_from);
        let mut old: Vec<(K, V)> = old.map(|(key, (_, value))| (key, value)).collect();
        self.forgotten += old.len() as u64;
        // The order of a hash map differs between runs; the output must not.
        old.sort_by_key(|(key, _)| *key);
        old
    }

    /// Takes all entries, in the order of their keys.
    pub(crate) fn take_all(&mut self) -> Vec<(K, V)> {
        let all = self.entries.drain();
        let mut all: Vec<(K, V)> = all.map(|(key, (_, value))| (key, value)).collect();
        all.sort_by_key(|(key, _)| *key);
        all
    }

    /// How many entries were forgotten.
    pub(crate) const fn forgotten(&self) -> u64 {
        self.forgotten
    }
}

impl<K: Copy + Eq + Hash + Ord, V: Default, const MAX: usize> Recent<K, V, MAX> {
    /// The entry, which is new if there is none.
    pub(crate) fn entry(&mut self, key: K) -> &mut V {
        if !self.entries.contains_key(&key) {
            self.make_room(1);
        }
        self.uses += 1;
        let (used, value) = self.entries.entry(key).or_default();
        *used = self.uses;
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_that_was_used_last_stays() {
        let mut map = Recent::<u32, u32, 4>::default();
        for key in 0..4 {
            assert_eq!(map.insert(key, key), None);
        }
        *map.entry(0) += 10;
        assert_eq!(map.get_mut(&1), Some(&mut 1));
        assert_eq!(map.make_room(0), []);
        assert_eq!(map.insert(0, 11), Some(10), "no new entry");
        assert_eq!(map.make_room(1), [(2, 2), (3, 3)]);
        map.insert(4, 4);
        let mut kept: Vec<u32> = map.iter().map(|(key, _)| *key).collect();
        kept.sort_unstable();
        assert_eq!((kept, map.forgotten()), (vec![0, 1, 4], 2));
        for key in 0..1000 {
            *map.entry(key) += 1;
            assert!(map.iter().count() <= 4);
        }
        assert_eq!(map.remove(&999), Some(1));
        let all: Vec<u32> = map.take_all().into_iter().map(|(key, _)| key).collect();
        assert!(!all.is_empty() && all.is_sorted() && map.iter().count() == 0);
    }
}
