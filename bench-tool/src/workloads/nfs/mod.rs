//! The calls of `bench-tool nfs`: their arguments, their payload, and the check of their replies.
//!
//! READ and WRITE data is passed as bulk data with automatic placement: in chunks, or by any other means that both
//! endpoints support.

mod content;
pub(crate) mod steps;
pub(crate) mod tally;

use std::iter::{self, Empty};
use std::sync::Arc;

use rpcrdma_engine::{
    BulkCall, BulkItem, BulkReply, Call, CallRefused, CallTag, ConnectionKey, Context,
    ExpectedResult, Placement, Reply,
};
use rpcrdma_fabric::interface::Port;

use self::steps::{Step, StepKind, StepPlan, Steps};
use self::tally::{Tally, Written};
use crate::load::measured::Errors;
use crate::load::workload::{Verdict, Workload};
use rpcrdma_nfs3::client::credential::Credential;
use rpcrdma_nfs3::client::reply::{self, ReadData, ReplyError};
use rpcrdma_nfs3::client::request::ARGUMENTS_BYTES_MAX;
use rpcrdma_nfs3::client::request::{self, Request};
use rpcrdma_nfs3::wire as nfs;
use rpcrdma_nfs3::wire::FileHandle;
use rpcrdma_nfs3::wire::Status;
use rpcrdma_nfs3::wire::types::{FileKind, Stability};

/// The files that the calls use.
#[derive(Clone, Debug)]
pub(crate) struct Targets {
    root: FileHandle,
    seed: u64,
    /// Each file with the key of its content.
    files: Vec<(FileHandle, u64)>,
}

impl Targets {
    /// Only the root of the export, without files.
    pub(crate) fn new(root: FileHandle, seed: u64) -> Self {
        Self {
            root,
            seed,
            files: Vec::new(),
        }
    }

    /// Adds a file, with the next number.
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

    /// Fills a piece of a file with the expected content.
    #[inline]
    pub(crate) fn fill(&self, number: u32, offset: u64, piece: &mut [u8]) {
        content::fill(piece, offset, self.key(number));
    }

    /// Whether a piece of a file has the expected content.
    #[inline]
    pub(crate) fn matches(&self, number: u32, offset: u64, piece: &[u8], every: bool) -> bool {
        content::matches(piece, offset, self.key(number), every)
    }
}

/// The reply to a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepReply<'a, I> {
    pub(crate) results: &'a [u8],
    /// Bytes of data outside the results.
    pub(crate) data_bytes: usize,
    /// This data in pieces, in order.
    pub(crate) data: I,
}

impl<'a> StepReply<'a, Empty<&'static [u8]>> {
    /// A reply with all data in the results.
    pub(crate) const fn whole(results: &'a [u8]) -> Self {
        Self {
            results,
            data_bytes: 0,
            data: iter::empty(),
        }
    }
}

/// The parameters of a load's calls. Fixed before it starts.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    pub(crate) plan: StepPlan,
    pub(crate) targets: Targets,
    pub(crate) stability: Stability,
    /// Whether to check every byte that is read.
    pub(crate) verify: bool,
}

/// The outcome of a successful call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Done {
    /// Payload in bytes.
    pub(crate) bytes: u32,
    /// For a WRITE: the write verifier. It changes when the server loses uncommitted data.
    pub(crate) verifier: Option<[u8; 8]>,
}

/// Why a reply is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StepError {
    #[error(transparent)]
    Reply(#[from] ReplyError),
    /// The data read differs from the data written.
    #[error("a READ returned other bytes than the file holds")]
    Content,
    /// The server reports the end of the file too early, or returned no data.
    #[error("a READ ended before the end of the file")]
    Short,
    /// Nothing was written.
    #[error("a WRITE wrote nothing")]
    NothingWritten,
    /// The server committed the data less stably than requested (UNSTABLE, DATA_SYNC, FILE_SYNC).
    #[error("a WRITE was committed less stably than requested")]
    LessStable,
    /// GETATTR reported another file type than expected.
    #[error("a GETATTR reported the wrong file type")]
    Kind,
}

impl StepError {
    /// The name under which errors are counted.
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
    /// The file of a step, or the root of the export if the load has no files.
    fn object(&self, step: Step) -> FileHandle {
        self.targets.file(step.file).unwrap_or(self.targets.root)
    }

    /// The request of a step.
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

    /// Payload in bytes that a step sends.
    pub(crate) fn payload_bytes(&self, step: Step) -> usize {
        match step.kind {
            StepKind::Write => self.plan.bytes_of(step) as usize,
            _ => 0,
        }
    }

    /// Fills the piece of a step's payload that starts at byte `at`.
    #[inline]
    pub(crate) fn fill(&self, step: Step, at: usize, piece: &mut [u8]) {
        let offset = self.plan.offset(step) + at as u64;
        self.targets.fill(step.file, offset, piece);
    }

    /// Whether the piece of a step's data that starts at byte `at` is correct.
    #[inline]
    fn matches(&self, step: Step, at: usize, piece: &[u8]) -> bool {
        let offset = self.plan.offset(step) + at as u64;
        self.targets.matches(step.file, offset, piece, self.verify)
    }

    /// Checks the reply to a step.
    #[inline]
    pub(crate) fn check<'a>(
        &self,
        step: Step,
        reply: StepReply<'_, impl Iterator<Item = &'a [u8]>>,
    ) -> Result<Done, StepError> {
        let results = reply.results;
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
            StepKind::Read => self.check_read(step, reply),
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
        mut reply: StepReply<'_, impl Iterator<Item = &'a [u8]>>,
    ) -> Result<Done, StepError> {
        let asked = self.plan.bytes_of(step);
        let read = reply::read(reply.results, asked, reply.data_bytes)?;
        // A block lies inside its file. A server may return less than asked, but then it must not report the end of
        // file.
        let is_whole = read.count_bytes == asked;
        if read.count_bytes == 0 || (read.is_end && !is_whole) {
            return Err(StepError::Short);
        }
        let is_right = match read.data {
            ReadData::Inline(data) => self.matches(step, 0, data),
            ReadData::Bulk => {
                let mut at = 0;
                let bytes = read.count_bytes as usize;
                reply.data.all(|piece| {
                    // Data outside the results may end with XDR padding, which is not content.
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

/// Upper bound of the results of every procedure used here, without READ data: status, attributes and a few words.
pub(crate) const RESULTS_BYTES_MAX: usize = 256;

/// The reply that asks to repeat the call later.
const LATER: StepError = StepError::Reply(ReplyError::Status(Status::Jukebox));

/// The call of a procedure.
pub(crate) const fn call_of(procedure: u32) -> Call {
    Call {
        program: nfs::PROGRAM,
        version: nfs::VERSION,
        procedure,
    }
}

/// The calls of one part of a load.
#[derive(Debug)]
pub(crate) struct NfsWorkload {
    work: Arc<Work>,
    credential: Credential,
    steps: Steps,
    next: Step,
    /// Filled payload of a refused WRITE: the next attempt uses it, and does not fill it again.
    prepared: (Step, BulkItem),
    pub(crate) tally: Tally,
}

impl NfsWorkload {
    /// Part number `part` of `parts`.
    pub(crate) fn new(work: Arc<Work>, credential: Credential, part: u32, parts: u32) -> Self {
        let kinds = StepKind::ALL.into_iter();
        let kinds: Vec<_> = kinds.filter(|kind| kind.is_made_by(work.plan.op)).collect();
        let mut tally = Tally::new(&kinds);
        tally.written = Written::new(&work.plan, work.verify);
        let mut steps = Steps::new(work.plan, part, parts);
        Self {
            credential,
            next: steps.step(),
            steps,
            prepared: (Step::default(), BulkItem::new()),
            tally,
            work,
        }
    }

    pub(crate) fn work(&self) -> &Work {
        &self.work
    }

    /// Checks the reply to a step, and counts what it reports.
    #[inline]
    pub(crate) fn check_reply<'a>(
        &mut self,
        step: Step,
        reply: StepReply<'_, impl Iterator<Item = &'a [u8]>>,
        errors: &mut Errors,
    ) -> Verdict {
        match self.work.check(step, reply) {
            Ok(done) => {
                if let Some(verifier) = done.verifier {
                    self.tally.note_verifier(verifier);
                }
                if step.kind == StepKind::Write && done.bytes == self.work.plan.bytes_of(step) {
                    self.tally.written.note(step);
                }
                Verdict::Right {
                    bytes: done.bytes.into(),
                }
            }
            Err(error) if error == LATER => Verdict::Later,
            Err(error) => {
                errors.note(&error.name(), || error.to_string());
                Verdict::Wrong
            }
        }
    }

    fn call_bulk<P: Port>(
        &mut self,
        core: &mut Context<'_, P>,
        connection: ConnectionKey,
        tag: CallTag,
        step: Step,
        args: &[u8],
    ) -> Result<(), CallRefused> {
        let Self {
            work,
            credential,
            prepared,
            ..
        } = self;
        let bytes = work.plan.bytes_of(step);
        let mut call = BulkCall::new(call_of(work.request(step).procedure().number()), args);
        call.credential = credential.auth();
        call.results_bytes_max = RESULTS_BYTES_MAX;
        call.placement = Placement::Auto;
        if step.kind == StepKind::Read {
            let added = call.expect(ExpectedResult {
                request_range: 0..u32::try_from(args.len()).unwrap_or(0),
                bytes_min: 0,
                bytes_max: bytes,
            });
            debug_assert!(added.is_ok(), "there is room for one");
            return core.call_bulk(connection, &mut call, tag);
        }
        if prepared.0 != step {
            *prepared = (step, BulkItem::new());
        }
        // An earlier attempt may have run out of buffers in the middle: continue where it stopped.
        let item = &mut prepared.1;
        while item.len() < bytes as usize {
            let at = item.len();
            let mut piece = core.take_bulk().ok_or(CallRefused::NoSlot)?;
            piece.set_len(bytes as usize - at);
            work.fill(step, at, &mut piece);
            item.push(piece).map_err(|_| CallRefused::TooLong)?;
        }
        call.add(args.len(), item)
            .map_err(|_| CallRefused::TooLong)?;
        let outcome = core.call_bulk(connection, &mut call, tag);
        if outcome.is_err() {
            // `call` took the item: put it back for the next attempt.
            *item = call.pop().unwrap_or_default();
        }
        outcome
    }
}

impl Workload for NfsWorkload {
    type Step = Step;

    #[inline]
    fn step(&self) -> Step {
        self.next
    }

    #[inline]
    fn advance(&mut self) {
        self.next = self.steps.step();
    }

    fn issue<P: Port>(
        &mut self,
        core: &mut Context<'_, P>,
        connection: ConnectionKey,
        tag: CallTag,
        step: Step,
    ) -> Result<(), CallRefused> {
        let request = self.work.request(step);
        let mut args = [0; ARGUMENTS_BYTES_MAX];
        let written = request.encode(&mut args);
        debug_assert!(written.is_ok(), "there is room for any arguments");
        let args = args.get(..written.unwrap_or(0)).unwrap_or(&[]);
        if step.kind.is_bulk() {
            return self.call_bulk(core, connection, tag, step, args);
        }
        let (call, length) = (call_of(request.procedure().number()), args.len());
        let credential = self.credential.auth();
        core.call_authenticated(connection, call, credential, length, tag, |space| {
            space.copy_from_slice(args);
            length
        })
    }

    fn check(&mut self, step: Step, reply: &Reply<'_>, errors: &mut Errors) -> Verdict {
        self.check_reply(step, StepReply::whole(reply.results), errors)
    }

    fn check_bulk(&mut self, step: Step, reply: &BulkReply<'_>, errors: &mut Errors) -> Verdict {
        let item = reply.items.first().map(|result| &result.item);
        let pieces = item.into_iter().flat_map(BulkItem::parts);
        let reply = StepReply {
            results: reply.reply.results,
            data_bytes: item.map_or(0, BulkItem::len),
            data: pieces.map(|piece| &piece[..]),
        };
        self.check_reply(step, reply, errors)
    }

    #[inline]
    fn counted(&mut self, step: Step, bytes: u64, latency_ns: impl FnOnce() -> u64) {
        let is_whole = !step.kind.is_bulk() || bytes == u64::from(self.work.plan.bytes_of(step));
        self.tally.short += u64::from(!is_whole);
        self.tally.record(step.kind, latency_ns(), bytes);
    }

    #[cold]
    fn given_up(errors: &mut Errors) {
        errors.note(&LATER.name(), || LATER.to_string());
    }
}

#[cfg(test)]
pub(crate) mod tests;
