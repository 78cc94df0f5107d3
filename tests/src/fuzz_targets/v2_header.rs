//! Version 2 headers against the reference.

use rpcrdma_protocol::common::CommonPrefix;
use rpcrdma_protocol::v2::{self, Body, Flags, Prefix, TransportError};

use super::reference::{self, Lists, v2 as wire};
use super::{assert_within, encoded};

pub(super) fn run(data: &[u8]) {
    let expected = wire::read_or_refuse(data, 0);
    match v2::decode(data) {
        Ok(header) => {
            let (body, header_bytes) = expected.expect("the reference refuses it");
            let prefix = [
                header.prefix.xid,
                2,
                header.prefix.credit.to_word(),
                header.header_type(),
                header.prefix.flags.to_word(),
            ];
            let words = (0..5).map(|index| reference::word(data, 4 * index));
            assert!(words.eq(prefix.map(Some)), "{prefix:x?}");
            assert_eq!(
                (plain(&header.body), header.header_bytes),
                (body, header_bytes)
            );
            let lists_are_empty = match plain(&header.body) {
                wire::Body::Chunks(_, lists) => lists == Lists::default(),
                _ => true,
            };
            assert_eq!(header.lists_are_empty(), lists_are_empty);
            let is_grant = lists_are_empty && header.header_type() == wire::NOMSG;
            assert_eq!(header.is_credit_grant(), is_grant);
            assert_round_trip(&header, data);
        }
        Err(error) => {
            assert!(error.at <= data.len());
            assert_eq!(expected, Err(v2::refusal(error)), "{error}");
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
            assert_eq!(header_bytes, data.len());
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

fn plain(body: &Body<'_>) -> wire::Body {
    match body {
        Body::Msg(chunks) | Body::Nomsg(chunks) => {
            wire::Body::Chunks(chunks.inv_handle, reference::collected(&chunks.lists))
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
            wire::Body::Error(words)
        }
        Body::Connprop(_) => wire::Body::Properties,
        extension => panic!("{extension:?} from a decoder that knows no extension"),
    }
}
