//! Property sets against the reference.

use rpcrdma_protocol::v2::rtr::{ReceiveBufferStructure, RtrSupport};
use rpcrdma_protocol::v2::{
    self, Prefix, Properties, Property, PropertySet, Refusal, ReverseRequestSupport,
};
use rpcrdma_protocol::xdr::Writer;

use super::{assert_refused, assert_within, encoded, reference};

pub(super) fn run(data: &[u8]) {
    let expected = reference_set(data);
    match PropertySet::decode(data) {
        Ok(set) => {
            let properties: Vec<Property<'_>> = set.collect();
            let found: Vec<Entry> = properties.iter().map(plain).collect();
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
            assert_refused(expected, error, data);
            assert_eq!(v2::refusal(error), Refusal::BadXdr);
        }
    }
}

/// The summary says what the entries say, and the default where there is none.
fn assert_summary(set: &PropertySet<'_>, entries: &[Entry]) {
    let data = |id: u32| {
        let entry = entries.iter().find(|(known, _)| *known == id);
        entry.and_then(|(_, data)| data.clone())
    };
    let value = |id: u32, default: u32| {
        data(id).map_or(default, |octets| {
            reference::word(&octets, 0).expect("four octets")
        })
    };
    let level = match value(5, 1) {
        0 => ReverseRequestSupport::None,
        2 => ReverseRequestSupport::General,
        _ => ReverseRequestSupport::Inline,
    };
    let structure = data(RBSTRUCT);
    let structure_bytes = value(RBSTRUCT, 4096);
    let expected = Properties {
        send_bytes_max: value(1, 4096),
        receive_buffer_bytes: value(2, structure_bytes),
        segment_bytes_max: value(3, 1_048_576),
        segment_count_max: value(4, 16),
        reverse_requests: level,
        rtr_support: RtrSupport::from_word(value(RTRSUPP, 0) & 7),
        receive_buffer_structure: structure
            .map(|data| ReceiveBufferStructure::decode(&data).expect("checked")),
        request_transmissions_max: value(REQRXLIM, 1).max(1),
        response_transmissions_max: value(RESPSXLIM, 1).max(1),
    };
    assert_eq!(set.properties(), expected);
    assert_eq!(set.host_authentication().map(<[u8]>::to_vec), data(6));
    let structure = set.properties().receive_structure();
    assert_eq!(
        structure.length_bytes(),
        expected.receive_buffer_bytes.max(1)
    );
}

/// Number and value, where `None` is the default: for HOSTAUTH the inner opaque, else the octets.
pub(super) type Entry = (u32, Option<Vec<u8>>);

const RTRSUPP: u32 = 0x5254_5203;
const RBSTRUCT: u32 = 0x5254_5204;
const REQRXLIM: u32 = 0x5254_5205;
const RESPSXLIM: u32 = 0x5254_5206;

fn plain(property: &Property<'_>) -> Entry {
    let value = match *property {
        Property::SendSizeMax(value)
        | Property::ReceiveBufferSize(value)
        | Property::SegmentSizeMax(value)
        | Property::SegmentCountMax(value)
        | Property::ReverseRequestSupport(value)
        | Property::RtrSupport(value)
        | Property::RequestReceiveLimit(value)
        | Property::ResponseSendLimit(value) => value.map(|word| word.to_be_bytes().to_vec()),
        Property::ReceiveBufferStructure(structure) => structure.map(|structure| {
            let mut octets = vec![0; structure.encoded_bytes()];
            structure
                .encode(&mut Writer::new(&mut octets))
                .expect("the space that it asks for");
            octets
        }),
        Property::HostAuthentication(message) => message.map(<[u8]>::to_vec),
        Property::Unknown { data, .. } => Some(data.to_vec()),
    };
    (property.id(), value)
}

pub(super) fn reference_set(data: &[u8]) -> Option<Vec<Entry>> {
    let mut at = 0;
    let mut entries: Vec<Entry> = Vec::new();
    for _ in 0..reference::take(data, &mut at)? {
        let id = reference::take(data, &mut at)?;
        let octets = reference::take_opaque(data, &mut at, usize::MAX)?;
        let is_known = (1..=6).contains(&id) || (RTRSUPP..=RESPSXLIM).contains(&id);
        if is_known && entries.iter().any(|(known, _)| *known == id) {
            return None;
        }
        let value = match (id, octets.len()) {
            (1..=6 | RTRSUPP..=RESPSXLIM, 0) => None,
            (1..=5 | RTRSUPP | REQRXLIM | RESPSXLIM, 4) => Some(octets),
            (1..=5 | RTRSUPP | REQRXLIM | RESPSXLIM, _) => return None,
            (6, length) => {
                let mut end = 0;
                let message = reference::take_opaque(&octets, &mut end, usize::MAX)?;
                (end == length).then_some(())?;
                Some(message)
            }
            (RBSTRUCT, _) => Some(reference_structure(&octets)?),
            _ => Some(octets),
        };
        entries.push((id, value));
    }
    (at == data.len()).then_some(())?;
    let find = |id: u32| entries.iter().find(|(known, _)| *known == id);
    let structure_bytes = find(RBSTRUCT).and_then(|(_, data)| reference::word(data.as_ref()?, 0));
    if let (Some((_, size)), Some(structure_bytes)) = (find(2), structure_bytes) {
        let size = size.as_ref().map_or(4096, |octets| {
            reference::word(octets, 0).expect("four octets")
        });
        (size == structure_bytes).then_some(())?;
    }
    Some(entries)
}

/// A receive buffer structure as it is encoded again: without reserved flags, and as one segment when it has more of
/// them than are handled.
fn reference_structure(data: &[u8]) -> Option<Vec<u8>> {
    let mut at = 0;
    let length = reference::take(data, &mut at)?;
    let group_count = reference::take(data, &mut at)?;
    let mut canonical = vec![length, group_count];
    let (mut total, mut segments) = (0_u64, 0_u64);
    for _ in 0..group_count {
        let mut take = || reference::take(data, &mut at);
        let (count, bytes, align, flags) = (take()?, take()?, take()?, take()?);
        (count > 0 && bytes > 0 && align.count_ones() <= 1).then_some(())?;
        canonical.extend([count, bytes, align, flags & 1]);
        total += u64::from(count) * u64::from(bytes);
        segments += u64::from(count);
    }
    let is_sound = group_count > 0 && total == u64::from(length) && at == data.len();
    is_sound.then_some(())?;
    if group_count > 8 || segments > 64 {
        canonical = vec![length, 1, 1, length, 0, 0];
    }
    Some(canonical.into_iter().flat_map(u32::to_be_bytes).collect())
}
