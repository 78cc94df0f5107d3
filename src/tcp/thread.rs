//! The thread that has the sockets.

use std::collections::VecDeque;
use std::net::{IpAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;
use rpcrdma_control::{DrainReport, NodeHandle};
use rpcrdma_engine::ConnectionKey;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::connection::{Connection, is_passing};
use super::{Counters, Limits, Request, Tcp};
use crate::exchange::{Content, CoreShared, Parcel, ParcelQueue};

/// Calls that one connection may have under way, and one more that is answered immediately. A call is under way on its core, while
/// it has no answer, and while its reply was not sent: that bounds what peers who read no replies make the node keep.
const CALLS_MAX: u32 = 32;

/// So many of them no other connection can take from it.
const CALLS_SURE: u32 = 3;

/// Calls that all connections may have so, beyond those.
const CALLS_SHARED: u32 = 64;

/// Parcels that are kept to be used again, with what their messages and replies have touched.
const SPARE_MAX: usize = 16;

/// Connections that one turn accepts at most of a listener.
const ACCEPTED_MAX: usize = 64;

/// The thread looks for what cores have done after an eighth of the time that it has waited for it, so that a call takes
/// hardly longer for it, and at the latest after this.
const LOOK_MAX: Duration = Duration::from_millis(10);

/// Below this it does not sleep.
const LOOK_LEAST: Duration = Duration::from_micros(6);

/// So long a connection that was closed by a drain waits for its peer to close it too. Data that nobody has read would else make the
/// kernel drop replies that are on their way.
const LEAVE: Duration = Duration::from_secs(1);

/// How often it looks for connections on which nothing moves, for the end of a drain, and for room where `accept` failed.
const SWEEP: Duration = Duration::from_millis(100);

/// A place for a connection.
#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    /// Whose place it is, or was.
    peer: Option<IpAddr>,
    connection: Option<Connection>,
    /// Its core knows of it: the news of its end has not come back.
    is_known: bool,
    /// Its calls that may be answered later, until their replies are sent. The place is not used again before they have come back.
    calls: u32,
    /// It has one more, which is answered immediately. So what calls wait for can always come, by any connection.
    answers_immediately: bool,
}

/// A drain: when it ends at the latest, who waits for it, and the connections that there were.
struct Drain {
    /// `None` for no limit.
    until: Option<Instant>,
    answer: Sender<DrainReport>,
    connections: u64,
}

/// All that the thread has.
pub(super) struct Thread {
    cores: Arc<[Arc<CoreShared>]>,
    node: Arc<NodeHandle>,
    limits: Limits,
    counters: Arc<Counters>,
    requests: Receiver<Request>,
    wake: Arc<OwnedFd>,
    back: Arc<ArrayQueue<Box<Parcel>>>,
    listeners: Vec<TcpListener>,
    /// False after `accept` failed, for example for lack of descriptors: a listener stays readable then.
    is_accepting: bool,
    slots: Vec<Slot>,
    /// Calls beyond those that connections are sure of.
    shared: u32,
    spare: VecDeque<Box<Parcel>>,
    /// What cores or services owe: calls that have no reply, and news of connections.
    awaited: u32,
    /// When something of that last came, or was sent.
    progress: Instant,
    is_draining: bool,
    drain: Option<Drain>,
    now: Instant,
}

impl Thread {
    pub(super) fn new(tcp: &Tcp, requests: Receiver<Request>, wake: &Arc<OwnedFd>) -> Self {
        let limits = tcp.limits;
        let connections = limits.connections_max as usize;
        // Each connection begins, ends, has its calls, and one that is answered immediately; and the shared calls.
        let parcels = (3 + CALLS_SURE as usize) * connections + CALLS_SHARED as usize;
        // Once: where a thread could not be started, the next one has the same.
        let back = tcp.back.get_or_init(|| {
            // A call that is answered later comes back twice.
            let back = Arc::new(ArrayQueue::new(2 * parcels));
            for core in &*tcp.cores {
                core.open_to_tcp(ParcelQueue {
                    to_core: ArrayQueue::new(parcels),
                    back: Arc::clone(&back),
                    first_index: limits.first_index,
                    message_bytes_max: limits.message_bytes_max,
                    may_wait: AtomicBool::new(true),
                });
            }
            back
        });
        // TIME: peers are given minutes, and cores are looked at again within milliseconds; nothing here decides by it.
        let now = Instant::now();
        Self {
            cores: Arc::clone(&tcp.cores),
            node: Arc::clone(&tcp.node),
            limits,
            counters: Arc::clone(&tcp.counters),
            requests,
            wake: Arc::clone(wake),
            back: Arc::clone(back),
            listeners: Vec::new(),
            is_accepting: true,
            slots: std::iter::repeat_with(Slot::default)
                .take(connections)
                .collect(),
            shared: 0,
            spare: VecDeque::new(),
            awaited: 0,
            progress: now,
            is_draining: false,
            drain: None,
            now,
        }
    }

    /// Serves until nobody can ask for anything any more.
    pub(super) fn run(mut self) {
        while self.turn() {}
    }

    /// Waits until something is ready, and does it once. False at the end.
    pub(super) fn turn(&mut self) -> bool {
        let ready = self.wait();
        // TIME: as in `new`.
        self.now = Instant::now();
        loop {
            match self.requests.try_recv() {
                Ok(request) => self.take(request),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
        while let Some(parcel) = self.back.pop() {
            self.progress = self.now;
            self.take_back(parcel);
        }
        for (at, ready) in ready {
            self.serve(at, ready);
        }
        self.accept();
        self.end_drain();
        true
    }

    /// What of each connection is ready.
    fn wait(&mut self) -> Vec<(usize, PollFlags)> {
        let mut at_most = SWEEP;
        if self.awaited > 0 {
            let share = self.now.duration_since(self.progress) / 8;
            at_most = match share < LOOK_LEAST {
                true => Duration::ZERO,
                false => share.min(LOOK_MAX),
            };
        }
        let mut waited = vec![PollFd::new(&self.wake, PollFlags::IN)];
        let listeners = self.listeners.iter().filter(|_| self.is_accepting);
        waited.extend(listeners.map(|listener| PollFd::new(listener, PollFlags::IN)));
        let others = waited.len();
        let slots = self.slots.iter().enumerate();
        let open = slots.filter_map(|(at, slot)| Some((at, slot.connection.as_ref()?)));
        let (places, connections): (Vec<_>, Vec<_>) = open
            .map(|(at, it)| (at, PollFd::new(&it.stream, it.interest())))
            .unzip();
        waited.extend(connections);
        let timeout = Timespec::try_from(at_most).unwrap_or_default();
        match poll(&mut waited, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            // For want of memory, or while the limit of descriptors is below their number. It may pass; the connections stay.
            // TIME: it only keeps the thread from spinning meanwhile.
            Err(_) => std::thread::sleep(SWEEP),
        }
        // It fails when nobody woke it.
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        let ready = waited.iter().skip(others).map(PollFd::revents);
        places.into_iter().zip(ready).collect()
    }

    fn take(&mut self, request: Request) {
        match request {
            Request::Listen(listener) if !self.is_draining => self.listeners.push(listener),
            Request::Listen(_) => {}
            Request::Drain(timeout, answer) => {
                self.listeners.clear();
                self.is_draining = true;
                self.drain = Some(Drain {
                    until: self.now.checked_add(timeout),
                    answer,
                    connections: self.open(),
                });
            }
        }
    }

    fn open(&self) -> u64 {
        let open = self.slots.iter().filter(|slot| slot.connection.is_some());
        open.count() as u64
    }

    fn end_drain(&mut self) {
        let now = self.now;
        // Calls go on when their connections have ended.
        let runs = |slot: &Slot| slot.connection.is_some() || slot.under_way() > 0;
        let complete = self.drain.is_some() && !self.slots.iter().any(runs);
        if let Some(drain) = self
            .drain
            .take_if(|it| complete || it.until.is_some_and(|until| now >= until))
        {
            (0..self.slots.len()).for_each(|at| self.close(at));
            // Fails when nobody waits any more.
            let _ = drain.answer.send(DrainReport {
                connections: drain.connections,
                complete,
            });
        }
    }

    fn accept(&mut self) {
        self.is_accepting = true;
        for number in 0..self.listeners.len() {
            for _ in 0..ACCEPTED_MAX {
                let Some(listener) = self.listeners.get(number) else {
                    break;
                };
                match listener.accept() {
                    Ok((stream, address)) => {
                        let peer = address.ip().to_canonical();
                        let limit = self.limits.message_bytes_max;
                        // One whose socket has failed already is forgotten.
                        if let Ok(connection) = Connection::new(stream, limit, self.now) {
                            self.admit(connection, peer);
                        }
                    }
                    Err(error) => {
                        self.is_accepting &= is_passing(&error);
                        break;
                    }
                }
            }
        }
    }

    /// Gives a connection a place. One beyond the limits is dropped.
    fn admit(&mut self, connection: Connection, peer: IpAddr) {
        // A place counts until the calls of its connection have ended: who connects again and again gets no more of them.
        let taken = self.slots.iter().filter(|slot| !slot.is_free());
        let of_peer = taken.filter(|slot| slot.peer == Some(peer)).count();
        let place = self.slots.iter().position(Slot::is_free);
        let of_peer_max = self.node.limits().peer_connections_max as usize;
        let place = place.filter(|_| of_peer < of_peer_max);
        let Some(at) = place else {
            return count(&self.counters.refused);
        };
        count(&self.counters.accepted);
        let slot = &mut self.slots[at];
        slot.generation = slot.generation.wrapping_add(1);
        (slot.peer, slot.connection) = (Some(peer), Some(connection));
        self.tell(at, Content::Opened(peer));
    }

    /// Receives and sends what is possible, and hands calls to the core.
    fn serve(&mut self, at: usize, ready: PollFlags) {
        let (now, idle) = (self.now, self.limits.idle);
        let is_core_closed = self.core(at).is_closed();
        let Some(connection) = &mut self.slots[at].connection else {
            return;
        };
        let mut lives = !ready.intersects(PollFlags::HUP | PollFlags::ERR) && !is_core_closed;
        if lives && ready.contains(PollFlags::IN) {
            lives = connection.receive(now).is_ok();
        }
        let mut done = VecDeque::new();
        let writable = ready.contains(PollFlags::OUT);
        lives = lives && connection.send(writable, now, &mut done).is_ok();
        done.into_iter().for_each(|parcel| self.release(at, parcel));
        lives = lives && self.begin_calls(at);
        let slot = &self.slots[at];
        let is_over = slot.connection.as_ref().is_none_or(|it| {
            let has_ended = it.is_over && (!it.has_message || it.is_leaving);
            let runs = slot.under_way() > it.unsent();
            let is_idle = now.duration_since(it.moved) >= if it.is_leaving { LEAVE } else { idle };
            (has_ended && slot.under_way() == 0) || (is_idle && !runs)
        });
        if self.is_draining && self.slots[at].under_way() == 0 {
            self.slots[at]
                .connection
                .iter_mut()
                .for_each(|it| it.leave(now));
        }
        if !lives || is_over {
            self.close(at);
        }
    }

    /// Hands messages to the core, as many as the connection may have there. False if the stream cannot be read on.
    fn begin_calls(&mut self, at: usize) -> bool {
        while !self.is_draining
            && let slot = &mut self.slots[at]
            && let may_wait = slot.has_place(self.shared)
            && (may_wait || !slot.answers_immediately)
            && let Some(connection) = slot.connection.as_mut().filter(|it| it.has_message)
        {
            let message = match connection.next_message() {
                Ok(Some(message)) => message,
                Ok(None) => break,
                Err(_) => return false,
            };
            let parcel = self.spare.pop_back();
            let mut parcel = parcel.unwrap_or_else(|| new_parcel(self.limits.message_bytes_max));
            parcel.message.clear();
            parcel.message.extend_from_slice(message);
            parcel.content = Content::Call;
            parcel.may_wait = may_wait;
            match may_wait {
                true => {
                    self.shared += u32::from(slot.calls >= CALLS_SURE);
                    slot.calls += 1;
                }
                false => slot.answers_immediately = true,
            }
            self.hand_over(at, parcel);
        }
        true
    }

    /// Tells the core of the connection that it begins or ends.
    fn tell(&mut self, at: usize, content: Content) {
        self.slots[at].is_known = true;
        let mut parcel = new_parcel(0);
        parcel.content = content;
        self.hand_over(at, parcel);
    }

    fn hand_over(&mut self, at: usize, mut parcel: Box<Parcel>) {
        parcel.connection = self.key(at);
        self.awaited += 1;
        self.progress = self.now;
        self.core(at).send_parcel(parcel);
    }

    fn key(&self, at: usize) -> ConnectionKey {
        ConnectionKey {
            index: (self.limits.first_index).saturating_add(u32::try_from(at).unwrap_or(u32::MAX)),
            generation: self.slots[at].generation,
        }
    }

    /// The core of a place. Places are taken from the first on, so that all cores have as many connections.
    fn core(&self, at: usize) -> &CoreShared {
        &self.cores[at % self.cores.len()]
    }

    fn take_back(&mut self, parcel: Box<Parcel>) {
        let at = (parcel.connection.index - self.limits.first_index) as usize;
        if parcel.content == Content::Later {
            return self.keep(parcel);
        }
        self.awaited -= 1;
        match parcel.content {
            Content::Closed => self.slots[at].is_known = false,
            Content::Discarded => self.release(at, parcel),
            Content::NoCall => {
                count(&self.counters.ignored);
                self.release(at, parcel);
            }
            Content::Reply(_) => match &mut self.slots[at].connection {
                Some(connection) => {
                    count(&self.counters.calls);
                    connection.push(parcel, self.now);
                }
                None => self.release(at, parcel),
            },
            Content::Opened(_) | Content::Call | Content::Later => {}
        }
    }

    /// A call of a connection has ended.
    fn release(&mut self, at: usize, parcel: Box<Parcel>) {
        let slot = &mut self.slots[at];
        match parcel.may_wait {
            true => {
                slot.calls -= 1;
                self.shared -= u32::from(slot.calls >= CALLS_SURE);
            }
            false => slot.answers_immediately = false,
        }
        self.keep(parcel);
    }

    /// Keeps a parcel for another call.
    fn keep(&mut self, parcel: Box<Parcel>) {
        let is_whole = parcel.reply.len() >= self.limits.message_bytes_max;
        if is_whole && self.spare.len() < SPARE_MAX {
            self.spare.push_back(parcel);
        }
    }

    fn close(&mut self, at: usize) {
        if let Some(connection) = self.slots[at].connection.take() {
            let replies = connection.into_replies();
            replies
                .into_iter()
                .for_each(|reply| self.release(at, reply));
            self.tell(at, Content::Closed);
        }
    }
}

impl Slot {
    fn is_free(&self) -> bool {
        self.connection.is_none() && !self.is_known && self.under_way() == 0
    }

    /// Whether it may have one more call that may wait, while all have so many of those that they share.
    fn has_place(&self, shared: u32) -> bool {
        self.calls < CALLS_SURE || (self.calls < CALLS_MAX && shared < CALLS_SHARED)
    }

    fn under_way(&self) -> usize {
        self.calls as usize + usize::from(self.answers_immediately)
    }
}

/// An empty parcel, with room for a reply of a message of so many octets. The room is taken only as far as replies are long.
fn new_parcel(message_bytes_max: usize) -> Box<Parcel> {
    Box::new(Parcel {
        connection: ConnectionKey::default(),
        content: Content::Call,
        may_wait: true,
        message: Vec::new(),
        reply: vec![0; message_bytes_max],
    })
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
