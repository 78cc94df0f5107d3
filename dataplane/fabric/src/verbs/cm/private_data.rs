//! Private data: the data that applications exchange while the CM connects them.
//!
//! The CM of InfiniBand and RoCE carries an area of fixed size, padded with zeros. The receiver gets
//! the whole area, whatever length was sent; that is why RFC 8797 section 4 has receivers search for
//! a magic word. RDMA-CM uses 36 of the 92 bytes of a request for the IP addresses.

use crate::interface::RejectReason;

/// Bytes that a request carries.
pub(in crate::verbs) const REQUEST_BYTES_MAX: usize = 56;
/// Bytes that a reply carries.
pub(in crate::verbs) const REPLY_BYTES_MAX: usize = 196;
/// Bytes that a rejection carries: the application's data and the reason.
const REJECT_AREA_BYTES: usize = 148;
/// Bytes of a rejection that the application can use.
pub(in crate::verbs) const REJECT_BYTES_MAX: usize = REJECT_AREA_BYTES - REASON_BYTES;

/// Bytes of the reason: magic, format, kind, length of the application's data, a reserved byte, code.
/// The reason is at the end, because a peer of RFC 8797 searches for its data from the start.
const REASON_BYTES: usize = 12;
const REASON_MAGIC: [u8; 4] = *b"rpRJ";
const REASON_FORMAT: u8 = 1;

/// The private data of a rejection: the application's data, if it fits, and the reason.
pub(in crate::verbs) fn rejection(
    reason: RejectReason,
    private_data: &[u8],
) -> [u8; REJECT_AREA_BYTES] {
    // Data that does not fit is dropped as a whole: the peer could not parse a part of it.
    let private_data = if private_data.len() <= REJECT_BYTES_MAX {
        private_data
    } else {
        &[]
    };
    let (kind, code) = match reason {
        RejectReason::ConnectionsExhausted => (1, 0),
        RejectReason::PeerLimit => (2, 0),
        RejectReason::Draining => (3, 0),
        RejectReason::VersionMismatch => (4, 0),
        RejectReason::NotPermitted => (5, 0),
        RejectReason::Other(code) => (0, code),
    };
    let mut area = [0; REJECT_AREA_BYTES];
    let (data, tail) = area.split_at_mut(REJECT_BYTES_MAX);
    for (to, from) in data.iter_mut().zip(private_data) {
        *to = *from;
    }
    // REJECT_BYTES_MAX is below 256.
    let length = u8::try_from(private_data.len()).unwrap_or(0);
    let [m0, m1, m2, m3] = REASON_MAGIC;
    let [c0, c1, c2, c3] = code.to_be_bytes();
    tail.copy_from_slice(&[
        m0,
        m1,
        m2,
        m3,
        REASON_FORMAT,
        kind,
        length,
        0,
        c0,
        c1,
        c2,
        c3,
    ]);
    area
}

/// The reason and the application's data of a rejection, if this provider sent it.
pub(in crate::verbs) fn parse_rejection(area: &[u8]) -> Option<(RejectReason, &[u8])> {
    let tail: &[u8; REASON_BYTES] = area.get(REJECT_BYTES_MAX..)?.first_chunk()?;
    let [m0, m1, m2, m3, format, kind, length, _, c0, c1, c2, c3] = *tail;
    if [m0, m1, m2, m3] != REASON_MAGIC || format != REASON_FORMAT {
        return None;
    }
    let code = u32::from_be_bytes([c0, c1, c2, c3]);
    let reason = match kind {
        1 => RejectReason::ConnectionsExhausted,
        2 => RejectReason::PeerLimit,
        3 => RejectReason::Draining,
        4 => RejectReason::VersionMismatch,
        5 => RejectReason::NotPermitted,
        _ => RejectReason::Other(code),
    };
    let length = usize::from(length).min(REJECT_BYTES_MAX);
    Some((reason, area.get(..length)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn reasons() -> impl Strategy<Value = RejectReason> {
        prop_oneof![
            Just(RejectReason::ConnectionsExhausted),
            Just(RejectReason::PeerLimit),
            Just(RejectReason::Draining),
            Just(RejectReason::VersionMismatch),
            Just(RejectReason::NotPermitted),
            any::<u32>().prop_map(RejectReason::Other),
        ]
    }

    #[test]
    fn a_rejection_is_laid_out_as_documented() {
        let area = rejection(RejectReason::Draining, &[0xf6, 0xab, 0x0e, 0x18]);
        assert_eq!(area.len(), 148);
        assert_eq!(area[..4], [0xf6, 0xab, 0x0e, 0x18]);
        assert!(area[4..136].iter().all(|byte| *byte == 0));
        assert_eq!(area[136..], *b"rpRJ\x01\x03\x04\x00\x00\x00\x00\x00");
        let other = rejection(RejectReason::Other(0x0102_0304), &[]);
        assert_eq!(other[136..], *b"rpRJ\x01\x00\x00\x00\x01\x02\x03\x04");
    }

    #[test]
    fn rejections_of_other_programs_are_not_ours() {
        assert_eq!(parse_rejection(&[]), None);
        assert_eq!(parse_rejection(&[0; 148]), None);
        let mut area = rejection(RejectReason::PeerLimit, &[]);
        area[140] = 2;
        assert_eq!(parse_rejection(&area), None, "a later format");
        let area = rejection(RejectReason::PeerLimit, &[]);
        assert_eq!(parse_rejection(&area[..147]), None, "cut short");
    }

    #[test]
    fn data_that_does_not_fit_is_left_out_and_the_reason_stays() {
        let area = rejection(RejectReason::NotPermitted, &[7; REJECT_BYTES_MAX + 1]);
        assert_eq!(
            parse_rejection(&area),
            Some((RejectReason::NotPermitted, &[][..]))
        );
        let area = rejection(RejectReason::NotPermitted, &[7; REJECT_BYTES_MAX]);
        let (_, data) = parse_rejection(&area).unwrap();
        assert_eq!(data, [7; REJECT_BYTES_MAX]);
    }

    proptest! {
        #[test]
        fn rejection_round_trips_with_padding(
            reason in reasons(),
            data in proptest::collection::vec(any::<u8>(), 0..=REJECT_BYTES_MAX),
            padding in 0_usize..40,
        ) {
            // A CM may hand out a larger area than was sent, padded with zeros.
            let mut area = rejection(reason, &data).to_vec();
            area.resize(area.len() + padding, 0);
            prop_assert_eq!(parse_rejection(&area), Some((reason, &data[..])));
        }

        #[test]
        fn no_bytes_panic(area in proptest::collection::vec(any::<u8>(), 0..256)) {
            let _ = parse_rejection(&area);
        }
    }
}
