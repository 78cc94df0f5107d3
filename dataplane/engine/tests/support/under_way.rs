//! What an RDMA device has under way, by count.
//!
//! A device works for itself, and nothing says that it has finished. So a port of a test counts for each connection
//! what it gives to the device and what comes back: Sends, and the messages that the peer's port completes; RDMA Reads,
//! signalled Writes, probes and invalidations, and their completions; buffers of Sends and Writes, and their return.
//! Where all counts agree, nothing is under way.
//!
//! Not all that is posted can end. A Send waits while its peer has no Receive posted, and so does what is posted behind
//! it. A message waits while its peer does not poll. [`Joint::is_under_way`] leaves these out.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rpcrdma_fabric::clock::Ticks;
use rpcrdma_fabric::interface::{
    Completion, CompletionBatch, CompletionKind, Gather, PortPoll, PortReceives, PortSends,
    PortSetup, PortWindows, PostError, QueuePairId, Receive, ReceiveQueueId, RemoteAddress,
    RemoteKey, SendOptions, SetupError, Window, WorkId,
};
use rpcrdma_fabric::memory::Buffer;
use rpcrdma_fabric::verbs;

use super::fabric::Polled;

/// What one port has given to its device, and got back.
#[derive(Debug, Default)]
struct Traffic {
    /// By the indices of the queue pairs.
    ends: Vec<End>,
    /// How often something was counted.
    changes: u64,
    /// Whether an end is refused.
    is_any_refused: bool,
    /// Receives that are posted, by the numbers of their queues.
    receives: Vec<u32>,
    /// Where the buffers of Sends and Writes lie, and whose they are.
    lent: Vec<(u64, QueuePairId)>,
    /// On which connection each window was bound.
    windows: HashMap<RemoteKey, QueuePairId>,
    /// What the port has given up, and no joint has taken note of.
    closing: Vec<QueuePairId>,
}

/// One end of a connection.
#[derive(Clone, Copy, Debug, Default)]
struct End {
    generation: u32,
    queue: usize,
    sent: u64,
    received: u64,
    /// Works that are to complete, and buffers that are to come back.
    works: u64,
    /// The last iteration found no room for a work.
    is_refused: bool,
    /// Its end was reported, or it was destroyed.
    is_gone: bool,
}

impl Traffic {
    /// Counts for an end that was adopted.
    fn add(&mut self, id: QueuePairId, queue: usize) {
        self.changes += 1;
        let index = id.index as usize;
        if self.ends.len() <= index {
            self.ends.resize(index + 1, End::default());
        }
        self.ends[index] = End {
            generation: id.generation,
            queue,
            ..End::default()
        };
    }

    /// Counts something at an end, unless another one has its place by now.
    fn count(&mut self, id: QueuePairId, count: impl FnOnce(&mut End)) {
        self.changes += 1;
        let end = self.ends.get_mut(id.index as usize);
        if let Some(end) = end.filter(|end| end.generation == id.generation) {
            count(end);
        }
    }

    /// This end, if it was adopted; another may have its place since it has gone.
    fn get(&self, id: QueuePairId) -> Option<End> {
        let end = self.ends.get(id.index as usize).copied();
        end.filter(|end| end.generation == id.generation)
    }

    /// Notes a post with so many Sends and works, and how it ended.
    fn note(&mut self, id: QueuePairId, sent: u64, works: u64, error: Option<PostError>) {
        let is_full = error == Some(PostError::QueueFull);
        self.is_any_refused |= is_full;
        self.count(id, |end| {
            end.is_refused |= is_full;
            if error.is_none() {
                end.sent += sent;
                end.works += works;
            }
        });
    }

    fn complete(&mut self, completion: &Completion) {
        self.count(completion.queue_pair, |end| match completion.kind {
            CompletionKind::Receive { .. } => end.received += 1,
            CompletionKind::Disconnected => end.is_gone = true,
            CompletionKind::Send(_)
            | CompletionKind::Read(..)
            | CompletionKind::Write(_)
            | CompletionKind::Invalidated(..) => end.works -= 1,
        });
    }
}

/// A port that counts.
#[derive(Debug)]
pub struct CountedPort {
    port: verbs::Port,
    traffic: Arc<Mutex<Traffic>>,
    are_receives_staged: bool,
}

/// The handle of a [`CountedPort`].
#[derive(Debug)]
pub struct CountedHandle {
    port: verbs::PortHandle,
    traffic: Arc<Mutex<Traffic>>,
}

pub fn counted((port, handle): (verbs::Port, verbs::PortHandle)) -> (CountedPort, CountedHandle) {
    let traffic = Arc::new(Mutex::new(Traffic::default()));
    let of_port = Arc::clone(&traffic);
    let port = CountedPort {
        port,
        traffic: of_port,
        are_receives_staged: false,
    };
    let handle = CountedHandle {
        port: handle,
        traffic,
    };
    (port, handle)
}

/// The connections of two ports.
#[derive(Debug)]
pub struct Joint {
    ports: [Arc<Mutex<Traffic>>; 2],
    connections: Vec<Connection>,
    /// A message that meets no Receive ends its connection, and nothing tells the ports of it.
    needs_receives: bool,
    /// The last answer, with what it was for.
    answer: Cell<Option<([u64; 2], Polled, bool)>>,
}

#[derive(Debug)]
struct Connection {
    /// What each port calls it.
    ids: [QueuePairId; 2],
    /// One of the ports has given it up.
    is_ending: bool,
}

impl Joint {
    pub fn new(a: &CountedHandle, b: &CountedHandle, needs_receives: bool) -> Self {
        Self {
            needs_receives,
            ports: [a, b].map(|handle| Arc::clone(&handle.traffic)),
            connections: Vec::new(),
            answer: Cell::new(None),
        }
    }

    /// The two ends of one more connection.
    pub fn prepared_pair(
        &mut self,
        a: &CountedHandle,
        b: &CountedHandle,
    ) -> [verbs::PreparedQueuePair; 2] {
        let prepared = verbs::prepared_pair(&a.port, &b.port);
        let (a, b) = prepared.expect("two queue pairs of one device");
        self.connections.push(Connection {
            ids: [a.queue_pair.id(), b.queue_pair.id()],
            is_ending: false,
        });
        [a, b]
    }

    /// What the ends of connections that were given up at one end tell the other ports: at most one for each.
    pub fn events(&mut self, handles: [&CountedHandle; 2]) -> [Option<verbs::PortEvent>; 2] {
        let told = [0, 1].map(|own| {
            let mut port = lock(&self.ports[own]);
            let closing = std::iter::from_fn(|| handles[own].port.next_closing());
            port.closing.extend(closing);
            if port.closing.is_empty() {
                return None;
            }
            // A port may have peers by several joints.
            let is_ours = |id| self.connections.iter().position(|it| it.ids[own] == id);
            let mut closing = port.closing.iter().enumerate();
            let (place, ours) = closing.find_map(|(place, id)| Some((place, is_ours(*id)?)))?;
            port.closing.remove(place);
            port.changes += 1;
            let connection = &mut self.connections[ours];
            connection.is_ending = true;
            Some(verbs::PortEvent::PeerGone(connection.ids[1 - own]))
        });
        let [to_b, to_a] = told;
        [to_a, to_b]
    }

    /// Whether the device still works on something that the polls of these ends bring.
    pub fn is_under_way(&self, polled: Polled) -> bool {
        let ports = [lock(&self.ports[0]), lock(&self.ports[1])];
        let changes = [ports[0].changes, ports[1].changes];
        if let Some((of, by, answer)) = self.answer.get()
            && (of, by) == (changes, polled)
        {
            return answer;
        }
        let answer = self.count([&ports[0], &ports[1]], polled);
        self.answer.set(Some((changes, polled, answer)));
        answer
    }

    fn count(&self, ports: [&Traffic; 2], polled: Polled) -> bool {
        let mut open = Vec::new();
        for connection in &self.connections {
            let ends = [0, 1].map(|side| ports[side].get(connection.ids[side]));
            let is_gone = |end: &Option<End>| end.is_some_and(|end| end.is_gone);
            if connection.is_ending || ends.iter().any(is_gone) {
                let ends_still = |side: usize| ends[side].is_some_and(|end| !end.is_gone);
                if [0, 1].into_iter().any(|it| polled[it] && ends_still(it)) {
                    return true;
                }
            } else if let [Some(a), Some(b)] = ends {
                open.push([a, b]);
            }
        }
        let receives = |ends: &[End; 2], side: usize| -> u64 {
            let posted = ports[side].receives.get(ends[side].queue);
            posted.copied().map_or(0, u64::from)
        };
        // What all connections that draw from the same Receives have sent.
        let coming = |ends: &[End; 2], to: usize| -> u64 {
            let same = open.iter().filter(|it| it[to].queue == ends[to].queue);
            same.map(|it| it[1 - to].sent.saturating_sub(it[to].received))
                .sum()
        };
        let works = |ends: &[End; 2], own: usize| {
            let (end, other) = (ends[own], 1 - own);
            let comes = ends[other].sent > end.received && receives(ends, own) > 0;
            let posted = end.works > 0 || end.is_refused;
            comes || posted && coming(ends, other) <= receives(ends, other)
        };
        let is_lost = |ends| {
            [0, 1]
                .into_iter()
                .any(|it| coming(ends, it) > receives(ends, it))
        };
        open.iter()
            .filter(|ends| !self.needs_receives || !is_lost(ends))
            .any(|ends| [0, 1].into_iter().any(|it| polled[it] && works(ends, it)))
    }
}

fn lock(traffic: &Mutex<Traffic>) -> MutexGuard<'_, Traffic> {
    traffic.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CountedPort {
    fn traffic(&self) -> MutexGuard<'_, Traffic> {
        lock(&self.traffic)
    }

    fn count_receives(&mut self) {
        let mut traffic = lock(&self.traffic);
        traffic.changes += 1;
        for (number, posted) in (0..).zip(&mut traffic.receives) {
            *posted = self.port.receives_posted(ReceiveQueueId(number));
        }
    }

    /// Where the buffers of a list lie.
    fn places(&self, list: &Gather) -> Vec<u64> {
        let memory = self.port.memory();
        let owned = list.iter().filter(|(buffer, ..)| memory.owns(buffer));
        owned.map(|(buffer, ..)| memory.offset_of(buffer)).collect()
    }

    /// Notes the buffers of a list that was posted.
    fn lend(&self, id: QueuePairId, places: Vec<u64>) {
        let mut traffic = self.traffic();
        traffic.count(id, |end| end.works += places.len() as u64);
        traffic
            .lent
            .extend(places.into_iter().map(|place| (place, id)));
    }
}

impl PortSetup for CountedPort {
    type PreparedQueuePair = verbs::PreparedQueuePair;
    type PortEvent = verbs::PortEvent;

    rpcrdma_testkit::pass_on! {
        attributes memory carve carve_untouched page_report create_receive handle_event disconnect
    }

    fn create_receive_queue(
        &mut self,
        attributes: rpcrdma_fabric::interface::ReceiveQueueAttributes,
    ) -> Result<ReceiveQueueId, SetupError> {
        let queue = self.port.create_receive_queue(attributes)?;
        let queues = usize::from(queue.0) + 1;
        self.traffic().receives.resize(queues, 0);
        Ok(queue)
    }

    fn adopt_queue_pair(
        &mut self,
        prepared: verbs::PreparedQueuePair,
        queue: ReceiveQueueId,
    ) -> Result<QueuePairId, SetupError> {
        let id = self.port.adopt_queue_pair(prepared, queue)?;
        self.traffic().add(id, queue.0.into());
        self.count_receives();
        Ok(id)
    }

    fn destroy_queue_pair(&mut self, queue_pair: QueuePairId) {
        self.port.destroy_queue_pair(queue_pair);
        self.traffic().count(queue_pair, |end| end.is_gone = true);
    }
}

impl PortReceives for CountedPort {
    rpcrdma_testkit::pass_on! {
        receives_posted received received_segment replace_segment
    }

    fn post_receive(&mut self, receive: Receive) -> Option<Receive> {
        self.are_receives_staged = true;
        self.port.post_receive(receive)
    }

    fn flush_receives(&mut self) {
        self.port.flush_receives();
        if std::mem::take(&mut self.are_receives_staged) {
            self.count_receives();
        }
    }
}

impl PortSends for CountedPort {
    rpcrdma_testkit::pass_on! { flush_sends }

    fn post_send_copied(
        &mut self,
        queue_pair: QueuePairId,
        source: &Buffer,
        bytes: u32,
        options: SendOptions,
    ) -> Result<(), PostError> {
        let posted = self
            .port
            .post_send_copied(queue_pair, source, bytes, options);
        let works = u64::from(options.signalled.is_some());
        self.traffic().note(queue_pair, 1, works, posted.err());
        posted
    }

    fn post_send(
        &mut self,
        queue_pair: QueuePairId,
        list: &mut Gather,
        options: SendOptions,
    ) -> Result<(), PostError> {
        let places = self.places(list);
        let posted = self.port.post_send(queue_pair, list, options);
        let works = u64::from(options.signalled.is_some());
        self.traffic().note(queue_pair, 1, works, posted.err());
        if posted.is_ok() {
            self.lend(queue_pair, places);
        }
        posted
    }

    fn post_read(
        &mut self,
        queue_pair: QueuePairId,
        list: Gather,
        from: RemoteAddress,
        work: WorkId,
    ) -> Result<(), (PostError, Gather)> {
        let posted = self.port.post_read(queue_pair, list, from, work);
        let error = posted.as_ref().err().map(|(error, _)| *error);
        self.traffic().note(queue_pair, 0, 1, error);
        posted
    }

    fn post_write(
        &mut self,
        queue_pair: QueuePairId,
        list: &mut Gather,
        to: RemoteAddress,
        signalled: Option<WorkId>,
    ) -> Result<(), PostError> {
        let places = self.places(list);
        let posted = self.port.post_write(queue_pair, list, to, signalled);
        let works = u64::from(signalled.is_some());
        self.traffic().note(queue_pair, 0, works, posted.err());
        if posted.is_ok() {
            self.lend(queue_pair, places);
        }
        posted
    }

    fn probe(&mut self, queue_pair: QueuePairId, work: WorkId) -> Result<(), PostError> {
        let posted = self.port.probe(queue_pair, work);
        self.traffic().note(queue_pair, 0, 1, posted.err());
        posted
    }

    fn next_returned(&mut self) -> Option<Buffer> {
        let buffer = self.port.next_returned()?;
        let place = self.port.memory().offset_of(&buffer);
        let mut traffic = lock(&self.traffic);
        // Those of windows come back here too.
        let lent = traffic.lent.iter().position(|lent| lent.0 == place);
        if let Some((_, id)) = lent.map(|lent| traffic.lent.swap_remove(lent)) {
            traffic.count(id, |end| end.works -= 1);
        }
        Some(buffer)
    }
}

impl PortWindows for CountedPort {
    rpcrdma_testkit::pass_on! { close_window window_has_key }

    fn bind_window(
        &mut self,
        queue_pair: QueuePairId,
        buffer: Buffer,
        bytes: u32,
        access: rpcrdma_fabric::interface::Access,
    ) -> Result<Window, (PostError, Buffer)> {
        let bound = self.port.bind_window(queue_pair, buffer, bytes, access);
        let error = bound.as_ref().err().map(|(error, _)| *error);
        let mut traffic = self.traffic();
        traffic.note(queue_pair, 0, 0, error);
        if let Ok(window) = &bound {
            traffic.windows.insert(window.remote().key, queue_pair);
        }
        drop(traffic);
        bound
    }

    fn invalidate_window(
        &mut self,
        window: Window,
        work: WorkId,
    ) -> Result<(), (PostError, Window)> {
        let owner = self.traffic().windows.get(&window.remote().key).copied();
        let invalidated = self.port.invalidate_window(window, work);
        if let Some(queue_pair) = owner {
            let error = invalidated.as_ref().err().map(|(error, _)| *error);
            self.traffic().note(queue_pair, 0, 1, error);
        }
        invalidated
    }
}

impl PortPoll for CountedPort {
    rpcrdma_testkit::pass_on! {
        prepare_to_park waits_unnotified event unpark receiver_not_ready counters
    }

    fn poll(&mut self, now: Ticks, batch: &mut CompletionBatch) -> bool {
        let moved = self.port.poll(now, batch);
        let mut traffic = lock(&self.traffic);
        if std::mem::take(&mut traffic.is_any_refused) {
            traffic.changes += 1;
            traffic
                .ends
                .iter_mut()
                .for_each(|end| end.is_refused = false);
        }
        if batch.is_empty() {
            return moved;
        }
        let came: Vec<_> = batch.drain().collect();
        for completion in came {
            traffic.complete(&completion);
            batch.push(completion).expect("it came out of the batch");
        }
        drop(traffic);
        self.count_receives();
        moved
    }
}
