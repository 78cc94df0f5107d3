//! Keep-alive: every connection is ticked once in an interval. An end that sent nothing for an
//! interval sends a grant of nothing (-00 section 4.3.1.2), and a peer that was silent for the set
//! number of ticks is taken for dead. What a tick means is in [`rpcrdma_protocol`].

use rpcrdma_fabric::clock::{Clock, Ticks};
use rpcrdma_fabric::interface::Port;
use rpcrdma_protocol::v2::connection::Tick;

use super::State;
use super::sweep::Sweep;
use crate::application::CloseReason;
use crate::config::CoreConfig;

/// When the connections are ticked.
#[derive(Debug)]
pub(super) struct KeepAlive {
    sweep: Sweep,
    silent_ticks_max: u8,
    /// What so many ticks come to.
    silent_ms: u32,
}

impl KeepAlive {
    pub(super) fn new(config: &CoreConfig, clock: &Clock, now: Ticks) -> Self {
        let silent_ticks_max = config.keep_alive_silent_ticks_max;
        let silent = config.keep_alive_interval * u32::from(silent_ticks_max);
        Self {
            sweep: Sweep::new(config.keep_alive_interval, clock, now),
            silent_ticks_max,
            silent_ms: u32::try_from(silent.as_millis()).unwrap_or(u32::MAX),
        }
    }
}

impl<P: Port> State<P> {
    /// Ticks some connections if it is time. Returns whether more are to follow at once.
    #[inline]
    pub(super) fn keep_alive(&mut self) -> bool {
        self.keep_alive.sweep.is_due(self.now) && self.tick_some()
    }

    #[cold]
    fn tick_some(&mut self) -> bool {
        let places = self.config.connections_max;
        let (ticked, more) = self.keep_alive.sweep.advance(self.now, places);
        for index in ticked {
            self.tick(index);
        }
        more
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
