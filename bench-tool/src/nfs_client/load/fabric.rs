//! A load over a fabric of this project: an application on each polling core.
//!
//! READ data comes into a Write chunk, or by whatever means both ends have; WRITE data goes out of registered memory by
//! the same choice. Single calls, for what is not measured, are made by the application of the first core.

use std::collections::VecDeque;
use std::sync::Arc;

use rpcrdma_engine::{
    Activity, Application, BulkCall, BulkItem, BulkReply, Call, CallError, CallRefused, CallTag,
    CloseReason, ConnectionKey, Context, ExpectedResult, Placement, Reply,
};
use rpcrdma_fabric::clock::{Clock, Ticks};
use rpcrdma_fabric::interface::Port;

use super::Measured;
use super::course::Course;
use super::desk::{Answer, Desk, Order, Single};
use super::put_off::{self, PutOff};
use crate::nfs_client::steps::{Step, StepKind, Steps};
use crate::nfs_client::workload::{Done, StepError, Work, Written};
use crate::run::Watch;
use rpcrdma_nfs3::client::caller::{CallFailed, Results};
use rpcrdma_nfs3::client::credential::Credential;
use rpcrdma_nfs3::client::request::ARGUMENTS_BYTES_MAX;
use rpcrdma_nfs3::wire as nfs;

/// Calls that one poll starts at most, so that replies are never kept waiting by new calls.
const CALLS_PER_POLL: usize = 32;

/// Progress and the wish to stop are looked at every so many polls.
const HOUSEKEEPING_POLLS: u32 = 1024;

/// Results of any procedure that is called here, the data of a READ aside: status, attributes and a few words.
const RESULTS_BYTES_MAX: usize = 256;

/// The tag of a single call, which no slot of a load has.
const SINGLE: CallTag = CallTag::MAX;

/// A place for one outstanding call.
#[derive(Clone, Copy, Debug)]
struct Slot {
    connection: ConnectionKey,
    step: Step,
    start: Ticks,
    is_alive: bool,
}

/// A load under way.
#[derive(Debug)]
struct Running {
    work: Arc<Work>,
    course: Course,
    steps: Steps,
    /// A step whose call was refused and can be made later, with its payload if it has one.
    kept: Option<(Step, BulkItem)>,
    /// Calls that a lost connection took with it and that are to be made again, and when they started.
    again: VecDeque<(Step, Ticks)>,
    /// Calls that the server put off, which are to be made again later.
    put_off: PutOff<(Step, Ticks)>,
    /// Whether there are such calls, and connections that take the place of lost ones.
    goes_on: bool,
    slots: Vec<Slot>,
    free: VecDeque<u32>,
    outstanding: u32,
    measured: Measured,
    watch: Watch,
    part: u32,
    /// Calls that ended, those of the warm-up included: for the live line.
    completed: u64,
}

/// The application of a core.
#[derive(Debug)]
pub(crate) struct Caller {
    desk: Arc<Desk>,
    credential: Credential,
    /// Orders taken so far.
    taken: u32,
    /// A single call that waits to be made.
    single: Option<Single>,
    running: Option<Running>,
    polls: u32,
}

const fn call_of(procedure: u32) -> Call {
    Call {
        program: nfs::PROGRAM,
        version: nfs::VERSION,
        procedure,
    }
}

impl Caller {
    pub(crate) fn new(desk: Arc<Desk>, credential: Credential) -> Self {
        Self {
            desk,
            credential,
            taken: 0,
            single: None,
            running: None,
            polls: 0,
        }
    }

    #[cold]
    fn begin(&mut self, order: Order, now: Ticks) {
        self.taken = self.taken.wrapping_add(1);
        match order {
            Order::Call(single) => self.single = Some(single),
            Order::Load {
                connections,
                work,
                amount,
                part,
                parts,
                watch,
                goes_on,
            } => {
                let slot = |connection: &ConnectionKey| Slot {
                    connection: *connection,
                    step: Step::default(),
                    start: 0,
                    is_alive: true,
                };
                // Slot by slot over all connections, so that the first calls go to different ones.
                let slots = (0..amount.depth).flat_map(|_| connections.iter().map(slot));
                let slots: Vec<Slot> = slots.collect();
                let kinds = StepKind::ALL.into_iter();
                let kinds: Vec<_> = kinds.filter(|kind| kind.is_made_by(work.plan.op)).collect();
                let mut measured = Measured::new(&kinds);
                measured.written = Written::new(&work.plan, work.verify);
                self.running = Some(Running {
                    course: Course::new(
                        Clock::new(),
                        &amount,
                        now,
                        Arc::clone(&self.desk.exchange),
                    ),
                    steps: Steps::new(work.plan, part, parts),
                    kept: None,
                    again: VecDeque::with_capacity(slots.len()),
                    put_off: PutOff::new(&Clock::new(), amount.patience, slots.len()),
                    goes_on,
                    free: (0..u32::try_from(slots.len()).unwrap_or(u32::MAX)).collect(),
                    slots,
                    outstanding: 0,
                    measured,
                    watch,
                    part,
                    completed: 0,
                    work,
                });
            }
        }
    }

    /// Makes the single call that waits; whether it could be made.
    #[cold]
    fn call_single<P: Port>(&mut self, core: &mut Context<'_, P>) -> bool {
        let Some(single) = self.single.take() else {
            return false;
        };
        let (procedure, credential) = (call_of(single.procedure), self.credential.auth());
        let args = &single.args[..];
        let outcome = if single.data_bytes_max > 0 {
            let mut call = reading(procedure, args, single.data_bytes_max);
            call.credential = credential;
            core.call_bulk(single.connection, &mut call, SINGLE)
        } else {
            let bytes = args.len();
            core.call_authenticated(
                single.connection,
                procedure,
                credential,
                bytes,
                SINGLE,
                |space| {
                    space.copy_from_slice(args);
                    bytes
                },
            )
        };
        match outcome {
            Ok(()) => true,
            Err(refused) if refused.is_transient() => {
                self.single = Some(single);
                false
            }
            Err(refused) => {
                let words = refused.to_string();
                self.desk.answer(Answer::Results(Err(if is_lost(refused) {
                    CallFailed::Lost(words)
                } else {
                    CallFailed::Fabric(words)
                })));
                true
            }
        }
    }
}

impl Caller {
    #[cold]
    fn answer(&self, results: Result<Results, CallError>) {
        let results = results.map_err(|error| match error {
            CallError::Disconnected => CallFailed::Lost(error.to_string()),
            error => CallFailed::Fabric(error.to_string()),
        });
        self.desk.answer(Answer::Results(results));
    }
}

impl Running {
    /// Makes the calls that may be made now.
    fn make_calls<P: Port>(
        &mut self,
        core: &mut Context<'_, P>,
        credential: &Credential,
        now: Ticks,
    ) -> bool {
        let mut made = false;
        while let Some(call) = self.put_off.pop_due(now) {
            self.again.push_back(call);
        }
        for _ in 0..CALLS_PER_POLL {
            let again = self.again.front().copied();
            let Some(start) = again.map(|call| call.1).or_else(|| self.course.due(now)) else {
                break;
            };
            let Some(index) = self.free.pop_front() else {
                break;
            };
            let Some(slot) = self.slots.get(index as usize).copied() else {
                break;
            };
            if !slot.is_alive {
                // Its connection is gone, and the slot with it.
                continue;
            }
            let (step, mut item) = match again {
                Some((step, _)) => (step, BulkItem::new()),
                None => match self.kept.take() {
                    Some(kept) => kept,
                    None => (self.steps.step(), BulkItem::new()),
                },
            };
            let tag = CallTag::from(index);
            match call(
                core,
                credential,
                &self.work,
                slot.connection,
                tag,
                step,
                &mut item,
            ) {
                Ok(()) => {
                    if let Some(slot) = self.slots.get_mut(index as usize) {
                        (slot.step, slot.start) = (step, start);
                    }
                    self.outstanding += 1;
                    match again {
                        Some(_) => drop(self.again.pop_front()),
                        None => self.course.made(start),
                    }
                    made = true;
                }
                Err(refused) => {
                    if again.is_none() {
                        self.kept = Some((step, item));
                    }
                    if refused.is_transient() {
                        self.free.push_back(index);
                    } else {
                        self.refused(index, refused);
                    }
                    break;
                }
            }
        }
        made
    }

    /// Whether every call has ended that was made.
    fn is_done(&self) -> bool {
        self.course.is_ending()
            && self.outstanding == 0
            && self.again.is_empty()
            && self.put_off.is_empty()
    }

    #[cold]
    fn refused(&mut self, index: u32, refused: CallRefused) {
        if let Some(slot) = self.slots.get_mut(index as usize) {
            slot.is_alive = false;
        }
        if self.goes_on && is_lost(refused) {
            // It is closing, and another takes its place.
            return;
        }
        let errors = &mut self.measured.errors;
        errors.note("calls_refused".to_owned(), || refused.to_string());
    }

    /// The call in a slot has ended; its step and when it started.
    fn take_ended(&mut self, tag: CallTag) -> Option<(Step, Ticks)> {
        let index = u32::try_from(tag).ok()?;
        let slot = self.slots.get(index as usize)?;
        let ended = (slot.step, slot.start);
        self.outstanding = self.outstanding.saturating_sub(1);
        self.free.push_back(index);
        Some(ended)
    }

    fn judge(
        &mut self,
        (step, start): (Step, Ticks),
        outcome: Result<Done, StepError>,
        now: Ticks,
    ) {
        match outcome {
            Ok(done) => {
                self.completed += 1;
                self.measured
                    .note(&mut self.course, &self.work, (step, start), done, now);
            }
            Err(error)
                if put_off::is_put_off(&error) && self.put_off.push((step, start), start, now) => {}
            Err(error) => self.measured.failed(&mut self.course, start, error),
        }
    }

    #[cold]
    fn failed(&mut self, (step, start): (Step, Ticks), error: CallError) {
        if self.goes_on && error == CallError::Disconnected {
            self.again.push_back((step, start));
            return;
        }
        let errors = &mut self.measured.errors;
        errors.note("calls_failed".to_owned(), || error.to_string());
        self.course.failed(start);
    }

    /// Another connection takes the place of one that was lost, whose calls have ended.
    fn replace(&mut self, lost: ConnectionKey, fresh: ConnectionKey) {
        let Self { slots, free, .. } = self;
        let is_of = |index: &u32, slots: &[Slot]| {
            let slot = slots.get(*index as usize);
            slot.is_some_and(|slot| slot.connection == lost)
        };
        free.retain(|index| !is_of(index, slots));
        for (slot, index) in slots.iter_mut().zip(0_u32..) {
            if slot.connection == lost {
                (slot.connection, slot.is_alive) = (fresh, true);
                free.push_back(index);
            }
        }
    }

    /// Looks at what need not be looked at in every poll.
    #[cold]
    fn housekeeping(&mut self, desk: &Desk, now: Ticks) {
        for (lost, fresh) in desk.replaced() {
            self.replace(lost, fresh);
        }
        if let Some(progress) = self.watch.progress.core(self.part as usize) {
            progress.publish(self.completed, self.measured.errors.total());
        }
        let is_dead = !self.goes_on && self.slots.iter().all(|slot| !slot.is_alive);
        if (self.watch.stop.is_asked() || is_dead) && !self.course.is_ending() {
            self.measured.interrupted = true;
            self.course.end(now);
            for (_, start) in self.put_off.end() {
                self.measured
                    .failed(&mut self.course, start, put_off::NOT_AGAIN);
            }
        }
    }
}

/// Whether a connection that refuses so is gone, or about to be.
fn is_lost(refused: CallRefused) -> bool {
    matches!(
        refused,
        CallRefused::UnknownConnection | CallRefused::NotReady
    )
}

/// A call whose results end with up to `bytes_max` bytes of data, which may come beside them.
fn reading(procedure: Call, args: &[u8], bytes_max: u32) -> BulkCall<'_> {
    let mut call = BulkCall::new(procedure, args);
    call.results_bytes_max = RESULTS_BYTES_MAX;
    let added = call.expect(ExpectedResult {
        request_range: 0..u32::try_from(args.len()).unwrap_or(0),
        bytes_min: 0,
        bytes_max,
    });
    debug_assert!(added.is_ok(), "there is room for one");
    call
}

/// Makes one call. `item` is what there is of its payload, and empty when the call is made.
///
/// # Errors
/// Why it was refused; the payload is in `item`, for another try.
fn call<P: Port>(
    core: &mut Context<'_, P>,
    credential: &Credential,
    work: &Work,
    connection: ConnectionKey,
    tag: CallTag,
    step: Step,
    item: &mut BulkItem,
) -> Result<(), CallRefused> {
    let request = work.request(step);
    let mut args = [0; ARGUMENTS_BYTES_MAX];
    let written = request.encode(&mut args);
    debug_assert!(written.is_ok(), "there is room for any arguments");
    let args = args.get(..written.unwrap_or(0)).unwrap_or(&[]);
    let procedure = call_of(request.procedure().number());
    if !step.kind.is_bulk() {
        let length = args.len();
        return core.call_authenticated(
            connection,
            procedure,
            credential.auth(),
            length,
            tag,
            |space| {
                space.copy_from_slice(args);
                length
            },
        );
    }
    let bytes = work.plan.bytes_of(step);
    let mut call = if step.kind == StepKind::Write {
        BulkCall::new(procedure, args)
    } else {
        reading(procedure, args, bytes)
    };
    call.credential = credential.auth();
    call.results_bytes_max = RESULTS_BYTES_MAX;
    call.placement = Placement::Auto;
    if step.kind == StepKind::Write {
        while item.len() < bytes as usize {
            let at = item.len();
            let Some(mut piece) = core.take_bulk() else {
                return Err(CallRefused::NoSlot);
            };
            piece.set_len(bytes as usize - at);
            work.fill(step, at, &mut piece);
            if item.push(piece).is_err() {
                return Err(CallRefused::TooLong);
            }
        }
        if call.add(args.len(), item).is_err() {
            return Err(CallRefused::TooLong);
        }
    }
    let outcome = core.call_bulk(connection, &mut call, tag);
    if outcome.is_err() {
        *item = call.pop().unwrap_or_default();
    }
    outcome
}

impl Application for Caller {
    const CLOCK_INTERVAL_POLLS: u32 = 4;

    fn completed(
        &mut self,
        tag: CallTag,
        _connection: ConnectionKey,
        result: Result<Reply<'_>, CallError>,
        now: Ticks,
    ) {
        if tag == SINGLE {
            let results = result.map(|reply| Results {
                stream: reply.results.to_vec(),
                ..Results::default()
            });
            return self.answer(results);
        }
        let Some(running) = &mut self.running else {
            return;
        };
        let Some(ended) = running.take_ended(tag) else {
            return;
        };
        match result {
            Ok(reply) => {
                let none = std::iter::empty();
                let outcome = running.work.check(ended.0, reply.results, 0, none);
                running.judge(ended, outcome, now);
            }
            Err(error) => running.failed(ended, error),
        }
    }

    fn completed_bulk(
        &mut self,
        tag: CallTag,
        _connection: ConnectionKey,
        result: Result<BulkReply<'_>, CallError>,
        now: Ticks,
    ) {
        if tag == SINGLE {
            let results = result.map(|reply| Results {
                stream: reply.reply.results.to_vec(),
                beside: reply.items.first().map_or_else(Vec::new, |it| {
                    it.item.parts().flat_map(|piece| piece.to_vec()).collect()
                }),
                ..Results::default()
            });
            return self.answer(results);
        }
        let Some(running) = &mut self.running else {
            return;
        };
        let Some(ended) = running.take_ended(tag) else {
            return;
        };
        match result {
            Ok(reply) => {
                let item = reply.items.first().map(|result| &result.item);
                let bytes = item.map_or(0, BulkItem::len);
                let pieces = item.into_iter().flat_map(BulkItem::parts);
                let pieces = pieces.map(|piece| &piece[..]);
                let results = reply.reply.results;
                let outcome = running.work.check(ended.0, results, bytes, pieces);
                running.judge(ended, outcome, now);
            }
            Err(error) => running.failed(ended, error),
        }
    }

    fn poll<P: Port>(&mut self, core: &mut Context<'_, P>, now: Ticks) -> Activity {
        let Some(running) = &mut self.running else {
            if let Some(order) = self.desk.take(self.taken) {
                self.begin(order, now);
            }
            let made = self.single.is_some() && self.call_single(core);
            return Activity::from_busy(made);
        };
        running.course.advance(now);
        self.polls = self.polls.wrapping_add(1);
        if self.polls.is_multiple_of(HOUSEKEEPING_POLLS) {
            running.housekeeping(&self.desk, now);
        }
        let made = running.make_calls(core, &self.credential, now);
        if running.is_done()
            && let Some(mut ended) = self.running.take()
        {
            ended.measured.elapsed = ended.course.elapsed();
            ended.measured.backlog = ended.course.backlog();
            ended.measured.put_off = ended.put_off.count();
            let recorder = Box::new(ended.course.into_recorder());
            let measured = Box::new(ended.measured);
            self.desk.answer(Answer::Measured(measured, recorder));
        }
        Activity::from_busy(made)
    }

    fn next_due(&self) -> Option<Ticks> {
        // A call that has no place is made when one of those under way has ended.
        let running = self.running.as_ref().filter(|it| !it.free.is_empty())?;
        running.course.next_due()
    }

    fn disconnected(&mut self, connection: ConnectionKey, reason: CloseReason) {
        if let Some(running) = &mut self.running {
            let slots = running.slots.iter_mut();
            let mut lost = false;
            for slot in slots.filter(|slot| slot.connection == connection) {
                lost |= slot.is_alive;
                slot.is_alive = false;
            }
            if lost && !running.goes_on {
                let errors = &mut running.measured.errors;
                errors.note("connections_lost".to_owned(), || reason.to_string());
            }
        }
    }
}
