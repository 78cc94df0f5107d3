//! What is looked at while the steps of a case pass.

use std::time::Duration;

use rpcrdma_fabric::clock::Ticks;
use rpcrdma_protocol::v2::connection::Role;

use super::{PARTNER, POLLS_CLOSED_MAX, SERVER, SLICE_MS, World};
use crate::connection::Stage;
use crate::core::incoming::IncomingState;
use crate::core::whole::NEVER;
use crate::core::whole::service::Callee;
use crate::rpc::{CallTag, ConnectionKey};

/// Polls of the core in which a null call of a neighbour is answered, whatever the others do.
const POLLS_SERVED_MAX: u64 = 50;
/// The same for a call of the core to an honest server.
const POLLS_ENDED_MAX: u64 = 50;
/// The same for the partner, which waits for what others may have.
const POLLS_PARTNER_MAX: u64 = 100;
/// The same where the core sleeps: the partner sends each message so much later.
const POLLS_PARTNER_ASLEEP_MAX: u64 = 400;

/// What a connection owes, as seen from here: since when it has been so.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Watch {
    key: ConnectionKey,
    first_message: Option<Ticks>,
    rest_of_message: Option<(u32, Ticks)>,
    /// It has something of the core and takes nothing: messages sent, and send buffers that came back.
    taking: Option<((u32, u32), Ticks)>,
    /// The turn in which it began to close.
    closing: Option<u64>,
}

impl World {
    /// Null calls of neighbours are answered, and calls to an honest server end, in so many polls.
    pub(super) fn check_honest(&mut self) {
        let ended = self.core.application().ended_well;
        // Then it waits for windows that hostile servers have until the time of their calls is up.
        let waits_long = self.core.application().calls_by_rdma();
        for (index, (count, since)) in self.progress.iter_mut().enumerate() {
            let (now, most) = if index == SERVER {
                (ended, POLLS_ENDED_MAX)
            } else {
                (self.peers[index].served, POLLS_SERVED_MAX)
            };
            let waited = self.turns - *since;
            if now != *count || (index == SERVER && waits_long) {
                (*count, *since) = (now, self.turns);
            }
            self.longest_wait = self.longest_wait.max(waited);
            assert!(
                waited <= most,
                "honest peer {index} was not served for {waited} polls"
            );
        }
    }

    /// Calls of the partner are answered in so many polls, and calls of the core that it has answered end in as many.
    pub(super) fn check_partner(&mut self) {
        let turns = self.turns_of_partner;
        let most = match self.form.sleeps {
            true => POLLS_PARTNER_ASLEEP_MAX,
            false => POLLS_PARTNER_MAX,
        };
        let application = self.core.application_mut();
        let partner = &self.peers[PARTNER].partner;
        let since = |tag: &CallTag| {
            let tag = u32::try_from(*tag).expect("few calls");
            partner.answered.get(&tag)
        };
        let open = application.open.iter();
        let open = open.filter(|(_, open)| open.callee == Callee::Partner);
        let open = open.filter_map(|(tag, _)| since(tag));
        let timed_out: Vec<_> = application.timed_out.drain(..).collect();
        let timed_out = timed_out.iter().filter_map(since);
        let waiting = partner.waiting_since().filter(|_| !self.is_draining);
        for since in open.chain(timed_out).chain(&waiting) {
            let waited = turns - since;
            self.longest_of_partner = self.longest_of_partner.max(waited);
            assert!(
                waited <= most,
                "the partner and the core waited for {waited} polls"
            );
        }
    }

    /// No peer owes anything for longer than twice the time limit, and what closes is closed soon.
    pub(super) fn check_debts(&mut self) {
        let (now, turns) = (self.now, self.turns);
        let state = &mut self.core.state;
        let limit = self.clock.ticks(2 * state.resources.config.stall_timeout);
        for (place, watch) in (0..).zip(&mut self.watches) {
            let Some(connection) = state.resources.connections.at(place) else {
                continue;
            };
            if connection.stage == Stage::Free {
                *watch = Watch::default();
                continue;
            }
            let key = connection.key(place);
            if watch.key != key {
                *watch = Watch {
                    key,
                    ..Watch::default()
                };
            }
            if connection.stage == Stage::Closing {
                let since = *watch.closing.get_or_insert(turns);
                let waited = turns - since;
                assert!(
                    waited <= POLLS_CLOSED_MAX,
                    "{key:?} has been closing for {waited} polls"
                );
                continue;
            }
            let protocol = &connection.protocol;
            let (received, sent) = protocol.messages_passed();
            let is_silent = protocol.role() == Role::Server && received == 0;
            let since = &mut watch.first_message;
            *since = is_silent.then(|| since.unwrap_or(now));
            assert_due(now, *since, limit, key, "its first message");

            let is_its_turn = protocol.credits().unconsumed() != 0 && !connection.open_lane_waits();
            let unfinished = protocol.version_2().unfinished().filter(|_| is_its_turn);
            let before = watch.rest_of_message;
            watch.rest_of_message = unfinished.map(|message| {
                let same = before.filter(|(xid, _)| *xid == message.xid);
                (message.xid, same.map_or(now, |(_, since)| since))
            });
            let since = watch.rest_of_message.map(|(_, since)| since);
            assert_due(now, since, limit, key, "the rest of a message");

            let sends = state.resources.transmit.sends_of(connection);
            let is_answering = (state.incoming.calls.iter().map(|(_, call)| call)).any(|it| {
                let is_ours = it.for_reply_chunk.is_some();
                it.state == IncomingState::Answering && it.connection == key && !is_ours
            });
            let has_something = sends.held != 0
                || connection.outbound.replies() != 0
                || !connection.refusals.is_empty()
                || is_answering;
            let mark = (sent, sends.returned);
            let before = watch.taking.filter(|(before, _)| *before == mark);
            watch.taking = has_something.then(|| before.unwrap_or((mark, now)));
            let since = watch.taking.map(|(_, since)| since);
            assert_due(now, since, limit, key, "credits or Receives");
        }
    }

    /// Nothing was counted more often than it can have happened. There is no such bound for calls that waited for bulk
    /// buffers or placement segments: each may wait at several of its steps, and those that wait are not counted as calls
    /// before they are served.
    pub(super) fn check_counters(&self) {
        let counted = self.handle.counters();
        for (name, count) in counted.iter().filter(|(name, _)| NEVER.contains(name)) {
            assert_eq!(count, 0, "{name}");
        }
        assert!(self.form.sleeps || counted.parks == 0, "it never sleeps");
        let taken = counted.windows_invalidated_locally + counted.windows_invalidated_remotely;
        // Each call is made twice at most, and its windows are bound once each time.
        let tries = counted.calls_sent + counted.bulk_calls_retried;
        #[rustfmt::skip]
        let bounds = [
            ("parks", counted.parks, counted.polls),
            ("windows taken away", taken, counted.windows_bound),
            ("second tries", counted.bulk_calls_retried, counted.calls_sent),
            ("waits for windows", counted.awaiting_window, tries),
            ("second replies", counted.bulk_replies_resent, counted.group_errors_received),
        ];
        for (what, count, most) in bounds {
            assert!(count <= most, "{what}: {count}, and {most} at most");
        }
    }

    /// Each call of the core ends in its time.
    pub(super) fn check_calls(&self) {
        let waiting = self.core.state.outgoing.requester.waiting() as usize;
        assert_eq!(
            waiting,
            self.core.application().open.len(),
            "calls that wait"
        );
        let timeout = self.core.state.resources.config.call_timeout;
        let slack = timeout / 64 + Duration::from_millis((2 * SLICE_MS).into());
        let limit = self.clock.ticks(timeout + slack);
        for (tag, open) in &self.core.application().open {
            assert!(
                self.now - open.since <= limit,
                "call {tag} to {:?} did not end",
                open.connection
            );
        }
    }
}

fn assert_due(now: Ticks, since: Option<Ticks>, limit: Ticks, key: ConnectionKey, what: &str) {
    let is_due = since.is_none_or(|since| now - since <= limit);
    assert!(is_due, "{key:?} owes {what} for twice the time limit");
}
