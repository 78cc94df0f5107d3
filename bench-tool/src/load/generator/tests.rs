//! Loads that are prepared, started, ended and asked to stop, without a core.

use super::*;
use crate::load::phase::Change;
use crate::workloads::bench::BenchWorkload;
use crate::workloads::bench::null_calls::NullCalls;
use rpcrdma_fabric::clock::Clock;
use std::time::Duration;

/// A load without a warm-up that is prepared, on a connection with two calls.
fn prepared() -> Generator<BenchWorkload> {
    let mut generator = Generator::new(Arc::default());
    let connections = vec![ConnectionKey::default()];
    generator.prepare(NullCalls::new(2).order(connections, Duration::from_secs(1)));
    generator
}

#[test]
fn a_load_starts_after_its_preparation() {
    let mut generator = prepared();
    assert_eq!(generator.phase.due(1_000), None);
    generator.start(5_000);
    assert_eq!(generator.phase.due(5_000), Some(5_000));
    assert_eq!(generator.phase.advance(5_000, 0), Some(Change::Measuring));
    assert!(generator.phase.is_measured(5_000) && !generator.phase.is_measured(4_999));
}

#[test]
fn a_connection_that_is_replaced_before_the_start_has_its_slots_once() {
    let mut generator = prepared();
    let fresh = ConnectionKey {
        index: 1,
        generation: 0,
    };
    generator.replace(ConnectionKey::default(), fresh);
    generator.start(5_000);
    assert_eq!(generator.free, [0, 1]);
    assert!(generator.slots.iter().all(|it| it.connection == fresh));
}

#[test]
fn requests_are_looked_for_by_time_however_few_polls_there_are() {
    let mut generator = prepared();
    generator.start(5_000);
    generator.phase.advance(5_000, 0);
    let second = Clock::new().ticks(Duration::from_secs(1));
    assert!(
        generator.phase.until() > second / 2,
        "no interval ends before"
    );
    generator.housekeeping_due = generator.phase.next_housekeeping(5_000);
    let next = generator.next_attention();
    assert!(next > 5_000 && next < 5_000 + second / 10);
}

#[test]
fn a_load_that_is_ended_before_its_start_makes_no_call() {
    let mut generator = prepared();
    assert_eq!(generator.phase.end(2_000), None);
    generator.start(5_000);
    assert!(generator.phase.due(5_000).is_none() && generator.phase.is_ending());
    generator.finish(5_000, &[]);
    assert!(generator.phase.is_idle());
}
