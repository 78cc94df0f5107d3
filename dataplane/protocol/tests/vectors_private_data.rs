//! CM private data, octet by octet (RFC 8797 section 4).

use rpcrdma_protocol::EncodeError;
use rpcrdma_protocol::cm_private_data::PrivateData;

/// What a Linux client sends: identifier, version 1, R, 4096 and 4096 octets as 3 kilo-octets beyond the first.
const LINUX_CLIENT: [u8; 8] = [0xf6, 0xab, 0x0e, 0x18, 1, 1, 3, 3];

fn data(remote_invalidation: bool, send_bytes: u32, receive_bytes: u32) -> PrivateData {
    PrivateData {
        remote_invalidation,
        send_bytes,
        receive_bytes,
    }
}

#[test]
fn the_private_data_of_linux() {
    let client = data(true, 4096, 4096);
    assert_eq!(PrivateData::find(&LINUX_CLIENT), Some(client));
    assert_eq!(client.to_bytes(), LINUX_CLIENT);
    let server = [0xf6, 0xab, 0x0e, 0x18, 1, 0, 3, 3];
    assert_eq!(PrivateData::find(&server), Some(data(false, 4096, 4096)));
    assert_eq!(data(false, 4096, 4096).to_bytes(), server);
}

#[test]
fn it_is_found_at_any_offset_with_anything_around_it() {
    for before in 0..=48 {
        for filler in [0x00, 0xf6, 0xff] {
            let mut area = [filler; 56];
            area[before..][..8].copy_from_slice(&LINUX_CLIENT);
            assert_eq!(
                PrivateData::find(&area),
                Some(data(true, 4096, 4096)),
                "at {before}"
            );
        }
    }
}

#[test]
fn the_first_identifier_decides() {
    let other = [0xf6, 0xab, 0x0e, 0x18, 1, 0, 0, 255];
    let two = [other, LINUX_CLIENT].concat();
    assert_eq!(PrivateData::find(&two), Some(data(false, 1024, 262_144)));
    let mut unknown_version_first = two;
    unknown_version_first[4] = 2;
    assert_eq!(PrivateData::find(&unknown_version_first), None);
    let identifier_twice = [&LINUX_CLIENT[..4], &LINUX_CLIENT[..]].concat();
    assert_eq!(
        PrivateData::find(&identifier_twice),
        None,
        "the version is then 0xf6"
    );
}

#[test]
fn all_that_is_malformed_counts_as_absent() {
    assert_eq!(PrivateData::find(&[]), None);
    assert_eq!(PrivateData::find(&[0; 196]), None);
    for cut in 0..8 {
        assert_eq!(
            PrivateData::find(&LINUX_CLIENT[..cut]),
            None,
            "{cut} octets"
        );
        let at_the_end = [&[0; 48], &LINUX_CLIENT[..cut]].concat();
        assert_eq!(
            PrivateData::find(&at_the_end),
            None,
            "{cut} octets at the end"
        );
    }
    for version in (0..=255).filter(|version| *version != 1) {
        let mut octets = LINUX_CLIENT;
        octets[4] = version;
        assert_eq!(PrivateData::find(&octets), None, "version {version}");
    }
    for bit in 0..32 {
        let mut octets = LINUX_CLIENT;
        octets[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(
            PrivateData::find(&octets),
            None,
            "bit {bit} of the identifier"
        );
    }
}

#[test]
fn absent_means_1024_octets_and_no_invalidation() {
    assert_eq!(PrivateData::default(), data(false, 1024, 1024));
    assert_eq!(
        PrivateData::default().to_bytes(),
        [0xf6, 0xab, 0x0e, 0x18, 1, 0, 0, 0]
    );
}

#[test]
fn reserved_bits_are_ignored_and_sent_as_zero() {
    for flags in 0..=255_u8 {
        let mut octets = LINUX_CLIENT;
        octets[5] = flags;
        let found = PrivateData::find(&octets).unwrap();
        assert_eq!(found.remote_invalidation, flags & 1 == 1);
        assert_eq!(found.to_bytes()[5], flags & 1);
    }
}

#[test]
fn sizes_are_rounded_down_to_what_can_be_announced() {
    #[rustfmt::skip]
    let cases = [
        (0, 0, 1024), (1, 0, 1024), (1023, 0, 1024), (1024, 0, 1024), (2047, 0, 1024), (2048, 1, 2048),
        (4096, 3, 4096), (65536, 63, 65536), (262_143, 254, 261_120), (262_144, 255, 262_144),
        (262_145, 255, 262_144), (u32::MAX, 255, 262_144),
    ];
    for (size_bytes, field, told_bytes) in cases {
        let octets = data(false, size_bytes, 1024).to_bytes();
        assert_eq!((octets[6], octets[7]), (field, 0), "{size_bytes}");
        assert_eq!(PrivateData::find(&octets).unwrap().send_bytes, told_bytes);
        let octets = data(false, 1024, size_bytes).to_bytes();
        assert_eq!((octets[6], octets[7]), (0, field), "{size_bytes}");
        assert_eq!(
            PrivateData::find(&octets).unwrap().receive_bytes,
            told_bytes
        );
    }
}

#[test]
fn encoding_is_checked_against_its_space() {
    let client = data(true, 4096, 4096);
    for space_bytes in 0..8 {
        assert_eq!(
            client.encode(&mut vec![0; space_bytes]),
            Err(EncodeError::NoSpace)
        );
    }
    let mut space = [0xee; 9];
    assert_eq!(client.encode(&mut space), Ok(8));
    assert_eq!((&space[..8], space[8]), (&LINUX_CLIENT[..], 0xee));
}
