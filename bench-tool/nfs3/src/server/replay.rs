//! The duplicate request cache: it answers retransmissions without executing them again.
//!
//! A client repeats a call after it has connected again, because the reply may have been lost. Executing it
//! twice would fail (for example, the name is already removed), or undo what others did in between. A
//! retransmission is recognised by its caller (by address, because the connection is new), its number, its
//! procedure, and a hash of its credential, its length and its first bytes. The hash keeps a client that
//! starts again with the same numbers from getting answers to its earlier calls.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};

use super::call::{Call, Items, Peer};

/// The number of replies in the cache.
pub const ENTRIES_MAX: usize = 4096;

/// The longest results in the cache, in octets. Procedures that are not idempotent have shorter ones.
const RESULTS_BYTES_MAX: usize = 1024;

/// The lifetime of an entry in seconds: longer than clients take to connect again.
const KEPT_S: u32 = 120;

/// The octets of the arguments that the hash includes, and the bytes of an item.
const CHECKED_BYTES: usize = 256;

/// Identifies a call and its retransmissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    peer: Peer,
    xid: u32,
    procedure: u32,
    checksum: u64,
}

#[derive(Debug)]
struct Entry {
    /// Its place in the order of use.
    used: u64,
    /// When it was made.
    since_s: u32,
    results: Box<[u8]>,
}

/// The results of earlier calls. When it is full, a new call replaces the one that was used longest ago.
#[derive(Debug)]
pub struct ReplayCache {
    entries: HashMap<Key, Entry>,
    by_use: BTreeMap<u64, Key>,
    uses: u64,
    hits: u64,
    hash: RandomState,
}

impl Default for ReplayCache {
    fn default() -> Self {
        Self::new()
    }
}

impl ReplayCache {
    /// An empty cache.
    #[must_use]
    pub fn new() -> Self {
        Self {
            entries: HashMap::with_capacity(ENTRIES_MAX),
            by_use: BTreeMap::new(),
            uses: 0,
            hits: 0,
            hash: RandomState::new(),
        }
    }

    /// The key of a call.
    pub fn key<I: Items>(&self, call: &Call<'_>, items: &I) -> Key {
        let first = call.args.get(..CHECKED_BYTES).unwrap_or(call.args);
        let lengths = (call.args.len(), items.count());
        let beside = (items.count() > 0).then(|| items.pieces(0).next());
        let beside = beside
            .flatten()
            .map(|piece| piece.bytes)
            .map(|bytes| bytes.get(..CHECKED_BYTES).unwrap_or(bytes));
        let credential = (call.credential.flavor, call.credential.body);
        Key {
            peer: call.peer,
            xid: call.xid,
            procedure: call.procedure,
            checksum: self.hash.hash_one((credential, lengths, first, beside)),
        }
    }

    /// The results of an earlier call with this key.
    pub fn find(&mut self, key: &Key, now_s: u32) -> Option<&[u8]> {
        let entry = self.entries.get_mut(key)?;
        self.by_use.remove(&entry.used);
        if now_s.saturating_sub(entry.since_s) > KEPT_S {
            self.entries.remove(key);
            return None;
        }
        self.uses += 1;
        self.hits += 1;
        entry.used = self.uses;
        self.by_use.insert(self.uses, *key);
        self.entries.get(key).map(|entry| &*entry.results)
    }

    /// Stores the results of a call.
    pub fn keep(&mut self, key: Key, now_s: u32, results: &[u8]) {
        if results.len() > RESULTS_BYTES_MAX {
            return;
        }
        if self.entries.len() >= ENTRIES_MAX
            && let Some((_, oldest)) = self.by_use.pop_first()
        {
            self.entries.remove(&oldest);
        }
        self.uses += 1;
        let entry = Entry {
            used: self.uses,
            since_s: now_s,
            results: results.into(),
        };
        self.by_use.insert(self.uses, key);
        if let Some(former) = self.entries.insert(key, entry) {
            self.by_use.remove(&former.used);
        }
    }

    /// The number of retransmissions that were answered.
    #[must_use]
    pub fn hits(&self) -> u64 {
        self.hits
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use rpcrdma_protocol::rpc::OpaqueAuth;

    use super::super::call::NoItems;
    use super::*;

    fn call(xid: u32, args: &[u8]) -> Call<'_> {
        Call {
            peer: Peer::Host(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            xid,
            procedure: 12,
            credential: OpaqueAuth::NONE,
            args,
        }
    }

    #[test]
    fn a_call_is_known_by_all_that_names_it() {
        let mut cache = ReplayCache::new();
        let key = cache.key(&call(1, b"name"), &NoItems);
        cache.keep(key, 100, b"done");
        let other_peer = Call {
            peer: Peer::Host(IpAddr::V4(Ipv4Addr::BROADCAST)),
            ..call(1, b"name")
        };
        let other_procedure = Call {
            procedure: 13,
            ..call(1, b"name")
        };
        let other_credential = Call {
            credential: OpaqueAuth {
                flavor: 1,
                body: &[0; 20],
            },
            ..call(1, b"name")
        };
        let others = [
            call(2, b"name"),
            call(1, b"nam"),
            call(1, b"mane"),
            other_peer,
            other_procedure,
            other_credential,
        ];
        for other in others {
            let key = cache.key(&other, &NoItems);
            assert_eq!(cache.find(&key, 100), None, "{other:?}");
        }
        assert_eq!(cache.find(&key, 100), Some(&b"done"[..]));
        assert_eq!(cache.find(&key, 100 + KEPT_S), Some(&b"done"[..]));
        assert_eq!(cache.find(&key, 101 + KEPT_S), None, "it is too old");
        assert_eq!((cache.entries.len(), cache.by_use.len()), (0, 0));
        assert_eq!(cache.hits(), 2);
    }

    #[test]
    fn the_least_recently_used_makes_room() {
        let mut cache = ReplayCache::new();
        let numbers = u32::try_from(ENTRIES_MAX).unwrap();
        let keys: Vec<Key> = (0..=numbers)
            .map(|xid| cache.key(&call(xid, b""), &NoItems))
            .collect();
        for key in &keys[..ENTRIES_MAX] {
            cache.keep(*key, 0, b"x");
        }
        assert!(cache.find(&keys[0], 0).is_some());
        cache.keep(keys[ENTRIES_MAX], 0, b"y");
        assert!(cache.find(&keys[0], 0).is_some());
        assert!(cache.find(&keys[1], 0).is_none());
        assert!(cache.find(&keys[ENTRIES_MAX], 0).is_some());
        assert_eq!(cache.entries.len(), ENTRIES_MAX);
        assert_eq!(cache.by_use.len(), ENTRIES_MAX);
    }
}
