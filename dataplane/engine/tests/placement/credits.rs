//! Credits of groups, of their replies, and of calls the other way.

use super::calls::{placing_config, placing_pair};
use crate::support::bulk::{
    BulkApp, BulkPair, GIVE, GIVE_LATER, HOLD, TAKE, Wanted, asking, given,
};
use crate::support::fabric::{rounds, some_of, unless_skipped};
use crate::support::pattern;
use rpcrdma_engine::{CallRefused, ConnectionKey, CoreConfig, Placement};
use rpcrdma_protocol::v2::ReverseRequestSupport;

/// Segments of 4 KiB, and windows of so many credits.
fn config(credits_per_connection: u16) -> CoreConfig {
    CoreConfig {
        credits_per_connection,
        ..placing_config(1, 4096, 64)
    }
}

fn pair(client: u16, server: u16) -> BulkPair {
    placing_pair(&config(client), &config(server))
}

/// Items and results within one message, in one transmission, in several, and by other means.
const SIZES: [usize; 4] = [40, 3000, 12_000, 60_000];

fn calls(connection: ConnectionKey) -> Vec<Wanted> {
    let mut calls = Vec::new();
    for placement in [Placement::Auto, Placement::Inline, Placement::Send] {
        for procedure in [TAKE, GIVE, GIVE_LATER] {
            for size in SIZES {
                // The longer ones do not go into the smallest windows.
                let placement = match placement {
                    Placement::Send if size > 4096 => Placement::Rdma,
                    placement => placement,
                };
                let tag = calls.len() as u64;
                let bytes = u32::try_from(size).expect("small");
                let gives = procedure != TAKE;
                calls.push(Wanted {
                    args: asking(&[bytes]),
                    items: vec![(8, pattern(size, tag))],
                    expected: if gives { vec![bytes] } else { Vec::new() },
                    results_bytes_max: 100,
                    ..Wanted::new(connection, procedure, placement, tag)
                });
            }
        }
    }
    calls
}

/// The bytes that were asked for came, in the stream or beside it.
fn assert_given(stream: &[u8], items: &[Vec<u8>], size: usize) {
    let found = match items.first() {
        Some(item) => item.as_slice(),
        None => &stream[4..4 + size],
    };
    let bytes = u32::try_from(size).expect("small");
    assert!(found == given(0, bytes), "{size} bytes");
}

fn assert_all_succeeded(app: &BulkApp, calls: usize) {
    for tag in 0..calls {
        let ended = app.result(tag as u64).expect("it ended");
        let (stream, items) = ended.as_ref().expect("it succeeds");
        if (tag / SIZES.len()).is_multiple_of(3) {
            continue;
        }
        let size = SIZES[tag % SIZES.len()];
        assert_given(stream, items, size);
    }
}

/// The smallest windows carry what there is, by groups or by other means, as long as one end calls.
#[test]
fn windows_of_a_single_credit_carry_calls_one_way() {
    unless_skipped!("windows_of_a_single_credit_carry_calls_one_way");
    for (client, server) in some_of([(1, 1), (2, 1), (1, 2), (2, 2), (3, 3), (1, 8), (8, 1)]) {
        let mut pair = pair(client, server);
        let (connection, _) = pair.connect();
        let calls = calls(connection);
        let count = calls.len();
        pair.client.app_mut().wanted.extend(calls);
        pair.until("all replies", |pair| pair.client.app().ended.len() == count);
        assert_all_succeeded(pair.client.app(), count);
        assert!(pair.server.counters().bulk_bytes_placed > 0);
        pair.all_home();
    }
}

/// Both ends call each other with all that there is, by groups among other means. One window of three credits is enough.
#[test]
fn both_ends_place_at_once_down_to_the_last_credit() {
    unless_skipped!("both_ends_place_at_once_down_to_the_last_credit");
    let windows = [
        (3, 3),
        (4, 4),
        (8, 8),
        (32, 32),
        (2, 3),
        (3, 2),
        (1, 3),
        (3, 1),
    ];
    for (client, server) in some_of(windows) {
        let mut pair = pair(client, server);
        let (client, server) = pair.connect();
        let (forward, reverse) = (calls(client), calls(server));
        let count = forward.len();
        pair.client.app_mut().wanted.extend(forward);
        pair.server.app_mut().wanted.extend(reverse);
        pair.until_ended(count, count);
        for side in [&pair.client, &pair.server] {
            assert_all_succeeded(side.app(), count);
            assert!(side.counters().bulk_bytes_placed > 0);
        }
        pair.all_home();
    }
}

/// The credits that calls of the client reserved for their replies are there for these, however many calls the server
/// makes meanwhile.
#[test]
fn calls_the_other_way_use_what_is_left_beside_reserved_replies() {
    let mut pair = pair(8, 8);
    let (client, server) = pair.connect();
    let reserving =
        |procedure, tag| Wanted::new(client, procedure, Placement::Send, tag).asking(&[16_000]);
    let app = pair.client.app_mut();
    app.wanted.push_back(reserving(HOLD, 100));
    pair.until("the call", |pair| pair.server.app().held.len() == 1);
    // Four transmissions of 4096 octets, of a window of eight credits.
    let reserved = 4;
    for tag in 0..40 {
        let app = pair.server.app_mut();
        app.wanted.push_back(Wanted {
            args: asking(&[0]),
            ..Wanted::new(server, HOLD, Placement::Inline, tag)
        });
    }
    let mut made = 0;
    for _ in 0..rounds(100) {
        // At every moment: what was used up comes back with the next grant.
        for _ in 0..10 {
            pair.turns_exactly(1);
            let credits = pair.server.core.credits(server).expect("it is there");
            assert!(credits.unused() >= reserved, "{credits:?}");
        }
        pair.turns(0);
        made = pair.client.app().held.len();
    }
    assert!(made >= 4, "{made}: the surplus is used");
    // Nor does the client reserve what the server needs for its calls.
    for tag in 200..210 {
        let app = pair.client.app_mut();
        app.wanted.push_back(reserving(HOLD, tag));
    }
    pair.turns(200);
    let held = pair.server.app().held.len();
    assert!(
        held * 4 < 8,
        "{held} calls, whose replies are of four transmissions each, and a credit for calls of the server"
    );
}

/// The client takes calls without chunks alone: bulk data that Sends place is none, and nothing is exposed.
#[test]
fn calls_that_may_have_no_chunks_are_placed_or_in_the_stream() {
    unless_skipped!("calls_that_may_have_no_chunks_are_placed_or_in_the_stream");
    for level in [
        ReverseRequestSupport::Inline,
        ReverseRequestSupport::General,
    ] {
        let mut pair = pair(32, 32);
        for properties in [&mut pair.client.properties, &mut pair.server.properties] {
            properties.reverse_requests = level;
        }
        let (_, server) = pair.connect();
        let wanted = |placement, size: usize, tag| {
            Wanted::new(server, GIVE, placement, tag)
                .asking(&[u32::try_from(size).expect("small")])
                .with_item(pattern(size, tag))
        };
        // Too long to be placed: by explicit RDMA where that may be, else in the stream of many messages.
        let long = 500_000;
        let app = pair.server.app_mut();
        app.wanted.push_back(wanted(Placement::Send, 4096, 0));
        app.wanted.push_back(wanted(Placement::Auto, 4096, 1));
        app.wanted.push_back(wanted(Placement::Auto, long, 2));
        app.wanted.push_back(wanted(Placement::Rdma, 4096, 3));
        pair.until("an end of all calls", |pair| {
            let app = pair.server.app();
            app.refused.len() + app.ended.len() == 4
        });
        let is_general = level == ReverseRequestSupport::General;
        let app = pair.server.app();
        let refused = [(3, CallRefused::NoPlacement)];
        assert_eq!(app.refused, if is_general { &[][..] } else { &refused });
        for (tag, size) in [(0, 4096), (1, 4096), (2, long)] {
            let (stream, items) = app.result(tag).expect("ended").as_ref().expect("succeeds");
            assert_given(stream, items, size);
            assert_eq!(items.is_empty(), tag == 2 && !is_general, "call {tag}");
        }
        let [client, server] = [&pair.client, &pair.server].map(|it| it.counters());
        assert_eq!(
            (client.bulk_bytes_placed, server.bulk_bytes_placed),
            (8192, 8192)
        );
        assert_eq!(server.windows_bound != 0, is_general);
        assert_eq!(client.rdma_reads != 0, is_general);
        assert_eq!(
            server.errors_received, 0,
            "nothing was sent that had to be refused"
        );
        pair.all_home();
    }
}
