//! Encodes messages, if they may be sent, with their credit word.

use super::Connection;
use crate::chunks::EncodeChunkLists;
use crate::constants::{RPCRDMA_VERSION_1, V1_HEADER_BYTES_WITHOUT_CHUNKS};
use crate::v1::{self, encode};
use crate::v2::connection::{Direction, Refusal, SendRefused};
use crate::v2::{ReverseRequestSupport, TransportError};

impl Connection {
    /// Writes the header of an RDMA_MSG without chunks; `payload_bytes` octets of the RPC message follow it in the same
    /// Send. Returns the octets of the header, 28.
    ///
    /// # Errors
    /// `NoCredit`, `NotTaken`, `TooLong`, `TooShort` (below the XID and message type), `NoSpace`, `Over`.
    pub fn encode_message(
        &mut self,
        out: &mut [u8],
        xid: u32,
        direction: Direction,
        payload_bytes: usize,
    ) -> Result<usize, SendRefused> {
        let credit = self.admit(direction, payload_bytes, false)?;
        self.check_threshold(V1_HEADER_BYTES_WITHOUT_CHUNKS.saturating_add(payload_bytes))?;
        let header_bytes = encode::encode_msg_header_without_chunks(out, xid, credit)?;
        self.commit(direction);
        Ok(header_bytes)
    }

    /// The credit word of a message of a [form](crate::form) with so many octets. `None` if it may not be sent, or it is a call
    /// and no more than `kept` may be sent: [`encode_message`](Self::encode_message) says why.
    #[must_use]
    pub fn credit_for_form(
        &self,
        direction: Direction,
        message_bytes: usize,
        kept: u32,
    ) -> Option<u32> {
        if direction == Direction::Call && self.credits.calls_available() <= kept {
            return None;
        }
        let payload_bytes = message_bytes.saturating_sub(V1_HEADER_BYTES_WITHOUT_CHUNKS);
        let credit = self.admit(direction, payload_bytes, false).ok()?;
        self.check_threshold(message_bytes).ok()?;
        Some(credit)
    }

    /// Notes that a message of a form was sent, which [`credit_for_form`](Self::credit_for_form) permitted.
    pub fn handle_form_sent(&mut self, direction: Direction) {
        self.commit(direction);
    }

    /// As [`encode_message`](Self::encode_message), with chunks. Returns the octets of the header.
    ///
    /// # Errors
    /// As [`encode_message`](Self::encode_message), `NotTaken` also where calls go without chunks; `TooLong` also when
    /// the lists are longer than a decoder of ours accepts.
    pub fn encode_message_with_chunks(
        &mut self,
        out: &mut [u8],
        xid: u32,
        direction: Direction,
        chunks: &impl EncodeChunkLists,
        payload_bytes: usize,
    ) -> Result<usize, SendRefused> {
        let credit = self.admit(direction, payload_bytes, true)?;
        let header_bytes = encode::encode_msg_header(out, xid, credit, chunks)?;
        self.check_threshold(header_bytes.saturating_add(payload_bytes))?;
        self.commit(direction);
        Ok(header_bytes)
    }

    /// Writes an RDMA_NOMSG, whose RPC message is in its chunks: a long call with a Position-Zero Read chunk, or a long
    /// reply with a Reply chunk. Returns the octets of the message.
    ///
    /// # Errors
    /// As [`encode_message_with_chunks`](Self::encode_message_with_chunks).
    pub fn encode_long_message(
        &mut self,
        out: &mut [u8],
        xid: u32,
        direction: Direction,
        chunks: &impl EncodeChunkLists,
    ) -> Result<usize, SendRefused> {
        let credit = self.admit(direction, usize::MAX, true)?;
        let message_bytes = encode::encode_nomsg(out, xid, credit, chunks)?;
        self.check_threshold(message_bytes)?;
        self.commit(direction);
        Ok(message_bytes)
    }

    /// Writes the answer to a call that was refused: ERR_VERS, and ERR_CHUNK for everything else (RFC 8166 section
    /// 4.5). Returns the octets of the message.
    ///
    /// # Errors
    /// `NoCredit`, `NoSpace`, `Over`.
    pub fn encode_error(
        &mut self,
        out: &mut [u8],
        refusal: &Refusal,
    ) -> Result<usize, SendRefused> {
        if self.over {
            return Err(SendRefused::Over);
        }
        if !self.credits.may_reply() {
            return Err(SendRefused::NoCredit);
        }
        let (error, version) = match refusal.error {
            TransportError::Vers(versions) => {
                let (low, high) = (versions.low, versions.high);
                (v1::TransportError::Vers { low, high }, refusal.version)
            }
            _ => (v1::TransportError::Chunk, RPCRDMA_VERSION_1),
        };
        let granted = self.credits.granted();
        let message_bytes = encode::encode_error(out, refusal.xid, version, granted, error)?;
        self.credits.commit_reply();
        Ok(message_bytes)
    }

    /// The credit word of a message, if it may be sent.
    fn admit(
        &self,
        direction: Direction,
        payload_bytes: usize,
        has_chunks: bool,
    ) -> Result<u32, SendRefused> {
        if self.over {
            return Err(SendRefused::Over);
        }
        if payload_bytes < 8 {
            return Err(SendRefused::TooShort);
        }
        match direction {
            Direction::Call => {
                let is_taken = match self.own_calls {
                    ReverseRequestSupport::None => false,
                    ReverseRequestSupport::Inline => !has_chunks,
                    ReverseRequestSupport::General => true,
                };
                if !is_taken {
                    return Err(SendRefused::NotTaken);
                }
                if self.credits.calls_available() == 0 {
                    return Err(SendRefused::NoCredit);
                }
                Ok(self.credits.requested())
            }
            Direction::Reply if self.credits.may_reply() => Ok(self.credits.granted()),
            Direction::Reply => Err(SendRefused::NoCredit),
        }
    }

    fn check_threshold(&self, message_bytes: usize) -> Result<(), SendRefused> {
        let fits = u32::try_from(message_bytes).is_ok_and(|it| it <= self.send_threshold_bytes);
        if fits {
            Ok(())
        } else {
            Err(SendRefused::TooLong)
        }
    }

    fn commit(&mut self, direction: Direction) {
        match direction {
            Direction::Call => self.credits.commit_call(),
            Direction::Reply => self.credits.commit_reply(),
        }
    }
}
