//! Messages of the extension RTR against the reference.

use rpcrdma_protocol::v2::rtr::{Location, ResponseLocation, RtrSupport};
use rpcrdma_protocol::v2::{self, Body, Flags, Header};

use super::reference::{self, v2 as wire};
use super::{assert_within, encoded};

pub(super) fn run(data: &[u8]) {
    let header_type = reference::word(data, 12);
    let plain = v2::decode(data);
    for bits in 0..8 {
        let announced = RtrSupport::from_word(bits);
        let decoded = v2::decode_with_rtr(data, announced);
        if header_type.is_none_or(|number| !announced.has_header_type(number)) {
            assert_eq!(decoded, plain, "a type that was not announced");
            continue;
        }
        let expected = wire::read_or_refuse(data, bits).map(|(_, end)| end);
        match decoded {
            Ok(header) => {
                assert_eq!(Ok(header.header_bytes), expected);
                assert_eq!(Some(header.header_type()), header_type);
                assert!(header.lists_are_empty() && !header.is_credit_grant());
                assert_round_trip(&header, data);
                assert_counts(&header, data);
            }
            Err(error) => {
                assert!(error.at <= data.len());
                assert_eq!(expected, Err(v2::refusal(error)), "{error}");
            }
        }
    }
}

/// What is encoded from the views is what they were decoded from.
fn assert_round_trip(header: &Header<'_>, data: &[u8]) {
    let (prefix, header_bytes) = (header.prefix, header.header_bytes);
    let (again, expected) = match &header.body {
        Body::TransmitRequest(body) => (
            encoded(
                |space| v2::encode_transmit_request(space, prefix, body),
                header_bytes,
            ),
            data[..header_bytes].to_vec(),
        ),
        Body::TransmitResponse(body) => (
            encoded(
                |space| v2::encode_transmit_response(space, prefix, body),
                header_bytes,
            ),
            data[..header_bytes].to_vec(),
        ),
        Body::TransmitContinue(body) => {
            let mut expected = data[..header_bytes].to_vec();
            expected[24..28].fill(0);
            (
                encoded(
                    |space| v2::encode_transmit_continue(space, prefix, *body),
                    header_bytes,
                ),
                expected,
            )
        }
        Body::ReportError(report) => {
            let again = encoded(
                |space| v2::encode_report_error(space, prefix.credit, report),
                header_bytes,
            );
            let sent = v2::decode_with_rtr(&again, RtrSupport::ALL).expect("our own");
            assert_eq!(sent.prefix.xid, report.bad.xid);
            assert_eq!(
                sent.prefix.flags == Flags::RESPONSE,
                reference::word(data, 24) == Some(0)
            );
            // The encoder chooses XID and flags; the rest is as it came.
            let mut expected = again.clone();
            expected[20..].copy_from_slice(&data[20..]);
            (again, expected)
        }
        plain => panic!("{plain:?} is no message of the extension"),
    };
    assert_eq!(again, expected);
}

/// The iterators agree with their own lengths, and show bytes of the message.
fn assert_counts(header: &Header<'_>, data: &[u8]) {
    let items = match &header.body {
        Body::TransmitRequest(body) => {
            assert_eq!(body.directions.count(), body.directions.len());
            for set in body.directions {
                assert_eq!(set.items.count(), set.items.len());
                for item in set.items {
                    let segments = item.location.segments();
                    let is_placed = matches!(item.location, ResponseLocation::Placed);
                    assert_eq!(segments.is_none(), is_placed);
                    if let Some(segments) = segments {
                        assert_eq!(segments.count(), segments.len());
                    }
                }
            }
            body.items
        }
        Body::TransmitResponse(body) => body.items,
        _ => return,
    };
    assert_within(&data[20..header.header_bytes], data);
    assert_eq!(items.count(), items.len());
    for item in items {
        match item.location {
            Location::Explicit(segments) => assert_eq!(segments.count(), segments.len()),
            Location::Placed { numbers, .. } => assert_eq!(numbers.count(), numbers.len()),
            Location::TooShort | Location::NoItem => assert!(!item.is_excised()),
        }
    }
}
