//! The load generator of one core: an application that makes calls, times them, and repeats them where the options
//! ask for it. A [`Workload`] decides what each call is.
//!
//! Here is what each poll does: calls are made, and end. What is rare is in [`orders`].

mod orders;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

use rpcrdma_engine::{
    Activity, Application, BulkItem, BulkReply, CallError, CallRefused, CallTag, CloseReason,
    ConnectionKey, Context, CounterSnapshot, Outcome, Reply, ReplyWriter, Request,
};
use rpcrdma_fabric::clock::Ticks;
use rpcrdma_fabric::interface::{Port, REAP_MAX};
use rpcrdma_protocol::rpc::Programs;

use super::control::{Answer, LoadControl, SingleCall, SingleError, SingleReply, is_lost};
use super::measured::Measured;
use super::phase::LoadPhase;
use super::retry_later::RetryLater;
use super::workload::{Verdict, Workload};
use super::{Amount, Watch};

/// Upper bound of the calls that one poll starts: new calls must not delay the handling of replies.
const CALLS_PER_POLL: usize = 32;

/// The tag of a single call; no slot of a load has this number. The highest bit is the node's.
const SINGLE: CallTag = CallTag::MAX >> 1;

/// A place for one outstanding call.
#[derive(Clone, Copy, Debug)]
struct Slot<S> {
    connection: ConnectionKey,
    /// When the call was made (closed loop) or was due (open loop).
    start: Ticks,
    step: S,
    alive: bool,
}

/// Calls with the same start and the same end.
#[derive(Clone, Copy, Debug)]
struct Ended {
    start: Ticks,
    end: Ticks,
    calls: u64,
}

/// The result of an attempt to make a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attempt {
    Made,
    /// The core refused it; this poll makes no more calls.
    Refused,
    /// The slot's connection is lost; the slot leaves the free list.
    Lost,
}

/// Calls to repeat, each with its first start.
#[derive(Debug)]
struct Repeats<S> {
    /// Calls to repeat as soon as a slot is free: those of lost connections, and those whose pause is over.
    lost: VecDeque<(S, Ticks)>,
    /// Calls that the server asked to repeat later.
    later: RetryLater<(S, Ticks)>,
}

impl<S: Copy> Repeats<S> {
    fn len(&self) -> usize {
        self.lost.len() + self.later.len()
    }
}

/// The application of a load generating core.
#[derive(Debug)]
pub(crate) struct Generator<W: Workload> {
    control: Arc<LoadControl<W>>,
    /// Orders taken so far.
    taken: u32,
    /// A single call that is not made yet.
    single: Option<SingleCall>,
    /// `None` while no load runs.
    workload: Option<W>,
    phase: LoadPhase,
    /// Before this time a poll has nothing to do but make calls; 0 means that every poll calls [`Generator::attend`].
    attention: Ticks,
    slots: Vec<Slot<W::Step>>,
    free: VecDeque<u32>,
    /// A load that begins at the next poll.
    starting: Option<Amount>,
    outstanding: u32,
    /// Successful calls, including those of the warm-up: for the live line.
    completed: u64,
    /// Calls that ended in this iteration. They are recorded after the next calls are sent, so that the cost of
    /// recording does not add to the measured latency.
    ended: Vec<Ended>,
    repeats: Repeats<W::Step>,
    /// Whether lost connections are replaced and their calls repeated.
    reconnects: bool,
    counters_start: Option<CounterSnapshot>,
    /// When the generator looks for what others ask of it.
    housekeeping_due: Ticks,
    /// The watch of the current load, with the number of this part.
    watch: Option<(Watch, usize)>,
    measured: Measured,
}

impl<W: Workload> Generator<W> {
    /// A generator that follows the orders of `control`.
    pub(crate) fn new(control: Arc<LoadControl<W>>) -> Self {
        Self {
            control,
            taken: 0,
            single: None,
            workload: None,
            phase: LoadPhase::idle(),
            attention: 0,
            slots: Vec::new(),
            free: VecDeque::new(),
            starting: None,
            outstanding: 0,
            completed: 0,
            ended: Vec::with_capacity(REAP_MAX),
            repeats: Repeats {
                lost: VecDeque::new(),
                later: RetryLater::new(std::time::Duration::ZERO, 0),
            },
            reconnects: false,
            counters_start: None,
            housekeeping_due: 0,
            watch: None,
            measured: Measured::default(),
        }
    }

    /// Makes the calls that are due and have a slot. Returns whether it made any.
    #[inline]
    fn make_calls<P: Port>(&mut self, core: &mut Context<'_, P>, now: Ticks) -> bool {
        // In an open loop a call starts at most one idle iteration late. Its latency runs from the due time, so it
        // includes this delay.
        let now = self.phase.now(now);
        let mut made = false;
        for _ in 0..CALLS_PER_POLL {
            let repeated = self.repeats.lost.front().copied();
            let start = repeated.map(|call| call.1);
            let Some(start) = start.or_else(|| self.phase.due(now)) else {
                if self.phase.is_enough() {
                    // All calls are made: from now on every poll checks whether the last one has ended.
                    self.attention = 0;
                }
                break;
            };
            let Some(index) = self.free.pop_front() else {
                break;
            };
            match self.make_call(core, index, start, repeated.map(|call| call.0)) {
                Attempt::Made => made = true,
                Attempt::Refused => break,
                Attempt::Lost => {}
            }
        }
        made
    }

    /// Makes the next call, or a `repeated` one, in a free slot. New and repeated calls share this one call site, so
    /// that the compiler inlines it.
    #[inline]
    fn make_call<P: Port>(
        &mut self,
        core: &mut Context<'_, P>,
        index: u32,
        start: Ticks,
        repeated: Option<W::Step>,
    ) -> Attempt {
        let slot = self.slots.get_mut(index as usize);
        let (Some(slot), Some(workload)) = (slot.filter(|it| it.alive), &mut self.workload) else {
            return Attempt::Lost;
        };
        let (calls, step) = match repeated {
            Some(step) => (0, step),
            None => (workload.calls(self.phase.left()), workload.step()),
        };
        match workload.issue(core, slot.connection, u64::from(index), step) {
            Ok(()) => {
                (slot.start, slot.step) = (start, step);
                self.outstanding += 1;
                if repeated.is_some() {
                    self.repeats.lost.pop_front();
                } else {
                    workload.advance();
                    self.phase.made(start, calls);
                }
                Attempt::Made
            }
            Err(refused) => self.refused(index, refused),
        }
    }

    /// Handles a refused call: the slot is free again, or dead.
    #[cold]
    fn refused(&mut self, index: u32, refused: CallRefused) -> Attempt {
        if refused.is_transient() {
            self.free.push_back(index);
        } else if self.reconnects && is_lost(refused) {
            // The replacement revives the slot; see `replace`.
            self.kill(index);
        } else {
            self.give_up(index, refused);
        }
        Attempt::Refused
    }

    fn kill(&mut self, index: u32) {
        if let Some(slot) = self.slots.get_mut(index as usize) {
            slot.alive = false;
        }
        self.attention = 0;
    }

    /// Whether all slots are dead and no connection will be replaced.
    fn is_dead(&self) -> bool {
        let is_dead = !self.slots.is_empty() && self.slots.iter().all(|slot| !slot.alive);
        is_dead && !self.reconnects
    }

    /// Takes a slot out of use for a permanent refusal, and counts an error.
    #[cold]
    fn give_up(&mut self, index: u32, refused: CallRefused) {
        self.kill(index);
        let errors = &mut self.measured.errors;
        errors.note("calls_refused", || refused.to_string());
        self.measured.first_refusal.get_or_insert(refused);
    }

    /// Stops making calls before the limit is reached.
    #[cold]
    fn interrupt<P: Port>(&mut self, core: &Context<'_, P>, now: Ticks) {
        self.measured.interrupted = true;
        let change = self.phase.end(now);
        self.note(change, core);
        for _ in self.repeats.later.end() {
            W::given_up(&mut self.measured.errors);
        }
        self.attention = 0;
    }

    /// Moves the slots of a lost connection to its replacement. All calls of the lost connection have ended.
    #[cold]
    fn replace(&mut self, lost: ConnectionKey, fresh: ConnectionKey) {
        let Self { slots, free, .. } = self;
        let is_of = |index: &u32, slots: &[Slot<W::Step>]| {
            let slot = slots.get(*index as usize);
            slot.is_some_and(|slot| slot.connection == lost)
        };
        // Some of its slots may still be free. Remove them first: below, all of its slots become free, each once.
        free.retain(|index| !is_of(index, slots));
        for (slot, index) in slots.iter_mut().zip(0_u32..) {
            if slot.connection == lost {
                (slot.connection, slot.alive) = (fresh, true);
                free.push_back(index);
            }
        }
    }

    /// The slot of a call, its step, and its start.
    #[inline]
    fn slot(&self, tag: CallTag) -> Option<(u32, W::Step, Ticks)> {
        let index = u32::try_from(tag).ok()?;
        let slot = self.slots.get(index as usize)?;
        Some((index, slot.step, slot.start))
    }

    /// Frees the slot of a call that has ended.
    #[inline]
    fn give_back(&mut self, index: u32) {
        self.outstanding = self.outstanding.saturating_sub(1);
        self.free.push_back(index);
    }

    /// Handles the verdict on a reply that arrived at `now`.
    #[inline]
    fn judge(&mut self, index: u32, call: (W::Step, Ticks), verdict: Verdict, now: Ticks) {
        self.give_back(index);
        match verdict {
            Verdict::Right { bytes } => self.call_succeeded(call, bytes, now),
            verdict => self.call_not_succeeded(index, call, verdict, now),
        }
    }

    /// Counts a correct reply. Calls of one iteration often share start and end; these become one entry, which is
    /// recorded in one step.
    #[inline]
    fn call_succeeded(&mut self, (step, start): (W::Step, Ticks), bytes: u64, end: Ticks) {
        self.completed += 1;
        if !self.phase.is_measured(start) {
            return;
        }
        self.measured.payload_bytes += bytes;
        if let Some(workload) = &mut self.workload {
            workload.counted(step, bytes, || self.phase.latency_ns(start, end));
        }
        match self.ended.last_mut() {
            Some(last) if (last.start, last.end) == (start, end) => last.calls += 1,
            _ => self.ended.push(Ended {
                start,
                end,
                calls: 1,
            }),
        }
    }

    #[cold]
    #[inline(never)]
    fn call_not_succeeded(
        &mut self,
        index: u32,
        (step, start): (W::Step, Ticks),
        verdict: Verdict,
        now: Ticks,
    ) {
        match verdict {
            Verdict::Right { .. } | Verdict::Wrong => {}
            Verdict::Later => {
                let later = &mut self.repeats.later;
                if later.push((step, start), start, now) {
                    self.attention = 0;
                } else {
                    W::given_up(&mut self.measured.errors);
                }
            }
            Verdict::Several { refused } => {
                let times = self.workload.as_ref().map_or(&[][..], W::latencies_ns);
                self.completed += times.len() as u64;
                if self.phase.is_measured(start) {
                    for latency_ns in times {
                        self.phase.record(*latency_ns, 1, now);
                    }
                }
                if let Some(refused) = refused {
                    self.give_up(index, refused);
                }
            }
        }
    }

    #[inline]
    fn record_ended(&mut self) {
        while let Some(Ended { start, end, calls }) = self.ended.pop() {
            let latency_ns = self.phase.latency_ns(start, end);
            self.phase.record(latency_ns, calls, end);
        }
    }

    /// Handles a call that ended without a reply to check.
    #[cold]
    #[inline(never)]
    fn call_failed(&mut self, index: u32, call: (W::Step, Ticks), error: CallError) {
        self.give_back(index);
        if self.reconnects && error == CallError::Disconnected {
            self.repeats.lost.push_back(call);
            self.measured.losses.calls += 1;
            self.attention = 0;
            return;
        }
        let workload = self.workload.as_ref();
        match workload.and_then(|it| it.refusal(error)) {
            Some(refused) => self.give_up(index, refused),
            None => self
                .measured
                .errors
                .note("calls_failed", || error.to_string()),
        }
    }

    /// Reports the result of a single call. Calls that a load did not wait for end here, too.
    #[cold]
    #[inline(never)]
    fn single_completed(&self, tag: CallTag, result: Result<SingleReply, CallError>) {
        if tag != SINGLE {
            return;
        }
        let outcome = result.map_err(SingleError::Failed);
        self.control.answer(Answer::Call(outcome));
    }
}

impl<W: Workload> Application for Generator<W> {
    /// In a closed loop the clock matters only when a reply arrives, and the core reads it then. An open loop reads
    /// the clock in every iteration by itself ([`Generator::make_calls`]).
    const CLOCK_INTERVAL_POLLS: u32 = 16;

    fn programs(&self) -> Programs {
        W::programs()
    }

    // Out of line, like `poll`: inlined into the core's iteration, the two need more registers than there are.
    #[inline(never)]
    fn completed(
        &mut self,
        tag: CallTag,
        _connection: ConnectionKey,
        result: Result<Reply<'_>, CallError>,
        now: Ticks,
    ) {
        let (Some((index, step, start)), Some(workload)) = (self.slot(tag), &mut self.workload)
        else {
            let result = result.map(|reply| SingleReply {
                results: reply.results.to_vec(),
                bulk: Vec::new(),
            });
            return self.single_completed(tag, result);
        };
        match result {
            Ok(reply) => {
                let verdict = workload.check(step, &reply, &mut self.measured.errors);
                self.judge(index, (step, start), verdict, now);
            }
            Err(error) => self.call_failed(index, (step, start), error),
        }
    }

    #[inline]
    fn completed_bulk(
        &mut self,
        tag: CallTag,
        _connection: ConnectionKey,
        result: Result<BulkReply<'_>, CallError>,
        now: Ticks,
    ) {
        let (Some((index, step, start)), Some(workload)) = (self.slot(tag), &mut self.workload)
        else {
            let result = result.map(|bulk| SingleReply {
                results: bulk.reply.results.to_vec(),
                bulk: bulk
                    .items
                    .first()
                    .map_or_else(Vec::new, |it| data(&it.item)),
            });
            return self.single_completed(tag, result);
        };
        match result {
            Ok(reply) => {
                let verdict = workload.check_bulk(step, &reply, &mut self.measured.errors);
                self.judge(index, (step, start), verdict, now);
            }
            Err(error) => self.call_failed(index, (step, start), error),
        }
    }

    #[inline]
    fn call(&mut self, request: &Request<'_>, reply: &mut ReplyWriter<'_>) -> Outcome {
        W::call(request, reply)
    }

    #[inline(never)]
    fn poll<P: Port>(&mut self, core: &mut Context<'_, P>, now: Ticks) -> Activity {
        let ordered = now >= self.attention && self.attend(core, now);
        let made = self.make_calls(core, now);
        self.record_ended();
        Activity::from_busy(made | ordered)
    }

    fn next_due(&self) -> Option<Ticks> {
        if !self.phase.is_calling() && self.phase.next_due().is_none() {
            return None;
        }
        // Without a free slot the next call waits for a reply, and no time says when that arrives.
        let call = self.phase.next_due().filter(|_| !self.free.is_empty());
        let later = self.repeats.later.next_due();
        // Past the end that time is over, and would keep a core from parking.
        let end = Some(self.phase.until()).filter(|_| self.phase.is_calling());
        let times = [call, later, end];
        times.into_iter().flatten().min()
    }

    fn disconnected(&mut self, connection: ConnectionKey, reason: CloseReason) {
        let (mut was_ours, mut was_alive) = (false, false);
        for slot in self
            .slots
            .iter_mut()
            .filter(|slot| slot.connection == connection)
        {
            // Dead slots count too: a call that was refused while the connection closed has already killed its slot.
            was_ours = true;
            was_alive |= slot.alive;
            slot.alive = false;
        }
        // With reconnects, `Connections::look_after` counts the loss; counting it here as well would double it.
        if was_ours && !self.reconnects {
            self.measured.losses.connections += 1;
            if was_alive {
                let errors = &mut self.measured.errors;
                errors.note("connections_lost", || reason.to_string());
            }
        }
        self.attention = 0;
    }
}

fn data(item: &BulkItem) -> Vec<u8> {
    item.parts().flat_map(|piece| piece.to_vec()).collect()
}
