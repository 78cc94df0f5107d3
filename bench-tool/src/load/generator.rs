//! The load generator of one core: an application that makes calls and times them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rpcrdma_engine::CounterSnapshot;
use rpcrdma_engine::{
    Activity, Application, BulkReply, Call, CallError, CallRefused, CallTag, CloseReason,
    ConnectionKey, Context, Outcome, Reply, ReplyWriter, Request,
};
use rpcrdma_fabric::clock::{Clock, Ticks};
use rpcrdma_fabric::interface::{Port, REAP_MAX};

use super::bulk::{BulkLoad, BulkPlan, Reads};
use super::intervals::{Exchange, Recorder};
use super::pace::{Pace, Rate};
use super::probe::{self, Question};
use crate::bench_program::{
    self, BackStatus, CALL_BACK, CALLS_BACK_MAX, CallBack, CalledBack, Payload, answer_plain,
};
use crate::progress::Progress;
use crate::signals::Stop;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Calls that one poll starts at most, so that replies are never kept waiting by new calls.
const CALLS_PER_POLL: usize = 32;

/// Progress and the wish to stop are looked at every so many polls.
const HOUSEKEEPING_POLLS: u32 = 1024;

/// What every core's generator does. Fixed before it starts.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) work: Work,
    pub(crate) depth: u32,
    pub(crate) warmup: Duration,
    /// Length of an interval.
    pub(crate) interval: Duration,
    /// Measured time; `None` where calls are counted.
    pub(crate) duration: Option<Duration>,
    /// Calls to measure on this core; `None` where time is measured.
    pub(crate) count: Option<u64>,
    /// The share of this core; `None` for a closed loop.
    pub(crate) rate: Option<Rate>,
}

/// What the calls do.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    /// All of a call is in its message.
    Message {
        /// What to call.
        call: Call,
        /// `None` for calls without payload.
        payload_bytes: Option<usize>,
    },
    /// Payloads may travel beside it.
    Bulk(BulkPlan),
    /// The server calls, and says how long that took.
    Back {
        /// Payload of an echo; `None` for null calls.
        payload_bytes: Option<u32>,
    },
}

/// The work in hand.
#[derive(Debug)]
enum Maker {
    Message(Call, Payload),
    Bulk(BulkLoad),
    Back(CallBack),
}

/// What the generator shares with the thread that set it up.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// Set once, with the connections in place: the generator may begin.
    start: AtomicBool,
    connections: Mutex<Vec<ConnectionKey>>,
    /// Set by the generator: all is measured, and nothing is outstanding.
    finished: AtomicBool,
    /// Connections that were lost.
    lost: AtomicU32,
    /// Histograms on their way to the thread that packs them, and back.
    pub(crate) intervals: Exchange,
    /// What the server is asked before the calls and after them.
    pub(crate) question: Question,
}

impl Shared {
    pub(crate) fn start(&self, connections: Vec<ConnectionKey>) {
        if let Ok(mut place) = self.connections.lock() {
            *place = connections;
        }
        // SYNC POINT load-start: pairs with the Acquire load in `Generator::poll`.
        self.start.store(true, Ordering::Release);
    }

    pub(crate) fn is_finished(&self) -> bool {
        // SYNC POINT load-finished: pairs with the Release store in `Generator::finish`.
        self.finished.load(Ordering::Acquire)
    }

    pub(crate) fn connections_lost(&self) -> u32 {
        self.lost.load(Ordering::Relaxed)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Connections are being made.
    Waiting,
    /// Calls are made and not counted, until the time.
    Warmup(Ticks),
    /// Calls are counted, until the time or the count; at the time given the interval ends, or all of it.
    Measuring(Ticks),
    /// No new calls; the outstanding ones come back.
    Ending,
    /// Nothing is outstanding.
    Finished,
}

/// A place for one outstanding call.
#[derive(Clone, Copy, Debug)]
struct Slot {
    connection: ConnectionKey,
    /// When the call was made (closed loop) or due (open loop).
    start: Ticks,
    /// The number that its payload is marked with.
    number: u64,
    /// Which of its operations read.
    reads: Reads,
    alive: bool,
}

/// Calls that began together and ended together.
#[derive(Clone, Copy, Debug)]
struct Ended {
    start: Ticks,
    end: Ticks,
    calls: u64,
}

/// What one core measured.
#[derive(Debug)]
pub(crate) struct Measured {
    /// Round-trip times: those of the last interval, when all is over.
    pub(crate) latency: Recorder,
    pub(crate) errors: u64,
    pub(crate) first_error: Option<CallError>,
    /// Why a connection took no more calls.
    pub(crate) first_refusal: Option<CallRefused>,
    pub(crate) mismatches: u64,
    /// Calls of the server that failed.
    pub(crate) back_failed: u64,
    /// Payload of the calls that are in the latencies; of bulk data alone.
    pub(crate) payload_bytes: u64,
    pub(crate) elapsed: Duration,
    pub(crate) interrupted: bool,
    pub(crate) counters: Option<CounterSnapshot>,
    /// Open loop: calls that were due and never made, because too many were outstanding.
    pub(crate) backlog: u64,
}

/// The application.
pub(crate) struct Generator {
    plan: Plan,
    shared: Arc<Shared>,
    clock: Clock,
    stop: Stop,
    progress: (Progress, usize),
    maker: Maker,
    /// Questions to the server that were put.
    questions: u32,
    phase: Phase,
    slots: Vec<Slot>,
    free: VecDeque<u32>,
    outstanding: u32,
    pace: Option<Pace>,
    number: u64,
    /// Calls that ended well, those of the warm-up included: for the live line.
    completed: u64,
    /// Calls made since the measurement began.
    started: u64,
    /// Set while and after measuring; calls that started before are not recorded.
    measured_start: Option<Ticks>,
    /// When measuring ends; never where calls are counted.
    measured_until: Ticks,
    last_recorded: Ticks,
    /// Calls that ended in this iteration: they are recorded when the next ones are on their way, so that
    /// recording is no part of what is measured.
    ended: Vec<Ended>,
    counters_start: Option<CounterSnapshot>,
    polls: u32,
    pub(crate) measured: Measured,
}

impl Generator {
    /// A generator for the core with number `core` of the client.
    pub(crate) fn new(
        plan: Plan,
        shared: Arc<Shared>,
        stop: Stop,
        progress: Progress,
        core: usize,
    ) -> Self {
        let maker = match plan.work {
            Work::Message {
                call,
                payload_bytes,
            } => Maker::Message(call, Payload::new(payload_bytes)),
            Work::Bulk(plan) => Maker::Bulk(BulkLoad::new(plan)),
            Work::Back { payload_bytes } => Maker::Back(CallBack {
                count: 0,
                payload_bytes,
            }),
        };
        let clock = Clock::new();
        let interval = clock.ticks(plan.interval);
        Self {
            plan,
            shared,
            clock,
            stop,
            progress: (progress, core),
            maker,
            questions: 0,
            phase: Phase::Waiting,
            slots: Vec::new(),
            free: VecDeque::new(),
            outstanding: 0,
            pace: None,
            number: 0,
            completed: 0,
            started: 0,
            measured_start: None,
            measured_until: Ticks::MAX,
            last_recorded: 0,
            ended: Vec::with_capacity(REAP_MAX),
            counters_start: None,
            polls: 0,
            measured: Measured {
                latency: Recorder::new(interval),
                errors: 0,
                first_error: None,
                first_refusal: None,
                mismatches: 0,
                back_failed: 0,
                payload_bytes: 0,
                elapsed: Duration::ZERO,
                interrupted: false,
                counters: None,
                backlog: 0,
            },
        }
    }

    fn begin(&mut self, now: Ticks) {
        let connections = self
            .shared
            .connections
            .lock()
            .map(|mut keys| std::mem::take(&mut *keys))
            .unwrap_or_default();
        // Slot by slot over all connections, so that the first calls go to different ones.
        for _ in 0..self.plan.depth {
            for connection in &connections {
                self.slots.push(Slot {
                    connection: *connection,
                    start: 0,
                    number: 0,
                    reads: Reads::default(),
                    alive: true,
                });
            }
        }
        self.free = (0..u32::try_from(self.slots.len()).unwrap_or(u32::MAX)).collect();
        self.pace = self
            .plan
            .rate
            .map(|rate| Pace::new(now, self.clock.ticks_per_second(), rate));
        self.phase = Phase::Warmup(now.saturating_add(self.clock.ticks(self.plan.warmup)));
    }

    /// Goes from phase to phase as time and counts say.
    #[inline]
    fn advance<P: Port>(&mut self, core: &Context<'_, P>, now: Ticks) {
        match self.phase {
            Phase::Waiting => {
                // SYNC POINT load-start: pairs with the Release store in `Shared::start`.
                if self.shared.start.load(Ordering::Acquire) {
                    self.begin(now);
                }
            }
            Phase::Warmup(until) if now >= until => {
                self.measured_start = Some(now);
                self.measured.latency.begin(now);
                self.counters_start = Some(core.counters().snapshot());
                let duration = self.plan.duration.map(|it| self.clock.ticks(it));
                self.measured_until = duration.map_or(Ticks::MAX, |it| now.saturating_add(it));
                self.measure_on();
            }
            Phase::Measuring(until) => {
                // Calls that failed count as well: no others are made for them.
                let is_count = |count| self.started >= count && self.outstanding == 0;
                let enough = self.plan.count.is_some_and(is_count);
                // Calls that are outstanding at the end belong to the last interval.
                if enough || now >= until && now >= self.measured_until {
                    self.end_measuring(core, now);
                } else if now >= until {
                    self.measured.latency.next(now, &self.shared.intervals);
                    self.measure_on();
                }
            }
            Phase::Ending if self.outstanding == 0 => {
                self.record_ended();
                self.finish(now);
            }
            Phase::Warmup(_) | Phase::Ending | Phase::Finished => {}
        }
    }

    /// Measures until the end of the interval or of all, whichever comes first: one time to look at in every poll.
    fn measure_on(&mut self) {
        self.phase = Phase::Measuring(self.measured.latency.until().min(self.measured_until));
    }

    fn end_measuring<P: Port>(&mut self, core: &Context<'_, P>, now: Ticks) {
        self.set_elapsed(now);
        let counters = core.counters().snapshot();
        self.measured.counters = self
            .counters_start
            .as_ref()
            .map(|start| counters.since(start));
        self.measured.backlog = self.pace.map_or(0, |pace| pace.behind(now));
        self.phase = Phase::Ending;
    }

    fn set_elapsed(&mut self, now: Ticks) {
        let start = self.measured_start.unwrap_or(now);
        self.measured.elapsed = Duration::from_nanos(self.clock.nanos_between(start, now));
    }

    fn finish(&mut self, now: Ticks) {
        // Calls that were made in the measured time are recorded however late they end, and the
        // time is that of the last of them: a stall at the end is neither lost nor called speed.
        let end = self.last_recorded.min(now);
        let measured = self
            .measured_start
            .map_or(0, |start| self.clock.nanos_between(start, end));
        if Duration::from_nanos(measured) > self.measured.elapsed {
            self.set_elapsed(end);
        }
        self.phase = Phase::Finished;
        self.publish();
        // SYNC POINT load-finished: pairs with the Acquire load in `Shared::is_finished`.
        self.shared.finished.store(true, Ordering::Release);
    }

    fn publish(&self) {
        if let Some(progress) = self.progress.0.core(self.progress.1) {
            progress.publish(self.completed, self.measured.errors);
        }
    }

    /// What need not be done in every poll.
    #[cold]
    fn housekeeping<P: Port>(&mut self, core: &Context<'_, P>, now: Ticks) {
        self.publish();
        if !self.stop.is_asked() {
            return;
        }
        match self.phase {
            Phase::Measuring(_) => {
                self.measured.interrupted = true;
                self.end_measuring(core, now);
            }
            Phase::Waiting | Phase::Warmup(_) => {
                self.measured.interrupted = true;
                self.phase = Phase::Ending;
            }
            Phase::Ending | Phase::Finished => {}
        }
    }

    /// Makes the calls that may be made now.
    #[inline]
    fn make_calls<P: Port>(&mut self, core: &mut Context<'_, P>, now: Ticks) -> bool {
        // A call at a set time starts at most one idle iteration late, which counts as a part of its latency.
        let now = match self.pace {
            None => now,
            Some(_) => self.clock.now(),
        };
        let mut made = false;
        for _ in 0..CALLS_PER_POLL {
            if self.plan.count.is_some_and(|count| self.started >= count) {
                break;
            }
            let start = match &self.pace {
                None => now,
                Some(pace) => match pace.start(now, self.measured_until) {
                    Some(due) => due,
                    None => break,
                },
            };
            let Some(index) = self.free.pop_front() else {
                break;
            };
            if !self.make_call(core, index, start) {
                break;
            }
            made = true;
            if let Some(pace) = &mut self.pace {
                pace.advance();
            }
        }
        made
    }

    #[inline]
    fn make_call<P: Port>(&mut self, core: &mut Context<'_, P>, index: u32, start: Ticks) -> bool {
        let Some(slot) = self.slots.get_mut(index as usize).filter(|slot| slot.alive) else {
            // Its connection is gone, and the slot with it.
            return true;
        };
        let (number, tag) = (self.number, u64::from(index));
        let mut started = 1;
        let outcome = match &mut self.maker {
            Maker::Message(call, payload) => core
                .call_in_place(slot.connection, *call, payload.args_bytes(), tag, |space| {
                    payload.write(space, number)
                })
                .map(|()| (number, Reads::default())),
            Maker::Bulk(load) => load.call(core, slot.connection, tag, number),
            Maker::Back(asked) => {
                // As many as may be, but no more than are to be counted.
                let most = CALLS_BACK_MAX as u64;
                let left = self.plan.count.map_or(most, |it| it - self.started);
                asked.count = u32::try_from(left.min(most)).unwrap_or(1);
                started = asked.count.into();
                ask_for_calls(core, asked, slot.connection, tag)
                    .map(|()| (number, Reads::default()))
            }
        };
        match outcome {
            Ok(made) => {
                slot.start = start;
                (slot.number, slot.reads) = made;
                self.number = number.wrapping_add(1);
                self.outstanding += 1;
                if self.measured_start.is_some_and(|begin| start >= begin) {
                    self.started += started;
                }
                true
            }
            Err(refused) if refused.is_transient() => {
                self.free.push_back(index);
                false
            }
            Err(refused) => {
                self.give_up(index, refused);
                false
            }
        }
    }

    /// Nothing more can be called by this slot.
    #[cold]
    fn give_up(&mut self, index: u32, refused: CallRefused) {
        if let Some(slot) = self.slots.get_mut(index as usize) {
            slot.alive = false;
        }
        self.measured.first_refusal.get_or_insert(refused);
        self.end_without_slots();
    }

    /// Ends when nothing can be called any more.
    #[cold]
    fn end_without_slots(&mut self) {
        let ended = matches!(self.phase, Phase::Finished);
        if !ended && !self.slots.is_empty() && self.slots.iter().all(|slot| !slot.alive) {
            self.measured.interrupted = true;
            self.phase = Phase::Ending;
        }
    }

    /// The slot of a call that has ended is free again.
    #[inline]
    fn give_back(&mut self, index: u32) {
        self.outstanding = self.outstanding.saturating_sub(1);
        self.free.push_back(index);
    }

    /// The slot of a call.
    #[inline]
    fn slot(&self, tag: CallTag) -> Option<(u32, &Slot)> {
        let index = u32::try_from(tag).ok()?;
        Some((index, self.slots.get(index as usize)?))
    }

    /// The server has made calls, or not.
    fn called_back(&mut self, tag: CallTag, result: Result<Reply<'_>, CallError>, now: Ticks) {
        let Some((index, &slot)) = self.slot(tag) else {
            return;
        };
        self.give_back(index);
        let called = match result {
            Ok(reply) => CalledBack::decode(reply.results),
            // A server that was made before CALL_BACK was.
            Err(CallError::ProcedureUnavailable) => {
                return self.give_up(index, CallRefused::NotTaken);
            }
            Err(error) => return self.note_error(error),
        };
        let Some(called) = called else {
            self.measured.mismatches += 1;
            return;
        };
        match called.status {
            BackStatus::Done => {}
            BackStatus::NotTaken => self.give_up(index, CallRefused::NotTaken),
            BackStatus::TooLong => self.give_up(index, CallRefused::TooLong),
        }
        self.completed += called.round_trips_ns().len() as u64;
        self.measured.back_failed += u64::from(called.failed);
        if self.measured_start.is_some_and(|begin| slot.start >= begin) {
            for round_trip_ns in called.round_trips_ns() {
                self.measured.latency.record(*round_trip_ns, 1);
            }
            self.last_recorded = now;
        }
    }

    /// A call that is none of those in messages alone has ended: a question to the server, or calls in the reverse
    /// direction.
    #[inline(never)]
    fn other_completed(&mut self, tag: CallTag, result: Result<Reply<'_>, CallError>, now: Ticks) {
        if tag == probe::TAG {
            return self.shared.question.completed(result);
        }
        if matches!(self.maker, Maker::Back(_)) {
            return self.called_back(tag, result, now);
        }
        // A reply in messages to a call with bulk data is not the one to it.
        let Some((index, slot)) = self.slot(tag) else {
            return;
        };
        let start = slot.start;
        self.give_back(index);
        match result {
            Ok(_) => {
                self.call_succeeded(start, now, false);
            }
            Err(error) => self.note_error(error),
        }
    }

    /// A call that began at `start` ended with a reply at `end`; `is_right` says whether it is the one to it. Whether it
    /// counts.
    ///
    /// One iteration starts several calls at the same time, and finds several replies: those are recorded as one.
    #[inline]
    fn call_succeeded(&mut self, start: Ticks, end: Ticks, is_right: bool) -> bool {
        if !is_right {
            self.measured.mismatches += 1;
        }
        self.completed += 1;
        if self.measured_start.is_none_or(|begin| start < begin) {
            return false;
        }
        match self.ended.last_mut() {
            Some(last) if (last.start, last.end) == (start, end) => last.calls += 1,
            _ => self.ended.push(Ended {
                start,
                end,
                calls: 1,
            }),
        }
        true
    }

    #[inline]
    fn record_ended(&mut self) {
        while let Some(Ended { start, end, calls }) = self.ended.pop() {
            let latency_ns = self.clock.nanos_between(start, end);
            self.measured.latency.record(latency_ns, calls);
            self.last_recorded = end;
        }
    }

    #[cold]
    fn note_error(&mut self, error: CallError) {
        self.measured.errors += 1;
        self.measured.first_error.get_or_insert(error);
    }
}

/// Asks the server to call. Out of line, as all calls but those that have everything in their messages.
#[inline(never)]
fn ask_for_calls<P: Port>(
    core: &mut Context<'_, P>,
    asked: &CallBack,
    connection: ConnectionKey,
    tag: CallTag,
) -> Result<(), CallRefused> {
    let call = bench_program::call(CALL_BACK);
    core.call(connection, call, &asked.encode(), tag)
}

impl Application for Generator {
    /// A core that waits for replies reads the clock when something came. Calls at set times have a reading of their
    /// own in every iteration ([`Generator::make_calls`]).
    const CLOCK_INTERVAL_POLLS: u32 = 16;

    // Out of line, as `poll` is: inlined into the iteration of a core, both of them cost more registers than that has.
    #[inline(never)]
    fn completed(
        &mut self,
        tag: CallTag,
        _connection: ConnectionKey,
        result: Result<Reply<'_>, CallError>,
        now: Ticks,
    ) {
        let slot = self.slot(tag);
        let (Some((index, slot)), Maker::Message(_, payload)) = (slot, &self.maker) else {
            return self.other_completed(tag, result, now);
        };
        let start = slot.start;
        match result {
            Ok(reply) => {
                let is_right = payload.matches(reply.results, slot.number);
                self.give_back(index);
                self.call_succeeded(start, now, is_right);
            }
            Err(error) => {
                self.give_back(index);
                self.note_error(error);
            }
        }
    }

    /// The server calls: what it was asked for.
    #[inline]
    fn call(&mut self, request: &Request<'_>, reply: &mut ReplyWriter<'_>) -> Outcome {
        answer_plain(request, reply).unwrap_or(Outcome::ProcedureUnavailable)
    }

    #[inline]
    fn completed_bulk(
        &mut self,
        tag: CallTag,
        connection: ConnectionKey,
        result: Result<BulkReply<'_>, CallError>,
        now: Ticks,
    ) {
        let slot = self.slot(tag);
        let (Some((index, slot)), Maker::Bulk(load)) = (slot, &self.maker) else {
            let plain = result.map(|bulk| bulk.reply);
            return self.completed(tag, connection, plain, now);
        };
        let (start, number) = (slot.start, slot.number);
        match result {
            Ok(reply) => {
                let is_right = load.matches(&reply, number, slot.reads);
                let bytes = load.call_bytes(number);
                self.give_back(index);
                if self.call_succeeded(start, now, is_right) {
                    self.measured.payload_bytes += bytes;
                }
            }
            Err(error) => {
                self.give_back(index);
                self.note_error(error);
            }
        }
    }

    #[inline(never)]
    fn poll<P: Port>(&mut self, core: &mut Context<'_, P>, now: Ticks) -> Activity {
        self.advance(core, now);
        let is_quiet = matches!(self.phase, Phase::Waiting | Phase::Finished);
        if is_quiet
            && self.shared.question.is_open(self.questions)
            && self.shared.question.call(core)
        {
            self.questions += 1;
        }
        self.polls = self.polls.wrapping_add(1);
        if self.polls.is_multiple_of(HOUSEKEEPING_POLLS) {
            self.housekeeping(core, now);
        }
        let calls = matches!(self.phase, Phase::Warmup(_) | Phase::Measuring(_));
        let made = calls && self.make_calls(core, now);
        self.record_ended();
        Activity::from_busy(made)
    }

    fn next_due(&self) -> Option<Ticks> {
        match self.phase {
            Phase::Warmup(until) | Phase::Measuring(until) => {
                // A call that has no place is made when one of those under way has ended.
                let is_place = !self.free.is_empty();
                let is_wanted = self.plan.count.is_none_or(|count| self.started < count);
                let pace = self.pace.filter(|_| is_place && is_wanted);
                Some(pace.map_or(until, |pace| pace.due().min(until)))
            }
            Phase::Waiting | Phase::Ending | Phase::Finished => None,
        }
    }

    fn disconnected(&mut self, connection: ConnectionKey, _reason: CloseReason) {
        let mut was_ours = false;
        for slot in self
            .slots
            .iter_mut()
            .filter(|slot| slot.connection == connection)
        {
            // Dead or alive: a call that was refused while the connection closed found out first.
            was_ours = true;
            slot.alive = false;
        }
        let ended = matches!(self.phase, Phase::Finished);
        if was_ours && !ended {
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
        }
        self.end_without_slots();
    }
}
