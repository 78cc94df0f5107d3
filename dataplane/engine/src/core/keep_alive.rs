//! Keep-alives: every connection is ticked once in an interval. An end that sent nothing for an interval sends an empty
//! grant (-00 section 4.3.1.2), and a peer that was silent for the configured number of ticks counts as dead. The state
//! of ticks is in [`rpcrdma_protocol`]. Version 1 has no such message: a peer that was silent as long is sent a probe,
//! an RDMA Write of no bytes, whose failure ends the connection.
//!
//! In both versions, a peer that has not answered the first message is sent a probe at each tick. Software iWARP does not
//! read a message that arrives while its end still accepts the connection, until more bytes arrive (docs/verbs.md). A
//! client sends no second message before it has an answer, so the probe brings these bytes.

use rpcrdma_fabric::interface::{Port, QueuePairId, WorkId};
use rpcrdma_protocol::v2::connection::Tick;

use super::resources::Resources;
use super::sweep::Sweep;
use crate::close_reason::CloseReason;

impl<P: Port> Resources<P> {
    /// Ticks some connections if it is time. Returns whether more are due immediately.
    #[inline]
    pub(super) fn tick_connections(&mut self, sweep: &mut Sweep) -> bool {
        sweep.is_due(self.now) && self.tick_some(sweep)
    }

    #[cold]
    fn tick_some(&mut self, sweep: &mut Sweep) -> bool {
        let (ticked, more) = sweep.advance(self.now, self.config.connections_max);
        for index in ticked {
            self.tick(index);
        }
        more
    }

    fn tick(&mut self, index: u32) {
        self.probe_if_quiet(index);
        let silent_ticks_max = self.config.keep_alive_silent_ticks_max;
        let Some(connection) = self.connections.at(index).filter(|it| it.is_live()) else {
            return;
        };
        if connection.protocol.is_version_1() {
            return;
        }
        let tick = connection.protocol.handle_tick(silent_ticks_max);
        connection.keep_alive_due = tick == Tick::SendKeepAlive;
        match tick {
            Tick::Quiet => {}
            Tick::SendKeepAlive => self.note_pending(index),
            Tick::PeerSilent => {
                self.shared.counters.peers_silent.increment();
                let silent = self.config.keep_alive_interval * u32::from(silent_ticks_max);
                let silent_ms = u32::try_from(silent.as_millis()).unwrap_or(u32::MAX);
                self.begin_close(index, CloseReason::PeerSilent { silent_ms });
            }
        }
    }

    fn probe_if_quiet(&mut self, index: u32) {
        let silent_ticks_max = self.config.keep_alive_silent_ticks_max;
        let Some(connection) = self.connections.at(index).filter(|it| it.is_live()) else {
            return;
        };
        let protocol = &connection.protocol;
        let (received, _) = protocol.messages_passed();
        // In version 2, empty grants show whether the peer lives.
        let is_quiet =
            protocol.is_version_1() && connection.silence.tick(received, silent_ticks_max);
        let is_due = is_quiet || protocol.awaits_first_answer();
        if !is_due || connection.silence.is_probed {
            return;
        }
        connection.silence.ticks = 0;
        // With a full send queue no probe is needed: what is in the queue is acknowledged, or ends the
        // connection.
        if self.port.probe(connection.queue_pair, WorkId(0)).is_ok() {
            connection.silence.is_probed = true;
            self.shared.counters.probes_sent.increment();
        }
    }

    /// Handles the end of a probe: it was acknowledged, or flushed at the end of its connection.
    #[cold]
    pub(super) fn probe_ended(&mut self, queue_pair: QueuePairId) {
        match self.connections.of_queue_pair(queue_pair) {
            Some((_, connection)) => connection.silence.end_probe(),
            None => self.shared.counters.completions_late.increment(),
        }
    }
}
