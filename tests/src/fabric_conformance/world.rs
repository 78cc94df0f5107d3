//! Two ports that are joined, and what a case does with them.
//!
//! Everything runs in the thread of the test: a *turn* lets each side flush, poll, and now and then
//! look at its connection manager. Waiting is in turns until something is the case.

use std::time::Duration;

use rpcrdma_fabric::interface::prelude::*;
use rpcrdma_fabric::interface::{
    Access, Completion, CompletionKind, ConnectionId, ListenerId, Manager, ManagerEvent, Port,
    QueuePairId, RemoteAddress, SendOptions, Status, Window, WorkId,
};
use rpcrdma_fabric::memory::Buffer;
use rpcrdma_testkit::Wait;

use super::harness::{Harness, PortOptions};
pub(super) use super::side::{
    Arrival, HUGE_BYTES, LARGE_BYTES, READ, RECEIVE_SEGMENTS, SMALL_BYTES, Side, WRITE, length,
    pattern, signalled,
};

/// The side that connects.
pub(super) const CLIENT: usize = 0;
/// The side that listens.
pub(super) const SERVER: usize = 1;

/// A manager makes system calls, so it is asked only now and then.
const TURNS_PER_MANAGER_WAIT: u32 = 16;

/// A connection, by the names that both sides have for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    pub(super) queue_pairs: [QueuePairId; 2],
    pub(super) connections: [ConnectionId; 2],
}

/// Two sides and a harness.
pub(super) struct World<H: Harness> {
    pub(super) harness: H,
    pub(super) sides: [Side<H>; 2],
    pub(super) address: String,
    pub(super) listener: ListenerId,
    links: Vec<Link>,
    /// Sides whose ports are not polled, as if their cores were stopped.
    pub(super) stopped: [bool; 2],
    turns: u32,
}

impl<H: Harness> World<H> {
    /// Two ports of default size, of which one listens.
    pub(super) fn new(harness: H) -> Self {
        Self::with(harness, PortOptions::default())
    }

    /// Two ports, of which one listens.
    pub(super) fn with(harness: H, options: PortOptions) -> Self {
        Self::with_each(harness, [options, options])
    }

    /// Two different ports, of which one listens.
    pub(super) fn with_each(mut harness: H, options: [PortOptions; 2]) -> Self {
        let client = Side::new(&mut harness, options[CLIENT]);
        let mut server = Side::new(&mut harness, options[SERVER]);
        let address = harness.fresh_address();
        let listener = server
            .manager
            .listen(&address)
            .expect("the server listens on a fresh address");
        Self {
            harness,
            sides: [client, server],
            address,
            listener,
            links: Vec::new(),
            stopped: [false; 2],
            turns: 0,
        }
    }

    /// Two ports, joined by one connection, with Receives posted at both.
    pub(super) fn joined(harness: H) -> (Self, Link) {
        let (mut world, link) = Self::connected(harness);
        world.post_receives(16, &RECEIVE_SEGMENTS);
        (world, link)
    }

    /// Two ports, joined by one connection, without any Receive.
    pub(super) fn connected(harness: H) -> (Self, Link) {
        let mut world = Self::new(harness);
        let link = world.connect();
        (world, link)
    }

    /// Makes Receives at both sides, and posts them.
    pub(super) fn post_receives(&mut self, count: usize, segments: &[u32]) {
        for side in &mut self.sides {
            side.post_receives(count, segments);
        }
    }

    pub(super) fn client(&mut self) -> &mut Side<H> {
        &mut self.sides[CLIENT]
    }

    pub(super) fn server(&mut self) -> &mut Side<H> {
        &mut self.sides[SERVER]
    }

    /// Posts a Send of `data`, for which there is room.
    pub(super) fn send(&mut self, from: usize, link: Link, data: &[u8]) {
        self.sides[from]
            .send(link.queue_pairs[from], &[data], SendOptions::default())
            .expect("there is room for the Send");
    }

    /// Posts a Send of `data`, copied at once, for which there is room.
    pub(super) fn send_copied(&mut self, from: usize, link: Link, data: &[u8]) {
        self.sides[from]
            .send_copied(link.queue_pairs[from], data, SendOptions::default())
            .expect("there is room for a small Send");
    }

    /// The client sends one message of `parts`, signalled.
    pub(super) fn send_signalled(&mut self, link: Link, parts: &[&[u8]]) -> WorkId {
        self.client()
            .send_signalled(link.queue_pairs[CLIENT], parts)
    }

    /// The client reads `lengths` from the server.
    pub(super) fn read(&mut self, link: Link, lengths: &[u32], from: RemoteAddress) -> WorkId {
        self.client().read(link.queue_pairs[CLIENT], lengths, from)
    }

    /// The client reads `data` through a window of the server.
    pub(super) fn reads(&mut self, link: Link, window: &Window, data: &[u8]) {
        let work = self.read(link, &[length(data)], window.remote());
        let (status, read) = self.finished(CLIENT, work);
        assert_eq!(status, Status::Success);
        assert!(read == data, "other bytes than those behind the window");
    }

    /// The client writes `parts` to the server, signalled.
    pub(super) fn write(&mut self, link: Link, parts: &[&[u8]], to: RemoteAddress) -> WorkId {
        self.client().write(link.queue_pairs[CLIENT], parts, to)
    }

    /// The server exposes a buffer that begins with `data` to the client.
    pub(super) fn expose(&mut self, link: Link, data: &[u8], access: Access) -> Window {
        self.server().expose(link.queue_pairs[SERVER], data, access)
    }

    /// One turn of one side, without its manager.
    pub(super) fn turn_of(&mut self, who: usize) -> usize {
        let now = self.harness.now();
        self.sides[who].turn(now)
    }

    /// One turn of both sides.
    pub(super) fn turn(&mut self) {
        for who in [CLIENT, SERVER] {
            if !self.stopped[who] {
                self.turn_of(who);
            }
        }
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(TURNS_PER_MANAGER_WAIT) {
            for side in &mut self.sides {
                side.manage(Duration::ZERO);
            }
        }
    }

    /// So many turns: for what must not happen. Where a poll moves the bytes, what would be wrong shows within a few of
    /// them.
    // TIME: a device takes its own time, so there a wrong thing may come too late to be seen; a right case never fails.
    pub(super) fn idle(&mut self) {
        for _ in 0..8 * TURNS_PER_MANAGER_WAIT {
            self.turn();
        }
    }

    /// Turns until `done` yields something.
    pub(super) fn until<R>(
        &mut self,
        what: &str,
        mut done: impl FnMut(&mut Self) -> Option<R>,
    ) -> R {
        let wait = Wait::begin(what);
        loop {
            if let Some(result) = done(self) {
                return result;
            }
            wait.look(|| self.describe());
            self.turn();
        }
    }

    /// What both sides have, for a wait that is too long.
    fn describe(&self) -> String {
        let sides = ["client", "server"].into_iter().zip(&self.sides);
        let each = sides.map(|(name, side)| {
            let events: Vec<_> = side.events.iter().map(event_name).collect();
            let counters = side.port.counters();
            format!("\n{name}: {events:?} {:?}\n{counters:?}", side.completions)
        });
        each.collect()
    }

    /// Waits for a completion that `wanted` says yes to.
    pub(super) fn completion(
        &mut self,
        who: usize,
        what: &str,
        mut wanted: impl FnMut(&Completion) -> bool,
    ) -> Completion {
        self.until(what, |world| world.sides[who].take_completion(&mut wanted))
    }

    /// Waits for the next Receive to complete.
    pub(super) fn arrival(&mut self, who: usize) -> Arrival {
        let completion = self.completion(who, "a message", |completion| {
            matches!(completion.kind, CompletionKind::Receive { .. })
        });
        self.sides[who].arrival(completion)
    }

    /// Waits for the next message and holds it against what was sent; posts its Receive again.
    pub(super) fn expect(&mut self, who: usize, link: Link, data: &[u8]) {
        let arrival = self.arrival(who);
        assert_eq!(arrival.status, Status::Success);
        assert_eq!(arrival.queue_pair, link.queue_pairs[who]);
        assert_eq!(arrival.invalidated, None);
        assert!(
            arrival.data == data,
            "{} bytes arrived, other than the {} that were sent",
            arrival.data.len(),
            data.len()
        );
        self.sides[who].repost();
    }

    /// Waits for the signalled work to complete; gives its buffers back and says how it ended,
    /// with what was read.
    pub(super) fn finished(&mut self, who: usize, work: WorkId) -> (Status, Vec<u8>) {
        let completion =
            self.completion(who, "signalled work", |completion| match &completion.kind {
                CompletionKind::Send(of)
                | CompletionKind::Write(of)
                | CompletionKind::Read(of, _)
                | CompletionKind::Invalidated(of, _) => *of == work,
                _ => false,
            });
        let side = &mut self.sides[who];
        let mut data = Vec::new();
        if let CompletionKind::Read(_, list) = completion.kind {
            data = side.bytes_of(&list);
            side.give_list(list);
        }
        (completion.status, data)
    }

    /// Takes a window away from the peer and returns its buffer.
    pub(super) fn reclaim(&mut self, who: usize, link: Link, window: Window) -> Buffer {
        let side = &mut self.sides[who];
        let work = side.name_work(link.queue_pairs[who]);
        side.keep_returned = true;
        if let Err((error, _)) = side.port.invalidate_window(window, work) {
            panic!("a window is not invalidated: {error}");
        }
        assert_eq!(self.finished(who, work).0, Status::Success);
        let buffer = self.until("the buffer of the window", |world| {
            world.sides[who].returned.pop()
        });
        self.sides[who].keep_returned = false;
        buffer
    }

    /// The same for a window whose buffer is needed no more.
    pub(super) fn take_back(&mut self, who: usize, link: Link, window: Window) {
        let buffer = self.reclaim(who, link, window);
        self.sides[who].give(buffer);
    }

    /// Returns a buffer, which begins with `data`, to its pool.
    #[track_caller]
    pub(super) fn give_unchanged(&mut self, who: usize, buffer: Buffer, data: &[u8]) {
        let side = &mut self.sides[who];
        assert!(
            side.port.memory().bytes(&buffer)[..data.len()] == *data,
            "other bytes than expected"
        );
        side.give(buffer);
    }

    /// Whether a work that the peer refuses may end so because it only has to leave. The end of the connection may overtake it on its
    /// way out: then it fails without a reason.
    pub(super) fn may_leave_so(status: Status) -> bool {
        let ends = [Status::Success, Status::Flushed, Status::LocalFault];
        H::extras().done_when_sent && ends.contains(&status)
    }

    /// The work was refused by the peer, and the connection is over on both sides.
    pub(super) fn refused(&mut self, who: usize, link: Link, work: WorkId) {
        let (status, _) = self.finished(who, work);
        assert!(
            status == Status::RemoteAccess || Self::may_leave_so(status),
            "{status:?}"
        );
        self.both_ended(link);
    }

    /// Waits until the queue pair of a side has ended.
    pub(super) fn ended(&mut self, who: usize, link: Link) {
        let queue_pair = link.queue_pairs[who];
        self.until("the end of the connection", |world| {
            world.sides[who].ended.contains(&queue_pair).then_some(())
        });
    }

    /// Waits until the queue pairs of both sides have ended.
    pub(super) fn both_ended(&mut self, link: Link) {
        self.ended(CLIENT, link);
        self.ended(SERVER, link);
    }

    /// Sends a message each way and takes it, to see that the connection works.
    pub(super) fn works(&mut self, link: Link) {
        for (from, to) in [(CLIENT, SERVER), (SERVER, CLIENT)] {
            let data = pattern(u64::from(link.queue_pairs[from].index) + 7, 100);
            self.sides[from]
                .send(link.queue_pairs[from], &[&data], SendOptions::default())
                .expect("the connection takes a Send");
            self.expect(to, link, &data);
        }
    }

    /// Waits for an event of a manager.
    pub(super) fn event(&mut self, who: usize, what: &str) -> ManagerEvent<H::Port> {
        self.until(what, |world| {
            for side in &mut world.sides {
                side.manage(Duration::ZERO);
            }
            world.sides[who].events.pop_front()
        })
    }

    /// Starts a connection and takes the request: what both sides call it.
    pub(super) fn request(&mut self, private_data: &[u8]) -> [ConnectionId; 2] {
        let address = self.address.clone();
        let client = self.client();
        let from = client
            .manager
            .connect(&address, &client.handle, private_data)
            .expect("the client connects to the server's address");
        match self.event(SERVER, "a request") {
            ManagerEvent::ConnectRequest {
                connection,
                listener,
                private_data: arrived,
                ..
            } => {
                assert_arrived(&arrived, private_data);
                assert_eq!(listener, self.listener);
                [from, connection]
            }
            other => panic!("{} instead of a request", event_name(&other)),
        }
    }

    /// Prepares and adopts the queue pair of a connection.
    pub(super) fn adopt_queue_pair(&mut self, who: usize, connection: ConnectionId) -> QueuePairId {
        let side = &mut self.sides[who];
        let seed = side
            .manager
            .prepare(connection, &side.handle)
            .expect("the queue pair is prepared");
        side.port
            .adopt_queue_pair(seed, side.queue)
            .expect("the queue pair is planted")
    }

    /// Accepts a request and brings the client to the same point.
    pub(super) fn accept(&mut self, connections: [ConnectionId; 2], private_data: &[u8]) -> Link {
        let server = self.adopt_queue_pair(SERVER, connections[SERVER]);
        self.server()
            .manager
            .accept(connections[SERVER], private_data)
            .expect("the server accepts");
        match self.event(CLIENT, "the reply") {
            ManagerEvent::ConnectReply {
                connection,
                private_data: arrived,
                ..
            } => {
                assert_eq!(connection, connections[CLIENT]);
                assert_arrived(&arrived, private_data);
            }
            other => panic!("{} instead of a reply", event_name(&other)),
        }
        let client = self.adopt_queue_pair(CLIENT, connections[CLIENT]);
        self.client()
            .manager
            .confirm(connections[CLIENT])
            .expect("the client confirms");
        let link = Link {
            queue_pairs: [client, server],
            connections,
        };
        self.links.push(link);
        link
    }

    /// Waits until both managers say that the connection stands.
    pub(super) fn established(&mut self, link: Link) {
        for who in [CLIENT, SERVER] {
            match self.event(who, "an established connection") {
                ManagerEvent::Established { connection, .. } => {
                    assert_eq!(connection, link.connections[who]);
                }
                other => panic!("{} instead of Established", event_name(&other)),
            }
        }
    }

    /// Makes a connection, through all steps of both managers.
    pub(super) fn connect(&mut self) -> Link {
        let connections = self.request(&[]);
        let link = self.accept(connections, &[]);
        self.established(link);
        link
    }

    /// The case itself closes this connection.
    pub(super) fn forget(&mut self, link: Link) {
        self.links
            .retain(|other| other.connections != link.connections);
    }

    /// Closes one side of a connection and forgets it there.
    pub(super) fn leave(&mut self, who: usize, link: Link) {
        self.disconnect(who, link);
        self.ended(who, link);
        let side = &mut self.sides[who];
        side.port.destroy_queue_pair(link.queue_pairs[who]);
        side.manager.disconnect(link.connections[who]);
    }

    /// Closes a connection on both sides and forgets it.
    pub(super) fn close(&mut self, link: Link) {
        self.forget(link);
        for who in [CLIENT, SERVER] {
            self.disconnect(who, link);
        }
        for who in [CLIENT, SERVER] {
            self.leave(who, link);
        }
    }

    /// Ends a connection at one side, unless it has ended.
    fn disconnect(&mut self, who: usize, link: Link) {
        let side = &mut self.sides[who];
        if !side.ended.contains(&link.queue_pairs[who]) {
            side.port.disconnect(link.queue_pairs[who]);
        }
    }

    /// Closes what is open, and reckons: everything has completed, everything is back.
    pub(super) fn finish(mut self) {
        for link in std::mem::take(&mut self.links) {
            self.close(link);
        }
        self.idle();
        let own_queues = self.sides.iter().any(Side::has_own_queues);
        let last = own_queues.then(|| self.connect_once_more());
        for (name, side) in ["client", "server"].into_iter().zip(&mut self.sides) {
            side.clear();
            assert!(
                side.outstanding.is_empty(),
                "{name}: {:?} never completed",
                side.outstanding
            );
            assert_eq!(
                side.missing(),
                [0; 3],
                "{name}: buffers that never came back, by size"
            );
            assert_eq!(
                side.receives_made,
                side.idle_receives.len() + side.posted() as usize,
                "{name}: Receives that were lost"
            );
        }
        if let Some(link) = last {
            self.close(link);
        }
    }

    /// Receives that wait for a queue pair of their queue are counted when there is one.
    fn connect_once_more(&mut self) -> Link {
        self.address = self.harness.fresh_address();
        let address = self.address.clone();
        let server = self.server();
        server.events.clear();
        self.listener = server
            .manager
            .listen(&address)
            .expect("the server listens on a fresh address");
        self.client().events.clear();
        self.connect()
    }
}

/// Private data arrived. Some connection managers have a field of fixed length for it, and fill it
/// up with zeros.
fn assert_arrived(arrived: &[u8], sent: &[u8]) {
    let fill = arrived.strip_prefix(sent);
    assert!(
        fill.is_some_and(|fill| fill.iter().all(|byte| *byte == 0)),
        "{arrived:?} arrived for {sent:?}"
    );
}

/// The name of an event, for messages.
pub(super) fn event_name<P: Port>(event: &ManagerEvent<P>) -> String {
    match event {
        ManagerEvent::ConnectRequest { .. } => "ConnectRequest".to_owned(),
        ManagerEvent::ConnectReply { .. } => "ConnectReply".to_owned(),
        ManagerEvent::Established { .. } => "Established".to_owned(),
        ManagerEvent::Rejected { reason, .. } => format!("Rejected ({reason})"),
        ManagerEvent::LinkDown { .. } => "LinkDown".to_owned(),
        ManagerEvent::Failed { error, .. } => format!("Failed ({error})"),
        ManagerEvent::Disconnected { .. } => "Disconnected".to_owned(),
        ManagerEvent::ListenerLost { .. } => "ListenerLost".to_owned(),
        ManagerEvent::ListenerRestored { .. } => "ListenerRestored".to_owned(),
    }
}
