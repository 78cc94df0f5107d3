//! The properties of the extension RTR.

use rpcrdma_protocol::v2::rtr::{BufferSegment, ReceiveBufferStructure, RtrSupport, SegmentGroup};
use rpcrdma_protocol::v2::{self, Body, Flags, Properties, Property, PropertySet, Refusal};
use rpcrdma_protocol::{DecodeError, Reason};

use crate::support::{encoded, hex};
use crate::{decoded, prefix};

/// What an endpoint says that can do all of it.
pub(crate) const CONNPROP_WITH_RTR: &str = "
    00000022    # rdma_xid
    00000002    # rdma_vers
    00400020    # rdma_credit
    00000005    # rdma_htype RDMA2_CONNPROP
    00000000    # rdma_flags
    00000009    # rdma_props: nine
    00000001 00000004 00011400    # SBSIZ 70656
    00000002 00000004 00010400    # RBSIZ 66560
    00000003 00000004 00100000    # RSSIZ 1048576
    00000004 00000004 00000010    # RCSIZ 16
    00000005 00000004 00000001    # BRS INLINE
    52545203 00000004 00000007    # RTR Support: requests, responses, continuations
    52545204 00000028             # Receive Buffer Structure, 40 octets:
    00010400 00000002             #   66560 octets in two groups:
    00000001 00000400 00000000 00000000    #   one of 1024, not targetable
    00000001 00010000 00001000 00000001    #   one of 65536 on a page, targetable
    52545205 00000004 00000008    # Request Transmission Receive Limit 8
    52545206 00000004 00000010    # Response Transmission Send Limit 16
    ";

fn structure() -> ReceiveBufferStructure {
    let inline = BufferSegment {
        length_bytes: 1024,
        align_bytes: 0,
        is_targetable: false,
    };
    let placement = BufferSegment {
        length_bytes: 65536,
        align_bytes: 4096,
        is_targetable: true,
    };
    let group = |segment| SegmentGroup { count: 1, segment };
    ReceiveBufferStructure::new(&[group(inline), group(placement)]).unwrap()
}

#[test]
fn connprop_with_all_of_rtr() {
    let message = hex(CONNPROP_WITH_RTR);
    let header = decoded(&message);
    assert_eq!(header.prefix, prefix(0x22, 64, 32, Flags::NONE));
    let Body::Connprop(body) = header.body else {
        panic!("{header:?}")
    };
    let properties = Properties {
        send_bytes_max: 70656,
        receive_buffer_bytes: 66560,
        rtr_support: RtrSupport::ALL,
        receive_buffer_structure: Some(structure()),
        request_transmissions_max: 8,
        response_transmissions_max: 16,
        ..Properties::default()
    };
    let set = PropertySet::decode(body).unwrap();
    assert_eq!(set.properties(), properties);
    assert_eq!(set.properties().receive_structure(), structure());
    assert_eq!(set.collect::<Vec<_>>(), *properties.to_properties());
    assert_eq!(
        encoded(|space| v2::encode_connprop(space, header.prefix, &properties.to_properties())),
        message
    );
}

#[test]
fn defaults_are_those_of_a_plain_endpoint() {
    let default = Properties::default();
    assert_eq!(default.rtr_support, RtrSupport::NONE);
    assert_eq!(default.receive_buffer_structure, None);
    assert_eq!(default.request_transmissions_max, 1);
    assert_eq!(default.response_transmissions_max, 1);
    assert_eq!(
        default.receive_structure(),
        ReceiveBufferStructure::single(4096)
    );
    assert!(
        default
            .to_properties()
            .iter()
            .all(|property| property.id() <= 6),
        "a plain endpoint does not speak of the extension"
    );
}

#[test]
fn every_property_alone() {
    let default = Properties::default();
    #[rustfmt::skip]
    let cases = [
        (
            "52545203 00000004 00000005",
            Property::RtrSupport(Some(5)),
            Properties { rtr_support: RtrSupport::REQUEST.with(RtrSupport::CONTINUE), ..default },
        ),
        // Bits that the draft does not define.
        (
            "52545203 00000004 fffffff8",
            Property::RtrSupport(Some(0xffff_fff8)),
            default,
        ),
        // The Receive Buffer Size follows from it.
        (
            "52545204 00000028 00010400 00000002 00000001 00000400 00000000 00000000 00000001 00010000 00001000 00000001",
            Property::ReceiveBufferStructure(Some(structure())),
            Properties {
                receive_buffer_bytes: 66560,
                receive_buffer_structure: Some(structure()),
                ..default
            },
        ),
        (
            "52545205 00000004 00000003",
            Property::RequestReceiveLimit(Some(3)),
            Properties { request_transmissions_max: 3, ..default },
        ),
        (
            "52545206 00000004 00000004",
            Property::ResponseSendLimit(Some(4)),
            Properties { response_transmissions_max: 4, ..default },
        ),
        // No message has less than one transmission.
        ("52545205 00000004 00000000", Property::RequestReceiveLimit(Some(0)), default),
        ("52545206 00000004 00000000", Property::ResponseSendLimit(Some(0)), default),
        // Length zero: the default value.
        ("52545203 00000000", Property::RtrSupport(None), default),
        ("52545204 00000000", Property::ReceiveBufferStructure(None), default),
        ("52545205 00000000", Property::RequestReceiveLimit(None), default),
        ("52545206 00000000", Property::ResponseSendLimit(None), default),
    ];
    for (text, property, properties) in cases {
        let body = hex(&["00000001", text].concat());
        let set = PropertySet::decode(&body).unwrap();
        assert_eq!(set.collect::<Vec<_>>(), [property]);
        assert_eq!(set.properties(), properties, "{property:?}");
        let again = encoded(|space| v2::encode_connprop(space, v2::Prefix::default(), &[property]));
        assert_eq!(again[20..], body, "{property:?}");
    }
}

#[test]
fn a_buffer_size_without_a_structure_is_one_segment() {
    let body = hex("00000001 00000002 00000004 00004000");
    let properties = PropertySet::decode(&body).unwrap().properties();
    assert_eq!(properties.receive_buffer_structure, None);
    assert_eq!(
        properties.receive_structure(),
        ReceiveBufferStructure::single(16384)
    );
}

#[test]
fn properties_that_are_wrong() {
    let structure = "52545204 00000018 00002000 00000001 00000002 00001000 00000000 00000001";
    #[rustfmt::skip]
    let cases = [
        ("00000001 52545203 00000003 00000000", 12, Reason::InvalidPropertyValue, "RTR Support of 3 octets"),
        ("00000001 52545204 00000004 00001000", 12, Reason::InvalidPropertyValue, "a structure that ends too early"),
        ("00000001 52545204 00000018 00001fff 00000001 00000002 00001000 00000000 00000001", 12, Reason::InvalidPropertyValue, "a length that is not the sum"),
        ("00000001 52545204 00000018 00002000 00000001 00000002 00001000 00000003 00000001", 12, Reason::InvalidPropertyValue, "an alignment of 3"),
        ("00000001 52545205 00000008 00000000 00000001", 12, Reason::InvalidPropertyValue, "a limit of 8 octets"),
        ("00000001 52545206 00000001 01000000", 12, Reason::InvalidPropertyValue, "a limit of 1 octet"),
        ("00000002 52545205 00000000 52545205 00000000", 12, Reason::DuplicateProperty, "a limit twice"),
    ];
    for (text, at, reason, why) in cases {
        let error = PropertySet::decode(&hex(text)).expect_err(why);
        assert_eq!(error, DecodeError::new(at, reason), "{why}");
        assert_eq!(v2::refusal(error), Refusal::BadXdr, "{why}");
    }
    // A structure agrees with the Receive Buffer Size, in whatever order they stand.
    let size = |octets: &str| format!("00000002 {octets}");
    for (right, bytes) in [
        (true, "00000004 00002000"),
        (false, "00000004 00001000"),
        // The default is a value like another.
        (false, "00000000"),
    ] {
        for parts in [[&size(bytes), structure], [structure, &size(bytes)]] {
            let body = hex(&["00000002", parts[0], parts[1]].concat());
            let decoded = PropertySet::decode(&body);
            assert_eq!(decoded.is_ok(), right, "{bytes}: {decoded:?}");
            if let Err(error) = decoded {
                assert_eq!(error.reason, Reason::InvalidPropertyValue);
            }
        }
    }
}
