//! On shared memory, calls and replies go by their forms: the ports copy what is behind the headers, and no headers.

use rpcrdma_engine::CoreConfig;
use rpcrdma_fabric::interface::prelude::*;
use rpcrdma_protocol::connection::Versions;

use crate::support::{ECHO, LATER, NULL, Pair, pattern};

/// Octets that the ports of client and server have copied out of rings.
fn copied(pair: &Pair) -> (u64, u64) {
    let of = |counters: Vec<(&str, u64)>| {
        let found = counters
            .into_iter()
            .find(|(name, _)| *name == "bytes_copied");
        found.expect("a counter of shm").1
    };
    (
        of(pair.client.core.port().counters()),
        of(pair.server.core.port().counters()),
    )
}

#[test]
fn calls_and_replies_go_without_their_headers() {
    for versions in [Versions::One, Versions::Two] {
        let mut pair = Pair::new(&CoreConfig::default());
        let client = pair.connect_with(versions, versions);
        // The first message of a connection goes as octets where its version is not agreed.
        pair.ask(client, NULL, &[], 0).expect("a reply");
        pair.turns(100);
        for (tag, procedure, bytes) in [(1, NULL, 0), (2, ECHO, 64), (3, ECHO, 700), (4, LATER, 40)]
        {
            let args = pattern(bytes, tag);
            let before = copied(&pair);
            assert_eq!(pair.ask(client, procedure, &args, tag), Ok(args));
            let after = copied(&pair);
            let octets = u64::try_from(bytes).expect("few");
            let what = format!("{versions:?}, {bytes} octets to procedure {procedure}");
            assert_eq!(after.0 - before.0, octets, "results, {what}");
            assert_eq!(after.1 - before.1, octets, "arguments, {what}");
        }
    }
}
