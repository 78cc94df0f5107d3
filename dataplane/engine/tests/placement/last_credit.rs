//! Both ends call each other with groups that take all credits, in every order in which the two can
//! run: nobody waits for ever, and nothing is lost.

use super::calls::{placing_config, placing_pair};
use crate::TestFabric;
use crate::support::bulk::{BulkApp, BulkPair, GIVE, Wanted, given};
use crate::support::fabric::Fabric;
use crate::support::pattern;
use rpcrdma_engine::{CoreConfig, Placement};

/// Iterations whose order is tried in full; then the two take turns.
const STEPS: u32 = 11;

/// Two pages, which take two transmissions of one placement segment each.
const ITEM_BYTES: u32 = 8192;

/// Turns in which all calls end: far less time than it takes to a keep-alive.
const TURNS: usize = 200;

/// Calls that each end wants to make at once.
const CALLS: u64 = 2;

fn wanted(connection: rpcrdma_engine::ConnectionKey, tag: u64) -> Wanted {
    Wanted::new(connection, GIVE, Placement::Send, tag)
        .asking(&[ITEM_BYTES])
        .with_item(pattern(ITEM_BYTES as usize, tag))
}

/// Runs one end or the other, as the bits of `order` say.
fn run_in_order(pair: &mut BulkPair, order: u32) {
    for step in 0..STEPS {
        pair.now += pair.clock.ticks(TestFabric::TURN);
        if order >> step & 1 == 0 {
            pair.client.iterate(pair.now);
        } else {
            pair.server.iterate(pair.now);
        }
        TestFabric::work();
    }
}

fn the_last_credit_goes_round(credits_per_connection: u16) {
    let config = CoreConfig {
        credits_per_connection,
        ..placing_config(1, 4096, 16)
    };
    let mut pair = placing_pair(&config, &config);
    let (of_client, of_server) = pair.connect();
    let page = given(0, ITEM_BYTES);
    // All of them where nothing is slow, and some where a device moves the bytes.
    let one_in = TestFabric::ONE_CASE_IN.pow(2) as usize;
    for order in (0..1 << STEPS).step_by(one_in) {
        for tag in 0..CALLS {
            let application = pair.client.app_mut();
            application.wanted.push_back(wanted(of_client, tag));
            let application = pair.server.app_mut();
            application.wanted.push_back(wanted(of_server, tag));
        }
        run_in_order(&mut pair, order);
        pair.turns(TURNS);
        let ended = |app: &BulkApp| app.ended.len() as u64 == CALLS;
        let all_ended = ended(pair.client.app()) && ended(pair.server.app());
        assert!(all_ended, "they wait, order {order:b}");
        for side in [&mut pair.client, &mut pair.server] {
            let application = side.app_mut();
            assert_eq!(application.refused, [], "order {order:b}");
            for (tag, ending) in application.ended.drain(..) {
                let (_, items) = ending.expect("it succeeds");
                assert!(items == [page.clone()], "call {tag}, order {order:b}");
            }
            assert_eq!(application.taken.len() as u64, CALLS, "order {order:b}");
            application.taken.clear();
        }
    }
    pair.all_home();
    for (side, key) in [(&pair.client, of_client), (&pair.server, of_server)] {
        let credits = side.core.credits(key).expect("it is there");
        assert_eq!(credits.receives_posted, config.receives_per_connection());
        let counters = side.counters();
        assert!(counters.awaiting_credit > 0, "credits are short");
        assert_eq!(counters.bulk_calls_retried, 0, "each call is a group");
        assert_eq!(counters.rdma_reads + counters.rdma_writes, 0);
    }
}

#[test]
fn of_four_credits_the_last_one_goes_round() {
    the_last_credit_goes_round(4);
}

#[test]
fn of_five_credits_the_last_one_goes_round() {
    the_last_credit_goes_round(5);
}

#[test]
fn of_eight_credits_the_last_one_goes_round() {
    the_last_credit_goes_round(8);
}
