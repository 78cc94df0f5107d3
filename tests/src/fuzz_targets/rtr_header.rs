//! Messages of the extension RTR against the reference.

use rpcrdma_protocol::v2::rtr::{Location, ResponseLocation, RtrSupport};
use rpcrdma_protocol::v2::{self, Body, Flags, Header, Refusal};

use super::{assert_within, encoded, reference};

pub(super) fn run(data: &[u8]) {
    let header_type = reference::word(data, 12);
    let plain = v2::decode(data);
    for announced in (0..8).map(RtrSupport::from_word) {
        let decoded = v2::decode_with_rtr(data, announced);
        if header_type.is_none_or(|number| !announced.has_header_type(number)) {
            assert_eq!(decoded, plain, "a type that was not announced");
            continue;
        }
        let expected = reference_end(data);
        match decoded {
            Ok(header) => {
                assert_eq!(Some(header.header_bytes), expected);
                assert_eq!(Some(header.header_type()), header_type);
                assert!(header.lists_are_empty() && !header.is_credit_grant());
                assert_round_trip(&header, data);
                assert_counts(&header, data);
            }
            Err(error) => {
                assert_eq!(expected, None, "the reference accepts what fails: {error}");
                assert!(error.at <= data.len());
                let is_answered = matches!(
                    v2::refusal(error),
                    Refusal::BadXdr
                        | Refusal::InvalFlag
                        | Refusal::Segments
                        | Refusal::Discard
                        | Refusal::Vers
                );
                assert!(is_answered, "{error}");
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

/// Where the header ends, if it is right.
fn reference_end(data: &[u8]) -> Option<usize> {
    let mut at = 0;
    let mut take = || reference::take(data, &mut at);
    let (_xid, version, _credit, header_type, flags) =
        (take()?, take()?, take()?, take()?, take()?);
    (version == 2 && flags <= 3).then_some(())?;
    match header_type {
        0x5254_5201 => {
            skip_items(data, &mut at, false)?;
            skip_sets(data, &mut at)?;
            (reference::take(data, &mut at)? > 0).then_some(())?;
            skip(data, &mut at, 2)?;
        }
        0x5254_5202 => {
            skip_items(data, &mut at, true)?;
            (reference::take(data, &mut at)? > 0).then_some(())?;
            skip(data, &mut at, 1)?;
        }
        0x5254_5203 => skip(data, &mut at, 3)?,
        0x5254_5204 => {
            skip_report(data, &mut at)?;
            (at == data.len()).then_some(())?;
        }
        _ => return None,
    }
    Some(at)
}

fn skip(data: &[u8], at: &mut usize, words: usize) -> Option<()> {
    (0..words).try_for_each(|_| reference::take(data, at).map(drop))
}

fn take_count(data: &[u8], at: &mut usize, most: u32) -> Option<u32> {
    reference::take(data, at).filter(|count| *count <= most)
}

fn skip_segments(data: &[u8], at: &mut usize) -> Option<()> {
    let count = take_count(data, at, 1024)?;
    (0..count).try_for_each(|_| skip(data, at, 4))
}

fn skip_items(data: &[u8], at: &mut usize, is_response: bool) -> Option<()> {
    for _ in 0..take_count(data, at, 256)? {
        skip(data, at, 2)?;
        match reference::take(data, at)? {
            1 => skip_segments(data, at)?,
            2 => {
                skip(data, at, 1)?;
                let count = take_count(data, at, 1024)?;
                (0..count).try_for_each(|_| skip(data, at, 1))?;
            }
            5 | 6 if is_response => {}
            _ => return None,
        }
    }
    Some(())
}

fn skip_sets(data: &[u8], at: &mut usize) -> Option<()> {
    for _ in 0..take_count(data, at, 256)? {
        skip(data, at, 2)?;
        for _ in 0..take_count(data, at, 256)? {
            skip(data, at, 1)?;
            match reference::take(data, at)? {
                1 | 3 => skip_segments(data, at)?,
                2 => {}
                4 => {
                    skip(data, at, 1)?;
                    skip_segments(data, at)?;
                }
                _ => return None,
            }
        }
    }
    Some(())
}

fn skip_report(data: &[u8], at: &mut usize) -> Option<()> {
    skip_id(data, at)?;
    match reference::take(data, at)? {
        0 => {}
        1 => skip_id(data, at)?,
        _ => return None,
    }
    match reference::take(data, at)? {
        1 | 2 | 4 | 5 => skip(data, at, 2),
        3 => Some(()),
        6..=8 => skip(data, at, 3),
        _ => None,
    }
}

fn skip_id(data: &[u8], at: &mut usize) -> Option<()> {
    skip(data, at, 1)?;
    (reference::take(data, at)? <= 1).then_some(())?;
    skip(data, at, 1)
}
