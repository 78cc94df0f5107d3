//! Version 2 headers against the reference.

use rpcrdma_protocol::common::CommonPrefix;
use rpcrdma_protocol::v2::{self, Body, Flags, Prefix, Refusal, TransportError};

use super::reference::{self, Lists};
use super::{assert_within, encoded};

pub(super) fn run(data: &[u8]) {
    let expected = reference_header(data);
    match v2::decode(data) {
        Ok(header) => {
            let expected = expected.expect("the reference refuses it");
            let prefix = [
                header.prefix.xid,
                header.prefix.credit.to_word(),
                header.header_type(),
                header.prefix.flags.to_word(),
            ];
            assert_eq!((prefix, plain(&header.body), header.header_bytes), expected);
            let lists_are_empty = match &expected.1 {
                Plain::Chunks(_, lists) => *lists == Lists::default(),
                _ => true,
            };
            assert_eq!(header.lists_are_empty(), lists_are_empty);
            assert_eq!(header.is_credit_grant(), lists_are_empty && prefix[2] == 1);
            assert_round_trip(&header, data);
        }
        Err(error) => {
            assert!(
                expected.is_none(),
                "the reference accepts what fails with {error}"
            );
            assert!(error.at <= data.len());
            assert_refusal(v2::refusal(error), data);
        }
    }
    assert_err_vers(data);
}

fn assert_round_trip(header: &v2::Header<'_>, data: &[u8]) {
    let (prefix, header_bytes) = (header.prefix, header.header_bytes);
    let again = match &header.body {
        Body::Msg(chunks) => encoded(
            |space| v2::encode_msg_header(space, prefix, chunks.inv_handle, &chunks.lists),
            header_bytes,
        ),
        Body::Nomsg(chunks) => encoded(
            |space| v2::encode_nomsg(space, prefix, chunks.inv_handle, &chunks.lists),
            header_bytes,
        ),
        Body::Error(TransportError::Unknown { .. }) => return,
        Body::Error(error) => {
            // The encoder sets credit and flags itself; the rest is as it came.
            let mut again = encoded(
                |space| v2::encode_error(space, prefix.xid, error),
                header_bytes,
            );
            let sent = v2::decode(&again).expect("our own");
            assert_eq!(
                sent.prefix,
                Prefix {
                    flags: Flags::RESPONSE,
                    xid: prefix.xid,
                    ..sent.prefix
                }
            );
            assert_eq!(sent.prefix.credit.to_word(), 0);
            again[8..12].copy_from_slice(&data[8..12]);
            again[16..20].copy_from_slice(&data[16..20]);
            again
        }
        Body::Connprop(body) => {
            assert_within(body, data);
            let mut again = encoded(|space| v2::encode_prefix(space, prefix, 5), 20);
            again.extend_from_slice(body);
            again
        }
        extension => panic!("{extension:?} from a decoder that knows no extension"),
    };
    assert_eq!(again, data[..header_bytes]);
    if header.lists_are_empty() && header.header_type() == 0 {
        let fast = encoded(
            |space| v2::encode_msg_header_without_chunks(space, prefix),
            36,
        );
        // The fast encoder asks for no invalidation.
        assert_eq!((&fast[..20], &fast[24..]), (&data[..20], &data[24..36]));
    }
}

/// Each refusal has its cause in plain sight.
fn assert_refusal(refusal: Refusal, data: &[u8]) {
    let Some(prefix) = CommonPrefix::peek(data) else {
        return assert_eq!(refusal, Refusal::Discard, "fewer than 16 octets");
    };
    let header_type = prefix.header_type;
    let is_known = matches!(header_type, 0 | 1 | 4 | 5);
    let least = match header_type {
        0 => 40,
        1 => 36,
        4 | 5 => 24,
        _ => 20,
    };
    let flags = reference::word(data, 16).unwrap_or(0);
    let expected = if prefix.version != 2 {
        if data.len() < 28 {
            Refusal::Discard
        } else {
            Refusal::Vers
        }
    } else if data.len() < least {
        Refusal::Discard
    } else if !is_known {
        Refusal::InvalHtype
    } else if flags & !3 != 0 {
        Refusal::InvalFlag
    } else {
        let is_body = matches!(
            refusal,
            Refusal::BadXdr | Refusal::WriteChunks | Refusal::Segments
        );
        assert!(is_body, "{refusal:?}");
        return;
    };
    assert_eq!(refusal, expected);
}

fn assert_err_vers(data: &[u8]) {
    assert_eq!(v2::err_vers_in_version_1_layout(data, false), None);
    if let Some(versions) = v2::err_vers_in_version_1_layout(data, true) {
        assert_eq!(data.len(), 28);
        let prefix = CommonPrefix::peek(data).expect("28 octets");
        let again = encoded(
            |space| {
                v2::encode_err_vers_in_version_1_layout(
                    space,
                    prefix.xid,
                    prefix.version,
                    prefix.credit,
                    versions,
                )
            },
            28,
        );
        assert_eq!(again, data);
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Plain {
    Chunks(u32, Lists),
    Error(Vec<u32>),
    Connprop(Vec<u8>),
}

fn plain(body: &Body<'_>) -> Plain {
    match body {
        Body::Msg(chunks) | Body::Nomsg(chunks) => {
            Plain::Chunks(chunks.inv_handle, reference::collected(&chunks.lists))
        }
        Body::Error(error) => {
            let mut words = vec![error.code()];
            match *error {
                TransportError::Vers(versions) => words.extend([versions.low, versions.high]),
                TransportError::ReadChunks { max_chunks }
                | TransportError::WriteChunks { max_chunks } => words.push(max_chunks),
                TransportError::Segments { max_segments } => words.push(max_segments),
                TransportError::WriteResource {
                    chunk_index,
                    length_needed_bytes,
                } => {
                    words.extend([chunk_index, length_needed_bytes]);
                }
                TransportError::ReplyResource {
                    length_needed_bytes,
                } => {
                    words.push(length_needed_bytes);
                }
                TransportError::BadXdr
                | TransportError::InvalHtype
                | TransportError::InvalFlag
                | TransportError::System
                | TransportError::Unknown { .. } => {}
            }
            Plain::Error(words)
        }
        Body::Connprop(body) => Plain::Connprop(body.to_vec()),
        extension => panic!("{extension:?} from a decoder that knows no extension"),
    }
}

fn reference_header(data: &[u8]) -> Option<([u32; 4], Plain, usize)> {
    let mut at = 0;
    let mut take = || reference::take(data, &mut at);
    let (xid, version, credit, header_type, flags) = (take()?, take()?, take()?, take()?, take()?);
    (version == 2 && flags <= 3).then_some(())?;
    let body = match header_type {
        0 | 1 => {
            let inv_handle = reference::take(data, &mut at)?;
            let lists = reference::take_lists(data, &mut at)?;
            let payload_bytes = data.len() - at;
            let is_complete = if header_type == 0 {
                payload_bytes >= 4
            } else {
                payload_bytes == 0
            };
            is_complete.then_some(())?;
            Plain::Chunks(inv_handle, lists)
        }
        4 => {
            let code = reference::take(data, &mut at)?;
            let argument_words = match code {
                1 | 8 => 2,
                5 | 6 | 7 | 9 => 1,
                _ => 0,
            };
            let mut words = vec![code];
            for _ in 0..argument_words {
                words.push(reference::take(data, &mut at)?);
            }
            if !(1..=10).contains(&code) {
                at = data.len();
            }
            (at == data.len()).then_some(())?;
            Plain::Error(words)
        }
        5 => {
            (data.len() >= 24).then_some(())?;
            at = data.len();
            Plain::Connprop(data[20..].to_vec())
        }
        _ => return None,
    };
    Some(([xid, credit, header_type, flags], body, at))
}
