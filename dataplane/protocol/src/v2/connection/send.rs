//! Encodes messages, if they may be sent, with their credits.

use super::Connection;
use super::continued_messages::Kind;
use super::event::{Refusal, SendRefused};
use super::phase::{Phase, PhaseEvent};
use crate::chunks::EncodeChunkLists;
use crate::constants::{
    HOST_AUTHENTICATION_BYTES_MAX, RDMA2_CONNPROP, V1_ERR_VERS_BYTES, V2_FIRST_MESSAGE_BYTES_LEAST,
    V2_HEADER_BYTES_WITHOUT_CHUNKS, V2_PREFIX_BYTES,
};
use crate::error::EncodeError;
use crate::rpc::Direction;
use crate::v2::application::ApplicationProperties;
use crate::v2::encode;
use crate::v2::error::{ErrVers, TransportError};
use crate::v2::header::{CreditWord, Flags, Prefix};
use crate::v2::properties::{Property, PropertyList};

impl From<EncodeError> for SendRefused {
    fn from(error: EncodeError) -> Self {
        match error {
            EncodeError::NoSpace => Self::NoSpace,
            EncodeError::TooLong => Self::TooLong,
        }
    }
}

/// The flags of a payload message.
#[inline]
fn flags(direction: Direction, more: bool) -> Flags {
    let response = match direction {
        Direction::Call => Flags::NONE,
        Direction::Reply => Flags::RESPONSE,
    };
    response.with(if more { Flags::MORE } else { Flags::NONE })
}

impl Connection {
    /// Writes the header of an RDMA2_MSG without chunks; `payload_bytes` octets of the RPC message follow it in the
    /// same Send. With `more` the RPC message continues in the next one, with the same XID and direction. Returns the
    /// octets of the header, 36.
    ///
    /// # Errors
    /// `NoCredit`, `VersionUnknown`, `SequenceOpen`, `NotTaken`, `Draining`, `TooLong` and `TooShort` (below 4 octets
    /// of payload), `NoSpace`, `Over`.
    #[inline]
    pub fn encode_message(
        &mut self,
        out: &mut [u8],
        xid: u32,
        direction: Direction,
        more: bool,
        payload_bytes: usize,
    ) -> Result<usize, SendRefused> {
        let message_bytes = V2_HEADER_BYTES_WITHOUT_CHUNKS.saturating_add(payload_bytes);
        if payload_bytes < 4 {
            return Err(SendRefused::TooShort);
        }
        if !more && self.is_plain(direction, message_bytes, 0) {
            let prefix = Prefix {
                xid,
                credit: self.credits.word(),
                flags: flags(direction, false),
            };
            let header_bytes = encode::encode_msg_header_without_chunks(out, prefix)?;
            self.credits.commit(prefix.credit);
            return Ok(header_bytes);
        }
        self.encode_any_message(out, xid, direction, more, message_bytes)
    }

    /// The credit word of a message of a [form](crate::form) with `message_bytes` octets. `None` if it may not be sent so, or
    /// no more than `kept` credits are left: [`encode_message`](Self::encode_message) says why, or encodes it.
    #[inline(always)]
    #[must_use]
    pub fn credit_for_form(
        &self,
        direction: Direction,
        message_bytes: usize,
        kept: u32,
    ) -> Option<u32> {
        let is_plain = self.is_plain(direction, message_bytes, kept);
        is_plain.then(|| self.credits.word().to_word())
    }

    /// Notes that a message of a form was sent, with the word that [`credit_for_form`](Self::credit_for_form) returned.
    #[inline]
    pub fn handle_form_sent(&mut self, credit: u32) {
        self.credits.commit(CreditWord::from_word(credit));
    }

    /// Whether a whole message without chunks may be sent now, with more than `kept` credits left, and nothing is special
    /// about it.
    #[inline(always)]
    fn is_plain(&self, direction: Direction, message_bytes: usize, kept: u32) -> bool {
        let is_between = self.phase == Phase::Established && !self.outbound.is_open();
        let fits = u32::try_from(message_bytes).is_ok_and(|it| it <= self.send_threshold_bytes);
        let is_drained = self.draining && direction == Direction::Call;
        let is_open = !is_drained && self.calls.may_send(direction);
        is_between && fits && is_open && self.credits.available() > kept
    }

    /// Encodes a message that is a part of a sequence or the first of its connection, or refuses it.
    #[inline(never)]
    fn encode_any_message(
        &mut self,
        out: &mut [u8],
        xid: u32,
        direction: Direction,
        more: bool,
        message_bytes: usize,
    ) -> Result<usize, SendRefused> {
        let prefix = self.admit(Kind::Message(direction), xid, more, message_bytes)?;
        let header_bytes = encode::encode_msg_header_without_chunks(out, prefix)?;
        self.commit(Kind::Message(direction), prefix)?;
        Ok(header_bytes)
    }

    /// As [`encode_message`](Self::encode_message), with chunks, for a whole message or the last one of a sequence:
    /// earlier ones have no chunks (-00 section 6.3.2.2). `invalidate_handle` is 0, or in a call one
    /// of its handles (-00 section 6.3.3.2). Returns the octets of the header.
    ///
    /// # Errors
    /// As [`encode_message`](Self::encode_message), `NotTaken` also where calls go without chunks; `TooLong` also when
    /// the lists are longer than a decoder of ours accepts.
    pub fn encode_message_with_chunks(
        &mut self,
        out: &mut [u8],
        xid: u32,
        direction: Direction,
        invalidate_handle: u32,
        chunks: &impl EncodeChunkLists,
        payload_bytes: usize,
    ) -> Result<usize, SendRefused> {
        if payload_bytes < 4 {
            return Err(SendRefused::TooShort);
        }
        self.calls.check_chunks(direction)?;
        let kind = Kind::Message(direction);
        let prefix = self.admit(kind, xid, false, payload_bytes)?;
        let header_bytes = encode::encode_msg_header(out, prefix, invalidate_handle, chunks)?;
        self.check_threshold(header_bytes.saturating_add(payload_bytes))?;
        self.commit(kind, prefix)?;
        Ok(header_bytes)
    }

    /// Writes an RDMA2_NOMSG whose RPC message is in its chunks: a long call with a Position-Zero Read chunk, or a
    /// long reply with a Reply chunk. Returns the octets of the message.
    ///
    /// # Errors
    /// As [`encode_message_with_chunks`](Self::encode_message_with_chunks); `SequenceOpen` inside any sequence.
    pub fn encode_long_message(
        &mut self,
        out: &mut [u8],
        xid: u32,
        direction: Direction,
        invalidate_handle: u32,
        chunks: &impl EncodeChunkLists,
    ) -> Result<usize, SendRefused> {
        if self.outbound.is_open() {
            return Err(SendRefused::SequenceOpen);
        }
        self.calls.check_chunks(direction)?;
        let kind = Kind::Message(direction);
        let prefix = self.admit(kind, xid, false, 0)?;
        let message_bytes = encode::encode_nomsg(out, prefix, invalidate_handle, chunks)?;
        self.check_threshold(message_bytes)?;
        self.commit(kind, prefix)?;
        Ok(message_bytes)
    }

    /// Writes an asynchronous grant: an RDMA2_NOMSG without chunks (-00 section 6.4.2), which uses no credit and may
    /// be sent inside a sequence. If nothing is owed it is a keep-alive. Returns its 36 octets.
    ///
    /// # Errors
    /// `GrantInFlight`, unless [`handle_tick`](Self::handle_tick) asked for it; `VersionUnknown`,
    /// `AwaitingFirstAnswer`, `NoSpace`, `Over`.
    pub fn encode_grant(&mut self, out: &mut [u8]) -> Result<usize, SendRefused> {
        match self.phase {
            Phase::Established => {}
            Phase::ClientStart | Phase::ClientWaiting => {
                return Err(SendRefused::AwaitingFirstAnswer);
            }
            Phase::ServerStart => return Err(SendRefused::VersionUnknown),
            Phase::Mismatched | Phase::Closed => return Err(SendRefused::Over),
        }
        if !self.keep_alive_due && !self.async_may_be_sent() {
            return Err(SendRefused::GrantInFlight);
        }
        let word = self.credits.word();
        let message_bytes = encode::encode_credit_grant(out, word)?;
        self.credits.commit_async(word, self.keep_alive_due);
        self.sent_async |= !self.keep_alive_due;
        self.keep_alive_due = false;
        self.heard_uncounted_since_async = false;
        self.consumed_at_async = self.credits.consumed_total();
        Ok(message_bytes)
    }

    /// Writes our transport properties in one RDMA2_CONNPROP (-00 section 6.4.4). Returns the octets of the message.
    ///
    /// # Errors
    /// As [`encode_message`](Self::encode_message).
    pub fn encode_properties(&mut self, out: &mut [u8], xid: u32) -> Result<usize, SendRefused> {
        self.encode_properties_with(out, xid, &ApplicationProperties::NONE)
    }

    /// As [`encode_properties`](Self::encode_properties), with those of the application.
    ///
    /// # Errors
    /// As there.
    pub fn encode_properties_with(
        &mut self,
        out: &mut [u8],
        xid: u32,
        application: &ApplicationProperties,
    ) -> Result<usize, SendRefused> {
        let prefix = self.admit(Kind::Properties, xid, false, 0)?;
        let own = self.properties.to_properties();
        let message_bytes = encode::encode_connprop_with(out, prefix, &own, application)?;
        self.check_threshold(message_bytes)?;
        self.commit(Kind::Properties, prefix)?;
        Ok(message_bytes)
    }

    /// Writes one RDMA2_CONNPROP with a message of host authentication (-00 section 5.2.6), of at most
    /// [`HOST_AUTHENTICATION_BYTES_MAX`] octets: alone, or, if this end has not sent its transport properties yet, with
    /// these and those of the application in `with_properties`. Returns the octets of the message.
    ///
    /// # Errors
    /// As [`encode_message`](Self::encode_message); `TooLong` for a longer one.
    pub fn encode_host_authentication(
        &mut self,
        out: &mut [u8],
        xid: u32,
        message: &[u8],
        with_properties: Option<&ApplicationProperties>,
    ) -> Result<usize, SendRefused> {
        if message.len() > HOST_AUTHENTICATION_BYTES_MAX {
            return Err(SendRefused::TooLong);
        }
        let prefix = self.admit(Kind::Properties, xid, false, 0)?;
        let message = Property::HostAuthentication(Some(message));
        let message_bytes = if let Some(application) = with_properties {
            let mut set: PropertyList<'_> = self.properties.to_properties();
            set.push(message);
            encode::encode_connprop_with(out, prefix, &set, application)?
        } else {
            encode::encode_connprop(out, prefix, &[message])?
        };
        self.check_threshold(message_bytes)?;
        self.commit(Kind::Properties, prefix)?;
        Ok(message_bytes)
    }

    /// Writes the prefix of an RDMA2_CONNPROP that carries `body_bytes` octets of a property set, which the caller has
    /// encoded, and which continues in the next one if `more`. Returns the octets of the prefix, 20.
    ///
    /// # Errors
    /// As [`encode_message`](Self::encode_message); the first message of a client has at least 28 octets, so that a
    /// version 1 server answers it.
    pub fn encode_properties_part(
        &mut self,
        out: &mut [u8],
        xid: u32,
        more: bool,
        body_bytes: usize,
    ) -> Result<usize, SendRefused> {
        let message_bytes = V2_PREFIX_BYTES.saturating_add(body_bytes);
        let is_first = self.phase == Phase::ClientStart;
        if body_bytes < 4 || (is_first && message_bytes < V2_FIRST_MESSAGE_BYTES_LEAST) {
            return Err(SendRefused::TooShort);
        }
        let prefix = self.admit(Kind::Properties, xid, more, message_bytes)?;
        let prefix_bytes = encode::encode_prefix(out, prefix, RDMA2_CONNPROP)?;
        self.commit(Kind::Properties, prefix)?;
        Ok(prefix_bytes)
    }

    /// Writes the prefix of a message of a header type of the application; `body_bytes` octets follow it in the same
    /// Send. With `is_response` it answers a message of the peer, whose XID it has; otherwise the XID is to be of no
    /// other message that may be answered. Returns the octets of the prefix, 20.
    ///
    /// # Errors
    /// As [`encode_message`](Self::encode_message); `NotAnnounced` for a type that is not
    /// [set](Self::set_header_types), `SequenceOpen` inside any sequence or group; `TooShort` for the first message of
    /// a client below 28 octets.
    pub fn encode_application_message(
        &mut self,
        out: &mut [u8],
        header_type: u32,
        xid: u32,
        is_response: bool,
        body_bytes: usize,
    ) -> Result<usize, SendRefused> {
        if !self.header_types.has(header_type) {
            return Err(SendRefused::NotAnnounced);
        }
        if self.outbound.is_open() {
            return Err(SendRefused::SequenceOpen);
        }
        if self.draining && !is_response {
            return Err(SendRefused::Draining);
        }
        let message_bytes = V2_PREFIX_BYTES.saturating_add(body_bytes);
        let is_first = self.phase == Phase::ClientStart;
        if is_first && message_bytes < V2_FIRST_MESSAGE_BYTES_LEAST {
            return Err(SendRefused::TooShort);
        }
        // The rules are those for properties: it is neither a call nor a reply; and it is not continued.
        let kind = Kind::Properties;
        let mut prefix = self.admit(kind, xid, false, message_bytes)?;
        if is_response {
            prefix.flags = Flags::RESPONSE;
        }
        let prefix_bytes = encode::encode_prefix(out, prefix, header_type)?;
        self.commit(kind, prefix)?;
        Ok(prefix_bytes)
    }

    /// Writes the answer to a message that was refused: RDMA2_ERROR (-00 section 6.4.3), or ERR_VERS in the version 1
    /// layout, which every version can read (RFC 8166 section 7). It grants nothing and may be sent inside a sequence.
    /// Returns the octets of the message.
    ///
    /// # Errors
    /// `NoCredit`, `NoSpace`, `Over`, `VersionUnknown`, `AwaitingFirstAnswer`; `VersionKnown` for ERR_VERS when a
    /// version 2 message came in the meantime.
    pub fn encode_error(
        &mut self,
        out: &mut [u8],
        refusal: &Refusal,
    ) -> Result<usize, SendRefused> {
        if let TransportError::Vers(supported) = refusal.error {
            return self.encode_version_error(out, refusal, supported);
        }
        if self.phase != Phase::Established {
            return Err(self.refused_by_phase());
        }
        if self.credits.available() <= self.group_outbound.remaining() {
            return Err(SendRefused::NoCredit);
        }
        let message_bytes = encode::encode_error(out, refusal.xid, &refusal.error)?;
        self.credits.commit_error();
        Ok(message_bytes)
    }

    /// Writes ERR_VERS. It and the message that it answers use no credits: the client starts again, with the implicit
    /// credits of both ends.
    fn encode_version_error(
        &mut self,
        out: &mut [u8],
        refusal: &Refusal,
        supported: ErrVers,
    ) -> Result<usize, SendRefused> {
        match self.phase {
            Phase::ServerStart => {}
            Phase::Mismatched | Phase::Closed => return Err(SendRefused::Over),
            _ => return Err(SendRefused::VersionKnown),
        }
        if self.credits.available() == 0 {
            return Err(SendRefused::NoCredit);
        }
        let space = out
            .get_mut(..V1_ERR_VERS_BYTES)
            .ok_or(SendRefused::NoSpace)?;
        // A version 1 client reads a grant here, which may not be 0. It has the implicit one already.
        let grant = 1;
        let (xid, version) = (refusal.xid, refusal.version);
        Ok(encode::encode_err_vers_in_version_1_layout(
            space, xid, version, grant, supported,
        )?)
    }

    /// The prefix of a message that uses a credit, if it may be sent.
    #[inline]
    pub(super) fn admit(
        &self,
        kind: Kind,
        xid: u32,
        more: bool,
        message_bytes: usize,
    ) -> Result<Prefix, SendRefused> {
        if self.phase != Phase::Established {
            self.check_first_message()?;
        }
        self.check_threshold(message_bytes)?;
        self.outbound.check(kind, xid)?;
        if self.credits.available() == 0 {
            return Err(SendRefused::NoCredit);
        }
        let is_call = matches!(
            kind,
            Kind::Message(Direction::Call) | Kind::Group(Direction::Call)
        );
        if self.draining && is_call && !self.outbound.is_open() {
            return Err(SendRefused::Draining);
        }
        if is_call && !self.calls.may_send(Direction::Call) {
            return Err(SendRefused::NotTaken);
        }
        let flags = match kind {
            Kind::Message(direction) | Kind::Group(direction) => flags(direction, more),
            Kind::Properties => flags(Direction::Call, more),
        };
        Ok(Prefix {
            xid,
            credit: self.credits.word(),
            flags,
        })
    }

    #[inline]
    pub(super) fn check_threshold(&self, message_bytes: usize) -> Result<(), SendRefused> {
        let threshold = usize::try_from(self.send_threshold_bytes).unwrap_or(usize::MAX);
        if message_bytes > threshold {
            return Err(SendRefused::TooLong);
        }
        Ok(())
    }

    /// Notes that the message with this prefix was written.
    #[inline]
    fn commit(&mut self, kind: Kind, prefix: Prefix) -> Result<(), SendRefused> {
        if self.phase != Phase::Established {
            self.commit_first_message()?;
        }
        self.credits.commit(prefix.credit);
        self.outbound
            .commit(kind, prefix.xid, prefix.flags.is_more());
        Ok(())
    }

    /// Checks that the first message of a connection may be sent.
    #[cold]
    fn check_first_message(&self) -> Result<(), SendRefused> {
        if self.phase == Phase::ClientStart {
            return Ok(());
        }
        Err(self.refused_by_phase())
    }

    /// Notes that the first message of a connection was written.
    #[cold]
    fn commit_first_message(&mut self) -> Result<(), SendRefused> {
        self.advance(PhaseEvent::Sent)
            .map_err(|_| self.refused_by_phase())
    }

    /// Why this phase sends nothing.
    #[cold]
    pub(super) fn refused_by_phase(&self) -> SendRefused {
        match self.phase {
            Phase::ServerStart => SendRefused::VersionUnknown,
            Phase::ClientStart | Phase::ClientWaiting => SendRefused::AwaitingFirstAnswer,
            Phase::Established => SendRefused::NoCredit,
            Phase::Mismatched | Phase::Closed => SendRefused::Over,
        }
    }
}
