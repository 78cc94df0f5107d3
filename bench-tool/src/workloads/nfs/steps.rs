//! The sequence of calls: procedure, file, and block of each.

use super::content::mixed;

/// The operations of `bench-tool nfs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NfsOp {
    Null,
    Getattr,
    Read,
    Write,
    Mix,
}

impl NfsOp {
    /// The name used on the command line and in reports.
    #[must_use]
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Getattr => "getattr",
            Self::Read => "read",
            Self::Write => "write",
            Self::Mix => "mix",
        }
    }

    /// Whether its calls carry payload.
    #[must_use]
    pub(crate) const fn is_bulk(self) -> bool {
        matches!(self, Self::Read | Self::Write | Self::Mix)
    }
}

/// The order in which the calls visit the blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Access {
    #[default]
    Sequential,
    Random,
}

impl Access {
    /// The name used on the command line and in reports.
    #[must_use]
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Sequential => "sequential",
            Self::Random => "random",
        }
    }
}

/// The parameters of the sequence. Fixed before the load starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepPlan {
    pub(crate) op: NfsOp,
    /// Percentage of the calls of a mix that read.
    pub(crate) read_percent: u32,
    pub(crate) access: Access,
    /// Bytes of one READ or WRITE; the last block of a file may be shorter.
    pub(crate) bytes: u32,
    pub(crate) file_bytes: u64,
    /// At least one.
    pub(crate) files: u32,
    /// Seed of the random sequence: the same seed gives the same calls.
    pub(crate) seed: u64,
}

/// The procedure of one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum StepKind {
    #[default]
    Null,
    Getattr,
    Read,
    Write,
}

impl StepKind {
    /// All kinds, in the order of [`StepKind::index`].
    pub(crate) const ALL: [Self; 4] = [Self::Null, Self::Getattr, Self::Read, Self::Write];

    /// The name in reports.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Getattr => "getattr",
            Self::Read => "read",
            Self::Write => "write",
        }
    }

    /// Whether some of the calls of `op` are of this kind.
    pub(crate) const fn is_made_by(self, op: NfsOp) -> bool {
        match self {
            Self::Null => matches!(op, NfsOp::Null),
            Self::Getattr => matches!(op, NfsOp::Getattr),
            Self::Read => matches!(op, NfsOp::Read | NfsOp::Mix),
            Self::Write => matches!(op, NfsOp::Write | NfsOp::Mix),
        }
    }

    /// Whether its calls carry payload.
    pub(crate) const fn is_bulk(self) -> bool {
        matches!(self, Self::Read | Self::Write)
    }

    /// Index into arrays with one entry for each kind.
    pub(crate) const fn index(self) -> usize {
        match self {
            Self::Null => 0,
            Self::Getattr => 1,
            Self::Read => 2,
            Self::Write => 3,
        }
    }
}

/// One call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Step {
    pub(crate) kind: StepKind,
    pub(crate) file: u32,
    /// Number of the block in the file.
    pub(crate) block: u64,
}

impl StepPlan {
    /// Offset of the step's block in its file.
    pub(crate) fn offset(&self, step: Step) -> u64 {
        step.block.wrapping_mul(self.bytes.into())
    }

    /// Number of blocks in a file, at least one.
    pub(crate) fn blocks_per_file(&self) -> u64 {
        self.file_bytes.div_ceil(self.bytes.max(1).into()).max(1)
    }

    /// Number of blocks in all files.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks_per_file() * u64::from(self.files.max(1))
    }

    /// Length of the step's block in bytes.
    #[inline]
    pub(crate) fn bytes_of(&self, step: Step) -> u32 {
        let rest = self.file_bytes.saturating_sub(self.offset(step));
        u32::try_from(rest).map_or(self.bytes, |rest| rest.min(self.bytes))
    }

    /// File and block for a number that counts through all files, and starts again after the last block.
    fn place(&self, number: u64) -> (u32, u64) {
        let number = number % self.blocks();
        let file = number / self.blocks_per_file();
        let block = number % self.blocks_per_file();
        (u32::try_from(file).unwrap_or(0), block)
    }
}

/// The sequence of steps of one stream.
#[derive(Clone, Debug)]
pub(crate) struct Steps {
    plan: StepPlan,
    state: u64,
    next: u64,
}

impl Steps {
    /// The sequence of stream number `stream` of `streams`. Sequential streams start at different blocks, evenly
    /// spaced, so that they do not read the same blocks at the same time.
    pub(crate) fn new(plan: StepPlan, stream: u32, streams: u32) -> Self {
        // If the blocks do not divide evenly, each of the first streams gets one more.
        let (number, streams) = (u64::from(stream), u64::from(streams.max(1)));
        let (share, rest) = (plan.blocks() / streams, plan.blocks() % streams);
        let first = share * number + rest.min(number);
        Self {
            plan,
            state: mixed(plan.seed ^ mixed(stream.into())),
            next: first,
        }
    }

    fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(1);
        mixed(self.state)
    }

    /// The next call.
    #[inline]
    pub(crate) fn step(&mut self) -> Step {
        let kind = match self.plan.op {
            NfsOp::Null => StepKind::Null,
            NfsOp::Getattr => StepKind::Getattr,
            NfsOp::Read => StepKind::Read,
            NfsOp::Write => StepKind::Write,
            NfsOp::Mix => {
                if self.draw() % 100 < u64::from(self.plan.read_percent) {
                    StepKind::Read
                } else {
                    StepKind::Write
                }
            }
        };
        let number = match self.plan.access {
            Access::Sequential => {
                let number = self.next;
                self.next = number.wrapping_add(1);
                number
            }
            Access::Random => self.draw(),
        };
        let (file, block) = self.plan.place(number);
        Step { kind, file, block }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn plan(op: NfsOp, access: Access) -> StepPlan {
        StepPlan {
            op,
            read_percent: 70,
            access,
            bytes: 4097,
            file_bytes: 40_000,
            files: 3,
            seed: 5,
        }
    }

    fn steps(plan: StepPlan, stream: u32, count: usize) -> Vec<Step> {
        let mut steps = Steps::new(plan, stream, 2);
        (0..count).map(|_| steps.step()).collect()
    }

    #[test]
    fn a_sequence_goes_through_all_files_and_begins_again() {
        let plan = plan(NfsOp::Read, Access::Sequential);
        let taken = steps(plan, 0, 60);
        assert_eq!(taken[..30], taken[30..]);
        let places: HashSet<Step> = taken.iter().copied().collect();
        assert_eq!(places.len(), 30);
        let at = |index: usize| (taken[index].file, taken[index].block);
        assert_eq!(
            (at(0), at(9), at(10), at(29)),
            ((0, 0), (0, 9), (1, 0), (2, 9))
        );
        assert_eq!(plan.offset(taken[9]), 9 * 4097);
        assert_eq!(plan.bytes_of(taken[8]), 4097);
        assert_eq!(
            plan.bytes_of(taken[9]),
            40_000 - 9 * 4097,
            "the rest of the file"
        );
        let second = steps(plan, 1, 1)[0];
        assert_eq!(
            (second.file, second.block),
            (1, 5),
            "half of all blocks apart"
        );
    }

    #[test]
    fn streams_share_the_blocks_out_and_leave_none() {
        let plan = plan(NfsOp::Write, Access::Sequential);
        for streams in 1..=31 {
            let mut places = HashSet::new();
            for stream in 0..streams {
                let share = 30 / streams + u32::from(stream < 30 % streams);
                let mut steps = Steps::new(plan, stream, streams);
                places.extend((0..share).map(|_| steps.step()));
            }
            assert_eq!(places.len(), 30, "{streams}");
        }
    }

    #[test]
    fn a_draw_is_repeatable_stays_inside_and_reaches_everything() {
        let plan = plan(NfsOp::Mix, Access::Random);
        let taken = steps(plan, 0, 10_000);
        assert_eq!(taken, steps(plan, 0, 10_000));
        assert_ne!(taken, steps(plan, 1, 10_000), "streams differ");
        assert!(taken.iter().all(|step| step.file < 3 && step.block < 10));
        let places: HashSet<_> = taken.iter().map(|step| (step.file, step.block)).collect();
        assert_eq!(places.len(), 30);
        let reads = taken
            .iter()
            .filter(|step| step.kind == StepKind::Read)
            .count();
        assert!((6_700..7_300).contains(&reads), "{reads}");
    }

    #[test]
    fn the_other_ops_do_one_thing() {
        for (op, kind) in [
            (NfsOp::Null, StepKind::Null),
            (NfsOp::Getattr, StepKind::Getattr),
            (NfsOp::Write, StepKind::Write),
        ] {
            let taken = steps(plan(op, Access::Random), 0, 100);
            assert!(taken.iter().all(|step| step.kind == kind), "{op:?}");
        }
        for (index, kind) in StepKind::ALL.into_iter().enumerate() {
            assert_eq!(kind.index(), index);
        }
    }
}
