//! RDMA2_CONNPROP and the properties in it.

use rpcrdma_protocol::v2::{
    self, Body, Flags, Prefix, Properties, Property, PropertySet, Refusal, ReverseRequestSupport,
};
use rpcrdma_protocol::xdr::Writer;
use rpcrdma_protocol::{DecodeError, Reason};

use crate::support::{encoded, hex};
use crate::{decoded, prefix};

/// Every property with a value.
pub(crate) const CONNPROP: &str = "
    00000022    # rdma_xid
    00000002    # rdma_vers
    00400020    # rdma_credit
    00000005    # rdma_htype RDMA2_CONNPROP
    00000000    # rdma_flags
    00000006    # rdma_props: six
    00000001 00000004 00002000    # SBSIZ, 4 octets: 8192
    00000002 00000004 00004000    # RBSIZ, 4 octets: 16384
    00000003 00000004 00400000    # RSSIZ, 4 octets: 4194304
    00000004 00000004 00000020    # RCSIZ, 4 octets: 32
    00000005 00000004 00000002    # BRS, 4 octets: GENL
    00000006 0000000c             # HOSTAUTH, 12 octets: an opaque of its own,
    00000005 68656c6c 6f000000    #   5 octets 'hello' and 3 of padding";

#[test]
fn connprop_with_all_six_properties() {
    let message = hex(CONNPROP);
    let header = decoded(&message);
    let Body::Connprop(body) = header.body else {
        panic!("{header:?}")
    };
    assert_eq!(
        (header.header_bytes, header.header_type()),
        (message.len(), 5)
    );
    assert_eq!(body, &message[20..]);
    let set = PropertySet::decode(body).unwrap();
    let properties = Properties {
        send_bytes_max: 8192,
        receive_buffer_bytes: 16384,
        segment_bytes_max: 4_194_304,
        segment_count_max: 32,
        reverse_requests: ReverseRequestSupport::General,
        ..Properties::default()
    };
    assert_eq!(set.properties(), properties);
    assert_eq!(set.host_authentication(), Some(&b"hello"[..]));
    let mut all = properties.to_properties().to_vec();
    all.push(Property::HostAuthentication(Some(b"hello")));
    assert_eq!(set.len(), 6);
    assert_eq!(set.collect::<Vec<_>>(), all);
    assert_eq!(
        encoded(|space| v2::encode_connprop(space, header.prefix, &all)),
        message
    );
}

/// A property set without the prefix, what it decodes to, and what of an endpoint it changes.
#[test]
fn every_property_alone() {
    let default = Properties::default();
    assert_eq!(
        default,
        Properties {
            send_bytes_max: 4096,
            receive_buffer_bytes: 4096,
            segment_bytes_max: 1_048_576,
            segment_count_max: 16,
            reverse_requests: ReverseRequestSupport::Inline,
            ..default
        },
        "-00 section 5.2"
    );
    #[rustfmt::skip]
    let cases = [
        (
            "00000001 00000004 00000400",
            Property::SendSizeMax(Some(1024)),
            Properties {
                send_bytes_max: 1024,
                ..default
            },
        ),
        (
            "00000002 00000004 00010000",
            Property::ReceiveBufferSize(Some(65536)),
            Properties {
                receive_buffer_bytes: 65536,
                ..default
            },
        ),
        (
            "00000003 00000004 ffffffff",
            Property::SegmentSizeMax(Some(u32::MAX)),
            Properties {
                segment_bytes_max: u32::MAX,
                ..default
            },
        ),
        (
            "00000004 00000004 00000000",
            Property::SegmentCountMax(Some(0)),
            Properties {
                segment_count_max: 0,
                ..default
            },
        ),
        (
            "00000005 00000004 00000000",
            Property::ReverseRequestSupport(Some(0)),
            Properties {
                reverse_requests: ReverseRequestSupport::None,
                ..default
            },
        ),
        // A level that we cannot interpret: the default holds, and it is no error.
        ("00000005 00000004 00000003", Property::ReverseRequestSupport(Some(3)), default),
        ("00000006 00000004 00000000", Property::HostAuthentication(Some(&[])), default),
        // Length zero: the default value.
        ("00000001 00000000", Property::SendSizeMax(None), default),
        ("00000002 00000000", Property::ReceiveBufferSize(None), default),
        ("00000003 00000000", Property::SegmentSizeMax(None), default),
        ("00000004 00000000", Property::SegmentCountMax(None), default),
        ("00000005 00000000", Property::ReverseRequestSupport(None), default),
        ("00000006 00000000", Property::HostAuthentication(None), default),
        // Not ours: 5 octets and 3 of padding, skipped.
        (
            "52545299 00000005 01020304 05000000",
            Property::Unknown {
                id: 0x5254_5299,
                data: &[1, 2, 3, 4, 5],
            },
            default,
        ),
    ];
    for (text, property, properties) in cases {
        let body = hex(&["00000001", text].concat());
        let set = PropertySet::decode(&body).unwrap();
        assert_eq!(set.collect::<Vec<_>>(), [property]);
        assert_eq!(set.properties(), properties, "{property:?}");
        let again = encoded(|space| v2::encode_connprop(space, Prefix::default(), &[property]));
        assert_eq!(again[20..], body, "{property:?}");
    }
}

#[test]
fn a_property_set_may_be_empty_and_unordered_and_repeat_what_is_unknown() {
    let empty = hex("00000000");
    let set = PropertySet::decode(&empty).unwrap();
    assert_eq!((set.len(), set.properties()), (0, Properties::default()));
    let unordered = hex("
        00000004
        52545299 00000000             # not ours
        00000004 00000004 00000040    # RCSIZ 64
        52545299 00000001 ff000000    # not ours, again
        00000002 00000004 00008000    # RBSIZ 32768");
    let properties = PropertySet::decode(&unordered).unwrap().properties();
    assert_eq!(
        (
            properties.segment_count_max,
            properties.receive_buffer_bytes
        ),
        (64, 32768)
    );
    assert_eq!(properties.send_bytes_max, 4096);
}

#[test]
fn a_property_set_that_is_wrong() {
    #[rustfmt::skip]
    let cases = [
        ("", 0, Reason::Truncated, "no count"),
        ("00000001", 4, Reason::Truncated, "the entry is missing"),
        ("00000001 00000001", 8, Reason::Truncated, "no length"),
        ("00000001 00000001 00000004 0000", 8, Reason::Truncated, "data beyond the message"),
        ("00000001 00000063 ffffffff", 8, Reason::Truncated, "an unknown one beyond the message"),
        ("00000001 00000063 00000001 ff", 8, Reason::Truncated, "padding is missing"),
        ("ffffffff 00000063 00000000", 12, Reason::Truncated, "a count of 4 milliards"),
        ("00000000 00000000", 4, Reason::TrailingBytes, "more than the count says"),
        ("00000001 00000001 00000003 00000000", 12, Reason::InvalidPropertyValue, "SBSIZ of 3"),
        ("00000001 00000002 00000008 00000000 00001000", 12, Reason::InvalidPropertyValue, "RBSIZ of 8 octets"),
        ("00000001 00000003 00000001 01000000", 12, Reason::InvalidPropertyValue, "RSSIZ of 1"),
        ("00000001 00000004 00000002 00010000", 12, Reason::InvalidPropertyValue, "RCSIZ of 2"),
        ("00000001 00000005 00000001 01000000", 12, Reason::InvalidPropertyValue, "BRS of 1"),
        ("00000001 00000006 00000004 00000001", 12, Reason::InvalidPropertyValue, "HOSTAUTH: cut"),
        ("00000001 00000006 00000002 00000000", 12, Reason::InvalidPropertyValue, "no inner length"),
        (
            "00000001 00000006 00000008 00000000 00000000",
            12,
            Reason::InvalidPropertyValue,
            "more behind the inner opaque",
        ),
        ("00000002 00000001 00000000 00000001 00000004 00002000", 12, Reason::DuplicateProperty, "SBSIZ twice"),
        (
            "00000003 00000001 00000000 00000003 00000000 00000001 00000000",
            20,
            Reason::DuplicateProperty,
            "SBSIZ twice, with another one between",
        ),
    ];
    for (text, at, reason, why) in cases {
        let error = PropertySet::decode(&hex(text)).expect_err(why);
        assert_eq!(error, DecodeError::new(at, reason), "{why}");
        assert_eq!(v2::refusal(error), Refusal::BadXdr, "{why}");
        assert_eq!(error.within(20).at, at + 20);
    }
}

#[test]
fn a_continued_connprop_is_decoded_when_its_parts_are_joined() {
    let message = hex(CONNPROP);
    let (first, second) = message[20..].split_at(33);
    let mut joined = Vec::new();
    for (part, flags) in [(first, Flags::MORE), (second, Flags::NONE)] {
        let mut space = [0; 128];
        let prefix_bytes = v2::encode_prefix(&mut space, prefix(0x22, 1, 1, flags), 5).unwrap();
        space[prefix_bytes..][..part.len()].copy_from_slice(part);
        let header = decoded(&space[..prefix_bytes + part.len()]);
        assert_eq!(header.prefix.flags, flags);
        let Body::Connprop(body) = header.body else {
            panic!("{header:?}")
        };
        joined.extend_from_slice(body);
    }
    PropertySet::decode(first).expect_err("a part alone");
    assert_eq!(PropertySet::decode(&joined).unwrap().len(), 6);
}

/// The set without its HOSTAUTH.
fn rest(set: &PropertySet<'_>) -> Vec<u8> {
    encoded(|space| {
        let mut writer = Writer::new(space);
        set.write_without_host_authentication(&mut writer)
            .map(|()| writer.position())
    })
}

/// What may come again, and what an authentication binds of the set.
#[test]
fn host_authentication_stands_apart_from_the_rest() {
    let message = hex(CONNPROP);
    let all = PropertySet::decode(&message[20..]).unwrap();
    assert!(!all.is_host_authentication_alone());
    let others = rest(&all);
    let mut expected = message[20..message.len() - 20].to_vec();
    expected[3] = 5;
    assert_eq!(others, expected);

    let alone = hex("00000001 00000006 0000000c 00000005 68656c6c 6f000000");
    let alone = PropertySet::decode(&alone).unwrap();
    assert!(alone.is_host_authentication_alone());
    let others = rest(&alone);
    assert_eq!(others, [0; 4]);

    for other in [
        "00000000",                                              // nothing
        "00000001 00000006 00000000",                            // the default value
        "00000002 00000006 00000004 00000000 00009999 00000000", // and one unknown
        "00000001 00000002 00000004 00002000",                   // RBSIZ
    ] {
        let set = hex(other);
        let set = PropertySet::decode(&set).unwrap();
        assert!(!set.is_host_authentication_alone(), "{other}");
    }
}

/// Properties that we do not know are bound as they came, and their padding as zero.
#[test]
fn unknown_properties_belong_to_the_rest() {
    let set = hex("00000002 00000006 00000004 00000000 00009999 00000005 0102030405aabbcc");
    let set = PropertySet::decode(&set).unwrap();
    let others = rest(&set);
    assert_eq!(others, hex("00000001 00009999 00000005 0102030405000000"));
}
