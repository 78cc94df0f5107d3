//! The client side of READ, WRITE and COMPOUND: encoding of arguments, and the check of results.

use std::ops::Range;

use rpcrdma_engine::{BulkResult, Call};
use rpcrdma_protocol::EncodeError;
use rpcrdma_protocol::xdr::{Reader, Writer};

use super::{COMPOUND, OPERATIONS_MAX, READ, WRITE, call, pattern};

/// The kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The reply carries the payload.
    Read,
    /// The call carries the payload.
    Write,
}

impl Kind {
    /// The number of the operation; equal to the procedure that does only this operation.
    pub(super) const fn number(self) -> u32 {
        match self {
            Self::Read => READ,
            Self::Write => WRITE,
        }
    }
}

/// One operation of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Operation {
    /// The kind.
    pub kind: Kind,
    /// The number that determines its payload.
    pub number: u64,
    /// Length of the payload.
    pub bytes: u32,
}

/// The call for these operations: READ or WRITE for a single one, else COMPOUND.
#[must_use]
pub(crate) fn procedure(operations: &[Operation]) -> Call {
    call(match operations {
        [only] => only.kind.number(),
        _ => COMPOUND,
    })
}

/// Length of one operation's arguments in COMPOUND: kind, number, and payload length.
const OPERATION_ARGS_BYTES: usize = 4 + 8 + 4;

/// Upper bound of the argument stream, without payloads.
const ARGS_BYTES_MAX: usize = 4 + OPERATIONS_MAX * OPERATION_ARGS_BYTES;

/// The position of an operation in its call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    /// Offset of the operation's end in the argument stream without payloads: the place of a WRITE's payload.
    pub args_offset: usize,
    /// The operation's range in the argument stream with payloads.
    pub range: Range<u32>,
}

/// The arguments of a call, without payloads.
#[derive(Clone, Debug)]
pub(crate) struct Arguments {
    space: [u8; ARGS_BYTES_MAX],
    bytes: usize,
    places: [Place; OPERATIONS_MAX],
}

impl Arguments {
    /// Encodes the arguments of `operations`; only the first [`OPERATIONS_MAX`] count.
    #[must_use]
    pub(crate) fn new(operations: &[Operation]) -> Self {
        let mut arguments = Self {
            space: [0; ARGS_BYTES_MAX],
            bytes: 0,
            places: Default::default(),
        };
        let written = arguments.write(operations);
        debug_assert!(written.is_ok(), "there is room for all");
        arguments
    }

    fn write(&mut self, operations: &[Operation]) -> Result<(), EncodeError> {
        let mut writer = Writer::new(&mut self.space);
        let is_compound = operations.len() != 1;
        if is_compound {
            writer.write_count(operations.len().min(OPERATIONS_MAX))?;
        }
        // Length of the payloads so far, which are in the stream's positions but not in this buffer.
        let mut payloads = 0;
        for (operation, place) in operations.iter().zip(&mut self.places) {
            let begin = writer.position() + payloads;
            if is_compound {
                writer.write_u32(operation.kind.number())?;
            }
            writer.write_u64(operation.number)?;
            writer.write_u32(operation.bytes)?;
            place.args_offset = writer.position();
            if operation.kind == Kind::Write {
                payloads += (operation.bytes as usize).next_multiple_of(4);
            }
            let position = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
            place.range = position(begin)..position(writer.position() + payloads);
        }
        self.bytes = writer.position();
        Ok(())
    }

    /// The argument stream.
    #[must_use]
    pub(crate) fn stream(&self) -> &[u8] {
        self.space.get(..self.bytes).unwrap_or(&[])
    }

    /// The position of each operation.
    pub(crate) fn places(&self) -> impl Iterator<Item = &Place> {
        self.places.iter()
    }
}

/// Length of the result stream of `operations`, without payloads.
#[must_use]
pub(crate) fn results_bytes(operations: &[Operation]) -> usize {
    match operations.len() {
        1 => 4,
        count => 4 + 8 * count,
    }
}

/// Whether the results are correct for `operations`: for each operation the requested length and the payload of its
/// number. `beside` has the results outside the stream, one for each READ, or is empty.
#[must_use]
pub(crate) fn results_match(
    operations: &[Operation],
    results: &[u8],
    beside: &[BulkResult],
) -> bool {
    let mut reader = Reader::new(results);
    let mut beside = beside.iter();
    let is_compound = operations.len() != 1;
    let count = |reader: &mut Reader<'_>| reader.read_u32().ok();
    if is_compound && count(&mut reader).map(|it| it as usize) != Some(operations.len()) {
        return false;
    }
    operations.iter().all(|operation| {
        (!is_compound || count(&mut reader) == Some(operation.kind.number()))
            && count(&mut reader) == Some(operation.bytes)
            && match operation.kind {
                Kind::Write => true,
                Kind::Read => payload_matches(operation, &mut reader, beside.next()),
            }
    }) && reader.is_at_end()
}

/// Whether the payload of a READ is correct, outside the stream or in it. The reader is after its length.
fn payload_matches(
    operation: &Operation,
    reader: &mut Reader<'_>,
    beside: Option<&BulkResult>,
) -> bool {
    let bytes = operation.bytes as usize;
    let item = beside
        .map(|result| &result.item)
        .filter(|item| !item.is_empty());
    let Some(item) = item else {
        let inline = reader.read_opaque_fixed(bytes);
        return inline.is_ok_and(|payload| pattern::matches(payload, 0, operation.number));
    };
    pieces_match(item.parts().map(|part| &**part), bytes, operation.number)
}

/// Whether these pieces start with payload `number` of `bytes` bytes; padding may follow.
pub(super) fn pieces_match<'a>(
    pieces: impl Iterator<Item = &'a [u8]>,
    bytes: usize,
    number: u64,
) -> bool {
    let mut offset = 0;
    for piece in pieces {
        let piece = piece.get(..bytes - offset).unwrap_or(piece);
        if !pattern::matches(piece, offset, number) {
            return false;
        }
        offset += piece.len();
    }
    offset == bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITE_5: Operation = Operation {
        kind: Kind::Write,
        number: 7,
        bytes: 5,
    };
    const READ_8: Operation = Operation {
        kind: Kind::Read,
        number: 8,
        bytes: 8,
    };

    #[test]
    fn one_operation_is_a_procedure_of_its_own() {
        let arguments = Arguments::new(&[WRITE_5]);
        assert_eq!(procedure(&[WRITE_5]).procedure, WRITE);
        assert_eq!(arguments.stream(), [0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 5]);
        let place = arguments.places().next().unwrap();
        assert_eq!((place.args_offset, place.range.clone()), (12, 0..20));
        assert_eq!(procedure(&[READ_8]).procedure, READ);
    }

    #[test]
    fn several_operations_tell_where_each_stands() {
        let operations = [WRITE_5, READ_8, WRITE_5];
        assert_eq!(procedure(&operations).procedure, COMPOUND);
        let arguments = Arguments::new(&operations);
        assert_eq!(arguments.stream().len(), 4 + 3 * 16);
        let places: Vec<_> = arguments.places().take(3).cloned().collect();
        let offsets: Vec<_> = places.iter().map(|place| place.args_offset).collect();
        assert_eq!(offsets, [20, 36, 52], "the stream without payloads");
        let ranges: Vec<_> = places.into_iter().map(|place| place.range).collect();
        assert_eq!(
            ranges,
            [4..28, 28..44, 44..68],
            "the stream with them, and their padding"
        );
        assert_eq!(
            Arguments::new(&[WRITE_5; OPERATIONS_MAX]).stream().len(),
            ARGS_BYTES_MAX
        );
    }

    #[test]
    fn results_in_the_stream_are_checked_to_the_last_byte() {
        let mut payload = [0; 8];
        pattern::fill(&mut payload, 0, READ_8.number);
        let mut read = 8_u32.to_be_bytes().to_vec();
        read.extend_from_slice(&payload);
        assert!(results_match(&[READ_8], &read, &[]));
        assert!(results_match(&[WRITE_5], &[0, 0, 0, 5], &[]));
        let mut compound = vec![0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 5, 0, 0, 0, 2];
        compound.extend_from_slice(&read);
        let operations = [WRITE_5, READ_8];
        assert!(results_match(&operations, &compound, &[]));
        for at in [3, 7, 11, 15, 19, 20, 27] {
            let mut wrong = compound.clone();
            wrong[at] ^= 1;
            assert!(!results_match(&operations, &wrong, &[]), "byte {at}");
        }
        for end in 0..compound.len() {
            assert!(!results_match(&operations, &compound[..end], &[]), "{end}");
        }
        compound.push(0);
        assert!(
            !results_match(&operations, &compound, &[]),
            "something behind it"
        );
    }
}
