//! Random sequences of valid and invalid records, while the clock advances. All valid records arrive. An invalid one
//! breaks at most the channel of the peer that wrote it.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::ValueTree;
use proptest::test_runner::{TestCaseResult, TestRunner};

use super::drawn::{Drawn, Interruption, LASTING, WINDOWS, drawn};
use super::*;
use crate::interface::prelude::*;
use crate::interface::{Access, RemoteAddress, RemoteKey, Window};
use crate::shm::channel::Target;
use crate::shm::mapped::MappedRing;
use crate::shm::record::{UNIT_BYTES, op};
use crate::shm::ring::RingMemory;
use crate::shm::{PortEvent, QueuePairNumber};

/// A hostile port `a` and a correct port `c`, both connected to `b`.
struct World {
    a: End,
    b: End,
    c: End,
    c_at_b: QueuePairId,
    windows: Vec<Window>,
    /// Memory of `b` that no peer may change.
    untouched: Buffer,
    second: u64,
    /// The numbers of messages of `c` that were sent and that arrived.
    sent: u32,
    arrived: u32,
    /// Whether the queue pair of `a` has ended.
    ended: bool,
    /// The lengths of the messages that came from `a`.
    messages: Vec<u32>,
    seen: BTreeMap<String, u64>,
}

impl World {
    fn new(clock: &Clock, copy_bytes_per_poll: u32) -> Self {
        let change = |config: &mut PortConfig| {
            config.clock = clock.clone();
            config.copy_bytes_per_poll = copy_bytes_per_poll;
        };
        let [a, mut b, c] = [0, 1, 2].map(|number| End::new(number, change));
        b.port.set_forms(super::forms::FORMS);
        let untouched = b.filled(&[0x5a; SECOND_BYTES as usize]);
        b.now = clock.now();
        let mut world = Self {
            c_at_b: c.id,
            windows: Vec::new(),
            untouched,
            second: clock.ticks_per_second(),
            sent: 0,
            arrived: 0,
            ended: false,
            messages: Vec::new(),
            seen: BTreeMap::new(),
            a,
            b,
            c,
        };
        // The channel of `a` is the first one.
        world.connect();
        let (b, c) = (&mut world.b, &mut world.c);
        let queues = (c.queue, b.queue);
        let ids = join(&mut c.port, &c.handle, &mut b.port, &b.handle, queues);
        (c.id, world.c_at_b) = ids.unwrap();
        world
    }

    /// Connects `a`, and lets `b` post work and expose windows for it.
    fn connect(&mut self) {
        let (a, b) = (&mut self.a, &mut self.b);
        (a.id, b.id) = joined(a, b);
        self.ended = false;
        b.send(b"copied", signalled(1)).unwrap();
        b.send_list(&[&[4; 3000]], signalled(2)).unwrap();
        let nowhere = RemoteAddress {
            key: RemoteKey(1),
            offset: 0,
        };
        let mut list = b.list(&[&[5; 100]]);
        b.port
            .post_write(b.id, &mut list, nowhere, Some(WorkId(3)))
            .unwrap();
        while self.windows.len() < WINDOWS {
            self.expose();
        }
    }

    /// Exposes one more window, unless the queue pair is in error already.
    fn expose(&mut self) {
        let b = &mut self.b;
        let buffer = b.large.take().unwrap();
        let access = Access {
            remote_read: true,
            remote_write: true,
        };
        match b.port.bind_window(b.id, buffer, SECOND_BYTES, access) {
            Ok(window) => self.windows.push(window),
            Err((_, buffer)) => b.give(buffer),
        }
    }

    /// Ends the connection of `a`, and checks that no Receive, buffer or byte of `b` was lost or changed.
    fn disconnect(&mut self) -> TestCaseResult {
        let id = self.b.id;
        self.b.port.disconnect(id);
        for _ in 0..64 {
            self.poll()?;
        }
        prop_assert!(self.ended, "the queue pair does not end");
        self.b.port.destroy_queue_pair(id);
        self.windows.clear();
        self.b.reclaim();
        self.a.port.disconnect(self.a.id);
        self.a.settle();
        self.a.port.destroy_queue_pair(self.a.id);
        self.a.reclaim();
        prop_assert_eq!(self.b.posted(), DEPTH, "a Receive is lost");
        let left = 64 - DEPTH as usize;
        let available = (self.b.small.available(), self.b.large.available());
        prop_assert_eq!(available, (left, left - 1), "a buffer is lost");
        let untouched = self.b.port.memory().bytes(&self.untouched);
        prop_assert!(untouched.iter().all(|byte| *byte == 0x5a));
        Ok(())
    }

    fn note(&mut self, what: impl Into<String>) {
        *self.seen.entry(what.into()).or_default() += 1;
    }

    /// The position of `b` in the ring of `a`; `None` if the channel is broken.
    fn head(&mut self) -> Option<u32> {
        let channel = self.b.port.channels_for_tests()[0].as_deref()?;
        (!channel.broken).then(|| channel.consumed())
    }

    fn ring(&mut self) -> &MappedRing {
        let channel = self.a.port.channels_for_tests()[0].as_deref();
        channel.unwrap().producer.memory()
    }

    /// Lets `b` poll once.
    fn poll(&mut self) -> TestCaseResult {
        for event in self.b.poll() {
            if event.id == self.c_at_b {
                let expected = What::Received(self.arrived.to_le_bytes().to_vec(), None);
                prop_assert_eq!((event.status, event.what), (Status::Success, expected));
                self.arrived += 1;
                continue;
            }
            prop_assert_eq!(event.id, self.b.id);
            prop_assert!(!self.ended, "{:?} after the end", event);
            match event.what {
                What::Disconnected => self.ended = true,
                What::Received(message, key) => {
                    self.note(format!("received {:?}", event.status));
                    if event.status == Status::Success {
                        self.messages.push(u32::try_from(message.len()).unwrap());
                    }
                    if let Some(key) = key {
                        self.note("invalidated");
                        self.renew(key);
                    }
                }
                _ => self.note(format!("work {:?}", event.status)),
            }
        }
        self.b.reclaim();
        Ok(())
    }

    /// Replaces a window that the peer has invalidated.
    fn renew(&mut self, key: u32) {
        let is_it = |window: &Window| window.remote().key.0 == key;
        let number = self.windows.iter().position(is_it).unwrap();
        let window = self.windows.swap_remove(number);
        let buffer = self.b.port.close_window(window).unwrap();
        self.b.give(buffer);
        self.expose();
    }

    /// Publishes a record of `a`, and polls until `b` has consumed it.
    fn step(&mut self, drawn: &Drawn) -> TestCaseResult {
        self.b.now += drawn.elapsed_ms * self.second / 1000;
        let now = self.b.now;
        let head = self.head().expect("connected anew after an end");
        let units = self.ring().units();
        let index = head & (units - 1);
        if index == 0 && drawn.op == op::PAD && drawn.wrong.is_none() {
            // A pad of a whole ring breaks the channel.
            return Ok(());
        }
        let destination = self.b.id.index | self.b.id.generation << 16;
        let windows: Vec<_> = self.windows.iter().map(Window::remote).collect();
        let room = (units - index) * UNIT_BYTES;
        let record = drawn.record(destination, &windows, (now, self.second), room);
        match drawn.name_of_wrong() {
            Some(name) => self.note(format!("wrong {name}")),
            None => self.note(format!("right {}", record.header.op)),
        }
        record.publish(self.ring(), head);
        self.messages.clear();
        self.finish(drawn, head, index)?;
        if let (Some(bytes), None) = (record.message, drawn.interruption) {
            prop_assert_eq!(&self.messages[..], &[bytes]);
        }
        if drawn.must_break() && drawn.interruption.is_none() {
            prop_assert_eq!(self.head(), None, "the channel is not broken");
        }
        if self.head().is_some_and(|new| new / units > head / units) {
            self.note("laps");
        }
        if self.ended || self.head().is_none() || self.windows.len() < WINDOWS {
            prop_assert!(
                drawn.wrong.is_some() || drawn.interruption.is_some(),
                "a record that was right ended the queue pair"
            );
            return self.reconnect();
        }
        Ok(())
    }

    /// Polls until `b` has consumed the record at `head`. Checks that the messages of `c` arrive meanwhile.
    fn finish(&mut self, drawn: &Drawn, head: u32, index: u32) -> TestCaseResult {
        let message = self.sent.to_le_bytes();
        self.c.poll();
        self.c.send(&message, SendOptions::default()).unwrap();
        self.sent += 1;
        let after = drawn.interruption.map_or(0, |(_, after)| after + 1);
        for poll in 0..drawn.polls.max(after) {
            if let Some((interruption, after)) = drawn.interruption
                && after == poll
            {
                self.interrupt(interruption, drawn.window, index);
            }
            self.poll()?;
            prop_assert!(poll < 3 || self.arrived == self.sent, "c waits");
        }
        let mut polls = 0;
        while self.head() == Some(head) && !self.ended {
            // The time advances, because the record may be delayed.
            self.b.now += self.second;
            self.poll()?;
            polls += 1;
            prop_assert!(polls < 1000, "a record keeps the channel busy for ever");
        }
        for _ in 0..4 {
            self.poll()?;
        }
        prop_assert_eq!(self.arrived, self.sent, "c waits");
        Ok(())
    }

    fn interrupt(&mut self, interruption: Interruption, window: usize, index: u32) {
        self.note(format!("{interruption:?}"));
        let channel = self.b.port.channels_for_tests()[0].as_deref();
        if channel.is_some_and(|channel| channel.pull.target != Target::Nothing) {
            self.note(format!("{interruption:?} in the middle"));
        }
        let id = self.b.id;
        match interruption {
            Interruption::Revoked => self.ring().revoke(index),
            Interruption::PeerGone => {
                let local = QueuePairNumber(id.index | id.generation << 16);
                self.b.port.handle_event(PortEvent::PeerGone { local });
            }
            Interruption::Disconnected => self.b.port.disconnect(id),
            Interruption::Destroyed => {
                self.b.port.destroy_queue_pair(id);
                self.ended = true;
            }
            // The peer may already have invalidated the window, or the queue pair may have ended.
            Interruption::WindowEnded if window < self.windows.len() => {
                let window = self.windows.swap_remove(window);
                match self.b.port.invalidate_window(window, WorkId(4)) {
                    Ok(()) => self.expose(),
                    Err((_, window)) => self.windows.push(window),
                }
            }
            Interruption::WindowEnded => {}
        }
    }

    fn reconnect(&mut self) -> TestCaseResult {
        self.disconnect()?;
        self.connect();
        Ok(())
    }
}

/// Runs a case, and returns the numbers of its operations and outcomes.
fn run(
    records: &[Drawn],
    copy_bytes_per_poll: u32,
) -> Result<BTreeMap<String, u64>, TestCaseError> {
    thread_local! {
        static CLOCK: Clock = Clock::new();
    }
    let mut world = World::new(&CLOCK.with(Clone::clone), copy_bytes_per_poll);
    for drawn in records {
        world.step(drawn)?;
    }
    world.disconnect()?;
    let broken = world.b.counter("channels_broken");
    *world.seen.entry("broken".into()).or_default() += broken;
    Ok(world.seen)
}

fn cases() -> impl Strategy<Value = (Vec<Drawn>, u32)> {
    let records = prop::collection::vec(drawn(), 1..150);
    (records, select(&[200, 1000, 65_536][..]))
}

proptest! {
    #![proptest_config(ProptestConfig {
        // A single case takes long.
        cases: ProptestConfig::default().cases.div_ceil(4),
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_records_do_no_harm((records, copy_bytes_per_poll) in cases()) {
        run(&records, copy_bytes_per_poll)?;
    }
}

/// The property above is not empty: the generator produces all operations, and all outcomes occur.
#[test]
fn all_operations_and_outcomes_are_among_the_records_that_are_drawn() {
    let mut runner = TestRunner::deterministic();
    let mut seen = BTreeMap::new();
    for _ in 0..16 {
        let (records, copy_bytes_per_poll) = cases().new_tree(&mut runner).unwrap().current();
        for (what, count) in run(&records, copy_bytes_per_poll).unwrap() {
            *seen.entry(what).or_default() += count;
        }
    }
    let count = |what: &str| seen.get(what).copied().unwrap_or(0);
    for op in LASTING {
        assert!(count(&format!("right {op}")) > 50, "{op}: {seen:?}");
    }
    let outcomes = [
        "received Success",
        "invalidated",
        "broken",
        "work Flushed",
        "work Success",
    ];
    for outcome in outcomes {
        assert!(count(outcome) > 0, "{outcome}: {seen:?}");
    }
    assert!(count("laps") > 30, "{seen:?}");
    let wrong = seen.keys().filter(|what| what.starts_with("wrong"));
    assert!(wrong.count() >= 8, "{seen:?}");
}
