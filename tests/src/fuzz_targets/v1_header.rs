//! Version 1 headers against the reference.

use rpcrdma_protocol::Reason;
use rpcrdma_protocol::common::CommonPrefix;
use rpcrdma_protocol::v1::{self, Body, Refusal, TransportError};

use super::reference::{self, Lists};
use super::{assert_refused, encoded};

pub(super) fn run(data: &[u8]) {
    let expected = reference_header(data);
    match v1::decode(data) {
        Ok(header) => {
            let body = match header.body {
                Body::Msg(lists) | Body::Nomsg(lists) => Plain::Lists(reference::collected(&lists)),
                Body::Msgp | Body::Done => Plain::Nothing,
                Body::Error(TransportError::Vers { low, high }) => Plain::Error(vec![1, low, high]),
                Body::Error(TransportError::Chunk) => Plain::Error(vec![2]),
                Body::Error(TransportError::Unknown { code }) => Plain::Error(vec![code]),
            };
            let found = (
                header.xid,
                header.credit,
                header.header_type(),
                body,
                header.header_bytes,
            );
            assert_eq!(expected.expect("the reference refuses it"), found);
            assert_round_trip(&header, data);
        }
        Err(error) => {
            assert_refused(expected, error, data);
            let refusal = v1::refusal(error);
            let is_discarded = refusal == Refusal::Discard;
            assert_eq!(is_discarded, error.reason == Reason::BelowLeastSize);
            let is_other_version = reference::word(data, 4) != Some(1);
            assert!(refusal != Refusal::Vers || is_other_version);
            assert!(!is_other_version || refusal != Refusal::Chunk);
            assert!(
                data.len() < 28 || !is_discarded,
                "28 octets are never too short"
            );
            let is_error = reference::word(data, 12) == Some(4);
            assert!(
                refusal != Refusal::Chunk || !is_error,
                "an error is never answered"
            );
            assert!(data.len() >= 16 || is_discarded, "15 octets always are");
        }
    }
}

fn assert_round_trip(header: &v1::Header<'_>, data: &[u8]) {
    let (xid, credit, header_bytes) = (header.xid, header.credit, header.header_bytes);
    let again = match &header.body {
        Body::Msg(lists) => encoded(
            |space| v1::encode_msg_header(space, xid, credit, lists),
            header_bytes,
        ),
        Body::Nomsg(lists) => encoded(
            |space| v1::encode_nomsg(space, xid, credit, lists),
            header_bytes,
        ),
        Body::Error(error) => encoded(
            |space| v1::encode_error(space, xid, 1, credit, *error),
            header_bytes,
        ),
        // Nobody sends these, so there is no encoder.
        Body::Msgp | Body::Done => return,
    };
    assert_eq!(again, data[..header_bytes]);
}

#[derive(Debug, PartialEq, Eq)]
enum Plain {
    Lists(Lists),
    Nothing,
    Error(Vec<u32>),
}

fn reference_header(data: &[u8]) -> Option<(u32, u32, u32, Plain, usize)> {
    let prefix = CommonPrefix::peek(data)?;
    let mut at = 16;
    let words: Vec<u32> = (0..4)
        .filter_map(|index| reference::word(data, 4 * index))
        .collect();
    let found = [
        prefix.xid,
        prefix.version,
        prefix.credit,
        prefix.header_type,
    ];
    assert_eq!(words, found);
    (prefix.version == 1).then_some(())?;
    (data.len() >= if prefix.header_type == 4 { 20 } else { 28 }).then_some(())?;
    let body = match prefix.header_type {
        0 => Plain::Lists(reference::take_lists(data, &mut at)?),
        1 => {
            let lists = reference::take_lists(data, &mut at)?;
            (lists != Lists::default()).then_some(())?;
            Plain::Lists(lists)
        }
        2 | 3 => Plain::Nothing,
        4 => {
            let code = reference::take(data, &mut at)?;
            let mut words = vec![code];
            for _ in 0..if code == 1 { 2 } else { 0 } {
                words.push(reference::take(data, &mut at)?);
            }
            Plain::Error(words)
        }
        _ => return None,
    };
    Some((prefix.xid, prefix.credit, prefix.header_type, body, at))
}
