//! The names of a directory.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// A file of the store: an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Number(pub(super) u32);

/// The cookie of the entry `.`, which is not in the table.
pub(super) const COOKIE_SELF: u64 = 1;

/// The cookie of the entry `..`, which is not in the table.
pub(super) const COOKIE_PARENT: u64 = 2;

/// The names of a directory, each with its cookie. Cookies grow and are never reused, so that a listing
/// that continues at a cookie misses no name that was there all the time.
#[derive(Debug)]
pub(super) struct Directory {
    pub(super) parent: Number,
    by_name: HashMap<Arc<[u8]>, u64>,
    by_cookie: BTreeMap<u64, (Arc<[u8]>, Number)>,
    last_cookie: u64,
}

impl Directory {
    pub(super) fn new(parent: Number) -> Self {
        Self {
            parent,
            by_name: HashMap::new(),
            by_cookie: BTreeMap::new(),
            last_cookie: COOKIE_PARENT,
        }
    }

    /// The file of a name.
    pub(super) fn find(&self, name: &[u8]) -> Option<Number> {
        let cookie = self.by_name.get(name)?;
        self.by_cookie.get(cookie).map(|(_, file)| *file)
    }

    /// Adds a name that must not exist.
    pub(super) fn insert(&mut self, name: &[u8], file: Number) {
        let name: Arc<[u8]> = name.into();
        self.last_cookie += 1;
        let former = self.by_name.insert(Arc::clone(&name), self.last_cookie);
        debug_assert!(former.is_none(), "the caller looked");
        self.by_cookie.insert(self.last_cookie, (name, file));
    }

    /// Removes a name and returns its file.
    pub(super) fn remove(&mut self, name: &[u8]) -> Option<Number> {
        let cookie = self.by_name.remove(name)?;
        self.by_cookie.remove(&cookie).map(|(_, file)| file)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// The entries after a cookie, without `.` and `..`: cookie, name, file.
    pub(super) fn entries_behind(&self, cookie: u64) -> impl Iterator<Item = (u64, &[u8], Number)> {
        let behind = self.by_cookie.range(cookie.saturating_add(1)..);
        behind.map(|(cookie, (name, file))| (*cookie, &**name, *file))
    }
}
