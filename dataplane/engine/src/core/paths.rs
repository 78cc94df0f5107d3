//! Finds dead paths. While a call waits, a connection whose peer can be reached by another path is visited several times within
//! [`path_suspect_after`](crate::CoreConfig::path_suspect_after). If nothing came by it in that time, it is sent a probe, an RDMA
//! Write of no bytes, which the peer's device acknowledges however busy its processors are. Without an answer to that the
//! connection ends, long before the device gives up: a call then goes on by the other path.

use std::time::Duration;

use rpcrdma_fabric::clock::Ticks;
use rpcrdma_fabric::interface::{Port, PostError, WorkId};

use super::resources::Resources;
use super::sweep::Sweep;
use crate::close_reason::CloseReason;
use crate::config::CoreConfig;
use crate::connection::{Passed, Patience, VISITS, Verdict};
use crate::rpc::ConnectionKey;

impl CoreConfig {
    /// The time between two visits of a watched path: there are several within each of its two limits. Zero if no path is
    /// watched.
    pub(super) fn path_interval(&self) -> Duration {
        self.path_suspect_after.min(self.path_probe_timeout) / u32::from(VISITS)
    }

    fn patience(&self) -> Patience {
        let interval_ns = self.path_interval().as_nanos().max(1);
        let visits = |time: Duration| {
            let visits = time.as_nanos().div_ceil(interval_ns);
            u32::try_from(visits).unwrap_or(u32::MAX)
        };
        Patience {
            suspect_visits: visits(self.path_suspect_after),
            probe_visits: visits(self.path_probe_timeout),
        }
    }
}

impl<P: Port> Resources<P> {
    /// From now on, while its calls wait, the connection ends when its path is dead.
    pub(super) fn watch_path(&mut self, key: ConnectionKey) {
        if let Some(connection) = self.connections.get_mut(key) {
            connection.path.watched_at = u32::try_from(self.watched.len()).ok();
            self.watched.push(key.index);
        }
    }

    /// The path that was at this place of the list is not watched any more.
    pub(super) fn forget_path(&mut self, watched_at: u32) {
        let place = watched_at as usize;
        self.watched.swap_remove(place);
        // The last one of the list has come to its place.
        let moved = self.watched.get(place).copied();
        if let Some(connection) = moved.and_then(|index| self.connections.at(index)) {
            connection.path.watched_at = Some(watched_at);
        }
    }

    /// When paths are to be visited. While none is watched nothing is due, however long ago the last visit was.
    pub(super) fn paths_due(&self, sweep: &Sweep) -> Ticks {
        if self.watched.is_empty() {
            Ticks::MAX
        } else {
            sweep.due()
        }
    }

    /// Visits some of the watched paths if it is time. Returns whether more are due immediately.
    #[inline]
    pub(super) fn visit_paths(&mut self, sweep: &mut Sweep) -> bool {
        self.now >= self.paths_due(sweep) && self.visit_some_paths(sweep)
    }

    #[cold]
    fn visit_some_paths(&mut self, sweep: &mut Sweep) -> bool {
        let count = u32::try_from(self.watched.len()).unwrap_or(u32::MAX);
        let (visited, more) = sweep.advance(self.now, count);
        for place in visited {
            if let Some(&index) = self.watched.get(place as usize) {
                self.visit_path(index);
            }
        }
        more
    }

    fn visit_path(&mut self, index: u32) {
        let Some(connection) = self.connections.at(index).filter(|it| it.is_live()) else {
            return;
        };
        let queue_pair = connection.queue_pair;
        let probes = connection.silence.probes_ended();
        let (received, _) = connection.protocol.messages_passed();
        // Also those to calls that have timed out: time limits may be shorter than it takes to judge a path.
        let is_awaited = connection.calls.replies_due() != 0;
        let passed = is_awaited.then(|| Passed {
            received,
            probes,
            oldest_work: self.port.oldest_work(queue_pair),
        });
        match connection.path.visit(passed, self.config.patience()) {
            Verdict::Wait => {}
            Verdict::Probe => self.probe_path(index),
            Verdict::Dead => {
                self.shared.counters.paths_dead.increment();
                let limits = [
                    self.config.path_suspect_after,
                    self.config.path_probe_timeout,
                ];
                let silent_ms = limits.iter().map(Duration::as_millis).sum::<u128>();
                let silent_ms = u32::try_from(silent_ms).unwrap_or(u32::MAX);
                self.begin_close(index, CloseReason::PathDead { silent_ms });
            }
        }
    }

    fn probe_path(&mut self, index: u32) {
        let Some(connection) = self.connections.at(index) else {
            return;
        };
        match self.port.probe(connection.queue_pair, WorkId(0)) {
            Ok(()) => {
                connection.silence.is_probed = true;
                self.shared.counters.probes_sent.increment();
            }
            // What is in the queue shows as much: it is acknowledged, or the path is dead.
            Err(PostError::QueueFull) => {}
            // Such a port notices by itself that its peer has ended.
            Err(_) => connection.path.forget(),
        }
    }
}
