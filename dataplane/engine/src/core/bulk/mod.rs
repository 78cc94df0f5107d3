//! Bulk data on its way: calls of ours ([`plan`], [`call`], [`end`], [`retry`]) and of peers ([`serve`],
//! [`read`], [`reply`]). Every step may have to wait, and goes on from where it stood.

mod call;
mod end;
mod plan;
mod read;
mod reply;
mod retry;
mod serve;
mod stream;

pub(in crate::core) use call::{push_fresh, push_part};
pub(in crate::core) use retry::{Offer, OfferedItems};
pub(in crate::core) use serve::{chunk_limits, may_take_slot};

use rpcrdma_fabric::interface::Port;
use rpcrdma_fabric::memory::Lease;
use rpcrdma_protocol::chunks::ChunkLists;
use rpcrdma_protocol::connection::chunks_of;
use rpcrdma_protocol::v2::TransportError;

use super::State;
use crate::application::Application;
use crate::bulk::{BulkPool, Work, give_lease};
use crate::counters::Counters;
use crate::placement::PlacementSegments;

/// Calls looked at in one iteration.
const WORK_MAX: usize = 16;
/// Steps of one call in one iteration: as many as there are kinds of steps.
const STEPS_MAX: usize = 8;

/// What a call can do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::core) enum Step {
    /// Nothing, until something comes that it waits for.
    Waits,
    /// Nothing in this iteration.
    Again,
    /// More, at once.
    GoesOn,
}

impl<P: Port> State<P> {
    /// Goes on with calls that may be able to.
    #[inline]
    pub(in crate::core) fn bulk_work<A: Application>(&mut self, application: &mut A) -> bool {
        if self.bulk.work.is_empty() && !self.bulk.kept.any_asked_for() {
            return false;
        }
        self.do_bulk_work(application)
    }

    #[inline(never)]
    fn do_bulk_work<A: Application>(&mut self, application: &mut A) -> bool {
        let mut busy = self.bulk.kept.any_asked_for() && self.send_kept_replies();
        for _ in 0..WORK_MAX.min(self.bulk.work.len()) {
            let Some(work) = self.bulk.next_work() else {
                break;
            };
            for step in 0..STEPS_MAX {
                let next = match work {
                    Work::Call(index) => self.step_call(application, index),
                    Work::Serve(index) => self.step_serve(application, index),
                };
                busy |= step != 0 || next != Step::Again;
                match next {
                    Step::GoesOn => {}
                    Step::Waits => break,
                    Step::Again => {
                        self.bulk.queue(work);
                        break;
                    }
                }
            }
        }
        busy
    }
}

/// Gives back what a lease is on at once, where it is of this core; else it goes by the ring of its
/// pool.
fn end_lease(
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

/// The chunk lists of a message that was decoded before.
fn lists_of(message: &[u8]) -> ChunkLists<'_> {
    chunks_of(message)
        .map(|chunks| chunks.lists)
        .unwrap_or_default()
}

/// What a call with chunks is told by an end that takes none (-00 section 6.4.3). Where no Write
/// chunk is supported at all, REPLY_RESOURCE says so: WRITE_CHUNKS cannot.
fn refusal_of(lists: &ChunkLists<'_>) -> TransportError {
    if lists.reads.is_empty() {
        TransportError::ReplyResource {
            length_needed_bytes: 0,
        }
    } else {
        TransportError::ReadChunks { max_chunks: 0 }
    }
}
