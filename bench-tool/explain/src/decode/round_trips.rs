//! Matches replies with their calls by xid.

use std::time::Duration;

use crate::capture::Flow;
use crate::recent::Recent;

use super::message::{Message, Note};

/// The end that sent a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sender {
    /// The direction of a capture.
    Flow(Flow),
    /// Hex does not show the sender: whether the message is a reply stands for it.
    Role {
        /// Whether the message is a reply.
        is_reply: bool,
    },
}

/// A call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    /// Its transaction.
    pub(crate) xid: u32,
    /// The number of its connection, if that is known.
    pub(crate) connection: Option<u64>,
    /// The number of its first packet, or its line.
    pub(crate) first_packet: u64,
    /// Program, version and procedure, if the message shows them.
    pub(crate) called: Option<[u32; 3]>,
    /// The time of its first packet.
    began: Duration,
    sender: Sender,
}

impl Call {
    /// The time from the first packet of the call to `ended`; `None` if the clock of the capture went back.
    pub(crate) fn until(&self, ended: Duration) -> Option<Duration> {
        ended.checked_sub(self.began)
    }
}

/// The place of a message in the input.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// The number of its connection, if that is known.
    pub(crate) connection: Option<u64>,
    /// Its sender.
    pub(crate) sender: Sender,
    /// The number of its first packet, or its line.
    pub(crate) first_packet: u64,
    /// The time of its first packet.
    pub(crate) began: Duration,
}

/// The part of a message in a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The message begins a call.
    Call,
    /// A call with the xid of one that waits for its reply: it was sent again.
    Again,
    /// The last part of a reply to this call.
    Reply(Call),
    /// The last part of a reply to a call that the input does not hold.
    Stray,
    /// A further part of a call or reply, or a message without a transaction.
    Other,
}

/// Transactions whose replies may come.
const CALLS_MAX: usize = 1 << 17;

/// The calls without a reply so far.
#[derive(Debug, Default)]
pub(crate) struct RoundTrips {
    /// By connection and xid.
    calls: Recent<(Option<u64>, u32), Vec<Call>, CALLS_MAX>,
}

impl RoundTrips {
    /// Takes the next message.
    pub(crate) fn message(&mut self, message: &Message, place: Place) -> Part {
        let Some(is_reply) = message.is_reply().filter(|_| is_of_a_call(message)) else {
            return Part::Other;
        };
        let key = (place.connection, message.xid);
        if is_reply {
            if message.notes.contains(&Note::ContinuesInNext) {
                return Part::Other;
            }
            // Both ends send calls and choose their xids alone, so two calls can have the same xid. The call of this
            // reply went in the other direction.
            let calls = self.calls.get_mut(&key);
            let found = calls.and_then(|calls| {
                let at = calls.iter().position(|call| call.sender != place.sender)?;
                Some((calls.swap_remove(at), calls.is_empty()))
            });
            let Some((call, is_last)) = found else {
                return Part::Stray;
            };
            if is_last {
                self.calls.remove(&key);
            }
            return Part::Reply(call);
        }
        if message.notes.contains(&Note::ContinuesPrevious) {
            return Part::Other;
        }
        let calls = self.calls.entry(key);
        // A retransmitted call counts from its first transmission.
        if calls.iter().any(|call| call.sender == place.sender) {
            return Part::Again;
        }
        calls.push(Call {
            xid: message.xid,
            connection: place.connection,
            first_packet: place.first_packet,
            called: message.called(),
            began: place.began,
            sender: place.sender,
        });
        Part::Call
    }

    /// Calls that had no reply for so long that they were forgotten for later ones.
    pub(crate) const fn forgotten(&self) -> u64 {
        self.calls.forgotten()
    }

    /// The calls that have no reply, in their order.
    pub(crate) fn unanswered(&self) -> Vec<Call> {
        let mut calls: Vec<Call> = self.calls.iter().flat_map(|it| it.1).copied().collect();
        calls.sort_by_key(|call| (call.first_packet, call.xid));
        calls
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
