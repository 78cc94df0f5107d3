//! Measures the time from a call to its reply in a capture. Calls wait for their replies by xid.

use std::collections::HashMap;
use std::time::Duration;

use crate::capture::Flow;

use super::message::{Message, Note};

/// A direction, and its connection if that is known.
type Direction = (Option<u64>, Flow);

/// The calls of one xid on one connection: the direction of each, and the time of its first packet.
type Calls = Vec<(Flow, Duration)>;

/// The calls without a reply so far.
#[derive(Debug, Default)]
pub(crate) struct RoundTrips {
    /// By connection and xid.
    calls: HashMap<(Option<u64>, u32), Calls>,
}

impl RoundTrips {
    /// Takes a message and the times of its first and last packet. For the last part of a reply, returns the time from
    /// the first packet of the call to the last packet of the reply.
    pub(crate) fn message(
        &mut self,
        message: &Message,
        (connection, flow): Direction,
        began: Duration,
        ended: Duration,
    ) -> Option<Duration> {
        if !is_of_a_call(message) {
            return None;
        }
        let key = (connection, message.xid);
        if message.is_reply()? {
            // Both ends send calls and choose their xids alone, so two calls can have the same xid. The call of this
            // reply went in the other direction.
            let calls = self.calls.get_mut(&key)?;
            let place = calls.iter().position(|(caller, _)| *caller != flow)?;
            if message.notes.contains(&Note::ContinuesInNext) {
                return None;
            }
            let (_, called) = calls.swap_remove(place);
            if calls.is_empty() {
                self.calls.remove(&key);
            }
            return ended.checked_sub(called);
        }
        if !message.notes.contains(&Note::ContinuesPrevious) {
            let calls = self.calls.entry(key).or_default();
            // A retransmitted call counts from its first transmission.
            if !calls.iter().any(|(caller, _)| *caller == flow) {
                calls.push((flow, began));
            }
        }
        None
    }
}

/// Whether the message is a call, a reply or an error. Others have no round trip.
fn is_of_a_call(message: &Message) -> bool {
    match message.header_type {
        "NOMSG" => message.version == 1 || message.has_chunks(),
        "MSG" | "ERROR" | "TRANSMIT_REQUEST" | "TRANSMIT_RESPONSE" | "TRANSMIT_CONTINUE" => true,
        _ => false,
    }
}
