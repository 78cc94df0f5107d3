//! Calls with bulk data: reads, writes, or a mix of the two, with one or several operations in a call.

use rpcrdma_engine::{
    BulkCall, BulkItem, BulkReply, CallRefused, CallTag, ConnectionKey, Context, ExpectedResult,
    Placement,
};
use rpcrdma_fabric::interface::Port;

use super::sizes::Sizes;
use crate::bench_program::{
    Arguments, Kind, OPERATIONS_MAX, Operation, pattern, procedure, results_bytes, results_match,
};
use crate::draw::Draw;

/// The calls of a load. Fixed before it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BulkPlan {
    /// Percentage of operations that read.
    pub(crate) read_percent: u32,
    /// Payload of each operation in bytes.
    pub(crate) payload_bytes: u32,
    /// Replaces `payload_bytes` if there are several sizes.
    pub(crate) sizes: Option<Sizes>,
    /// Operations in one call, from 1 to [`OPERATIONS_MAX`].
    pub(crate) operations: usize,
    /// How payloads travel.
    pub(crate) placement: Placement,
    /// Seed of the random sequence: the same seed gives the same operations and sizes.
    pub(crate) seed: u64,
}

/// Which operations of a call read: one bit for each operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reads(u8);

const _: () = assert!(OPERATIONS_MAX <= 8, "a bit for each operation");

/// One call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BenchStep {
    /// The number that marks the payload. For calls in the reverse direction: how many calls the server makes.
    pub(super) number: u64,
    /// Which of the call's operations read.
    pub(super) reads: Reads,
}

/// Makes calls with bulk data.
#[derive(Debug)]
pub(crate) struct BulkLoad {
    plan: BulkPlan,
    draw: Draw,
    prepared: Prepared,
}

/// Filled payloads of a call that was refused: the next attempt uses them, and does not fill them again.
#[derive(Debug)]
struct Prepared {
    step: BenchStep,
    items: Vec<BulkItem>,
}

impl BulkLoad {
    pub(crate) fn new(plan: BulkPlan) -> Self {
        Self {
            plan,
            draw: Draw(plan.seed),
            prepared: Prepared {
                step: BenchStep::default(),
                items: Vec::with_capacity(OPERATIONS_MAX),
            },
        }
    }

    /// The operations of call `number`, and their count.
    fn operations(&self, number: u64, reads: Reads) -> ([Operation; OPERATIONS_MAX], usize) {
        let count = self.plan.operations.min(OPERATIONS_MAX);
        // Each operation has its own number, so that a payload swapped between two operations is found.
        let first = number.wrapping_mul(OPERATIONS_MAX as u64);
        let operation = |index: usize| Operation {
            kind: if reads.0 >> index & 1 == 1 {
                Kind::Read
            } else {
                Kind::Write
            },
            number: first.wrapping_add(index as u64),
            bytes: self.bytes(first.wrapping_add(index as u64)),
        };
        (std::array::from_fn(operation), count)
    }

    /// Payload of operation `number` in bytes.
    fn bytes(&self, number: u64) -> u32 {
        match &self.plan.sizes {
            None => self.plan.payload_bytes,
            Some(sizes) => sizes.of(Draw::nth(self.plan.seed ^ SIZES_STREAM, number)),
        }
    }

    /// Payload of call `number` in bytes, over all its operations.
    pub(crate) fn call_bytes(&self, number: u64) -> u64 {
        if self.plan.sizes.is_none() {
            return u64::from(self.plan.payload_bytes) * self.plan.operations as u64;
        }
        let (operations, count) = self.operations(number, Reads::default());
        let operations = operations.iter().take(count);
        operations.map(|it| u64::from(it.bytes)).sum()
    }

    /// Draws which operations of the next call read.
    pub(super) fn draw_reads(&mut self) -> Reads {
        draw_reads(&mut self.draw, &self.plan)
    }

    /// Makes the call of a step.
    ///
    /// # Errors
    /// The core's refusal. The filled payloads are kept for the next attempt of the same call.
    // Out of line: inlined, its registers would slow down null calls.
    #[inline(never)]
    pub(super) fn call<P: Port>(
        &mut self,
        core: &mut Context<'_, P>,
        connection: ConnectionKey,
        tag: CallTag,
        step: BenchStep,
    ) -> Result<(), CallRefused> {
        let mut items = std::mem::take(&mut self.prepared.items);
        if self.prepared.step != step {
            // Another call comes first (a repeated one): return the buffers of the refused call to the core.
            items.clear();
            self.prepared.step = step;
        }
        let outcome = self.try_call(core, connection, tag, step, &mut items);
        self.prepared.items = items;
        outcome
    }

    fn try_call<P: Port>(
        &self,
        core: &mut Context<'_, P>,
        connection: ConnectionKey,
        tag: CallTag,
        step: BenchStep,
        prepared: &mut Vec<BulkItem>,
    ) -> Result<(), CallRefused> {
        let (operations, count) = self.operations(step.number, step.reads);
        let operations = operations.get(..count).unwrap_or(&[]);
        let writes = || operations.iter().filter(|it| it.kind == Kind::Write);
        for operation in writes().skip(prepared.len()) {
            // Make the item in its place in the vector: a move would copy the whole item, with its unused room.
            let count = prepared.len() + 1;
            prepared.resize_with(count, BulkItem::new);
            let item = prepared.last_mut();
            if item
                .and_then(|item| fill_item(core, item, operation))
                .is_none()
            {
                prepared.pop();
                return Err(CallRefused::NoSlot);
            }
        }
        let arguments = Arguments::new(operations);
        let mut call = BulkCall::new(procedure(operations), arguments.stream());
        call.placement = self.plan.placement;
        call.results_bytes_max = results_bytes(operations);
        let mut items = prepared.iter_mut();
        for (operation, place) in operations.iter().zip(arguments.places()) {
            let added = match operation.kind {
                Kind::Read => call
                    .expect(ExpectedResult {
                        request_range: place.range.clone(),
                        bytes_min: 0,
                        bytes_max: operation.bytes,
                    })
                    .is_ok(),
                Kind::Write => items
                    .next()
                    .is_none_or(|item| call.add(place.args_offset, item).is_ok()),
            };
            if !added {
                return Err(CallRefused::TooLong);
            }
        }
        // `add` moved the pieces out of `prepared`. After a refusal `call` still has them, and `pop` returns the last
        // one first.
        let outcome = core.call_bulk(connection, &mut call, tag);
        prepared.clear();
        if outcome.is_err() {
            prepared.extend(std::iter::from_fn(|| call.pop()));
            prepared.reverse();
        }
        outcome
    }

    /// Whether `reply` is the correct reply to call `number` with these `reads`.
    pub(crate) fn matches(&self, reply: &BulkReply<'_>, number: u64, reads: Reads) -> bool {
        let (operations, count) = self.operations(number, reads);
        let operations = operations.get(..count).unwrap_or(&[]);
        results_match(operations, reply.reply.results, reply.items)
    }
}

/// Fills an item with the payload of a write, in bulk buffers. Returns `None` if the core has too few free buffers.
fn fill_item<P: Port>(
    core: &mut Context<'_, P>,
    item: &mut BulkItem,
    operation: &Operation,
) -> Option<()> {
    let bytes = operation.bytes as usize;
    let mut offset = 0;
    while offset < bytes {
        let mut piece = core.take_bulk()?;
        piece.set_len(bytes - offset);
        pattern::fill(&mut piece, offset, operation.number);
        offset += piece.len();
        item.push(piece).ok()?;
    }
    Some(())
}

/// Separates the random sequence of the sizes from the sequence that chooses reads: they must not correlate.
const SIZES_STREAM: u64 = 0x73_69_7a_65_73;

/// Draws which operations of the next call read.
fn draw_reads(draw: &mut Draw, plan: &BulkPlan) -> Reads {
    match plan.read_percent {
        0 => Reads(0),
        100.. => Reads(u8::MAX),
        percent => Reads((0..OPERATIONS_MAX).fold(0, |reads, index| {
            let is_read = draw.next() % 100 < u64::from(percent);
            reads | u8::from(is_read) << index
        })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(read_percent: u32) -> BulkPlan {
        BulkPlan {
            read_percent,
            payload_bytes: 100,
            sizes: None,
            operations: 3,
            placement: Placement::Auto,
            seed: 7,
        }
    }

    fn drawn(plan: &BulkPlan, calls: usize) -> Vec<Reads> {
        let mut draw = Draw(plan.seed);
        (0..calls).map(|_| draw_reads(&mut draw, plan)).collect()
    }

    #[test]
    fn a_mix_is_repeatable_and_has_its_share_of_reads() {
        let seven = drawn(&plan(70), 10_000);
        assert_eq!(seven, drawn(&plan(70), 10_000));
        let other = BulkPlan {
            seed: 8,
            ..plan(70)
        };
        assert_ne!(seven, drawn(&other, 10_000));
        let reads: u32 = seven.iter().map(|reads| reads.0.count_ones()).sum();
        assert!((54_000..58_000).contains(&reads), "{reads} of 80,000");
        assert!(drawn(&plan(0), 100).iter().all(|reads| *reads == Reads(0)));
        assert!(
            drawn(&plan(100), 100)
                .iter()
                .all(|reads| *reads == Reads(0xff))
        );
    }

    #[test]
    fn sizes_are_repeatable_and_have_nothing_to_do_with_reads() {
        let sizes = Sizes::new(&[(10, 70), (1_000, 30)]).unwrap();
        let load = |seed| {
            BulkLoad::new(BulkPlan {
                sizes: Some(sizes),
                seed,
                ..plan(70)
            })
        };
        let (first, same, other) = (load(7), load(7), load(8));
        let of =
            |load: &BulkLoad| -> Vec<u64> { (0..4_000).map(|it| load.call_bytes(it)).collect() };
        assert_eq!(of(&first), of(&same));
        assert_ne!(of(&first), of(&other));
        let (mut small, mut small_reads, mut draw) = (0, 0, Draw(7));
        for number in 0..4_000 {
            let reads = draw_reads(&mut draw, &first.plan);
            let (operations, count) = first.operations(number, reads);
            for operation in operations.iter().take(count).filter(|it| it.bytes == 10) {
                small += 1;
                small_reads += u32::from(operation.kind == Kind::Read);
            }
        }
        assert!((8_200..8_600).contains(&small), "{small} of 12,000");
        assert!(
            (5_700..6_050).contains(&small_reads),
            "{small_reads} of {small}"
        );
    }

    #[test]
    fn every_payload_has_a_number_of_its_own() {
        let load = BulkLoad::new(plan(50));
        let mut numbers = std::collections::HashSet::new();
        for number in 0..100 {
            let (operations, count) = load.operations(number, Reads(0b101));
            assert_eq!(count, 3);
            let kinds = operations.map(|operation| operation.kind);
            assert_eq!(kinds[..3], [Kind::Read, Kind::Write, Kind::Read]);
            assert!(operations[..3].iter().all(|it| numbers.insert(it.number)));
        }
    }
}
