//! The poll iteration, and the loop around it.

use std::time::Duration;

use rpcrdma_fabric::clock::Ticks;
use rpcrdma_fabric::interface::{CompletionBatch, Port, SEGMENTS_MAX};
use rpcrdma_fabric::memory::Buffer;

use super::context::Context;
use super::resources::{Drain, Resources};
use super::state::State;
use super::sweep::Sweep;
use super::{Core, RunError};
use crate::bulk::Home;
use crate::close_reason::CloseReason;
use crate::core::application::Application;
use crate::handle::CoreEvent;
use crate::rpc::Activity;

/// Buffers of finished Sends and RDMA Writes taken back in one iteration: those of eight replies with the most pieces.
/// An iteration handles eight messages by default, so returned buffers do not pile up.
const RETURNED_MAX: usize = 8 * SEGMENTS_MAX;
/// How long a stopping core waits for its connections to close.
const STOP_TIME_MAX: Duration = Duration::from_millis(50);
/// The longest sleep: the longest delay of a timer, and of a wake-up that crosses the announcement of the sleep.
const PARK_TIME_MAX: Duration = Duration::from_millis(100);
/// The longest sleep while the core waits for something that no event reports.
const NAP_TIME_MAX: Duration = Duration::from_millis(1);

impl<P: Port, A: Application> Core<P, A> {
    /// One poll iteration, with a reading of the clock. Its work is bounded.
    #[inline]
    pub fn iterate(&mut self) -> Activity {
        let core = &mut self.state.resources;
        let moved = core.port.begin_poll(core.now, &mut self.batch);
        // Read after the poll: otherwise the measured time of a reply could end before its arrival.
        let now = if self.state.is_clock_due(moved, A::CLOCK_INTERVAL_POLLS) {
            self.clock.now()
        } else {
            self.state.resources.now
        };
        self.go_on(moved, now)
    }

    /// One poll iteration at the time `now`, which must not run backwards.
    #[inline]
    pub fn iterate_at(&mut self, now: Ticks) -> Activity {
        let moved = self.state.resources.port.begin_poll(now, &mut self.batch);
        self.go_on(moved, now)
    }

    /// The rest of the iteration after the poll of the port; `moved` says whether that found anything.
    #[inline]
    fn go_on(&mut self, moved: bool, now: Ticks) -> Activity {
        let Self {
            state,
            application,
            batch,
            ..
        } = self;
        let was_busy = state.was_busy;
        if was_busy {
            state.resources.note_poll_time(now);
        }
        let before = std::mem::replace(&mut state.resources.now, now);
        let mut busy = moved | state.reap(application, batch);
        // Before the application makes others, which would be tried first.
        state.wake_calls();
        // Directly after the arrivals, so that nothing delays the call that follows a reply.
        let context = &mut Context { state: &mut *state };
        busy |= application.poll(context, now).is_busy();
        // Other work waits for a time, is a command, or is on a list until it is done. What is on a list can go on only
        // when something was done, or something happened that no event reports, for which it is tried again in time.
        let may_go_on = || busy | was_busy | (now != before);
        let is_due = now >= state.due;
        if is_due | state.has_commands() || (state.has_rare_work() && may_go_on()) {
            busy |= state.look_around(application);
        }
        // In this order: a credit must not be granted before its Receive is posted.
        state.resources.port.flush_receives();
        state.resources.port.flush_sends();
        state.was_busy = busy;
        let counters = &state.resources.shared.counters;
        counters.polls.increment();
        if busy {
            // The work may have taken long: the next iteration reads the clock.
            state.clock_due_polls = 0;
        } else {
            counters.empty_polls.increment();
        }
        Activity::from_busy(busy)
    }

    /// Runs until [`crate::CoreHandle::stop`], on the processor that the configuration names, and
    /// gives the application back.
    ///
    /// # Errors
    /// [`RunError::Pin`] when the thread cannot be pinned; nothing has run then.
    pub fn run(mut self) -> Result<A, RunError> {
        if let Some(cpu) = self.cpu {
            pin_current_thread(cpu)?;
        }
        while !self.state.stop {
            let activity = self.iterate();
            if !self.idle.rest(activity, self.state.resources.now) {
                continue;
            }
            if self.state.prepare_to_park() {
                // Finds what came just before the announcement, and would not wake the core.
                if self.iterate() == Activity::Idle {
                    self.park();
                }
                self.state.end_park();
            }
        }
        Ok(self.finish())
    }

    /// Closes all connections and gives the application back: the end of [`Core::run`], for a thread that iterates itself.
    pub fn finish(mut self) -> A {
        self.state.stop = true;
        self.close_all();
        self.application
    }

    /// Sleeps until something arrives, or the application has work.
    fn park(&mut self) {
        let now = self.clock.now();
        let until = self.sleeps_until(now);
        let time = Duration::from_nanos(self.clock.nanos_between(now, until));
        self.state.park(time.min(PARK_TIME_MAX));
    }

    /// When a core that falls asleep at `now` wakes up by itself.
    pub(super) fn sleeps_until(&self, now: Ticks) -> Ticks {
        let time_max = match self.state.waits_unnotified() {
            true => NAP_TIME_MAX,
            false => park_time_max(self.state.resources.config.keep_alive_interval),
        };
        let latest = now.saturating_add(self.clock.ticks(time_max));
        let due = self.application.next_due();
        let latest = due.map_or(latest, |due| due.min(latest));
        // A call that waits may wait for a dead path.
        match self.state.outgoing.requester.waiting() {
            0 => latest,
            _ => latest.min(self.state.resources.paths_due(&self.state.paths)),
        }
    }

    /// Whether the core was asked to stop ([`crate::CoreHandle::stop`]).
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.state.stop
    }

    /// Closes all connections, so that peers notice it and every call of ours ends.
    fn close_all(&mut self) {
        let keys: Vec<_> = self.state.resources.connections.keys().collect();
        for key in keys {
            let core = &mut self.state.resources;
            core.begin_close(key.index, CloseReason::Stopped);
        }
        let time = self.clock.ticks(STOP_TIME_MAX);
        let deadline = self.clock.now().saturating_add(time);
        // Only a flush waits for the device and can miss the deadline. Calls always end, and the application always hears
        // of the end of its connections.
        while self.state.resources.connections.in_use() != 0
            && (self.clock.now() < deadline || !self.state.all_notified())
        {
            let _ = self.iterate();
        }
    }
}

/// Pins the calling thread to a processor. [`Core::run`] does so itself. Call this first on a thread that makes the
/// port and the core and then runs them, so that their memory is first touched there.
///
/// # Errors
/// [`RunError::Pin`] names the processors that there are.
pub fn pin_current_thread(cpu: usize) -> Result<(), RunError> {
    /// The size of the kernel's set of processors, beyond which core_affinity panics.
    const PROCESSORS_MAX: usize = 1024;
    let allowed = processors();
    // The thread may have inherited fewer processors than its process may use, so `allowed` does not
    // decide; the result is read back instead.
    let pinned = cpu < PROCESSORS_MAX
        && core_affinity::set_for_current(core_affinity::CoreId { id: cpu })
        && processors() == [cpu];
    if pinned {
        Ok(())
    } else {
        Err(RunError::Pin { cpu, allowed })
    }
}

/// The longest sleep of a core: its ticks are late by no more than a quarter of the interval. A core sends something at
/// every second tick at least, so fewer than three ticks of its peer pass without a message.
fn park_time_max(keep_alive_interval: Duration) -> Duration {
    match keep_alive_interval {
        Duration::ZERO => PARK_TIME_MAX,
        interval => PARK_TIME_MAX.min(interval / 4),
    }
}

/// The processors that the calling thread may run on, in ascending order.
#[must_use]
pub fn processors() -> Vec<usize> {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    cores.into_iter().map(|core| core.id).collect()
}

impl<P: Port> State<P> {
    /// Handles what the poll of the port brought.
    #[inline]
    fn reap<A: Application>(&mut self, application: &mut A, batch: &mut CompletionBatch) -> bool {
        let mut count = self.reap_completions(application, batch);
        let are_many = self.resources.connections.are_many();
        while let Some(arrival) = self.resources.port.next_arrival() {
            count += 1;
            if are_many {
                self.resources.fetch_next();
            }
            let (queue_pair, bytes) = (arrival.queue_pair, arrival.bytes);
            self.handle_message(application, queue_pair, bytes, arrival);
        }
        let mut busy = count != 0;
        if busy {
            self.resources.shared.counters.completions.add(count);
        }
        for _ in 0..RETURNED_MAX {
            let Some(buffer) = self.resources.port.next_returned() else {
                break;
            };
            busy = true;
            if let Some(buffer) = self.resources.transmit.take_back(buffer) {
                self.bulk_returned(application, buffer);
            }
        }
        busy
    }

    #[inline]
    fn reap_completions<A: Application>(
        &mut self,
        application: &mut A,
        batch: &mut CompletionBatch,
    ) -> u64 {
        if batch.is_empty() {
            return 0;
        }
        self.reap_some(application, batch)
    }

    #[inline(never)]
    fn reap_some<A: Application>(
        &mut self,
        application: &mut A,
        batch: &mut CompletionBatch,
    ) -> u64 {
        let count = u64::try_from(batch.len()).unwrap_or(u64::MAX);
        loop {
            while let Some((queue_pair, receive, bytes)) = batch.take_message() {
                self.handle_message(application, queue_pair, bytes, receive);
            }
            let Some(completion) = batch.take() else {
                break;
            };
            self.handle_completion(application, completion);
        }
        count
    }

    /// Whether anything is on one of the lists that [`State::look_around`] goes through. The lists themselves are asked, by
    /// one test for all of them: there is no flag for them, which somebody could forget to set.
    #[inline]
    pub(super) fn has_rare_work(&self) -> bool {
        let core = &self.resources;
        let listed = self.waiting_receives.held()
            | self.incoming.calls.queued()
            | self.incoming.kept.asked_for()
            | self.outgoing.calls.queued()
            | core.pending.len()
            | core.closing.len()
            | core.placement.leased();
        (listed != 0) | core.is_woken | (core.drain == Drain::Underway)
    }

    /// When the first of the times is that [`State::look_around`] waits for. Only what it does changes them.
    pub(super) fn next_due(&self) -> Ticks {
        let sweeps = [&self.keep_alive, &self.deadlines, self.publisher.sweep()];
        let calls = self.outgoing.requester.due();
        let paths = self.resources.paths_due(&self.paths);
        let first = sweeps.into_iter().map(Sweep::due).fold(calls, Ticks::min);
        first.min(paths)
    }

    /// Does all work other than what arrived in this iteration: timers, waiting work, commands.
    #[inline(never)]
    fn look_around<A: Application>(&mut self, application: &mut A) -> bool {
        let core = &mut self.resources;
        let mut busy = self.outgoing.end_late_calls(core, application);
        busy |= core.reclaim_segments();
        busy |= self.visit_connections();
        self.wake_calls();
        let core = &mut self.resources;
        busy |= self.outgoing.go_on(core, application);
        busy |= self.incoming.go_on(core, application);
        // After the calls that have slots: one that begins now would take what came free before them.
        busy |= self.retry_held(application);
        let core = &mut self.resources;
        busy |= core.send_pending(&mut self.incoming);
        busy |= self.finish_closing(application);
        busy |= self.take_commands(application);
        self.check_drained();
        self.due = self.next_due();
        busy
    }

    /// Handles a returned buffer that is not a send buffer.
    #[inline(never)]
    fn bulk_returned<A: Application>(&mut self, application: &mut A, buffer: Buffer) {
        let core = &mut self.resources;
        let pool = &mut core.reply.pool;
        if !pool.owns(&buffer) {
            return core.placement.give(buffer);
        }
        let (incoming, outgoing) = (&mut self.incoming.calls, &mut self.outgoing.calls);
        let brought = match pool.home(&buffer) {
            Home::Pool => Err(buffer),
            Home::Kept { .. } => return pool.keep(buffer),
            Home::Call { slot, part } => {
                // The call may have ended meanwhile; then its buffer goes to the pool.
                let brought = outgoing.bring_home(slot, buffer, |call| {
                    let part = call.parts.get_mut(usize::from(part))?;
                    Some((&mut part.buffer, part.index))
                });
                if let Err(buffer) = brought {
                    return pool.give(buffer);
                }
                return self.outgoing.finish_if_home(core, application, slot);
            }
            Home::Reply { slot, part } => incoming.bring_home(slot, buffer, |call| {
                let part = call.write_parts.get_mut(usize::from(part))?;
                Some((&mut part.buffer, part.index))
            }),
            Home::CallGroup { slot, part } => {
                outgoing.bring_home(slot, buffer, |call| call.group.place_of(part))
            }
            Home::ReplyGroup { slot, part } => {
                incoming.bring_home(slot, buffer, |call| call.group.place_of(part))
            }
        };
        if let Err(buffer) = brought {
            pool.give(buffer);
        }
    }

    /// Whether this iteration reads the clock: regularly, and when something came while calls of ours
    /// wait, because it may be their replies.
    #[inline]
    fn is_clock_due(&mut self, moved: bool, interval_polls: u32) -> bool {
        let is_waiting = self.outgoing.requester.waiting() != 0;
        let is_due = self.clock_due_polls == 0 || (moved && is_waiting);
        self.clock_due_polls = match is_due {
            true => interval_polls.saturating_sub(1),
            false => self.clock_due_polls - 1,
        };
        is_due
    }

    /// Sends keep-alives, checks deadlines and paths, and publishes levels, for some connections each, when it is time.
    #[inline]
    fn visit_connections(&mut self) -> bool {
        let (core, incoming, outgoing) = (&mut self.resources, &self.incoming, &self.outgoing);
        let mut busy = core.tick_connections(&mut self.keep_alive);
        busy |= core.watch_debts(&mut self.deadlines, incoming);
        busy |= core.visit_paths(&mut self.paths);
        busy | self
            .publisher
            .publish(core, incoming, outgoing, self.waiting_receives.held())
    }

    #[inline]
    fn check_drained(&mut self) {
        let core = &mut self.resources;
        if core.drain == Drain::Underway
            && self.outgoing.requester.waiting() == 0
            && self.incoming.deferrals.open() == 0
            && core.backlog.is_empty()
            // What waits for a place in a send queue, or was not taken by its peer.
            && core.transmit.is_idle()
            && self.incoming.calls.is_idle()
            && self.outgoing.calls.is_idle()
        {
            core.drain = Drain::Done;
            core.shared.notify(CoreEvent::Drained);
        }
    }

    /// Queues the calls that waited for their connections, if something happened on any of them.
    #[inline]
    fn wake_calls(&mut self) {
        if self.resources.is_woken {
            self.resources.is_woken = false;
            self.incoming.calls.wake();
            self.outgoing.calls.wake();
        }
    }

    /// Whether no work has become possible since this poll looked for it.
    fn is_idle(&self) -> bool {
        self.resources.closing.is_empty()
            && !self.resources.is_woken
            && self
                .waiting_receives
                .is_idle(&self.resources, &self.incoming)
            && !self.incoming.kept.any_asked_for()
    }

    /// Whether something waits for what no event of the port reports: a place in a send queue, or a buffer that an
    /// application holds.
    pub(super) fn waits_unnotified(&self) -> bool {
        self.resources.port.waits_unnotified()
            || !self.resources.pending.is_empty()
            || self.incoming.calls.queued() != 0
            || self.outgoing.calls.queued() != 0
    }

    pub(super) fn prepare_to_park(&mut self) -> bool {
        if !self.is_idle() {
            return false;
        }
        let core = &mut self.resources;
        if !core.shared.announce_park(self.commands_taken) {
            return false;
        }
        if !core.port.prepare_to_park() {
            core.shared.end_park();
            return false;
        }
        // What came before the announcement causes no event any more: the last iteration looks for it.
        self.due = 0;
        true
    }

    pub(super) fn end_park(&mut self) {
        self.clock_due_polls = 0;
        self.resources.port.unpark();
        self.resources.shared.end_park();
    }

    pub(super) fn park(&mut self, time_max: Duration) {
        let core = &mut self.resources;
        core.shared.counters.parks.increment();
        let _ = crate::idle::sleep(&core.port.event(), &core.shared.wake, time_max);
    }
}

impl<P: Port> Resources<P> {
    /// Takes back placement segments whose leases applications dropped.
    #[inline]
    fn reclaim_segments(&mut self) -> bool {
        let came = self.placement.reclaim();
        if came != 0 {
            let came = u64::try_from(came).unwrap_or(u64::MAX);
            self.shared.counters.segments_returned.add(came);
        }
        came != 0
    }
}
