//! The XDR reader and writer against indices into a vector.
//!
//! The first octet says how many operations follow; each is an octet for the kind and one for a length. The rest is
//! what is read.

use rpcrdma_protocol::xdr::{Reader, Writer};

use super::reference;

pub(super) fn run(data: &[u8]) {
    let Some((count, rest)) = data.split_first() else {
        return;
    };
    let count = usize::from(*count).min(rest.len() / 2);
    let (operations, input) = rest.split_at(2 * count);
    let mut reader = Reader::new(input);
    let mut space = vec![0xa5; input.len()];
    let mut writer = Writer::new(&mut space);
    let mut canonical = Vec::new();
    for operation in operations.chunks_exact(2) {
        let before = reader.position();
        let length = usize::from(operation[1]);
        if !step(
            operation[0] % 6,
            length,
            input,
            &mut reader,
            &mut writer,
            &mut canonical,
        ) {
            assert_eq!(reader.position(), before, "a failed read moved on");
        }
        assert_eq!(reader.rest(), &input[reader.position()..]);
        assert_eq!(
            writer.position(),
            reader.position(),
            "what was read is written in as much"
        );
    }
    assert_eq!(reader.is_at_end(), reader.position() == input.len());
    assert_eq!(
        space[..canonical.len()],
        canonical,
        "written as read, padding zeroed"
    );
    assert!(space[canonical.len()..].iter().all(|octet| *octet == 0xa5));
}

/// Reads one field both ways, compares, and writes it again. Returns whether there was one.
fn step(
    kind: u8,
    length: usize,
    input: &[u8],
    reader: &mut Reader<'_>,
    writer: &mut Writer<'_>,
    canonical: &mut Vec<u8>,
) -> bool {
    let at = reader.position();
    let mut end = at;
    let fixed = |bytes: usize| input.get(at..at + bytes);
    let padding = length.div_ceil(4) * 4 - length;
    // What the field is by plain indexing, and its canonical octets.
    let expected: Option<Vec<u8>> = match kind {
        0 => fixed(4).map(<[u8]>::to_vec),
        1 => fixed(8).map(<[u8]>::to_vec),
        2 => fixed(4)
            .filter(|mark| mark[..3] == [0; 3] && mark[3] < 2)
            .map(<[u8]>::to_vec),
        3 => fixed(length).map(<[u8]>::to_vec),
        4 => fixed(length + padding).map(|data| [&data[..length], &[0; 3][..padding]].concat()),
        _ => reference::take_opaque(input, &mut end, length).map(|data| {
            let mut octets = u32::try_from(data.len())
                .unwrap_or(u32::MAX)
                .to_be_bytes()
                .to_vec();
            octets.extend(&data);
            octets.resize(4 + data.len().div_ceil(4) * 4, 0);
            octets
        }),
    };
    let read = match kind {
        0 => reader.read_u32().map(|value| writer.write_u32(value)),
        1 => reader.read_u64().map(|value| writer.write_u64(value)),
        2 => reader.read_bool().map(|value| writer.write_bool(value)),
        3 => reader
            .read_bytes(length)
            .map(|bytes| writer.write_bytes(bytes)),
        4 => reader
            .read_opaque_fixed(length)
            .map(|data| writer.write_opaque_fixed(data)),
        _ => reader
            .read_opaque(length)
            .map(|data| writer.write_opaque(data)),
    };
    match (read, expected) {
        (Ok(written), Some(octets)) => {
            written.expect("as much space as input");
            assert_eq!(reader.position(), at + octets.len());
            canonical.extend(octets);
            true
        }
        (Err(error), None) => {
            assert_eq!(error.at, at);
            false
        }
        (read, expected) => panic!("read {read:?}, the reference {expected:?}"),
    }
}
