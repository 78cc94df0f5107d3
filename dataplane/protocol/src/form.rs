//! The forms of short RPC messages: those without chunks whose header has few words that vary.
//!
//! A message of a form is known by the words that vary, and by the octets behind its headers: both ends know the rest. So
//! its sender need not write the headers, and its receiver need not compare them. A provider that carries
//! messages between two ends that both know the forms ([`FORMS`]) may carry them so. Everywhere else a message is octets,
//! and [`fold`] finds its form.
//!
//! | form | headers | words that vary | behind them |
//! |---|---|---|---|
//! | call | RDMA2_MSG or RDMA_MSG; a call with an AUTH_NONE or AUTH_SYS credential, and the verifier AUTH_NONE | four pairs: XID and credits, program and version, procedure and flavor, octets of the credential and invalidate handle | body of the credential, arguments |
//! | reply | the same; a success with the verifier AUTH_NONE | XID and credits | results |
//!
//! Sources: RFC 5531 section 9, RFC 8166 section 4, -00 section 6.3. A message of any other kind has no form. RPCSEC_GSS has
//! none, because its verifier is computed over octets of the header.
//!
//! The two halves of a pair are in the byte order of the wire: they are what is in a message at these places.

use crate::constants::{
    AUTH_BODY_BYTES_MAX, AUTH_NONE, AUTH_SYS, CALL_HEADER_BYTES_WITHOUT_AUTH, MSG_ACCEPTED,
    RDMA_MSG, RDMA2_F_RESPONSE, RDMA2_MSG, REPLY_HEADER_BYTES_WITHOUT_AUTH, RPC_CALL, RPC_REPLY,
    RPC_VERSION, RPCRDMA_VERSION_1, RPCRDMA_VERSION_2, SUCCESS, V1_HEADER_BYTES_WITHOUT_CHUNKS,
    V2_HEADER_BYTES_WITHOUT_CHUNKS,
};
use crate::rpc::Direction;
use crate::xdr::{put_word, word};

/// The pairs of words that vary, in the form that has the most.
pub const PAIRS_MAX: usize = 4;

/// The number of this set of forms. Ends that exchange messages by their forms have the same one.
pub const FORMS: u32 = 1;

/// The words that vary. A form with fewer leaves the last ones zero.
pub type Pairs = [u64; PAIRS_MAX];

/// Octets of an AUTH_NONE verifier.
const VERIFIER_BYTES: usize = 8;
/// Octets of a call header before the body of its credential.
const BEFORE_BODY_BYTES: usize = CALL_HEADER_BYTES_WITHOUT_AUTH - VERIFIER_BYTES;

/// A form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// A call of version 2.
    Call2,
    /// A reply of version 2.
    Reply2,
    /// A call of version 1.
    Call1,
    /// A reply of version 1.
    Reply1,
}

impl Form {
    /// All of them, by number.
    pub const ALL: [Self; 4] = [Self::Call2, Self::Reply2, Self::Call1, Self::Reply1];

    /// The form of messages in this direction.
    #[inline]
    #[must_use]
    pub const fn new(direction: Direction, is_version_1: bool) -> Self {
        match (direction, is_version_1) {
            (Direction::Call, false) => Self::Call2,
            (Direction::Reply, false) => Self::Reply2,
            (Direction::Call, true) => Self::Call1,
            (Direction::Reply, true) => Self::Reply1,
        }
    }

    /// The form of this number.
    #[inline]
    #[must_use]
    pub fn of_number(number: u8) -> Option<Self> {
        // Not looked up in `ALL`: the numbers are the forms themselves.
        match number {
            0 => Some(Self::Call2),
            1 => Some(Self::Reply2),
            2 => Some(Self::Call1),
            3 => Some(Self::Reply1),
            _ => None,
        }
    }

    /// Its number.
    #[inline]
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// Whether its messages are calls or replies.
    #[inline]
    #[must_use]
    pub const fn direction(self) -> Direction {
        match self {
            Self::Call2 | Self::Call1 => Direction::Call,
            Self::Reply2 | Self::Reply1 => Direction::Reply,
        }
    }

    /// Whether its messages are of version 1.
    #[inline]
    #[must_use]
    pub const fn is_version_1(self) -> bool {
        matches!(self, Self::Call1 | Self::Reply1)
    }

    /// How many pairs of words vary.
    #[inline]
    #[must_use]
    pub const fn pairs(self) -> u8 {
        match self.direction() {
            Direction::Call => 4,
            Direction::Reply => 1,
        }
    }

    /// Octets of the transport header.
    #[inline]
    #[must_use]
    pub const fn transport_bytes(self) -> usize {
        if self.is_version_1() {
            V1_HEADER_BYTES_WITHOUT_CHUNKS
        } else {
            V2_HEADER_BYTES_WITHOUT_CHUNKS
        }
    }

    /// Octets of both headers, the body of a credential apart.
    #[inline]
    #[must_use]
    pub const fn header_bytes(self) -> usize {
        self.transport_bytes()
            + match self.direction() {
                Direction::Call => CALL_HEADER_BYTES_WITHOUT_AUTH,
                Direction::Reply => REPLY_HEADER_BYTES_WITHOUT_AUTH,
            }
    }
}

/// The words of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallWords {
    /// The XID, in both headers.
    pub xid: u32,
    /// The credit word of the transport header.
    pub credit: u32,
    /// RPC program.
    pub program: u32,
    /// Version of the program.
    pub version: u32,
    /// Procedure of the program.
    pub procedure: u32,
    /// Flavor of the credential: AUTH_NONE or AUTH_SYS.
    pub flavor: u32,
    /// Octets of its body, a multiple of four.
    pub credential_bytes: u32,
    /// The handle that the reply may invalidate, in version 2.
    pub invalidate_handle: u32,
}

impl CallWords {
    /// As pairs.
    // Always: most of the words are known where it is called.
    #[inline(always)]
    #[must_use]
    pub const fn pairs(&self) -> Pairs {
        [
            pair(self.xid, self.credit),
            pair(self.program, self.version),
            pair(self.procedure, self.flavor),
            pair(self.credential_bytes, self.invalidate_handle),
        ]
    }

    /// From pairs.
    #[inline(always)]
    #[must_use]
    pub const fn of(pairs: &Pairs) -> Self {
        let [xid, credit] = halves(pairs[0]);
        let [program, version] = halves(pairs[1]);
        let [procedure, flavor] = halves(pairs[2]);
        let [credential_bytes, invalidate_handle] = halves(pairs[3]);
        Self {
            xid,
            credit,
            program,
            version,
            procedure,
            flavor,
            credential_bytes,
            invalidate_handle,
        }
    }

    /// Divides what is behind the headers into the body of the credential and the arguments. `None` if it is no call of a
    /// form: another flavor, or a body that is too long, no multiple of four, or not there.
    #[inline]
    #[must_use]
    pub fn split<'m>(&self, rest: &'m [u8]) -> Option<(&'m [u8], &'m [u8])> {
        if self.flavor | self.credential_bytes == 0 {
            return Some((&[], rest));
        }
        let bytes = usize::try_from(self.credential_bytes).unwrap_or(usize::MAX);
        let is_known = matches!(self.flavor, AUTH_NONE | AUTH_SYS);
        if !is_known || bytes > AUTH_BODY_BYTES_MAX || bytes % 4 != 0 {
            return None;
        }
        rest.split_at_checked(bytes)
    }
}

/// The words of a reply, as pairs.
#[inline]
#[must_use]
pub const fn reply_pairs(xid: u32, credit: u32) -> Pairs {
    [pair(xid, credit), 0, 0, 0]
}

/// XID and credit word of a message of any form.
#[inline]
#[must_use]
pub const fn xid_and_credit(pairs: &Pairs) -> (u32, u32) {
    let [xid, credit] = halves(pairs[0]);
    (xid, credit)
}

/// A pair of words, as its octets on the wire are in memory.
#[inline]
const fn pair(first: u32, second: u32) -> u64 {
    let ([a, b, c, d], [e, f, g, h]) = (first.to_be_bytes(), second.to_be_bytes());
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
}

#[inline]
const fn halves(pair: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = pair.to_ne_bytes();
    [
        u32::from_be_bytes([a, b, c, d]),
        u32::from_be_bytes([e, f, g, h]),
    ]
}

/// A message and its form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Folded<'m> {
    /// The form.
    pub form: Form,
    /// The words that vary.
    pub pairs: Pairs,
    /// The body of a call's credential.
    pub credential: &'m [u8],
    /// The arguments or the results.
    pub payload: &'m [u8],
}

/// Whether a message of either version can have a form, by its type, and in version 2 by its chunk lists. Nearly all without
/// one are recognised by that.
#[inline]
#[must_use]
pub fn may_have_form(message: &[u8]) -> bool {
    const { assert!(RDMA2_MSG == RDMA_MSG, "the type is in the same place, too") };
    let Some(words) = message.first_chunk::<V2_HEADER_BYTES_WITHOUT_CHUNKS>() else {
        return false;
    };
    let lists = word(words, 6) | word(words, 7) | word(words, 8);
    word(words, 3) == RDMA2_MSG && (lists == 0 || word(words, 1) != RPCRDMA_VERSION_2)
}

/// Finds the form of a message; `None` if it has none. Then the general decoders say what it is, and whether it is valid.
#[inline]
#[must_use]
pub fn fold(message: &[u8]) -> Option<Folded<'_>> {
    const TRANSPORT_BYTES: usize = V2_HEADER_BYTES_WITHOUT_CHUNKS;
    let words = message.first_chunk::<TRANSPORT_BYTES>()?;
    // Compared in wire order, so that only words that are used are converted. One OR of all deviations costs one branch.
    let wire = |index| word(words, index).to_be();
    let flags = wire(4);
    let deviation = (wire(1) ^ RPCRDMA_VERSION_2.to_be())
        | (wire(3) ^ RDMA2_MSG.to_be())
        | (flags & !RDMA2_F_RESPONSE.to_be())
        | wire(6)
        | wire(7)
        | wire(8);
    if deviation != 0 {
        return fold_version_1(message);
    }
    let (xid, credit, handle) = (word(words, 0), word(words, 2), word(words, 5));
    let direction = Direction::of(flags != 0);
    if direction == Direction::Reply && handle != 0 {
        return None;
    }
    let form = Form::new(direction, false);
    fold_rpc(form, xid, credit, handle, message.get(TRANSPORT_BYTES..)?)
}

fn fold_version_1(message: &[u8]) -> Option<Folded<'_>> {
    let (words, rpc) = message.split_first_chunk::<V1_HEADER_BYTES_WITHOUT_CHUNKS>()?;
    if word(words, 1) != RPCRDMA_VERSION_1
        || word(words, 3) != RDMA_MSG
        || (word(words, 4) | word(words, 5) | word(words, 6)) != 0
    {
        return None;
    }
    let direction = Direction::from_message_type(word(rpc.first_chunk::<8>()?, 1))?;
    let form = Form::new(direction, true);
    fold_rpc(form, word(words, 0), word(words, 2), 0, rpc)
}

/// Finds the form of a message by its RPC message; the transport header has that of `form`.
#[inline]
fn fold_rpc(
    form: Form,
    xid: u32,
    credit: u32,
    invalidate_handle: u32,
    rpc: &[u8],
) -> Option<Folded<'_>> {
    match form.direction() {
        Direction::Reply => {
            let (words, payload) = rpc.split_first_chunk::<REPLY_HEADER_BYTES_WITHOUT_AUTH>()?;
            let deviation = (word(words, 0) ^ xid)
                | (word(words, 1) ^ RPC_REPLY)
                | (word(words, 2) ^ MSG_ACCEPTED)
                | (word(words, 3) ^ AUTH_NONE)
                | word(words, 4)
                | (word(words, 5) ^ SUCCESS);
            (deviation == 0).then_some(Folded {
                form,
                pairs: reply_pairs(xid, credit),
                credential: &[],
                payload,
            })
        }
        Direction::Call => {
            let (words, behind) = rpc.split_first_chunk::<BEFORE_BODY_BYTES>()?;
            let deviation = (word(words, 0) ^ xid)
                | (word(words, 1) ^ RPC_CALL)
                | (word(words, 2) ^ RPC_VERSION);
            let call = CallWords {
                xid,
                credit,
                program: word(words, 3),
                version: word(words, 4),
                procedure: word(words, 5),
                flavor: word(words, 6),
                credential_bytes: word(words, 7),
                invalidate_handle,
            };
            let (credential, behind) = call.split(behind)?;
            let (verifier, payload) = behind.split_first_chunk::<VERIFIER_BYTES>()?;
            let deviation = deviation | (word(verifier, 0) ^ AUTH_NONE) | word(verifier, 1);
            (deviation == 0).then_some(Folded {
                form,
                pairs: call.pairs(),
                credential,
                payload,
            })
        }
    }
}

/// Writes the message of these words, with `rest` behind its headers: the body of the credential and the arguments, or the
/// results. Returns its octets, [`Form::header_bytes`] and those of `rest`; `None`, with `out` changed, if they do not fit.
///
/// Any words and any `rest` give some message. The general decoders judge it as any octets.
#[must_use]
pub fn unfold(form: Form, pairs: &Pairs, rest: &[u8], out: &mut [u8]) -> Option<usize> {
    let end = form.header_bytes() + rest.len();
    let body_bytes = match form.direction() {
        Direction::Call => {
            let bytes = usize::try_from(CallWords::of(pairs).credential_bytes).ok();
            // What it claims beyond that is not there, and its decoder finds that.
            bytes.unwrap_or(usize::MAX).min(rest.len())
        }
        Direction::Reply => 0,
    };
    let (body, payload) = rest.split_at_checked(body_bytes)?;
    let before_bytes = write_headers(form, pairs, body, out)?;
    out.get_mut(before_bytes..end)?.copy_from_slice(payload);
    Some(end)
}

/// Writes the headers of a message at the start of `out`, with the body of a call's credential. Returns their octets;
/// `None`, with `out` changed, if they do not fit.
#[must_use]
pub fn write_headers(
    form: Form,
    pairs: &Pairs,
    credential: &[u8],
    out: &mut [u8],
) -> Option<usize> {
    let transport_bytes = write_transport_header(form, pairs, out)?;
    let rpc = out.get_mut(transport_bytes..)?;
    let rpc_bytes = write_rpc_header(form, pairs, credential, rpc)?;
    Some(transport_bytes + rpc_bytes)
}

/// Writes the transport header alone.
#[inline]
#[must_use]
pub fn write_transport_header(form: Form, pairs: &Pairs, out: &mut [u8]) -> Option<usize> {
    let (xid, credit) = xid_and_credit(pairs);
    if form.is_version_1() {
        let out = out.first_chunk_mut::<V1_HEADER_BYTES_WITHOUT_CHUNKS>()?;
        *out = [0; V1_HEADER_BYTES_WITHOUT_CHUNKS];
        put_word(out, 0, xid);
        put_word(out, 1, RPCRDMA_VERSION_1);
        put_word(out, 2, credit);
        put_word(out, 3, RDMA_MSG);
        return Some(V1_HEADER_BYTES_WITHOUT_CHUNKS);
    }
    let (flags, handle) = match form.direction() {
        Direction::Call => (0, CallWords::of(pairs).invalidate_handle),
        Direction::Reply => (RDMA2_F_RESPONSE, 0),
    };
    let out = out.first_chunk_mut::<V2_HEADER_BYTES_WITHOUT_CHUNKS>()?;
    put_word(out, 0, xid);
    put_word(out, 1, RPCRDMA_VERSION_2);
    put_word(out, 2, credit);
    put_word(out, 3, RDMA2_MSG);
    put_word(out, 4, flags);
    put_word(out, 5, handle);
    put_word(out, 6, 0);
    put_word(out, 7, 0);
    put_word(out, 8, 0);
    Some(V2_HEADER_BYTES_WITHOUT_CHUNKS)
}

/// Writes the RPC header alone.
#[inline]
#[must_use]
pub fn write_rpc_header(
    form: Form,
    pairs: &Pairs,
    credential: &[u8],
    out: &mut [u8],
) -> Option<usize> {
    let call = CallWords::of(pairs);
    if form.direction() == Direction::Reply {
        let out = out.first_chunk_mut::<REPLY_HEADER_BYTES_WITHOUT_AUTH>()?;
        put_word(out, 0, call.xid);
        put_word(out, 1, RPC_REPLY);
        put_word(out, 2, MSG_ACCEPTED);
        put_word(out, 3, AUTH_NONE);
        put_word(out, 4, 0);
        put_word(out, 5, SUCCESS);
        return Some(REPLY_HEADER_BYTES_WITHOUT_AUTH);
    }
    let (words, behind) = out.split_first_chunk_mut::<BEFORE_BODY_BYTES>()?;
    put_word(words, 0, call.xid);
    put_word(words, 1, RPC_CALL);
    put_word(words, 2, RPC_VERSION);
    put_word(words, 3, call.program);
    put_word(words, 4, call.version);
    put_word(words, 5, call.procedure);
    put_word(words, 6, call.flavor);
    put_word(words, 7, call.credential_bytes);
    let (body, behind) = behind.split_at_mut_checked(credential.len())?;
    body.copy_from_slice(credential);
    let verifier = behind.first_chunk_mut::<VERIFIER_BYTES>()?;
    put_word(verifier, 0, AUTH_NONE);
    put_word(verifier, 1, 0);
    Some(CALL_HEADER_BYTES_WITHOUT_AUTH + credential.len())
}
