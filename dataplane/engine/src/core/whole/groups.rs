//! Transmission groups of peers, word by word: calls, answers, and what the core sends.

use rpcrdma_protocol::v2::rtr::RtrSupport;
use rpcrdma_protocol::v2::{self, Body, Header};

use super::messages::{
    GROUP_CONTINUE, GROUP_REPORT, GROUP_REQUEST, GROUP_RESPONSE, INLINE_BYTES, PAGE_BYTES,
    PATTERNS, RESPONSE, head, rpc_call, rpc_reply,
};
use super::step::Asked;
use crate::support::raw::words;

/// An item that Sends place, and no other kind of it.
const PLACED: u32 = 2;
/// Results from this length on are to be placed.
const PLACED_BYTES_LEAST: u32 = 64;
/// Transmissions of an answer to a call that asks for an item.
const ANSWER_TRANSMISSIONS_MAX: u32 = 3;

/// The place of an item in the pages of a group: its list, if there is one.
fn items(item: Option<(u32, u32)>) -> Vec<u32> {
    let Some((behind, bytes)) = item else {
        return vec![0];
    };
    let pages = bytes.div_ceil(PAGE_BYTES);
    let mut all = vec![1, behind, bytes, PLACED, 0, pages];
    all.extend(0..pages);
    all
}

/// A transmission with so many bytes of an item in its page.
fn with_page(head: &[u32], bytes: u32) -> Vec<u8> {
    let mut message = words(head);
    if bytes != 0 {
        let padding = INLINE_BYTES as usize - message.len();
        message.extend_from_slice(&[0; INLINE_BYTES as usize][..padding]);
        message.extend_from_slice(&PATTERNS[..bytes as usize]);
    }
    message
}

/// The bytes of an item in the page of this transmission.
fn page_bytes(item_bytes: u32, transmission: u32) -> u32 {
    let rest = item_bytes.saturating_sub(PAGE_BYTES * transmission);
    rest.min(PAGE_BYTES)
}

fn byte_count(stream: &[u32]) -> u32 {
    u32::try_from(4 * stream.len()).expect("short")
}

/// The first transmission of a call in so many, with an item of so many pages behind its stream.
pub(super) fn request(xid: u32, asked: Asked, transmissions: u32, pages: u32) -> Vec<u8> {
    let stream = rpc_call(xid, asked);
    let item = (pages != 0).then(|| (byte_count(&stream), pages * PAGE_BYTES));
    let mut all = head(xid, GROUP_REQUEST, 0);
    all.extend(items(item));
    if matches!(asked, Asked::Give { .. } | Asked::Back) {
        // One direction: what the whole call asks for is to be placed.
        all.extend([1, 0, u32::MAX, 1, PLACED_BYTES_LEAST, PLACED]);
        all.extend([transmissions, ANSWER_TRANSMISSIONS_MAX]);
    } else {
        all.extend([0, transmissions, 1]);
    }
    all.push(byte_count(&stream));
    all.extend(stream);
    with_page(&all, page_bytes(pages * PAGE_BYTES, 0))
}

/// A later transmission, with these words of the stream.
pub(super) fn next(
    xid: u32,
    is_answer: bool,
    sequence: u32,
    stream: &[u32],
    item_bytes: u32,
) -> Vec<u8> {
    let mut all = head(xid, GROUP_CONTINUE, if is_answer { RESPONSE } else { 0 });
    all.extend([sequence, 0, byte_count(stream)]);
    all.extend(stream);
    with_page(&all, page_bytes(item_bytes, sequence))
}

/// A call in so many transmissions, with a page in each.
pub(super) fn call(xid: u32, asked: Asked, transmissions: u32) -> Vec<Vec<u8>> {
    let first = request(xid, asked, transmissions, transmissions);
    let item_bytes = transmissions * PAGE_BYTES;
    let rest = (1..transmissions).map(|sequence| next(xid, false, sequence, &[], item_bytes));
    std::iter::once(first).chain(rest).collect()
}

/// An answer with these results, and an item of so many bytes behind them, in so many transmissions, or as many as the item
/// takes. The last words of its stream come in the later ones.
pub(super) fn answer(
    xid: u32,
    results: &[u32],
    item_bytes: Option<u32>,
    transmissions: u32,
) -> Vec<Vec<u8>> {
    let stream = rpc_reply(xid, results);
    let bytes = item_bytes.unwrap_or(0);
    let transmissions = transmissions.max(bytes.div_ceil(PAGE_BYTES));
    let first = stream.len() + 1 - transmissions as usize;
    let mut all = head(xid, GROUP_RESPONSE, RESPONSE);
    all.extend(items(item_bytes.map(|bytes| (byte_count(&stream), bytes))));
    all.extend([transmissions, byte_count(&stream[..first])]);
    all.extend(&stream[..first]);
    let mut messages = vec![with_page(&all, page_bytes(bytes, 0))];
    for (sequence, word) in (1..).zip(&stream[first..]) {
        messages.push(next(xid, true, sequence, &[*word], bytes));
    }
    messages
}

/// A report that says of the first transmission of an answer, or of a call, that it continues nothing.
pub(super) fn report(xid: u32, is_of_answer: bool) -> Vec<u8> {
    let mut all = head(xid, GROUP_REPORT, u32::from(!is_of_answer));
    all.extend([xid, u32::from(is_of_answer), 0, 0, 3]);
    words(&all)
}

/// The header of a message of the core.
pub(super) fn read(message: &[u8]) -> Header<'_> {
    let header = v2::decode_with_rtr(message, RtrSupport::ALL);
    header.expect("the core sends whole headers")
}

/// What the first transmission of a call of the core says.
#[derive(Clone, Copy, Debug)]
pub(super) struct GroupOfCore {
    pub(super) transmissions: u32,
    /// Results that it has directions for.
    pub(super) directions: usize,
    /// Transmissions that the answer may take.
    pub(super) answer_max: u32,
    /// The words where its stream begins and ends.
    pub(super) stream_at: usize,
    pub(super) stream_end: usize,
}

impl GroupOfCore {
    pub(super) fn read(message: &[u8]) -> Self {
        let header = read(message);
        let Body::TransmitRequest(request) = header.body else {
            panic!("a call: {header:?}");
        };
        Self {
            transmissions: request.transmissions,
            directions: request.directions.flat_map(|set| set.items).count(),
            answer_max: request.response_transmissions_max,
            stream_at: header.header_bytes / 4,
            stream_end: (header.header_bytes + request.stream_bytes as usize) / 4,
        }
    }
}

/// Transmissions of an answer of the core, of which this is the first.
pub(super) fn transmissions_of_answer(message: &[u8]) -> u32 {
    let header = read(message);
    let Body::TransmitResponse(response) = header.body else {
        panic!("an answer: {header:?}");
    };
    response.transmissions
}
