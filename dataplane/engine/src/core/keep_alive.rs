//! Keep-alive: every connection is ticked once in an interval. An end that sent nothing for an
//! interval sends a grant of nothing (-00 section 4.3.1.2), and a peer that was silent for the set
//! number of ticks is taken for dead. What a tick means is in [`rpcrdma_protocol`].

use std::time::Duration;

use rpcrdma_fabric::clock::{Clock, Ticks};
use rpcrdma_fabric::interface::Port;
use rpcrdma_protocol::v2::connection::Tick;

use super::State;
use crate::application::CloseReason;
use crate::config::CoreConfig;

/// Places of the table of connections visited in one iteration.
const VISITS_MAX: u32 = 16;

/// When the connections are ticked next. One sweep over the table ticks them all; the next one
/// begins an interval after its end. So two ticks of a connection are never closer to each other
/// than the interval, and ticks that a core missed because it did not run are not made up for: a
/// core that was stopped itself hears what came in the meantime before it takes a peer for dead.
#[derive(Debug)]
pub(super) struct KeepAlive {
    interval: Ticks,
    /// When the next sweep begins, or since when one is due; never when there is no keep-alive.
    due: Ticks,
    /// The place that the sweep goes on with.
    next: u32,
    silent_ticks_max: u8,
    /// What so many ticks come to.
    silent_ms: u32,
}

impl KeepAlive {
    pub(super) fn new(config: &CoreConfig, clock: &Clock, now: Ticks) -> Self {
        let interval = match config.keep_alive_interval {
            Duration::ZERO => Ticks::MAX,
            interval => clock.ticks(interval),
        };
        let silent_ticks_max = config.keep_alive_silent_ticks_max;
        let silent = config.keep_alive_interval * u32::from(silent_ticks_max);
        Self {
            interval,
            due: now.saturating_add(interval),
            next: 0,
            silent_ticks_max,
            silent_ms: u32::try_from(silent.as_millis()).unwrap_or(u32::MAX),
        }
    }
}

impl<P: Port> State<P> {
    /// Ticks some connections if it is time. Returns whether more are to follow at once.
    #[inline]
    pub(super) fn keep_alive(&mut self) -> bool {
        self.now >= self.keep_alive.due && self.tick_some()
    }

    #[cold]
    fn tick_some(&mut self) -> bool {
        let begin = self.keep_alive.next;
        let places = self.config.connections_max;
        let end = begin.saturating_add(VISITS_MAX).min(places);
        for index in begin..end {
            self.tick(index);
        }
        let is_over = end == places;
        if is_over {
            self.keep_alive.next = 0;
            self.keep_alive.due = self.now.saturating_add(self.keep_alive.interval);
        } else {
            self.keep_alive.next = end;
        }
        !is_over
    }

    fn tick(&mut self, index: u32) {
        let KeepAlive {
            silent_ticks_max,
            silent_ms,
            ..
        } = self.keep_alive;
        let Some(connection) = self.connections.at(index).filter(|it| it.is_live()) else {
            return;
        };
        let tick = connection.protocol.handle_tick(silent_ticks_max);
        connection.keep_alive_due = tick == Tick::SendKeepAlive;
        match tick {
            Tick::Quiet => {}
            Tick::SendKeepAlive => self.note_pending(index),
            Tick::PeerSilent => {
                self.shared.counters.peers_silent.increment();
                self.begin_close(index, CloseReason::PeerSilent { silent_ms });
            }
        }
    }
}
