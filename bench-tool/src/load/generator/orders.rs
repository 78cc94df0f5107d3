//! What a generator does rarely: it takes orders, begins and ends loads, and looks for what others ask of them.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use rpcrdma_engine::{BulkCall, ConnectionKey, Context, ExpectedResult};
use rpcrdma_fabric::clock::Ticks;
use rpcrdma_fabric::interface::Port;

use super::{Generator, Repeats, SINGLE, Slot};
use crate::load::control::{Answer, LoadAnswer, LoadOrder, Order, SingleError};
use crate::load::measured::Measured;
use crate::load::phase::{Change, LoadPhase};
use crate::load::retry_later::RetryLater;
use crate::load::workload::Workload;

impl<W: Workload> Generator<W> {
    /// The rare work: takes orders, changes phases, repeats delayed calls, ends the load. Returns whether it made a
    /// call.
    #[cold]
    #[inline(never)]
    pub(super) fn attend<P: Port>(&mut self, core: &mut Context<'_, P>, now: Ticks) -> bool {
        if self.phase.is_idle() {
            return self.take_order(core);
        }
        self.start(now);
        if now >= self.housekeeping_due {
            self.housekeeping_due = self.phase.next_housekeeping(now);
            self.housekeeping(core, now);
            if self.phase.is_idle() {
                return false;
            }
        }
        // A call that waits for its repetition is not finished: the measurement must not end before it.
        let waiting = self.outstanding as usize + self.repeats.len();
        let change = self.phase.advance(now, waiting);
        self.note(change, core);
        // No slot can make a call any more. Without this check a load with a count would never end.
        if self.is_dead() {
            if self.phase.is_calling() {
                self.interrupt(core, now);
            }
            self.phase.give_up();
        }
        while let Some(call) = self.repeats.later.pop_due(now) {
            self.repeats.lost.push_back(call);
        }
        let is_answered = self.outstanding == 0 && self.repeats.len() == 0;
        if self.phase.is_ending() && is_answered && !self.phase.is_draining(now) {
            self.record_ended();
            self.finish(now, &[]);
        }
        self.attention = self.next_attention();
        false
    }

    /// Before this time a poll has nothing to do but make calls, if nothing else happens.
    pub(super) fn next_attention(&self) -> Ticks {
        let waits = !self.phase.is_calling() || self.phase.is_enough() || self.repeats.len() > 0;
        if waits {
            0
        } else {
            // By time, and not by polls: a core that sleeps between replies has ten polls in a second, or some thousand.
            self.phase.until().min(self.housekeeping_due)
        }
    }

    pub(super) fn note<P: Port>(&mut self, change: Option<Change>, core: &Context<'_, P>) {
        match change {
            Some(Change::Measuring) => self.counters_start = Some(core.counters().snapshot()),
            Some(Change::Ending) => {
                let counters = core.counters().snapshot();
                let start = self.counters_start.as_ref();
                self.measured.counters = start.map(|start| counters.since(start));
            }
            None => {}
        }
    }

    fn take_order<P: Port>(&mut self, core: &mut Context<'_, P>) -> bool {
        if let Some(order) = self.control.take(self.taken) {
            self.taken = self.taken.wrapping_add(1);
            match order {
                Order::Call(single) => self.single = Some(single),
                Order::Load(order) => {
                    self.prepare(*order);
                    return true;
                }
            }
        }
        self.single.is_some() && self.call_single(core)
    }

    /// Prepares a load, which begins at the next poll: the calls of this one would last as long as the preparation, and
    /// count if there is no warm-up.
    pub(super) fn prepare(&mut self, order: LoadOrder<W>) {
        let LoadOrder {
            connections,
            workload,
            amount,
            part,
            watch,
        } = order;
        let slot = |connection: &ConnectionKey| Slot {
            connection: *connection,
            start: 0,
            step: W::Step::default(),
            alive: true,
        };
        // One slot of every connection, then the next of each: the first calls spread over all connections.
        let slots = (0..amount.depth).flat_map(|_| connections.iter().map(slot));
        self.slots = slots.collect();
        self.free = (0..u32::try_from(self.slots.len()).unwrap_or(u32::MAX)).collect();
        self.starting = Some(amount);
        self.outstanding = 0;
        self.completed = 0;
        self.repeats = Repeats {
            lost: VecDeque::with_capacity(self.slots.len()),
            later: RetryLater::new(amount.retry, self.slots.len()),
        };
        self.reconnects = !amount.retry.is_zero();
        self.counters_start = None;
        self.measured = Measured::default();
        self.phase = LoadPhase::new(&amount, Arc::clone(&self.control.exchange));
        self.workload = Some(workload);
        self.watch = Some((watch, part as usize));
    }

    /// Starts a load that is prepared.
    pub(super) fn start(&mut self, now: Ticks) {
        if let Some(amount) = self.starting.take()
            && self.phase.is_calling()
        {
            self.phase.start_at(&amount, now);
        }
    }

    /// Makes the single call, if one waits. Returns false if none does, or the core cannot take it yet; then it waits on.
    fn call_single<P: Port>(&mut self, core: &mut Context<'_, P>) -> bool {
        let Some(single) = self.single.take() else {
            return false;
        };
        let args = &single.args[..];
        let outcome = if single.data_bytes_max > 0 {
            let mut call = BulkCall::new(single.call, args);
            call.credential = single.auth();
            call.results_bytes_max = single.results_bytes_max;
            let added = call.expect(ExpectedResult {
                request_range: 0..u32::try_from(args.len()).unwrap_or(0),
                bytes_min: 0,
                bytes_max: single.data_bytes_max,
            });
            debug_assert!(added.is_ok(), "there is room for one");
            core.call_bulk(single.connection, &mut call, SINGLE)
        } else {
            let (connection, call, auth) = (single.connection, single.call, single.auth());
            core.call_authenticated(connection, call, auth, args.len(), SINGLE, |space| {
                space.copy_from_slice(args);
                args.len()
            })
        };
        match outcome {
            Ok(()) => true,
            Err(refused) if refused.is_transient() => {
                self.single = Some(single);
                false
            }
            Err(refused) => {
                let error = SingleError::Refused(refused);
                self.control.answer(Answer::Call(Err(error)));
                true
            }
        }
    }

    /// Ends the load without the calls that are outstanding or wait for their repetition: they have no answer.
    fn abandon<P: Port>(&mut self, core: &Context<'_, P>, now: Ticks) {
        if self.phase.is_calling() {
            self.interrupt(core, now);
        }
        self.record_ended();
        let waiting = self.waiting();
        self.finish(now, &waiting);
    }

    /// The starts of the calls that are outstanding or wait for their repetition.
    fn waiting(&mut self) -> Vec<Ticks> {
        let free: HashSet<u32> = self.free.iter().copied().collect();
        // The calls of a dead slot have ended with its connection.
        let slots = (0..).zip(&self.slots);
        let outstanding = slots.filter(|(index, slot)| slot.alive && !free.contains(index));
        let outstanding = outstanding.map(|(_, slot)| slot.start);
        let outstanding: Vec<Ticks> = outstanding.take(self.outstanding as usize).collect();
        let later = self.repeats.later.end().map(|(_, start)| start);
        let repeats = self.repeats.lost.drain(..).map(|(_, start)| start);
        outstanding
            .into_iter()
            .chain(later)
            .chain(repeats)
            .collect()
    }

    /// Ends the load and returns its results. Replies to calls that are still outstanding, which were made at `waiting`,
    /// are dropped.
    pub(super) fn finish(&mut self, now: Ticks, waiting: &[Ticks]) {
        self.publish();
        let phase = std::mem::replace(&mut self.phase, LoadPhase::idle());
        let mut measured = std::mem::take(&mut self.measured);
        phase.conclude(&mut measured, now, waiting);
        measured.slots = self.slots.len() as u64;
        measured.retried_later = self.repeats.later.count();
        self.slots.clear();
        self.free.clear();
        self.watch = None;
        if let Some(workload) = self.workload.take() {
            self.control.answer(Answer::Load(Box::new(LoadAnswer {
                measured,
                last: phase.into_recorder(),
                workload,
            })));
        }
    }

    fn publish(&self) {
        let Some((watch, part)) = &self.watch else {
            return;
        };
        if let Some(progress) = watch.progress.core(*part) {
            progress.publish(self.completed, self.measured.errors.total());
        }
    }

    /// Publishes the progress, and looks for a stop request and for replaced connections.
    #[cold]
    #[inline(never)]
    fn housekeeping<P: Port>(&mut self, core: &Context<'_, P>, now: Ticks) {
        self.publish();
        if self.reconnects {
            for (lost, fresh) in self.control.replaced() {
                self.replace(lost, fresh);
            }
        }
        let is_asked = matches!(&self.watch, Some((watch, _)) if watch.stop.is_asked());
        if is_asked && self.phase.is_calling() {
            self.interrupt(core, now);
        } else if is_asked {
            self.phase.end(now);
        }
        if self.workload.is_some() && self.control.is_abandoned() {
            self.abandon(core, now);
        }
    }
}
