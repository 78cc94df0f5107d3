//! What the server counted: asked for before the first call and after the last one, on the core that
//! makes the calls, because nobody else has connections.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rpcrdma_engine::{CallError, CallTag, ConnectionKey, Context, Reply};
use rpcrdma_fabric::interface::Port;
use rpcrdma_protocol::xdr::Reader;

use crate::bench_program::{self, COUNTERS};

/// Counters by name.
pub(crate) type Counts = BTreeMap<String, u64>;

/// The tag of the call, which no slot of a load has.
pub(super) const TAG: CallTag = CallTag::MAX;

/// How long the answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// How soon the answer is noticed.
const LOOK_PERIOD: Duration = Duration::from_millis(1);

/// The longest name of a counter.
const NAME_BYTES_MAX: usize = 256;

/// A question to the server, passed from the thread that sets a load up to its first generator.
#[derive(Debug, Default)]
pub(crate) struct Question {
    /// Questions asked so far.
    asked: AtomicU32,
    /// Questions answered so far.
    answered: AtomicU32,
    exchange: Mutex<Exchange>,
}

#[derive(Debug, Default)]
struct Exchange {
    connection: ConnectionKey,
    /// `None` where the server did not say.
    answer: Option<Counts>,
}

impl Question {
    /// Asks on `connection`, and waits for the answer; `None` where there is none.
    pub(crate) fn ask(&self, connection: ConnectionKey) -> Option<Counts> {
        if let Ok(mut exchange) = self.exchange.lock() {
            exchange.connection = connection;
        }
        // SYNC POINT probe-asked: pairs with the Acquire load in `Question::is_open`.
        let number = self.asked.fetch_add(1, Ordering::Release) + 1;
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        // SYNC POINT probe-answered: pairs with the Release store in `Question::answer`.
        while self.answered.load(Ordering::Acquire) != number {
            if Instant::now() > deadline {
                return None;
            }
            std::thread::sleep(LOOK_PERIOD);
        }
        self.exchange.lock().ok()?.answer.take()
    }

    /// Whether a question was asked after `number` of them.
    pub(super) fn is_open(&self, number: u32) -> bool {
        // SYNC POINT probe-asked: pairs with the Release in `Question::ask`.
        self.asked.load(Ordering::Acquire) != number
    }

    /// Makes the call. False when it cannot be made now.
    pub(super) fn call<P: Port>(&self, core: &mut Context<'_, P>) -> bool {
        let Ok(connection) = self.exchange.lock().map(|exchange| exchange.connection) else {
            return false;
        };
        match core.call(connection, bench_program::call(COUNTERS), &[], TAG) {
            Ok(()) => true,
            Err(refused) if refused.is_transient() => false,
            Err(_) => {
                self.answer(None);
                true
            }
        }
    }

    /// The call has ended.
    pub(super) fn completed(&self, result: Result<Reply<'_>, CallError>) {
        self.answer(result.ok().and_then(|reply| decode(reply.results)));
    }

    fn answer(&self, answer: Option<Counts>) {
        if let Ok(mut exchange) = self.exchange.lock() {
            exchange.answer = answer;
        }
        // SYNC POINT probe-answered: pairs with the Acquire load in `Question::ask`.
        self.answered.fetch_add(1, Ordering::Release);
    }
}

/// The results of COUNTERS.
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

/// What was counted between two readings.
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
        let before = Counts::from([("polls".to_owned(), 56)]);
        let expected = Counts::from([("polls".to_owned(), 200), ("idle".to_owned(), 7)]);
        assert_eq!(since(&counts, &before), expected);
    }
}
