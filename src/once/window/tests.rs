use std::collections::{HashMap, VecDeque};

use proptest::prelude::*;

use super::*;

fn key(xid: u32) -> Key {
    Key {
        xid,
        program: 7,
        version: 1,
        procedure: 2,
        // Few chains, so that they are long.
        digest: u64::from(xid % 5),
    }
}

/// Begins a call that is new.
fn run(window: &mut Window<u32>, key: Key) -> Ticket {
    match window.begin(&key, None, &mut Vec::new(), || None) {
        Begun::Run(ticket) => ticket,
        other => panic!("{key:?} is new: {other:?}"),
    }
}

fn again(window: &mut Window<u32>, key: Key) -> (Begun<u32>, Vec<u8>) {
    let mut results = vec![1, 2, 3];
    let begun = window.begin(&key, None, &mut results, || Some(9));
    (begun, results)
}

#[test]
fn a_call_that_ran_gives_its_results_and_runs_no_more() {
    let mut window = Window::new(ENTRIES);
    let ticket = run(&mut window, key(1));
    assert!(!window.is_idle());
    assert_eq!(
        window.finish(ticket, None, Outcome::Success, Some(b"done")),
        None
    );
    assert!(window.is_idle());
    let (begun, results) = again(&mut window, key(1));
    assert!(matches!(begun, Begun::Finished(Outcome::Success)));
    assert_eq!(results, b"done");
    // A refusal is an answer as well.
    let ticket = run(&mut window, key(2));
    window.finish(ticket, None, Outcome::GarbageArgs, Some(&[]));
    let (begun, results) = again(&mut window, key(2));
    assert!(matches!(begun, Begun::Finished(Outcome::GarbageArgs)));
    assert_eq!(results, b"");
}

#[test]
fn a_call_is_known_by_all_of_its_key() {
    let mut window = Window::new(ENTRIES);
    let first = key(1);
    let ticket = run(&mut window, first);
    window.finish(ticket, None, Outcome::Success, Some(&[]));
    let others = [
        Key { xid: 6, ..first },
        Key {
            program: 8,
            ..first
        },
        Key {
            version: 2,
            ..first
        },
        Key {
            procedure: 3,
            ..first
        },
        Key {
            digest: 1 << 32 | 1,
            ..first
        },
    ];
    for other in others {
        let _ = run(&mut window, other);
    }
}

#[test]
fn results_that_are_too_long_are_answered_with_an_error_and_the_call_does_not_run_again() {
    let mut window = Window::new(ENTRIES);
    let longest = [5; KEPT_BYTES_MAX];
    let too_long = [5; KEPT_BYTES_MAX + 1];
    for (xid, results, kept) in [
        (1, Some(&longest[..]), true),
        (2, Some(&too_long[..]), false),
        (3, None, false),
    ] {
        let ticket = run(&mut window, key(xid));
        window.finish(ticket, None, Outcome::Success, results);
        let (begun, results) = again(&mut window, key(xid));
        match (kept, begun) {
            (true, Begun::Finished(Outcome::Success)) => assert_eq!(results, longest),
            (false, Begun::Finished(Outcome::SystemError)) => {}
            (_, other) => panic!("call {xid}: {other:?}"),
        }
    }
}

#[test]
fn repeated_call_waits_while_the_first_runs() {
    let mut window = Window::new(ENTRIES);
    let ticket = run(&mut window, key(1));
    let mut wait = |waiter| window.begin(&key(1), None, &mut Vec::new(), || waiter);
    assert!(matches!(wait(None), Begun::CannotWait));
    assert!(matches!(wait(Some(1)), Begun::Waits(None)));
    assert!(matches!(wait(Some(2)), Begun::Waits(Some(1))));
    assert_eq!(
        window.finish(ticket, None, Outcome::Success, Some(&[])),
        Some(2)
    );
}

#[test]
fn calls_that_run_are_never_given_up_and_another_does_not_run_beside_too_many() {
    let mut window = Window::new(ENTRIES);
    let entries = u32::try_from(ENTRIES).unwrap();
    let mut tickets: Vec<_> = (0..entries).map(|xid| run(&mut window, key(xid))).collect();
    assert!(matches!(again(&mut window, key(entries)).0, Begun::Full));
    let last = tickets.pop().unwrap();
    window.finish(last, None, Outcome::Success, Some(b"last"));
    assert_eq!(again(&mut window, key(entries - 1)).1, b"last");
    // The one that finished makes room.
    let _ = run(&mut window, key(entries));
    assert!(matches!(again(&mut window, key(0)).0, Begun::Waits(None)));
    window.resize(2 * ENTRIES);
    let _ = run(&mut window, key(entries - 1));
    // Too few entries for what runs: those stay.
    window.resize(1);
    assert_eq!(window.entries(), ENTRIES + 1);
    assert!(matches!(again(&mut window, key(0)).0, Begun::Waits(_)));
}

#[test]
fn window_asks_for_entries_once_a_second_and_up_to_its_limit() {
    // TIME: a beginning, to which the test itself adds what passes.
    let begin = Instant::now();
    let mut window = Window::new(ENTRIES);
    let new = u32::MAX;
    for xid in 0..u32::try_from(ENTRIES).unwrap() {
        assert!(!window.lacks_entries(&key(new), begin));
        let ticket = run(&mut window, key(xid));
        window.finish(ticket, Some(begin), Outcome::Success, Some(&[]));
    }
    assert!(!window.lacks_entries(&key(0), begin), "it is there");
    assert!(window.lacks_entries(&key(new), begin));
    let soon = begin + Duration::from_millis(999);
    assert!(!window.lacks_entries(&key(new), soon));
    assert!(window.lacks_entries(&key(new), begin + ASKS_EVERY));
    assert!(
        !window.lacks_entries(&key(new), begin + KEPT_FOR + ASKS_EVERY),
        "all are old"
    );
    let mut window = Window::new(ENTRIES_MAX);
    for xid in 0..u32::try_from(ENTRIES_MAX).unwrap() {
        let _ = run(&mut window, key(xid));
    }
    assert!(!window.lacks_entries(&key(new), begin));
}

#[test]
fn a_client_without_a_name_is_forgotten_in_time() {
    let mut window = Window::<u32>::new(ENTRIES);
    // TIME: a beginning, to which the test itself adds what passes.
    let begin = Instant::now();
    let at = |window: &mut Window<u32>, after: Duration| {
        window.begin(&key(1), Some(begin + after), &mut Vec::new(), || None)
    };
    let Begun::Run(ticket) = at(&mut window, Duration::ZERO) else {
        panic!("it is new");
    };
    window.finish(ticket, Some(begin), Outcome::Success, Some(&[]));
    assert!(matches!(at(&mut window, KEPT_FOR), Begun::Finished(_)));
    let late = KEPT_FOR + Duration::from_millis(1);
    assert!(matches!(at(&mut window, late), Begun::Run(_)));
}

#[derive(Clone, Debug)]
enum Op {
    /// A call of this XID comes, and whether its sender would wait.
    Begin(u32, bool),
    /// One of the calls that run finishes, with results of so many bytes.
    Finish(usize, usize),
    Resize(usize),
    Pass(u64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (0_u32..400, any::<bool>()).prop_map(|(xid, waits)| Op::Begin(xid, waits)),
        6 => (any::<usize>(), 0..2 * KEPT_BYTES_MAX).prop_map(|(which, bytes)| Op::Finish(which, bytes)),
        1 => (1_usize..5).prop_map(Op::Resize),
        1 => (0_u64..60).prop_map(Op::Pass),
    ]
}

/// What a window is for, without its bounds of time: a map of what ran, and an order of what to give up.
#[derive(Default)]
struct Oracle {
    running: HashMap<u32, Option<u32>>,
    finished: HashMap<u32, (Option<Vec<u8>>, Instant)>,
    order: VecDeque<u32>,
}

proptest! {
    // Each takes some milliseconds.
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_window_does_what_a_map_would(
        ops in prop::collection::vec(op(), 0..700),
        forgets in any::<bool>(),
    ) {
        let mut window = Window::new(ENTRIES);
        let mut oracle = Oracle::default();
        let mut tickets: Vec<(u32, Ticket)> = Vec::new();
        let mut capacity = ENTRIES;
        // TIME: a beginning, to which the test itself adds what passes.
        let mut now = Instant::now();
        let mut next_waiter = 0;
        let mut results = Vec::new();
        for op in ops {
            let clock = forgets.then_some(now);
            match op {
                Op::Begin(xid, waits) => {
                    while forgets
                        && let Some(first) = oracle.order.front()
                        && now - oracle.finished[first].1 > KEPT_FOR
                    {
                        oracle.finished.remove(first);
                        oracle.order.pop_front();
                    }
                    next_waiter += 1;
                    let waiter = waits.then_some(next_waiter);
                    let begun = window.begin(&key(xid), clock, &mut results, || waiter);
                    if let Some(waiting) = oracle.running.get_mut(&xid) {
                        match (begun, waiter) {
                            (Begun::Waits(before), Some(_)) => {
                                prop_assert_eq!(before, *waiting);
                                *waiting = waiter;
                            }
                            (Begun::CannotWait, None) => {}
                            other => prop_assert!(false, "{xid} runs: {other:?}"),
                        }
                    } else if let Some((kept, _)) = oracle.finished.get(&xid) {
                        match (begun, kept) {
                            (Begun::Finished(Outcome::Success), Some(kept)) => {
                                prop_assert_eq!(&results, kept);
                            }
                            (Begun::Finished(Outcome::SystemError), None) => {}
                            other => prop_assert!(false, "{xid} has run: {other:?}"),
                        }
                    } else {
                        if oracle.running.len() + oracle.order.len() == capacity
                            && let Some(first) = oracle.order.pop_front()
                        {
                            oracle.finished.remove(&first);
                        }
                        match begun {
                            Begun::Run(ticket) => {
                                oracle.running.insert(xid, None);
                                tickets.push((xid, ticket));
                                prop_assert!(oracle.running.len() + oracle.order.len() <= capacity);
                            }
                            Begun::Full => prop_assert_eq!(oracle.running.len(), capacity),
                            other => prop_assert!(false, "{xid} is new: {other:?}"),
                        }
                    }
                }
                Op::Finish(which, bytes) if !tickets.is_empty() => {
                    let (xid, ticket) = tickets.swap_remove(which % tickets.len());
                    let written: Vec<u8> = xid.to_be_bytes().into_iter().cycle().take(bytes).collect();
                    let waiting = window.finish(ticket, clock, Outcome::Success, Some(&written));
                    prop_assert_eq!(Some(waiting), oracle.running.remove(&xid));
                    let kept = (bytes <= KEPT_BYTES_MAX).then_some(written);
                    oracle.finished.insert(xid, (kept, now));
                    oracle.order.push_back(xid);
                }
                Op::Finish(..) => {}
                Op::Resize(units) => {
                    capacity = oracle.running.len().max(units * ENTRIES);
                    window.resize(units * ENTRIES);
                    while oracle.running.len() + oracle.order.len() > capacity {
                        let first = oracle.order.pop_front().expect("one has finished");
                        oracle.finished.remove(&first);
                    }
                    prop_assert_eq!(window.entries(), capacity);
                }
                Op::Pass(seconds) => now += Duration::from_secs(seconds),
            }
            prop_assert_eq!(window.is_idle(), oracle.running.is_empty());
        }
    }
}
