//! Handles received messages.

use super::{Connection, VERSIONS_SUPPORTED, only_handle};
use crate::chunks::ChunkLists;
use crate::common::CommonPrefix;
use crate::constants::RPCRDMA_VERSION_1;
use crate::v1::{self, Body};
use crate::v2::connection::{
    CloseReason, Direction, DiscardReason, Event, Refusal, Role, rpc_start_matches,
};
use crate::v2::{ErrVers, ReverseRequestSupport, TransportError};
use crate::xdr::word;

type Handled<'m> = Result<Event<'m>, CloseReason>;

impl Connection {
    /// Handles one received Send. Sends have to be passed complete and in order.
    ///
    /// Every message uses a Receive, even a wrong one; credits are accounted here.
    pub fn handle_message<'m>(&mut self, message: &'m [u8]) -> Event<'m> {
        self.handle_checked(message).unwrap_or_else(|reason| {
            self.over = true;
            Event::Close(reason)
        })
    }

    /// As [`handle_message`](Self::handle_message), for a message of a [form](crate::form) with this credit word, whose Receive
    /// counts as posted again. `false`, without any change, if it is not to be taken so.
    #[must_use]
    pub fn handle_form(&mut self, direction: Direction, credit: u32) -> bool {
        let is_taken = match direction {
            Direction::Call => self.peer_calls != ReverseRequestSupport::None,
            Direction::Reply => true,
        };
        if self.over || !is_taken {
            return false;
        }
        let mut credits = self.credits;
        if credits.take_receive().is_err() {
            return false;
        }
        match direction {
            Direction::Call if credits.take_call().is_err() => return false,
            Direction::Call => {}
            Direction::Reply => {
                credits.take_reply();
                credits.apply(credit);
            }
        }
        credits.receives_posted(1);
        self.credits = credits;
        self.agreed = true;
        true
    }

    /// Notes that the Receive of a message of a form is not posted again yet.
    pub fn handle_form_kept(&mut self) {
        self.credits.receive_kept();
    }

    fn handle_checked<'m>(&mut self, message: &'m [u8]) -> Handled<'m> {
        if self.over {
            return Ok(Event::Discarded(DiscardReason::Over));
        }
        self.credits.take_receive()?;
        let header = match v1::decode(message) {
            Ok(header) => header,
            Err(wrong) => return self.handle_wrong(message, v1::refusal(wrong)),
        };
        let xid = header.xid;
        match header.body {
            Body::Msg(lists) => {
                let payload = message.get(header.header_bytes..).unwrap_or_default();
                self.handle_msg(xid, header.credit, lists, payload)
            }
            Body::Nomsg(lists) => self.handle_nomsg(xid, header.credit, lists),
            Body::Msgp => self.refuse_as(self.assumed(), xid),
            Body::Done => Ok(Event::Discarded(DiscardReason::Unanswerable)),
            Body::Error(error) => self.handle_error(xid, error),
        }
    }

    /// The assumed direction of a message whose direction cannot be read.
    const fn assumed(&self) -> Direction {
        match self.role {
            Role::Client => Direction::Reply,
            Role::Server => Direction::Call,
        }
    }

    /// A message whose header does not decode.
    fn handle_wrong<'m>(&mut self, message: &'m [u8], refusal: v1::Refusal) -> Handled<'m> {
        let Some(prefix) = CommonPrefix::peek(message) else {
            return Ok(Event::Discarded(DiscardReason::Short));
        };
        match (refusal, self.assumed()) {
            (v1::Refusal::Discard, _) => Ok(Event::Discarded(DiscardReason::Short)),
            (v1::Refusal::Vers, Direction::Call) => {
                self.credits.take_call()?;
                Ok(Event::Refused(Refusal {
                    xid: prefix.xid,
                    version: prefix.version,
                    error: TransportError::Vers(VERSIONS_SUPPORTED),
                    sequence_given_up: false,
                }))
            }
            // Only a responder answers it (RFC 8166 section 4.5.1).
            (v1::Refusal::Vers, Direction::Reply) => {
                Ok(Event::Discarded(DiscardReason::Unanswerable))
            }
            (v1::Refusal::Chunk, direction) => self.refuse_as(direction, prefix.xid),
        }
    }

    /// Handles a wrong message: a responder answers it, a requester drops it.
    fn refuse_as<'m>(&mut self, direction: Direction, xid: u32) -> Handled<'m> {
        match direction {
            Direction::Call => {
                self.credits.take_call()?;
                Ok(Event::Refused(Refusal {
                    version: RPCRDMA_VERSION_1,
                    ..Refusal::new(xid, TransportError::BadXdr)
                }))
            }
            Direction::Reply => {
                self.credits.take_reply();
                Ok(Event::Discarded(DiscardReason::ReplyMismatch { xid }))
            }
        }
    }

    fn handle_error<'m>(&mut self, xid: u32, error: v1::TransportError) -> Handled<'m> {
        // An error completes a call (RFC 8166 section 4.5). If none waits, it is not for this end.
        if !self.credits.awaits_reply() {
            return Ok(Event::Discarded(DiscardReason::UnexpectedError));
        }
        self.credits.take_reply();
        let error = match error {
            v1::TransportError::Vers { low, high } if !self.agreed => {
                self.over = true;
                return Ok(Event::VersionMismatch { low, high });
            }
            v1::TransportError::Vers { low, high } => TransportError::Vers(ErrVers { low, high }),
            v1::TransportError::Chunk => TransportError::BadXdr,
            // The rest of its body is unknown: it cannot be decoded.
            v1::TransportError::Unknown { .. } => {
                return Ok(Event::Discarded(DiscardReason::ReplyMismatch { xid }));
            }
        };
        Ok(Event::TransportError { xid, error })
    }

    // ---- RPC messages ----

    /// RDMA_MSG: the RPC message is behind the header, apart from what the chunks hold.
    fn handle_msg<'m>(
        &mut self,
        xid: u32,
        credit: u32,
        lists: ChunkLists<'m>,
        payload: &'m [u8],
    ) -> Handled<'m> {
        let direction = match payload.first_chunk::<8>().map(|words| word(words, 1)) {
            Some(0) => Direction::Call,
            Some(1) => Direction::Reply,
            _ => return self.refuse_as(self.assumed(), xid),
        };
        let is_right = rpc_start_matches(xid, direction, 0, payload);
        match direction {
            Direction::Call => {
                // With a Position-Zero Read chunk the payload would be in two places.
                let is_right = is_right && !lists.reads.has_position_zero();
                self.take_call(xid, lists, payload, is_right)
            }
            Direction::Reply => self.take_reply(xid, credit, lists, payload, is_right),
        }
    }

    /// RDMA_NOMSG: the RPC message is in a chunk, whose kind gives the direction.
    fn handle_nomsg<'m>(&mut self, xid: u32, credit: u32, lists: ChunkLists<'m>) -> Handled<'m> {
        if lists.reads.has_position_zero() {
            return self.take_call(xid, lists, &[], true);
        }
        match self.assumed() {
            // A long reply of the client to a reverse call of ours would need a Reply chunk, and we offer none.
            Direction::Call => self.refuse_as(Direction::Call, xid),
            Direction::Reply => {
                let is_right = lists.reply.is_some();
                self.take_reply(xid, credit, lists, &[], is_right)
            }
        }
    }

    fn take_call<'m>(
        &mut self,
        xid: u32,
        lists: ChunkLists<'m>,
        payload: &'m [u8],
        is_right: bool,
    ) -> Handled<'m> {
        // A client that accepts no calls answers with an error and keeps the connection, as RFC 8167 section 6 permits.
        let is_taken = self.peer_calls != ReverseRequestSupport::None;
        if !is_right || !is_taken || !lists.reads.positions_are_aligned() {
            return self.refuse_as(Direction::Call, xid);
        }
        self.credits.take_call()?;
        self.agreed = true;
        Ok(Event::Call {
            xid,
            payload,
            chunks: lists,
            invalidate_handle: if self.invalidates {
                only_handle(&lists)
            } else {
                0
            },
        })
    }

    fn take_reply<'m>(
        &mut self,
        xid: u32,
        granted: u32,
        lists: ChunkLists<'m>,
        payload: &'m [u8],
        is_right: bool,
    ) -> Handled<'m> {
        // RFC 8166 section 4.3: a reply has no Read list.
        if !is_right || !lists.reads.is_empty() {
            return self.refuse_as(Direction::Reply, xid);
        }
        self.credits.take_reply();
        self.credits.apply(granted);
        self.agreed = true;
        Ok(Event::Reply {
            xid,
            payload,
            chunks: lists,
            invalidate_handle: 0,
        })
    }
}
