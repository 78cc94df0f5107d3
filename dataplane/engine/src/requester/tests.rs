use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const HERE: ConnectionKey = ConnectionKey {
    index: 3,
    generation: 1,
};
const THERE: ConnectionKey = ConnectionKey {
    index: 3,
    generation: 2,
};

const TIMEOUT: Ticks = 1000;

/// A requester with a single connection's calls.
struct One {
    requester: Requester,
    calls: CallsOf,
}

impl One {
    /// With `slots` slots that connections share.
    fn new(slots: u32, first_xid: u32) -> Self {
        Self {
            requester: Requester::new(slots, 0, TIMEOUT, 0, first_xid),
            calls: CallsOf::default(),
        }
    }

    fn begin(&mut self, tag: CallTag, now: Ticks) -> u32 {
        let xid = self.next_xid().expect("a slot is free");
        self.requester.begin(HERE, &mut self.calls, tag, now, None);
        xid
    }

    fn next_xid(&self) -> Option<u32> {
        self.requester.next_xid(&self.calls)
    }

    fn end(&mut self, xid: u32, connection: ConnectionKey) -> Ended {
        self.requester.end(xid, connection, &mut self.calls)
    }
}

#[test]
fn a_call_ends_once_and_on_its_own_connection() {
    let mut one = One::new(2, 1);
    let first = one.begin(10, 0);
    let second = one.begin(20, 0);
    assert!(one.next_xid().is_none());
    assert_eq!(one.end(first, THERE), Ended::Unknown);
    assert_eq!(one.end(second, HERE), Ended::Call(20));
    assert_eq!(one.end(second, HERE), Ended::Unknown);
    let of_the_same_place = first.wrapping_add(1 << 31);
    assert_eq!(one.end(of_the_same_place, HERE), Ended::Unknown);
    assert_eq!(one.end(first, HERE), Ended::Call(10));
    let third = one.begin(30, 0);
    assert_ne!(third, first);
    assert_eq!(one.end(first, HERE), Ended::Unknown);
    assert_eq!(one.requester.waiting(), 1);
}

#[test]
fn a_call_that_times_out_leaves_its_slot_to_others_and_its_xid_to_nobody() {
    let mut one = One::new(1, 1);
    let xid = one.begin(10, 0);
    let mut next = |now| one.requester.next_timed_out(now, &mut 100);
    assert_eq!(next(999), None, "never early");
    let call = TimedOut {
        tag: 10,
        connection: HERE,
        xid,
        bulk: None,
        is_second: false,
    };
    assert_eq!((next(1016), next(1016)), (Some(call), None));
    assert_eq!(one.end(xid, HERE), Ended::TimedOut);
    assert_eq!(one.requester.waiting(), 0);
    let next = one.begin(20, 1016);
    assert_ne!(next, xid);
    assert_eq!(one.end(xid, HERE), Ended::TimedOut, "the late reply");
    assert_eq!(one.end(xid, HERE), Ended::Unknown, "it comes once");
    assert_eq!(one.end(next, HERE), Ended::Call(20));
}

#[test]
fn a_connection_that_has_all_slots_leaves_each_other_one() {
    let mut requester = Requester::new(4, 2, TIMEOUT, 0, 1);
    let [mut greedy, mut modest] = [CallsOf::default(); 2];
    while requester.next_xid(&greedy).is_some() {
        requester.begin(HERE, &mut greedy, 1, 0, None);
    }
    assert_eq!(greedy.outstanding(), 5);
    let xid = requester.next_xid(&modest).expect("its own slot");
    requester.begin(THERE, &mut modest, 2, 0, None);
    assert!(requester.next_xid(&modest).is_none());
    assert_eq!(requester.end(xid, THERE, &mut modest), Ended::Call(2));
    assert!(requester.next_xid(&greedy).is_none());
    assert!(requester.next_xid(&modest).is_some());
}

#[test]
fn a_disconnect_ends_every_call_of_the_connection_in_steps() {
    let mut requester = Requester::new(10, 0, TIMEOUT, 0, 1);
    let mut calls = [CallsOf::default(); 2];
    for tag in 0..6 {
        let is_here = tag % 2 == 0;
        let calls = &mut calls[usize::from(!is_here)];
        let xid = requester.next_xid(calls).expect("a slot is free");
        let connection = if is_here { HERE } else { THERE };
        requester.begin(connection, calls, tag, 0, None);
        if tag == 4 {
            assert_eq!(requester.end(xid, connection, calls), Ended::Call(4));
        }
    }
    let (mut from, mut tags) = (0, Vec::new());
    while from < 10 {
        let ended = |tag, _| tags.push(tag);
        from = requester.end_all_of(HERE, &mut calls[0], from, 3, ended);
    }
    tags.sort_unstable();
    assert_eq!(tags, [0, 2]);
    assert_eq!(calls.map(|calls| calls.outstanding()), [0, 3]);
    assert_eq!(requester.waiting(), 3);
}

#[test]
fn calls_one_after_the_other_have_one_slot_and_no_xid_twice() {
    const CALLS: u32 = 1 << 20;
    let mut one = One::new(4096, 0xfff0_0000);
    let mut xids = Vec::with_capacity(CALLS as usize);
    for tag in 0..u64::from(CALLS) {
        let xid = one.begin(tag, 0);
        assert_eq!(one.requester.free.len(), 4095);
        assert_eq!(one.end(xid, HERE), Ended::Call(tag));
        assert_eq!(one.requester.free.last(), Some(&0), "it is in the cache");
        xids.push(xid);
    }
    xids.sort_unstable();
    xids.dedup();
    assert_eq!(xids.len(), CALLS as usize);
}

/// One call after the other, beside as many as possible that are never answered.
#[test]
fn no_xid_comes_twice_beside_calls_that_are_not_answered() {
    const CALLS: usize = 1 << 18;
    let mut one = One::new(100, 0);
    let mut xids: Vec<u32> = (0..99).map(|tag| one.begin(tag, 0)).collect();
    for _ in 0..CALLS {
        let xid = one.begin(100, 0);
        assert_eq!(one.end(xid, HERE), Ended::Call(100));
        xids.push(xid);
    }
    xids.sort_unstable();
    xids.dedup();
    assert_eq!(xids.len(), 99 + CALLS);
}

#[test]
fn cores_begin_with_xids_that_are_far_from_each_other() {
    let firsts: Vec<u32> = (0..8).map(|_| first_xid()).collect();
    // That all eight are so close by chance will happen once in 2^84 runs.
    let is_far = |first: &u32| first.wrapping_sub(firsts[0]) > 1 << 20;
    assert!(firsts.iter().skip(1).any(is_far), "{firsts:?}");
}

#[derive(Clone, Debug)]
enum Operation {
    Begin {
        is_here: bool,
        is_bulk: bool,
        /// Under the XID that is so far behind the next one, if a place is free for it.
        again: Option<u32>,
    },
    End {
        which: usize,
        is_here: bool,
    },
    EndNone(u32),
    EndBulk(usize),
    /// Time passes, and the calls are looked at: those of a few slots, or all.
    Advance {
        ticks: Ticks,
        is_whole: bool,
    },
    Disconnect,
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let which = any::<usize>;
    let operation = prop_oneof![
        8 => (any::<bool>(), proptest::bool::weighted(0.2), proptest::option::weighted(0.2, 0_u32..40))
            .prop_map(|(is_here, is_bulk, again)| Operation::Begin { is_here, is_bulk, again }),
        6 => (which(), proptest::bool::weighted(0.8))
            .prop_map(|(which, is_here)| Operation::End { which, is_here }),
        1 => any::<u32>().prop_map(Operation::EndNone),
        2 => which().prop_map(Operation::EndBulk),
        2 => (prop_oneof![0_u64..20, 0_u64..800], any::<bool>())
            .prop_map(|(ticks, is_whole)| Operation::Advance { ticks, is_whole }),
        1 => Just(Operation::Disconnect),
    ];
    proptest::collection::vec(operation, 0..300)
}

/// A call as a table of calls by their XIDs would have it.
#[derive(Clone, Copy, Debug)]
struct Modelled {
    connection: ConnectionKey,
    tag: CallTag,
    bulk: Option<u32>,
    timed_out: bool,
    /// When it is to time out, for the second time if it did; never more often.
    deadline: Option<Ticks>,
}

fn place(connection: ConnectionKey) -> usize {
    usize::from(connection == THERE)
}

#[derive(Debug)]
struct Model {
    requester: Requester,
    /// Of here, and of there.
    calls_of: [CallsOf; 2],
    /// Replies that may still come to calls that timed out, likewise.
    late: [u32; 2],
    calls: BTreeMap<u32, Modelled>,
    now: Ticks,
    tag: CallTag,
}

impl Model {
    /// The call of a number, if there are calls.
    fn pick(&self, which: usize) -> Option<(u32, Modelled)> {
        let at = which.checked_rem(self.calls.len())?;
        self.calls.iter().nth(at).map(|(&xid, &call)| (xid, call))
    }

    fn run(&mut self, operation: Operation) {
        match operation {
            Operation::Begin {
                is_here,
                is_bulk,
                again: None,
            } => self.begin(is_here, is_bulk),
            Operation::Begin {
                is_here,
                is_bulk,
                again: Some(behind),
            } => {
                let xid = self.requester.unused_xid().wrapping_sub(behind);
                let places = u32::try_from(self.requester.slots.len() * 2).expect("few");
                let mask = places.next_power_of_two() - 1;
                let has_place = |other: &u32| other & mask == xid & mask;
                let is_free = !self.calls.keys().any(has_place);
                let next = self.requester.repeat_xid(xid);
                assert_eq!(next.is_some(), is_free);
                if let Some(next) = next {
                    assert_eq!(self.requester.unused_xid(), xid);
                    self.begin(is_here, is_bulk);
                    self.requester.go_on(next);
                }
            }
            Operation::End { which, is_here } => {
                let Some((xid, call)) = self.pick(which) else {
                    return;
                };
                let connection = if is_here { HERE } else { THERE };
                let expected = match call {
                    _ if call.connection != connection => self.unknown(connection),
                    Modelled { bulk: Some(it), .. } => Ended::Bulk(it),
                    _ => Ended::Call(call.tag),
                };
                assert_eq!(self.end(xid, connection), expected);
                if matches!(expected, Ended::Call(_)) {
                    self.calls.remove(&xid);
                }
            }
            Operation::EndNone(xid) => {
                if !self.calls.contains_key(&xid) {
                    let expected = self.unknown(HERE);
                    assert_eq!(self.end(xid, HERE), expected);
                    assert_eq!(self.requester.bulk_of(xid, HERE), None);
                    self.requester.end_bulk(xid, HERE, &mut self.calls_of[0]);
                }
            }
            Operation::EndBulk(which) => {
                if let Some((xid, call)) = self.pick(which) {
                    let bulk = self.requester.bulk_of(xid, call.connection);
                    assert_eq!(bulk, call.bulk);
                    let calls = &mut self.calls_of[place(call.connection)];
                    self.requester.end_bulk(xid, call.connection, calls);
                    if bulk.is_some() {
                        self.calls.remove(&xid);
                    }
                }
            }
            Operation::Advance { ticks, is_whole } => {
                self.now += ticks;
                while self.requester.timeouts_due(self.now) {
                    self.time_out();
                    if !is_whole {
                        break;
                    }
                }
                let is_late = |call: &Modelled| call.deadline.is_some_and(|it| it + 8 <= self.now);
                assert!(!is_whole || !self.calls.values().any(is_late));
            }
            Operation::Disconnect => {
                let mut told = Vec::new();
                let ended = |tag, is_bulk| told.push((tag, is_bulk));
                self.requester
                    .end_all_of(HERE, &mut self.calls_of[0], 0, 64, ended);
                assert_eq!(self.calls_of[0].outstanding(), 0);
                let ends = |call: &Modelled| call.connection == HERE && !call.timed_out;
                let expected = self.calls.values().filter(|call| ends(call));
                let mut expected: Vec<_> = expected
                    .map(|call| (call.tag, call.bulk.is_some()))
                    .collect();
                expected.sort_unstable();
                told.sort_unstable();
                assert_eq!(told, expected);
                self.calls.retain(|_, call| call.connection != HERE);
            }
        }
    }

    fn end(&mut self, xid: u32, connection: ConnectionKey) -> Ended {
        let calls = &mut self.calls_of[place(connection)];
        self.requester.end(xid, connection, calls)
    }

    /// What a reply of no call is taken for.
    fn unknown(&mut self, connection: ConnectionKey) -> Ended {
        let late = &mut self.late[place(connection)];
        if *late == 0 {
            return Ended::Unknown;
        }
        *late -= 1;
        Ended::TimedOut
    }

    fn begin(&mut self, is_here: bool, is_bulk: bool) {
        let connection = if is_here { HERE } else { THERE };
        let Some(xid) = self.requester.next_xid(&self.calls_of[place(connection)]) else {
            let is_own = |call: &&Modelled| call.connection == connection;
            assert_ne!(self.calls.values().filter(is_own).count(), 0);
            assert!(self.calls.len() + 1 >= self.requester.slots.len());
            return;
        };
        self.tag += 1;
        let call = Modelled {
            connection,
            tag: self.tag,
            bulk: is_bulk.then_some(u32::try_from(self.tag).expect("few")),
            timed_out: false,
            deadline: Some(self.now + TIMEOUT),
        };
        let calls = &mut self.calls_of[place(connection)];
        self.requester
            .begin(connection, calls, call.tag, self.now, call.bulk);
        assert!(
            self.calls.insert(xid, call).is_none(),
            "{xid:#x} was in use"
        );
    }

    /// Looks at the calls of two slots.
    fn time_out(&mut self) {
        let mut slots_max = 2;
        while let Some(late) = self.requester.next_timed_out(self.now, &mut slots_max) {
            let call = self.calls.get_mut(&late.xid).expect("it waited");
            let expected = TimedOut {
                tag: call.tag,
                connection: call.connection,
                xid: late.xid,
                bulk: call.bulk,
                is_second: call.timed_out,
            };
            assert_eq!(late, expected);
            assert!(
                call.deadline.is_some_and(|it| it <= self.now),
                "never early"
            );
            call.timed_out = true;
            call.deadline = (!late.is_second).then_some(self.now + TIMEOUT);
            if call.bulk.is_none() {
                self.calls.remove(&late.xid);
                assert_eq!(self.end(late.xid, late.connection), Ended::TimedOut);
                self.late[place(late.connection)] += 1;
            }
        }
    }
}

proptest! {
    /// The oracle is a map of the calls by their XIDs. No XID in use is given out, and each call
    /// ends once, by its own XID on its own connection.
    #[test]
    fn calls_end_as_a_map_by_xid_would_have_it(
        slots in 1_u32..9,
        first in prop_oneof![any::<u32>(), u32::MAX - 40..=u32::MAX],
        operations in operations(),
    ) {
        let mut model = Model {
            requester: Requester::new(slots, 2, TIMEOUT, 0, first),
            calls_of: [CallsOf::default(); 2],
            late: [0; 2],
            calls: BTreeMap::new(),
            now: 0,
            tag: 0,
        };
        for operation in operations {
            model.run(operation);
            let waiting = model.calls.values().filter(|call| !call.timed_out).count();
            prop_assert_eq!(model.requester.waiting() as usize, waiting);
        }
    }
}
