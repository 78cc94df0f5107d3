//! What runs on a core: it makes the calls of clients, and has services answer those of peers.

mod make;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rpcrdma_engine::{
    Activity, Application, ApplicationMessage, BulkArguments, BulkReply, CallError, CallRefused,
    CallTag, CloseReason, ConnectionKey, Context, HostIdentity, MessageOutcome, Outcome,
    PeerProperties, Reply, ReplyRefused, ReplyWriter, Request,
};
use rpcrdma_fabric::clock::{Clock, Ticks};
use rpcrdma_fabric::interface::{PeerIdentity, Port};
use rpcrdma_protocol::rpc;
use rpcrdma_protocol::v2::TransportError;

use self::make::{make, make_repeatable};
use crate::exchange::{
    Answer, Content, CoreShared, Message, Parcel, Status, SubmissionQueue, Token,
};
use crate::once::Servers;
use crate::service::Programs;

/// Calls, answers and pieces that one poll moves at most, of each.
const MOVED_MAX: usize = 8;

/// How long the calls of a client may be held, to move them to another connection: for those that are under way to end.
const HOLD_MAX: Duration = Duration::from_millis(100);

/// The bit of the tags of calls of clients. Other tags are of the application.
const OF_CLIENT: CallTag = 1 << 63;

/// What runs on each core of a facade's node: services, the calls of clients, and the application of a program that has one.
pub(crate) struct CoreApplication<A = ()> {
    application: A,
    /// The programs of the application come first.
    first_program: usize,
    shared: Arc<CoreShared>,
    programs: Programs,
    /// The calls from clients and pollers. A place is empty when its queue is over.
    queues: Vec<Option<SubmissionQueue>>,
    /// The queue that is looked at first, so that a busy one holds up no other.
    first_queue: usize,
    /// Calls that wait for their replies, by tag.
    in_flight: Box<[Option<Box<Message>>]>,
    free: Vec<u32>,
    /// Calls that cannot go now: their connection is not there, or has no credits.
    waiting: VecDeque<Box<Message>>,
    /// Calls that were lost with their connections, to be made again.
    lost: VecDeque<Box<Message>>,
    /// Who serves at the other ends.
    servers: Servers,
    /// Answers whose connection takes none now.
    answers_waiting: VecDeque<Box<Answer>>,
    /// A call found too little registered memory since the last look at those that wait.
    lacks_memory: bool,
    /// [`CoreApplication::do_rare_work`] has left something.
    has_rare_work: bool,
    clock: Clock,
}

impl<A: Application> CoreApplication<A> {
    pub(crate) fn new(
        application: A,
        shared: Arc<CoreShared>,
        programs: Programs,
        (calls_max, deferred_max): (u32, u32),
        clock: Clock,
    ) -> Self {
        Self {
            // An application that takes every program leaves none to services.
            first_program: application.programs().count().unwrap_or(usize::MAX),
            application,
            shared,
            programs,
            // A queue has at least one call.
            queues: Vec::with_capacity(calls_max as usize),
            first_queue: 0,
            in_flight: (0..calls_max).map(|_| None).collect(),
            free: (0..calls_max).rev().collect(),
            waiting: VecDeque::with_capacity(calls_max as usize),
            lost: VecDeque::with_capacity(calls_max as usize),
            servers: Servers::default(),
            answers_waiting: VecDeque::with_capacity(deferred_max as usize),
            lacks_memory: false,
            has_rare_work: true,
            clock,
        }
    }

    /// Makes a call of a queue. False when it has to wait.
    fn start<P: Port>(&mut self, core: &mut Context<'_, P>, mut message: Box<Message>) -> bool {
        let Some(Some(queue)) = self.queues.get_mut(message.queue) else {
            debug_assert!(false, "a queue is there until its calls have ended");
            return true;
        };
        let Some(connection) = queue.connection() else {
            return self.wait_without_connection(core.now(), message);
        };
        let Some(&index) = self.free.last() else {
            self.put_back(message);
            return false;
        };
        let made = if queue.peer().repeats {
            make_repeatable(
                core,
                &self.servers,
                queue.peer(),
                &mut message,
                connection,
                index,
            )
        } else {
            make(core, &mut message, connection, tag_of(index))
        };
        match made {
            Ok(()) => {
                self.free.pop();
                if let Some(place) = self.in_flight.get_mut(index as usize) {
                    *place = Some(message);
                }
                true
            }
            // Nothing else bounds it: the memory that it waits for may be that of other calls that wait.
            Err(CallRefused::NoSlot) if message.is_late(core.now()) => {
                self.finish(message, Status::Failed(CallError::Disconnected));
                true
            }
            Err(refused) if refused.is_transient() => {
                if refused == CallRefused::NoSlot && message.has_extras {
                    self.lacks_memory = true;
                    self.shared.empty_stock();
                }
                self.put_back(message);
                false
            }
            // The connection has just ended: its loss is not noted yet.
            Err(CallRefused::UnknownConnection | CallRefused::NotReady) => {
                self.wait_for_connection(core.now(), message)
            }
            // The next attempt sends the arguments in a chunk.
            Err(CallRefused::TooLong)
                if !message.has_extras && core.results_inline_bytes_max(connection).is_some() =>
            {
                message.extras_mut();
                self.put_back(message);
                true
            }
            Err(refused) => {
                let status = match message.sent {
                    None => Status::Refused(refused),
                    // It may have run when it was sent before.
                    Some(_) => Status::Failed(CallError::Disconnected),
                };
                self.finish(message, status);
                true
            }
        }
    }

    /// The connection is away, or calls are held: that is nothing to lose patience with.
    #[cold]
    fn wait_without_connection(&mut self, now: Ticks, message: Box<Message>) -> bool {
        let queue = self.queues.get(message.queue).and_then(Option::as_ref);
        if queue.is_some_and(|queue| queue.peer().is_held()) {
            self.put_back(message);
            return false;
        }
        self.wait_for_connection(now, message)
    }

    #[cold]
    fn wait_for_connection(&mut self, now: Ticks, mut message: Box<Message>) -> bool {
        let Some(Some(queue)) = self.queues.get_mut(message.queue) else {
            return true;
        };
        let peer = queue.peer();
        if message.wait_until == 0 {
            message.wait_until = now.saturating_add(self.clock.ticks(peer.patience)).max(1);
        }
        if peer.is_given_up() || now >= message.wait_until {
            let status = match message.sent {
                None => Status::NotConnected,
                // It may have run.
                Some(_) => Status::Failed(CallError::Disconnected),
            };
            self.finish(message, status);
            return true;
        }
        self.put_back(message);
        false
    }

    /// Keeps a call that cannot be made now.
    fn put_back(&mut self, message: Box<Message>) {
        self.has_rare_work = true;
        if message.sent.is_none() {
            return self.waiting.push_back(message);
        }
        self.count_lost(&message, true);
        self.lost.push_back(message);
    }

    fn next_lost(&mut self) -> Option<Box<Message>> {
        let message = self.lost.pop_front()?;
        self.count_lost(&message, false);
        Some(message)
    }

    fn count_lost(&self, message: &Message, is_more: bool) {
        if let Some(Some(queue)) = self.queues.get(message.queue) {
            count(&queue.peer().lost, is_more);
        }
    }

    /// Makes the calls that clients and pollers have submitted, from each queue in turn.
    fn start_submitted<P: Port>(&mut self, core: &mut Context<'_, P>) -> bool {
        let mut left = MOVED_MAX;
        let count = self.queues.len();
        // A division in each poll would cost more than the look at a queue.
        let first = self.first_queue;
        for at in (first..count).chain(0..first.min(count)) {
            while let Some(Some(queue)) = self.queues.get_mut(at) {
                queue.wake();
                let Some(mut message) = queue.next() else {
                    if queue.is_over() {
                        self.remove_queue(at);
                    }
                    break;
                };
                message.queue = at;
                self.start(core, message);
                left -= 1;
                if left == 0 {
                    self.first_queue = if at + 1 < count { at + 1 } else { 0 };
                    return true;
                }
            }
        }
        left < MOVED_MAX
    }

    #[cold]
    fn add_queue(&mut self, queue: SubmissionQueue) {
        match self.queues.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(queue),
            None => self.queues.push(Some(queue)),
        }
    }

    #[cold]
    fn remove_queue(&mut self, at: usize) {
        if let Some(queue) = self.queues.get_mut(at).and_then(Option::take) {
            self.shared.release(queue);
        }
    }

    fn completed_for_client(
        &mut self,
        tag: CallTag,
        result: Result<Reply<'_>, CallError>,
        now: Ticks,
    ) {
        let Some(mut message) = self.take_in_flight(tag) else {
            return;
        };
        match result {
            Ok(reply) => {
                message.keep_verifier(reply.verifier);
                let status = put_results(&mut message, reply.results);
                self.finish(message, status);
            }
            Err(error) => self.fail(message, error, now),
        }
    }

    fn finish(&mut self, mut message: Box<Message>, status: Status) {
        // Its sender may look at it late, or never.
        message.end_shares();
        if let Some(Some(queue)) = self.queues.get_mut(message.queue) {
            if let Some(number) = message.sent.and_then(|sent| sent.number) {
                queue.peer().end(number);
            }
            queue.finish(message, status);
        }
    }

    /// A call has failed. It is made again if it was lost with its connection, and its client wants that.
    #[cold]
    fn fail(&mut self, mut message: Box<Message>, error: CallError, now: Ticks) {
        let Some(Some(queue)) = self.queues.get(message.queue) else {
            return;
        };
        let peer = queue.peer();
        if message.wait_until == 0 {
            message.wait_until = now.saturating_add(self.clock.ticks(peer.patience)).max(1);
        }
        let is_in_time = now < message.wait_until && !peer.is_given_up();
        if error == CallError::Disconnected && is_in_time && message.prepare_to_repeat() {
            self.put_back(message);
        } else {
            self.finish(message, Status::Failed(error));
        }
    }

    /// Answers to deferred calls, calls that wait, new queues, and memory for threads. Returns whether there was something to do.
    #[inline(never)]
    fn do_rare_work<P: Port>(&mut self, core: &mut Context<'_, P>) -> bool {
        // First: what is asked for from now on is found in the next poll.
        self.shared.take_rare_work();
        let mut is_busy = false;
        // What waits is tried once each, in turn, so that one connection holds up no other.
        for _ in 0..MOVED_MAX.min(self.answers_waiting.len()) {
            if let Some(answer) = self.answers_waiting.pop_front() {
                is_busy |= self.answer(core, answer);
            }
        }
        for _ in 0..MOVED_MAX {
            let Some(answer) = self.shared.next_answer() else {
                break;
            };
            is_busy |= self.answer(core, answer);
        }
        for _ in 0..MOVED_MAX {
            let Some(parcel) = self.shared.next_parcel() else {
                break;
            };
            self.take_parcel(core, parcel);
            is_busy = true;
        }
        self.lacks_memory = false;
        for _ in 0..MOVED_MAX.min(self.lost.len()) {
            if let Some(message) = self.next_lost() {
                is_busy |= self.start(core, message);
            }
        }
        for _ in 0..MOVED_MAX.min(self.waiting.len()) {
            if let Some(message) = self.waiting.pop_front() {
                is_busy |= self.start(core, message);
            }
        }
        while let Some(queue) = self.shared.next_queue() {
            self.add_queue(queue);
        }
        let is_moving = self.move_calls(core);
        // A core that sleeps would hold them for longer than it may.
        is_busy |= is_moving;
        // Memory for threads comes last: where it is scarce, the calls that wait need it first.
        if !self.lacks_memory && self.shared.lacks_stock() {
            self.fill_stock(core);
        }
        self.has_rare_work = !self.answers_waiting.is_empty()
            || !self.waiting.is_empty()
            || !self.lost.is_empty()
            || is_moving
            || self.shared.has_answers()
            || self.shared.has_parcels()
            || self.shared.lacks_stock();
        is_busy
    }

    /// Moves the calls of clients to connections that were offered. Returns whether there is one to look at again.
    fn move_calls<P: Port>(&self, core: &mut Context<'_, P>) -> bool {
        let mut is_left = false;
        for queue in self.queues.iter().flatten() {
            let peer = queue.peer();
            if !peer.is_offered() {
                continue;
            }
            let (again, close) = peer.look(core, self.clock.ticks(HOLD_MAX));
            if let Some(connection) = close {
                core.disconnect(connection);
            }
            is_left |= again;
        }
        is_left
    }

    fn fill_stock<P: Port>(&mut self, core: &mut Context<'_, P>) {
        for _ in 0..MOVED_MAX {
            let Some(piece) = core.take_bulk() else {
                break;
            };
            self.shared.put_piece(piece);
            if !self.shared.lacks_stock() {
                break;
            }
        }
    }

    /// Does what a connection by TCP needs: as for a connection of the core, but that the reply goes back with the call.
    fn take_parcel<P: Port>(&mut self, core: &mut Context<'_, P>, mut parcel: Box<Parcel>) {
        let connection = parcel.connection;
        let Parcel {
            content,
            may_wait,
            message,
            reply,
            ..
        } = &mut *parcel;
        match content {
            Content::Opened(address) => {
                let peer = PeerIdentity {
                    address: Some(*address),
                    ..PeerIdentity::default()
                };
                self.opened(connection, &peer);
                self.connected(connection, None);
            }
            Content::Closed => self.disconnected(connection, CloseReason::Peer),
            _ => {
                self.shared.set_may_wait(*may_wait);
                let mut without_reply = Content::NoCall;
                let served = core.serve_message(connection, message, reply, |request, writer| {
                    let outcome = self.call(request, writer);
                    match outcome {
                        // An application has no token for it.
                        Outcome::Deferred if request.program_index < self.first_program => {
                            return Outcome::SystemError;
                        }
                        Outcome::Deferred => without_reply = Content::Later,
                        Outcome::Discarded => without_reply = Content::Discarded,
                        _ => {}
                    }
                    outcome
                });
                *content = match served {
                    Some(place) => Content::reply(reply, place),
                    None => without_reply,
                };
            }
        }
        self.shared.return_parcel(parcel);
    }

    fn take_in_flight(&mut self, tag: CallTag) -> Option<Box<Message>> {
        let index = u32::try_from(tag & !OF_CLIENT).ok();
        debug_assert!(
            index.is_some_and(|index| (index as usize) < self.in_flight.len()),
            "an application's tags are below 2^63"
        );
        let index = index?;
        let call = self.in_flight.get_mut(index as usize)?.take()?;
        self.free.push(index);
        Some(call)
    }

    /// Sends an answer. False when it has to wait.
    fn answer<P: Port>(&mut self, core: &mut Context<'_, P>, mut answer: Box<Answer>) -> bool {
        let (Some(Token::Core(token)), Some(outcome)) = (answer.token.take(), answer.outcome)
        else {
            return true;
        };
        match core.reply_bulk(token, outcome, &answer.results, &mut answer.items) {
            Ok(()) | Err((ReplyRefused::UnknownToken, _)) => {
                self.shared.recycle_answer(answer);
                true
            }
            Err((refused, token)) => {
                answer.token = Some(Token::Core(token));
                if refused != ReplyRefused::Busy {
                    // The results do not fit: the caller learns that its call failed.
                    answer.outcome = Some(Outcome::SystemError);
                    answer.items.clear();
                }
                self.has_rare_work = true;
                self.answers_waiting.push_back(answer);
                false
            }
        }
    }
}

/// The tag of the call of a client in this place.
const fn tag_of(index: u32) -> CallTag {
    OF_CLIENT | index as CallTag
}

/// Counts a call of a connection. Only its core does.
fn count(of: &AtomicU32, is_more: bool) {
    let count = of.load(Ordering::Relaxed);
    let count = if is_more {
        count.wrapping_add(1)
    } else {
        count.wrapping_sub(1)
    };
    of.store(count, Ordering::Relaxed);
}

/// Puts the results into the capacity that the message has.
fn put_results(message: &mut Message, results: &[u8]) -> Status {
    message.results.clear();
    if results.len() > message.results.capacity() {
        return Status::ResultsTooLong(results.len());
    }
    message.results.extend_from_slice(results);
    Status::Success
}

impl<A: Application> Application for CoreApplication<A> {
    const CLOCK_INTERVAL_POLLS: u32 = A::CLOCK_INTERVAL_POLLS;

    fn programs(&self) -> rpc::Programs {
        self.application.programs().and(self.programs.taken())
    }

    #[inline]
    fn call(&mut self, request: &Request<'_>, reply: &mut ReplyWriter<'_>) -> Outcome {
        match request.program_index.checked_sub(self.first_program) {
            Some(index) => self
                .programs
                .serve(index, &self.shared, request, None, reply),
            None => self.application.call(request, reply),
        }
    }

    fn call_bulk(
        &mut self,
        request: &Request<'_>,
        items: &mut BulkArguments<'_>,
        reply: &mut ReplyWriter<'_>,
    ) -> Outcome {
        match request.program_index.checked_sub(self.first_program) {
            Some(index) => self
                .programs
                .serve(index, &self.shared, request, Some(items), reply),
            None => self.application.call_bulk(request, items, reply),
        }
    }

    // Always: it only says whose call it is.
    #[inline(always)]
    fn completed(
        &mut self,
        tag: CallTag,
        connection: ConnectionKey,
        result: Result<Reply<'_>, CallError>,
        now: Ticks,
    ) {
        if tag & OF_CLIENT == 0 {
            self.application.completed(tag, connection, result, now);
        } else {
            self.completed_for_client(tag, result, now);
        }
    }

    fn completed_bulk(
        &mut self,
        tag: CallTag,
        connection: ConnectionKey,
        result: Result<BulkReply<'_>, CallError>,
        now: Ticks,
    ) {
        if tag & OF_CLIENT == 0 {
            return self
                .application
                .completed_bulk(tag, connection, result, now);
        }
        let Some(mut message) = self.take_in_flight(tag) else {
            return;
        };
        let status = match result {
            Ok(bulk) => {
                for result in bulk.items.iter_mut() {
                    let item = std::mem::take(&mut result.item);
                    message.extras_mut().result_items.push(item);
                }
                message.keep_verifier(bulk.reply.verifier);
                put_results(&mut message, bulk.reply.results)
            }
            Err(error) => return self.fail(message, error, now),
        };
        self.finish(message, status);
    }

    fn message(&mut self, message: &ApplicationMessage<'_>) -> MessageOutcome {
        self.application.message(message)
    }

    fn message_refused(&mut self, connection: ConnectionKey, xid: u32, error: TransportError) {
        self.application.message_refused(connection, xid, error);
    }

    #[inline]
    fn poll<P: Port>(&mut self, core: &mut Context<'_, P>, now: Ticks) -> Activity {
        let mut is_busy = self.application.poll(core, now).is_busy();
        // One word for all that is rarely there: an idle poll would pay for a look at each of the queues.
        if self.has_rare_work | self.shared.has_rare_work() {
            is_busy |= self.do_rare_work(core);
        }
        if !self.queues.is_empty() {
            is_busy |= self.start_submitted(core);
        }
        Activity::from_busy(is_busy)
    }

    fn next_due(&self) -> Option<Ticks> {
        self.application.next_due()
    }

    fn opened(&mut self, connection: ConnectionKey, peer: &PeerIdentity) {
        self.application.opened(connection, peer);
        self.servers.opened(connection);
        self.programs.opened(connection, peer);
    }

    fn peer_properties(&mut self, connection: ConnectionKey, properties: &PeerProperties) {
        self.application.peer_properties(connection, properties);
        self.servers.announced(connection, properties);
        self.programs.announced(connection, properties);
    }

    fn connected(&mut self, connection: ConnectionKey, peer: Option<&HostIdentity>) {
        self.application.connected(connection, peer);
        self.programs.connected(connection, peer);
    }

    fn disconnected(&mut self, connection: ConnectionKey, reason: CloseReason) {
        self.application.disconnected(connection, reason);
        self.programs.disconnected(connection, reason);
    }
}

impl<A> Drop for CoreApplication<A> {
    fn drop(&mut self) {
        let in_flight = self.in_flight.iter_mut().filter_map(Option::take);
        let kept = self.waiting.drain(..).chain(self.lost.drain(..));
        for mut message in in_flight.chain(kept) {
            message.end_shares();
            if let Some(Some(queue)) = self.queues.get_mut(message.queue) {
                queue.finish(message, Status::ShuttingDown);
            }
        }
        self.shared.close(self.queues.drain(..).flatten());
    }
}
