//! Receives that connections share: lent to busy connections, taken back from idle ones.
//!
//! Each connection is guaranteed the Receives of some credits and a spare one. If the core has too few Receives to give
//! every connection its whole window, the others are lent. Until then they are posted on the shared receive queue, and no
//! peer is granted their credits. A sweep counts the messages that came on each connection since the last sweep, and sets
//! its credit limit:
//!
//! | credits that the peer used since the last sweep | its new credit limit |
//! |---|---|
//! | its limit or more | what it used, at least twice the limit |
//! | less than half of its limit | half of the limit, or what it used if that is more |
//! | anything between | unchanged |
//!
//! The limit never exceeds the window, nor the guarantee plus the part. The part is all Receives that are free or lent to
//! busy connections, divided by the number of busy connections. So a connection alone reaches its whole window in one
//! sweep.
//!
//! A grant cannot be revoked (-00 section 4.3.1): a peer that falls silent keeps the credits that it has, at most its
//! limit at that time, and their Receives stay lent. As it uses them, they are taken back.
//!
//! While calls of ours wait for replies of several transmissions, the limit of their connection is not lowered: the peer
//! may need all of it for the replies.

use crate::config::CoreConfig;
use crate::connection::Connection;
use crate::counters::Counters;

/// The Receives that are not lent, and the results of the present sweep.
#[derive(Clone, Debug)]
pub(super) struct Lending {
    /// Whether Receives are lent at all. If not, each connection keeps its whole window.
    is_needed: bool,
    guaranteed: u16,
    free: u32,
    /// The most that a busy connection may be lent.
    part: u32,
    /// Busy connections that this sweep has visited, and what they have been lent.
    busy: u32,
    lent_to_busy: u32,
}

impl Lending {
    pub(super) fn new(config: &CoreConfig) -> Self {
        let lendable = config.receives_lendable();
        Self {
            is_needed: config.lends_receives(),
            guaranteed: u16::try_from(config.receives_guaranteed() - 1).unwrap_or(u16::MAX),
            free: lendable,
            part: lendable,
            busy: 0,
            lent_to_busy: 0,
        }
    }

    /// For a core with one receive queue for each connection: nothing is lent.
    pub(super) fn none() -> Self {
        Self {
            is_needed: false,
            guaranteed: 0,
            free: 0,
            part: 0,
            busy: 0,
            lent_to_busy: 0,
        }
    }

    /// A connection begins with its guaranteed credits.
    pub(super) fn begin(&self, connection: &mut Connection) {
        if self.is_needed {
            // The Receives that this frees were never lent to it, so they are not counted as free.
            let _ = connection.protocol.lower_credit_limit(self.guaranteed);
        }
    }

    /// Takes back what was lent to a connection that has ended, when all its Receives are posted.
    pub(super) fn end(&mut self, connection: &mut Connection) {
        self.free += u32::from(std::mem::take(&mut connection.lent));
    }

    /// For the sums: the Receives that are not lent.
    #[cfg(test)]
    pub(super) fn free(&self) -> u32 {
        self.free
    }

    /// Lends a connection Receives, or takes some back. Returns whether its credit limit was raised, so that a grant may
    /// be due.
    pub(super) fn visit(&mut self, connection: &mut Connection, counters: &Counters) -> bool {
        if !self.is_needed {
            return false;
        }
        let (received, _) = connection.protocol.messages_passed();
        let before = std::mem::replace(&mut connection.received_before, received);
        let used = received.wrapping_sub(before);
        let credits = connection.protocol.credits();
        let limit = u16::try_from(credits.limit).unwrap_or(u16::MAX);
        if used >= u32::from(self.guaranteed) {
            self.busy += 1;
            self.lent_to_busy = self.lent_to_busy.saturating_add(connection.lent.into());
        }
        let window = u16::try_from(credits.window).unwrap_or(u16::MAX);
        let part = u16::try_from(self.part).unwrap_or(u16::MAX);
        let most = window.min(self.guaranteed.saturating_add(part));
        let wanted = wanted_limit(limit, used);
        let limit_next = wanted.min(most).max(self.guaranteed.min(window));
        if limit_next > limit {
            return self.lend(connection, limit_next, counters);
        }
        counters
            .awaiting_receives
            .add(u64::from(wanted > limit && window > limit));
        let reserve = credits.receives_reserved;
        // Even with an unchanged limit: Receives of an earlier, higher one come back as they are used.
        if connection.reply_transmissions_extra == 0 && reserve > u32::from(limit_next) + 1 {
            let taken = connection.protocol.lower_credit_limit(limit_next);
            let taken = taken.min(connection.lent);
            connection.lent -= taken;
            self.free += u32::from(taken);
            counters.receives_taken_back.add(taken.into());
        }
        false
    }

    fn lend(&mut self, connection: &mut Connection, limit: u16, counters: &Counters) -> bool {
        let credits = connection.protocol.credits();
        // Receives left from a higher limit of this connection, and those that are not lent.
        let most = (credits.receives_reserved - 1).saturating_add(self.free);
        let limit = limit.min(u16::try_from(most).unwrap_or(u16::MAX));
        counters
            .awaiting_receives
            .add(u64::from(u32::from(limit) <= credits.limit));
        let added = connection.protocol.raise_credit_limit(limit);
        self.free = self.free.saturating_sub(added.into());
        connection.lent += added;
        counters.receives_lent.add(added.into());
        u32::from(limit) > credits.limit
    }

    /// Ends a sweep over all connections, and sets the part for the next one.
    pub(super) fn end_sweep(&mut self) {
        let busy = std::mem::take(&mut self.busy);
        let lent = std::mem::take(&mut self.lent_to_busy);
        self.part = lent.saturating_add(self.free) / busy.max(1);
    }
}

/// The credit limit for a peer that used `used` credits between two sweeps, if there are Receives enough.
fn wanted_limit(limit: u16, used: u32) -> u16 {
    let used = u16::try_from(used).unwrap_or(u16::MAX);
    if used >= limit {
        used.max(limit.saturating_mul(2))
    } else if used < limit / 2 {
        used.max(limit / 2)
    } else {
        limit
    }
}
