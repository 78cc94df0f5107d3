//! Decodes messages one after another, and keeps what later messages need: the call of each xid, and the payloads and
//! property sets that continue in the next message.

use rpcrdma_protocol::common::CommonPrefix;
use rpcrdma_protocol::constants::{
    CONNPROP_BYTES_MAX, RPCRDMA_VERSION_1, RPCRDMA_VERSION_2, V2_PREFIX_BYTES,
};
use rpcrdma_protocol::rpc::{CallHeader, Direction, ReplyHeader, peek};
use rpcrdma_protocol::v2::PropertySet;
use rpcrdma_protocol::{DecodeError, Reason, v1, v2};

use crate::recent::Recent;

use super::convert::{error_v1, error_v2, outcome, property, rpc, set_lists, versions_error};
use super::message::{Decoded, Message, Note, PartialPrefix, Rpc, Transmission, Wrong};
use super::rtr;

/// The position and reason of an error in a message, and the answer of a receiver to it.
struct Fault {
    at: usize,
    reason: String,
    answer: Option<&'static str>,
}

impl Fault {
    fn new(at: usize, reason: &str, answer: &'static str) -> Self {
        Self {
            at,
            reason: reason.to_owned(),
            answer: Some(answer),
        }
    }

    fn of(error: DecodeError, answer: &'static str) -> Self {
        Self {
            at: error.at,
            reason: error.reason.to_string(),
            answer: Some(answer),
        }
    }
}

/// The answer of a receiver of version 1 to a message that it cannot decode.
const fn answer_v1(error: DecodeError) -> &'static str {
    match v1::refusal(error) {
        v1::Refusal::Discard => "discards it in silence",
        v1::Refusal::Vers => "answers ERR_VERS",
        v1::Refusal::Chunk => "answers ERR_CHUNK if it is the responder, and discards it otherwise",
    }
}

/// The answer of a receiver of version 2 to a message that it cannot decode.
const fn answer_v2(error: DecodeError) -> &'static str {
    match v2::refusal(error) {
        v2::Refusal::Discard => "discards it in silence",
        v2::Refusal::Vers => "answers ERR_VERS",
        v2::Refusal::InvalHtype => "answers RDMA2_ERR_INVAL_HTYPE",
        v2::Refusal::InvalFlag => ANSWER_INVAL_FLAG,
        v2::Refusal::BadXdr => ANSWER_BAD_XDR,
        v2::Refusal::WriteChunks => "answers RDMA2_ERR_WRITE_CHUNKS",
        v2::Refusal::Segments => "answers RDMA2_ERR_SEGMENTS",
    }
}

const ANSWER_BAD_XDR: &str = "answers RDMA2_ERR_BAD_XDR";
const ANSWER_INVAL_FLAG: &str = "answers RDMA2_ERR_INVAL_FLAG";

/// One direction of one transaction: the xid, and whether the messages are replies.
type Sequence = (u32, bool);

/// Calls of one connection whose replies may come.
const CALLS_MAX: usize = 4096;

/// Messages of one connection that may go on in later ones, of each kind.
const CONTINUED_MAX: usize = 1024;

/// The state that later messages need.
#[derive(Debug, Default)]
pub(crate) struct Conversation {
    /// The program, version and procedure of each call, by xid.
    calls: Recent<u32, [u32; 3], CALLS_MAX>,
    /// The payloads that continue in the next message.
    payloads: Recent<Sequence, (), CONTINUED_MAX>,
    /// The received parts of property sets that continue in the next message.
    properties: Recent<Sequence, Vec<u8>, CONTINUED_MAX>,
    /// The number of transmissions of each incomplete group.
    groups: Recent<Sequence, u32, CONTINUED_MAX>,
}

impl Conversation {
    /// Decodes one message. `line` is its line in the input, if the input has lines.
    pub(crate) fn decode(&mut self, bytes: &[u8], line: impl Into<Option<u64>>) -> Decoded {
        let prefix = CommonPrefix::peek(bytes);
        let decoded = match prefix.map(|prefix| prefix.version) {
            None => Err(Fault::of(
                DecodeError::new(bytes.len(), Reason::BelowLeastSize),
                "discards it in silence",
            )),
            Some(RPCRDMA_VERSION_1) => self.decode_v1(bytes),
            Some(RPCRDMA_VERSION_2) => self.decode_v2(bytes),
            Some(version) => Err(Fault::new(
                4,
                &format!("version {version} is neither 1 nor 2"),
                "answers ERR_VERS in the version 1 layout",
            )),
        };
        match decoded {
            Ok(message) => Decoded::Right(Box::new(message)),
            Err(fault) => Decoded::Wrong(Wrong {
                line: line.into(),
                prefix: prefix.map_or_else(PartialPrefix::default, |prefix| PartialPrefix {
                    version: Some(prefix.version),
                    xid: Some(prefix.xid),
                    credit: Some(prefix.credit),
                }),
                error_at: fault.at,
                reason: fault.reason,
                word: word_at(bytes, fault.at),
                answer: fault.answer,
            }),
        }
    }

    fn decode_v1(&mut self, bytes: &[u8]) -> Result<Message, Fault> {
        let header = v1::decode(bytes).map_err(|error| Fault::of(error, answer_v1(error)))?;
        let mut message = Message {
            version: RPCRDMA_VERSION_1,
            xid: header.xid,
            credit: header.credit,
            header_bytes: header.header_bytes,
            ..Message::default()
        };
        if let Some(lists) = header.chunk_lists() {
            set_lists(&mut message, lists);
        }
        let behind = bytes.get(header.header_bytes..).unwrap_or_default();
        match header.body {
            v1::Body::Msg(_) => {
                message.header_type = "MSG";
                message.payload_bytes = behind.len();
                self.read_rpc(&mut message, behind, "discards it")?;
            }
            v1::Body::Nomsg(_) => {
                message.header_type = "NOMSG";
                self.note_call(&mut message);
            }
            v1::Body::Msgp => message.header_type = "MSGP",
            v1::Body::Done => message.header_type = "DONE",
            v1::Body::Error(error) => {
                message.header_type = "ERROR";
                message.error = Some(error_v1(error));
            }
        }
        if !matches!(header.body, v1::Body::Msg(_) | v1::Body::Msgp) && !behind.is_empty() {
            message.notes.push(Note::IgnoredBytes(behind.len()));
        }
        Ok(message)
    }

    fn decode_v2(&mut self, bytes: &[u8]) -> Result<Message, Fault> {
        let header = match v2::decode_with_rtr(bytes, v2::rtr::RtrSupport::ALL) {
            Ok(header) => header,
            // The version 2 layout is tried first: an ERR_VERS in the layout of version 1 does not decode in it,
            // unless its lowest version is 5 or more.
            Err(error) => {
                return err_vers_message(bytes).ok_or_else(|| Fault::of(error, answer_v2(error)));
            }
        };
        let v2::Prefix { xid, credit, flags } = header.prefix;
        let mut names = Vec::new();
        if flags.is_response() {
            names.push("RESPONSE");
        }
        if flags.is_more() {
            names.push("MORE");
        }
        let mut message = Message {
            version: RPCRDMA_VERSION_2,
            xid,
            credit: credit.to_word(),
            credit_granted: Some(credit.granted),
            credit_maximum: Some(credit.maximum),
            flags: Some(names),
            header_bytes: header.header_bytes,
            ..Message::default()
        };
        if let Some(chunks) = header.chunks() {
            message.inv_handle = Some(chunks.inv_handle);
            set_lists(&mut message, &chunks.lists);
        }
        check_more(&header)?;
        let sequence = (xid, flags.is_response());
        match header.body {
            v2::Body::Msg(_) => {
                message.header_type = "MSG";
                let payload = bytes.get(header.header_bytes..).unwrap_or_default();
                message.payload_bytes = payload.len();
                self.read_payload_v2(&mut message, payload, sequence, flags.is_more())?;
            }
            v2::Body::Nomsg(_) => {
                message.header_type = "NOMSG";
                self.note_call(&mut message);
            }
            v2::Body::Error(error) => {
                message.header_type = "ERROR";
                message.error = Some(error_v2(error));
            }
            v2::Body::Connprop(body) => {
                message.header_type = "CONNPROP";
                self.read_properties(&mut message, body, sequence, flags.is_more())?;
            }
            v2::Body::TransmitRequest(_) => {
                message.header_type = "TRANSMIT_REQUEST";
                self.read_transmission(&mut message, &header.body, bytes)?;
            }
            v2::Body::TransmitResponse(_) => {
                message.header_type = "TRANSMIT_RESPONSE";
                self.read_transmission(&mut message, &header.body, bytes)?;
            }
            v2::Body::TransmitContinue(_) => {
                message.header_type = "TRANSMIT_CONTINUE";
                self.read_transmission(&mut message, &header.body, bytes)?;
            }
            v2::Body::ReportError(report) => {
                message.header_type = "REPORT_ERROR";
                message.reported = Some(rtr::reported(&report));
            }
        }
        Ok(message)
    }

    /// Reads a transmission of the extension RTR: its items, and the RPC header at the start of a group.
    fn read_transmission(
        &mut self,
        message: &mut Message,
        body: &v2::Body<'_>,
        bytes: &[u8],
    ) -> Result<(), Fault> {
        let Some((mut transmission, stream_bytes)) = rtr::transmission(body) else {
            return Ok(());
        };
        let behind = bytes.get(message.header_bytes..).unwrap_or_default();
        let stream = usize::try_from(stream_bytes)
            .ok()
            .and_then(|stream_bytes| behind.get(..stream_bytes))
            .ok_or_else(|| {
                Fault::new(
                    message.header_bytes.saturating_sub(4),
                    "the payload stream is longer than the message",
                    "answers a Report Error with BADPL",
                )
            })?;
        message.payload_bytes = stream.len();
        transmission.behind_bytes = behind.len() - stream.len();
        let is_first = transmission.transmissions.is_some();
        if self.group_goes_on(message, &transmission) {
            message.notes.push(Note::ContinuesInNext);
        }
        message.transmission = Some(transmission);
        if is_first {
            return self.read_rpc(message, stream, ANSWER_BAD_XDR);
        }
        message.notes.push(Note::ContinuesPrevious);
        Ok(())
    }

    /// Whether another transmission of the group follows. Only the first transmission has the number of the group, so
    /// the answer is `false` if the input does not hold it.
    fn group_goes_on(&mut self, message: &Message, transmission: &Transmission) -> bool {
        let group = (message.xid, message.is_reply() == Some(true));
        let transmissions = match transmission.transmissions {
            Some(transmissions) => Some(transmissions),
            None => self.groups.get(&group).copied(),
        };
        let behind = transmissions.filter(|&all| all > transmission.sequence.saturating_add(1));
        match behind {
            Some(all) => self.groups.insert(group, all),
            None => self.groups.remove(&group),
        };
        behind.is_some()
    }

    fn read_payload_v2(
        &mut self,
        message: &mut Message,
        payload: &[u8],
        sequence: Sequence,
        more: bool,
    ) -> Result<(), Fault> {
        let continued = if more {
            self.payloads.insert(sequence, ()).is_some()
        } else {
            self.payloads.remove(&sequence).is_some()
        };
        if more {
            message.notes.push(Note::ContinuesInNext);
        }
        if continued {
            message.notes.push(Note::ContinuesPrevious);
            return Ok(());
        }
        self.read_rpc(message, payload, ANSWER_BAD_XDR)?;
        match message.rpc {
            Some(rpc) if (rpc.direction == "reply") != sequence.1 => Err(Fault::new(
                16,
                "the flag F_RESPONSE and the RPC message type contradict each other",
                "answers RDMA2_ERR_BAD_XDR if it is the responder, and discards it otherwise",
            )),
            _ => Ok(()),
        }
    }

    /// Searches for an RPC header at the start of the inline bytes. Other bytes give a note and no error, because the
    /// transport header is correct without it.
    fn read_rpc(
        &mut self,
        message: &mut Message,
        payload: &[u8],
        answer: &'static str,
    ) -> Result<(), Fault> {
        let header = peek(payload).ok().and_then(|(xid, kind)| match kind {
            Direction::Call => {
                let (call, _) = CallHeader::decode(payload).ok()?;
                let called = [call.program, call.version, call.procedure];
                Some((xid, rpc("call", Some(called), None)))
            }
            Direction::Reply => {
                let (reply, _) = ReplyHeader::decode(payload).ok()?;
                let called = self.calls.get(&xid).copied();
                Some((xid, rpc("reply", called, Some(outcome(&reply.body)))))
            }
        });
        let Some((xid, header)) = header else {
            message.notes.push(Note::PayloadIsNoRpc);
            return Ok(());
        };
        if xid != message.xid {
            return Err(Fault::new(
                message.header_bytes,
                "the xid of the RPC message is not that of the transport header",
                answer,
            ));
        }
        if let Rpc {
            direction: "call",
            program: Some(p),
            version: Some(v),
            procedure: Some(c),
            ..
        } = header
        {
            self.calls.insert(xid, [p, v, c]);
        }
        message.rpc = Some(header);
        Ok(())
    }

    /// Notes the call of a reply that is in its Reply chunk. Such a reply has no inline RPC header, so its xid leads to
    /// the call.
    fn note_call(&self, message: &mut Message) {
        if message.reply_chunk.is_some()
            && message.read_list.is_empty()
            && let Some(&called) = self.calls.get(&message.xid)
        {
            message.notes.push(Note::Answers(called));
        }
    }

    fn read_properties(
        &mut self,
        message: &mut Message,
        body: &[u8],
        sequence: Sequence,
        more: bool,
    ) -> Result<(), Fault> {
        let mut whole = self.properties.remove(&sequence).unwrap_or_default();
        let before = whole.len();
        if before > 0 {
            message.notes.push(Note::ContinuesPrevious);
        }
        whole.extend_from_slice(body);
        if whole.len() > CONNPROP_BYTES_MAX {
            return Err(Fault::new(
                V2_PREFIX_BYTES,
                "the continued property set is longer than any receiver takes",
                "answers RDMA2_ERR_SYSTEM",
            ));
        }
        if more {
            self.properties.insert(sequence, whole);
            message.notes.push(Note::ContinuesInNext);
            return Ok(());
        }
        match PropertySet::decode(&whole) {
            Ok(set) => {
                message.properties = Some(set.map(property).collect());
                Ok(())
            }
            // The position counts from the start of this message. An error in an earlier part has no position in it,
            // so it is reported at the start of the body.
            Err(error) => Err(Fault {
                at: V2_PREFIX_BYTES + error.at.saturating_sub(before),
                reason: match error.at < before {
                    true => format!("{} (in an earlier part of the property set)", error.reason),
                    false => error.reason.to_string(),
                },
                answer: Some(ANSWER_BAD_XDR),
            }),
        }
    }
}

/// Checks that F_MORE is set only on CONNPROP, and on MSG without chunks (-00 section 6.3.2.2).
fn check_more(header: &v2::Header<'_>) -> Result<(), Fault> {
    if !header.prefix.flags.is_more() {
        return Ok(());
    }
    match header.body {
        v2::Body::Nomsg(_)
        | v2::Body::Error(_)
        | v2::Body::TransmitRequest(_)
        | v2::Body::TransmitResponse(_)
        | v2::Body::TransmitContinue(_)
        | v2::Body::ReportError(_) => Err(Fault::new(
            16,
            "F_MORE is set on a header type that cannot be continued",
            ANSWER_INVAL_FLAG,
        )),
        v2::Body::Msg(_) if !header.lists_are_empty() => Err(Fault::new(
            16,
            "F_MORE is set on a message that has chunks",
            ANSWER_INVAL_FLAG,
        )),
        v2::Body::Msg(_) | v2::Body::Connprop(_) => Ok(()),
    }
}

fn err_vers_message(bytes: &[u8]) -> Option<Message> {
    let versions = v2::err_vers_in_version_1_layout(bytes, true)?;
    let prefix = CommonPrefix::peek(bytes)?;
    Some(Message {
        version: RPCRDMA_VERSION_2,
        xid: prefix.xid,
        credit: prefix.credit,
        header_type: "ERROR",
        error: Some(versions_error("VERS", versions.low, versions.high)),
        header_bytes: bytes.len(),
        notes: vec![Note::Version1Layout],
        ..Message::default()
    })
}

fn word_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes
        .get(at..)?
        .first_chunk()
        .map(|word| u32::from_be_bytes(*word))
}
