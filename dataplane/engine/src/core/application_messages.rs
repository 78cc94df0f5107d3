//! Receives and sends messages of header types that the application defines.

use rpcrdma_fabric::interface::Port;
use rpcrdma_protocol::constants::V2_PREFIX_BYTES;
use rpcrdma_protocol::v2::connection::{self as v2, SendRefused};

use super::application::Application;
use super::control_message::Heading;
use super::outgoing::Outgoing;
use super::resources::Resources;
use crate::application_messages::ApplicationMessage;
use crate::close_reason::CloseReason;
use crate::connection::Stage;
use crate::message::Received;
use crate::rpc::{CallRefused, ConnectionKey};

impl<P: Port> Resources<P> {
    /// Hands a message of a peer to the application, posts its Receive again, and answers with an error if the
    /// application returned one.
    pub(super) fn receive_application_message<A: Application>(
        &mut self,
        application: &mut A,
        key: ConnectionKey,
        heading: Heading,
        received: Received,
    ) {
        let counters = &self.shared.counters;
        counters.application_messages_received.increment();
        let message = self
            .gathered
            .message(&self.port, &received.receive, received.end, counters);
        let outcome = application.message(&ApplicationMessage {
            connection: key,
            header_type: heading.header_type,
            xid: heading.xid,
            is_answer: heading.is_answer,
            body: message.get(received.start..).unwrap_or(&[]),
        });
        self.repost(key.index, received.receive);
        match outcome.error() {
            None => {}
            Some(error) if heading.is_answer => {
                // A requester answers nothing with an error (-00 section 6.4.3).
                self.shared.counters.protocol_violations.increment();
                let reason = v2::CloseReason::BadReply(error);
                self.begin_close(key.index, CloseReason::Protocol(reason));
            }
            Some(error) => self.refuse(key, heading.xid, error),
        }
    }
}

impl Outgoing {
    /// Sends a message of a header type that the application defines.
    pub(super) fn send_message<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        key: ConnectionKey,
        header_type: u32,
        answers: Option<u32>,
        body: &[u8],
    ) -> Result<u32, CallRefused> {
        if core.is_draining() && answers.is_none() {
            return Err(CallRefused::Draining);
        }
        let Some(connection) = core.connections.get_mut(key) else {
            return Err(CallRefused::UnknownConnection);
        };
        // A message that came before the properties of the peer may be answered, as calls are.
        let is_open = match answers {
            Some(_) => connection.takes_calls(),
            None => connection.stage == Stage::Ready,
        };
        if !is_open {
            return Err(CallRefused::NotReady);
        }
        if connection.protocol.is_version_1() || !core.config.header_types.has(header_type) {
            return Err(CallRefused::NotRegistered);
        }
        // An answer may use the credit that is reserved for replies.
        let may_send = match answers {
            Some(_) => connection.can_reply(),
            None => connection.can_call(),
        };
        if !may_send {
            return Err(CallRefused::NoCredit);
        }
        if !core.transmit.has_room(connection) {
            return Err(CallRefused::NoSlot);
        }
        let xid = answers.unwrap_or(self.requester.unused_xid());
        let scratch = core.transmit.scratch();
        let protocol = &mut connection.protocol;
        let room = scratch.len().saturating_sub(V2_PREFIX_BYTES);
        if body.len() > room {
            return Err(CallRefused::TooLong);
        }
        let encoded = protocol.version_2_mut().encode_application_message(
            scratch,
            header_type,
            xid,
            answers.is_some(),
            body.len(),
        );
        let prefix_bytes = match encoded {
            Ok(prefix_bytes) => prefix_bytes,
            Err(SendRefused::TooLong | SendRefused::NoSpace) => return Err(CallRefused::TooLong),
            Err(_) => return Err(CallRefused::NoCredit),
        };
        let bytes = prefix_bytes + body.len();
        if let Some(space) = scratch.get_mut(prefix_bytes..bytes) {
            space.copy_from_slice(body);
        }
        // Only now, so that a refused message uses up no XID.
        if answers.is_none() {
            self.requester.pass_xid();
        }
        let counters = &core.shared.counters;
        counters.application_messages_sent.increment();
        core.transmit
            .post_scratch(&mut core.port, connection, bytes, counters);
        if connection.unposted.is_some() {
            core.note_pending(key.index);
        }
        Ok(xid)
    }
}
