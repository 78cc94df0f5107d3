//! Calls and replies like those before: what a slot has found out of a header, and planned for it,
//! holds for as long as everything is the same that it depends on.

use crate::support::bulk::{BulkPair, GIVE, TAKE, Wanted, asking, given};
use crate::support::fabric::unless_skipped;
use crate::support::pattern;

use rpcrdma_engine::{ConnectionKey, Placement};

use super::calls::{placing_config, placing_pair};

/// Writes an item, and looks at what came.
fn write(pair: &mut BulkPair, connection: ConnectionKey, (size, tag): (usize, u64), by: Placement) {
    pair.run_whole(Wanted {
        args: pattern(8, 5),
        items: vec![(8, pattern(size, tag))],
        ..Wanted::new(connection, TAKE, by, tag)
    });
}

/// Asks for a result of `size` bytes in a call that would take 8000.
fn read(pair: &mut BulkPair, connection: ConnectionKey, (size, tag): (u32, u64), by: Placement) {
    let wanted = Wanted {
        args: asking(&[size]),
        expected: vec![8000],
        results_bytes_max: 100,
        ..Wanted::new(connection, GIVE, by, tag)
    };
    let (_, items) = pair.run(wanted);
    assert!(items == [given(0, size)], "{size} bytes, call {tag}");
}

#[test]
fn calls_that_repeat_themselves_and_others_between_them() {
    unless_skipped!("calls_that_repeat_themselves_and_others_between_them");
    let config = placing_config(1, 65_536, 64);
    let mut pair = placing_pair(&config, &config);
    let (connection, _) = pair.connect();
    let mut tags = 1..;
    let mut tag = || tags.next().unwrap_or(0);
    for _ in 0..3 {
        for size in [5000, 5000, 5000, 4999, 5000, 70_000, 5000] {
            write(&mut pair, connection, (size, tag()), Placement::Send);
        }
        // The same call each time, but for the words of its stream.
        for size in [5000, 5000, 1, 8000, 5000, 5000] {
            read(&mut pair, connection, (size, tag()), Placement::Send);
        }
        write(&mut pair, connection, (5000, tag()), Placement::Rdma);
        read(&mut pair, connection, (5000, tag()), Placement::Rdma);
        write(&mut pair, connection, (5000, tag()), Placement::Inline);
    }
    pair.all_home();
    let server = pair.server.counters();
    assert_eq!((server.rdma_reads, server.rdma_writes), (3, 3));
    assert_eq!(server.bulk_bytes_placed, 3 * (5 * 5000 + 4999 + 70_000));
}

/// Two connections take turns in the same slots.
#[test]
fn calls_of_two_connections_by_turns() {
    let config = placing_config(1, 65_536, 64);
    let mut pair = placing_pair(&config, &config);
    let (one, _) = pair.connect();
    let (other, _) = pair.connect();
    for (connection, tag) in [one, other, other, one, one].into_iter().zip(1..) {
        write(&mut pair, connection, (5000, tag), Placement::Send);
        read(&mut pair, connection, (5000, tag + 100), Placement::Send);
    }
    pair.all_home();
}
