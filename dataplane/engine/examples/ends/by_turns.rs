//! Both cores by turns in one thread: the work of a call at both ends, without the way between processors.

use std::time::Duration;

use rpcrdma_engine::Application;

use super::ends::End;

/// Runs both cores by turns. Not inlined: callgrind counts what this function does.
#[inline(never)]
pub(crate) fn iterate_both<C: Application, S: Application>(
    client: &mut End<C>,
    server: &mut End<S>,
    iterations: usize,
) {
    for _ in 0..iterations {
        let _ = client.core.iterate();
        let _ = server.core.iterate();
    }
}

/// What the rounds of a measurement took.
pub(crate) struct Rounds {
    /// Nanoseconds of a call in the quickest round.
    pub(crate) best_ns: f64,
    /// The calls of all rounds.
    pub(crate) calls: u64,
}

impl Rounds {
    pub(crate) fn new() -> Self {
        Self {
            best_ns: f64::MAX,
            calls: 0,
        }
    }

    /// A round of `calls` calls took this time.
    pub(crate) fn add(&mut self, took: Duration, calls: u64) {
        #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
        let each_ns = took.as_secs_f64() * 1e9 / calls as f64;
        self.best_ns = self.best_ns.min(each_ns);
        self.calls += calls;
    }
}
