//! The virtual XDR stream against a model that has every octet in its place (RTR section 6.2).

use proptest::collection::vec;
use proptest::prelude::*;
use rpcrdma_protocol::v2::rtr::{
    ItemExtent, StreamPiece, StreamPlace, VirtualStream, displacements, rounded_up,
};

/// What stands at each position.
fn model(stream_bytes: u32, cuts: &[(u32, u32)]) -> Vec<StreamPlace> {
    let mut places = Vec::new();
    let mut cuts = cuts.iter().enumerate().peekable();
    for offset_bytes in 0..=stream_bytes {
        while let Some((index, (_, length_bytes))) = cuts.next_if(|(_, cut)| cut.0 == offset_bytes)
        {
            places.extend((0..*length_bytes).map(|offset_bytes| StreamPlace::Item {
                index,
                offset_bytes,
            }));
            let round_up = length_bytes.next_multiple_of(4) - length_bytes;
            places.extend((0..round_up).map(|_| StreamPlace::RoundUp { index }));
        }
        if offset_bytes < stream_bytes {
            places.push(StreamPlace::Stream { offset_bytes });
        }
    }
    places
}

fn cuts() -> impl Strategy<Value = (u32, Vec<(u32, u32)>)> {
    (0..200_u32).prop_flat_map(|stream_bytes| {
        let cut = (0..=stream_bytes, 0..40_u32);
        vec(cut, 0..6).prop_map(move |mut cuts| {
            cuts.sort_by_key(|(offset, _)| *offset);
            (stream_bytes, cuts)
        })
    })
}

proptest! {
    #[test]
    fn every_octet_is_found((stream_bytes, cuts) in cuts()) {
        let places = model(stream_bytes, &cuts);
        let stream = VirtualStream::new(stream_bytes, displacements(cuts.clone()).collect::<Vec<_>>().into_iter());
        prop_assert_eq!(stream.length_bytes(), u64::try_from(places.len()).unwrap());
        for (position, place) in places.iter().enumerate() {
            let position = u32::try_from(position).unwrap();
            prop_assert_eq!(stream.locate(position), Some(*place));
            if let StreamPlace::Stream { offset_bytes } = place {
                prop_assert_eq!(stream.position_of(*offset_bytes), Some(u64::from(position)));
            }
        }
        prop_assert_eq!(stream.locate(u32::try_from(places.len()).unwrap()), None);
        prop_assert_eq!(stream.position_of(stream_bytes), None);
    }

    #[test]
    fn pieces_are_the_message_in_order((stream_bytes, cuts) in cuts()) {
        let extents: Vec<ItemExtent> = displacements(cuts.clone()).collect();
        let stream = VirtualStream::new(stream_bytes, extents.iter().copied());
        let mut found = Vec::new();
        for piece in stream.pieces() {
            match piece {
                StreamPiece::Stream { from_bytes, length_bytes } => {
                    prop_assert!(length_bytes > 0);
                    found.extend((from_bytes..from_bytes + length_bytes)
                        .map(|offset_bytes| StreamPlace::Stream { offset_bytes }));
                }
                StreamPiece::Item(item) => {
                    let index = item.index;
                    prop_assert_eq!(u64::from(item.displacement), u64::try_from(found.len()).unwrap());
                    prop_assert_eq!(item, extents[index]);
                    found.extend((0..item.length_bytes)
                        .map(|offset_bytes| StreamPlace::Item { index, offset_bytes }));
                    let round_up = rounded_up(item.length_bytes) - u64::from(item.length_bytes);
                    found.extend((0..round_up).map(|_| StreamPlace::RoundUp { index }));
                }
            }
        }
        prop_assert_eq!(found, model(stream_bytes, &cuts));
    }
}

/// Four octets of header and XID, an item of five, and the word behind it.
#[test]
fn by_hand() {
    let items = displacements([(8, 5), (8, 4), (12, 0)]);
    let items: Vec<ItemExtent> = items.collect();
    let at: Vec<u32> = items.iter().map(|item| item.displacement).collect();
    assert_eq!(at, [8, 16, 24]);
    let stream = VirtualStream::new(12, items.iter().copied());
    assert_eq!(stream.length_bytes(), 24);
    assert_eq!(
        stream.locate(12),
        Some(StreamPlace::Item {
            index: 0,
            offset_bytes: 4
        })
    );
    assert_eq!(stream.locate(13), Some(StreamPlace::RoundUp { index: 0 }));
    assert_eq!(
        stream.locate(20),
        Some(StreamPlace::Stream { offset_bytes: 8 })
    );
    assert_eq!(stream.position_of(8), Some(20));
    let pieces: Vec<StreamPiece> = stream.pieces().collect();
    assert_eq!(
        pieces,
        [
            StreamPiece::Stream {
                from_bytes: 0,
                length_bytes: 8
            },
            StreamPiece::Item(items[0]),
            StreamPiece::Item(items[1]),
            StreamPiece::Stream {
                from_bytes: 8,
                length_bytes: 4
            },
            StreamPiece::Item(items[2]),
        ]
    );
}

/// Whatever a peer says, nothing panics: the items of a received message are checked elsewhere.
#[test]
fn extents_that_make_no_sense_do_not_panic() {
    let wild = [
        (u32::MAX, u32::MAX),
        (0, u32::MAX),
        (u32::MAX, 0),
        (3, 1),
        (0, 0),
    ];
    let items: Vec<ItemExtent> = wild
        .iter()
        .enumerate()
        .map(|(index, (displacement, length_bytes))| ItemExtent {
            index,
            displacement: *displacement,
            length_bytes: *length_bytes,
        })
        .collect();
    let stream = VirtualStream::new(u32::MAX, items.iter().copied());
    for position in [0, 1, 3, u32::MAX / 2, u32::MAX] {
        let _ = stream.locate(position);
        let _ = stream.position_of(position);
    }
    assert!(stream.pieces().count() <= 2 * items.len() + 1);
    assert!(displacements(wild).count() == items.len());
}
