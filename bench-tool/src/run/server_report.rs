//! What the server reports of itself: its record before the first call, and its counters before the first call and
//! after the last one. These calls run on a core of the load, because only these cores have connections.

use std::collections::BTreeMap;
use std::time::Duration;

use rpcrdma_protocol::rpc::OpaqueAuth;
use rpcrdma_protocol::xdr::Reader;
use serde_json::Value;

use crate::bench_program::{self, COUNTERS, FACTS, FACTS_BYTES_MAX};
use crate::load::connections::Connections;
use crate::load::control::SingleCall;
use crate::load::cores::LoadCores;
use crate::workloads::bench::BenchWorkload;

/// Counters by name.
pub(super) type Counts = BTreeMap<String, u64>;

/// Time limit of the call.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Upper bound of a counter's name in bytes.
const NAME_BYTES_MAX: usize = 256;

/// The counters, asked for on the first connection. Returns `None` if the server does not report them.
pub(super) fn ask(cores: &LoadCores<BenchWorkload>, connections: &Connections) -> Option<Counts> {
    decode(&call(COUNTERS, cores, connections)?)
}

/// The server's record. Returns `None` if the server does not report it, as one of an earlier version.
pub(super) fn facts(cores: &LoadCores<BenchWorkload>, connections: &Connections) -> Option<Value> {
    decode_facts(&call(FACTS, cores, connections)?)
}

/// The results of a procedure without arguments.
fn call(
    procedure: u32,
    cores: &LoadCores<BenchWorkload>,
    connections: &Connections,
) -> Option<Vec<u8>> {
    let first = connections.first()?;
    let call = SingleCall {
        connection: first.key,
        call: bench_program::call(procedure),
        credential: (OpaqueAuth::NONE.flavor, Vec::new()),
        args: Vec::new(),
        results_bytes_max: 0,
        data_bytes_max: 0,
    };
    let reply = cores.control(first.core).call(call, ANSWER_TIMEOUT);
    reply.ok().map(|reply| reply.results)
}

/// Decodes the results of FACTS.
fn decode_facts(results: &[u8]) -> Option<Value> {
    let mut reader = Reader::new(results);
    let json = reader.read_opaque(FACTS_BYTES_MAX).ok()?;
    serde_json::from_slice(json)
        .ok()
        .filter(|_| reader.is_at_end())
}

/// Decodes the results of COUNTERS.
fn decode(results: &[u8]) -> Option<Counts> {
    let mut reader = Reader::new(results);
    let count = reader.read_u32().ok()?;
    let mut counts = Counts::new();
    for _ in 0..count {
        let name = reader.read_opaque(NAME_BYTES_MAX).ok()?;
        let name = std::str::from_utf8(name).ok()?.to_owned();
        counts.insert(name, reader.read_u64().ok()?);
    }
    reader.is_at_end().then_some(counts)
}

/// The differences between two readings.
pub(super) fn since(after: &Counts, before: &Counts) -> Counts {
    let difference = |(name, value): (&String, &u64)| {
        let before = before.get(name).copied().unwrap_or(0);
        (name.clone(), value.saturating_sub(before))
    };
    after.iter().map(difference).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_whole_or_not_at_all() {
        let results = [
            &[0, 0, 0, 2, 0, 0, 0, 5][..],
            b"polls\0\0\0",
            &[0, 0, 0, 0, 0, 0, 1, 0],
            &[0, 0, 0, 4],
            b"idle",
            &[0, 0, 0, 0, 0, 0, 0, 7],
        ]
        .concat();
        let counts = Counts::from([("polls".to_owned(), 256), ("idle".to_owned(), 7)]);
        assert_eq!(decode(&results), Some(counts.clone()));
        for end in 0..results.len() {
            assert_eq!(decode(&results[..end]), None, "{end}");
        }
        let facts = [&[0, 0, 0, 10][..], br#"{"host":7}"#, &[0, 0]].concat();
        assert_eq!(decode_facts(&facts), Some(serde_json::json!({"host": 7})));
        for end in 0..facts.len() {
            assert_eq!(decode_facts(&facts[..end]), None, "{end}");
        }
        let before = Counts::from([("polls".to_owned(), 56)]);
        let expected = Counts::from([("polls".to_owned(), 200), ("idle".to_owned(), 7)]);
        assert_eq!(since(&counts, &before), expected);
    }
}
