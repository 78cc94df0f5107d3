//! Results of an NFS load by procedure, and the blocks that it wrote.

use super::steps::{Step, StepKind, StepPlan};
use crate::histogram::LatencyHistogram;

/// Results of one procedure.
#[derive(Clone, Debug)]
pub(crate) struct Procedure {
    pub(crate) latency: LatencyHistogram,
    /// Payload in bytes.
    pub(crate) bytes: u64,
}

/// Results of an NFS load, or of one part of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    /// By [`StepKind::index`]; `None` for a procedure that the load never calls.
    pub(crate) procedures: [Option<Procedure>; StepKind::ALL.len()],
    /// Calls that moved less data than requested, which the protocol allows.
    pub(crate) short: u64,
    /// How often the write verifier changed: each time the server may have lost uncommitted data.
    pub(crate) verifier_changes: u64,
    /// The verifier of the last WRITE or COMMIT.
    verifier: Option<[u8; 8]>,
    pub(crate) written: Written,
}

impl Tally {
    /// A tally with an entry for each of `kinds`.
    pub(crate) fn new(kinds: &[StepKind]) -> Self {
        let mut tally = Self::default();
        for kind in kinds {
            if let Some(place) = tally.procedures.get_mut(kind.index()) {
                *place = Some(Procedure {
                    latency: LatencyHistogram::new(),
                    bytes: 0,
                });
            }
        }
        tally
    }

    #[inline]
    pub(crate) fn record(&mut self, kind: StepKind, latency_ns: u64, bytes: u64) {
        if let Some(Some(procedure)) = self.procedures.get_mut(kind.index()) {
            procedure.latency.record(latency_ns);
            procedure.bytes += bytes;
        }
    }

    /// Notes the write verifier in the reply to a WRITE or COMMIT.
    #[inline]
    pub(crate) fn note_verifier(&mut self, verifier: [u8; 8]) {
        let before = self.verifier.replace(verifier);
        self.verifier_changes += u64::from(before.is_some_and(|before| before != verifier));
    }

    /// Adds the results of another part, which ran at the same time.
    pub(crate) fn merge(&mut self, other: Self) {
        for (own, other) in self.procedures.iter_mut().zip(other.procedures) {
            match (own, other) {
                (Some(own), Some(other)) => {
                    own.latency.merge(&other.latency);
                    own.bytes += other.bytes;
                }
                (own, Some(other)) => *own = Some(other),
                (_, None) => {}
            }
        }
        self.short += other.short;
        // Every connection sees the same restart of the server, so a sum would count it several times.
        self.verifier_changes = self.verifier_changes.max(other.verifier_changes);
        // Different last verifiers also mean a change, even if no single part saw two of them.
        if let (Some(own), Some(other)) = (self.verifier, other.verifier)
            && own != other
        {
            self.verifier_changes = self.verifier_changes.max(1);
        }
        self.verifier = other.verifier.or(self.verifier);
        self.written.merge(&other.written);
    }

    /// Payload of all procedures in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.procedures.iter().flatten().map(|it| it.bytes).sum()
    }
}

/// The blocks that a load wrote, to read them back later. One bit for each block.
#[derive(Clone, Debug, Default)]
pub(crate) struct Written {
    bits: Vec<u64>,
    blocks_per_file: u64,
}

impl Written {
    /// Room for all blocks of a plan, or for none if `is_wanted` is false.
    pub(crate) fn new(plan: &StepPlan, is_wanted: bool) -> Self {
        let words = if is_wanted {
            plan.blocks().div_ceil(64)
        } else {
            0
        };
        Self {
            bits: vec![0; usize::try_from(words).unwrap_or(0)],
            blocks_per_file: plan.blocks_per_file(),
        }
    }

    /// Notes that the block of a step was written completely.
    #[inline]
    pub(crate) fn note(&mut self, step: Step) {
        let number = u64::from(step.file) * self.blocks_per_file + step.block;
        let word = usize::try_from(number / 64).unwrap_or(usize::MAX);
        if let Some(word) = self.bits.get_mut(word) {
            *word |= 1 << (number % 64);
        }
    }

    /// Adds the blocks of another part of the load.
    pub(crate) fn merge(&mut self, other: &Self) {
        if self.bits.is_empty() {
            self.clone_from(other);
            return;
        }
        for (own, other) in self.bits.iter_mut().zip(&other.bits) {
            *own |= other;
        }
    }

    /// File and block of each written block, in order.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        let blocks_per_file = self.blocks_per_file.max(1);
        self.bits
            .iter()
            .zip(0_u64..)
            .flat_map(move |(word, index)| {
                (0..64)
                    .filter(move |bit| word >> bit & 1 == 1)
                    .map(move |bit| {
                        let number = index * 64 + bit;
                        let file = u32::try_from(number / blocks_per_file).unwrap_or(u32::MAX);
                        (file, number % blocks_per_file)
                    })
            })
    }
}
