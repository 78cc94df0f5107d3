//! Peers that leave something unfinished: a message in several Sends of which the rest does not come,
//! or calls whose replies they grant no credit for. Either keeps buffers and slots of this core for as
//! long as it lasts, and keep-alives do not tell it from patience. So it lasts no longer than
//! [`stall_timeout`](crate::CoreConfig::stall_timeout), and then costs that peer its connection.

use rpcrdma_fabric::clock::{Clock, Ticks};
use rpcrdma_fabric::interface::Port;
use rpcrdma_protocol::v2::connection::Unfinished;

use super::State;
use super::sweep::Sweep;
use crate::application::CloseReason;
use crate::bulk::Bulk;
use crate::config::CoreConfig;
use crate::connection::Connection;

/// Visits in the time limit: how late its end is noticed at most, as a part of it.
const VISITS: u8 = 4;

/// When connections are looked at.
#[derive(Debug)]
pub(super) struct StallWatch {
    sweep: Sweep,
    /// The time limit.
    stalled_ms: u32,
}

impl StallWatch {
    pub(super) fn new(config: &CoreConfig, clock: &Clock, now: Ticks) -> Self {
        let limit = config.stall_timeout;
        Self {
            sweep: Sweep::new(limit / u32::from(VISITS), clock, now),
            stalled_ms: u32::try_from(limit.as_millis()).unwrap_or(u32::MAX),
        }
    }
}

/// What was found unfinished on a connection when it was visited, and how often in a row.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stall {
    message: Option<Unfinished>,
    message_visits: u8,
    /// Messages sent, when a reply waited for a credit.
    reply: Option<u32>,
    reply_visits: u8,
}

impl Stall {
    /// Takes note of what is found now; whether it has been so for the whole time limit.
    fn visit(&mut self, message: Option<Unfinished>, reply: Option<u32>) -> bool {
        let is_same = match (self.message, message) {
            (Some(before), Some(now)) => now.continues(before),
            _ => false,
        };
        self.message_visits = next(self.message_visits, is_same);
        self.message = message;
        let is_same = reply.is_some() && reply == self.reply;
        self.reply_visits = next(self.reply_visits, is_same);
        self.reply = reply;
        self.message_visits.max(self.reply_visits) >= VISITS
    }
}

fn next(visits: u8, is_same: bool) -> u8 {
    if is_same { visits.saturating_add(1) } else { 0 }
}

impl<P: Port> State<P> {
    /// Looks at some connections if it is time. Returns whether more are to follow at once.
    #[inline]
    pub(super) fn watch_stalls(&mut self) -> bool {
        self.stalls.sweep.is_due(self.now) && self.visit_some()
    }

    #[cold]
    fn visit_some(&mut self) -> bool {
        let places = self.config.connections_max;
        let (visits, more) = self.stalls.sweep.advance(self.now, places);
        for index in visits {
            let Some(connection) = self.connections.at(index).filter(|it| it.is_live()) else {
                continue;
            };
            let message = unfinished_message(connection);
            let reply = waiting_reply(connection, &self.bulk, index);
            if connection.stall.visit(message, reply) {
                let stalled_ms = self.stalls.stalled_ms;
                self.shared.counters.peers_stalled.increment();
                self.begin_close(index, CloseReason::PeerStalled { stalled_ms });
            }
        }
        more
    }
}

/// The message that a peer has begun, if it is the peer's turn to go on with it: it has credits, and
/// nothing of it waits here.
fn unfinished_message(connection: &Connection) -> Option<Unfinished> {
    let is_its_turn = connection.protocol.credits().unconsumed() != 0 && !connection.parts.any();
    connection.protocol.unfinished().filter(|_| is_its_turn)
}

/// The messages sent so far, if the next one is a reply and the peer has granted no credit for it. In
/// version 1 it has: with the call.
fn waiting_reply(connection: &Connection, bulk: &Bulk, index: u32) -> Option<u32> {
    let credits = connection.protocol.credits();
    let is_its_turn = credits.unused() == 0 && !connection.protocol.is_version_1();
    let waits = connection.outbound.replies() != 0 || bulk.is_answering(index);
    (is_its_turn && waits).then_some(credits.sent_total)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(xid: u32, taken: u32) -> Option<Unfinished> {
        Some(Unfinished { xid, taken })
    }

    #[test]
    fn what_is_never_finished_has_its_time() {
        let mut stall = Stall::default();
        assert!(!stall.visit(part(7, 1), None));
        for taken in [1, 1, 2] {
            assert!(!stall.visit(part(7, taken), None));
        }
        assert!(stall.visit(part(7, 3), None), "slow is not finished");
    }

    #[test]
    fn whoever_finishes_and_begins_again_goes_on() {
        let mut stall = Stall::default();
        for visit in 0..20 {
            // Another message each time, or the same XID once more.
            assert!(!stall.visit(part(visit / 4, 5 - visit % 4), Some(visit)));
        }
        for _ in 0..20 {
            assert!(!stall.visit(None, None));
        }
    }

    #[test]
    fn replies_without_credit_have_their_time() {
        let mut stall = Stall::default();
        assert!((0..4).all(|_| !stall.visit(None, Some(9))));
        assert!(!stall.visit(None, Some(10)), "one was sent");
        assert!((0..3).all(|_| !stall.visit(None, Some(10))));
        assert!(stall.visit(None, Some(10)));
    }
}
