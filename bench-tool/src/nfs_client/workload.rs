//! The calls of a load: what each asks for, what it carries, and whether the answer is right.

use std::collections::BTreeMap;

use super::content;
use super::steps::{Step, StepKind, StepPlan};
use rpcrdma_nfs3::client::reply::{self, ReadData, ReplyError};
use rpcrdma_nfs3::client::request::{self, Request};
use rpcrdma_nfs3::wire::FileHandle;
use rpcrdma_nfs3::wire::types::{FileKind, Stability};

/// The files that are called for.
#[derive(Clone, Debug)]
pub(crate) struct Targets {
    root: FileHandle,
    seed: u64,
    /// Each with the key of its content.
    files: Vec<(FileHandle, u64)>,
}

impl Targets {
    /// The root of the export alone.
    pub(crate) fn new(root: FileHandle, seed: u64) -> Self {
        Self {
            root,
            seed,
            files: Vec::new(),
        }
    }

    /// One more file, with the next number.
    pub(crate) fn add(&mut self, file: FileHandle) {
        let number = u32::try_from(self.files.len()).unwrap_or(u32::MAX);
        self.files.push((file, content::key(self.seed, number)));
    }

    pub(crate) fn file(&self, number: u32) -> Option<FileHandle> {
        self.files.get(number as usize).map(|(file, _)| *file)
    }

    fn key(&self, number: u32) -> u64 {
        self.files.get(number as usize).map_or(0, |(_, key)| *key)
    }

    /// Fills a piece of a file with its content.
    #[inline]
    pub(crate) fn fill(&self, number: u32, offset: u64, piece: &mut [u8]) {
        content::fill(piece, offset, self.key(number));
    }

    /// Whether a piece of a file has its content.
    #[inline]
    pub(crate) fn matches(&self, number: u32, offset: u64, piece: &[u8], every: bool) -> bool {
        content::matches(piece, offset, self.key(number), every)
    }
}

/// What the calls of a load ask for. Fixed before it starts.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    pub(crate) plan: StepPlan,
    pub(crate) targets: Targets,
    pub(crate) stability: Stability,
    /// Look at every byte that is read.
    pub(crate) verify: bool,
}

/// A call that ended well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Done {
    /// Payload that was moved.
    pub(crate) bytes: u32,
    /// Of a WRITE: changes when the server lost what was not committed.
    pub(crate) verifier: Option<[u8; 8]>,
}

/// A reply that is not right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StepError {
    #[error(transparent)]
    Reply(#[from] ReplyError),
    /// What was read is not what was written.
    #[error("a READ brought other bytes than the file has")]
    Content,
    /// The file ends inside of what was read, or nothing was read.
    #[error("a READ ended before the file does")]
    Short,
    /// Nothing was written.
    #[error("a WRITE wrote nothing")]
    NothingWritten,
    /// The server promised less than it was asked to.
    #[error("a WRITE was committed less than was asked for")]
    LessStable,
    /// GETATTR told of something else.
    #[error("a GETATTR told of something that is no file, or no folder")]
    Kind,
}

impl StepError {
    /// A name for counting.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Reply(ReplyError::Status(status)) => status.name().to_ascii_lowercase(),
            Self::Reply(ReplyError::Mount(status)) => status.name().to_ascii_lowercase(),
            Self::Reply(ReplyError::Malformed(_)) => "malformed_replies".to_owned(),
            Self::Reply(ReplyError::TooMuch { .. } | ReplyError::CountMismatch { .. }) => {
                "wrong_counts".to_owned()
            }
            Self::Content => "wrong_content".to_owned(),
            Self::Short => "reads_cut".to_owned(),
            Self::NothingWritten => "writes_of_nothing".to_owned(),
            Self::LessStable => "writes_less_stable".to_owned(),
            Self::Kind => "wrong_kind".to_owned(),
        }
    }
}

impl Work {
    /// What the root of the export stands in for: there are no files where none are needed.
    fn object(&self, step: Step) -> FileHandle {
        self.targets.file(step.file).unwrap_or(self.targets.root)
    }

    /// What a step asks for.
    #[inline]
    pub(crate) fn request(&self, step: Step) -> Request<'static> {
        let offset = self.plan.offset(step);
        match step.kind {
            StepKind::Null => Request::Null,
            StepKind::Getattr => Request::Getattr(self.object(step)),
            StepKind::Read => request::read(self.object(step), offset, self.plan.bytes_of(step)),
            StepKind::Write => {
                let bytes = self.plan.bytes_of(step);
                request::write(self.object(step), offset, bytes, self.stability)
            }
        }
    }

    /// Bytes of the payload that a step sends.
    pub(crate) fn payload_bytes(&self, step: Step) -> usize {
        match step.kind {
            StepKind::Write => self.plan.bytes_of(step) as usize,
            _ => 0,
        }
    }

    /// Fills the piece of a step's payload that begins at byte `at`.
    #[inline]
    pub(crate) fn fill(&self, step: Step, at: usize, piece: &mut [u8]) {
        let offset = self.plan.offset(step) + at as u64;
        self.targets.fill(step.file, offset, piece);
    }

    /// Whether the piece of what a step read that begins at byte `at` is right.
    #[inline]
    fn matches(&self, step: Step, at: usize, piece: &[u8]) -> bool {
        let offset = self.plan.offset(step) + at as u64;
        self.targets.matches(step.file, offset, piece, self.verify)
    }

    /// Whether the reply to a step is right. `beside_bytes` came beside its results, in the pieces `beside`, in order.
    #[inline]
    pub(crate) fn check<'a>(
        &self,
        step: Step,
        results: &[u8],
        beside_bytes: usize,
        beside: impl Iterator<Item = &'a [u8]>,
    ) -> Result<Done, StepError> {
        match step.kind {
            StepKind::Null => {
                reply::null(results)?;
                Ok(Done::default())
            }
            StepKind::Getattr => {
                let attributes = reply::getattr(results)?;
                let kind = match self.targets.file(step.file) {
                    Some(_) => FileKind::Regular,
                    None => FileKind::Directory,
                };
                if attributes.kind != kind {
                    return Err(StepError::Kind);
                }
                Ok(Done::default())
            }
            StepKind::Read => self.check_read(step, results, beside_bytes, beside),
            StepKind::Write => {
                let written = reply::write(results, self.plan.bytes_of(step))?;
                if written.count_bytes == 0 {
                    return Err(StepError::NothingWritten);
                }
                if written.committed.number() < self.stability.number() {
                    return Err(StepError::LessStable);
                }
                Ok(Done {
                    bytes: written.count_bytes,
                    verifier: Some(written.verifier),
                })
            }
        }
    }

    #[inline]
    fn check_read<'a>(
        &self,
        step: Step,
        results: &[u8],
        beside_bytes: usize,
        beside: impl Iterator<Item = &'a [u8]>,
    ) -> Result<Done, StepError> {
        let asked = self.plan.bytes_of(step);
        let read = reply::read(results, asked, beside_bytes)?;
        // A block lies inside its file: what comes may be less, but not for the reason that the file ends.
        let is_whole = read.count_bytes == asked;
        if read.count_bytes == 0 || (read.is_end && !is_whole) {
            return Err(StepError::Short);
        }
        let is_right = match read.data {
            ReadData::Here(data) => self.matches(step, 0, data),
            ReadData::Beside => {
                let mut at = 0;
                let bytes = read.count_bytes as usize;
                let mut beside = beside;
                beside.all(|piece| {
                    // What came beside may end with padding.
                    let piece = piece.get(..piece.len().min(bytes - at)).unwrap_or(&[]);
                    let is_right = self.matches(step, at, piece);
                    at += piece.len();
                    is_right
                })
            }
        };
        if !is_right {
            return Err(StepError::Content);
        }
        Ok(Done {
            bytes: read.count_bytes,
            verifier: None,
        })
    }
}

/// Which blocks a load wrote, so that they can be read back.
#[derive(Clone, Debug, Default)]
pub(crate) struct Written {
    bits: Vec<u64>,
    blocks_per_file: u64,
}

impl Written {
    /// For the blocks of a plan; for none where nobody is going to ask.
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

    /// The block of a step was written whole.
    #[inline]
    pub(crate) fn note(&mut self, step: Step) {
        let number = u64::from(step.file) * self.blocks_per_file + step.block;
        let word = usize::try_from(number / 64).unwrap_or(usize::MAX);
        if let Some(word) = self.bits.get_mut(word) {
            *word |= 1 << (number % 64);
        }
    }

    /// Adds what another part of the load wrote.
    pub(crate) fn merge(&mut self, other: &Self) {
        if self.bits.is_empty() {
            self.clone_from(other);
            return;
        }
        for (own, other) in self.bits.iter_mut().zip(&other.bits) {
            *own |= other;
        }
    }

    /// File and block of each, in order.
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

/// Errors by name, with the words of the first one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Errors {
    pub(crate) by_name: BTreeMap<String, u64>,
    pub(crate) first: Option<String>,
}

impl Errors {
    #[cold]
    pub(crate) fn note(&mut self, name: String, words: impl FnOnce() -> String) {
        *self.by_name.entry(name).or_default() += 1;
        self.first.get_or_insert_with(words);
    }

    pub(crate) fn total(&self) -> u64 {
        self.by_name.values().sum()
    }

    pub(crate) fn merge(&mut self, other: Self) {
        for (name, count) in other.by_name {
            *self.by_name.entry(name).or_default() += count;
        }
        if self.first.is_none() {
            self.first = other.first;
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
