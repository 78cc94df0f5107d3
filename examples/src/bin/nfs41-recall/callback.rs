//! The callback program of NFS version 4.1, as far as recalls take it (RFC 8881 sections 19 and 20), for a back channel
//! of one slot.

use rpcrdma_protocol::xdr::{Reader, Writer};

use crate::compound::{MINOR_VERSION, SessionId, StateId};

/// The program, of the range that RFC 5531 section 13 leaves to users: the number that Wireshark takes for callbacks.
pub(crate) const CALLBACK_PROGRAM: u32 = 0x4000_0000;
/// The version that servers call (section 18.36.3), and its procedures.
pub(crate) const CALLBACK_VERSION: u32 = 1;
pub(crate) const CB_NULL: u32 = 0;
pub(crate) const CB_COMPOUND: u32 = 1;

/// Operations (section 20): 3 to 14 are defined.
const CB_RECALL: u32 = 4;
const CB_SEQUENCE: u32 = 11;
const CB_ILLEGAL: u32 = 10_044;

/// Statuses (section 15.1).
pub(crate) const NOTSUPP: u32 = 10_004;
pub(crate) const MINOR_VERS_MISMATCH: u32 = 10_021;
pub(crate) const OP_ILLEGAL: u32 = 10_044;
pub(crate) const BADSESSION: u32 = 10_052;
pub(crate) const BADSLOT: u32 = 10_053;
pub(crate) const SEQ_MISORDERED: u32 = 10_063;
pub(crate) const SEQUENCE_POS: u32 = 10_064;
pub(crate) const OP_NOT_IN_SESSION: u32 = 10_071;

/// The longest tag that is sent back, and the longest file handle.
const OPAQUE_BYTES_MAX: usize = 128;

/// The longest reply.
const REPLY_BYTES_MAX: usize = 512;

/// The results of a CB_COMPOUND.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    space: [u8; REPLY_BYTES_MAX],
    bytes: usize,
}

impl Reply {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.space[..self.bytes]
    }
}

/// The back channel of a session, at the end that is called.
#[derive(Debug)]
pub(crate) struct BackChannel {
    session: SessionId,
    /// The number of the last call on slot 0, and its reply (section 2.10.6.1).
    sequence: u32,
    reply: Option<Reply>,
}

/// What became of CB_SEQUENCE.
enum Sequenced {
    Next,
    Again,
    Wrong(u32),
}

impl BackChannel {
    pub(crate) fn new(session: SessionId) -> Self {
        Self {
            session,
            sequence: 0,
            reply: None,
        }
    }

    /// Answers the arguments of a CB_COMPOUND: the results, and the delegation that is recalled, if one is. A call that
    /// comes again gets the reply that it got, and recalls nothing. `None` for what cannot be decoded.
    pub(crate) fn answer(&mut self, args: &[u8]) -> Option<(Reply, Option<StateId>)> {
        let mut reader = Reader::new(args);
        let tag = reader.read_opaque(OPAQUE_BYTES_MAX).ok()?;
        let minor_version = reader.read_u32().ok()?;
        // The word between them means something to version 4.0 alone (section 19.2.3).
        reader.read_u32().ok()?;
        let wanted = reader.read_u32().ok()?;
        let mut space = [0; REPLY_BYTES_MAX];
        let mut results = Writer::new(&mut space);
        let (mut status, mut operations) = (0, 0);
        let (mut is_next, mut recalled) = (false, None);
        if minor_version != MINOR_VERSION {
            status = MINOR_VERS_MISMATCH;
        }
        while operations < wanted && status == 0 {
            let operation = reader.read_u32().ok()?;
            let is_defined = (3..=14).contains(&operation);
            status = match operation {
                CB_SEQUENCE if operations == 0 => match self.sequence(&mut reader)? {
                    Sequenced::Again => return Some((self.reply.clone()?, None)),
                    Sequenced::Next => 0,
                    Sequenced::Wrong(status) => status,
                },
                CB_SEQUENCE => SEQUENCE_POS,
                _ if operations == 0 => OP_NOT_IN_SESSION,
                CB_RECALL => {
                    recalled = Some(recall(&mut reader)?);
                    0
                }
                _ if is_defined => NOTSUPP,
                _ => OP_ILLEGAL,
            };
            operations += 1;
            let named = if is_defined { operation } else { CB_ILLEGAL };
            results.write_u32(named).ok()?;
            results.write_u32(status).ok()?;
            if (operation, status) == (CB_SEQUENCE, 0) {
                is_next = true;
                results.write_bytes(&self.session).ok()?;
                // Its number, its slot, the highest slot, and the highest that is wanted.
                for word in [self.sequence, 0, 0, 0] {
                    results.write_u32(word).ok()?;
                }
            }
        }
        let results_bytes = results.position();
        let mut reply = Reply {
            space: [0; REPLY_BYTES_MAX],
            bytes: 0,
        };
        let mut writer = Writer::new(&mut reply.space);
        writer.write_u32(status).ok()?;
        writer.write_opaque(tag).ok()?;
        writer.write_u32(operations).ok()?;
        writer.write_bytes(&space[..results_bytes]).ok()?;
        reply.bytes = writer.position();
        if is_next {
            self.reply = Some(reply.clone());
        }
        Some((reply, recalled))
    }

    /// The arguments of CB_SEQUENCE (section 20.9.1).
    fn sequence(&mut self, reader: &mut Reader<'_>) -> Option<Sequenced> {
        let session = reader.read_bytes(16).ok()?;
        let (sequence, slot) = (reader.read_u32().ok()?, reader.read_u32().ok()?);
        let (_highest_slot, _is_kept) = (reader.read_u32().ok()?, reader.read_bool().ok()?);
        // Calls of ours that this one refers to, by their sessions.
        for _ in 0..reader.read_u32().ok()? {
            reader.read_bytes(16).ok()?;
            for _ in 0..reader.read_u32().ok()? {
                reader.read_u64().ok()?;
            }
        }
        Some(match sequence.wrapping_sub(self.sequence) {
            _ if session != self.session => Sequenced::Wrong(BADSESSION),
            _ if slot != 0 => Sequenced::Wrong(BADSLOT),
            0 if self.reply.is_some() => Sequenced::Again,
            1 => {
                self.sequence = sequence;
                self.reply = None;
                Sequenced::Next
            }
            _ => Sequenced::Wrong(SEQ_MISORDERED),
        })
    }
}

/// The arguments of CB_RECALL (section 20.2.1): which delegation.
fn recall(reader: &mut Reader<'_>) -> Option<StateId> {
    let state = reader.read_bytes(16).ok()?;
    let _is_truncated = reader.read_bool().ok()?;
    let _file = reader.read_opaque(OPAQUE_BYTES_MAX).ok()?;
    state.try_into().ok()
}
