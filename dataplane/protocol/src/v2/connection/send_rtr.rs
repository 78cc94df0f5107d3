//! Encodes messages of the extension RTR.

use super::Connection;
use super::continued_messages::Kind;
use super::event::SendRefused;
use super::phase::Phase;
use crate::constants::{RTR_TRANSMIT_REQUEST, RTR_TRANSMIT_RESPONSE};
use crate::error::EncodeError;
use crate::rpc::Direction;
use crate::v2::encode;
use crate::v2::header::Prefix;
use crate::v2::rtr::{
    EncodeItems, EncodeResponseSets, ReportError, TransmitContinue, TransmitRequest,
    TransmitResponse,
};

impl Connection {
    /// Writes the header of a Transmit Request: the first of `request.transmissions` of a call. Payload stream, padding
    /// and items, `behind_bytes` octets in all, follow it in the same Send; the other transmissions are then sent with
    /// [`encode_transmit_continue`](Self::encode_transmit_continue). Returns the octets of the header.
    ///
    /// A group begins only with a credit for each of its transmissions, which are reserved for it: after it has begun,
    /// it never waits for the peer.
    ///
    /// # Errors
    /// `NotAnnounced`; `TooManyTransmissions` for what the peer receives; as
    /// [`encode_message_with_chunks`](Self::encode_message_with_chunks).
    pub fn encode_transmit_request<I: EncodeItems, D: EncodeResponseSets>(
        &mut self,
        out: &mut [u8],
        xid: u32,
        request: &TransmitRequest<I, D>,
        behind_bytes: usize,
    ) -> Result<usize, SendRefused> {
        let both = self.properties.rtr_support.has_request() && self.peer_rtr_support.has_request();
        let most = self.peer_request_transmissions_max;
        self.check_group(both, request.transmissions, most)?;
        self.encode_first(
            xid,
            Direction::Call,
            request.transmissions,
            behind_bytes,
            |prefix| encode::encode_transmit_request(out, prefix, request),
        )
    }

    /// Writes the header of a Transmit Response: the first of `response.transmissions` of a reply. As
    /// [`encode_transmit_request`](Self::encode_transmit_request); the caller has to know how many transmissions the
    /// call allows.
    ///
    /// # Errors
    /// `NotAnnounced`; `TooManyTransmissions` for what we said that we send; as
    /// [`encode_message_with_chunks`](Self::encode_message_with_chunks).
    pub fn encode_transmit_response<I: EncodeItems>(
        &mut self,
        out: &mut [u8],
        xid: u32,
        response: &TransmitResponse<I>,
        behind_bytes: usize,
    ) -> Result<usize, SendRefused> {
        let both =
            self.properties.rtr_support.has_response() && self.peer_rtr_support.has_response();
        let most = self.properties.response_transmissions_max;
        self.check_group(both, response.transmissions, most)?;
        self.encode_first(
            xid,
            Direction::Reply,
            response.transmissions,
            behind_bytes,
            |prefix| encode::encode_transmit_response(out, prefix, response),
        )
    }

    /// As [`encode_transmit_request`](Self::encode_transmit_request) for a call, and as
    /// [`encode_transmit_response`](Self::encode_transmit_response) for a reply, if it is one transmission. Its header
    /// has the octets of `body` behind the prefix, which were written for an earlier message with the same fields.
    ///
    /// # Errors
    /// As there.
    #[inline(always)]
    pub fn encode_transmission_again(
        &mut self,
        out: &mut [u8],
        xid: u32,
        direction: Direction,
        body: &[u8],
        behind_bytes: usize,
    ) -> Result<usize, SendRefused> {
        let (own, peer) = (self.properties.rtr_support, self.peer_rtr_support);
        let (both, most, header_type) = match direction {
            Direction::Call => (
                own.has_request() && peer.has_request(),
                self.peer_request_transmissions_max,
                RTR_TRANSMIT_REQUEST,
            ),
            Direction::Reply => (
                own.has_response() && peer.has_response(),
                self.properties.response_transmissions_max,
                RTR_TRANSMIT_RESPONSE,
            ),
        };
        self.check_group(both, 1, most)?;
        self.encode_first(xid, direction, 1, behind_bytes, |prefix| {
            let prefix_bytes = encode::encode_prefix(out, prefix, header_type)?;
            let end = prefix_bytes + body.len();
            let place = out.get_mut(prefix_bytes..end);
            place.ok_or(EncodeError::NoSpace)?.copy_from_slice(body);
            Ok(end)
        })
    }

    /// Writes the header of a Transmit Continue: the next transmission of the group that is under way, with
    /// `stream_bytes` octets of its payload stream. Payload stream, padding and items, `behind_bytes` octets in all,
    /// follow it in the same Send. Returns the octets of the header, 32.
    ///
    /// # Errors
    /// `NoGroup`; `NoCredit` only while the spare Receive is in use; `TooLong`, `NoSpace`, `Over`.
    pub fn encode_transmit_continue(
        &mut self,
        out: &mut [u8],
        stream_bytes: u32,
        behind_bytes: usize,
    ) -> Result<usize, SendRefused> {
        let sequence = self.group_outbound.next()?;
        let (xid, direction) = self.outbound.group().ok_or(SendRefused::NoGroup)?;
        let kind = Kind::Group(direction);
        let prefix = self.admit(kind, xid, false, behind_bytes)?;
        let body = TransmitContinue {
            sequence,
            stream_bytes,
        };
        let header_bytes = encode::encode_transmit_continue(out, prefix, body)?;
        self.check_threshold(header_bytes.saturating_add(behind_bytes))?;
        self.credits.commit(prefix.credit);
        let more = self.group_outbound.proceed();
        self.outbound.commit(kind, xid, more);
        Ok(header_bytes)
    }

    /// Writes a Report Error: the answer to [`Event::TransmissionRefused`](super::Event::TransmissionRefused). It uses
    /// a credit and grants what is owed, and may stand inside a transmission group. Returns the octets of the message.
    ///
    /// # Errors
    /// `NoCredit`, also when the open group needs all that there are; `SequenceOpen` inside a continued message;
    /// `TooLong`, `NoSpace`, `Over`, `VersionUnknown`, `AwaitingFirstAnswer`.
    pub fn encode_report_error(
        &mut self,
        out: &mut [u8],
        report: &ReportError,
    ) -> Result<usize, SendRefused> {
        if self.phase != Phase::Established {
            return Err(self.refused_by_phase());
        }
        if self.outbound.is_open() && self.outbound.group().is_none() {
            return Err(SendRefused::SequenceOpen);
        }
        if self.credits.available() <= self.group_outbound.remaining() {
            return Err(SendRefused::NoCredit);
        }
        let word = self.credits.word();
        let message_bytes = encode::encode_report_error(out, word, report)?;
        self.credits.commit(word);
        Ok(message_bytes)
    }

    /// Transmissions of the group that is under way which are still to be sent.
    #[inline]
    #[must_use]
    pub const fn group_remaining(&self) -> u32 {
        self.group_outbound.remaining()
    }

    /// Whether a group of so many transmissions may be sent at all.
    #[inline(always)]
    fn check_group(
        &self,
        announced: bool,
        transmissions: u32,
        most: u32,
    ) -> Result<(), SendRefused> {
        let continues =
            self.properties.rtr_support.has_continue() && self.peer_rtr_support.has_continue();
        if !announced || (transmissions > 1 && !continues) {
            return Err(SendRefused::NotAnnounced);
        }
        if transmissions == 0 || transmissions > most {
            return Err(SendRefused::TooManyTransmissions);
        }
        Ok(())
    }

    #[inline(always)]
    fn encode_first(
        &mut self,
        xid: u32,
        direction: Direction,
        transmissions: u32,
        behind_bytes: usize,
        encode: impl FnOnce(Prefix) -> Result<usize, EncodeError>,
    ) -> Result<usize, SendRefused> {
        if self.outbound.is_open() {
            return Err(SendRefused::SequenceOpen);
        }
        if self.phase != Phase::Established {
            return Err(self.refused_by_phase());
        }
        let kind = Kind::Group(direction);
        let prefix = self.admit(kind, xid, false, behind_bytes)?;
        if self.credits.available() < transmissions {
            return Err(SendRefused::NoCredit);
        }
        let header_bytes = encode(prefix)?;
        self.check_threshold(header_bytes.saturating_add(behind_bytes))?;
        self.credits.commit(prefix.credit);
        self.group_outbound.begin(transmissions);
        self.outbound.commit(kind, xid, transmissions > 1);
        Ok(header_bytes)
    }
}
