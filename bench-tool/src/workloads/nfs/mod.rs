//! The calls of `bench-tool nfs`: what each asks for, what it carries, and whether the answer is right.
//!
//! READ data comes into a Write chunk, or by whatever means both ends have; WRITE data goes out of registered memory by
//! the same choice.

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

/// The reply to a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepReply<'a, I> {
    pub(crate) results: &'a [u8],
    /// Bytes of data that came outside the results.
    pub(crate) data_bytes: usize,
    /// These bytes, in pieces, in order.
    pub(crate) data: I,
}

impl<'a> StepReply<'a, Empty<&'static [u8]>> {
    /// A reply with all of its data in the results.
    pub(crate) const fn whole(results: &'a [u8]) -> Self {
        Self {
            results,
            data_bytes: 0,
            data: iter::empty(),
        }
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

    /// Whether the reply to a step is right.
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
        // A block lies inside its file: what comes may be less, but not for the reason that the file ends.
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
                    // Data outside the results may end with padding.
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

/// Results of any procedure that is called here, the data of a READ aside: status, attributes and a few words.
pub(crate) const RESULTS_BYTES_MAX: usize = 256;

/// The reply of a server that asks to repeat the call later.
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
    /// Payload of a WRITE that was refused: it is not written again when the call is made.
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

    /// Checks the reply to a step, and notes what it says.
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
