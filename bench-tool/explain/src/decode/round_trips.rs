//! Calls that wait for their replies in a capture, by xid.

use std::collections::HashMap;
use std::time::Duration;

use crate::capture::Flow;

use super::message::{Message, Note};

/// A direction, and the connection that it is of as far as that is known.
type Direction = (Option<u64>, Flow);

/// Calls of one xid on one connection: the direction of each, and when its first packet was captured.
type Calls = Vec<(Flow, Duration)>;

/// The calls that were seen and not answered.
#[derive(Debug, Default)]
pub(crate) struct RoundTrips {
    /// By connection and xid.
    calls: HashMap<(Option<u64>, u32), Calls>,
}

impl RoundTrips {
    /// Takes a message in that was sent in this time. Of the last part of a reply: how long after the beginning of its
    /// call it was there.
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
            // Another one of the xid may be of a call in the other direction, which chose the same.
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
            // A call that is made again is one call.
            if !calls.iter().any(|(caller, _)| *caller == flow) {
                calls.push((flow, began));
            }
        }
        None
    }
}

/// Whether it is a call or a reply, or an error that is the answer to a call.
fn is_of_a_call(message: &Message) -> bool {
    match message.header_type {
        "NOMSG" => message.version == 1 || message.has_chunks(),
        "MSG" | "ERROR" | "TRANSMIT_REQUEST" | "TRANSMIT_RESPONSE" | "TRANSMIT_CONTINUE" => true,
        _ => false,
    }
}
