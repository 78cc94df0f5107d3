//! Property sets against the reference.

use rpcrdma_protocol::v2::{
    self, Prefix, Properties, Property, PropertySet, Refusal, ReverseRequestSupport,
};

use super::{assert_within, encoded, reference};

pub(super) fn run(data: &[u8]) {
    let expected = reference_set(data);
    match PropertySet::decode(data) {
        Ok(set) => {
            let properties: Vec<Property<'_>> = set.collect();
            let found: Vec<(u32, Option<Vec<u8>>)> = properties.iter().map(plain).collect();
            assert_eq!(expected.expect("the reference refuses it"), found);
            assert_eq!(set.len(), properties.len());
            for property in &properties {
                if let Property::Unknown { data: view, .. }
                | Property::HostAuthentication(Some(view)) = property
                {
                    assert_within(view, data);
                }
            }
            let again = encoded(
                |space| v2::encode_connprop(space, Prefix::default(), &properties),
                20 + data.len(),
            );
            let again = PropertySet::decode(&again[20..]).expect("our own");
            assert_eq!(again.collect::<Vec<_>>(), properties);
            assert_eq!(again.properties(), set.properties());
            assert_summary(&set, &found);
        }
        Err(error) => {
            assert!(
                expected.is_none(),
                "the reference accepts what fails with {error}"
            );
            assert!(error.at <= data.len());
            assert_eq!(v2::refusal(error), Refusal::BadXdr);
        }
    }
}

/// The summary says what the entries say, and the default where there is none.
fn assert_summary(set: &PropertySet<'_>, entries: &[(u32, Option<Vec<u8>>)]) {
    let value = |id: u32, default: u32| {
        let entry = entries.iter().find(|(known, _)| *known == id);
        let octets = entry.and_then(|(_, data)| data.as_deref());
        octets.map_or(default, |octets| {
            reference::word(octets, 0).expect("four octets")
        })
    };
    let level = match value(5, 1) {
        0 => ReverseRequestSupport::None,
        2 => ReverseRequestSupport::General,
        _ => ReverseRequestSupport::Inline,
    };
    let expected = Properties {
        send_bytes_max: value(1, 4096),
        receive_buffer_bytes: value(2, 4096),
        segment_bytes_max: value(3, 1_048_576),
        segment_count_max: value(4, 16),
        reverse_requests: level,
    };
    assert_eq!(set.properties(), expected);
    let message = entries
        .iter()
        .find(|(id, _)| *id == 6)
        .and_then(|(_, data)| data.clone());
    assert_eq!(set.host_authentication().map(<[u8]>::to_vec), message);
}

/// Number and value, where `None` is the default: for HOSTAUTH the inner opaque, else the octets.
fn plain(property: &Property<'_>) -> (u32, Option<Vec<u8>>) {
    let value = match *property {
        Property::SendSizeMax(value)
        | Property::ReceiveBufferSize(value)
        | Property::SegmentSizeMax(value)
        | Property::SegmentCountMax(value)
        | Property::ReverseRequestSupport(value) => value.map(|word| word.to_be_bytes().to_vec()),
        Property::HostAuthentication(message) => message.map(<[u8]>::to_vec),
        Property::Unknown { data, .. } => Some(data.to_vec()),
    };
    (property.id(), value)
}

fn reference_set(data: &[u8]) -> Option<Vec<(u32, Option<Vec<u8>>)>> {
    let mut at = 0;
    let mut entries: Vec<(u32, Option<Vec<u8>>)> = Vec::new();
    for _ in 0..reference::take(data, &mut at)? {
        let id = reference::take(data, &mut at)?;
        let octets = reference::take_opaque(data, &mut at, usize::MAX)?;
        let is_known = (1..=6).contains(&id);
        if is_known && entries.iter().any(|(known, _)| *known == id) {
            return None;
        }
        let value = match (id, octets.len()) {
            (1..=6, 0) => None,
            (1..=5, 4) => Some(octets),
            (1..=5, _) => return None,
            (6, length) => {
                let mut end = 0;
                let message = reference::take_opaque(&octets, &mut end, usize::MAX)?;
                (end == length).then_some(())?;
                Some(message)
            }
            _ => Some(octets),
        };
        entries.push((id, value));
    }
    (at == data.len()).then_some(entries)
}
