//! A port with faults.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use rpcrdma_fabric::clock::{Clock, Ticks};
use rpcrdma_fabric::interface::{
    Access, Attributes, Completion, CompletionBatch, CompletionKind, Counted, Formed, Forms,
    Gather, Port, PortPoll, PortReceives, PortSends, PortSetup, PortWindows, PostError,
    QueuePairId, Receive, ReceiveQueueAttributes, ReceiveQueueId, RemoteAddress, RemoteKey,
    SendOptions, SetupError, Status, Window, WorkId,
};
use rpcrdma_fabric::memory::{Buffer, Memory, PageReport, Pool, PoolShape};

use super::draws::Draws;
use super::fault::{Fault, FaultKind};
use super::plan::FaultPlan;
use crate::provider::PortNeed;

/// Flipping this bit moves an offset out of the exposed memory: process addresses and offsets from 0 have it clear,
/// kernel addresses have it set, and no exposed memory reaches from one half to the other.
const OUTSIDE: u64 = 1 << 63;

/// A port of any fabric that injects faults into a core's posts and completions. A fault is something that a device can
/// do: a queue pair that goes into the error state, an access that the peer's device refuses, a completion that comes
/// late.
#[derive(Debug)]
pub struct FaultyPort<P> {
    inner: P,
    clock: Clock,
    /// Whether the core has polled, and so has finished its set-up.
    is_polled: bool,
    delay: Draws,
    /// Delayed completions, each with its due time. Those of one queue pair are in order, and due times do not
    /// decrease.
    delayed: VecDeque<(Ticks, Completion)>,
    late: Draws,
    /// Receives that are posted late, each with its due time.
    withheld: VecDeque<(Ticks, Receive)>,
    disconnect: Posts,
    read: Posts,
    write: Posts,
}

/// Draws for what a core posts. A post that finds its queue full is repeated; the repetition is not another occasion.
#[derive(Debug)]
struct Posts {
    draws: Draws,
    /// The draw for a post that found its queue full.
    drawn: Option<bool>,
}

impl Posts {
    /// Posts something. `post` receives whether a fault strikes.
    fn post<T>(&mut self, post: impl FnOnce(bool) -> T, error: fn(&T) -> Option<PostError>) -> T {
        let drawn = self.drawn.take();
        let is_struck = drawn.unwrap_or_else(|| self.draws.strike().is_some());
        let posted = post(is_struck);
        if error(&posted) == Some(PostError::QueueFull) {
            self.drawn = Some(is_struck);
        }
        posted
    }
}

impl<P: Port> FaultyPort<P> {
    pub(super) fn new(
        inner: P,
        plan: &FaultPlan,
        core: usize,
        need: &PortNeed,
        clock: &Clock,
    ) -> Self {
        let draws = |kind| Draws::new(plan, kind, core);
        let posts = |kind| Posts {
            draws: draws(kind),
            drawn: None,
        };
        let receives = |draws: &Draws| {
            if draws.is_empty() {
                0
            } else {
                need.receives_max as usize
            }
        };
        let (delay, late) = (
            draws(FaultKind::DelayMessage),
            draws(FaultKind::LateReceive),
        );
        Self {
            inner,
            clock: clock.clone(),
            is_polled: false,
            delayed: VecDeque::with_capacity(receives(&delay)),
            delay,
            withheld: VecDeque::with_capacity(receives(&late)),
            late,
            disconnect: posts(FaultKind::Disconnect),
            read: posts(FaultKind::FailRead),
            write: posts(FaultKind::FailWrite),
        }
    }

    /// When a delay that begins now ends. The clock is read here, because the time of a poll may be old.
    fn due(&self, fault: Fault) -> Ticks {
        self.clock
            .now()
            .saturating_add(self.clock.ticks(fault.time))
    }

    /// Posts a Send. If a fault strikes, its queue pair is in the error state before.
    fn send(
        &mut self,
        queue_pair: QueuePairId,
        post: impl FnOnce(&mut P) -> Result<(), PostError>,
    ) -> Result<(), PostError> {
        let inner = &mut self.inner;
        let post = |is_struck| {
            if is_struck {
                inner.disconnect(queue_pair);
            }
            post(inner)
        };
        self.disconnect.post(post, |posted| posted.err())
    }

    /// Posts the Receives that are due; returns whether there were any.
    fn post_withheld(&mut self, now: Ticks) -> bool {
        let mut posted = false;
        while self.withheld.front().is_some_and(|(due, _)| *due <= now)
            && let Some((_, receive)) = self.withheld.pop_front()
        {
            // It is returned only if it belongs to another port, which does not happen within a node.
            let _ = self.inner.post_receive(receive);
            posted = true;
        }
        posted
    }

    /// Moves due completions to the batch while it has room; returns whether there were any.
    fn hand_over(&mut self, now: Ticks, batch: &mut CompletionBatch) -> bool {
        let mut handed = false;
        let mut index = 0;
        while let Some((due, _)) = self.delayed.get(index)
            && !batch.is_full()
        {
            if *due > now {
                index += 1;
            } else if let Some((due, completion)) = self.delayed.remove(index) {
                self.push(batch, completion, due);
                handed = true;
            }
        }
        handed
    }

    /// Puts a completion of the fabric into the batch, or delays it.
    fn take(&mut self, completion: Completion, now: Ticks, batch: &mut CompletionBatch) {
        let queue_pair = completion.queue_pair;
        let of_same = |entry: &&mut (Ticks, Completion)| entry.1.queue_pair == queue_pair;
        if matches!(completion.kind, CompletionKind::Disconnected) {
            // The end of a connection is not delayed: everything before it becomes due.
            let entries = self.delayed.iter_mut();
            entries.filter(of_same).for_each(|entry| entry.0 = now);
        }
        let in_front = self.delayed.iter_mut().rev().find(of_same);
        let in_front = in_front.map(|(due, _)| *due);
        let own = match completion.kind {
            CompletionKind::Receive { .. } if completion.status == Status::Success => {
                self.delay.strike()
            }
            _ => None,
        };
        let own = own.map(|fault| self.due(fault));
        match own.max(in_front) {
            Some(due) => self.delayed.push_back((due, completion)),
            None => self.push(batch, completion, now),
        }
    }

    /// Puts a completion into the batch, which has room for it; if not, it waits for the next.
    fn push(&mut self, batch: &mut CompletionBatch, completion: Completion, due: Ticks) {
        if let Err(completion) = batch.push(completion) {
            self.delayed.push_back((due, completion));
        }
    }
}

impl<P: Port> PortSetup for FaultyPort<P> {
    type PreparedQueuePair = P::PreparedQueuePair;

    type PortEvent = P::PortEvent;

    fn attributes(&self) -> &Attributes {
        self.inner.attributes()
    }

    fn memory(&self) -> &Memory {
        self.inner.memory()
    }

    fn carve(&mut self, shape: PoolShape) -> Result<Pool, SetupError> {
        self.inner.carve(shape)
    }

    fn carve_untouched(&mut self, shape: PoolShape) -> Result<Option<Pool>, SetupError> {
        self.inner.carve_untouched(shape)
    }

    fn page_report(&self) -> &PageReport {
        self.inner.page_report()
    }

    fn set_forms(&mut self, forms: Forms) {
        self.inner.set_forms(forms);
    }

    fn create_receive_queue(
        &mut self,
        attributes: ReceiveQueueAttributes,
    ) -> Result<ReceiveQueueId, SetupError> {
        self.inner.create_receive_queue(attributes)
    }

    fn create_receive(
        &mut self,
        queue: ReceiveQueueId,
        segments: &mut dyn Iterator<Item = Buffer>,
    ) -> Result<Receive, SetupError> {
        self.inner.create_receive(queue, segments)
    }

    fn adopt_queue_pair(
        &mut self,
        prepared: P::PreparedQueuePair,
        queue: ReceiveQueueId,
    ) -> Result<QueuePairId, SetupError> {
        self.inner.adopt_queue_pair(prepared, queue)
    }

    fn handle_event(&mut self, port_event: P::PortEvent) {
        self.inner.handle_event(port_event);
    }

    fn disconnect(&mut self, queue_pair: QueuePairId) {
        self.inner.disconnect(queue_pair);
    }

    fn destroy_queue_pair(&mut self, queue_pair: QueuePairId) {
        self.inner.destroy_queue_pair(queue_pair);
    }
}

impl<P: Port> PortReceives for FaultyPort<P> {
    fn post_receive(&mut self, receive: Receive) -> Option<Receive> {
        // Receives of the set-up are not delayed: a connection needs them from its start.
        if self.is_polled
            && let Some(fault) = self.late.strike()
        {
            let due = self.due(fault);
            self.withheld.push_back((due, receive));
            return None;
        }
        self.inner.post_receive(receive)
    }

    fn flush_receives(&mut self) {
        self.inner.flush_receives();
    }

    fn receives_posted(&self, queue: ReceiveQueueId) -> u32 {
        self.inner.receives_posted(queue)
    }

    fn received(&self, receive: &Receive) -> &[u8] {
        self.inner.received(receive)
    }

    fn received_segment(&self, receive: &Receive, index: usize) -> Option<&[u8]> {
        self.inner.received_segment(receive, index)
    }

    fn replace_segment(
        &mut self,
        receive: &mut Receive,
        index: usize,
        fresh: Buffer,
    ) -> Result<Buffer, Buffer> {
        self.inner.replace_segment(receive, index, fresh)
    }
}

impl<P: Port> PortSends for FaultyPort<P> {
    fn post_send_copied(
        &mut self,
        queue_pair: QueuePairId,
        source: &Buffer,
        bytes: u32,
        options: SendOptions,
    ) -> Result<(), PostError> {
        self.send(queue_pair, |inner| {
            inner.post_send_copied(queue_pair, source, bytes, options)
        })
    }

    /// A message that is not posted so is posted as octets, which meet the same fault.
    fn post_formed(&mut self, queue_pair: QueuePairId, formed: &Formed, rest: [&[u8]; 2]) -> bool {
        let posted = self.send(queue_pair, |inner| {
            match inner.post_formed(queue_pair, formed, rest) {
                true => Ok(()),
                false => Err(PostError::QueueFull),
            }
        });
        posted.is_ok()
    }

    fn post_send(
        &mut self,
        queue_pair: QueuePairId,
        list: &mut Gather,
        options: SendOptions,
    ) -> Result<(), PostError> {
        self.send(queue_pair, |inner| {
            inner.post_send(queue_pair, list, options)
        })
    }

    fn post_read(
        &mut self,
        queue_pair: QueuePairId,
        list: Gather,
        from: RemoteAddress,
        work: WorkId,
    ) -> Result<(), (PostError, Gather)> {
        let post = |is_struck| {
            let from = place(from, is_struck);
            self.inner.post_read(queue_pair, list, from, work)
        };
        self.read
            .post(post, |posted| posted.as_ref().err().map(|it| it.0))
    }

    fn post_write(
        &mut self,
        queue_pair: QueuePairId,
        list: &mut Gather,
        to: RemoteAddress,
        signalled: Option<WorkId>,
    ) -> Result<(), PostError> {
        let post = |is_struck| {
            let to = place(to, is_struck);
            self.inner.post_write(queue_pair, list, to, signalled)
        };
        self.write.post(post, |posted| posted.err())
    }

    fn probe(&mut self, queue_pair: QueuePairId, work: WorkId) -> Result<(), PostError> {
        self.inner.probe(queue_pair, work)
    }

    fn oldest_work(&mut self, queue_pair: QueuePairId) -> Option<u64> {
        self.inner.oldest_work(queue_pair)
    }

    fn flush_sends(&mut self) {
        self.inner.flush_sends();
    }

    fn next_returned(&mut self) -> Option<Buffer> {
        self.inner.next_returned()
    }
}

impl<P: Port> PortWindows for FaultyPort<P> {
    fn bind_window(
        &mut self,
        queue_pair: QueuePairId,
        buffer: Buffer,
        bytes: u32,
        access: Access,
    ) -> Result<Window, (PostError, Buffer)> {
        self.inner.bind_window(queue_pair, buffer, bytes, access)
    }

    fn invalidate_window(
        &mut self,
        window: Window,
        work: WorkId,
    ) -> Result<(), (PostError, Window)> {
        self.inner.invalidate_window(window, work)
    }

    fn close_window(&mut self, window: Window) -> Result<Buffer, Window> {
        self.inner.close_window(window)
    }

    fn window_has_key(&self, window: &Window, key: RemoteKey) -> bool {
        self.inner.window_has_key(window, key)
    }
}

impl<P: Port> PortPoll for FaultyPort<P> {
    fn poll(&mut self, now: Ticks, batch: &mut CompletionBatch) -> bool {
        self.is_polled = true;
        let posted = self.post_withheld(now);
        if self.delay.is_empty() {
            return self.inner.poll(now, batch) || posted;
        }
        let handed = self.hand_over(now, batch);
        if batch.is_full() {
            return true;
        }
        let mut fresh = CompletionBatch::with_limit(batch.room());
        let moved = self.inner.poll(now, &mut fresh);
        for completion in fresh.drain() {
            self.take(completion, now, batch);
        }
        moved || posted || handed
    }

    fn prepare_to_park(&mut self) -> bool {
        // A parked core would not be woken for delayed entries.
        self.delayed.is_empty() && self.withheld.is_empty() && self.inner.prepare_to_park()
    }

    fn waits_unnotified(&self) -> bool {
        self.inner.waits_unnotified()
    }

    fn event(&self) -> BorrowedFd<'_> {
        self.inner.event()
    }

    fn unpark(&mut self) {
        self.inner.unpark();
    }

    fn receiver_not_ready(&self) -> u64 {
        self.inner.receiver_not_ready()
    }

    fn each_counter(&self, each: &mut dyn FnMut(Counted)) {
        self.inner.each_counter(each);
    }
}

/// The place in the peer's memory; if a fault strikes, a place outside of the exposed memory.
fn place(mut place: RemoteAddress, is_struck: bool) -> RemoteAddress {
    if is_struck {
        place.offset ^= OUTSIDE;
    }
    place
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_post_that_finds_its_queue_full_is_one_occasion() {
        let plan = FaultPlan::new(["disconnect:every=3".parse().expect("a fault")]);
        let mut posts = Posts {
            draws: Draws::new(&plan, FaultKind::Disconnect, 0),
            drawn: None,
        };
        let mut post = |result: Result<(), PostError>| {
            let mut struck = false;
            let ended = posts.post(
                |is_struck| {
                    struck = is_struck;
                    result
                },
                |posted| posted.err(),
            );
            assert_eq!(ended, result);
            struck
        };
        let full = Err(PostError::QueueFull);
        let struck = [full, full, Ok(()), Ok(()), full, full, Ok(()), Ok(())].map(&mut post);
        let wanted = [false, false, false, false, true, true, true, false];
        assert_eq!(struck, wanted);
        assert_eq!(plan.injected().map(|(_, times)| times).sum::<u64>(), 1);
    }
}
