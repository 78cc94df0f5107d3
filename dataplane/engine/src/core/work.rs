//! Calls with bulk data that can perhaps go on. Every step of a call may have to wait, and goes on from where it stood.

use rpcrdma_fabric::interface::Port;
use rpcrdma_fabric::memory::{Buffer, Lease};

use super::application::Application;
use super::state::State;
use super::step::{Step, Work};
use crate::bulk::{BulkPool, Home, give_lease};
use crate::counters::Counters;
use crate::placement::PlacementSegments;

/// Calls looked at in one iteration.
const WORK_MAX: usize = 16;
/// Steps of one call in one iteration: as many as there are kinds of steps.
const STEPS_MAX: usize = 8;

impl<P: Port> State<P> {
    /// Goes on with calls that may be able to.
    #[inline]
    pub(super) fn do_work<A: Application>(&mut self, application: &mut A) -> bool {
        if self.work.is_empty() && !self.incoming.kept.any_asked_for() {
            return false;
        }
        self.do_some_work(application)
    }

    #[inline(never)]
    fn do_some_work<A: Application>(&mut self, application: &mut A) -> bool {
        let mut busy = self.incoming.kept.any_asked_for() && self.send_kept_replies();
        for _ in 0..WORK_MAX.min(self.work.len()) {
            let Some(work) = self.work.pop_front() else {
                break;
            };
            self.set_queued(work, false);
            busy |= match work {
                Work::Outgoing(index) => self.go_on_outgoing(application, index),
                Work::Incoming(index) => self.go_on_incoming(application, index),
            };
        }
        busy
    }

    fn go_on_outgoing<A: Application>(&mut self, application: &mut A, index: u32) -> bool {
        let Some(mut call) = self.outgoing.calls.take(index) else {
            return false;
        };
        let mut busy = false;
        for number in 0..STEPS_MAX {
            let step = self.step_outgoing(application, &mut call);
            busy |= number != 0 || step != Step::Again;
            match step {
                Step::GoesOn => {}
                Step::Waits => break,
                Step::Again => {
                    self.queue(Work::Outgoing(index));
                    break;
                }
                Step::Ends => {
                    self.end_outgoing(call);
                    return true;
                }
            }
        }
        self.outgoing.calls.put(index, call);
        busy
    }

    fn go_on_incoming<A: Application>(&mut self, application: &mut A, index: u32) -> bool {
        let Some(mut call) = self.incoming.calls.take(index) else {
            return false;
        };
        let mut busy = false;
        for number in 0..STEPS_MAX {
            let step = self.step_incoming(application, &mut call);
            busy |= number != 0 || step != Ok(Step::Again);
            match step {
                Ok(Step::GoesOn) => {}
                Ok(Step::Waits) => break,
                Ok(Step::Again) => {
                    self.queue(Work::Incoming(index));
                    break;
                }
                Ok(Step::Ends) => {
                    self.end_incoming(call);
                    return true;
                }
                Err(error) => {
                    self.refuse_incoming(call, error);
                    return true;
                }
            }
        }
        self.incoming.calls.put(index, call);
        busy
    }

    /// Has `work` looked at in this iteration or the next.
    pub(crate) fn queue(&mut self, work: Work) {
        if !self.set_queued(work, true) {
            self.work.push_back(work);
        }
    }

    fn set_queued(&mut self, work: Work, is_queued: bool) -> bool {
        match work {
            Work::Outgoing(index) => self.outgoing.calls.set_queued(index, is_queued),
            Work::Incoming(index) => self.incoming.calls.set_queued(index, is_queued),
        }
    }

    /// The port gave back a buffer that is none for Sends.
    #[inline(never)]
    pub(super) fn bulk_returned<A: Application>(&mut self, application: &mut A, buffer: Buffer) {
        if !self.reply.pool.owns(&buffer) {
            return self.placement.give(buffer);
        }
        let home = self.reply.pool.home(&buffer);
        let (work, place) = match home {
            Home::Pool => return self.reply.pool.give(buffer),
            Home::Kept { .. } => return self.reply.pool.keep(buffer),
            Home::Call { slot, part } => {
                let call = self.outgoing.calls.get_mut(slot);
                let part = call.and_then(|call| call.parts.get_mut(usize::from(part)));
                (
                    Work::Outgoing(slot),
                    part.map(|it| (&mut it.buffer, it.index)),
                )
            }
            Home::Reply { slot, part } => {
                let call = self.incoming.calls.get_mut(slot);
                let part = call.and_then(|call| call.write_parts.get_mut(usize::from(part)));
                (
                    Work::Incoming(slot),
                    part.map(|it| (&mut it.buffer, it.index)),
                )
            }
            Home::CallGroup { slot, part } => {
                let call = self.outgoing.calls.get_mut(slot);
                let part = call.and_then(|call| call.group.parts.get_mut(usize::from(part)));
                (
                    Work::Outgoing(slot),
                    part.map(|it| (&mut it.buffer, it.index)),
                )
            }
            Home::ReplyGroup { slot, part } => {
                let call = self.incoming.calls.get_mut(slot);
                let part = call.and_then(|call| call.group.parts.get_mut(usize::from(part)));
                (
                    Work::Incoming(slot),
                    part.map(|it| (&mut it.buffer, it.index)),
                )
            }
        };
        match place {
            Some((place, index)) if place.is_none() && index == buffer.index() => {
                *place = Some(buffer);
            }
            _ => return self.reply.pool.give(buffer),
        }
        match home {
            Home::Call { slot, .. } => self.finish_if_home(application, slot),
            _ => self.queue(work),
        }
    }
}

/// Gives back what a lease is on at once, where it is of this core; else it goes by the ring of its
/// pool.
pub(super) fn end_lease(
    pool: &mut BulkPool,
    placement: &mut PlacementSegments,
    lease: Lease,
    counters: &Counters,
) {
    match placement.end_lease(lease) {
        Some(lease) => give_lease(pool, lease),
        None => counters.segments_returned.increment(),
    }
}
