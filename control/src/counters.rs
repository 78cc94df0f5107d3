//! The counters of the control thread.

use std::sync::atomic::{AtomicU64, Ordering};

/// Declares the counters once: the fields, and their names for reports.
macro_rules! counters {
    ($( $(#[doc = $doc:literal])+ $name:ident, )*) => {
        /// Counters of the control thread, readable from any thread at any time.
        #[derive(Debug, Default)]
        pub struct ControlCounters {
            $( $(#[doc = $doc])+ pub(crate) $name: AtomicU64, )*
        }

        impl ControlCounters {
            /// What each counter counts, in the order of [`ControlCounters::snapshot`].
            pub const MEANINGS: &[&str] = &[$(concat!($($doc),+)),*];

            /// All counters as (name, value).
            #[must_use]
            pub fn snapshot(&self) -> Vec<(&'static str, u64)> {
                vec![$( (stringify!($name), self.$name.load(Ordering::Relaxed)), )*]
            }
        }
    };
}

counters! {
    /// Connection requests that came in.
    connects_received,
    /// Connections that this end asked for.
    connects_sent,
    /// Attempts to connect that were made for targets.
    target_attempts,
    /// Connections that became ready for calls.
    connections_ready,
    /// Connections that ended after they were ready.
    connections_closed,
    /// Requests rejected because all connections were taken.
    rejected_exhausted,
    /// Requests rejected because the peer had reached its limit.
    rejected_peer_limit,
    /// Requests rejected because the node was draining.
    rejected_draining,
    /// Connects of this end that the peer rejected.
    rejected_by_peer,
    /// Connects of this end that took too long.
    connect_timeouts,
    /// Connections that failed before they were ready, in other ways.
    connects_failed,
    /// Property sets received and decided.
    properties_decided,
    /// Property sets that announced receive buffers too small for any message.
    properties_refused,
    /// Connections closed because the peer announced other properties than before.
    properties_changed,
    /// Peers that proved their identity.
    authentications,
    /// Peers that were refused because authentication failed, or that refused this end.
    authentications_refused,
    /// Peers that did not authenticate themselves in time.
    authentication_timeouts,
    /// Times that the control thread woke.
    wakes,
}

impl ControlCounters {
    pub(crate) fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_names_every_counter_with_its_value() {
        let counters = ControlCounters::default();
        ControlCounters::add(&counters.wakes);
        ControlCounters::add(&counters.wakes);
        let snapshot = counters.snapshot();
        assert!(snapshot.contains(&("wakes", 2)) && snapshot.contains(&("connects_sent", 0)));
    }
}
