//! Tokens with which a core posts bytes whose leases it keeps.

use super::buffer::{VIEWS, unique_number};
use super::{Buffer, Lease, SharedLease};

/// Tokens for leased bytes, all made at the start. A token for shared bytes is a [`Buffer`] that can be sent or written to
/// a peer, and whose bytes nobody can change. A token for a lease that is not shared is as any other buffer.
#[derive(Debug)]
pub struct Views {
    id: u32,
    /// The index of the first; further ones follow.
    first_index: u32,
    /// The lease of the token at each place.
    shown: Box<[Option<Shown>]>,
    free: Vec<u32>,
}

/// The lease behind a token.
#[derive(Debug)]
enum Shown {
    Shared(SharedLease),
    Own(Lease),
}

impl Views {
    /// Makes `views` places. Their tokens have indexes from `first_index` on.
    #[must_use]
    pub fn new(views: u32, first_index: u32) -> Self {
        Self {
            id: unique_number() | VIEWS,
            first_index,
            shown: (0..views).map(|_| None).collect(),
            free: (0..views).rev().collect(),
        }
    }

    /// The most views at a time.
    #[must_use]
    pub fn total(&self) -> usize {
        self.shown.len()
    }

    /// The number of views that can be made now.
    #[must_use]
    pub fn available(&self) -> usize {
        self.free.len()
    }

    /// A token for all bytes of `lease`, which is kept until [`Views::give`] takes the token back. `None` when no place is
    /// free; the lease is dropped then.
    pub fn show(&mut self, lease: SharedLease) -> Option<Buffer> {
        let index = self.free.pop()?;
        let token = lease.token(self.id, self.first_index + index);
        *self.shown.get_mut(index as usize)? = Some(Shown::Shared(lease));
        Some(token)
    }

    /// A token for all bytes of `lease`, which may be written as well; it is kept until [`Views::end`] or [`Views::give`]
    /// takes the token back. `None` when no place is free; the lease is dropped then.
    pub fn lend(&mut self, lease: Lease) -> Option<Buffer> {
        let index = self.free.pop()?;
        let token = lease.token(self.id & !VIEWS, self.first_index + index);
        *self.shown.get_mut(index as usize)? = Some(Shown::Own(lease));
        Some(token)
    }

    /// Whether `buffer` is a token of this.
    #[inline]
    #[must_use]
    pub fn owns(&self, buffer: &Buffer) -> bool {
        // Tokens that may be written lack the mark.
        buffer.pool | VIEWS == self.id
    }

    /// Takes a token back and drops its lease.
    ///
    /// # Panics
    ///
    /// When it is not a token of this.
    pub fn give(&mut self, buffer: Buffer) {
        drop(self.take(buffer));
    }

    /// Takes a token of [`Views::lend`] back; returns its lease.
    ///
    /// # Panics
    ///
    /// When it is not a token of this.
    pub fn end(&mut self, buffer: Buffer) -> Option<Lease> {
        match self.take(buffer)? {
            Shown::Own(lease) => Some(lease),
            Shown::Shared(_) => None,
        }
    }

    fn take(&mut self, buffer: Buffer) -> Option<Shown> {
        assert!(self.owns(&buffer), "a token of other views");
        let index = buffer.index - self.first_index;
        let shown = self.shown.get_mut(index as usize)?.take();
        self.free.push(index);
        shown
    }
}

impl Drop for Views {
    fn drop(&mut self) {
        // Outstanding tokens still give access. Their leases never end, so that nobody else gets the bytes.
        for shown in self.shown.iter_mut().filter_map(Option::take) {
            match shown {
                Shown::Shared(lease) => lease.abandon(),
                Shown::Own(lease) => lease.abandon(),
            }
        }
    }
}
